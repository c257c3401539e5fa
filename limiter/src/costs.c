#define _POSIX_C_SOURCE 200809L
#include "costs.h"

#include <string.h>

#include "attach.h"
#include "bucket.h"
#include "coverage.h"
#include "driver.h"
#include "latest.h"

#define PROBES 16
#define NOT_PUBLISHABLE UINT64_MAX
/* For learning_until_ns, which has no meaning any more by then: how many processes of the Pod were at work meanwhile, in
 * parts, is what the word is less than UINT64_MAX by. */
#define UNTOLD_PARTS UINT64_C(1024)
#define LEARNED_UNTOLD (UINT64_MAX - HV_PROCESS_SLOTS * UNTOLD_PARTS)

/* Others do not wait as long for a function that is known to be short, and only not known well. */
#define LEARNING_SHORT_NS UINT64_C(20000000)
#define ENOUGH_SAMPLES 3
/* How often it says so to those who wait, while its launch is under way. */
#define MEASURES_ON_EVERY_NS UINT64_C(10000000)
/* Launches of all processes over which a long one's own time is averaged. */
#define AVERAGED_OVER 32
/* A longer one is measured by each process for itself: the table is open to be scribbled into, by the Pod's own processes,
 * who can make the others wait no longer with it than with the bucket's word. */
#define MOST_BELIEVED_NS HV_BUCKET_IMPLAUSIBLE_NS

/* Which function this process measures for the others, until when they wait for it as it has told them last. One for each
 * device; of two at once the later one is remembered, and the other is measured as if by another process. */
static struct hv_measuring {
    uint64_t published;
    uint64_t until_ns;
} measuring[HV_MAX_DEVICES];

static const char *name_of(const struct hv_function *function)
{
    if (function->kind != 0)
        return function->kind == HV_FUNCTION_GRAPH ? "graph" : "copy";
    return hv_costs_kernel_name((const void *)(uintptr_t)function->handle);
}

const char *hv_costs_kernel_name(const void *kernel)
{
    const char *name = NULL;
    void *handle = (void *)(uintptr_t)kernel; /* the driver's own: it is asked about it only */
    if (HV_DRIVER(cuFuncGetName) != NULL && HV_DRIVER(cuFuncGetName)(&name, handle) == CUDA_SUCCESS && name != NULL)
        return name;
    /* A handle of a library's kernel, which launches take as well. */
    if (HV_DRIVER(cuKernelGetName) != NULL && HV_DRIVER(cuKernelGetName)(&name, handle) == CUDA_SUCCESS)
        return name;
    return NULL;
}

uint64_t hv_costs_name_hash(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const unsigned char *c = (const unsigned char *)name; *c != '\0'; c++)
        hash = (hash ^ *c) * UINT64_C(0x100000001b3);
    return hash;
}

/* The same in every process of the Pod: by name and shape, not by handle. */
static uint64_t shared_key(const struct hv_function *function, const char *name)
{
    uint64_t key = hv_costs_name_hash(name) ^ hv_load_relaxed(&function->shape);
    key = (key ^ function->device) * UINT64_C(0x9e3779b97f4a7c15);
    return key == 0 ? 1 : key;
}

static struct hv_learned_cost *entry_at(uint64_t index)
{
    const struct hv_files *files = hv_files();
    return (void *)(files->costs + index * files->cost_stride);
}

static void enter(struct hv_function *function)
{
    const char *name = name_of(function);
    hv_store_relaxed(&function->published, NOT_PUBLISHABLE);
    if (name == NULL)
        return;
    uint64_t key = shared_key(function, name);
    for (uint32_t probe = 0; probe < PROBES; probe++) {
        uint64_t index = (key + probe) % HV_LEARNED_COSTS;
        struct hv_learned_cost *entry = entry_at(index);
        uint64_t found = 0;
        if (hv_cas_acq_rel(&entry->key, &found, key)) {
            hv_store_relaxed_32(&entry->device, function->device);
            hv_store_relaxed_32(&entry->kind, function->kind);
            /* The last byte stays as it was made: zero. */
            memcpy(entry->name, name, strnlen(name, HV_FUNCTION_NAME_BYTES - 1));
        } else if (found != key) {
            continue;
        }
        hv_store_relaxed(&function->published, index + 1);
        return;
    }
}

