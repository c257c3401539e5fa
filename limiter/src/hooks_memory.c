/*
 * Device memory: reserved before the driver is asked, kept under the pointer
 * that it gave, given back after it was freed.
 */
#include "driver.h"
#include "memory.h"
#include "messages.h"
#include "pools.h"

#define PITCH_ALIGNMENT 512 /* a first guess; corrected by the driver's answer */

static uint64_t saturating_product(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t rounded_up(uint64_t value, uint64_t alignment)
{
    return value > UINT64_MAX - alignment ? UINT64_MAX : (value + alignment - 1) / alignment * alignment;
}

/* Reserve for the thread's device, call the driver, keep or give back. A size
 * that no card has is refused by the ledger before the driver sees it. */
#define ALLOCATE(size, call, pointer)                                                                                 \
    struct hv_reservation reservation;                                                                                \
    CUresult refused = hv_reserve_current(&reservation, size);                                                        \
    if (refused != CUDA_SUCCESS)                                                                                      \
        return refused;                                                                                               \
    CUresult result = call;                                                                                           \
    return hv_reservation_end(&reservation, result, HV_POINTER_MEMORY, result == CUDA_SUCCESS ? *pointer : 0)

#define FREE(kind, pointer, call)                                                                                     \
    struct hv_giveback giveback;                                                                                      \
    CUresult refused = hv_giveback_begin(&giveback, kind, pointer);                                                   \
    if (refused != CUDA_SUCCESS)                                                                                      \
        return refused;                                                                                               \
    return hv_giveback_end(&giveback, call)

/* ---- plain ---- */

HV_WRAP(cuMemAlloc, (CUdeviceptr_v1 * pointer, unsigned int bytes))
{
    ALLOCATE(bytes, HV_REAL(cuMemAlloc)(pointer, bytes), pointer);
}

HV_WRAP(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t bytes))
{
    ALLOCATE(bytes, HV_REAL(cuMemAlloc_v2)(pointer, bytes), pointer);
}

/* What has no record by design: a pool's memory, a graph's, and managed memory
 * where that does not count. Asked only where there is no record. */
static bool has_no_record(const struct hv_process *process, CUdeviceptr pointer)
{
    void *pool = NULL;
    unsigned int managed = 0;
    hv_call_type_cuPointerGetAttribute ask = HV_DRIVER(cuPointerGetAttribute);
    return pointer == 0 || ask == NULL || hv_load_relaxed_32(&process->had_graph_memory) != 0 ||
           (ask(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer) == CUDA_SUCCESS && pool != NULL) ||
           (ask(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, pointer) == CUDA_SUCCESS && managed != 0);
}

/* It came by a road that no wrapper sees: the daemon hears of the first, the
 * second, the fourth ... of a process. */
static void tell_unknown(struct hv_process *process)
{
    uint32_t count = hv_add_acq_rel_32(&process->unknown_frees, 1) + 1;
    if ((count & (count - 1)) == 0)
        hv_tell(HV_MESSAGE_UNKNOWN_POINTER,
                "freed memory that was never counted (%u times): another interface's, or taken past the limiter", count);
}

typedef int free_type(CUdeviceptr pointer);

static CUresult free_memory(CUdeviceptr pointer, free_type *driver_free)
{
    struct hv_giveback giveback;
    CUresult refused = hv_giveback_begin(&giveback, HV_POINTER_MEMORY, pointer);
    if (refused != CUDA_SUCCESS)
        return refused;
    bool unknown = giveback.process != NULL && !giveback.known && !has_no_record(giveback.process, pointer);
    CUresult result = hv_giveback_end(&giveback, driver_free(pointer));
    if (unknown && result == CUDA_SUCCESS)
        tell_unknown(giveback.process);
    return result;
}

HV_WRAP(cuMemFree, (CUdeviceptr_v1 pointer))
{
    FREE(HV_POINTER_MEMORY, pointer, HV_REAL(cuMemFree)(pointer));
}

HV_WRAP(cuMemFree_v2, (CUdeviceptr pointer))
{
    return free_memory(pointer, HV_REAL(cuMemFree_v2));
}

/* ---- rows at a pitch that the driver chooses ---- */

