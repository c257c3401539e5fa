/* See crash_client.h. */
#define _GNU_SOURCE
#include "crash_client.h"

#include <dlfcn.h>
#include <unistd.h>

void *driver, *management;
CUcontext context;
CUstream stream;

void *look_up(void *library, const char *name)
{
    void *function = dlsym(library, name);
    if (function == NULL) {
        fprintf(stderr, "crash_client: there is no %s\n", name);
        _exit(2);
    }
    return function;
}

int allocate(CUdeviceptr *pointer, size_t bytes)
{
    return CALL(cuMemAlloc_v2, (CUdeviceptr *, size_t))(pointer, bytes);
}

int release(CUdeviceptr pointer)
{
    return CALL(cuMemFree_v2, (CUdeviceptr))(pointer);
}

int open_libraries(void)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    management = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    return driver == NULL || management == NULL;
}

int start(void)
{
    MUST(open_libraries());
    MUST(CALL(cuInit, (unsigned int))(0));
    MUST(CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&context, 0));
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    MUST(CALL(cuStreamCreate, (CUstream *, unsigned int))(&stream, 1));
    return 0;
}

int find_kernel(CUfunction *function, const char *name)
{
    void *module;
    MUST(CALL(cuModuleLoadData, (void **, const void *))(&module, ".version 7.0\n.target sm_70\n.address_size 64\n"));
    MUST(CALL(cuModuleGetFunction, (CUfunction *, void *, const char *))(function, module, name));
    return 0;
}

int launch(CUfunction function, CUstream on)
{
    return CALL(cuLaunchKernel, (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                                 unsigned int, unsigned int, CUstream, void **, void **))(function, 1, 1, 1, 32, 1, 1,
                                                                                          0, on, NULL, NULL);
}

int synchronize(void)
{
    return CALL(cuCtxSynchronize, (void))();
}
