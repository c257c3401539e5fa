/* Lays what launches took onto the Pod's line of GPU time, also of those that have not ended, for sampler.c, which holds the
 * lock. */
#ifndef HV_SAMPLER_LAID_H
#define HV_SAMPLER_LAID_H

#include <stdbool.h>
#include <stdint.h>

#include "files.h"
#include "sampler.h"

/* The launch has begun, and its context has a clock: when, on ours. */
bool hv_sample_begin_of(const struct hv_event_clock *clock, const struct hv_sample *sample, uint64_t *begin_ns);

/* It has not ended. Those who compare accounts with the driver's can't wait for the end of a very long launch. */
void hv_sample_lay_unfinished(struct hv_sampler *sampler, const struct hv_files *files, struct hv_sample *sample,
                              uint64_t now_ns);

/* Has it taken more than it was charged, where that was a guess? Then *result says so, and so much counts as charged from
 * now on: what nobody knew of would be time in which the Pod was idle, and lost to it. */
bool hv_sample_outgrows(struct hv_sampler *sampler, struct hv_sample *sample, struct hv_sample_result *result);

/* The next launch of unknown cost may go. */
void hv_sample_pass_turn_on(struct hv_sampler *sampler, struct hv_sample *sample);

/* It has ended, measured_ns after it began. */
void hv_sample_lay_all(struct hv_sampler *sampler, const struct hv_files *files, struct hv_sample *sample,
                       uint64_t measured_ns, uint64_t now_ns);

#endif
