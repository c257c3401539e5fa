/*
 * What physical memory can be bound to: multicast objects, which write to the
 * memory of several devices at once, logical endpoints, by which a fabric's
 * other nodes reach it, and sparse arrays, which take nothing by themselves. A multicast handle is known as physical memory of no bytes, so
 * that its references are counted like those of any other.
 */
#include "bindings.h"
#include "driver.h"
#include "memory.h"

static struct hv_process *limited(void)
{
    CUresult refused;
    return hv_limited_process(&refused);
}

/* ---- multicast ---- */

HV_WRAP(cuMulticastCreate, (CUmemGenericAllocationHandle * handle, const void *properties))
{
    CUresult result = HV_REAL(cuMulticastCreate)(handle, properties);
    struct hv_process *process = limited();
    struct hv_pointer_record nothing = {.references = 1};
    if (result == CUDA_SUCCESS && process != NULL) /* without room what is bound stays accounted */
        (void)hv_pointer_put(&process->pointers, HV_POINTER_PHYSICAL, *handle, hv_record_pack(&nothing));
    return result;
}

/* The device by the memory: it is bound for the one that it lies on. */
static CUresult bound(CUresult result, uint64_t object, uint64_t offset, CUmemGenericAllocationHandle handle)
{
    struct hv_process *process = limited();
    uint64_t value;
    if (result != CUDA_SUCCESS || process == NULL ||
        !hv_pointer_get(&process->pointers, HV_POINTER_PHYSICAL, handle, &value))
        return result; /* not found: imported, the owner pays */
    struct hv_binding binding = {
        .object = object, .place = offset, .handle = handle, .device = hv_record_unpack(value).device};
    hv_binding_made(process, &binding);
    return result;
}

HV_WRAP(cuMulticastBindMem, (CUmemGenericAllocationHandle object, size_t offset, CUmemGenericAllocationHandle memory,
                             size_t memory_offset, size_t bytes, unsigned long long flags))
{
    return bound(HV_REAL(cuMulticastBindMem)(object, offset, memory, memory_offset, bytes, flags), object, offset,
                 memory);
}

HV_WRAP(cuMulticastBindMem_v2,
        (CUmemGenericAllocationHandle object, CUdevice device, size_t offset, CUmemGenericAllocationHandle memory,
         size_t memory_offset, size_t bytes, unsigned long long flags))
{
    return bound(HV_REAL(cuMulticastBindMem_v2)(object, device, offset, memory, memory_offset, bytes, flags), object,
                 offset, memory);
}

/* The wrappers of these, for the type of the driver's functions. */
int hv_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
int hv_cuMemRelease(CUmemGenericAllocationHandle handle);

/* The address is that of a mapping, or inside one; only its start is known here. */
static CUresult bound_address(CUresult result, uint64_t object, uint64_t offset, CUdeviceptr address)
{
    struct hv_process *process = result == CUDA_SUCCESS ? limited() : NULL;
    CUmemGenericAllocationHandle handle;
    /* The driver's own answer, with a reference that is given back at once. */
    if (process == NULL || HV_REAL(cuMemRetainAllocationHandle)(&handle, (void *)(uintptr_t)address) != CUDA_SUCCESS)
        return result;
    (void)bound(result, object, offset, handle);
    (void)HV_REAL(cuMemRelease)(handle);
    return result;
}

HV_WRAP(cuMulticastBindAddr,
        (CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address, size_t bytes, unsigned long long flags))
{
    return bound_address(HV_REAL(cuMulticastBindAddr)(object, offset, address, bytes, flags), object, offset, address);
}

HV_WRAP(cuMulticastBindAddr_v2, (CUmemGenericAllocationHandle object, CUdevice device, size_t offset,
                                 CUdeviceptr address, size_t bytes, unsigned long long flags))
{
    return bound_address(HV_REAL(cuMulticastBindAddr_v2)(object, device, offset, address, bytes, flags), object, offset,
                         address);
}

static CUresult unbound(CUresult result, uint64_t object, CUdevice device, uint64_t offset, uint64_t bytes)
{
    struct hv_process *process = limited();
    if (result != CUDA_SUCCESS || process == NULL)
        return result;
    uint32_t index = hv_process_device(process, device);
    struct hv_unbinding unbinding = {.object = object, .from = offset, .to = offset + bytes, .device = index};
    if (index < HV_MAX_DEVICES)
        hv_binding_ended(process, &unbinding);
    return result;
}

HV_WRAP(cuMulticastUnbind, (CUmemGenericAllocationHandle object, CUdevice device, size_t offset, size_t bytes))
{
    return unbound(HV_REAL(cuMulticastUnbind)(object, device, offset, bytes), object, device, offset, bytes);
}

