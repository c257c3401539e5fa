/* What happens to whole GPUs, what is reported of it, and the trace of calls. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static void drop_streams(struct sim_machine *machine, uint32_t gpu)
{
    for (uint32_t i = 0; i < machine->stream_high; i++)
        if (machine->streams[i].state && machine->streams[i].gpu == gpu)
            sim_stream_drop(machine, i);
}

static void wake_streams(struct sim_machine *machine, uint32_t gpu)
{
    for (uint32_t i = 0; i < machine->stream_high; i++)
        if (machine->streams[i].state && machine->streams[i].gpu == gpu)
            sim_wake(machine, &machine->streams[i].wake);
}

void sim_gpu_lose(struct sim_machine *machine, uint32_t gpu, uint64_t xid)
{
    sim_lock_gpu(machine, gpu);
    sim_schedule(machine, gpu, sim_now(machine));
    machine->gpu[gpu].lost = 1;
    drop_streams(machine, gpu); /* what ran on it never completes */
    sim_unlock_gpu(machine, gpu);
    if (xid)
        sim_notice_post(machine, gpu, SIM_NOTICE_XID, xid);
    sim_notice_post(machine, gpu, SIM_NOTICE_LOST, 0);
    wake_streams(machine, gpu);
}

void sim_gpu_restore(struct sim_machine *machine, uint32_t gpu)
{
    sim_lock_gpu(machine, gpu);
    machine->gpu[gpu].lost = 0;
    sim_unlock_gpu(machine, gpu);
}

void sim_gpu_reset(struct sim_machine *machine, uint32_t gpu)
{
    sim_lock_gpu(machine, gpu);
    struct sim_gpu *row = &machine->gpu[gpu];
    sim_schedule(machine, gpu, sim_now(machine));
    drop_streams(machine, gpu);
    row->lost = 0;
    row->resets++;
    row->info.ecc_corrected_volatile = row->info.ecc_uncorrected_volatile = 0;
    row->info.sram_corrected_volatile = row->info.sram_uncorrected_volatile = 0;
    row->info.ecc_mode = row->info.ecc_pending_mode;
    row->info.mig_mode = row->info.mig_pending_mode;
    row->info.remap_pending = row->info.retire_pending = 0;
    row->info.recovery_action = 0;
    sim_mig_forget(machine, gpu); /* instances never survive a reset */
    sim_unlock_gpu(machine, gpu);
    sim_notice_post(machine, gpu, SIM_NOTICE_RESET, 0);
    wake_streams(machine, gpu);
}

void sim_gpu_set_vanished(struct sim_machine *machine, uint32_t gpu, uint32_t vanished)
{
    sim_lock_gpu(machine, gpu);
    sim_schedule(machine, gpu, sim_now(machine));
    machine->gpu[gpu].vanished = vanished;
    if (vanished)
        drop_streams(machine, gpu);
    sim_unlock_gpu(machine, gpu);
    if (vanished)
        sim_notice_post(machine, gpu, SIM_NOTICE_VANISHED, 0);
    wake_streams(machine, gpu);
}

void sim_count_peer(struct sim_machine *machine, uint32_t from, uint32_t to, uint64_t bytes)
{
    sim_lock_gpu(machine, from);
    machine->gpu[from].peer_out_bytes += bytes;
    sim_unlock_gpu(machine, from);
    sim_lock_gpu(machine, to);
    machine->gpu[to].peer_in_bytes += bytes;
    sim_unlock_gpu(machine, to);
}

uint32_t sim_enumerate(struct sim_machine *machine, uint32_t *rows)
{
    uint32_t count = 0;
    sim_machine_advance(machine); /* timed faults may be due */
    sim_lock_table(machine);
    for (uint32_t i = 0; i < machine->gpu_count; i++)
        if (!machine->gpu[machine->enumeration[i]].vanished)
            rows[count++] = machine->enumeration[i];
    sim_unlock_table(machine);
    return count;
}

int sim_gpu_set_info(struct sim_machine *machine, uint32_t gpu, const struct sim_gpu_info *info)
{
    struct sim_gpu *row = &machine->gpu[gpu];
    if (strcmp(info->uuid, row->info.uuid) != 0 || info->sm_count != row->info.sm_count)
        return SIM_BAD_DESCRIPTION;
    sim_enter_gpu(machine, gpu);
    row->info = *info;
    sim_unlock_gpu(machine, gpu);
    return SIM_OK;
}

