/*
 * Physical memory that this process gave out by descriptor, and may get back
 * as another handle: it is held until the last of its handles is gone, also
 * where the first one goes before.
 *
 * A descriptor is known again by its number and its file. On a real driver all
 * such descriptors are of one file, so that one of another process, which came
 * to have the number of one of ours that was closed, is taken for ours: then
 * ours counts until both are gone, on the high side. One of ours under another
 * number (dup) is taken for another process's.
 */
#ifndef HV_BODIES_H
#define HV_BODIES_H

#include <stdbool.h>
#include <stdint.h>

#include "memory.h"

#define HV_HANDLE_TYPE_POSIX_FD 1

/* The handle, which counts, was given out as this descriptor. */
void hv_body_exported(struct hv_process *process, enum hv_pointer_kind kind, uint64_t handle, int descriptor);

struct hv_homecoming {
    uint64_t body;                     /* 0: of another process */
    bool host;
    struct hv_reservation reservation; /* of memory that only the descriptor held, which counted nowhere */
};

/* Before and after the driver makes a handle of a descriptor. Not CUDA_SUCCESS:
 * it would not fit, and is to be returned. */
CUresult hv_homecoming_begin(struct hv_process *process, int descriptor, struct hv_homecoming *homecoming);
void hv_homecoming_failed(struct hv_process *process, struct hv_homecoming *homecoming);
/* The handle is a new one of that memory. */
void hv_homecoming_done(struct hv_process *process, int descriptor, uint64_t handle, struct hv_homecoming *homecoming);

/* The last reference to the handle is gone. True: *record is what is to be
 * given back, of the host or of a device; false: other handles hold it. */
bool hv_body_let_go(struct hv_process *process, uint64_t handle, struct hv_pointer_record *record, bool *host);

#endif
