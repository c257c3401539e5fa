/*
 * What a launch costs, by function and shape, as this process has measured it.
 * A fixed table, read without a lock; entries never move and never go away.
 */
#ifndef HV_FUNCTIONS_H
#define HV_FUNCTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compiler.h"
#include "hypervisor_atomics.h"
#include "hypervisor_limits.h"
#include "length.h"

#define HV_FUNCTIONS_LOG2 12
#define HV_FUNCTIONS (1u << HV_FUNCTIONS_LOG2)
#define HV_FUNCTION_PROBES 16
#define HV_RECENT_SAMPLES 32
#define HV_LONGEST_RUN 8
#define HV_FUNCTION_GRAPH 1 /* hv_learned_cost.kind */
#define HV_FUNCTION_COPY 2
#define HV_GRAPH_UPDATED 1u /* its nodes have other parameters than those of the graph that it was made from */

/* What a launch is taken for until it was measured. */
#define HV_GUESSED_COST_NS UINT64_C(20000)
#define HV_FIRST_SAMPLES 8 /* so many are taken one after the other */

struct hv_function {
    uint64_t key;           /* 0: free */
    uint64_t cost_ns;       /* 0: not learned */
    uint64_t sampled_at_ns;
    uint64_t published;     /* index + 1 in the shared table; 0: not there */
    uint32_t in_flight;     /* launches before the cost was learned that have not ended */
    uint32_t samples;
    uint32_t device;
    uint32_t kind;          /* as in hv_learned_cost */
    uint32_t is_long;       /* each launch is measured, and charged in the slow path */
    uint64_t launches;      /* not published yet; those that were paid for by another's counts there */
    uint32_t recent_ns[HV_RECENT_SAMPLES];
    uint64_t handle;        /* of the driver: for its name */
    uint64_t shape;         /* the same in every process of the Pod: grid and block, or of a graph its kernels */
    uint64_t first_cost_ns; /* charged until the cost is learned; 0: HV_GUESSED_COST_NS */
    uint32_t first_measured; /* 1: first_cost_ns is what another process has measured */
    uint64_t undisturbed_ns; /* of the recent times: see hv_undisturbed */
    uint64_t mean_ns;       /* own time of the last launches */
    uint64_t kept_ns;       /* the cost when the daemon looked last */
    uint32_t persists;      /* samples in a row that were alike and higher than the cost */
    uint32_t impatient;     /* launches that did not wait any longer since one ended */
    uint32_t again;         /* the next launch is to be measured too */
    uint64_t own_ns;        /* of long ones: what they added to the Pod's GPU time, in the mean, while somebody looked */
    uint64_t alone_ns;      /* the same since then */
    uint64_t turns_ppm;     /* with so many turns of others for one of ours */
    struct hv_length length; /* of long ones, by themselves, */
    uint32_t kept;          /* 1: which is what they are charged, since nobody tells of turns any more */
    uint32_t untold;        /* 1: its cost was learned before anybody told how many turns others had */
    uint32_t priced;        /* 1: what was learned of it before had others' turns in it, and begins anew with its cost */
    uint32_t version;       /* of a graph: grows when it is made or changed, so that what was under way before is not learned */
    uint32_t graph_set;     /* of a graph: 1: its nodes were changed one by one since it was made or updated */
    uint32_t graph_made;    /* of a graph: grows when it is made or updated; HV_GRAPH_UPDATED: the latter */
    uint32_t graph_sources; /* how often nodes of graphs had been changed by then */
    uint32_t run;           /* samples in a row that tell of other work: see hv_function_learn */
    uint32_t run_ns[HV_LONGEST_RUN];
    uint64_t run_since_ns;  /* when the first launch of it was begun */
    uint64_t run_ended_ns;  /* charges that have ended meanwhile */
    uint64_t run_upto_ns;   /* up to when the last one of them ran, by begin_ns */
} __attribute__((aligned(HV_CACHE_LINE)));

_Static_assert(offsetof(struct hv_function, recent_ns) <= HV_CACHE_LINE, "the first line is read by every launch");

struct hv_function_table {
    struct hv_function entries[HV_FUNCTIONS];
    struct hv_function overflow; /* for all that find no room */
};

/* A grid is remembered by its leading bits only: programs whose batch size
 * changes all the time would otherwise never be done learning. */
