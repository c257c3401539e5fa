/*
 * What the daemon does with the limit files, as inline functions for cffi:
 * compositions of the shared atomic accesses, so that Python never touches a
 * shared word by itself.
 */
#ifndef HYPERVISOR_DAEMON_ACCESS_H
#define HYPERVISOR_DAEMON_ACCESS_H

#include <string.h>

#include "hypervisor_atomics.h"
#include "hypervisor_limits.h"

/* CFFI BEGIN */
static inline uint64_t hv_publish_limits(struct hv_state *state, struct hv_limits *slots, const struct hv_limits *limits);
static inline uint64_t hv_generation(const struct hv_state *state);
/* CFFI END */

/* Fill the spare slot, then make it the one in force. Returns the new
 * generation. One writer only. */
static inline uint64_t hv_publish_limits(struct hv_state *state, struct hv_limits *slots, const struct hv_limits *limits)
{
    /* Relaxed: this process is the only writer of the word. */
    uint64_t next = hv_load_relaxed(&state->generation) + 1;
    memcpy(&slots[next & 1], limits, sizeof *limits);
    /* Release: whoever sees the new generation sees the slot that it selects. */
    hv_store_release(&state->generation, next);
    return next;
}

static inline uint64_t hv_generation(const struct hv_state *state)
{
    return hv_load_acquire(&state->generation);
}

#endif
