/*
 * Physical memory by handle (the driver's virtual memory management): it is
 * held as long as a handle or a mapping refers to it.
 */
#include "bodies.h"
#include "driver.h"
#include "memory.h"

static struct hv_process *limited(void)
{
    CUresult refused;
    return hv_limited_process(&refused);
}

/* Of the host, for which there is a quota, or of a device. */
static enum hv_pointer_kind kind_of(struct hv_process *process, uint64_t handle)
{
    uint64_t value;
    return hv_pointer_get(&process->pointers, HV_POINTER_HOST_PHYSICAL, handle, &value) ? HV_POINTER_HOST_PHYSICAL
                                                                                         : HV_POINTER_PHYSICAL;
}

/* Without bytes of its own: what others own, or came back to us, or a multicast object, whose bindings go with it. */
static void last_reference_is_gone(struct hv_process *process, enum hv_pointer_kind kind, uint64_t handle,
                                   const struct hv_pointer_record *record)
{
    struct hv_pointer_record held = *record;
    bool host = kind == HV_POINTER_HOST_PHYSICAL;
    if (record->bytes == 0)
        hv_bindings_of_object_ended(process, handle);
    if (hv_body_let_go(process, handle, &held, &host))
        hv_memory_release(process, host ? 0 : held.device, host, held.bytes);
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

HV_WRAP(cuMemExportToShareableHandle,
        (void *shared, CUmemGenericAllocationHandle handle, int type, unsigned long long flags))
{
    CUresult result = HV_REAL(cuMemExportToShareableHandle)(shared, handle, type, flags);
    struct hv_process *process = limited();
    if (result == CUDA_SUCCESS && process != NULL && type == HV_HANDLE_TYPE_POSIX_FD)
        hv_body_exported(process, kind_of(process, handle), handle, *(const int *)shared); /* of this type it is one */
    return result;
}

/* Of another process's memory nothing counts: its owner pays. The handle is
 * known all the same, because a multicast object of another process comes like
 * this too. One that we know already counts. */
static void imported(struct hv_process *process, int descriptor, uint64_t handle, struct hv_homecoming *homecoming)
{
    struct hv_pointer_record nothing = {.references = 1};
    if (hv_pointer_refer(&process->pointers, kind_of(process, handle), handle)) {
        hv_homecoming_failed(process, homecoming);
        return;
    }
    if (hv_pointer_put(&process->pointers, HV_POINTER_PHYSICAL, handle, hv_record_pack(&nothing)))
        hv_homecoming_done(process, descriptor, handle, homecoming);
}

HV_WRAP(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle * handle, void *shared, int type))
{
    struct hv_process *process = limited();
    struct hv_homecoming homecoming = {0};
    /* The interface carries the descriptor in the pointer. */
    int descriptor = type == HV_HANDLE_TYPE_POSIX_FD ? (int)(intptr_t)shared : -1;
    CUresult refused = process == NULL ? CUDA_SUCCESS : hv_homecoming_begin(process, descriptor, &homecoming);
    if (refused != CUDA_SUCCESS)
        return refused;
    CUresult result = HV_REAL(cuMemImportFromShareableHandle)(handle, shared, type);
    if (process == NULL)
        return result;
    if (result == CUDA_SUCCESS)
        imported(process, descriptor, *handle, &homecoming);
    else
        hv_homecoming_failed(process, &homecoming);
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

/* ---- unmapping ---- */

/* One call may end several mappings that lie side by side. As with
 * cuMemRelease, their references are dropped before and renewed on failure. */

#define OF_THE_HOST ((1u << HV_RECORD_DEVICE_BITS) - 1) /* no device has this index */

static void range_begins_to_end(struct hv_process *process, uint64_t address, uint64_t handle)
{
    struct hv_pointer_record record;
    enum hv_pointer_kind kind = kind_of(process, handle);
    if (!hv_pointer_unrefer(&process->pointers, kind, handle, &record))
        return;
    if (kind == HV_POINTER_HOST_PHYSICAL)
        record.device = OF_THE_HOST;
    /* Without room in the map the bytes stay accounted. */
    (void)hv_pointer_put(&process->pointers, HV_POINTER_ENDING, address, hv_record_pack(&record));
}

/* True: it was the handle's last reference, and *record was its record. */
static bool was_last(struct hv_process *process, uint64_t address, enum hv_pointer_kind *kind,
                     struct hv_pointer_record *record)
{
    uint64_t value;
    if (!hv_pointer_take(&process->pointers, HV_POINTER_ENDING, address, &value))
        return false;
    *record = hv_record_unpack(value);
    *kind = record->device == OF_THE_HOST ? HV_POINTER_HOST_PHYSICAL : HV_POINTER_PHYSICAL;
    record->device = record->device == OF_THE_HOST ? 0 : record->device;
    return true;
}

static void range_ended(struct hv_process *process, uint64_t address, uint64_t handle)
{
    uint64_t value;
    enum hv_pointer_kind kind;
    struct hv_pointer_record record;
    (void)hv_pointer_take(&process->pointers, HV_POINTER_MAPPING, address, &value);
    (void)hv_pointer_take(&process->pointers, HV_POINTER_MAPPED_HANDLE, address, &value);
    if (was_last(process, address, &kind, &record))
        last_reference_is_gone(process, kind, handle, &record);
}

static void range_stays(struct hv_process *process, uint64_t address, uint64_t handle)
{
    enum hv_pointer_kind kind;
    struct hv_pointer_record record;
    if (!was_last(process, address, &kind, &record))
        (void)hv_pointer_refer(&process->pointers, kind_of(process, handle), handle);
    else
        (void)hv_pointer_put(&process->pointers, kind, handle, hv_record_pack(&record));
}

static void for_each_range(struct hv_process *process, uint64_t address, uint64_t bytes,
                           void (*visit)(struct hv_process *process, uint64_t address, uint64_t handle))
{
    uint64_t range;
    uint64_t handle;
    for (uint64_t done = 0; process != NULL && done < bytes; done += hv_record_unpack(range).bytes) {
        if (!hv_pointer_get(&process->pointers, HV_POINTER_MAPPING, address + done, &range) ||
            hv_record_unpack(range).bytes == 0)
            return;
        if (hv_pointer_get(&process->pointers, HV_POINTER_MAPPED_HANDLE, address + done, &handle))
            visit(process, address + done, handle);
    }
}

HV_WRAP(cuMemUnmap, (CUdeviceptr address, size_t bytes))
{
    struct hv_process *process = limited();
    for_each_range(process, address, bytes, range_begins_to_end);
    CUresult result = HV_REAL(cuMemUnmap)(address, bytes);
    for_each_range(process, address, bytes, result == CUDA_SUCCESS ? range_ended : range_stays);
    return result;
}
