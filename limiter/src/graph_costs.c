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
    bool known;       /* all of it was measured */
    uint64_t kernels; /* a hash of their names and shapes: the same graph in another process has the same */
};

static struct sum nothing(struct hv_process *process, uint32_t device)
{
    return (struct sum){.process = process, .device = device, .known = true};
}

static void add_kernel(const CUDA_KERNEL_NODE_PARAMS *parameters, struct sum *sum)
{
    const void *function = parameters->func != NULL ? parameters->func : parameters->kern;
    uint64_t blocks = (uint64_t)parameters->gridDimX * parameters->gridDimY * parameters->gridDimZ;
    uint64_t threads = (uint64_t)parameters->blockDimX * parameters->blockDimY * parameters->blockDimZ;
    struct hv_function *found = hv_function_find(sum->process->functions.entries,
                                                 hv_function_key(function, blocks, threads, sum->device));
    uint64_t cost = found == NULL ? 0 : hv_load_relaxed(&found->cost_ns);
    const char *name = hv_costs_kernel_name(function);
    sum->ns += cost != 0 ? cost : HV_GUESSED_COST_NS;
    sum->known = sum->known && cost != 0;
    sum->kernels = (sum->kernels ^ (name == NULL ? 0 : hv_costs_name_hash(name)) ^ hv_shape(blocks, threads, sum->device)) *
                   UINT64_C(0x9e3779b97f4a7c15);
}

static bool kernel_of(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *parameters)
{
    hv_call_type_cuGraphKernelNodeGetParams_v2 ask = HV_DRIVER(cuGraphKernelNodeGetParams_v2);
    /* The older form fills the first part of the same struct. */
    hv_call_type_cuGraphKernelNodeGetParams ask_older = HV_DRIVER(cuGraphKernelNodeGetParams);
    return (ask != NULL && ask(node, parameters) == CUDA_SUCCESS) ||
           (ask_older != NULL && ask_older(node, parameters) == CUDA_SUCCESS);
}

static void add_graph(CUgraph graph, struct sum *sum, unsigned int depth);

