#include "held.h"

#include "driver.h"
#include "memory.h"
#include "messages.h"

#define POINTERS_AT_A_TIME 64 /* no lock is held while the driver is asked */

/* Only device memory comes and goes so often that threads would meet. */
static bool is_striped(enum hv_pointer_kind kind)
{
    return kind == HV_POINTER_MEMORY;
}

static bool goes_with_contexts(enum hv_pointer_kind kind)
{
    return kind == HV_POINTER_MEMORY || kind == HV_POINTER_ARRAY;
}

bool hv_held_put(struct hv_process *process, enum hv_pointer_kind kind, uint64_t pointer,
                 const struct hv_pointer_record *record)
{
    struct hv_pointer_map *map =
        is_striped(kind) ? &process->memory[hv_thread_stripe(process)] : &process->pointers;
    uint64_t replaced;
    bool done = hv_pointer_replace(map, kind, pointer, hv_record_pack(record), &replaced);
    /* What stood there went with its context while another thread entered it: the driver has given the place anew. */
    if (hv_unlikely(replaced != 0) && goes_with_contexts(kind)) {
        struct hv_pointer_record gone = hv_record_unpack(replaced);
        hv_memory_release(process, gone.device, false, gone.bytes);
    }
    if (!done)
        hv_tell(HV_MESSAGE_INTERNAL, "no memory for the map of allocations; %llu bytes stay accounted",
                (unsigned long long)record->bytes);
    return done;
}

static bool take_striped(struct hv_process *process, enum hv_pointer_kind kind, uint64_t pointer, uint64_t *value)
{
    uint32_t own = hv_thread_stripe(process);
    for (uint32_t i = 0; i < HV_KEPT_STRIPES; i++)
        if (hv_pointer_take(&process->memory[(own + i) % HV_KEPT_STRIPES], kind, pointer, value))
            return true;
    return false;
}

bool hv_held_take(struct hv_process *process, enum hv_pointer_kind kind, uint64_t pointer,
                  struct hv_pointer_record *record)
{
    uint64_t value;
    bool found = is_striped(kind) ? take_striped(process, kind, pointer, &value)
                                  : hv_pointer_take(&process->pointers, kind, pointer, &value);
    if (found)
        *record = hv_record_unpack(value);
    return found;
}

uint64_t hv_held_purge(struct hv_process *process, uint32_t device, uint32_t generation)
{
    uint64_t bytes = hv_pointer_purge(&process->pointers, device, generation);
    for (uint32_t stripe = 0; stripe < HV_KEPT_STRIPES; stripe++)
        bytes += hv_pointer_purge(&process->memory[stripe], device, generation);
    return bytes;
}

/* Only what the driver says plainly: another error may have another reason. */
static bool is_gone(uint64_t pointer)
{
    unsigned int type;
    hv_call_type_cuPointerGetAttribute ask = HV_DRIVER(cuPointerGetAttribute);
    return ask != NULL && ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer) == CUDA_ERROR_INVALID_VALUE;
}

static uint64_t take_gone(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint32_t device)
{
    uint64_t pointers[POINTERS_AT_A_TIME], bytes = 0, cursor = 0, value;
    uint32_t count;
    while ((count = hv_pointer_list(map, kind, device, &cursor, pointers, POINTERS_AT_A_TIME)) != 0)
        for (uint32_t i = 0; i < count; i++)
            if (is_gone(pointers[i]) && hv_pointer_take(map, kind, pointers[i], &value))
                bytes += hv_record_unpack(value).bytes;
    return bytes;
}

uint64_t hv_held_take_gone(struct hv_process *process, uint32_t device)
{
    uint64_t bytes = 0;
    for (uint32_t stripe = 0; stripe < HV_KEPT_STRIPES; stripe++)
        bytes += take_gone(&process->memory[stripe], HV_POINTER_MEMORY, device);
    return bytes;
}

uint64_t hv_held_take_gone_from_host(struct hv_process *process)
{
    return take_gone(&process->pointers, HV_POINTER_HOST, 0); /* host memory is accounted with the first device */
}

/* ---- arrays: the driver can't be asked for them, so each is known with its context ---- */

static uint64_t number_of(CUcontext context)
{
    return (uint64_t)(uintptr_t)context;
}

void hv_held_array_is_of(struct hv_process *process, uint64_t array, CUcontext context)
{
    /* Without room in the map it counts until the device's last context ends. */
    (void)hv_pointer_put(&process->array_contexts, HV_POINTER_ARRAY, array, number_of(context));
}

uint64_t hv_held_forget_context_of(struct hv_process *process, uint64_t array)
{
    uint64_t context = 0;
    (void)hv_pointer_take(&process->array_contexts, HV_POINTER_ARRAY, array, &context);
    return context;
}

/* Another thread may get the same handle for an array of another context meanwhile: only what was looked at is taken. */
static uint64_t take_array_of(struct hv_process *process, uint64_t array, CUcontext context, uint32_t generation)
{
    uint64_t value, of;
    if (!hv_pointer_get(&process->pointers, HV_POINTER_ARRAY, array, &value) ||
        !hv_pointer_get(&process->array_contexts, HV_POINTER_ARRAY, array, &of) || of != number_of(context))
        return 0;
    struct hv_pointer_record record = hv_record_unpack(value);
    if (!hv_record_is_before(&record, generation) ||
        !hv_pointer_take_if(&process->pointers, HV_POINTER_ARRAY, array, value))
        return 0;
    (void)hv_pointer_take_if(&process->array_contexts, HV_POINTER_ARRAY, array, of);
    hv_bindings_of_object_ended(process, array); /* what was mapped into a sparse one */
    return record.bytes;
}

uint64_t hv_held_take_arrays_of(struct hv_process *process, uint32_t device, CUcontext context, uint32_t generation)
{
    uint64_t arrays[POINTERS_AT_A_TIME], bytes = 0, cursor = 0;
    uint32_t count;
    if (context == NULL)
        return 0;
    while ((count = hv_pointer_list(&process->pointers, HV_POINTER_ARRAY, device, &cursor, arrays,
                                    POINTERS_AT_A_TIME)) != 0)
        for (uint32_t i = 0; i < count; i++)
            bytes += take_array_of(process, arrays[i], context, generation);
    return bytes;
}
