/*
 * Measures what launches cost, with the driver's own events around some of
 * them, which are asked without waiting when later launches come by. Also
 * tells how much charged work has not ended yet.
 */
#ifndef HV_SAMPLER_H
#define HV_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "functions.h"
#include "hypervisor_limits.h"

#define HV_SAMPLES 32

#define HV_SURVEYED 24 /* launches in a survey */
#define HV_SURVEYS 4   /* of which the results are kept */

enum hv_sample_state {
    HV_SAMPLE_FREE = 0,
    HV_SAMPLE_RECORDING = 1,
    HV_SAMPLE_PENDING = 2,
    HV_SAMPLE_MEASURED = 3, /* kept until its survey is complete */
};

struct hv_sample {
    uint32_t state; /* enum hv_sample_state */
    uint32_t device;
    CUevent start;  /* kept for the next sample of the same context */
    CUevent end;
    CUcontext context;
    struct hv_function *function;
    uint64_t charged_ns;   /* for this launch */
    uint64_t charged_upto; /* sum of charges of the process on this device, this one included */
    uint64_t recorded_at_ns; /* when the start event was recorded, if the stream had nothing to do; else 0 */
    uint64_t ready_at_ns;  /* just before the launch */
    uint32_t sharing;      /* most processes of the Pod that were seen to have work meanwhile */
    uint64_t gap_ns;       /* between start event and launch on an idle stream: not the launch's time */
    bool unlearned;        /* cost was not known: its charge was a guess */
    bool surveyed;         /* one of the launches of the survey under way */
};

/*
 * How far a process's launches on a device run beside each other. Now and then
 * some launches in a row are all measured; the time that they cover together,
 * over the sum of their costs, is what of a cost is GPU time. Only where more
 * than one stream is used: in one stream the answer is known.
 */
struct hv_survey {
    uint32_t wanted;    /* launches still to be taken into the survey under way; 0: none is */
    uint32_t under_way; /* launches of it that have not ended */
    CUstream stream;    /* of the last launch */
    bool per_thread;
    bool several;       /* another one than that was seen */
    uint64_t next_at_ns;
    uint64_t interval_ns;
    uint32_t count;     /* surveys done */
    uint32_t recent_ppm[HV_SURVEYS];
    uint32_t overlap_ppm; /* 0: as HV_SHARE_FULL_PPM */
};

struct hv_sampler {
    uint32_t busy; /* one thread at a time; the others do without */
    uint32_t pending[HV_MAX_DEVICES];
    uint32_t learning; /* samples under way of functions without a cost */
    uint64_t charged_ns[HV_MAX_DEVICES];  /* sum of charges */
    uint64_t ended_ns[HV_MAX_DEVICES];    /* of these, known to have ended */
    uint64_t sampled_ns[HV_MAX_DEVICES];  /* sum of charges at the last sample */
    struct hv_survey surveys[HV_MAX_DEVICES];
    struct hv_sample samples[HV_SAMPLES];
};

/* What a sample has found out about a charge. */
struct hv_sample_result {
    uint32_t device;
    uint64_t charged_ns;
    uint64_t measured_ns;
    uint64_t launched_at_ns;
    bool unlearned;
};

#define HV_SAMPLER_RESULTS 8

/* Ask the events that are under way, without waiting; how many results. sharing
 * is how many processes of the Pod have work on the device: they take turns, so
 * the first times of a function that are longer than a turn are divided by it. */
uint32_t hv_sampler_poll(struct hv_sampler *sampler, uint64_t now_ns, uint32_t sharing,
                         struct hv_sample_result *results);

/* A launch into this stream comes by: is it to be taken into a survey? */
bool hv_sampler_wants(struct hv_sampler *sampler, uint32_t device, CUstream stream, bool per_thread, uint64_t now_ns);

/* What of a learned cost is GPU time, because launches run beside each other. */
uint32_t hv_sampler_overlap_ppm(const struct hv_sampler *sampler, uint32_t device);

/* Record the event before a launch. NULL: this launch can't be measured, because
 * the stream is being captured, or there is no room. */
struct hv_sample *hv_sampler_begin(struct hv_sampler *sampler, struct hv_function *function, uint32_t device,
                                   CUstream stream, bool per_thread, uint64_t charged_ns, uint32_t sharing);

/* Record the event after it, or drop the sample if the launch failed. */
void hv_sampler_end(struct hv_sampler *sampler, struct hv_sample *sample, CUstream stream, bool per_thread,
                    bool launched);

/* The driver destroyed this context, and the events with it. */
void hv_sampler_forget_context(struct hv_sampler *sampler, CUcontext context);
/* The same for all contexts of a device. */
void hv_sampler_forget_device(struct hv_sampler *sampler, uint32_t device);

/* Charged work of the process on the device that has not been seen to end. */
uint64_t hv_sampler_unfinished_ns(const struct hv_sampler *sampler, uint32_t device);

#endif
