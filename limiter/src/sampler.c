#include "sampler.h"

#include "bucket.h"
#include "coverage.h"
#include "driver.h"
#include "os.h"
#include "sampler_events.h"
#include "survey.h"

/* Then the base is recorded anew: the driver tells times between events as floats. */
#define CLOCK_HOLDS_NS UINT64_C(600000000000)

/* Of a launch that has not ended. */
#define LAY_EVERY_NS UINT64_C(20000000)

#define OWN_OVER 16 /* launches over which what is their own is averaged */
#define GONE_PART 8 /* eighths of it that others have to take off to be missed */

/* Charges are called too little where the correction is above 1 by this part. */
#define TOO_LITTLE_PART 2

/* After so long without a word the daemon is taken to be gone. It says one each half second. */
#define SILENT_NS UINT64_C(1500000000)

static bool try_enter(struct hv_sampler *sampler)
{
    return __atomic_exchange_n(&sampler->busy, 1, __ATOMIC_ACQUIRE) == 0;
}

static void leave(struct hv_sampler *sampler)
{
    hv_store_release_32(&sampler->busy, 0);
}

static void end_under_way(struct hv_sampler *sampler, struct hv_sample *sample)
{
    if (sample->unlearned)
        hv_sub_acq_rel_32(&sample->function->in_flight, 1);
    if (sample->laid)
        hv_sub_relaxed(&sampler->long_ns[sample->device], sample->charged_ns);
    hv_sub_acq_rel_32(&sampler->pending[sample->device], 1);
}

static void finish(struct hv_sampler *sampler, struct hv_sample *sample)
{
    end_under_way(sampler, sample);
    hv_store_release_32(&sample->state, HV_SAMPLE_FREE);
}

/* The sum of what has ended only grows: streams overtake each other. */
static void advance_ended(struct hv_sampler *sampler, const struct hv_sample *sample)
{
    if (hv_load_relaxed(&sampler->ended_ns[sample->device]) < sample->charged_upto)
        hv_store_relaxed(&sampler->ended_ns[sample->device], sample->charged_upto);
}

/* The time from the clock's base to an event in nanoseconds; false where the driver does not say. */
static bool since_base(const struct hv_event_clock *clock, CUevent event, int64_t *ns)
{
    float milliseconds;
    if (HV_DRIVER(cuEventElapsedTime)(&milliseconds, clock->base, event) != CUDA_SUCCESS)
        return false;
    *ns = (int64_t)((double)milliseconds * 1e6);
    return true;
}

/* The launch has begun, and this context has a clock: when, on ours. */
static bool begin_of(const struct hv_event_clock *clock, const struct hv_sample *sample, uint64_t *begin_ns)
{
    int64_t start;
    if (clock->context != sample->context || clock->base == NULL || !since_base(clock, sample->start, &start))
        return false;
    /* Signed: the start may lie before the base, and both are far below 2^62. */
    *begin_ns = (uint64_t)((int64_t)clock->base_at_ns + start) + sample->gap_ns;
    return true;
}

/* A start event is not over before it was recorded and an end event is over when it is seen to be. */
static void bound_clock(struct hv_event_clock *clock, const struct hv_sample *sample, uint64_t now_ns)
{
    int64_t start, end;
    if (clock->context != sample->context || clock->base == NULL || !since_base(clock, sample->start, &start) ||
        !since_base(clock, sample->end, &end))
        return;
    int64_t base = (int64_t)clock->base_at_ns;
    int64_t earliest = (int64_t)sample->begun_at_ns - start, latest = (int64_t)now_ns - end;
    clock->base_at_ns = (uint64_t)(base < earliest ? earliest : base > latest ? latest : base);
}

/* Lay down how far the launch has gone. */
static void lay(const struct hv_files *files, struct hv_sample *sample, uint64_t begin_ns, uint64_t upto_ns)
{
    struct hv_device_usage *usage = files->devices[sample->device];
    if (sample->laid_upto_ns == 0) {
        sample->laid_from_ns = begin_ns;
        sample->laid_upto_ns = begin_ns;
    }
    if (upto_ns <= sample->laid_upto_ns)
        return;
    uint64_t added = hv_cover(files->coverage[sample->device], sample->laid_upto_ns, upto_ns);
    uint32_t own = hv_slots_at_work(&files->slots, sample->device);
    sample->laid_upto_ns = upto_ns;
    sample->laid_ns += added;
    sample->own_ns += hv_own_turns(added, own, hv_load_relaxed(&files->control[sample->device]->others_ppm));
    hv_add_relaxed(&usage->laid_ns, added);
    hv_add_relaxed(&usage->crowd_ns, added * (own == 0 ? 1 : own));
}

