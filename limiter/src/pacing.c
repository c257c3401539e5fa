#include "pacing.h"

#include "bucket.h"
#include "costs.h"
#include "driver.h"
#include "memory.h"
#include "process.h"

#define NS_PER_MS UINT64_C(1000000)

/* How much GPU time is paid for in one go, in wall time of the bucket: small
 * against the 20 ms that a launch may be stalled, large against the cost of
 * the slow path. */
#define SLICE_WALL_NS (2 * NS_PER_MS)
#define MOST_COUNTED_WAITERS 64

/* Of a function whose cost is not known one launch may be under way: it is
 * charged a guess, and all that it takes beyond that is debt. */
#define UNLEARNED_IN_FLIGHT 1

/* Most charged work that may be unfinished, and how long a launch waits for
 * less. The wait is bounded because work may be waiting for what the program
 * wants to launch next (a kernel that polls a flag, a peer of a collective). */
#define UNFINISHED_NS (50 * NS_PER_MS)
#define UNFINISHED_SAMPLES 2
#define PATIENCE_NS (2000 * NS_PER_MS)
#define FIRST_NAP_NS UINT64_C(50000)
#define LONGEST_NAP_NS NS_PER_MS

/* When a launch of a known function is measured again. */
#define SAMPLE_INTERVAL_NS (10 * NS_PER_MS)
#define SAMPLE_CHARGED_NS (5 * NS_PER_MS)

/* A charge that was too high by more than this part of it is set right: it was
 * learned while others had their turns on the device. */
#define OVERCHARGED_PART 4

/* Longest time between two looks of one who waits for its place: places move up
 * when others get back what they were charged too much. */
#define LOOK_AGAIN_NS (5 * NS_PER_MS)

/* Devices of one Pod let launches go at common moments, so that the ranks of a
 * collective that wait on several of them go on together. Less than half of the
 * smallest window, so that what is rounded up is made up for. */
#define STEP_NS SLICE_WALL_NS

/* What one charge pays of a debt, in wall time. Of those who wait together the
 * first pays all of it and the n-th its n-squared-th part, so that with their
 * slices they stay within the 20 ms that a launch may wait beyond its own time
 * and that of those before it. */
#define REPAID_WALL_NS (8 * NS_PER_MS)
/* Or this part of the launch's own cost, and more where that is very long: where
 * many wait, or launch seldom, they would be in debt for ever. */
#define REPAID_PART 16
#define REPAID_SELDOM_PART 4
#define SELDOM_NS (200 * NS_PER_MS)

/* Launches between two looks at the counters. */
#define LAUNCHES_PER_LOOK 256

uint32_t hv_captures;

/* ---- where a launch stands ---- */

struct gate {
    struct hv_process *process;
    struct hv_process_slot *slot;
    const struct hv_device_control *control;
    struct hv_device_usage *usage;
    struct hv_device_terms terms;
    uint32_t device;
    uint32_t share_ppm; /* HV_SHARE_FULL_PPM: not limited */
    uint32_t correction_ppm;
    uint32_t overlap_ppm; /* what of a cost is GPU time: see hv_sampler_overlap_ppm */
    uint64_t now_ns;
};

/* GPU time of launches that were paid for together. */
static uint64_t overlapped(const struct gate *gate, uint64_t cost_ns)
{
    return hv_bucket_gpu_ns(cost_ns, gate->overlap_ppm); /* the same product */
}

/* The driver does not count copies as GPU time, so they are neither corrected nor compared with it. */
static uint64_t corrected(const struct gate *gate, bool copy, uint64_t gpu_ns)
{
    return copy ? gpu_ns : hv_bucket_gpu_ns(gpu_ns, gate->correction_ppm); /* the same product */
}

static struct hv_bucket_terms bucket_terms(const struct gate *gate)
{
    return (struct hv_bucket_terms){
        .share_ppm = gate->share_ppm, .burst_ns = gate->terms.burst_ns, .debt_ns = gate->terms.debt_limit_ns};
}