static bool is_entered(struct hv_function *function)
{
    if (hv_load_relaxed(&function->published) == 0)
        enter(function);
    uint64_t published = hv_load_relaxed(&function->published);
    return published != 0 && published != NOT_PUBLISHABLE;
}

static bool is_measured_here(const struct hv_function *function, uint64_t until_ns)
{
    const struct hv_measuring *mine = &measuring[function->device % HV_MAX_DEVICES];
    return until_ns != 0 && hv_load_relaxed(&mine->until_ns) == until_ns &&
           hv_load_relaxed(&mine->published) == hv_load_relaxed(&function->published);
}

static void note_measuring(const struct hv_function *function, uint64_t until_ns)
{
    struct hv_measuring *mine = &measuring[function->device % HV_MAX_DEVICES];
    hv_store_relaxed(&mine->published, hv_load_relaxed(&function->published));
    hv_store_relaxed(&mine->until_ns, until_ns);
}

bool hv_costs_told(struct hv_function *function)
{
    if (!is_entered(function))
        return false;
    struct hv_learned_cost *entry = entry_at(hv_load_relaxed(&function->published) - 1);
    uint64_t cost = hv_load_relaxed(&entry->cost_ns);
    /* Long with others' turns, and waits to be told of them: to begin to learn it again would take that mark away. */
    bool unpriced = cost != 0 && hv_load_relaxed(&entry->learning_until_ns) >= LEARNED_UNTOLD;
    /* The first times of a short one may be mostly others' turns. */
    if (cost < HV_LONG_NS && !unpriced && hv_load_relaxed(&entry->samples) < ENOUGH_SAMPLES)
        return false;
    if (cost < MOST_BELIEVED_NS) { /* as our own processes write it */
        hv_store_relaxed(&function->first_cost_ns, cost);
        hv_store_relaxed_32(&function->first_measured, 1);
    }
    return true;
}

bool hv_costs_settled(struct hv_function *function, uint64_t now_ns)
{
    if (!is_entered(function) || hv_costs_told(function))
        return true;
    if (hv_load_relaxed_32(&function->graph_set) != 0)
        return true; /* another one each time, perhaps: nobody waits for what may never be measured */
    struct hv_learned_cost *entry = entry_at(hv_load_relaxed(&function->published) - 1);
    uint64_t cost = hv_load_relaxed(&entry->cost_ns);
    uint64_t until = hv_load_relaxed(&entry->learning_until_ns);
    if (cost != 0 && is_measured_here(function, until))
        return true; /* whoever measures it goes on: it is who finds out whether the first time was right */
    uint64_t least = cost == 0 ? 0 : HV_LEARNING_NS - LEARNING_SHORT_NS; /* left when others go on */
    if (until > now_ns + least && until - now_ns <= HV_LEARNING_NS)
        return false;
    if (!hv_cas_acq_rel(&entry->learning_until_ns, &until, now_ns + HV_LEARNING_NS))
        return false;
    note_measuring(function, now_ns + HV_LEARNING_NS);
    return true;
}

void hv_costs_measures_on(const struct hv_function *function, uint64_t now_ns)
{
    uint64_t published = hv_load_relaxed(&function->published);
    if (published == 0 || published == NOT_PUBLISHABLE)
        return;
    struct hv_learned_cost *entry = entry_at(published - 1);
    uint64_t until = hv_load_relaxed(&entry->learning_until_ns), next = now_ns + HV_LEARNING_NS;
    if (!is_measured_here(function, until) || next - until < MEASURES_ON_EVERY_NS)
        return;
    if (hv_cas_acq_rel(&entry->learning_until_ns, &until, next))
        note_measuring(function, next);
}

/* What was learned while nobody told of others' turns is less by them; whoever comes first does it for all. */
static void price(struct hv_learned_cost *entry, uint64_t others_ppm)
{
    uint64_t marked = hv_load_relaxed(&entry->learning_until_ns);
    uint64_t cost = hv_load_relaxed(&entry->cost_ns), next;
    if (marked < LEARNED_UNTOLD || !hv_cas_acq_rel(&entry->learning_until_ns, &marked, 0))
        return;
    uint64_t own = (UINT64_MAX - marked) * HV_SHARE_FULL_PPM; /* below 2^40, and so are the others' */
    uint64_t others = (others_ppm < HV_MOST_OTHERS_PPM ? others_ppm : HV_MOST_OTHERS_PPM) * UNTOLD_PARTS;
    do {
        next = own == 0 ? cost : (uint64_t)((unsigned __int128)cost * own / (own + others)); /* at most cost */
    } while (!hv_cas_relaxed(&entry->cost_ns, &cost, next));
}

