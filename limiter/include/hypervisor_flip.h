/*
 * Publishing limits and reading them, as step machines: each step makes one
 * access to the generation, or copies (a part of) a slot, so that a test can
 * explore every interleaving and every death between two steps. The daemon
 * publishes and the limiter reads through these; hypervisor_limits.h states
 * the protocol. In the product a slot is copied in one step, in the test word
 * by word.
 */
#ifndef HYPERVISOR_FLIP_H
#define HYPERVISOR_FLIP_H

#include <stdbool.h>
#include <stdint.h>

#include "hypervisor_atomics.h"

/* Copies to or from slot 0 or 1; true when all of it is done, false to be
 * called again. */
typedef bool hv_flip_copy(void *context, uint64_t slot);

enum hv_publish_step {
    HV_PUBLISH_LOAD, /* read the generation */
    HV_PUBLISH_FILL, /* fill the spare slot */
    HV_PUBLISH_TURN, /* store the next generation */
    HV_PUBLISH_DONE, /* over */
};

struct hv_flip_publish {
    uint64_t *generation;
    uint64_t next;
    enum hv_publish_step at;
};

static inline void hv_publish_step(struct hv_flip_publish *publish, hv_flip_copy *fill, void *context)
{
    switch (publish->at) {
    case HV_PUBLISH_LOAD:
        publish->next = hv_load_relaxed(publish->generation) + 1; /* only one process ever writes it */
        publish->at = HV_PUBLISH_FILL;
        break;
    case HV_PUBLISH_FILL:
        if (fill(context, publish->next & 1))
            publish->at = HV_PUBLISH_TURN;
        break;
    case HV_PUBLISH_TURN:
        hv_store_release(publish->generation, publish->next); /* who sees it sees the slot that it selects */
        publish->at = HV_PUBLISH_DONE;
        break;
    case HV_PUBLISH_DONE:
        break;
    }
}

enum hv_read_step {
    HV_READ_BEFORE, /* read the generation */
    HV_READ_COPY,   /* copy the slot that it selects */
    HV_READ_AFTER,  /* it has not moved: what was copied is whole; else again */
    HV_READ_DONE,   /* over */
};

struct hv_flip_read {
    const uint64_t *generation;
    uint64_t before; /* when it is over: of what was read */
    enum hv_read_step at;
};

static inline void hv_read_step(struct hv_flip_read *read, hv_flip_copy *copy, void *context)
{
    switch (read->at) {
    case HV_READ_BEFORE:
        read->before = hv_load_acquire(read->generation);
        read->at = HV_READ_COPY;
        break;
    case HV_READ_COPY:
        if (copy(context, read->before & 1))
            read->at = HV_READ_AFTER;
        break;
    case HV_READ_AFTER:
        hv_fence_acquire(); /* the copy is over before the generation is read again */
        read->at = hv_load_relaxed(read->generation) == read->before ? HV_READ_DONE : HV_READ_BEFORE;
        break;
    case HV_READ_DONE:
        break;
    }
}

#endif
