/* Questions about pointers. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>

/* Device addresses are ordinary addresses of this process: the two integer types have the same width. */
static void *pointer_of(uint64_t address) { return (void *)(uintptr_t)address; }

static CUresult pointer_attribute(void *out, int which, CUdeviceptr address)
{
    const struct memory *memory = sim_memory_find(address);
    if (!memory)
        return CUDA_ERROR_INVALID_VALUE;
    int host = memory->kind == MEMORY_HOST || memory->kind == MEMORY_REGISTERED;
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)out = memory->context; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)out = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)out = address; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!host && memory->kind != MEMORY_MANAGED)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)out = pointer_of(address);
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(int *)out = memory->sync_memops != 0; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)out = memory->id; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(int *)out = memory->kind == MEMORY_MANAGED; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = (int)memory->device; break; /* small */
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)out = memory->kind == MEMORY_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = memory->start; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = memory->size; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(int *)out = memory->kind != MEMORY_RESERVED; break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)out = memory->pool; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuPointerGetAttribute(void *out, CUpointer_attribute which, CUdeviceptr address)
{
    ENTER();
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    CUresult result = pointer_attribute(out, (int)which, address); /* enumerators are ints */
    sim_unlock_driver();
    return result;
}

/* Unlike the single question, unknown pointers are no error here: their answers are zero. */
SIM_EXPORTED CUresult CUDAAPI cuPointerGetAttributes(unsigned int count, CUpointer_attribute *which, void **out, CUdeviceptr address)
{
    ENTER();
    if (!which || !out)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    for (unsigned i = 0; i < count; i++) {
        static const size_t four = 4;
        if (pointer_attribute(out[i], (int)which[i], address) != CUDA_SUCCESS) {
            int narrow = which[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || which[i] == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
                         which[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED || which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ||
                         which[i] == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE || which[i] == CU_POINTER_ATTRIBUTE_MAPPED;
            memset(out[i], which[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? 0xff : 0, narrow ? four : sizeof(uint64_t));
        }
    }
    sim_unlock_driver();
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuPointerSetAttribute(const void *value, CUpointer_attribute which, CUdeviceptr address)
{
    ENTER();
    if (!value || which != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    struct memory *memory = sim_memory_find(address);
    if (memory)
        memory->sync_memops = *(const unsigned *)value;
    sim_unlock_driver();
    return memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
