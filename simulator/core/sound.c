/* Whether a machine file is one that programs can be let near: its end is there, what never changes is as
 * it was written, and what bounds the loops of the core is in bounds. */
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>

/* FNV-1a over the bytes from `from` up to `to`: no protection from malice, only from halves and scribbles. */
static uint64_t mixed(uint64_t sum, const void *from, const void *to)
{
    for (const unsigned char *at = from, *end = to; at < end; at++)
        sum = (sum ^ *at) * UINT64_C(0x100000001b3);
    return sum;
}

uint64_t sim_machine_seal(const struct sim_machine *machine)
{
    const struct sim_system_info *system = &machine->system;
    uint64_t sum = mixed(UINT64_C(0xcbf29ce484222325), &machine->total_bytes, &machine->system);
    sum = mixed(sum, system->profile, system->driver_version);
    sum = mixed(sum, &system->cuda_version, system + 1); /* between the two lie the versions, which a fault changes */
    sum = mixed(sum, &machine->topology, &machine->virtual_now_ns);
    sum = mixed(sum, machine->rules, machine->rules + SIM_MAX_RULES);
    for (uint32_t i = 0; i < machine->gpu_count; i++) {
        const struct sim_gpu_info *info = &machine->gpu[i].info;
        sum = mixed(sum, info, info->clock_mhz); /* from there on are readings and modes … */
        sum = mixed(sum, &info->mig_memory_slices, &info->accounting_mode); /* … but for the table of MIG profiles */
        sum = mixed(sum, &info->module_id, info->links);
    }
    return sum;
}

/* A lock that was never made, or was written over, would hang whoever takes it. The kind is glibc's own word for
 * "robust and shared"; the file is bound to that libc already, see the size that sim_machine.h asserts. */
static int lock_made(const pthread_mutex_t *lock, const pthread_mutex_t *model) { return lock->__data.__kind == model->__data.__kind; }

static int gpu_sound(const struct sim_gpu *gpu, const pthread_mutex_t *model)
{
    return lock_made(&gpu->lock, model) && (gpu->first_active == SIM_NONE || gpu->first_active < SIM_MAX_STREAMS) &&
           gpu->active_count <= SIM_MAX_STREAMS;
}

int sim_machine_sound(const struct sim_machine *machine)
{
    pthread_mutex_t model;
    sim_lock_init(&model);
    const struct sim_system_info *system = &machine->system;
    int sound = machine->gpu_count >= 1 && machine->gpu_count <= SIM_MAX_GPUS && machine->seal == sim_machine_seal(machine) &&
                memchr(system->driver_version, 0, sizeof system->driver_version) &&
                memchr(system->nvml_version, 0, sizeof system->nvml_version) && lock_made(&machine->table_lock, &model) && lock_made(&machine->clock_lock, &model) &&
                machine->process_high <= SIM_MAX_PROCESSES && machine->stream_high <= SIM_MAX_STREAMS;
    for (uint32_t i = 0; sound && i < SIM_MAX_GPUS; i++) /* a fault may be changing the order: only its bounds count */
        sound = machine->enumeration[i] < SIM_MAX_GPUS && gpu_sound(&machine->gpu[i], &model);
    pthread_mutex_destroy(&model);
    return sound;
}
