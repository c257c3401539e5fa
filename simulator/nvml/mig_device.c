/* MIG: the mode, and the MIG devices with their parents. */
#include "library.h"

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, current != NULL && pending != NULL);
    if (reading.info.mig_supported == 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    *current = call_u32(&call, reading.info.mig_mode);
    *pending = call_further_u32(&call, reading.info.mig_pending_mode);
    return call_end(&call, NVML_SUCCESS);
}

/* The call succeeds when the mode is noted; whether it is in force yet stands in *activation. */
NVML_EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation)
{
    DEVICE_CALL(call, device);
    struct sim_gpu_reading reading;
    REQUIRE(call, mode <= 1 && activation != NULL);
    if (change_begin(&call, &reading) != NVML_SUCCESS)
        return call.result;
    const int status = sim_mig_set_mode(call.machine, (uint32_t)call.gpu, mode); /* a row: checked on entry */
    if (status != SIM_OK && status != SIM_IN_USE)
        return call_end_status(&call, status);
    *activation = status == SIM_IN_USE ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    return call_end(&call, NVML_SUCCESS);
}

/* As many as the finest profile makes. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    unsigned most = 0;
    for (uint32_t at = 0; at < reading.info.mig_profile_count; at++)
        if (reading.info.mig_profiles[at].most > most)
            most = reading.info.mig_profiles[at].most;
    return give_u32(&call, count, most);
}

/* Indices have holes where an instance was destroyed. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    struct sim_mig_device found;
    REQUIRE(call, out != NULL);
    if (reading.info.mig_supported == 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(call, index < SIM_MAX_INSTANCES);
    if (reading.info.mig_mode == 0 || sim_mig_device(call.machine, (uint32_t)call.gpu, index, &found) != SIM_OK)
        return call_end(&call, NVML_ERROR_NOT_FOUND);
    *out = handle_of_instance((uint32_t)call.gpu, index);
    return call_end(&call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_instance)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    return give_u32(&call, is_instance, call.compute != SIM_NONE);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *parent)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    REQUIRE(call, parent != NULL && call.compute != SIM_NONE);
    *parent = handle_of_row((uint32_t)call.gpu);
    return call_end(&call, NVML_SUCCESS);
}

#define INSTANCE_ID(name, field)                                          \
    NVML_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *id)      \
    {                                                                     \
        DEVICE_OR_INSTANCE_CALL(call, device, instance);                  \
        if (call.compute == SIM_NONE)                                     \
            return call_end(&call, NVML_ERROR_NOT_SUPPORTED);             \
        return give_u32(&call, id, instance.field);                       \
    }
INSTANCE_ID(nvmlDeviceGetGpuInstanceId, gpu_instance_id)
INSTANCE_ID(nvmlDeviceGetComputeInstanceId, compute_instance_id)
