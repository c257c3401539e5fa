/* Faults that a test or a person switches on, and what devices report. */
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

static int in_time(const struct sim_fault *fault, uint64_t now)
{
    return now >= fault->at_ns && (fault->until_ns == 0 || now < fault->until_ns);
}

static int is_device_fault(const struct sim_fault *fault)
{
    return fault->action == SIM_FAULT_XID || fault->action == SIM_FAULT_LOST || fault->action == SIM_FAULT_VANISH;
}

static void sleep_real(uint64_t ns)
{
    struct timespec span = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&span, NULL);
}

/* Until `ns` of simulated time are over (0: no bound) or the fault is cleared. */
static void hang(struct sim_machine *machine, const struct sim_fault *fault, uint32_t id, uint64_t ns)
{
    uint64_t until = ns ? sim_now(machine) + ns : UINT64_MAX;
    while (__atomic_load_n(&fault->id, __ATOMIC_ACQUIRE) == id && sim_now(machine) < until)
        sleep_real(1000000);
}

uint32_t sim_fault_check_slow(struct sim_machine *machine, const char *call, int32_t gpu, struct sim_fault_hit *hit)
{
    *hit = (struct sim_fault_hit){0};
    uint64_t now = sim_now(machine);
    while (__atomic_load_n(&machine->lock_hung, __ATOMIC_ACQUIRE)) /* another call hangs with the driver's lock */
        sleep_real(1000000);
    for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++) {
        struct sim_fault *fault = &machine->faults[i];
        uint32_t id = __atomic_load_n(&fault->id, __ATOMIC_ACQUIRE); /* the row is whole when its id is there */
        if (id == 0 || is_device_fault(fault) || !in_time(fault, now) || (fault->gpu >= 0 && gpu >= 0 && fault->gpu != gpu) ||
            (fault->gpu >= 0 && gpu < 0) || (fault->pid && fault->pid != getpid()) || !sim_glob(fault->call, call))
            continue;
        uint64_t seen = __atomic_add_fetch(&fault->seen, 1, __ATOMIC_RELAXED); /* relaxed: counters only */
        if (fault->every > 1 && seen % fault->every != 0)
            continue;
        uint64_t hits = __atomic_add_fetch(&fault->hits, 1, __ATOMIC_RELAXED);
        if (fault->count && hits > fault->count)
            continue;
        uint64_t span = fault->value > 0 ? (uint64_t)fault->value : 0; /* positive */
        switch (fault->action) {
        case SIM_FAULT_DELAY:
            sim_wait(machine, now + span, NULL, 0);
            continue; /* other faults may apply as well */
        case SIM_FAULT_HANG:
            hang(machine, fault, id, span);
            continue;
        case SIM_FAULT_HANG_LOCK:
            __atomic_store_n(&machine->lock_hung, id, __ATOMIC_RELEASE); /* outlives this process: cleared with the fault */
            hang(machine, fault, id, span);
            __atomic_store_n(&machine->lock_hung, 0, __ATOMIC_RELEASE);
            continue;
        default:
            *hit = (struct sim_fault_hit){.action = fault->action, .id = id, .value = fault->value};
            return hit->action;
        }
    }
    return SIM_FAULT_NONE;
}

int64_t sim_fault_stale(struct sim_machine *machine, uint32_t fault_id, int64_t fresh)
{
    int64_t value = fresh;
    sim_lock_table(machine);
    for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++) {
        struct sim_fault *fault = &machine->faults[i];
        if (fault->id != fault_id)
            continue;
        if (!fault->stale_valid) {
            fault->stale_valid = 1;
            fault->stale_value = fresh;
        }
        value = fault->stale_value;
        break;
    }
    sim_unlock_table(machine);
    return value;
}

/* Table lock held. */
static void find_next_device_fault(struct sim_machine *machine)
{
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++) {
        const struct sim_fault *fault = &machine->faults[i];
        if (!fault->id || !is_device_fault(fault))
            continue;
        if (!fault->applied)
            next = min_u64(next, fault->at_ns);
        else if (fault->until_ns && fault->applied == 1)
            next = min_u64(next, fault->until_ns);
    }
    __atomic_store_n(&machine->next_device_fault_ns, next, __ATOMIC_RELAXED); /* relaxed: a hint, see sim_enter_gpu */
}

