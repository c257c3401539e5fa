/*
 * What is known of contexts: for the files of their hooks alone,
 * hooks_context.c of those that a program makes and of a thread's current one,
 * hooks_primary.c of each device's primary one.
 */
#ifndef HV_HOOKS_CONTEXT_H
#define HV_HOOKS_CONTEXT_H

#include "process.h"

/* The bytes of a context's record; its device is the driver's number of it,
 * its references the uses of one that was made. */
enum hv_context_kind { HV_CONTEXT_PRIMARY = 0, HV_CONTEXT_MADE = 1 };

void hv_context_remember(struct hv_process *process, CUcontext context, CUdevice ordinal, enum hv_context_kind kind);

/* Before the driver destroys a context: memory that another thread gets from
 * now on may be of one that comes after it, and must not be taken for gone. */
uint32_t hv_context_next_generation(struct hv_process *process, CUdevice ordinal);

/* A context of a device that is gone, from this generation on. */
struct hv_gone_context {
    CUcontext context; /* NULL: not known */
    CUdevice ordinal;
    uint32_t generation;
};

/* What a program allocated in it and did not free is gone too; device is its index in hv_limits.devices. */
void hv_context_forget(struct hv_process *process, uint32_t device, const struct hv_gone_context *gone);

/* The same, and what the context itself took; if it was the device's last one, everything that may have been left. */
void hv_context_is_gone(struct hv_process *process, const struct hv_gone_context *gone, enum hv_context_kind kind);

#endif
