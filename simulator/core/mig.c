/* MIG: cutting a GPU into instances by its model's table of profiles, and what each instance is.
 *
 * A GPU instance is a run of memory slices; which runs a profile may take stands in the model. Its compute
 * instances divide its compute slices. All rows are guarded by the GPU's lock. Lock order: table, then GPU,
 * wherever the processes are looked at.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <string.h>

static const struct sim_mig_profile *profile_of(const struct sim_gpu *gpu, uint32_t instance)
{
    return &gpu->info.mig_profiles[gpu->instances[instance].profile];
}

static uint32_t run_of(uint32_t start, uint32_t size) { return ((1u << size) - 1) << start; }

/* Bit n: memory slice n is taken. */
static uint32_t taken_slices(const struct sim_gpu *gpu)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < SIM_MAX_INSTANCES; i++)
        if (gpu->instances[i].state)
            taken |= run_of(gpu->instances[i].start, profile_of(gpu, i)->memory_slices);
    return taken;
}

static uint32_t instances_of(const struct sim_gpu *gpu, uint32_t profile)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SIM_MAX_INSTANCES; i++)
        count += gpu->instances[i].state && gpu->instances[i].profile == profile;
    return count;
}

/* The free block of 1, 2, 4 … slices that a place lies in: using a place in a small one breaks no larger one. */
static uint32_t block_size(uint32_t taken, uint32_t start, uint32_t size, uint32_t slices)
{
    uint32_t block = 1;
    while (block < size)
        block *= 2;
    while (block * 2 <= slices && (taken & run_of(start / (block * 2) * (block * 2), block * 2)) == 0)
        block *= 2;
    return block;
}

/* The allowed place that breaks the least; SIM_NONE: none is free. */
static uint32_t choose_start(const struct sim_gpu *gpu, const struct sim_mig_profile *profile, uint32_t taken)
{
    uint32_t best = SIM_NONE, smallest = UINT32_MAX;
    for (uint32_t start = 0; start + profile->memory_slices <= gpu->info.mig_memory_slices; start++) {
        if ((profile->starts >> start & 1u) == 0 || (taken & run_of(start, profile->memory_slices)) != 0)
            continue;
        uint32_t block = block_size(taken, start, profile->memory_slices, gpu->info.mig_memory_slices);
        if (block < smallest) {
            smallest = block;
            best = start;
        }
    }
    return best;
}

/* Numbered as the nodes of a tree, from the whole GPU down to single slices, so that a place has its number. */
static uint32_t instance_id(uint32_t slices, uint32_t start, uint32_t size)
{
    uint32_t block = 1;
    while (block < size)
        block *= 2;
    return slices / block - 1 + start / block;
}

/* GPU's lock held. */
static int create(struct sim_machine *machine, uint32_t index, uint32_t which, uint32_t start, uint32_t *out)
{
    struct sim_gpu *gpu = &machine->gpu[index];
    if (which >= gpu->info.mig_profile_count)
        return SIM_NOT_FOUND;
    const struct sim_mig_profile *profile = &gpu->info.mig_profiles[which];
    uint32_t taken = taken_slices(gpu), row = SIM_NONE;
    if (instances_of(gpu, which) >= profile->most)
        return SIM_NO_PLACE;
    if (start == SIM_NONE)
        start = choose_start(gpu, profile, taken);
    else if (start >= 32 || (profile->starts >> start & 1u) == 0)
        return SIM_BAD_DESCRIPTION;
    if (start == SIM_NONE || (taken & run_of(start, profile->memory_slices)) != 0)
        return SIM_NO_PLACE;
    for (uint32_t i = SIM_MAX_INSTANCES; i-- > 0;)
        if (!gpu->instances[i].state)
            row = i;
    if (row == SIM_NONE)
        return SIM_NO_PLACE;
    struct sim_gpu_instance *instance = &gpu->instances[row];
    memset(instance, 0, sizeof *instance);
    instance->id = instance_id(gpu->info.mig_memory_slices, start, profile->memory_slices);
    instance->profile = which;
    instance->start = start;
    instance->state = 1;
    *out = row;
    return SIM_OK;
}

int sim_mig_create(struct sim_machine *machine, uint32_t index, uint32_t profile, uint32_t start, uint32_t *out)
{
    sim_enter_gpu(machine, index);
    const struct sim_gpu *gpu = &machine->gpu[index];
    int status = gpu->lost || gpu->vanished ? SIM_GPU_GONE
                 : !gpu->info.mig_mode       ? SIM_NOT_SUPPORTED
                                             : create(machine, index, profile, start, out);
    uint32_t id = status == SIM_OK ? gpu->instances[*out].id : 0;
    sim_unlock_gpu(machine, index);
    if (status == SIM_OK)
        sim_notice_post_instance(machine, index, SIM_NOTICE_MIG, 0, id, SIM_NONE);
    return status;
}

