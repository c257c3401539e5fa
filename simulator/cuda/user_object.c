/* Objects of the program that live as long as the graphs that hold them. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>

struct CUuserObject_st {
    uint32_t kind;
    uint32_t count;
    void *object;
    CUhostFn destroy;
};

static int valid(CUuserObject object) { return object && object->kind == HANDLE_USER_OBJECT; }

static CUresult let_go(CUuserObject object, uint32_t count)
{
    uint32_t held = __atomic_load_n(&object->count, __ATOMIC_RELAXED);
    do {
        if (count > held)
            return CUDA_ERROR_INVALID_VALUE;
    } while (!__atomic_compare_exchange_n(&object->count, &held, held - count, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)); /* the last one sees what the others did */
    if (held == count) {
        object->kind = HANDLE_DEAD;
        object->destroy(object->object);
        free(object);
    }
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuUserObjectCreate(CUuserObject *out, void *object, CUhostFn destroy, unsigned int count, unsigned int flags)
{
    ENTER();
    if (!out || !destroy || !count || count > INT32_MAX || flags != 1) /* "no destructor sync" must be given */
        return CUDA_ERROR_INVALID_VALUE;
    CUuserObject made = malloc(sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUuserObject_st){HANDLE_USER_OBJECT, count, object, destroy};
    *out = made;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    ENTER();
    if (!valid(object) || !count || count > INT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    __atomic_fetch_add(&object->count, count, __ATOMIC_RELAXED); /* relaxed: the caller has a reference already */
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    ENTER();
    return valid(object) && count ? let_go(object, count) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult hold(CUgraph graph, CUuserObject object, uint32_t count)
{
    struct held_object *held = malloc(sizeof *held);
    if (!held)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *held = (struct held_object){object, count, graph->objects};
    graph->objects = held;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
    ENTER();
    if (!sim_graph_valid(graph) || !valid(object) || !count || count > INT32_MAX || flags & ~1u)
        return CUDA_ERROR_INVALID_VALUE;
    if (!(flags & 1)) /* else the caller's references become the graph's */
        __atomic_fetch_add(&object->count, count, __ATOMIC_RELAXED); /* relaxed: as above */
    return hold(graph, object, count);
}
SIM_EXPORTED CUresult CUDAAPI cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    ENTER();
    if (!sim_graph_valid(graph) || !valid(object) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct held_object **link = &graph->objects; *link; link = &(*link)->next) {
        struct held_object *held = *link;
        if (held->object != object || held->count < count)
            continue;
        held->count -= count;
        if (held->count == 0) {
            *link = held->next;
            free(held);
        }
        return let_go(object, count);
    }
    return CUDA_ERROR_INVALID_VALUE;
}

/* A copy of a graph has references of its own. */
CUresult sim_objects_copy(CUgraph to, CUgraph from)
{
    for (const struct held_object *held = from->objects; held; held = held->next) {
        if (hold(to, held->object, held->count) != CUDA_SUCCESS)
            return CUDA_ERROR_OUT_OF_MEMORY;
        __atomic_fetch_add(&held->object->count, held->count, __ATOMIC_RELAXED); /* relaxed: as above */
    }
    return CUDA_SUCCESS;
}

void sim_objects_drop(CUgraph graph)
{
    for (struct held_object *held = graph->objects, *next; held; held = next) {
        next = held->next;
        let_go(held->object, held->count);
        free(held);
    }
    graph->objects = NULL;
}