_Static_assert(HV_LEARNED_COSTS <= 4096, "numbers of hv_latest_with");

static uint64_t *latest_of(const struct hv_function *function)
{
    return &hv_files()->devices[function->device]->latest[(hv_load_relaxed(&function->published) - 1) & 1];
}

void hv_costs_average(struct hv_function *function, const struct hv_sample_result *result, bool told, bool early,
                      uint64_t others_ppm)
{
    if (!is_entered(function))
        return;
    struct hv_learned_cost *entry = entry_at(hv_load_relaxed(&function->published) - 1);
    if (told)
        price(entry, others_ppm);
    uint64_t mean = hv_load_relaxed(&entry->cost_ns); /* carries no other data */
    uint64_t next;
    if (!told && others_ppm == 0 && mean == 0) {
        uint64_t turns = result->turn_ns == 0 ? 1 : result->turn_ns;
        unsigned __int128 at_work = (unsigned __int128)result->measured_ns * UNTOLD_PARTS / turns;
        uint64_t most = UINT64_MAX - LEARNED_UNTOLD;
        uint64_t parts = at_work < UNTOLD_PARTS ? UNTOLD_PARTS : at_work < most ? (uint64_t)at_work : most;
        hv_store_relaxed(&entry->learning_until_ns, UINT64_MAX - parts);
    }
    struct hv_latest latest = {0};
    if (told && !early)
        latest = hv_latest_with(latest_of(function), hv_load_relaxed(&function->published) - 1, result->used_ns);
    else
        hv_store_relaxed(latest_of(function), 0); /* others' turns are in it, in one more than in the other */
    do {
        next = mean == 0 ? result->turn_ns : hv_latest_mean(mean, result->used_ns, AVERAGED_OVER, &latest);
    } while (!hv_cas_relaxed(&entry->cost_ns, &mean, next));
    hv_store_relaxed(&function->cost_ns, next == 0 ? 1 : next);
}

void hv_costs_price(struct hv_function *function, uint64_t others_ppm)
{
    if (!is_entered(function))
        return;
    struct hv_learned_cost *entry = entry_at(hv_load_relaxed(&function->published) - 1);
    price(entry, others_ppm);
    if (hv_load_relaxed_32(&function->is_long) == 0 || hv_load_relaxed(&entry->cost_ns) == 0)
        return;
    hv_store_relaxed(&function->cost_ns, hv_load_relaxed(&entry->cost_ns));
    hv_store_release_32(&function->priced, 1); /* this thread may not be the one that learns just now */
}

uint64_t hv_costs_charge(const struct hv_function *function)
{
    uint64_t cost = hv_load_relaxed(&function->cost_ns);
    uint64_t first_cost = hv_load_relaxed(&function->first_cost_ns);
    return cost != 0 ? cost : first_cost != 0 ? first_cost : HV_GUESSED_COST_NS;
}

void hv_costs_begin_anew(struct hv_function *function)
{
    if (!is_entered(function))
        return;
    hv_store_relaxed(&entry_at(hv_load_relaxed(&function->published) - 1)->cost_ns, hv_load_relaxed(&function->cost_ns));
    hv_store_relaxed(latest_of(function), 0); /* some of them are of the work as it was */
}

void hv_costs_publish(struct hv_function *function, uint64_t now_ns)
{
    uint64_t cost = hv_load_relaxed(&function->cost_ns);
    if (cost == 0 || !is_entered(function))
        return;
    struct hv_learned_cost *entry = entry_at(hv_load_relaxed(&function->published) - 1);
    if (hv_load_relaxed_32(&function->is_long) == 0) /* else it is the mean over all processes already */
        hv_store_relaxed(&entry->cost_ns, cost);
    uint64_t launches = hv_exchange_acq_rel(&function->launches, 0);
    if (launches != 0)
        hv_add_relaxed(&entry->launches, launches);
    hv_store_relaxed(&entry->samples, hv_load_relaxed_32(&function->samples));
    hv_store_relaxed(&entry->updated_at_ns, now_ns);
}
