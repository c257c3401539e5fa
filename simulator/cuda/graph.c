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
    free(node->after);
    node->kind = HANDLE_DEAD;
    free(node);
}

void sim_graph_free(CUgraph graph)
{
    for (CUgraphNode node = graph->nodes, next; node; node = next) {
        next = node->next;
        free_node(node);
    }
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
        twin->next = next;
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
    return copy;
failed:
    sim_graph_free(copy);
    return NULL;
}

/* Depth-first: after its dependencies, each node; a node met again on the way down is a cycle. */
static int place(CUgraphNode node, CUgraphNode *sorted, size_t *count)
{
    if (node->order == 2)
        return 1;
    if (node->order == 1)
        return 0;
    node->order = 1;
    for (size_t i = 0; i < node->after_count; i++)
        if (!place(node->after[i], sorted, count))
            return 0;
    node->order = 2;
    sorted[(*count)++] = node;
    return 1;
}

CUgraphNode *sim_graph_sort(CUgraph graph)
{
    CUgraphNode *sorted = malloc((graph->count + 1) * sizeof *sorted);
    size_t count = 0;
    for (CUgraphNode node = graph->nodes; node; node = node->next)
        node->order = 0;
    /* In order of creation, so that dependencies, which mostly come earlier, are not followed deep. */
    for (CUgraphNode node = graph->nodes; node && sorted; node = node->next)
        if (!place(node, sorted, &count)) {
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

static void take_back(CUgraph graph, CUgraphNode node)
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

static CUresult add_kernel(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUfunction function, const unsigned *shape)
{
    CUgraphNode node;
    CUresult result = sim_graph_add(graph, CU_GRAPH_NODE_TYPE_KERNEL, after, count, &node);
    if (result != CUDA_SUCCESS)
        return result;
    result = set_kernel(node, function, shape);
    if (result != CUDA_SUCCESS)
        take_back(graph, node);
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

SIM_EXPORTED CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_MEMCPY3D *params, CUcontext context)
{
    ENTER();
    (void)context;
    if (!node || !params || params->srcMemoryType == CU_MEMORYTYPE_ARRAY || params->dstMemoryType == CU_MEMORYTYPE_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_graph_add(graph, CU_GRAPH_NODE_TYPE_MEMCPY, after, count, node);
    if (result == CUDA_SUCCESS) {
        (*node)->is_box = 1;
        (*node)->box = *params;
    }
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context)
{
    ENTER();
    (void)context;
    if (!node || !params || (params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_graph_add(graph, CU_GRAPH_NODE_TYPE_MEMSET, after, count, node);
    if (result == CUDA_SUCCESS)
        (*node)->fill = (struct fill_node){params->dst, params->pitch, params->width, params->height, params->value, params->elementSize};
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_HOST_NODE_PARAMS *params)
{
    ENTER();
    if (!node || !params || !params->fn)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_graph_add(graph, CU_GRAPH_NODE_TYPE_HOST, after, count, node);
    if (result == CUDA_SUCCESS)
        (*node)->host = (struct host_node){params->fn, params->userData};
    return result;
}

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
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}
SIM_EXPORTED CUresult CUDAAPI cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *params) { ENTER(); return add_any(node, graph, after, count, params); }
SIM_EXPORTED CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) { ENTER(); (void)edges; return add_any(node, graph, after, count, params); }

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
static CUresult list_dependencies(CUgraphNode node, CUgraphNode *out, size_t *count)
{
    if (!sim_node_valid(node) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; out && i < *count; i++)
        out[i] = i < node->after_count ? node->after[i] : NULL;
    *count = !out || node->after_count < *count ? node->after_count : *count;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count) { ENTER(); return list_dependencies(node, nodes, count); }
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
    take_back(graph, node);
    return CUDA_SUCCESS;
}
