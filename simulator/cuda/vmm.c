/* Virtual memory management: physical memory is a file in memory, so that two mappings of one handle are
 * the same bytes and a handle can travel to another process as a file descriptor. */
#define _GNU_SOURCE
#include "vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Device addresses are ordinary addresses of this process: the two integer types have the same width. */
static void *pointer_of(uint64_t address) { return (void *)(uintptr_t)address; }

struct vmm_handle *sim_vmm_find(uint64_t number)
{
    struct vmm_handle *handle = sim_driver.vmm_handles;
    while (handle && handle->number != number)
        handle = handle->next;
    return handle;
}

/* Memory is given back when neither a handle nor a mapping is left. */
void sim_vmm_drop_if_unused(struct vmm_handle *handle)
{
    if (handle->references || handle->mappings)
        return;
    for (struct vmm_handle **link = &sim_driver.vmm_handles; *link; link = &(*link)->next)
        if (*link == handle) {
            *link = handle->next;
            break;
        }
    while (handle->bound) { /* of a multicast object, which goes with what is bound to it */
        struct vmm_binding *binding = handle->bound;
        handle->bound = binding->next;
        binding->memory->mappings--;
        sim_vmm_drop_if_unused(binding->memory);
        free(binding);
    }
    if (handle->share)
        sim_share_leave(sim_here(), handle->share, sim_driver.process);
    else if (handle->charged)
        sim_refund(sim_here(), handle->gpu, sim_driver.process, handle->charged);
    int saved = errno;
    if (handle->own_file)
        close(handle->fd);
    else
        fallocate(handle->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)handle->offset, (off_t)handle->size);
    errno = saved;
    free(handle);
}

/* A descriptor for each handle would soon use up what a process may have open, so only those that can be
 * exported get one. Driver lock held; 0: the system refused. */
int sim_vmm_give_bytes(struct vmm_handle *handle)
{
    struct driver *driver = &sim_driver;
    if (handle->props.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        handle->own_file = 1;
        handle->fd = memfd_create("gpu-memory", MFD_CLOEXEC);
        if (handle->fd >= 0 && ftruncate(handle->fd, (off_t)handle->size) == 0)
            return 1;
        if (handle->fd >= 0)
            close(handle->fd);
        return 0;
    }
    if (!driver->vmm_open) {
        driver->vmm_file = memfd_create("gpu-memory", MFD_CLOEXEC);
        driver->vmm_open = driver->vmm_file >= 0;
    }
    if (!driver->vmm_open || ftruncate(driver->vmm_file, (off_t)(driver->vmm_end + handle->size)) != 0)
        return 0;
    handle->fd = driver->vmm_file;
    handle->offset = driver->vmm_end;
    driver->vmm_end += handle->size; /* never used again: the file is sparse and its length costs nothing */
    return 1;
}

