/* What the program is told about the device's memory, by CUDA and by NVML. */
#include "driver.h"
#include "memory.h"
#include "pools.h"

/* Calls before 3.2 have 32 bits for a size. */
static unsigned int clamp_32(uint64_t value)
{
    return value > UINT32_MAX ? UINT32_MAX : (unsigned int)value;
}

/* ---- cuMemGetInfo ---- */

static struct hv_process *process_and_device(uint32_t *device, CUresult *refused)
{
    CUdevice ordinal;
    struct hv_process *process = hv_limited_process(refused);
    if (process == NULL || !hv_current_ordinal(&ordinal, refused))
        return NULL;
    *device = hv_process_device(process, ordinal);
    return process;
}

HV_WRAP(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total_bytes))
{
    uint32_t device = HV_MAX_DEVICES;
    CUresult refused;
    struct hv_process *process = process_and_device(&device, &refused);
    if (refused != CUDA_SUCCESS)
        return refused;
    CUresult result = HV_REAL(cuMemGetInfo_v2)(free_bytes, total_bytes);
    if (process == NULL || result != CUDA_SUCCESS || free_bytes == NULL || total_bytes == NULL)
        return result;
    struct hv_memory_view view;
    hv_pending_settle(process);
    hv_pools_refresh(process, device);
    /* A context that was measured meanwhile must not count twice in what is shown. */
    if (device < HV_MAX_DEVICES)
        hv_context_settle(process, device);
    hv_memory_view(device, *total_bytes, *free_bytes, &view);
    *free_bytes = view.free;
    *total_bytes = view.total;
    return result;
}

HV_WRAP(cuMemGetInfo, (unsigned int *free_bytes, unsigned int *total_bytes))
{
    size_t free_whole = 0;
    size_t total_whole = 0;
    if (hv_attach() == HV_ATTACH_ABSENT || free_bytes == NULL || total_bytes == NULL)
        return HV_REAL(cuMemGetInfo)(free_bytes, total_bytes);
    /* The newer call has room for the card's true figures. */
    CUresult result = hv_cuMemGetInfo_v2(&free_whole, &total_whole);
    if (result == CUDA_SUCCESS) {
        *free_bytes = clamp_32(free_whole);
        *total_bytes = clamp_32(total_whole);
    }
    return result;
}

/* ---- cuDeviceTotalMem ---- */

HV_WRAP(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice ordinal))
{
    CUresult refused;
    struct hv_process *process = hv_limited_process(&refused);
    if (process == NULL && refused != CUDA_SUCCESS)
        return refused;
    CUresult result = HV_REAL(cuDeviceTotalMem_v2)(bytes, ordinal);
    if (process == NULL || result != CUDA_SUCCESS || bytes == NULL)
        return result;
    struct hv_memory_view view;
    hv_memory_view(hv_process_device(process, ordinal), *bytes, *bytes, &view);
    *bytes = view.total;
    return result;
}

HV_WRAP(cuDeviceTotalMem, (unsigned int *bytes, CUdevice ordinal))
{
    size_t whole = 0;
    if (hv_attach() == HV_ATTACH_ABSENT || bytes == NULL)
        return HV_REAL(cuDeviceTotalMem)(bytes, ordinal);
    CUresult result = hv_cuDeviceTotalMem_v2(&whole, ordinal);
    if (result == CUDA_SUCCESS)
        *bytes = clamp_32(whole);
    return result;
}

/* ---- NVML ---- */

/* false: NVML's own figures stand. A program that only looks needs no slot. */
static bool nvml_view(nvmlDevice_t device, uint64_t total, uint64_t free_bytes, struct hv_memory_view *view)
{
    char uuid[NVML_UUID_BYTES];
    hv_call_type_nvmlDeviceGetUUID ask = HV_DRIVER(nvmlDeviceGetUUID);
    if (hv_attach() != HV_ATTACH_DONE || ask == NULL || ask(device, uuid, sizeof uuid) != NVML_SUCCESS)
        return false;
    hv_memory_view(hv_device_by_uuid_text(hv_files(), uuid), total, free_bytes, view);
    return true;
}

HV_WRAP(nvmlDeviceGetMemoryInfo, (nvmlDevice_t device, nvmlMemory_t *memory))
{
    struct hv_memory_view view;
    int result = HV_REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    if (result != NVML_SUCCESS || memory == NULL || !nvml_view(device, memory->total, memory->free, &view))
        return result;
    *memory = (nvmlMemory_t){.total = view.total, .free = view.free, .used = view.used};
    return result;
}

/* NVML refuses a version that it does not know, so a success means that the
 * struct is the one which the version names: one with these fields first. */
