/*
 * Contexts: which one a thread has, so that a launch knows its device without
 * asking, and what a new one takes.
 */
#include "driver.h"
#include "held.h"
#include "memory.h"
#include "pools.h"
#include "thread.h"

/* ---- making and destroying ---- */

/* The bits of a context's record: its device's number; bytes: whose it is;
 * references: uses of one that the program made. */
enum { PRIMARY, MADE };

static void remember_context(struct hv_process *process, CUcontext context, CUdevice ordinal, uint64_t whose)
{
    if (process == NULL || ordinal < 0 || ordinal >= HV_ORDINALS)
        return;
    if (whose == PRIMARY)
        hv_store_relaxed(&process->primary_contexts[ordinal], (uint64_t)(uintptr_t)context); /* always the same one */
    struct hv_pointer_record record = {.bytes = whose, .device = (uint32_t)ordinal, .references = 1};
    /* Without room in the map the driver is asked instead. */
    (void)hv_pointer_put(&process->pointers, HV_POINTER_CONTEXT, (uint64_t)(uintptr_t)context, hv_record_pack(&record));
}

static bool device_of_context(CUcontext context, CUdevice *ordinal)
{
    if (hv_attach_state() != HV_ATTACH_DONE || context == NULL)
        return false;
    struct hv_process *process = hv_process();
    uint64_t value;
    if (process == NULL ||
        !hv_pointer_get(&process->pointers, HV_POINTER_CONTEXT, (uint64_t)(uintptr_t)context, &value))
        return false;
    *ordinal = (CUdevice)hv_record_unpack(value).device;
    return true;
}

static void thread_has_context(CUcontext context)
{
    CUdevice ordinal;
    if (device_of_context(context, &ordinal))
        hv_thread_context_is_on(ordinal);
    else
        hv_thread_context_changed();
}

/* After the driver made a context, which is the thread's current one now. */
static CUresult context_made(struct hv_reservation *reservation, CUresult result, CUcontext *context, CUdevice ordinal)
{
    if (result != CUDA_SUCCESS) {
        if (reservation->process != NULL)
            hv_memory_release(reservation->process, reservation->device, false, reservation->bytes);
        return result;
    }
    hv_context_reserved(reservation);
    struct hv_process *process = hv_attach_state() == HV_ATTACH_DONE ? hv_process() : NULL;
    if (process != NULL) {
        uint32_t device = hv_process_device(process, ordinal);
        if (device < HV_MAX_DEVICES)
            hv_add_acq_rel_32(&process->made_contexts[device], 1);
        remember_context(process, *context, ordinal, MADE);
    }
    hv_thread_context_is_on(ordinal);
    return result;
}

#define MAKE_CONTEXT(call)                                                                                            \
    struct hv_reservation reservation;                                                                                \
    CUresult refused = hv_reserve_context(&reservation, device);                                                      \
    if (refused != CUDA_SUCCESS)                                                                                      \
        return refused;                                                                                               \
    return context_made(&reservation, call, context, device)

HV_WRAP(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device))
{
    MAKE_CONTEXT(HV_REAL(cuCtxCreate)(context, flags, device));
}

HV_WRAP(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device))
{
    MAKE_CONTEXT(HV_REAL(cuCtxCreate_v2)(context, flags, device));
}

HV_WRAP(cuCtxCreate_v3, (CUcontext * context, void *affinities, int count, unsigned int flags, CUdevice device))
{
    MAKE_CONTEXT(HV_REAL(cuCtxCreate_v3)(context, affinities, count, flags, device));
}

/* Contexts beside graphics: of one GPU, and for the current thread as all others. */
HV_WRAP(cuGLCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device))
{
    MAKE_CONTEXT(HV_REAL(cuGLCtxCreate)(context, flags, device));
}

HV_WRAP(cuGLCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device))
{
    MAKE_CONTEXT(HV_REAL(cuGLCtxCreate_v2)(context, flags, device));
}

