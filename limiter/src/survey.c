#include "survey.h"

#include "driver.h"
#include "sampler.h"

/* Launches of a stream in one survey from which on it counts. */
#define TAKES_PART 3

/* A time that is so many times the usual one had others' turns in it. */
#define LENGTHENED 1.5f

/* Time between two surveys: at first, and once their results agree. */
#define FIRST_SURVEY_NS UINT64_C(20000000)
#define LONGEST_SURVEY_NS UINT64_C(1000000000)

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
        struct hv_sample *sample = &sampler->samples[device][i];
        struct interval one = {.stream = sample->stream};
        if (hv_load_acquire_32(&sample->state) != HV_SAMPLE_MEASURED)
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

/* What part of their times the intervals cover together. Those that others'
 * turns have lengthened, and with them all that run at the same time, are left
 * out: they overlap as long as the turns last. */
static uint64_t covered_ppm(const struct interval *intervals, uint32_t count, struct interval within, float usual)
{
    float covered_ms = 0, sum_ms = 0, until_ms = within.begin_ms;
    for (uint32_t i = 0; i < count; i++) {
        float begin = intervals[i].begin_ms > within.begin_ms ? intervals[i].begin_ms : within.begin_ms;
        float end = intervals[i].end_ms < within.end_ms ? intervals[i].end_ms : within.end_ms;
        if (end <= begin || intervals[i].over_cost > usual * LENGTHENED)
            continue;
        sum_ms += end - begin;
        if (end > until_ms) {
            covered_ms += end - (begin > until_ms ? begin : until_ms);
            until_ms = end;
        }
    }
    return sum_ms > 0 ? (uint64_t)((double)covered_ms / (double)sum_ms * HV_SHARE_FULL_PPM) : 0;
}

/* Of the launches in that time, how long a little disturbed one took over its cost: the second least, because the least
 * may be measured wrongly. Launches that run beside each other slow each other down, all of them; others' turns leave
 * some alone. */
static float usual_over_cost(const struct interval *intervals, uint32_t count, struct interval within)
{
    float least = 0, second = 0;
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        float one = intervals[i].over_cost;
        if (intervals[i].begin_ms < within.begin_ms || intervals[i].end_ms > within.end_ms)
            continue;
        if (found == 0 || one < least) {
            second = least;
            least = one;
        } else if (found == 1 || one < second) {
            second = one;
        }
        found++;
    }
    return found > 1 ? second : found == 1 ? least : 1;
}

/* The middle one of the recent results; only of surveys that others' turns have
 * lengthened no more than they had to. */
static uint32_t recent_overlap(const struct hv_survey *survey)
{
    uint32_t kept[HV_SURVEYS], count = 0;
    uint32_t known = survey->count < HV_SURVEYS ? survey->count : HV_SURVEYS;
    float least = survey->recent_usual[0];
    for (uint32_t i = 1; i < known; i++)
        least = survey->recent_usual[i] < least ? survey->recent_usual[i] : least;
    for (uint32_t i = 0; i < known; i++) {
        if (survey->recent_usual[i] > least * LENGTHENED)
            continue;
        uint32_t at = count++;
        for (; at > 0 && kept[at - 1] > survey->recent_ppm[i]; at--)
            kept[at] = kept[at - 1];
        kept[at] = survey->recent_ppm[i];
    }
    return kept[(count - 1) / 2]; /* the least one at least was kept */
}

static void conclude(struct hv_sampler *sampler, uint32_t device, bool held, uint64_t now_ns)
{
    struct hv_survey *survey = &sampler->surveys[device];
    struct interval intervals[HV_SURVEYED];
    uint32_t count = take_intervals(sampler, device, intervals);
    survey->next_at_ns = now_ns + survey->interval_ns;
    survey->interval_ns += survey->interval_ns / 2;
    survey->interval_ns = survey->interval_ns < LONGEST_SURVEY_NS ? survey->interval_ns : LONGEST_SURVEY_NS;
    if (count < HV_SURVEYED / 2)
        return;
    struct interval within = common_time(intervals, count);
    float usual = usual_over_cost(intervals, count, within);
    uint64_t ppm = covered_ppm(intervals, count, within, usual);
    if (ppm == 0) /* the streams were used one after the other */
        ppm = HV_SHARE_FULL_PPM;
    ppm = (uint64_t)((double)ppm * (double)usual);
    survey->recent_ppm[survey->count % HV_SURVEYS] =
        ppm > HV_SHARE_FULL_PPM ? HV_SHARE_FULL_PPM : ppm < HV_SHARE_FULL_PPM / 16 ? HV_SHARE_FULL_PPM / 16 : (uint32_t)ppm;
    survey->recent_usual[survey->count % HV_SURVEYS] = usual;
    survey->count++;
    uint32_t overlap = recent_overlap(survey);
    /* Not known yet, they were charged one after the other. */
    uint32_t before = survey->overlap_ppm == 0 ? HV_SHARE_FULL_PPM : survey->overlap_ppm;
    bool other = hv_is_other_work(before, overlap);
    if (held && !other)
        return;
    if (held && other)
        hv_store_relaxed_32(&sampler->changed[device], 1);
    hv_store_relaxed_32(&survey->overlap_ppm, overlap);
}

void hv_survey_keep(struct hv_sampler *sampler, struct hv_sample *sample, bool held, uint64_t now_ns)
{
    struct hv_survey *survey = &sampler->surveys[sample->device];
    hv_store_release_32(&sample->state, HV_SAMPLE_MEASURED);
    hv_sub_acq_rel_32(&survey->under_way, 1);
    if (hv_load_acquire_32(&survey->under_way) == 0 && hv_load_acquire_32(&survey->wanted) == 0)
        conclude(sampler, sample->device, held, now_ns);
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
        hv_store_relaxed_32(&survey->wanted, HV_SURVEYED);
    }
    return hv_load_relaxed_32(&survey->wanted) != 0;
}

void hv_survey_note_graph(struct hv_sampler *sampler, uint32_t device, CUstream stream)
{
    struct hv_survey *survey = &sampler->surveys[device];
    survey->graphs_in_several = survey->graphs_in_several || (survey->graphs && survey->graph_stream != stream);
    survey->graphs = true;
    survey->graph_stream = stream;
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
    survey->interval_ns = FIRST_SURVEY_NS;
    survey->next_at_ns = now_ns;
    hv_store_relaxed_32(&survey->overlap_ppm, 0);
}
