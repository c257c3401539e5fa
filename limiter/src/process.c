#include "process.h"

#include <stddef.h>

#include "driver.h"
#include "messages.h"
#include "thread.h"

__thread struct hv_thread hv_thread __attribute__((tls_model("initial-exec")));

static struct hv_process *published;

struct hv_process *hv_process(void)
{
    struct hv_process *process = __atomic_load_n(&published, __ATOMIC_ACQUIRE);
    if (hv_likely(process != NULL))
        return process;
    struct hv_process *fresh = hv_os_pages_wiped_on_fork(sizeof *fresh);
    if (fresh == NULL)
        return NULL;
    if (__atomic_compare_exchange_n(&published, &process, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return fresh;
    hv_os_free_pages(fresh, sizeof *fresh); /* another thread was faster */
    return process;
}

struct judge {
    struct hv_os_process self;
};

/* Dead, and ours to judge? A slot with our own identity that is not our own is
 * from the program that this process was before exec. */
static bool is_dead(const struct hv_slot_identity *owner, void *context)
{
    const struct judge *judge = context;
    uint32_t pid_namespace = (uint32_t)(owner->owner >> 32);
    uint32_t pid = (uint32_t)owner->owner;
    if (owner->owner == 0)
        return true; /* taken by nobody yet */
    if (pid_namespace != judge->self.pid_namespace)
        return false;
    if (pid == judge->self.pid && owner->start_time != 0)
        return true;
    return hv_os_process_life(pid, owner->start_time) == HV_OS_DEAD;
}

/* Without /proc there is no start time, and a slot with our pid can be any
 * process's: nothing then tells an image before exec from another. */
static struct judge make_judge(void)
{
    struct judge judge;
    hv_os_this_process(&judge.self);
    return judge;
}

static int32_t claim(struct hv_process *process, const struct hv_files *files)
{
    struct judge judge = make_judge();
    process->self = (struct hv_slot_identity){
        .owner = hv_slot_owner(judge.self.pid_namespace, judge.self.pid),
        .start_time = judge.self.start_time,
    };
    if (hv_slots_reap(&files->slots, &process->self, is_dead, &judge) != 0)
        hv_store_relaxed_32(&process->to_heal, 1);
    return hv_slots_claim(&files->slots, &process->self, hv_os_now_ns());
}

HV_NOINLINE struct hv_process_slot *hv_process_slot_slowly(struct hv_process *process)
{
    while (__atomic_exchange_n(&process->claiming, 1, __ATOMIC_ACQUIRE) != 0)
        hv_os_yield();
    struct hv_process_slot *slot = process->slot;
    if (slot == NULL) {
        const struct hv_files *files = hv_files();
        int32_t index = claim(process, files);
        if (index >= 0) {
            slot = hv_slot_at(&files->slots, (uint32_t)index);
            hv_thread.kept_stripe = 0; /* a number from before fork is of the parent's threads */
            hv_kept_count_processes(&process->kept, &files->slots);
            hv_store_relaxed(&process->epoch, process->self.owner ^ (process->self.start_time << 20) ^ 1);
            __atomic_store_n(&process->slot, slot, __ATOMIC_RELEASE);
        } else {
            hv_tell(HV_MESSAGE_SLOTS_EXHAUSTED,
                    "all %d process slots of this allocation are taken; end some of its processes", HV_PROCESS_SLOTS);
        }
    }
    hv_store_release_32(&process->claiming, 0);
    return slot;
}

/* Our own slot stays: the judge takes it for one from before exec. */
static bool is_dead_and_not_us(const struct hv_slot_identity *owner, void *context)
{
    const struct judge *judge = context;
    return (uint32_t)owner->owner != judge->self.pid && is_dead(owner, context);
}

void hv_process_reap(struct hv_process *process)
{
    struct judge judge = make_judge();
    (void)hv_slots_reap(&hv_files()->slots, &process->self, is_dead_and_not_us, &judge);
}

/* ---- identity of devices ---- */

static bool ask_uuid(CUdevice ordinal, CUuuid *uuid)
{
    /* The second version tells MIG instances apart. */
    hv_call_type_cuDeviceGetUuid_v2 ask = HV_DRIVER(cuDeviceGetUuid_v2);
    if (ask == NULL)
        ask = HV_DRIVER(cuDeviceGetUuid);
    return ask != NULL && ask(uuid, ordinal) == CUDA_SUCCESS;
}

uint32_t hv_process_device(struct hv_process *process, CUdevice ordinal)
{
    if (ordinal < 0 || ordinal >= HV_ORDINALS)
        return HV_MAX_DEVICES;
    uint64_t known = hv_load_relaxed(&process->ordinals[ordinal]);
    if (hv_likely(known != 0 && known >> 8 == (hv_generation(hv_files()) & (UINT64_MAX >> 8))))
        return (uint32_t)(known & 0xff) - 1;
    CUuuid uuid;
    if (!ask_uuid(ordinal, &uuid))
        return HV_MAX_DEVICES; /* unknown is not ours; asked again the next time */
    uint64_t generation;
    uint32_t device = hv_device_by_uuid(hv_files(), uuid.bytes, &generation);
    hv_store_relaxed(&process->ordinals[ordinal], generation << 8 | (device + 1));
    return device;
}

bool hv_device_is_known(const struct hv_process *process, CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < HV_ORDINALS && hv_load_relaxed(&process->ordinals[ordinal]) != 0;
}

bool hv_current_ordinal(CUdevice *ordinal, CUresult *result)
{
    *result = CUDA_SUCCESS;
    if (!hv_thread.ordinal_known) {
        hv_call_type_cuCtxGetDevice ask = HV_DRIVER(cuCtxGetDevice);
        CUdevice found;
        if (ask == NULL)
            return false;
        *result = ask(&found);
        if (*result != CUDA_SUCCESS)
            return false;
        hv_thread_context_is_on(found);
    }
    *ordinal = hv_thread.ordinal;
    return true;
}
