#include "memory.h"

#include "driver.h"
#include "held.h"
#include "kept.h"
#include "ledger.h"
#include "messages.h"
#include "pools.h"
#include "thread.h"

#define RECOUNT_TRIES 16
/* A device that the file does not have; fits a record's device field. */
#define NO_DEVICE HV_MAX_DEVICES

struct hv_process *hv_limited_process(CUresult *refused)
{
    *refused = CUDA_SUCCESS;
    switch (hv_attach()) {
    case HV_ATTACH_DONE:
        break;
    case HV_ATTACH_REFUSED:
        *refused = CUDA_ERROR_SYSTEM_NOT_READY;
        return NULL;
    case HV_ATTACH_UNDECIDED:
    case HV_ATTACH_ABSENT:
        return NULL;
    }
    struct hv_process *process = hv_process();
    if (process == NULL)
        *refused = CUDA_ERROR_OUT_OF_MEMORY;
    return process;
}

/* ---- the account of a device, or of host memory ---- */

/* Host memory is the Pod's and not a device's; its total is kept with the
 * first device. */
static struct hv_account account_of(struct hv_process_slot *slot, uint32_t device, bool host)
{
    if (host)
        return (struct hv_account){.total = &hv_files()->devices[0]->host_bytes,
                                   .bytes = &slot->host_bytes,
                                   .in_flight = &slot->host_in_flight_bytes};
    return (struct hv_account){.total = &hv_files()->devices[device]->total,
                               .bytes = &slot->devices[device].bytes,
                               .in_flight = &slot->devices[device].in_flight_bytes,
                               .peak = &hv_files()->devices[device]->peak_bytes};
}

/* What total may come to: the limit less what contexts and modules hold. MPS bounds each process of a hard share on its
 * own; that all of them together keep to the share is for us. */
static uint64_t device_limit(uint32_t device, struct hv_device_terms *terms)
{
    const struct hv_files *files = hv_files();
    if (!hv_terms_read(files, device, terms))
        return 0;
    bool limited = terms->isolation_mode == HV_ISOLATION_SOFT || terms->isolation_mode == HV_ISOLATION_HARD;
    if (!limited || terms->vram_limit_bytes == UINT64_MAX)
        return HV_TOTAL_BYTES_MASK;
    uint64_t overhead = hv_load_relaxed(&files->control[device]->overhead_bytes);
    return terms->vram_limit_bytes > overhead ? terms->vram_limit_bytes - overhead : 0;
}

static uint64_t limit_of(uint32_t device, bool host)
{
    if (hv_load_relaxed_32(&hv_files()->state->revoked) != 0)
        return 0;
    if (host) {
        uint64_t limit = hv_host_memory_limit(hv_files());
        return limit > HV_TOTAL_BYTES_MASK ? HV_TOTAL_BYTES_MASK : limit;
    }
    struct hv_device_terms terms;
    return device_limit(device, &terms);
}

/* ---- healing ---- */

struct slots_of_account {
    const struct hv_slot_table *table;
    uint32_t device;
    bool host;
};

static bool words_of_slot(const void *context, uint32_t index, struct hv_recount_words *words)
{
    const struct slots_of_account *slots = context;
    if (!hv_slot_may_be_used(slots->table, index))
        return false;
    struct hv_process_slot *slot = hv_slot_at(slots->table, index);
    struct hv_account account = account_of(slot, slots->device, slots->host);
    *words = (struct hv_recount_words){.state = &slot->state,
                                       .bytes = account.bytes,
                                       .in_flight = account.in_flight,
                                       .contexts = slots->host ? NULL : hv_contexts_word(hv_files(), index, slots->device)};
    return true;
}

