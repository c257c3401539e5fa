/* Where managed memory should live. It is ordinary memory of the process, so nothing moves; what was said is kept, for
 * the whole allocation, and given back. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>

enum { ADVICE_READ_MOSTLY = 1, ADVICE_NOT_READ_MOSTLY = 2, ADVICE_PREFER = 3, ADVICE_NO_PREFERENCE = 4, ADVICE_ACCESSED = 5, ADVICE_NOT_ACCESSED = 6 };
enum { ASK_READ_MOSTLY = 1, ASK_PREFERRED = 2, ASK_ACCESSED_BY = 3, ASK_PREFETCHED = 4, ASK_PREFERRED_TYPE = 5, ASK_PREFERRED_ID = 6, ASK_PREFETCHED_TYPE = 7, ASK_PREFETCHED_ID = 8 };
#define DEVICE_CPU (-1)
#define DEVICE_INVALID (-2)
#define LOCATION_HOST_NUMA_CURRENT 4u
#define HOST_BIT (1u << 31)

static int managed_in(const struct memory *memory, CUdeviceptr address, size_t bytes)
{
    return memory && memory->kind == MEMORY_MANAGED && bytes && bytes <= memory->size - (address - memory->start);
}

static int is_place(CUmemLocation place)
{
    if (place.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return place.id >= 0 && (uint32_t)place.id < sim_driver.device_count; /* not negative */
    return place.type != CU_MEM_LOCATION_TYPE_INVALID && (unsigned)place.type <= LOCATION_HOST_NUMA_CURRENT;
}

/* The first interface knows a device's number, or -1 for the host. */
static CUmemLocation of_device(CUdevice device)
{
    return device == DEVICE_CPU ? (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0} : (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
}

static int device_of(CUmemLocation place)
{
    return place.type == CU_MEM_LOCATION_TYPE_INVALID ? DEVICE_INVALID : place.type == CU_MEM_LOCATION_TYPE_DEVICE ? place.id : DEVICE_CPU;
}

static CUresult advise(CUdeviceptr address, size_t bytes, unsigned what, CUmemLocation place)
{
    int needs_place = what == ADVICE_PREFER || what == ADVICE_ACCESSED || what == ADVICE_NOT_ACCESSED;
    if (what < ADVICE_READ_MOSTLY || what > ADVICE_NOT_ACCESSED)
        return CUDA_ERROR_INVALID_VALUE;
    if (needs_place && !is_place(place))
        return CUDA_ERROR_INVALID_DEVICE;
    uint32_t bit = place.type == CU_MEM_LOCATION_TYPE_DEVICE ? 1u << (place.id & 15) : HOST_BIT; /* a device's number is below SIM_MAX_GPUS */
    sim_lock_driver();
    struct memory *memory = sim_memory_find(address);
    CUresult result = managed_in(memory, address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct managed_advice *advice = &memory->advice;
        switch (what) {
        case ADVICE_READ_MOSTLY: advice->read_mostly = 1; break;
        case ADVICE_NOT_READ_MOSTLY: advice->read_mostly = 0; break;
        case ADVICE_PREFER: advice->preferred = place; break;
        case ADVICE_NO_PREFERENCE: advice->preferred = (CUmemLocation){CU_MEM_LOCATION_TYPE_INVALID, 0}; break;
        case ADVICE_ACCESSED: advice->accessed_by |= bit; break;
        default: advice->accessed_by &= ~bit;
        }
    }
    sim_unlock_driver();
    return result;
}
SIM_EXPORTED CUresult CUDAAPI cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise what, CUdevice device) { ENTER(); return advise(address, bytes, what, of_device(device)); }
SIM_EXPORTED CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise what, CUmemLocation location) { ENTER(); return advise(address, bytes, what, location); }

