#include "pacing_untold.h"

#include "costs.h"
#include "coverage.h"
#include "sampler_results.h"

/* From a process's first charge on. The daemon tells with the first window that has ended, of 1/6 s mostly; one that is
 * not there never does. */
#define UNTOLD_NS (500 * NS_PER_MS)

/* One other with a turn for each of ours is as likely as any. */
#define ASSUMED_OTHERS_PPM HV_SHARE_FULL_PPM

static bool is_told(const struct hv_gate *gate)
{
    return hv_neighbours_told(hv_files(), gate->device, gate->now_ns);
}

static uint32_t own_at_work(const struct hv_gate *gate)
{
    uint32_t own = hv_slots_at_work(&hv_files()->slots, gate->device);
    return own == 0 ? 1 : own;
}

uint64_t hv_untold_placed(const struct hv_gate *gate, uint64_t gpu_ns)
{
    struct hv_sampler *sampler = &gate->process->sampler;
    uint64_t until = hv_load_relaxed(&sampler->untold_until_ns[gate->device]);
    if (until == 0) /* of two threads both set about the same */
        hv_store_relaxed(&sampler->untold_until_ns[gate->device], until = gate->now_ns + UNTOLD_NS);
    if (gate->now_ns >= until || is_told(gate))
        return gpu_ns;
    /* Not faster than the device, were nobody else there: what would then be queued is waited for later. */
    uint64_t fastest = hv_bucket_gpu_ns(gpu_ns, gate->share_ppm); /* the same product */
    uint64_t assumed = hv_own_turns(gpu_ns, own_at_work(gate), ASSUMED_OTHERS_PPM);
    return assumed > fastest ? assumed : fastest;
}

void hv_untold_note(struct hv_gate *gate, const struct hv_sample_result *result)
{
    struct hv_sampler *sampler = &gate->process->sampler;
    if (result->untold_ns == 0)
        return;
    hv_add_relaxed(&sampler->untold_ns[gate->device], result->untold_ns);
    hv_store_relaxed_32(&result->function->untold, 1);
}

/* What of the time that all processes of the Pod have laid down so far, others' turns among it, is its own. */
static uint32_t own_ppm(const struct hv_gate *gate)
{
    uint64_t laid = hv_load_relaxed(&gate->usage->laid_ns) / NS_PER_MS; /* the line's ticks are of a millisecond */
    uint64_t crowd = hv_load_relaxed(&gate->usage->crowd_ns) / NS_PER_MS;
    uint64_t others = hv_load_relaxed(&gate->control->others_ppm);
    if (laid == 0 || others > HV_MOST_OTHERS_PPM)
        return HV_SHARE_FULL_PPM;
    crowd = crowd < laid ? laid : crowd;
    return (uint32_t)((unsigned __int128)crowd * HV_SHARE_FULL_PPM * HV_SHARE_FULL_PPM /
                      ((unsigned __int128)crowd * HV_SHARE_FULL_PPM + (unsigned __int128)laid * others)); /* n / (n + m) */
}

void hv_untold_settle(struct hv_gate *gate)
{
    uint64_t *word = &gate->process->sampler.untold_ns[gate->device];
    if (hv_likely(hv_load_relaxed(word) == 0) || !is_told(gate))
        return;
    uint64_t measured = hv_exchange_acq_rel(word, 0);
    uint64_t turns = measured - hv_bucket_gpu_ns(measured, own_ppm(gate)); /* the same product */
    hv_debt_lower(&gate->usage->debt_ns, hv_gate_corrected(gate, false, turns));
    hv_gate_count(gate, false, false, 0 - turns); /* modulo 2^64: less */
}

void hv_untold_price(const struct hv_gate *gate, struct hv_function *function)
{
    bool unknown = hv_load_relaxed(&function->cost_ns) == 0;
    if (hv_likely(hv_load_relaxed_32(&function->untold) == 0 && !unknown) || !is_told(gate))
        return;
    hv_store_relaxed_32(&function->untold, 0);
    hv_costs_price(function, own_ppm(gate));
}
