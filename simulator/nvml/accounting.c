/* Accounting: what each process used, also after its end. The ring keeps the last SIM_ACCOUNTING_ITEMS ended ones. */
#include <stdlib.h>

#include "library.h"

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned *mode)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    return give_u32(&call, mode, reading.info.accounting_mode);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t device, unsigned mode)
{
    DEVICE_CALL(call, device);
    struct sim_gpu_reading reading;
    REQUIRE(call, mode <= 1);
    if (change_begin(&call, &reading) != NVML_SUCCESS)
        return call.result;
    reading.info.accounting_mode = mode;
    if (mode == 0)
        sim_clear_accounting(call.machine, (uint32_t)call.gpu); /* a row: checked on entry */
    return change_end(&call, &reading.info);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceClearAccountingPids(nvmlDevice_t device)
{
    DEVICE_CALL(call, device);
    struct sim_gpu_reading reading;
    if (change_begin(&call, &reading) != NVML_SUCCESS)
        return call.result;
    sim_clear_accounting(call.machine, (uint32_t)call.gpu);
    return call_end(&call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAccountingBufferSize(nvmlDevice_t device, unsigned *size)
{
    DEVICE_CALL(call, device);
    return give_u32(&call, size, SIM_ACCOUNTING_ITEMS + SIM_MAX_PROCESSES); /* ended and running ones */
}

/* Running and ended processes, newest record of a pid first; *count of them in memory to be freed, or NULL. */
static struct sim_accounting *records(struct nvml_call *call, unsigned *count, unsigned *running)
{
    const uint32_t gpu = (uint32_t)call->gpu; /* a row: checked on entry */
    uint32_t alive = 0;
    struct sim_process_reading *processes = call_processes(call, gpu, &alive);
    struct sim_accounting *found = malloc((SIM_ACCOUNTING_ITEMS + SIM_MAX_PROCESSES) * sizeof *found);
    if (processes == NULL || found == NULL) {
        free(processes);
        free(found);
        call_end(call, NVML_ERROR_MEMORY);
        return NULL;
    }
    for (uint32_t at = 0; at < alive; at++)
        found[at] = (struct sim_accounting){
            .pid = processes[at].pid, .started_ns = processes[at].registered_ns, .busy_ns = processes[at].usage.busy_ns,
            .peak_bytes = processes[at].usage.peak_bytes};
    free(processes);
    *running = alive;
    *count = alive + sim_read_accounting(call->machine, gpu, found + alive, SIM_ACCOUNTING_ITEMS);
    return found;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, count != NULL);
    if (reading.info.accounting_mode == 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    unsigned found = 0, running = 0, kept = 0;
    struct sim_accounting *rows = records(&call, &found, &running);
    if (rows == NULL)
        return call.result;
    for (unsigned at = 0; at < found; at++) {
        unsigned before = 0;
        while (before < at && rows[before].pid != rows[at].pid)
            before++;
        if (before < at) /* a pid that was used again: only its newest record counts */
            continue;
        if (pids != NULL && kept < *count)
            pids[kept] = (unsigned)rows[at].pid; /* positive */
        kept++;
    }
    free(rows);
    const bool fits = pids != NULL ? kept <= *count : *count == 0 && kept == 0;
    *count = kept;
    return call_end(&call, fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *out)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, out != NULL);
    if (reading.info.accounting_mode == 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    unsigned found = 0, running = 0, at = 0;
    struct sim_accounting *rows = records(&call, &found, &running);
    if (rows == NULL)
        return call.result;
    while (at < found && (unsigned)rows[at].pid != pid) /* positive */
        at++;
    if (at == found) {
        free(rows);
        return call_end(&call, NVML_ERROR_NOT_FOUND);
    }
    const bool runs = at < running;
    const uint64_t lived = (runs ? reading.now_ns : rows[at].ended_ns) - rows[at].started_ns;
    *out = (nvmlAccountingStats_t){
        .gpu = call_u32(&call, lived == 0 ? 0 : (uint32_t)((rows[at].busy_ns * 100 + lived / 2) / lived)), /* at most 100 */
        .peak_bytes = call_further_u64(&call, rows[at].peak_bytes),
        .time_ms = runs ? 0 : lived / 1000000, /* not told before the end */
        .start_us = call_time_us(&call, rows[at].started_ns),
        .running = runs,
    };
    free(rows);
    return call_end(&call, NVML_SUCCESS);
}
