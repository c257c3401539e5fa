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

/* How long a policy has held clocks down: of the reasons, those that are its own. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy, nvmlViolationTime_t *out)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, out != NULL);
    enum { POLICY_POWER = 0, POLICY_THERMAL = 1, POLICY_SYNC_BOOST = 2, POLICIES = 12 };
    enum { BIT_SW_POWER = 2, BIT_SYNC_BOOST = 4, BIT_SW_THERMAL = 5, BIT_HW_THERMAL = 6, BIT_POWER_BRAKE = 7 };
    REQUIRE(call, policy < POLICIES);
    uint64_t ns = 0;
    switch (policy) {
    case POLICY_POWER:
        ns = reading.throttled_ns[BIT_SW_POWER] + reading.throttled_ns[BIT_POWER_BRAKE];
        break;
    case POLICY_THERMAL:
        ns = reading.throttled_ns[BIT_SW_THERMAL] + reading.throttled_ns[BIT_HW_THERMAL];
        break;
    case POLICY_SYNC_BOOST:
        ns = reading.throttled_ns[BIT_SYNC_BOOST];
        break;
    default: /* the other policies have no reason of their own */
        break;
    }
    out->reference_us = call_time_us(&call, reading.now_ns);
    out->violation_ns = call_u64(&call, ns);
    return call_end(&call, NVML_SUCCESS);
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
