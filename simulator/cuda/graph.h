/* Graphs, as graph.c (building), graph_run.c (running) and capture.c (recording streams) share them. */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "driver.h"

struct copy_node { CUdeviceptr destination, source; size_t bytes; };
struct fill_node { CUdeviceptr destination; size_t pitch, width, height; unsigned value, element; };
struct host_node { CUhostFn function; void *argument; };

/* Lists that a node has of its own. */
struct semaphore_node { CUexternalSemaphore *semaphores; uint64_t *values; unsigned count; void *given; /* as the program wrote it */ };
struct operations_node { CUcontext context; CUstreamBatchMemOpParams *list; unsigned count, flags; };
struct condition_node { CUgraphConditionalHandle handle; CUgraphConditionalNodeType type; unsigned size; CUgraph *bodies; };

struct CUgraphNode_st {
    uint32_t kind;
    CUgraphNodeType type;
    CUgraph graph;
    CUgraphNode *after;          /* dependencies */
    size_t after_count;
    size_t order;                /* scratch of the topological sort */
    uint32_t lane;               /* which stream of a launch runs it; 0: the launch's own */
    uint32_t continued;          /* a later node runs in its lane */
    uint32_t disabled;           /* in an executable graph: does nothing */
    uint64_t done_at;            /* scratch of a launch: the tail of its stream once it was given the node */
    uint32_t done_row;
    CUgraphNode original;        /* in an executable graph: the node it was copied from */
    union {
        struct launch kernel;
        struct copy_node copy;
        CUDA_MEMCPY3D box;
        struct fill_node fill;
        struct host_node host;
        CUgraph child;           /* the node's own copy */
        CUevent event;
        CUDA_MEM_ALLOC_NODE_PARAMS allocation;
        CUdeviceptr free_address;
        struct semaphore_node semaphores;
        struct operations_node operations;
        struct condition_node condition;
    };
    uint32_t is_box;
    struct attributes *attributes; /* of a kernel; NULL: none was set */
    CUgraphNode next;
};

struct held_object { CUuserObject object; uint32_t count; struct held_object *next; };

struct condition { CUgraphConditionalHandle handle; uint32_t value, assigned; struct condition *next; };

struct CUgraph_st {
    uint32_t kind;
    struct condition *conditions; /* handles that were made for it */
    CUcontext context;
    CUgraphNode nodes, *end;     /* in order of creation */
    size_t count;
    struct held_object *objects; /* user objects that live as long as the graph */
};

#define MAX_LANES 8u /* streams beside the launch's own; wider graphs share them */

struct CUgraphExec_st {
    uint32_t kind;
    CUcontext context;
    CUgraph graph;               /* own copy */
    CUgraphNode *sorted;
    uint64_t flags;
    CUstream lanes[MAX_LANES];   /* made by the first launch that needs them, for its context */
    CUcontext lane_context;
};

CUgraph sim_graph_new(CUcontext context);
void sim_graph_free(CUgraph graph);
CUgraph sim_graph_copy(CUgraph graph);
CUresult sim_graph_add(CUgraph graph, CUgraphNodeType type, const CUgraphNode *after, size_t count, CUgraphNode *out);
CUresult sim_graph_add_allocation(CUgraph graph, const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params, CUgraphNode *out);
CUresult sim_graph_set_box(CUgraphNode node, const CUDA_MEMCPY3D *box);
CUresult sim_graph_set_fill(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params);
CUresult sim_graph_set_any(CUgraphNode node, const CUgraphNodeParams *params);
CUresult sim_graph_set_child(CUgraphNode node, CUgraph child);
CUgraphNode sim_exec_node(CUgraphExec exec, CUgraphNode original, CUgraphNodeType type); /* NULL: not in it, or of another type */
int sim_exec_valid(CUgraphExec exec);

/* graph_operations.c: nodes of memory operations and of external semaphores; `params` as the interface has them */
CUresult sim_graph_set_operations(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params);
CUresult sim_graph_set_signals(CUgraphNode node, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *params);
CUresult sim_graph_set_waits(CUgraphNode node, const CUDA_EXT_SEM_WAIT_NODE_PARAMS *params);
CUresult sim_graph_add_with(CUgraphNode *out, CUgraph graph, CUgraphNodeType type, const CUgraphNode *after, size_t count, const void *params);
CUresult sim_graph_run_operations(CUgraphNode node, CUstream stream);
int sim_graph_copy_lists(CUgraphNode twin, CUgraphNode node); /* 0: no memory; the twin then has none */
void sim_graph_free_lists(CUgraphNode node);

/* graph_condition.c */
CUresult sim_graph_add_condition(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUDA_CONDITIONAL_NODE_PARAMS *params);
CUgraph sim_graph_chosen_body(CUgraph graph, CUgraphNode node); /* NULL: none runs */
int sim_graph_copy_condition(CUgraphNode twin, CUgraphNode node);
void sim_graph_free_condition(CUgraphNode node);
int sim_graph_copy_conditions(CUgraph to, CUgraph from);
void sim_graph_free_conditions(CUgraph graph);
CUresult sim_objects_copy(CUgraph to, CUgraph from);
void sim_objects_drop(CUgraph graph);
void sim_graph_take_back(CUgraph graph, CUgraphNode node); /* takes a node out and frees it */
CUgraphNode *sim_graph_sort(CUgraph graph); /* NULL: a cycle, or no memory */
CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream);
CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream);
CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
static inline int sim_graph_valid(CUgraph graph) { return graph && graph->kind == HANDLE_GRAPH; }
static inline int sim_node_valid(CUgraphNode node) { return node && node->kind == HANDLE_NODE; }

#endif
