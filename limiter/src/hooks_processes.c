/*
 * NVML's lists of processes: a Pod sees its own. An entry is kept if its pid is
 * that of a live slot, as the host has it where the daemon has found that out,
 * or as this PID namespace has it; it is then told as the Pod knows it. What
 * nobody knows is hidden, which is the side to err on.
 */
#include <string.h>

#include "attach.h"
#include "driver.h"
#include "messages.h"
#include "process.h"
#include "os.h"

#define BUFFER_BYTES (UINT32_C(64) << 10)

/* Entries of both layouts begin with the pid. */
#define ENTRY_BYTES_V1 16 /* pid, bytes */
#define ENTRY_BYTES_V2 24 /* pid, bytes, GPU instance, compute instance */

typedef int list_type(nvmlDevice_t device, unsigned int *count, void *entries);

/* Which pids a list has: of the host, or, as some drivers do it, of the namespace
 * of who asks. */
enum pids { PIDS_OF_NAMESPACE, PIDS_OF_HOST };

static bool is_live(const struct hv_slot_table *slots, uint32_t index)
{
    return hv_slot_may_be_used(slots, index) &&
           (hv_load_acquire(&hv_slot_at(slots, index)->state) & 0xff) == HV_SLOT_LIVE;
}

static bool is_host_pid(const struct hv_slot_table *slots, uint32_t pid)
{
    for (uint32_t i = 0; i < HV_PROCESS_SLOTS; i++)
        if (is_live(slots, i) && hv_load_relaxed(&hv_slot_at(slots, i)->host_pid) == pid)
            return true;
    return false;
}

/* The pid that the Pod has for this process; 0: it is none of the Pod's. */
static uint32_t own_pid(const struct hv_slot_table *slots, uint32_t pid_namespace, uint32_t pid, enum pids pids)
{
    for (uint32_t i = 0; i < HV_PROCESS_SLOTS; i++) {
        if (!is_live(slots, i))
            continue;
        const struct hv_process_slot *slot = hv_slot_at(slots, i);
        uint64_t owner = hv_load_relaxed(&slot->owner);
        uint64_t host_pid = pids == PIDS_OF_HOST ? hv_load_relaxed(&slot->host_pid) : 0;
        if (host_pid != 0 ? host_pid == pid : owner == hv_slot_owner(pid_namespace, pid))
            return (uint32_t)owner; /* its low half is the pid */
    }
    return 0;
}

/* Rows of a list: how long each is, and where in it the pid stands. */
struct rows {
    size_t bytes;
    size_t pid_offset;
};

static uint32_t pid_of(const unsigned char *entry, struct rows rows)
{
    uint32_t pid;
    memcpy(&pid, entry + rows.pid_offset, sizeof pid);
    return pid;
}

/* Move the Pod's entries to the front; how many there are. */
static unsigned int keep_own(unsigned char *entries, unsigned int count, struct rows rows)
{
    struct hv_os_process self;
    hv_os_this_process(&self);
    enum pids pids = PIDS_OF_NAMESPACE;
    for (unsigned int i = 0; i < count && pids == PIDS_OF_NAMESPACE; i++)
        pids = is_host_pid(&hv_files()->slots, pid_of(entries + i * rows.bytes, rows)) ? PIDS_OF_HOST : PIDS_OF_NAMESPACE;
    unsigned int kept = 0;
    for (unsigned int i = 0; i < count; i++) {
        unsigned char *entry = entries + i * rows.bytes;
        uint32_t pid = own_pid(&hv_files()->slots, self.pid_namespace, pid_of(entry, rows), pids);
        if (pid == 0)
            continue;
        memcpy(entry + rows.pid_offset, &pid, sizeof pid);
        memmove(entries + kept++ * rows.bytes, entry, rows.bytes);
    }
    return kept;
}

static int own_processes(list_type *real, nvmlDevice_t device, unsigned int *count, void *entries, size_t entry_bytes)
{
    if (count == NULL || hv_attach() != HV_ATTACH_DONE)
        return real(device, count, entries);
    unsigned char *all = hv_os_pages(BUFFER_BYTES);
    unsigned int found = BUFFER_BYTES / (unsigned int)entry_bytes;
    int result = all == NULL ? NVML_ERROR_INSUFFICIENT_SIZE : real(device, &found, all);
    if (result == NVML_SUCCESS) {
        unsigned int room = *count;
        *count = keep_own(all, found, (struct rows){.bytes = entry_bytes});
        if (*count > room || (*count != 0 && entries == NULL))
            result = NVML_ERROR_INSUFFICIENT_SIZE; /* with the number that there are, as NVML does */
        else if (*count != 0)
            memcpy(entries, all, *count * entry_bytes);
    }
    if (all != NULL)
        hv_os_free_pages(all, BUFFER_BYTES);
    return result;
}

#define LIST(name, entry_bytes)                                                                                       \
    HV_WRAP(name, (nvmlDevice_t device, unsigned int *count, void *entries))                                          \
    {                                                                                                                 \
        return own_processes(HV_REAL(name), device, count, entries, entry_bytes);                                     \
    }

