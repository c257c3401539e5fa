/* The profiler's switches, the driver's log of errors and its notifications: there is no profiler, nothing is ever logged, and nothing notified. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

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

/* Of an empty log a dump is an empty file. */
SIM_EXPORTED CUresult CUDAAPI cuLogsDumpToFile(unsigned int *position, const char *path, unsigned int flags)
{
    ENTER();
    (void)position;
    if (!path || flags)
        return CUDA_ERROR_INVALID_VALUE;
    int saved = errno;
    FILE *file = fopen(path, "we");
    int written = file && fclose(file) == 0;
    errno = saved;
    return written ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

/* Notifications tell of a budget of memory that this system does not set: they can be asked for, and none ever comes. */
struct notification { uint32_t kind, device; };

SIM_EXPORTED CUresult CUDAAPI cuDeviceRegisterAsyncNotification(CUdevice device, void *callback, void *data, struct notification **out)
{
    ENTER_DEVICE(device);
    (void)data;
    if (!callback || !out)
        return CUDA_ERROR_INVALID_VALUE;
    struct notification *made = malloc(sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct notification){HANDLE_NOTIFICATION, (uint32_t)device}; /* checked: not negative */
    *out = made;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuDeviceUnregisterAsyncNotification(CUdevice device, struct notification *notification)
{
    ENTER_DEVICE(device);
    if (!notification || notification->kind != HANDLE_NOTIFICATION || notification->device != (uint32_t)device) /* checked: not negative */
        return CUDA_ERROR_INVALID_VALUE;
    notification->kind = HANDLE_DEAD; /* it keeps its memory, so that a use after this is an error and not a crash */
    return CUDA_SUCCESS;
}
