#include "sampler.h"

#include "coverage.h"
#include "driver.h"
#include "os.h"

/* Launches of a stream in one survey from which on it counts. */
#define TAKES_PART 3

/* Time between two surveys: at first, and once their results agree. */
#define FIRST_SURVEY_NS UINT64_C(20000000)
#define LONGEST_SURVEY_NS UINT64_C(1000000000)

/*
 * Another thread may be capturing a stream in the mode in which the driver
 * forbids everyone else what we do here, and such a call would spoil its
 * capture. In the relaxed mode, which is each thread's own, it may be done.
 */
static int enter_relaxed_mode(void)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    hv_call_type_cuThreadExchangeStreamCaptureMode exchange = HV_DRIVER(cuThreadExchangeStreamCaptureMode);
    if (exchange == NULL || exchange(&mode) != CUDA_SUCCESS)
        return -1;
    return mode;
}

static void leave_relaxed_mode(int mode)
{
    if (mode >= 0)
        (void)HV_DRIVER(cuThreadExchangeStreamCaptureMode)(&mode); /* it worked a moment ago */
}

static bool try_enter(struct hv_sampler *sampler)
{
    return __atomic_exchange_n(&sampler->busy, 1, __ATOMIC_ACQUIRE) == 0;
}

static void leave(struct hv_sampler *sampler)
{
    hv_store_release_32(&sampler->busy, 0);
}

static bool events_are_there(void)
{
    return HV_DRIVER(cuEventCreate) != NULL && HV_DRIVER(cuEventQuery) != NULL && HV_DRIVER(cuEventRecord) != NULL &&
           HV_DRIVER(cuEventElapsedTime) != NULL && HV_DRIVER(cuEventDestroy_v2) != NULL &&
           HV_DRIVER(cuCtxGetCurrent) != NULL;
}