static CUresult prefetch(CUdeviceptr address, size_t bytes, CUmemLocation place)
{
    if (!is_place(place))
        return CUDA_ERROR_INVALID_DEVICE;
    sim_lock_driver();
    struct memory *memory = sim_memory_find(address);
    CUresult result = managed_in(memory, address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        memory->advice.prefetched = place;
    sim_unlock_driver();
    return result;
}

static CUresult prefetch_on(const char *call, int per_thread, CUdeviceptr address, size_t bytes, CUmemLocation place, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    return result == CUDA_SUCCESS ? prefetch(address, bytes, place) : result;
}
static CUresult prefetch_1(const char *call, int per_thread, CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) { return prefetch_on(call, per_thread, address, bytes, of_device(device), stream); }
DEFINE_TWINS(cuMemPrefetchAsync, _ptsz, prefetch_1, (CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream), address, bytes, device, stream)
static CUresult prefetch_2(const char *call, int per_thread, CUdeviceptr address, size_t bytes, CUmemLocation place, unsigned flags, CUstream stream) { return flags ? CUDA_ERROR_INVALID_VALUE : prefetch_on(call, per_thread, address, bytes, place, stream); }
DEFINE_TWINS(cuMemPrefetchAsync_v2, _ptsz, prefetch_2, (CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags, CUstream stream), address, bytes, location, flags, stream)

/* ---- many ranges at once ---- */

/* A discarded range may hold anything: here it keeps what it held. */
static CUresult check_ranges(const CUdeviceptr *addresses, const size_t *sizes, size_t count)
{
    CUresult result = addresses && sizes && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        if (!managed_in(sim_memory_find(addresses[i]), addresses[i], sizes[i]))
            result = CUDA_ERROR_INVALID_VALUE;
    sim_unlock_driver();
    return result;
}

static CUresult discard_list(const char *call, int per_thread, CUdeviceptr *addresses, size_t *sizes, size_t count, unsigned long long flags, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    return flags ? CUDA_ERROR_INVALID_VALUE : check_ranges(addresses, sizes, count);
}
DEFINE_TWINS(cuMemDiscardBatchAsync, _ptsz, discard_list, (CUdeviceptr *addresses, size_t *sizes, size_t count, unsigned long long flags, CUstream stream), addresses, sizes, count, flags, stream)

/* Place n is that of the ranges from starts[n] on, up to where the next one begins. */
static CUresult prefetch_list(const char *call, int per_thread, CUdeviceptr *addresses, size_t *sizes, size_t count, CUmemLocation *places, size_t *starts, size_t number, unsigned long long flags, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!places || !starts || !number || number > count || starts[0] != 0 || flags)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < number; i++)
        if (!is_place(places[i]) || starts[i] >= count || (i && starts[i] <= starts[i - 1]))
            return CUDA_ERROR_INVALID_VALUE;
    result = check_ranges(addresses, sizes, count);
    for (size_t i = 0, place = 0; i < count && result == CUDA_SUCCESS; i++) {
        while (place + 1 < number && starts[place + 1] <= i)
            place++;
        result = prefetch(addresses[i], sizes[i], places[place]);
    }
    return result;
}
#define LIST_PARAMETERS (CUdeviceptr *addresses, size_t *sizes, size_t count, CUmemLocation *places, size_t *starts, size_t number, unsigned long long flags, CUstream stream)
DEFINE_TWINS(cuMemPrefetchBatchAsync, _ptsz, prefetch_list, LIST_PARAMETERS, addresses, sizes, count, places, starts, number, flags, stream)
DEFINE_TWINS(cuMemDiscardAndPrefetchBatchAsync, _ptsz, prefetch_list, LIST_PARAMETERS, addresses, sizes, count, places, starts, number, flags, stream)

/* ---- what was said ---- */

static CUresult accessed_by(const struct managed_advice *advice, int *out, size_t room)
{
    size_t at = 0;
    for (uint32_t device = 0; device < sim_driver.device_count && at < room; device++)
        if (advice->accessed_by & 1u << device)
            out[at++] = (int)device; /* below SIM_MAX_GPUS */
    if (advice->accessed_by & HOST_BIT && at < room)
        out[at++] = DEVICE_CPU;
    while (at < room)
        out[at++] = DEVICE_INVALID;
    return CUDA_SUCCESS;
}

static CUresult range_attribute(void *out, size_t size, unsigned which, CUdeviceptr address, size_t bytes)
{
    const struct memory *memory = sim_memory_find(address);
    if (!out || !size || size % sizeof(int) || (which != ASK_ACCESSED_BY && size != sizeof(int)) || !managed_in(memory, address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    const struct managed_advice *advice = &memory->advice;
    int *value = out;
    switch (which) {
    case ASK_READ_MOSTLY: *value = advice->read_mostly != 0; break;
    case ASK_PREFERRED: *value = device_of(advice->preferred); break;
    case ASK_ACCESSED_BY: return accessed_by(advice, value, size / sizeof(int));
    case ASK_PREFETCHED: *value = device_of(advice->prefetched); break;
    case ASK_PREFERRED_TYPE: *value = (int)advice->preferred.type; break; /* a small enumerator */
    case ASK_PREFERRED_ID: *value = advice->preferred.id; break;
    case ASK_PREFETCHED_TYPE: *value = (int)advice->prefetched.type; break; /* likewise */
    case ASK_PREFETCHED_ID: *value = advice->prefetched.id; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRangeGetAttribute(void *out, size_t size, unsigned which, CUdeviceptr address, size_t bytes);
SIM_EXPORTED CUresult CUDAAPI cuMemRangeGetAttribute(void *out, size_t size, unsigned which, CUdeviceptr address, size_t bytes)
{
    ENTER();
    sim_lock_driver();
    CUresult result = range_attribute(out, size, which, address, bytes);
    sim_unlock_driver();
    return result;
}

CUresult CUDAAPI cuMemRangeGetAttributes(void **out, size_t *sizes, unsigned *which, size_t count, CUdeviceptr address, size_t bytes);
SIM_EXPORTED CUresult CUDAAPI cuMemRangeGetAttributes(void **out, size_t *sizes, unsigned *which, size_t count, CUdeviceptr address, size_t bytes)
{
    ENTER();
    CUresult result = out && sizes && which && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = range_attribute(out[i], sizes[i], which[i], address, bytes);
    sim_unlock_driver();
    return result;
}