HV_WRAP(cuMemAllocPitch, (CUdeviceptr_v1 * pointer, unsigned int *pitch, unsigned int width, unsigned int height,
                          unsigned int element_bytes))
{
    struct hv_reservation reservation;
    CUresult refused = hv_reserve_current(&reservation, saturating_product(rounded_up(width, PITCH_ALIGNMENT), height));
    if (refused != CUDA_SUCCESS)
        return refused;
    CUresult result = HV_REAL(cuMemAllocPitch)(pointer, pitch, width, height, element_bytes);
    if (result == CUDA_SUCCESS)
        hv_reservation_correct(&reservation, (uint64_t)*pitch * height);
    return hv_reservation_end(&reservation, result, HV_POINTER_MEMORY, result == CUDA_SUCCESS ? *pointer : 0);
}

HV_WRAP(cuMemAllocPitch_v2,
        (CUdeviceptr * pointer, size_t *pitch, size_t width, size_t height, unsigned int element_bytes))
{
    struct hv_reservation reservation;
    CUresult refused = hv_reserve_current(&reservation, saturating_product(rounded_up(width, PITCH_ALIGNMENT), height));
    if (refused != CUDA_SUCCESS)
        return refused;
    CUresult result = HV_REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element_bytes);
    if (result == CUDA_SUCCESS)
        hv_reservation_correct(&reservation, saturating_product(*pitch, height));
    return hv_reservation_end(&reservation, result, HV_POINTER_MEMORY, result == CUDA_SUCCESS ? *pointer : 0);
}

/* ---- managed ---- */

static bool managed_counts(void)
{
    struct hv_device_terms terms;
    CUresult refused;
    CUdevice ordinal;
    CUresult result;
    struct hv_process *process = hv_limited_process(&refused);
    if (process == NULL || !hv_current_ordinal(&ordinal, &result))
        return true;
    uint32_t device = hv_process_device(process, ordinal);
    return !hv_terms_read(hv_files(), device, &terms) || (terms.flags & HV_DEVICE_MANAGED_UNCOUNTED) == 0;
}

HV_WRAP(cuMemAllocManaged, (CUdeviceptr * pointer, size_t bytes, unsigned int flags))
{
    if (!managed_counts())
        return HV_REAL(cuMemAllocManaged)(pointer, bytes, flags);
    ALLOCATE(bytes, HV_REAL(cuMemAllocManaged)(pointer, bytes, flags), pointer);
}

/* ---- in stream order ---- */

/* A pool's memory has no record: the pool tells what it holds. */
static CUresult freed_in_order(struct hv_giveback *giveback, CUresult result, CUstream stream, bool per_thread)
{
    if (result != CUDA_SUCCESS || giveback->process == NULL || !giveback->known)
        return hv_giveback_end(giveback, result);
    hv_pending_add(giveback->process, &giveback->record, stream, per_thread);
    return result;
}

HV_WRAP(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream))
{
    struct hv_giveback giveback;
    CUresult refused = hv_giveback_begin(&giveback, HV_POINTER_MEMORY, pointer);
    if (refused != CUDA_SUCCESS)
        return refused;
    return freed_in_order(&giveback, HV_REAL(cuMemFreeAsync)(pointer, stream), stream, false);
}

HV_WRAP(cuMemFreeAsync_ptsz, (CUdeviceptr pointer, CUstream stream))
{
    struct hv_giveback giveback;
    CUresult refused = hv_giveback_begin(&giveback, HV_POINTER_MEMORY, pointer);
    if (refused != CUDA_SUCCESS)
        return refused;
    return freed_in_order(&giveback, HV_REAL(cuMemFreeAsync_ptsz)(pointer, stream), stream, true);
}

/* A pool lies where its properties say: on a device, which need not be the
 * thread's, or in host memory. The bits of a pool's record: its device's
 * number; bytes 1: not device memory. */