static void add_node(CUgraphNode node, struct sum *sum, unsigned int depth)
{
    hv_call_type_cuGraphNodeGetType ask_type = HV_DRIVER(cuGraphNodeGetType);
    hv_call_type_cuGraphChildGraphNodeGetGraph ask_child = HV_DRIVER(cuGraphChildGraphNodeGetGraph);
    CUDA_KERNEL_NODE_PARAMS parameters = {0};
    CUgraph child;
    int type;
    if (ask_type == NULL || ask_type(node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_KERNEL && kernel_of(node, &parameters))
        add_kernel(&parameters, sum);
    else if (type == CU_GRAPH_NODE_TYPE_GRAPH && ask_child != NULL && ask_child(node, &child) == CUDA_SUCCESS)
        add_graph(child, sum, depth + 1);
}

static void add_graph(CUgraph graph, struct sum *sum, unsigned int depth)
{
    hv_call_type_cuGraphGetNodes ask = HV_DRIVER(cuGraphGetNodes);
    CUgraphNode few[NODES_AT_ONCE];
    CUgraphNode *nodes = few;
    size_t count = 0;
    if (depth > DEEPEST_NESTING || ask == NULL || ask(graph, NULL, &count) != CUDA_SUCCESS ||
        count == 0)
        return;
    size_t bytes = count * sizeof *nodes;
    if (count > NODES_AT_ONCE)
        nodes = hv_os_pages(bytes);
    if (nodes == NULL)
        return;
    if (ask(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++)
            add_node(nodes[i], sum, depth);
    if (nodes != few)
        hv_os_free_pages(nodes, bytes);
}

static bool current_device(struct hv_process *process, uint32_t *device)
{
    CUdevice ordinal;
    CUresult result;
    if (!hv_current_ordinal(&ordinal, &result))
        return false;
    *device = hv_process_device(process, ordinal);
    return *device < HV_MAX_DEVICES;
}

/* It is other work from now on, and of no other process's: what is under way of it says nothing. */
static void begin_anew(struct hv_function *entry, uint64_t cost_ns, bool known, uint64_t kernels)
{
    hv_add_acq_rel_32(&entry->version, 1);
    hv_store_relaxed_32(&entry->samples, 0);
    hv_store_relaxed_32(&entry->first_measured, 0);
    hv_store_relaxed(&entry->first_cost_ns, cost_ns);
    hv_store_relaxed(&entry->cost_ns, known ? cost_ns : 0);
    hv_store_relaxed(&entry->shape, kernels);
    hv_store_relaxed(&entry->published, 0);
    hv_store_relaxed_32(&entry->graph_set, 1);
    hv_store_release_32(&entry->priced, 1); /* the means of before are no help */
}

static void made(struct hv_process *process, CUgraphExec executable, CUgraph graph, bool updated)
{
    uint32_t device;
    if (!current_device(process, &device))
        return;
    struct sum sum = nothing(process, device);
    add_graph(graph, &sum, 0);
    const struct hv_identity identity = {
        .device = device, .kind = HV_FUNCTION_GRAPH, .handle = executable, .shape = sum.kernels};
    struct hv_function *entry =
        hv_function_enter(&process->functions, hv_function_key(executable, 1, 0, device), &identity);
    if (entry == &process->functions.overflow)
        return; /* of many */
    begin_anew(entry, sum.ns, false, sum.kernels);
    hv_store_relaxed_32(&entry->graph_set, 0);
    hv_store_relaxed_32(&entry->graph_sources, hv_load_relaxed_32(&process->graph_sources));
    hv_store_relaxed_32(&entry->graph_made, (hv_load_relaxed_32(&entry->graph_made) | HV_GRAPH_UPDATED) + 1 + updated);
}

void hv_graph_costs_from(struct hv_process *process, CUgraphExec executable, CUgraph graph)
{
    made(process, executable, graph, false);
}

void hv_graph_costs_updated(struct hv_process *process, CUgraphExec executable, CUgraph graph)
{
    made(process, executable, graph, true);
}

/* ---- changing nodes of an executable ---- */

/* NULL: it was not seen to be made on this device. */
static struct hv_function *entry_of(struct hv_process *process, CUgraphExec executable, uint32_t *device)
{
    if (!current_device(process, device))
        return NULL;
    return hv_function_find(process->functions.entries, hv_function_key(executable, 1, 0, *device));
}

/* What a node of the executable runs, as far as that was seen. */
struct node {
    struct hv_graph_node *place;
    uint64_t key;
    uint64_t kernels, ns;
    bool known;    /* else it is what the node has in the graph by now, which the executable may never have had */
    bool measured; /* and so was all of it; false: perhaps not */
};

static struct node node_of(struct hv_process *process, const struct hv_function *entry, CUgraphNode node)
{
    uint64_t executable = hv_load_relaxed(&entry->key) + hv_load_relaxed_32(&entry->graph_made);
    uint64_t hash = ((uint64_t)(uintptr_t)node ^ executable) * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ hash >> 29) * UINT64_C(0xd6e8feb86659fd93);
    uint64_t key = hash | 1; /* 0: a free place */
    struct hv_graph_node *place = &process->graph_nodes[hash >> (64 - HV_GRAPH_NODES_LOG2)];
    /* Of two threads that use the place at once what the one wrote is no kernel of the other's. */
    if (hv_load_relaxed(&place->key) == key)
        return (struct node){.place = place,
                             .key = key,
                             .kernels = hv_load_relaxed(&place->kernels) ^ key,
                             .ns = hv_load_relaxed(&place->ns), /* about, where it was another one's place since */
                             .known = true};
    struct sum sum = nothing(process, entry->device);
    add_node(node, &sum, 0);
    bool as_made = (hv_load_relaxed_32(&entry->graph_made) & HV_GRAPH_UPDATED) == 0 &&
                   hv_load_relaxed_32(&entry->graph_sources) == hv_load_relaxed_32(&process->graph_sources);
    return (struct node){.place = place, .key = key, .kernels = sum.kernels, .ns = sum.ns, .known = as_made, .measured = as_made && sum.known};
}

/* All kernels of the executable but the node's; where these are not known, what no graph has. */
static uint64_t kernels_without(const struct hv_function *entry, const struct node *node)
{
    uint64_t all = hv_load_relaxed(&entry->shape);
    return node->known ? all - node->kernels : (all + node->kernels) * UINT64_C(0xd6e8feb86659fd93);
}

/* Programs set nodes before each launch, most of them only other arguments; to measure all of these anew would be to know
 * no cost at all. */
static void node_set(struct hv_process *process, struct hv_function *entry, CUgraphNode node, const struct sum *after)
{
    struct node before = node_of(process, entry, node);
    if (before.known && before.kernels == after->kernels)
        return;
    struct hv_graph_node *place = before.place;
    hv_store_relaxed(&place->key, before.key);
    hv_store_relaxed(&place->kernels, after->kernels ^ before.key);
    hv_store_relaxed(&place->ns, after->ns);
    uint64_t cost = hv_load_relaxed(&entry->cost_ns), first = hv_load_relaxed(&entry->first_cost_ns);
    uint64_t all = cost != 0 ? cost : first, gone = before.known ? before.ns : 0;
    all = (all > gone ? all - gone : 0) + after->ns;
    begin_anew(entry, all, cost != 0 && after->known && before.known,
               kernels_without(entry, &before) + after->kernels);
}

void hv_graph_costs_kernel_set(struct hv_process *process, CUgraphExec executable, CUgraphNode node,
                               const CUDA_KERNEL_NODE_PARAMS *parameters)
{
    uint32_t device;
    struct hv_function *entry = entry_of(process, executable, &device);
    if (entry == NULL)
        return;
    struct sum after = nothing(process, device);
    add_kernel(parameters, &after);
    node_set(process, entry, node, &after);
}

void hv_graph_costs_child_set(struct hv_process *process, CUgraphExec executable, CUgraphNode node, CUgraph child)
{
    uint32_t device;
    struct hv_function *entry = entry_of(process, executable, &device);
    if (entry == NULL)
        return;
    struct sum after = nothing(process, device);
    add_graph(child, &after, 1);
    node_set(process, entry, node, &after);
}

void hv_graph_costs_enabled(struct hv_process *process, CUgraphExec executable, CUgraphNode node, bool enabled)
{
    uint32_t device;
    struct hv_function *entry = entry_of(process, executable, &device);
    if (entry == NULL)
        return;
    struct node changed = node_of(process, entry, node);
    if (changed.ns == 0)
        return; /* no kernel */
    uint64_t cost = hv_load_relaxed(&entry->cost_ns), first = hv_load_relaxed(&entry->first_cost_ns);
    uint64_t all = (cost != 0 ? cost : first) + (enabled ? changed.ns : 0); /* measured, what is gone is off */
    begin_anew(entry, all, cost != 0 && (!enabled || changed.measured),
               enabled ? hv_load_relaxed(&entry->shape) + changed.kernels : kernels_without(entry, &changed));
}

uint64_t hv_graph_costs_of_source(struct hv_process *process, CUgraphNode node)
{
    struct sum sum = nothing(process, 0);
    add_node(node, &sum, 0);
    return sum.kernels;
}

void hv_graph_costs_source_changed(struct hv_process *process)
{
    hv_add_acq_rel_32(&process->graph_sources, 1);
}
