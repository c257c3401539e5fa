/* Stream capture: calls on a stream become nodes of a graph; events carry it to other streams. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

/* The stream's next node depends on what came before in it, and from then on on the node alone. */
static CUresult append(CUstream stream, CUgraphNodeType type, CUgraphNode *out)
{
    CUgraphNode *only = malloc(sizeof *only);
    if (!only)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = sim_graph_add(stream->capture, type, stream->capture_after, stream->capture_after_count, out);
    if (result != CUDA_SUCCESS) {
        free(only);
        return result;
    }
    *only = *out;
    free(stream->capture_after);
    stream->capture_after = only;
    stream->capture_after_count = 1;
    return CUDA_SUCCESS;
}

CUresult sim_capture_kernel(CUstream stream, const struct launch *launch)
{
    CUgraphNode node;
    CUresult result = append(stream, CU_GRAPH_NODE_TYPE_KERNEL, &node);
    if (result == CUDA_SUCCESS)
        node->kernel = *launch;
    return result;
}

CUresult sim_capture_copy(CUstream stream, CUdeviceptr destination, CUdeviceptr source, size_t bytes)
{
    CUgraphNode node;
    CUresult result = append(stream, CU_GRAPH_NODE_TYPE_MEMCPY, &node);
    if (result == CUDA_SUCCESS)
        node->copy = (struct copy_node){destination, source, bytes};
    return result;
}

CUresult sim_capture_box(CUstream stream, const CUDA_MEMCPY3D *box)
{
    CUgraphNode node;
    CUresult result = append(stream, CU_GRAPH_NODE_TYPE_MEMCPY, &node);
    return result == CUDA_SUCCESS ? sim_graph_set_box(node, box) : result;
}

/* A graph that is launched while its stream is recorded becomes a part of what is recorded. */
CUresult sim_capture_graph(CUstream stream, CUgraph graph)
{
    CUgraphNode node;
    CUgraph copy = sim_graph_copy(graph);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = append(stream, CU_GRAPH_NODE_TYPE_GRAPH, &node);
    if (result == CUDA_SUCCESS)
        node->child = copy;
    else
        sim_graph_free(copy);
    return result;
}

CUresult sim_capture_fill(CUstream stream, CUdeviceptr destination, size_t pitch, unsigned value, unsigned element, size_t width, size_t height)
{
    CUgraphNode node;
    CUresult result = append(stream, CU_GRAPH_NODE_TYPE_MEMSET, &node);
    if (result == CUDA_SUCCESS)
        node->fill = (struct fill_node){destination, pitch, width, height, value, element};
    return result;
}

CUresult sim_capture_host(CUstream stream, CUhostFn function, void *argument)
{
    CUgraphNode node;
    CUresult result = append(stream, CU_GRAPH_NODE_TYPE_HOST, &node);
    if (result == CUDA_SUCCESS)
        node->host = (struct host_node){function, argument};
    return result;
}

CUresult sim_capture_allocate(CUstream stream, CUdeviceptr *out, size_t bytes)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, (int)stream->context->device}}, .bytesize = bytes}; /* small */
    CUgraphNode node, *only = malloc(sizeof *only);
    if (!only)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = sim_graph_add_allocation(stream->capture, stream->capture_after, stream->capture_after_count, &params, &node);
    if (result != CUDA_SUCCESS) {
        free(only);
        return result;
    }
    *only = node;
    free(stream->capture_after);
    stream->capture_after = only;
    stream->capture_after_count = 1;
    *out = params.dptr;
    return CUDA_SUCCESS;
}

CUresult sim_capture_free(CUstream stream, CUdeviceptr address)
{
    CUgraphNode node;
    CUresult result = append(stream, CU_GRAPH_NODE_TYPE_MEM_FREE, &node);
    if (result == CUDA_SUCCESS)
        node->free_address = address;
    return result;
}

