/* How busy a GPU is: rates, samples, and shares of processes. Busy means: at least one kernel resident,
 * for the device and for each process alike. */
#include <stdlib.h>

#include "library.h"

static unsigned percent(uint64_t part, uint64_t whole)
{
    if (whole == 0)
        return 0;
    const uint64_t rounded = (part * 100 + whole / 2) / whole;
    return rounded > 100 ? 100 : (unsigned)rounded; /* at most 100 */
}

/* With MIG on, the parent has no utilisation of its own. */
#define REFUSE_MIG(call) \
    if (call.machine->gpu[call.gpu].info.mig_mode != 0) \
    return call_end(&call, NVML_ERROR_NOT_SUPPORTED)

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REFUSE_MIG(call);
    REQUIRE(call, out != NULL);
    out->gpu = call_u32(&call, reading.utilization_percent);
    out->memory = call_further_u32(&call, reading.memory_utilization_percent);
    return call_end(&call, NVML_SUCCESS);
}

/* The simulated GPU's video engines are never at work. */
#define IDLE_ENGINE(name)                                                                               \
    NVML_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *utilisation, unsigned *period_us)      \
    {                                                                                                   \
        DEVICE_CALL(call, device);                                                                      \
        REFUSE_MIG(call);                                                                               \
        REQUIRE(call, utilisation != NULL && period_us != NULL);                                        \
        *period_us = (unsigned)(call.machine->system.window_ns / 1000); /* a window is a second or less */ \
        return give_u32(&call, utilisation, 0);                                                         \
    }
IDLE_ENGINE(nvmlDeviceGetEncoderUtilization)
IDLE_ENGINE(nvmlDeviceGetDecoderUtilization)
IDLE_ENGINE(nvmlDeviceGetJpgUtilization)
IDLE_ENGINE(nvmlDeviceGetOfaUtilization)

/* The stamps of samples may be of a clock of the driver's own. */
static uint64_t ahead_us(const struct nvml_call *call)
{
    return (uint64_t)call->machine->gpu[call->gpu].info.sample_ahead_ms * 1000;
}

static uint64_t stamp_us(const struct nvml_call *call, uint64_t sim_ns) { return call_time_us(call, sim_ns) + ahead_us(call); }

static uint64_t seen_ns(const struct nvml_call *call, uint64_t stamp)
{
    const uint64_t ahead = ahead_us(call);
    return call_time_ns(call, stamp > ahead ? stamp - ahead : 0);
}

/* ---- samples of the device ---- */

enum sampling_type {
    SAMPLE_POWER = 0, SAMPLE_GPU = 1, SAMPLE_MEMORY = 2, SAMPLE_ENCODER = 3, SAMPLE_DECODER = 4,
    SAMPLE_PROCESSOR_CLOCK = 5, SAMPLE_MEMORY_CLOCK = 6,
};

static unsigned sample_value(const struct sim_sample *sample, enum sampling_type type, const struct sim_gpu_info *info, uint64_t window_ns)
{
    const unsigned busy = percent(sample->busy_ns, window_ns);
    switch (type) {
    case SAMPLE_POWER:
        return info->power_idle_mw + (unsigned)((uint64_t)(info->power_busy_mw - info->power_idle_mw) * busy / 100); /* no more than busy */
    case SAMPLE_GPU:
        return busy;
    case SAMPLE_MEMORY:
        return percent(sample->copy_ns, window_ns);
    case SAMPLE_PROCESSOR_CLOCK:
        return info->clock_mhz[SIM_CLOCK_SM];
    case SAMPLE_MEMORY_CLOCK:
        return info->clock_mhz[SIM_CLOCK_MEMORY];
    default:
        return 0; /* video engines: idle */
    }
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type, uint64_t last_seen_us, unsigned *value_type, unsigned *count, nvmlSample_t *out)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REFUSE_MIG(call);
    REQUIRE(call, value_type != NULL && count != NULL);
    if (type > SAMPLE_MEMORY_CLOCK)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    struct sim_sample *samples = malloc(SIM_SAMPLE_ITEMS * sizeof *samples);
    if (samples == NULL)
        return call_end(&call, NVML_ERROR_MEMORY);
    const uint32_t row = (uint32_t)call.gpu; /* checked on entry */
    uint32_t found = sim_read_samples(call.machine, row, seen_ns(&call, last_seen_us), samples, SIM_SAMPLE_ITEMS);
    *value_type = NVML_VALUE_U32;
    uint32_t first = 0;
    if (out != NULL && found > *count) { /* some came since the caller asked for the number: give the latest */
        first = found - *count;
        found = *count;
    }
    for (uint32_t at = 0; out != NULL && at < found; at++) {
        const struct sim_sample *sample = &samples[first + at];
        const unsigned value = sample_value(sample, (enum sampling_type)type, &reading.info, call.machine->system.window_ns);
        out[at].time_us = stamp_us(&call, sample->end_ns);
        out[at].value = (nvmlValue_t){.u32 = call_u32(&call, value)};
    }
    free(samples);
    *count = found;
    return call_end(&call, found == 0 ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS);
}

