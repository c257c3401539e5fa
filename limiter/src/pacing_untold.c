#include "pacing_untold.h"

#include "costs.h"
#include "coverage.h"
#include "sampler_results.h"

/* From a process's first charge on. The daemon tells with the first window that has ended, of 1/6 s mostly; one that is
 * not there never does. */
#define UNTOLD_NS (500 * NS_PER_MS)

/* One other with a turn for each of ours is as likely as any. */
#define ASSUMED_OTHERS_PPM HV_SHARE_FULL_PPM

bool hv_untold_is_told(const struct hv_gate *gate)
{
    return hv_neighbours_told(hv_files(), gate->device, gate->now_ns);
}

uint64_t hv_untold_placed(const struct hv_gate *gate, uint64_t gpu_ns)
{
    struct hv_sampler *sampler = &gate->process->sampler;
    uint64_t until = hv_load_relaxed(&sampler->untold_until_ns[gate->device]);
    if (until == 0) /* of two threads both set about the same */
        hv_store_relaxed(&sampler->untold_until_ns[gate->device], until = gate->now_ns + UNTOLD_NS);
    if (gate->now_ns >= until || hv_untold_is_told(gate))
        return gpu_ns;
    /* Not faster than the device, were nobody else there: what would then be queued is waited for later. */
    uint64_t fastest = hv_bucket_gpu_ns(gpu_ns, gate->share_ppm); /* the same product */
    /* What is charged was measured by one while the others waited for it. The same part of each, or those who wait could
     * not tell how much of what is before them is others' turns. */
    uint64_t assumed = hv_own_turns(gpu_ns, 1, ASSUMED_OTHERS_PPM);
    return assumed > fastest ? assumed : fastest;
}

bool hv_untold_is_over(const struct hv_gate *gate)
{
    uint64_t until = hv_load_relaxed(&gate->process->sampler.untold_until_ns[gate->device]);
    return gate->now_ns >= until + UNTOLD_NS;
}

void hv_untold_note(struct hv_gate *gate, const struct hv_sample_result *result)
{
    struct hv_sampler *sampler = &gate->process->sampler;
    if (result->untold_ns == 0)
        return;
    uint64_t all = hv_gate_corrected(gate, false, result->untold_ns);
    hv_add_relaxed(&sampler->untold_owed_ns[gate->device], all - hv_untold_placed(gate, all));
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

/* What was too much of it, as far as it was placed, moves up those who wait; they have their places behind it. */
void hv_untold_settle(struct hv_gate *gate)
{
    struct hv_sampler *sampler = &gate->process->sampler;
    uint64_t *word = &sampler->untold_ns[gate->device];
    if (hv_likely(hv_load_relaxed(word) == 0) || !hv_untold_is_told(gate))
        return;
    uint64_t measured = hv_exchange_acq_rel(word, 0);
    uint64_t owed = hv_exchange_acq_rel(&sampler->untold_owed_ns[gate->device], 0);
    uint64_t turns = measured - hv_bucket_gpu_ns(measured, own_ppm(gate)); /* the same product */
    uint64_t too_much = hv_gate_corrected(gate, false, turns);
    uint64_t lowered = hv_debt_lower(&gate->usage->debt_ns, too_much < owed ? too_much : owed);
    uint64_t wall = hv_bucket_wall_ns(too_much - lowered, gate->share_ppm);
    hv_bucket_give_back(&gate->usage->bucket_ns, wall);
    hv_add_relaxed(&gate->usage->returned_ns, wall);
    hv_gate_count(gate, false, false, 0 - turns); /* modulo 2^64: less */
}

void hv_untold_price(const struct hv_gate *gate, struct hv_function *function)
{
    bool unknown = hv_load_relaxed(&function->cost_ns) == 0;
    if (hv_likely(hv_load_relaxed_32(&function->untold) == 0 && !unknown) || !hv_untold_is_told(gate))
        return;
    hv_store_relaxed_32(&function->untold, 0);
    hv_costs_price(function, hv_load_relaxed(&gate->control->others_ppm));
}
