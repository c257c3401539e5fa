/* A graph as a picture: nodes and edges in Graphviz's language. */
#define _GNU_SOURCE
#include "graph.h"

#include <errno.h>
#include <stdio.h>

static const char *type_name(CUgraphNodeType type)
{
    static const char *const names[] = {"KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY", "WAIT_EVENT", "EVENT_RECORD", "EXT_SEMAS_SIGNAL",
                                        "EXT_SEMAS_WAIT", "MEM_ALLOC", "MEM_FREE", "BATCH_MEM_OP", "CONDITIONAL"};
    return names[type]; /* every type that a node can have */
}

static size_t place_of(CUgraph graph, CUgraphNode node)
{
    size_t place = 0;
    for (CUgraphNode at = graph->nodes; at && at != node; at = at->next)
        place++;
    return place;
}

static void write_graph(FILE *file, CUgraph graph)
{
    size_t number = 0;
    fprintf(file, "digraph graph_1 {\n");
    for (CUgraphNode node = graph->nodes; node; node = node->next, number++)
        fprintf(file, "    node_%zu [label=\"%zu\\n%s%s%s\"];\n", number, number, type_name(node->type), node->type == CU_GRAPH_NODE_TYPE_KERNEL ? "\\n" : "",
                node->type == CU_GRAPH_NODE_TYPE_KERNEL && node->kernel.function ? sim_function_of(node->kernel.function)->name : "");
    for (CUgraphNode node = graph->nodes; node; node = node->next)
        for (size_t i = 0; i < node->after_count; i++)
            fprintf(file, "    node_%zu -> node_%zu;\n", place_of(graph, node->after[i]), place_of(graph, node));
    fprintf(file, "}\n");
}

SIM_EXPORTED CUresult CUDAAPI cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags)
{
    ENTER();
    (void)flags; /* they ask for more detail */
    if (!sim_graph_valid(graph) || !path)
        return CUDA_ERROR_INVALID_VALUE;
    int saved = errno;
    FILE *file = fopen(path, "we");
    int written = 0;
    if (file) {
        write_graph(file, graph);
        written = !ferror(file);
        written &= fclose(file) == 0;
    }
    errno = saved;
    return written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
