/*
 * Bytes that a thread freed and may allocate again without touching what all
 * processes share. They stay in the ledger, so the error is on the high side;
 * and a process gives all of it back before anything is refused to it. What
 * others keep is little: the k-th process keeps at most a k-th of a 7000th of
 * the limit, and less than 1 MiB, which for 512 processes together is less than a
 * thousandth. Its
 * threads share that evenly: when one more comes, all give up what they keep,
 * since each may keep less from then on.
 */
#ifndef HV_KEPT_H
#define HV_KEPT_H

#include <stdbool.h>
#include <stdint.h>

#include "compiler.h"
#include "hypervisor_limits.h"
#include "slots.h"

#define HV_KEPT_STRIPES 16

/* A thread uses the stripe of its number; threads that share one only meet. */
struct hv_kept_stripe {
    uint64_t bytes[HV_MAX_DEVICES];
} __attribute__((aligned(HV_CACHE_LINES_FETCHED)));

struct hv_kept {
    struct hv_kept_stripe stripes[HV_KEPT_STRIPES];
    uint32_t threads;   /* that ever allocated or freed */
    uint32_t processes; /* slots that were ever used, when last counted; 0: not yet */
};

/* Count a thread in: its number, from 0. */
uint32_t hv_kept_join(struct hv_kept *kept);

/* Most that a stripe keeps under this limit. */
uint64_t hv_kept_most(const struct hv_kept *kept, uint64_t limit_bytes);

/* See how many share the limit. */
void hv_kept_count_processes(struct hv_kept *kept, const struct hv_slot_table *slots);

/* Take n bytes of what this thread kept; false if it has less. */
bool hv_kept_take(struct hv_kept *kept, uint32_t stripe, uint32_t device, uint64_t n);

/* Keep n bytes; false if that would be more than `most`. */
bool hv_kept_put(struct hv_kept *kept, uint32_t stripe, uint32_t device, uint64_t n, uint64_t most);

/* Take out all that the threads of this process keep of a device. */
uint64_t hv_kept_empty(struct hv_kept *kept, uint32_t device);

/* How much that would be. */
uint64_t hv_kept_sum(const struct hv_kept *kept, uint32_t device);

#endif
