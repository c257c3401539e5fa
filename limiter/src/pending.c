#include "pending.h"

#include "driver.h"
#include "memory.h"

#define WAIT_NS UINT64_C(1000000000)
#define POLL_NS UINT64_C(200000)

/* False if another thread is at it: it does what there is to do. */
static bool try_lock(uint32_t *word)
{
    return __atomic_exchange_n(word, 1, __ATOMIC_ACQUIRE) == 0;
}

static void lock(uint32_t *word)
{
    while (!try_lock(word))
        hv_os_yield();
}

static void unlock(uint32_t *word)
{
    hv_store_release_32(word, 0);
}

static CUevent event_behind(CUstream stream, bool per_thread)
{
    hv_call_type_cuEventCreate create = HV_DRIVER(cuEventCreate);
    hv_call_type_cuEventRecord record =
        per_thread ? (hv_call_type_cuEventRecord)HV_DRIVER(cuEventRecord_ptsz) : HV_DRIVER(cuEventRecord);
    hv_call_type_cuEventDestroy_v2 destroy = HV_DRIVER(cuEventDestroy_v2);
    CUevent event;
    if (create == NULL || record == NULL || destroy == NULL || HV_DRIVER(cuEventQuery) == NULL ||
        create(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return NULL;
    if (record(event, stream) == CUDA_SUCCESS)
        return event;
    (void)destroy(event);
    return NULL;
}

/* Lock held. An event that only answers with errors goes with its context. */
static void settle(struct hv_process *process)
{
    hv_call_type_cuEventQuery query = HV_DRIVER(cuEventQuery);
    hv_call_type_cuEventDestroy_v2 destroy = HV_DRIVER(cuEventDestroy_v2);
    for (uint32_t i = 0; i < HV_PENDING_FREES; i++) {
        struct hv_pending_free *one = &process->pending.frees[i];
        if (one->event == NULL || query(one->event) == CUDA_ERROR_NOT_READY)
            continue;
        (void)destroy(one->event);
        hv_memory_release(process, one->device, false, one->bytes);
        *one = (struct hv_pending_free){0};
        process->pending.count--;
    }
}

static bool has_any(struct hv_process *process)
{
    return hv_load_relaxed_32(&process->pending.count) != 0; /* a stale answer only delays */
}

void hv_pending_settle(struct hv_process *process)
{
    if (hv_likely(!has_any(process)) || !try_lock(&process->pending.lock))
        return;
    settle(process);
    unlock(&process->pending.lock);
}

void hv_pending_wait(struct hv_process *process)
{
    uint64_t deadline = hv_os_now_ns() + WAIT_NS;
    hv_pending_settle(process);
    while (has_any(process) && hv_os_now_ns() < deadline) {
        hv_os_wait_until(hv_os_now_ns() + POLL_NS);
        hv_pending_settle(process);
    }
}

static bool enter(struct hv_process *process, const struct hv_pointer_record *record, CUevent event)
{
    bool entered = false;
    lock(&process->pending.lock);
    settle(process);
    for (uint32_t i = 0; i < HV_PENDING_FREES && !entered; i++) {
        struct hv_pending_free *one = &process->pending.frees[i];
        if (one->event != NULL)
            continue;
        *one = (struct hv_pending_free){.event = event, .bytes = record->bytes, .device = record->device};
        process->pending.count++;
        entered = true;
    }
    unlock(&process->pending.lock);
    return entered;
}

void hv_pending_add(struct hv_process *process, const struct hv_pointer_record *record, CUstream stream,
                    bool per_thread)
{
    CUevent event = event_behind(stream, per_thread);
    if (event == NULL) { /* no context, or no memory for it: nothing tells when */
        hv_memory_release(process, record->device, false, record->bytes);
        return;
    }
    while (!enter(process, record, event)) /* so many under way: wait for one, as the stream does */
        hv_pending_wait(process);
}

void hv_pending_forget(struct hv_process *process, uint32_t device)
{
    if (!has_any(process))
        return;
    lock(&process->pending.lock);
    for (uint32_t i = 0; i < HV_PENDING_FREES; i++) {
        struct hv_pending_free *one = &process->pending.frees[i];
        if (one->event == NULL || one->device != device)
            continue;
        hv_memory_release(process, one->device, false, one->bytes);
        *one = (struct hv_pending_free){0};
        process->pending.count--;
    }
    unlock(&process->pending.lock);
}
