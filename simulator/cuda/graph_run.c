/* Running graphs. The nodes go out in an order that keeps all dependencies. Branches run beside each other: each
 * has a lane, a stream of the executable graph (the first is the launch's own), and where lanes meet one waits for
 * the other. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

int sim_exec_valid(CUgraphExec exec) { return exec && exec->kind == HANDLE_EXEC; }

static void drop_lanes(CUgraphExec exec)
{
    for (uint32_t i = 0; i < MAX_LANES; i++) {
        if (exec->lanes[i] && exec->lanes[i]->kind == HANDLE_STREAM)
            cuStreamDestroy_v2(exec->lanes[i]); /* its work goes on */
        exec->lanes[i] = NULL;
    }
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, uint64_t flags)
{
    if (!out || !sim_graph_valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphExec exec = calloc(1, sizeof *exec);
    if (!exec)
        return CUDA_ERROR_OUT_OF_MEMORY;
    exec->graph = sim_graph_copy(graph);
    exec->sorted = exec->graph ? sim_graph_sort(exec->graph) : NULL;
    if (!exec->sorted) {
        CUresult result = exec->graph ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY; /* a cycle */
        if (exec->graph)
            sim_graph_free(exec->graph);
        free(exec);
        return result;
    }
    exec->kind = HANDLE_EXEC;
    exec->context = sim_current_context();
    exec->flags = flags;
    *out = exec;
    return CUDA_SUCCESS;
}

static CUresult instantiate_old(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
    if (error_node)
        *error_node = NULL;
    if (log && size)
        *log = 0;
    return instantiate(exec, graph, 0);
}
SIM_EXPORTED CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size) { ENTER(); return instantiate_old(exec, graph, error_node, log, size); }
SIM_EXPORTED CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size) { ENTER(); return instantiate_old(exec, graph, error_node, log, size); }
SIM_EXPORTED CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) { ENTER(); return instantiate(exec, graph, flags); }

static void discard(CUgraphExec exec)
{
    exec->kind = HANDLE_DEAD;
    drop_lanes(exec);
    sim_graph_free(exec->graph);
    free(exec->sorted);
    free(exec);
}

/* What its allocation nodes need is mapped ahead of the launch, and kept for it. */
static CUresult prepare(CUgraphExec exec)
{
    struct memory **taken = calloc(exec->graph->count ? exec->graph->count : 1, sizeof *taken);
    CUresult result = taken ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    size_t count = 0;
    sim_lock_driver();
    for (size_t i = 0; i < exec->graph->count && result == CUDA_SUCCESS; i++) {
        CUgraphNode node = exec->sorted[i];
        struct memory *memory = node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? sim_memory_find(node->allocation.dptr) : NULL;
        if (!memory || memory->kind != MEMORY_GRAPH || memory->charged)
            continue;
        result = sim_graph_memory_take(memory);
        if (result == CUDA_SUCCESS)
            taken[count++] = memory;
    }
    while (count)
        sim_graph_memory_give(taken[--count]);
    sim_unlock_driver();
    free(taken);
    return result;
}

static CUresult instantiate_with(const char *call, int per_thread, CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    CUresult result = sim_enter(call);
    (void)per_thread;
    if (result != CUDA_SUCCESS)
        return result;
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    result = instantiate(exec, graph, params->flags);
    if (result == CUDA_SUCCESS && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)) {
        result = prepare(*exec);
        if (result != CUDA_SUCCESS)
            discard(*exec);
    }
    params->hErrNode_out = NULL;
    params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}
DEFINE_TWINS(cuGraphInstantiateWithParams, _ptsz, instantiate_with, (CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params), exec, graph, params)

