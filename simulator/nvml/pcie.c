/* The PCIe link. */
#include "library.h"

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *generation)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, generation, reading.info.pcie_gen);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *generation)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, generation, reading.info.pcie_gen_max);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *generation)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, generation, reading.info.pcie_gen_max);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *width)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, width, reading.info.pcie_width);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned *width)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, width, reading.info.pcie_width_max);
}

/* Megatransfers a second of one lane, by PCIe generation. */
static unsigned lane_speed(unsigned generation)
{
    static const unsigned speeds[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
    return generation < sizeof speeds / sizeof speeds[0] ? speeds[generation] : 0;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned *speed)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, speed, lane_speed(reading.info.pcie_gen));
}

/* An enumeration that counts as the generations do. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned *speed)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, speed, reading.info.pcie_gen_max);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned *replays)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, replays, reading.info.pcie_replays);
}

/* KB a second in the last full window; the real library measures for 20 ms while the caller waits. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *throughput)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    enum { TRANSMITTED = 0, RECEIVED = 1 };
    REQUIRE(call, counter <= RECEIVED);
    const uint64_t bytes = reading.window_engine_bytes[counter == TRANSMITTED ? SIM_ENGINE_D2H : SIM_ENGINE_H2D];
    const uint64_t rate = bytes * 1000000 / call.machine->system.window_ns; /* bytes a millisecond are KB a second */
    return give_u32(&call, throughput, rate > UINT32_MAX ? UINT32_MAX : (uint32_t)rate);
}
