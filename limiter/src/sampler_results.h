/* What a sample has found out, for sampler.c, which holds the lock: how long the launch took, what of that is the Pod's
 * own, and whether it is other work than it was charged for. */
#ifndef HV_SAMPLER_RESULTS_H
#define HV_SAMPLER_RESULTS_H

#include <stdbool.h>
#include <stdint.h>

#include "files.h"
#include "sampler.h"

/* The launch has ended, elapsed_ns after its start event: learn from it. */
struct hv_sample_result hv_sample_result_of(struct hv_sampler *sampler, struct hv_sample *sample,
                                            const struct hv_files *files, uint64_t elapsed_ns, uint64_t now_ns);

/* The sum of what has ended only grows: streams overtake each other. Returns by how much. */
uint64_t hv_sample_advance_ended(struct hv_sampler *sampler, const struct hv_sample *sample);

/* Has the daemon told who else was at work on the device in the last window? */
static inline bool hv_neighbours_told(const struct hv_files *files, uint32_t device, uint64_t now_ns)
{
    return hv_load_relaxed(&files->control[device]->neighbours) >> HV_BORROWED_SHARE_BITS > now_ns / 1000000;
}

/* A correction was found out, and whoever found it is silent. */
bool hv_sample_is_held(const struct hv_files *files, uint32_t device, uint64_t now_ns);

/* Processes that have turns on the device, as far as the daemon has told; 0: it never has. */
uint32_t hv_sample_crowd(const struct hv_files *files, uint32_t device, uint64_t now_ns);

#endif
