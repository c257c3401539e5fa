#define _GNU_SOURCE
#include "file_maker.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hypervisor_atomics.h"

static void *make_file(const char *path, uint64_t bytes)
{
    int descriptor = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0 || ftruncate(descriptor, (off_t)bytes) != 0) {
        perror(path);
        exit(2);
    }
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (base == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    return base;
}

static struct hv_section section(enum hv_section_type type, uint64_t offset, uint64_t stride, uint64_t count)
{
    return (struct hv_section){
        .type = (uint32_t)type, .stride = (uint32_t)stride, .offset = offset, .length = stride * count};
}

static void fill_header(void *base, uint64_t magic, uint64_t bytes, const struct hv_section *sections, uint32_t count)
{
    struct hv_file_header *header = base;
    header->abi_major = HV_ABI_MAJOR;
    header->abi_minor = HV_ABI_MINOR;
    header->header_bytes = sizeof *header;
    header->file_bytes = bytes;
    header->section_count = count;
    memcpy(header->sections, sections, count * sizeof *sections);
    hv_store_release(&header->magic, magic);
}

void make_files(struct made_files *files, const char *directory)
{
    snprintf(files->directory, sizeof files->directory, "%s", directory);
    snprintf(files->shm_path, sizeof files->shm_path, "%s/" HV_SHM_FILE_NAME, directory);
    snprintf(files->usage_path, sizeof files->usage_path, "%s/" HV_USAGE_FILE_NAME, directory);
    files->shm = make_file(files->shm_path, HV_SHM_FILE_BYTES);
    files->usage = make_file(files->usage_path, HV_USAGE_FILE_BYTES);
    const struct hv_section shm_sections[] = {
        section(HV_SECTION_STATE, HV_SHM_STATE_OFFSET, sizeof(struct hv_state), 1),
        section(HV_SECTION_LIMITS, HV_SHM_LIMITS_OFFSET, sizeof(struct hv_limits), 2),
        section(HV_SECTION_CONTROL, HV_SHM_CONTROL_OFFSET, sizeof(struct hv_device_control), HV_MAX_DEVICES),
    };
    const struct hv_section usage_sections[] = {
        section(HV_SECTION_DEVICES, HV_USAGE_DEVICES_OFFSET, sizeof(struct hv_device_usage), HV_MAX_DEVICES),
        section(HV_SECTION_OCCUPANCY, HV_USAGE_OCCUPANCY_OFFSET, sizeof(struct hv_slot_occupancy), 1),
        section(HV_SECTION_SLOTS, HV_USAGE_SLOTS_OFFSET, sizeof(struct hv_process_slot), HV_PROCESS_SLOTS),
        section(HV_SECTION_COSTS, HV_USAGE_COSTS_OFFSET, sizeof(struct hv_learned_cost), HV_LEARNED_COSTS),
        section(HV_SECTION_MESSAGES, HV_USAGE_MESSAGES_OFFSET, sizeof(struct hv_message_ring), 1),
        section(HV_SECTION_COVERAGE, HV_USAGE_COVERAGE_OFFSET, sizeof(struct hv_coverage), HV_MAX_DEVICES),
        section(HV_SECTION_CONTEXTS, HV_USAGE_CONTEXTS_OFFSET, sizeof(struct hv_slot_contexts), HV_PROCESS_SLOTS),
    };
    fill_header(files->shm, HV_SHM_MAGIC, HV_SHM_FILE_BYTES, shm_sections, 3);
    fill_header(files->usage, HV_USAGE_MAGIC, HV_USAGE_FILE_BYTES, usage_sections, 7);
}

struct hv_state *made_state(const struct made_files *files)
{
    return (void *)(files->shm + HV_SHM_STATE_OFFSET);
}

struct hv_device_control *made_control(const struct made_files *files, uint32_t device)
{
    return (struct hv_device_control *)(void *)(files->shm + HV_SHM_CONTROL_OFFSET) + device;
}

struct hv_device_usage *made_usage(const struct made_files *files, uint32_t device)
{
    return (struct hv_device_usage *)(void *)(files->usage + HV_USAGE_DEVICES_OFFSET) + device;
}

struct hv_process_slot *made_slot(const struct made_files *files, uint32_t index)
{
    return (struct hv_process_slot *)(void *)(files->usage + HV_USAGE_SLOTS_OFFSET) + index;
}

struct hv_limits soft_limits(const char *uuid, uint64_t vram_limit_bytes, uint32_t share_ppm)
{
    struct hv_limits limits = {.device_count = 1, .isolation_mode = HV_ISOLATION_SOFT, .host_memory_limit_bytes = UINT64_MAX};
    struct hv_device_limit *device = &limits.devices[0];
    snprintf(device->uuid, sizeof device->uuid, "%s", uuid);
    device->vram_limit_bytes = vram_limit_bytes;
    device->vram_request_bytes = vram_limit_bytes;
    device->limit_share_ppm = share_ppm;
    device->request_share_ppm = share_ppm;
    device->weight = 1;
    device->burst_ns = 10000000;
    device->debt_limit_ns = 1000000000;
    return limits;
}

void publish_limits(struct made_files *files, const struct hv_limits *limits)
{
    struct hv_state *state = made_state(files);
    uint64_t generation = hv_load_relaxed(&state->generation) + 1;
    struct hv_limits *spare = (struct hv_limits *)(void *)(files->shm + HV_SHM_LIMITS_OFFSET) + (generation & 1);
    memcpy(spare, limits, sizeof *limits);
    hv_store_release(&state->generation, generation);
    (void)syscall(SYS_futex, &state->generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void arm(struct made_files *files)
{
    hv_store_release_32(&made_state(files)->armed, 1);
}
