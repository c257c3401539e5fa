/*
 * Physical memory for fake_driver.c, as real drivers hold it: until no handle,
 * no mapping and no binding refers to it. What is held is fake_used.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "cuda_abi.h"

#define EXPORT __attribute__((visibility("default")))
#define THINGS 64

extern uint64_t fake_used;

static struct {
    uint64_t bytes;
    int references;
} handles[THINGS]; /* by their numbers */

static struct {
    uint64_t object, place, handle; /* a mapping's object is its address */
} references[THINGS];

void fake_object_is_gone(uint64_t object);

static int make(CUmemGenericAllocationHandle *handle, uint64_t bytes)
{
    for (uint64_t number = 1; number < THINGS; number++) {
        if (handles[number].references != 0)
            continue;
        handles[number].bytes = bytes;
        handles[number].references = 1;
        fake_used += bytes;
        *handle = number;
        return 0;
    }
    return 2;
}

static int let_go(uint64_t handle)
{
    if (handle == 0 || handle >= THINGS || handles[handle].references == 0)
        return 1;
    if (--handles[handle].references == 0) {
        fake_used -= handles[handle].bytes;
        fake_object_is_gone(handle);
    }
    return 0;
}

static int refer(uint64_t object, uint64_t place, uint64_t handle)
{
    if (handle == 0 || handle >= THINGS || handles[handle].references == 0)
        return 1;
    int i = 0;
    while (references[i].object != 0)
        i++;
    references[i].object = object;
    references[i].place = place;
    references[i].handle = handle;
    handles[handle].references++;
    return 0;
}

static void unrefer(uint64_t object, uint64_t from, uint64_t to)
{
    for (int i = 0; i < THINGS; i++) {
        uint64_t handle = references[i].handle;
        if (references[i].object != object || references[i].place < from || references[i].place >= to)
            continue;
        memset(&references[i], 0, sizeof references[i]);
        (void)let_go(handle);
    }
}

void fake_object_is_gone(uint64_t object)
{
    unrefer(object, 0, UINT64_MAX);
}

EXPORT int cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                       unsigned long long flags)
{
    (void)properties, (void)flags;
    return make(handle, bytes);
}

EXPORT int cuMemRelease(CUmemGenericAllocationHandle handle)
{
    return let_go(handle);
}

EXPORT int cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags)
{
    (void)bytes, (void)offset, (void)flags;
    return refer(address, 0, handle);
}

EXPORT int cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    (void)bytes;
    unrefer(address, 0, 1);
    return 0;
}

EXPORT int cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    for (int i = 0; i < THINGS; i++) {
        if (references[i].object != (uint64_t)(uintptr_t)address)
            continue;
        *handle = references[i].handle;
        handles[*handle].references++;
        return 0;
    }
    return 1;
}

EXPORT int cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int type)
{
    (void)shared, (void)type;
    return make(handle, 0); /* another process's: its bytes are there already */
}

EXPORT int cuMulticastCreate(CUmemGenericAllocationHandle *handle, const void *properties)
{
    (void)properties;
    return make(handle, 0);
}

EXPORT int cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle memory,
                              size_t memory_offset, size_t bytes, unsigned long long flags)
{
    (void)memory_offset, (void)bytes, (void)flags;
    return refer(object, offset, memory);
}

EXPORT int cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address, size_t bytes,
                               unsigned long long flags)
{
    CUmemGenericAllocationHandle handle;
    (void)bytes, (void)flags;
    if (cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address) != 0)
        return 1;
    int result = refer(object, offset, handle);
    (void)let_go(handle);
    return result;
}

EXPORT int cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t bytes)
{
    (void)device;
    unrefer(object, offset, offset + bytes);
    return 0;
}

#define ENDPOINT (UINT64_C(1) << 40) /* numbers of their own */

EXPORT int cuLogicalEndpointBindMem(CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset,
                                    CUmemGenericAllocationHandle memory, uint64_t memory_offset, uint64_t bytes,
                                    unsigned long long flags)
{
    (void)device, (void)memory_offset, (void)bytes, (void)flags;
    return refer(endpoint | ENDPOINT, offset, memory);
}

EXPORT int cuLogicalEndpointBindAddr(CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset, void *address,
                                     uint64_t bytes, unsigned long long flags)
{
    (void)device;
    return cuMulticastBindAddr(endpoint | ENDPOINT, offset, (CUdeviceptr)(uintptr_t)address, bytes, flags);
}

EXPORT int cuLogicalEndpointUnbind(CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset, uint64_t bytes)
{
    (void)device;
    unrefer(endpoint | ENDPOINT, offset, offset + bytes);
    return 0;
}

EXPORT int cuLogicalEndpointDestroy(CUlogicalEndpointId endpoint)
{
    fake_object_is_gone(endpoint | ENDPOINT);
    return 0;
}

EXPORT int cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
    (void)stream;
    for (unsigned int i = 0; i < count; i++) {
        uint64_t array = (uint64_t)(uintptr_t)list[i].resource.array;
        uint64_t place = list[i].subresource.sparseLevel.offsetX;
        unrefer(array, place, place + 1);
        if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP && refer(array, place, list[i].memHandle.memHandle) != 0)
            return 1;
    }
    return 0;
}
