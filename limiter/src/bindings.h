/*
 * Physical memory that is held without a mapping of its own: bound to a
 * multicast object or a logical endpoint, or mapped into a sparse array. Its handle may be released,
 * and the memory stays for as long as the binding does. Each binding is one
 * reference to the handle's record.
 */
#ifndef HV_BINDINGS_H
#define HV_BINDINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

#define HV_BINDINGS 1024

struct hv_process;

struct hv_binding {
    uint64_t object; /* multicast handle, endpoint (hv_object_of_endpoint) or array; 0: a free place */
    uint64_t place;  /* offset in the object, or a hash of the part of an array */
    uint64_t handle; /* of the physical memory */
    uint32_t device; /* index in hv_limits.devices; HV_MAX_DEVICES: not known */
};

struct hv_bindings {
    uint32_t lock;
    uint32_t count; /* of places taken */
    struct hv_binding bindings[HV_BINDINGS];
};

/* Endpoints have small numbers, which handles may have too. */
#define HV_ENDPOINT (UINT64_C(1) << 63)
static inline uint64_t hv_object_of_endpoint(CUlogicalEndpointId endpoint)
{
    return endpoint | HV_ENDPOINT;
}

/* The driver bound it. Without a place for it the reference stays until the
 * process ends: on the high side. */
void hv_binding_made(struct hv_process *process, const struct hv_binding *binding);

/* The places from..to - 1 of an object on a device are free again. The stream
 * is where that happens in stream order, when the flag says so. */
struct hv_unbinding {
    uint64_t object;
    uint64_t from, to;
    uint32_t device;
    bool in_order;
    bool per_thread;
    CUstream stream;
};
void hv_binding_ended(struct hv_process *process, const struct hv_unbinding *unbinding);

/* The object is gone, and all that was bound to it. */
void hv_bindings_of_object_ended(struct hv_process *process, uint64_t object);

/* The last context of a device is gone, and its arrays with it. */
void hv_bindings_of_arrays_ended(struct hv_process *process, uint32_t device);

#endif
