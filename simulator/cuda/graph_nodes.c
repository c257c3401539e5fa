/* The kinds of nodes, and their parameters. */
#define _GNU_SOURCE
#include "graph.h"

static CUresult set_kernel(CUgraphNode node, CUfunction function, const unsigned *shape)
{
    struct launch launch = {function, {shape[0], shape[1], shape[2]}, {shape[3], shape[4], shape[5]}, shape[6]};
    CUcontext context = sim_current_context();
    if (!sim_function_of(function) || !context)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_launch_check(context, &launch, 0);
    if (result == CUDA_SUCCESS)
        node->kernel = launch;
    return result;
}

/* The seven figures stand one after another in every version of the parameters. */
#define SHAPE(p) (const unsigned[]){(p)->gridDimX, (p)->gridDimY, (p)->gridDimZ, (p)->blockDimX, (p)->blockDimY, (p)->blockDimZ, (p)->sharedMemBytes}

static CUresult add_kernel(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUfunction function, const unsigned *shape)
{
    CUgraphNode node;
    CUresult result = sim_graph_add(graph, CU_GRAPH_NODE_TYPE_KERNEL, after, count, &node);
    if (result != CUDA_SUCCESS)
        return result;
    result = set_kernel(node, function, shape);
    if (result != CUDA_SUCCESS)
        sim_graph_take_back(graph, node);
    else
        *out = node;
    return result;
}

static CUfunction either(CUfunction function, CUkernel kernel) { return function ? function : (CUfunction)(void *)kernel; /* the same objects: module.c */ }

SIM_EXPORTED CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    ENTER();
    return node && params ? add_kernel(node, graph, after, count, params->func, SHAPE(params)) : CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    ENTER();
    return node && params ? add_kernel(node, graph, after, count, either(params->func, params->kern), SHAPE(params)) : CUDA_ERROR_INVALID_VALUE;
}

static int is_kernel(CUgraphNode node) { return sim_node_valid(node) && node->type == CU_GRAPH_NODE_TYPE_KERNEL; }

SIM_EXPORTED CUresult CUDAAPI cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *params) { ENTER(); return is_kernel(node) && params ? set_kernel(node, params->func, SHAPE(params)) : CUDA_ERROR_INVALID_VALUE; }
SIM_EXPORTED CUresult CUDAAPI cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2 *params) { ENTER(); return is_kernel(node) && params ? set_kernel(node, either(params->func, params->kern), SHAPE(params)) : CUDA_ERROR_INVALID_VALUE; }
SIM_EXPORTED CUresult CUDAAPI cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    ENTER();
    if (!is_kernel(node) || !params)
        return CUDA_ERROR_INVALID_VALUE;
    const struct launch *k = &node->kernel;
    *params = (CUDA_KERNEL_NODE_PARAMS_v1){.func = k->function, .gridDimX = k->grid[0], .gridDimY = k->grid[1], .gridDimZ = k->grid[2],
        .blockDimX = k->block[0], .blockDimY = k->block[1], .blockDimZ = k->block[2], .sharedMemBytes = k->shared};
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
    ENTER();
    if (!is_kernel(node) || !params)
        return CUDA_ERROR_INVALID_VALUE;
    const struct launch *k = &node->kernel;
    *params = (CUDA_KERNEL_NODE_PARAMS_v2){.func = k->function, .gridDimX = k->grid[0], .gridDimY = k->grid[1], .gridDimZ = k->grid[2],
        .blockDimX = k->block[0], .blockDimY = k->block[1], .blockDimZ = k->block[2], .sharedMemBytes = k->shared};
    return CUDA_SUCCESS;
}

static CUresult add_box(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_MEMCPY3D *box)
{
    if (!node || !box)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_graph_add(graph, CU_GRAPH_NODE_TYPE_MEMCPY, after, count, node);
    return result == CUDA_SUCCESS ? sim_graph_set_box(*node, box) : result;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_MEMCPY3D *params, CUcontext context) { ENTER(); (void)context; return add_box(node, graph, after, count, params); }

