#include "sampler_results.h"

#include "bucket.h"
#include "costs.h"
#include "coverage.h"
#include "sampler_laid.h"
#include "survey.h"

#define NS_PER_MS UINT64_C(1000000)

#define OWN_OVER 16 /* launches over which what is their own is averaged */
#define ALONE_OVER 8 /* and once nobody tells of others: they may have gone */
#define OTHER_TURNS_PART 4

/* Charges are called too little where the correction is above 1 by this part. */
#define TOO_LITTLE_PART 2

/* Who has launched something in the last time may have had a turn in it. */
#define LATELY_NS UINT64_C(50000000)

/* How much work that is other work than was charged may be told of with one launch. */
#define MOST_MISSING_NS UINT64_C(1000000000)
#define MOST_TIMES 1000
#define FAR_OFF 2 /* times its charge */

/* How long a correction that was for work as it was is left out of account, unless the daemon has moved it before. */
#define VOID_NS UINT64_C(2000000000)

/* After so long without a word the daemon is taken to be gone. It says one each half second. */
#define SILENT_NS UINT64_C(1500000000)

/* Of the time. Who is charged so much has launches that take at most a quarter longer, for there is no more time; and by as
 * much times scatter anyway. */
#define FILLS_PPM (HV_SHARE_FULL_PPM / 5 * 4)
#define POD_OVER_NS UINT64_C(1000000000)

uint64_t hv_sample_advance_ended(struct hv_sampler *sampler, const struct hv_sample *sample)
{
    uint64_t ended = hv_load_relaxed(&sampler->ended_ns[sample->device]);
    if (ended >= sample->charged_upto)
        return 0;
    hv_store_relaxed(&sampler->ended_ns[sample->device], sample->charged_upto);
    return sample->charged_upto - ended;
}

/* What the Pod is charged, of the time. */
static uint32_t pod_charged_ppm(struct hv_sampler *sampler, const struct hv_files *files, uint32_t device, uint64_t now_ns)
{
    uint64_t charged = hv_load_relaxed(&files->devices[device]->charged_ns), before = sampler->pod_charged_ns[device];
    uint64_t passed = now_ns - sampler->pod_at_ns[device]; /* all of it, the first time */
    if (passed < POD_OVER_NS)
        return sampler->pod_ppm[device];
    uint64_t more = charged > before ? charged - before : 0;
    sampler->pod_ppm[device] = more >= passed ? HV_SHARE_FULL_PPM : (uint32_t)((unsigned __int128)more * HV_SHARE_FULL_PPM / passed);
    sampler->pod_charged_ns[device] = charged;
    sampler->pod_at_ns[device] = now_ns;
    return sampler->pod_ppm[device];
}

/* The driver sees the Pod busier than it is charged. */
static bool charges_are_too_little(const struct hv_files *files, uint32_t device)
{
    uint32_t correction = hv_plausible_correction(hv_load_relaxed(&files->control[device]->correction_ppm));
    return correction > HV_SHARE_FULL_PPM + HV_SHARE_FULL_PPM / TOO_LITTLE_PART;
}

bool hv_sample_is_held(const struct hv_files *files, uint32_t device, uint64_t now_ns)
{
    uint64_t corrected_at = hv_load_relaxed(&files->control[device]->correction_at_ns);
    return corrected_at != 0 && now_ns > corrected_at && now_ns - corrected_at > SILENT_NS;
}

static uint32_t own_at_work(const struct hv_files *files, uint32_t device, uint64_t now_ns)
{
    uint32_t own = hv_slots_at_work_since(&files->slots, device, now_ns - LATELY_NS);
    return own == 0 ? 1 : own;
}

/* How many processes have turns on the device; 0: nobody tells. The Pod's own are looked for where it matters only. */
static uint32_t crowd(const struct hv_files *files, const struct hv_sample *sample, uint64_t measured_ns, uint64_t now_ns)
{
    if (!hv_neighbours_told(files, sample->device, now_ns))
        return 0;
    uint64_t others = hv_load_relaxed(&files->control[sample->device]->neighbours) & HV_BORROWED_SHARE_MASK;
    if (measured_ns <= sample->charged_ns + sample->charged_ns / 4)
        return 2; /* one that is not lengthened tells the same whoever is there */
    return (uint32_t)others + own_at_work(files, sample->device, now_ns);
}

