/* What every function of the simulated NVML shares: the state of the library, the frame of a call with
 * its fault, and the ways to give a value back.
 *
 * A function begins with SYSTEM_CALL or DEVICE_CALL: they return when the library is not initialised,
 * the handle is not ours, the GPU is lost, or a fault says so. It writes results through give_*, which
 * is where "zero", "stale" and the other value faults take effect, and ends with call_end.
 */
#ifndef SIM_NVML_LIBRARY_H
#define SIM_NVML_LIBRARY_H

#include <stdbool.h>

#include "../core/core.h"
#include "nvml_abi.h"

#define NVML_EXPORT __attribute__((visibility("default")))

struct nvml_call {
    const char *name; /* the exported symbol */
    struct sim_machine *machine;
    int32_t gpu;      /* row in the machine; -1: the call is about no GPU */
    uint32_t compute; /* row of the compute instance that the handle is of; SIM_NONE: the whole GPU */
    struct sim_fault_hit fault;
    nvmlReturn_t result;
    bool entered;
};

nvmlReturn_t call_enter(struct nvml_call *call);
/* Without looking at the faults yet: for the lookup of a handle, whose GPU is known only later. */
nvmlReturn_t call_enter_lookup(struct nvml_call *call);
/* Serves the fault that is set on this call, if any; other than SUCCESS ends the call. */
nvmlReturn_t call_serve_fault(struct nvml_call *call);
nvmlReturn_t call_enter_device(struct nvml_call *call, nvmlDevice_t device);
/* Likewise for what can be asked about MIG devices too: call->compute says which, and *instance is filled then. */
nvmlReturn_t call_enter_instance(struct nvml_call *call, nvmlDevice_t device, struct sim_mig_device *instance);
/* For what can be asked before initialisation: *own is a mapping to be detached afterwards, or NULL. */
nvmlReturn_t call_enter_anytime(struct nvml_call *call, struct sim_machine **own);
void call_leave(struct nvml_call *call);
static inline nvmlReturn_t call_end(struct nvml_call *call, nvmlReturn_t result)
{
    return call->result = result;
}

/* cleanup: the call is counted out and traced on every way out of the function */
#define CALL_FRAME(call) struct nvml_call call __attribute__((cleanup(call_leave))) = {.name = __func__, .gpu = -1, .compute = SIM_NONE}
#define SYSTEM_CALL(call) \
    CALL_FRAME(call);     \
    if (call_enter(&call) != NVML_SUCCESS) \
    return call.result
#define LOOKUP_CALL(call) \
    CALL_FRAME(call);     \
    if (call_enter_lookup(&call) != NVML_SUCCESS) \
    return call.result
#define DEVICE_CALL(call, device) \
    CALL_FRAME(call);             \
    if (call_enter_device(&call, device) != NVML_SUCCESS) \
    return call.result
/* For functions that take MIG devices as well: `instance.compute` is SIM_NONE for a whole GPU. */
#define DEVICE_OR_INSTANCE_CALL(call, device, instance) \
    CALL_FRAME(call);                                   \
    struct sim_mig_device instance;                     \
    if (call_enter_instance(&call, device, &instance) != NVML_SUCCESS) \
    return call.result
#define REQUIRE(call, condition) \
    if (!(condition))            \
    return call_end(&call, NVML_ERROR_INVALID_ARGUMENT)

/* A consistent reading of the call's GPU. GPU_IS_LOST when it went away meanwhile. */
nvmlReturn_t call_read(struct nvml_call *call, struct sim_gpu_reading *reading);
#define READING(call, reading)      \
    struct sim_gpu_reading reading; \
    if (call_read(&call, &reading) != NVML_SUCCESS) \
    return call.result

/* The value to give where the truth is `fresh`: the fault's, if one is on. */
uint32_t call_u32(struct nvml_call *call, uint32_t fresh);
uint64_t call_u64(struct nvml_call *call, uint64_t fresh);
/* For the further values of a call that gives several: as above, but never stale, because a fault keeps
 * one old value only. */
uint32_t call_further_u32(struct nvml_call *call, uint32_t fresh);
uint64_t call_further_u64(struct nvml_call *call, uint64_t fresh);
/* Text knows zero, which is none, and garbage. */
const char *call_text(const struct nvml_call *call, const char *fresh);
/* Likewise, written to the caller's place; INVALID_ARGUMENT when there is none. */
nvmlReturn_t give_u32(struct nvml_call *call, unsigned *out, uint32_t fresh);
nvmlReturn_t give_u64(struct nvml_call *call, uint64_t *out, uint64_t fresh);
/* Text with its zero byte; INSUFFICIENT_SIZE when it does not fit in `room` bytes. */
nvmlReturn_t give_text(struct nvml_call *call, char *out, unsigned room, const char *fresh);

/* Handles. Rows are those present when the library was initialised, in order of index. */
unsigned handle_count(void);
nvmlDevice_t handle_of_row(uint32_t gpu);    /* NULL: not enumerated */
nvmlDevice_t handle_at(unsigned index);      /* NULL: out of range */
int32_t handle_row(nvmlDevice_t device);     /* -1: not a handle of a whole GPU of ours */
/* Handles of MIG devices: by GPU and row of the compute instance; the reverse gives SIM_NONE where it is none. */
nvmlDevice_t handle_of_instance(uint32_t gpu, uint32_t compute);
uint32_t handle_instance(nvmlDevice_t device, uint32_t *gpu);
unsigned handle_index(nvmlDevice_t device);

/* The processes that hold something on a GPU (SIM_NONE: all processes) and that the caller may see, in
 * memory to be freed; NULL and the call's result set when there is no memory. */
struct sim_process_reading *call_processes(struct nvml_call *call, uint32_t gpu, uint32_t *count);
/* The pid on the host of a process that has told the machine the pid of its own namespace. */
int32_t host_pid(uint64_t pid_namespace, int32_t pid);

/* Simulated time as callers know it: microseconds of CLOCK_REALTIME. */
uint64_t call_time_us(const struct nvml_call *call, uint64_t sim_ns);
/* The reverse, for "newer than" arguments: times before the machine was made become 0. */
uint64_t call_time_ns(const struct nvml_call *call, uint64_t time_us);

/* "00000000:3B:00.0", with as many digits of the domain as asked for: NVML writes 8, older callers know 4. */
void bus_id_text(const struct nvml_call *call, char *out, size_t room, int domain_digits, const struct sim_gpu_info *info);

/* What setting something begins and ends with: root, then a reading to be changed and written back. */
nvmlReturn_t change_begin(struct nvml_call *call, struct sim_gpu_reading *reading);
nvmlReturn_t change_end(struct nvml_call *call, const struct sim_gpu_info *info);
/* What the core's answers to requests about instances are to callers. */
nvmlReturn_t call_end_status(struct nvml_call *call, int status);

/* Event sets left over at the last shutdown. */
void events_forget_all(void);

#endif