/* Whoever sees first that the share changed makes the bucket's time ahead of
 * the clock the same GPU time at the new share. Killed in between, it leaves
 * only a wait that is too long or too short by what was ahead. */
static void follow_share(struct gate *gate)
{
    uint64_t scaled_to = hv_load_relaxed(&gate->usage->bucket_share_ppm);
    if (scaled_to == gate->share_ppm || !hv_cas_acq_rel(&gate->usage->bucket_share_ppm, &scaled_to, gate->share_ppm))
        return;
    if (scaled_to == 0 || scaled_to > HV_SHARE_FULL_PPM) /* a fresh file, or a scribbled one */
        return;
    hv_bucket_rescale(&gate->usage->bucket_ns, (uint32_t)scaled_to, gate->share_ppm, gate->now_ns);
}

/* Read what is in force now. */
static void look(struct gate *gate)
{
    gate->now_ns = hv_os_now_ns();
    (void)hv_terms_read(hv_files(), gate->device, &gate->terms); /* a device that left keeps its last limits */
    const struct hv_share_terms share = {.limit_ppm = gate->terms.limit_share_ppm,
                                         .policy = gate->terms.policy,
                                         .borrowed = hv_load_relaxed(&gate->control->borrowed),
                                         .contracted = hv_load_relaxed(&gate->control->contracted)};
    gate->share_ppm = gate->terms.isolation_mode == HV_ISOLATION_SOFT ? hv_effective_share(&share, gate->now_ns)
                                                                      : HV_SHARE_FULL_PPM;
    gate->correction_ppm = hv_plausible_correction(hv_load_relaxed(&gate->control->correction_ppm));
    gate->overlap_ppm = hv_sampler_overlap_ppm(&gate->process->sampler, gate->device);
    follow_share(gate);
}

static void wait_for_news(const struct gate *gate, uint64_t until_ns)
{
    /* The low half of the generation is the futex word; little-endian, as both
     * of our processors are. */
    const uint32_t *word = (const uint32_t *)(const void *)&hv_files()->state->generation;
    hv_os_wait_on_word(word, (uint32_t)gate->terms.generation, until_ns);
}

/* ---- the daemon's gate ---- */

static void pass_freeze(struct gate *gate)
{
    uint32_t frozen;
    while ((frozen = hv_load_acquire_32(&gate->control->freeze)) != 0) {
        hv_os_wait_on_word(&gate->control->freeze, frozen, gate->now_ns + 1000 * NS_PER_MS);
        look(gate);
    }
}

/* ---- measuring ---- */

/* What the daemon compares with the driver's account. */
static void count_for_daemon(struct gate *gate, bool copy, uint64_t gpu_ns)
{
    if (!copy)
        hv_add_relaxed(&gate->usage->charged_ns, gpu_ns);
}

/* A charge was too low: debt, and accounted for from now on. */
static void charge_later(struct gate *gate, uint64_t gpu_ns)
{
    struct hv_bucket_terms terms = bucket_terms(gate);
    hv_debt_add(&gate->usage->debt_ns, &terms, corrected(gate, false, gpu_ns));
    count_for_daemon(gate, false, gpu_ns);
}

/* A charge was too high: it pays what is owed, and whoever waits has its place
 * behind this charge and moves up by the rest. */
static void give_back(struct gate *gate, bool copy, uint64_t gpu_ns)
{
    uint64_t left = corrected(gate, copy, gpu_ns);
    left -= hv_debt_lower(&gate->usage->debt_ns, left);
    uint64_t wall = hv_bucket_wall_ns(left, gate->share_ppm);
    hv_bucket_give_back(&gate->usage->bucket_ns, wall);
    hv_add_relaxed(&gate->usage->returned_ns, wall);
    count_for_daemon(gate, copy, 0 - gpu_ns); /* modulo 2^64: less */
}

