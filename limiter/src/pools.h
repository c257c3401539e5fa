/*
 * Memory pools of the driver (stream-ordered allocation). A pool keeps what was
 * freed, so what counts is not what its allocations hold but what it holds
 * itself, and the driver tells that: an allocation is reserved in full and then
 * corrected to what the pool grew by. The memory of graphs' allocation nodes is
 * kept in the same way, by a pool of each device that has no handle.
 */
#ifndef HV_POOLS_H
#define HV_POOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "hypervisor_limits.h"

#define HV_POOLS 64
/* In place of a device's index: the pool lies in host memory, and counts to its quota. */
#define HV_POOL_ON_HOST (HV_MAX_DEVICES + 1)

struct hv_graph_need;
struct hv_process;
struct hv_reservation;

struct hv_pool {
    CUmemoryPool handle; /* NULL: free place */
    uint64_t accounted;  /* bytes in the ledger */
    uint32_t device;     /* index in hv_limits.devices, or HV_POOL_ON_HOST */
    uint32_t lock;
    uint64_t granule;    /* the pool is taken to grow by multiples of this; 0: nothing is known yet */
    bool ending;         /* the program destroyed it while it held memory: the driver is told when it holds none */
    /* of graph memory */
    uint64_t claimed;    /* kept bytes that launches under way count on */
    uint64_t lent;       /* of what is accounted: claimed, and not held now */
    uint64_t launched;   /* what all graphs take that were launched in this round, each once */
    uint64_t round;      /* a new one begins when nothing of it is in use */
};

struct hv_pool_table {
    uint32_t lock; /* for entering a pool once */
    struct hv_pool pools[HV_POOLS];
};

/* What stands for the handle of a device's graph memory: no pool has such an
 * address. */
static inline CUmemoryPool hv_graph_memory_of(CUdevice ordinal)
{
    return (CUmemoryPool)(uintptr_t)(ordinal + 1);
}

/* The pool of this handle, entered if need be; NULL: no room, or a driver that
 * does not tell what pools hold. Its allocations then count one by one. */
struct hv_pool *hv_pool_of(struct hv_process *process, CUmemoryPool handle, uint32_t device);

/* What to reserve for an allocation, so that the pool's growth is covered. */
uint64_t hv_pool_reservation(const struct hv_pool *pool, uint64_t bytes);

/* After an allocation from it that was reserved, or a launch that had claimed so much of it. */
void hv_pool_grown(struct hv_pool *pool, struct hv_reservation *reservation, uint64_t claimed);

/* A graph is to be launched: by how much the device's graph memory may grow
 * for it. What that keeps and the launch counts on is claimed until it is over. */
uint64_t hv_pool_claim(struct hv_pool *pool, struct hv_graph_need *need, uint64_t *claimed);

/* It did not come to be launched, and nothing was reserved for it. */
void hv_pool_unclaim(struct hv_process *process, struct hv_pool *pool, uint64_t claimed, struct hv_graph_need *need);

/* Account what the pools of the device, or of the host, hold now; they shrink when streams are waited for. */
void hv_pools_refresh(struct hv_process *process, uint32_t device);

/* The same, after making them give up what nobody uses: before a refusal. */
void hv_pools_trim(struct hv_process *process, uint32_t device);

/* The program destroys a pool that it made. The driver holds what is in use of
 * it until that is freed, and tells no more of it; so the pool is then kept,
 * out of the program's way, until it is empty. false: it is forgotten here, and
 * the driver shall destroy it. */
bool hv_pool_stays(struct hv_process *process, CUmemoryPool handle, CUdevice ordinal);

/* Did the program destroy this one before? */
bool hv_pool_is_ending(struct hv_process *process, CUmemoryPool handle);

/* The driver destroyed a pool of which it was not known that the program made it. */
void hv_pool_destroyed(struct hv_process *process, CUmemoryPool handle);

#endif
