/* What is asked about the machine and not about one GPU. */
#include <stdlib.h>
#include <string.h>

#include "library.h"

NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned room)
{
    SYSTEM_CALL(call);
    return give_text(&call, out, room, call.machine->system.driver_version);
}

/* Needs no initialisation; with no machine at all there is no version to give. */
NVML_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned room)
{
    CALL_FRAME(call);
    struct sim_machine *own = NULL;
    REQUIRE(call, out != NULL);
    if (call_enter_anytime(&call, &own) != NVML_SUCCESS)
        return call.result;
    give_text(&call, out, room, call.machine->system.nvml_version);
    if (own != NULL)
        sim_machine_detach(own);
    return call.result;
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(unsigned *version)
{
    SYSTEM_CALL(call);
    return give_u32(&call, version, call.machine->system.cuda_version);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(unsigned *version)
{
    SYSTEM_CALL(call);
    return give_u32(&call, version, call.machine->system.cuda_version);
}

/* "r580_00" for driver 580.65.06 */
NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_v1_t *info, unsigned room)
{
    SYSTEM_CALL(call);
    REQUIRE(call, info != NULL);
    if (info->version != NVML_STRUCT_VERSION(nvmlSystemDriverBranchInfo_v1_t, 1))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    char branch[sizeof info->branch] = "r";
    const char *version = call.machine->system.driver_version;
    const size_t digits = strspn(version, "0123456789");
    if (digits + sizeof "r_00" > sizeof branch)
        return call_end(&call, NVML_ERROR_UNKNOWN);
    memcpy(branch + 1, version, digits);
    memcpy(branch + 1 + digits, "_00", sizeof "_00");
    return give_text(&call, info->branch, room < sizeof info->branch ? room : sizeof info->branch, branch);
}

/* The name that the process had when it came to the GPU. */
NVML_EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *out, unsigned room)
{
    SYSTEM_CALL(call);
    REQUIRE(call, out != NULL && room > 0);
    uint32_t count = 0;
    struct sim_process_reading *processes = call_processes(&call, SIM_NONE, &count);
    if (processes == NULL)
        return call.result;
    nvmlReturn_t result = call_end(&call, NVML_ERROR_NOT_FOUND);
    for (uint32_t at = 0; at < count; at++) {
        char *name = processes[at].name;
        if (processes[at].pid != (int32_t)pid) /* the kernel's pids are positive and fit */
            continue;
        name[sizeof processes[at].name - 1] = 0;
        if (room < sizeof processes[at].name)
            name[room - 1] = 0; /* the real library cuts long names too */
        result = give_text(&call, out, room, name);
        break;
    }
    free(processes);
    return result;
}

/* GPUs whose ideal CPUs include this one. */
NVML_EXPORT nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *out)
{
    SYSTEM_CALL(call);
    REQUIRE(call, count != NULL && cpu < SIM_AFFINITY_WORDS * 64);
    unsigned found = 0;
    for (unsigned index = 0; index < handle_count(); index++) {
        const nvmlDevice_t device = handle_at(index);
        const struct sim_gpu_info *info = &call.machine->gpu[handle_row(device)].info; /* affinity never changes */
        if ((info->cpu_affinity[cpu / 64] >> (cpu % 64) & 1u) == 0)
            continue;
        if (out != NULL && found < *count)
            out[found] = device;
        found++;
    }
    const bool fits = out == NULL || found <= *count;
    *count = found;
    return call_end(&call, fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}

NVML_EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned *count)
{
    SYSTEM_CALL(call);
    return give_u32(&call, count, 0);
}

/* As it was called up to R450. */
NVML_EXPORT nvmlReturn_t nvmlGetBlacklistDeviceCount(unsigned *count)
{
    SYSTEM_CALL(call);
    return give_u32(&call, count, 0);
}

/* S-class chassis units: no machine has had one for a decade. */
NVML_EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned *count)
{
    SYSTEM_CALL(call);
    return give_u32(&call, count, 0);
}
