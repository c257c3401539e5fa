/* How GPUs hang together: common ancestors, peer access, NUMA affinity. */
#include <string.h>

#include "library.h"

/* Calls about two GPUs: the second must be ours and answer too. */
static nvmlReturn_t check_other(struct nvml_call *call, nvmlDevice_t other, uint32_t *row)
{
    const int32_t found = handle_row(other);
    REQUIRE((*call), found >= 0);
    *row = (uint32_t)found; /* not negative: just checked */
    const struct sim_gpu *gpu = &call->machine->gpu[found];
    /* relaxed: either answer is right for a GPU that is being lost now */
    if (__atomic_load_n(&gpu->lost, __ATOMIC_RELAXED) != 0 || __atomic_load_n(&gpu->vanished, __ATOMIC_RELAXED) != 0)
        return call_end(call, NVML_ERROR_GPU_IS_LOST);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, unsigned *level)
{
    DEVICE_CALL(call, device);
    uint32_t row = 0;
    if (check_other(&call, other, &row) != NVML_SUCCESS)
        return call.result;
    return give_u32(&call, level, call.machine->topology.ancestor[call.gpu][row]);
}

/* The other GPUs whose common ancestor is of exactly this level. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count, nvmlDevice_t *out)
{
    DEVICE_CALL(call, device);
    REQUIRE(call, count != NULL);
    unsigned found = 0;
    for (unsigned index = 0; index < handle_count(); index++) {
        const nvmlDevice_t other = handle_at(index);
        if (other == device || call.machine->topology.ancestor[call.gpu][handle_row(other)] != level)
            continue;
        if (out != NULL && found < *count)
            out[found] = other;
        found++;
    }
    const bool fits = out == NULL || found <= *count;
    *count = found;
    return call_end(&call, fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, unsigned capability, unsigned *status)
{
    DEVICE_CALL(call, device);
    uint32_t row = 0;
    if (check_other(&call, other, &row) != NVML_SUCCESS)
        return call.result;
    REQUIRE(call, capability < SIM_P2P_CAPABILITIES);
    return give_u32(&call, status, call.machine->topology.p2p_status[capability][call.gpu][row]);
}

/* One GPU a board. */
NVML_EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device, nvmlDevice_t other, int *same)
{
    DEVICE_CALL(call, device);
    uint32_t row = 0;
    if (check_other(&call, other, &row) != NVML_SUCCESS)
        return call.result;
    REQUIRE(call, same != NULL);
    *same = device == other;
    return call_end(&call, NVML_SUCCESS);
}

/* ---- NUMA ---- */

/* Copies a bitmap into `room` words; the caller's words beyond ours are zero. */
static nvmlReturn_t give_bitmap(struct nvml_call *call, const uint64_t *bits, unsigned words, unsigned room, unsigned long *out)
{
    REQUIRE((*call), out != NULL && room > 0);
    for (unsigned word = 0; word < words; word++)
        if (bits[word] != 0 && word >= room)
            return call_end(call, NVML_ERROR_INSUFFICIENT_SIZE);
    memset(out, 0, room * sizeof *out);
    for (unsigned word = 0; word < words && word < room; word++)
        out[word] = call_u64(call, bits[word]);
    return call_end(call, NVML_SUCCESS);
}
_Static_assert(sizeof(unsigned long) == sizeof(uint64_t), "NVML gives bitmaps as unsigned long");

static nvmlReturn_t give_cpus(struct nvml_call *call, unsigned room, unsigned long *out)
{
    READING((*call), reading);
    return give_bitmap(call, reading.info.cpu_affinity, SIM_AFFINITY_WORDS, room, out);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned room, unsigned long *out)
{
    DEVICE_CALL(call, device);
    return give_cpus(&call, room, out);
}

/* Scopes: 0 the NUMA node, 1 the socket; one node a socket here. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned room, unsigned long *out, unsigned scope)
{
    DEVICE_CALL(call, device);
    REQUIRE(call, scope <= 1);
    return give_cpus(&call, room, out);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned room, unsigned long *out, unsigned scope)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, scope <= 1);
    return give_bitmap(&call, &reading.info.memory_affinity, 1, room, out);
}

/* Only for GPUs whose own memory is a NUMA node of the host. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node)
{
    DEVICE_CALL(call, device);
    REQUIRE(call, node != NULL);
    return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
}
