/*
 * Contexts: which one a thread has, so that a launch knows its device without
 * asking, and what a new one takes.
 */
#include "driver.h"
#include "held.h"
#include "hooks_context.h"
#include "memory.h"
#include "pools.h"
#include "thread.h"

/* ---- making and destroying ---- */

void hv_context_remember(struct hv_process *process, CUcontext context, CUdevice ordinal, enum hv_context_kind kind)
{
    if (process == NULL || ordinal < 0 || ordinal >= HV_ORDINALS)
        return;
    if (kind == HV_CONTEXT_PRIMARY)
        hv_store_relaxed(&process->primary_contexts[ordinal], (uint64_t)(uintptr_t)context); /* always the same one */
    struct hv_pointer_record record = {.bytes = kind, .device = (uint32_t)ordinal, .references = 1};
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
        hv_context_remember(process, *context, ordinal, HV_CONTEXT_MADE);
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

uint32_t hv_context_next_generation(struct hv_process *process, CUdevice ordinal)
{
    uint32_t device = hv_process_device(process, ordinal);
    return device >= HV_MAX_DEVICES ? 0 : hv_add_acq_rel_32(&process->context_generation[device], 1) + 1;
}

/* The driver is asked for each pointer, which it can't be for arrays. */
void hv_context_forget(struct hv_process *process, uint32_t device, const struct hv_gone_context *gone)
{
    hv_memory_release(process, device, false, hv_held_take_gone(process, device));
    hv_memory_release(process, 0, true, hv_held_take_gone_from_host(process));
    hv_memory_release(process, device, false, hv_held_take_arrays_of(process, device, gone->context, gone->generation));
}

void hv_context_is_gone(struct hv_process *process, const struct hv_gone_context *gone, enum hv_context_kind kind)
{
    uint32_t device = hv_process_device(process, gone->ordinal);
    if (device >= HV_MAX_DEVICES)
        return;
    hv_context_released(process, device);
    uint32_t left = kind == HV_CONTEXT_MADE ? hv_sub_acq_rel_32(&process->made_contexts[device], 1) - 1
                                  : hv_load_acquire_32(&process->made_contexts[device]);
    hv_context_forget(process, device, gone);
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
    struct hv_gone_context gone;
    enum hv_context_kind kind;
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
    destruction->kind = (enum hv_context_kind)hv_record_unpack(value).bytes; /* as it was entered */
    destruction->gone.ordinal = (CUdevice)hv_record_unpack(value).device;
    destruction->gone.generation = hv_context_next_generation(process, destruction->gone.ordinal);
}

static CUresult destruction_end(const struct destruction *destruction, CUresult result)
{
    hv_thread_context_changed();
    if (destruction->process == NULL)
        return result;
    const struct hv_gone_context *gone = &destruction->gone;
    if (result == CUDA_SUCCESS && !(destruction->kind == HV_CONTEXT_PRIMARY && hv_primary_is_active(gone->ordinal)))
        hv_context_is_gone(destruction->process, gone, destruction->kind);
    else
        hv_context_remember(destruction->process, gone->context, gone->ordinal, destruction->kind);
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
    return hv_record_unpack(value).bytes == HV_CONTEXT_MADE;
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
