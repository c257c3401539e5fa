#include "pacing.h"

#include "costs.h"
#include "driver.h"
#include "memory.h"
#include "pacing_gate.h"
#include "pacing_untold.h"
#include "pacing_wait.h"
#include "process.h"

/* When a launch of a known function is measured again. */
#define SAMPLE_INTERVAL_NS (10 * NS_PER_MS)
#define SAMPLE_CHARGED_NS (5 * NS_PER_MS)
#define SAMPLE_MUCH_PART 32 /* of what may be unfinished */
#define SAMPLE_SELDOM_PENDING 32 /* then only by what is charged */

/* Launches between two looks at the counters. */
#define LAUNCHES_PER_LOOK 256

/* CU_STREAM_PER_THREAD: the handles up to it stand for streams of the thread's context. */
#define LAST_OF_EACH_CONTEXT 2

uint32_t hv_captures;

/* ---- the daemon's gate ---- */

static void pass_freeze(struct hv_gate *gate)
{
    uint32_t frozen;
    while ((frozen = hv_load_acquire_32(&gate->control->freeze)) != 0) {
        hv_os_wait_on_word(&gate->control->freeze, frozen, gate->now_ns + 1000 * NS_PER_MS);
        hv_gate_look(gate);
    }
}

/* Take a place, wait for it and for room, in any order that is the shortest: behind a long launch that is under way both
 * take long, and the place comes meanwhile. Returns what was paid. */
static uint64_t pay_and_wait_for_room(struct hv_gate *gate, bool copy, uint64_t *charged)
{
    uint64_t before = hv_costs_charge(gate->function);
    bool behind_long = *charged >= HV_LONG_NS || hv_load_relaxed(&gate->process->sampler.long_ns[gate->device]) != 0;
    uint64_t credit = hv_thread.credit_ns, paid = 0;
    if (!behind_long)
        hv_wait_for_room(gate);
    if (gate->in_turn) /* in its place: what the one before it took is known by now, and credit does not know it */
        paid = hv_gate_pay(gate, copy, *charged, *charged);
    else if (credit < *charged)
        paid = hv_gate_pay(gate, copy, *charged, *charged - credit);
    hv_wait_for_others_places(gate);
    if (!behind_long)
        return paid;
    hv_wait_for_room(gate);
    uint64_t now = hv_costs_charge(gate->function);
    if (now > before && hv_is_other_work(before, now)) { /* it goes as what it is known to be by now */
        uint64_t more = hv_bucket_wall_ns(now - before, gate->overlap_ppm); /* the same quotient */
        paid += hv_gate_pay(gate, copy, *charged + more, more);
        *charged += more;
    }
    return paid;
}

/* With much unfinished each sample that ends lets others go on, so they are the closer the more there is. In an exchange it
 * is much sooner: each of its launches may take a round of others' turns. */
static uint64_t sampled_after_ns(const struct hv_gate *gate, uint64_t cost_ns)
{
    uint64_t all = hv_wait_room_ns(gate);
    uint64_t much = gate->terms.device_count > 1 ? all / 16 + 2 * cost_ns : all / 4;
    return hv_sampler_unfinished_ns(&gate->process->sampler, gate->device) > much ? all / SAMPLE_MUCH_PART : SAMPLE_CHARGED_NS;
}

static bool should_sample(const struct hv_gate *gate, const struct hv_function *function)
{
    const struct hv_sampler *sampler = &gate->process->sampler;
    if (hv_load_relaxed_32(&function->samples) < HV_FIRST_SAMPLES ||
        hv_load_relaxed_32(&function->is_long) != 0 || hv_load_relaxed_32(&function->again) != 0)
        return true;
    /* While none ends, which may take long among many processes, not all places: some are for those that let others go on. */
    bool room = hv_load_relaxed_32(&sampler->pending[gate->device]) < SAMPLE_SELDOM_PENDING;
    return (room && gate->now_ns - hv_load_relaxed(&function->sampled_at_ns) >= SAMPLE_INTERVAL_NS) ||
           hv_load_relaxed(&sampler->charged_ns[gate->device]) - hv_load_relaxed(&sampler->sampled_ns[gate->device]) >=
               sampled_after_ns(gate, hv_load_relaxed(&function->cost_ns));
}

/* A launch after a wait finds an idle stream, and with it a device on which
 * others have their turn. The next one runs behind it, when the turn has come,
 * and is measured too: were it always the first, all times would be too long.
 * So it would be where turns and samples have a period in common; what seems to
 * take longer is measured twice, too, where launches come one after the other. */
static void sample_next(struct hv_function *function, const struct hv_sample *sample, bool one_stream)
{
    bool waited = sample->recorded_at_ns != 0 || (one_stream && function->persists != 0);
    bool again = !sample->laid && waited && hv_load_relaxed_32(&function->again) == 0;
    hv_store_relaxed_32(&function->again, again);
    if (!again)
        return;
    hv_thread_looks_again();
}

