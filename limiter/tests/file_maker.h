/* Limit files by the header alone, so that the limiter is tested without the
 * daemon: the layout of this version, one struct hv_limits in force. */
#ifndef HV_FILE_MAKER_H
#define HV_FILE_MAKER_H

#include <stdint.h>

#include "hypervisor_limits.h"

struct made_files {
    char directory[256];
    char shm_path[300];
    char usage_path[300];
    unsigned char *shm;   /* mapped read-write: the test is the daemon */
    unsigned char *usage;
};

/* Make both files in an existing directory, not armed. Ends the program where
 * that fails. */
void make_files(struct made_files *files, const char *directory);

struct hv_state *made_state(const struct made_files *files);
struct hv_device_control *made_control(const struct made_files *files, uint32_t device);
struct hv_device_usage *made_usage(const struct made_files *files, uint32_t device);
struct hv_process_slot *made_slot(const struct made_files *files, uint32_t index);

/* One soft-limited device. */
struct hv_limits soft_limits(const char *uuid, uint64_t vram_limit_bytes, uint32_t share_ppm);

/* Publish limits as the daemon does: fill the spare slot, flip, wake. */
void publish_limits(struct made_files *files, const struct hv_limits *limits);
void arm(struct made_files *files);

#endif