static void remember_pool(CUmemoryPool pool, const CUmemPoolProps *properties)
{
    CUresult refused;
    struct hv_process *process = hv_limited_process(&refused);
    if (process == NULL || properties == NULL)
        return;
    const CUmemLocation *place = &properties->location;
    bool on_device = place->type == CU_MEM_LOCATION_TYPE_DEVICE && place->id >= 0 && place->id < HV_ORDINALS;
    if (!on_device &&
        (place->type < CU_MEM_LOCATION_TYPE_HOST || place->type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT))
        return; /* managed memory that lies nowhere yet: it counts on the thread's device */
    struct hv_pointer_record record = {.bytes = !on_device,
                                       .device = on_device ? (uint32_t)place->id : 0};
    /* Without room in the map its memory counts on the thread's device. */
    (void)hv_pointer_put(&process->pointers, HV_POINTER_POOL, (uint64_t)(uintptr_t)pool, hv_record_pack(&record));
}

HV_WRAP(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *properties))
{
    CUresult result = HV_REAL(cuMemPoolCreate)(pool, properties);
    if (result == CUDA_SUCCESS)
        remember_pool(*pool, properties);
    return result;
}

HV_WRAP(cuMemPoolDestroy, (CUmemoryPool pool))
{
    CUresult refused;
    uint64_t value;
    struct hv_process *process = hv_limited_process(&refused);
    if (process == NULL)
        return HV_REAL(cuMemPoolDestroy)(pool);
    if (hv_pool_is_ending(process, pool))
        return CUDA_ERROR_INVALID_VALUE; /* to the program it is gone */
    if (!hv_pointer_take(&process->pointers, HV_POINTER_POOL, (uint64_t)(uintptr_t)pool, &value)) { /* not made here */
        CUresult result = HV_REAL(cuMemPoolDestroy)(pool);
        if (result == CUDA_SUCCESS)
            hv_pool_destroyed(process, pool);
        return result;
    }
    if (hv_pool_stays(process, pool, (CUdevice)hv_record_unpack(value).device))
        return CUDA_SUCCESS;
    return HV_REAL(cuMemPoolDestroy)(pool);
}

HV_WRAP(cuMemPoolTrimTo, (CUmemoryPool pool, size_t bytes))
{
    CUresult result = HV_REAL(cuMemPoolTrimTo)(pool, bytes);
    struct hv_process *process = hv_attach_state() == HV_ATTACH_DONE ? hv_process() : NULL;
    if (result == CUDA_SUCCESS && process != NULL)
        for (uint32_t device = 0; device <= HV_POOL_ON_HOST; device++)
            hv_pools_refresh(process, device);
    return result;
}

/* What an allocation is from: a pool that lies on a device or not, or unknown. */
struct source {
    struct hv_process *process; /* NULL: not limited */
    struct hv_pool *pool;       /* NULL: its allocations count one by one */
    CUdevice ordinal;
    bool on_device;
};

static CUresult find_source(struct source *source, CUmemoryPool handle)
{
    CUresult refused;
    CUresult result;
    uint64_t value;
    *source = (struct source){.process = hv_limited_process(&refused), .on_device = true};
    if (source->process == NULL)
        return refused;
    if (handle != NULL &&
        hv_pointer_get(&source->process->pointers, HV_POINTER_POOL, (uint64_t)(uintptr_t)handle, &value)) {
        struct hv_pointer_record record = hv_record_unpack(value);
        source->ordinal = (CUdevice)record.device;
        source->on_device = record.bytes == 0;
    } else if (!hv_current_ordinal(&source->ordinal, &result)) {
        source->process = NULL; /* no context: for the driver to refuse */
        return CUDA_SUCCESS;
    }
    /* Without a handle it is the device's pool; a device's own pools were not made by the program. */
    hv_call_type_cuDeviceGetMemPool ask = HV_DRIVER(cuDeviceGetMemPool);
    if (handle == NULL && (ask == NULL || ask(&handle, source->ordinal) != CUDA_SUCCESS))
        return CUDA_SUCCESS;
    source->pool = hv_pool_of(source->process, handle,
                              source->on_device ? hv_process_device(source->process, source->ordinal) : HV_POOL_ON_HOST);
    return CUDA_SUCCESS;
}

static CUresult reserve_from(const struct source *source, struct hv_reservation *reservation, size_t bytes)
{
    *reservation = (struct hv_reservation){0};
    if (source->process == NULL)
        return CUDA_SUCCESS;
    uint64_t growth = hv_pool_reservation(source->pool, bytes);
    if (!source->on_device) /* without a pool that tells what it holds it could not be given back */
        return source->pool == NULL ? CUDA_SUCCESS : hv_reserve_host(reservation, growth);
    return hv_reserve_ordinal(reservation, source->ordinal, growth);
}

