/* Who holds how many bytes. Process rows are the truth; a GPU's and a group's sums and peaks follow from
 * them under the same lock, so that a peak is a sum that really stood at one moment. */
#include "internal.h"

static void raise_peak(struct sim_gpu_usage *usage) { usage->peak_bytes = max_u64(usage->peak_bytes, usage->bytes); }

void sim_ledger_add(struct sim_machine *machine, uint32_t index, uint32_t row, uint64_t bytes)
{
    struct sim_process *process = &machine->processes[row];
    struct sim_gpu *gpu = &machine->gpu[index];
    process->gpu[index].bytes += bytes;
    raise_peak(&process->gpu[index]);
    gpu->used_bytes += bytes;
    gpu->peak_bytes = max_u64(gpu->peak_bytes, gpu->used_bytes);
    struct sim_gpu_instance *instance = sim_instance_of(machine, index, row);
    if (instance)
        instance->used_bytes += bytes;
    if (process->group < SIM_MAX_GROUPS) {
        machine->groups[process->group].gpu[index].bytes += bytes;
        raise_peak(&machine->groups[process->group].gpu[index]);
    }
}

void sim_ledger_sub(struct sim_machine *machine, uint32_t index, uint32_t row, uint64_t bytes)
{
    struct sim_process *process = &machine->processes[row];
    bytes = min_u64(bytes, process->gpu[index].bytes); /* a row reaped in the meantime holds nothing */
    process->gpu[index].bytes -= bytes;
    machine->gpu[index].used_bytes -= bytes;
    struct sim_gpu_instance *instance = sim_instance_of(machine, index, row);
    if (instance)
        instance->used_bytes -= min_u64(bytes, instance->used_bytes);
    if (process->group < SIM_MAX_GROUPS)
        machine->groups[process->group].gpu[index].bytes -= bytes;
}

void sim_ledger_recount(struct sim_machine *machine, uint32_t index)
{
    uint64_t sums[SIM_MAX_GROUPS] = {0}, used = 0;
    for (uint32_t i = 0; i < SIM_MAX_INSTANCES; i++)
        machine->gpu[index].instances[i].used_bytes = 0;
    for (uint32_t i = 0; i < machine->process_high; i++) {
        const struct sim_process *process = &machine->processes[i];
        if (!process->state)
            continue;
        used += process->gpu[index].bytes;
        struct sim_gpu_instance *instance = sim_instance_of(machine, index, i);
        if (instance)
            instance->used_bytes += process->gpu[index].bytes;
        if (process->group < SIM_MAX_GROUPS)
            sums[process->group] += process->gpu[index].bytes;
    }
    machine->gpu[index].used_bytes = used;
    machine->gpu[index].peak_bytes = max_u64(machine->gpu[index].peak_bytes, used);
    for (uint32_t i = 0; i < SIM_MAX_GROUPS; i++) {
        if (!machine->groups[i].key)
            continue;
        machine->groups[i].gpu[index].bytes = sums[i];
        raise_peak(&machine->groups[i].gpu[index]);
    }
}

uint64_t sim_charged_size(const struct sim_machine *machine, uint64_t bytes)
{
    uint64_t granule = machine->system.allocation_granule;
    return granule > 1 && bytes <= UINT64_MAX - granule ? (bytes + granule - 1) / granule * granule : bytes;
}

/* Left for anybody on the whole GPU (instance NULL), or for the processes of an instance. */
static uint64_t free_bytes(const struct sim_gpu *gpu, const struct sim_gpu_instance *instance)
{
    if (instance) {
        uint64_t size = gpu->info.mig_profiles[instance->profile].memory_bytes;
        uint64_t left = instance->used_bytes >= size ? 0 : size - instance->used_bytes;
        return min_u64(left, free_bytes(gpu, NULL)); /* the largest profiles are nominally larger than what is free */
    }
    uint64_t taken = gpu->info.memory_reserved_bytes + gpu->used_bytes;
    return taken >= gpu->info.memory_total_bytes ? 0 : gpu->info.memory_total_bytes - taken;
}

/* Lock held. */
static int raises_group_peak(const struct sim_machine *machine, uint32_t index, uint32_t row, uint64_t bytes)
{
    uint32_t group = machine->processes[row].group;
    return group < SIM_MAX_GROUPS && machine->groups[group].gpu[index].bytes + bytes > machine->groups[group].gpu[index].peak_bytes;
}

/* Lock held. The limit of an MPS client counts its contexts too. */
static int above_mps_limit(const struct sim_machine *machine, uint32_t index, uint32_t row, uint64_t bytes)
{
    const struct sim_process *process = &machine->processes[row];
    uint64_t limit = process->mps_memory_limit[index];
    return limit && bytes + process->gpu[index].bytes > limit;
}

