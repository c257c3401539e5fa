/* Who a GPU is: names, numbers, addresses, capabilities. Nothing here changes while a machine lives. */
#include <stdio.h>
#include <string.h>

#include "library.h"

/* A text that this model may not have. */
static nvmlReturn_t give_optional_text(struct nvml_call *call, char *out, unsigned room, const char *text)
{
    return text[0] == 0 ? call_end(call, NVML_ERROR_NOT_SUPPORTED) : give_text(call, out, room, text);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned room)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    READING(call, reading);
    return give_text(&call, out, room, call.compute == SIM_NONE ? reading.info.name : instance.name);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned room)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    READING(call, reading);
    return give_text(&call, out, room, call.compute == SIM_NONE ? reading.info.uuid : instance.uuid);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *out, unsigned room)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_optional_text(&call, out, room, reading.info.serial);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *out, unsigned room)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_optional_text(&call, out, room, reading.info.board_part_number);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *out, unsigned room)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_text(&call, out, room, reading.info.vbios_version);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    return give_u32(&call, index, call.compute == SIM_NONE ? handle_index(device) : instance.compute);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, minor, reading.info.minor);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned *module)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, module, reading.info.module_id);
}

/* One GPU a board: the bus address is as good a board number as the driver's. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned *board)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, board, reading.info.pci_domain << 16 | reading.info.pci_bus << 8 | reading.info.pci_device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned *multiple)
{
    DEVICE_CALL(call, device);
    return give_u32(&call, multiple, 0);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned *brand)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    READING(call, reading);
    return give_u32(&call, brand, reading.info.brand);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    READING(call, reading);
    return give_u32(&call, architecture, reading.info.architecture);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    READING(call, reading);
    REQUIRE(call, major != NULL && minor != NULL);
    *major = (int)call_u32(&call, reading.info.cc_major); /* a digit or two */
    *minor = (int)call_u32(&call, reading.info.cc_minor);
    return call_end(&call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned *cores)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, cores, reading.info.cuda_cores);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned *bits)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, bits, reading.info.memory_bus_bits);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetBusType(nvmlDevice_t device, unsigned *type)
{
    DEVICE_CALL(call, device);
    const unsigned pci_express = 2;
    return give_u32(&call, type, pci_express);
}

/* Attributes of a slice of a GPU: a whole GPU has none. */
static nvmlReturn_t give_attributes(struct nvml_call *call, const struct sim_mig_device *instance, nvmlDeviceAttributes_t *attributes)
{
    REQUIRE((*call), attributes != NULL);
    if (call->compute == SIM_NONE)
        return call_end(call, NVML_ERROR_NOT_SUPPORTED);
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessors = call_u32(call, instance->sm_count),
        .copy_engines = instance->profile.copy_engines,
        .decoders = instance->profile.decoders,
        .encoders = instance->profile.encoders,
        .jpeg = instance->profile.jpegs,
        .optical_flow = instance->profile.optical_flows,
        .gpu_slices = instance->gpu_slices,
        .compute_slices = instance->compute_slices,
        .memory_mib = instance->memory_bytes >> 20,
    };
    return call_end(call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    return give_attributes(&call, &instance, attributes);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    return give_attributes(&call, &instance, attributes);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
    DEVICE_CALL(call, device);
    REQUIRE(call, mode != NULL);
    if (mode->version != NVML_STRUCT_VERSION(nvmlDeviceAddressingMode_t, 1))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    return give_u32(&call, &mode->value, 0); /* none: neither HMM nor ATS */
}

/* ---- PCI address ---- */

static nvmlReturn_t give_pci_v3(struct nvml_call *call, nvmlPciInfo_t *out)
{
    READING((*call), reading);
    REQUIRE((*call), out != NULL);
    memset(out, 0, sizeof *out);
    out->domain = call_further_u32(call, reading.info.pci_domain);
    out->bus = call_further_u32(call, reading.info.pci_bus);
    out->device = call_further_u32(call, reading.info.pci_device);
    out->device_id = call_further_u32(call, reading.info.pci_device_id);
    out->subsystem_id = call_further_u32(call, reading.info.pci_subsystem_id);
    bus_id_text(call, out->bus_id_legacy, sizeof out->bus_id_legacy, 4, &reading.info);
    bus_id_text(call, out->bus_id, sizeof out->bus_id, 8, &reading.info);
    return call_end(call, NVML_SUCCESS);
}

static nvmlReturn_t give_pci_v2(struct nvml_call *call, nvmlPciInfo_v2_t *out)
{
    READING((*call), reading);
    REQUIRE((*call), out != NULL);
    memset(out, 0, sizeof *out);
    out->domain = call_further_u32(call, reading.info.pci_domain);
    out->bus = call_further_u32(call, reading.info.pci_bus);
    out->device = call_further_u32(call, reading.info.pci_device);
    out->device_id = call_further_u32(call, reading.info.pci_device_id);
    out->subsystem_id = call_further_u32(call, reading.info.pci_subsystem_id);
    bus_id_text(call, out->bus_id, sizeof out->bus_id, 4, &reading.info);
    return call_end(call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *out)
{
    DEVICE_CALL(call, device);
    return give_pci_v2(&call, out);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *out)
{
    DEVICE_CALL(call, device);
    return give_pci_v2(&call, out);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    DEVICE_CALL(call, device);
    return give_pci_v3(&call, out);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *out)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, out != NULL);
    if (out->version != NVML_STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    out->domain = call_further_u32(&call, reading.info.pci_domain);
    out->bus = call_further_u32(&call, reading.info.pci_bus);
    out->device = call_further_u32(&call, reading.info.pci_device);
    out->device_id = call_further_u32(&call, reading.info.pci_device_id);
    out->subsystem_id = call_further_u32(&call, reading.info.pci_subsystem_id);
    out->base_class = 3; /* display controller … */
    out->sub_class = 2;  /* … of the 3D kind */
    bus_id_text(&call, out->bus_id, sizeof out->bus_id, 8, &reading.info);
    return call_end(&call, NVML_SUCCESS);
}
