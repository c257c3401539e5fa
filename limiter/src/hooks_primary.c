/*
 * The primary context of a device: made by who retains it first, destroyed by
 * who releases it last or resets it. One thread at a time does either, so that
 * what it takes is reserved once, and given back by who saw it go.
 */
#include "driver.h"
#include "hooks_context.h"
#include "memory.h"
#include "thread.h"

#define POLL_NS UINT64_C(200000) /* making one takes the driver much longer */
#define LONGEST_NS UINT64_C(60000000000)

static struct hv_process *limited(CUdevice ordinal)
{
    return hv_attach_state() == HV_ATTACH_DONE && ordinal >= 0 && ordinal < HV_ORDINALS ? hv_process() : NULL;
}

/* A thread that was cancelled in the driver would hold it for ever; what comes of going on then is a context that is
 * counted twice until it is measured. */
static void lock(struct hv_process *process, CUdevice ordinal)
{
    uint64_t until = hv_os_now_ns() + LONGEST_NS;
    while (__atomic_exchange_n(&process->changing_primary[ordinal], 1, __ATOMIC_ACQUIRE) != 0 && hv_os_now_ns() < until)
        hv_os_wait_until(hv_os_now_ns() + POLL_NS);
}

static void unlock(struct hv_process *process, CUdevice ordinal)
{
    hv_store_release_32(&process->changing_primary[ordinal], 0);
}

/* ---- made ---- */

int hv_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);

static CUresult retain(CUcontext *context, CUdevice device)
{
    struct hv_reservation reservation = {0};
    CUresult refused = hv_primary_is_active(device) ? CUDA_SUCCESS : hv_reserve_context(&reservation, device);
    if (refused != CUDA_SUCCESS)
        return refused;
    CUresult result = HV_REAL(cuDevicePrimaryCtxRetain)(context, device);
    if (result == CUDA_SUCCESS)
        hv_context_reserved(&reservation);
    else if (reservation.process != NULL)
        hv_memory_release(reservation.process, reservation.device, false, reservation.bytes);
    return result;
}

HV_WRAP(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))
{
    CUresult refused;
    if (hv_limited_process(&refused) == NULL && refused != CUDA_SUCCESS)
        return refused;
    struct hv_process *process = limited(device);
    if (process == NULL)
        return HV_REAL(cuDevicePrimaryCtxRetain)(context, device);
    bool active = hv_primary_is_active(device);
    if (!active)
        lock(process, device);
    CUresult result = retain(context, device);
    if (!active)
        unlock(process, device);
    if (result == CUDA_SUCCESS)
        hv_context_remember(process, *context, device, HV_CONTEXT_PRIMARY);
    return result;
}

/* ---- destroyed ---- */

typedef int end_type(CUdevice device);

/* A thread that saw it active before may have made the next one already: then what the old one took stands for that. */
static void look(struct hv_process *process, const struct hv_gone_context *gone, bool reset)
{
    uint32_t device = hv_process_device(process, gone->ordinal);
    if (!hv_primary_is_active(gone->ordinal)) {
        hv_sampler_forget_device(&process->sampler, device);
        hv_context_is_gone(process, gone, HV_CONTEXT_PRIMARY);
    } else if (reset && device < HV_MAX_DEVICES) {
        hv_context_forget(process, device, gone);
    }
}

static CUresult ended(CUdevice device, end_type *end, bool reset)
{
    struct hv_process *process = limited(device);
    if (process == NULL) {
        CUresult result = end(device);
        hv_thread_context_changed();
        return result;
    }
    hv_pending_wait(process); /* what frees in streams wait for is looked at for the last time */
    lock(process, device);
    struct hv_gone_context gone = {.context = (CUcontext)(uintptr_t)hv_load_relaxed(&process->primary_contexts[device]),
                                   .ordinal = device,
                                   .generation = hv_context_next_generation(process, device)};
    bool was_active = hv_primary_is_active(device);
    CUresult result = end(device);
    hv_thread_context_changed();
    if (result == CUDA_SUCCESS && was_active)
        look(process, &gone, reset);
    unlock(process, device);
    return result;
}

HV_WRAP(cuDevicePrimaryCtxRelease, (CUdevice device))
{
    return ended(device, HV_REAL(cuDevicePrimaryCtxRelease), false);
}

HV_WRAP(cuDevicePrimaryCtxRelease_v2, (CUdevice device))
{
    return ended(device, HV_REAL(cuDevicePrimaryCtxRelease_v2), false);
}

HV_WRAP(cuDevicePrimaryCtxReset, (CUdevice device))
{
    return ended(device, HV_REAL(cuDevicePrimaryCtxReset), true);
}

HV_WRAP(cuDevicePrimaryCtxReset_v2, (CUdevice device))
{
    return ended(device, HV_REAL(cuDevicePrimaryCtxReset_v2), true);
}
