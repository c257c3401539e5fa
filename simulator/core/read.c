/* Consistent copies for NVML and the control tool. */
#include "internal.h"

#include <string.h>

int sim_read_gpu(struct sim_machine *machine, uint32_t index, struct sim_gpu_reading *out)
{
    if (index >= machine->gpu_count)
        return SIM_NOT_FOUND;
    memset(out, 0, sizeof *out);
    sim_enter_gpu(machine, index);
    const struct sim_gpu *gpu = &machine->gpu[index];
    const uint64_t window = machine->system.window_ns;
    out->info = gpu->info;
    out->lost = gpu->lost;
    out->vanished = gpu->vanished;
    out->now_ns = gpu->now_ns;
    out->used_bytes = gpu->used_bytes;
    out->peak_bytes = gpu->peak_bytes;
    uint64_t taken = gpu->used_bytes + gpu->info.memory_reserved_bytes;
    out->free_bytes = gpu->info.memory_total_bytes > taken ? gpu->info.memory_total_bytes - taken : 0;
    out->busy_ns = gpu->busy_ns;
    out->sm_ns = gpu->sm_ns;
    out->copy_ns = gpu->copy_ns;
    out->launches = gpu->launches;
    memcpy(out->engine_bytes, gpu->engine_bytes, sizeof out->engine_bytes);
    memcpy(out->window_engine_bytes, gpu->window_engine_bytes, sizeof out->window_engine_bytes);
    out->peer_in_bytes = gpu->peer_in_bytes;
    out->peer_out_bytes = gpu->peer_out_bytes;
    memcpy(out->throttled_ns, gpu->throttled_ns, sizeof out->throttled_ns);
    uint64_t busy = 0;
    if (gpu->sample_next) {
        const struct sim_sample *last = &gpu->samples[(gpu->sample_next - 1) % SIM_SAMPLE_ITEMS];
        busy = last->busy_ns;
        out->utilization_percent = (uint32_t)min_u64((busy * 100 + window / 2) / window, 100); /* at most 100 */
        out->memory_utilization_percent = (uint32_t)min_u64((last->copy_ns * 100 + window / 2) / window, 100);
    }
    uint32_t warmer = gpu->info.temperature_busy_c > gpu->info.temperature_idle_c ? gpu->info.temperature_busy_c - gpu->info.temperature_idle_c : 0;
    out->power_mw = gpu->info.power_idle_mw + (uint32_t)((gpu->info.power_busy_mw - gpu->info.power_idle_mw) * min_u64(busy, window) / window);
    out->temperature_c = gpu->info.temperature_idle_c + (uint32_t)(warmer * min_u64(busy, window) / window); /* at most the difference */
    out->energy_mj = gpu->energy_uj / 1000;
    for (uint32_t i = 0; i < machine->process_high; i++)
        out->process_count += machine->processes[i].state && (machine->processes[i].gpu[index].contexts || machine->processes[i].gpu[index].bytes);
    out->active_streams = gpu->active_count;
    sim_unlock_gpu(machine, index);
    return SIM_OK;
}

static uint64_t window_busy(const struct sim_gpu *gpu, uint32_t row)
{
    if (!gpu->sample_next || !gpu->process_sample_next)
        return 0;
    uint64_t end = gpu->samples[(gpu->sample_next - 1) % SIM_SAMPLE_ITEMS].end_ns;
    uint64_t oldest = gpu->process_sample_next > SIM_PROCESS_SAMPLE_ITEMS ? gpu->process_sample_next - SIM_PROCESS_SAMPLE_ITEMS : 0;
    for (uint64_t at = gpu->process_sample_next; at > oldest; at--) {
        const struct sim_process_sample *sample = &gpu->process_samples[(at - 1) % SIM_PROCESS_SAMPLE_ITEMS];
        if (sample->end_ns != end)
            return 0;
        if (sample->process == row)
            return sample->busy_ns;
    }
    return 0;
}

uint32_t sim_read_processes(struct sim_machine *machine, uint32_t gpu, struct sim_process_reading *out, uint32_t room)
{
    uint32_t found = 0;
    if (gpu != SIM_NONE && gpu >= machine->gpu_count)
        return 0;
    sim_machine_reap(machine);
    sim_lock_table(machine);
    if (gpu != SIM_NONE) {
        sim_lock_gpu(machine, gpu);
        sim_schedule(machine, gpu, sim_now(machine));
    }
    for (uint32_t i = 0; i < machine->process_high; i++) {
        const struct sim_process *process = &machine->processes[i];
        if (!process->state || (gpu != SIM_NONE && !process->gpu[gpu].contexts && !process->gpu[gpu].bytes))
            continue;
        if (found < room) {
            struct sim_process_reading *reading = &out[found];
            memset(reading, 0, sizeof *reading);
            reading->row = i;
            reading->generation = process->generation;
            reading->pid = process->pid;
            reading->mps_client = process->mps_client;
            reading->start_time = process->start_time;
            reading->pid_namespace = process->pid_namespace;
            reading->group_key = process->group_key;
            memcpy(reading->name, process->name, sizeof reading->name);
            reading->registered_ns = process->registered_ns;
            reading->gpu_instance_id = reading->compute_instance_id = reading->compute = SIM_NONE;
            const struct sim_gpu_instance *instance = gpu == SIM_NONE ? NULL : sim_instance_of(machine, gpu, i);
            if (instance) {
                reading->compute = process->compute_instance[gpu];
                reading->gpu_instance_id = instance->id;
                reading->compute_instance_id = machine->gpu[gpu].compute[reading->compute].id;
            }
            if (gpu != SIM_NONE) {
                reading->usage = process->gpu[gpu];
                reading->window_busy_ns = window_busy(&machine->gpu[gpu], i);
            }
        }
        found++;
    }
    if (gpu != SIM_NONE)
        sim_unlock_gpu(machine, gpu);
    sim_unlock_table(machine);
    return found;
}