/* ---- charging ---- */

/* work_ns: what the device is given to do by it. */
static void count_charge(struct hv_gate *gate, bool copy, uint64_t cost_ns, uint64_t work_ns)
{
    uint64_t overlapped = hv_gate_overlapped(gate, cost_ns);
    struct hv_slot_device *counters = &gate->slot->devices[gate->device];
    hv_add_relaxed(&gate->process->sampler.charged_ns[gate->device], work_ns);
    hv_add_relaxed(&counters->charged_ns, overlapped);
    hv_gate_count(gate, copy, true, overlapped);
}

/* ---- the thread's fast path ---- */

/* Launches that came by on credit since the slow path looked. */
static uint32_t take_fast_launches(void)
{
    uint32_t count = hv_thread.launches_granted - hv_thread.launches_left;
    if (hv_thread.paid_for != NULL && count != 0)
        hv_add_relaxed(&hv_thread.paid_for->launches, count);
    return count;
}

static void flush_launches(struct hv_gate *gate)
{
    struct hv_thread *thread = &hv_thread;
    hv_add_relaxed(&gate->slot->devices[gate->device].launches, take_fast_launches() + 1);
    thread->paid_for = NULL;
    hv_store_relaxed(&gate->slot->last_launch_ns, gate->now_ns);
    /* During a survey every launch looks; so does each of a thread that uses streams of several contexts, for their device. */
    bool surveys = hv_load_relaxed_32(&gate->process->sampler.surveys[gate->device].wanted) != 0;
    thread->launches_granted = surveys || thread->elsewhere ? 0 : LAUNCHES_PER_LOOK;
    thread->launches_left = thread->launches_granted;
}

/* The thread comes from another device, or from the parent of a fork. */
static void move_thread(struct hv_gate *gate)
{
    struct hv_thread *thread = &hv_thread;
    if (thread->process_epoch == gate->process->epoch && thread->device == gate->device)
        return;
    if (thread->process_epoch == gate->process->epoch)
        hv_add_relaxed(&gate->slot->devices[thread->device].launches, take_fast_launches());
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
    thread->paid_for = NULL;
    thread->launches_granted = 0;
    thread->launches_left = 0;
}

static void prepare_thread(struct hv_gate *gate)
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

