/*
 * How NVML begins: only looked at when it fails.
 */
#include "device_nodes.h"
#include "driver.h"

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