static void settle(struct gate *gate, const struct hv_sample_result *result)
{
    if (result->device != gate->device || gate->share_ppm >= HV_SHARE_FULL_PPM)
        return;
    uint64_t charged = overlapped(gate, result->charged_ns);
    if (result->settled && result->used_ns > charged)
        charge_later(gate, result->used_ns - charged);
    else if (result->settled)
        give_back(gate, false, charged - result->used_ns);
    else if (result->measured_ns < result->charged_ns - result->charged_ns / OVERCHARGED_PART)
        give_back(gate, result->copy, overlapped(gate, result->charged_ns - result->measured_ns));
}

static void tell_unfinished(struct gate *gate)
{
    hv_store_relaxed(&gate->slot->devices[gate->device].unfinished_ns,
                     hv_sampler_unfinished_ns(&gate->process->sampler, gate->device));
}

static void poll(struct gate *gate)
{
    struct hv_sample_result results[HV_SAMPLER_RESULTS];
    struct hv_sampler *sampler = &gate->process->sampler;
    uint32_t count = hv_sampler_poll(sampler, hv_files(), gate->now_ns, results);
    for (uint32_t i = 0; i < count; i++)
        settle(gate, &results[i]);
    for (uint32_t i = 0; i < count; i++)
        hv_costs_publish(results[i].function, gate->now_ns);
    if (count != 0)
        tell_unfinished(gate);
}

static bool must_wait_for_work(const struct gate *gate, struct hv_function *function)
{
    const struct hv_sampler *sampler = &gate->process->sampler;
    bool unlearned = hv_load_relaxed(&function->cost_ns) == 0;
    if (unlearned && hv_load_acquire_32(&function->in_flight) >= UNLEARNED_IN_FLIGHT)
        return true;
    if (hv_sampler_unfinished_ns(sampler, gate->device) > UNFINISHED_NS &&
        hv_load_acquire_32(&sampler->pending[gate->device]) >= UNFINISHED_SAMPLES)
        return true;
    return unlearned && !hv_costs_settled(function, gate->now_ns);
}

static void wait_for_work(struct gate *gate, struct hv_function *function)
{
    uint64_t nap = FIRST_NAP_NS;
    uint64_t patience_ends = gate->now_ns + PATIENCE_NS;
    while (gate->share_ppm < HV_SHARE_FULL_PPM && must_wait_for_work(gate, function) && gate->now_ns < patience_ends) {
        wait_for_news(gate, gate->now_ns + nap);
        nap = nap * 2 < LONGEST_NAP_NS ? nap * 2 : LONGEST_NAP_NS;
        look(gate);
        poll(gate);
    }
}

static bool should_sample(const struct gate *gate, const struct hv_function *function)
{
    const struct hv_sampler *sampler = &gate->process->sampler;
    if (hv_load_relaxed_32(&function->samples) < HV_FIRST_SAMPLES ||
        hv_load_relaxed_32(&function->is_long) != 0)
        return true;
    return gate->now_ns - hv_load_relaxed(&function->sampled_at_ns) >= SAMPLE_INTERVAL_NS ||
           hv_load_relaxed(&sampler->charged_ns[gate->device]) - hv_load_relaxed(&sampler->sampled_ns[gate->device]) >=
               SAMPLE_CHARGED_NS;
}

/* ---- charging ---- */

static void count_charge(struct gate *gate, bool copy, uint64_t cost_ns)
{
    struct hv_slot_device *counters = &gate->slot->devices[gate->device];
    hv_add_relaxed(&gate->process->sampler.charged_ns[gate->device], cost_ns);
    hv_add_relaxed(&counters->charged_ns, overlapped(gate, cost_ns));
    count_for_daemon(gate, copy, overlapped(gate, cost_ns));
}

/* This one and those who wait already. */
static uint32_t waiting(const struct gate *gate)
{
    uint32_t waiters = hv_load_relaxed_32(&gate->usage->waiters);
    return 1 + (waiters < MOST_COUNTED_WAITERS ? waiters : MOST_COUNTED_WAITERS);
}

