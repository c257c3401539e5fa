/* What the allocation nodes of a graph take. */
#include "driver.h"
#include "graph_memory.h"

#define NODES_AT_ONCE 64
#define DEEPEST_NESTING 16
#define MORE_THAN_ANY_CARD (HV_TOTAL_BYTES_MASK + 1) /* refused by the ledger; 2^19 graphs of it can be added up */

static void add_need(struct hv_graph_needs *needs, CUdevice ordinal, uint64_t bytes)
{
    uint32_t i = 0;
    while (i < needs->count && needs->needs[i].ordinal != ordinal)
        i++;
    if (i == HV_MAX_DEVICES)
        return;
    if (i == needs->count)
        needs->needs[needs->count++] = (struct hv_graph_need){.ordinal = ordinal};
    bytes += needs->needs[i].bytes; /* two of at most that cannot overflow */
    needs->needs[i].bytes = bytes < MORE_THAN_ANY_CARD ? bytes : MORE_THAN_ANY_CARD;
}

static void add_graph(CUgraph graph, struct hv_graph_needs *needs, unsigned int depth);

static void add_node(CUgraphNode node, struct hv_graph_needs *needs, unsigned int depth)
{
    hv_call_type_cuGraphNodeGetType ask_type = HV_DRIVER(cuGraphNodeGetType);
    hv_call_type_cuGraphMemAllocNodeGetParams ask_parameters = HV_DRIVER(cuGraphMemAllocNodeGetParams);
    hv_call_type_cuGraphChildGraphNodeGetGraph ask_child = HV_DRIVER(cuGraphChildGraphNodeGetGraph);
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {0};
    CUgraph child;
    int type;
    if (ask_type(node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && ask_parameters != NULL &&
        ask_parameters(node, &parameters) == CUDA_SUCCESS &&
        parameters.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        add_need(needs, parameters.poolProps.location.id,
                 parameters.bytesize < MORE_THAN_ANY_CARD ? hv_device_bytes(parameters.bytesize) : MORE_THAN_ANY_CARD);
    else if (type == CU_GRAPH_NODE_TYPE_GRAPH && ask_child != NULL && ask_child(node, &child) == CUDA_SUCCESS)
        add_graph(child, needs, depth + 1);
}

static void add_graph(CUgraph graph, struct hv_graph_needs *needs, unsigned int depth)
{
    hv_call_type_cuGraphGetNodes ask = HV_DRIVER(cuGraphGetNodes);
    CUgraphNode few[NODES_AT_ONCE];
    CUgraphNode *nodes = few;
    size_t count = 0;
    if (depth > DEEPEST_NESTING || ask == NULL || HV_DRIVER(cuGraphNodeGetType) == NULL ||
        ask(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    size_t bytes = count * sizeof *nodes;
    if (count > NODES_AT_ONCE)
        nodes = hv_os_pages(bytes);
    if (nodes != NULL && ask(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++)
            add_node(nodes[i], needs, depth);
    if (nodes != NULL && nodes != few)
        hv_os_free_pages(nodes, bytes);
}

struct hv_graph_needs *hv_graph_needs_of(CUgraph graph)
{
    struct hv_graph_needs needs = {0};
    add_graph(graph, &needs, 0);
    if (needs.count == 0)
        return NULL;
    struct hv_graph_needs *kept = hv_os_pages_not_inherited(sizeof *kept);
    if (kept != NULL)
        *kept = needs;
    return kept;
}
