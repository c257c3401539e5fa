/* Nodes that a graph has lists for: operations on memory, signals to external semaphores and waits for them. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

static int has_semaphores(CUgraphNode node) { return node->type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL || node->type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT; }

static void *copy_of(const void *from, size_t bytes)
{
    void *copy = malloc(bytes);
    return copy ? memcpy(copy, from, bytes) : NULL;
}

void sim_graph_free_lists(CUgraphNode node)
{
    if (has_semaphores(node)) {
        free(node->semaphores.semaphores);
        free(node->semaphores.values);
        free(node->semaphores.given);
    } else if (node->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
        free(node->operations.list);
    }
}

static size_t given_bytes(CUgraphNode node)
{
    return node->type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL ? sizeof(CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS) : sizeof(CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS);
}

/* Takes copies of the lists into the place of what the node had; the node is unchanged where there is no memory. */
static int take_semaphores(CUgraphNode node, const CUexternalSemaphore *semaphores, const uint64_t *values, const void *given, unsigned count)
{
    struct semaphore_node made = {.semaphores = copy_of(semaphores, count * sizeof *semaphores), .values = copy_of(values, count * sizeof *values),
                                  .given = copy_of(given, count * given_bytes(node)), .count = count};
    if (!made.semaphores || !made.values || !made.given) {
        free(made.semaphores);
        free(made.values);
        free(made.given);
        return 0;
    }
    sim_graph_free_lists(node);
    node->semaphores = made;
    return 1;
}

static int take_operations(CUgraphNode node, const struct operations_node *from)
{
    struct operations_node made = *from;
    made.list = copy_of(from->list, from->count * sizeof *from->list);
    if (!made.list)
        return 0;
    sim_graph_free_lists(node);
    node->operations = made;
    return 1;
}

int sim_graph_copy_lists(CUgraphNode twin, CUgraphNode node)
{
    if (has_semaphores(node)) {
        twin->semaphores = (struct semaphore_node){0};
        return take_semaphores(twin, node->semaphores.semaphores, node->semaphores.values, node->semaphores.given, node->semaphores.count);
    }
    if (node->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
        twin->operations = (struct operations_node){0};
        return take_operations(twin, &node->operations);
    }
    return 1;
}

CUresult sim_graph_set_operations(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
    if (!params || !params->paramArray || !params->count || params->count > 256 || params->flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct operations_node from = {params->ctx, params->paramArray, params->count, params->flags};
    return take_operations(node, &from) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult set_semaphores(CUgraphNode node, const CUexternalSemaphore *semaphores, const void *given, unsigned count)
{
    if (!semaphores || !given || !count)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t *values = malloc(count * sizeof *values);
    CUresult result = values ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        memcpy(&values[i], (const char *)given + i * given_bytes(node), sizeof *values); /* the value stands first in both structures */
        if (!sim_semaphore_valid(semaphores[i]))
            result = CUDA_ERROR_INVALID_HANDLE;
    }
    if (result == CUDA_SUCCESS && !take_semaphores(node, semaphores, values, given, count))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    free(values);
    return result;
}
CUresult sim_graph_set_signals(CUgraphNode node, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *params) { return params ? set_semaphores(node, params->extSemArray, params->paramsArray, params->numExtSems) : CUDA_ERROR_INVALID_VALUE; }
CUresult sim_graph_set_waits(CUgraphNode node, const CUDA_EXT_SEM_WAIT_NODE_PARAMS *params) { return params ? set_semaphores(node, params->extSemArray, params->paramsArray, params->numExtSems) : CUDA_ERROR_INVALID_VALUE; }

static CUresult set(CUgraphNode node, const void *params)
{
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: return sim_graph_set_signals(node, params);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: return sim_graph_set_waits(node, params);
    default: return sim_graph_set_operations(node, params);
    }
}

CUresult sim_graph_add_with(CUgraphNode *out, CUgraph graph, CUgraphNodeType type, const CUgraphNode *after, size_t count, const void *params)
{
    CUgraphNode node;
    if (!out || !params)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_graph_add(graph, type, after, count, &node);
    if (result != CUDA_SUCCESS)
        return result;
    result = set(node, params);
    if (result != CUDA_SUCCESS)
        sim_graph_take_back(graph, node);
    else
        *out = node;
    return result;
}

