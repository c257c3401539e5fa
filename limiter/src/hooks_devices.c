/*
 * Which devices the program sees. Numbers are never changed: CUDA_VISIBLE_DEVICES,
 * NVML and programs that take a number for a device all have to mean the same
 * one. So what is hidden are the devices behind the last one of the Pod; one
 * before it is there and has no memory.
 */
#include "driver.h"
#include "files.h"
#include "memory.h"

#define MOST_INSTANCES 32 /* of a GPU; more than NVML has anywhere */
#define MOST_GPUS 64      /* of a machine, in a list of neighbours; a longer one is passed as it is */

/* Called before they are defined. */
int hv_cuDeviceGetCount(int *count);
int hv_nvmlDeviceGetCount(unsigned int *count);
int hv_nvmlDeviceGetCount_v2(unsigned int *count);
int hv_nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t gpu, unsigned int index, nvmlDevice_t *instance);

/* Only where this library is what limits; elsewhere other devices are the Pod's too. */
static bool hides_devices(void)
{
    struct hv_device_terms terms;
    return hv_attach() == HV_ATTACH_DONE && hv_terms_read(hv_files(), 0, &terms) &&
           terms.isolation_mode == HV_ISOLATION_SOFT;
}

/* ---- CUDA ---- */

/* How many of the driver's devices there are up to the Pod's last one. */
static int visible(int count)
{
    CUresult refused;
    struct hv_process *process = hides_devices() ? hv_limited_process(&refused) : NULL;
    if (process == NULL)
        return count;
    while (count > 0 && hv_process_device(process, count - 1) == HV_MAX_DEVICES)
        count--;
    return count;
}

static int driver_count(void)
{
    int count = 0;
    return HV_REAL(cuDeviceGetCount)(&count) == CUDA_SUCCESS ? count : 0;
}

HV_WRAP(cuDeviceGetCount, (int *count))
{
    CUresult result = HV_REAL(cuDeviceGetCount)(count);
    if (result == CUDA_SUCCESS && count != NULL)
        *count = visible(*count);
    return result;
}

HV_WRAP(cuDeviceGet, (CUdevice * device, int ordinal))
{
    CUresult result = HV_REAL(cuDeviceGet)(device, ordinal);
    if (result == CUDA_SUCCESS && ordinal >= visible(driver_count()))
        return CUDA_ERROR_INVALID_DEVICE;
    return result;
}

HV_WRAP(cuDeviceGetByPCIBusId, (CUdevice * device, const char *bus_id))
{
    CUresult result = HV_REAL(cuDeviceGetByPCIBusId)(device, bus_id);
    if (result == CUDA_SUCCESS && device != NULL && *device >= visible(driver_count()))
        return CUDA_ERROR_INVALID_DEVICE;
    return result;
}

/* ---- NVML, which has its own order ---- */

static bool is_in_the_file(nvmlDevice_t device)
{
    char uuid[NVML_UUID_BYTES];
    hv_call_type_nvmlDeviceGetUUID ask = HV_DRIVER(nvmlDeviceGetUUID);
    return ask == NULL || ask(device, uuid, sizeof uuid) != NVML_SUCCESS ||
           hv_device_by_uuid_text(hv_files(), uuid) != HV_MAX_DEVICES;
}

static bool owns_instances(void)
{
    struct hv_device_terms terms;
    for (uint32_t device = 0; device < HV_MAX_DEVICES && hv_terms_read(hv_files(), device, &terms); device++)
        if ((terms.flags & HV_DEVICE_MIG) != 0)
            return true;
    return false;
}

/* Has a GPU instances of the Pod's, from this index on? There may be holes between them. */
static bool has_instance_of_the_pod(nvmlDevice_t gpu, unsigned int from)
{
    nvmlDevice_t instance;
    int result = owns_instances() ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    for (unsigned int index = from; result == NVML_SUCCESS || result == NVML_ERROR_NOT_FOUND; index++) {
        if (index >= MOST_INSTANCES)
            return false;
        result = HV_REAL(nvmlDeviceGetMigDeviceHandleByIndex)(gpu, index, &instance);
        if (result == NVML_SUCCESS && is_in_the_file(instance))
            return true;
    }
    return false;
}

/* A GPU is there for its instances' sake too. */
static bool is_of_the_pod(nvmlDevice_t device)
{
    return is_in_the_file(device) || has_instance_of_the_pod(device, 0);
}

typedef int by_index_type(unsigned int index, nvmlDevice_t *device);

static unsigned int visible_to_nvml(unsigned int count, by_index_type *by_index)
{
    nvmlDevice_t device;
    if (!hides_devices())
        return count;
    while (count > 0 && (by_index(count - 1, &device) != NVML_SUCCESS || !is_of_the_pod(device)))
        count--;
    return count;
}

HV_WRAP(nvmlDeviceGetHandleByIndex, (unsigned int index, nvmlDevice_t *device))
{
    int result = HV_REAL(nvmlDeviceGetHandleByIndex)(index, device);
    unsigned int count = 0;
    if (result == NVML_SUCCESS && HV_REAL(nvmlDeviceGetCount)(&count) == NVML_SUCCESS &&
        index >= visible_to_nvml(count, HV_REAL(nvmlDeviceGetHandleByIndex)))
        return NVML_ERROR_INVALID_ARGUMENT;
    return result;
}