uint64_t sim_notice_post(struct sim_machine *machine, uint32_t gpu, uint32_t kind, uint64_t value)
{
    return sim_notice_post_instance(machine, gpu, kind, value, SIM_NONE, SIM_NONE);
}

uint64_t sim_notice_post_instance(struct sim_machine *machine, uint32_t gpu, uint32_t kind, uint64_t value, uint32_t gpu_instance,
                                  uint32_t compute_instance)
{
    uint64_t sequence = __atomic_add_fetch(&machine->notice_next, 1, __ATOMIC_ACQ_REL);
    struct sim_notice *notice = &machine->notices[sequence % SIM_NOTICE_ITEMS];
    __atomic_store_n(&notice->sequence, 0, __ATOMIC_RELEASE); /* nobody takes it while it is being written */
    notice->time_ns = sim_now(machine);
    notice->gpu = gpu;
    notice->kind = kind;
    notice->value = value;
    notice->gpu_instance = gpu_instance;
    notice->compute_instance = compute_instance;
    __atomic_store_n(&notice->sequence, sequence, __ATOMIC_RELEASE);
    __atomic_fetch_add(&machine->notice_wake, 1, __ATOMIC_RELEASE);
    sim_futex_wake(&machine->notice_wake);
    return sequence;
}

uint64_t sim_notice_last(const struct sim_machine *machine) { return __atomic_load_n(&machine->notice_next, __ATOMIC_ACQUIRE); }

int sim_notice_next(struct sim_machine *machine, uint64_t after, struct sim_notice *out)
{
    for (;;) {
        uint64_t last = sim_notice_last(machine), want = after + 1;
        if (want > last)
            return 0;
        if (last - want >= SIM_NOTICE_ITEMS)
            want = last - SIM_NOTICE_ITEMS + 1;
        const struct sim_notice *notice = &machine->notices[want % SIM_NOTICE_ITEMS];
        *out = *notice;
        uint64_t sequence = __atomic_load_n(&notice->sequence, __ATOMIC_ACQUIRE);
        if (sequence == want && out->sequence == want)
            return 1;
        if (sequence < want)
            return 0; /* being written; or its writer died: overwritten on the next round */
    }
}

int sim_notice_wait(struct sim_machine *machine, uint64_t after, uint64_t timeout_ns, struct sim_notice *out)
{
    uint64_t now = sim_monotonic_ns(), deadline = timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns;
    for (;;) {
        uint32_t seen = __atomic_load_n(&machine->notice_wake, __ATOMIC_ACQUIRE);
        sim_machine_advance(machine); /* timed faults become due with nobody else looking */
        if (sim_notice_next(machine, after, out))
            return 1;
        now = sim_monotonic_ns();
        if (now >= deadline)
            return 0;
        sim_futex_wait(&machine->notice_wake, seen, min_u64(deadline - now, 20000000u)); /* look for due faults each 20 ms */
    }
}

void sim_trace_write(struct sim_machine *machine, const char *call, int32_t result)
{
    uint64_t sequence = __atomic_add_fetch(&machine->trace_next, 1, __ATOMIC_RELAXED); /* relaxed: only hands out places */
    struct sim_trace *trace = &machine->traces[sequence % SIM_TRACE_ITEMS];
    trace->time_ns = sim_now(machine);
    trace->pid = getpid();
    trace->result = result;
    size_t length = min_u64(strlen(call), sizeof trace->call - 1);
    memcpy(trace->call, call, length);
    trace->call[length] = 0;
    __atomic_store_n(&trace->sequence, sequence, __ATOMIC_RELEASE); /* the row is whole */
}

uint32_t sim_read_trace(struct sim_machine *machine, uint64_t after, struct sim_trace *out, uint32_t room)
{
    uint64_t last = __atomic_load_n(&machine->trace_next, __ATOMIC_ACQUIRE);
    if (last > SIM_TRACE_ITEMS && after < last - SIM_TRACE_ITEMS)
        after = last - SIM_TRACE_ITEMS;
    uint32_t copied = 0;
    for (uint64_t want = after + 1; want <= last && copied < room; want++) {
        const struct sim_trace *trace = &machine->traces[want % SIM_TRACE_ITEMS];
        if (__atomic_load_n(&trace->sequence, __ATOMIC_ACQUIRE) == want)
            out[copied++] = *trace;
    }
    return copied;
}
