#include "driver.h"
#include "graph_costs.h"
#include "graph_memory.h"
#include "pools.h"

static struct hv_graph_needs *needs_of(uint64_t value)
{
    return (struct hv_graph_needs *)(uintptr_t)value;
}

/* ---- making one ---- */

static CUresult known(CUresult result, struct hv_process *process, CUgraphExec executable, struct hv_graph_needs *needs)
{
    hv_store_relaxed_32(&process->had_graph_memory, 1); /* a flag that is only ever set */
    if (result == CUDA_SUCCESS && hv_pointer_put(&process->pointers, HV_POINTER_GRAPH, (uint64_t)(uintptr_t)executable,
                                                 (uint64_t)(uintptr_t)needs))
        hv_add_acq_rel_32(&process->graphs_with_memory, 1);
    else
        hv_os_free_pages(needs, sizeof *needs); /* no memory for it: the daemon sees what it takes */
    return result;
}

static CUresult instantiated(CUresult result, const CUgraphExec *executable, CUgraph graph)
{
    struct hv_process *process = hv_attach_state() == HV_ATTACH_DONE ? hv_process() : NULL;
    if (result != CUDA_SUCCESS || process == NULL)
        return result;
    hv_graph_costs_from(process, *executable, graph);
    struct hv_graph_needs *needs = hv_graph_needs_of(graph);
    return needs == NULL ? result : known(result, process, *executable, needs);
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

typedef int instantiate_type(CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters);

/* May upload at once, which takes the memory as a launch does. */
static CUresult instantiate(CUgraphExec *executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters,
                            instantiate_type *driver)
{
    CUresult refused;
    struct hv_graph_launch launch;
    bool uploads = parameters != NULL && (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0;
    struct hv_process *process = uploads ? hv_limited_process(&refused) : NULL;
    struct hv_graph_needs *needs = process == NULL ? NULL : hv_graph_needs_of(graph);
    if (needs == NULL)
        return instantiated(driver(executable, graph, parameters), executable, graph);
    refused = hv_graph_memory_begin_for(&launch, process, needs);
    if (refused != CUDA_SUCCESS) {
        parameters->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
        hv_os_free_pages(needs, sizeof *needs);
        return refused;
    }
    CUresult result = hv_graph_memory_end(&launch, driver(executable, graph, parameters));
    if (result == CUDA_SUCCESS)
        hv_graph_costs_from(process, *executable, graph);
    return known(result, process, result == CUDA_SUCCESS ? *executable : NULL, needs);
}

HV_WRAP(cuGraphInstantiateWithParams,
        (CUgraphExec * executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters))
{
    return instantiate(executable, graph, parameters, HV_REAL(cuGraphInstantiateWithParams));
}

HV_WRAP(cuGraphInstantiateWithParams_ptsz,
        (CUgraphExec * executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters))
{
    return instantiate(executable, graph, parameters, HV_REAL(cuGraphInstantiateWithParams_ptsz));
}

HV_WRAP(cuGraphExecDestroy, (CUgraphExec executable))
{
    struct hv_process *process = hv_attach_state() == HV_ATTACH_DONE ? hv_process() : NULL;
    uint64_t value;
    bool found = process != NULL && hv_graph_memory_in_use() &&
                 hv_pointer_take(&process->pointers, HV_POINTER_GRAPH, (uint64_t)(uintptr_t)executable, &value);
    CUresult result = HV_REAL(cuGraphExecDestroy)(executable);
    if (!found || (result != CUDA_SUCCESS && hv_pointer_put(&process->pointers, HV_POINTER_GRAPH,
                                                            (uint64_t)(uintptr_t)executable, value)))
        return result;
    hv_os_free_pages(needs_of(value), sizeof(struct hv_graph_needs));
    hv_sub_acq_rel_32(&process->graphs_with_memory, 1);
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

static CUresult reserve_share(struct hv_process *process, struct hv_graph_share *share, struct hv_graph_need *need)
{
    uint64_t more = need->bytes;
    *share = (struct hv_graph_share){
        .pool = hv_pool_of(process, hv_graph_memory_of(need->ordinal), hv_process_device(process, need->ordinal))};
    if (share->pool != NULL)
        more = hv_pool_claim(share->pool, need, &share->claimed);
    CUresult refused = hv_reserve_ordinal(&share->reservation, need->ordinal, more);
    if (share->pool != NULL && share->reservation.process == NULL) { /* refused, or nothing is limited */
        hv_pool_unclaim(process, share->pool, share->claimed, need);
        share->pool = NULL;
    }
    return refused;
}

static void end_share(struct hv_graph_share *share, bool launched)
{
    const struct hv_reservation *reservation = &share->reservation;
    if (share->pool != NULL)
        hv_pool_grown(share->pool, &share->reservation, share->claimed); /* a failed launch may have taken a part */
    else if (reservation->process != NULL && !launched)
        hv_memory_release(reservation->process, reservation->device, false, reservation->bytes);
}

CUresult hv_graph_memory_end(struct hv_graph_launch *launch, CUresult result)
{
    for (uint32_t i = 0; i < launch->count; i++)
        end_share(&launch->shares[i], result == CUDA_SUCCESS);
    return result;
}

CUresult hv_graph_memory_begin_for(struct hv_graph_launch *launch, struct hv_process *process,
                                   struct hv_graph_needs *needs)
{
    launch->count = 0;
    for (uint32_t i = 0; i < needs->count; i++) {
        CUresult refused = reserve_share(process, &launch->shares[i], &needs->needs[i]);
        if (refused != CUDA_SUCCESS)
            return hv_graph_memory_end(launch, refused);
        launch->count++;
    }
    return CUDA_SUCCESS;
}

CUresult hv_graph_memory_begin(struct hv_graph_launch *launch, CUgraphExec graph)
{
    CUresult refused;
    uint64_t value;
    launch->count = 0;
    struct hv_process *process = hv_limited_process(&refused);
    if (process == NULL ||
        !hv_pointer_get(&process->pointers, HV_POINTER_GRAPH, (uint64_t)(uintptr_t)graph, &value))
        return refused;
    return hv_graph_memory_begin_for(launch, process, needs_of(value));
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
