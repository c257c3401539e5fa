/* Pools that travel to other processes. The descriptor that stands for a pool holds where it is; the bytes of an
 * allocation travel by themselves, as with other memory, and stay on the account of the process that allocated them. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define POOL_MAGIC UINT64_C(0x314c4f4f504d4953)

struct pool_ticket { uint64_t magic; CUmemPoolProps props; uint32_t gpu; };

static int valid(CUmemoryPool pool) { return pool && pool->kind == HANDLE_POOL && !pool->destroyed; }

/* Driver lock held. */
static int make_file(CUmemoryPool pool)
{
    struct pool_ticket ticket = {.magic = POOL_MAGIC, .props = pool->props, .gpu = pool->gpu};
    if (pool->file >= 0)
        return 1;
    pool->file = memfd_create("gpu-pool", MFD_CLOEXEC);
    return pool->file >= 0 && pwrite(pool->file, &ticket, sizeof ticket, 0) == (ssize_t)sizeof ticket;
}

SIM_EXPORTED CUresult CUDAAPI cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags)
{
    ENTER();
    if (!out || !valid(pool) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (pool->imported || !(pool->props.handleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CUDA_ERROR_INVALID_VALUE;
    int saved = errno, fd = -1;
    sim_lock_driver();
    if (make_file(pool))
        fd = fcntl(pool->file, F_DUPFD_CLOEXEC, 0);
    sim_unlock_driver();
    errno = saved;
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, CUmemAllocationHandleType type, unsigned long long flags)
{
    ENTER();
    struct pool_ticket ticket;
    int given = (int)(intptr_t)handle; /* the interface carries the descriptor in the pointer */
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    int saved = errno, whole = pread(given, &ticket, sizeof ticket, 0) == (ssize_t)sizeof ticket;
    errno = saved;
    if (!whole || ticket.magic != POOL_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t device = 0;
    while (device < sim_driver.device_count && sim_driver.gpu_of[device] != ticket.gpu)
        device++;
    if (device == sim_driver.device_count)
        return CUDA_ERROR_INVALID_DEVICE; /* not visible here */
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pool = (struct CUmemPoolHandle_st){.kind = HANDLE_POOL, .gpu = ticket.gpu, .device = device, .props = ticket.props, .file = -1, .imported = 1};
    sim_lock_driver();
    pool->next = sim_driver.pools;
    sim_driver.pools = pool;
    sim_unlock_driver();
    *out = pool;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr address)
{
    ENTER();
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    struct memory *memory = sim_memory_find(address);
    int exportable = memory && memory->start == address && memory->pool && (memory->pool->props.handleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUresult result = exportable ? sim_share_ticket(memory, out, sizeof *out) : CUDA_ERROR_INVALID_VALUE;
    sim_unlock_driver();
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!out || !data || !valid(pool) || !pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_open_ticket(out, data, sizeof *data, MEMORY_IMPORTED);
}
