/* Power, heat and fans: they follow the load of the last window. */
#include "library.h"

/* ---- power ---- */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, milliwatts, reading.power_mw);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned *mode)
{
    DEVICE_CALL(call, device);
    return give_u32(&call, mode, 1);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *milliwatts)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, milliwatts, reading.info.power_limit_mw);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, milliwatts, reading.info.power_limit_mw);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *milliwatts)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, milliwatts, reading.info.power_limit_default_mw);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *most)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, least != NULL && most != NULL);
    *least = call_u32(&call, reading.info.power_limit_min_mw);
    *most = call_further_u32(&call, reading.info.power_limit_max_mw);
    return call_end(&call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, uint64_t *millijoules)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u64(&call, millijoules, reading.energy_mj);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerSource(nvmlDevice_t device, unsigned *source)
{
    DEVICE_CALL(call, device);
    return give_u32(&call, source, 0); /* mains */
}

/* ---- heat ---- */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, sensor == 0); /* the GPU's is the only one */
    return give_u32(&call, celsius, reading.temperature_c);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, temperature != NULL);
    if (temperature->version != NVML_STRUCT_VERSION(nvmlTemperature_v1_t, 1))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    REQUIRE(call, temperature->sensor == 0);
    temperature->celsius = (int)call_u32(&call, reading.temperature_c); /* a fault's absurd value wraps, as it may */
    return call_end(&call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *celsius)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, threshold < SIM_THRESHOLDS);
    const uint32_t limit = reading.info.temperature_threshold_c[threshold];
    return limit == SIM_NONE ? call_end(&call, NVML_ERROR_NOT_SUPPORTED) : give_u32(&call, celsius, limit);
}

/* Degrees left until the GPU slows down. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_v1_t *margin)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, margin != NULL);
    if (margin->version != NVML_STRUCT_VERSION(nvmlMarginTemperature_v1_t, 1))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    const uint32_t slowdown = reading.info.temperature_threshold_c[1];
    if (slowdown == SIM_NONE)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    /* both have two or three digits; the margin may be negative, and its bits are kept */
    margin->celsius = (int)call_u32(&call, slowdown - reading.temperature_c);
    return call_end(&call, NVML_SUCCESS);
}

/* ---- fans ---- */

static nvmlReturn_t give_fan(struct nvml_call *call, unsigned fan, unsigned *percent)
{
    READING((*call), reading);
    if (reading.info.fan_percent == SIM_NONE) /* passively cooled */
        return call_end(call, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE((*call), fan == 0);
    return give_u32(call, percent, reading.info.fan_percent);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *percent)
{
    DEVICE_CALL(call, device);
    return give_fan(&call, 0, percent);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned fan, unsigned *percent)
{
    DEVICE_CALL(call, device);
    return give_fan(&call, fan, percent);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned *fans)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, fans, reading.info.fan_percent == SIM_NONE ? 0 : 1);
}