SIM_EXPORTED CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec)
{
    ENTER();
    if (!sim_exec_valid(exec))
        return CUDA_ERROR_INVALID_VALUE;
    discard(exec);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
    ENTER();
    if (!sim_exec_valid(exec) || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

static CUresult run_allocation(CUgraphNode node)
{
    sim_lock_driver();
    struct memory *memory = sim_memory_find(node->allocation.dptr);
    CUresult result = memory && memory->kind == MEMORY_GRAPH ? sim_graph_memory_take(memory) : CUDA_ERROR_INVALID_VALUE;
    sim_unlock_driver();
    return result;
}

/* In order of calls, as everything about pools: the next allocation on the stream takes the same bytes again. */
static CUresult run_free(CUdeviceptr address)
{
    sim_lock_driver();
    struct memory *memory = sim_memory_find(address);
    CUresult result = memory && memory->start == address && memory->kind == MEMORY_GRAPH ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        sim_graph_memory_give(memory);
    sim_unlock_driver();
    return result;
}

static CUresult run_copy(CUstream stream, CUgraphNode node)
{
    return node->is_box ? sim_copy_box(stream, &node->box, 0) : sim_copy(stream, node->copy.destination, node->copy.source, node->copy.bytes, 0);
}

static CUresult run_graph(CUgraphExec exec, CUstream stream, CUgraph graph, CUgraphNode *sorted);

/* A graph inside a node. */
static CUresult run_inner(CUgraphExec exec, CUstream stream, CUgraph graph)
{
    CUgraphNode *sorted = sim_graph_sort(graph);
    CUresult result = sorted ? run_graph(exec, stream, graph, sorted) : CUDA_ERROR_INVALID_VALUE;
    free(sorted);
    return result;
}

static CUresult run_node(CUgraphExec exec, CUstream stream, CUgraphNode node)
{
    if (node->disabled)
        return CUDA_SUCCESS;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return sim_launch(stream, &node->kernel, 0);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return run_copy(stream, node);
    case CU_GRAPH_NODE_TYPE_MEMSET: return sim_fill(stream, node->fill.destination, node->fill.pitch, node->fill.value, node->fill.element, node->fill.width, node->fill.height, 0);
    case CU_GRAPH_NODE_TYPE_HOST: return sim_host_enqueue(stream, node->host.function, node->host.argument);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return run_allocation(node);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return run_free(node->free_address);
    case CU_GRAPH_NODE_TYPE_GRAPH: return run_inner(exec, stream, node->child);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: {
        CUgraph body = sim_graph_chosen_body(node->graph, node);
        return body ? run_inner(exec, stream, body) : CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return sim_graph_run_operations(node, stream);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return cuEventRecord(node->event, stream);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return cuStreamWaitEvent(stream, node->event, 0);
    default: return CUDA_SUCCESS; /* empty */
    }
}

/* The stream of a lane; lanes of an earlier context went with it, or are let go. */
static CUresult lane_stream(CUgraphExec exec, CUstream stream, uint32_t lane, CUstream *out)
{
    *out = stream;
    if (lane == 0)
        return CUDA_SUCCESS;
    if (exec->lane_context != stream->context || !sim_context_valid(exec->lane_context)) {
        drop_lanes(exec);
        exec->lane_context = stream->context;
    }
    if (!exec->lanes[lane - 1]) {
        CUresult result = sim_stream_create(stream->context, CU_STREAM_NON_BLOCKING, stream->priority, &exec->lanes[lane - 1]);
        if (result != CUDA_SUCCESS)
            return result;
    }
    *out = exec->lanes[lane - 1];
    return CUDA_SUCCESS;
}

/* What `stream` is given from now on waits until `row` has done its items before `tail`. */
static CUresult wait_for(CUstream stream, uint32_t row, uint64_t tail)
{
    const struct sim_stream *other = &sim_here()->streams[row];
    if (__atomic_load_n(&other->head, __ATOMIC_ACQUIRE) >= tail) /* acquire: what was done is in memory */
        return CUDA_SUCCESS;
    return sim_enqueue(stream, &(struct sim_item){.kind = SIM_ITEM_STREAM_WAIT, .a = row, .b = tail, .bytes = other->generation});
}

static uint64_t tail_of(CUstream stream) { return __atomic_load_n(&sim_here()->streams[stream->row].tail, __ATOMIC_ACQUIRE); /* with it goes what stands before */ }

static CUresult run_graph(CUgraphExec exec, CUstream stream, CUgraph graph, CUgraphNode *sorted)
{
    CUresult result = CUDA_SUCCESS;
    uint64_t begun = tail_of(stream);
    uint32_t used = 0; /* bit n: lane n */
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++) {
        CUgraphNode node = sorted[i];
        CUstream lane;
        result = lane_stream(exec, stream, node->lane, &lane);
        if (result == CUDA_SUCCESS && lane != stream && !(used & (1u << node->lane)))
            result = wait_for(lane, stream->row, begun);
        used |= 1u << node->lane;
        for (size_t j = 0; j < node->after_count && result == CUDA_SUCCESS; j++)
            if (node->after[j]->done_row != lane->row)
                result = wait_for(lane, node->after[j]->done_row, node->after[j]->done_at);
        if (result == CUDA_SUCCESS)
            result = run_node(exec, lane, node);
        node->done_row = lane->row;
        node->done_at = tail_of(lane);
    }
    for (uint32_t lane = 1; lane <= MAX_LANES && result == CUDA_SUCCESS; lane++)
        if (used & (1u << lane))
            result = wait_for(stream, exec->lanes[lane - 1]->row, tail_of(exec->lanes[lane - 1]));
    return result;
}

static pthread_mutex_t launching = PTHREAD_MUTEX_INITIALIZER;

static CUresult launch(const char *call, int per_thread, CUgraphExec exec, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!sim_exec_valid(exec))
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return sim_capture_graph(stream, exec->graph);
    pthread_mutex_lock(&launching); /* the nodes' scratch words are of one launch at a time */
    result = run_graph(exec, stream, exec->graph, exec->sorted);
    pthread_mutex_unlock(&launching);
    return result;
}
DEFINE_TWINS(cuGraphLaunch, _ptsz, launch, (CUgraphExec exec, CUstream stream), exec, stream)

