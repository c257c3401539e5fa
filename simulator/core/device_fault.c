/* Faults of whole GPUs and of the driver: what each does when its time comes, and how it is undone. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <string.h>

int sim_is_device_fault(const struct sim_fault *fault) { return fault->action >= SIM_FAULT_XID; }

/* Table lock held. */
void sim_find_next_device_fault(struct sim_machine *machine)
{
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++) {
        const struct sim_fault *fault = &machine->faults[i];
        if (!fault->id || !sim_is_device_fault(fault))
            continue;
        if (!fault->applied)
            next = min_u64(next, fault->at_ns);
        else if (fault->until_ns && fault->applied == 1)
            next = min_u64(next, fault->until_ns);
    }
    __atomic_store_n(&machine->next_device_fault_ns, next, __ATOMIC_RELAXED); /* relaxed: a hint, see sim_enter_gpu */
}

/* Table lock held. The order of the GPUs is the rows' own, with each renumbered one moved to its index. */
static void order(struct sim_machine *machine)
{
    for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
        machine->enumeration[i] = i;
    for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++) {
        const struct sim_fault *fault = &machine->faults[i];
        if (!fault->id || fault->action != SIM_FAULT_RENUMBER || fault->applied != 1)
            continue;
        uint32_t gpu = (uint32_t)fault->gpu, to = (uint32_t)fault->value, from = 0; /* both checked when it was added */
        while (machine->enumeration[from] != gpu)
            from++;
        for (; from > to; from--)
            machine->enumeration[from] = machine->enumeration[from - 1];
        for (; from < to; from++)
            machine->enumeration[from] = machine->enumeration[from + 1];
        machine->enumeration[to] = gpu;
    }
}

/* Table lock held. The fault keeps the version that is not in force. */
static void exchange_driver(struct sim_machine *machine, struct sim_fault *fault)
{
    struct sim_system_info *system = &machine->system;
    char other[sizeof fault->call];
    memcpy(other, fault->call, sizeof other);
    memcpy(fault->call, system->driver_version, sizeof fault->call);
    memcpy(system->driver_version, other, sizeof system->driver_version);
    snprintf(system->nvml_version, sizeof system->nvml_version, "%u.%.70s", system->cuda_version / 1000, other);
    __atomic_fetch_add(&machine->driver_changes, 1, __ATOMIC_RELEASE); /* the new version is there before it counts */
}
_Static_assert(sizeof((struct sim_fault *)0)->call == sizeof((struct sim_system_info *)0)->driver_version, "they are exchanged whole");

/* Table lock held. */
static void apply(struct sim_machine *machine, struct sim_fault *fault)
{
    uint32_t gpu = (uint32_t)fault->gpu; /* checked when it was added; not used where it is -1 */
    fault->applied = 1;
    fault->hits++;
    switch (fault->action) {
    case SIM_FAULT_XID:
        sim_notice_post(machine, gpu, SIM_NOTICE_XID, (uint64_t)fault->value); /* Xids are small and positive */
        break;
    case SIM_FAULT_LOST:
        sim_gpu_lose(machine, gpu, (uint64_t)fault->value);
        break;
    case SIM_FAULT_VANISH:
        sim_gpu_set_vanished(machine, gpu, 1);
        break;
    case SIM_FAULT_SET:
        fault->stale_value = sim_reading_set(machine, gpu, fault->call, fault->value);
        break;
    case SIM_FAULT_RESET:
        sim_gpu_reset(machine, gpu);
        break;
    case SIM_FAULT_RENUMBER:
        order(machine);
        break;
    default:
        exchange_driver(machine, fault);
        break;
    }
}

void sim_fault_lift(struct sim_machine *machine, struct sim_fault *fault)
{
    uint32_t gpu = (uint32_t)fault->gpu; /* checked when it was added; not used where it is -1 */
    if (fault->applied != 1)
        return;
    fault->applied = 2;
    switch (fault->action) {
    case SIM_FAULT_LOST:
        sim_gpu_restore(machine, gpu);
        break;
    case SIM_FAULT_VANISH:
        sim_gpu_set_vanished(machine, gpu, 0);
        break;
    case SIM_FAULT_SET:
        sim_reading_set(machine, gpu, fault->call, fault->stale_value);
        break;
    case SIM_FAULT_RENUMBER:
        order(machine);
        break;
    case SIM_FAULT_DRIVER:
        exchange_driver(machine, fault);
        break;
    default: /* an Xid that was told, a reset that was done: nothing to undo */
        break;
    }
}

void sim_faults_apply_due(struct sim_machine *machine, uint64_t now_ns)
{
    sim_lock_table(machine);
    for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++) {
        struct sim_fault *fault = &machine->faults[i];
        if (!fault->id || !sim_is_device_fault(fault))
            continue;
        if (!fault->applied && now_ns >= fault->at_ns)
            apply(machine, fault);
        if (fault->applied == 1 && fault->until_ns && now_ns >= fault->until_ns)
            sim_fault_lift(machine, fault);
    }
    sim_find_next_device_fault(machine);
    sim_unlock_table(machine);
}