HV_WRAP(cuVDPAUCtxCreate,
        (CUcontext * context, unsigned int flags, CUdevice device, unsigned int vdp_device, void *vdp_get_proc_address))
{
    MAKE_CONTEXT(HV_REAL(cuVDPAUCtxCreate)(context, flags, device, vdp_device, vdp_get_proc_address));
}

HV_WRAP(cuVDPAUCtxCreate_v2,
        (CUcontext * context, unsigned int flags, CUdevice device, unsigned int vdp_device, void *vdp_get_proc_address))
{
    MAKE_CONTEXT(HV_REAL(cuVDPAUCtxCreate_v2)(context, flags, device, vdp_device, vdp_get_proc_address));
}

HV_WRAP(cuCtxCreate_v4, (CUcontext * context, void *parameters, unsigned int flags, CUdevice device))
{
    MAKE_CONTEXT(HV_REAL(cuCtxCreate_v4)(context, parameters, flags, device));
}

/* Before the driver destroys a context: memory that another thread gets from
 * now on may be of one that comes after it, and must not be taken for gone. */
static uint32_t next_generation(struct hv_process *process, CUdevice ordinal)
{
    uint32_t device = hv_process_device(process, ordinal);
    return device >= HV_MAX_DEVICES ? 0 : hv_add_acq_rel_32(&process->context_generation[device], 1) + 1;
}

/* The driver is asked for each pointer, which it can't be for arrays. */
static void forget_what_went_with(struct hv_process *process, uint32_t device, CUcontext context, uint32_t generation)
{
    hv_memory_release(process, device, false, hv_held_take_gone(process, device));
    hv_memory_release(process, 0, true, hv_held_take_gone_from_host(process));
    hv_memory_release(process, device, false, hv_held_take_arrays_of(process, device, context, generation));
}

/* A context of a device that is gone, from this generation on. */
struct gone {
    CUcontext context; /* NULL: not known */
    CUdevice ordinal;
    uint32_t generation;
};

/* What a program allocated in a context and did not free goes with it. */
static void context_is_gone(struct hv_process *process, const struct gone *gone, uint64_t whose)
{
    uint32_t device = hv_process_device(process, gone->ordinal);
    if (device >= HV_MAX_DEVICES)
        return;
    hv_context_released(process, device);
    uint32_t left = whose == MADE ? hv_sub_acq_rel_32(&process->made_contexts[device], 1) - 1
                                  : hv_load_acquire_32(&process->made_contexts[device]);
    forget_what_went_with(process, device, gone->context, gone->generation);
    if (left != 0 || hv_primary_is_active(gone->ordinal))
        return;
    hv_store_relaxed_32(&process->context_noticed[device], 0); /* the next one is to be noticed anew */
    hv_pending_forget(process, device);
    hv_memory_release(process, device, false, hv_held_purge(process, device, gone->generation));
    hv_bindings_of_arrays_ended(process, device);
    hv_pools_refresh(process, device);
}

/* What is to be put back if the driver does not destroy it after all. */
struct destruction {
    struct hv_process *process; /* NULL: nothing known of this context */
    struct gone gone;
    uint64_t whose;
};

/* The driver's events of a context go with it, so they are let go before; so
 * is its entry, because another thread may get the same handle right after. */
static void destruction_begin(struct destruction *destruction, CUcontext context)
{
    uint64_t value;
    *destruction = (struct destruction){.gone = {.context = context}};
    if (hv_attach_state() != HV_ATTACH_DONE)
        return;
    struct hv_process *process = hv_process();
    if (process == NULL)
        return;
    hv_sampler_forget_context(&process->sampler, context);
    hv_pending_wait(process);
    if (!hv_pointer_take(&process->pointers, HV_POINTER_CONTEXT, (uint64_t)(uintptr_t)context, &value))
        return;
    destruction->process = process;
    destruction->whose = hv_record_unpack(value).bytes;
    destruction->gone.ordinal = (CUdevice)hv_record_unpack(value).device;
    destruction->gone.generation = next_generation(process, destruction->gone.ordinal);
}