static CUresult upload(const char *call, int per_thread, CUgraphExec exec, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result == CUDA_SUCCESS && !sim_exec_valid(exec))
        result = CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_SUCCESS ? prepare(exec) : result;
}
DEFINE_TWINS(cuGraphUpload, _ptsz, upload, (CUgraphExec exec, CUstream stream), exec, stream)

static size_t place_of(CUgraph graph, CUgraphNode node)
{
    size_t place = 0;
    for (CUgraphNode at = graph->nodes; at && at != node; at = at->next)
        place++;
    return place;
}

/* Why the nodes of `new` cannot take the place of those of `old`, and which node it is (NULL: they have not as many). */
static CUgraphExecUpdateResult difference(CUgraph old_graph, CUgraph new_graph, CUgraphNode *at)
{
    CUgraphNode old = old_graph->nodes, new = new_graph->nodes;
    *at = NULL;
    if (old_graph->count != new_graph->count)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (; old && new; old = old->next, new = new->next) {
        *at = new;
        if (old->type != new->type)
            return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        if (old->after_count != new->after_count)
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        for (size_t i = 0; i < old->after_count; i++)
            if (place_of(old_graph, old->after[i]) != place_of(new_graph, new->after[i]))
                return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        if (old->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || old->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
        CUgraphNode inner;
        CUgraphExecUpdateResult result = old->type == CU_GRAPH_NODE_TYPE_GRAPH ? difference(old->child, new->child, &inner) : CU_GRAPH_EXEC_UPDATE_SUCCESS;
        if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
            return result;
    }
    *at = NULL;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static CUgraphExecUpdateResult update(CUgraphExec exec, CUgraph graph, CUgraphNode *at)
{
    CUgraphExecUpdateResult result = difference(exec->graph, graph, at);
    if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS)
        return result;
    CUgraph copy = sim_graph_copy(graph);
    CUgraphNode *sorted = copy ? sim_graph_sort(copy) : NULL;
    if (!sorted) {
        if (copy)
            sim_graph_free(copy);
        return CU_GRAPH_EXEC_UPDATE_ERROR;
    }
    /* Its nodes go on being known by the graph that it was made from. */
    for (CUgraphNode old = exec->graph->nodes, new = copy->nodes; old; old = old->next, new = new->next)
        new->original = old->original;
    sim_graph_free(exec->graph);
    free(exec->sorted);
    exec->graph = copy;
    exec->sorted = sorted;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, CUgraphExecUpdateResult *answer)
{
    ENTER();
    CUgraphNode at;
    if (!sim_exec_valid(exec) || !sim_graph_valid(graph) || !answer)
        return CUDA_ERROR_INVALID_VALUE;
    *answer = update(exec, graph, &at);
    if (error_node)
        *error_node = at;
    return *answer == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *answer)
{
    ENTER();
    CUgraphNode at;
    if (!sim_exec_valid(exec) || !sim_graph_valid(graph) || !answer)
        return CUDA_ERROR_INVALID_VALUE;
    *answer = (CUgraphExecUpdateResultInfo){.result = update(exec, graph, &at)};
    answer->errorNode = at;
    return answer->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

static CUresult exec_kernel(CUgraphExec exec, CUgraphNode node, CUfunction function, const struct launch *shape)
{
    CUgraphNode twin = sim_function_of(function) ? sim_exec_node(exec, node, CU_GRAPH_NODE_TYPE_KERNEL) : NULL;
    if (!twin)
        return CUDA_ERROR_INVALID_VALUE;
    twin->kernel = *shape;
    twin->kernel.function = function;
    return CUDA_SUCCESS;
}
#define LAUNCH_OF(p) (struct launch){(p)->func, {(p)->gridDimX, (p)->gridDimY, (p)->gridDimZ}, {(p)->blockDimX, (p)->blockDimY, (p)->blockDimZ}, (p)->sharedMemBytes}
SIM_EXPORTED CUresult CUDAAPI cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *params) { ENTER(); return params ? exec_kernel(exec, node, params->func, &LAUNCH_OF(params)) : CUDA_ERROR_INVALID_VALUE; }
SIM_EXPORTED CUresult CUDAAPI cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    ENTER();
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUfunction function = params->func ? params->func : (CUfunction)(void *)params->kern; /* the same objects: module.c */
    return exec_kernel(exec, node, function, &LAUNCH_OF(params));
}
