#include "held.h"

#include "messages.h"

/* Only device memory comes and goes so often that threads would meet. */
static bool is_striped(enum hv_pointer_kind kind)
{
    return kind == HV_POINTER_MEMORY;
}

bool hv_held_put(struct hv_process *process, enum hv_pointer_kind kind, uint64_t pointer,
                 const struct hv_pointer_record *record)
{
    struct hv_pointer_map *map =
        is_striped(kind) ? &process->memory[hv_thread_stripe(process)] : &process->pointers;
    bool done = hv_pointer_put(map, kind, pointer, hv_record_pack(record));
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

uint64_t hv_held_purge(struct hv_process *process, uint32_t device)
{
    uint64_t bytes = hv_pointer_purge(&process->pointers, device);
    for (uint32_t stripe = 0; stripe < HV_KEPT_STRIPES; stripe++)
        bytes += hv_pointer_purge(&process->memory[stripe], device);
    return bytes;
}
