/*
 * Memory of graphs' allocation nodes, stream-captured allocations among them.
 * A launch takes what its nodes need and the device's graph memory does not
 * keep already; so much is reserved before, and corrected to what the driver
 * says afterwards.
 */
#ifndef HV_GRAPH_MEMORY_H
#define HV_GRAPH_MEMORY_H

#include "memory.h"

struct hv_pool;

struct hv_graph_launch {
    struct hv_reservation reservation;
    struct hv_pool *pool; /* NULL: a graph without allocation nodes */
    uint64_t claimed;
};

/* Does this process have executable graphs with allocation nodes? */
bool hv_graph_memory_in_use(void);

/* Before and after a launch or an upload. Not CUDA_SUCCESS: to be returned to
 * the program; the driver is not called. The second returns the driver's result. */
CUresult hv_graph_memory_begin(struct hv_graph_launch *launch, CUgraphExec graph);
CUresult hv_graph_memory_end(struct hv_graph_launch *launch, CUresult result);

#endif
