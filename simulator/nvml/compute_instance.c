/* Compute instances: parts of a GPU instance, each a MIG device. */
#include "instances.h"

#include <stdio.h>
#include <string.h>

/* A handle is the address of one of these: see library.c. */
struct nvmlComputeInstance_st {
    unsigned char place;
};
static struct nvmlComputeInstance_st rows[SIM_MAX_GPUS][SIM_MAX_INSTANCES];

static const unsigned slices_of_kind[] = {1, 2, 3, 4, 7}; /* NVML numbers the profiles so, and their ids are the same */
#define KINDS (sizeof slices_of_kind / sizeof slices_of_kind[0])
#define MOST_KINDS 9u

static const struct sim_mig_profile *parent_profile(const struct nvml_call *call, uint32_t row)
{
    const struct sim_gpu *gpu = &call->machine->gpu[call->gpu];
    return &gpu->info.mig_profiles[gpu->instances[row].profile];
}

/* The compute slices of a profile; those that exist but are larger than the GPU instance are not supported. */
static nvmlReturn_t find_slices(struct nvml_call *call, uint32_t row, unsigned kind, unsigned *slices)
{
    REQUIRE((*call), kind < MOST_KINDS);
    if (kind >= KINDS || slices_of_kind[kind] > parent_profile(call, row)->compute_slices)
        return call_end(call, NVML_ERROR_NOT_SUPPORTED);
    *slices = slices_of_kind[kind];
    return NVML_SUCCESS;
}
#define SLICES(call, row, kind, slices) \
    unsigned slices = 0;                \
    if (find_slices(&call, row, kind, &slices) != NVML_SUCCESS) \
    return call.result

static unsigned most_of(const struct sim_mig_profile *profile, unsigned slices)
{
    const unsigned step = slices == 1 ? 1 : slices == 2 ? 2 : 4;
    return profile->compute_slices < slices ? 0 : (profile->compute_slices - slices) / step + 1;
}

/* ---- what could be ---- */

static nvmlComputeInstanceProfileInfo_v3_t describe(const struct nvml_call *call, uint32_t row, unsigned kind, unsigned slices)
{
    const struct sim_gpu *gpu = &call->machine->gpu[call->gpu];
    const struct sim_mig_profile *profile = parent_profile(call, row);
    nvmlComputeInstanceProfileInfo_v3_t info = {
        .id = kind, .slices = slices, .instances = most_of(profile, slices),
        .multiprocessors = sim_mig_sm_count(&gpu->info, gpu->instances[row].profile, slices),
        .copy_engines = profile->copy_engines, .decoders = profile->decoders, .encoders = profile->encoders,
        .jpeg = profile->jpegs, .optical_flow = profile->optical_flows};
    if (slices == profile->compute_slices)
        snprintf(info.name, sizeof info.name, "MIG %s", profile->name);
    else
        snprintf(info.name, sizeof info.name, "MIG %uc.%s", slices, profile->name);
    return info;
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned kind, unsigned engines, nvmlComputeInstanceProfileInfo_t *out)
{
    GPU_INSTANCE_CALL(call, instance, row);
    REQUIRE(call, out != NULL && engines == 0); /* engines can only be shared */
    SLICES(call, row, kind, slices);
    const nvmlComputeInstanceProfileInfo_v3_t info = describe(&call, row, kind, slices);
    memcpy(out, &info.id, sizeof *out);
    return call_end(&call, NVML_SUCCESS);
}
_Static_assert(offsetof(nvmlComputeInstanceProfileInfo_v3_t, name) - offsetof(nvmlComputeInstanceProfileInfo_v3_t, id) == sizeof(nvmlComputeInstanceProfileInfo_t),
               "the first version is the middle of the third");

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned kind, unsigned engines, nvmlComputeInstanceProfileInfo_v3_t *out)
{
    GPU_INSTANCE_CALL(call, instance, row);
    REQUIRE(call, out != NULL && engines == 0);
    const unsigned version = out->version;
    const bool third = version == NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v3_t, 3);
    if (!third && version != NVML_STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    SLICES(call, row, kind, slices);
    nvmlComputeInstanceProfileInfo_v3_t info = describe(&call, row, kind, slices);
    info.version = version;
    memcpy(out, &info, third ? sizeof info : sizeof(nvmlComputeInstanceProfileInfo_v2_t)); /* the second ends before the third */
    return call_end(&call, NVML_SUCCESS);
}
_Static_assert(offsetof(nvmlComputeInstanceProfileInfo_v3_t, capabilities) == sizeof(nvmlComputeInstanceProfileInfo_v2_t), "version 3 begins as version 2 does");

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned kind, unsigned *count)
{
    GPU_INSTANCE_CALL(call, instance, row);
    SLICES(call, row, kind, slices);
    return give_u32(&call, count, sim_mig_compute_remaining(call.machine, (uint32_t)call.gpu, row, slices)); /* a row: checked on entry */
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned kind, nvmlPlacement_t *out, unsigned *count)
{
    GPU_INSTANCE_CALL(call, instance, row);
    REQUIRE(call, count != NULL);
    SLICES(call, row, kind, slices);
    const unsigned most = most_of(parent_profile(&call, row), slices), step = slices == 1 ? 1 : slices == 2 ? 2 : 4;
    for (unsigned at = 0; out != NULL && at < most && at < *count; at++)
        out[at] = (nvmlPlacement_t){.start = at * step, .size = slices};
    const bool fits = out == NULL || most <= *count;
    *count = most;
    return call_end(&call, fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}

/* ---- making and ending ---- */

static nvmlReturn_t create(struct nvml_call *call, uint32_t parent, unsigned kind, uint32_t start, nvmlComputeInstance_t *out)
{
    REQUIRE((*call), out != NULL);
    if (check_root(call) != NVML_SUCCESS)
        return call->result;
    SLICES((*call), parent, kind, slices);
    uint32_t row = 0;
    const int status = sim_mig_create_compute(call->machine, (uint32_t)call->gpu, parent, slices, start, &row);
    if (status == SIM_OK)
        *out = &rows[call->gpu][row];
    return call_end_status(call, status);
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned kind, nvmlComputeInstance_t *out)
{
    GPU_INSTANCE_CALL(call, instance, row);
    return create(&call, row, kind, SIM_NONE, out);
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned kind, const nvmlPlacement_t *place, nvmlComputeInstance_t *out)
{
    GPU_INSTANCE_CALL(call, instance, row);
    REQUIRE(call, place != NULL && place->start < SIM_MAX_INSTANCES);
    return create(&call, row, kind, place->start, out);
}

/* As call_enter_device, for a compute instance. */
static nvmlReturn_t enter_compute(struct nvml_call *call, nvmlComputeInstance_t handle, struct sim_mig_device *found)
{
    const uintptr_t first = (uintptr_t)&rows[0][0], at = (uintptr_t)handle;
    const bool ours = at >= first && at < first + sizeof rows && (at - first) % sizeof rows[0][0] == 0;
    const uint32_t number = ours ? (uint32_t)((at - first) / sizeof rows[0][0]) : 0; /* at most 127 */
    if (call_enter_device(call, ours ? handle_of_row(number / SIM_MAX_INSTANCES) : NULL) != NVML_SUCCESS)
        return call->result;
    if (sim_mig_device(call->machine, (uint32_t)call->gpu, number % SIM_MAX_INSTANCES, found) != SIM_OK)
        return call_end(call, NVML_ERROR_INVALID_ARGUMENT);
    return NVML_SUCCESS;
}
#define COMPUTE_CALL(call, handle, found) \
    CALL_FRAME(call);                     \
    struct sim_mig_device found;          \
    if (enter_compute(&call, handle, &found) != NVML_SUCCESS) \
    return call.result

NVML_EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle)
{
    COMPUTE_CALL(call, handle, found);
    if (check_root(&call) != NVML_SUCCESS)
        return call.result;
    return call_end_status(&call, sim_mig_destroy_compute(call.machine, found.gpu, found.compute));
}

