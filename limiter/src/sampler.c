#include "sampler.h"

#include "bucket.h"
#include "costs.h"
#include "driver.h"
#include "os.h"
#include "sampler_events.h"
#include "sampler_laid.h"
#include "sampler_results.h"
#include "survey.h"

/* Then the base is recorded anew: the driver tells times between events as floats. */
#define CLOCK_HOLDS_NS UINT64_C(600000000000)

#define MOST_TRIES 10000

static bool try_enter(struct hv_sampler *sampler)
{
    return __atomic_exchange_n(&sampler->busy, 1, __ATOMIC_ACQUIRE) == 0;
}

/* Others look at what is under way, which takes microseconds; unless one of them is stopped just then. */
static bool enter_patiently(struct hv_sampler *sampler)
{
    for (uint32_t tries = 0; tries < MOST_TRIES; tries++) {
        if (try_enter(sampler))
            return true;
        hv_os_yield();
    }
    return false;
}

static void leave(struct hv_sampler *sampler)
{
    hv_store_release_32(&sampler->busy, 0);
}

bool hv_sampler_take_turn(struct hv_sampler *sampler, uint32_t device)
{
    uint32_t free = 0;
    return __atomic_compare_exchange_n(&sampler->measuring[device], &free, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

void hv_sampler_leave_turn(struct hv_sampler *sampler, uint32_t device)
{
    hv_add_acq_rel_32(&sampler->turns[device], 1);
    hv_store_release_32(&sampler->measuring[device], 0);
}

static void end_under_way(struct hv_sampler *sampler, struct hv_sample *sample)
{
    hv_sample_pass_turn_on(sampler, sample);
    if (sample->unlearned)
        hv_sub_acq_rel_32(&sample->function->in_flight, 1);
    if (sample->laid)
        hv_sub_relaxed(&sampler->long_ns[sample->device], sample->long_ns);
    hv_sub_relaxed(&sampler->under_way_ns[sample->device], sample->weight_ns);
    hv_sub_acq_rel_32(&sampler->pending[sample->device], 1);
}

static void finish(struct hv_sampler *sampler, struct hv_sample *sample)
{
    end_under_way(sampler, sample);
    hv_store_release_32(&sample->state, HV_SAMPLE_FREE);
}

/* What counts as ended: streams overtake each other. */
static uint64_t ended_charges(const struct hv_sampler *sampler, uint32_t device, uint64_t charged)
{
    uint64_t unfinished = hv_sampler_unfinished_ns(sampler, device);
    return unfinished < charged ? charged - unfinished : 0;
}

/* Charges that may have been worked through and not have ended. */
static uint64_t ahead_of(const struct hv_sampler *sampler, uint32_t device)
{
    if (hv_load_relaxed(&sampler->longer_upto_ns[device]) > hv_load_relaxed(&sampler->ended_ns[device]))
        return 0; /* the pace was that of other work */
    uint64_t largest = hv_load_relaxed(&sampler->largest_ns[device]);
    return largest > HV_AHEAD_NS ? largest : HV_AHEAD_NS;
}

static void note_backlog(struct hv_sampler *sampler, uint32_t device, uint64_t now_ns)
{
    uint64_t charged = hv_load_relaxed(&sampler->charged_ns[device]);
    hv_backlog_note(&sampler->backlogs[device], charged, ended_charges(sampler, device, charged), ahead_of(sampler, device),
                    now_ns);
}

uint64_t hv_sampler_left_ns(const struct hv_sampler *sampler, uint32_t device, uint64_t now_ns)
{
    uint64_t charged = hv_load_relaxed(&sampler->charged_ns[device]);
    return hv_backlog_left(&sampler->backlogs[device], charged, ended_charges(sampler, device, charged),
                           ahead_of(sampler, device), now_ns);
}

bool hv_sampler_fills_turns(const struct hv_sampler *sampler, uint32_t device, uint32_t crowd, uint64_t now_ns)
{
    uint64_t charged = hv_load_relaxed(&sampler->charged_ns[device]);
    return hv_backlog_fills_turns(&sampler->backlogs[device], ended_charges(sampler, device, charged), crowd, now_ns);
}

bool hv_sampler_is_too_little(const struct hv_sampler *sampler, uint32_t device, uint32_t crowd, uint64_t now_ns)
{
    uint64_t charged = hv_load_relaxed(&sampler->charged_ns[device]);
    return hv_backlog_is_too_little(&sampler->backlogs[device], ended_charges(sampler, device, charged), crowd,
                                    hv_survey_overlap_ppm(sampler, device), now_ns);
}

uint32_t hv_sampler_poll(struct hv_sampler *sampler, const struct hv_files *files, uint32_t device, uint64_t now_ns,
                         struct hv_sample_result *results)
{
    uint32_t count = 0;
    uint64_t largest = 0;
    if (!try_enter(sampler))
        return 0;
    int mode = hv_events_enter();
    for (uint32_t i = 0; i < HV_SAMPLES && count < HV_SAMPLER_RESULTS; i++) {
        struct hv_sample *sample = &sampler->samples[device][i];
        if (hv_load_acquire_32(&sample->state) != HV_SAMPLE_PENDING)
            continue;
        CUresult ended = HV_DRIVER(cuEventQuery)(sample->end);
        if (ended == CUDA_ERROR_NOT_READY) {
            largest = sample->weight_ns > largest ? sample->weight_ns : largest;
            hv_sample_lay_unfinished(sampler, files, sample, now_ns);
            if (sample->unlearned)
                hv_costs_measures_on(sample->function, now_ns);
            if (hv_sample_outgrows(sampler, sample, &results[count]))
                count++;
            continue;
        }
        float milliseconds = 0;
        if (ended == CUDA_SUCCESS &&
            HV_DRIVER(cuEventElapsedTime)(&milliseconds, sample->start, sample->end) == CUDA_SUCCESS &&
            milliseconds >= 0) {
            results[count++] = hv_sample_result_of(sampler, sample, files, (uint64_t)((double)milliseconds * 1e6), now_ns);
        }
        (void)hv_sample_advance_ended(sampler, sample);
        end_under_way(sampler, sample);
        if (sample->surveyed)
            hv_survey_keep(sampler, sample, hv_sample_crowd(files, device, now_ns), now_ns);
        else
            hv_store_release_32(&sample->state, HV_SAMPLE_FREE);
    }
    if (count < HV_SAMPLER_RESULTS)
        hv_store_relaxed(&sampler->largest_ns[device], largest);
    note_backlog(sampler, device, now_ns);
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

static void note_long(struct hv_sampler *sampler, uint32_t device, CUstream stream)
{
    if (sampler->long_seen[device] && sampler->long_stream[device] != stream)
        sampler->long_several[device] = true;
    sampler->long_stream[device] = stream;
    sampler->long_seen[device] = true;
}

struct hv_sample *hv_sampler_begin(struct hv_sampler *sampler, struct hv_function *function, uint32_t device,
                                   CUstream stream, bool per_thread, uint64_t charged_ns, bool surveyed)
{
    /* What is not measured is charged a guess, and stays unknown. */
    bool unknown = hv_load_relaxed(&function->cost_ns) == 0;
    if (!hv_events_are_there() || !(unknown ? enter_patiently(sampler) : try_enter(sampler)))
        return NULL;
    int mode = hv_events_enter();
    struct hv_sample *sample = prepare(sampler, device, stream, per_thread);
    if (sample != NULL) {
        sample->stream = stream;
        sample->function = function;
        sample->version = hv_load_relaxed_32(&function->version);
        sample->device = device;
        sample->charged_ns = charged_ns;
        sample->charged_upto = hv_load_relaxed(&sampler->charged_ns[device]);
        sample->unlearned = hv_load_relaxed(&function->cost_ns) == 0;
        sample->laid = function->kind != HV_FUNCTION_COPY &&
                       (sample->unlearned || hv_load_relaxed_32(&function->is_long) != 0);
        sample->long_ns = hv_load_relaxed_32(&function->is_long) != 0 ? hv_load_relaxed(&function->cost_ns) : charged_ns;
        uint64_t before = hv_load_relaxed(&sampler->sampled_ns[device]);
        sample->weight_ns = sample->charged_upto > before ? sample->charged_upto - before : 0; /* another thread's came between */
        sample->laid_from_ns = sample->laid_upto_ns = sample->laid_ns = sample->own_ns = sample->turn_ns =
            sample->least_ns = sample->most_ns = sample->untold_ns = 0;
        sample->unplaced = sample->may_wait = false;
        sample->holds_turn = sample->in_turn = false;
        sample->outgrown = false;
        if (sample->unlearned)
            hv_add_acq_rel_32(&function->in_flight, 1);
        if (sample->laid) {
            hv_add_relaxed(&sampler->long_ns[device], sample->long_ns);
            note_long(sampler, device, stream);
        }
        hv_add_acq_rel_32(&sampler->pending[device], 1);
        uint32_t wanted = hv_load_relaxed_32(&sampler->surveys[device].wanted);
        sample->surveyed = surveyed && wanted != 0 && wanted <= HV_SURVEYED; /* another thread's launch may have been the last */
        if (sample->surveyed) {
            hv_sub_acq_rel_32(&sampler->surveys[device].wanted, 1);
            hv_add_acq_rel_32(&sampler->surveys[device].under_way, 1);
        }
        hv_store_relaxed(&sampler->sampled_ns[device], before + sample->weight_ns);
        hv_add_relaxed(&sampler->under_way_ns[device], sample->weight_ns);
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
        (void)hv_sample_advance_ended(sampler, sample);
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
    uint64_t sampled = hv_load_relaxed(&sampler->sampled_ns[device]);
    /* Streams overtake each other: what is under way is known by sample. */
    uint64_t left = hv_load_relaxed(&sampler->under_way_ns[device]) + (charged > sampled ? charged - sampled : 0);
    uint64_t longer_upto = hv_load_relaxed(&sampler->longer_upto_ns[device]);
    if (longer_upto > ended && longer_upto <= charged) /* both sums only grow, so neither product is large */
        left += (longer_upto - ended) * hv_load_relaxed(&sampler->longer_times[device]);
    uint64_t long_left = hv_load_relaxed(&sampler->long_ns[device]); /* whatever has overtaken them in other streams */
    return left > long_left ? left : long_left;
}
