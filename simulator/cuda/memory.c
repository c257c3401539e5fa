/* Device and managed memory. A device buffer is a private mapping that costs nothing until touched,
 * so copies round-trip truthfully; what the GPU has left is the ledger's to say. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE UINT64_C(4096)

static uint64_t whole_pages(uint64_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

/* Device addresses are ordinary addresses of this process: the two integer types have the same width. */
static void *pointer_of(uint64_t address) { return (void *)(uintptr_t)address; }
static uint64_t address_of(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

void *sim_memory_room(uint64_t bytes)
{
    int saved = errno;
    void *room = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    errno = saved;
    return room == MAP_FAILED ? NULL : room;
}

static int goes_with_context(uint32_t kind) { return kind == MEMORY_DEVICE || kind == MEMORY_MANAGED || kind == MEMORY_HOST; }

CUresult sim_memory_new(CUcontext context, uint32_t gpu, uint32_t device, uint64_t bytes, uint32_t kind, uint64_t charge, struct memory **out)
{
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > UINT64_MAX / 4)
        return CUDA_ERROR_OUT_OF_MEMORY;
    int status = charge ? sim_charge(sim_here(), gpu, sim_driver.process, charge) : SIM_OK;
    if (status != SIM_OK)
        return sim_result(status);
    struct memory *memory = calloc(1, sizeof *memory);
    void *room = memory ? sim_memory_room(whole_pages(bytes)) : NULL;
    if (!room) {
        free(memory);
        if (charge)
            sim_refund(sim_here(), gpu, sim_driver.process, charge);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory->start = address_of(room);
    memory->size = bytes;
    memory->mapped = whole_pages(bytes);
    memory->charged = charge;
    memory->kind = kind;
    memory->gpu = gpu;
    memory->device = device;
    memory->context = context;
    sim_lock_driver();
    memory->id = sim_driver.next_id++;
    sim_memory_insert(memory);
    /* Its context went meanwhile, and what it held with it: this came too late for that. */
    int late = context && context->kind != HANDLE_CONTEXT && goes_with_context(kind);
    if (late)
        sim_memory_delete(memory, 1);
    sim_unlock_driver();
    if (late)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = memory;
    return CUDA_SUCCESS;
}

void sim_memory_delete(struct memory *memory, int refund)
{
    sim_memory_remove(memory);
    if (memory->mapped)
        munmap(pointer_of(memory->start), memory->mapped);
    if (memory->has_file)
        close(memory->file);
    if (memory->kind == MEMORY_GRAPH)
        sim_graph_memory_give(memory);
    else if (memory->share && (refund || memory->kind == MEMORY_IPC || memory->kind == MEMORY_IMPORTED) && memory->kind != MEMORY_POOLED)
        sim_share_leave(sim_here(), memory->share, sim_driver.process);
    else if (memory->share) /* its pool keeps it, or the stream gives it back */
        sim_share_forget(sim_here(), memory->share, sim_driver.process);
    else if (refund && memory->charged)
        sim_refund(sim_here(), memory->gpu, sim_driver.process, memory->charged);
    free(memory);
}

void sim_memory_drop_context(CUcontext context)
{
    sim_lock_driver();
    uint64_t at = 0;
    for (struct memory *memory; (memory = sim_memory_next(at));) {
        at = memory->start + memory->size;
        if (memory->context == context && memory->pool)
            sim_pool_give_back(memory);
        if (memory->context == context && (memory->kind == MEMORY_IPC || memory->kind == MEMORY_IMPORTED || memory->kind == MEMORY_POOLED || memory->kind == MEMORY_DEVICE || memory->kind == MEMORY_MANAGED || memory->kind == MEMORY_HOST || memory->kind == MEMORY_GRAPH))
            sim_memory_delete(memory, 1);
    }
    sim_graph_memory_trim(context->gpu);
    sim_unlock_driver();
    sim_pools_empty(context->gpu);
}

CUresult sim_range_check(const void *address, uint64_t bytes, int must_be_device, int *device)
{
    CUresult result = CUDA_SUCCESS;
    uint64_t at = address_of(address), end = at + bytes;
    *device = 0;
    sim_lock_driver();
    const struct memory *memory = sim_memory_find(at);
    if (!memory) {
        if (must_be_device)
            result = CUDA_ERROR_INVALID_VALUE;
    } else {
        *device = memory->kind != MEMORY_HOST && memory->kind != MEMORY_REGISTERED;
        /* Mappings of virtual ranges may lie side by side and be copied as one. */
        while (memory && memory->start + memory->size < end && memory->kind == MEMORY_MAPPED)
            memory = sim_memory_find(memory->start + memory->size);
        if (!memory || memory->start + memory->size < end || memory->kind == MEMORY_RESERVED)
            result = CUDA_ERROR_INVALID_VALUE;
    }
    sim_unlock_driver();
    return result;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, uint32_t kind)
{
    CUcontext context = sim_current_context();
    struct memory *memory;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_memory_new(context, context->gpu, context->device, bytes, kind, sim_charged_size(sim_here(), bytes), &memory);
    if (result == CUDA_SUCCESS)
        *out = memory->start;
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return allocate(address, bytes, MEMORY_DEVICE);
}

#define LOW_END (UINT64_C(1) << 32)
#define LOW_STEP (UINT64_C(16) << 20)

/* Room below 4 GiB: x86-64 finds it by a flag, elsewhere places are tried. */
static void *low_room(uint64_t bytes)
{
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#ifdef MAP_32BIT
    return mmap(NULL, bytes, protection, flags | MAP_32BIT, -1, 0);
#else
    for (uint64_t at = LOW_STEP; at + bytes <= LOW_END; at += LOW_STEP) {
        void *room = mmap((void *)(uintptr_t)at, bytes, protection, flags, -1, 0); /* a wish, which the kernel need not follow */
        if (room != MAP_FAILED && address_of(room) + bytes <= LOW_END)
            return room;
        if (room != MAP_FAILED)
            munmap(room, bytes);
    }
    return MAP_FAILED;
#endif
}

/* The first interface has 32-bit addresses, which a 64-bit process cannot use for buffers of this driver. */
SIM_EXPORTED CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *address, unsigned int bytes)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!address || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr wide;
    uint64_t charge = sim_charged_size(sim_here(), bytes);
    int status = sim_charge(sim_here(), context->gpu, sim_driver.process, charge);
    if (status != SIM_OK)
        return sim_result(status);
    int saved = errno;
    void *room = low_room(whole_pages(bytes));
    errno = saved;
    struct memory *memory = room == MAP_FAILED ? NULL : calloc(1, sizeof *memory);
    if (!memory) {
        if (room != MAP_FAILED)
            munmap(room, whole_pages(bytes));
        sim_refund(sim_here(), context->gpu, sim_driver.process, charge);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    wide = address_of(room);
    *memory = (struct memory){.start = wide, .size = bytes, .mapped = whole_pages(bytes), .charged = charge, .kind = MEMORY_DEVICE,
                              .gpu = context->gpu, .device = context->device, .context = context};
    sim_lock_driver();
    memory->id = sim_driver.next_id++;
    sim_memory_insert(memory);
    int late = context->kind != HANDLE_CONTEXT; /* as in sim_memory_new */
    if (late)
        sim_memory_delete(memory, 1);
    sim_unlock_driver();
    if (late)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *address = (CUdeviceptr_v1)wide; /* it fits: low_room */
    return CUDA_SUCCESS;
}

