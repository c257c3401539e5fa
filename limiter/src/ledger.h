/*
 * The memory ledger: reserve, release and recount, as step machines. Each step
 * makes exactly one access to shared memory, so that a test can explore every
 * interleaving and every death between two steps; in the library the loop over
 * the steps compiles to straight code.
 *
 * What must hold at every step, whoever dies where, of bytes less what was
 * given up of them (hypervisor_contexts.h):
 *   total >= sum of bytes over live slots
 *   sum of (in_flight + bytes) over live slots >= what is held
 * so a grant never takes the Pod over its limit.
 */
#ifndef HV_LEDGER_H
#define HV_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hypervisor_atomics.h"
#include "hypervisor_contexts.h"
#include "hypervisor_limits.h"

/* The words of one account: of a device, or of pinned host memory. */
struct hv_account {
    uint64_t *total;     /* of the Pod: epoch and bytes */
    uint64_t *bytes;     /* of this process */
    uint64_t *in_flight; /* of this process */
    uint64_t *peak;      /* the most that total ever was, for people; NULL: nobody asks */
};

enum hv_ledger_step {
    HV_LEDGER_MARK,    /* in_flight += n */
    HV_LEDGER_LOAD,    /* read total */
    HV_LEDGER_CHANGE,  /* compare-and-swap total */
    HV_LEDGER_OWN,     /* bytes += n, or -= n */
    HV_LEDGER_UNMARK,  /* in_flight -= n */
    HV_LEDGER_REFUSE,  /* in_flight -= n, the reservation did not fit */
    HV_LEDGER_GRANTED, /* over */
    HV_LEDGER_REFUSED, /* over */
};

struct hv_ledger_operation {
    struct hv_account account;
    uint64_t n;     /* bytes of this operation */
    uint64_t limit; /* most that total may be afterwards */
    uint64_t seen;  /* total as read */
    enum hv_ledger_step at;
};

static inline void hv_reserve_step(struct hv_ledger_operation *operation)
{
    switch (operation->at) {
    case HV_LEDGER_MARK:
        hv_add_acq_rel(operation->account.in_flight, operation->n);
        operation->at = HV_LEDGER_LOAD;
        break;
    case HV_LEDGER_LOAD:
        operation->seen = hv_load_relaxed(operation->account.total); /* the swap orders it */
        operation->at = HV_LEDGER_CHANGE;
        break;
    case HV_LEDGER_CHANGE: {
        uint64_t bytes = hv_total_bytes(operation->seen);
        /* Written so that nothing can wrap, whatever the file holds. */
        if (operation->limit < bytes || operation->limit - bytes < operation->n ||
            HV_TOTAL_BYTES_MASK - bytes < operation->n)
            operation->at = HV_LEDGER_REFUSE;
        else if (hv_cas_acq_rel(operation->account.total, &operation->seen,
                                hv_total_changed(operation->seen, bytes + operation->n)))
            operation->at = HV_LEDGER_OWN;
        break; /* else: somebody was faster, and `seen` is the new value */
    }
    case HV_LEDGER_OWN:
        hv_add_acq_rel(operation->account.bytes, operation->n);
        operation->at = HV_LEDGER_UNMARK;
        break;
    case HV_LEDGER_UNMARK:
        hv_sub_acq_rel(operation->account.in_flight, operation->n);
        operation->at = HV_LEDGER_GRANTED;
        break;
    case HV_LEDGER_REFUSE:
        hv_sub_acq_rel(operation->account.in_flight, operation->n);
        operation->at = HV_LEDGER_REFUSED;
        break;
    case HV_LEDGER_GRANTED:
    case HV_LEDGER_REFUSED:
        break;
    }
}

static inline void hv_release_step(struct hv_ledger_operation *operation)
{
    switch (operation->at) {
    case HV_LEDGER_MARK:
        hv_add_acq_rel(operation->account.in_flight, operation->n);
        operation->at = HV_LEDGER_OWN;
        break;
    case HV_LEDGER_OWN:
        hv_sub_acq_rel(operation->account.bytes, operation->n);
        operation->at = HV_LEDGER_LOAD;
        break;
    case HV_LEDGER_LOAD:
        operation->seen = hv_load_relaxed(operation->account.total); /* the swap orders it */
        operation->at = HV_LEDGER_CHANGE;
        break;
    case HV_LEDGER_CHANGE: {
        uint64_t bytes = hv_total_bytes(operation->seen);
        /* Less than n can only stand here if somebody scribbled: stop at zero. */
        uint64_t rest = bytes < operation->n ? 0 : bytes - operation->n;
        if (hv_cas_acq_rel(operation->account.total, &operation->seen, hv_total_changed(operation->seen, rest)))
            operation->at = HV_LEDGER_UNMARK;
        break;
    }
    case HV_LEDGER_UNMARK:
        hv_sub_acq_rel(operation->account.in_flight, operation->n);
        operation->at = HV_LEDGER_GRANTED;
        break;
    case HV_LEDGER_REFUSE:
    case HV_LEDGER_GRANTED:
    case HV_LEDGER_REFUSED:
        break;
    }
}

/*
 * The recount adds up, for each live slot, in_flight, bytes and in_flight once
 * more. Once would not do: of a release that has not yet reached the total,
 * the first reading of in_flight may come too early and that of bytes too
 * late, and the release then takes away what was no longer in the sum. With
 * the reading after bytes it is in one of the two. An operation that is under
 * way at both readings counts twice, which errs on the high side and is healed
 * by the next recount.
 */
