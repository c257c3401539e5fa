#include "sampler_events.h"

#include "driver.h"

int hv_events_enter(void)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    hv_call_type_cuThreadExchangeStreamCaptureMode exchange = HV_DRIVER(cuThreadExchangeStreamCaptureMode);
    if (exchange == NULL || exchange(&mode) != CUDA_SUCCESS)
        return -1;
    return mode;
}

void hv_events_leave(int mode)
{
    if (mode >= 0)
        (void)HV_DRIVER(cuThreadExchangeStreamCaptureMode)(&mode); /* it worked a moment ago */
}

bool hv_events_are_there(void)
{
    return HV_DRIVER(cuEventCreate) != NULL && HV_DRIVER(cuEventQuery) != NULL && HV_DRIVER(cuEventRecord) != NULL &&
           HV_DRIVER(cuEventElapsedTime) != NULL && HV_DRIVER(cuEventDestroy_v2) != NULL &&
           HV_DRIVER(cuCtxGetCurrent) != NULL;
}

bool hv_events_capturing(CUstream stream, bool per_thread)
{
    hv_call_type_cuStreamIsCapturing ask =
        per_thread ? HV_DRIVER(cuStreamIsCapturing_ptsz) : HV_DRIVER(cuStreamIsCapturing);
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (ask == NULL)
        return false; /* a driver without capture */
    /* The legacy stream answers with an error while others are captured. */
    return ask(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool hv_events_idle(CUstream stream, bool per_thread)
{
    hv_call_type_cuStreamQuery ask = per_thread ? HV_DRIVER(cuStreamQuery_ptsz) : HV_DRIVER(cuStreamQuery);
    return ask != NULL && ask(stream) == CUDA_SUCCESS;
}

bool hv_events_record(CUevent event, CUstream stream, bool per_thread)
{
    hv_call_type_cuEventRecord do_record = per_thread ? HV_DRIVER(cuEventRecord_ptsz) : HV_DRIVER(cuEventRecord);
    return do_record != NULL && do_record(event, stream) == CUDA_SUCCESS;
}