static CUresult allocate_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = (width + 511) / 512 * 512;
    return allocate(address, *pitch * height, MEMORY_DEVICE);
}

SIM_EXPORTED CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return allocate_pitch(address, pitch, width, height, element);
}

SIM_EXPORTED CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if ((flags & 7) == 0 || (flags & ~7u)) /* attach to global, host or single */
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(address, bytes, MEMORY_MANAGED);
}

static CUresult release(CUdeviceptr address)
{
    if (!address)
        return CUDA_SUCCESS;
    sim_lock_driver();
    struct memory *memory = sim_memory_find(address);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (memory && memory->start == address) {
        switch (memory->kind) {
        case MEMORY_DEVICE:
        case MEMORY_MANAGED:
            result = CUDA_SUCCESS;
            break;
        case MEMORY_IMPORTED:
        case MEMORY_POOLED:
        case MEMORY_GRAPH:
            result = CUDA_SUCCESS;
            if (memory->pool)
                sim_pool_give_back(memory);
            break;
        default:
            break;
        }
    }
    CUcontext owner = result == CUDA_SUCCESS ? memory->context : NULL;
    sim_unlock_driver();
    if (result != CUDA_SUCCESS)
        return result;
    if (sim_context_valid(owner)) /* cuMemFree waits for the work that may use the memory */
        sim_context_synchronize(owner);
    sim_lock_driver();
    memory = sim_memory_find(address); /* another thread may have freed it meanwhile */
    if (memory && memory->start == address && memory->kind == MEMORY_GRAPH && memory->nodes)
        sim_graph_memory_give(memory); /* the address belongs to its node, which may allocate it again */
    else if (memory && memory->start == address)
        sim_memory_delete(memory, 1);
    sim_unlock_driver();
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return release(address);
}

SIM_EXPORTED CUresult CUDAAPI cuMemFree(CUdeviceptr_v1 address)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return release(address);
}

SIM_EXPORTED CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!free_bytes || !total_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_machine *machine = sim_here();
    const struct sim_gpu *gpu = &machine->gpu[context->gpu];
    if (gpu->lost || gpu->vanished)
        return CUDA_ERROR_UNKNOWN;
    sim_machine_reap(machine); /* what a process held is given back when it has ended, before anybody can ask */
    uint64_t free_now, total = sim_total_memory(context->gpu);
    sim_process_memory(machine, context->gpu, sim_driver.process, &free_now, &total);
    *free_bytes = sim_faulty(free_now);
    *total_bytes = sim_faulty(total);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuMemGetInfo(unsigned int *free_bytes, unsigned int *total_bytes)
{
    size_t wide_free, wide_total;
    if (!free_bytes || !total_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuMemGetInfo_v2(&wide_free, &wide_total);
    if (result == CUDA_SUCCESS) { /* the old 32-bit interface cannot say more */
        *free_bytes = wide_free > UINT32_MAX ? UINT32_MAX : (unsigned)wide_free;
        *total_bytes = wide_total > UINT32_MAX ? UINT32_MAX : (unsigned)wide_total;
    }
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    sim_lock_driver();
    const struct memory *memory = sim_memory_find(address);
    CUresult result = memory && memory->kind != MEMORY_REGISTERED ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_SUCCESS) {
        if (base)
            *base = memory->start;
        if (size)
            *size = memory->size;
    }
    sim_unlock_driver();
    return result;
}