/* ---- samples of processes ---- */

/* The latest sample of each visible process that was busy in a window that ended after `last_seen_us`;
 * *found of them in memory to be freed, NULL and the call's result set when there is none. */
static struct sim_process_sample *latest_samples(struct nvml_call *call, uint64_t last_seen_us, unsigned *found)
{
    struct sim_process_sample *samples = malloc(SIM_PROCESS_SAMPLE_ITEMS * sizeof *samples);
    if (samples == NULL) {
        call_end(call, NVML_ERROR_MEMORY);
        return NULL;
    }
    const uint32_t total = sim_read_process_samples(call->machine, (uint32_t)call->gpu, seen_ns(call, last_seen_us), samples, SIM_PROCESS_SAMPLE_ITEMS);
    unsigned kept = 0;
    for (uint32_t at = 0; at < total; at++) { /* oldest first: a later one of the same process takes its place */
        const struct sim_process_sample sample = samples[at];
        if (sample.busy_ns == 0 || !sim_process_visible(call->machine, sample.pid_namespace))
            continue;
        unsigned place = 0;
        while (place < kept && (samples[place].pid != sample.pid || samples[place].pid_namespace != sample.pid_namespace))
            place++;
        samples[place] = sample;
        if (place == kept)
            kept++;
    }
    for (unsigned at = 0; at < kept; at++)
        samples[at].pid = host_pid(samples[at].pid_namespace, samples[at].pid);
    *found = kept;
    if (kept == 0 || call->fault.action == SIM_FAULT_ZERO) { /* "zero": nothing new where there is something */
        free(samples);
        call_end(call, NVML_ERROR_NOT_FOUND);
        return NULL;
    }
    return samples;
}

/* When asked for the number, the real library answers with more room than needed, and so do we: a
 * process that starts between the two calls must not make the second one fail. */
#define ROOM_FOR_NEWCOMERS 8u

NVML_EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned *count, uint64_t last_seen_us)
{
    DEVICE_CALL(call, device);
    REFUSE_MIG(call);
    REQUIRE(call, count != NULL);
    unsigned found = 0;
    struct sim_process_sample *samples = latest_samples(&call, last_seen_us, &found);
    if (samples == NULL) {
        *count = 0;
        return call.result;
    }
    if (out == NULL || *count < found) {
        free(samples);
        *count = found + ROOM_FOR_NEWCOMERS;
        return call_end(&call, NVML_ERROR_INSUFFICIENT_SIZE);
    }
    for (unsigned at = 0; at < found; at++)
        out[at] = (nvmlProcessUtilizationSample_t){
            .pid = (unsigned)samples[at].pid, /* positive */
            .time_us = stamp_us(&call, samples[at].end_ns),
            .sm = call_u32(&call, percent(samples[at].busy_ns, call.machine->system.window_ns)),
        };
    free(samples);
    *count = found;
    return call_end(&call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_v1_t *info)
{
    DEVICE_CALL(call, device);
    REFUSE_MIG(call);
    REQUIRE(call, info != NULL);
    if (info->version != NVML_STRUCT_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    unsigned found = 0;
    struct sim_process_sample *samples = latest_samples(&call, info->last_seen_us, &found);
    if (samples == NULL) {
        info->count = 0;
        return call.result;
    }
    if (info->processes == NULL || info->count < found) {
        free(samples);
        info->count = found + ROOM_FOR_NEWCOMERS;
        return call_end(&call, NVML_ERROR_INSUFFICIENT_SIZE);
    }
    for (unsigned at = 0; at < found; at++)
        info->processes[at] = (nvmlProcessUtilizationInfo_v1_t){
            .time_us = stamp_us(&call, samples[at].end_ns),
            .pid = (unsigned)samples[at].pid, /* positive */
            .sm = call_u32(&call, percent(samples[at].busy_ns, call.machine->system.window_ns)),
        };
    free(samples);
    info->count = found;
    return call_end(&call, NVML_SUCCESS);
}
