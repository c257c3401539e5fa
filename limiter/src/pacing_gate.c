#include "pacing_gate.h"

#include "coverage.h"
#include "sampler_results.h"

/* The daemon says a word each half second. */
#define NO_WORD_NS (700 * NS_PER_MS)

/* By so much of them others' turns may be known too low. */
#define TURNS_OFF_PART 16

uint64_t hv_gate_overlapped(const struct hv_gate *gate, uint64_t cost_ns)
{
    return hv_bucket_gpu_ns(cost_ns, gate->overlap_ppm); /* the same product */
}

uint64_t hv_gate_corrected(const struct hv_gate *gate, bool copy, uint64_t gpu_ns)
{
    return copy ? gpu_ns : hv_bucket_gpu_ns(gpu_ns, gate->correction_ppm); /* the same product */
}

bool hv_gate_turns_hold(const struct hv_gate *gate)
{
    const struct hv_function *function = gate->function;
    if (hv_load_relaxed_32(&gate->process->sampler.streams_differ[gate->device]) != 0 && function->kind != HV_FUNCTION_GRAPH)
        return false; /* let go together they also end together, and whoever comes then waits for all of them */
    bool told = hv_neighbours_told(hv_files(), gate->device, gate->now_ns);
    if (!told && (function->own_ns == 0 || hv_others_have_gone(function)))
        return false; /* nobody looks, and its own launches do not say that the others are still there */
    /* Each of the others has all the turns it can have. Of those that have less nobody knows what they would take. */
    uint64_t processes = hv_load_relaxed(&gate->control->neighbours) & HV_BORROWED_SHARE_MASK;
    uint64_t most = processes * HV_SHARE_FULL_PPM; /* below 2^41 */
    if (processes == 0 || hv_load_relaxed(&gate->control->others_ppm) < most - most / TURNS_OFF_PART)
        return false;
    uint32_t own = hv_slots_at_work_since(&hv_files()->slots, gate->device, 0); /* whether they are at work or not */
    return own != 0 && gate->share_ppm > hv_own_turns(HV_SHARE_FULL_PPM, own, most);
}

struct hv_bucket_terms hv_gate_bucket_terms(const struct hv_gate *gate)
{
    uint32_t waiters = hv_load_relaxed_32(&gate->usage->waiters);
    return (struct hv_bucket_terms){
        .share_ppm = gate->share_ppm,
        .burst_ns = gate->terms.burst_ns,
        .debt_ns = gate->terms.debt_limit_ns,
        .waiters = waiters < MOST_COUNTED_WAITERS ? waiters : MOST_COUNTED_WAITERS};
}

/* Whoever sees first that the share changed makes the bucket's time ahead of
 * the clock the same GPU time at the new share. Killed in between, it leaves
 * only a wait that is too long or too short by what was ahead. */
static void follow_share(struct hv_gate *gate)
{
    uint64_t scaled_to = hv_load_relaxed(&gate->usage->bucket_share_ppm);
    if (scaled_to == gate->share_ppm || !hv_cas_acq_rel(&gate->usage->bucket_share_ppm, &scaled_to, gate->share_ppm))
        return;
    if (scaled_to == 0 || scaled_to > HV_SHARE_FULL_PPM) /* a fresh file, or a scribbled one */
        return;
    hv_bucket_rescale(&gate->usage->bucket_ns, (uint32_t)scaled_to, gate->share_ppm, gate->now_ns);
}

/* A correction was found out for charges with some overlap of streams taken off. If the daemon says nothing more and the
 * overlap is found out better, what of the correction stood for that is in it twice. */
