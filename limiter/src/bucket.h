/*
 * The bucket of GPU time: one word per Pod and device, the time at which the
 * Pod will have no debt (GCRA's theoretical arrival time). A charge takes its
 * place in time first and then waits for it, so those who wait are served in
 * the order in which they came without any queue that a stopped or killed
 * waiter could block.
 *
 * Pure arithmetic over the word and the times given; no clock, no waiting.
 */
#ifndef HV_BUCKET_H
#define HV_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "hypervisor_atomics.h"
#include "hypervisor_limits.h"

/* Wake-ups come late by tens of microseconds; with less than this much room
 * ahead of the clock each would be lost to the Pod. Wall time. */
#define HV_BUCKET_SMALLEST_WINDOW_NS UINT64_C(4000000)

/* A word further ahead than its bounds and this was not written by us; and for each that waits the charge of a very long
 * launch at a small share may be ahead. */
#define HV_BUCKET_IMPLAUSIBLE_NS UINT64_C(10000000000)
#define HV_BUCKET_WAITER_NS UINT64_C(120000000000)

/* GPU time that a share of ppm has in so much wall time, and the reverse. Both
 * saturate; ppm must not be 0 for the second. */
uint64_t hv_bucket_gpu_ns(uint64_t wall_ns, uint32_t share_ppm);
uint64_t hv_bucket_wall_ns(uint64_t gpu_ns, uint32_t share_ppm);

/* What the daemon says beside the limit, each until it expires: struct hv_device_control. */
struct hv_share_terms {
    uint32_t limit_ppm;
    uint32_t policy; /* enum hv_compute_policy */
    uint64_t borrowed;
    uint64_t contracted;
};

/* The share in force: the limit, or less while others ask for what they were
 * promised, and what was lent. Whoever has a limit is never let go altogether,
 * whatever is lent: what it has queued without a bound could not be called back. */
uint32_t hv_effective_share(const struct hv_share_terms *terms, uint64_t now_ns);

/* The daemon's correction; 1 where there is none, and within a factor of eight:
 * more is a fault of the controller. In ppm. */
uint32_t hv_plausible_correction(uint64_t correction_ppm);

struct hv_bucket_terms {
    uint32_t share_ppm;  /* in force now, borrowed share included; 1 .. HV_SHARE_FULL_PPM - 1 */
    uint64_t burst_ns;   /* GPU time */
    uint64_t debt_ns;    /* GPU time */
    uint32_t waiters;    /* whose charges are ahead of the clock */
    uint64_t since_ns;   /* when who is charged now began to wait for what it is to be charged; 0: not before now */
};

/* Put gpu_ns on the bucket. Returns the time from which the work may start;
 * *wall_ns says what to give back if it does not start after all. */
uint64_t hv_bucket_charge(uint64_t *bucket, const struct hv_bucket_terms *terms, uint64_t gpu_ns, uint64_t now_ns,
                          uint64_t *wall_ns);

/* Work that began at since_ns takes gpu_ns more than it was charged: put that
 * where its charge stood, but nothing beyond until_ns. Returns what is left. */
uint64_t hv_bucket_charge_since(uint64_t *bucket, const struct hv_bucket_terms *terms, uint64_t gpu_ns,
                                uint64_t since_ns, uint64_t until_ns);

/* Take a charge back. */
void hv_bucket_give_back(uint64_t *bucket, uint64_t wall_ns);

/* Debt: what work cost beyond its charge. It lies beside the bucket and is paid
 * by later charges little by little, so that no launch waits for all of it. */
void hv_debt_add(uint64_t *debt, const struct hv_bucket_terms *terms, uint64_t gpu_ns);

/* Take as much as one charge pays, at most; returns what it has to pay. Time in
 * which the bucket had nothing ahead of the clock has paid at the Pod's share. */
uint64_t hv_debt_take(uint64_t *debt, const uint64_t *bucket, const struct hv_bucket_terms *terms, uint64_t most_gpu_ns,
                      uint64_t now_ns);

/* Of a debt so much turned out to be none; returns what there was of it. */
uint64_t hv_debt_lower(uint64_t *debt, uint64_t gpu_ns);

/* What is ahead of the clock is GPU time at the old share: make it the same
 * GPU time at the new one. */
void hv_bucket_rescale(uint64_t *bucket, uint32_t old_share_ppm, uint32_t new_share_ppm, uint64_t now_ns);

/* So far ahead of the clock the bucket may be and what is short goes at once. */
uint64_t hv_bucket_window_ns(const struct hv_bucket_terms *terms);

#endif
