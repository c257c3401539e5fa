/* GPU instances: profiles, where they may lie, creation and destruction. */
#include "instances.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A handle is the address of one of these: see library.c. */
struct nvmlGpuInstance_st {
    unsigned char place;
};
static struct nvmlGpuInstance_st rows[SIM_MAX_GPUS][SIM_MAX_INSTANCES];

nvmlGpuInstance_t gpu_instance_handle(uint32_t gpu, uint32_t row)
{
    return &rows[gpu][row];
}

nvmlReturn_t call_enter_gpu_instance(struct nvml_call *call, nvmlGpuInstance_t handle, uint32_t *row)
{
    const uintptr_t first = (uintptr_t)&rows[0][0], at = (uintptr_t)handle;
    const bool ours = at >= first && at < first + sizeof rows && (at - first) % sizeof rows[0][0] == 0;
    const uint32_t number = ours ? (uint32_t)((at - first) / sizeof rows[0][0]) : 0; /* at most 127 */
    if (call_enter_device(call, ours ? handle_of_row(number / SIM_MAX_INSTANCES) : NULL) != NVML_SUCCESS)
        return call->result;
    *row = number % SIM_MAX_INSTANCES;
    /* relaxed: an instance that is being destroyed now may be met or not */
    if (__atomic_load_n(&call->machine->gpu[call->gpu].instances[*row].state, __ATOMIC_RELAXED) == 0)
        return call_end(call, NVML_ERROR_INVALID_ARGUMENT);
    return NVML_SUCCESS;
}

nvmlReturn_t check_root(struct nvml_call *call)
{
    return geteuid() == 0 ? NVML_SUCCESS : call_end(call, NVML_ERROR_NO_PERMISSION);
}

#define PROFILE_KINDS 18u
enum key { BY_KIND, BY_ID }; /* NVML's constant, or the number that profiles and instances carry */

/* The profile's place in the model's table. Kinds that exist but not on this model are not supported. */
static nvmlReturn_t find_profile(struct nvml_call *call, enum key key, unsigned wanted, uint32_t *which)
{
    const struct sim_gpu_info *info = &call->machine->gpu[call->gpu].info; /* the table never changes */
    if (info->mig_supported == 0)
        return call_end(call, NVML_ERROR_NOT_SUPPORTED);
    for (uint32_t at = 0; at < info->mig_profile_count; at++)
        if ((key == BY_KIND ? info->mig_profiles[at].kind : info->mig_profiles[at].id) == wanted) {
            *which = at;
            return NVML_SUCCESS;
        }
    return call_end(call, key == BY_KIND && wanted < PROFILE_KINDS ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT);
}
#define PROFILE(call, key, wanted, which) \
    uint32_t which = 0;                   \
    if (find_profile(&call, key, wanted, &which) != NVML_SUCCESS) \
    return call.result

static const struct sim_mig_profile *profile_at(const struct nvml_call *call, uint32_t which)
{
    return &call->machine->gpu[call->gpu].info.mig_profiles[which];
}

/* ---- what could be ---- */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned kind, nvmlGpuInstanceProfileInfo_t *out)
{
    DEVICE_CALL(call, device);
    REQUIRE(call, out != NULL);
    PROFILE(call, BY_KIND, kind, which);
    const struct sim_mig_profile *profile = profile_at(&call, which);
    *out = (nvmlGpuInstanceProfileInfo_t){
        .id = profile->id, .slices = profile->compute_slices, .instances = profile->most,
        .multiprocessors = profile->sm_count, .copy_engines = profile->copy_engines, .decoders = profile->decoders,
        .encoders = profile->encoders, .jpeg = profile->jpegs, .optical_flow = profile->optical_flows,
        .memory_mib = profile->memory_bytes >> 20};
    return call_end(&call, NVML_SUCCESS);
}

/* Two versions of one size: the third has no word for peers and ends with one of capabilities. */
static nvmlReturn_t give_profile(struct nvml_call *call, const struct sim_mig_profile *profile, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    if (out->version == NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2)) {
        *out = (nvmlGpuInstanceProfileInfo_v2_t){
            .version = out->version, .id = profile->id, .slices = profile->compute_slices, .instances = profile->most,
            .multiprocessors = profile->sm_count, .copy_engines = profile->copy_engines, .decoders = profile->decoders,
            .encoders = profile->encoders, .jpeg = profile->jpegs, .optical_flow = profile->optical_flows,
            .memory_mib = profile->memory_bytes >> 20};
        snprintf(out->name, sizeof out->name, "MIG %s", profile->name);
        return call_end(call, NVML_SUCCESS);
    }
    if (out->version != NVML_STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v3_t, 3))
        return call_end(call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    const bool media = strstr(profile->name, "+me") != NULL;
    nvmlGpuInstanceProfileInfo_v3_t third = {
        .version = out->version, .id = profile->id, .slices = profile->compute_slices, .instances = profile->most,
        .multiprocessors = profile->sm_count, .copy_engines = profile->copy_engines, .decoders = profile->decoders,
        .encoders = profile->encoders, .jpeg = profile->jpegs, .optical_flow = profile->optical_flows,
        .memory_mib = profile->memory_bytes >> 20, .capabilities = media ? 4 : 0}; /* bit 2: media extensions */
    snprintf(third.name, sizeof third.name, "MIG %s", profile->name);
    memcpy(out, &third, sizeof third);
    return call_end(call, NVML_SUCCESS);
}
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v2_t) == sizeof(nvmlGpuInstanceProfileInfo_v3_t), "one is written over the other");

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned kind, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    DEVICE_CALL(call, device);
    REQUIRE(call, out != NULL);
    PROFILE(call, BY_KIND, kind, which);
    return give_profile(&call, profile_at(&call, which), out);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned id, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    DEVICE_CALL(call, device);
    REQUIRE(call, out != NULL);
    PROFILE(call, BY_ID, id, which);
    return give_profile(&call, profile_at(&call, which), out);
}

