/* See crash_life.h. What this driver does not have is left out. */
#define _GNU_SOURCE
#include "crash_life.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "crash_client.h"
#include "elf_symbols.h"
#include "nvml_abi.h"

#define ABSURD (UINT64_C(1) << 50)

void (*daemon_measures)(void);

int cuInit(unsigned int flags); /* linked: the road without a lookup */

/* ---- the parts of a life ---- */

static int plain_memory(void)
{
    CUdeviceptr small[8], large, pitched, managed, before_3_2;
    size_t pitch;
    for (int i = 0; i < 8; i++)
        MUST(allocate(&small[i], BLOCK));
    MUST(allocate(&large, 200 * MIB));
    MUST(CALL(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned int))(&pitched, &pitch, 1000, 1000, 4));
    MUST(CALL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned int))(&managed, 10 * MIB, 1));
    if (allocate(&before_3_2, ABSURD) != CUDA_ERROR_OUT_OF_MEMORY) /* looks for all that is spare */
        return 1;
    MUST(release(large));
    for (int i = 0; i < 8; i++)
        MUST(release(small[i]));
    MUST(release(pitched));
    MUST(release(managed));
    if (release(12345) == CUDA_SUCCESS)
        return 1;
    return 0;
}

static void *on_another_thread(void *argument)
{
    CUdeviceptr pointer;
    (void)argument;
    if (CALL(cuCtxSetCurrent, (CUcontext))(context) == 0 && allocate(&pointer, 8192) == 0)
        (void)release(pointer);
    return NULL;
}

static int stream_memory(void)
{
    CUdeviceptr pointer;
    CUmemoryPool pool;
    CUmemPoolProps properties = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    MUST(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&pointer, 40 * MIB, stream));
    MUST(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(pointer, stream));
    MUST(CALL(cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))(&pool, &properties));
    MUST(CALL(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))(&pointer, 3 * MIB, pool, stream));
    MUST(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(pointer, stream));
    MUST(synchronize());
    MUST(CALL(cuMemPoolTrimTo, (CUmemoryPool, size_t))(pool, 0));
    MUST(CALL(cuMemPoolDestroy, (CUmemoryPool))(pool));
    MUST(allocate(&pointer, 5 * MIB));
    MUST(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(pointer, stream)); /* plain, freed in order */
    MUST(synchronize());
    return 0;
}

/* By descriptor, twice: the second time nothing but the descriptor holds it. */
static int give_out_and_take_back(void)
{
    CUmemGenericAllocationHandle handle, again;
    CUmemAllocationProp properties = {.type = 1, .requestedHandleTypes = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    int descriptor;
    MUST(CALL(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))(
        &handle, 2 * MIB, &properties, 0));
    MUST(CALL(cuMemExportToShareableHandle, (void *, CUmemGenericAllocationHandle, int, unsigned long long))(
        &descriptor, handle, 1, 0));
    for (int i = 0; i < 2; i++) {
        MUST(CALL(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *, void *, int))(
            &again, (void *)(intptr_t)descriptor, 1)); /* the interface carries it in the pointer */
        if (i == 0)
            MUST(CALL(cuMemRelease, (CUmemGenericAllocationHandle))(handle));
        MUST(CALL(cuMemRelease, (CUmemGenericAllocationHandle))(again));
    }
    return close(descriptor);
}

static int physical_memory(void)
{
    CUmemGenericAllocationHandle handle, again;
    CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUdeviceptr address;
    size_t bytes = 4 * MIB;
    MUST(CALL(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))(
        &handle, bytes, &properties, 0));
    MUST(CALL(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))(&address, bytes, 0, 0, 0));
    MUST(CALL(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))(address, bytes, 0, handle, 0));
    MUST(CALL(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *, void *))(&again, (void *)(uintptr_t)address));
    MUST(CALL(cuMemRelease, (CUmemGenericAllocationHandle))(handle));
    MUST(CALL(cuMemRelease, (CUmemGenericAllocationHandle))(again));
    MUST(give_out_and_take_back());
    MUST(CALL(cuMemUnmap, (CUdeviceptr, size_t))(address, bytes));
    return 0;
}

static int arrays_and_host_memory(void)
{
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR descriptor = {.Width = 256, .Height = 256, .Format = 0x20, .NumChannels = 1};
    void *host;
    MUST(CALL(cuArrayCreate_v2, (CUarray *, const CUDA_ARRAY_DESCRIPTOR *))(&array, &descriptor));
    MUST(CALL(cuArrayDestroy, (CUarray))(array));
    MUST(CALL(cuMemAllocHost_v2, (void **, size_t))(&host, MIB));
    MUST(CALL(cuMemFreeHost, (void *))(host));
    return 0;
}

