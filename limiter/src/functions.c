#include "functions.h"

#include <string.h>

#define FEW 8
#define ODD_PART 8 /* of times that are alike so many may be odd ones */
#define MEAN_OVER 16
#define PERSISTENT 256 /* samples that say longer, one after the other: some seconds; charges that are far too low are seen by the daemon before */
#define SLOWLY 65536
#define SOON 256

/* Of a short function that takes much longer from one launch to the next so many samples in a row are enough, and so
 * many times its cost is much: alone on the device; where others have turns and the cost is far below any turn, so that
 * hardly any launch meets one; else for each process that has turns; and alone where launches of this process run beside
 * each other, which makes all of them longer at once. */
#define RUN 4
#define OTHER_ALONE UINT64_C(2)
#define OTHER_SEEN UINT64_C(2)
#define OTHER_SHORT UINT64_C(4)
#define SHORT_NS UINT64_C(200000)
#define OTHER_EACH UINT64_C(3)
#define OTHER_BESIDE UINT64_C(8)
#define RUN_UNTOLD HV_LONGEST_RUN /* where nobody tells who is there */

#define NEAR_PART 4 /* times up to a quarter longer are the launch's own scatter; beyond lie others' turns */

struct hv_function *hv_function_enter(struct hv_function_table *table, uint64_t key, const struct hv_identity *identity)
{
    uint32_t index = (uint32_t)(key >> (64 - HV_FUNCTIONS_LOG2));
    for (uint32_t probe = 0; probe < HV_FUNCTION_PROBES; probe++) {
        struct hv_function *entry = &table->entries[(index + probe) & (HV_FUNCTIONS - 1)];
        uint64_t found = 0;
        if (hv_cas_acq_rel(&entry->key, &found, key)) {
            hv_store_relaxed_32(&entry->device, identity->device);
            hv_store_relaxed_32(&entry->kind, identity->kind);
            hv_store_relaxed(&entry->handle, (uint64_t)(uintptr_t)identity->handle);
            hv_store_relaxed(&entry->shape, identity->shape);
            return entry;
        }
        if (found == key)
            return entry;
    }
    hv_store_relaxed_32(&table->overflow.device, identity->device);
    return &table->overflow;
}

uint32_t hv_undisturbed(const uint32_t *times, uint32_t count, uint32_t *alike)
{
    uint32_t sorted[HV_RECENT_SAMPLES];
    memcpy(sorted, times, count * sizeof *times);
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = i; j > 0 && sorted[j - 1] > sorted[j]; j--) {
            uint32_t larger = sorted[j - 1];
            sorted[j - 1] = sorted[j];
            sorted[j] = larger;
        }
    /* Of many, not the very smallest: one that was measured wrongly would stand for all. */
    uint64_t base = sorted[count > FEW ? 1 : 0];
    uint32_t near = 0;
    while (near < count && sorted[near] <= base + base / NEAR_PART)
        near++;
    *alike = near;
    if (near < (count + 1) / 2) /* scattered: also those near the least are lengthened a little */
        return (uint32_t)base; /* is one of them */
    return sorted[near / 2]; /* not their mean: the later ones waited a little for their turn */
}

/* slowly: times that are higher than the cost may be so because of others' turns. */
static uint64_t next_cost(const struct hv_function *function, const struct hv_measured *measured, bool slowly)
{
    uint64_t cost = hv_load_relaxed(&function->cost_ns);
    if (function->is_long)
        return function->mean_ns;
    if (slowly && cost != 0 && function->undisturbed_ns > cost) {
        uint64_t more = function->undisturbed_ns - cost;
        if (measured->too_little)
            return cost + (more < cost * 4 ? more : cost * 4) / SOON;
        return cost + (more < cost ? more : cost) / SLOWLY; /* turns may be a hundred times as long */
    }
    return function->undisturbed_ns;
}

/* What other processes of the Pod have measured, in peace; 0: none has. */
static uint64_t told_cost(const struct hv_function *function)
{
    return hv_load_relaxed_32(&function->first_measured) != 0 ? hv_load_relaxed(&function->first_cost_ns) : 0;
}

/* Half as long before it counts as short again: concurrency makes the same launch long and short by turns. One that is
 * known to be short, by this process or by others, does not become long by others' turns alone. */
