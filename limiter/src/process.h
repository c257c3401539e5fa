/*
 * All that a process keeps for itself, in pages that are zero again in the
 * child of a fork: the child begins anew, without a slot, with an empty map and
 * with no lock held, however it was made.
 */
#ifndef HV_PROCESS_H
#define HV_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "attach.h"
#include "bindings.h"
#include "cuda_abi.h"
#include "functions.h"
#include "kept.h"
#include "pending.h"
#include "pointer_map.h"
#include "pools.h"
#include "sampler.h"

#define HV_ORDINALS 64
#define HV_GRAPH_NODES_LOG2 10

/* What a node of an executable graph was set to last: see graph_costs.c. A place for many nodes; what is overwritten is
 * only known less well. */
struct hv_graph_node {
    uint64_t key;     /* of executable and node; 0: free */
    uint64_t kernels; /* a hash of what it runs, mixed with the key, */
    uint64_t ns;      /* and what that was taken to cost */
};

/* The last look at what the Pod was charged (hooks_view.c). */
struct hv_utilization_window {
    uint64_t began_ns; /* 0: none yet */
    uint64_t charged_ns;
    uint64_t percent_and_known; /* of the window before, from bit 1; bit 0: there was one */
};

struct hv_process {
    struct hv_process_slot *slot; /* NULL: not claimed yet */
    uint32_t claiming;            /* one thread claims, the others wait */
    uint32_t to_heal;             /* slots of dead processes came back: their bytes are to be recounted */
    uint64_t epoch;               /* not 0, differs between processes */
    struct hv_slot_identity self;
    /* generation << 8 | index + 1 of each device by the driver's number; 0: not asked */
    uint64_t ordinals[HV_ORDINALS];
    uint32_t changing_contexts;   /* one thread at a time changes what stands for contexts */
    uint64_t context_reserved_at_ns[HV_MAX_DEVICES];
    uint32_t made_contexts[HV_MAX_DEVICES]; /* by cuCtxCreate, and not destroyed */
    uint32_t context_generation[HV_MAX_DEVICES]; /* grows before a context is destroyed: what is older may go with it */
    uint32_t context_noticed[HV_MAX_DEVICES]; /* what a first context takes is reserved, or was measured */
    uint32_t unknown_frees; /* of memory that was never accounted */
    uint32_t told_of_tables; /* that a private table of the driver was handed out */
    uint32_t told_of_nvml_tables;
    uint64_t bodies; /* numbers given so far (bodies.h) */
    uint32_t graphs_with_memory; /* executable graphs with allocation nodes */
    uint32_t had_graph_memory;   /* there was one: what it left allocated outlives it, and has no record */
    struct hv_utilization_window utilization[HV_MAX_DEVICES];
    struct hv_pool_table pools;
    struct hv_kept kept;
    struct hv_pending_frees pending;
    struct hv_bindings bindings;
    struct hv_pointer_map memory[HV_KEPT_STRIPES]; /* device memory, by the thread that allocated it (held.h) */
    struct hv_pointer_map pointers;                /* everything else */
    struct hv_pointer_map array_contexts;          /* of each array: the context that it goes with, by its handle */
    uint32_t changing_primary[HV_ORDINALS];        /* one thread at a time makes or destroys a device's primary context */
    uint64_t primary_contexts[HV_ORDINALS];        /* their handles, which the driver keeps; 0: not seen */
    struct hv_sampler sampler;
    struct hv_function_table functions;
    struct hv_graph_node graph_nodes[1u << HV_GRAPH_NODES_LOG2];
    uint32_t graph_sources; /* how often a node of a graph was given another kernel or child */
};

/* NULL: no memory for it. Needs HV_ATTACH_DONE. */
struct hv_process *hv_process(void);

/* The slot of this process, claimed if need be; NULL: all are taken. */
struct hv_process_slot *hv_process_slot_slowly(struct hv_process *process);

static inline struct hv_process_slot *hv_process_slot(struct hv_process *process)
{
    struct hv_process_slot *slot = __atomic_load_n(&process->slot, __ATOMIC_ACQUIRE);
    return hv_likely(slot != NULL) ? slot : hv_process_slot_slowly(process);
}

/* Give back the slots of processes that died. */
void hv_process_reap(struct hv_process *process);

/* Index of the device with the driver's number, HV_MAX_DEVICES if it is not
 * one of this Pod's. */
uint32_t hv_process_device(struct hv_process *process, CUdevice ordinal);

/* Has the driver told which device has this number? If it has, and it is not
 * one of the Pod's, it is another's. */
bool hv_device_is_known(const struct hv_process *process, CUdevice ordinal);

/* The driver's number of the device of the thread's context; false: it has
 * none, and *result is what the driver said. */
bool hv_current_ordinal(CUdevice *ordinal, CUresult *result);

#endif
