/* Memory of other interfaces, given as a file descriptor: it is mapped, and charged to nobody here. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPAQUE_FD 1u
#define PAGE UINT64_C(4096)

struct CUextMemory_st {
    uint32_t kind;
    int fd;
    uint64_t size;
    uint32_t gpu, device;
};

SIM_EXPORTED CUresult CUDAAPI cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    struct stat info;
    if (!out || !description || !description->size)
        return CUDA_ERROR_INVALID_VALUE;
    if (description->type != OPAQUE_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    int saved = errno, right = fstat(description->handle.fd, &info) == 0 && S_ISREG(info.st_mode) && (uint64_t)info.st_size >= description->size; /* not negative */
    errno = saved;
    if (!right)
        return CUDA_ERROR_INVALID_VALUE;
    CUexternalMemory memory = malloc(sizeof *memory);
    if (!memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = (struct CUextMemory_st){HANDLE_EXTERNAL, description->handle.fd, description->size, context->gpu, context->device}; /* the descriptor is the driver's from now on */
    *out = memory;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory external, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!out || !description || !description->size || description->flags || description->offset % PAGE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!external || external->kind != HANDLE_EXTERNAL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (description->size > external->size || description->offset > external->size - description->size)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t mapped = (description->size + PAGE - 1) / PAGE * PAGE;
    struct memory *memory = calloc(1, sizeof *memory);
    int saved = errno;
    void *room = memory ? mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, external->fd, (off_t)description->offset) : MAP_FAILED; /* bounded by the file's size */
    errno = saved;
    if (room == MAP_FAILED) {
        free(memory);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory = (struct memory){.start = (uint64_t)(uintptr_t)room, .size = description->size, .mapped = mapped, .kind = MEMORY_IMPORTED,
                              .gpu = external->gpu, .device = external->device, .context = context};
    sim_lock_driver();
    memory->id = sim_driver.next_id++;
    sim_memory_insert(memory);
    sim_unlock_driver();
    *out = memory->start;
    return CUDA_SUCCESS;
}

typedef struct { unsigned long long offset; CUDA_ARRAY3D_DESCRIPTOR shape; unsigned levels, reserved[16]; } mipmapped_description; /* CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC */
CUresult CUDAAPI cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *out, CUexternalMemory external, const mipmapped_description *description);
SIM_EXPORTED CUresult CUDAAPI cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *out, CUexternalMemory external, const mipmapped_description *description)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!out || !description || description->offset % PAGE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!external || external->kind != HANDLE_EXTERNAL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (description->offset >= external->size)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t bytes = external->size - description->offset;
    int saved = errno;
    void *room = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, external->fd, (off_t)description->offset); /* bounded by the file's size */
    errno = saved;
    if (room == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = sim_array_over(context, room, bytes, &description->shape, description->levels, out);
    if (result != CUDA_SUCCESS)
        munmap(room, bytes);
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuDestroyExternalMemory(CUexternalMemory external)
{
    ENTER();
    if (!external || external->kind != HANDLE_EXTERNAL)
        return CUDA_ERROR_INVALID_HANDLE;
    external->kind = HANDLE_DEAD; /* the handle keeps its memory, so that a use after this is an error and not a crash */
    close(external->fd);
    return CUDA_SUCCESS;
}