static bool is_long_now(const struct hv_function *function, const struct hv_measured *measured, uint32_t samples,
                        bool slowly)
{
    if (function->is_long)
        return function->undisturbed_ns >= HV_LONG_NS / 2;
    uint64_t told = told_cost(function);
    if (samples <= HV_RECENT_SAMPLES && told != 0 && told < HV_LONG_NS)
        return false; /* turns that are alike from the first launch on would make it so */
    if (samples > HV_RECENT_SAMPLES && slowly && !measured->too_little)
        return false;
    return function->undisturbed_ns >= HV_LONG_NS;
}

/* From how long on a time tells of other work; 0: none does. Of a long launch others' turns are off already, but which
 * of several launches of the Pod is the first to tell of a moment is chance. */
static uint64_t other_from(const struct hv_function *function, const struct hv_measured *measured)
{
    uint64_t cost = hv_load_relaxed(&function->cost_ns);
    if (function->is_long)
        return measured->own == 1 && !measured->beside_others ? cost * OTHER_ALONE : 0;
    if (measured->too_little && !measured->held)
        return cost * OTHER_SEEN;
    if (measured->beside_others)
        return measured->crowd == 1 || (function->undisturbed_ns <= SHORT_NS && measured->begin_ns != 0) ? cost * OTHER_BESIDE : 0;
    return cost * (measured->crowd == 1 ? OTHER_ALONE : cost <= SHORT_NS ? OTHER_SHORT : OTHER_EACH * measured->crowd);
}

/* A launch that may have waited for its turn, where the driver sees the Pod busier than it is charged. */
static bool longer_than_turns(const struct hv_function *function, const struct hv_measured *measured, uint32_t ns)
{
    uint64_t cost = hv_load_relaxed(&function->cost_ns);
    return measured->too_little && !measured->held && cost > SHORT_NS && ns >= cost * OTHER_EACH * measured->crowd;
}

/* One more time: is the work other work? What was launched behind other work of its stream has no turn of others before
 * it, and within it only where the device changes over just then, which is not so in one launch after the other. */
static bool is_other(struct hv_function *function, const struct hv_measured *measured, uint32_t ns)
{
    uint64_t from = other_from(function, measured);
    ns = function->is_long && measured->own_ns < ns ? (uint32_t)measured->own_ns : ns; /* below ns, which fits */
    if (from == 0 || ns < from || hv_load_relaxed_32(&function->samples) <= HV_FIRST_SAMPLES) {
        function->run = 0;
        return false;
    }
    if (measured->idle && measured->crowd != 1 && !function->is_long && !longer_than_turns(function, measured, ns))
        return false; /* it may have waited for its turn */
    if (measured->beside_others && measured->crowd != 1 && measured->begin_ns < function->run_upto_ns && function->run != 0)
        return false; /* those that run beside each other all meet the same turn */
    function->run_upto_ns = measured->begin_ns + ns;
    function->run_ns[function->run++] = ns;
    return function->run >= (measured->crowd == 0 && !function->is_long ? RUN_UNTOLD : RUN);
}

/* Of how many processes' turns a time of the run is. */
static uint64_t crowd_of(const struct hv_function *function, const struct hv_measured *measured)
{
    return measured->crowd == 0 || function->is_long ? 1 : measured->crowd;
}

/* As if the samples of the run had been the first. */
static void begin_anew(struct hv_function *function, const struct hv_measured *measured)
{
    uint32_t alike, count = function->run - 1; /* the last one is learned after this */
    memcpy(function->recent_ns, function->run_ns, count * sizeof *function->run_ns);
    hv_store_relaxed_32(&function->samples, count);
    function->undisturbed_ns = hv_undisturbed(function->recent_ns, count, &alike);
    function->mean_ns = function->undisturbed_ns / crowd_of(function, measured);
    function->own_ns = function->alone_ns = 0;
    function->length = (struct hv_length){0};
    function->persists = 0;
    function->run = 0;
    if (function->kind == 0)
        hv_store_relaxed(&function->first_cost_ns, 0);
    hv_store_relaxed(&function->cost_ns, function->undisturbed_ns);
}

/* Can others' turns have made the times longer, in the same way for a while? Not where the daemon sees the Pod much busier
 * than it is charged. Where nobody looks any more it is those that were there when somebody told of them. */
static bool turns_explain(const struct hv_function *function, const struct hv_measured *measured)
{
    uint64_t cost = hv_load_relaxed(&function->cost_ns);
    uint64_t crowd = measured->held ? measured->crowd_told : measured->crowd;
    bool too_little = !measured->held && measured->too_little;
    if (measured->enough_charged && !too_little)
        return true;
    return crowd > 1 && !too_little && cost > SHORT_NS && function->undisturbed_ns < cost * OTHER_EACH * crowd;
}