/* ---- logical endpoints ---- */

HV_WRAP(cuLogicalEndpointBindMem,
        (CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset, CUmemGenericAllocationHandle memory,
         uint64_t memory_offset, uint64_t bytes, unsigned long long flags))
{
    return bound(HV_REAL(cuLogicalEndpointBindMem)(endpoint, device, offset, memory, memory_offset, bytes, flags),
                 hv_object_of_endpoint(endpoint), offset, memory);
}

HV_WRAP(cuLogicalEndpointBindAddr, (CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset, void *address,
                                    uint64_t bytes, unsigned long long flags))
{
    return bound_address(HV_REAL(cuLogicalEndpointBindAddr)(endpoint, device, offset, address, bytes, flags),
                         hv_object_of_endpoint(endpoint), offset, (CUdeviceptr)(uintptr_t)address);
}

HV_WRAP(cuLogicalEndpointUnbind, (CUlogicalEndpointId endpoint, CUdevice device, uint64_t offset, uint64_t bytes))
{
    return unbound(HV_REAL(cuLogicalEndpointUnbind)(endpoint, device, offset, bytes), hv_object_of_endpoint(endpoint),
                   device, offset, bytes);
}

/* What this process bound is unbound, whoever else has the endpoint. */
HV_WRAP(cuLogicalEndpointDestroy, (CUlogicalEndpointId endpoint))
{
    CUresult result = HV_REAL(cuLogicalEndpointDestroy)(endpoint);
    struct hv_process *process = limited();
    if (result == CUDA_SUCCESS && process != NULL)
        hv_bindings_of_object_ended(process, hv_object_of_endpoint(endpoint));
    return result;
}

/* ---- sparse arrays ---- */

static uint64_t mixed(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15); /* 2^64 over the golden ratio */
    return hash ^ hash >> 29;
}

/* Which part of the array is meant. Two parts that fall together would be
 * counted for longer than they are held. */
static uint64_t part_of_array(const CUarrayMapInfo *info)
{
    uint64_t hash = (uint64_t)info->subresourceType;
    if (info->subresourceType != CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL)
        return mixed(mixed(hash, info->subresource.miptail.layer), info->subresource.miptail.offset) >> 1;
    hash = mixed(mixed(hash, info->subresource.sparseLevel.level), info->subresource.sparseLevel.layer);
    hash = mixed(mixed(hash, info->subresource.sparseLevel.offsetX), info->subresource.sparseLevel.offsetY);
    return mixed(hash, info->subresource.sparseLevel.offsetZ) >> 1; /* so that there is a place behind each */
}

/* What was mapped into that part before is no longer, and what is mapped now is held. */
static void array_was_mapped(struct hv_process *process, const CUarrayMapInfo *info, CUstream stream, bool per_thread)
{
    uint64_t array = (uint64_t)(uintptr_t)info->resource.array; /* both handles of the union are pointers */
    uint64_t part = part_of_array(info);
    uint64_t value;
    struct hv_unbinding before = {.object = array,
                                  .from = part,
                                  .to = part + 1,
                                  .device = HV_MAX_DEVICES,
                                  .in_order = true,
                                  .per_thread = per_thread,
                                  .stream = stream};
    hv_binding_ended(process, &before);
    if (info->memOperationType != CU_MEM_OPERATION_TYPE_MAP ||
        !hv_pointer_get(&process->pointers, HV_POINTER_PHYSICAL, info->memHandle.memHandle, &value))
        return;
    struct hv_binding binding = {.object = array,
                                 .place = part,
                                 .handle = info->memHandle.memHandle,
                                 .device = hv_record_unpack(value).device};
    hv_binding_made(process, &binding);
}

static CUresult arrays_were_mapped(CUresult result, const CUarrayMapInfo *list, unsigned int count, CUstream stream,
                                   bool per_thread)
{
    struct hv_process *process = result == CUDA_SUCCESS ? limited() : NULL;
    for (unsigned int i = 0; process != NULL && i < count; i++)
        array_was_mapped(process, &list[i], stream, per_thread);
    return result;
}

HV_WRAP(cuMemMapArrayAsync, (CUarrayMapInfo * list, unsigned int count, CUstream stream))
{
    return arrays_were_mapped(HV_REAL(cuMemMapArrayAsync)(list, count, stream), list, count, stream, false);
}

HV_WRAP(cuMemMapArrayAsync_ptsz, (CUarrayMapInfo * list, unsigned int count, CUstream stream))
{
    return arrays_were_mapped(HV_REAL(cuMemMapArrayAsync_ptsz)(list, count, stream), list, count, stream, true);
}
