/* Stream-ordered memory pools. A pool keeps what is freed up to its release threshold, counted in bytes:
 * a new allocation is charged only for what the pool does not hold already. Fragmentation is not modelled. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static CUmemoryPool new_pool(uint32_t device, const CUmemPoolProps *props)
{
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pool->kind = HANDLE_POOL;
    pool->device = device;
    pool->gpu = sim_driver.gpu_of[device];
    pool->host = props->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    pool->props = *props;
    pool->file = -1;
    pool->next = sim_driver.pools;
    sim_driver.pools = pool;
    return pool;
}

/* Driver lock held. */
static CUmemoryPool default_pool(uint32_t device)
{
    if (!sim_driver.default_pool[device]) {
        CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)device}}; /* small */
        sim_driver.default_pool[device] = new_pool(device, &props);
    }
    return sim_driver.default_pool[device];
}

CUmemoryPool sim_pool_current(uint32_t device)
{
    sim_lock_driver();
    CUmemoryPool pool = sim_driver.current_pool[device];
    if (!pool)
        pool = default_pool(device);
    sim_unlock_driver();
    return pool;
}

CUresult sim_pool_allocate(CUmemoryPool pool, CUcontext context, uint64_t bytes, CUdeviceptr *out)
{
    struct sim_machine *machine = sim_here();
    uint64_t size = sim_charged_size(machine, bytes);
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    uint64_t kept = pool->reserved - pool->used, more = size > kept ? size - kept : 0;
    int status = SIM_OK;
    if (pool->props.maxSize && pool->reserved + more > pool->props.maxSize)
        status = SIM_NO_MEMORY;
    else if (more && !pool->host)
        status = sim_charge(machine, pool->gpu, sim_driver.process, more);
    if (status == SIM_OK) {
        pool->reserved += more;
        pool->used += size;
        pool->reserved_high = larger(pool->reserved_high, pool->reserved);
        pool->used_high = larger(pool->used_high, pool->used);
    }
    sim_unlock_driver();
    if (status != SIM_OK)
        return sim_result(status);
    struct memory *memory;
    CUresult result = sim_memory_new(context, pool->gpu, pool->device, bytes, MEMORY_POOLED, 0, &memory);
    sim_lock_driver();
    if (result != CUDA_SUCCESS) {
        pool->used -= size;
    } else {
        memory->pool = pool;
        *out = memory->start;
    }
    sim_unlock_driver();
    return result;
}

void sim_pool_give_back(struct memory *memory)
{
    CUmemoryPool pool = memory->pool;
    pool->used -= sim_charged_size(sim_here(), memory->size);
    memory->pool = NULL;
}

/* Driver lock held. */
static void trim(CUmemoryPool pool, uint64_t keep)
{
    uint64_t floor = larger(keep, pool->used);
    if (pool->reserved <= floor)
        return;
    if (!pool->host)
        sim_refund(sim_here(), pool->gpu, sim_driver.process, pool->reserved - floor);
    pool->reserved = floor;
}

void sim_pools_empty(uint32_t gpu)
{
    sim_lock_driver();
    for (CUmemoryPool pool = sim_driver.pools; pool; pool = pool->next)
        if (pool->gpu == gpu)
            trim(pool, 0);
    sim_unlock_driver();
}

void sim_pools_trim(uint32_t gpu)
{
    if (!__atomic_load_n(&sim_driver.pools, __ATOMIC_RELAXED)) /* relaxed: a pool made meanwhile has nothing to give back */
        return;
    sim_lock_driver();
    for (CUmemoryPool pool = sim_driver.pools; pool; pool = pool->next)
        if (pool->gpu == gpu && pool->kind == HANDLE_POOL)
            trim(pool, pool->threshold);
    sim_unlock_driver();
}

static int valid(CUmemoryPool pool) { return pool && pool->kind == HANDLE_POOL && !pool->destroyed; }

static CUresult allocate(CUstream stream, CUmemoryPool pool, size_t bytes, CUdeviceptr *out)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return sim_capture_allocate(stream, out, bytes);
    CUresult result = sim_pool_allocate(pool, stream->context, bytes, out);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    sim_pools_trim(stream->context->gpu); /* what pools hold over their thresholds is given up before anybody is refused */
    return sim_pool_allocate(pool, stream->context, bytes, out);
}

static CUresult allocate_async(const char *call, int per_thread, CUdeviceptr *address, size_t bytes, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    CUmemoryPool pool = sim_pool_current(stream->context->device);
    return pool ? allocate(stream, pool, bytes, address) : CUDA_ERROR_OUT_OF_MEMORY;
}
DEFINE_TWINS(cuMemAllocAsync, _ptsz, allocate_async, (CUdeviceptr *address, size_t bytes, CUstream stream), address, bytes, stream)

static CUresult allocate_from_pool(const char *call, int per_thread, CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    return valid(pool) && !pool->imported ? allocate(stream, pool, bytes, address) : CUDA_ERROR_INVALID_VALUE; /* an imported pool only hands on */
}
DEFINE_TWINS(cuMemAllocFromPoolAsync, _ptsz, allocate_from_pool, (CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream), address, bytes, pool, stream)

