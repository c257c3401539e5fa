/*
 * The words of struct hv_slot_contexts: what the daemon has given up of a
 * process's stand-in for contexts, after it measured them. The daemon gives up
 * through these; the process's part is in limiter/src/contexts.h.
 *
 * A word holds, from the low end: one bit that says that the process changes
 * its context_bytes just now; what was given up, in units; a count, from 1, that grows
 * each time the process opens it; and the sequence of the slot's state that it
 * is about, by which one that an owner before has left is known.
 *
 *   give up (the daemon): see the word, not open, nothing given up; read
 *           context_bytes; measure; swap the word for one that gives it up, if
 *           it is still as it was; recount.
 *   open (the process): swap the word for one that is open and gives nothing
 *           up. What was given up until then is taken over: in_flight += n
 *           before the swap, and after it bytes -= n, context_bytes -= n, the
 *           next epoch of total, in_flight -= n.
 *   close:  store the word without its open bit.
 *
 * The total is lowered by a recount only, so nobody can lower it twice. A
 * recount reads bytes before the word: a stand-in that is taken over meanwhile
 * is then in one of the two at least.
 */
#ifndef HYPERVISOR_CONTEXTS_H
#define HYPERVISOR_CONTEXTS_H

#include <stdbool.h>
#include <stdint.h>

#include "hypervisor_atomics.h"
#include "hypervisor_limits.h"

#define HV_CONTEXTS_OPEN UINT64_C(1)
#define HV_CONTEXTS_UNIT_BITS 16 /* 64 KiB: what is left of a stand-in goes on counting */
#define HV_CONTEXTS_UNITS_AT 1
#define HV_CONTEXTS_UNITS_MASK ((UINT64_C(1) << 28) - 1)
#define HV_CONTEXTS_COUNT_AT 29
#define HV_CONTEXTS_COUNT_MASK ((UINT64_C(1) << 13) - 1)
#define HV_CONTEXTS_SEQUENCE_AT 42
#define HV_CONTEXTS_SEQUENCE_MASK ((UINT64_C(1) << 22) - 1)

_Static_assert(HV_TOTAL_BYTES_BITS - HV_CONTEXTS_UNIT_BITS == 28, "any amount of bytes fits");

/* Is the word about the slot while it has this state? */
static inline bool hv_contexts_are_of(uint64_t word, uint64_t state)
{
    return word >> HV_CONTEXTS_SEQUENCE_AT == (state >> 8 & HV_CONTEXTS_SEQUENCE_MASK);
}

static inline uint64_t hv_contexts_given_up(uint64_t word, uint64_t state)
{
    return hv_contexts_are_of(word, state)
               ? (word >> HV_CONTEXTS_UNITS_AT & HV_CONTEXTS_UNITS_MASK) << HV_CONTEXTS_UNIT_BITS
               : 0;
}

/* The word that gives up so many bytes, or as much less as makes whole units. */
static inline uint64_t hv_contexts_with(uint64_t word, uint64_t bytes)
{
    return word | (bytes >> HV_CONTEXTS_UNIT_BITS & HV_CONTEXTS_UNITS_MASK) << HV_CONTEXTS_UNITS_AT;
}

static inline uint64_t hv_contexts_count(uint64_t word)
{
    return word >> HV_CONTEXTS_COUNT_AT & HV_CONTEXTS_COUNT_MASK;
}

/* Can a word be given up that was seen while the slot had this state? Not one
 * that was never opened: an earlier library gives up by itself, and would do it
 * once more. */
static inline bool hv_contexts_can_be_given_up(uint64_t word, uint64_t state)
{
    return hv_contexts_are_of(word, state) && (word & HV_CONTEXTS_OPEN) == 0 && hv_contexts_count(word) != 0 &&
           hv_contexts_given_up(word, state) == 0;
}

/* By the daemon: give up bytes that context_bytes held when the word was as
 * seen; false if it has changed. The caller recounts. */
static inline bool hv_contexts_give_up(uint64_t *word, uint64_t seen, uint64_t bytes)
{
    return hv_cas_acq_rel(word, &seen, hv_contexts_with(seen, bytes));
}

#endif
