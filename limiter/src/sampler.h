/*
 * Measures what launches cost, with the driver's own events around some of
 * them, which are asked without waiting when later launches come by. Also
 * tells how much charged work has not ended yet.
 */
#ifndef HV_SAMPLER_H
#define HV_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "backlog.h"
#include "cuda_abi.h"
#include "files.h"
#include "functions.h"
#include "hypervisor_limits.h"
#include "survey.h"

/* Of one device, so that surveys of several do not keep room from each other: what may be unfinished of launches of a
 * millisecond, a survey on top, and some. What finds no room is not seen to end before a later one does. */
#define HV_SAMPLES 96

#define HV_AHEAD_NS UINT64_C(25000000)

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
    uint32_t version;      /* of the function, when it was launched */
    uint64_t charged_ns;   /* for this launch */
    uint64_t weight_ns;    /* charges that count as under way with it: its own, and those since the sample before it */
    uint64_t long_ns;      /* GPU time of a long one */
    uint64_t charged_upto; /* sum of charges of the process on this device, this one included */
    CUstream stream;       /* told apart only, never used */
    uint64_t begun_at_ns;  /* just before the start event was recorded */
    uint64_t recorded_at_ns; /* when the start event was recorded, if the stream had nothing to do; else 0 */
    uint64_t ready_at_ns;  /* just before the launch */
    uint64_t gap_ns;       /* between start event and launch on an idle stream: not the launch's time */
    bool unlearned;        /* cost was not known: its charge was a guess */
    bool in_turn;          /* so were those before it, of other functions */
    bool holds_turn;       /* to be measured: see hv_sampler_take_turn */
    bool outgrown;         /* takes far more than its charge: charged while it runs */
    bool laid;             /* onto the Pod's line of GPU time, as far as it has gone */
    uint64_t laid_from_ns; /* 0: not begun, or not known */
    uint64_t laid_upto_ns;
    uint64_t laid_ns;      /* what that has added so far, */
    uint64_t own_ns;       /* and what of it was the Pod's own turns */
    uint64_t turn_ns;      /* what turns left of its time so far to this process */
    uint64_t least_ns;     /* the same if others had all turns that they can have, */
    uint64_t most_ns;      /* and if they had none */
    uint64_t untold_ns;    /* of own_ns, laid down while nobody told how many turns others had */
    bool unplaced;         /* its charge has no place in the bucket: others' turns hold it */
    bool may_wait; /* for other devices of the Pod, also behind other work of its stream: so it may meet others' turns there */
    bool surveyed;         /* one of the launches of the survey under way */
};

/*
 * Where the device's events lie on our clock: the time of an event is that of
 * `base` and what lies between them. A start event is not over before it was
 * recorded and an end event is over when it is seen to be, which bounds
 * base_at_ns from both sides more closely with each sample.
 */
struct hv_event_clock {
    CUevent base; /* recorded once in this context; NULL: not yet */
    CUcontext context;
    uint64_t base_at_ns; /* 0: not known yet */
};

struct hv_sampler {
    uint32_t busy; /* one thread at a time; the others do without */
    uint32_t pending[HV_MAX_DEVICES];
    uint64_t charged_ns[HV_MAX_DEVICES];  /* sum of charges; of long launches, of their GPU time */
    uint64_t ended_ns[HV_MAX_DEVICES];    /* of these, known to have ended */
    uint64_t sampled_ns[HV_MAX_DEVICES];  /* sum of charges at the last sample */
    uint64_t under_way_ns[HV_MAX_DEVICES]; /* of these, with samples that have not ended */
    uint64_t long_ns[HV_MAX_DEVICES];     /* GPU time of long launches that have not ended */
    CUstream long_stream[HV_MAX_DEVICES]; /* of the last long launch, where there was one; */
    bool long_seen[HV_MAX_DEVICES];
    bool long_several[HV_MAX_DEVICES];    /* there were some in others */
    uint32_t changed[HV_MAX_DEVICES];     /* 1: charges have changed since the daemon was silent, which its correction was for */
    const struct hv_function *ended_of[HV_MAX_DEVICES]; /* of the sample that has ended last */
    uint64_t longer_upto_ns[HV_MAX_DEVICES]; /* charges up to this sum are of work that takes more than they say, */
    uint64_t longer_times[HV_MAX_DEVICES];   /* and so many times as much more */
    uint64_t missing_upto_ns[HV_MAX_DEVICES]; /* time for which work beyond its charges was told of */
    uint64_t added_upto_ns[HV_MAX_DEVICES];   /* of the short launches that ran beside each other */
    uint64_t basis_at_ns[HV_MAX_DEVICES]; /* the daemon's last word on its correction, */
    uint32_t basis_ppm[HV_MAX_DEVICES];   /* and the overlap that charges were made with then */
    uint64_t pod_charged_ns[HV_MAX_DEVICES]; /* by the Pod, up to */
    uint64_t pod_at_ns[HV_MAX_DEVICES];      /* this moment, */
    uint32_t pod_ppm[HV_MAX_DEVICES];        /* and that was so much of the second or so before it */
    uint64_t void_ppm[HV_MAX_DEVICES];    /* a correction that was for other work, */
    uint64_t void_until_ns[HV_MAX_DEVICES]; /* and until when it is none */
    uint64_t untold_ns[HV_MAX_DEVICES];       /* measured while nobody told how many turns others had, */
    uint64_t untold_owed_ns[HV_MAX_DEVICES];  /* of that, so much was owed only, */
    uint64_t untold_until_ns[HV_MAX_DEVICES]; /* which counts for the first moments only */
    struct hv_backlog backlogs[HV_MAX_DEVICES];
    uint64_t largest_ns[HV_MAX_DEVICES]; /* charge of a launch that is measured and has not ended */
    uint32_t turns[HV_MAX_DEVICES];     /* how many there were that are over of: */
    uint32_t measuring[HV_MAX_DEVICES]; /* 1: some launch is being measured that nobody knows the cost of */
    uint64_t place_ns[HV_MAX_DEVICES];  /* GPU time that this process takes with a place in the bucket, in the mean */
    uint32_t places[HV_MAX_DEVICES];    /* over so many of them, at most */
    uint32_t waited_in_vain; /* 1: what another process measured for this one too did not end before the patience did */
    uint64_t stream_seen[HV_MAX_DEVICES];     /* of a launch in the slow path; never 0 then */
    uint32_t streams_differ[HV_MAX_DEVICES];  /* 1: another one was seen as well */
    struct hv_survey surveys[HV_MAX_DEVICES];
    struct hv_event_clock clocks[HV_MAX_DEVICES];
    struct hv_sample samples[HV_MAX_DEVICES][HV_SAMPLES];
};