/* A graph with an allocation of its own. */
static int make_graph(CUgraph *made, CUgraphExec *executable, CUfunction function, size_t bytes)
{
    CUdeviceptr pointer;
    MUST(CALL(cuStreamBeginCapture_v2, (CUstream, int))(stream, 2));
    MUST(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&pointer, bytes, stream));
    MUST(launch(function, stream));
    MUST(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(pointer, stream));
    MUST(CALL(cuStreamEndCapture, (CUstream, CUgraph *))(stream, made));
    MUST(CALL(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))(executable, *made, 0));
    return 0;
}

/* Launched, updated, refused, and taken apart. */
static int graph(CUfunction function)
{
    CUgraph made, larger;
    CUgraphExec executable, refused;
    CUdeviceptr pointer;
    size_t left, total;
    int result_of_update[8];
    MUST(make_graph(&made, &executable, function, 6 * MIB));
    MUST(make_graph(&larger, &refused, function, 300 * MIB));
    for (int i = 0; i < 3; i++) {
        MUST(CALL(cuGraphLaunch, (CUgraphExec, CUstream))(executable, stream));
        MUST(synchronize());
    }
    MUST(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&left, &total));
    MUST(allocate(&pointer, left - 50 * MIB));
    if (CALL(cuGraphLaunch, (CUgraphExec, CUstream))(refused, stream) != CUDA_ERROR_OUT_OF_MEMORY)
        return 1;
    MUST(release(pointer));
    MUST(CALL(cuGraphExecDestroy, (CUgraphExec))(refused));
    (void)CALL(cuGraphExecUpdate, (CUgraphExec, CUgraph, void *, int *))(executable, made, NULL, result_of_update);
    MUST(CALL(cuGraphExecDestroy, (CUgraphExec))(executable));
    MUST(CALL(cuDeviceGraphMemTrim, (CUdevice))(0));
    return 0;
}

/* Enough work to be measured, published, made to wait and paid for. */
static int work(CUfunction quick, CUfunction slow)
{
    for (int i = 0; i < 12; i++) {
        MUST(launch(quick, stream));
        MUST(synchronize());
    }
    for (int i = 0; i < 30; i++)
        MUST(launch(i % 3 == 0 ? slow : quick, i % 2 == 0 ? stream : NULL));
    MUST(synchronize());
    CUdeviceptr pointer;
    MUST(allocate(&pointer, MIB));
    for (int i = 0; i < 3; i++)
        MUST(CALL(cuMemsetD8_v2, (CUdeviceptr, unsigned char, size_t))(pointer, 0, MIB));
    MUST(release(pointer));
    return 0;
}

static int look_around(void)
{
    size_t left, total;
    nvmlDevice_t device;
    nvmlUtilization_t utilization;
    const void *table;
    static const unsigned char id[16] = {1};
    MUST(CALL(cuMemGetInfo_v2, (size_t *, size_t *))(&left, &total));
    (void)CALL(cuGetExportTable, (const void **, const unsigned char *))(&table, id);
    MUST(ASK(nvmlInit_v2, (void))());
    MUST(ASK(nvmlDeviceGetHandleByIndex_v2, (unsigned int, nvmlDevice_t *))(0, &device));
    for (int i = 0; i < 2; i++)
        MUST(ASK(nvmlDeviceGetUtilizationRates, (nvmlDevice_t, nvmlUtilization_t *))(device, &utilization));
    return 0;
}

static int another_context(void)
{
    CUcontext second;
    MUST(CALL(cuCtxCreate_v2, (CUcontext *, unsigned int, CUdevice))(&second, 0, 0));
    MUST(CALL(cuCtxDestroy_v2, (CUcontext))(second));
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    return 0;
}

/* ---- whole lives ---- */

/* The context as a runtime makes it that takes the driver's functions from a table of its own. */
static int retain_unseen(void)
{
    struct hv_module module;
    if (!hv_module_named("libcuda.so", &module))
        return 1;
    /* Its type is that of the wrapper. */
    int (*retain)(CUcontext *, CUdevice) = (int (*)(CUcontext *, CUdevice))hv_module_symbol(&module, "cuDevicePrimaryCtxRetain");
    return retain == NULL || retain(&context, 0) != CUDA_SUCCESS;
}