static void copy_group(const struct sim_group *group, uint32_t gpu, struct sim_group_reading *out)
{
    memset(out, 0, sizeof *out);
    out->key = group->key;
    out->processes = group->processes;
    memcpy(out->name, group->name, sizeof out->name);
    out->usage = group->gpu[gpu];
}

uint32_t sim_read_groups(struct sim_machine *machine, uint32_t gpu, struct sim_group_reading *out, uint32_t room)
{
    uint32_t found = 0;
    if (gpu >= machine->gpu_count)
        return 0;
    sim_machine_reap(machine);
    sim_lock_table(machine);
    sim_lock_gpu(machine, gpu);
    sim_schedule(machine, gpu, sim_now(machine));
    for (uint32_t i = 0; i < SIM_MAX_GROUPS && machine->groups[i].key; i++, found++)
        if (found < room)
            copy_group(&machine->groups[i], gpu, &out[found]);
    sim_unlock_gpu(machine, gpu);
    sim_unlock_table(machine);
    return found;
}

int sim_read_group(struct sim_machine *machine, uint32_t gpu, const char *name, struct sim_group_reading *out)
{
    uint64_t key = sim_group_key(name);
    int status = SIM_NOT_FOUND;
    if (gpu >= machine->gpu_count)
        return status;
    sim_lock_table(machine);
    sim_lock_gpu(machine, gpu);
    sim_schedule(machine, gpu, sim_now(machine));
    for (uint32_t i = 0; i < SIM_MAX_GROUPS && machine->groups[i].key; i++)
        if (machine->groups[i].key == key) {
            copy_group(&machine->groups[i], gpu, out);
            status = SIM_OK;
            break;
        }
    sim_unlock_gpu(machine, gpu);
    sim_unlock_table(machine);
    return status;
}

uint32_t sim_read_samples(struct sim_machine *machine, uint32_t index, uint64_t since_ns, struct sim_sample *out, uint32_t room)
{
    uint32_t copied = 0;
    sim_enter_gpu(machine, index);
    const struct sim_gpu *gpu = &machine->gpu[index];
    uint64_t at = gpu->sample_next > SIM_SAMPLE_ITEMS ? gpu->sample_next - SIM_SAMPLE_ITEMS : 0;
    for (; at < gpu->sample_next && copied < room; at++)
        if (gpu->samples[at % SIM_SAMPLE_ITEMS].end_ns > since_ns)
            out[copied++] = gpu->samples[at % SIM_SAMPLE_ITEMS];
    sim_unlock_gpu(machine, index);
    return copied;
}

uint32_t sim_read_process_samples(struct sim_machine *machine, uint32_t index, uint64_t since_ns, struct sim_process_sample *out, uint32_t room)
{
    uint32_t copied = 0;
    sim_enter_gpu(machine, index);
    const struct sim_gpu *gpu = &machine->gpu[index];
    uint64_t at = gpu->process_sample_next > SIM_PROCESS_SAMPLE_ITEMS ? gpu->process_sample_next - SIM_PROCESS_SAMPLE_ITEMS : 0;
    for (; at < gpu->process_sample_next && copied < room; at++)
        if (gpu->process_samples[at % SIM_PROCESS_SAMPLE_ITEMS].end_ns > since_ns)
            out[copied++] = gpu->process_samples[at % SIM_PROCESS_SAMPLE_ITEMS];
    sim_unlock_gpu(machine, index);
    return copied;
}

uint32_t sim_read_accounting(struct sim_machine *machine, uint32_t index, struct sim_accounting *out, uint32_t room)
{
    uint32_t copied = 0;
    sim_machine_reap(machine);
    sim_enter_gpu(machine, index);
    const struct sim_gpu *gpu = &machine->gpu[index];
    uint64_t kept = min_u64(gpu->accounting_next, SIM_ACCOUNTING_ITEMS);
    for (; copied < kept && copied < room; copied++)
        out[copied] = gpu->accounting[(gpu->accounting_next - 1 - copied) % SIM_ACCOUNTING_ITEMS];
    sim_unlock_gpu(machine, index);
    return copied;
}

void sim_clear_accounting(struct sim_machine *machine, uint32_t index)
{
    sim_enter_gpu(machine, index);
    machine->gpu[index].accounting_next = 0;
    sim_unlock_gpu(machine, index);
}

uint32_t sim_read_faults(struct sim_machine *machine, struct sim_fault *out, uint32_t room)
{
    uint32_t found = 0;
    sim_lock_table(machine);
    for (uint32_t i = 0; i < SIM_MAX_FAULTS; i++)
        if (machine->faults[i].id) {
            if (found < room)
                out[found] = machine->faults[i];
            found++;
        }
    sim_unlock_table(machine);
    return found;
}
