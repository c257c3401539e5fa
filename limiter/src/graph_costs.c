#include "graph_costs.h"

#include "costs.h"
#include "driver.h"
#include "functions.h"
#include "os.h"

#define NODES_AT_ONCE 64
#define DEEPEST_NESTING 16

struct sum {
    struct hv_process *process;
    uint32_t device;
    uint64_t ns;
    uint64_t kernels; /* a hash of their names and shapes: the same graph in another process has the same */
};

static void add_kernel(CUgraphNode node, struct sum *sum)
{
    CUDA_KERNEL_NODE_PARAMS parameters = {0};
    hv_call_type_cuGraphKernelNodeGetParams_v2 ask = HV_DRIVER(cuGraphKernelNodeGetParams_v2);
    /* The older form fills the first part of the same struct. */
    hv_call_type_cuGraphKernelNodeGetParams ask_older = HV_DRIVER(cuGraphKernelNodeGetParams);
    if ((ask == NULL || ask(node, &parameters) != CUDA_SUCCESS) &&
        (ask_older == NULL || ask_older(node, &parameters) != CUDA_SUCCESS))
        return;
    const void *function = parameters.func != NULL ? parameters.func : parameters.kern;
    uint64_t blocks = (uint64_t)parameters.gridDimX * parameters.gridDimY * parameters.gridDimZ;
    uint64_t threads = (uint64_t)parameters.blockDimX * parameters.blockDimY * parameters.blockDimZ;
    struct hv_function *known = hv_function_find(sum->process->functions.entries,
                                                 hv_function_key(function, blocks, threads, sum->device));
    uint64_t cost = known == NULL ? 0 : hv_load_relaxed(&known->cost_ns);
    const char *name = hv_costs_kernel_name(function);
    sum->ns += cost != 0 ? cost : HV_GUESSED_COST_NS;
    sum->kernels = (sum->kernels ^ (name == NULL ? 0 : hv_costs_name_hash(name)) ^ hv_shape(blocks, threads, sum->device)) *
                   UINT64_C(0x9e3779b97f4a7c15);
}

static void add_graph(CUgraph graph, struct sum *sum, unsigned int depth)
{
    hv_call_type_cuGraphGetNodes ask = HV_DRIVER(cuGraphGetNodes);
    hv_call_type_cuGraphNodeGetType ask_type = HV_DRIVER(cuGraphNodeGetType);
    hv_call_type_cuGraphChildGraphNodeGetGraph ask_child = HV_DRIVER(cuGraphChildGraphNodeGetGraph);
    CUgraphNode few[NODES_AT_ONCE];
    CUgraphNode *nodes = few;
    size_t count = 0;
    if (depth > DEEPEST_NESTING || ask == NULL || ask_type == NULL || ask(graph, NULL, &count) != CUDA_SUCCESS ||
        count == 0)
        return;
    size_t bytes = count * sizeof *nodes;
    if (count > NODES_AT_ONCE)
        nodes = hv_os_pages(bytes);
    if (nodes == NULL)
        return;
    if (ask(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++) {
            CUgraph child;
            int type;
            if (ask_type(nodes[i], &type) != CUDA_SUCCESS)
                continue;
            if (type == CU_GRAPH_NODE_TYPE_KERNEL)
                add_kernel(nodes[i], sum);
            else if (type == CU_GRAPH_NODE_TYPE_GRAPH && ask_child != NULL && ask_child(nodes[i], &child) == CUDA_SUCCESS)
                add_graph(child, sum, depth + 1);
        }
    if (nodes != few)
        hv_os_free_pages(nodes, bytes);
}

void hv_graph_costs_from(struct hv_process *process, CUgraphExec executable, CUgraph graph)
{
    CUdevice ordinal;
    CUresult result;
    if (!hv_current_ordinal(&ordinal, &result))
        return;
    struct sum sum = {.process = process, .device = hv_process_device(process, ordinal)};
    if (sum.device >= HV_MAX_DEVICES)
        return;
    add_graph(graph, &sum, 0);
    const struct hv_identity identity = {
        .device = sum.device, .kind = HV_FUNCTION_GRAPH, .handle = executable, .shape = sum.kernels};
    struct hv_function *entry =
        hv_function_enter(&process->functions, hv_function_key(executable, 1, 0, sum.device), &identity);
    if (entry == &process->functions.overflow)
        return; /* of many */
    hv_store_relaxed_32(&entry->samples, 0);
    hv_store_relaxed(&entry->cost_ns, 0);
    hv_store_relaxed(&entry->first_cost_ns, sum.ns);
    hv_store_relaxed_32(&entry->first_measured, 0);
    hv_store_relaxed(&entry->shape, sum.kernels); /* it may have been another one at the same address */
    hv_store_relaxed(&entry->published, 0);
}
