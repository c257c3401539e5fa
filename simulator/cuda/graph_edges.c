/* What is connected with what in a graph: lists of edges, and taking them out. All edges are plain ones. */
#define _GNU_SOURCE
#include "graph.h"

#include <string.h>

/* Lists fill what fits: *count comes in as room and goes out as number; without a list it is only counted. */
struct list { CUgraphNode *from, *to; CUgraphEdgeData *edges; size_t room, found; };

static void put(struct list *list, CUgraphNode from, CUgraphNode to)
{
    if (list->found < list->room) {
        if (list->from)
            list->from[list->found] = from;
        if (list->to)
            list->to[list->found] = to;
        if (list->edges)
            memset(&list->edges[list->found], 0, sizeof *list->edges);
    }
    list->found++;
}

static CUresult finish(struct list *list, size_t *count)
{
    int listing = list->from || list->to;
    for (size_t i = list->found; listing && i < list->room; i++) {
        if (list->from)
            list->from[i] = NULL;
        if (list->to)
            list->to[i] = NULL;
    }
    *count = listing && list->room < list->found ? list->room : list->found;
    return CUDA_SUCCESS;
}

static CUresult dependencies(CUgraphNode node, CUgraphNode *out, CUgraphEdgeData *edges, size_t *count)
{
    if (!sim_node_valid(node) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {.from = out, .edges = edges, .room = *count};
    for (size_t i = 0; i < node->after_count; i++)
        put(&list, node->after[i], node);
    return finish(&list, count);
}
SIM_EXPORTED CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) { ENTER(); return dependencies(node, nodes, NULL, count); }
SIM_EXPORTED CUresult CUDAAPI cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count) { ENTER(); return dependencies(node, nodes, edges, count); }

static CUresult dependents(CUgraphNode node, CUgraphNode *out, CUgraphEdgeData *edges, size_t *count)
{
    if (!sim_node_valid(node) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {.to = out, .edges = edges, .room = *count};
    for (CUgraphNode other = node->graph->nodes; other; other = other->next)
        for (size_t i = 0; i < other->after_count; i++)
            if (other->after[i] == node)
                put(&list, node, other);
    return finish(&list, count);
}
SIM_EXPORTED CUresult CUDAAPI cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count) { ENTER(); return dependents(node, nodes, NULL, count); }
SIM_EXPORTED CUresult CUDAAPI cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count) { ENTER(); return dependents(node, nodes, edges, count); }

static CUresult all_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count)
{
    if (!sim_graph_valid(graph) || !count || !from != !to)
        return CUDA_ERROR_INVALID_VALUE;
    struct list list = {.from = from, .to = to, .edges = edges, .room = *count};
    for (CUgraphNode node = graph->nodes; node; node = node->next)
        for (size_t i = 0; i < node->after_count; i++)
            put(&list, node->after[i], node);
    return finish(&list, count);
}
SIM_EXPORTED CUresult CUDAAPI cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count) { ENTER(); return all_edges(graph, from, to, NULL, count); }
SIM_EXPORTED CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count) { ENTER(); return all_edges(graph, from, to, edges, count); }

static CUresult take_out(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    if (!sim_graph_valid(graph) || (count && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        size_t at = 0;
        if (!sim_node_valid(from[i]) || !sim_node_valid(to[i]) || from[i]->graph != graph || to[i]->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
        while (at < to[i]->after_count && to[i]->after[at] != from[i])
            at++;
        if (at == to[i]->after_count)
            return CUDA_ERROR_INVALID_VALUE; /* no such edge */
        memmove(&to[i]->after[at], &to[i]->after[at + 1], (to[i]->after_count - at - 1) * sizeof *to[i]->after);
        to[i]->after_count--;
    }
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) { ENTER(); return take_out(graph, from, to, count); }
SIM_EXPORTED CUresult CUDAAPI cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges, size_t count) { ENTER(); (void)edges; return take_out(graph, from, to, count); }
