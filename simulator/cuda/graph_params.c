/* Parameters of nodes that exist: in a graph, and in one that is ready to run. */
#define _GNU_SOURCE
#include "graph.h"

static int is(CUgraphNode node, CUgraphNodeType type) { return sim_node_valid(node) && node->type == type; }

CUgraphNode sim_exec_node(CUgraphExec exec, CUgraphNode original, CUgraphNodeType type)
{
    if (!sim_exec_valid(exec))
        return NULL;
    for (CUgraphNode twin = exec->graph->nodes; twin; twin = twin->next)
        if (twin->original == original)
            return twin->type == type ? twin : NULL;
    return NULL;
}

CUresult sim_graph_set_box(CUgraphNode node, const CUDA_MEMCPY3D *box)
{
    if (!box)
        return CUDA_ERROR_INVALID_VALUE;
    node->is_box = 1;
    node->box = *box;
    return CUDA_SUCCESS;
}

CUresult sim_graph_set_fill(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params)
{
    if (!params || (params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4))
        return CUDA_ERROR_INVALID_VALUE;
    node->fill = (struct fill_node){params->dst, params->pitch, params->width, params->height, params->value, params->elementSize};
    return CUDA_SUCCESS;
}

CUresult sim_graph_set_child(CUgraphNode node, CUgraph child)
{
    CUgraph copy = sim_graph_valid(child) ? sim_graph_copy(child) : NULL;
    if (!copy)
        return sim_graph_valid(child) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    sim_graph_free(node->child);
    node->child = copy;
    return CUDA_SUCCESS;
}

static CUresult set_host(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params)
{
    if (!node || !params || !params->fn)
        return CUDA_ERROR_INVALID_VALUE;
    node->host = (struct host_node){params->fn, params->userData};
    return CUDA_SUCCESS;
}

static CUresult set_event(CUgraphNode node, CUevent event)
{
    if (!node || !event || event->kind != HANDLE_EVENT)
        return CUDA_ERROR_INVALID_VALUE;
    node->event = event;
    return CUDA_SUCCESS;
}

static CUresult get_event(CUgraphNode node, CUgraphNodeType type, CUevent *event)
{
    if (!event || !is(node, type))
        return CUDA_ERROR_INVALID_VALUE;
    *event = node->event;
    return CUDA_SUCCESS;
}

static CUgraphNode only(CUgraphNode node, CUgraphNodeType type) { return is(node, type) ? node : NULL; }

SIM_EXPORTED CUresult CUDAAPI cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *params)
{
    ENTER();
    if (!params || !is(node, CU_GRAPH_NODE_TYPE_MEMCPY))
        return CUDA_ERROR_INVALID_VALUE;
    if (node->is_box)
        *params = node->box;
    else
        *params = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = node->copy.source, .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                                  .dstDevice = node->copy.destination, .WidthInBytes = node->copy.bytes, .Height = 1, .Depth = 1};
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *params) { ENTER(); return is(node, CU_GRAPH_NODE_TYPE_MEMCPY) ? sim_graph_set_box(node, params) : CUDA_ERROR_INVALID_VALUE; }
SIM_EXPORTED CUresult CUDAAPI cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *params, CUcontext context)
{
    ENTER();
    (void)context;
    CUgraphNode twin = sim_exec_node(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY);
    return twin ? sim_graph_set_box(twin, params) : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params)
{
    ENTER();
    if (!params || !is(node, CU_GRAPH_NODE_TYPE_MEMSET))
        return CUDA_ERROR_INVALID_VALUE;
    const struct fill_node *fill = &node->fill;
    *params = (CUDA_MEMSET_NODE_PARAMS){fill->destination, fill->pitch, fill->value, fill->element, fill->width, fill->height};
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params) { ENTER(); return is(node, CU_GRAPH_NODE_TYPE_MEMSET) ? sim_graph_set_fill(node, params) : CUDA_ERROR_INVALID_VALUE; }
SIM_EXPORTED CUresult CUDAAPI cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context)
{
    ENTER();
    (void)context;
    CUgraphNode twin = sim_exec_node(exec, node, CU_GRAPH_NODE_TYPE_MEMSET);
    return twin ? sim_graph_set_fill(twin, params) : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *params)
{
    ENTER();
    if (!params || !is(node, CU_GRAPH_NODE_TYPE_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    *params = (CUDA_HOST_NODE_PARAMS){node->host.function, node->host.argument};
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params) { ENTER(); return set_host(only(node, CU_GRAPH_NODE_TYPE_HOST), params); }
SIM_EXPORTED CUresult CUDAAPI cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params) { ENTER(); return set_host(sim_exec_node(exec, node, CU_GRAPH_NODE_TYPE_HOST), params); }

SIM_EXPORTED CUresult CUDAAPI cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *event) { ENTER(); return get_event(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event); }
SIM_EXPORTED CUresult CUDAAPI cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *event) { ENTER(); return get_event(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event); }
SIM_EXPORTED CUresult CUDAAPI cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) { ENTER(); return set_event(only(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD), event); }
SIM_EXPORTED CUresult CUDAAPI cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) { ENTER(); return set_event(only(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT), event); }
SIM_EXPORTED CUresult CUDAAPI cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) { ENTER(); return set_event(sim_exec_node(exec, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD), event); }
SIM_EXPORTED CUresult CUDAAPI cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) { ENTER(); return set_event(sim_exec_node(exec, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT), event); }
SIM_EXPORTED CUresult CUDAAPI cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
    ENTER();
    CUgraphNode twin = sim_exec_node(exec, node, CU_GRAPH_NODE_TYPE_GRAPH);
    return twin ? sim_graph_set_child(twin, child) : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params) { ENTER(); return sim_node_valid(node) ? sim_graph_set_any(node, params) : CUDA_ERROR_INVALID_VALUE; }
SIM_EXPORTED CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params)
{
    ENTER();
    CUgraphNode twin = params ? sim_exec_node(exec, node, params->type) : NULL;
    return twin ? sim_graph_set_any(twin, params) : CUDA_ERROR_INVALID_VALUE;
}

/* Kernels, copies and fills can be left out of a launch. */
static CUgraphNode switchable(CUgraphExec exec, CUgraphNode node)
{
    CUgraphNode twin = sim_node_valid(node) ? sim_exec_node(exec, node, node->type) : NULL;
    return twin && (twin->type == CU_GRAPH_NODE_TYPE_KERNEL || twin->type == CU_GRAPH_NODE_TYPE_MEMCPY || twin->type == CU_GRAPH_NODE_TYPE_MEMSET) ? twin : NULL;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled)
{
    ENTER();
    CUgraphNode twin = switchable(exec, node);
    if (!twin)
        return CUDA_ERROR_INVALID_VALUE;
    twin->disabled = enabled == 0;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *enabled)
{
    ENTER();
    CUgraphNode twin = switchable(exec, node);
    if (!twin || !enabled)
        return CUDA_ERROR_INVALID_VALUE;
    *enabled = !twin->disabled;
    return CUDA_SUCCESS;
}
