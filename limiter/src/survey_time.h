/*
 * What a survey has seen, as GPU time: how much time of the process's own turns
 * its launches cover together, and how much their costs would charge for them.
 * Others' turns stop all launches of the process that are under way at once,
 * so they can be told from what a launch takes itself. Pure.
 */
#ifndef HV_SURVEY_TIME_H
#define HV_SURVEY_TIME_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

#define HV_SURVEYED 24 /* launches in a survey */
#define HV_SURVEY_FITS 4 /* ways in which launches may slow each other down */

struct hv_surveyed {
    float begin_ms;
    float end_ms;
    float cost_ms; /* of its function now */
    CUstream stream;
    bool idle; /* its stream had nothing else to do, so it has begun when it was launched */
};

struct hv_survey_found {
    float covered_ms; /* own time with at least one launch under way */
    float charged_ms; /* what the costs of the launches under way in it, or parts of them, sum up to */
};

/* The launches are in the order of their beginnings. crowd: processes that have turns on the device, this one among
 * them; 0: not known. spoke: what speaks for each way by the surveys before, and with this one. False: they say nothing
 * about launches beside each other. */
bool hv_survey_time(const struct hv_surveyed *launches, uint32_t count, uint32_t crowd, uint32_t *spoke,
                    struct hv_survey_found *found);

#endif
