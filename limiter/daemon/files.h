/*
 * The daemon's side of the limit files, for cffi. Every access to a mapping is
 * guarded (guard.h); what is only looked at in `usage` is read with pread, for
 * which a hole or a truncated file is an answer and not a signal.
 *
 * Views say where the sections of a file lie; they are made from a section
 * table that was checked, so the functions here don't check them again.
 */
#ifndef HV_DAEMON_FILES_H
#define HV_DAEMON_FILES_H

#include "hypervisor_limits.h"

/* CFFI BEGIN */
struct hv_shm_view {
    void *base;
    uint64_t file_bytes;
    uint64_t state_offset;
    uint64_t limits_offset;
    uint64_t limits_stride;
    uint64_t control_offset;
    uint64_t control_stride;
};

struct hv_usage_view {
    uint64_t file_bytes;
    uint64_t devices_offset;
    uint64_t device_stride;
    uint64_t occupancy_offset;
    uint64_t slots_offset;
    uint64_t slot_stride;
    uint64_t contexts_offset; /* 0: the file has none */
    uint64_t contexts_stride;
};

/* What a usage file says at a glance. slots holds the ones that are not FREE,
 * with their numbers in slot_numbers. */
struct hv_usage_survey {
    uint32_t slot_count;
    uint32_t hidden_count; /* not FREE though their occupancy bit is off; looked for in a full survey only */
    uint32_t backward_count; /* whose state went back, which it never does by itself */
    uint32_t reserved0;
    struct hv_device_usage devices[16];
    uint32_t slot_numbers[512];
    struct hv_process_slot slots[512];
    struct hv_slot_contexts contexts[512]; /* beside slots, and read before them; 0 where the file has none */
};

enum hv_recount_outcome {
    HV_RECOUNT_WAS_RIGHT = 0,
    HV_RECOUNT_CHANGED = 1,
    HV_RECOUNT_BUSY = 2, /* raced with the Pod's processes at every try */
};

/* The words of hv_device_control that hold 64 bits, by their place. */
enum hv_control_word {
    HV_CONTROL_CORRECTION_PPM = 0,
    HV_CONTROL_CORRECTION_AT = 1,
    HV_CONTROL_BORROWED = 2,
    HV_CONTROL_OVERHEAD_BYTES = 3,
    HV_CONTROL_CONTEXT_BYTES = 4,
    HV_CONTROL_OVERHEAD_AT = 5,
    HV_CONTROL_MEASURED_BUSY = 6,
    HV_CONTROL_MEASURED_AT = 7,
    HV_CONTROL_CONTRACTED = 9, /* place 8 is a word of 32 bits */
    HV_CONTROL_OTHERS_PPM = 10,
    HV_CONTROL_NEIGHBOURS = 11,
    HV_CONTROL_LEFT_PPM = 12,
    HV_CONTROL_SETTLED_PPM = 13,
};

/* The file as shared memory, readable and writable; NULL, and errno says why. */
void *hv_map_file(int descriptor, uint64_t bytes);
void hv_unmap_file(void *base, uint64_t bytes);

/* Of the functions from here on, an int result is 0 when done and -1 when the
 * file has lost the page. */

/* Fill the spare slot, flip the generation, wake who waits for it. */
int hv_shm_publish(const struct hv_shm_view *view, const struct hv_limits *limits, uint64_t *generation);
/* The limits in force, and their generation. */
int hv_shm_read_limits(const struct hv_shm_view *view, struct hv_limits *limits, uint64_t *generation);
int hv_shm_read_state(const struct hv_shm_view *view, struct hv_state *state);
int hv_shm_read_control(const struct hv_shm_view *view, uint32_t device, struct hv_device_control *control);
int hv_shm_beat(const struct hv_shm_view *view, uint64_t now_ns, uint64_t pid);
int hv_shm_arm(const struct hv_shm_view *view);
int hv_shm_set_revoked(const struct hv_shm_view *view, uint32_t revoked);
/* One word of a device's control record. */
int hv_shm_control(const struct hv_shm_view *view, uint32_t device, uint32_t word, uint64_t value);
int hv_shm_freeze(const struct hv_shm_view *view, uint32_t device, uint32_t frozen);

/* By pread. states: of all 512 slots as last seen, brought up to date. 0: done;
 * 1: the file is shorter than it was; -1: errno. */
int hv_usage_survey(int descriptor, const struct hv_usage_view *view, int full, uint64_t *states,
                    struct hv_usage_survey *survey);

/* Return a slot whose owner is dead, if state and owner are still as they were
 * seen. self: the daemon's own owner word, for a slot in CLAIMING. 1: returned,
 * 0: it has moved on, -1: the page has gone. */
int hv_usage_return_slot(void *base, const struct hv_usage_view *view, uint32_t slot, uint64_t state, uint64_t owner,
                         uint64_t self);
/* Tell the Pod which pid of the host the process of a slot has, if the slot's
 * state is still as it was seen. 0, or -1: the page has gone. */
int hv_usage_tell_host_pid(void *base, const struct hv_usage_view *view, uint32_t slot, uint64_t state,
                           uint64_t host_pid);
/* Give up what stands for the contexts of a slot's process on a device: so many
 * bytes, which context_bytes held while the word was as seen. 1: done, the
 * total is to be recounted; 0: it has changed; -1: the page has gone. */
int hv_usage_give_up(void *base, const struct hv_usage_view *view, uint32_t slot, uint32_t device, uint64_t seen,
                     uint64_t bytes);
/* What is given up already, and whether it can be, of a word that was read
 * while the slot had this state. */
uint64_t hv_usage_given_up(uint64_t word, uint64_t state);
int hv_usage_can_give_up(uint64_t word, uint64_t state);
/* Make the total of a device (account 0 to 15) or of pinned host memory
 * (account 16) what the live slots add up to. An enum hv_recount_outcome, or -1. */
int hv_usage_recount(void *base, const struct hv_usage_view *view, uint32_t account, uint64_t *before, uint64_t *after);
/* CFFI END */

#endif
