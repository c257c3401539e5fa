#include "bindings.h"

#include "bodies.h"
#include "memory.h"
#include "messages.h"
#include "process.h"

static void lock(uint32_t *word)
{
    while (__atomic_exchange_n(word, 1, __ATOMIC_ACQUIRE) != 0)
        hv_os_yield();
}

static void unlock(uint32_t *word)
{
    hv_store_release_32(word, 0);
}

static bool enter(struct hv_bindings *bindings, const struct hv_binding *binding)
{
    bool entered = false;
    lock(&bindings->lock);
    for (uint32_t i = 0; i < HV_BINDINGS && !entered; i++) {
        if (bindings->bindings[i].object != 0)
            continue;
        bindings->bindings[i] = *binding;
        hv_store_relaxed_32(&bindings->count, bindings->count + 1);
        entered = true;
    }
    unlock(&bindings->lock);
    return entered;
}

void hv_binding_made(struct hv_process *process, const struct hv_binding *binding)
{
    if (hv_pointer_refer(&process->pointers, HV_POINTER_PHYSICAL, binding->handle) &&
        !enter(&process->bindings, binding))
        hv_tell(HV_MESSAGE_INTERNAL, "more than %d bindings of memory: it stays accounted until the process ends",
                HV_BINDINGS);
}

static void drop(struct hv_process *process, uint64_t handle, const struct hv_unbinding *unbinding)
{
    struct hv_pointer_record record;
    bool host = false;
    if (!hv_pointer_unrefer(&process->pointers, HV_POINTER_PHYSICAL, handle, &record) ||
        !hv_body_let_go(process, handle, &record, &host))
        return;
    if (unbinding->in_order && !host)
        hv_pending_add(process, &record, unbinding->stream, unbinding->per_thread);
    else
        hv_memory_release(process, host ? 0 : record.device, host, record.bytes);
}

static bool is_meant(const struct hv_binding *binding, const struct hv_unbinding *unbinding)
{
    return binding->object == unbinding->object && binding->place >= unbinding->from &&
           binding->place < unbinding->to &&
           (unbinding->device == HV_MAX_DEVICES || binding->device == unbinding->device);
}

/* The handle of one that is meant, taken out; false: there is none. */
static bool take(struct hv_bindings *bindings, const struct hv_unbinding *unbinding, uint64_t *handle)
{
    bool taken = false;
    lock(&bindings->lock);
    for (uint32_t i = 0; i < HV_BINDINGS && !taken; i++) {
        if (!is_meant(&bindings->bindings[i], unbinding))
            continue;
        *handle = bindings->bindings[i].handle;
        bindings->bindings[i] = (struct hv_binding){0};
        hv_store_relaxed_32(&bindings->count, bindings->count - 1);
        taken = true;
    }
    unlock(&bindings->lock);
    return taken;
}

void hv_binding_ended(struct hv_process *process, const struct hv_unbinding *unbinding)
{
    uint64_t handle;
    if (unbinding->object == 0 || hv_load_relaxed_32(&process->bindings.count) == 0) /* most programs have none */
        return;
    while (take(&process->bindings, unbinding, &handle))
        drop(process, handle, unbinding);
}

/* An object that is neither an endpoint nor known as a physical handle is an array. */
static uint64_t array_on(struct hv_process *process, uint32_t device)
{
    uint64_t array = 0, value;
    lock(&process->bindings.lock);
    for (uint32_t i = 0; i < HV_BINDINGS && array == 0; i++) {
        const struct hv_binding *binding = &process->bindings.bindings[i];
        if (binding->object != 0 && (binding->object & HV_ENDPOINT) == 0 && binding->device == device &&
            !hv_pointer_get(&process->pointers, HV_POINTER_PHYSICAL, binding->object, &value))
            array = binding->object;
    }
    unlock(&process->bindings.lock);
    return array;
}

void hv_bindings_of_arrays_ended(struct hv_process *process, uint32_t device)
{
    uint64_t array;
    if (hv_load_relaxed_32(&process->bindings.count) == 0)
        return;
    while ((array = array_on(process, device)) != 0)
        hv_bindings_of_object_ended(process, array);
}

void hv_bindings_of_object_ended(struct hv_process *process, uint64_t object)
{
    struct hv_unbinding all = {.object = object, .to = UINT64_MAX, .device = HV_MAX_DEVICES};
    hv_binding_ended(process, &all);
}