/* How many samples in a row have said that it takes longer. Where nobody looks they need not be alike: others' turns
 * scatter times, but of so many launches one has none; unless those beside it slow it down as well. Enough of them, this
 * one among them? */
static bool is_longer_for_long(struct hv_function *function, const struct hv_measured *measured, bool all_alike)
{
    uint64_t cost = hv_load_relaxed(&function->cost_ns);
    if (measured->held && !all_alike && measured->idle && measured->crowd_told != 1)
        return false; /* it may have waited for its turn */
    bool by_itself = measured->crowd_told == 1 || !measured->beside_others;
    bool longer = all_alike ? function->undisturbed_ns > cost
                            : measured->held && by_itself && function->undisturbed_ns > cost + cost / NEAR_PART;
    if (measured->enough_charged && (measured->held || !measured->too_little))
        longer = false;
    function->persists = longer ? function->persists + 1 : 0;
    return function->persists >= PERSISTENT;
}

/* Nobody looks any more. What the correction is for stays, unless the work is other work; but what has risen since then may
 * have been others' turns, and no launch takes less time than it takes, unless it is slowed down by those beside it. */
static uint64_t held_cost(const struct hv_function *function, const struct hv_measured *measured, uint64_t cost)
{
    uint64_t known = hv_load_relaxed(&function->cost_ns), kept = function->kept_ns;
    if (hv_is_other_work(known, cost) && (cost > known || measured->beside_others || hv_is_other_work(kept, cost)))
        return cost;
    if (cost < known && kept < known && !measured->beside_others)
        return cost > kept ? cost : kept;
    return known;
}

bool hv_function_learn(struct hv_function *function, const struct hv_measured *measured)
{
    uint32_t ns = measured->ns == 0 ? 1 : measured->ns > UINT32_MAX ? UINT32_MAX : (uint32_t)measured->ns;
    bool other = is_other(function, measured, ns);
    if (other)
        begin_anew(function, measured);
    hv_store_relaxed_32(&function->impatient, 0);
    uint32_t samples = hv_load_relaxed_32(&function->samples);
    function->recent_ns[samples % HV_RECENT_SAMPLES] = ns;
    samples++;
    hv_store_relaxed_32(&function->samples, samples);
    uint32_t count = samples < HV_RECENT_SAMPLES ? samples : HV_RECENT_SAMPLES;
    uint32_t alike;
    function->undisturbed_ns = hv_undisturbed(function->recent_ns, count, &alike);
    /* The mean of all at first, then of about the last MEAN_OVER. */
    uint64_t weight = samples < MEAN_OVER ? samples : MEAN_OVER;
    uint64_t own = measured->own_ns < ns ? measured->own_ns : other ? ns / crowd_of(function, measured) : ns;
    function->mean_ns = (function->mean_ns * (weight - 1) + own) / weight;
    /* A launch that takes longer from now on takes about the same time each time; what turns add is different each time. */
    bool all_alike = alike >= count - count / ODD_PART;
    /* On an idle stream each may have waited as long for its turn, for a while; if there are others. */
    bool waited = (measured->idle || turns_explain(function, measured)) && measured->crowd != 1;
    bool for_long = is_longer_for_long(function, measured, all_alike);
    bool unseen = measured->held && for_long; /* nobody else would notice */
    bool slowly = ((measured->beside_others || !all_alike) && !unseen) || (waited && !for_long);
    hv_store_relaxed_32(&function->is_long, is_long_now(function, measured, samples, slowly));
    uint64_t cost = next_cost(function, measured, slowly);
    /* The first times of this process may be mostly others' turns, where others have measured it in peace. */
    uint64_t told = told_cost(function);
    if (samples <= HV_FIRST_SAMPLES && told != 0 && told < HV_LONG_NS && told < cost)
        cost = told;
    bool rises = measured->too_little && cost > hv_load_relaxed(&function->cost_ns);
    if (measured->held && !rises && !function->is_long && samples > HV_RECENT_SAMPLES)
        cost = held_cost(function, measured, cost);
    if (!measured->held)
        function->kept_ns = cost;
    hv_store_relaxed(&function->cost_ns, cost == 0 ? 1 : cost); /* 0 would mean that it is not known */
    hv_store_relaxed(&function->sampled_at_ns, measured->at_ns);
    return other;
}
