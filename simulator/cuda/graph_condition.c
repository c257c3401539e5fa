/* Conditional nodes. Conditions are set by kernels, and kernels compute nothing here: a condition has the value that its
 * handle is given at each launch, and a loop whose condition begins true runs its body once. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>

#define ASSIGN_DEFAULT 1u
#define MOST_BODIES 1024u

static struct condition *find(CUgraph graph, CUgraphConditionalHandle handle)
{
    struct condition *condition = graph->conditions;
    while (condition && condition->handle != handle)
        condition = condition->next;
    return condition;
}

static int add(CUgraph graph, CUgraphConditionalHandle handle, uint32_t value, uint32_t assigned)
{
    struct condition *made = malloc(sizeof *made);
    if (!made)
        return 0;
    *made = (struct condition){handle, value, assigned, graph->conditions};
    graph->conditions = made;
    return 1;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphConditionalHandleCreate(CUgraphConditionalHandle *out, CUgraph graph, CUcontext context, unsigned int value, unsigned int flags)
{
    ENTER();
    (void)context;
    if (!out || !sim_graph_valid(graph) || (flags & ~ASSIGN_DEFAULT))
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock_driver();
    uint64_t handle = sim_driver.next_id++;
    sim_unlock_driver();
    if (!add(graph, handle, value, flags & ASSIGN_DEFAULT))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = handle;
    return CUDA_SUCCESS;
}

int sim_graph_copy_conditions(CUgraph to, CUgraph from)
{
    for (const struct condition *condition = from->conditions; condition; condition = condition->next)
        if (!add(to, condition->handle, condition->value, condition->assigned))
            return 0;
    return 1;
}

void sim_graph_free_conditions(CUgraph graph)
{
    for (struct condition *condition = graph->conditions, *next; condition; condition = next) {
        next = condition->next;
        free(condition);
    }
    graph->conditions = NULL;
}

static unsigned bodies_of(const struct condition_node *condition) { return condition->bodies ? condition->size : 0; }

void sim_graph_free_condition(CUgraphNode node)
{
    if (node->type != CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return;
    for (unsigned i = 0; i < bodies_of(&node->condition); i++)
        if (node->condition.bodies[i])
            sim_graph_free(node->condition.bodies[i]);
    free(node->condition.bodies);
}

/* `from` NULL: empty ones. 0: no memory; what was made goes with the node. */
static int make_bodies(CUgraphNode node, CUgraph const *from)
{
    node->condition.bodies = calloc(node->condition.size, sizeof *node->condition.bodies);
    for (unsigned i = 0; i < bodies_of(&node->condition); i++)
        if (!(node->condition.bodies[i] = from ? sim_graph_copy(from[i]) : sim_graph_new(node->graph->context)))
            return 0;
    return node->condition.bodies != NULL;
}

int sim_graph_copy_condition(CUgraphNode twin, CUgraphNode node)
{
    return node->type != CU_GRAPH_NODE_TYPE_CONDITIONAL || make_bodies(twin, node->condition.bodies);
}

/* The handle must be the graph's, and the bodies are given out for the program to fill. */
CUresult sim_graph_add_condition(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUDA_CONDITIONAL_NODE_PARAMS *params)
{
    CUgraphNode node;
    unsigned most = params->type == CU_GRAPH_COND_TYPE_WHILE ? 1 : params->type == CU_GRAPH_COND_TYPE_IF ? 2 : MOST_BODIES;
    if (!out || !sim_graph_valid(graph) || (unsigned)params->type > CU_GRAPH_COND_TYPE_SWITCH || !params->size || params->size > most || !find(graph, params->handle))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_graph_add(graph, CU_GRAPH_NODE_TYPE_CONDITIONAL, after, count, &node);
    if (result != CUDA_SUCCESS)
        return result;
    node->condition = (struct condition_node){params->handle, params->type, params->size, NULL};
    if (!make_bodies(node, NULL)) {
        sim_graph_take_back(graph, node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    params->phGraph_out = node->condition.bodies;
    *out = node;
    return CUDA_SUCCESS;
}

CUgraph sim_graph_chosen_body(CUgraph graph, CUgraphNode node)
{
    const struct condition_node *node_condition = &node->condition;
    const struct condition *condition = find(graph, node_condition->handle);
    unsigned value = condition && condition->assigned ? condition->value : 0, chosen;
    if (node_condition->type == CU_GRAPH_COND_TYPE_SWITCH)
        chosen = value;
    else if (node_condition->type == CU_GRAPH_COND_TYPE_IF)
        chosen = value ? 0 : 1; /* the second body is the "else" */
    else
        chosen = value ? 0 : node_condition->size;
    return chosen < node_condition->size ? node_condition->bodies[chosen] : NULL;
}