static CUresult free_async(const char *call, int per_thread, CUdeviceptr address, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return sim_capture_free(stream, address);
    sim_lock_driver();
    struct memory *memory = sim_memory_find(address);
    uint64_t charged = 0;
    uint32_t gpu = 0;
    if (!memory || memory->start != address || (memory->kind != MEMORY_POOLED && memory->kind != MEMORY_DEVICE && memory->kind != MEMORY_GRAPH && memory->kind != MEMORY_IMPORTED)) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        if (memory->pool)
            sim_pool_give_back(memory);
        charged = memory->kind == MEMORY_GRAPH ? 0 : memory->charged;
        gpu = memory->gpu;
        if (memory->kind == MEMORY_GRAPH && memory->nodes)
            sim_graph_memory_give(memory); /* the address is its node's, which may allocate it again */
        else
            sim_memory_delete(memory, 0);
    }
    sim_unlock_driver();
    if (result == CUDA_SUCCESS && charged) { /* not the pool's: the ledger gets it back when the stream comes to it */
        if (gpu == stream->context->gpu)
            result = sim_enqueue(stream, &(struct sim_item){.kind = SIM_ITEM_RELEASE, .bytes = charged});
        else
            sim_refund(sim_here(), gpu, sim_driver.process, charged);
    }
    return result;
}
DEFINE_TWINS(cuMemFreeAsync, _ptsz, free_async, (CUdeviceptr address, CUstream stream), address, stream)

SIM_EXPORTED CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    ENTER();
    if (!pool || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    int device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? props->location.id : 0;
    if (device < 0 || (uint32_t)device >= sim_driver.device_count)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    CUmemoryPool made = new_pool((uint32_t)device, props); /* checked: not negative */
    sim_unlock_driver();
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pool = made;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    ENTER();
    if (!valid(pool))
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    CUresult result = CUDA_SUCCESS;
    for (uint32_t i = 0; i < SIM_MAX_GPUS; i++) {
        if (sim_driver.default_pool[i] == pool)
            result = CUDA_ERROR_INVALID_VALUE;
        else if (sim_driver.current_pool[i] == pool)
            sim_driver.current_pool[i] = NULL;
    }
    if (result == CUDA_SUCCESS) { /* live allocations stay valid; what they free is given back at the next synchronisation */
        pool->destroyed = 1;
        pool->threshold = 0;
        trim(pool, 0);
    }
    sim_unlock_driver();
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    ENTER();
    if (!valid(pool))
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    trim(pool, keep);
    sim_unlock_driver();
    return CUDA_SUCCESS;
}

static int *small_attribute(CUmemoryPool pool, int which)
{
    static _Thread_local int always;
    (void)pool;
    always = 1; /* the three kinds of reuse are always allowed */
    return which >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES && which <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? &always : NULL;
}

SIM_EXPORTED CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value)
{
    ENTER();
    if (!valid(pool) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    int *small = small_attribute(pool, (int)which); /* enumerators are ints */
    if (small) {
        *(int *)value = *small;
        return CUDA_SUCCESS;
    }
    CUresult result = CUDA_SUCCESS;
    cuuint64_t *wide = value;
    sim_lock_driver();
    switch (which) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *wide = pool->threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *wide = pool->reserved; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *wide = pool->reserved_high; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *wide = pool->used; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *wide = pool->used_high; break;
    default: result = CUDA_ERROR_INVALID_VALUE;
    }
    sim_unlock_driver();
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value)
{
    ENTER();
    if (!valid(pool) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    if (small_attribute(pool, (int)which)) /* enumerators are ints */
        return CUDA_SUCCESS;
    cuuint64_t wide = *(const cuuint64_t *)value;
    CUresult result = CUDA_SUCCESS;
    sim_lock_driver();
    if (which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        pool->threshold = wide;
    else if (which == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH && wide == 0)
        pool->reserved_high = pool->reserved;
    else if (which == CU_MEMPOOL_ATTR_USED_MEM_HIGH && wide == 0)
        pool->used_high = pool->used;
    else
        result = CUDA_ERROR_INVALID_VALUE;
    sim_unlock_driver();
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    ENTER();
    return valid(pool) && (access || !count) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORTED CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
    ENTER();
    if (!flags || !valid(pool) || !location)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    *pool = default_pool((uint32_t)device); /* checked: not negative */
    sim_unlock_driver();
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = sim_pool_current((uint32_t)device); /* checked: not negative */
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    ENTER_DEVICE(device);
    if (!valid(pool) || pool->device != (uint32_t)device)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    sim_driver.current_pool[device] = pool;
    sim_unlock_driver();
    return CUDA_SUCCESS;
}

static CUresult located(const CUmemLocation *location, CUmemAllocationType type, int *device)
{
    if (!location || type != CU_MEM_ALLOCATION_TYPE_PINNED || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    *device = location->id;
    return *device >= 0 && (uint32_t)*device < sim_driver.device_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

SIM_EXPORTED CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    int device;
    ENTER();
    CUresult result = located(location, type, &device);
    return result == CUDA_SUCCESS ? cuDeviceGetDefaultMemPool(pool, device) : result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    int device;
    ENTER();
    CUresult result = located(location, type, &device);
    return result == CUDA_SUCCESS ? cuDeviceGetMemPool(pool, device) : result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    int device;
    ENTER();
    CUresult result = located(location, type, &device);
    return result == CUDA_SUCCESS ? cuDeviceSetMemPool(device, pool) : result;
}
