/*
 * Finding the limit files of this process, checking them and mapping them.
 * Happens once, at the first cu* or nvml* call; nothing before.
 */
#ifndef HV_ATTACH_H
#define HV_ATTACH_H

#include <stdbool.h>
#include <stdint.h>

#include "hypervisor_atomics.h"
#include "hypervisor_limits.h"
#include "os.h"
#include "slots.h"

enum hv_attach_state {
    HV_ATTACH_UNDECIDED = 0,
    HV_ATTACH_ABSENT,   /* no file and no variable: this library does nothing */
    HV_ATTACH_DONE,     /* limited */
    HV_ATTACH_REFUSED,  /* should be limited and can't be: nothing is granted */
};

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
};

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
};

extern uint32_t hv_attach_word; /* enum hv_attach_state */
extern const struct hv_files *hv_attached_files;

/* The state as it is, without deciding it. */
static inline enum hv_attach_state hv_attach_state(void)
{
    return (enum hv_attach_state)hv_load_acquire_32(&hv_attach_word);
}

/* Decides, which may wait for the files to be armed, up to a deadline. */
enum hv_attach_state hv_attach_decide(void);

static inline enum hv_attach_state hv_attach(void)
{
    enum hv_attach_state state = hv_attach_state();
    return __builtin_expect(state == HV_ATTACH_UNDECIDED, 0) ? hv_attach_decide() : state;
}

/* One more look after a refusal, without waiting: for a program that tries
 * cuInit again. */
enum hv_attach_state hv_attach_again(void);

/* false: neither file nor variable. Decides only that, and waits for nothing. */
bool hv_attach_is_wanted(void);

/* Not NULL in state HV_ATTACH_DONE. */
static inline const struct hv_files *hv_files(void)
{
    return hv_attached_files;
}

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

/* For tests: map the files of a directory and check them. NULL and a reason. */
const struct hv_files *hv_files_open(const char *shm_path, const char *usage_path, const char **reason, bool *retry);

#endif