/* Those who compare accounts with the driver's can't wait for the end of a very long launch. */
static void lay_unfinished(struct hv_sampler *sampler, const struct hv_files *files, struct hv_sample *sample,
                           uint64_t now_ns)
{
    uint64_t begin_ns;
    uint64_t since = sample->laid_upto_ns != 0 ? sample->laid_upto_ns : sample->ready_at_ns;
    if (sample->laid && now_ns > since && now_ns - since >= LAY_EVERY_NS &&
        begin_of(&sampler->clocks[sample->device], sample, &begin_ns))
        lay(files, sample, begin_ns, now_ns);
}

static void lay_all(struct hv_sampler *sampler, const struct hv_files *files, struct hv_sample *sample,
                    uint64_t measured_ns, uint64_t now_ns)
{
    struct hv_event_clock *clock = &sampler->clocks[sample->device];
    uint64_t begin_ns;
    bound_clock(clock, sample, now_ns);
    if (!begin_of(clock, sample, &begin_ns))
        begin_ns = sample->ready_at_ns;
    uint64_t end_ns = begin_ns + measured_ns;
    lay(files, sample, begin_ns, end_ns < now_ns ? end_ns : now_ns);
}

/* The driver sees the Pod busier than it is charged. */
static bool charges_are_too_little(const struct hv_files *files, uint32_t device)
{
    uint32_t correction = hv_plausible_correction(hv_load_relaxed(&files->control[device]->correction_ppm));
    return correction > HV_SHARE_FULL_PPM + HV_SHARE_FULL_PPM / TOO_LITTLE_PART;
}

/* A correction was found out, and whoever found it is silent. */
static bool is_held(const struct hv_files *files, uint32_t device, uint64_t now_ns)
{
    uint64_t corrected_at = hv_load_relaxed(&files->control[device]->correction_at_ns);
    return corrected_at != 0 && now_ns > corrected_at && now_ns - corrected_at > SILENT_NS;
}

static uint64_t averaged(uint64_t mean, uint64_t new)
{
    return mean == 0 ? new : mean - mean / OWN_OVER + new / OWN_OVER;
}

/* What of a long launch is the Pod's own. Where nobody looks any more how many
 * turns others have, and launches take much less than before, the others have
 * gone: then so much more of their time is their own that it is as before. */
static uint64_t own_part(const struct hv_sample *sample, bool held)
{
    struct hv_function *function = sample->function;
    if (!held) {
        function->own_ns = averaged(function->own_ns, sample->own_ns);
        function->alone_ns = function->own_ns;
        return sample->own_ns;
    }
    function->alone_ns = averaged(function->alone_ns, sample->own_ns);
    if (function->alone_ns >= function->own_ns - function->own_ns / GONE_PART * 3 || function->alone_ns == 0)
        return sample->own_ns;
    unsigned __int128 scaled = (unsigned __int128)sample->own_ns * function->own_ns / function->alone_ns;
    return scaled < sample->laid_ns ? (uint64_t)scaled : sample->laid_ns; /* not more than it was measured to take */
}

static struct hv_sample_result result_of(struct hv_sampler *sampler, struct hv_sample *sample,
                                         const struct hv_files *files, uint64_t elapsed_ns, uint64_t now_ns)
{
    struct hv_sample_result result = {.function = sample->function,
                                      .charged_ns = sample->charged_ns,
                                      .measured_ns = elapsed_ns > sample->gap_ns ? elapsed_ns - sample->gap_ns : elapsed_ns,
                                      .copy = sample->function->kind == HV_FUNCTION_COPY};
    struct hv_measured measured = {.ns = result.measured_ns,
                                   .own_ns = result.measured_ns,
                                   .beside_others = sampler->surveys[sample->device].several,
                                   .idle = sample->recorded_at_ns != 0,
                                   .held = is_held(files, sample->device, now_ns),
                                   .too_little = charges_are_too_little(files, sample->device),
                                   .at_ns = now_ns};
    if (sample->laid) {
        lay_all(sampler, files, sample, result.measured_ns, now_ns);
        result.laid = true;
        result.guessed = sample->unlearned;
        result.began_ns = sample->laid_from_ns;
        result.used_ns = own_part(sample, measured.held);
        measured.own_ns = result.used_ns;
    }
    uint64_t before = hv_load_relaxed(&sample->function->cost_ns);
    hv_function_learn(sample->function, &measured);
    if (!measured.held)
        hv_store_relaxed_32(&sampler->changed[sample->device], 0);
    if (before != 0 && hv_is_other_work(before, hv_load_relaxed(&sample->function->cost_ns))) {
        hv_survey_again(sampler, sample->device, now_ns);
        if (measured.held && !sample->laid)
            hv_store_relaxed_32(&sampler->changed[sample->device], 1);
    }
    return result;
}