HV_WRAP(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t device, nvmlMemory_v2_t *memory))
{
    struct hv_memory_view view;
    int result = HV_REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    if (result != NVML_SUCCESS || memory == NULL || memory->version != NVML_MEMORY_V2 ||
        !nvml_view(device, memory->total, memory->free, &view))
        return result;
    memory->total = view.total;
    memory->reserved = 0; /* the card's, not the Pod's */
    memory->free = view.free;
    memory->used = view.used;
    return result;
}

/* A MIG instance says its size in MiB. */
static int attributes(int result, nvmlDevice_t device, nvmlDeviceAttributes_t *told)
{
    struct hv_memory_view view;
    uint64_t card = told == NULL ? 0 : (uint64_t)told->memorySizeMB << 20;
    if (result == NVML_SUCCESS && told != NULL && nvml_view(device, card, card, &view))
        told->memorySizeMB = view.total >> 20;
    return result;
}

HV_WRAP(nvmlDeviceGetAttributes, (nvmlDevice_t device, nvmlDeviceAttributes_t *told))
{
    return attributes(HV_REAL(nvmlDeviceGetAttributes)(device, told), device, told);
}

HV_WRAP(nvmlDeviceGetAttributes_v2, (nvmlDevice_t device, nvmlDeviceAttributes_t *told))
{
    return attributes(HV_REAL(nvmlDeviceGetAttributes_v2)(device, told), device, told);
}

/* ---- utilisation, where the setting asks for it: the Pod's own, as a share of its limit ---- */

#define SHORTEST_WINDOW_NS UINT64_C(100000000)

static uint64_t pod_charged(uint32_t device)
{
    const struct hv_slot_table *slots = &hv_files()->slots;
    uint64_t charged = 0;
    for (uint32_t i = 0; i < HV_PROCESS_SLOTS; i++)
        if (hv_slot_may_be_used(slots, i) && (hv_load_acquire(&hv_slot_at(slots, i)->state) & 0xff) == HV_SLOT_LIVE)
            charged += hv_load_relaxed(&hv_slot_at(slots, i)->devices[device].charged_ns);
    return charged;
}

/* What the Pod was charged since the last look of this process; false before
 * there is a window. */
static bool charged_percent(uint32_t device, uint32_t limit_share_ppm, unsigned int *percent)
{
    struct hv_process *process = hv_process();
    if (process == NULL)
        return false;
    struct hv_utilization_window *window = &process->utilization[device];
    uint64_t now = hv_os_now_ns();
    uint64_t charged = pod_charged(device);
    uint64_t began = hv_load_relaxed(&window->began_ns); /* two threads at once: one of them sees an older figure */
    if (began != 0 && now - began >= SHORTEST_WINDOW_NS) {
        uint64_t before = hv_load_relaxed(&window->charged_ns);
        uint64_t used = charged > before ? charged - before : 0; /* less: a process took its figure with it */
        double share = (double)used * HV_SHARE_FULL_PPM / ((double)(now - began) * limit_share_ppm);
        hv_store_relaxed(&window->percent_and_known, 1 | (uint64_t)(share >= 1 ? 100 : share * 100 + 0.5) << 1);
    }
    if (began == 0 || now - began >= SHORTEST_WINDOW_NS) {
        hv_store_relaxed(&window->charged_ns, charged);
        hv_store_relaxed(&window->began_ns, now);
    }
    uint64_t known = hv_load_relaxed(&window->percent_and_known);
    *percent = (unsigned int)(known >> 1);
    return (known & 1) != 0;
}

HV_WRAP(nvmlDeviceGetUtilizationRates, (nvmlDevice_t device, nvmlUtilization_t *told))
{
    struct hv_device_terms terms;
    char uuid[NVML_UUID_BYTES];
    hv_call_type_nvmlDeviceGetUUID ask = HV_DRIVER(nvmlDeviceGetUUID);
    int result = HV_REAL(nvmlDeviceGetUtilizationRates)(device, told);
    if (result != NVML_SUCCESS || told == NULL || hv_attach() != HV_ATTACH_DONE || ask == NULL ||
        ask(device, uuid, sizeof uuid) != NVML_SUCCESS)
        return result;
    uint32_t index = hv_device_by_uuid_text(hv_files(), uuid);
    if (!hv_terms_read(hv_files(), index, &terms) || (terms.flags & HV_DEVICE_SCALE_UTILIZATION) == 0 ||
        terms.limit_share_ppm == 0)
        return result;
    if (!charged_percent(index, terms.limit_share_ppm, &told->gpu))
        told->gpu = 0; /* nothing of the Pod's was seen yet; the card's figure is others' work */
    return result;
}
