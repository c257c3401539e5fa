#include "driver.h"
#include "graph_costs.h"
#include "graph_memory.h"
#include "held.h"
#include "pools.h"

#define NODES_AT_ONCE 64
#define DEEPEST_NESTING 16

/* ---- what a graph's nodes allocate ---- */

struct need {
    uint64_t bytes;
    CUdevice ordinal;
};

static void add_graph(CUgraph graph, struct need *need, unsigned int depth);

static void add_node(CUgraphNode node, struct need *need, unsigned int depth)
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
        parameters.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        /* Nodes on several devices are rare, and then all count on the last. */
        need->ordinal = parameters.poolProps.location.id;
        need->bytes += hv_device_bytes(parameters.bytesize);
    } else if (type == CU_GRAPH_NODE_TYPE_GRAPH && ask_child != NULL && ask_child(node, &child) == CUDA_SUCCESS) {
        add_graph(child, need, depth + 1);
    }
}

static void add_graph(CUgraph graph, struct need *need, unsigned int depth)
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
            add_node(nodes[i], need, depth);
    if (nodes != NULL && nodes != few)
        hv_os_free_pages(nodes, bytes);
}

static CUresult instantiated(CUresult result, const CUgraphExec *executable, CUgraph graph)
{
    struct hv_process *process = hv_attach_state() == HV_ATTACH_DONE ? hv_process() : NULL;
    struct need need = {0};
    if (result != CUDA_SUCCESS || process == NULL)
        return result;
    hv_graph_costs_from(process, *executable, graph);
    add_graph(graph, &need, 0);
    if (need.bytes == 0 || need.bytes > HV_TOTAL_BYTES_MASK || need.ordinal < 0 || need.ordinal >= HV_ORDINALS)
        return result;
    struct hv_pointer_record record = {.bytes = need.bytes, .device = (uint32_t)need.ordinal};
    if (hv_held_put(process, HV_POINTER_GRAPH, (uint64_t)(uintptr_t)*executable, &record))
        hv_add_acq_rel_32(&process->graphs_with_memory, 1);
    return result;
}

HV_WRAP(cuGraphInstantiate,
        (CUgraphExec * executable, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes))
{
    return instantiated(HV_REAL(cuGraphInstantiate)(executable, graph, error_node, log, log_bytes), executable, graph);
}

HV_WRAP(cuGraphInstantiate_v2,
        (CUgraphExec * executable, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes))
{
    return instantiated(HV_REAL(cuGraphInstantiate_v2)(executable, graph, error_node, log, log_bytes), executable,
                        graph);
}

HV_WRAP(cuGraphInstantiateWithFlags, (CUgraphExec * executable, CUgraph graph, unsigned long long flags))
{
    return instantiated(HV_REAL(cuGraphInstantiateWithFlags)(executable, graph, flags), executable, graph);
}

/* May upload at once, which takes the memory: that is entered by the next launch. */
HV_WRAP(cuGraphInstantiateWithParams, (CUgraphExec * executable, CUgraph graph, void *parameters))
{
    return instantiated(HV_REAL(cuGraphInstantiateWithParams)(executable, graph, parameters), executable, graph);
}

HV_WRAP(cuGraphInstantiateWithParams_ptsz, (CUgraphExec * executable, CUgraph graph, void *parameters))
{
    return instantiated(HV_REAL(cuGraphInstantiateWithParams_ptsz)(executable, graph, parameters), executable, graph);
}

HV_WRAP(cuGraphExecDestroy, (CUgraphExec executable))
{
    struct hv_process *process = hv_attach_state() == HV_ATTACH_DONE ? hv_process() : NULL;
    struct hv_pointer_record record;
    bool known = process != NULL && hv_graph_memory_in_use() &&
                 hv_held_take(process, HV_POINTER_GRAPH, (uint64_t)(uintptr_t)executable, &record);
    CUresult result = HV_REAL(cuGraphExecDestroy)(executable);
    if (known && result == CUDA_SUCCESS)
        hv_sub_acq_rel_32(&process->graphs_with_memory, 1);
    else if (known)
        (void)hv_held_put(process, HV_POINTER_GRAPH, (uint64_t)(uintptr_t)executable, &record);
    return result;
}

/* ---- launching one ---- */