static CUresult destruction_end(const struct destruction *destruction, CUresult result)
{
    hv_thread_context_changed();
    if (destruction->process == NULL)
        return result;
    const struct gone *gone = &destruction->gone;
    if (result == CUDA_SUCCESS && !(destruction->whose == PRIMARY && hv_primary_is_active(gone->ordinal)))
        context_is_gone(destruction->process, gone, destruction->whose);
    else
        remember_context(destruction->process, gone->context, gone->ordinal, destruction->whose);
    return result;
}

HV_WRAP(cuCtxDestroy, (CUcontext context))
{
    struct destruction destruction;
    destruction_begin(&destruction, context);
    return destruction_end(&destruction, HV_REAL(cuCtxDestroy)(context));
}

HV_WRAP(cuCtxDestroy_v2, (CUcontext context))
{
    struct destruction destruction;
    destruction_begin(&destruction, context);
    return destruction_end(&destruction, HV_REAL(cuCtxDestroy_v2)(context));
}

/* Deprecated counting of uses: with the last one the context is destroyed. */
static bool uses_of(CUcontext context, uint32_t *uses)
{
    uint64_t value;
    struct hv_process *process = hv_attach_state() == HV_ATTACH_DONE && context != NULL ? hv_process() : NULL;
    if (process == NULL ||
        !hv_pointer_get(&process->pointers, HV_POINTER_CONTEXT, (uint64_t)(uintptr_t)context, &value))
        return false;
    *uses = hv_record_unpack(value).references;
    return hv_record_unpack(value).bytes == MADE;
}

HV_WRAP(cuCtxAttach, (CUcontext * context, unsigned int flags))
{
    uint32_t uses;
    CUresult result = HV_REAL(cuCtxAttach)(context, flags);
    if (result == CUDA_SUCCESS && uses_of(*context, &uses))
        (void)hv_pointer_refer(&hv_process()->pointers, HV_POINTER_CONTEXT, (uint64_t)(uintptr_t)*context);
    return result;
}

HV_WRAP(cuCtxDetach, (CUcontext context))
{
    struct destruction destruction;
    struct hv_pointer_record record;
    uint32_t uses;
    if (!uses_of(context, &uses) || uses == 1) {
        destruction_begin(&destruction, context);
        return destruction_end(&destruction, HV_REAL(cuCtxDetach)(context));
    }
    CUresult result = HV_REAL(cuCtxDetach)(context);
    hv_thread_context_changed();
    if (result == CUDA_SUCCESS)
        (void)hv_pointer_unrefer(&hv_process()->pointers, HV_POINTER_CONTEXT, (uint64_t)(uintptr_t)context, &record);
    return result;
}

/* ---- the primary context ---- */

HV_WRAP(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))
{
    struct hv_reservation reservation = {0};
    CUresult refused = hv_primary_is_active(device) ? CUDA_SUCCESS : hv_reserve_context(&reservation, device);
    if (refused != CUDA_SUCCESS)
        return refused;
    CUresult result = HV_REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (result != CUDA_SUCCESS) {
        if (reservation.process != NULL)
            hv_memory_release(reservation.process, reservation.device, false, reservation.bytes);
        return result;
    }
    hv_context_reserved(&reservation);
    if (hv_attach_state() == HV_ATTACH_DONE)
        remember_context(hv_process(), *context, device, PRIMARY);
    return result;
}

/* The handle that the driver keeps for a device's; NULL: it was not seen. */
static CUcontext primary_of(const struct hv_process *process, CUdevice ordinal)
{
    return ordinal < 0 || ordinal >= HV_ORDINALS
               ? NULL
               : (CUcontext)(uintptr_t)hv_load_relaxed(&process->primary_contexts[ordinal]);
}

