/* Counting GPUs and finding their handles. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "library.h"

static nvmlReturn_t give_count(struct nvml_call *call, unsigned *count)
{
    return give_u32(call, count, handle_count());
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    SYSTEM_CALL(call);
    return give_count(&call, count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    SYSTEM_CALL(call);
    return give_count(&call, count);
}

/* A handle is given only for a GPU that answers: the real library initialises it on the way, which may
 * fail for this one and work for the others. */
static nvmlReturn_t give_handle(struct nvml_call *call, nvmlDevice_t *out, nvmlDevice_t device)
{
    call->gpu = handle_row(device);
    if (call_serve_fault(call) != NVML_SUCCESS)
        return call->result;
    READING((*call), reading);
    if (reading.lost != 0 || reading.vanished != 0)
        return call_end(call, NVML_ERROR_GPU_IS_LOST);
    *out = device;
    return call_end(call, NVML_SUCCESS);
}

/* A lookup that ends without a GPU still serves the faults that name none. */
static nvmlReturn_t refuse_lookup(struct nvml_call *call, nvmlReturn_t why)
{
    return call_serve_fault(call) != NVML_SUCCESS ? call->result : call_end(call, why);
}

static nvmlReturn_t handle_by_index(struct nvml_call *call, unsigned index, nvmlDevice_t *out)
{
    if (out == NULL || handle_at(index) == NULL)
        return refuse_lookup(call, NVML_ERROR_INVALID_ARGUMENT);
    return give_handle(call, out, handle_at(index));
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *out)
{
    LOOKUP_CALL(call);
    return handle_by_index(&call, index, out);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out)
{
    LOOKUP_CALL(call);
    return handle_by_index(&call, index, out);
}

typedef bool (*matches_t)(const struct sim_gpu_info *info, const void *wanted);

/* Identity never changes after the machine was made, so it is read without the GPU's lock. */
static nvmlReturn_t handle_where(struct nvml_call *call, matches_t matches, const void *wanted, nvmlDevice_t *out)
{
    if (wanted == NULL || out == NULL)
        return refuse_lookup(call, NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned index = 0; index < handle_count(); index++) {
        const nvmlDevice_t device = handle_at(index);
        if (matches(&call->machine->gpu[handle_row(device)].info, wanted))
            return give_handle(call, out, device);
    }
    return refuse_lookup(call, NVML_ERROR_NOT_FOUND);
}

static bool uuid_text_is(const struct sim_gpu_info *info, const void *wanted)
{
    return strcasecmp(info->uuid, wanted) == 0;
}

static bool uuid_bytes_are(const struct sim_gpu_info *info, const void *wanted)
{
    return memcmp(info->uuid_bytes, wanted, sizeof info->uuid_bytes) == 0;
}

static bool serial_is(const struct sim_gpu_info *info, const void *wanted)
{
    return info->serial[0] != 0 && strcmp(info->serial, wanted) == 0;
}

/* The MIG device of this UUID: "MIG-<uuid>", or as it was written before R470, "MIG-GPU-<uuid>/<gi>/<ci>". */
static nvmlDevice_t instance_of_uuid(struct nvml_call *call, const char *uuid)
{
    for (unsigned index = 0; index < handle_count(); index++) {
        const uint32_t gpu = (uint32_t)handle_row(handle_at(index)); /* of a handle of ours: not negative */
        for (uint32_t row = 0; row < SIM_MAX_INSTANCES; row++) {
            struct sim_mig_device device;
            char old[96];
            if (sim_mig_device(call->machine, gpu, row, &device) != SIM_OK)
                continue;
            snprintf(old, sizeof old, "MIG-%s/%u/%u", call->machine->gpu[gpu].info.uuid, device.gpu_instance_id, device.compute_instance_id);
            if (strcasecmp(uuid, device.uuid) == 0 || strcasecmp(uuid, old) == 0)
                return handle_of_instance(gpu, row);
        }
    }
    return NULL;
}

static nvmlReturn_t handle_by_uuid(struct nvml_call *call, const char *uuid, nvmlDevice_t *out)
{
    if (uuid == NULL || out == NULL || strncasecmp(uuid, "MIG-", 4) != 0)
        return handle_where(call, uuid_text_is, uuid, out);
    if (call_serve_fault(call) != NVML_SUCCESS)
        return call->result;
    const nvmlDevice_t device = instance_of_uuid(call, uuid);
    if (device == NULL)
        return call_end(call, NVML_ERROR_NOT_FOUND);
    *out = device;
    return call_end(call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
    LOOKUP_CALL(call);
    return handle_by_uuid(&call, uuid, out);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *out)
{
    LOOKUP_CALL(call);
    REQUIRE(call, uuid != NULL);
    enum { ASCII = 1, BINARY = 2 };
    if (uuid->version != NVML_STRUCT_VERSION(nvmlUUID_t, 1) && uuid->version != 0)
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH); /* 0: what nvidia-ml-py 13 sends */
    if (uuid->type == ASCII)
        return handle_by_uuid(&call, uuid->value.text, out);
    REQUIRE(call, uuid->type == BINARY);
    return handle_where(&call, uuid_bytes_are, uuid->value.bytes, out);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out)
{
    LOOKUP_CALL(call);
    return handle_where(&call, serial_is, serial, out);
}

struct bus_address {
    unsigned domain, bus, device;
};

static bool bus_address_is(const struct sim_gpu_info *info, const void *wanted)
{
    const struct bus_address *address = wanted;
    return info->pci_domain == address->domain && info->pci_bus == address->bus && info->pci_device == address->device;
}

/* Accepts every spelling in use: domain of 4 or 8 digits or none, function or none, either case. */
static nvmlReturn_t handle_by_bus(struct nvml_call *call, const char *text, nvmlDevice_t *out)
{
    REQUIRE((*call), text != NULL);
    struct bus_address address = {0, 0, 0};
    unsigned function = 0;
    int used = 0;
    if (sscanf(text, "%x:%x:%x%n.%u%n", &address.domain, &address.bus, &address.device, &used, &function, &used) < 3) {
        address.domain = 0;
        used = 0;
        const int fields = sscanf(text, "%x:%x%n.%u%n", &address.bus, &address.device, &used, &function, &used);
        REQUIRE((*call), fields >= 2);
    }
    REQUIRE((*call), text[used] == 0 && function == 0);
    return handle_where(call, bus_address_is, &address, out);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *out)
{
    LOOKUP_CALL(call);
    return handle_by_bus(&call, text, out);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *out)
{
    LOOKUP_CALL(call);
    return handle_by_bus(&call, text, out);
}
