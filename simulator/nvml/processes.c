/* Who uses a GPU: process lists in all their versions. */
#include <stdlib.h>

#include "library.h"

enum list_kind { LIST_COMPUTE, LIST_GRAPHICS, LIST_MPS };

/* Clients of an MPS server stand in a list of their own; nothing simulated draws. */
static bool belongs(const struct sim_gpu_info *info, const struct sim_process_reading *process, enum list_kind kind)
{
    const bool served = info->mps != 0 || (process->mps_client & SIM_MPS_SERVED) != 0;
    return kind != LIST_GRAPHICS && (kind == LIST_MPS) == served;
}

typedef void (*write_entry_t)(struct nvml_call *call, void *array, unsigned at, const struct sim_process_reading *process);

static void write_v1(struct nvml_call *call, void *array, unsigned at, const struct sim_process_reading *process)
{
    nvmlProcessInfo_v1_t *entry = (nvmlProcessInfo_v1_t *)array + at;
    entry->pid = (unsigned)process->pid; /* positive */
    entry->used_bytes = call_further_u64(call, process->usage.bytes);
}

static void write_v2(struct nvml_call *call, void *array, unsigned at, const struct sim_process_reading *process)
{
    nvmlProcessInfo_v2_t *entry = (nvmlProcessInfo_v2_t *)array + at;
    entry->pid = (unsigned)process->pid; /* positive */
    entry->used_bytes = call_further_u64(call, process->usage.bytes);
    entry->gpu_instance = process->gpu_instance_id; /* SIM_NONE is what NVML says where there is no instance */
    entry->compute_instance = process->compute_instance_id;
}

static void write_detail(struct nvml_call *call, void *array, unsigned at, const struct sim_process_reading *process)
{
    nvmlProcessDetail_v1_t *entry = (nvmlProcessDetail_v1_t *)array + at;
    entry->pid = (unsigned)process->pid; /* positive */
    entry->used_bytes = call_further_u64(call, process->usage.bytes);
    entry->gpu_instance = process->gpu_instance_id; /* SIM_NONE is what NVML says where there is no instance */
    entry->compute_instance = process->compute_instance_id;
    entry->used_protected_bytes = 0;
}

/* The protocol of all lists: *count is the room on the way in and the number on the way out; too little
 * room gives INSUFFICIENT_SIZE and the number needed; an empty list is SUCCESS even with no room. */
static nvmlReturn_t give_list(struct nvml_call *call, enum list_kind kind, unsigned *count, void *array, write_entry_t write)
{
    REQUIRE((*call), count != NULL && (array != NULL || *count == 0));
    if (call->fault.action == SIM_FAULT_ZERO) { /* a list that is empty without cause */
        *count = 0;
        return call_end(call, NVML_SUCCESS);
    }
    const struct sim_gpu_info *info = &call->machine->gpu[call->gpu].info;
    uint32_t total = 0;
    struct sim_process_reading *processes = call_processes(call, (uint32_t)call->gpu, &total); /* a row: checked on entry */
    if (processes == NULL)
        return call->result;
    unsigned found = 0;
    for (uint32_t at = 0; at < total; at++) {
        if (!belongs(info, &processes[at], kind) || (call->compute != SIM_NONE && processes[at].compute != call->compute))
            continue;
        if (found < *count)
            write(call, array, found, &processes[at]);
        found++;
    }
    free(processes);
    const bool fits = found <= *count;
    *count = found;
    return call_end(call, fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}

#define PROCESS_LIST(name, kind, entry, write)                                              \
    NVML_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, entry *array)       \
    {                                                                                       \
        DEVICE_OR_INSTANCE_CALL(call, device, instance);                                    \
        return give_list(&call, kind, count, array, write);                                 \
    }
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, LIST_COMPUTE, nvmlProcessInfo_v1_t, write_v1)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, LIST_COMPUTE, nvmlProcessInfo_v2_t, write_v2)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, LIST_COMPUTE, nvmlProcessInfo_v2_t, write_v2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, LIST_GRAPHICS, nvmlProcessInfo_v1_t, write_v1)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, LIST_GRAPHICS, nvmlProcessInfo_v2_t, write_v2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, LIST_GRAPHICS, nvmlProcessInfo_v2_t, write_v2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, LIST_MPS, nvmlProcessInfo_v1_t, write_v1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, LIST_MPS, nvmlProcessInfo_v2_t, write_v2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, LIST_MPS, nvmlProcessInfo_v2_t, write_v2)

NVML_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, list != NULL);
    if (list->version != NVML_STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    const unsigned hopper = 9;
    if (reading.info.architecture < hopper)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(call, list->mode <= LIST_MPS); /* the modes are numbered as our kinds are */
    if (list->processes == NULL)
        list->count = 0;
    return give_list(&call, (enum list_kind)list->mode, &list->count, list->processes, write_detail);
}