enum hv_recount_step {
    HV_RECOUNT_LOAD_TOTAL,
    HV_RECOUNT_STATE,
    HV_RECOUNT_IN_FLIGHT_BEFORE,
    HV_RECOUNT_BYTES,
    HV_RECOUNT_GIVEN_UP,
    HV_RECOUNT_IN_FLIGHT_AFTER,
    HV_RECOUNT_REPLACE,
    HV_RECOUNT_HEALED,  /* over: total was replaced */
    HV_RECOUNT_RIGHT,   /* over: total was right, or no better figure can be had now */
    HV_RECOUNT_RACED,   /* over: total moved meanwhile; try again */
};

struct hv_recount {
    uint64_t *total;
    uint64_t seen;
    uint64_t sum;
    uint64_t state; /* of the slot that is being read */
    uint64_t bytes; /* of that slot */
    uint32_t slot;  /* next to read */
    bool quiet;    /* no operation was under way */
    enum hv_recount_step at;
};

/* Where the recount finds the words of slot i; NULL: that slot can't be other
 * than free. */
struct hv_recount_words {
    uint64_t *state;
    uint64_t *bytes;
    uint64_t *in_flight;
    uint64_t *contexts; /* what was given up of bytes; NULL: nothing ever is */
};
typedef bool hv_recount_lookup(const void *slots, uint32_t slot, struct hv_recount_words *words);

static inline void hv_recount_next(struct hv_recount *recount, uint32_t slot_count)
{
    recount->slot++;
    recount->at = recount->slot < slot_count ? HV_RECOUNT_STATE : HV_RECOUNT_REPLACE;
}

static inline void hv_recount_step(struct hv_recount *recount, const void *slots, uint32_t slot_count,
                                   hv_recount_lookup *lookup)
{
    struct hv_recount_words words = {0};
    if (recount->at >= HV_RECOUNT_STATE && recount->at <= HV_RECOUNT_IN_FLIGHT_AFTER &&
        !lookup(slots, recount->slot, &words)) {
        hv_recount_next(recount, slot_count);
        return;
    }
    switch (recount->at) {
    case HV_RECOUNT_LOAD_TOTAL:
        recount->seen = hv_load_acquire(recount->total);
        recount->sum = 0;
        recount->slot = 0;
        recount->quiet = true;
        recount->at = HV_RECOUNT_STATE;
        break;
    case HV_RECOUNT_STATE:
        recount->state = hv_load_acquire(words.state);
        if ((recount->state & 0xff) == HV_SLOT_LIVE)
            recount->at = HV_RECOUNT_IN_FLIGHT_BEFORE;
        else
            hv_recount_next(recount, slot_count);
        break;
    case HV_RECOUNT_IN_FLIGHT_BEFORE: {
        uint64_t in_flight = hv_load_acquire(words.in_flight);
        recount->quiet &= in_flight == 0;
        recount->sum += in_flight;
        recount->at = HV_RECOUNT_BYTES;
        break;
    }
    case HV_RECOUNT_BYTES:
        recount->bytes = hv_load_acquire(words.bytes);
        if (words.contexts == NULL)
            recount->sum += recount->bytes;
        recount->at = words.contexts == NULL ? HV_RECOUNT_IN_FLIGHT_AFTER : HV_RECOUNT_GIVEN_UP;
        break;
    case HV_RECOUNT_GIVEN_UP: {
        uint64_t given_up = hv_contexts_given_up(hv_load_acquire(words.contexts), recount->state);
        /* More than there is: the slot is another's by now, or somebody scribbled. */
        recount->sum += recount->bytes > given_up ? recount->bytes - given_up : 0;
        recount->at = HV_RECOUNT_IN_FLIGHT_AFTER;
        break;
    }
    case HV_RECOUNT_IN_FLIGHT_AFTER: {
        uint64_t in_flight = hv_load_acquire(words.in_flight);
        recount->quiet &= in_flight == 0;
        recount->sum += in_flight;
        hv_recount_next(recount, slot_count);
        break;
    }
    case HV_RECOUNT_REPLACE: {
        uint64_t sum = recount->sum > HV_TOTAL_BYTES_MASK ? HV_TOTAL_BYTES_MASK : recount->sum;
        uint64_t bytes = hv_total_bytes(recount->seen);
        /* A sum taken while operations were under way may be too high: it may
         * only lower the total. */
        if (sum == bytes || (sum > bytes && !recount->quiet))
            recount->at = HV_RECOUNT_RIGHT;
        else if (hv_cas_acq_rel(recount->total, &recount->seen, hv_total_changed(recount->seen, sum)))
            recount->at = HV_RECOUNT_HEALED;
        else
            recount->at = HV_RECOUNT_RACED;
        break;
    }
    case HV_RECOUNT_HEALED:
    case HV_RECOUNT_RIGHT:
    case HV_RECOUNT_RACED:
        break;
    }
}

/* Take n bytes if total stays within limit. */
bool hv_ledger_reserve(const struct hv_account *account, uint64_t n, uint64_t limit);

/* Give n bytes back; the memory itself must be free already. */
void hv_ledger_release(const struct hv_account *account, uint64_t n);

#endif