uint32_t hv_sampler_poll(struct hv_sampler *sampler, const struct hv_files *files, uint32_t device, uint64_t now_ns,
                         struct hv_sample_result *results)
{
    uint32_t count = 0;
    if (!try_enter(sampler))
        return 0;
    int mode = hv_events_enter();
    for (uint32_t i = 0; i < HV_SAMPLES && count < HV_SAMPLER_RESULTS; i++) {
        struct hv_sample *sample = &sampler->samples[device][i];
        if (hv_load_acquire_32(&sample->state) != HV_SAMPLE_PENDING)
            continue;
        CUresult ended = HV_DRIVER(cuEventQuery)(sample->end);
        if (ended == CUDA_ERROR_NOT_READY) {
            lay_unfinished(sampler, files, sample, now_ns);
            continue;
        }
        float milliseconds = 0;
        if (ended == CUDA_SUCCESS &&
            HV_DRIVER(cuEventElapsedTime)(&milliseconds, sample->start, sample->end) == CUDA_SUCCESS &&
            milliseconds >= 0) {
            results[count++] = result_of(sampler, sample, files, (uint64_t)((double)milliseconds * 1e6), now_ns);
        }
        advance_ended(sampler, sample);
        end_under_way(sampler, sample);
        if (sample->surveyed)
            hv_survey_keep(sampler, sample, is_held(files, device, now_ns), now_ns);
        else
            hv_store_release_32(&sample->state, HV_SAMPLE_FREE);
    }
    hv_events_leave(mode);
    leave(sampler);
    return count;
}

/* A free sample, if possible one whose events belong to this context already. */
static struct hv_sample *find_room(struct hv_sampler *sampler, uint32_t device, CUcontext context)
{
    struct hv_sample *other = NULL;
    for (uint32_t i = 0; i < HV_SAMPLES; i++) {
        struct hv_sample *sample = &sampler->samples[device][i];
        if (hv_load_acquire_32(&sample->state) != HV_SAMPLE_FREE)
            continue;
        if (sample->context == context)
            return sample;
        if (other == NULL || sample->context == NULL)
            other = sample;
    }
    return other;
}

