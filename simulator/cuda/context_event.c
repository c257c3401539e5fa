/* Events of whole contexts: recorded after everything that all streams of a context were given, and waited for by all
 * of them, those that come later too. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream);
CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream);

/* The rows of the context's streams; NULL with *count above 0: no memory. A stream being captured can't take part. */
static CUresult streams_of(CUcontext context, uint32_t **rows, size_t *count)
{
    CUresult result = CUDA_SUCCESS;
    *count = 0;
    sim_lock_driver();
    for (CUstream stream = context->streams; stream; stream = stream->next) {
        ++*count;
        if (stream->capture)
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    *rows = malloc((*count + 1) * sizeof **rows);
    if (!*rows)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    size_t at = 0;
    for (CUstream stream = context->streams; stream && *rows; stream = stream->next)
        (*rows)[at++] = stream->row;
    sim_unlock_driver();
    return result;
}

/* A stream of this call's own follows all others, so that none of them is held up by it. */
static CUresult record(CUcontext context, CUevent event)
{
    uint32_t *rows;
    size_t count;
    CUstream gathering = NULL;
    if (!sim_context_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!event || event->kind != HANDLE_EVENT || event->context->device != context->device)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = streams_of(context, &rows, &count);
    if (result == CUDA_SUCCESS)
        result = sim_stream_create(context, CU_STREAM_NON_BLOCKING, 0, &gathering);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = sim_result(sim_stream_follow(sim_here(), gathering->row, rows[i]));
    free(rows);
    if (result == CUDA_SUCCESS)
        result = cuEventRecord(event, gathering);
    if (gathering)
        cuStreamDestroy_v2(gathering); /* what it was given goes on */
    return result;
}

static CUresult await(CUcontext context, CUevent event)
{
    uint32_t *rows;
    size_t count;
    if (!sim_context_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!event || event->kind != HANDLE_EVENT)
        return CUDA_ERROR_INVALID_HANDLE;
    if (sim_event_latest(event) == event->base)
        return CUDA_SUCCESS; /* never recorded: nothing to wait for */
    CUresult result = streams_of(context, &rows, &count);
    if (result == CUDA_SUCCESS) {
        sim_lock_driver();
        context->awaits = 1;
        context->awaited_row = event->row;
        context->awaited = event->recorded;
        sim_unlock_driver();
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = sim_result(sim_stream_push(sim_here(), rows[i], &(struct sim_item){.kind = SIM_ITEM_EVENT_WAIT, .a = event->row, .b = event->recorded}));
    free(rows);
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxRecordEvent(CUcontext context, CUevent event) { ENTER(); return record(context ? context : sim_current_context(), event); }
SIM_EXPORTED CUresult CUDAAPI cuCtxWaitEvent(CUcontext context, CUevent event) { ENTER(); return await(context ? context : sim_current_context(), event); }
SIM_EXPORTED CUresult CUDAAPI cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) { ENTER(); return record(sim_green_inside(green), event); }
SIM_EXPORTED CUresult CUDAAPI cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) { ENTER(); return await(sim_green_inside(green), event); }
