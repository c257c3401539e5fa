/*
 * How CUDA and NVML begin, and what CUDA hands out privately.
 */
#include "device_nodes.h"
#include "driver.h"
#include "memory.h"
#include "messages.h"

HV_WRAP(cuInit, (unsigned int flags))
{
    if (hv_attach_state() == HV_ATTACH_REFUSED)
        (void)hv_attach_again(); /* the program tries again, so do we */
    CUresult refused;
    struct hv_process *process = hv_limited_process(&refused);
    if (process == NULL && refused != CUDA_SUCCESS)
        return refused;
    if (process != NULL && hv_process_slot(process) == NULL)
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (process != NULL)
        hv_memory_heal(process);
    CUresult result = HV_REAL(cuInit)(flags);
    if (result != CUDA_SUCCESS)
        hv_tell_lost_nodes();
    return result;
}

/* Functions of a private table are not wrapped, and NVIDIA's own runtime takes
 * some in every program; the daemon hears of it once a process. */
HV_WRAP(cuGetExportTable, (const void **table, const CUuuid *id))
{
    CUresult result = HV_REAL(cuGetExportTable)(table, id);
    if (result != CUDA_SUCCESS || hv_attach() != HV_ATTACH_DONE)
        return result;
    struct hv_process *process = hv_process();
    if (process != NULL && hv_add_acq_rel_32(&process->told_of_tables, 1) == 0)
        hv_tell(HV_MESSAGE_EXPORT_TABLE, "the driver handed out a private table of functions, which the limiter doesn't see");
    return result;
}

/* ---- NVML: only looked at when it fails ---- */

static int looked_at(int result)
{
    if (result != NVML_SUCCESS)
        hv_tell_lost_nodes();
    return result;
}

HV_WRAP(nvmlInit, (void))
{
    return looked_at(HV_REAL(nvmlInit)());
}

HV_WRAP(nvmlInit_v2, (void))
{
    return looked_at(HV_REAL(nvmlInit_v2)());
}

HV_WRAP(nvmlInitWithFlags, (unsigned int flags))
{
    return looked_at(HV_REAL(nvmlInitWithFlags)(flags));
}