static bool is_capturing(CUstream stream, bool per_thread)
{
    hv_call_type_cuStreamIsCapturing ask =
        per_thread ? HV_DRIVER(cuStreamIsCapturing_ptsz) : HV_DRIVER(cuStreamIsCapturing);
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (ask == NULL)
        return false; /* a driver without capture */
    /* The legacy stream answers with an error while others are captured. */
    return ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static bool is_idle(CUstream stream, bool per_thread)
{
    hv_call_type_cuStreamQuery ask = per_thread ? HV_DRIVER(cuStreamQuery_ptsz) : HV_DRIVER(cuStreamQuery);
    return ask != NULL && ask(stream) == CUDA_SUCCESS;
}

static bool record(CUevent event, CUstream stream, bool per_thread)
{
    hv_call_type_cuEventRecord do_record = per_thread ? HV_DRIVER(cuEventRecord_ptsz) : HV_DRIVER(cuEventRecord);
    return do_record != NULL && do_record(event, stream) == CUDA_SUCCESS;
}

static void end_under_way(struct hv_sampler *sampler, struct hv_sample *sample)
{
    if (sample->unlearned)
        hv_sub_acq_rel_32(&sample->function->in_flight, 1);
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

/* ---- surveys ---- */

struct interval {
    float begin_ms; /* after the start of the first sample that was found */
    float end_ms;
    CUstream stream;
    float over_cost; /* its time, over the cost of its function now */
};

static void insert_by_begin(struct interval *intervals, uint32_t count, struct interval new)
{
    uint32_t at = count;
    for (; at > 0 && intervals[at - 1].begin_ms > new.begin_ms; at--)
        intervals[at] = intervals[at - 1];
    intervals[at] = new;
}

/* The samples of the survey as intervals, in the order of their beginnings; gives them up. */
static uint32_t take_intervals(struct hv_sampler *sampler, uint32_t device, struct interval *intervals)
{
    CUevent base = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < HV_SAMPLES; i++) {
        struct hv_sample *sample = &sampler->samples[i];
        struct interval one = {.stream = sample->stream};
        if (hv_load_acquire_32(&sample->state) != HV_SAMPLE_MEASURED || sample->device != device)
            continue;
        if (base == NULL)
            base = sample->start;
        if (count < HV_SURVEYED && HV_DRIVER(cuEventElapsedTime)(&one.begin_ms, base, sample->start) == CUDA_SUCCESS &&
            HV_DRIVER(cuEventElapsedTime)(&one.end_ms, base, sample->end) == CUDA_SUCCESS) {
            one.begin_ms += (float)sample->gap_ns * 1e-6f; /* far below what a float holds exactly */
            uint64_t cost = hv_load_relaxed(&sample->function->cost_ns);
            one.over_cost = (one.end_ms - one.begin_ms) * 1e6f / (float)(cost == 0 ? 1 : cost);
            insert_by_begin(intervals, count++, one);
        }
        hv_store_release_32(&sample->state, HV_SAMPLE_FREE);
    }
    return count;
}

/* The time in which every stream that takes part was at work: a survey cuts
 * streams off in mid-course, and what runs alone at its edges says nothing. */
static struct interval common_time(const struct interval *intervals, uint32_t count)
{
    struct interval common = {.begin_ms = intervals[0].begin_ms, .end_ms = 0};
    bool any = false;
    for (uint32_t i = 0; i < count; i++) {
        float first = intervals[i].begin_ms, last = intervals[i].end_ms;
        uint32_t times = 0;
        for (uint32_t j = 0; j < count; j++) {
            if (intervals[j].stream != intervals[i].stream)
                continue;
            times++;
            first = intervals[j].begin_ms < first ? intervals[j].begin_ms : first;
            last = intervals[j].end_ms > last ? intervals[j].end_ms : last;
        }
        if (times < TAKES_PART)
            continue;
        common.begin_ms = first > common.begin_ms ? first : common.begin_ms;
        common.end_ms = !any || last < common.end_ms ? last : common.end_ms;
        any = true;
    }
    return common;
}

/* What part of their times the intervals cover together. The others' turns
 * lengthen both alike, so they don't matter. */
static uint64_t covered_ppm(const struct interval *intervals, uint32_t count, struct interval within)
{
    float covered_ms = 0, sum_ms = 0, until_ms = within.begin_ms;
    for (uint32_t i = 0; i < count; i++) {
        float begin = intervals[i].begin_ms > within.begin_ms ? intervals[i].begin_ms : within.begin_ms;
        float end = intervals[i].end_ms < within.end_ms ? intervals[i].end_ms : within.end_ms;
        if (end <= begin)
            continue;
        sum_ms += end - begin;
        if (end > until_ms) {
            covered_ms += end - (begin > until_ms ? begin : until_ms);
            until_ms = end;
        }
    }
    return sum_ms > 0 ? (uint64_t)((double)covered_ms / (double)sum_ms * HV_SHARE_FULL_PPM) : 0;
}

/* The middle one, which others' turns do not reach as long as most launches are between them. */
static float middle_over_cost(const struct interval *intervals, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t below = 0, same = 0;
        for (uint32_t j = 0; j < count; j++) {
            below += intervals[j].over_cost < intervals[i].over_cost;
            same += intervals[j].over_cost == intervals[i].over_cost;
        }
        if (below <= count / 2 && below + same > count / 2)
            return intervals[i].over_cost;
    }
    return 1; /* not reached with numbers */
}

