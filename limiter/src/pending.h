/*
 * Plain device memory that was freed in stream order: it is held until the
 * stream has come to the free, which an event behind it tells.
 */
#ifndef HV_PENDING_H
#define HV_PENDING_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

#define HV_PENDING_FREES 64

struct hv_process;
struct hv_pointer_record;

struct hv_pending_free {
    CUevent event; /* NULL: a free place */
    uint64_t bytes;
    uint32_t device;
};

struct hv_pending_frees {
    uint32_t lock;
    uint32_t count; /* of places taken */
    struct hv_pending_free frees[HV_PENDING_FREES];
};

/* After the driver took the free into the stream. Gives the bytes back now if
 * the stream is there already, later otherwise. */
void hv_pending_add(struct hv_process *process, const struct hv_pointer_record *record, CUstream stream,
                    bool per_thread);

/* Give back what streams have come to. */
void hv_pending_settle(struct hv_process *process);

/* The same, waiting for a while: before a refusal. */
void hv_pending_wait(struct hv_process *process);

/* The last context of the device is gone, and its events with it: they may not
 * be looked at any more. Gives back what they stood for. */
void hv_pending_forget(struct hv_process *process, uint32_t device);

#endif
