/* Modes of operation, and the few that can be set. Setting takes root, as on a real machine. */
#include <unistd.h>

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

/* ---- MIG: a mode so far; instances are not modelled yet ---- */

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

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    const unsigned slices = 7;
    return give_u32(&call, count, reading.info.mig_supported == 0 ? 0 : slices);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, out != NULL);
    (void)index;
    return call_end(&call, reading.info.mig_supported == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_NOT_FOUND);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_instance)
{
    DEVICE_CALL(call, device);
    return give_u32(&call, is_instance, 0);
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

NVML_EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    DEVICE_CALL(call, device);
    REQUIRE(call, support != NULL);
    if (support->version != 1) /* the one structure whose version is a bare number */
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    return give_u32(&call, &support->supported, 0); /* the samples are not modelled yet */
}

/* ---- setting ---- */

static nvmlReturn_t begin_change(struct nvml_call *call, struct sim_gpu_reading *reading)
{
    if (geteuid() != 0)
        return call_end(call, NVML_ERROR_NO_PERMISSION);
    return call_read(call, reading);
}

static nvmlReturn_t end_change(struct nvml_call *call, const struct sim_gpu_info *info)
{
    const int status = sim_gpu_set_info(call->machine, (uint32_t)call->gpu, info); /* a row: checked on entry */
    return call_end(call, status == SIM_OK ? NVML_SUCCESS : NVML_ERROR_UNKNOWN);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode)
{
    DEVICE_CALL(call, device);
    struct sim_gpu_reading reading;
    REQUIRE(call, mode <= 1);
    if (begin_change(&call, &reading) != NVML_SUCCESS)
        return call.result;
    reading.info.persistence_mode = mode;
    return end_change(&call, &reading.info);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
    DEVICE_CALL(call, device);
    struct sim_gpu_reading reading;
    const unsigned exclusive_thread = 1, exclusive_process = 3; /* the first was withdrawn long ago */
    REQUIRE(call, mode <= exclusive_process);
    if (mode == exclusive_thread)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    if (begin_change(&call, &reading) != NVML_SUCCESS)
        return call.result;
    reading.info.compute_mode = mode;
    return end_change(&call, &reading.info);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned milliwatts)
{
    DEVICE_CALL(call, device);
    struct sim_gpu_reading reading;
    if (begin_change(&call, &reading) != NVML_SUCCESS)
        return call.result;
    REQUIRE(call, milliwatts >= reading.info.power_limit_min_mw && milliwatts <= reading.info.power_limit_max_mw);
    reading.info.power_limit_mw = milliwatts;
    return end_change(&call, &reading.info);
}
