/*
 * How far a process's launches on a device run beside each other. Now and then
 * some launches in a row are all measured; the time that they cover together,
 * over the sum of their costs, is what of a cost is GPU time. Only where more
 * than one stream is used: in one stream the answer is known.
 */
#ifndef HV_SURVEY_H
#define HV_SURVEY_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "survey_time.h"

#define HV_SURVEYS 8   /* of which the results are kept */

struct hv_sample;
struct hv_sampler;

struct hv_survey {
    uint32_t wanted;    /* launches still to be taken into the survey under way; 0: none is */
    uint32_t under_way; /* launches of it that have not ended */
    CUstream stream;    /* of the last launch */
    bool per_thread;
    bool several;       /* another one than that was seen */
    uint64_t next_at_ns;
    uint64_t interval_ns;
    uint32_t count;     /* surveys done */
    uint32_t skipped;   /* launches before the last one began */
    uint32_t spoke[HV_SURVEY_FITS]; /* for each way in which launches may slow each other down */
    struct hv_survey_found recent[HV_SURVEYS];
    uint32_t overlap_ppm; /* 0: as HV_SHARE_FULL_PPM */
};

/* A launch into this stream comes by: is it to be taken into a survey? */
bool hv_survey_wants(struct hv_sampler *sampler, uint32_t device, CUstream stream, bool per_thread, uint64_t now_ns);

/* What of a learned cost is GPU time, because launches run beside each other. */
uint32_t hv_survey_overlap_ppm(const struct hv_sampler *sampler, uint32_t device);

/* A sample of the survey has ended and was measured: kept until all have. crowd: as for
 * hv_survey_time. */
void hv_survey_keep(struct hv_sampler *sampler, struct hv_sample *sample, uint32_t crowd, uint64_t now_ns);

/* A sample, of the survey or not, that will not be measured. */
void hv_survey_leave(struct hv_sampler *sampler, struct hv_sample *sample);

/* A cost has changed a lot: what surveys said of the one before is no help. */
void hv_survey_again(struct hv_sampler *sampler, uint32_t device, uint64_t now_ns);

#endif