uint32_t hv_sample_crowd(const struct hv_files *files, uint32_t device, uint64_t now_ns)
{
    uint64_t told = hv_load_relaxed(&files->control[device]->neighbours);
    return told == 0 ? 0 : (uint32_t)(told & HV_BORROWED_SHARE_MASK) + own_at_work(files, device, now_ns);
}

static uint64_t averaged(uint64_t mean, uint64_t new, uint32_t over)
{
    return mean == 0 ? new : mean - mean / over + new / over;
}

/* By which the same launch would come out as one of another length. */
static bool are_other_turns(uint32_t own, uint64_t before_ppm, uint64_t after_ppm)
{
    uint64_t before = hv_own_turns(HV_SHARE_FULL_PPM, own, before_ppm);
    uint64_t after = hv_own_turns(HV_SHARE_FULL_PPM, own, after_ppm);
    return before > after + after / OTHER_TURNS_PART || after > before + before / OTHER_TURNS_PART;
}

/* Others were told of, and are no more: from the first window on that nobody told of, who they are may have changed. */
static bool others_are_silent(const struct hv_files *files, uint32_t device, uint64_t now_ns)
{
    return hv_load_relaxed(&files->control[device]->neighbours) != 0 && !hv_neighbours_told(files, device, now_ns);
}

static struct hv_length_taken taken_by(const struct hv_sample *sample, uint32_t own)
{
    return (struct hv_length_taken){.own_ns = sample->own_ns,
                                    .own = own,
                                    .laid_ns = sample->laid_ns,
                                    .turn_ns = sample->turn_ns,
                                    .least_ns = sample->least_ns,
                                    .most_ns = sample->most_ns};
}

/* Of launches of several streams nobody can tell which was there first, and how many there are may change. */
static uint64_t told_length(const struct hv_device_control *control, const struct hv_sample *sample,
                            const struct hv_measured *measured)
{
    const struct hv_length_taken taken = taken_by(sample, measured->own);
    hv_store_relaxed_32(&sample->function->kept, 0);
    if (sample->untold_ns != 0 || measured->several)
        return sample->own_ns;
    return hv_length_told(&sample->function->length, &taken, hv_load_relaxed(&control->neighbours), measured->at_ns);
}

/* Nobody tells of others' turns any more: what the launch took when somebody did; 0: that is not known. */
static uint64_t kept_length(const struct hv_device_control *control, const struct hv_sample *sample,
                            const struct hv_measured *measured)
{
    const struct hv_length_taken taken = taken_by(sample, measured->own);
    uint64_t kept = 0;
    if ((hv_load_relaxed(&control->neighbours) & HV_BORROWED_SHARE_MASK) != 0 && !measured->several)
        kept = hv_length_untold(&sample->function->length, &taken, hv_load_relaxed(&control->left_ppm));
    hv_store_relaxed_32(&sample->function->kept, kept != 0);
    return kept;
}

/* What of a long launch is the Pod's own. Where nobody looks any more how many
 * turns others have it is what it was; where that is not known and launches
 * take much less than before, the others have gone: then so much more of their
 * time is their own that it is as before. */
static uint64_t own_part(const struct hv_device_control *control, const struct hv_sample *sample,
                         const struct hv_measured *measured, bool silent)
{
    bool by_itself = measured->own == 1 && !measured->beside_others; /* else who tells first of a moment is chance */
    struct hv_function *function = sample->function;
    if (!silent) {
        uint64_t others_ppm = hv_load_relaxed(&control->others_ppm);
        if (function->own_ns != 0 && are_other_turns(measured->own, function->turns_ppm, others_ppm)) {
            function->own_ns = 0; /* they were found out better, or others have come or gone */
        }
        function->turns_ppm = others_ppm;
        uint64_t own_ns = told_length(control, sample, measured);
        function->own_ns = averaged(function->own_ns, own_ns, OWN_OVER);
        function->alone_ns = function->own_ns;
        return own_ns;
    }
    uint64_t kept = kept_length(control, sample, measured);
    if (kept != 0)
        return kept;
    function->alone_ns = averaged(function->alone_ns, sample->own_ns, by_itself ? ALONE_OVER : OWN_OVER);
    if (!hv_others_have_gone(function))
        return sample->own_ns;
    unsigned __int128 scaled = (unsigned __int128)sample->own_ns * function->own_ns / function->alone_ns;
    return scaled < sample->laid_ns ? (uint64_t)scaled : sample->laid_ns; /* not more than it was measured to take */
}