bool hv_graph_memory_in_use(void)
{
    if (hv_attach_state() != HV_ATTACH_DONE)
        return false;
    struct hv_process *process = hv_process();
    return process != NULL && hv_load_relaxed_32(&process->graphs_with_memory) != 0; /* set by who made the graph */
}

static uint64_t graph_memory(CUdevice ordinal, int attribute)
{
    uint64_t bytes = 0;
    hv_call_type_cuDeviceGetGraphMemAttribute ask = HV_DRIVER(cuDeviceGetGraphMemAttribute);
    return ask != NULL && ask(ordinal, attribute, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

/* Kept bytes that no other launch under way counts on, up to so many. */
static uint64_t claim_kept(struct hv_pool *pool, CUdevice ordinal, uint64_t most)
{
    uint64_t reserved = graph_memory(ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    uint64_t used = graph_memory(ordinal, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    uint64_t claimed = hv_load_relaxed(&pool->claimed);
    uint64_t taken;
    do {
        uint64_t busy = used + claimed;
        uint64_t left = reserved > busy ? reserved - busy : 0;
        taken = left < most ? left : most;
    } while (taken != 0 && !hv_cas_acq_rel(&pool->claimed, &claimed, claimed + taken));
    return taken;
}

CUresult hv_graph_memory_begin(struct hv_graph_launch *launch, CUgraphExec graph)
{
    CUresult refused;
    uint64_t value;
    *launch = (struct hv_graph_launch){0};
    struct hv_process *process = hv_limited_process(&refused);
    if (process == NULL ||
        !hv_pointer_get(&process->pointers, HV_POINTER_GRAPH, (uint64_t)(uintptr_t)graph, &value))
        return refused;
    struct hv_pointer_record record = hv_record_unpack(value);
    CUdevice ordinal = (CUdevice)record.device;
    struct hv_pool *pool = hv_pool_of(process, hv_graph_memory_of(ordinal), hv_process_device(process, ordinal));
    if (pool == NULL)
        return CUDA_SUCCESS;
    launch->pool = pool;
    launch->claimed = claim_kept(pool, ordinal, record.bytes);
    /* One that ran before finds its memory again, even where it was never freed. */
    bool again = record.references != 0 && graph_memory(ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= record.bytes;
    refused = hv_reserve_ordinal(&launch->reservation, ordinal, again ? 0 : record.bytes - launch->claimed);
    if (refused != CUDA_SUCCESS && launch->claimed != 0)
        hv_sub_acq_rel(&pool->claimed, launch->claimed);
    else if (refused == CUDA_SUCCESS && record.references == 0)
        (void)hv_pointer_refer(&process->pointers, HV_POINTER_GRAPH, (uint64_t)(uintptr_t)graph);
    return refused;
}

CUresult hv_graph_memory_end(struct hv_graph_launch *launch, CUresult result)
{
    if (launch->pool == NULL || launch->reservation.process == NULL)
        return result;
    hv_pool_grown(launch->pool, &launch->reservation); /* a failed one may have taken a part */
    if (launch->claimed != 0)
        hv_sub_acq_rel(&launch->pool->claimed, launch->claimed);
    return result;
}

#define UPLOAD(call)                                                                                                  \
    struct hv_graph_launch launch;                                                                                    \
    if (!hv_graph_memory_in_use())                                                                                    \
        return call;                                                                                                  \
    CUresult refused = hv_graph_memory_begin(&launch, executable);                                                    \
    return refused != CUDA_SUCCESS ? refused : hv_graph_memory_end(&launch, call)

HV_WRAP(cuGraphUpload, (CUgraphExec executable, CUstream stream))
{
    UPLOAD(HV_REAL(cuGraphUpload)(executable, stream));
}

HV_WRAP(cuGraphUpload_ptsz, (CUgraphExec executable, CUstream stream))
{
    UPLOAD(HV_REAL(cuGraphUpload_ptsz)(executable, stream));
}

HV_WRAP(cuDeviceGraphMemTrim, (CUdevice device))
{
    CUresult result = HV_REAL(cuDeviceGraphMemTrim)(device);
    struct hv_process *process = hv_attach_state() == HV_ATTACH_DONE ? hv_process() : NULL;
    if (result == CUDA_SUCCESS && process != NULL)
        hv_pools_refresh(process, hv_process_device(process, device));
    return result;
}
