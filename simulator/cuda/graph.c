/* Building graphs: nodes, their dependencies, and what can be asked of them. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

CUgraph sim_graph_new(CUcontext context)
{
    CUgraph graph = calloc(1, sizeof *graph);
    if (graph) {
        graph->kind = HANDLE_GRAPH;
        graph->context = context;
        graph->end = &graph->nodes;
    }
    return graph;
}

static void free_allocation(CUgraphNode node)
{
    sim_lock_driver();
    struct memory *memory = sim_memory_find(node->allocation.dptr);
    if (memory && memory->start == node->allocation.dptr && memory->kind == MEMORY_GRAPH && --memory->nodes == 0 && memory->charged == 0)
        sim_memory_delete(memory, 0); /* still allocated: it lives on, and is freed by cuMemFree */
    sim_unlock_driver();
}

/* The original's destruction does not take the address from its copies. */
static void share_allocation(CUgraphNode node)
{
    sim_lock_driver();
    struct memory *memory = sim_memory_find(node->allocation.dptr);
    if (memory && memory->start == node->allocation.dptr && memory->kind == MEMORY_GRAPH)
        memory->nodes++;
    sim_unlock_driver();
}

static void free_node(CUgraphNode node)
{
    if (node->type == CU_GRAPH_NODE_TYPE_GRAPH && node->child)
        sim_graph_free(node->child);
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        free_allocation(node);
    sim_graph_free_lists(node);
    sim_graph_free_condition(node);
    free(node->after);
    free(node->attributes);
    node->kind = HANDLE_DEAD;
    free(node);
}

void sim_graph_free(CUgraph graph)
{
    for (CUgraphNode node = graph->nodes, next; node; node = next) {
        next = node->next;
        free_node(node);
    }
    sim_objects_drop(graph);
    sim_graph_free_conditions(graph);
    graph->kind = HANDLE_DEAD;
    free(graph);
}