static bool is_captured(const struct hv_launch *launch)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    hv_call_type_cuStreamIsCapturing ask =
        launch->per_thread ? HV_DRIVER(cuStreamIsCapturing_ptsz) : HV_DRIVER(cuStreamIsCapturing);
    return hv_load_relaxed_32(&hv_captures) != 0 && ask != NULL &&
           ask(launch->stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static struct hv_function *function_of(const struct hv_gate *gate, const struct hv_launch *launch)
{
    uint64_t key = hv_function_key(launch->function, launch->blocks, launch->threads_per_block, gate->device);
    const struct hv_identity identity = {
        .device = gate->device,
        .kind = (uint32_t)launch->kind,
        .handle = launch->function,
        /* A graph that was not seen to be made is known to this process alone. */
        .shape = launch->kind == HV_LAUNCH_GRAPH ? key
                                                 : hv_shape(launch->blocks, launch->threads_per_block, gate->device)};
    return hv_function_enter(&gate->process->functions, key, &identity);
}

static void note_stream(const struct hv_gate *gate, const struct hv_launch *launch)
{
    struct hv_sampler *sampler = &gate->process->sampler;
    uint64_t stream = (uint64_t)(uintptr_t)launch->stream << 2 | (uint64_t)launch->per_thread << 1 | 1; /* only has to differ */
    uint64_t seen = hv_load_relaxed(&sampler->stream_seen[gate->device]);
    if (seen == 0)
        hv_store_relaxed(&sampler->stream_seen[gate->device], stream);
    else if (seen != stream && hv_load_relaxed_32(&sampler->streams_differ[gate->device]) == 0)
        hv_store_relaxed_32(&sampler->streams_differ[gate->device], 1);
}

static void charge(struct hv_gate *gate, struct hv_launch *launch)
{
    struct hv_thread *thread = &hv_thread;
    struct hv_function *function = gate->function = function_of(gate, launch);
    bool copy = launch->kind == HV_LAUNCH_COPY;
    note_stream(gate, launch);
    hv_gate_poll(gate);
    hv_untold_price(gate, function);
    hv_wait_for_cost(gate);
    hv_untold_price(gate, function); /* the word may have come meanwhile */
    uint64_t cost = hv_load_relaxed(&function->cost_ns);
    uint64_t work = hv_costs_charge(function), charged = work;
    bool is_long = hv_load_relaxed_32(&function->is_long) != 0;
    if (is_long) /* what overlaps is off already */
        charged = hv_bucket_wall_ns(charged, gate->overlap_ppm); /* the same quotient */
    uint64_t paid = pay_and_wait_for_room(gate, copy || hv_load_relaxed_32(&function->kept) != 0, &charged);
    if (paid != 0) {
        thread->credit_ns += paid;
        charged = charged < thread->credit_ns ? charged : thread->credit_ns; /* others turned out to have turns */
        work = work < charged ? work : charged;
        count_charge(gate, copy, paid, is_long && paid > charged - work ? paid - (charged - work) : paid);
    }
    if (gate->share_ppm >= HV_SHARE_FULL_PPM) { /* lifted while it waited */
        hv_wait_pass_turn_on(gate, NULL);
        return;
    }
    thread->credit_ns -= charged < thread->credit_ns ? charged : thread->credit_ns;
    hv_add_relaxed(&function->launches, 1);
    thread->paid_for = function;
    hv_costs_publish(function, gate->now_ns);
    struct hv_sampler *sampler = &gate->process->sampler;
    bool fits = launch->kind == HV_LAUNCH_KERNEL ||
                (launch->kind == HV_LAUNCH_GRAPH && hv_load_relaxed_32(&function->is_long) == 0); /* 24 long ones take a minute */
    bool surveyed = cost != 0 && fits &&
                    hv_survey_wants(sampler, gate->device, launch->stream, launch->per_thread, gate->now_ns);
    if (surveyed || should_sample(gate, function)) /* last: from here the device may be waiting for us */
        launch->sample = hv_sampler_begin(sampler, function, gate->device, launch->stream,
                                          launch->per_thread, charged, surveyed);
    hv_wait_pass_turn_on(gate, launch->sample);
    if (launch->sample != NULL) {
        launch->sample->unplaced = gate->unplaced;
        launch->sample->may_wait = gate->terms.device_count > 1;
        sample_next(function, launch->sample, !sampler->surveys[gate->device].several);
    }
    if (launch->sample != NULL && launch->sample->laid) /* counted by what it turns out to take */
        hv_sub_relaxed(&gate->usage->brief_ns, hv_gate_overlapped(gate, charged));
    hv_gate_tell_unfinished(gate);
}

static CUresult pass(struct hv_launch *launch, struct hv_process *process, CUdevice ordinal)
{
    struct hv_gate gate;
    CUresult refused = CUDA_SUCCESS;
    if (!hv_gate_open(&gate, process, ordinal, &refused))
        return refused;
    pass_freeze(&gate);
    move_thread(&gate);
    flush_launches(&gate);
    bool free = launch->kind == HV_LAUNCH_COPY && (gate.terms.flags & HV_DEVICE_CHARGE_COPIES) == 0;
    if (gate.share_ppm < HV_SHARE_FULL_PPM && !free && !is_captured(launch))
        charge(&gate, launch);
    prepare_thread(&gate);
    return CUDA_SUCCESS;
}

int hv_cuCtxPushCurrent_v2(CUcontext context);
int hv_cuCtxPopCurrent_v2(CUcontext *context);

/* A kernel runs in the context of its stream, which need not be the thread's: on its device, with events of its own. */
static bool enter_context_of(CUstream stream)
{
    CUcontext current = NULL, context = NULL;
    hv_call_type_cuStreamGetCtx ask = HV_DRIVER(cuStreamGetCtx);
    if ((uintptr_t)stream <= LAST_OF_EACH_CONTEXT || ask == NULL || ask(stream, &context) != CUDA_SUCCESS ||
        context == NULL || (HV_DRIVER(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context) ||
        HV_REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
        return false;
    hv_thread.elsewhere = true;
    hv_thread_context_changed();
    return true;
}

static CUresult begin(struct hv_launch *launch)
{
    CUresult refused;
    CUresult result;
    CUdevice ordinal;
    launch->sample = NULL;
    launch->process = hv_limited_process(&refused);
    if (launch->process == NULL || !hv_current_ordinal(&ordinal, &result))
        return refused;
    return pass(launch, launch->process, ordinal);
}

HV_NOINLINE CUresult hv_launch_begin(struct hv_launch *launch)
{
    CUcontext popped;
    bool entered = enter_context_of(launch->stream);
    CUresult refused = begin(launch);
    if (entered) {
        (void)HV_REAL(cuCtxPopCurrent_v2)(&popped);
        hv_thread_context_changed();
    }
    return refused;
}

void hv_launch_ready(struct hv_launch *launch)
{
    if (launch->sample != NULL)
        launch->sample->ready_at_ns = hv_os_now_ns();
}

CUresult hv_launch_end(struct hv_launch *launch, CUresult result)
{
    if (launch->sample != NULL)
        hv_sampler_end(&launch->process->sampler, launch->sample, launch->stream, launch->per_thread,
                       result == CUDA_SUCCESS);
    return result;
}