static void follow_basis(struct hv_gate *gate)
{
    struct hv_sampler *sampler = &gate->process->sampler;
    uint64_t at = hv_load_relaxed(&gate->control->correction_at_ns);
    if (hv_load_relaxed(&sampler->basis_at_ns[gate->device]) != at) {
        hv_store_relaxed(&sampler->basis_at_ns[gate->device], at);
        hv_store_relaxed_32(&sampler->basis_ppm[gate->device], gate->overlap_ppm);
    }
    uint32_t basis = hv_load_relaxed_32(&sampler->basis_ppm[gate->device]);
    if (gate->now_ns < at + NO_WORD_NS || basis == 0)
        return;
    uint64_t scaled = (uint64_t)gate->correction_ppm * basis / gate->overlap_ppm; /* three times below 2^23, and never 0 */
    if (gate->correction_ppm < HV_SHARE_FULL_PPM && gate->overlap_ppm < basis)
        gate->correction_ppm = scaled < HV_SHARE_FULL_PPM ? (uint32_t)scaled : HV_SHARE_FULL_PPM;
    else if (gate->correction_ppm > HV_SHARE_FULL_PPM && gate->overlap_ppm > basis)
        gate->correction_ppm = scaled > HV_SHARE_FULL_PPM ? (uint32_t)scaled : HV_SHARE_FULL_PPM;
    else if (gate->correction_ppm < HV_SHARE_FULL_PPM && hv_is_other_work(basis, gate->overlap_ppm))
        gate->correction_ppm = HV_SHARE_FULL_PPM;
}

/* While somebody corrects it what was proven, then the likeliest. */
static uint32_t correction_in_force(const struct hv_gate *gate)
{
    uint64_t at = hv_load_relaxed(&gate->control->correction_at_ns);
    uint64_t settled = gate->now_ns < at + NO_WORD_NS ? 0 : hv_load_relaxed(&gate->control->settled_ppm);
    return hv_plausible_correction(settled != 0 ? settled : hv_load_relaxed(&gate->control->correction_ppm));
}

void hv_gate_look(struct hv_gate *gate)
{
    gate->now_ns = hv_os_now_ns();
    (void)hv_terms_read(hv_files(), gate->device, &gate->terms); /* a device that left keeps its last limits */
    const struct hv_share_terms share = {.limit_ppm = gate->terms.limit_share_ppm,
                                         .policy = gate->terms.policy,
                                         .borrowed = hv_load_relaxed(&gate->control->borrowed),
                                         .contracted = hv_load_relaxed(&gate->control->contracted)};
    gate->share_ppm = gate->terms.isolation_mode == HV_ISOLATION_SOFT ? hv_effective_share(&share, gate->now_ns)
                                                                      : HV_SHARE_FULL_PPM;
    gate->correction_ppm = correction_in_force(gate);
    /* One that makes charges less was for charges as they were; if nobody looks any more and they are others, it is none. */
    if (gate->correction_ppm < HV_SHARE_FULL_PPM && hv_load_relaxed_32(&gate->process->sampler.changed[gate->device]) != 0)
        gate->correction_ppm = HV_SHARE_FULL_PPM;
    if (hv_load_relaxed(&gate->control->correction_ppm) == hv_load_relaxed(&gate->process->sampler.void_ppm[gate->device]) &&
        gate->now_ns < hv_load_relaxed(&gate->process->sampler.void_until_ns[gate->device]))
        gate->correction_ppm = HV_SHARE_FULL_PPM;
    gate->overlap_ppm = hv_survey_overlap_ppm(&gate->process->sampler, gate->device);
    follow_basis(gate);
    follow_share(gate);
}

void hv_gate_wait(const struct hv_gate *gate, uint64_t until_ns)
{
    /* The low half of the generation is the futex word; little-endian, as both
     * of our processors are. */
    const uint32_t *word = (const uint32_t *)(const void *)&hv_files()->state->generation;
    hv_os_wait_on_word(word, (uint32_t)gate->terms.generation, until_ns);
}

bool hv_gate_open(struct hv_gate *gate, struct hv_process *process, CUdevice ordinal, CUresult *refused)
{
    *gate = (struct hv_gate){.process = process, .device = hv_process_device(process, ordinal)};
    gate->slot = hv_process_slot(process);
    if (gate->slot == NULL) {
        *refused = CUDA_ERROR_SYSTEM_NOT_READY;
        return false;
    }
    if (gate->device >= HV_MAX_DEVICES) {
        /* Not the Pod's. Where this library limits, that is a limit of 0. */
        struct hv_device_terms first;
        if (!hv_terms_read(hv_files(), 0, &first) || first.isolation_mode == HV_ISOLATION_SOFT)
            *refused = CUDA_ERROR_NOT_PERMITTED;
        return false;
    }
    gate->control = hv_files()->control[gate->device];
    gate->usage = hv_files()->devices[gate->device];
    hv_gate_look(gate);
    return true;
}