LIST(nvmlDeviceGetComputeRunningProcesses, ENTRY_BYTES_V1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, ENTRY_BYTES_V2)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, ENTRY_BYTES_V2)
LIST(nvmlDeviceGetGraphicsRunningProcesses, ENTRY_BYTES_V1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, ENTRY_BYTES_V2)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, ENTRY_BYTES_V2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, ENTRY_BYTES_V1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, ENTRY_BYTES_V2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, ENTRY_BYTES_V2)

/* ---- lists that the program's own buffer holds: filtered where they lie ---- */

/* A count that only asks for room stays the whole machine's: there is enough. */
static int filtered(int result, unsigned char *entries, unsigned int *count, struct rows rows)
{
    if (result == NVML_SUCCESS && entries != NULL && count != NULL && hv_attach() == HV_ATTACH_DONE)
        *count = keep_own(entries, *count, rows);
    return result;
}

static const struct rows detail_rows = {.bytes = 32};                          /* pid, bytes, instances, protected bytes */
static const struct rows sample_rows = {.bytes = 32};                          /* pid, time, four engines */
static const struct rows utilization_rows = {.bytes = 40, .pid_offset = 8};    /* time, pid, six engines */
static const struct rows pid_rows = {.bytes = sizeof(unsigned int)};

HV_WRAP(nvmlDeviceGetRunningProcessDetailList, (nvmlDevice_t device, nvmlProcessDetailList_t *list))
{
    int result = HV_REAL(nvmlDeviceGetRunningProcessDetailList)(device, list);
    return list == NULL ? result : filtered(result, list->processes, &list->count, detail_rows);
}

HV_WRAP(nvmlDeviceGetProcessUtilization,
        (nvmlDevice_t device, void *samples, unsigned int *count, unsigned long long since))
{
    return filtered(HV_REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, since), samples, count,
                    sample_rows);
}

HV_WRAP(nvmlDeviceGetProcessesUtilizationInfo, (nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *list))
{
    int result = HV_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, list);
    return list == NULL ? result : filtered(result, list->processes, &list->count, utilization_rows);
}

/* Of processes that have ended nothing tells whose they were: they are hidden. */
HV_WRAP(nvmlDeviceGetAccountingPids, (nvmlDevice_t device, unsigned int *count, unsigned int *pids))
{
    return filtered(HV_REAL(nvmlDeviceGetAccountingPids)(device, count, pids), (unsigned char *)pids, count, pid_rows);
}

/* The driver's pid of a process that the Pod knows by this one, first of all in
 * this PID namespace; 0: the Pod has none. */
static uint32_t pid_for_driver(uint32_t pid)
{
    const struct hv_slot_table *slots = &hv_files()->slots;
    struct hv_os_process self;
    uint64_t elsewhere = 0;
    hv_os_this_process(&self);
    for (uint32_t i = 0; i < HV_PROCESS_SLOTS; i++) {
        if (!is_live(slots, i))
            continue;
        uint64_t owner = hv_load_relaxed(&hv_slot_at(slots, i)->owner);
        uint64_t host_pid = hv_load_relaxed(&hv_slot_at(slots, i)->host_pid);
        if (owner == hv_slot_owner(self.pid_namespace, pid))
            return host_pid != 0 ? (uint32_t)host_pid : pid; /* pids have 32 bits */
        if ((uint32_t)owner == pid) /* its low half is the pid */
            elsewhere = host_pid;
    }
    return (uint32_t)elsewhere;
}

HV_WRAP(nvmlDeviceGetAccountingStats, (nvmlDevice_t device, unsigned int pid, void *told))
{
    uint32_t asked = hv_attach() == HV_ATTACH_DONE ? pid_for_driver(pid) : pid;
    if (asked == 0)
        return NVML_ERROR_NOT_FOUND;
    return HV_REAL(nvmlDeviceGetAccountingStats)(device, asked, told);
}

/* The process that is asked for is named at the start of the answer's place. */
HV_WRAP(nvmlDeviceGetAccountingStats_v2, (nvmlDevice_t device, unsigned int *told))
{
    if (told == NULL || hv_attach() != HV_ATTACH_DONE)
        return HV_REAL(nvmlDeviceGetAccountingStats_v2)(device, told);
    unsigned int pid = *told;
    uint32_t asked = pid_for_driver(pid);
    if (asked == 0)
        return NVML_ERROR_NOT_FOUND;
    *told = asked;
    int result = HV_REAL(nvmlDeviceGetAccountingStats_v2)(device, told);
    *told = pid;
    return result;
}

/* ---- private tables ---- */

/* nvidia-smi takes its table of processes from one; no wrapper sees what is called through it. */
HV_WRAP(nvmlInternalGetExportTable, (const void **table, const unsigned char *id))
{
    int result = HV_REAL(nvmlInternalGetExportTable)(table, id);
    struct hv_process *process = result == NVML_SUCCESS && hv_attach() == HV_ATTACH_DONE ? hv_process() : NULL;
    if (process != NULL && hv_add_acq_rel_32(&process->told_of_nvml_tables, 1) == 0)
        hv_tell(HV_MESSAGE_EXPORT_TABLE,
                "NVML handed out a private table of functions: what it lists is the whole card's, not the Pod's");
    return result;
}
