/*
 * What a thread knows about itself. In static thread storage, because the
 * library is preloaded and a launch must not call into the loader for it.
 */
#ifndef HV_THREAD_H
#define HV_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "hypervisor_limits.h"

struct hv_function;

struct hv_thread {
    /* The launch path reads and writes only these. */
    const uint64_t *generation_word;
    uint64_t generation;             /* of the limits that the next two are from */
    const uint32_t *freeze_word;
    struct hv_function *functions;   /* table of learned costs; NULL: launches are not charged */
    uint64_t credit_ns;              /* GPU time that is paid for and not used */
    uint32_t launches_left;          /* until the slow path looks; 0: it has to prepare the rest first */

    uint32_t device;                 /* index in hv_limits.devices that all of this is about */
    uint32_t launches_granted;       /* launches_left when it was last filled */
    uint32_t kept_stripe;            /* of struct hv_kept, from 1; 0: none yet */
    uint32_t in_lookup;              /* the driver is looking a name up for us */
    struct hv_function *paid_for;    /* the function of the launch that the credit is from; NULL: none */
    uint64_t process_epoch;          /* of the process that all of this is about */
    uint64_t credits_ns[HV_MAX_DEVICES]; /* credit_ns of the other devices */
    bool copies_are_free;            /* by the limits of this generation */
    bool elsewhere;                  /* it has launched in streams of other contexts than its own */
    bool ordinal_known;
    CUdevice ordinal;                /* of the current context's device */
};

extern __thread struct hv_thread hv_thread __attribute__((tls_model("initial-exec")));

/* Make the next launch take the slow path, without losing count of those before. */
static inline void hv_thread_looks_again(void)
{
    hv_thread.launches_granted -= hv_thread.launches_left;
    hv_thread.launches_left = 0;
}

/* The thread's context may have changed: whatever hangs on its device has to
 * be found anew. */
static inline void hv_thread_context_changed(void)
{
    hv_thread.ordinal_known = false;
    hv_thread_looks_again();
}

/* The new context's device is known. */
static inline void hv_thread_context_is_on(CUdevice ordinal)
{
    if (!hv_thread.ordinal_known || hv_thread.ordinal != ordinal)
        hv_thread_looks_again();
    hv_thread.ordinal = ordinal;
    hv_thread.ordinal_known = true;
}

#endif
