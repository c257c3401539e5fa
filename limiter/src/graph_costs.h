/* What a graph is taken to cost before it was measured: the sum over its kernels. */
#ifndef HV_GRAPH_COSTS_H
#define HV_GRAPH_COSTS_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "process.h"

/* The executable was made from this graph just now, or changed to it; what was
 * learned of it before, or of another one at the same address, is forgotten. */
void hv_graph_costs_from(struct hv_process *process, CUgraphExec executable, CUgraph graph);

/* The same, but its nodes are still named by the graph that it was made from, whose parameters are not theirs any more. */
void hv_graph_costs_updated(struct hv_process *process, CUgraphExec executable, CUgraph graph);

/* One node of the executable was given another kernel, or the one that it had: then nothing has changed. */
void hv_graph_costs_kernel_set(struct hv_process *process, CUgraphExec executable, CUgraphNode node,
                               const CUDA_KERNEL_NODE_PARAMS *parameters);

/* Likewise another child graph. */
void hv_graph_costs_child_set(struct hv_process *process, CUgraphExec executable, CUgraphNode node, CUgraph child);

/* A node runs from now on, or no longer. */
void hv_graph_costs_enabled(struct hv_process *process, CUgraphExec executable, CUgraphNode node, bool enabled);

/* What a node of a graph runs; to be asked before and after a call that may change it. */
uint64_t hv_graph_costs_of_source(struct hv_process *process, CUgraphNode node);

/* It has changed: executables that were made before run what it had. */
void hv_graph_costs_source_changed(struct hv_process *process);

#endif