static inline uint64_t hv_grid_bucket(uint64_t blocks)
{
    uint32_t bits = 63 - (uint32_t)__builtin_clzll(blocks | 1);
    uint64_t leading = bits > 3 ? blocks >> (bits - 3) : blocks; /* four bits: within an eighth */
    return (uint64_t)bits << 4 | leading;
}

static inline uint64_t hv_shape(uint64_t blocks, uint64_t threads_per_block, uint32_t device)
{
    return (hv_grid_bucket(blocks) << 32 | threads_per_block << 8 | device) * UINT64_C(0xd6e8feb86659fd93);
}

static inline uint64_t hv_function_key(const void *handle, uint64_t blocks, uint64_t threads_per_block, uint32_t device)
{
    uint64_t key = (uint64_t)(uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15);
    key ^= hv_shape(blocks, threads_per_block, device);
    key ^= key >> 31;
    return key | 1; /* never 0 */
}

/* The entry of this key; NULL: not there yet. */
static inline struct hv_function *hv_function_find(struct hv_function *entries, uint64_t key)
{
    uint32_t index = (uint32_t)(key >> (64 - HV_FUNCTIONS_LOG2));
    for (uint32_t probe = 0; probe < HV_FUNCTION_PROBES; probe++) {
        struct hv_function *entry = &entries[(index + probe) & (HV_FUNCTIONS - 1)];
        uint64_t found = hv_load_relaxed(&entry->key); /* cost_ns 0 until it means something */
        if (found == key)
            return entry;
        if (found == 0)
            return NULL;
    }
    return NULL;
}

struct hv_identity {
    uint32_t device;
    uint32_t kind;
    const void *handle;
    uint64_t shape;
};

/* The entry of this key, made if need be. */
struct hv_function *hv_function_enter(struct hv_function_table *table, uint64_t key, const struct hv_identity *identity);

/* Launches that take so long are all measured, and what they added to the Pod's
 * GPU time is accounted for: see coverage.h. Others' turns are always among such
 * a time, so there is no undisturbed one to learn from. */
#define HV_LONG_NS UINT64_C(4000000)

/* Takes a measured time into account; true when it shows that the work is other work than it was, for which the times
 * before say nothing. own_ns: what it added to the Pod's GPU
 * time, of long ones; else as measured. beside_others: launches of this process
 * run beside each other, so that times differ with how many do; then a cost
 * rises slowly, because what of it is GPU time was found out for a cost that
 * stays. idle: its stream had nothing else to do, so it may have waited for the
 * Pod's turn. several: long launches of this process were in several streams.
 * too_little: the driver sees more GPU time than charges, so times that are
 * higher than the cost are the launch's own. held: the daemon is silent
 * and its correction is for costs as they are, so they stay unless the work is
 * other work. crowd: processes at work on the device, this one and the Pod's
 * other ones among them; 0: not known. crowd_told: the same by what was told last,
 * where held. begin_ns: when it began, by any clock; 0: not known, or no matter. own: of the Pod; only told of long ones.
 * enough_charged: of what the process had been charged enough was under way to fill its turns while this launch was; or,
 * where held, the Pod is charged for nearly all of the time. One thread at a time for each entry. */
struct hv_measured {
    uint64_t ns;
    uint64_t own_ns;
    uint64_t begin_ns;
    uint32_t crowd;
    uint32_t crowd_told;
    uint32_t own;
    bool beside_others;
    bool several;
    bool idle;
    bool too_little;
    bool held;
    bool enough_charged;
    uint64_t at_ns;
};

/* Since nobody looks, its launches take so much less than while somebody did that others who had turns then have gone. */
#define HV_GONE_PART 8 /* eighths of it that others have to take off to be missed */
static inline bool hv_others_have_gone(const struct hv_function *function)
{
    return function->alone_ns != 0 && function->alone_ns < function->own_ns - function->own_ns / HV_GONE_PART * 3;
}

/* Far enough from each other to be other work. */
static inline bool hv_is_other_work(uint64_t before, uint64_t after)
{
    return after > before + before / 2 || before > after + after / 2;
}

bool hv_function_learn(struct hv_function *function, const struct hv_measured *measured);

/* What the short ones of these times have in common, so that what others' turns
 * add to the rest is not charged to this Pod: the middle one of those near the least,
 * of which there are *alike, or about the least where those are few. */
uint32_t hv_undisturbed(const uint32_t *times, uint32_t count, uint32_t *alike);

#endif
