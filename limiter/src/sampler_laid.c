#include "sampler_laid.h"

#include "bucket.h"
#include "coverage.h"
#include "driver.h"
#include "sampler_results.h"
#include "survey.h"

/* Of a launch that has not ended. */
#define LAY_EVERY_NS UINT64_C(20000000)

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
bool hv_sample_begin_of(const struct hv_event_clock *clock, const struct hv_sample *sample, uint64_t *begin_ns)
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
static void lay(const struct hv_files *files, struct hv_sample *sample, uint64_t begin_ns, uint64_t upto_ns, bool told)
{
    struct hv_device_usage *usage = files->devices[sample->device];
    const struct hv_device_control *control = files->control[sample->device];
    uint64_t others = hv_load_relaxed(&control->others_ppm);
    uint64_t processes = hv_load_relaxed(&control->neighbours) & HV_BORROWED_SHARE_MASK; /* as far as was told last */
    uint64_t most_others = processes * HV_SHARE_FULL_PPM;
    if (sample->laid_upto_ns == 0) {
        sample->laid_from_ns = begin_ns;
        sample->laid_upto_ns = begin_ns;
    }
    if (upto_ns <= sample->laid_upto_ns)
        return;
    uint64_t added = hv_cover(files->coverage[sample->device], sample->laid_upto_ns, upto_ns);
    uint32_t own = hv_slots_at_work(&files->slots, sample->device);
    uint64_t span = upto_ns - sample->laid_upto_ns;
    if (!told) /* what was found out beside many own processes is too inexact for one: nobody will find it out any more */
        others = hv_turns_within(others, processes, sample->charged_ns);
    sample->laid_upto_ns = upto_ns;
    sample->laid_ns += added;
    if (told && sample->untold_ns != 0) { /* now it is known what of that were others' turns */
        sample->own_ns -= sample->untold_ns - hv_own_turns(sample->untold_ns, own, others);
        sample->turn_ns = hv_own_turns(sample->turn_ns, own, others);
        sample->untold_ns = 0;
    }
    if (!told && others == 0)
        sample->untold_ns += added;
    own = own == 0 ? 1 : own;
    sample->own_ns += hv_own_turns(added, own, others);
    uint64_t turn = hv_own_turns(span, own, others) / own;
    sample->turn_ns += turn;
    hv_add_relaxed(&usage->turns_ns, turn);
    sample->least_ns += hv_own_turns(span, own, most_others > others ? most_others : others) / own;
    sample->most_ns += span / own;
    hv_add_relaxed(&usage->laid_ns, added);
    hv_add_relaxed(&usage->crowd_ns, added * own);
}

void hv_sample_lay_unfinished(struct hv_sampler *sampler, const struct hv_files *files, struct hv_sample *sample,
                              uint64_t now_ns)
{
    uint64_t begin_ns;
    uint64_t since = sample->laid_upto_ns != 0 ? sample->laid_upto_ns : sample->ready_at_ns;
    if (sample->laid && now_ns > since && now_ns - since >= LAY_EVERY_NS &&
        hv_sample_begin_of(&sampler->clocks[sample->device], sample, &begin_ns))
        lay(files, sample, begin_ns, now_ns, hv_neighbours_told(files, sample->device, now_ns));
}

void hv_sample_pass_turn_on(struct hv_sampler *sampler, struct hv_sample *sample)
{
    if (sample->holds_turn)
        hv_sampler_leave_turn(sampler, sample->device);
    sample->holds_turn = false;
}

bool hv_sample_outgrows(struct hv_sampler *sampler, struct hv_sample *sample, struct hv_sample_result *result)
{
    uint64_t used = hv_bucket_wall_ns(sample->own_ns, hv_survey_overlap_ppm(sampler, sample->device)); /* the same quotient */
    uint64_t elapsed = sample->laid_upto_ns - sample->laid_from_ns;
    bool far_off = used / HV_UNFORESEEN > sample->charged_ns && elapsed / HV_UNFORESEEN > sample->function->undisturbed_ns;
    if (!sample->laid || used <= sample->charged_ns || !(sample->unlearned || sample->outgrown || far_off))
        return false;
    sample->outgrown = true;
    hv_sample_pass_turn_on(sampler, sample);
    *result = (struct hv_sample_result){.function = sample->function,
                                        .charged_ns = sample->charged_ns,
                                        .began_ns = sample->laid_from_ns,
                                        .used_ns = sample->own_ns,
                                        .laid = true,
                                        .guessed = true,
                                        .in_turn = sample->in_turn,
                                        .unfinished = true};
    hv_add_relaxed(&sampler->long_ns[sample->device], used - sample->charged_ns);
    hv_add_relaxed(&sampler->under_way_ns[sample->device], used - sample->charged_ns);
    sample->long_ns += used - sample->charged_ns;
    sample->weight_ns += used - sample->charged_ns;
    sample->charged_ns = used;
    /* Another one of it that does not wait any longer takes so much at the least. */
    if (sample->turn_ns >= HV_LONG_NS && sample->turn_ns > hv_load_relaxed(&sample->function->first_cost_ns))
        hv_store_relaxed(&sample->function->first_cost_ns, sample->turn_ns);
    return true;
}

void hv_sample_lay_all(struct hv_sampler *sampler, const struct hv_files *files, struct hv_sample *sample,
                    uint64_t measured_ns, uint64_t now_ns)
{
    struct hv_event_clock *clock = &sampler->clocks[sample->device];
    uint64_t begin_ns;
    bound_clock(clock, sample, now_ns);
    if (!hv_sample_begin_of(clock, sample, &begin_ns))
        begin_ns = sample->ready_at_ns;
    uint64_t end_ns = begin_ns + measured_ns;
    lay(files, sample, begin_ns, end_ns < now_ns ? end_ns : now_ns, hv_neighbours_told(files, sample->device, now_ns));
}