HV_WRAP(nvmlDeviceGetHandleByIndex_v2, (unsigned int index, nvmlDevice_t *device))
{
    int result = HV_REAL(nvmlDeviceGetHandleByIndex_v2)(index, device);
    unsigned int count = 0;
    if (result == NVML_SUCCESS && HV_REAL(nvmlDeviceGetCount_v2)(&count) == NVML_SUCCESS &&
        index >= visible_to_nvml(count, HV_REAL(nvmlDeviceGetHandleByIndex_v2)))
        return NVML_ERROR_INVALID_ARGUMENT;
    return result;
}

HV_WRAP(nvmlDeviceGetCount, (unsigned int *count))
{
    int result = HV_REAL(nvmlDeviceGetCount)(count);
    if (result == NVML_SUCCESS && count != NULL)
        *count = visible_to_nvml(*count, HV_REAL(nvmlDeviceGetHandleByIndex));
    return result;
}

HV_WRAP(nvmlDeviceGetCount_v2, (unsigned int *count))
{
    int result = HV_REAL(nvmlDeviceGetCount_v2)(count);
    if (result == NVML_SUCCESS && count != NULL)
        *count = visible_to_nvml(*count, HV_REAL(nvmlDeviceGetHandleByIndex_v2));
    return result;
}

/* By a name that is a device's own, whatever its number. */
static int found(int result, const nvmlDevice_t *device)
{
    return result == NVML_SUCCESS && device != NULL && hides_devices() && !is_of_the_pod(*device) ? NVML_ERROR_NOT_FOUND
                                                                                                  : result;
}

HV_WRAP(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *device))
{
    return found(HV_REAL(nvmlDeviceGetHandleByUUID)(uuid, device), device);
}

HV_WRAP(nvmlDeviceGetHandleByUUIDV, (const void *uuid, nvmlDevice_t *device))
{
    return found(HV_REAL(nvmlDeviceGetHandleByUUIDV)(uuid, device), device);
}

HV_WRAP(nvmlDeviceGetHandleBySerial, (const char *serial, nvmlDevice_t *device))
{
    return found(HV_REAL(nvmlDeviceGetHandleBySerial)(serial, device), device);
}

HV_WRAP(nvmlDeviceGetHandleByPciBusId, (const char *bus_id, nvmlDevice_t *device))
{
    return found(HV_REAL(nvmlDeviceGetHandleByPciBusId)(bus_id, device), device);
}

HV_WRAP(nvmlDeviceGetHandleByPciBusId_v2, (const char *bus_id, nvmlDevice_t *device))
{
    return found(HV_REAL(nvmlDeviceGetHandleByPciBusId_v2)(bus_id, device), device);
}

/* Instances keep their numbers as GPUs do. */
HV_WRAP(nvmlDeviceGetMigDeviceHandleByIndex, (nvmlDevice_t gpu, unsigned int index, nvmlDevice_t *instance))
{
    int result = HV_REAL(nvmlDeviceGetMigDeviceHandleByIndex)(gpu, index, instance);
    if (result == NVML_SUCCESS && hides_devices() && !has_instance_of_the_pod(gpu, index))
        return NVML_ERROR_NOT_FOUND;
    return result;
}

/* ---- lists of GPUs that lie near each other ---- */

/* The Pod's of so many; how many there are. */
static unsigned int of_the_pod(nvmlDevice_t *devices, unsigned int count)
{
    unsigned int kept = 0;
    for (unsigned int i = 0; i < count; i++)
        if (is_of_the_pod(devices[i]))
            devices[kept++] = devices[i];
    return kept;
}

/* The driver was asked for all of them, and the program gets what it has room for: with none it asks how many there are. */
static int given(nvmlDevice_t *all, unsigned int found, unsigned int *count, nvmlDevice_t *devices)
{
    unsigned int room = devices == NULL ? 0 : *count;
    *count = of_the_pod(all, found);
    for (unsigned int i = 0; i < *count && i < room; i++)
        devices[i] = all[i];
    return devices != NULL && *count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

HV_WRAP(nvmlDeviceGetTopologyNearestGpus,
        (nvmlDevice_t device, int level, unsigned int *count, nvmlDevice_t *devices))
{
    nvmlDevice_t all[MOST_GPUS];
    unsigned int found = 0;
    if (count == NULL || !hides_devices() ||
        HV_REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, &found, NULL) != NVML_SUCCESS || found > MOST_GPUS ||
        HV_REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, &found, all) != NVML_SUCCESS)
        return HV_REAL(nvmlDeviceGetTopologyNearestGpus)(device, level, count, devices);
    return given(all, found, count, devices);
}

HV_WRAP(nvmlSystemGetTopologyGpuSet, (unsigned int processor, unsigned int *count, nvmlDevice_t *devices))
{
    nvmlDevice_t all[MOST_GPUS];
    unsigned int found = 0;
    if (count == NULL || !hides_devices() ||
        HV_REAL(nvmlSystemGetTopologyGpuSet)(processor, &found, NULL) != NVML_SUCCESS || found > MOST_GPUS ||
        HV_REAL(nvmlSystemGetTopologyGpuSet)(processor, &found, all) != NVML_SUCCESS)
        return HV_REAL(nvmlSystemGetTopologyGpuSet)(processor, count, devices);
    return given(all, found, count, devices);
}
