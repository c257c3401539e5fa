/* The readings of a GPU that a fault can set, by name. */
#define _GNU_SOURCE
#include "internal.h"

#include <stdio.h>
#include <string.h>

struct reading {
    const char *name;
    size_t offset;
    size_t size;
};
#define GPU_READING(field) {#field, offsetof(struct sim_gpu_info, field), sizeof((struct sim_gpu_info *)0)->field}
#define LINK_READING(field) {#field, offsetof(struct sim_link, field), sizeof((struct sim_link *)0)->field}

static const struct reading readings[] = {
    GPU_READING(throttle_reasons),
    GPU_READING(ecc_corrected_volatile), GPU_READING(ecc_uncorrected_volatile),
    GPU_READING(ecc_corrected_aggregate), GPU_READING(ecc_uncorrected_aggregate),
    GPU_READING(sram_corrected_volatile), GPU_READING(sram_uncorrected_volatile), GPU_READING(sram_corrected_aggregate),
    GPU_READING(sram_uncorrected_aggregate), GPU_READING(sram_threshold_exceeded),
    GPU_READING(remapped_corrected), GPU_READING(remapped_uncorrected), GPU_READING(remap_pending), GPU_READING(remap_failed),
    GPU_READING(retired_single), GPU_READING(retired_double), GPU_READING(retire_pending),
    GPU_READING(unrepairable), GPU_READING(recovery_action),
    GPU_READING(fabric_state), GPU_READING(fabric_status), GPU_READING(fabric_health),
    GPU_READING(pcie_gen), GPU_READING(pcie_width), GPU_READING(pcie_replays),
    GPU_READING(temperature_idle_c), GPU_READING(temperature_busy_c), GPU_READING(temperature_memory_c),
    GPU_READING(power_idle_mw), GPU_READING(power_busy_mw), GPU_READING(power_limit_mw),
    GPU_READING(performance_state), GPU_READING(persistence_mode), GPU_READING(compute_mode), GPU_READING(fan_percent),
    GPU_READING(ecc_mode), GPU_READING(ecc_pending_mode), GPU_READING(mig_pending_mode),
    GPU_READING(sample_ahead_ms),
};
static const struct reading link_readings[] = {
    LINK_READING(active), LINK_READING(replay_errors), LINK_READING(recovery_errors), LINK_READING(crc_errors), LINK_READING(speed_mbps),
};
#define COUNT(table) (sizeof(table) / sizeof *(table))

const char *sim_reading_name(uint32_t at)
{
    static const char *const of_links[] = {"link<n>.active", "link<n>.replay_errors", "link<n>.recovery_errors", "link<n>.crc_errors", "link<n>.speed_mbps"};
    _Static_assert(COUNT(of_links) == COUNT(link_readings), "one name each");
    if (at < COUNT(readings))
        return readings[at].name;
    return at - COUNT(readings) < COUNT(of_links) ? of_links[at - COUNT(readings)] : NULL;
}

/* Where the reading lies in `info`; NULL: there is none of this name. */
static void *find(struct sim_gpu_info *info, const char *name, size_t *size)
{
    unsigned link;
    int used = 0;
    for (size_t i = 0; i < COUNT(readings); i++)
        if (strcmp(readings[i].name, name) == 0) {
            *size = readings[i].size;
            return (char *)info + readings[i].offset;
        }
    if (sscanf(name, "link%u.%n", &link, &used) != 1 || used == 0 || link >= info->link_count)
        return NULL;
    for (size_t i = 0; i < COUNT(link_readings); i++)
        if (strcmp(link_readings[i].name, name + used) == 0) {
            *size = link_readings[i].size;
            return (char *)&info->links[link] + link_readings[i].offset;
        }
    return NULL;
}

int sim_reading_known(const struct sim_gpu_info *info, const char *name)
{
    size_t size;
    return find((struct sim_gpu_info *)(uintptr_t)info, name, &size) != NULL; /* only looked for, never written */
}

/* What a change is told as; 0: nothing is told. */
static uint32_t notice_of(const char *name, int64_t before, int64_t after)
{
    if (strcmp(name, "ecc_corrected_volatile") == 0 || strcmp(name, "sram_corrected_volatile") == 0)
        return after > before ? SIM_NOTICE_ECC_SINGLE : 0;
    if (strcmp(name, "ecc_uncorrected_volatile") == 0 || strcmp(name, "sram_uncorrected_volatile") == 0)
        return after > before ? SIM_NOTICE_ECC_DOUBLE : 0;
    if (strcmp(name, "throttle_reasons") == 0)
        return after != before ? SIM_NOTICE_CLOCK : 0;
    if (strcmp(name, "recovery_action") == 0)
        return after != before ? SIM_NOTICE_RECOVERY : 0;
    return 0;
}

int64_t sim_reading_set(struct sim_machine *machine, uint32_t gpu, const char *name, int64_t value)
{
    size_t size = 0;
    int64_t before = 0;
    sim_lock_gpu(machine, gpu);
    sim_schedule(machine, gpu, sim_now(machine));
    void *place = find(&machine->gpu[gpu].info, name, &size);
    if (size == sizeof(uint32_t)) {
        uint32_t narrow;
        memcpy(&narrow, place, sizeof narrow);
        before = narrow;
        narrow = (uint32_t)value; /* bounds were checked where the value was read */
        memcpy(place, &narrow, sizeof narrow);
    } else if (size == sizeof(uint64_t)) {
        memcpy(&before, place, sizeof before);
        memcpy(place, &value, sizeof value);
    }
    sim_unlock_gpu(machine, gpu);
    uint32_t kind = notice_of(name, before, value);
    if (kind)
        sim_notice_post(machine, gpu, kind, (uint64_t)value); /* a count or a mask */
    return before;
}
