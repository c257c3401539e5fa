/* Handles of GPU instances and compute instances. */
#ifndef SIM_NVML_INSTANCES_H
#define SIM_NVML_INSTANCES_H

#include "library.h"

nvmlGpuInstance_t gpu_instance_handle(uint32_t gpu, uint32_t row);
/* As call_enter_device, for a GPU instance: *row is its place on call->gpu. INVALID_ARGUMENT when it is gone. */
nvmlReturn_t call_enter_gpu_instance(struct nvml_call *call, nvmlGpuInstance_t handle, uint32_t *row);
/* Refuses who may not change instances. */
nvmlReturn_t check_root(struct nvml_call *call);

#define GPU_INSTANCE_CALL(call, handle, row) \
    CALL_FRAME(call);                        \
    uint32_t row = 0;                        \
    if (call_enter_gpu_instance(&call, handle, &row) != NVML_SUCCESS) \
    return call.result

#endif
