/*
 * Physical memory by handle (the driver's virtual memory management): it is
 * held as long as a handle or a mapping refers to it.
 */
#include "driver.h"
#include "memory.h"

static struct hv_process *limited(void)
{
    CUresult refused;
    return hv_limited_process(&refused);
}

/* No bytes: what others own, or a multicast object, whose bindings go with it. */
static void physical_is_gone(struct hv_process *process, uint64_t handle, const struct hv_pointer_record *record)
{
    if (record->bytes == 0)
        hv_bindings_of_object_ended(process, handle);
    else
        hv_memory_release(process, record->device, false, record->bytes);
}

/* Of the host, for which there is a quota, or of a device. */
static enum hv_pointer_kind kind_of(struct hv_process *process, uint64_t handle)
{
    uint64_t value;
    return hv_pointer_get(&process->pointers, HV_POINTER_HOST_PHYSICAL, handle, &value) ? HV_POINTER_HOST_PHYSICAL
                                                                                         : HV_POINTER_PHYSICAL;
}

static void last_reference_is_gone(struct hv_process *process, enum hv_pointer_kind kind, uint64_t handle,
                                   const struct hv_pointer_record *record)
{
    if (kind == HV_POINTER_HOST_PHYSICAL)
        hv_memory_release(process, 0, true, record->bytes);
    else
        physical_is_gone(process, handle, record);
}

static void drop_reference(struct hv_process *process, uint64_t handle)
{
    struct hv_pointer_record record;
    enum hv_pointer_kind kind = kind_of(process, handle);
    if (hv_pointer_unrefer(&process->pointers, kind, handle, &record))
        last_reference_is_gone(process, kind, handle, &record);
}

static bool is_on_host(const CUmemAllocationProp *properties)
{
    return properties->location.type >= CU_MEM_LOCATION_TYPE_HOST &&
           properties->location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

HV_WRAP(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp *properties,
                      unsigned long long flags))
{
    /* NULL, and a place that nobody knows, are for the driver to refuse. */
    bool on_host = properties != NULL && is_on_host(properties);
    if (properties == NULL || (!on_host && properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE))
        return HV_REAL(cuMemCreate)(handle, bytes, properties, flags);
    struct hv_reservation reservation;
    CUresult refused = on_host ? hv_reserve_host(&reservation, bytes)
                               : hv_reserve_ordinal(&reservation, properties->location.id, bytes);
    if (refused != CUDA_SUCCESS)
        return refused;
    CUresult result = HV_REAL(cuMemCreate)(handle, bytes, properties, flags);
    return hv_reservation_end(&reservation, result, on_host ? HV_POINTER_HOST_PHYSICAL : HV_POINTER_PHYSICAL,
                              result == CUDA_SUCCESS ? *handle : 0);
}

/* The same handle may come again from cuMemCreate as soon as the driver has
 * let go of it, so the reference is dropped before and renewed on failure. */
HV_WRAP(cuMemRelease, (CUmemGenericAllocationHandle handle))
{
    struct hv_process *process = limited();
    struct hv_pointer_record record = {0};
    enum hv_pointer_kind kind = process == NULL ? HV_POINTER_PHYSICAL : kind_of(process, handle);
    bool last = process != NULL && hv_pointer_unrefer(&process->pointers, kind, handle, &record);
    CUresult result = HV_REAL(cuMemRelease)(handle);
    if (process == NULL)
        return result;
    if (result == CUDA_SUCCESS && last)
        last_reference_is_gone(process, kind, handle, &record);
    else if (result != CUDA_SUCCESS && last)
        (void)hv_pointer_put(&process->pointers, kind, handle, hv_record_pack(&record));
    else if (result != CUDA_SUCCESS)
        (void)hv_pointer_refer(&process->pointers, kind, handle);
    return result;
}

HV_WRAP(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address))
{
    CUresult result = HV_REAL(cuMemRetainAllocationHandle)(handle, address);
    struct hv_process *process = limited();
    if (result == CUDA_SUCCESS && process != NULL) /* not found: imported, the owner pays */
        (void)hv_pointer_refer(&process->pointers, kind_of(process, *handle), *handle);
    return result;
}

/* Of another process's memory nothing counts: its owner pays. The handle is
 * known all the same, because a multicast object of another process comes like
 * this too. One that we know is our own come back. */
HV_WRAP(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle * handle, void *shared, int type))
{
    CUresult result = HV_REAL(cuMemImportFromShareableHandle)(handle, shared, type);
    struct hv_process *process = limited();
    struct hv_pointer_record nothing = {.references = 1};
    if (result == CUDA_SUCCESS && process != NULL &&
        !hv_pointer_refer(&process->pointers, kind_of(process, *handle), *handle))
        (void)hv_pointer_put(&process->pointers, HV_POINTER_PHYSICAL, *handle, hv_record_pack(&nothing));
    return result;
}

HV_WRAP(cuMemMap, (CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                   unsigned long long flags))
{
    CUresult result = HV_REAL(cuMemMap)(address, bytes, offset, handle, flags);
    struct hv_process *process = limited();
    if (result != CUDA_SUCCESS || process == NULL)
        return result;
    struct hv_pointer_record range = {.bytes = bytes};
    if (!hv_pointer_refer(&process->pointers, kind_of(process, handle), handle))
        return result; /* made past us */
    if (!hv_pointer_put(&process->pointers, HV_POINTER_MAPPING, address, hv_record_pack(&range)) ||
        !hv_pointer_put(&process->pointers, HV_POINTER_MAPPED_HANDLE, address, handle))
        return result; /* no memory for the map: the bytes stay accounted */
    return result;
}

/* One call may end several mappings that lie side by side. */
static void ranges_unmapped(struct hv_process *process, uint64_t address, uint64_t bytes)
{
    uint64_t value;
    uint64_t handle;
    uint64_t done = 0;
    while (done < bytes && hv_pointer_take(&process->pointers, HV_POINTER_MAPPING, address + done, &value)) {
        if (hv_pointer_take(&process->pointers, HV_POINTER_MAPPED_HANDLE, address + done, &handle))
            drop_reference(process, handle);
        done += hv_record_unpack(value).bytes;
    }
}

HV_WRAP(cuMemUnmap, (CUdeviceptr address, size_t bytes))
{
    CUresult result = HV_REAL(cuMemUnmap)(address, bytes);
    struct hv_process *process = limited();
    if (result == CUDA_SUCCESS && process != NULL)
        ranges_unmapped(process, address, bytes);
    return result;
}