static void recount(struct hv_process_slot *slot, uint32_t device, bool host)
{
    struct slots_of_account slots = {.table = &hv_files()->slots, .device = device, .host = host};
    for (uint32_t attempt = 0; attempt < RECOUNT_TRIES; attempt++) {
        struct hv_recount machine = {.total = account_of(slot, device, host).total, .at = HV_RECOUNT_LOAD_TOTAL};
        while (machine.at < HV_RECOUNT_HEALED) {
            HV_CRASH_POINT("recount");
            hv_recount_step(&machine, &slots, HV_PROCESS_SLOTS, words_of_slot);
        }
        if (machine.at == HV_RECOUNT_HEALED && machine.quiet)
            hv_tell(HV_MESSAGE_LEDGER_HEALED, "device %u: reserved bytes were %llu, and %llu are held", device,
                    (unsigned long long)hv_total_bytes(machine.seen), (unsigned long long)machine.sum);
        if (machine.at != HV_RECOUNT_RACED)
            return;
    }
}

void hv_memory_heal(struct hv_process *process)
{
    struct hv_process_slot *slot = hv_process_slot(process);
    if (slot == NULL || hv_load_relaxed_32(&process->to_heal) == 0)
        return;
    hv_store_relaxed_32(&process->to_heal, 0);
    for (uint32_t device = 0; device < HV_MAX_DEVICES; device++)
        if (hv_total_bytes(hv_load_relaxed(&hv_files()->devices[device]->total)) != 0)
            recount(slot, device, false);
    if (hv_total_bytes(hv_load_relaxed(&hv_files()->devices[0]->host_bytes)) != 0)
        recount(slot, 0, true);
}

/* ---- reserving ---- */

static void tell_denial(struct hv_reservation *reservation, uint64_t limit)
{
    uint64_t denials = hv_add_relaxed(&reservation->slot->devices[reservation->device].denials, 1) + 1;
    if ((denials & (denials - 1)) == 0) /* the first, the second, the fourth ... */
        hv_tell(HV_MESSAGE_DENIED, "%s %u: %llu bytes refused, the limit leaves %llu in all (refusal %llu)",
                reservation->host ? "host memory, device" : "device", reservation->device,
                (unsigned long long)reservation->bytes, (unsigned long long)limit, (unsigned long long)denials);
}

/* The daemon may have measured contexts since the limit was read: then the
 * total is lower for the very reason that the limit is. */
static bool reserve_within(const struct hv_reservation *reservation, uint64_t bytes, uint64_t *limit)
{
    struct hv_account account = account_of(reservation->slot, reservation->device, reservation->host);
    if (!hv_ledger_reserve(&account, bytes, *limit))
        return false;
    uint64_t now = limit_of(reservation->device, reservation->host);
    if (hv_likely(now >= *limit) || hv_total_bytes(hv_load_relaxed(account.total)) <= now)
        return true;
    hv_ledger_release(&account, bytes);
    *limit = now;
    return false;
}

/* ---- small amounts, without what all processes share ---- */

/* A limit lowered below use grants nothing, not even what is kept. */
static bool reserve_kept(struct hv_reservation *reservation, uint64_t *limit)
{
    struct hv_kept *kept = &reservation->process->kept;
    uint32_t device = reservation->device;
    uint64_t most = hv_kept_most(kept, *limit);
    if (reservation->host || reservation->bytes > most / 2 ||
        hv_total_bytes(hv_load_relaxed(&hv_files()->devices[device]->total)) > *limit)
        return false;
    uint32_t stripe = hv_thread_stripe(reservation->process);
    if (hv_kept_take(kept, stripe, device, reservation->bytes))
        return true;
    hv_kept_count_processes(kept, &hv_files()->slots);
    if (!reserve_within(reservation, reservation->bytes + most / 2, limit))
        return false;
    struct hv_account account = account_of(reservation->slot, device, false);
    if (!hv_kept_put(kept, stripe, device, most / 2, most))
        hv_ledger_release(&account, most / 2);
    return true;
}

/* Returns how much of it is to go to the ledger. */
static uint64_t keep(struct hv_process *process, uint32_t device, uint64_t bytes)
{
    struct hv_device_terms terms;
    uint64_t most = hv_kept_most(&process->kept, device_limit(device, &terms));
    uint32_t stripe = hv_thread_stripe(process);
    if (bytes > most / 2)
        return bytes;
    if (hv_kept_put(&process->kept, stripe, device, bytes, most))
        return 0;
    return hv_kept_take(&process->kept, stripe, device, most / 2) ? bytes + most / 2 : bytes;
}

