/* NVLink: state, generation, abilities and remote end of each link. */
#include <stdio.h>
#include <string.h>

#include "library.h"

#define MOST_LINKS 36u /* of NVML, not of this model: more is a wrong argument, fewer is not supported */

/* The link asked for, or the right refusal. */
static nvmlReturn_t find_link(struct nvml_call *call, struct sim_gpu_reading *reading, unsigned link, const struct sim_link **out)
{
    if (call_read(call, reading) != NVML_SUCCESS)
        return call->result;
    REQUIRE((*call), link < MOST_LINKS);
    if (reading->info.link_count == 0)
        return call_end(call, NVML_ERROR_NOT_SUPPORTED);
    REQUIRE((*call), link < reading->info.link_count && reading->info.links[link].present != 0);
    *out = &reading->info.links[link];
    return NVML_SUCCESS;
}
#define LINK(call, number)          \
    struct sim_gpu_reading reading; \
    const struct sim_link *link = NULL; \
    if (find_link(&call, &reading, number, &link) != NVML_SUCCESS) \
    return call.result

NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned number, unsigned *state)
{
    DEVICE_CALL(call, device);
    LINK(call, number);
    return give_u32(&call, state, link->active);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned number, unsigned *version)
{
    DEVICE_CALL(call, device);
    LINK(call, number);
    return give_u32(&call, version, link->version);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned number, unsigned capability, unsigned *able)
{
    DEVICE_CALL(call, device);
    LINK(call, number);
    const unsigned capabilities = 6;
    REQUIRE(call, capability < capabilities);
    return give_u32(&call, able, link->capabilities >> capability & 1u);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned number, unsigned *type)
{
    DEVICE_CALL(call, device);
    LINK(call, number);
    if (link->active == 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    return give_u32(&call, type, link->remote_type);
}

/* Up to Ampere; newer models have field values instead. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned number, unsigned counter, uint64_t *count)
{
    DEVICE_CALL(call, device);
    LINK(call, number);
    enum { ERROR_REPLAY = 0, ERROR_RECOVERY = 1, ERROR_CRC_FLIT = 2, ERROR_CRC_DATA = 3, ERRORS = 5 };
    const unsigned hopper = 9;
    REQUIRE(call, counter < ERRORS);
    if (reading.info.architecture >= hopper)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    switch (counter) {
    case ERROR_REPLAY:
        return give_u64(&call, count, link->replay_errors);
    case ERROR_RECOVERY:
        return give_u64(&call, count, link->recovery_errors);
    case ERROR_CRC_FLIT:
        return give_u64(&call, count, link->crc_errors);
    case ERROR_CRC_DATA:
        return give_u64(&call, count, 0);
    default:
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    }
}

NVML_EXPORT nvmlReturn_t nvmlDeviceResetNvLinkErrorCounters(nvmlDevice_t device, unsigned number)
{
    DEVICE_CALL(call, device);
    LINK(call, number);
    if (change_begin(&call, &reading) != NVML_SUCCESS)
        return call.result;
    struct sim_link *changed = &reading.info.links[number];
    changed->replay_errors = changed->recovery_errors = changed->crc_errors = 0;
    (void)link;
    return change_end(&call, &reading.info);
}

static nvmlReturn_t give_remote(struct nvml_call *call, unsigned number, nvmlPciInfo_t *out)
{
    LINK((*call), number);
    REQUIRE((*call), out != NULL);
    if (link->active == 0)
        return call_end(call, NVML_ERROR_NOT_SUPPORTED);
    memset(out, 0, sizeof *out);
    if (sscanf(link->remote_bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3)
        return call_end(call, NVML_ERROR_UNKNOWN);
    char short_form[sizeof out->bus_id_legacy];
    snprintf(short_form, sizeof short_form, "%04X:%02X:%02X.0", out->domain & 0xffffu, out->bus & 0xffu, out->device & 0xffu);
    snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%s", call_text(call, short_form));
    snprintf(out->bus_id, sizeof out->bus_id, "%.*s", (int)sizeof out->bus_id - 1, call_text(call, link->remote_bus_id)); /* 32 */
    out->domain = call_further_u32(call, out->domain);
    out->bus = call_further_u32(call, out->bus);
    out->device = call_further_u32(call, out->device);
    out->device_id = call_further_u32(call, link->remote_pci_device_id);
    return call_end(call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned number, nvmlPciInfo_t *out)
{
    DEVICE_CALL(call, device);
    return give_remote(&call, number, out);
}

/* The old form has room for the old structure only. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned number, nvmlPciInfo_v2_t *out)
{
    DEVICE_CALL(call, device);
    REQUIRE(call, out != NULL);
    nvmlPciInfo_t wide;
    if (give_remote(&call, number, &wide) != NVML_SUCCESS)
        return call.result;
    memset(out, 0, sizeof *out);
    memcpy(out->bus_id, wide.bus_id_legacy, sizeof out->bus_id);
    out->domain = wide.domain;
    out->bus = wide.bus;
    out->device = wide.device;
    out->device_id = wide.device_id;
    out->subsystem_id = wide.subsystem_id;
    return call_end(&call, NVML_SUCCESS);
}