/* What is under way takes so many times as much more than it was charged. */
static void count_longer(struct hv_sampler *sampler, uint32_t device, uint64_t more)
{
    hv_store_relaxed(&sampler->longer_times[device], more < MOST_TIMES ? more : MOST_TIMES);
    hv_store_relaxed(&sampler->longer_upto_ns[device], hv_load_relaxed(&sampler->charged_ns[device]));
}

/* The work is other work than before_ns was charged for: so is what is still under way of it, and a correction that
 * was raised because of that is for charges as they were. */
static void count_anew(struct hv_sampler *sampler, const struct hv_files *files, const struct hv_sample *sample,
                       uint64_t before_ns, uint64_t now_ns)
{
    uint32_t device = sample->device;
    uint64_t cost = hv_load_relaxed(&sample->function->cost_ns);
    uint64_t more = before_ns != 0 && cost > before_ns ? cost / before_ns - 1 : 0; /* the rest is no matter here */
    count_longer(sampler, device, more);
    if (charges_are_too_little(files, device)) {
        hv_store_relaxed(&sampler->void_until_ns[device], now_ns + VOID_NS);
        hv_store_relaxed(&sampler->void_ppm[device], hv_load_relaxed(&files->control[device]->correction_ppm));
    }
}

/* What the launches that have ended with this one, charged like it when they were launched, took beyond that; with all
 * that was told of before not more than there was time for. What was laid down is accounted for there. */
static uint64_t missing(struct hv_sampler *sampler, const struct hv_sample *sample, uint64_t ended_ns, uint32_t crowd,
                        uint64_t now_ns)
{
    uint64_t cost = hv_load_relaxed(&sample->function->cost_ns);
    uint64_t *told_upto = &sampler->missing_upto_ns[sample->device];
    if (sample->laid || sample->function->kind == HV_FUNCTION_COPY || sample->charged_ns == 0 ||
        cost / FAR_OFF < sample->charged_ns)
        return 0;
    uint64_t turns = crowd == 0 ? 1 : crowd;
    uint64_t room = now_ns > *told_upto ? (now_ns - *told_upto) / turns : 0;
    unsigned __int128 more = (unsigned __int128)ended_ns * (cost - sample->charged_ns) / sample->charged_ns;
    uint64_t told = more < room ? (uint64_t)more : room;
    *told_upto += told * turns;
    return told;
}

/* How much of the charges for this function has ended with this sample: what came between two of its samples was most
 * likely its own, where there was another function's between them nobody can tell. */
static uint64_t ended_of(struct hv_sampler *sampler, const struct hv_sample *sample)
{
    uint64_t ended_ns = hv_sample_advance_ended(sampler, sample);
    bool same = sampler->ended_of[sample->device] == sample->function;
    sampler->ended_of[sample->device] = sample->function;
    return same || ended_ns < sample->charged_ns ? ended_ns : sample->charged_ns;
}

/* Long graphs are not surveyed: they tell by what they lay down. */
static bool runs_beside_others(const struct hv_sampler *sampler, const struct hv_sample *sample)
{
    return sampler->surveys[sample->device].several && !(sample->laid && sample->function->kind == HV_FUNCTION_GRAPH);
}

/* Of a short launch that ran beside others of its process, what it adds to the time that they took together: in what they
 * slow each other down by each of them would count the others as well, were they to become long ones by it. */
static uint64_t added_by(struct hv_sampler *sampler, const struct hv_sample *sample, uint64_t measured_ns)
{
    uint64_t begin_ns, *upto = &sampler->added_upto_ns[sample->device];
    if (!hv_sample_begin_of(&sampler->clocks[sample->device], sample, &begin_ns))
        return measured_ns;
    uint64_t end_ns = begin_ns + measured_ns, from_ns = begin_ns > *upto ? begin_ns : *upto;
    if (end_ns <= from_ns)
        return 0;
    *upto = end_ns;
    return end_ns - from_ns;
}

/* Its averages had others' turns in them, and what it costs without them is known now. */
static void begin_as_priced(struct hv_function *function)
{
    if (hv_load_acquire_32(&function->priced) == 0)
        return;
    hv_store_relaxed_32(&function->priced, 0);
    function->own_ns = function->alone_ns = 0;
    function->length = (struct hv_length){0};
    function->mean_ns = hv_load_relaxed(&function->cost_ns);
}

