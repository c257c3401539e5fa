/* Executable graphs that are changed take as long as what they are then. */
#include <stddef.h>
#include <string.h>

#include "driver.h"
#include "graph_costs.h"
#include "process.h"

/* NULL: nothing is charged here. */
static struct hv_process *limited(CUresult result)
{
    return result == CUDA_SUCCESS && hv_attach_state() == HV_ATTACH_DONE ? hv_process() : NULL;
}

static CUresult updated(CUresult result, CUgraphExec executable, CUgraph graph)
{
    struct hv_process *process = limited(result);
    if (process != NULL)
        hv_graph_costs_updated(process, executable, graph);
    return result;
}

HV_WRAP(cuGraphExecUpdate, (CUgraphExec executable, CUgraph graph, CUgraphNode *error_node, int *answer))
{
    return updated(HV_REAL(cuGraphExecUpdate)(executable, graph, error_node, answer), executable, graph);
}

HV_WRAP(cuGraphExecUpdate_v2, (CUgraphExec executable, CUgraph graph, void *answer))
{
    return updated(HV_REAL(cuGraphExecUpdate_v2)(executable, graph, answer), executable, graph);
}

static CUresult kernel_set(CUresult result, CUgraphExec executable, CUgraphNode node,
                           const CUDA_KERNEL_NODE_PARAMS *parameters)
{
    struct hv_process *process = limited(result);
    if (process != NULL && parameters != NULL)
        hv_graph_costs_kernel_set(process, executable, node, parameters);
    return result;
}

/* The older form has the first part of the struct only. */
HV_WRAP(cuGraphExecKernelNodeSetParams,
        (CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters))
{
    CUresult result = HV_REAL(cuGraphExecKernelNodeSetParams)(executable, node, parameters);
    if (parameters == NULL)
        return result;
    CUDA_KERNEL_NODE_PARAMS whole = {0};
    memcpy(&whole, parameters, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return kernel_set(result, executable, node, &whole);
}

HV_WRAP(cuGraphExecKernelNodeSetParams_v2,
        (CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters))
{
    return kernel_set(HV_REAL(cuGraphExecKernelNodeSetParams_v2)(executable, node, parameters), executable, node,
                      parameters);
}

static CUresult child_set(CUresult result, CUgraphExec executable, CUgraphNode node, CUgraph child)
{
    struct hv_process *process = limited(result);
    if (process != NULL)
        hv_graph_costs_child_set(process, executable, node, child);
    return result;
}

HV_WRAP(cuGraphExecChildGraphNodeSetParams, (CUgraphExec executable, CUgraphNode node, CUgraph child))
{
    return child_set(HV_REAL(cuGraphExecChildGraphNodeSetParams)(executable, node, child), executable, node, child);
}

HV_WRAP(cuGraphExecNodeSetParams, (CUgraphExec executable, CUgraphNode node, CUgraphNodeParams *parameters))
{
    CUresult result = HV_REAL(cuGraphExecNodeSetParams)(executable, node, parameters);
    if (parameters != NULL && parameters->type == CU_GRAPH_NODE_TYPE_KERNEL)
        return kernel_set(result, executable, node, &parameters->kernel);
    if (parameters != NULL && parameters->type == CU_GRAPH_NODE_TYPE_GRAPH)
        return child_set(result, executable, node, parameters->child);
    return result;
}

HV_WRAP(cuGraphNodeSetEnabled, (CUgraphExec executable, CUgraphNode node, unsigned int enabled))
{
    hv_call_type_cuGraphNodeGetEnabled ask = HV_DRIVER(cuGraphNodeGetEnabled);
    unsigned int before = 0;
    bool told = ask != NULL && ask(executable, node, &before) == CUDA_SUCCESS;
    CUresult result = HV_REAL(cuGraphNodeSetEnabled)(executable, node, enabled);
    struct hv_process *process = limited(result);
    if (process != NULL && !(told && (before != 0) == (enabled != 0)))
        hv_graph_costs_enabled(process, executable, node, enabled != 0);
    return result;
}

/* ---- nodes of graphs, which executables that are there keep as they were ---- */

/* Programs that set both set the graph's node first, or last. */
#define SOURCE_SET(name, type)                                                                                        \
    HV_WRAP(name, (CUgraphNode node, type * parameters))                                                              \
    {                                                                                                                 \
        struct hv_process *process = limited(CUDA_SUCCESS);                                                           \
        if (process == NULL)                                                                                          \
            return HV_REAL(name)(node, parameters);                                                                   \
        uint64_t before = hv_graph_costs_of_source(process, node);                                                    \
        CUresult result = HV_REAL(name)(node, parameters);                                                            \
        if (result == CUDA_SUCCESS && hv_graph_costs_of_source(process, node) != before)                              \
            hv_graph_costs_source_changed(process);                                                                   \
        return result;                                                                                                \
    }

SOURCE_SET(cuGraphKernelNodeSetParams, const CUDA_KERNEL_NODE_PARAMS)
SOURCE_SET(cuGraphKernelNodeSetParams_v2, const CUDA_KERNEL_NODE_PARAMS)
SOURCE_SET(cuGraphNodeSetParams, CUgraphNodeParams)
SOURCE_SET(cuGraphNodeSetParams_v2, CUgraphNodeParams)