/* The count of those who wait. A killed one is not counted off by itself; but
 * whoever waits has a place ahead of the clock, so where nothing is ahead the
 * count is wrong and begins anew. Not below 0 for one that this meets. */
static void count_waiter(struct gate *gate)
{
    hv_add_acq_rel_32(&gate->usage->waiters, 1);
}

static void count_off_waiter(struct gate *gate)
{
    uint32_t waiters = hv_load_relaxed_32(&gate->usage->waiters);
    while (waiters != 0 && !__atomic_compare_exchange_n(&gate->usage->waiters, &waiters, waiters - 1, true,
                                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
}

static void forget_lost_waiters(struct gate *gate)
{
    if (hv_load_relaxed_32(&gate->usage->waiters) != 0 && hv_load_relaxed(&gate->usage->bucket_ns) < gate->now_ns)
        hv_store_relaxed_32(&gate->usage->waiters, 0);
}

/* Where the place is now that stood at start when *returned was the sum of what was given back. */
static uint64_t moved_up(const struct gate *gate, uint64_t start, uint64_t *returned)
{
    uint64_t now_returned = hv_load_relaxed(&gate->usage->returned_ns);
    uint64_t moved = now_returned - *returned; /* ever increasing; scribbled over, it ends this wait too early */
    *returned = now_returned;
    return start > moved ? start - moved : 0;
}

static uint64_t in_step(const struct gate *gate, uint64_t start)
{
    return gate->terms.device_count > 1 && start > gate->now_ns ? (start + STEP_NS - 1) / STEP_NS * STEP_NS : start;
}

/* Take a place in the bucket and wait for it. On news the place is given back
 * and taken anew at the share then in force. */
static uint64_t pay(struct gate *gate, bool copy, uint64_t cost_ns)
{
    uint64_t began = gate->now_ns;
    bool waited = false;
    uint64_t paid = 0;
    forget_lost_waiters(gate);
    while (gate->share_ppm < HV_SHARE_FULL_PPM) {
        struct hv_bucket_terms terms = bucket_terms(gate);
        uint64_t generation = gate->terms.generation;
        uint64_t wall;
        uint64_t returned = hv_load_relaxed(&gate->usage->returned_ns);
        uint32_t rank = waiting(gate);
        paid = cost_ns + hv_bucket_gpu_ns(SLICE_WALL_NS / rank, gate->share_ppm); /* a slice beyond the launch itself */
        uint64_t most = hv_bucket_gpu_ns(REPAID_WALL_NS / rank / rank, gate->share_ppm);
        uint64_t part = cost_ns / (cost_ns > SELDOM_NS ? REPAID_SELDOM_PART : REPAID_PART);
        most = most < part ? part : most;
        uint64_t repaid = hv_debt_take(&gate->usage->debt_ns, &gate->usage->bucket_ns, &terms, most, gate->now_ns);
        uint64_t gpu = corrected(gate, copy, overlapped(gate, paid)) + repaid;
        uint64_t start = hv_bucket_charge(&gate->usage->bucket_ns, &terms, gpu, gate->now_ns, &wall);
        if (start > gate->now_ns) {
            waited = true;
            count_waiter(gate);
            start = in_step(gate, start);
            while (start > gate->now_ns && gate->terms.generation == generation && gate->share_ppm == terms.share_ppm) {
                wait_for_news(gate, start - gate->now_ns < LOOK_AGAIN_NS ? start : gate->now_ns + LOOK_AGAIN_NS);
                look(gate);
                poll(gate);
                start = in_step(gate, moved_up(gate, start, &returned));
            }
            count_off_waiter(gate);
        }
        if (start <= gate->now_ns)
            break;
        hv_bucket_give_back(&gate->usage->bucket_ns, wall);
        hv_debt_add(&gate->usage->debt_ns, &terms, repaid);
        paid = 0;
    }
    if (waited)
        hv_add_relaxed(&gate->slot->devices[gate->device].blocked_ns, gate->now_ns - began);
    return paid;
}

/* ---- the thread's fast path ---- */

static void flush_launches(struct gate *gate)
{
    struct hv_thread *thread = &hv_thread;
    hv_add_relaxed(&gate->slot->devices[gate->device].launches, thread->launches_granted - thread->launches_left + 1);
    hv_store_relaxed(&gate->slot->last_launch_ns, gate->now_ns);
    /* During a survey every launch looks. */
    bool surveys = hv_load_relaxed_32(&gate->process->sampler.surveys[gate->device].wanted) != 0;
    thread->launches_granted = surveys ? 0 : LAUNCHES_PER_LOOK;
    thread->launches_left = thread->launches_granted;
}

/* The thread comes from another device, or from the parent of a fork. */
static void move_thread(struct gate *gate)
{
    struct hv_thread *thread = &hv_thread;
    if (thread->process_epoch == gate->process->epoch && thread->device == gate->device)
        return;
    if (thread->process_epoch == gate->process->epoch)
        hv_add_relaxed(&gate->slot->devices[thread->device].launches, thread->launches_granted - thread->launches_left);
    if (thread->process_epoch == gate->process->epoch) {
        thread->credits_ns[thread->device] = thread->credit_ns;
    } else {
        for (uint32_t device = 0; device < HV_MAX_DEVICES; device++)
            thread->credits_ns[device] = 0; /* they were the parent's */
    }
    thread->process_epoch = gate->process->epoch;
    thread->device = gate->device;
    thread->credit_ns = thread->credits_ns[gate->device];
    thread->copies_are_free = false; /* not known yet */
    thread->launches_granted = 0;
    thread->launches_left = 0;
}

static void prepare_thread(struct gate *gate)
{
    struct hv_thread *thread = &hv_thread;
    bool limited = gate->share_ppm < HV_SHARE_FULL_PPM;
    thread->generation = gate->terms.generation;
    thread->freeze_word = &gate->control->freeze;
    thread->functions = limited ? gate->process->functions.entries : NULL;
    thread->generation_word = &hv_files()->state->generation;
    thread->copies_are_free = !limited || (gate->terms.flags & HV_DEVICE_CHARGE_COPIES) == 0;
}

/* ---- the slow path ---- */

static bool open_gate(struct gate *gate, struct hv_process *process, CUdevice ordinal, CUresult *refused)
{
    *gate = (struct gate){.process = process, .device = hv_process_device(process, ordinal)};
    gate->slot = hv_process_slot(process);
    if (gate->slot == NULL) {
        *refused = CUDA_ERROR_SYSTEM_NOT_READY;
        return false;
    }
    if (gate->device >= HV_MAX_DEVICES) {
        /* Not the Pod's. Where this library limits, that is a limit of 0. */
        struct hv_device_terms first;
        if (!hv_terms_read(hv_files(), 0, &first) || first.isolation_mode == HV_ISOLATION_SOFT)
            *refused = CUDA_ERROR_NOT_PERMITTED;
        return false;
    }
    gate->control = hv_files()->control[gate->device];
    gate->usage = hv_files()->devices[gate->device];
    look(gate);
    return true;
}

static bool is_captured(const struct hv_launch *launch)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    hv_call_type_cuStreamIsCapturing ask =
        launch->per_thread ? HV_DRIVER(cuStreamIsCapturing_ptsz) : HV_DRIVER(cuStreamIsCapturing);
    return hv_load_relaxed_32(&hv_captures) != 0 && ask != NULL &&
           ask(launch->stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static struct hv_function *function_of(const struct gate *gate, const struct hv_launch *launch)
{
    uint64_t key = hv_function_key(launch->function, launch->blocks, launch->threads_per_block, gate->device);
    return hv_function_enter(&gate->process->functions, key, gate->device, (uint32_t)launch->kind, launch->function);
}

static void charge(struct gate *gate, struct hv_launch *launch, bool measurable)
{
    struct hv_thread *thread = &hv_thread;
    struct hv_function *function = function_of(gate, launch);
    bool copy = launch->kind == HV_LAUNCH_COPY;
    poll(gate);
    wait_for_work(gate, function);
    uint64_t cost = hv_load_relaxed(&function->cost_ns);
    uint64_t first_cost = hv_load_relaxed(&function->first_cost_ns);
    uint64_t charged = cost != 0 ? cost : first_cost != 0 ? first_cost : HV_GUESSED_COST_NS;
    if (thread->credit_ns < charged) {
        uint64_t paid = pay(gate, copy, charged - thread->credit_ns);
        thread->credit_ns += paid;
        count_charge(gate, copy, paid);
        /* What is paid beyond this launch is taken to be for more of the same. */
        hv_add_relaxed(&function->launches, paid / charged + 1);
    }
    if (gate->share_ppm >= HV_SHARE_FULL_PPM)
        return; /* lifted while it waited */
    thread->credit_ns -= charged < thread->credit_ns ? charged : thread->credit_ns;
    hv_costs_publish(function, gate->now_ns);
    bool surveyed = measurable && cost != 0 && launch->kind == HV_LAUNCH_KERNEL &&
                    hv_sampler_wants(&gate->process->sampler, gate->device, launch->stream, launch->per_thread,
                                     gate->now_ns);
    if (measurable && (surveyed || should_sample(gate, function))) /* last: from here the device may be waiting for us */
        launch->sample = hv_sampler_begin(&gate->process->sampler, function, gate->device, launch->stream,
                                          launch->per_thread, charged);
    tell_unfinished(gate);
}

static CUresult pass(struct hv_launch *launch, struct hv_process *process, CUdevice ordinal, bool measurable)
{
    struct gate gate;
    CUresult refused = CUDA_SUCCESS;
    if (!open_gate(&gate, process, ordinal, &refused))
        return refused;
    pass_freeze(&gate);
    if (measurable) {
        move_thread(&gate);
        flush_launches(&gate);
    }
    bool free = launch->kind == HV_LAUNCH_COPY && (gate.terms.flags & HV_DEVICE_CHARGE_COPIES) == 0;
    if (gate.share_ppm < HV_SHARE_FULL_PPM && !free && !is_captured(launch))
        charge(&gate, launch, measurable);
    if (measurable)
        prepare_thread(&gate);
    return CUDA_SUCCESS;
}

HV_NOINLINE CUresult hv_launch_begin(struct hv_launch *launch)
{
    CUresult refused;
    CUresult result;
    CUdevice ordinal;
    launch->sample = NULL;
    launch->process = hv_limited_process(&refused);
    if (launch->process == NULL || !hv_current_ordinal(&ordinal, &result))
        return refused;
    return pass(launch, launch->process, ordinal, true);
}

HV_NOINLINE CUresult hv_launch_elsewhere(struct hv_launch *launch, CUcontext context)
{
    CUresult refused;
    CUresult result;
    CUdevice ordinal;
    uint64_t value;
    launch->sample = NULL;
    launch->process = hv_limited_process(&refused);
    if (launch->process == NULL)
        return refused;
    if (hv_pointer_get(&launch->process->pointers, HV_POINTER_CONTEXT, (uint64_t)(uintptr_t)context, &value))
        ordinal = (CUdevice)hv_record_unpack(value).device;
    else if (!hv_current_ordinal(&ordinal, &result))
        return refused;
    return pass(launch, launch->process, ordinal, false);
}

CUresult hv_launch_end(struct hv_launch *launch, CUresult result)
{
    if (launch->sample != NULL)
        hv_sampler_end(&launch->process->sampler, launch->sample, launch->stream, launch->per_thread,
                       result == CUDA_SUCCESS);
    return result;
}
