#include "sampler.h"

#include "driver.h"
#include "os.h"

/* Work that takes longer was not beside the others' all the time. */
#define LONGEST_TURNS_NS UINT64_C(400000000)

/* Time between two surveys: at first, and once their results agree. */
#define FIRST_SURVEY_NS UINT64_C(20000000)
#define LONGEST_SURVEY_NS UINT64_C(1000000000)

/* How long the driver lets one process have the device before others' turn. */
#define TURN_NS UINT64_C(2000000)

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
    if (sample->unlearned) {
        hv_sub_acq_rel_32(&sample->function->in_flight, 1);
        hv_sub_acq_rel_32(&sampler->learning, 1);
    }
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
};

static void insert_by_begin(struct interval *intervals, uint32_t count, struct interval new)
{
    uint32_t at = count;
    for (; at > 0 && intervals[at - 1].begin_ms > new.begin_ms; at--)
        intervals[at] = intervals[at - 1];
    intervals[at] = new;
}

/* The samples of the survey as intervals, in the order of their beginnings; gives them up. Their sum is that of costs. */
static uint32_t take_intervals(struct hv_sampler *sampler, uint32_t device, struct interval *intervals, uint64_t *costs_ns)
{
    CUevent base = NULL;
    uint32_t count = 0;
    *costs_ns = 0;
    for (uint32_t i = 0; i < HV_SAMPLES; i++) {
        struct hv_sample *sample = &sampler->samples[i];
        struct interval one;
        if (hv_load_acquire_32(&sample->state) != HV_SAMPLE_MEASURED || sample->device != device)
            continue;
        if (base == NULL)
            base = sample->start;
        if (count < HV_SURVEYED && HV_DRIVER(cuEventElapsedTime)(&one.begin_ms, base, sample->start) == CUDA_SUCCESS &&
            HV_DRIVER(cuEventElapsedTime)(&one.end_ms, base, sample->end) == CUDA_SUCCESS) {
            one.begin_ms += (float)sample->gap_ns * 1e-6f; /* far below what a float holds exactly */
            insert_by_begin(intervals, count++, one);
            *costs_ns += sample->charged_ns;
        }
        hv_store_release_32(&sample->state, HV_SAMPLE_FREE);
    }
    return count;
}

static uint64_t covered_ns(const struct interval *intervals, uint32_t count)
{
    float covered_ms = 0, until_ms = intervals[0].begin_ms;
    for (uint32_t i = 0; i < count; i++) {
        float from = intervals[i].begin_ms > until_ms ? intervals[i].begin_ms : until_ms;
        if (intervals[i].end_ms > from) {
            covered_ms += intervals[i].end_ms - from;
            until_ms = intervals[i].end_ms;
        }
    }
    return (uint64_t)((double)covered_ms * 1e6);
}

static void conclude(struct hv_sampler *sampler, uint32_t device, uint64_t now_ns)
{
    struct hv_survey *survey = &sampler->surveys[device];
    struct interval intervals[HV_SURVEYED];
    uint64_t costs_ns;
    uint32_t count = take_intervals(sampler, device, intervals, &costs_ns);
    survey->next_at_ns = now_ns + survey->interval_ns;
    survey->interval_ns = survey->interval_ns < LONGEST_SURVEY_NS / 2 ? survey->interval_ns * 2 : LONGEST_SURVEY_NS;
    if (count < HV_SURVEYED / 2 || costs_ns == 0)
        return;
    uint64_t ppm = covered_ns(intervals, count) * HV_SHARE_FULL_PPM / costs_ns;
    survey->recent_ppm[survey->count % HV_SURVEYS] =
        ppm > HV_SHARE_FULL_PPM ? HV_SHARE_FULL_PPM : ppm < HV_SHARE_FULL_PPM / 16 ? HV_SHARE_FULL_PPM / 16 : (uint32_t)ppm;
    survey->count++;
    /* A low one, as with costs: a neighbour's turns only make it larger. */
    uint32_t known = survey->count < HV_SURVEYS ? survey->count : HV_SURVEYS;
    hv_store_relaxed_32(&survey->overlap_ppm, hv_low_quantile(survey->recent_ppm, known));
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

/* Later times are taken as they are: a low quantile of many is not disturbed by turns. */
static uint64_t own_part(const struct hv_sample *sample, uint64_t measured_ns)
{
    bool took_turns = sample->unlearned && sample->sharing > 1 &&
                      measured_ns > (sample->sharing - 1) * TURN_NS && measured_ns < LONGEST_TURNS_NS;
    return took_turns ? measured_ns / sample->sharing : measured_ns;
}

uint32_t hv_sampler_poll(struct hv_sampler *sampler, uint64_t now_ns, uint32_t sharing,
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
        if (sample->sharing < sharing)
            sample->sharing = sharing;
        CUresult ended = HV_DRIVER(cuEventQuery)(sample->end);
        if (ended == CUDA_ERROR_NOT_READY)
            continue;
        float milliseconds = 0;
        if (ended == CUDA_SUCCESS &&
            HV_DRIVER(cuEventElapsedTime)(&milliseconds, sample->start, sample->end) == CUDA_SUCCESS &&
            milliseconds >= 0) {
            uint64_t elapsed = (uint64_t)((double)milliseconds * 1e6);
            uint64_t measured = elapsed > sample->gap_ns ? elapsed - sample->gap_ns : elapsed;
            hv_function_learn(sample->function, own_part(sample, measured), now_ns);
            results[count++] = (struct hv_sample_result){.device = sample->device,
                                                         .charged_ns = sample->charged_ns,
                                                         .measured_ns = measured,
                                                         .launched_at_ns = sample->ready_at_ns,
                                                         .unlearned = sample->unlearned};
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
    uint64_t before = hv_os_now_ns();
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

static struct hv_sample *prepare(struct hv_sampler *sampler, CUstream stream, bool per_thread)
{
    CUcontext context = NULL;
    if (is_capturing(stream, per_thread) || HV_DRIVER(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || context == NULL)
        return NULL;
    struct hv_sample *sample = find_room(sampler, context);
    if (sample == NULL || !have_events(sample, context) || !record_start(sample, stream, per_thread))
        return NULL;
    return sample;
}

struct hv_sample *hv_sampler_begin(struct hv_sampler *sampler, struct hv_function *function, uint32_t device,
                                   CUstream stream, bool per_thread, uint64_t charged_ns, uint32_t sharing)
{
    if (!events_are_there() || !try_enter(sampler))
        return NULL;
    int mode = enter_relaxed_mode();
    struct hv_sample *sample = prepare(sampler, stream, per_thread);
    if (sample != NULL) {
        sample->function = function;
        sample->device = device;
        sample->charged_ns = charged_ns;
        sample->charged_upto = hv_load_relaxed(&sampler->charged_ns[device]);
        sample->unlearned = hv_load_relaxed(&function->cost_ns) == 0;
        sample->sharing = sharing;
        if (sample->unlearned) {
            hv_add_acq_rel_32(&function->in_flight, 1);
            hv_add_acq_rel_32(&sampler->learning, 1);
        }
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
    for (uint32_t i = 0; i < HV_SAMPLES; i++)
        if (sampler->samples[i].context == context)
            forget(sampler, &sampler->samples[i]);
    leave(sampler);
}

void hv_sampler_forget_device(struct hv_sampler *sampler, uint32_t device)
{
    enter(sampler);
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
