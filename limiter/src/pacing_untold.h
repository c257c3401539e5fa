/*
 * The beginning of a process, before anybody has told how many turns others
 * have on the device: what a long launch is measured to take then may be half
 * others' time.
 */
#ifndef HV_PACING_UNTOLD_H
#define HV_PACING_UNTOLD_H

#include "pacing_gate.h"

/* What of a long launch's GPU time is to be placed; the rest is owed until somebody tells. All of it, but for the
 * first moments of a process. */
uint64_t hv_untold_placed(const struct hv_gate *gate, uint64_t gpu_ns);

/* Has the daemon told, and not so long ago that it is nothing any more? */
bool hv_untold_is_told(const struct hv_gate *gate);

/* The first moments of the process, and the half second in which that is set right, are over. */
bool hv_untold_is_over(const struct hv_gate *gate);

/* Of what a launch that has ended took, so much was measured while nobody told. */
void hv_untold_note(struct hv_gate *gate, const struct hv_sample_result *result);

/* Once somebody has told: what was measured before that is less by others' turns. */
void hv_untold_settle(struct hv_gate *gate);

/* The same for what the function was learned to cost. */
void hv_untold_price(const struct hv_gate *gate, struct hv_function *function);

#endif
