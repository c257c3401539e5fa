/* Events: recorded in a stream, timed by the machine's schedule. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

static int valid(CUevent event) { return event && event->kind == HANDLE_EVENT; }

SIM_EXPORTED CUresult CUDAAPI cuEventCreate(CUevent *out, unsigned int flags)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    uint32_t row;
    if (!out || (flags & ~7u) || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    int status = sim_event_open(sim_here(), sim_driver.process, &row);
    if (status != SIM_OK)
        return sim_result(status);
    CUevent event = calloc(1, sizeof *event);
    if (!event) {
        sim_event_close(sim_here(), row);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event->kind = HANDLE_EVENT;
    event->row = row;
    event->context = context;
    event->flags = flags;
    event->base = event->recorded = sim_here()->events[row].recorded;
    event->shared = (flags & CU_EVENT_INTERPROCESS) != 0;
    *out = event;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUevent event)
{
    if (!valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    event->kind = HANDLE_DEAD;
    if (!event->imported)
        sim_event_close(sim_here(), event->row);
    free(event->captured_after);
    free(event);
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuEventDestroy(CUevent event) { ENTER(); return destroy(event); }
SIM_EXPORTED CUresult CUDAAPI cuEventDestroy_v2(CUevent event) { ENTER(); return destroy(event); }

/* The sequence of the last record: this process's, or of a shared event anybody's. */
uint64_t sim_event_latest(CUevent event)
{
    if (event->shared)
        event->recorded = __atomic_load_n(&sim_here()->events[event->row].recorded, __ATOMIC_ACQUIRE); /* pairs with record */
    return event->recorded;
}

/* A green context is a part of its device's primary one, whose events it takes. */
static int is_of(CUcontext event, CUcontext stream) { return event == stream || (event->device == stream->device && (event->green || stream->green)); }

static CUresult record(const char *call, int per_thread, CUevent event, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!valid(event) || !is_of(event->context, stream->context))
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture)
        return sim_capture_record(stream, event);
    struct sim_event *row = &sim_here()->events[event->row]; /* its owner writes these fields; of a shared event the processes take turns */
    event->captured_graph = NULL;
    event->recorded = sim_event_latest(event) + 1;
    row->gpu = stream->context->gpu;
    row->stream = stream->row;
    __atomic_store_n(&row->recorded, event->recorded, __ATOMIC_RELEASE); /* where it was recorded is known before it counts */
    return sim_enqueue(stream, &(struct sim_item){.kind = SIM_ITEM_EVENT_RECORD, .a = event->row, .b = event->recorded});
}
DEFINE_TWINS(cuEventRecord, _ptsz, record, (CUevent event, CUstream stream), event, stream)

static CUresult record_with_flags(const char *call, int per_thread, CUevent event, CUstream stream, unsigned flags)
{
    return flags & ~1u ? CUDA_ERROR_INVALID_VALUE : record(call, per_thread, event, stream);
}
DEFINE_TWINS(cuEventRecordWithFlags, _ptsz, record_with_flags, (CUevent event, CUstream stream, unsigned int flags), event, stream, flags)

static int lost(CUevent event) { return sim_here()->gpu[event->context->gpu].lost || sim_here()->gpu[event->context->gpu].vanished; }

SIM_EXPORTED CUresult CUDAAPI cuEventQuery(CUevent event)
{
    ENTER();
    uint64_t time;
    if (!valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->captured_graph)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (sim_event_latest(event) == event->base || sim_event_done(sim_here(), event->row, event->recorded, &time))
        return CUDA_SUCCESS;
    return lost(event) ? CUDA_ERROR_LAUNCH_FAILED : CUDA_ERROR_NOT_READY;
}

SIM_EXPORTED CUresult CUDAAPI cuEventSynchronize(CUevent event)
{
    ENTER();
    if (!valid(event))
        return CUDA_ERROR_INVALID_HANDLE;
    if (event->captured_graph)
        return CUDA_ERROR_CAPTURED_EVENT;
    if (sim_event_latest(event) == event->base)
        return CUDA_SUCCESS;
    CUresult result = sim_result(sim_event_wait(sim_here(), event->row, event->recorded));
    sim_pools_trim(event->context->gpu);
    return result;
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
    uint64_t from, to;
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    if (!valid(start) || !valid(end) || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) || start->recorded == start->base || end->recorded == end->base)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!sim_event_done(sim_here(), start->row, start->recorded, &from) || !sim_event_done(sim_here(), end->row, end->recorded, &to))
        return lost(end) ? CUDA_ERROR_LAUNCH_FAILED : CUDA_ERROR_NOT_READY;
    *milliseconds = to >= from ? (float)(to - from) / 1e6f : -((float)(from - to) / 1e6f); /* a float is what the interface has */
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) { ENTER(); return elapsed(milliseconds, start, end); }
SIM_EXPORTED CUresult CUDAAPI cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) { ENTER(); return elapsed(milliseconds, start, end); }
