/*
 * What a process does with its word of struct hv_slot_contexts: it opens it
 * before it changes context_bytes, which takes over what the daemon has given
 * up until then, and closes it afterwards. A step machine like the ledger's,
 * for the same reason; hypervisor_contexts.h states the protocol. One thread of
 * a process at a time.
 */
#ifndef HV_CONTEXTS_H
#define HV_CONTEXTS_H

#include "hypervisor_contexts.h"

/* Open, nothing given up, counted on; of the slot that has this state. */
static inline uint64_t hv_contexts_opened(uint64_t word, uint64_t state)
{
    uint64_t count = hv_contexts_count(word) % HV_CONTEXTS_COUNT_MASK + 1; /* 0 is for words that never were */
    return (state >> 8 & HV_CONTEXTS_SEQUENCE_MASK) << HV_CONTEXTS_SEQUENCE_AT | count << HV_CONTEXTS_COUNT_AT |
           HV_CONTEXTS_OPEN;
}

enum hv_open_step {
    HV_OPEN_LOAD,        /* read the word */
    HV_OPEN_MARK,        /* in_flight += what was given up */
    HV_OPEN_SWAP,        /* open it; nothing is given up any more */
    HV_OPEN_BACK,        /* in_flight -= it: the word has changed, look again */
    HV_OPEN_BYTES,       /* bytes -= it */
    HV_OPEN_CONTEXT,     /* context_bytes -= it */
    HV_OPEN_TOTAL,       /* read total */
    HV_OPEN_EPOCH,       /* the next epoch of total, so that who recounts meanwhile looks again */
    HV_OPEN_UNMARK,      /* in_flight -= it */
    HV_OPEN_DONE,        /* over: context_bytes may be changed */
};

struct hv_contexts_open {
    uint64_t *word;
    uint64_t *total;
    uint64_t *bytes;
    uint64_t *in_flight;
    uint64_t *context_bytes;
    uint64_t state; /* of the slot */
    uint64_t seen;  /* the word as read; when it is over, as it stands */
    uint64_t n;     /* what was given up */
    uint64_t seen_total;
    enum hv_open_step at;
};

static inline void hv_contexts_open_step(struct hv_contexts_open *open)
{
    switch (open->at) {
    case HV_OPEN_LOAD:
        open->seen = hv_load_acquire(open->word);
        open->n = hv_contexts_given_up(open->seen, open->state);
        open->at = open->n == 0 ? HV_OPEN_SWAP : HV_OPEN_MARK;
        break;
    case HV_OPEN_MARK:
        hv_add_acq_rel(open->in_flight, open->n);
        open->at = HV_OPEN_SWAP;
        break;
    case HV_OPEN_SWAP: {
        uint64_t opened = hv_contexts_opened(open->seen, open->state);
        if (!hv_cas_acq_rel(open->word, &open->seen, opened)) {
            open->at = open->n == 0 ? HV_OPEN_LOAD : HV_OPEN_BACK;
            break;
        }
        open->seen = opened;
        open->at = open->n == 0 ? HV_OPEN_DONE : HV_OPEN_BYTES;
        break;
    }
    case HV_OPEN_BACK:
        hv_sub_acq_rel(open->in_flight, open->n);
        open->at = HV_OPEN_LOAD;
        break;
    case HV_OPEN_BYTES:
        hv_sub_acq_rel(open->bytes, open->n);
        open->at = HV_OPEN_CONTEXT;
        break;
    case HV_OPEN_CONTEXT:
        hv_sub_acq_rel(open->context_bytes, open->n);
        open->at = HV_OPEN_TOTAL;
        break;
    case HV_OPEN_TOTAL:
        open->seen_total = hv_load_relaxed(open->total); /* the swap orders it */
        open->at = HV_OPEN_EPOCH;
        break;
    case HV_OPEN_EPOCH:
        if (hv_cas_acq_rel(open->total, &open->seen_total,
                           hv_total_changed(open->seen_total, hv_total_bytes(open->seen_total))))
            open->at = HV_OPEN_UNMARK;
        break;
    case HV_OPEN_UNMARK:
        hv_sub_acq_rel(open->in_flight, open->n);
        open->at = HV_OPEN_DONE;
        break;
    case HV_OPEN_DONE:
        break;
    }
}

/* By the process, which has changed context_bytes. */
static inline void hv_contexts_close(uint64_t *word, uint64_t opened)
{
    hv_store_release(word, opened & ~HV_CONTEXTS_OPEN);
}

#endif