/* ---- the reservation itself ---- */

static bool try_reserve(struct hv_reservation *reservation, uint64_t *limit)
{
    *limit = limit_of(reservation->device, reservation->host);
    return reserve_kept(reservation, limit) || reserve_within(reservation, reservation->bytes, limit);
}

static void give_up_kept(struct hv_process *process, struct hv_process_slot *slot, uint32_t device)
{
    struct hv_account account = account_of(slot, device, false);
    uint64_t kept = hv_kept_empty(&process->kept, device);
    if (kept != 0)
        hv_ledger_release(&account, kept);
}

/* Before a refusal: what pools and threads of this process keep. */
static void give_up_everything_spare(struct hv_reservation *reservation)
{
    hv_pending_wait(reservation->process);
    hv_pools_trim(reservation->process, reservation->device);
    give_up_kept(reservation->process, reservation->slot, reservation->device);
}

/* A thread that keeps something just now by the share from before has a little more than its own until it frees. */
HV_NOINLINE uint32_t hv_thread_stripe_slowly(struct hv_process *process)
{
    struct hv_process_slot *slot = hv_process_slot(process);
    uint32_t number = hv_kept_join(&process->kept);
    if (slot != NULL && number != 0 && number < HV_KEPT_STRIPES)
        for (uint32_t device = 0; device < HV_MAX_DEVICES; device++)
            give_up_kept(process, slot, device);
    hv_thread.kept_stripe = number % HV_KEPT_STRIPES + 1;
    return hv_thread.kept_stripe - 1;
}