/* Its memory is gone when it is no longer active; what the program allocated
 * in it and did not free is gone then too. */
static CUresult primary_released(CUdevice device, uint32_t generation, CUresult result)
{
    hv_thread_context_changed();
    if (result != CUDA_SUCCESS || hv_attach_state() != HV_ATTACH_DONE || hv_primary_is_active(device))
        return result;
    struct hv_process *process = hv_process();
    if (process == NULL)
        return result;
    hv_sampler_forget_device(&process->sampler, hv_process_device(process, device));
    struct gone gone = {.context = primary_of(process, device), .ordinal = device, .generation = generation};
    context_is_gone(process, &gone, PRIMARY);
    return result;
}

/* What frees in streams wait for is looked at for the last time. */
static uint32_t frees_are_over(CUdevice device)
{
    struct hv_process *process = hv_attach_state() == HV_ATTACH_DONE ? hv_process() : NULL;
    if (process == NULL)
        return 0;
    hv_pending_wait(process);
    return next_generation(process, device);
}

/* Another thread may have made the next one already. */
static CUresult primary_reset(CUdevice device, uint32_t generation, CUresult result)
{
    struct hv_process *process = hv_attach_state() == HV_ATTACH_DONE ? hv_process() : NULL;
    uint32_t index = process == NULL ? HV_MAX_DEVICES : hv_process_device(process, device);
    if (result == CUDA_SUCCESS && index < HV_MAX_DEVICES)
        forget_what_went_with(process, index, primary_of(process, device), generation);
    return primary_released(device, generation, result);
}

HV_WRAP(cuDevicePrimaryCtxRelease, (CUdevice device))
{
    uint32_t generation = frees_are_over(device);
    return primary_released(device, generation, HV_REAL(cuDevicePrimaryCtxRelease)(device));
}

HV_WRAP(cuDevicePrimaryCtxRelease_v2, (CUdevice device))
{
    uint32_t generation = frees_are_over(device);
    return primary_released(device, generation, HV_REAL(cuDevicePrimaryCtxRelease_v2)(device));
}

HV_WRAP(cuDevicePrimaryCtxReset, (CUdevice device))
{
    uint32_t generation = frees_are_over(device);
    return primary_reset(device, generation, HV_REAL(cuDevicePrimaryCtxReset)(device));
}

HV_WRAP(cuDevicePrimaryCtxReset_v2, (CUdevice device))
{
    uint32_t generation = frees_are_over(device);
    return primary_reset(device, generation, HV_REAL(cuDevicePrimaryCtxReset_v2)(device));
}

/* ---- the thread's current context ---- */

HV_WRAP(cuCtxSetCurrent, (CUcontext context))
{
    CUresult result = HV_REAL(cuCtxSetCurrent)(context);
    if (result == CUDA_SUCCESS)
        thread_has_context(context);
    else
        hv_thread_context_changed();
    return result;
}

HV_WRAP(cuCtxPushCurrent, (CUcontext context))
{
    CUresult result = HV_REAL(cuCtxPushCurrent)(context);
    if (result == CUDA_SUCCESS)
        thread_has_context(context);
    return result;
}

HV_WRAP(cuCtxPushCurrent_v2, (CUcontext context))
{
    CUresult result = HV_REAL(cuCtxPushCurrent_v2)(context);
    if (result == CUDA_SUCCESS)
        thread_has_context(context);
    return result;
}

HV_WRAP(cuCtxPopCurrent, (CUcontext * context))
{
    CUresult result = HV_REAL(cuCtxPopCurrent)(context);
    hv_thread_context_changed();
    return result;
}

HV_WRAP(cuCtxPopCurrent_v2, (CUcontext * context))
{
    CUresult result = HV_REAL(cuCtxPopCurrent_v2)(context);
    hv_thread_context_changed();
    return result;
}
