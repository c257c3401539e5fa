/* Which devices a process has, and in which order: CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, and what MIG makes of it.
 *
 * As the real driver: a GPU with MIG on is no device itself; of all compute instances a process gets the first one
 * that it is given, and with it nothing else. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct choice { uint32_t gpu, compute; }; /* compute SIM_NONE: the whole GPU; gpu SIM_NONE: nothing, SIM_MAX_GPUS: more than one fits */

static const struct choice nothing = {SIM_NONE, SIM_NONE};

static int with_mig(uint32_t gpu) { return sim_driver.machine->gpu[gpu].info.mig_mode != 0; }

/* What a GPU is to a process: itself, its first compute instance, or nothing. */
static struct choice of_gpu(uint32_t gpu)
{
    if (!with_mig(gpu))
        return (struct choice){gpu, SIM_NONE};
    for (uint32_t i = 0; i < SIM_MAX_INSTANCES; i++)
        if (sim_driver.machine->gpu[gpu].compute[i].state)
            return (struct choice){gpu, i};
    return nothing;
}

/* "GPU-…", or its beginning. */
static struct choice by_gpu_uuid(const char *text, size_t length, const uint32_t *present, uint32_t count)
{
    uint32_t found = SIM_NONE;
    for (uint32_t i = 0; i < count && length >= 5; i++)
        if (strncasecmp(sim_driver.machine->gpu[present[i]].info.uuid, text, length) == 0) {
            if (found != SIM_NONE)
                return nothing; /* a beginning that fits two names none */
            found = present[i];
        }
    return found == SIM_NONE ? nothing : of_gpu(found);
}

/* "MIG-…", or its beginning; or as drivers before 470 wrote it, "MIG-GPU-<uuid>/<GPU instance>/<compute instance>". */
static struct choice by_instance(const char *text, size_t length, const uint32_t *present, uint32_t count)
{
    struct choice found = nothing;
    for (uint32_t i = 0; i < count && length >= 5; i++)
        for (uint32_t row = 0; row < SIM_MAX_INSTANCES; row++) {
            struct sim_mig_device device;
            char old[128];
            if (!with_mig(present[i]) || sim_mig_device(sim_driver.machine, present[i], row, &device) != SIM_OK)
                continue;
            int size = snprintf(old, sizeof old, "MIG-%s/%u/%u", sim_driver.machine->gpu[present[i]].info.uuid, device.gpu_instance_id, device.compute_instance_id);
            int whole = size > 0 && (size_t)size == length && strncasecmp(old, text, length) == 0; /* checked: not negative */
            if (!whole && strncasecmp(device.uuid, text, length) != 0)
                continue;
            if (found.gpu != SIM_NONE)
                return nothing;
            found = (struct choice){present[i], row};
        }
    return found;
}

static struct choice by_text(const char *text, size_t length, const uint32_t *present, uint32_t count)
{
    if (strncasecmp(text, "GPU-", 4) == 0)
        return by_gpu_uuid(text, length, present, count);
    if (strncasecmp(text, "MIG-", 4) == 0)
        return by_instance(text, length, present, count);
    char *end;
    unsigned long index = strtoul(text, &end, 10);
    return end != text && text[0] != '-' && index < count ? of_gpu(present[index]) : nothing;
}

/* The list's entries; the first that names no device ends it, one device twice leaves none at all. Returns how many. */
static uint32_t listed(const char *list, const uint32_t *present, uint32_t count, struct choice *out)
{
    uint32_t chosen = 0;
    while (*list) {
        while (*list == ' ')
            list++;
        size_t length = strcspn(list, ",");
        struct choice found = by_text(list, length, present, count);
        if (found.gpu == SIM_NONE)
            break;
        for (uint32_t i = 0; i < chosen; i++)
            if (out[i].gpu == found.gpu && out[i].compute == found.compute)
                return 0;
        if (chosen < SIM_MAX_GPUS)
            out[chosen++] = found;
        list += length;
        if (*list == ',')
            list++;
    }
    return chosen;
}

/* What is fast is a guess of the driver's: here lanes times clock. */
static uint64_t speed(uint32_t gpu)
{
    const struct sim_gpu_info *info = &sim_driver.machine->gpu[gpu].info;
    return (uint64_t)info->cuda_cores * info->clock_max_mhz[SIM_CLOCK_SM];
}

/* As CUDA_DEVICE_ORDER wants it: the order of PCI buses, which is NVML's, or else the fastest first and equals as NVML has them. */
static void in_order(uint32_t *present, uint32_t count)
{
    const char *wish = getenv("CUDA_DEVICE_ORDER");
    if (wish && strcmp(wish, "PCI_BUS_ID") == 0)
        return;
    for (uint32_t i = 1; i < count; i++) {
        uint32_t moved = present[i], at = i;
        for (; at > 0 && speed(present[at - 1]) < speed(moved); at--)
            present[at] = present[at - 1];
        present[at] = moved;
    }
}

void sim_choose_devices(struct driver *driver)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    uint32_t present[SIM_MAX_GPUS], count = sim_enumerate(driver->machine, present), chosen = 0;
    struct choice choices[SIM_MAX_GPUS];
    in_order(present, count);
    if (list)
        chosen = listed(list, present, count, choices);
    for (uint32_t i = 0; i < count && !list; i++) {
        choices[chosen] = of_gpu(present[i]);
        chosen += choices[chosen].gpu != SIM_NONE;
    }
    driver->on_instance = 0;
    driver->device_count = 0;
    for (uint32_t i = 0; i < chosen; i++)
        if (choices[i].compute != SIM_NONE && sim_mig_device(driver->machine, choices[i].gpu, choices[i].compute, &driver->instance) == SIM_OK) {
            driver->on_instance = 1;
            driver->gpu_of[0] = choices[i].gpu;
            driver->device_count = 1;
            return;
        }
    for (uint32_t i = 0; i < chosen; i++)
        if (choices[i].compute == SIM_NONE)
            driver->gpu_of[driver->device_count++] = choices[i].gpu;
}

uint32_t sim_sm_count(uint32_t gpu) { return sim_driver.on_instance ? sim_driver.instance.sm_count : sim_driver.machine->gpu[gpu].info.sm_count; }

uint64_t sim_total_memory(uint32_t gpu)
{
    const struct sim_gpu_info *info = &sim_driver.machine->gpu[gpu].info;
    return sim_driver.on_instance ? sim_driver.instance.memory_bytes : info->memory_total_bytes - info->memory_reserved_bytes;
}