static void conclude(struct hv_sampler *sampler, uint32_t device, uint64_t now_ns)
{
    struct hv_survey *survey = &sampler->surveys[device];
    struct interval intervals[HV_SURVEYED];
    uint32_t count = take_intervals(sampler, device, intervals);
    survey->next_at_ns = now_ns + survey->interval_ns;
    survey->interval_ns = survey->interval_ns < LONGEST_SURVEY_NS / 2 ? survey->interval_ns * 2 : LONGEST_SURVEY_NS;
    if (count < HV_SURVEYED / 2)
        return;
    uint64_t ppm = covered_ppm(intervals, count, common_time(intervals, count));
    if (ppm == 0) /* the streams were used one after the other */
        ppm = HV_SHARE_FULL_PPM;
    ppm = (uint64_t)((double)ppm * (double)middle_over_cost(intervals, count));
    survey->recent_ppm[survey->count % HV_SURVEYS] =
        ppm > HV_SHARE_FULL_PPM ? HV_SHARE_FULL_PPM : ppm < HV_SHARE_FULL_PPM / 16 ? HV_SHARE_FULL_PPM / 16 : (uint32_t)ppm;
    survey->count++;
    uint32_t alike; /* surveys: nothing hangs on their number */
    uint32_t known = survey->count < HV_SURVEYS ? survey->count : HV_SURVEYS;
    hv_store_relaxed_32(&survey->overlap_ppm, hv_undisturbed(survey->recent_ppm, known, &alike));
}

static void keep_for_survey(struct hv_sampler *sampler, struct hv_sample *sample, uint64_t now_ns)
{
    struct hv_survey *survey = &sampler->surveys[sample->device];
    end_under_way(sampler, sample);
    hv_store_release_32(&sample->state, HV_SAMPLE_MEASURED);
    hv_sub_acq_rel_32(&survey->under_way, 1);
    if (hv_load_acquire_32(&survey->under_way) == 0 && hv_load_acquire_32(&survey->wanted) == 0)
        conclude(sampler, sample->device, now_ns);
}

/* Without the lock: what two threads lose to each other here is a survey that comes later. */
bool hv_sampler_wants(struct hv_sampler *sampler, uint32_t device, CUstream stream, bool per_thread, uint64_t now_ns)
{
    struct hv_survey *survey = &sampler->surveys[device];
    if (survey->stream != stream || survey->per_thread != per_thread) {
        survey->several = survey->several || survey->next_at_ns != 0; /* 0: this is the first launch of all */
        survey->stream = stream;
        survey->per_thread = per_thread;
    }
    if (survey->next_at_ns == 0) {
        survey->interval_ns = FIRST_SURVEY_NS;
        survey->next_at_ns = now_ns;
    }
    if (!survey->several)
        return false;
    if (hv_load_relaxed_32(&survey->wanted) == 0 && hv_load_relaxed_32(&survey->under_way) == 0 &&
        now_ns >= survey->next_at_ns) {
        hv_store_relaxed_32(&survey->wanted, HV_SURVEYED);
    }
    return hv_load_relaxed_32(&survey->wanted) != 0;
}

uint32_t hv_sampler_overlap_ppm(const struct hv_sampler *sampler, uint32_t device)
{
    uint32_t ppm = hv_load_relaxed_32(&sampler->surveys[device].overlap_ppm);
    return ppm == 0 || !sampler->surveys[device].several ? HV_SHARE_FULL_PPM : ppm;
}

/* A sample of the survey that will not be measured. */
static void leave_survey(struct hv_sampler *sampler, struct hv_sample *sample)
{
    if (sample->surveyed)
        hv_sub_acq_rel_32(&sampler->surveys[sample->device].under_way, 1);
    sample->surveyed = false;
}

/* ---- samples ---- */

/* The time from the clock's base to an event in nanoseconds; false where the driver does not say. */
static bool since_base(const struct hv_event_clock *clock, CUevent event, int64_t *ns)
{
    float milliseconds;
    if (HV_DRIVER(cuEventElapsedTime)(&milliseconds, clock->base, event) != CUDA_SUCCESS)
        return false;
    *ns = (int64_t)((double)milliseconds * 1e6);
    return true;
}

