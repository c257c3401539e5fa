/* Limits on the device memory of control groups (driver 615 and newer), with the driver's own accounting. */
#include "library.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { FIRST_BRANCH = 615 };

/* A directory of the hierarchy by its full path; anything else is not found. */
static nvmlReturn_t check_group(struct nvml_call *call, const char *group)
{
    char file[4096];
    if (atoi(call->machine->system.driver_version) < FIRST_BRANCH)
        return call_end(call, NVML_ERROR_FUNCTION_NOT_FOUND);
    if (!group || group[0] != '/' || snprintf(file, sizeof file, "%s/cgroup.procs", group) >= (int)sizeof file) /* a small constant */
        return call_end(call, NVML_ERROR_INVALID_ARGUMENT);
    return access(file, F_OK) == 0 ? NVML_SUCCESS : call_end(call, NVML_ERROR_NOT_FOUND);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
    DEVICE_CALL(call, device);
    struct sim_gpu_reading reading;
    REQUIRE(call, limits != NULL && limits->softLimit <= limits->hardLimit);
    if (check_group(&call, limits->nameSpace) != NVML_SUCCESS || change_begin(&call, &reading) != NVML_SUCCESS)
        return call.result;
    const int status = sim_memory_limit_set(call.machine, (uint32_t)call.gpu, limits->nameSpace, limits->softLimit, limits->hardLimit); /* a row: checked on entry */
    return status == SIM_NOT_FOUND ? call_end(&call, NVML_ERROR_NOT_FOUND) : call_end_status(&call, status);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    DEVICE_CALL(call, device);
    uint64_t soft, hard, held;
    REQUIRE(call, limits != NULL);
    if (check_group(&call, limits->nameSpace) != NVML_SUCCESS)
        return call.result;
    const int status = sim_memory_limit_get(call.machine, (uint32_t)call.gpu, limits->nameSpace, &soft, &hard, &held); /* likewise */
    if (status != SIM_OK)
        return call_end(&call, NVML_ERROR_NOT_FOUND);
    limits->softLimit = call_further_u64(&call, soft);
    limits->hardLimit = call_u64(&call, hard);
    limits->currentUsed = call_further_u64(&call, held);
    return call_end(&call, NVML_SUCCESS);
}
