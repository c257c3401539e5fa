/* Running graphs. The nodes go into the launch stream in an order that keeps all dependencies, one after
 * another: branches are not run beside each other. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

static int exec_valid(CUgraphExec exec) { return exec && exec->kind == HANDLE_EXEC; }

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

static CUresult instantiate_with(const char *call, int per_thread, CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    CUresult result = sim_enter(call);
    (void)per_thread;
    if (result != CUDA_SUCCESS)
        return result;
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    result = instantiate(exec, graph, params->flags);
    params->hErrNode_out = NULL;
    params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}
DEFINE_TWINS(cuGraphInstantiateWithParams, _ptsz, instantiate_with, (CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params), exec, graph, params)

SIM_EXPORTED CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec)
{
    ENTER();
    if (!exec_valid(exec))
        return CUDA_ERROR_INVALID_VALUE;
    exec->kind = HANDLE_DEAD;
    sim_graph_free(exec->graph);
    free(exec->sorted);
    free(exec);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
    ENTER();
    if (!exec_valid(exec) || !flags)
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
    if (!node->is_box)
        return sim_copy(stream, node->copy.destination, node->copy.source, node->copy.bytes, 0);
    const CUDA_MEMCPY3D *box = &node->box;
    /* Host and device addresses are of one kind here. */
    CUdeviceptr from = box->srcMemoryType == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)box->srcHost : box->srcDevice;
    CUdeviceptr to = box->dstMemoryType == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)box->dstHost : box->dstDevice;
    for (size_t z = 0; z < box->Depth; z++)
        for (size_t y = 0; y < box->Height; y++) {
            CUdeviceptr source = from + ((box->srcZ + z) * box->srcHeight + box->srcY + y) * box->srcPitch + box->srcXInBytes;
            CUdeviceptr destination = to + ((box->dstZ + z) * box->dstHeight + box->dstY + y) * box->dstPitch + box->dstXInBytes;
            CUresult result = sim_copy(stream, destination, source, box->WidthInBytes, 0);
            if (result != CUDA_SUCCESS)
                return result;
        }
    return CUDA_SUCCESS;
}

static CUresult run_graph(CUstream stream, CUgraph graph, CUgraphNode *sorted);

static CUresult run_node(CUstream stream, CUgraphNode node)
{
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return sim_launch(stream, &node->kernel, 0);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return run_copy(stream, node);
    case CU_GRAPH_NODE_TYPE_MEMSET: return sim_fill(stream, node->fill.destination, node->fill.pitch, node->fill.value, node->fill.element, node->fill.width, node->fill.height, 0);
    case CU_GRAPH_NODE_TYPE_HOST: return sim_host_enqueue(stream, node->host.function, node->host.argument);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return run_allocation(node);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return run_free(node->free_address);
    case CU_GRAPH_NODE_TYPE_GRAPH: {
        CUgraphNode *sorted = sim_graph_sort(node->child);
        CUresult result = sorted ? run_graph(stream, node->child, sorted) : CUDA_ERROR_INVALID_VALUE;
        free(sorted);
        return result;
    }
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return cuEventRecord(node->event, stream);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return cuStreamWaitEvent(stream, node->event, 0);
    default: return CUDA_SUCCESS; /* empty */
    }
}

static CUresult run_graph(CUstream stream, CUgraph graph, CUgraphNode *sorted)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++)
        result = run_node(stream, sorted[i]);
    return result;
}

static CUresult launch(const char *call, int per_thread, CUgraphExec exec, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!exec_valid(exec))
        return CUDA_ERROR_INVALID_VALUE;
    return stream->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : run_graph(stream, exec->graph, exec->sorted);
}
DEFINE_TWINS(cuGraphLaunch, _ptsz, launch, (CUgraphExec exec, CUstream stream), exec, stream)

static CUresult upload(const char *call, int per_thread, CUgraphExec exec, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    return result == CUDA_SUCCESS && !exec_valid(exec) ? CUDA_ERROR_INVALID_VALUE : result;
}
DEFINE_TWINS(cuGraphUpload, _ptsz, upload, (CUgraphExec exec, CUstream stream), exec, stream)

/* The same nodes of the same types in the same order can be exchanged; anything else is another graph. */
static CUgraphExecUpdateResult update(CUgraphExec exec, CUgraph graph)
{
    CUgraphNode old = exec->graph->nodes, new = graph->nodes;
    for (; old && new; old = old->next, new = new->next)
        if (old->type != new->type || old->after_count != new->after_count)
            break;
    if (old || new)
        return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    CUgraph copy = sim_graph_copy(graph);
    CUgraphNode *sorted = copy ? sim_graph_sort(copy) : NULL;
    if (!sorted) {
        if (copy)
            sim_graph_free(copy);
        return CU_GRAPH_EXEC_UPDATE_ERROR;
    }
    sim_graph_free(exec->graph);
    free(exec->sorted);
    exec->graph = copy;
    exec->sorted = sorted;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, CUgraphExecUpdateResult *answer)
{
    ENTER();
    if (!exec_valid(exec) || !sim_graph_valid(graph) || !answer)
        return CUDA_ERROR_INVALID_VALUE;
    if (error_node)
        *error_node = NULL;
    *answer = update(exec, graph);
    return *answer == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : (CUresult)910; /* CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE */
}

SIM_EXPORTED CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *answer)
{
    ENTER();
    if (!exec_valid(exec) || !sim_graph_valid(graph) || !answer)
        return CUDA_ERROR_INVALID_VALUE;
    *answer = (CUgraphExecUpdateResultInfo){.result = update(exec, graph)};
    return answer->result == CU_GRAPH_EXEC_UPDATE_SUCCESS ? CUDA_SUCCESS : (CUresult)910; /* as above */
}

static CUresult exec_kernel(CUgraphExec exec, CUgraphNode node, CUfunction function, const struct launch *shape)
{
    if (!exec_valid(exec) || !sim_function_of(function))
        return CUDA_ERROR_INVALID_VALUE;
    for (CUgraphNode twin = exec->graph->nodes; twin; twin = twin->next)
        if (twin->original == node && twin->type == CU_GRAPH_NODE_TYPE_KERNEL) {
            twin->kernel = *shape;
            twin->kernel.function = function;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
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