static bool have_events(struct hv_sample *sample, CUcontext context)
{
    if (sample->context == context)
        return true;
    if (sample->context != NULL) {
        (void)HV_DRIVER(cuEventDestroy_v2)(sample->start);
        (void)HV_DRIVER(cuEventDestroy_v2)(sample->end);
        sample->context = NULL;
    }
    if (HV_DRIVER(cuEventCreate)(&sample->start, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
        return false;
    if (HV_DRIVER(cuEventCreate)(&sample->end, CU_EVENT_DEFAULT) != CUDA_SUCCESS) {
        (void)HV_DRIVER(cuEventDestroy_v2)(sample->start);
        return false;
    }
    sample->context = context;
    return true;
}

/* On an idle stream the start event is over at once, and until the launch
 * arrives the device waits for this thread. That gap is taken to lie between
 * the middles of the two calls. */
static bool record_start(struct hv_sample *sample, CUstream stream, bool per_thread)
{
    bool idle = hv_events_idle(stream, per_thread);
    uint64_t before = sample->begun_at_ns = hv_os_now_ns();
    if (!hv_events_record(sample->start, stream, per_thread))
        return false;
    sample->recorded_at_ns = idle ? before + (hv_os_now_ns() - before) / 2 : 0;
    sample->gap_ns = 0;
    return true;
}

static void note_gap(struct hv_sample *sample)
{
    if (sample->recorded_at_ns == 0)
        return;
    uint64_t launched_at = sample->ready_at_ns + (hv_os_now_ns() - sample->ready_at_ns) / 2;
    sample->gap_ns = launched_at - sample->recorded_at_ns;
}

/* An event that others are compared with, for the first context of a device that launches. */
static void set_clock(struct hv_event_clock *clock, CUcontext context, CUstream stream, bool per_thread)
{
    uint64_t now = hv_os_now_ns();
    if (clock->base != NULL && (clock->context != context || now - clock->base_at_ns < CLOCK_HOLDS_NS))
        return;
    if (clock->base == NULL && HV_DRIVER(cuEventCreate)(&clock->base, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
        return;
    clock->context = context;
    clock->base_at_ns = now; /* at the earliest */
    if (!hv_events_record(clock->base, stream, per_thread)) {
        (void)HV_DRIVER(cuEventDestroy_v2)(clock->base);
        clock->base = NULL;
    }
}

static struct hv_sample *prepare(struct hv_sampler *sampler, uint32_t device, CUstream stream, bool per_thread)
{
    CUcontext context = NULL;
    if (hv_events_capturing(stream, per_thread) || HV_DRIVER(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context == NULL)
        return NULL;
    struct hv_sample *sample = find_room(sampler, device, context);
    if (sample == NULL || !have_events(sample, context))
        return NULL;
    set_clock(&sampler->clocks[device], context, stream, per_thread);
    return record_start(sample, stream, per_thread) ? sample : NULL;
}

struct hv_sample *hv_sampler_begin(struct hv_sampler *sampler, struct hv_function *function, uint32_t device,
                                   CUstream stream, bool per_thread, uint64_t charged_ns)
{
    if (!hv_events_are_there() || !try_enter(sampler))
        return NULL;
    int mode = hv_events_enter();
    struct hv_sample *sample = prepare(sampler, device, stream, per_thread);
    if (sample != NULL) {
        sample->stream = stream;
        sample->function = function;
        sample->device = device;
        sample->charged_ns = charged_ns;
        sample->charged_upto = hv_load_relaxed(&sampler->charged_ns[device]);
        sample->unlearned = hv_load_relaxed(&function->cost_ns) == 0;
        sample->laid = function->kind != HV_FUNCTION_COPY &&
                       (sample->unlearned || hv_load_relaxed_32(&function->is_long) != 0);
        sample->laid_from_ns = sample->laid_upto_ns = sample->laid_ns = sample->own_ns = 0;
        if (sample->unlearned)
            hv_add_acq_rel_32(&function->in_flight, 1);
        if (sample->laid)
            hv_add_relaxed(&sampler->long_ns[device], charged_ns);
        hv_add_acq_rel_32(&sampler->pending[device], 1);
        sample->surveyed = !sample->unlearned && hv_load_relaxed_32(&sampler->surveys[device].wanted) != 0;
        if (sample->surveyed) {
            hv_sub_acq_rel_32(&sampler->surveys[device].wanted, 1);
            hv_add_acq_rel_32(&sampler->surveys[device].under_way, 1);
        }
        hv_store_relaxed(&sampler->sampled_ns[device], sample->charged_upto);
        hv_store_release_32(&sample->state, HV_SAMPLE_RECORDING);
    }
    hv_events_leave(mode);
    leave(sampler);
    if (sample != NULL)
        sample->ready_at_ns = hv_os_now_ns();
    return sample;
}

/* The sample is this thread's own while it is being recorded. */
void hv_sampler_end(struct hv_sampler *sampler, struct hv_sample *sample, CUstream stream, bool per_thread,
                    bool launched)
{
    note_gap(sample);
    int mode = hv_events_enter();
    if (launched && hv_events_record(sample->end, stream, per_thread)) {
        hv_store_release_32(&sample->state, HV_SAMPLE_PENDING);
    } else {
        hv_survey_leave(sampler, sample);
        finish(sampler, sample);
    }
    hv_events_leave(mode);
}

static void forget(struct hv_sampler *sampler, struct hv_sample *sample)
{
    uint32_t state = hv_load_acquire_32(&sample->state);
    if (state == HV_SAMPLE_PENDING) {
        advance_ended(sampler, sample);
        hv_survey_leave(sampler, sample);
        finish(sampler, sample);
    } else if (state == HV_SAMPLE_MEASURED) {
        hv_store_release_32(&sample->state, HV_SAMPLE_FREE);
    }
    sample->context = NULL;
}

static void enter(struct hv_sampler *sampler)
{
    while (!try_enter(sampler))
        hv_os_yield();
}

void hv_sampler_forget_context(struct hv_sampler *sampler, CUcontext context)
{
    enter(sampler);
    for (uint32_t device = 0; device < HV_MAX_DEVICES; device++) {
        if (sampler->clocks[device].context == context)
            sampler->clocks[device] = (struct hv_event_clock){0};
        for (uint32_t i = 0; i < HV_SAMPLES; i++)
            if (sampler->samples[device][i].context == context)
                forget(sampler, &sampler->samples[device][i]);
    }
    leave(sampler);
}

void hv_sampler_forget_device(struct hv_sampler *sampler, uint32_t device)
{
    enter(sampler);
    sampler->clocks[device] = (struct hv_event_clock){0};
    for (uint32_t i = 0; i < HV_SAMPLES; i++)
        forget(sampler, &sampler->samples[device][i]);
    leave(sampler);
}

uint64_t hv_sampler_unfinished_ns(const struct hv_sampler *sampler, uint32_t device)
{
    if (hv_load_acquire_32(&sampler->pending[device]) == 0)
        return 0;
    uint64_t charged = hv_load_relaxed(&sampler->charged_ns[device]);
    uint64_t ended = hv_load_relaxed(&sampler->ended_ns[device]);
    uint64_t left = charged > ended ? charged - ended : 0;
    uint64_t long_left = hv_load_relaxed(&sampler->long_ns[device]); /* whatever has overtaken them in other streams */
    return left > long_left ? left : long_left;
}
