/* Streams, as their callers know them. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

CUresult sim_stream_create(CUcontext context, uint32_t flags, int32_t priority, CUstream *out)
{
    uint32_t row;
    int status = sim_stream_open(sim_here(), context->gpu, sim_driver.process, flags, priority, &row);
    if (status != SIM_OK)
        return sim_result(status);
    CUstream stream = calloc(1, sizeof *stream);
    if (!stream) {
        sim_stream_close(sim_here(), row);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->kind = HANDLE_STREAM;
    stream->row = row;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    sim_lock_driver();
    stream->id = sim_driver.next_id++;
    stream->next = context->streams;
    context->streams = stream;
    if (stream != context->legacy && context->legacy && !(flags & CU_STREAM_NON_BLOCKING))
        __atomic_fetch_add(&context->blocking, 1, __ATOMIC_RELAXED); /* relaxed: read by threads that know of the stream anyway */
    struct sim_item wait = {.kind = SIM_ITEM_EVENT_WAIT, .a = context->awaited_row, .b = context->awaited};
    uint32_t awaits = context->awaits;
    sim_unlock_driver();
    *out = stream;
    return awaits ? sim_result(sim_stream_push(sim_here(), row, &wait)) : CUDA_SUCCESS;
}

/* Gives back the rows of destroyed streams whose work is done. */
static void sweep(CUcontext context)
{
    sim_lock_driver();
    for (CUstream *link = &context->streams; *link;) {
        CUstream stream = *link;
        if (!stream->closing || !sim_stream_idle(sim_here(), stream->row)) {
            link = &stream->next;
            continue;
        }
        *link = stream->next;
        if (!(stream->flags & CU_STREAM_NON_BLOCKING))
            __atomic_fetch_sub(&context->blocking, 1, __ATOMIC_RELAXED); /* relaxed: as in sim_stream_create */
        sim_stream_close(sim_here(), stream->row);
    }
    uint32_t left = 0;
    for (CUstream stream = context->streams; stream; stream = stream->next)
        left += stream->closing;
    __atomic_store_n(&context->closing, left, __ATOMIC_RELAXED); /* relaxed: a hint for the next call */
    sim_unlock_driver();
}

/* The handle's memory stays, so that a use after this is an error and not a crash. */
void sim_stream_free(CUstream stream)
{
    sim_lock_driver();
    for (CUstream *link = &stream->context->streams; *link; link = &(*link)->next)
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    stream->kind = HANDLE_DEAD;
    if (stream != stream->context->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING))
        __atomic_fetch_sub(&stream->context->blocking, 1, __ATOMIC_RELAXED); /* relaxed: as above */
    free(stream->capture_after);
    stream->capture_after = NULL;
    sim_unlock_driver();
    sim_stream_close(sim_here(), stream->row);
}

static CUresult thread_stream(CUcontext context, CUstream *out)
{
    struct thread_state *thread = sim_thread();
    uint32_t place = MAX_THREAD_STREAMS;
    for (uint32_t i = 0; i < MAX_THREAD_STREAMS; i++) {
        struct thread_stream *entry = &thread->streams[i];
        if (entry->context == context && entry->context_id == context->id) {
            *out = entry->stream;
            return CUDA_SUCCESS;
        }
        if (!sim_context_valid(entry->context) || entry->context->id != entry->context_id)
            place = i;
    }
    if (place == MAX_THREAD_STREAMS) { /* a thread with streams in that many live contexts shares the legacy one in the rest */
        *out = context->legacy;
        return CUDA_SUCCESS;
    }
    CUresult result = sim_stream_create(context, 0, 0, out);
    if (result == CUDA_SUCCESS)
        thread->streams[place] = (struct thread_stream){context, context->id, *out};
    return result;
}

CUresult sim_stream_resolve(CUcontext context, CUstream given, int per_thread, CUstream *out)
{
    if (given == NULL)
        given = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    if (given == CU_STREAM_LEGACY) {
        *out = context->legacy;
        return CUDA_SUCCESS;
    }
    if (given == CU_STREAM_PER_THREAD)
        return thread_stream(context, out);
    if (given->kind != HANDLE_STREAM)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = given;
    return CUDA_SUCCESS;
}