static int ordinary_life(void)
{
    CUfunction quick, slow, shortest;
    pthread_t thread;
    CUdeviceptr left_over;
    MUST(start());
    MUST(find_kernel(&quick, "sim_us50"));
    MUST(find_kernel(&slow, "sim_us4000"));
    MUST(find_kernel(&shortest, "sim_us1"));
    MUST(launch(shortest, stream));
    MUST(synchronize());
    MUST(plain_memory());
    daemon_measures();
    MUST(pthread_create(&thread, NULL, on_another_thread, NULL));
    MUST(pthread_join(thread, NULL));
    MUST(stream_memory());
    MUST(physical_memory());
    MUST(arrays_and_host_memory());
    MUST(graph(quick));
    MUST(work(quick, slow));
    MUST(work(quick, shortest));
    MUST(look_around());
    MUST(another_context());
    MUST(allocate(&left_over, 32 * MIB)); /* goes with its context */
    MUST(CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))(0));
    MUST(retain_unseen());
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(context));
    MUST(allocate(&left_over, 16 * MIB)); /* goes with the process */
    return 0;
}

#define LONG_LIFE_NS UINT64_C(400000000)

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int long_life(void)
{
    CUfunction function;
    CUstream others[3];
    CUdeviceptr pointer;
    uint64_t began;
    MUST(start());
    MUST(find_kernel(&function, "sim_us200"));
    for (int i = 0; i < 3; i++)
        MUST(CALL(cuStreamCreate, (CUstream *, unsigned int))(&others[i], 1));
    MUST(allocate(&pointer, MIB));
    MUST(look_around());
    began = now_ns();
    for (uint32_t i = 0; now_ns() - began < LONG_LIFE_NS; i++)
        MUST(launch(function, others[i % 3]));
    MUST(look_around());
    return 0;
}

static int two_devices_life(void)
{
    CUfunction function[DEVICES];
    CUcontext contexts[DEVICES];
    CUdeviceptr pointer, of_a_pool, others;
    MUST(start());
    contexts[0] = context;
    MUST(CALL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))(&contexts[1], 1));
    for (int i = 0; i < DEVICES; i++) {
        MUST(CALL(cuCtxSetCurrent, (CUcontext))(contexts[i]));
        MUST(find_kernel(&function[i], "sim_us50"));
    }
    MUST(allocate(&others, 60 * MIB));
    for (int i = 0; i < 24; i++) {
        MUST(CALL(cuCtxSetCurrent, (CUcontext))(contexts[i % DEVICES]));
        MUST(launch(function[i % DEVICES], NULL));
        MUST(synchronize());
        MUST(allocate(&pointer, 40 * MIB));
        if (i < 22) /* the last of each device goes with the process */
            MUST(release(pointer));
    }
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(contexts[0]));
    MUST(release(others)); /* of the device that is not this thread's */
    MUST(CALL(cuCtxSetCurrent, (CUcontext))(contexts[1]));
    MUST(CALL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))(&of_a_pool, 40 * MIB, NULL));
    MUST(CALL(cuMemFreeAsync, (CUdeviceptr, CUstream))(of_a_pool, NULL));
    MUST(synchronize());
    if (allocate(&pointer, ABSURD) != CUDA_ERROR_OUT_OF_MEMORY)
        return 1;
    MUST(CALL(cuDevicePrimaryCtxReset_v2, (CUdevice))(1));
    return 0;
}

static int refused_life(void)
{
    (void)setenv("TF_SHM_PATH", "/nowhere/at/all", 1);
    (void)setenv("TF_ISOLATION_MODE", "soft", 1);
    (void)setenv("TF_LIMITER_WAIT_MS", "0", 1);
    MUST(open_libraries());
    return CALL(cuInit, (unsigned int))(0) == CUDA_ERROR_SYSTEM_NOT_READY ? 0 : 1;
}

static void unlimit(void)
{
    (void)unsetenv("TF_SHM_PATH");
    (void)unsetenv("TF_ISOLATION_MODE");
}

static int free_life(void)
{
    unlimit();
    return start();
}

static int free_linked_life(void)
{
    unlimit();
    return cuInit(0);
}

int live(enum life life)
{
    static int (*const lives[LIVES])(void) = {ordinary_life, long_life, two_devices_life,
                                              refused_life,  free_life, free_linked_life};
    return lives[life]();
}
