/*
 * Where one launch stands in front of the gate, for the files of pacing alone:
 * pacing_gate.c knows what is in force, pacing_settle.c what charges turned out
 * to be, pacing_pay.c takes a place in the bucket and waits for it.
 */
#ifndef HV_PACING_GATE_H
#define HV_PACING_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "bucket.h"
#include "functions.h"
#include "process.h"

#define NS_PER_MS UINT64_C(1000000)
#define MOST_COUNTED_WAITERS 64 /* the word is open to be scribbled into */

struct hv_gate {
    struct hv_process *process;
    struct hv_process_slot *slot;
    const struct hv_device_control *control;
    struct hv_device_usage *usage;
    struct hv_device_terms terms;
    struct hv_function *function; /* of the launch; NULL until it is known */
    uint32_t device;
    uint32_t share_ppm; /* HV_SHARE_FULL_PPM: not limited */
    uint32_t correction_ppm;
    uint32_t overlap_ppm; /* what of a cost is GPU time: see hv_survey_overlap_ppm */
    uint64_t now_ns;
    bool measures;           /* it is this launch's turn to be measured: see hv_sampler_take_turn */
    bool in_turn;            /* and not the first one of the process, which nothing of unknown cost came before */
    bool unplaced;           /* what its launch is charged has no place in the bucket */
    uint32_t turns_seen;     /* of the sampler, */
    uint64_t patient_since_ns; /* and when that last changed while this one waits */
    uint64_t waits_since_ns; /* for what its launch is to be charged; 0: it did not wait for that */
};

/* False: the launch passes without a gate, or not at all where *refused says so. */
bool hv_gate_open(struct hv_gate *gate, struct hv_process *process, CUdevice ordinal, CUresult *refused);

/* Read what is in force now. */
void hv_gate_look(struct hv_gate *gate);

/* Wait until then, or for news of the limits. */
void hv_gate_wait(const struct hv_gate *gate, uint64_t until_ns);

/* GPU time of launches that were paid for together. */
uint64_t hv_gate_overlapped(const struct hv_gate *gate, uint64_t cost_ns);

/* The driver does not count copies as GPU time, so they are neither corrected nor compared with it. */
uint64_t hv_gate_corrected(const struct hv_gate *gate, bool copy, uint64_t gpu_ns);

/* Do others' turns leave the Pod less than its share, with a turn for each of its processes? Then its long launches
 * have nothing to wait for: however many are let go, others have their turns. As far as the daemon tells. */
bool hv_gate_turns_hold(const struct hv_gate *gate);

struct hv_bucket_terms hv_gate_bucket_terms(const struct hv_gate *gate);

/* What the daemon compares with the driver's account. brief: it is not laid on the line of moments. */
void hv_gate_count(struct hv_gate *gate, bool copy, bool brief, uint64_t gpu_ns);

/* Ask for what was measured, and set charges right by it. */
void hv_gate_poll(struct hv_gate *gate);
void hv_gate_poll_others(const struct hv_gate *gate);

void hv_gate_tell_unfinished(struct hv_gate *gate);

/* Of a launch that is charged so much cost_ns are to be paid. Take a place in the bucket and wait for it; what was paid, a
 * slice for later launches included, and less where the charge turned out to be too high. 0: the limit was lifted meanwhile. */
uint64_t hv_gate_pay(struct hv_gate *gate, bool copy, uint64_t charge_ns, uint64_t cost_ns);

#endif
