/* The process that is there all along: see survive() in crash_life.h. */
#include <unistd.h>

#include "crash_client.h"
#include "crash_life.h"

/* The step that failed, as a letter, by its device in upper or lower case; '0': none. */
static char still_alive(int device, CUcontext current, CUfunction function, uint64_t most)
{
    CUdeviceptr pointer, more;
    char first = device == 0 ? 'A' : 'a';
    if (CALL(cuCtxSetCurrent, (CUcontext))(current) != CUDA_SUCCESS)
        return first;
    if (allocate(&pointer, most) != CUDA_SUCCESS)
        return (char)(first + 1);
    if (allocate(&more, BLOCK) != CUDA_ERROR_OUT_OF_MEMORY)
        return (char)(first + 2);
    for (int i = 0; i < 3; i++)
        if (launch(function, NULL) != CUDA_SUCCESS)
            return (char)(first + 3);
    if (synchronize() != CUDA_SUCCESS)
        return (char)(first + 4);
    return release(pointer) == CUDA_SUCCESS ? '0' : (char)(first + 5);
}

void survive(int ask, int answer, uint64_t most)
{
    char word;
    CUfunction functions[DEVICES];
    CUcontext contexts[DEVICES];
    if (start() != 0)
        return;
    for (int device = 0; device < DEVICES; device++)
        if (CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&contexts[device], device) != CUDA_SUCCESS ||
            CALL(cuCtxSetCurrent, (CUcontext))(contexts[device]) != CUDA_SUCCESS ||
            find_kernel(&functions[device], "sim_us50") != 0)
            return;
    while (read(ask, &word, 1) == 1) {
        word = '0';
        for (int device = 0; device < DEVICES && word == '0'; device++)
            word = still_alive(device, contexts[device], functions[device], most);
        if (write(answer, &word, 1) != 1)
            return;
    }
}
