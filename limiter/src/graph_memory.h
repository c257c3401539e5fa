/*
 * Memory of graphs' allocation nodes, stream-captured allocations among them.
 * The driver keeps what a launch used for later ones, for each device. What a
 * launch may make that grow by is reserved before, and corrected to what the
 * driver says afterwards.
 */
#ifndef HV_GRAPH_MEMORY_H
#define HV_GRAPH_MEMORY_H

#include "memory.h"

struct hv_pool;

/* What the nodes of an executable graph take on one device. */
struct hv_graph_need {
    uint64_t bytes;
    CUdevice ordinal;
    /* With the lock of the device's pool of graph memory held: */
    uint64_t round;    /* of that pool; 0: none yet */
    uint64_t launches; /* in this round */
};

/* In pages of its own, for as long as the executable graph lives. */
struct hv_graph_needs {
    uint32_t count;
    struct hv_graph_need needs[HV_MAX_DEVICES]; /* what lies on more devices than a Pod has is for the daemon to see */
};

/* NULL: the graph and its children have no allocation nodes, or there is no
 * memory to note it. */
struct hv_graph_needs *hv_graph_needs_of(CUgraph graph);

/* A launch, on one device. */
struct hv_graph_share {
    struct hv_reservation reservation;
    struct hv_pool *pool; /* NULL: the driver does not tell what it keeps; then what is reserved stays so */
    uint64_t claimed;
};

struct hv_graph_launch {
    uint32_t count;
    struct hv_graph_share shares[HV_MAX_DEVICES];
};

/* Does this process have executable graphs with allocation nodes? */
bool hv_graph_memory_in_use(void);

/* Before and after a launch or an upload. Not CUDA_SUCCESS: to be returned to
 * the program; the driver is not called. The second returns the driver's result. */
CUresult hv_graph_memory_begin(struct hv_graph_launch *launch, CUgraphExec graph);
CUresult hv_graph_memory_begin_for(struct hv_graph_launch *launch, struct hv_process *process,
                                   struct hv_graph_needs *needs);
CUresult hv_graph_memory_end(struct hv_graph_launch *launch, CUresult result);

#endif
