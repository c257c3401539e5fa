/* Memory shared between processes by handle. A buffer becomes a file in memory when its first handle is made,
 * in place, and the other process opens that file through /proc; so both must be of one user and one PID
 * namespace. The bytes stay on the account of the process that allocated them until it lets go. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE UINT64_C(4096)
#define HANDLE_MAGIC UINT64_C(0x31435049474d4953)

struct ipc_ticket {
    uint64_t magic;
    int32_t pid, fd;
    uint64_t inode;          /* of the file, so that a descriptor used for something else meanwhile is noticed */
    uint64_t size, offset;
    uint32_t gpu;
};
_Static_assert(sizeof(struct ipc_ticket) <= sizeof(CUipcMemHandle), "a handle holds a ticket");

/* Device addresses are ordinary addresses of this process: the two integer types have the same width. */
static void *pointer_of(uint64_t address) { return (void *)(uintptr_t)address; }

/* Copies what was ever touched of a private mapping into a file; 0: failed. */
static int copy_touched(const struct memory *memory, int fd)
{
    enum { BATCH = 512 };
    uint64_t entries[BATCH]; /* of pagemap: bit 63 present, bit 62 swapped out */
    int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC), good = map >= 0;
    uint64_t pages = memory->mapped / PAGE;
    for (uint64_t page = 0; good && page < pages; page += BATCH) {
        uint64_t count = pages - page < BATCH ? pages - page : BATCH;
        size_t bytes = count * sizeof *entries;
        good = pread(map, entries, bytes, (off_t)((memory->start / PAGE + page) * sizeof *entries)) == (ssize_t)bytes;
        for (uint64_t i = 0; good && i < count; i++)
            if (entries[i] >> 62)
                good = pwrite(fd, pointer_of(memory->start + (page + i) * PAGE), PAGE, (off_t)((page + i) * PAGE)) == (ssize_t)PAGE;
    }
    if (map >= 0)
        close(map);
    return good;
}

/* Driver lock held. */
static CUresult make_shared(struct memory *memory)
{
    if (memory->has_file)
        return CUDA_SUCCESS;
    int fd = memfd_create("gpu-memory", MFD_CLOEXEC);
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (ftruncate(fd, (off_t)memory->mapped) != 0 || !copy_touched(memory, fd) ||
        mmap(pointer_of(memory->start), memory->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
        close(fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    memory->has_file = 1;
    memory->file = fd;
    return CUDA_SUCCESS;
}

CUresult sim_share_ticket(struct memory *memory, void *out, size_t size)
{
    struct stat info;
    int saved = errno;
    CUresult result = make_shared(memory);
    if (result == CUDA_SUCCESS && fstat(memory->file, &info) != 0)
        result = CUDA_ERROR_OPERATING_SYSTEM;
    if (result == CUDA_SUCCESS && !memory->share) {
        uint64_t bytes = memory->pool ? sim_charged_size(sim_here(), memory->size) : memory->charged;
        result = sim_result(sim_share_own(sim_here(), info.st_ino, memory->gpu, sim_driver.process, bytes));
        memory->share = result == CUDA_SUCCESS ? info.st_ino : 0;
    }
    if (result == CUDA_SUCCESS) {
        struct ipc_ticket ticket = {.magic = HANDLE_MAGIC, .pid = getpid(), .fd = memory->file, .inode = info.st_ino, .size = memory->size, .gpu = memory->gpu};
        memset(out, 0, size);
        memcpy(out, &ticket, sizeof ticket);
    }
    errno = saved;
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    struct memory *memory = sim_memory_find(address);
    CUresult result = memory && memory->kind == MEMORY_DEVICE ? sim_share_ticket(memory, handle, sizeof *handle) : CUDA_ERROR_INVALID_VALUE;
    sim_unlock_driver();
    return result;
}

static CUresult open_ticket(CUdeviceptr *out, const struct ipc_ticket *ticket, uint32_t kind)
{
    char path[64];
    struct stat info;
    if (!out || ticket->magic != HANDLE_MAGIC || ticket->size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (ticket->pid == getpid() && kind == MEMORY_IPC)
        return CUDA_ERROR_INVALID_CONTEXT; /* not in the process that made it */
    uint32_t device = 0;
    while (device < sim_driver.device_count && sim_driver.gpu_of[device] != ticket->gpu)
        device++;
    if (device == sim_driver.device_count)
        return CUDA_ERROR_INVALID_DEVICE; /* not visible here */
    uint64_t mapped = (ticket->size + PAGE - 1) / PAGE * PAGE;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket->pid, ticket->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE; /* its maker is gone, or freed it */
    struct memory *memory = calloc(1, sizeof *memory);
    void *room = MAP_FAILED;
    int right = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_ino == ticket->inode && (uint64_t)info.st_size >= mapped;
    if (right && memory)
        room = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    close(fd);
    if (room == MAP_FAILED) {
        free(memory);
        return right ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    uint32_t gpu = ticket->gpu;
    int status = sim_share_join(sim_here(), ticket->inode, &gpu, sim_driver.process, sim_charged_size(sim_here(), ticket->size));
    if (status != SIM_OK) {
        munmap(room, mapped);
        free(memory);
        return sim_result(status);
    }
    *memory = (struct memory){.start = (uint64_t)(uintptr_t)room, .size = ticket->size, .mapped = mapped, .kind = kind, .share = ticket->inode,
                              .gpu = ticket->gpu, .device = device, .context = sim_current_context()};
    sim_lock_driver();
    memory->id = sim_driver.next_id++;
    sim_memory_insert(memory);
    sim_unlock_driver();
    *out = memory->start;
    return CUDA_SUCCESS;
}

CUresult sim_open_ticket(CUdeviceptr *out, const void *ticket, size_t size, uint32_t kind)
{
    struct ipc_ticket copy;
    if (size < sizeof copy)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&copy, ticket, sizeof copy);
    int saved = errno;
    CUresult result = open_ticket(out, &copy, kind);
    errno = saved;
    return result;
}

static CUresult open_checked(CUdeviceptr *out, const CUipcMemHandle *handle, unsigned flags)
{
    return flags & ~1u ? CUDA_ERROR_INVALID_VALUE : sim_open_ticket(out, handle, sizeof *handle, MEMORY_IPC);
}
SIM_EXPORTED CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) { CUcontext context; ENTER_CONTEXT(context); return open_checked(address, &handle, flags); }
SIM_EXPORTED CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags) { CUcontext context; ENTER_CONTEXT(context); return open_checked(address, &handle, flags); }

SIM_EXPORTED CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr address)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    sim_lock_driver();
    struct memory *memory = sim_memory_find(address);
    CUresult result = memory && memory->kind == MEMORY_IPC && memory->start == address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        sim_memory_delete(memory, 0);
    sim_unlock_driver();
    return result;
}