CUresult sim_enter_stream(const char *call, int per_thread, CUstream given, CUstream *stream)
{
    CUcontext context;
    CUresult result = sim_enter_context(call, &context);
    if (result == CUDA_SUCCESS)
        result = sim_stream_resolve(context, given, per_thread, stream);
    if (result == CUDA_SUCCESS && (*stream)->capture_status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    return result;
}

/* The row's tail, if it has work left that nobody was made to wait for yet. Acquire: with the tail goes the item in front of it. */
static int unfinished(uint32_t row, uint64_t seen, uint64_t *tail)
{
    const struct sim_stream *stream = &sim_here()->streams[row];
    *tail = __atomic_load_n(&stream->tail, __ATOMIC_ACQUIRE);
    return *tail != seen && *tail != __atomic_load_n(&stream->head, __ATOMIC_ACQUIRE);
}

/* Work on the legacy stream comes after all earlier work on blocking streams of its context, and theirs after its. */
static void keep_order(CUstream stream)
{
    CUcontext context = stream->context;
    uint32_t rows[64], count = 0;
    uint64_t tail;
    if (__atomic_load_n(&context->blocking, __ATOMIC_RELAXED) == 0 || (stream->flags & CU_STREAM_NON_BLOCKING)) /* relaxed: see where it is counted */
        return;
    if (stream != context->legacy) {
        /* relaxed: threads may launch into one stream at a time, and one that reads an old word only makes the stream wait once more */
        if (unfinished(context->legacy->row, __atomic_load_n(&stream->legacy_tail, __ATOMIC_RELAXED), &tail)) {
            __atomic_store_n(&stream->legacy_tail, tail, __ATOMIC_RELAXED);
            sim_stream_follow(sim_here(), stream->row, context->legacy->row);
        }
        return;
    }
    sim_lock_driver();
    for (CUstream other = context->streams; other && count < sizeof rows / sizeof *rows; other = other->next)
        if (other != stream && !(other->flags & CU_STREAM_NON_BLOCKING) && unfinished(other->row, other->followed_tail, &tail)) {
            other->followed_tail = tail;
            rows[count++] = other->row;
        }
    sim_unlock_driver();
    for (uint32_t i = 0; i < count; i++)
        sim_stream_follow(sim_here(), stream->row, rows[i]);
}

CUresult sim_enqueue(CUstream stream, const struct sim_item *item)
{
    keep_order(stream);
    return sim_result(sim_stream_push(sim_here(), stream->row, item));
}

CUresult sim_stream_drain(CUstream stream)
{
    CUresult result = sim_result(sim_stream_wait(sim_here(), stream->row));
    sim_pools_trim(stream->context->gpu);
    return result;
}

/* The streams of a context may come and go while it is waited for: a copy of the list is worked off. */
CUresult sim_context_synchronize(CUcontext context)
{
    CUresult result = CUDA_SUCCESS;
    uint32_t rows[256], count = 0;
    sim_lock_driver();
    for (CUstream stream = context->streams; stream; stream = stream->next) {
        if (stream->capture)
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        else if (count < sizeof rows / sizeof *rows && !(__atomic_load_n(&sim_here()->streams[stream->row].head, __ATOMIC_ACQUIRE) ==
                                                         __atomic_load_n(&sim_here()->streams[stream->row].tail, __ATOMIC_ACQUIRE)))
            rows[count++] = stream->row; /* acquire: a stream seen empty has its results in memory */
    }
    sim_unlock_driver();
    if (result != CUDA_SUCCESS)
        return result;
    for (uint32_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = sim_result(sim_stream_wait(sim_here(), rows[i]));
    if (result == CUDA_SUCCESS && (sim_here()->gpu[context->gpu].lost || sim_here()->gpu[context->gpu].vanished))
        result = CUDA_ERROR_LAUNCH_FAILED;
    sim_pools_trim(context->gpu);
    if (__atomic_load_n(&context->closing, __ATOMIC_RELAXED)) /* relaxed: a hint; the next call sweeps as well */
        sweep(context);
    return result;
}

static CUresult create(CUstream *out, unsigned flags, int priority)
{
    if (!out || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
        return CUDA_ERROR_INVALID_VALUE;
    if (priority < -5)
        priority = -5;
    if (priority > 0)
        priority = 0;
    if (__atomic_load_n(&sim_current_context()->closing, __ATOMIC_RELAXED)) /* relaxed: as above */
        sweep(sim_current_context());
    return sim_stream_create(sim_current_context(), flags, priority, out);
}

SIM_EXPORTED CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned int flags)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return create(stream, flags, 0);
}

SIM_EXPORTED CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return create(stream, flags, priority);
}

