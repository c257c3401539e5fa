/* Multicast objects: memory of several GPUs behind one address, where NVLink switches copy what is written there to all
 * of them. Only kernels use such addresses, and kernels compute nothing: here the object keeps its rules and
 * holds what is bound to it, and its address is memory of its own that nobody is charged for. */
#define _GNU_SOURCE
#include "vmm.h"

#include <errno.h>
#include <stdlib.h>

struct multicast_properties { unsigned devices; size_t size; unsigned long long handle_types, flags; }; /* CUmulticastObjectProp */

/* Hopper and newer, with links that end in a switch. */
int sim_multicast_supported(uint32_t gpu)
{
    const struct sim_gpu_info *info = &sim_here()->gpu[gpu].info;
    if (info->cc_major < 9 || sim_driver.on_instance)
        return 0;
    for (uint32_t i = 0; i < info->link_count; i++)
        if (info->links[i].present && info->links[i].active && info->links[i].remote_type == SIM_REMOTE_SWITCH)
            return 1;
    return 0;
}

static CUresult check(const struct multicast_properties *properties)
{
    uint32_t able = 0;
    for (uint32_t i = 0; i < sim_driver.device_count; i++)
        able += (uint32_t)sim_multicast_supported(sim_driver.gpu_of[i]); /* 0 or 1 */
    if (!able)
        return CUDA_ERROR_NOT_SUPPORTED;
    return properties && properties->size && properties->size % GRANULARITY == 0 && properties->devices && properties->devices <= able && !properties->flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMulticastGetGranularity(size_t *granularity, const struct multicast_properties *properties, unsigned option);
SIM_EXPORTED CUresult CUDAAPI cuMulticastGetGranularity(size_t *granularity, const struct multicast_properties *properties, unsigned option)
{
    ENTER();
    CUresult result = granularity && option <= 1 ? check(properties) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *granularity = GRANULARITY;
    return result;
}

CUresult CUDAAPI cuMulticastCreate(CUmemGenericAllocationHandle *out, const struct multicast_properties *properties);
SIM_EXPORTED CUresult CUDAAPI cuMulticastCreate(CUmemGenericAllocationHandle *out, const struct multicast_properties *properties)
{
    ENTER();
    CUresult result = out ? check(properties) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    struct vmm_handle *handle = calloc(1, sizeof *handle);
    if (!handle)
        return CUDA_ERROR_OUT_OF_MEMORY;
    handle->size = properties->size;
    handle->references = 1;
    handle->multicast = properties->devices;
    handle->gpu = sim_driver.gpu_of[0];
    handle->props = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = (CUmemAllocationHandleType)properties->handle_types}; /* the same bits */
    sim_lock_driver();
    int saved = errno, given = sim_vmm_give_bytes(handle);
    errno = saved;
    if (given) {
        handle->number = sim_driver.next_id++;
        handle->next = sim_driver.vmm_handles;
        sim_driver.vmm_handles = handle;
        *out = handle->number;
    }
    sim_unlock_driver();
    if (!given)
        free(handle);
    return given ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* Driver lock held. */
static struct vmm_handle *object(CUmemGenericAllocationHandle number)
{
    struct vmm_handle *handle = sim_vmm_find(number);
    return handle && handle->multicast ? handle : NULL;
}

static uint32_t members(const struct vmm_handle *handle) { return (uint32_t)__builtin_popcount(handle->members); /* not negative */ }

CUresult CUDAAPI cuMulticastAddDevice(CUmemGenericAllocationHandle number, CUdevice device);
SIM_EXPORTED CUresult CUDAAPI cuMulticastAddDevice(CUmemGenericAllocationHandle number, CUdevice device)
{
    ENTER_DEVICE(device);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    struct vmm_handle *handle = object(number);
    if (handle && sim_multicast_supported(sim_driver.gpu_of[device]) && !(handle->members & 1u << device) && members(handle) < handle->multicast) {
        handle->members |= 1u << device;
        result = CUDA_SUCCESS;
    }
    sim_unlock_driver();
    return result;
}

/* Memory is bound once all devices have been added, and is held by the object from then on. Driver lock held. */
static CUresult bind(CUmemGenericAllocationHandle number, size_t offset, struct vmm_handle *memory, size_t memory_offset, size_t size)
{
    struct vmm_handle *handle = object(number);
    if (!handle || !memory || memory->multicast || !size || size % GRANULARITY || offset % GRANULARITY || memory_offset % GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > handle->size || offset > handle->size - size || size > memory->size || memory_offset > memory->size - size)
        return CUDA_ERROR_INVALID_VALUE;
    if (members(handle) < handle->multicast)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (!(handle->members & 1u << memory->device))
        return CUDA_ERROR_INVALID_DEVICE;
    struct vmm_binding *binding = malloc(sizeof *binding);
    if (!binding)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *binding = (struct vmm_binding){.memory = memory, .offset = offset, .size = size, .next = handle->bound};
    handle->bound = binding;
    memory->mappings++;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle number, size_t offset, CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size, unsigned long long flags);
SIM_EXPORTED CUresult CUDAAPI cuMulticastBindMem(CUmemGenericAllocationHandle number, size_t offset, CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size, unsigned long long flags)
{
    ENTER();
    sim_lock_driver();
    CUresult result = flags ? CUDA_ERROR_INVALID_VALUE : bind(number, offset, sim_vmm_find(memory), memory_offset, size);
    sim_unlock_driver();
    return result;
}

CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle number, size_t offset, CUdeviceptr address, size_t size, unsigned long long flags);
SIM_EXPORTED CUresult CUDAAPI cuMulticastBindAddr(CUmemGenericAllocationHandle number, size_t offset, CUdeviceptr address, size_t size, unsigned long long flags)
{
    ENTER();
    sim_lock_driver();
    const struct memory *memory = sim_memory_find(address);
    CUresult result = flags || !memory || memory->kind != MEMORY_MAPPED || size > memory->size - (address - memory->start)
                          ? CUDA_ERROR_INVALID_VALUE : bind(number, offset, memory->handle, 0, size);
    sim_unlock_driver();
    return result;
}

/* What was bound for the device inside the range. Driver lock held. */
static CUresult unbind(struct vmm_handle *handle, uint32_t device, uint64_t offset, uint64_t size)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    for (struct vmm_binding **link = &handle->bound; *link;) {
        struct vmm_binding *binding = *link;
        if (binding->memory->device != device || binding->offset < offset || binding->offset - offset > size || size - (binding->offset - offset) < binding->size) {
            link = &binding->next;
            continue;
        }
        *link = binding->next;
        binding->memory->mappings--;
        sim_vmm_drop_if_unused(binding->memory);
        free(binding);
        result = CUDA_SUCCESS;
    }
    return result;
}

CUresult CUDAAPI cuMulticastUnbind(CUmemGenericAllocationHandle number, CUdevice device, size_t offset, size_t size);
SIM_EXPORTED CUresult CUDAAPI cuMulticastUnbind(CUmemGenericAllocationHandle number, CUdevice device, size_t offset, size_t size)
{
    ENTER_DEVICE(device);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    struct vmm_handle *handle = object(number);
    if (handle && handle->members & 1u << device && size && offset % GRANULARITY == 0 && size % GRANULARITY == 0)
        result = unbind(handle, (uint32_t)device, offset, size); /* checked: not negative */
    sim_unlock_driver();
    return result;
}
