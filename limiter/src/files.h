/*
 * The two limit files of an allocation: checked, mapped, and read.
 */
#ifndef HV_FILES_H
#define HV_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hypervisor_atomics.h"
#include "hypervisor_limits.h"
#include "os.h"
#include "slots.h"

/* The two files, mapped, each section found and checked. */
struct hv_files {
    struct hv_os_mapping shm;
    struct hv_os_mapping usage;
    const struct hv_state *state;
    const struct hv_limits *limits[2];
    const struct hv_device_control *control[HV_MAX_DEVICES];
    struct hv_device_usage *devices[HV_MAX_DEVICES];
    struct hv_slot_table slots;
    unsigned char *costs;
    uint32_t cost_stride;
    struct hv_message_ring *messages;
    struct hv_coverage *coverage[HV_MAX_DEVICES]; /* NULL in files that have none */
    unsigned char *contexts; /* NULL likewise */
    uint32_t contexts_stride;
};

/* What was given up of the stand-in of a slot's process; NULL: nothing ever is. */
static inline uint64_t *hv_contexts_word(const struct hv_files *files, uint32_t slot, uint32_t device)
{
    if (files->contexts == NULL)
        return NULL;
    /* Offset and stride were checked for alignment. */
    return &((struct hv_slot_contexts *)(void *)(files->contexts + (size_t)slot * files->contexts_stride))->words[device];
}

/* What is in force for one device, read in one piece. */
struct hv_device_terms {
    uint64_t generation;
    uint64_t vram_limit_bytes;
    uint64_t burst_ns;
    uint64_t debt_limit_ns;
    uint32_t limit_share_ppm;
    uint32_t policy;
    uint32_t flags;
    uint32_t isolation_mode;
    uint32_t device_count; /* of the Pod */
};

static inline uint64_t hv_generation(const struct hv_files *files)
{
    return hv_load_acquire(&files->state->generation);
}

/* false: no such device in force. */
bool hv_terms_read(const struct hv_files *files, uint32_t device, struct hv_device_terms *terms);

/* Index of the device whose UUID has these 16 bytes, HV_MAX_DEVICES if it is
 * not in the file; *generation says of which limits. */
uint32_t hv_device_by_uuid(const struct hv_files *files, const unsigned char uuid[16], uint64_t *generation);

/* The same for NVML's text. */
uint32_t hv_device_by_uuid_text(const struct hv_files *files, const char *uuid);

uint64_t hv_host_memory_limit(const struct hv_files *files);

/* Why files can't be attached. */
struct hv_files_fault {
    const char *reason;
    enum hv_message_code code;
    bool may_pass;
};

/* Map both files and check them; NULL: *fault says why not. */
const struct hv_files *hv_files_open(const char *shm_path, const char *usage_path, struct hv_files_fault *fault);

/* The usage file alone, for a message to the daemon where the limits are not
 * in order; NULL: it can't be used either. */
const struct hv_files *hv_files_open_usage(const char *usage_path);

void hv_files_close(struct hv_files *files);

#endif
