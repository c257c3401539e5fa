/* What the simulator's own tests share: a check, a machine to test on, children, and the driver's prototypes. */
#ifndef SIM_TEST_RIG_H
#define SIM_TEST_RIG_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core.h"
#include "cuda_abi.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1); \
        } \
    } while (0)
#define SAME(have, want) \
    do { \
        long long have_ = (long long)(have), want_ = (long long)(want); \
        if (have_ != want_) { \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #have, have_, want_); \
            _exit(1); \
        } \
    } while (0)
#define OK(call) SAME((call), 0)

#define MIB (UINT64_C(1) << 20)
#define MS UINT64_C(1000000)

static char machine_path[256];

/* A machine of small GPUs: 10 SMs, 1 GiB, 64 MiB a context, nothing reserved. */
__attribute__((unused)) static struct sim_machine *new_machine(const char *name, uint32_t gpus, uint32_t clock, uint32_t mps)
{
    static struct sim_description description; /* too large for a stack */
    sim_description_defaults(&description);
    description.gpu_count = gpus;
    description.system.clock_mode = clock;
    for (uint32_t i = 0; i < gpus; i++) {
        struct sim_gpu_info *gpu = &description.gpus[i];
        snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-00000000-0000-0000-0000-%012x", i + 1);
        snprintf(gpu->name, sizeof gpu->name, "Test GPU %u", i);
        gpu->sm_count = 10;
        gpu->max_threads_per_sm = 1024;
        gpu->max_blocks_per_sm = 16;
        gpu->registers_per_sm = 65536;
        gpu->shared_bytes_per_sm = 102400;
        gpu->shared_bytes_per_block_optin = 101376;
        gpu->cc_major = 9;
        gpu->pci_bus = 0x10 + i;
        gpu->memory_total_bytes = 1024 * MIB;
        gpu->context_bytes = 64 * MIB;
        gpu->mps = mps;
    }
    snprintf(machine_path, sizeof machine_path, "./%s-%d.machine", name, (int)getpid());
    unlink(machine_path);
    struct sim_machine *machine = NULL;
    OK(sim_machine_create(machine_path, &description));
    OK(sim_machine_attach(machine_path, &machine));
    CHECK(setenv("SIM_MACHINE", machine_path, 1) == 0);
    return machine;
}

__attribute__((unused)) static void sound(struct sim_machine *machine)
{
    char text[4096];
    if (sim_machine_check(machine, text, sizeof text) != 0) {
        fprintf(stderr, "the machine is not sound:\n%s", text);
        _exit(1);
    }
}

__attribute__((unused)) static void ended_well(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    SAME(status, 0);
}

/* Waits, without a fixed sleep, until `condition` holds; 20 s are the deadline. */
#define UNTIL(condition) \
    do { \
        struct timespec pause_ = {0, 1000000}; \
        int rounds_ = 20000; \
        while (!(condition) && rounds_-- > 0) \
            nanosleep(&pause_, NULL); \
        CHECK(condition); \
    } while (0)

CUresult cuInit(unsigned int flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetExportTable(const void **table, const CUuuid *id);
CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags);
CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status);
CUresult cuGetErrorName(CUresult error, const char **text);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGetName(char *name, int length, CUdevice device);
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device);
CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuCtxPushCurrent_v2(CUcontext context);
CUresult cuCtxPopCurrent_v2(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuCtxSynchronize(void);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element);
CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags);
CUresult cuMemFree_v2(CUdeviceptr address);
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address);
CUresult cuMemAllocHost_v2(void **pointer, size_t bytes);
CUresult cuMemFreeHost(void *pointer);
CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *flat);
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count);
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count);
CUresult cuPointerGetAttribute(void *out, CUpointer_attribute which, CUdeviceptr address);
CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *props, CUmemAllocationGranularity_flags which);
CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *props, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle number);
CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wish, unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr address, size_t size);
CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle number, unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr address, size_t size);
CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count);
CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle number, CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *shared, CUmemAllocationHandleType type);
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr address);
CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *flat);
CUresult cuArrayDestroy(CUarray array);
CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels);
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuFuncGetName(const char **name, CUfunction function);
CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z);
CUresult cuLaunchGrid(CUfunction function, int width, int height);
CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters, void **extra);
CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters, void **extra);
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra);
CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *argument);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status);
CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS_v2 *params);
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr address);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuDeviceGraphMemTrim(CUdevice device);
CUresult cuGraphExecDestroy(CUgraphExec exec);

/* A current primary context of device 0 and a kernel of so many microseconds. */
__attribute__((unused)) static CUfunction ready_kernel(const char *name)
{
    CUcontext context;
    CUmodule module;
    CUfunction function;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, "\x7f" "ELF any image will do"));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

struct test_case {
    const char *name;
    void (*run)(void);
};

/* Each case as a process with a fresh machine of its own, which the child finds in *machine; 0 when all are well. */
__attribute__((unused)) static int run_cases(const struct test_case *cases, size_t count, struct sim_machine **machine,
                                             const char *name, uint32_t gpus, uint32_t mps)
{
    CHECK(setenv("SIM_GROUP", "driver", 1) == 0);
    for (size_t i = 0; i < count; i++) {
        *machine = new_machine(name, gpus, SIM_CLOCK_REAL, mps);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            cases[i].run();
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (status != 0) {
            fprintf(stderr, "case '%s' ended with status %#x\n", cases[i].name, (unsigned)status);
            return 1;
        }
        sound(*machine);
        SAME((*machine)->gpu[0].used_bytes, 0); /* whatever it left behind is gone with it */
        sim_machine_detach(*machine);
        unlink(machine_path);
    }
    return 0;
}

/* `blocks` of 1024 threads: one block fills one of the ten SMs. */
__attribute__((unused)) static CUresult launch(CUfunction function, unsigned blocks, CUstream stream)
{
    return cuLaunchKernel(function, blocks, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL);
}

#endif