static CUresult add_fill(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_MEMSET_NODE_PARAMS *params)
{
    CUgraphNode made;
    if (!node || !params)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_graph_add(graph, CU_GRAPH_NODE_TYPE_MEMSET, after, count, &made);
    if (result != CUDA_SUCCESS)
        return result;
    result = sim_graph_set_fill(made, params);
    if (result != CUDA_SUCCESS)
        sim_graph_take_back(graph, made);
    else
        *node = made;
    return result;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context) { ENTER(); (void)context; return add_fill(node, graph, after, count, params); }

static CUresult add_host(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUhostFn function, void *argument)
{
    if (!node || !function)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_graph_add(graph, CU_GRAPH_NODE_TYPE_HOST, after, count, node);
    if (result == CUDA_SUCCESS)
        (*node)->host = (struct host_node){function, argument};
    return result;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_HOST_NODE_PARAMS *params) { ENTER(); return params ? add_host(node, graph, after, count, params->fn, params->userData) : CUDA_ERROR_INVALID_VALUE; }

SIM_EXPORTED CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count)
{
    ENTER();
    return node ? sim_graph_add(graph, CU_GRAPH_NODE_TYPE_EMPTY, after, count, node) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult add_child(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraph child)
{
    if (!node || !sim_graph_valid(child) || child == graph)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph copy = sim_graph_copy(child);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = sim_graph_add(graph, CU_GRAPH_NODE_TYPE_GRAPH, after, count, node);
    if (result == CUDA_SUCCESS)
        (*node)->child = copy;
    else
        sim_graph_free(copy);
    return result;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraph child) { ENTER(); return add_child(node, graph, after, count, child); }
SIM_EXPORTED CUresult CUDAAPI cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
    ENTER();
    if (!graph || !sim_node_valid(node) || node->type != CU_GRAPH_NODE_TYPE_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = node->child;
    return CUDA_SUCCESS;
}

static CUresult add_event(CUgraphNode *node, CUgraph graph, CUgraphNodeType type, const CUgraphNode *after, size_t count, CUevent event)
{
    if (!node || !event || event->kind != HANDLE_EVENT)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_graph_add(graph, type, after, count, node);
    if (result == CUDA_SUCCESS)
        (*node)->event = event;
    return result;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUevent event) { ENTER(); return add_event(node, graph, CU_GRAPH_NODE_TYPE_EVENT_RECORD, after, count, event); }
SIM_EXPORTED CUresult CUDAAPI cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUevent event) { ENTER(); return add_event(node, graph, CU_GRAPH_NODE_TYPE_WAIT_EVENT, after, count, event); }

CUresult sim_graph_add_allocation(CUgraph graph, const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params, CUgraphNode *out)
{
    CUcontext context = sim_current_context();
    int device = params->poolProps.location.id;
    struct memory *memory;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 || (uint32_t)device >= sim_driver.device_count)
        return CUDA_ERROR_INVALID_VALUE;
    /* The address is fixed now, the memory is the ledger's only from the launch on. */
    CUresult result = sim_memory_new(context, sim_driver.gpu_of[device], (uint32_t)device, params->bytesize, MEMORY_GRAPH, 0, &memory); /* checked: not negative */
    if (result != CUDA_SUCCESS)
        return result;
    result = sim_graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, after, count, out);
    if (result != CUDA_SUCCESS) {
        sim_lock_driver();
        sim_memory_delete(memory, 0);
        sim_unlock_driver();
        return result;
    }
    memory->nodes = 1;
    params->dptr = memory->start;
    (*out)->allocation = *params;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    ENTER();
    return node && params ? sim_graph_add_allocation(graph, after, count, params, node) : CUDA_ERROR_INVALID_VALUE;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    ENTER();
    if (!params || !sim_node_valid(node) || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return CUDA_ERROR_INVALID_VALUE;
    *params = node->allocation;
    return CUDA_SUCCESS;
}
static CUresult add_free(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr address)
{
    if (!node || !address)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, after, count, node);
    if (result == CUDA_SUCCESS)
        (*node)->free_address = address;
    return result;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr address) { ENTER(); return add_free(node, graph, after, count, address); }
