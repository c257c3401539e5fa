/* Contexts: primary and explicit, their stack in each thread, and the memory each one costs. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

CUcontext sim_current_context(void)
{
    const struct thread_state *thread = sim_thread();
    return thread->depth ? thread->stack[thread->depth - 1] : NULL;
}

int sim_context_valid(CUcontext context) { return context && context->kind == HANDLE_CONTEXT; }

/* Under MPS a process may be given a share of the SMs; 0: no limit. */
static uint32_t mps_limit(uint32_t gpu, uint32_t wanted)
{
    uint32_t most = sim_usable_sms(gpu);
    return most < sim_sm_count(gpu) && (!wanted || most < wanted) ? most : wanted;
}

/* The reserved handle stands for each primary context of the device in turn, as a real driver's does. */
CUcontext sim_primary_handle(uint32_t device)
{
    pthread_mutex_lock(&sim_driver.making);
    CUcontext *reserved = &sim_driver.primary_reserved[device];
    if (!*reserved)
        *reserved = sim_context_valid(sim_driver.primary[device]) ? sim_driver.primary[device] : calloc(1, sizeof **reserved);
    CUcontext handle = *reserved;
    pthread_mutex_unlock(&sim_driver.making);
    return handle;
}

/* A green context is a part of the primary one's SMs and costs no memory of its own. */
static CUresult create(uint32_t device, uint32_t flags, uint32_t primary, uint32_t green, uint32_t sm_limit, CUcontext *out)
{
    struct sim_machine *machine = sim_here();
    uint32_t gpu = sim_driver.gpu_of[device];
    const struct sim_gpu_info *info = &machine->gpu[gpu].info;
    if (info->compute_mode == 2) /* prohibited */
        return CUDA_ERROR_NO_DEVICE;
    if (info->compute_mode == 3 && !green && !sim_mps_may_use(gpu)) /* exclusive process */
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    int status = green ? SIM_OK : sim_charge_context(machine, gpu, sim_driver.process);
    if (status != SIM_OK)
        return status == SIM_GPU_GONE ? CUDA_ERROR_UNKNOWN : sim_result(status);
    CUcontext reserved = primary ? sim_driver.primary_reserved[device] : NULL;
    CUcontext context = reserved ? memset(reserved, 0, sizeof *reserved) : calloc(1, sizeof *context);
    if (!context) {
        if (!green)
            sim_refund_context(machine, gpu, sim_driver.process);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    context->kind = HANDLE_CONTEXT;
    context->device = device;
    context->gpu = gpu;
    context->flags = flags;
    context->primary = primary;
    context->green = green;
    context->api_version = machine->system.cuda_version;
    context->sm_limit = mps_limit(gpu, sm_limit);
    context->limits[CU_LIMIT_STACK_SIZE] = 1024;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    CUresult result = sim_stream_create(context, 0, 0, &context->legacy);
    if (result != CUDA_SUCCESS) {
        if (!green)
            sim_refund_context(machine, gpu, sim_driver.process);
        if (reserved)
            context->kind = HANDLE_DEAD;
        else
            free(context);
        return result;
    }
    sim_lock_driver();
    context->id = sim_driver.next_id++;
    context->next = sim_driver.contexts;
    sim_driver.contexts = context;
    sim_unlock_driver();
    *out = context;
    return CUDA_SUCCESS;
}

static void destroy(CUcontext context)
{
    sim_lock_driver();
    if (context->kind != HANDLE_CONTEXT) {
        sim_unlock_driver();
        return;
    }
    context->kind = HANDLE_DEAD; /* its memory stays: threads may have it on their stacks */
    for (CUcontext *link = &sim_driver.contexts; *link; link = &(*link)->next)
        if (*link == context) {
            *link = context->next;
            break;
        }
    sim_unlock_driver();
    while (context->streams)
        sim_stream_free(context->streams);
    if (context->green)
        return; /* what was allocated while it was current belongs to the primary context's process still */
    sim_memory_drop_context(context);
    sim_arrays_drop_context(context);
    sim_refund_context(sim_here(), context->gpu, sim_driver.process);
}

CUresult sim_green_context(uint32_t device, uint32_t sm_limit, CUcontext *out) { return create(device, 0, 0, 1, sm_limit, out); }
void sim_green_destroy(CUcontext context) { destroy(context); }

static CUresult push(CUcontext context)
{
    struct thread_state *thread = sim_thread();
    if (thread->depth == MAX_CONTEXT_DEPTH)
        return CUDA_ERROR_OUT_OF_MEMORY;
    thread->stack[thread->depth++] = context;
    return CUDA_SUCCESS;
}

CUresult sim_primary_context(uint32_t device, CUcontext *out)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim_driver.making);
    if (!sim_context_valid(sim_driver.primary[device]))
        result = create(device, sim_driver.primary_flags[device], 1, 0, 0, &sim_driver.primary[device]);
    if (result == CUDA_SUCCESS)
        *out = sim_driver.primary[device];
    pthread_mutex_unlock(&sim_driver.making);
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_primary_context((uint32_t)device, context); /* checked: not negative */
    if (result == CUDA_SUCCESS)
        __atomic_fetch_add(&sim_driver.primary_references[device], 1, __ATOMIC_RELAXED); /* relaxed: a count of callers */
    return result;
}