/* Lock held. What all processes of the limited control group hold counts. */
static int above_group_limit(const struct sim_machine *machine, uint32_t index, uint32_t row, uint64_t bytes)
{
    uint64_t hard, held;
    return sim_memory_limited(machine, index, row, &hard, &held) && (held > hard || bytes > hard - held);
}

/* Lock held. A row that holds bytes stays its process's until they are given back, under this lock. */
static int group_has_dead(const struct sim_machine *machine, uint32_t index, uint32_t row)
{
    uint32_t group = machine->processes[row].group;
    for (uint32_t i = 0; i < machine->process_high; i++) {
        const struct sim_process *process = &machine->processes[i];
        if (process->state && process->group == group && process->gpu[index].bytes && !sim_process_alive(machine, i))
            return 1;
    }
    return 0;
}

static int charge(struct sim_machine *machine, uint32_t index, uint32_t row, uint64_t bytes, uint32_t contexts)
{
    sim_memory_limit_follow(machine, row);
    for (int attempt = 0;; attempt++) {
        sim_enter_gpu(machine, index);
        struct sim_gpu *gpu = &machine->gpu[index];
        /* The dead hold nothing and are no part of a peak. Looked at again with the lock: meanwhile another may have died,
         * and a third have been given what it held. */
        while (raises_group_peak(machine, index, row, bytes) && group_has_dead(machine, index, row)) {
            sim_unlock_gpu(machine, index);
            sim_machine_reap(machine);
            sim_enter_gpu(machine, index);
        }
        int status = SIM_OK;
        if (gpu->lost || gpu->vanished)
            status = SIM_GPU_GONE;
        else if (bytes > free_bytes(gpu, sim_instance_of(machine, index, row)) || above_mps_limit(machine, index, row, bytes) ||
                 above_group_limit(machine, index, row, bytes))
            status = SIM_NO_MEMORY;
        else {
            sim_ledger_add(machine, index, row, bytes);
            struct sim_gpu_usage *usage = &machine->processes[row].gpu[index];
            usage->contexts += contexts;
            usage->context_bytes += contexts ? bytes : 0;
        }
        sim_unlock_gpu(machine, index);
        if (status != SIM_NO_MEMORY || attempt || sim_machine_reap(machine) == 0)
            return status; /* the dead are buried before anybody is refused */
    }
}

int sim_charge(struct sim_machine *machine, uint32_t gpu, uint32_t process, uint64_t bytes)
{
    return charge(machine, gpu, process, bytes, 0);
}

int sim_charge_context(struct sim_machine *machine, uint32_t gpu, uint32_t process)
{
    return charge(machine, gpu, process, machine->gpu[gpu].info.context_bytes, 1);
}

void sim_refund(struct sim_machine *machine, uint32_t gpu, uint32_t process, uint64_t bytes)
{
    sim_enter_gpu(machine, gpu);
    sim_ledger_sub(machine, gpu, process, bytes);
    sim_unlock_gpu(machine, gpu);
}

void sim_refund_context(struct sim_machine *machine, uint32_t gpu, uint32_t process)
{
    sim_enter_gpu(machine, gpu);
    struct sim_gpu_usage *usage = &machine->processes[process].gpu[gpu];
    if (usage->contexts) {
        uint64_t bytes = usage->context_bytes / usage->contexts;
        usage->contexts--;
        usage->context_bytes -= bytes;
        sim_ledger_sub(machine, gpu, process, bytes);
    }
    sim_unlock_gpu(machine, gpu);
}

uint64_t sim_gpu_free_bytes(struct sim_machine *machine, uint32_t gpu)
{
    sim_enter_gpu(machine, gpu);
    uint64_t bytes = free_bytes(&machine->gpu[gpu], NULL);
    sim_unlock_gpu(machine, gpu);
    return bytes;
}

uint64_t sim_process_free_bytes(struct sim_machine *machine, uint32_t gpu, uint32_t process)
{
    sim_enter_gpu(machine, gpu);
    uint64_t bytes = free_bytes(&machine->gpu[gpu], sim_instance_of(machine, gpu, process));
    sim_unlock_gpu(machine, gpu);
    return bytes;
}

void sim_process_memory(struct sim_machine *machine, uint32_t gpu, uint32_t process, uint64_t *free_out, uint64_t *total)
{
    uint64_t hard, held;
    sim_memory_limit_follow(machine, process);
    *free_out = sim_process_free_bytes(machine, gpu, process);
    sim_enter_gpu(machine, gpu);
    if (sim_memory_limited(machine, gpu, process, &hard, &held)) {
        *total = min_u64(*total, hard);
        *free_out = min_u64(*free_out, hard > held ? hard - held : 0);
    }
    sim_unlock_gpu(machine, gpu);
}
