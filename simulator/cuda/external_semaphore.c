/* Semaphores of other interfaces, given as a file descriptor. The descriptor stands for a regular file whose first word
 * is the semaphore: a timeline's counter, or of an opaque one whether it is signalled. So two processes, or a test that
 * plays the other interface, meet at the same word. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPAQUE_FD 1u
#define TIMELINE_FD 9u
#define PAGE UINT64_C(4096)

struct CUextSemaphore_st {
    uint32_t kind;
    uint32_t timeline;
    uint64_t *word;            /* mapped for as long as the process lives: streams may wait for it after the handle is gone */
};

int sim_semaphore_valid(CUexternalSemaphore semaphore) { return semaphore && semaphore->kind == HANDLE_SEMAPHORE; }

SIM_EXPORTED CUresult CUDAAPI cuImportExternalSemaphore(CUexternalSemaphore *out, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *description)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    struct stat info;
    if (!out || !description || description->flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (description->type != OPAQUE_FD && description->type != TIMELINE_FD)
        return CUDA_ERROR_NOT_SUPPORTED;
    int saved = errno, right = fstat(description->handle.fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size >= (off_t)sizeof(uint64_t);
    void *room = right ? mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, description->handle.fd, 0) : MAP_FAILED;
    errno = saved;
    if (room == MAP_FAILED)
        return CUDA_ERROR_INVALID_VALUE;
    CUexternalSemaphore semaphore = malloc(sizeof *semaphore);
    if (!semaphore) {
        munmap(room, PAGE);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *semaphore = (struct CUextSemaphore_st){HANDLE_SEMAPHORE, description->type == TIMELINE_FD, room};
    close(description->handle.fd); /* it is the driver's from now on, and the mapping is all it needs */
    errno = saved;
    *out = semaphore;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDestroyExternalSemaphore(CUexternalSemaphore semaphore)
{
    ENTER();
    if (!sim_semaphore_valid(semaphore))
        return CUDA_ERROR_INVALID_HANDLE;
    semaphore->kind = HANDLE_DEAD; /* the handle keeps its memory, so that a use after this is an error and not a crash */
    return CUDA_SUCCESS;
}

struct semaphore_use { uint64_t *word; uint64_t value; uint32_t timeline; };

static struct semaphore_use *use_of(CUexternalSemaphore semaphore, uint64_t value)
{
    struct semaphore_use *use = malloc(sizeof *use);
    if (use)
        *use = (struct semaphore_use){semaphore->word, semaphore->timeline ? value : 1, semaphore->timeline};
    return use;
}

static void signal_word(void *argument)
{
    struct semaphore_use *use = argument;
    __atomic_store_n(use->word, use->value, __ATOMIC_RELEASE); /* what came before it in the stream is seen with it */
    free(use);
}

/* An opaque semaphore is taken by the one wait that it lets go on. */
static int signalled(const void *argument)
{
    const struct semaphore_use *use = argument;
    uint64_t one = 1;
    if (use->timeline)
        return __atomic_load_n(use->word, __ATOMIC_ACQUIRE) >= use->value; /* acquire: with it what the signaller did */
    return __atomic_compare_exchange_n(use->word, &one, 0, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED); /* likewise; relaxed: nothing was taken */
}

CUresult sim_semaphore_signal(CUstream stream, CUexternalSemaphore semaphore, uint64_t value)
{
    struct semaphore_use *use = use_of(semaphore, value);
    return use ? sim_host_enqueue(stream, signal_word, use) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_semaphore_await(CUstream stream, CUexternalSemaphore semaphore, uint64_t value)
{
    struct semaphore_use *use = use_of(semaphore, value);
    return use ? sim_host_await(stream, signalled, use) : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult enter_list(const char *call, int per_thread, CUstream given, const CUexternalSemaphore *list, const void *params, unsigned count, CUstream *stream)
{
    CUresult result = sim_enter_stream(call, per_thread, given, stream);
    if (result != CUDA_SUCCESS)
        return result;
    if ((*stream)->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* as nodes they are added by name */
    if (!list || !params || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        if (!sim_semaphore_valid(list[i]))
            return CUDA_ERROR_INVALID_HANDLE;
    return CUDA_SUCCESS;
}

static CUresult signal_list(const char *call, int per_thread, const CUexternalSemaphore *list, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *params, unsigned count, CUstream given)
{
    CUstream stream;
    CUresult result = enter_list(call, per_thread, given, list, params, count, &stream);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = sim_semaphore_signal(stream, list[i], params[i].params.fence.value);
    return result;
}
DEFINE_TWINS(cuSignalExternalSemaphoresAsync, _ptsz, signal_list, (const CUexternalSemaphore *list, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *params, unsigned int count, CUstream stream), list, params, count, stream)

static CUresult await_list(const char *call, int per_thread, const CUexternalSemaphore *list, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *params, unsigned count, CUstream given)
{
    CUstream stream;
    CUresult result = enter_list(call, per_thread, given, list, params, count, &stream);
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = sim_semaphore_await(stream, list[i], params[i].params.fence.value);
    return result;
}
DEFINE_TWINS(cuWaitExternalSemaphoresAsync, _ptsz, await_list, (const CUexternalSemaphore *list, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *params, unsigned int count, CUstream stream), list, params, count, stream)
