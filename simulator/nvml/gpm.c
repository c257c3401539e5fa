/* GPM: two samples, and what happened between them. On Hopper and newer, for GPUs and their MIG instances. */
#include <stdlib.h>

#include "library.h"

#define HOPPER 9u
#define SAMPLE_MARK UINT64_C(0x53494d47504d534d)

struct nvmlGpmSample_st {
    uint64_t mark;     /* SAMPLE_MARK: one of ours */
    bool filled;
    uint32_t gpu;
    uint32_t instance; /* NVML's id of the GPU instance; SIM_NONE: the whole GPU */
    uint64_t now_ns, busy_ns, sm_ns;
    uint64_t engine_bytes[3], peer_in_bytes, peer_out_bytes;
};

static bool is_sample(const struct nvmlGpmSample_st *sample) { return sample != NULL && sample->mark == SAMPLE_MARK; }

NVML_EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    READING(call, reading);
    REQUIRE(call, support != NULL);
    if (support->version != 1) /* the one structure whose version is a bare number */
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    return give_u32(&call, &support->supported, reading.info.architecture >= HOPPER);
}

NVML_EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *out)
{
    SYSTEM_CALL(call);
    REQUIRE(call, out != NULL);
    struct nvmlGpmSample_st *sample = calloc(1, sizeof *sample);
    if (sample == NULL)
        return call_end(&call, NVML_ERROR_MEMORY);
    sample->mark = SAMPLE_MARK;
    *out = sample;
    return call_end(&call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    SYSTEM_CALL(call);
    REQUIRE(call, is_sample(sample));
    sample->mark = 0;
    free(sample);
    return call_end(&call, NVML_SUCCESS);
}

/* Of the whole GPU, or of the GPU instance at `row` of its table. */
static nvmlReturn_t take_sample(struct nvml_call *call, uint32_t row, struct nvmlGpmSample_st *sample)
{
    READING((*call), reading);
    REQUIRE((*call), is_sample(sample));
    if (reading.info.architecture < HOPPER)
        return call_end(call, NVML_ERROR_NOT_SUPPORTED);
    *sample = (struct nvmlGpmSample_st){
        .mark = SAMPLE_MARK, .filled = true, .gpu = (uint32_t)call->gpu, .instance = SIM_NONE, /* a row: checked on entry */
        .now_ns = reading.now_ns, .busy_ns = reading.busy_ns, .sm_ns = reading.sm_ns,
        .peer_in_bytes = reading.peer_in_bytes, .peer_out_bytes = reading.peer_out_bytes};
    for (unsigned engine = 0; engine < SIM_ENGINES; engine++)
        sample->engine_bytes[engine] = reading.engine_bytes[engine];
    if (row != SIM_NONE) {
        const struct sim_gpu_instance *instance = &call->machine->gpu[call->gpu].instances[row];
        sample->instance = instance->id;
        sample->busy_ns = instance->busy_ns;
        sample->sm_ns = instance->sm_ns;
    }
    return call_end(call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    return take_sample(&call, call.compute == SIM_NONE ? SIM_NONE : call.machine->gpu[call.gpu].compute[call.compute].instance, sample);
}

NVML_EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned id, nvmlGpmSample_t sample)
{
    DEVICE_CALL(call, device);
    for (uint32_t row = 0; row < SIM_MAX_INSTANCES; row++) {
        const struct sim_gpu_instance *instance = &call.machine->gpu[call.gpu].instances[row];
        if (instance->state != 0 && instance->id == id)
            return take_sample(&call, row, sample);
    }
    return call_end(&call, NVML_ERROR_INVALID_ARGUMENT);
}

/* ---- metrics ---- */

enum metric {
    METRIC_GRAPHICS = 1, METRIC_SM = 2, METRIC_OCCUPANCY = 3,
    METRIC_DRAM = 10,
    METRIC_PCIE_TX = 20, METRIC_PCIE_RX = 21,
    METRIC_NVLINK_RX = 60, METRIC_NVLINK_TX = 61, METRIC_LINK_FIRST = 62, METRIC_LINK_LAST = 97, /* of each link: received, then sent */
    METRIC_LAST = 1000, /* newer headers know more than this library's time; far beyond them a number is no metric */
};

static double share(uint64_t part, uint64_t span) { return part >= span ? 100.0 : 100.0 * (double)part / (double)span; } /* a ratio of counters: rounding is harmless */

/* MiB a second. */
static double rate(uint64_t bytes, uint64_t span) { return (double)bytes / 1048576.0 / ((double)span / 1e9); } /* as above */

/* Of the memory's bandwidth, by what copies move: one inside the GPU reads and writes it, so its rate is half of the bandwidth. */
static double memory_share(const struct sim_gpu_info *info, const struct nvmlGpmSample_st *a, const struct nvmlGpmSample_st *b, uint64_t span)
{
    uint64_t moved = 2 * (b->engine_bytes[SIM_ENGINE_D2D] - a->engine_bytes[SIM_ENGINE_D2D]) + b->engine_bytes[SIM_ENGINE_H2D] - a->engine_bytes[SIM_ENGINE_H2D] +
                     b->engine_bytes[SIM_ENGINE_D2H] - a->engine_bytes[SIM_ENGINE_D2H] + b->peer_in_bytes - a->peer_in_bytes + b->peer_out_bytes - a->peer_out_bytes;
    double possible = 2.0 * (double)info->device_to_device_bytes_per_s * ((double)span / 1e9); /* rounding is harmless */
    return possible <= 0 || (double)moved >= possible ? 100.0 : 100.0 * (double)moved / possible;
}

/* Traffic is spread evenly over the links that are up; false: there is no such link. */
static bool of_link(const struct sim_gpu_info *info, uint32_t link, uint64_t all, uint64_t *bytes)
{
    uint64_t up = 0;
    for (uint32_t i = 0; i < info->link_count; i++)
        up += info->links[i].present != 0 && info->links[i].active != 0;
    if (link >= info->link_count || info->links[link].present == 0)
        return false;
    *bytes = info->links[link].active != 0 ? all / up : 0;
    return true;
}

static void work_out(struct nvml_call *call, const struct nvmlGpmSample_st *a, const struct nvmlGpmSample_st *b, nvmlGpmMetric_t *out)
{
    const uint64_t span = b->now_ns - a->now_ns;
    const struct sim_gpu_info *info = &call->machine->gpu[a->gpu].info;
    out->result = NVML_SUCCESS;
    out->unit = "MiB/s";
    switch (out->metric) {
    case METRIC_GRAPHICS:
        out->short_name = "graphics_util", out->long_name = "graphics utilisation", out->unit = "%";
        out->value = share(b->busy_ns - a->busy_ns, span);
        break;
    case METRIC_SM:
        out->short_name = "sm_util", out->long_name = "SM utilisation", out->unit = "%";
        out->value = share(b->sm_ns - a->sm_ns, span);
        break;
    case METRIC_OCCUPANCY:
        out->short_name = "sm_occupancy", out->long_name = "SM occupancy", out->unit = "%";
        out->value = share(b->sm_ns - a->sm_ns, span);
        break;
    case METRIC_PCIE_TX: /* from the GPU */
        out->short_name = "pcie_tx", out->long_name = "PCIe transmit rate";
        out->value = rate(b->engine_bytes[SIM_ENGINE_D2H] - a->engine_bytes[SIM_ENGINE_D2H], span);
        break;
    case METRIC_PCIE_RX:
        out->short_name = "pcie_rx", out->long_name = "PCIe receive rate";
        out->value = rate(b->engine_bytes[SIM_ENGINE_H2D] - a->engine_bytes[SIM_ENGINE_H2D], span);
        break;
    case METRIC_NVLINK_RX:
        out->short_name = "nvlink_rx", out->long_name = "NVLink receive rate";
        out->value = rate(b->peer_in_bytes - a->peer_in_bytes, span);
        break;
    case METRIC_NVLINK_TX:
        out->short_name = "nvlink_tx", out->long_name = "NVLink transmit rate";
        out->value = rate(b->peer_out_bytes - a->peer_out_bytes, span);
        break;
    case METRIC_DRAM:
        out->short_name = "dram_bw_util", out->long_name = "DRAM bandwidth utilisation", out->unit = "%";
        out->value = memory_share(info, a, b, span);
        break;
    default:
        if (out->metric >= METRIC_LINK_FIRST && out->metric <= METRIC_LINK_LAST) {
            const bool sent = (out->metric - METRIC_LINK_FIRST) % 2 != 0;
            uint64_t all = sent ? b->peer_out_bytes - a->peer_out_bytes : b->peer_in_bytes - a->peer_in_bytes, bytes = 0;
            if (of_link(info, (out->metric - METRIC_LINK_FIRST) / 2, all, &bytes)) {
                out->short_name = sent ? "nvlink_link_tx" : "nvlink_link_rx", out->long_name = sent ? "NVLink transmit rate of a link" : "NVLink receive rate of a link";
                out->value = rate(bytes, span);
                break;
            }
        }
        out->value = 0;
        out->result = out->metric == 0 || out->metric >= METRIC_LAST ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
        break;
    }
    if (call->fault.action == SIM_FAULT_ZERO)
        out->value = 0;
    else if (call->fault.action == SIM_FAULT_VALUE)
        out->value = (double)call->fault.value; /* what the fault asks for */
}

NVML_EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    SYSTEM_CALL(call);
    REQUIRE(call, get != NULL);
    if (get->version != 1) /* a bare number here too */
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    REQUIRE(call, is_sample(get->first) && is_sample(get->second) && get->first->filled && get->second->filled);
    REQUIRE(call, get->first->gpu == get->second->gpu && get->first->instance == get->second->instance);
    REQUIRE(call, get->second->now_ns > get->first->now_ns && get->count <= METRIC_LAST);
    for (unsigned at = 0; at < get->count; at++)
        work_out(&call, get->first, get->second, &get->metrics[at]);
    return call_end(&call, NVML_SUCCESS);
}

/* Streaming is how newer drivers sample in the background; here samples cost nothing. */
NVML_EXPORT nvmlReturn_t nvmlGpmQueryIfStreamingEnabled(nvmlDevice_t device, unsigned *enabled)
{
    DEVICE_CALL(call, device);
    return give_u32(&call, enabled, 0);
}
