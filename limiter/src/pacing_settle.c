#include "pacing_gate.h"

#include "costs.h"
#include "pacing_untold.h"

/* A charge that was too high by more than this part of it is set right: it was
 * learned while others had their turns on the device. */
#define OVERCHARGED_PART 4

void hv_gate_count(struct hv_gate *gate, bool copy, bool brief, uint64_t gpu_ns)
{
    if (copy)
        return;
    hv_add_relaxed(&gate->usage->charged_ns, gpu_ns);
    if (brief)
        hv_add_relaxed(&gate->usage->brief_ns, gpu_ns);
}

/* Processes whose launches wait for each other. */
static uint32_t together(const struct hv_gate *gate)
{
    uint32_t own = hv_slots_at_work(&hv_files()->slots, gate->device);
    return own == 0 ? 1 : own;
}

/* More is owed than this launch took: then launches take more than they are charged time after time, or did, and what
 * each is off by now is no chance that the next one makes up for. */
static bool owes_much(const struct hv_gate *gate, const struct hv_sample_result *result)
{
    uint64_t more = result->used_ns > result->charged_ns ? result->used_ns : result->charged_ns;
    return result->laid && (result->in_turn || hv_untold_is_over(gate)) &&
           hv_load_relaxed(&gate->usage->debt_ns) > hv_gate_corrected(gate, result->kept, more);
}

/* A charge was too low. One that was a guess, or far off, is put right at its
 * place, as far as nobody then waits longer than for this launch; all else is
 * debt. Where it is so time after time with ever new functions, what short launches
 * may be ahead of the clock is on top: as guesses they would all go within it. */
static void charge_later(struct hv_gate *gate, const struct hv_sample_result *result, uint64_t gpu_ns)
{
    struct hv_bucket_terms terms = hv_gate_bucket_terms(gate);
    uint64_t left = hv_gate_corrected(gate, result->kept, gpu_ns), owed = 0;
    bool again = owes_much(gate, result);
    if (result->guessed || result->used_ns / HV_UNFORESEEN > result->charged_ns || again) {
        uint64_t all = hv_gate_corrected(gate, result->kept, result->used_ns);
        /* One that goes on may be told of before it ends; what was placed of it so far is taken back then. */
        if (result->used_ns >= HV_LONG_NS && !result->unfinished)
            owed = all - hv_untold_placed(gate, all);
        uint64_t back = owed > left ? owed - left : 0;
        uint64_t back_wall = hv_bucket_wall_ns(back, gate->share_ppm);
        hv_bucket_give_back(&gate->usage->bucket_ns, back_wall);
        hv_add_relaxed(&gate->usage->returned_ns, back_wall);
        left -= owed - back;
        uint64_t until = gate->now_ns + hv_bucket_wall_ns(all * (again ? together(gate) : 1), gate->share_ppm);
        if (again && result->in_turn) /* whoever waits has been ahead as well, with a guess */
            until += hv_bucket_window_ns(&terms) + hv_bucket_wall_ns(all * terms.waiters, gate->share_ppm);
        left = hv_bucket_charge_since(&gate->usage->bucket_ns, &terms, left, result->began_ns, until);
    }
    hv_debt_add(&gate->usage->debt_ns, &terms, left + owed);
    hv_gate_count(gate, false, !result->laid, gpu_ns);
}

/* A charge was too high: it pays what is owed, and whoever waits has its place
 * behind this charge and moves up by the rest. */
static void give_back(struct hv_gate *gate, const struct hv_sample_result *result, uint64_t gpu_ns)
{
    uint64_t left = hv_gate_corrected(gate, result->copy || result->kept, gpu_ns);
    left -= hv_debt_lower(&gate->usage->debt_ns, left);
    uint64_t wall = hv_bucket_wall_ns(left, gate->share_ppm);
    hv_bucket_give_back(&gate->usage->bucket_ns, wall);
    hv_add_relaxed(&gate->usage->returned_ns, wall);
    hv_gate_count(gate, result->copy, !result->laid, 0 - gpu_ns); /* modulo 2^64: less */
}

static void settle(struct hv_gate *gate, const struct hv_sample_result *result)
{
    if (gate->share_ppm >= HV_SHARE_FULL_PPM)
        return;
    if (result->missing_ns != 0) /* told, so that the daemon does not look for it; it is too late to wait for it */
        hv_gate_count(gate, result->copy, true, hv_gate_overlapped(gate, result->missing_ns));
    uint64_t charged = hv_gate_overlapped(gate, result->charged_ns);
    if (result->laid && result->unplaced) { /* nothing is owed, and there is nothing to give back */
        hv_gate_count(gate, result->copy, false, result->used_ns - charged); /* modulo 2^64: or less */
        return;
    }
    if (result->laid && result->used_ns > charged)
        charge_later(gate, result, result->used_ns - charged);
    else if (result->laid)
        give_back(gate, result, charged - result->used_ns);
    else if (result->measured_ns < result->charged_ns - result->charged_ns / OVERCHARGED_PART)
        give_back(gate, result, hv_gate_overlapped(gate, result->charged_ns - result->measured_ns));
}

void hv_gate_tell_unfinished(struct hv_gate *gate)
{
    hv_store_relaxed(&gate->slot->devices[gate->device].unfinished_ns,
                     hv_sampler_unfinished_ns(&gate->process->sampler, gate->device));
}

void hv_gate_poll(struct hv_gate *gate)
{
    struct hv_sample_result results[HV_SAMPLER_RESULTS];
    struct hv_sampler *sampler = &gate->process->sampler;
    uint32_t count = hv_sampler_poll(sampler, hv_files(), gate->device, gate->now_ns, results);
    for (uint32_t i = 0; i < count; i++)
        settle(gate, &results[i]);
    for (uint32_t i = 0; i < count; i++)
        hv_untold_note(gate, &results[i]);
    hv_untold_settle(gate);
    for (uint32_t i = 0; i < count; i++) {
        if (results[i].unfinished || results[i].changed)
            continue;
        if (results[i].other)
            hv_costs_begin_anew(results[i].function);
        if (results[i].other || results[i].missing_ns != 0) /* what is told of such work is about right only */
            hv_store_relaxed(&gate->usage->relearned_at_ns, gate->now_ns);
        if (results[i].laid && hv_load_relaxed_32(&results[i].function->is_long) != 0)
            hv_costs_average(results[i].function, &results[i], hv_untold_is_told(gate),
                             !hv_untold_is_over(gate), hv_load_relaxed(&gate->control->others_ppm));
        hv_costs_publish(results[i].function, gate->now_ns);
    }
    if (count != 0)
        hv_gate_tell_unfinished(gate);
}

/* A thread that drives several devices and waits for one of them asks for nothing on the others meanwhile; what runs
 * there is to be told of all the same. */
void hv_gate_poll_others(const struct hv_gate *gate)
{
    for (uint32_t device = 0; device < HV_MAX_DEVICES; device++) {
        if (device == gate->device || hv_load_acquire_32(&gate->process->sampler.pending[device]) == 0)
            continue; /* what is pending there went through a gate: the Pod has the device */
        struct hv_gate other = {.process = gate->process,
                                .slot = gate->slot,
                                .device = device,
                                .control = hv_files()->control[device],
                                .usage = hv_files()->devices[device]};
        hv_gate_look(&other);
        hv_gate_poll(&other);
    }
}
