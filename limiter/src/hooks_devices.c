/*
 * Which devices the program sees. Numbers are never changed: CUDA_VISIBLE_DEVICES,
 * NVML and programs that take a number for a device all have to mean the same
 * one. So what is hidden are the devices behind the last one of the Pod; one
 * before it is there and has no memory.
 */
#include "driver.h"
#include "files.h"
#include "memory.h"

/* Called before they are defined. */
int hv_cuDeviceGetCount(int *count);
int hv_nvmlDeviceGetCount(unsigned int *count);
int hv_nvmlDeviceGetCount_v2(unsigned int *count);

/* Only where this library is what limits; elsewhere other devices are the Pod's too. */
static bool hides_devices(void)
{
    struct hv_device_terms terms;
    return hv_attach() == HV_ATTACH_DONE && hv_terms_read(hv_files(), 0, &terms) &&
           terms.isolation_mode == HV_ISOLATION_SOFT && (terms.flags & HV_DEVICE_MIG) == 0;
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

static bool is_of_the_pod(nvmlDevice_t device)
{
    char uuid[NVML_UUID_BYTES];
    hv_call_type_nvmlDeviceGetUUID ask = HV_DRIVER(nvmlDeviceGetUUID);
    return ask == NULL || ask(device, uuid, sizeof uuid) != NVML_SUCCESS ||
           hv_device_by_uuid_text(hv_files(), uuid) != HV_MAX_DEVICES;
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

HV_WRAP(nvmlDeviceGetHandleByUUID, (const char *uuid, nvmlDevice_t *device))
{
    int result = HV_REAL(nvmlDeviceGetHandleByUUID)(uuid, device);
    if (result == NVML_SUCCESS && device != NULL && hides_devices() && !is_of_the_pod(*device))
        return NVML_ERROR_NOT_FOUND;
    return result;
}
