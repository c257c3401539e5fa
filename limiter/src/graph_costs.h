/* What a graph is taken to cost before it was measured: the sum over its kernels. */
#ifndef HV_GRAPH_COSTS_H
#define HV_GRAPH_COSTS_H

#include "cuda_abi.h"
#include "process.h"

/* The executable was made from this graph just now, or changed to it; what was
 * learned of it before, or of another one at the same address, is forgotten. */
void hv_graph_costs_from(struct hv_process *process, CUgraphExec executable, CUgraph graph);

#endif