static CUresult reserve(struct hv_reservation *reservation)
{
    reservation->slot = hv_process_slot(reservation->process);
    if (reservation->slot == NULL)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (reservation->device == NO_DEVICE)
        return CUDA_ERROR_OUT_OF_MEMORY; /* not visible: its limit is 0 */
    if (!reservation->host)
        hv_context_settle(reservation->process, reservation->device);
    uint64_t limit;
    if (hv_unlikely(!try_reserve(reservation, &limit))) {
        if (reservation->host)
            hv_pools_trim(reservation->process, HV_POOL_ON_HOST);
        else
            give_up_everything_spare(reservation);
        hv_process_reap(reservation->process);
        recount(reservation->slot, reservation->device, reservation->host);
        if (!try_reserve(reservation, &limit)) {
            tell_denial(reservation, limit);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult reserve_or_forget(struct hv_reservation *reservation)
{
    CUresult refused = reserve(reservation);
    if (refused != CUDA_SUCCESS)
        reservation->process = NULL;
    return refused;
}

/* Device memory of a device outside the file counts nowhere unless this
 * library is what limits. */
static bool is_unmanaged(const struct hv_reservation *reservation)
{
    struct hv_device_terms terms;
    return reservation->device == NO_DEVICE && hv_terms_read(hv_files(), 0, &terms) &&
           terms.isolation_mode != HV_ISOLATION_SOFT;
}

CUresult hv_reserve_ordinal(struct hv_reservation *reservation, CUdevice ordinal, uint64_t bytes)
{
    CUresult refused;
    *reservation = (struct hv_reservation){.process = hv_limited_process(&refused), .bytes = hv_device_bytes(bytes)};
    if (reservation->process == NULL)
        return refused;
    reservation->device = hv_process_device(reservation->process, ordinal);
    if (is_unmanaged(reservation)) {
        reservation->process = NULL;
        return CUDA_SUCCESS;
    }
    if (reservation->device != NO_DEVICE)
        hv_context_notice(reservation->process, ordinal, reservation->device);
    return reserve_or_forget(reservation);
}

CUresult hv_reserve_current(struct hv_reservation *reservation, uint64_t bytes)
{
    CUresult refused;
    *reservation = (struct hv_reservation){.process = hv_limited_process(&refused)};
    if (reservation->process == NULL)
        return refused;
    CUdevice ordinal;
    CUresult result;
    if (!hv_current_ordinal(&ordinal, &result)) {
        reservation->process = NULL; /* no context: the driver will refuse it in its own words */
        return CUDA_SUCCESS;
    }
    return hv_reserve_ordinal(reservation, ordinal, bytes);
}

CUresult hv_reserve_device(struct hv_reservation *reservation, uint32_t device, uint64_t bytes)
{
    CUresult refused;
    *reservation = (struct hv_reservation){
        .process = hv_limited_process(&refused), .bytes = hv_device_bytes(bytes), .device = device};
    return reservation->process == NULL ? refused : reserve_or_forget(reservation);
}

CUresult hv_reserve_host(struct hv_reservation *reservation, uint64_t bytes)
{
    CUresult refused;
    *reservation = (struct hv_reservation){.process = hv_limited_process(&refused), .bytes = bytes, .host = true};
    if (reservation->process == NULL)
        return refused;
    return reserve_or_forget(reservation);
}

void hv_reservation_correct(struct hv_reservation *reservation, uint64_t bytes)
{
    if (reservation->process == NULL)
        return;
    bytes = reservation->host ? bytes : hv_device_bytes(bytes);
    if (bytes == reservation->bytes)
        return;
    struct hv_account account = account_of(reservation->slot, reservation->device, reservation->host);
    if (bytes > reservation->bytes)
        (void)hv_ledger_reserve(&account, bytes - reservation->bytes, HV_TOTAL_BYTES_MASK); /* always fits */
    else
        hv_ledger_release(&account, reservation->bytes - bytes);
    reservation->bytes = bytes;
}

CUresult hv_reservation_end(struct hv_reservation *reservation, CUresult result, enum hv_pointer_kind kind,
                            uint64_t pointer)
{
    if (reservation->process == NULL)
        return result;
    if (result != CUDA_SUCCESS) {
        hv_memory_release(reservation->process, reservation->device, reservation->host, reservation->bytes);
        return result;
    }
    struct hv_pointer_record record = {.bytes = reservation->bytes, .device = reservation->device, .references = 1};
    if (kind == HV_POINTER_MEMORY || kind == HV_POINTER_ARRAY) /* read after the driver's call: hooks_context.c */
        record.references = hv_load_acquire_32(&reservation->process->context_generation[record.device]);
    /* Without room in the map the bytes stay reserved until the process ends. */
    (void)hv_held_put(reservation->process, kind, pointer, &record);
    return result;
}

/* ---- giving back ---- */

void hv_memory_release(struct hv_process *process, uint32_t device, bool host, uint64_t bytes)
{
    struct hv_process_slot *slot = hv_process_slot(process);
    if (slot == NULL || device >= HV_MAX_DEVICES || bytes == 0)
        return;
    struct hv_account account = account_of(slot, device, host);
    uint64_t released = host ? bytes : keep(process, device, bytes);
    if (released != 0)
        hv_ledger_release(&account, released);
}

CUresult hv_giveback_begin(struct hv_giveback *giveback, enum hv_pointer_kind kind, uint64_t pointer)
{
    CUresult refused;
    *giveback = (struct hv_giveback){.process = hv_limited_process(&refused), .kind = kind, .pointer = pointer};
    if (giveback->process == NULL)
        return refused;
    giveback->known = hv_held_take(giveback->process, kind, pointer, &giveback->record);
    return CUDA_SUCCESS;
}

CUresult hv_giveback_end(struct hv_giveback *giveback, CUresult result)
{
    if (giveback->process == NULL || !giveback->known)
        return result;
    if (result == CUDA_SUCCESS)
        hv_memory_release(giveback->process, giveback->record.device, giveback->kind == HV_POINTER_HOST,
                          giveback->record.bytes);
    else
        (void)hv_held_put(giveback->process, giveback->kind, giveback->pointer, &giveback->record);
    return result;
}
