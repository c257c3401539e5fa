/* Clocks, what holds them down, and the performance state. */
#include "library.h"

static nvmlReturn_t give_clock(struct nvml_call *call, const uint32_t *domains, unsigned domain, unsigned *mhz)
{
    REQUIRE((*call), domain < SIM_CLOCK_DOMAINS);
    return domains[domain] == 0 ? call_end(call, NVML_ERROR_NOT_SUPPORTED) : give_u32(call, mhz, domains[domain]);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned domain, unsigned *mhz)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_clock(&call, reading.info.clock_mhz, domain, mhz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned domain, unsigned *mhz)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_clock(&call, reading.info.clock_max_mhz, domain, mhz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned domain, unsigned *mhz)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_clock(&call, reading.info.clock_application_mhz, domain, mhz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned domain, unsigned *mhz)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_clock(&call, reading.info.clock_application_mhz, domain, mhz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned domain, unsigned *mhz)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_clock(&call, reading.info.clock_max_mhz, domain, mhz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned domain, unsigned which, unsigned *mhz)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    enum { CURRENT = 0, APPLICATION_TARGET = 1, APPLICATION_DEFAULT = 2, BOOST_MAX = 3 };
    switch (which) {
    case CURRENT:
        return give_clock(&call, reading.info.clock_mhz, domain, mhz);
    case APPLICATION_TARGET:
    case APPLICATION_DEFAULT:
        return give_clock(&call, reading.info.clock_application_mhz, domain, mhz);
    case BOOST_MAX:
        return give_clock(&call, reading.info.clock_max_mhz, domain, mhz);
    default:
        return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
    }
}

#define REASON_IDLE UINT64_C(1)
#define EVERY_REASON UINT64_C(0x1ff)

/* What the machine's owner set; and idle, when nothing ran in the last window. */
static nvmlReturn_t give_reasons(struct nvml_call *call, uint64_t *reasons)
{
    READING((*call), reading);
    const uint64_t idle = reading.utilization_percent == 0 && reading.info.throttle_reasons == 0 ? REASON_IDLE : 0;
    return give_u64(call, reasons, reading.info.throttle_reasons | idle);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, uint64_t *reasons)
{
    DEVICE_CALL(call, device);
    return give_reasons(&call, reasons);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, uint64_t *reasons)
{
    DEVICE_CALL(call, device);
    return give_reasons(&call, reasons);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, uint64_t *reasons)
{
    DEVICE_CALL(call, device);
    return give_u64(&call, reasons, EVERY_REASON);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, uint64_t *reasons)
{
    DEVICE_CALL(call, device);
    return give_u64(&call, reasons, EVERY_REASON);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned *state)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, state, reading.info.performance_state);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, unsigned *state)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, state, reading.info.performance_state);
}