/* All places that a profile may take, whether they are taken now or not. */
static nvmlReturn_t give_placements(struct nvml_call *call, unsigned id, nvmlPlacement_t *out, unsigned *count)
{
    REQUIRE((*call), count != NULL);
    PROFILE((*call), BY_ID, id, which);
    const struct sim_mig_profile *profile = profile_at(call, which);
    unsigned found = 0;
    for (unsigned start = 0; start < SIM_MAX_INSTANCES; start++) {
        if ((profile->starts >> start & 1u) == 0)
            continue;
        if (out != NULL && found < *count)
            out[found] = (nvmlPlacement_t){.start = start, .size = profile->memory_slices};
        found++;
    }
    const bool fits = out == NULL || found <= *count;
    *count = found;
    return call_end(call, fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned id, nvmlPlacement_t *out, unsigned *count)
{
    DEVICE_CALL(call, device);
    return give_placements(&call, id, out, count);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id, nvmlPlacement_t *out, unsigned *count)
{
    DEVICE_CALL(call, device);
    return give_placements(&call, id, out, count);
}

static nvmlReturn_t check_mode(struct nvml_call *call)
{
    READING((*call), reading);
    return reading.info.mig_mode == 0 ? call_end(call, NVML_ERROR_NOT_SUPPORTED) : NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id, unsigned *count)
{
    DEVICE_CALL(call, device);
    PROFILE(call, BY_ID, id, which); /* with MIG off there is room for none, which is no error */
    return give_u32(&call, count, sim_mig_remaining(call.machine, (uint32_t)call.gpu, which)); /* a row: checked on entry */
}

/* ---- making and ending ---- */

static nvmlReturn_t create(struct nvml_call *call, unsigned id, uint32_t start, nvmlGpuInstance_t *out)
{
    REQUIRE((*call), out != NULL);
    if (check_root(call) != NVML_SUCCESS || check_mode(call) != NVML_SUCCESS)
        return call->result;
    PROFILE((*call), BY_ID, id, which);
    uint32_t row = 0;
    const int status = sim_mig_create(call->machine, (uint32_t)call->gpu, which, start, &row);
    if (status == SIM_OK)
        *out = gpu_instance_handle((uint32_t)call->gpu, row);
    return call_end_status(call, status);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
    DEVICE_CALL(call, device);
    return create(&call, id, SIM_NONE, out);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned id, const nvmlPlacement_t *place, nvmlGpuInstance_t *out)
{
    DEVICE_CALL(call, device);
    REQUIRE(call, place != NULL && place->start < SIM_MAX_INSTANCES);
    return create(&call, id, place->start, out);
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    GPU_INSTANCE_CALL(call, instance, row);
    if (check_root(&call) != NVML_SUCCESS)
        return call.result;
    return call_end_status(&call, sim_mig_destroy(call.machine, (uint32_t)call.gpu, row));
}

/* ---- what is there ---- */

/* The caller's room is as large as the profile's number of instances. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out, unsigned *count)
{
    DEVICE_CALL(call, device);
    REQUIRE(call, out != NULL && count != NULL);
    if (check_mode(&call) != NVML_SUCCESS)
        return call.result;
    PROFILE(call, BY_ID, id, which);
    unsigned found = 0;
    sim_gpu_advance(call.machine, (uint32_t)call.gpu);
    for (uint32_t row = 0; row < SIM_MAX_INSTANCES; row++) {
        const struct sim_gpu_instance *instance = &call.machine->gpu[call.gpu].instances[row];
        if (instance->state != 0 && instance->profile == which)
            out[found++] = gpu_instance_handle((uint32_t)call.gpu, row);
    }
    *count = found;
    return call_end(&call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
    DEVICE_CALL(call, device);
    REQUIRE(call, out != NULL);
    if (check_mode(&call) != NVML_SUCCESS)
        return call.result;
    for (uint32_t row = 0; row < SIM_MAX_INSTANCES; row++) {
        const struct sim_gpu_instance *instance = &call.machine->gpu[call.gpu].instances[row];
        if (instance->state != 0 && instance->id == id) {
            *out = gpu_instance_handle((uint32_t)call.gpu, row);
            return call_end(&call, NVML_SUCCESS);
        }
    }
    return call_end(&call, NVML_ERROR_NOT_FOUND);
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *out)
{
    GPU_INSTANCE_CALL(call, handle, row);
    REQUIRE(call, out != NULL);
    const struct sim_gpu_instance *instance = &call.machine->gpu[call.gpu].instances[row];
    const struct sim_mig_profile *profile = profile_at(&call, instance->profile);
    *out = (nvmlGpuInstanceInfo_t){
        .device = handle_of_row((uint32_t)call.gpu),
        .id = instance->id,
        .profile = profile->id,
        .placement = {.start = instance->start, .size = profile->memory_slices},
    };
    return call_end(&call, NVML_SUCCESS);
}
