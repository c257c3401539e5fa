/*
 * What this process holds of the driver: the records of its pointers, in a map
 * for each stripe of threads, so that threads do not meet where each frees
 * what it allocated. A pointer that another thread allocated is looked for in
 * the other maps.
 */
#ifndef HV_HELD_H
#define HV_HELD_H

#include "process.h"
#include "thread.h"

/* Gives the thread its stripe (memory.c). */
uint32_t hv_thread_stripe_slowly(struct hv_process *process);

/* The stripe of this thread, of HV_KEPT_STRIPES. */
static inline uint32_t hv_thread_stripe(struct hv_process *process)
{
    uint32_t stripe = hv_thread.kept_stripe;
    return hv_likely(stripe != 0) ? stripe - 1 : hv_thread_stripe_slowly(process);
}

/* false, and told: no memory for it. */
bool hv_held_put(struct hv_process *process, enum hv_pointer_kind kind, uint64_t pointer,
                 const struct hv_pointer_record *record);

/* Take the record out; false if there is none. */
bool hv_held_take(struct hv_process *process, enum hv_pointer_kind kind, uint64_t pointer,
                  struct hv_pointer_record *record);

/* Take out what went with the last context of a device, whose generation was before this one; the sum of its bytes. */
uint64_t hv_held_purge(struct hv_process *process, uint32_t device, uint32_t generation);

/* Take out the memory of a device that the driver does not know any more: it
 * went with a context, while there are others. The sum of its bytes. */
uint64_t hv_held_take_gone(struct hv_process *process, uint32_t device);

/* An array was made in this context. Before its record is put. */
void hv_held_array_is_of(struct hv_process *process, uint64_t array, CUcontext context);

/* Before an array is destroyed: no longer. Its context, 0: not known. */
uint64_t hv_held_forget_context_of(struct hv_process *process, uint64_t array);

/* Take out the arrays that went with this context of a device, which was gone
 * from this generation on; the sum of their bytes. */
uint64_t hv_held_take_arrays_of(struct hv_process *process, uint32_t device, CUcontext context, uint32_t generation);

/* As hv_held_take_gone, of pinned host memory, of whatever device's context. */
uint64_t hv_held_take_gone_from_host(struct hv_process *process);

#endif