static CUresult release_primary(CUdevice device)
{
    uint32_t references = __atomic_load_n(&sim_driver.primary_references[device], __ATOMIC_RELAXED);
    do {
        if (references == 0)
            return CUDA_ERROR_INVALID_CONTEXT;
    } while (!__atomic_compare_exchange_n(&sim_driver.primary_references[device], &references, references - 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    if (references == 1 && sim_driver.primary[device])
        destroy(sim_driver.primary[device]);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) { ENTER_DEVICE(device); return release_primary(device); }
SIM_EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device) { ENTER_DEVICE(device); return release_primary(device); }

static CUresult reset_primary(CUdevice device)
{
    if (sim_context_valid(sim_driver.primary[device]))
        destroy(sim_driver.primary[device]);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device) { ENTER_DEVICE(device); return reset_primary(device); }
SIM_EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device) { ENTER_DEVICE(device); return reset_primary(device); }

SIM_EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    ENTER_DEVICE(device);
    if (flags)
        *flags = sim_driver.primary_flags[device];
    if (active)
        *active = sim_context_valid(sim_driver.primary[device]);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
    ENTER_DEVICE(device);
    if (sim_context_valid(sim_driver.primary[device]))
        return CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
    sim_driver.primary_flags[device] = flags;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    ENTER_DEVICE(device);
    sim_driver.primary_flags[device] = flags; /* from 11.0 on, flags of an active context may change */
    if (sim_context_valid(sim_driver.primary[device]))
        sim_driver.primary[device]->flags = flags;
    return CUDA_SUCCESS;
}

static CUresult create_current(CUcontext *out, CUdevice device, unsigned flags, uint32_t sm_limit)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context = NULL;
    CUresult result = create((uint32_t)device, flags, 0, 0, sm_limit, &context); /* checked: not negative */
    if (result != CUDA_SUCCESS)
        return result;
    result = push(context);
    if (result == CUDA_SUCCESS)
        *out = context;
    else
        destroy(context);
    return result;
}

static uint32_t affinity_limit(const CUexecAffinityParam *params, int count)
{
    return params && count > 0 && params[0].type == CU_EXEC_AFFINITY_TYPE_SM_COUNT ? params[0].param.smCount.val : 0;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) { ENTER_DEVICE(device); return create_current(context, device, flags, 0); }
SIM_EXPORTED CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) { ENTER_DEVICE(device); return create_current(context, device, flags, 0); }
SIM_EXPORTED CUresult CUDAAPI cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *params, int count, unsigned int flags, CUdevice device)
{
    ENTER_DEVICE(device);
    return create_current(context, device, flags, affinity_limit(params, count));
}
SIM_EXPORTED CUresult CUDAAPI cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device)
{
    ENTER_DEVICE(device);
    return create_current(context, device, flags, params ? affinity_limit(params->execAffinityParams, params->numExecAffinityParams) : 0);
}

static CUresult destroy_context(CUcontext context)
{
    if (!context || context->primary || context->green)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!sim_context_valid(context))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    struct thread_state *thread = sim_thread();
    if (thread->depth && thread->stack[thread->depth - 1] == context)
        thread->depth--;
    destroy(context);
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuCtxDestroy(CUcontext context) { ENTER(); return destroy_context(context); }
SIM_EXPORTED CUresult CUDAAPI cuCtxDestroy_v2(CUcontext context) { ENTER(); return destroy_context(context); }
SIM_EXPORTED CUresult CUDAAPI cuCtxAttach(CUcontext *out, unsigned int flags)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    __atomic_fetch_add(&context->attached, 1, __ATOMIC_RELAXED); /* relaxed: a count of callers */
    *out = context;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuCtxDetach(CUcontext context)
{
    ENTER();
    if (!sim_context_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    uint32_t attached = __atomic_load_n(&context->attached, __ATOMIC_RELAXED);
    if (attached) {
        __atomic_fetch_sub(&context->attached, 1, __ATOMIC_RELAXED); /* relaxed: a count of callers */
        return CUDA_SUCCESS;
    }
    return destroy_context(context);
}

static CUresult push_context(CUcontext context)
{
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return sim_context_valid(context) ? push(context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}
static CUresult pop_context(CUcontext *out)
{
    struct thread_state *thread = sim_thread();
    if (!thread->depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    thread->depth--;
    if (out)
        *out = thread->stack[thread->depth];
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) { ENTER(); return push_context(context); }
SIM_EXPORTED CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext context) { ENTER(); return push_context(context); }
SIM_EXPORTED CUresult CUDAAPI cuCtxPopCurrent(CUcontext *context) { ENTER(); return pop_context(context); }
SIM_EXPORTED CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *context) { ENTER(); return pop_context(context); }

/* A reserved handle that is made current becomes its device's primary context now, which is when it starts to cost. */
static CUresult wake(CUcontext context)
{
    for (uint32_t device = 0; context && device < sim_driver.device_count; device++)
        if (sim_driver.primary_reserved[device] == context) {
            CUcontext made;
            return sim_primary_context(device, &made);
        }
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxSetCurrent(CUcontext context)
{
    ENTER();
    struct thread_state *thread = sim_thread();
    CUresult awake = context && !sim_context_valid(context) ? wake(context) : CUDA_SUCCESS;
    if (awake != CUDA_SUCCESS)
        return awake;
    if (!context) {
        thread->depth -= thread->depth != 0;
        return CUDA_SUCCESS;
    }
    if (!thread->depth)
        return push(context);
    thread->stack[thread->depth - 1] = context;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxGetCurrent(CUcontext *context)
{
    ENTER();
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = sim_current_context();
    return CUDA_SUCCESS;
}