static CUresult props_device(const CUmemAllocationProp *props, int *device)
{
    if (!props || props->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        *device = props->location.id;
        return *device >= 0 && (uint32_t)*device < sim_driver.device_count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    }
    *device = -1; /* host memory */
    return props->location.type == CU_MEM_LOCATION_TYPE_HOST ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORTED CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *props, CUmemAllocationGranularity_flags which)
{
    ENTER();
    int device;
    (void)which;
    CUresult result = granularity ? props_device(props, &device) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *granularity = GRANULARITY;
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *props, unsigned long long flags)
{
    ENTER();
    int device;
    CUresult result = props_device(props, &device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!out || flags || size == 0 || size % GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    struct vmm_handle *handle = calloc(1, sizeof *handle);
    if (!handle)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (device >= 0) {
        handle->device = (uint32_t)device; /* not negative */
        handle->gpu = sim_driver.gpu_of[device];
        int status = sim_charge(sim_here(), handle->gpu, sim_driver.process, size);
        if (status != SIM_OK) {
            free(handle);
            return sim_result(status);
        }
        handle->charged = size;
    }
    handle->size = size;
    handle->props = *props;
    handle->references = 1;
    sim_lock_driver();
    int saved = errno, given = sim_vmm_give_bytes(handle);
    errno = saved;
    if (given) {
        handle->number = sim_driver.next_id++;
        handle->next = sim_driver.vmm_handles;
        sim_driver.vmm_handles = handle;
    }
    sim_unlock_driver();
    if (!given) {
        if (handle->charged)
            sim_refund(sim_here(), handle->gpu, sim_driver.process, handle->charged);
        free(handle);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *out = handle->number;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle number)
{
    ENTER();
    sim_lock_driver();
    struct vmm_handle *handle = sim_vmm_find(number);
    CUresult result = handle && handle->references ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        handle->references--;
        sim_vmm_drop_if_unused(handle);
    }
    sim_unlock_driver();
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wish, unsigned long long flags)
{
    ENTER();
    if (!out || size == 0 || size % 4096 || flags || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    if (alignment < GRANULARITY)
        alignment = GRANULARITY;
    int saved = errno;
    (void)wish; /* only a hint */
    unsigned char *room = mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    errno = saved;
    struct memory *memory = calloc(1, sizeof *memory);
    if (room == MAP_FAILED || !memory) {
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    size_t before = (alignment - (uintptr_t)room % alignment) % alignment;
    if (before)
        munmap(room, before);
    if (alignment - before)
        munmap(room + before + size, alignment - before);
    memory->start = (uint64_t)(uintptr_t)(room + before);
    memory->size = memory->mapped = size;
    memory->kind = MEMORY_RESERVED;
    sim_lock_driver();
    memory->id = sim_driver.next_id++;
    sim_memory_insert(memory);
    sim_unlock_driver();
    *out = memory->start;
    return CUDA_SUCCESS;
}

/* Mappings cut a reservation into pieces: all pieces of [address, address + size) must be reserved and none mapped. */
SIM_EXPORTED CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t size)
{
    ENTER();
    CUresult result = size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    for (uint64_t at = address; result == CUDA_SUCCESS && at < address + size;) {
        const struct memory *memory = sim_memory_find(at);
        if (!memory || memory->kind != MEMORY_RESERVED || memory->start < address || memory->start + memory->size > address + size)
            result = CUDA_ERROR_INVALID_VALUE;
        else
            at = memory->start + memory->size;
    }
    for (uint64_t at = address; result == CUDA_SUCCESS && at < address + size;) {
        struct memory *memory = sim_memory_find(at);
        at = memory->start + memory->size;
        sim_memory_delete(memory, 0);
    }
    sim_unlock_driver();
    return result;
}

static struct memory *piece(uint64_t start, uint64_t size, uint32_t kind)
{
    struct memory *memory = calloc(1, sizeof *memory);
    if (memory)
        *memory = (struct memory){.start = start, .size = size, .mapped = size, .kind = kind, .id = sim_driver.next_id++};
    return memory;
}

SIM_EXPORTED CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle number, unsigned long long flags)
{
    ENTER();
    if (size == 0 || flags || size % GRANULARITY || address % GRANULARITY || offset % GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    struct vmm_handle *handle = sim_vmm_find(number);
    struct memory *room = sim_memory_find(address);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (handle && offset + size <= handle->size && room && room->kind == MEMORY_RESERVED && address + size <= room->start + room->size) {
        uint64_t before = address - room->start, after = room->start + room->size - (address + size);
        struct memory *mapped = piece(address, size, MEMORY_MAPPED);
        struct memory *rest = after ? piece(address + size, after, MEMORY_RESERVED) : NULL;
        int saved = errno;
        if (!mapped || (after && !rest)) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else if (mmap(pointer_of(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, handle->fd, (off_t)(handle->offset + offset)) == MAP_FAILED) {
            result = CUDA_ERROR_OPERATING_SYSTEM;
        } else {
            result = CUDA_SUCCESS;
            mapped->handle = handle;
            mapped->gpu = handle->gpu;
            mapped->device = handle->device;
            handle->mappings++;
            if (before) {
                room->size = room->mapped = before;
            } else {
                sim_memory_remove(room);
                free(room);
            }
            sim_memory_insert(mapped);
            if (rest)
                sim_memory_insert(rest);
        }
        errno = saved;
        if (result != CUDA_SUCCESS) {
            free(mapped);
            free(rest);
        }
    }
    sim_unlock_driver();
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t size)
{
    ENTER();
    CUresult result = size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    for (uint64_t at = address; result == CUDA_SUCCESS && at < address + size;) { /* whole mappings only */
        const struct memory *memory = sim_memory_find(at);
        if (!memory || memory->kind != MEMORY_MAPPED || memory->start != at || at + memory->size > address + size)
            result = CUDA_ERROR_INVALID_VALUE;
        else
            at += memory->size;
    }
    for (uint64_t at = address; result == CUDA_SUCCESS && at < address + size;) {
        struct memory *memory = sim_memory_find(at);
        struct vmm_handle *handle = memory->handle;
        int saved = errno;
        mmap(pointer_of(at), memory->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0); /* over a mapping of ours */
        errno = saved;
        memory->kind = MEMORY_RESERVED;
        memory->handle = NULL;
        at += memory->size;
        handle->mappings--;
        sim_vmm_drop_if_unused(handle);
    }
    /* What is reserved side by side inside one reservation becomes one piece again. */
    if (result == CUDA_SUCCESS) {
        struct memory *memory = sim_memory_find(address), *next;
        while ((next = sim_memory_find(memory->start + memory->size)) && next->kind == MEMORY_RESERVED && next->start < address + size) {
            memory->size += next->size;
            memory->mapped += next->mapped;
            sim_memory_remove(next);
            free(next);
        }
    }
    sim_unlock_driver();
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count)
{
    ENTER();
    int protection = PROT_NONE;
    if (!access || !count || !size)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            protection = PROT_READ | PROT_WRITE;
        else if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ && protection == PROT_NONE)
            protection = PROT_READ;
    CUresult result = CUDA_SUCCESS;
    sim_lock_driver();
    for (uint64_t at = address; result == CUDA_SUCCESS && at < address + size;) {
        struct memory *memory = sim_memory_find(at);
        if (!memory || memory->kind != MEMORY_MAPPED)
            result = CUDA_ERROR_INVALID_VALUE;
        else
            at = memory->start + memory->size;
    }
    int saved = errno;
    if (result == CUDA_SUCCESS && mprotect(pointer_of(address), size, protection) != 0)
        result = CUDA_ERROR_INVALID_VALUE;
    errno = saved;
    for (uint64_t at = address; result == CUDA_SUCCESS && at < address + size;) {
        struct memory *memory = sim_memory_find(at);
        memory->host_flags = (uint32_t)protection; /* three bits */
        at = memory->start + memory->size;
    }
    sim_unlock_driver();
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address)
{
    ENTER();
    if (!flags || !location)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    const struct memory *memory = sim_memory_find(address);
    CUresult result = memory && memory->kind == MEMORY_MAPPED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *flags = memory->host_flags & PROT_WRITE ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : memory->host_flags ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    sim_unlock_driver();
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    ENTER();
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    const struct memory *memory = sim_memory_find((uint64_t)(uintptr_t)address); /* the same width */
    CUresult result = memory && memory->kind == MEMORY_MAPPED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        memory->handle->references++;
        *out = memory->handle->number;
    }
    sim_unlock_driver();
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *props, CUmemGenericAllocationHandle number)
{
    ENTER();
    if (!props)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    const struct vmm_handle *handle = sim_vmm_find(number);
    if (handle)
        *props = handle->props;
    sim_unlock_driver();
    return handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* From now on other handles, of this process or of others, may hold the memory too. Driver lock held. */
static int share(struct vmm_handle *handle)
{
    struct stat info;
    if (handle->share)
        return SIM_OK;
    if (fstat(handle->fd, &info) != 0)
        return SIM_SYSTEM_ERROR;
    int status = sim_share_own(sim_here(), info.st_ino, handle->gpu, sim_driver.process, handle->charged);
    if (status == SIM_OK)
        handle->share = info.st_ino;
    return status;
}

SIM_EXPORTED CUresult CUDAAPI cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle number, CUmemAllocationHandleType type, unsigned long long flags)
{
    ENTER();
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    sim_lock_driver();
    struct vmm_handle *handle = sim_vmm_find(number);
    CUresult result = handle && (handle->props.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        int fd = fcntl(handle->fd, F_DUPFD_CLOEXEC, 0);
        if (fd >= 0 && share(handle) == SIM_OK) {
            *(int *)out = fd;
        } else {
            result = CUDA_ERROR_OPERATING_SYSTEM;
            if (fd >= 0)
                close(fd);
        }
    }
    sim_unlock_driver();
    return result;
}

/* Imported memory is on the account of the process that made it, for as long as that one holds it. */
SIM_EXPORTED CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *shared, CUmemAllocationHandleType type)
{
    ENTER();
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct stat info;
    int given = (int)(intptr_t)shared; /* the interface carries the descriptor in the pointer */
    if (fstat(given, &info) != 0 || info.st_size <= 0 || info.st_size % (off_t)GRANULARITY)
        return CUDA_ERROR_INVALID_VALUE;
    struct vmm_handle *handle = calloc(1, sizeof *handle);
    int fd = handle ? fcntl(given, F_DUPFD_CLOEXEC, 0) : -1;
    if (fd < 0) {
        free(handle);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUcontext context = sim_current_context();
    uint32_t gpu = sim_driver.gpu_of[context ? context->device : 0];
    int status = sim_share_join(sim_here(), info.st_ino, &gpu, sim_driver.process, (uint64_t)info.st_size); /* positive */
    uint32_t device = 0;
    while (device < sim_driver.device_count && sim_driver.gpu_of[device] != gpu)
        device++;
    if (status == SIM_OK && device == sim_driver.device_count) { /* not visible here */
        sim_share_leave(sim_here(), info.st_ino, sim_driver.process);
        status = SIM_NOT_FOUND;
    }
    if (status != SIM_OK) {
        close(fd);
        free(handle);
        return status == SIM_NOT_FOUND ? CUDA_ERROR_INVALID_DEVICE : sim_result(status);
    }
    handle->fd = fd;
    handle->own_file = 1;
    handle->size = (uint64_t)info.st_size;
    handle->references = 1;
    handle->share = info.st_ino;
    handle->device = device;
    handle->gpu = gpu;
    handle->props = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                          .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)handle->device}}; /* small */
    sim_lock_driver();
    handle->number = sim_driver.next_id++;
    handle->next = sim_driver.vmm_handles;
    sim_driver.vmm_handles = handle;
    sim_unlock_driver();
    *out = handle->number;
    return CUDA_SUCCESS;
}