/* ---- what is there ---- */

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned kind, nvmlComputeInstance_t *out, unsigned *count)
{
    GPU_INSTANCE_CALL(call, instance, row);
    REQUIRE(call, out != NULL && count != NULL);
    SLICES(call, row, kind, slices);
    unsigned found = 0;
    sim_gpu_advance(call.machine, (uint32_t)call.gpu);
    for (uint32_t at = 0; at < SIM_MAX_INSTANCES; at++) {
        const struct sim_compute_instance *compute = &call.machine->gpu[call.gpu].compute[at];
        if (compute->state != 0 && compute->instance == row && compute->slices == slices)
            out[found++] = &rows[call.gpu][at];
    }
    *count = found;
    return call_end(&call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out)
{
    GPU_INSTANCE_CALL(call, instance, row);
    REQUIRE(call, out != NULL);
    for (uint32_t at = 0; at < SIM_MAX_INSTANCES; at++) {
        const struct sim_compute_instance *compute = &call.machine->gpu[call.gpu].compute[at];
        if (compute->state != 0 && compute->instance == row && compute->id == id) {
            *out = &rows[call.gpu][at];
            return call_end(&call, NVML_SUCCESS);
        }
    }
    return call_end(&call, NVML_ERROR_NOT_FOUND);
}

static nvmlReturn_t give_info(struct nvml_call *call, const struct sim_mig_device *found, nvmlComputeInstanceInfo_t *out)
{
    const struct sim_compute_instance *compute = &call->machine->gpu[found->gpu].compute[found->compute];
    *out = (nvmlComputeInstanceInfo_t){
        .device = handle_of_row(found->gpu),
        .instance = gpu_instance_handle(found->gpu, compute->instance),
        .id = compute->id,
        .profile = compute->kind,
        .placement = {.start = compute->start, .size = compute->slices},
    };
    return call_end(call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *out)
{
    COMPUTE_CALL(call, handle, found);
    REQUIRE(call, out != NULL);
    return give_info(&call, &found, out);
}

/* The old form ends before the placement. */
NVML_EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_v1_t *out)
{
    COMPUTE_CALL(call, handle, found);
    REQUIRE(call, out != NULL);
    nvmlComputeInstanceInfo_t wide;
    give_info(&call, &found, &wide);
    memcpy(out, &wide, sizeof *out);
    return call.result;
}
_Static_assert(offsetof(nvmlComputeInstanceInfo_t, placement) == sizeof(nvmlComputeInstanceInfo_v1_t), "the new form begins as the old one does");