SIM_EXPORTED CUresult CUDAAPI cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *address)
{
    ENTER();
    if (!address || !sim_node_valid(node) || node->type != CU_GRAPH_NODE_TYPE_MEM_FREE)
        return CUDA_ERROR_INVALID_VALUE;
    *address = node->free_address;
    return CUDA_SUCCESS;
}

#define FILL_OF(p) {(p)->dst, (p)->pitch, (p)->value, (p)->elementSize, (p)->width, (p)->height}
static CUresult add_any(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *params)
{
    if (!node || !params)
        return CUDA_ERROR_INVALID_VALUE;
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return add_kernel(node, graph, after, count, either(params->kernel.func, params->kernel.kern), SHAPE(&params->kernel));
    case CU_GRAPH_NODE_TYPE_EMPTY: return sim_graph_add(graph, CU_GRAPH_NODE_TYPE_EMPTY, after, count, node);
    case CU_GRAPH_NODE_TYPE_GRAPH: return add_child(node, graph, after, count, params->graph.graph);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return add_free(node, graph, after, count, params->free.dptr);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
        CUDA_MEM_ALLOC_NODE_PARAMS old = {.poolProps = params->alloc.poolProps, .bytesize = params->alloc.bytesize};
        CUresult result = sim_graph_add_allocation(graph, after, count, &old, node);
        params->alloc.dptr = old.dptr;
        return result;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: return add_box(node, graph, after, count, &params->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS old = FILL_OF(&params->memset);
        return add_fill(node, graph, after, count, &old);
    }
    case CU_GRAPH_NODE_TYPE_HOST: return add_host(node, graph, after, count, params->host.fn, params->host.userData);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return add_event(node, graph, params->type, after, count, params->event.event);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: return sim_graph_add_with(node, graph, params->type, after, count, &params->extSemSignal);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: return sim_graph_add_with(node, graph, params->type, after, count, &params->extSemWait);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return sim_graph_add_with(node, graph, params->type, after, count, &params->memOp);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return sim_graph_add_condition(node, graph, after, count, &params->conditional);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sim_graph_set_any(CUgraphNode node, const CUgraphNodeParams *params)
{
    if (!params || params->type != node->type)
        return CUDA_ERROR_INVALID_VALUE;
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return set_kernel(node, either(params->kernel.func, params->kernel.kern), SHAPE(&params->kernel));
    case CU_GRAPH_NODE_TYPE_GRAPH: return sim_graph_set_child(node, params->graph.graph);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return sim_graph_set_box(node, &params->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS old = FILL_OF(&params->memset);
        return sim_graph_set_fill(node, &old);
    }
    case CU_GRAPH_NODE_TYPE_HOST:
        if (!params->host.fn)
            return CUDA_ERROR_INVALID_VALUE;
        node->host = (struct host_node){params->host.fn, params->host.userData};
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        if (!params->event.event || params->event.event->kind != HANDLE_EVENT)
            return CUDA_ERROR_INVALID_VALUE;
        node->event = params->event.event;
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: return sim_graph_set_signals(node, &params->extSemSignal);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: return sim_graph_set_waits(node, &params->extSemWait);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return sim_graph_set_operations(node, &params->memOp);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}
SIM_EXPORTED CUresult CUDAAPI cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *params) { ENTER(); return add_any(node, graph, after, count, params); }
SIM_EXPORTED CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) { ENTER(); (void)edges; return add_any(node, graph, after, count, params); }