/* When the launch ran, on our clock, from what is known of the device's. */
static struct moments {
    uint64_t begin_ns, end_ns;
} moments_of(struct hv_event_clock *clock, const struct hv_sample *sample, uint64_t measured_ns, uint64_t now_ns)
{
    struct moments laid = {.begin_ns = sample->ready_at_ns, .end_ns = sample->ready_at_ns + measured_ns};
    int64_t start, end;
    if (clock->context == sample->context && clock->base != NULL && since_base(clock, sample->start, &start) &&
        since_base(clock, sample->end, &end)) {
        /* Signed throughout: the start may lie before the base, and both are far below 2^62. */
        int64_t base = (int64_t)clock->base_at_ns;
        int64_t earliest = (int64_t)sample->begun_at_ns - start, latest = (int64_t)now_ns - end;
        base = base < earliest ? earliest : base > latest ? latest : base;
        clock->base_at_ns = (uint64_t)base;
        laid.begin_ns = (uint64_t)(base + start) + sample->gap_ns;
        laid.end_ns = (uint64_t)(base + end);
    }
    if (laid.end_ns > now_ns)
        laid.end_ns = now_ns;
    return laid;
}

static struct hv_sample_result result_of(struct hv_sampler *sampler, struct hv_sample *sample,
                                         const struct hv_files *files, uint64_t elapsed_ns, uint64_t now_ns)
{
    struct hv_sample_result result = {.function = sample->function,
                                      .device = sample->device,
                                      .charged_ns = sample->charged_ns,
                                      .measured_ns = elapsed_ns > sample->gap_ns ? elapsed_ns - sample->gap_ns : elapsed_ns,
                                      .copy = sample->function->kind == HV_FUNCTION_COPY};
    struct hv_measured measured = {.ns = result.measured_ns,
                                   .long_part_ppm = HV_SHARE_FULL_PPM,
                                   .beside_others = sampler->surveys[sample->device].several,
                                   .at_ns = now_ns};
    result.settled = !result.copy && (sample->unlearned || hv_load_relaxed_32(&sample->function->is_long) != 0);
    if (result.settled) {
        struct moments laid = moments_of(&sampler->clocks[sample->device], sample, result.measured_ns, now_ns);
        result.used_ns = hv_cover(files->coverage[sample->device], laid.begin_ns, laid.end_ns);
        measured.long_part_ppm =
            hv_cover_part(&files->devices[sample->device]->long_times, result.measured_ns, result.used_ns);
    }
    hv_function_learn(sample->function, &measured);
    return result;
}

uint32_t hv_sampler_poll(struct hv_sampler *sampler, const struct hv_files *files, uint64_t now_ns,
                         struct hv_sample_result *results)
{
    uint32_t count = 0;
    if (!try_enter(sampler))
        return 0;
    int mode = enter_relaxed_mode();
    for (uint32_t i = 0; i < HV_SAMPLES && count < HV_SAMPLER_RESULTS; i++) {
        struct hv_sample *sample = &sampler->samples[i];
        if (hv_load_acquire_32(&sample->state) != HV_SAMPLE_PENDING)
            continue;
        CUresult ended = HV_DRIVER(cuEventQuery)(sample->end);
        if (ended == CUDA_ERROR_NOT_READY)
            continue;
        float milliseconds = 0;
        if (ended == CUDA_SUCCESS &&
            HV_DRIVER(cuEventElapsedTime)(&milliseconds, sample->start, sample->end) == CUDA_SUCCESS &&
            milliseconds >= 0) {
            results[count++] = result_of(sampler, sample, files, (uint64_t)((double)milliseconds * 1e6), now_ns);
        }
        advance_ended(sampler, sample);
        if (sample->surveyed)
            keep_for_survey(sampler, sample, now_ns);
        else
            finish(sampler, sample);
    }
    leave_relaxed_mode(mode);
    leave(sampler);
    return count;
}

