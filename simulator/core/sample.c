/* Utilisation samples: one row per full window and GPU, and one per process that was busy in it. */
#include "internal.h"

static void close_one(struct sim_machine *machine, struct sim_gpu *gpu, uint32_t index, uint64_t end)
{
    struct sim_sample *sample = &gpu->samples[gpu->sample_next % SIM_SAMPLE_ITEMS];
    sample->end_ns = end;
    sample->busy_ns = gpu->busy_ns - gpu->window_busy_base;
    sample->sm_ns = gpu->sm_ns - gpu->window_sm_base;
    sample->copy_ns = gpu->copy_ns - gpu->window_copy_base;
    sample->memory_used_bytes = gpu->used_bytes;
    __atomic_store_n(&gpu->sample_next, gpu->sample_next + 1, __ATOMIC_RELEASE); /* a whole row before it counts */
    gpu->window_busy_base = gpu->busy_ns;
    gpu->window_sm_base = gpu->sm_ns;
    gpu->window_copy_base = gpu->copy_ns;
    for (uint32_t engine = 0; engine < SIM_ENGINES; engine++) {
        gpu->window_engine_bytes[engine] = gpu->engine_bytes[engine] - gpu->window_engine_base[engine];
        gpu->window_engine_base[engine] = gpu->engine_bytes[engine];
    }
    gpu->window_start_ns = end;
    for (uint32_t i = 0; i < machine->process_high; i++) {
        const struct sim_process *process = &machine->processes[i];
        if (!process->state)
            continue;
        uint64_t busy = process->gpu[index].busy_ns - gpu->process_window_base[i];
        uint64_t sm = process->gpu[index].sm_ns - gpu->process_window_sm_base[i];
        gpu->process_window_base[i] = process->gpu[index].busy_ns;
        gpu->process_window_sm_base[i] = process->gpu[index].sm_ns;
        if (busy == 0)
            continue;
        struct sim_process_sample *row = &gpu->process_samples[gpu->process_sample_next % SIM_PROCESS_SAMPLE_ITEMS];
        *row = (struct sim_process_sample){.end_ns = end, .busy_ns = busy, .bytes = process->gpu[index].bytes, .sm_ns = sm,
                                           .pid = process->pid, .process = i, .pid_namespace = process->pid_namespace};
        gpu->process_sample_next++;
    }
}

static void add_energy(const struct sim_machine *machine, struct sim_gpu *gpu, uint64_t windows)
{
    const struct sim_sample *last = &gpu->samples[(gpu->sample_next - 1) % SIM_SAMPLE_ITEMS];
    uint64_t extra = (uint64_t)(gpu->info.power_busy_mw - gpu->info.power_idle_mw) * (last->busy_ns / 1000) / (machine->system.window_ns / 1000);
    uint64_t window_us = machine->system.window_ns / 1000;
    gpu->energy_uj += (gpu->info.power_idle_mw + extra) * window_us / 1000; /* mW x us = nJ */
    gpu->energy_uj += (uint64_t)gpu->info.power_idle_mw * window_us / 1000 * (windows - 1);
}

void sim_windows_close(struct sim_machine *machine, uint32_t index, uint64_t now_ns)
{
    struct sim_gpu *gpu = &machine->gpu[index];
    const uint64_t window = machine->system.window_ns;
    uint64_t windows = (now_ns - gpu->window_start_ns) / window;
    if (windows == 0)
        return;
    /* Work never crosses a window's end in one step, so all windows but the first were idle ones. */
    close_one(machine, gpu, index, gpu->window_start_ns + window);
    add_energy(machine, gpu, windows);
    for (uint32_t reason = 0; reason < SIM_THROTTLE_REASONS; reason++)
        if (gpu->info.throttle_reasons >> reason & 1u)
            gpu->throttled_ns[reason] += windows * window;
    uint64_t idle = windows - 1;
    if (idle > SIM_SAMPLE_ITEMS) { /* the ring keeps no more of them anyway */
        gpu->window_start_ns += (idle - SIM_SAMPLE_ITEMS) * window;
        idle = SIM_SAMPLE_ITEMS;
    }
    while (idle--)
        close_one(machine, gpu, index, gpu->window_start_ns + window);
}