int sim_fault_add(struct sim_machine *machine, const struct sim_fault *given, uint32_t *id)
{
    if (given->action == SIM_FAULT_NONE || given->action > SIM_FAULT_VANISH || given->gpu >= (int32_t)machine->gpu_count ||
        (is_device_fault(given) && given->gpu < 0) || (!is_device_fault(given) && given->call[0] == 0))
        return SIM_BAD_DESCRIPTION;
    sim_lock_table(machine);
    for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++) {
        struct sim_fault *fault = &machine->faults[i];
        if (fault->id)
            continue;
        *fault = *given;
        fault->id = 0;
        fault->call[sizeof fault->call - 1] = 0;
        fault->seen = fault->hits = 0;
        fault->applied = fault->stale_valid = 0;
        *id = machine->next_fault_id++;
        __atomic_store_n(&fault->id, *id, __ATOMIC_RELEASE); /* a whole row before it counts */
        __atomic_fetch_add(&machine->faults_on, 1, __ATOMIC_RELEASE);
        find_next_device_fault(machine);
        sim_unlock_table(machine);
        if (machine->ready) /* at creation time stands still */
            sim_faults_apply_due(machine, sim_now(machine));
        return SIM_OK;
    }
    sim_unlock_table(machine);
    return SIM_TABLE_FULL;
}

/* Table lock held. What a device fault did is undone when it ends. */
static void lift(struct sim_machine *machine, struct sim_fault *fault)
{
    uint32_t gpu = (uint32_t)fault->gpu; /* checked when it was added */
    if (fault->applied != 1)
        return;
    if (fault->action == SIM_FAULT_LOST)
        sim_gpu_restore(machine, gpu);
    else if (fault->action == SIM_FAULT_VANISH)
        sim_gpu_set_vanished(machine, gpu, 0);
}

int sim_fault_clear(struct sim_machine *machine, uint32_t id)
{
    int status = SIM_NOT_FOUND;
    const uint32_t wanted = id;
    sim_lock_table(machine);
    for (uint32_t i = 0; i < SIM_MAX_FAULTS && wanted; i++) {
        struct sim_fault *fault = &machine->faults[i];
        if (fault->id != wanted)
            continue;
        lift(machine, fault);
        __atomic_store_n(&fault->id, 0, __ATOMIC_RELEASE);
        __atomic_fetch_sub(&machine->faults_on, 1, __ATOMIC_RELEASE);
        __atomic_compare_exchange_n(&machine->lock_hung, &id, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
        status = SIM_OK;
    }
    find_next_device_fault(machine);
    sim_unlock_table(machine);
    return status;
}

void sim_fault_clear_all(struct sim_machine *machine)
{
    for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++) {
        uint32_t id = __atomic_load_n(&machine->faults[i].id, __ATOMIC_ACQUIRE);
        if (id)
            sim_fault_clear(machine, id);
    }
}

void sim_faults_apply_due(struct sim_machine *machine, uint64_t now_ns)
{
    sim_lock_table(machine);
    for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++) {
        struct sim_fault *fault = &machine->faults[i];
        if (!fault->id || !is_device_fault(fault))
            continue;
        uint32_t gpu = (uint32_t)fault->gpu; /* checked when it was added */
        if (!fault->applied && now_ns >= fault->at_ns) {
            fault->applied = 1;
            fault->hits++;
            if (fault->action == SIM_FAULT_XID)
                sim_notice_post(machine, gpu, SIM_NOTICE_XID, (uint64_t)fault->value); /* Xids are small and positive */
            else if (fault->action == SIM_FAULT_LOST)
                sim_gpu_lose(machine, gpu, (uint64_t)fault->value);
            else
                sim_gpu_set_vanished(machine, gpu, 1);
        }
        if (fault->applied == 1 && fault->until_ns && now_ns >= fault->until_ns) {
            lift(machine, fault);
            fault->applied = 2;
        }
    }
    find_next_device_fault(machine);
    sim_unlock_table(machine);
}