CUresult sim_graph_run_operations(CUgraphNode node, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    if (node->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
        return sim_memory_operations(stream, node->operations.list, node->operations.count);
    for (unsigned i = 0; i < node->semaphores.count && result == CUDA_SUCCESS; i++)
        result = node->type == CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL ? sim_semaphore_signal(stream, node->semaphores.semaphores[i], node->semaphores.values[i])
                                                                   : sim_semaphore_await(stream, node->semaphores.semaphores[i], node->semaphores.values[i]);
    return result;
}

static CUgraphNode of_type(CUgraphNode node, CUgraphNodeType type) { return sim_node_valid(node) && node->type == type ? node : NULL; }

static CUresult set_or_refuse(CUgraphNode node, const void *params) { return node && params ? set(node, params) : CUDA_ERROR_INVALID_VALUE; }

/* The lists that are given out are the node's own: valid until it changes. */
static CUresult get_semaphores(CUgraphNode node, CUexternalSemaphore **semaphores, const void **given, unsigned *count)
{
    *semaphores = node->semaphores.semaphores;
    *given = node->semaphores.given;
    *count = node->semaphores.count;
    return CUDA_SUCCESS;
}

#define DEFINE_NODE(add, get_params, set_params, set_in_exec, node_type, params_type, fill) \
    CUresult CUDAAPI add(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const params_type *params); \
    SIM_EXPORTED CUresult CUDAAPI add(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const params_type *params) { ENTER(); return sim_graph_add_with(node, graph, node_type, after, count, params); } \
    CUresult CUDAAPI set_params(CUgraphNode node, const params_type *params); \
    SIM_EXPORTED CUresult CUDAAPI set_params(CUgraphNode node, const params_type *params) { ENTER(); return set_or_refuse(of_type(node, node_type), params); } \
    CUresult CUDAAPI set_in_exec(CUgraphExec exec, CUgraphNode node, const params_type *params); \
    SIM_EXPORTED CUresult CUDAAPI set_in_exec(CUgraphExec exec, CUgraphNode node, const params_type *params) { ENTER(); return set_or_refuse(sim_exec_node(exec, node, node_type), params); } \
    CUresult CUDAAPI get_params(CUgraphNode node, params_type *params); \
    SIM_EXPORTED CUresult CUDAAPI get_params(CUgraphNode node, params_type *params) \
    { \
        ENTER(); \
        if (!params || !of_type(node, node_type)) \
            return CUDA_ERROR_INVALID_VALUE; \
        fill; \
    }

static CUresult get_signals(CUgraphNode node, CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *params)
{
    const void *given;
    get_semaphores(node, &params->extSemArray, &given, &params->numExtSems);
    params->paramsArray = given;
    return CUDA_SUCCESS;
}
static CUresult get_waits(CUgraphNode node, CUDA_EXT_SEM_WAIT_NODE_PARAMS *params)
{
    const void *given;
    get_semaphores(node, &params->extSemArray, &given, &params->numExtSems);
    params->paramsArray = given;
    return CUDA_SUCCESS;
}
static CUresult get_operations(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
    *params = (CUDA_BATCH_MEM_OP_NODE_PARAMS){node->operations.context, node->operations.count, node->operations.list, node->operations.flags};
    return CUDA_SUCCESS;
}

DEFINE_NODE(cuGraphAddExternalSemaphoresSignalNode, cuGraphExternalSemaphoresSignalNodeGetParams, cuGraphExternalSemaphoresSignalNodeSetParams,
            cuGraphExecExternalSemaphoresSignalNodeSetParams, CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, CUDA_EXT_SEM_SIGNAL_NODE_PARAMS, return get_signals(node, params))
DEFINE_NODE(cuGraphAddExternalSemaphoresWaitNode, cuGraphExternalSemaphoresWaitNodeGetParams, cuGraphExternalSemaphoresWaitNodeSetParams,
            cuGraphExecExternalSemaphoresWaitNodeSetParams, CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, CUDA_EXT_SEM_WAIT_NODE_PARAMS, return get_waits(node, params))
DEFINE_NODE(cuGraphAddBatchMemOpNode, cuGraphBatchMemOpNodeGetParams, cuGraphBatchMemOpNodeSetParams, cuGraphExecBatchMemOpNodeSetParams,
            CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CUDA_BATCH_MEM_OP_NODE_PARAMS, return get_operations(node, params))
