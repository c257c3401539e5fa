/* What contexts take before it can be measured. */
#include "driver.h"
#include "ledger.h"
#include "memory.h"

CUresult hv_reserve_context(struct hv_reservation *reservation, CUdevice ordinal)
{
    CUresult refused;
    *reservation = (struct hv_reservation){.process = hv_limited_process(&refused)};
    if (reservation->process == NULL)
        return refused;
    uint32_t device = hv_process_device(reservation->process, ordinal);
    uint64_t bytes = device >= HV_MAX_DEVICES ? 0 : hv_load_relaxed(&hv_files()->control[device]->context_bytes);
    if (bytes == 0) { /* nothing to reserve: contexts on devices outside the file may be made, and hold nothing */
        reservation->process = NULL;
        return CUDA_SUCCESS;
    }
    return hv_reserve_ordinal(reservation, ordinal, bytes);
}

void hv_context_reserved(struct hv_reservation *reservation)
{
    if (reservation->process == NULL)
        return;
    hv_add_acq_rel(&reservation->slot->devices[reservation->device].context_bytes, reservation->bytes);
    hv_store_relaxed_32(&reservation->process->context_noticed[reservation->device], 1);
    hv_store_release(&reservation->process->context_reserved_at_ns[reservation->device], hv_os_now_ns());
}

/* Take up to so much off what stands for contexts that were not measured. */
static uint64_t take_context_bytes(struct hv_process_slot *slot, uint32_t device, uint64_t most)
{
    uint64_t *word = &slot->devices[device].context_bytes;
    uint64_t bytes = hv_load_relaxed(word);
    uint64_t taken;
    do {
        taken = bytes < most ? bytes : most;
    } while (taken != 0 && !hv_cas_acq_rel(word, &bytes, bytes - taken));
    return taken;
}

static void release_context_bytes(struct hv_process *process, uint32_t device, uint64_t most)
{
    struct hv_process_slot *slot = hv_process_slot(process);
    if (slot == NULL)
        return;
    uint64_t taken = take_context_bytes(slot, device, most);
    if (taken != 0)
        hv_memory_release(process, device, false, taken);
}

void hv_context_released(struct hv_process *process, uint32_t device)
{
    if (device < HV_MAX_DEVICES)
        release_context_bytes(process, device, hv_load_relaxed(&hv_files()->control[device]->context_bytes));
}

void hv_context_settle(struct hv_process *process, uint32_t device)
{
    uint64_t reserved_at = hv_load_acquire(&process->context_reserved_at_ns[device]);
    if (hv_likely(reserved_at == 0) || hv_load_acquire(&hv_files()->control[device]->overhead_at_ns) <= reserved_at)
        return;
    if (hv_cas_acq_rel(&process->context_reserved_at_ns[device], &reserved_at, 0))
        release_context_bytes(process, device, UINT64_MAX);
}

bool hv_primary_is_active(CUdevice ordinal)
{
    unsigned int flags;
    int active = 0;
    hv_call_type_cuDevicePrimaryCtxGetState ask = HV_DRIVER(cuDevicePrimaryCtxGetState);
    return ask != NULL && ask(ordinal, &flags, &active) == CUDA_SUCCESS && active != 0;
}

HV_NOINLINE void hv_context_notice_slowly(struct hv_process *process, CUdevice ordinal, uint32_t device)
{
    uint32_t unnoticed = 0;
    uint64_t bytes = hv_load_relaxed(&hv_files()->control[device]->context_bytes);
    struct hv_process_slot *slot = hv_process_slot(process);
    if (bytes == 0) { /* contexts are not to be counted: never ask again */
        hv_store_relaxed_32(&process->context_noticed[device], 1);
        return;
    }
    if (slot == NULL || !hv_primary_is_active(ordinal) ||
        !__atomic_compare_exchange_n(&process->context_noticed[device], &unnoticed, 1, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED)) /* another thread was faster: nothing was read */
        return;
    struct hv_account account = {.total = &hv_files()->devices[device]->total,
                                 .bytes = &slot->devices[device].bytes,
                                 .in_flight = &slot->devices[device].in_flight_bytes};
    if (!hv_ledger_reserve(&account, bytes, HV_TOTAL_BYTES_MASK))
        return;
    hv_add_acq_rel(&slot->devices[device].context_bytes, bytes);
    hv_store_release(&process->context_reserved_at_ns[device], hv_os_now_ns());
}
