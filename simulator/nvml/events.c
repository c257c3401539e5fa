/* Event sets: Xid errors, lost GPUs, resets. The machine's ring of notices is the source; each set has
 * its own place in it, so that no set takes an event from another. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "library.h"

#define EVENT_ECC_SINGLE UINT64_C(0x1)
#define EVENT_ECC_DOUBLE UINT64_C(0x2)
#define EVENT_XID UINT64_C(0x8)
#define EVENT_CLOCK UINT64_C(0x10)
#define EVENT_MIG UINT64_C(0x100)
#define EVENT_UNAVAILABLE UINT64_C(0x4000)
#define EVENT_RECOVERY UINT64_C(0x8000)

struct nvmlEventSet_st {
    struct nvmlEventSet_st *next;
    unsigned waiting;             /* threads inside a wait: the memory stays until they have left */
    bool freed;
    uint64_t seen;                /* sequence of the last notice looked at */
    uint64_t wanted[SIM_MAX_GPUS];
    uint64_t since[SIM_MAX_GPUS]; /* notices up to here came before the GPU was registered */
};

static pthread_mutex_t sets_lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvmlEventSet_st *sets;

/* With the lock held: is this a set of ours that was not freed? */
static bool is_set(nvmlEventSet_t set)
{
    for (const struct nvmlEventSet_st *known = sets; known != NULL; known = known->next)
        if (known == set)
            return !known->freed;
    return false;
}

/* With the lock held: ends sets that are freed and that nobody waits on. */
static void sweep(void)
{
    for (struct nvmlEventSet_st **link = &sets; *link != NULL;) {
        struct nvmlEventSet_st *set = *link;
        if (set->freed && set->waiting == 0) {
            *link = set->next;
            free(set);
        } else {
            link = &set->next;
        }
    }
}

void events_forget_all(void)
{
    pthread_mutex_lock(&sets_lock);
    for (struct nvmlEventSet_st *set = sets; set != NULL; set = set->next)
        set->freed = true;
    sweep();
    pthread_mutex_unlock(&sets_lock);
}

NVML_EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
    SYSTEM_CALL(call);
    REQUIRE(call, out != NULL);
    struct nvmlEventSet_st *set = calloc(1, sizeof *set);
    if (set == NULL)
        return call_end(&call, NVML_ERROR_MEMORY);
    set->seen = sim_notice_last(call.machine);
    pthread_mutex_lock(&sets_lock);
    set->next = sets;
    sets = set;
    pthread_mutex_unlock(&sets_lock);
    *out = set;
    return call_end(&call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    SYSTEM_CALL(call);
    pthread_mutex_lock(&sets_lock);
    const bool known = is_set(set);
    if (known) {
        set->freed = true;
        sweep();
    }
    pthread_mutex_unlock(&sets_lock);
    return call_end(&call, known ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

static uint64_t supported_events(const struct sim_gpu_info *info)
{
    const uint64_t ecc = info->ecc_supported != 0 ? EVENT_ECC_SINGLE | EVENT_ECC_DOUBLE : 0;
    const uint64_t mig = info->mig_supported != 0 ? EVENT_MIG : 0;
    return EVENT_XID | EVENT_CLOCK | EVENT_UNAVAILABLE | EVENT_RECOVERY | ecc | mig;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, uint64_t *types)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u64(&call, types, supported_events(&reading.info));
}

NVML_EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, uint64_t types, nvmlEventSet_t set)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    if ((types & ~supported_events(&reading.info)) != 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    pthread_mutex_lock(&sets_lock);
    const bool known = is_set(set);
    if (known) {
        if (set->wanted[call.gpu] == 0)
            set->since[call.gpu] = sim_notice_last(call.machine);
        set->wanted[call.gpu] |= types;
    }
    pthread_mutex_unlock(&sets_lock);
    return call_end(&call, known ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT);
}