struct hv_sample_result hv_sample_result_of(struct hv_sampler *sampler, struct hv_sample *sample,
                                            const struct hv_files *files, uint64_t elapsed_ns, uint64_t now_ns)
{
    /* A graph that was changed while it ran is another one now: it took what it took, which is no longer its cost. */
    bool changed = sample->version != hv_load_relaxed_32(&sample->function->version);
    if (!changed)
        begin_as_priced(sample->function);
    uint64_t ended_with = ended_of(sampler, sample);
    struct hv_sample_result result = {.function = sample->function,
                                      .charged_ns = sample->charged_ns,
                                      .measured_ns = elapsed_ns > sample->gap_ns ? elapsed_ns - sample->gap_ns : elapsed_ns,
                                      .copy = sample->function->kind == HV_FUNCTION_COPY};
    struct hv_measured measured = {.ns = result.measured_ns,
                                   .own_ns = result.measured_ns,
                                   .beside_others = runs_beside_others(sampler, sample),
                                   .several = sampler->long_several[sample->device],
                                   .idle = sample->recorded_at_ns != 0 || sample->may_wait,
                                   .held = hv_sample_is_held(files, sample->device, now_ns),
                                   .too_little = charges_are_too_little(files, sample->device),
                                   .at_ns = now_ns};
    measured.crowd_told = measured.held ? hv_sample_crowd(files, sample->device, now_ns) : 0;
    uint32_t told = hv_sample_crowd(files, sample->device, now_ns);
    bool fills_device = pod_charged_ppm(sampler, files, sample->device, now_ns) >= FILLS_PPM;
    measured.enough_charged = hv_sampler_fills_turns(sampler, sample->device, told, now_ns) || (measured.held && fills_device);
    if (measured.held) /* nobody else looks */
        measured.too_little = hv_sampler_is_too_little(sampler, sample->device, told, now_ns);
    measured.crowd = sample->laid ? 0 : crowd(files, sample, result.measured_ns, now_ns);
    if (sample->laid) {
        hv_sample_lay_all(sampler, files, sample, result.measured_ns, now_ns);
        result.laid = true;
        result.in_turn = sample->in_turn;
        result.guessed = sample->unlearned || sample->outgrown;
        result.unplaced = sample->unplaced;
        result.began_ns = sample->laid_from_ns;
        measured.own = own_at_work(files, sample->device, now_ns);
        result.used_ns = changed ? sample->own_ns
                                 : own_part(files->control[sample->device], sample, &measured,
                                            measured.held || others_are_silent(files, sample->device, now_ns));
        measured.own_ns = result.used_ns;
        result.untold_ns = sample->untold_ns;
        result.kept = hv_load_relaxed_32(&sample->function->kept) != 0;
        /* For a short one the other processes have waited. */
        bool together = result.measured_ns > HV_LEARNING_NS && !measured.beside_others;
        result.turn_ns = together ? sample->turn_ns : result.used_ns;
    }
    result.changed = changed;
    if (changed)
        return result;
    if (measured.beside_others && !sample->laid)
        measured.own_ns = added_by(sampler, sample, result.measured_ns);
    uint64_t before = hv_load_relaxed(&sample->function->cost_ns);
    /* While a long one of the process is under way all its turns end in the midst of it, and with it what runs beside it. */
    bool apart = measured.beside_others && !sample->laid && hv_load_relaxed(&sampler->long_ns[sample->device]) == 0;
    if (apart && result.measured_ns / FAR_OFF > before &&
        !hv_sample_begin_of(&sampler->clocks[sample->device], sample, &measured.begin_ns))
        measured.begin_ns = 0;
    uint32_t run_before = sample->function->run;
    bool other = hv_function_learn(sample->function, &measured);
    if (run_before != 0)
        ended_with += sample->function->run_ended_ns;
    sample->function->run_ended_ns = sample->function->run != 0 ? ended_with : 0;
    if (run_before == 0)
        sample->function->run_since_ns = sample->begun_at_ns;
    if (other && sampler->missing_upto_ns[sample->device] < sample->function->run_since_ns)
        sampler->missing_upto_ns[sample->device] = sample->function->run_since_ns;
    if (other)
        count_anew(sampler, files, sample, before, now_ns);
    result.other = other;
    result.missing_ns = missing(sampler, sample, ended_with, measured.crowd, now_ns);
    if (!measured.held)
        hv_store_relaxed_32(&sampler->changed[sample->device], 0);
    if (before != 0 && hv_is_other_work(before, hv_load_relaxed(&sample->function->cost_ns))) {
        hv_survey_again(sampler, sample->device, now_ns);
        if (measured.held && !sample->laid)
            hv_store_relaxed_32(&sampler->changed[sample->device], 1);
    }
    return result;
}