static CUresult join(CUstream stream, const CUgraphNode *more, size_t count)
{
    CUgraphNode *all = realloc(stream->capture_after, (stream->capture_after_count + count + 1) * sizeof *all);
    if (!all)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->capture_after = all;
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;
        while (at < stream->capture_after_count && all[at] != more[i])
            at++;
        if (at == stream->capture_after_count)
            all[stream->capture_after_count++] = more[i];
    }
    return CUDA_SUCCESS;
}

CUresult sim_capture_record(CUstream stream, CUevent event)
{
    size_t count = stream->capture_after_count;
    CUgraphNode *copy = malloc((count + 1) * sizeof *copy);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (count)
        memcpy(copy, stream->capture_after, count * sizeof *copy);
    free(event->captured_after);
    event->captured_after = copy;
    event->captured_after_count = count;
    event->captured_graph = stream->capture;
    return CUDA_SUCCESS;
}

CUresult sim_capture_wait(CUstream stream, CUevent event)
{
    if (!event->captured_graph)
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION; /* an event of work outside */
    if (stream->capture && stream->capture != event->captured_graph)
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    if (!stream->capture) {
        stream->capture = event->captured_graph;
        stream->capture_status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        stream->capture_origin = 0;
    }
    return join(stream, event->captured_after, event->captured_after_count);
}

static void leave(CUstream stream)
{
    stream->capture = NULL;
    stream->capture_status = CU_STREAM_CAPTURE_STATUS_NONE;
    stream->capture_origin = 0;
    free(stream->capture_after);
    stream->capture_after = NULL;
    stream->capture_after_count = 0;
}

/* All streams that take part in the recording are spoilt with it. */
void sim_capture_spoil(CUgraph graph)
{
    sim_lock_driver();
    for (CUcontext context = sim_driver.contexts; context; context = context->next)
        for (CUstream stream = context->streams; stream; stream = stream->next)
            if (stream->capture == graph)
                stream->capture_status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    sim_unlock_driver();
}

void sim_capture_end(CUgraph graph)
{
    sim_lock_driver();
    for (CUcontext context = sim_driver.contexts; context; context = context->next)
        for (CUstream stream = context->streams; stream; stream = stream->next)
            if (stream->capture == graph)
                leave(stream);
    sim_unlock_driver();
}

static CUresult begin_in(CUstream stream, CUgraph graph, CUstreamCaptureMode mode)
{
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (!graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->capture = graph;
    stream->capture_mode = mode;
    stream->capture_origin = 1;
    stream->capture_into = 0;
    stream->capture_status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    sim_lock_driver();
    stream->capture_id = sim_driver.next_id++;
    sim_unlock_driver();
    return CUDA_SUCCESS;
}

static CUresult begin(const char *call, int per_thread, CUstream given, CUstreamCaptureMode mode)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    CUgraph graph = sim_graph_new(stream->context);
    result = begin_in(stream, graph, mode);
    if (result != CUDA_SUCCESS && graph)
        sim_graph_free(graph);
    return result;
}
DEFINE_TWINS(cuStreamBeginCapture_v2, _ptsz, begin, (CUstream stream, CUstreamCaptureMode mode), stream, mode)
static CUresult begin_global(const char *call, int per_thread, CUstream stream) { return begin(call, per_thread, stream, CU_STREAM_CAPTURE_MODE_GLOBAL); }
DEFINE_TWINS(cuStreamBeginCapture, _ptsz, begin_global, (CUstream stream), stream)