/* Times its charge that a launch must take to be unlike those before it. */
#define HV_UNFORESEEN 4

/* What a sample has found out about a charge. */
struct hv_sample_result {
    struct hv_function *function;
    uint64_t charged_ns;
    uint64_t measured_ns;
    uint64_t began_ns;
    uint64_t used_ns;  /* what it added to the Pod's GPU time, others' turns taken off: where `laid` */
    uint64_t untold_ns; /* of that, so much while nobody told how many turns others had */
    uint64_t turn_ns;  /* what of it turns left to this process: the same in the mean, whoever tells first of a moment */
    bool laid;         /* a long launch, or one whose cost was not known */
    bool guessed;      /* the latter, or far off */
    bool in_turn;      /* its cost was not known, and nor was that of others before it */
    bool unplaced;     /* its charge had no place in the bucket */
    bool unfinished;   /* it goes on, and has taken more than it was charged so far; only a guess is put right so early */
    bool changed;  /* the function is another one than when it was launched */
    bool other;    /* the function has turned out to be other work than before */
    uint64_t missing_ns; /* launches that were charged as other work took so much more, and have ended */
    bool kept;     /* used_ns is what it took when somebody told of turns last, so no correction is needed */
    bool copy; /* runs beside kernels and is no GPU time */
};

#define HV_SAMPLER_RESULTS 8

/* Ask the events that are under way on a device, without waiting; how many results. What
 * they measured is learned, and laid onto the Pod's line of GPU time in files. */
uint32_t hv_sampler_poll(struct hv_sampler *sampler, const struct hv_files *files, uint32_t device, uint64_t now_ns,
                         struct hv_sample_result *results);

/* Launches that nobody knows the cost of go one after the other, of all functions of the process: what is queued of them
 * at once is charged a guess only, and can't be called back. The turn goes on to the sample of the launch, until it has
 * ended or is charged as far as it has gone; false: another one has it. */
bool hv_sampler_take_turn(struct hv_sampler *sampler, uint32_t device);
void hv_sampler_leave_turn(struct hv_sampler *sampler, uint32_t device);

/* Record the event before a launch. NULL: this launch can't be measured, because
 * the stream is being captured, or there is no room. */
struct hv_sample *hv_sampler_begin(struct hv_sampler *sampler, struct hv_function *function, uint32_t device,
                                   CUstream stream, bool per_thread, uint64_t charged_ns, bool surveyed);

/* Record the event after it, or drop the sample if the launch failed. */
void hv_sampler_end(struct hv_sampler *sampler, struct hv_sample *sample, CUstream stream, bool per_thread,
                    bool launched);

/* The driver destroyed this context, and the events with it. */
void hv_sampler_forget_context(struct hv_sampler *sampler, CUcontext context);
/* The same for all contexts of a device. */
void hv_sampler_forget_device(struct hv_sampler *sampler, uint32_t device);

/* Charged work of the process on the device that has not been seen to end. */
uint64_t hv_sampler_unfinished_ns(const struct hv_sampler *sampler, uint32_t device);

/* The same, less what has been worked through since by the pace at which it ended lately; of that no more is believed than
 * HV_AHEAD_NS or one launch. */
uint64_t hv_sampler_left_ns(const struct hv_sampler *sampler, uint32_t device, uint64_t now_ns);

/* As hv_backlog_fills_turns, beside so many processes with this one. */
bool hv_sampler_fills_turns(const struct hv_sampler *sampler, uint32_t device, uint32_t crowd, uint64_t now_ns);

bool hv_sampler_is_too_little(const struct hv_sampler *sampler, uint32_t device, uint32_t crowd, uint64_t now_ns);

#endif
