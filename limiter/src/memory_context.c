/* What contexts take before it can be measured. */
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
