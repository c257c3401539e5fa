/* Modes of operation, and the few that can be set. Setting takes root, as on a real machine. */
#include "library.h"

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, mode, reading.info.persistence_mode);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, mode, reading.info.compute_mode);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, current != NULL && pending != NULL);
    if (reading.info.ecc_supported == 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    *current = call_u32(&call, reading.info.ecc_mode);
    *pending = call_further_u32(&call, reading.info.ecc_pending_mode);
    return call_end(&call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned *mode)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return reading.info.ecc_supported == 0 ? call_end(&call, NVML_ERROR_NOT_SUPPORTED) : give_u32(&call, mode, 1);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, unsigned *mode)
{
    DEVICE_CALL(call, device);
    return give_u32(&call, mode, 0); /* bare metal */
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned *active)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, active, reading.info.display_active);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned *connected)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, connected, reading.info.display_active);
}

/* ---- setting ---- */

NVML_EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode)
{
    DEVICE_CALL(call, device);
    struct sim_gpu_reading reading;
    REQUIRE(call, mode <= 1);
    if (change_begin(&call, &reading) != NVML_SUCCESS)
        return call.result;
    reading.info.persistence_mode = mode;
    return change_end(&call, &reading.info);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
    DEVICE_CALL(call, device);
    struct sim_gpu_reading reading;
    const unsigned exclusive_thread = 1, exclusive_process = 3; /* the first was withdrawn long ago */
    REQUIRE(call, mode <= exclusive_process);
    if (mode == exclusive_thread)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    if (change_begin(&call, &reading) != NVML_SUCCESS)
        return call.result;
    reading.info.compute_mode = mode;
    return change_end(&call, &reading.info);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned milliwatts)
{
    DEVICE_CALL(call, device);
    struct sim_gpu_reading reading;
    if (change_begin(&call, &reading) != NVML_SUCCESS)
        return call.result;
    REQUIRE(call, milliwatts >= reading.info.power_limit_min_mw && milliwatts <= reading.info.power_limit_max_mw);
    reading.info.power_limit_mw = milliwatts;
    return change_end(&call, &reading.info);
}

/* Takes effect with the next reset. */
NVML_EXPORT nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, unsigned mode)
{
    DEVICE_CALL(call, device);
    struct sim_gpu_reading reading;
    REQUIRE(call, mode <= 1);
    if (change_begin(&call, &reading) != NVML_SUCCESS)
        return call.result;
    if (reading.info.ecc_supported == 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    reading.info.ecc_pending_mode = mode;
    return change_end(&call, &reading.info);
}