CUresult sim_graph_add(CUgraph graph, CUgraphNodeType type, const CUgraphNode *after, size_t count, CUgraphNode *out)
{
    if (!sim_graph_valid(graph) || (count && !after))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!sim_node_valid(after[i]) || after[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode node = calloc(1, sizeof *node);
    CUgraphNode *links = count ? malloc(count * sizeof *links) : NULL;
    if (!node || (count && !links)) {
        free(node);
        free(links);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (count)
        memcpy(links, after, count * sizeof *links);
    node->kind = HANDLE_NODE;
    node->type = type;
    node->graph = graph;
    node->after = links;
    node->after_count = count;
    *graph->end = node;
    graph->end = &node->next;
    graph->count++;
    *out = node;
    return CUDA_SUCCESS;
}

static CUgraphNode copy_of(CUgraph copy, CUgraphNode original)
{
    CUgraphNode node = copy->nodes;
    while (node && node->original != original)
        node = node->next;
    return node;
}

CUgraph sim_graph_copy(CUgraph graph)
{
    CUgraph copy = sim_graph_new(graph->context);
    if (!copy)
        return NULL;
    for (CUgraphNode node = graph->nodes; node; node = node->next) {
        CUgraphNode twin;
        if (sim_graph_add(copy, node->type, NULL, 0, &twin) != CUDA_SUCCESS)
            goto failed;
        CUgraphNode next = twin->next;
        *twin = *node;
        twin->graph = copy;
        twin->after = NULL;
        twin->after_count = 0;
        twin->original = node;
        twin->attributes = NULL;
        twin->next = next;
        if (!sim_graph_copy_lists(twin, node) || !sim_graph_copy_condition(twin, node))
            goto failed;
        if (node->attributes && !(twin->attributes = sim_attributes_copy(node->attributes)))
            goto failed;
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            share_allocation(node);
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH && !(twin->child = sim_graph_copy(node->child)))
            goto failed;
    }
    for (CUgraphNode node = graph->nodes, twin = copy->nodes; node; node = node->next, twin = twin->next) {
        if (!node->after_count)
            continue;
        twin->after = malloc(node->after_count * sizeof *twin->after);
        if (!twin->after)
            goto failed;
        for (; twin->after_count < node->after_count; twin->after_count++)
            twin->after[twin->after_count] = copy_of(copy, node->after[twin->after_count]);
    }
    if (sim_objects_copy(copy, graph) != CUDA_SUCCESS || !sim_graph_copy_conditions(copy, graph))
        goto failed;
    return copy;
failed:
    sim_graph_free(copy);
    return NULL;
}

/* A node goes on where one that it waits for ended, if nobody else does; else it begins a lane of its own. */
static void choose_lane(CUgraphNode node, uint32_t *lanes)
{
    for (size_t i = 0; i < node->after_count; i++)
        if (!node->after[i]->continued) {
            node->after[i]->continued = 1;
            node->lane = node->after[i]->lane;
            return;
        }
    node->lane = *lanes == 0 ? 0 : (*lanes - 1) % MAX_LANES + 1;
    ++*lanes;
}

/* Depth-first: after its dependencies, each node; a node met again on the way down is a cycle. */
static int place(CUgraphNode node, CUgraphNode *sorted, size_t *count, uint32_t *lanes)
{
    if (node->order == 2)
        return 1;
    if (node->order == 1)
        return 0;
    node->order = 1;
    for (size_t i = 0; i < node->after_count; i++)
        if (!place(node->after[i], sorted, count, lanes))
            return 0;
    node->order = 2;
    choose_lane(node, lanes);
    sorted[(*count)++] = node;
    return 1;
}

CUgraphNode *sim_graph_sort(CUgraph graph)
{
    CUgraphNode *sorted = malloc((graph->count + 1) * sizeof *sorted);
    size_t count = 0;
    uint32_t lanes = 0;
    for (CUgraphNode node = graph->nodes; node; node = node->next)
        node->order = node->continued = 0;
    /* In order of creation, so that dependencies, which mostly come earlier, are not followed deep. */
    for (CUgraphNode node = graph->nodes; node && sorted; node = node->next)
        if (!place(node, sorted, &count, &lanes)) {
            free(sorted);
            return NULL;
        }
    return sorted;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    ENTER();
    if (!graph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *graph = sim_graph_new(sim_current_context());
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphDestroy(CUgraph graph)
{
    ENTER();
    if (!sim_graph_valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    sim_graph_free(graph);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphClone(CUgraph *copy, CUgraph graph)
{
    ENTER();
    if (!copy || !sim_graph_valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    *copy = sim_graph_copy(graph);
    return *copy ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphNodeFindInClone(CUgraphNode *found, CUgraphNode original, CUgraph clone)
{
    ENTER();
    if (!found || !sim_node_valid(original) || !sim_graph_valid(clone))
        return CUDA_ERROR_INVALID_VALUE;
    *found = copy_of(clone, original);
    return *found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sim_graph_take_back(CUgraph graph, CUgraphNode node)
{
    for (CUgraphNode *link = &graph->nodes; *link; link = &(*link)->next)
        if (*link == node) {
            *link = node->next;
            if (graph->end == &node->next)
                graph->end = link;
            graph->count--;
            free_node(node);
            return;
        }
}

static CUresult add_links(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    if (!sim_graph_valid(graph) || (count && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!sim_node_valid(from[i]) || !sim_node_valid(to[i]) || from[i]->graph != graph || to[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
        CUgraphNode *links = realloc(to[i]->after, (to[i]->after_count + 1) * sizeof *links);
        if (!links)
            return CUDA_ERROR_OUT_OF_MEMORY;
        links[to[i]->after_count++] = from[i];
        to[i]->after = links;
    }
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) { ENTER(); return add_links(graph, from, to, count); }
SIM_EXPORTED CUresult CUDAAPI cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges, size_t count) { ENTER(); (void)edges; return add_links(graph, from, to, count); }

/* Fills what fits; *count comes in as room and goes out as number. */
static CUresult list_nodes(CUgraph graph, CUgraphNode *out, size_t *count, int roots_only)
{
    size_t found = 0;
    if (!sim_graph_valid(graph) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (CUgraphNode node = graph->nodes; node; node = node->next) {
        if (roots_only && node->after_count)
            continue;
        if (out && found < *count)
            out[found] = node;
        found++;
    }
    if (out)
        for (size_t i = found; i < *count; i++)
            out[i] = NULL;
    *count = !out || found < *count ? found : *count;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) { ENTER(); return list_nodes(graph, nodes, count, 0); }
SIM_EXPORTED CUresult CUDAAPI cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) { ENTER(); return list_nodes(graph, nodes, count, 1); }
SIM_EXPORTED CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    ENTER();
    if (!sim_node_valid(node) || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphDestroyNode(CUgraphNode node)
{
    ENTER();
    if (!sim_node_valid(node))
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph graph = node->graph;
    for (CUgraphNode other = graph->nodes; other; other = other->next)
        for (size_t i = 0; i < other->after_count; i++)
            if (other->after[i] == node)
                other->after[i--] = other->after[--other->after_count];
    sim_graph_take_back(graph, node);
    return CUDA_SUCCESS;
}
