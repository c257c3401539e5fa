/* What contexts take before it can be measured. */
#include "contexts.h"
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
    if (device >= HV_MAX_DEVICES) {
        if (hv_device_is_known(reservation->process, ordinal)) /* another's: a context alone takes memory of it */
            return hv_reserve_ordinal(reservation, ordinal, 1);
        reservation->process = NULL; /* none at all, or before cuInit: the driver refuses it in its own words */
        return CUDA_SUCCESS;
    }
    uint64_t bytes = hv_load_relaxed(&hv_files()->control[device]->context_bytes);
    if (bytes == 0) { /* contexts are not to be counted */
        reservation->process = NULL;
        return CUDA_SUCCESS;
    }
    return hv_reserve_ordinal(reservation, ordinal, bytes);
}

/* ---- what stands for contexts ---- */

/* The words about it, open for this thread alone. */
struct stand_in {
    struct hv_process *process;
    struct hv_process_slot *slot;
    uint64_t *bytes; /* the slot's context_bytes */
    uint64_t *word;  /* what the daemon gives up; NULL: nothing */
    uint64_t opened;
    uint32_t device;
};

static void open_stand_in(struct stand_in *stand_in, struct hv_process *process, struct hv_process_slot *slot,
                          uint32_t device)
{
    const struct hv_files *files = hv_files();
    while (__atomic_exchange_n(&process->changing_contexts, 1, __ATOMIC_ACQUIRE) != 0)
        hv_os_yield();
    *stand_in = (struct stand_in){
        .process = process,
        .slot = slot,
        .bytes = &slot->devices[device].context_bytes,
        .word = hv_contexts_word(files, hv_slot_index(&files->slots, slot), device),
        .device = device,
    };
    if (stand_in->word == NULL)
        return;
    struct hv_contexts_open machine = {
        .word = stand_in->word,
        .total = &files->devices[device]->total,
        .bytes = &slot->devices[device].bytes,
        .in_flight = &slot->devices[device].in_flight_bytes,
        .context_bytes = stand_in->bytes,
        .state = hv_load_acquire(&slot->state),
        .at = HV_OPEN_LOAD,
    };
    while (machine.at != HV_OPEN_DONE)
        hv_contexts_open_step(&machine);
    stand_in->opened = machine.seen;
}

static void close_stand_in(const struct stand_in *stand_in)
{
    if (stand_in->word != NULL)
        hv_contexts_close(stand_in->word, stand_in->opened);
    hv_store_release_32(&stand_in->process->changing_contexts, 0);
}

/* After the driver has made the context. */
static void enter_context(struct hv_process *process, struct hv_process_slot *slot, uint32_t device, uint64_t bytes)
{
    struct stand_in stand_in;
    open_stand_in(&stand_in, process, slot, device);
    hv_add_acq_rel(stand_in.bytes, bytes);
    close_stand_in(&stand_in);
    hv_store_release(&process->context_reserved_at_ns[device], hv_os_now_ns());
}

void hv_context_reserved(struct hv_reservation *reservation)
{
    if (reservation->process == NULL)
        return;
    enter_context(reservation->process, reservation->slot, reservation->device, reservation->bytes);
    hv_store_relaxed_32(&reservation->process->context_noticed[reservation->device], 1);
}

/* Give up to so much back. The account first: who reads both in between takes
 * what is measured for more than it is, and not for less. */
static void release_context_bytes(struct hv_process *process, uint32_t device, uint64_t most)
{
    struct hv_process_slot *slot = hv_process_slot(process);
    if (slot == NULL || hv_load_relaxed(&slot->devices[device].context_bytes) == 0)
        return;
    struct stand_in stand_in;
    open_stand_in(&stand_in, process, slot, device);
    uint64_t bytes = hv_load_relaxed(stand_in.bytes); /* only this thread changes it now */
    uint64_t taken = bytes < most ? bytes : most;
    if (taken != 0) {
        hv_memory_release(process, device, false, taken);
        hv_sub_acq_rel(stand_in.bytes, taken);
    }
    close_stand_in(&stand_in);
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
    enter_context(process, slot, device, bytes);
}
