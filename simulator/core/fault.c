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

static void sleep_real(uint64_t ns)
{
    struct timespec span = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&span, NULL);
}

/* When a call that hangs from now on for `ns` (0: no bound) goes on; the end of the fault ends it too. */
static uint64_t hang_end(struct sim_machine *machine, const struct sim_fault *fault, uint64_t ns)
{
    uint64_t end = ns ? sim_now(machine) + ns : UINT64_MAX;
    return fault->until_ns ? min_u64(end, fault->until_ns) : end;
}

/* Until that time, or until the fault is cleared. */
static void hang(struct sim_machine *machine, const struct sim_fault *fault, uint32_t id, uint64_t until)
{
    while (__atomic_load_n(&fault->id, __ATOMIC_ACQUIRE) == id && sim_now(machine) < until)
        sleep_real(1000000);
}

/* Whether another call hangs with the driver's lock. It does so when its process has died, too: until its time is over. */
static int lock_hung(struct sim_machine *machine)
{
    return __atomic_load_n(&machine->lock_hung, __ATOMIC_ACQUIRE) && /* its end is there when it is */
           sim_now(machine) < __atomic_load_n(&machine->lock_hung_until_ns, __ATOMIC_RELAXED);
}

uint32_t sim_fault_check_slow(struct sim_machine *machine, const char *call, int32_t gpu, struct sim_fault_hit *hit)
{
    *hit = (struct sim_fault_hit){0};
    uint64_t now = sim_now(machine);
    while (lock_hung(machine))
        sleep_real(1000000);
    for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++) {
        struct sim_fault *fault = &machine->faults[i];
        uint32_t id = __atomic_load_n(&fault->id, __ATOMIC_ACQUIRE); /* the row is whole when its id is there */
        if (id == 0 || sim_is_device_fault(fault) || !in_time(fault, now) || (fault->gpu >= 0 && gpu >= 0 && fault->gpu != gpu) ||
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
            hang(machine, fault, id, hang_end(machine, fault, span));
            continue;
        case SIM_FAULT_HANG_LOCK:
            span = hang_end(machine, fault, span);
            __atomic_store_n(&machine->lock_hung_until_ns, span, __ATOMIC_RELAXED); /* relaxed: told by the next word */
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

static int possible(const struct sim_machine *machine, const struct sim_fault *given)
{
    if (given->action == SIM_FAULT_NONE || given->action > SIM_FAULT_DRIVER || given->gpu >= (int32_t)machine->gpu_count) /* at most 16 */
        return 0;
    if (given->action == SIM_FAULT_SET)
        return given->gpu >= 0 && sim_reading_known(&machine->gpu[given->gpu].info, given->call);
    if (given->action == SIM_FAULT_RENUMBER)
        return given->gpu >= 0 && given->value >= 0 && given->value < machine->gpu_count;
    if (sim_is_device_fault(given) && given->action != SIM_FAULT_DRIVER)
        return given->gpu >= 0;
    return given->call[0] != 0; /* the call's name, or the driver's version */
}

int sim_fault_add(struct sim_machine *machine, const struct sim_fault *given, uint32_t *id)
{
    if (!possible(machine, given))
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
        sim_find_next_device_fault(machine);
        sim_unlock_table(machine);
        if (machine->ready) /* at creation time stands still */
            sim_faults_apply_due(machine, sim_now(machine));
        return SIM_OK;
    }
    sim_unlock_table(machine);
    return SIM_TABLE_FULL;
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
        sim_fault_lift(machine, fault);
        __atomic_store_n(&fault->id, 0, __ATOMIC_RELEASE);
        __atomic_fetch_sub(&machine->faults_on, 1, __ATOMIC_RELEASE);
        __atomic_compare_exchange_n(&machine->lock_hung, &id, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
        status = SIM_OK;
    }
    sim_find_next_device_fault(machine);
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