static CUresult begin_to(const char *call, int per_thread, CUstream given, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
    CUstream stream;
    (void)edges;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result == CUDA_SUCCESS && (!sim_graph_valid(graph) || (count && !after)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = begin_in(stream, graph, mode);
    if (result == CUDA_SUCCESS)
        stream->capture_into = 1;
    return result == CUDA_SUCCESS ? join(stream, after, count) : result;
}
DEFINE_TWINS(cuStreamBeginCaptureToGraph, _ptsz, begin_to, (CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode), stream, graph, after, edges, count, mode)

/* Enters a call that may be made on a stream whose recording is spoilt. */
static CUresult enter(const char *call, int per_thread, CUstream given, CUstream *stream)
{
    CUresult result = sim_enter_stream(call, per_thread, given, stream);
    return result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ? CUDA_SUCCESS : result;
}

static CUresult end(const char *call, int per_thread, CUstream given, CUgraph *out)
{
    CUstream stream;
    CUresult result = enter(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (!stream->capture_origin)
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    CUgraph graph = stream->capture;
    int spoilt = stream->capture_status == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    sim_capture_end(graph);
    if (spoilt && !stream->capture_into)
        sim_graph_free(graph);
    *out = spoilt ? NULL : graph;
    return spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
DEFINE_TWINS(cuStreamEndCapture, _ptsz, end, (CUstream stream, CUgraph *graph), stream, graph)

static CUresult capturing(const char *call, int per_thread, CUstream given, CUstreamCaptureStatus *status)
{
    CUstream stream;
    CUresult result = enter(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    *status = (CUstreamCaptureStatus)stream->capture_status; /* only ever set from it */
    return CUDA_SUCCESS;
}
DEFINE_TWINS(cuStreamIsCapturing, _ptsz, capturing, (CUstream stream, CUstreamCaptureStatus *status), stream, status)

static CUresult info(const char *call, int per_thread, CUstream given, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after, size_t *count)
{
    CUstream stream;
    CUresult result = enter(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    *status = (CUstreamCaptureStatus)stream->capture_status; /* only ever set from it */
    if (stream->capture_status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (id)
        *id = stream->capture_id;
    if (graph)
        *graph = stream->capture;
    if (after)
        *after = stream->capture_after;
    if (count)
        *count = stream->capture_after_count;
    return CUDA_SUCCESS;
}
static CUresult info_1(const char *call, int per_thread, CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) { return info(call, per_thread, stream, status, id, NULL, NULL, NULL); }
DEFINE_TWINS(cuStreamGetCaptureInfo, _ptsz, info_1, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id), stream, status, id)
DEFINE_TWINS(cuStreamGetCaptureInfo_v2, _ptsz, info, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after, size_t *count), stream, status, id, graph, after, count)
static CUresult info_3(const char *call, int per_thread, CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after, const CUgraphEdgeData **edges, size_t *count)
{
    if (edges)
        *edges = NULL; /* all edges are plain ones */
    return info(call, per_thread, stream, status, id, graph, after, count);
}
DEFINE_TWINS(cuStreamGetCaptureInfo_v3, _ptsz, info_3, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after, const CUgraphEdgeData **edges, size_t *count), stream, status, id, graph, after, edges, count)

/* Adds to what the next node will depend on, or replaces it. */
static CUresult depend(const char *call, int per_thread, CUstream given, CUgraphNode *nodes, size_t count, unsigned flags)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (flags > 1 || (count && !nodes))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!sim_node_valid(nodes[i]) || nodes[i]->graph != stream->capture)
            return CUDA_ERROR_INVALID_VALUE;
    if (flags == 1)
        stream->capture_after_count = 0;
    return join(stream, nodes, count);
}
DEFINE_TWINS(cuStreamUpdateCaptureDependencies, _ptsz, depend, (CUstream stream, CUgraphNode *nodes, size_t count, unsigned int flags), stream, nodes, count, flags)
static CUresult depend_2(const char *call, int per_thread, CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count, unsigned flags) { (void)edges; return depend(call, per_thread, stream, nodes, count, flags); }
DEFINE_TWINS(cuStreamUpdateCaptureDependencies_v2, _ptsz, depend_2, (CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count, unsigned int flags), stream, nodes, edges, count, flags)

/* Calls that a strict mode would forbid are allowed; the mode is only kept. */
SIM_EXPORTED CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    ENTER();
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    struct thread_state *thread = sim_thread();
    CUstreamCaptureMode old = (CUstreamCaptureMode)thread->capture_mode; /* only ever set from it */
    thread->capture_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}