int sim_mig_destroy(struct sim_machine *machine, uint32_t index, uint32_t row)
{
    sim_enter_gpu(machine, index);
    struct sim_gpu *gpu = &machine->gpu[index];
    int status = SIM_OK;
    uint32_t id = 0;
    if (row >= SIM_MAX_INSTANCES || !gpu->instances[row].state)
        status = SIM_NOT_FOUND;
    for (uint32_t i = 0; i < SIM_MAX_INSTANCES && status == SIM_OK; i++)
        if (gpu->compute[i].state && gpu->compute[i].instance == row)
            status = SIM_IN_USE;
    if (status == SIM_OK) {
        id = gpu->instances[row].id;
        gpu->instances[row].state = 0;
    }
    sim_unlock_gpu(machine, index);
    if (status == SIM_OK)
        sim_notice_post_instance(machine, index, SIM_NOTICE_MIG, 0, id, SIM_NONE);
    return status;
}

uint32_t sim_mig_sm_count(const struct sim_gpu_info *info, uint32_t which, uint32_t slices)
{
    const struct sim_mig_profile *profile = &info->mig_profiles[which];
    uint32_t single = profile->sm_count / profile->compute_slices;
    if (slices == profile->compute_slices)
        return profile->sm_count;
    for (uint32_t i = 0; i < info->mig_profile_count; i++)
        if (info->mig_profiles[i].kind == 0) /* a part of an instance has the SMs of that many small ones */
            single = info->mig_profiles[i].sm_count;
    return single * slices;
}

/* NVML's constant for so many slices; SIM_NONE: compute instances have no such size. */
static uint32_t kind_of(uint32_t slices)
{
    static const uint32_t sizes[] = {1, 2, 3, 4, 7};
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] == slices)
            return i;
    return SIM_NONE;
}

/* Bit n: compute slice n of the GPU instance is taken. */
static uint32_t taken_compute(const struct sim_gpu *gpu, uint32_t instance)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < SIM_MAX_INSTANCES; i++)
        if (gpu->compute[i].state && gpu->compute[i].instance == instance)
            taken |= run_of(gpu->compute[i].start, gpu->compute[i].slices);
    return taken;
}

/* Compute instances begin at multiples of the power of two that holds them. */
static uint32_t compute_step(uint32_t slices) { return slices == 1 ? 1 : slices == 2 ? 2 : 4; }

static uint32_t choose_compute_start(const struct sim_gpu *gpu, uint32_t instance, uint32_t slices, uint32_t taken)
{
    for (uint32_t start = 0; start + slices <= profile_of(gpu, instance)->compute_slices; start += compute_step(slices))
        if ((taken & run_of(start, slices)) == 0)
            return start;
    return SIM_NONE;
}