static CUresult allocated_from(const struct source *source, struct hv_reservation *reservation, CUresult result,
                               const CUdeviceptr *pointer)
{
    if (result != CUDA_SUCCESS || source->pool == NULL || reservation->process == NULL)
        return hv_reservation_end(reservation, result, HV_POINTER_MEMORY, result == CUDA_SUCCESS ? *pointer : 0);
    hv_pool_grown(source->pool, reservation, 0);
    return result;
}

#define ALLOCATE_FROM(pool, call)                                                                                     \
    struct source source;                                                                                             \
    struct hv_reservation reservation;                                                                                \
    CUresult refused = find_source(&source, pool);                                                                    \
    if (refused == CUDA_SUCCESS)                                                                                      \
        refused = reserve_from(&source, &reservation, bytes);                                                         \
    if (refused != CUDA_SUCCESS)                                                                                      \
        return refused;                                                                                               \
    return allocated_from(&source, &reservation, call, pointer)

HV_WRAP(cuMemAllocAsync, (CUdeviceptr * pointer, size_t bytes, CUstream stream))
{
    ALLOCATE_FROM(NULL, HV_REAL(cuMemAllocAsync)(pointer, bytes, stream));
}

HV_WRAP(cuMemAllocAsync_ptsz, (CUdeviceptr * pointer, size_t bytes, CUstream stream))
{
    ALLOCATE_FROM(NULL, HV_REAL(cuMemAllocAsync_ptsz)(pointer, bytes, stream));
}

HV_WRAP(cuMemAllocFromPoolAsync, (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream))
{
    ALLOCATE_FROM(pool, HV_REAL(cuMemAllocFromPoolAsync)(pointer, bytes, pool, stream));
}

HV_WRAP(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr * pointer, size_t bytes, CUmemoryPool pool, CUstream stream))
{
    ALLOCATE_FROM(pool, HV_REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, pool, stream));
}

/* ---- pinned host memory: a quota of its own, never device memory ---- */

#define ALLOCATE_HOST(size, call, address)                                                                            \
    struct hv_reservation reservation;                                                                                \
    CUresult refused = hv_reserve_host(&reservation, size);                                                           \
    if (refused != CUDA_SUCCESS)                                                                                      \
        return refused;                                                                                               \
    CUresult result = call;                                                                                           \
    return hv_reservation_end(&reservation, result, HV_POINTER_HOST,                                                  \
                              result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)(address) : 0)

HV_WRAP(cuMemAllocHost, (void **address, unsigned int bytes))
{
    ALLOCATE_HOST(bytes, HV_REAL(cuMemAllocHost)(address, bytes), *address);
}

HV_WRAP(cuMemAllocHost_v2, (void **address, size_t bytes))
{
    ALLOCATE_HOST(bytes, HV_REAL(cuMemAllocHost_v2)(address, bytes), *address);
}

HV_WRAP(cuMemHostAlloc, (void **address, size_t bytes, unsigned int flags))
{
    ALLOCATE_HOST(bytes, HV_REAL(cuMemHostAlloc)(address, bytes, flags), *address);
}

HV_WRAP(cuMemHostRegister, (void *address, size_t bytes, unsigned int flags))
{
    ALLOCATE_HOST(bytes, HV_REAL(cuMemHostRegister)(address, bytes, flags), address);
}

HV_WRAP(cuMemHostRegister_v2, (void *address, size_t bytes, unsigned int flags))
{
    ALLOCATE_HOST(bytes, HV_REAL(cuMemHostRegister_v2)(address, bytes, flags), address);
}

HV_WRAP(cuMemFreeHost, (void *address))
{
    FREE(HV_POINTER_HOST, (uint64_t)(uintptr_t)address, HV_REAL(cuMemFreeHost)(address));
}

HV_WRAP(cuMemHostUnregister, (void *address))
{
    FREE(HV_POINTER_HOST, (uint64_t)(uintptr_t)address, HV_REAL(cuMemHostUnregister)(address));
}
