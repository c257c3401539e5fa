/* Host memory: real, pinned in name only, and never charged to a GPU. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

/* Device addresses are ordinary addresses of this process: the two integer types have the same width. */
static void *pointer_of(uint64_t address) { return (void *)(uintptr_t)address; }
static uint64_t address_of(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

static CUresult allocate_host(void **out, size_t bytes, unsigned flags)
{
    CUcontext context = sim_current_context();
    struct memory *memory;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_memory_new(context, context->gpu, context->device, bytes, MEMORY_HOST, 0, &memory);
    if (result == CUDA_SUCCESS) {
        memory->host_flags = flags;
        *out = pointer_of(memory->start);
    }
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemAllocHost_v2(void **pointer, size_t bytes)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return allocate_host(pointer, bytes, 0);
}

SIM_EXPORTED CUresult CUDAAPI cuMemAllocHost(void **pointer, unsigned int bytes)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return allocate_host(pointer, bytes, 0);
}

SIM_EXPORTED CUresult CUDAAPI cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return flags & ~7u ? CUDA_ERROR_INVALID_VALUE : allocate_host(pointer, bytes, flags);
}

static CUresult forget_host(const void *pointer, uint32_t kind, CUresult missing)
{
    sim_lock_driver();
    struct memory *memory = sim_memory_find(address_of(pointer));
    CUresult result = memory && memory->kind == kind && memory->start == address_of(pointer) ? CUDA_SUCCESS : missing;
    if (result == CUDA_SUCCESS)
        sim_memory_delete(memory, 0);
    sim_unlock_driver();
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemFreeHost(void *pointer)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return pointer ? forget_host(pointer, MEMORY_HOST, CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!pointer || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct memory *memory = calloc(1, sizeof *memory);
    if (!memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = (struct memory){.start = address_of(pointer), .size = bytes, .kind = MEMORY_REGISTERED, .gpu = context->gpu,
                              .device = context->device, .host_flags = flags, .context = context};
    sim_lock_driver();
    const struct memory *next = sim_memory_next(memory->start);
    CUresult result = next && next->start < memory->start + bytes ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        memory->id = sim_driver.next_id++;
        sim_memory_insert(memory);
    }
    sim_unlock_driver();
    if (result != CUDA_SUCCESS)
        free(memory);
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemHostRegister(void *pointer, size_t bytes, unsigned int flags) { return cuMemHostRegister_v2(pointer, bytes, flags); }

SIM_EXPORTED CUresult CUDAAPI cuMemHostUnregister(void *pointer)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return forget_host(pointer, MEMORY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

SIM_EXPORTED CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *pointer, unsigned int flags)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!address || flags)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    const struct memory *memory = sim_memory_find(address_of(pointer));
    sim_unlock_driver();
    if (!memory || (memory->kind != MEMORY_HOST && memory->kind != MEMORY_REGISTERED))
        return CUDA_ERROR_INVALID_VALUE;
    *address = address_of(pointer);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuMemHostGetFlags(unsigned int *flags, void *pointer)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    sim_lock_driver();
    const struct memory *memory = sim_memory_find(address_of(pointer));
    CUresult result = flags && memory && memory->kind == MEMORY_HOST ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *flags = memory->host_flags;
    sim_unlock_driver();
    return result;
}
