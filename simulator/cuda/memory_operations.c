/* Writes to memory and waits for it, as streams do them. A write is done when the call is made, like copies; a wait
 * holds its stream until the program, or another stream, has written what it waits for. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum { WAIT_GEQ = 0, WAIT_EQ = 1, WAIT_AND = 2, WAIT_NOR = 3 };
enum { OPERATION_WAIT_32 = 1, OPERATION_WRITE_32 = 2, OPERATION_FLUSH = 3, OPERATION_WAIT_64 = 4, OPERATION_WRITE_64 = 5, OPERATION_BARRIER = 6 };

/* Device addresses are ordinary addresses of this process: the two integer types have the same width. */
static void *pointer_of(uint64_t address) { return (void *)(uintptr_t)address; }

struct wait { const void *address; uint64_t value; unsigned how, bytes; };

static int satisfied(const void *argument)
{
    const struct wait *wait = argument;
    /* acquire: what was written before the word is seen with it */
    uint64_t now = wait->bytes == 4 ? __atomic_load_n((const uint32_t *)wait->address, __ATOMIC_ACQUIRE) : __atomic_load_n((const uint64_t *)wait->address, __ATOMIC_ACQUIRE);
    switch (wait->how) {
    case WAIT_GEQ: return wait->bytes == 4 ? (int32_t)(uint32_t)(now - wait->value) >= 0 : (int64_t)(now - wait->value) >= 0; /* cyclic, as documented */
    case WAIT_EQ: return now == wait->value;
    case WAIT_AND: return (now & wait->value) != 0;
    default: return wait->bytes == 4 ? (uint32_t)~(now | wait->value) != 0 : ~(now | wait->value) != 0;
    }
}

static CUresult prepare(CUstream stream, CUdeviceptr address, unsigned bytes)
{
    int device;
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* as a node it is not modelled */
    if (!address || address % bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return sim_range_check(pointer_of(address), bytes, 0, &device);
}

static CUresult wait_value(CUstream stream, CUdeviceptr address, uint64_t value, unsigned bytes, unsigned flags)
{
    CUresult result = prepare(stream, address, bytes);
    if (result != CUDA_SUCCESS || (flags & ~(3u | 1u << 30))) /* bit 30: flush remote writes first; there are none */
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    struct wait *wait = malloc(sizeof *wait);
    if (!wait)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *wait = (struct wait){pointer_of(address), value, flags & 3, bytes};
    return sim_host_await(stream, satisfied, wait);
}

static CUresult write_value(CUstream stream, CUdeviceptr address, uint64_t value, unsigned bytes)
{
    CUresult result = prepare(stream, address, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    if (bytes == 4) /* release: what the program wrote before is seen by who sees the word */
        __atomic_store_n((uint32_t *)pointer_of(address), (uint32_t)value, __ATOMIC_RELEASE);
    else
        __atomic_store_n((uint64_t *)pointer_of(address), value, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

#define DEFINE_OPERATION(name, type, action) \
    static CUresult on_##name(const char *call, int per_thread, CUstream given, CUdeviceptr address, type value, unsigned flags) \
    { \
        CUstream stream; \
        (void)flags; \
        CUresult result = sim_enter_stream(call, per_thread, given, &stream); \
        return result == CUDA_SUCCESS ? action : result; \
    } \
    DEFINE_TWINS(name, _ptsz, on_##name, (CUstream stream, CUdeviceptr address, type value, unsigned int flags), stream, address, value, flags) \
    DEFINE_TWINS(name##_v2, _ptsz, on_##name, (CUstream stream, CUdeviceptr address, type value, unsigned int flags), stream, address, value, flags)

DEFINE_OPERATION(cuStreamWriteValue32, cuuint32_t, write_value(stream, address, value, 4))
DEFINE_OPERATION(cuStreamWriteValue64, cuuint64_t, write_value(stream, address, value, 8))
DEFINE_OPERATION(cuStreamWaitValue32, cuuint32_t, wait_value(stream, address, value, 4, flags))
DEFINE_OPERATION(cuStreamWaitValue64, cuuint64_t, wait_value(stream, address, value, 8, flags))

CUresult sim_memory_operations(CUstream stream, const CUstreamBatchMemOpParams *list, unsigned count)
{
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const CUstreamBatchMemOpParams *one = &list[i];
        switch (one->operation) {
        case OPERATION_WAIT_32: result = wait_value(stream, one->value.address, one->value.value, 4, one->value.flags); break;
        case OPERATION_WAIT_64: result = wait_value(stream, one->value.address, one->value.value64, 8, one->value.flags); break;
        case OPERATION_WRITE_32: result = write_value(stream, one->value.address, one->value.value, 4); break;
        case OPERATION_WRITE_64: result = write_value(stream, one->value.address, one->value.value64, 8); break;
        case OPERATION_FLUSH:
        case OPERATION_BARRIER: break; /* all writes are seen in the order in which they are made */
        default: result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    return result;
}

static CUresult batch(const char *call, int per_thread, CUstream given, unsigned count, CUstreamBatchMemOpParams *list, unsigned flags)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    return !list || flags || count > 256 ? CUDA_ERROR_INVALID_VALUE : sim_memory_operations(stream, list, count);
}
DEFINE_TWINS(cuStreamBatchMemOp, _ptsz, batch, (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *list, unsigned int flags), stream, count, list, flags)
DEFINE_TWINS(cuStreamBatchMemOp_v2, _ptsz, batch, (CUstream stream, unsigned int count, CUstreamBatchMemOpParams *list, unsigned int flags), stream, count, list, flags)
