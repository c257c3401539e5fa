#include "bodies.h"

#include "hypervisor_atomics.h"
#include "os.h"
#include "process.h"

/* Two words under the number of a descriptor: which body, and which file; how
 * many bytes, for when all handles are gone and only the descriptor is left. */
#define FILE_BITS 24

static uint64_t file_of(int descriptor)
{
    uint64_t identity;
    return hv_os_file_identity(descriptor, &identity) ? identity >> (64 - FILE_BITS) : 0;
}

/* Never used twice; the low bit says that the memory is the host's. */
static uint64_t new_body(struct hv_process *process, bool host)
{
    return (hv_add_relaxed(&process->bodies, 2) + 2) | host; /* only has to differ */
}

static bool put_descriptor(struct hv_process *process, int descriptor, uint64_t body, const struct hv_pointer_record *of)
{
    struct hv_pointer_record record = {.bytes = of->bytes, .device = of->device};
    uint64_t number = (uint64_t)(unsigned int)descriptor; /* not negative: the driver's, or checked */
    return hv_pointer_put(&process->pointers, HV_POINTER_EXPORTED_BYTES, number, hv_record_pack(&record)) &&
           hv_pointer_put(&process->pointers, HV_POINTER_EXPORTED, number, body << FILE_BITS | file_of(descriptor));
}

void hv_body_exported(struct hv_process *process, enum hv_pointer_kind kind, uint64_t handle, int descriptor)
{
    uint64_t value;
    uint64_t body;
    if (descriptor < 0 || !hv_pointer_get(&process->pointers, kind, handle, &value))
        return;
    struct hv_pointer_record record = hv_record_unpack(value);
    if (!hv_pointer_get(&process->pointers, HV_POINTER_BODY_OF, handle, &body)) {
        if (record.bytes == 0) /* of another process, or a multicast object */
            return;
        body = new_body(process, kind == HV_POINTER_HOST_PHYSICAL);
        record.references = 1;
        if (!hv_pointer_put(&process->pointers, HV_POINTER_BODY, body, hv_record_pack(&record)) ||
            !hv_pointer_put(&process->pointers, HV_POINTER_BODY_OF, handle, body))
            return; /* no memory for the map: what comes back is taken for another process's */
    } else if (hv_pointer_get(&process->pointers, HV_POINTER_BODY, body, &value)) {
        record = hv_record_unpack(value); /* a handle that came back has no bytes of its own */
    }
    (void)put_descriptor(process, descriptor, body, &record);
}

CUresult hv_homecoming_begin(struct hv_process *process, int descriptor, struct hv_homecoming *homecoming)
{
    uint64_t value;
    uint64_t bytes;
    *homecoming = (struct hv_homecoming){0};
    uint64_t number = (uint64_t)(unsigned int)descriptor; /* one that is negative is in no map */
    if (!hv_pointer_get(&process->pointers, HV_POINTER_EXPORTED, number, &value) ||
        !hv_pointer_get(&process->pointers, HV_POINTER_EXPORTED_BYTES, number, &bytes) ||
        (value & ((UINT64_C(1) << FILE_BITS) - 1)) != file_of(descriptor))
        return CUDA_SUCCESS;
    homecoming->body = value >> FILE_BITS;
    homecoming->host = homecoming->body & 1;
    if (hv_pointer_refer(&process->pointers, HV_POINTER_BODY, homecoming->body))
        return CUDA_SUCCESS;
    struct hv_pointer_record record = hv_record_unpack(bytes);
    homecoming->body = new_body(process, homecoming->host);
    return homecoming->host ? hv_reserve_host(&homecoming->reservation, record.bytes)
                            : hv_reserve_device(&homecoming->reservation, record.device, record.bytes);
}

void hv_homecoming_failed(struct hv_process *process, struct hv_homecoming *homecoming)
{
    struct hv_pointer_record record;
    if (homecoming->reservation.process != NULL)
        (void)hv_reservation_end(&homecoming->reservation, CUDA_ERROR_OUT_OF_MEMORY, HV_POINTER_BODY, 0);
    else if (homecoming->body != 0 &&
             hv_pointer_unrefer(&process->pointers, HV_POINTER_BODY, homecoming->body, &record))
        hv_memory_release(process, record.device, homecoming->host, record.bytes);
}

void hv_homecoming_done(struct hv_process *process, int descriptor, uint64_t handle, struct hv_homecoming *homecoming)
{
    struct hv_pointer_record record = {.bytes = homecoming->reservation.bytes,
                                       .device = homecoming->reservation.device};
    if (homecoming->reservation.process != NULL) {
        (void)hv_reservation_end(&homecoming->reservation, CUDA_SUCCESS, HV_POINTER_BODY, homecoming->body);
        (void)put_descriptor(process, descriptor, homecoming->body, &record);
    }
    /* Without room in the map its bytes stay accounted. */
    if (homecoming->body != 0)
        (void)hv_pointer_put(&process->pointers, HV_POINTER_BODY_OF, handle, homecoming->body);
}

bool hv_body_let_go(struct hv_process *process, uint64_t handle, struct hv_pointer_record *record, bool *host)
{
    uint64_t body;
    if (!hv_pointer_take(&process->pointers, HV_POINTER_BODY_OF, handle, &body))
        return record->bytes != 0;
    *host = body & 1;
    return hv_pointer_unrefer(&process->pointers, HV_POINTER_BODY, body, record);
}