static CUresult destroy(CUstream stream)
{
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD || stream->kind != HANDLE_STREAM)
        return CUDA_ERROR_INVALID_HANDLE;
    CUcontext context = stream->context;
    sim_lock_driver();
    stream->kind = HANDLE_DEAD;
    stream->closing = 1; /* what it was given goes on, and the call returns at once */
    free(stream->capture_after);
    stream->capture_after = NULL;
    stream->capture = NULL;
    sim_unlock_driver();
    sweep(context);
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuStreamDestroy(CUstream stream) { ENTER(); return destroy(stream); }
SIM_EXPORTED CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream) { ENTER(); return destroy(stream); }

/* What asks for the end of work that is only recorded spoils the recording. */
static CUresult forbidden(CUstream stream)
{
    sim_capture_spoil(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult synchronize(const char *call, int per_thread, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    return stream->capture ? forbidden(stream) : sim_stream_drain(stream);
}
DEFINE_TWINS(cuStreamSynchronize, _ptsz, synchronize, (CUstream stream), stream)

static CUresult query(const char *call, int per_thread, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return forbidden(stream);
    if (!sim_stream_idle(sim_here(), stream->row))
        return CUDA_ERROR_NOT_READY;
    return sim_here()->gpu[stream->context->gpu].lost ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}
DEFINE_TWINS(cuStreamQuery, _ptsz, query, (CUstream stream), stream)

#define DEFINE_QUESTION(name, type, expression) \
    static CUresult question_##name(const char *call, int per_thread, CUstream given, type *out) \
    { \
        CUstream stream; \
        CUresult result = sim_enter_stream(call, per_thread, given, &stream); \
        if (result != CUDA_SUCCESS) \
            return result; \
        if (!out) \
            return CUDA_ERROR_INVALID_VALUE; \
        *out = (expression); \
        return CUDA_SUCCESS; \
    } \
    DEFINE_TWINS(name, _ptsz, question_##name, (CUstream stream, type *out), stream, out)

DEFINE_QUESTION(cuStreamGetFlags, unsigned int, stream->flags)
DEFINE_QUESTION(cuStreamGetPriority, int, stream->priority)
DEFINE_QUESTION(cuStreamGetId, unsigned long long, stream->id)
DEFINE_QUESTION(cuStreamGetCtx, CUcontext, stream->context)
DEFINE_QUESTION(cuStreamGetDevice, CUdevice, (CUdevice)stream->context->device) /* small */

/* A stream of a green context has no ordinary one, and the other way round. */
static CUresult contexts_of(const char *call, int per_thread, CUstream given, CUcontext *context, CUgreenCtx *green)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = stream->context->green_handle ? NULL : stream->context;
    if (green)
        *green = stream->context->green_handle;
    return CUDA_SUCCESS;
}
DEFINE_TWINS(cuStreamGetCtx_v2, _ptsz, contexts_of, (CUstream stream, CUcontext *context, CUgreenCtx *green), stream, context, green)

SIM_EXPORTED CUresult CUDAAPI cuStreamGetGreenCtx(CUstream given, CUgreenCtx *green)
{
    CUstream stream;
    CUresult result = sim_enter_stream(__func__, 0, given, &stream);
    if (result == CUDA_SUCCESS && !green)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *green = stream->context->green_handle; /* NULL: in an ordinary context */
    return result;
}

static CUresult attach(const char *call, int per_thread, CUstream given, CUdeviceptr address, size_t length, unsigned flags)
{
    CUstream stream;
    (void)length; /* the whole allocation, whatever is said */
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    sim_lock_driver();
    const struct memory *memory = sim_memory_find(address);
    int managed = memory && memory->kind == MEMORY_MANAGED;
    sim_unlock_driver();
    return managed && (flags == 1 || flags == 2 || flags == 4) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; /* global, host, single */
}
DEFINE_TWINS(cuStreamAttachMemAsync, _ptsz, attach, (CUstream stream, CUdeviceptr address, size_t length, unsigned int flags), stream, address, length, flags)

static CUresult wait_event(const char *call, int per_thread, CUstream given, CUevent event, unsigned flags)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!event || event->kind != HANDLE_EVENT || (flags & ~1u))
        return !event || event->kind != HANDLE_EVENT ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    if (stream->capture || event->captured_graph)
        return sim_capture_wait(stream, event);
    if (sim_event_latest(event) == event->base)
        return CUDA_SUCCESS; /* never recorded: nothing to wait for */
    return sim_enqueue(stream, &(struct sim_item){.kind = SIM_ITEM_EVENT_WAIT, .a = event->row, .b = event->recorded});
}
DEFINE_TWINS(cuStreamWaitEvent, _ptsz, wait_event, (CUstream stream, CUevent event, unsigned int flags), stream, event, flags)
