#include "survey.h"

#include "driver.h"
#include "sampler.h"

/* Time between two surveys: at first, and later. HV_SURVEYS of them within the time in which the correction follows: how
 * far launches overlap changes with the pace, and what is measured later than it is corrected is made up for twice. */
#define FIRST_SURVEY_NS UINT64_C(20000000)
#define LONGEST_SURVEY_NS UINT64_C(50000000)

/* A survey is due most often when launches have just waited, so it begins so many launches later each time: as often with
 * each of a round of launches. */
#define SKIPPED_MORE 7

#define LEAST_OVERLAP (1 / 16.0f)

static void insert_by_begin(struct hv_surveyed *launches, uint32_t count, struct hv_surveyed new)
{
    uint32_t at = count;
    for (; at > 0 && launches[at - 1].begin_ms > new.begin_ms; at--)
        launches[at] = launches[at - 1];
    launches[at] = new;
}

/* The samples of the survey, in the order of their beginnings after the start of the first that was found; gives them up. */
static uint32_t take_launches(struct hv_sampler *sampler, uint32_t device, struct hv_surveyed *launches)
{
    CUevent base = NULL;
    uint32_t count = 0;
    for (uint32_t i = 0; i < HV_SAMPLES; i++) {
        struct hv_sample *sample = &sampler->samples[device][i];
        struct hv_surveyed one = {.stream = sample->stream, .idle = sample->recorded_at_ns != 0};
        if (hv_load_acquire_32(&sample->state) != HV_SAMPLE_MEASURED)
            continue;
        if (base == NULL)
            base = sample->start;
        if (count < HV_SURVEYED && HV_DRIVER(cuEventElapsedTime)(&one.begin_ms, base, sample->start) == CUDA_SUCCESS &&
            HV_DRIVER(cuEventElapsedTime)(&one.end_ms, base, sample->end) == CUDA_SUCCESS) {
            one.begin_ms += (float)sample->gap_ns * 1e-6f; /* far below what a float holds exactly */
            uint64_t cost = hv_load_relaxed(&sample->function->cost_ns);
            one.cost_ms = (float)(cost == 0 ? 1 : cost) * 1e-6f;
            insert_by_begin(launches, count++, one);
        }
        hv_store_release_32(&sample->state, HV_SAMPLE_FREE);
    }
    return count;
}

/* How many of the surveys count: the later half, because the first ones are of a program that has just begun. */
static uint32_t recent_surveys(const struct hv_survey *survey)
{
    uint32_t half = (survey->count + 1) / 2;
    return half < HV_SURVEYS ? half : HV_SURVEYS;
}

static const struct hv_survey_found *recent_survey(const struct hv_survey *survey, uint32_t age)
{
    return &survey->recent[(survey->count - 1 - age) % HV_SURVEYS];
}

/* Of the time that the recent surveys' launches were charged by their costs, what they covered: the mean, because how many
 * run beside each other changes from round to round of a program. */
static uint32_t recent_overlap(const struct hv_survey *survey)
{
    float covered = 0, charged = 0;
    for (uint32_t age = 0; age < recent_surveys(survey); age++) {
        covered += recent_survey(survey, age)->covered_ms;
        charged += recent_survey(survey, age)->charged_ms; /* above 0 */
    }
    float overlap = covered / charged;
    return overlap >= 1               ? HV_SHARE_FULL_PPM
           : overlap <= LEAST_OVERLAP ? (uint32_t)(LEAST_OVERLAP * HV_SHARE_FULL_PPM)
                                      : (uint32_t)(overlap * HV_SHARE_FULL_PPM);
}

static void conclude(struct hv_sampler *sampler, uint32_t device, uint32_t crowd, uint64_t now_ns)
{
    struct hv_survey *survey = &sampler->surveys[device];
    struct hv_surveyed launches[HV_SURVEYED];
    struct hv_survey_found found;
    uint32_t count = take_launches(sampler, device, launches);
    survey->next_at_ns = now_ns + survey->interval_ns;
    survey->interval_ns += survey->interval_ns / 2;
    survey->interval_ns = survey->interval_ns < LONGEST_SURVEY_NS ? survey->interval_ns : LONGEST_SURVEY_NS;
    if (count < HV_SURVEYED / 2)
        return;
    if (!hv_survey_time(launches, count, crowd, survey->spoke, &found)) /* the streams were used one after the other */
        found = (struct hv_survey_found){.covered_ms = 1, .charged_ms = 1};
    survey->recent[survey->count % HV_SURVEYS] = found;
    survey->count++;
    hv_store_relaxed_32(&survey->overlap_ppm, recent_overlap(survey));
}

void hv_survey_keep(struct hv_sampler *sampler, struct hv_sample *sample, uint32_t crowd, uint64_t now_ns)
{
    struct hv_survey *survey = &sampler->surveys[sample->device];
    hv_store_release_32(&sample->state, HV_SAMPLE_MEASURED);
    hv_sub_acq_rel_32(&survey->under_way, 1);
    if (hv_load_acquire_32(&survey->under_way) == 0 && hv_load_acquire_32(&survey->wanted) == 0)
        conclude(sampler, sample->device, crowd, now_ns);
}

/* Without the lock: what two threads lose to each other here is a survey that comes later. */
bool hv_survey_wants(struct hv_sampler *sampler, uint32_t device, CUstream stream, bool per_thread, uint64_t now_ns)
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
        survey->skipped += SKIPPED_MORE;
        hv_store_relaxed_32(&survey->wanted, HV_SURVEYED + survey->skipped % HV_SURVEYED);
    }
    uint32_t wanted = hv_load_relaxed_32(&survey->wanted);
    if (wanted > HV_SURVEYED) {
        /* In one step, so that it never goes below what another thread has left; one that comes second skips none. */
        (void)__atomic_compare_exchange_n(&survey->wanted, &wanted, wanted - 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
        return false;
    }
    return wanted != 0;
}

uint32_t hv_survey_overlap_ppm(const struct hv_sampler *sampler, uint32_t device)
{
    uint32_t ppm = hv_load_relaxed_32(&sampler->surveys[device].overlap_ppm);
    return ppm == 0 || !sampler->surveys[device].several ? HV_SHARE_FULL_PPM : ppm;
}

void hv_survey_leave(struct hv_sampler *sampler, struct hv_sample *sample)
{
    if (sample->surveyed)
        hv_sub_acq_rel_32(&sampler->surveys[sample->device].under_way, 1);
    sample->surveyed = false;
}

void hv_survey_again(struct hv_sampler *sampler, uint32_t device, uint64_t now_ns)
{
    struct hv_survey *survey = &sampler->surveys[device];
    if (survey->count == 0)
        return;
    survey->count = 0;
    for (uint32_t i = 0; i < HV_SURVEY_FITS; i++)
        survey->spoke[i] = 0;
    survey->interval_ns = FIRST_SURVEY_NS;
    survey->next_at_ns = now_ns;
    hv_store_relaxed_32(&survey->overlap_ppm, 0);
}