/* What a notice is to a set that wants `wanted`; 0: nothing. */
static uint64_t event_type(const struct sim_notice *notice, uint64_t wanted)
{
    switch (notice->kind) {
    case SIM_NOTICE_XID:
        return wanted & EVENT_XID;
    case SIM_NOTICE_ECC_SINGLE:
        return wanted & EVENT_ECC_SINGLE;
    case SIM_NOTICE_ECC_DOUBLE:
        return wanted & EVENT_ECC_DOUBLE;
    case SIM_NOTICE_CLOCK:
        return wanted & EVENT_CLOCK;
    case SIM_NOTICE_LOST:
        return (wanted & EVENT_UNAVAILABLE) != 0 ? EVENT_UNAVAILABLE : wanted & EVENT_RECOVERY;
    case SIM_NOTICE_MIG:
        return wanted & EVENT_MIG;
    case SIM_NOTICE_RECOVERY:
    case SIM_NOTICE_RESET:
        return wanted & EVENT_RECOVERY;
    default:
        return 0;
    }
}

/* With the lock held: the first notice after set->seen that the set wants. */
static bool take_event(struct nvml_call *call, struct nvmlEventSet_st *set, nvmlEventData_t *out)
{
    struct sim_notice notice;
    while (sim_notice_next(call->machine, set->seen, &notice) != 0) {
        set->seen = notice.sequence;
        if (notice.gpu >= SIM_MAX_GPUS || notice.sequence <= set->since[notice.gpu])
            continue;
        const uint64_t type = event_type(&notice, set->wanted[notice.gpu]);
        const nvmlDevice_t device = handle_of_row(notice.gpu);
        if (type == 0 || device == NULL)
            continue;
        *out = (nvmlEventData_t){
            .device = device,
            .type = type,
            .data = notice.value,
            .gpu_instance = notice.gpu_instance, /* SIM_NONE is what NVML says where there is no instance */
            .compute_instance = notice.compute_instance,
        };
        return true;
    }
    return false;
}

static uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec; /* neither is negative */
}

/* Not longer than this at one go, so that a set that is freed or a machine that ends lets its waiters go. */
#define WAIT_SLICE_NS UINT64_C(200000000)

static nvmlReturn_t wait_for_event(struct nvml_call *call, nvmlEventSet_t set, nvmlEventData_t *out, unsigned timeout_ms)
{
    const uint64_t deadline = monotonic_ns() + (uint64_t)timeout_ms * UINT64_C(1000000);
    pthread_mutex_lock(&sets_lock);
    if (!is_set(set)) {
        pthread_mutex_unlock(&sets_lock);
        return call_end(call, NVML_ERROR_INVALID_ARGUMENT);
    }
    set->waiting++;
    nvmlReturn_t result = NVML_ERROR_TIMEOUT;
    for (;;) {
        sim_machine_advance(call->machine); /* timed faults become notices when somebody looks */
        if (set->freed) {
            result = NVML_ERROR_INVALID_ARGUMENT;
            break;
        }
        if (take_event(call, set, out)) {
            result = NVML_SUCCESS;
            break;
        }
        const uint64_t now = monotonic_ns();
        if (now >= deadline)
            break;
        const uint64_t left = deadline - now;
        const uint64_t seen = set->seen;
        pthread_mutex_unlock(&sets_lock);
        struct sim_notice unused;
        sim_notice_wait(call->machine, seen, left < WAIT_SLICE_NS ? left : WAIT_SLICE_NS, &unused);
        pthread_mutex_lock(&sets_lock);
    }
    set->waiting--;
    sweep();
    pthread_mutex_unlock(&sets_lock);
    return call_end(call, result);
}

NVML_EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned timeout_ms)
{
    SYSTEM_CALL(call);
    REQUIRE(call, out != NULL);
    return wait_for_event(&call, set, out, timeout_ms);
}

NVML_EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_v1_t *out, unsigned timeout_ms)
{
    SYSTEM_CALL(call);
    REQUIRE(call, out != NULL);
    nvmlEventData_t wide = {0};
    if (wait_for_event(&call, set, &wide, timeout_ms) == NVML_SUCCESS)
        *out = (nvmlEventData_v1_t){.device = wide.device, .type = wide.type, .data = wide.data};
    return call.result;
}
