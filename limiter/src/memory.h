/*
 * Memory under the Pod's limits: the ledger with the figures of the limit file
 * around it.
 */
#ifndef HV_MEMORY_H
#define HV_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "process.h"

/* The driver hands device memory out in blocks of this size. */
#define HV_DEVICE_GRANULARITY UINT64_C(512)

/* What the driver takes for so many bytes of device memory. */
static inline uint64_t hv_device_bytes(uint64_t bytes)
{
    return bytes > HV_TOTAL_BYTES_MASK ? bytes
                                       : (bytes + HV_DEVICE_GRANULARITY - 1) / HV_DEVICE_GRANULARITY * HV_DEVICE_GRANULARITY;
}

/* A reservation that is on its way through a call of the driver. */
struct hv_reservation {
    struct hv_process *process; /* NULL: this process is not limited; nothing to do */
    struct hv_process_slot *slot;
    uint64_t bytes;
    uint32_t device;
    bool host; /* of the quota for pinned host memory */
};

/* Reserve on the device of the thread's context. Not CUDA_SUCCESS: to be
 * returned to the program; the driver is not called. */
CUresult hv_reserve_current(struct hv_reservation *reservation, uint64_t bytes);

/* Reserve on a device by the driver's number. */
CUresult hv_reserve_ordinal(struct hv_reservation *reservation, CUdevice ordinal, uint64_t bytes);

/* Reserve on a device by its index in the limit file. */
CUresult hv_reserve_device(struct hv_reservation *reservation, uint32_t device, uint64_t bytes);

/* Reserve of the Pod's quota for pinned host memory. */
CUresult hv_reserve_host(struct hv_reservation *reservation, uint64_t bytes);

/* The driver took more or less than was reserved. More is entered even where
 * it exceeds the limit: it is held already. */
void hv_reservation_correct(struct hv_reservation *reservation, uint64_t bytes);

/* After the driver's call: keep the reservation under the pointer, or give it
 * back if the call failed. Returns the driver's result. */
CUresult hv_reservation_end(struct hv_reservation *reservation, CUresult result, enum hv_pointer_kind kind,
                            uint64_t pointer);

/* Give back what a pointer stood for, in two halves around the driver's call:
 * between them nobody else can get the same pointer and lose its record. */
struct hv_giveback {
    struct hv_process *process;
    struct hv_pointer_record record;
    enum hv_pointer_kind kind;
    uint64_t pointer;
    bool known;
};
CUresult hv_giveback_begin(struct hv_giveback *giveback, enum hv_pointer_kind kind, uint64_t pointer);
CUresult hv_giveback_end(struct hv_giveback *giveback, CUresult result);

/* Give bytes of a device or of host memory back. */
void hv_memory_release(struct hv_process *process, uint32_t device, bool host, uint64_t bytes);

/* A new context takes memory before anybody can measure it: so much is
 * reserved until the daemon's figure of the Pod's overhead includes it. */
CUresult hv_reserve_context(struct hv_reservation *reservation, CUdevice ordinal);
void hv_context_reserved(struct hv_reservation *reservation);
void hv_context_released(struct hv_process *process, uint32_t device);
void hv_context_settle(struct hv_process *process, uint32_t device);

/* A runtime may make the primary context through a private table of the
 * driver, where no wrapper sees it: at the first use of the device what it
 * takes is entered, beyond the limit if need be, because it is held already. */
void hv_context_notice_slowly(struct hv_process *process, CUdevice ordinal, uint32_t device);

static inline void hv_context_notice(struct hv_process *process, CUdevice ordinal, uint32_t device)
{
    if (hv_unlikely(hv_load_relaxed_32(&process->context_noticed[device]) == 0)) /* set once; carries no data */
        hv_context_notice_slowly(process, ordinal, device);
}

/* Is the device's primary context there? */
bool hv_primary_is_active(CUdevice ordinal);

/* Recount what the slots of dead processes held, if this process gave any back. */
void hv_memory_heal(struct hv_process *process);

/* What the Pod may see of a device's memory: the smaller of limit and card;
 * what is left of both. */
struct hv_memory_view {
    uint64_t total;
    uint64_t free;
    uint64_t used; /* by the Pod; at most total */
};
void hv_memory_view(uint32_t device, uint64_t card_total, uint64_t card_free, struct hv_memory_view *view);

/* The process and its state for a wrapper: NULL and CUDA_SUCCESS where nothing
 * is limited, NULL and an error where nothing may be granted. */
struct hv_process *hv_limited_process(CUresult *refused);

#endif