/* The same 16 bytes each time for the same GPU and ids, as NVIDIA's are; shaped as a UUID of version 5. */
static void make_uuid(const struct sim_gpu *gpu, uint32_t instance_number, struct sim_compute_instance *compute)
{
    uint8_t *bytes = compute->uuid_bytes;
    uint64_t halves[2];
    char text[96];
    for (int half = 0; half < 2; half++) {
        snprintf(text, sizeof text, "%d/%s/%u/%u", half, gpu->info.uuid, instance_number, compute->id);
        halves[half] = sim_group_key(text); /* any stable hash will do */
        halves[half] ^= halves[half] >> 31;
        halves[half] *= UINT64_C(0x9e3779b97f4a7c15);
        halves[half] ^= halves[half] >> 29;
    }
    memcpy(bytes, halves, 16);
    bytes[6] = (uint8_t)((bytes[6] & 0x0f) | 0x50); /* a byte each: the masks keep them so */
    bytes[8] = (uint8_t)((bytes[8] & 0x3f) | 0x80);
    int length = snprintf(compute->uuid, sizeof compute->uuid, "MIG-");
    for (int i = 0; i < 16; i++)
        length += snprintf(compute->uuid + length, sizeof compute->uuid - (size_t)length, /* below the size: 40 characters */
                           i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", bytes[i]);
}

/* GPU's lock held. */
static int create_compute(struct sim_machine *machine, uint32_t index, uint32_t instance, uint32_t slices, uint32_t start, uint32_t *out)
{
    struct sim_gpu *gpu = &machine->gpu[index];
    if (instance >= SIM_MAX_INSTANCES || !gpu->instances[instance].state)
        return SIM_NOT_FOUND;
    uint32_t whole = profile_of(gpu, instance)->compute_slices, taken = taken_compute(gpu, instance), row = SIM_NONE;
    if (kind_of(slices) == SIM_NONE || slices > whole)
        return SIM_NOT_SUPPORTED;
    if (start == SIM_NONE)
        start = choose_compute_start(gpu, instance, slices, taken);
    else if (start % compute_step(slices) != 0 || start + slices > whole)
        return SIM_BAD_DESCRIPTION;
    if (start == SIM_NONE || (taken & run_of(start, slices)) != 0)
        return SIM_NO_PLACE;
    uint32_t ids = 0;
    for (uint32_t i = SIM_MAX_INSTANCES; i-- > 0;) {
        if (!gpu->compute[i].state)
            row = i;
        else if (gpu->compute[i].instance == instance)
            ids |= 1u << gpu->compute[i].id;
    }
    if (row == SIM_NONE)
        return SIM_NO_PLACE;
    struct sim_compute_instance *compute = &gpu->compute[row];
    memset(compute, 0, sizeof *compute);
    while (ids >> compute->id & 1u)
        compute->id++;
    compute->instance = instance;
    compute->kind = kind_of(slices);
    compute->start = start;
    compute->slices = slices;
    compute->sm_count = sim_mig_sm_count(&gpu->info, gpu->instances[instance].profile, slices);
    make_uuid(gpu, gpu->instances[instance].id, compute);
    compute->state = 1;
    *out = row;
    return SIM_OK;
}

int sim_mig_create_compute(struct sim_machine *machine, uint32_t index, uint32_t instance, uint32_t slices, uint32_t start, uint32_t *out)
{
    sim_enter_gpu(machine, index);
    const struct sim_gpu *gpu = &machine->gpu[index];
    int status = gpu->lost || gpu->vanished ? SIM_GPU_GONE : create_compute(machine, index, instance, slices, start, out);
    uint32_t parent = status == SIM_OK ? gpu->instances[instance].id : 0, id = status == SIM_OK ? gpu->compute[*out].id : 0;
    sim_unlock_gpu(machine, index);
    if (status == SIM_OK)
        sim_notice_post_instance(machine, index, SIM_NOTICE_MIG, 0, parent, id);
    return status;
}

/* Table and GPU locks held. */
static int process_on(const struct sim_machine *machine, uint32_t gpu, uint32_t compute)
{
    for (uint32_t i = 0; i < machine->process_high; i++) {
        const struct sim_process *process = &machine->processes[i];
        if (process->state && (compute == SIM_NONE || process->compute_instance[gpu] == compute) &&
            (process->gpu[gpu].contexts || process->gpu[gpu].bytes))
            return 1;
    }
    return 0;
}

int sim_mig_destroy_compute(struct sim_machine *machine, uint32_t index, uint32_t row)
{
    uint32_t parent = 0, id = 0;
    sim_machine_reap(machine);
    sim_lock_table(machine);
    sim_lock_gpu(machine, index);
    struct sim_gpu *gpu = &machine->gpu[index];
    int status = row >= SIM_MAX_INSTANCES || !gpu->compute[row].state ? SIM_NOT_FOUND : process_on(machine, index, row) ? SIM_IN_USE : SIM_OK;
    if (status == SIM_OK) {
        parent = gpu->instances[gpu->compute[row].instance].id;
        id = gpu->compute[row].id;
        gpu->compute[row].state = 0;
    }
    sim_unlock_gpu(machine, index);
    sim_unlock_table(machine);
    if (status == SIM_OK)
        sim_notice_post_instance(machine, index, SIM_NOTICE_MIG, 0, parent, id);
    return status;
}

void sim_mig_forget(struct sim_machine *machine, uint32_t index)
{
    struct sim_gpu *gpu = &machine->gpu[index];
    for (uint32_t i = 0; i < SIM_MAX_INSTANCES; i++)
        gpu->compute[i].state = gpu->instances[i].state = 0;
    for (uint32_t i = 0; i < machine->process_high; i++) /* what still holds something there holds it of the GPU */
        machine->processes[i].compute_instance[index] = SIM_NONE;
    for (uint32_t i = 0; i < machine->stream_high; i++)
        if (machine->streams[i].gpu == index)
            machine->streams[i].lane = 0;
}

int sim_mig_set_mode(struct sim_machine *machine, uint32_t index, uint32_t mode)
{
    sim_machine_reap(machine);
    sim_lock_table(machine);
    sim_lock_gpu(machine, index);
    struct sim_gpu *gpu = &machine->gpu[index];
    int status = !gpu->info.mig_supported ? SIM_NOT_SUPPORTED : SIM_OK;
    int changed = 0;
    if (status == SIM_OK) {
        gpu->info.mig_pending_mode = mode;
        if (mode != gpu->info.mig_mode && process_on(machine, index, SIM_NONE))
            status = SIM_IN_USE;
        else if (mode != gpu->info.mig_mode) {
            gpu->info.mig_mode = mode;
            sim_mig_forget(machine, index);
            changed = 1;
        }
    }
    sim_unlock_gpu(machine, index);
    sim_unlock_table(machine);
    if (changed)
        sim_notice_post(machine, index, SIM_NOTICE_MIG, mode);
    return status;
}

uint32_t sim_mig_remaining(struct sim_machine *machine, uint32_t index, uint32_t which)
{
    uint32_t count = 0;
    sim_enter_gpu(machine, index);
    const struct sim_gpu *gpu = &machine->gpu[index];
    if (which < gpu->info.mig_profile_count && gpu->info.mig_mode) {
        const struct sim_mig_profile *profile = &gpu->info.mig_profiles[which];
        uint32_t taken = taken_slices(gpu), there = instances_of(gpu, which), start;
        while (there + count < profile->most && (start = choose_start(gpu, profile, taken)) != SIM_NONE) {
            taken |= run_of(start, profile->memory_slices);
            count++;
        }
    }
    sim_unlock_gpu(machine, index);
    return count;
}

uint32_t sim_mig_compute_remaining(struct sim_machine *machine, uint32_t index, uint32_t instance, uint32_t slices)
{
    uint32_t count = 0;
    sim_enter_gpu(machine, index);
    const struct sim_gpu *gpu = &machine->gpu[index];
    if (instance < SIM_MAX_INSTANCES && gpu->instances[instance].state && kind_of(slices) != SIM_NONE) {
        uint32_t taken = taken_compute(gpu, instance), start;
        while ((start = choose_compute_start(gpu, instance, slices, taken)) != SIM_NONE) {
            taken |= run_of(start, slices);
            count++;
        }
    }
    sim_unlock_gpu(machine, index);
    return count;
}

int sim_mig_device(struct sim_machine *machine, uint32_t index, uint32_t row, struct sim_mig_device *out)
{
    int status = SIM_NOT_FOUND;
    memset(out, 0, sizeof *out);
    if (index >= machine->gpu_count || row >= SIM_MAX_INSTANCES)
        return status;
    sim_enter_gpu(machine, index);
    const struct sim_gpu *gpu = &machine->gpu[index];
    const struct sim_compute_instance *compute = &gpu->compute[row];
    if (compute->state) {
        const struct sim_gpu_instance *instance = &gpu->instances[compute->instance];
        out->profile = gpu->info.mig_profiles[instance->profile];
        out->gpu = index;
        out->compute = row;
        out->gpu_instance_id = instance->id;
        out->compute_instance_id = compute->id;
        out->sm_count = compute->sm_count;
        out->gpu_slices = out->profile.compute_slices;
        out->compute_slices = compute->slices;
        out->memory_bytes = out->profile.memory_bytes;
        out->used_bytes = instance->used_bytes;
        if (compute->slices == out->profile.compute_slices)
            snprintf(out->name, sizeof out->name, "%s MIG %s", gpu->info.name, out->profile.name);
        else
            snprintf(out->name, sizeof out->name, "%s MIG %uc.%s", gpu->info.name, compute->slices, out->profile.name);
        memcpy(out->uuid, compute->uuid, sizeof out->uuid);
        memcpy(out->uuid_bytes, compute->uuid_bytes, sizeof out->uuid_bytes);
        status = SIM_OK;
    }
    sim_unlock_gpu(machine, index);
    return status;
}

int sim_process_use_instance(struct sim_machine *machine, uint32_t process, uint32_t index, uint32_t row)
{
    sim_enter_gpu(machine, index);
    int status = row != SIM_NONE && (row >= SIM_MAX_INSTANCES || !machine->gpu[index].compute[row].state) ? SIM_NOT_FOUND : SIM_OK;
    if (status == SIM_OK)
        machine->processes[process].compute_instance[index] = row;
    sim_unlock_gpu(machine, index);
    return status;
}

struct sim_gpu_instance *sim_instance_of(struct sim_machine *machine, uint32_t index, uint32_t process)
{
    struct sim_gpu *gpu = &machine->gpu[index];
    uint32_t row = machine->processes[process].compute_instance[index];
    if (row >= SIM_MAX_INSTANCES || !gpu->compute[row].state)
        return NULL;
    return &gpu->instances[gpu->compute[row].instance];
}

int sim_mig_lay_out(struct sim_machine *machine, uint32_t index, const struct sim_mig_request *requests)
{
    for (uint32_t i = 0; i < SIM_MAX_INSTANCES && requests[i].wanted; i++) {
        uint32_t instance, compute;
        int status = machine->gpu[index].info.mig_mode ? create(machine, index, requests[i].profile, requests[i].start, &instance) : SIM_NOT_SUPPORTED;
        for (uint32_t part = 0; status == SIM_OK && part < SIM_MAX_INSTANCES && requests[i].compute[part]; part++)
            status = create_compute(machine, index, instance, requests[i].compute[part], SIM_NONE, &compute);
        if (status != SIM_OK)
            return status;
    }
    return SIM_OK;
}
