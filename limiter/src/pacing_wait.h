/*
 * What a launch waits for besides its place in the bucket: that its cost is found out, and that less of what the process
 * has launched is unfinished. Both waits are bounded, because what is waited for may be waiting for this launch.
 */
#ifndef HV_PACING_WAIT_H
#define HV_PACING_WAIT_H

#include <stdint.h>

#include "pacing_gate.h"

/* Charged work that the process may have unfinished. */
uint64_t hv_wait_room_ns(const struct hv_gate *gate);

/* For a launch of this process or of another one that measures it; the place will be as of when the launch came. What
 * nobody knows the cost of goes one after the other: gate->measures says that it is this one's turn. */
void hv_wait_for_cost(struct hv_gate *gate);

/* Behind hv_wait_for_cost, and with the place taken: the others who have waited take theirs. */
void hv_wait_for_others_places(struct hv_gate *gate);

void hv_wait_for_room(struct hv_gate *gate);

/* The sample of the launch has the turn from here on; NULL: nobody has. */
void hv_wait_pass_turn_on(struct hv_gate *gate, struct hv_sample *sample);

#endif
