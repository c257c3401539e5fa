/* The profiler's switches and the driver's log of errors: there is no profiler, and nothing is ever logged. */
#define _GNU_SOURCE
#include "driver.h"

SIM_EXPORTED CUresult CUDAAPI cuProfilerStart(void) { ENTER(); return CUDA_SUCCESS; }
SIM_EXPORTED CUresult CUDAAPI cuProfilerStop(void) { ENTER(); return CUDA_SUCCESS; }

static char registration; /* its address is what every registration gets */

SIM_EXPORTED CUresult CUDAAPI cuLogsRegisterCallback(void *callback, void *data, void **handle)
{
    ENTER();
    (void)data;
    if (!callback)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle)
        *handle = &registration;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuLogsUnregisterCallback(void *handle) { ENTER(); return handle == &registration ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
SIM_EXPORTED CUresult CUDAAPI cuLogsCurrent(unsigned int *position, unsigned int flags)
{
    ENTER();
    if (!position || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *position = 0;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuLogsDumpToMemory(unsigned int *position, char *text, size_t *size, unsigned int flags)
{
    ENTER();
    (void)position;
    if (!text || !size || !*size || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *text = 0;
    *size = 0;
    return CUDA_SUCCESS;
}