/* A free sample, if possible one whose events belong to this context already. */
static struct hv_sample *find_room(struct hv_sampler *sampler, CUcontext context)
{
    struct hv_sample *other = NULL;
    for (uint32_t i = 0; i < HV_SAMPLES; i++) {
        struct hv_sample *sample = &sampler->samples[i];
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
    bool idle = is_idle(stream, per_thread);
    uint64_t before = sample->begun_at_ns = hv_os_now_ns();
    if (!record(sample->start, stream, per_thread))
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
    if (clock->base != NULL || HV_DRIVER(cuEventCreate)(&clock->base, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
        return;
    clock->context = context;
    clock->base_at_ns = hv_os_now_ns(); /* at the earliest */
    if (!record(clock->base, stream, per_thread)) {
        (void)HV_DRIVER(cuEventDestroy_v2)(clock->base);
        clock->base = NULL;
    }
}

static struct hv_sample *prepare(struct hv_sampler *sampler, uint32_t device, CUstream stream, bool per_thread)
{
    CUcontext context = NULL;
    if (is_capturing(stream, per_thread) || HV_DRIVER(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context == NULL)
        return NULL;
    struct hv_sample *sample = find_room(sampler, context);
    if (sample == NULL || !have_events(sample, context))
        return NULL;
    set_clock(&sampler->clocks[device], context, stream, per_thread);
    return record_start(sample, stream, per_thread) ? sample : NULL;
}

struct hv_sample *hv_sampler_begin(struct hv_sampler *sampler, struct hv_function *function, uint32_t device,
                                   CUstream stream, bool per_thread, uint64_t charged_ns)
{
    if (!events_are_there() || !try_enter(sampler))
        return NULL;
    int mode = enter_relaxed_mode();
    struct hv_sample *sample = prepare(sampler, device, stream, per_thread);
    if (sample != NULL) {
        sample->stream = stream;
        sample->function = function;
        sample->device = device;
        sample->charged_ns = charged_ns;
        sample->charged_upto = hv_load_relaxed(&sampler->charged_ns[device]);
        sample->unlearned = hv_load_relaxed(&function->cost_ns) == 0;
        if (sample->unlearned)
            hv_add_acq_rel_32(&function->in_flight, 1);
        hv_add_acq_rel_32(&sampler->pending[device], 1);
        sample->surveyed = !sample->unlearned && hv_load_relaxed_32(&sampler->surveys[device].wanted) != 0;
        if (sample->surveyed) {
            hv_sub_acq_rel_32(&sampler->surveys[device].wanted, 1);
            hv_add_acq_rel_32(&sampler->surveys[device].under_way, 1);
        }
        hv_store_relaxed(&sampler->sampled_ns[device], sample->charged_upto);
        hv_store_release_32(&sample->state, HV_SAMPLE_RECORDING);
    }
    leave_relaxed_mode(mode);
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
    int mode = enter_relaxed_mode();
    if (launched && record(sample->end, stream, per_thread)) {
        hv_store_release_32(&sample->state, HV_SAMPLE_PENDING);
    } else {
        leave_survey(sampler, sample);
        finish(sampler, sample);
    }
    leave_relaxed_mode(mode);
}

static void forget(struct hv_sampler *sampler, struct hv_sample *sample)
{
    uint32_t state = hv_load_acquire_32(&sample->state);
    if (state == HV_SAMPLE_PENDING) {
        advance_ended(sampler, sample);
        leave_survey(sampler, sample);
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
    for (uint32_t device = 0; device < HV_MAX_DEVICES; device++)
        if (sampler->clocks[device].context == context)
            if (device < HV_MAX_DEVICES)
        sampler->clocks[device] = (struct hv_event_clock){0};
    for (uint32_t i = 0; i < HV_SAMPLES; i++)
        if (sampler->samples[i].context == context)
            forget(sampler, &sampler->samples[i]);
    leave(sampler);
}

void hv_sampler_forget_device(struct hv_sampler *sampler, uint32_t device)
{
    enter(sampler);
    sampler->clocks[device] = (struct hv_event_clock){0};
    for (uint32_t i = 0; i < HV_SAMPLES; i++)
        if (sampler->samples[i].device == device)
            forget(sampler, &sampler->samples[i]);
    leave(sampler);
}

uint64_t hv_sampler_unfinished_ns(const struct hv_sampler *sampler, uint32_t device)
{
    if (hv_load_acquire_32(&sampler->pending[device]) == 0)
        return 0;
    uint64_t charged = hv_load_relaxed(&sampler->charged_ns[device]);
    uint64_t ended = hv_load_relaxed(&sampler->ended_ns[device]);
    return charged > ended ? charged - ended : 0;
}
