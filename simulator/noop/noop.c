/* A driver that does nothing as fast as it can: what is measured on it is the caller and whatever sits in
 * front of the driver. One device with 80 GiB; allocations are addresses that nobody may touch. */
#define _GNU_SOURCE
#include "cuda_abi.h"

#include <string.h>

#define SIM_EXPORTED __attribute__((visibility("default")))
#define TOTAL_BYTES (UINT64_C(80) << 30)

int noop_look_up(const char *name, int version, uint64_t flags, void **address); /* entries.c */

static _Thread_local CUcontext current;
#define ADDRESSES_OF_A_THREAD (UINT64_C(1) << 32)
static uint64_t next_address = UINT64_C(0x100000000000); /* each allocation gets an address of its own */
static _Thread_local __attribute__((tls_model("initial-exec"))) uint64_t own_address, own_address_end; /* so that threads do not meet in the driver: who measures them means what lies in front of it */
static uint64_t next_handle = 0x1000;
static char the_context, the_module;
static struct { uint64_t word; } functions[64]; /* a name is one of these handles, always the same one */

/* relaxed, both: uniqueness is all that is wanted */
static uint64_t new_handle(void) { return __atomic_fetch_add(&next_handle, 16, __ATOMIC_RELAXED); }
static CUdeviceptr new_address(size_t bytes)
{
    uint64_t size = (bytes + 511) / 512 * 512;
    if (size > own_address_end - own_address) {
        uint64_t taken = size > ADDRESSES_OF_A_THREAD ? size : ADDRESSES_OF_A_THREAD;
        own_address = __atomic_fetch_add(&next_address, taken, __ATOMIC_RELAXED);
        own_address_end = own_address + taken;
    }
    own_address += size;
    return own_address - size;
}

#define GIVE(out, value) do { if (!(out)) return CUDA_ERROR_INVALID_VALUE; *(out) = (value); return CUDA_SUCCESS; } while (0)
#define HANDLE(type) ((type)(uintptr_t)new_handle()) /* never looked into */

SIM_EXPORTED CUresult CUDAAPI cuDriverGetVersion(int *version) { GIVE(version, 13000); }
SIM_EXPORTED CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    return symbol && pfn && noop_look_up(symbol, version, flags, pfn) == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
SIM_EXPORTED CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    if (!symbol || !pfn)
        return CUDA_ERROR_INVALID_VALUE;
    int found = noop_look_up(symbol, version, flags, pfn);
    if (found != 0 && status)
        *pfn = NULL;
    if (status)
        *status = (CUdriverProcAddressQueryResult)found; /* the same three values */
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGetExportTable(const void **table, const CUuuid *id) { (void)table; (void)id; return CUDA_ERROR_INVALID_VALUE; }
SIM_EXPORTED CUresult CUDAAPI cuGetErrorName(CUresult error, const char **text) { (void)error; GIVE(text, "CUDA_ERROR"); }
SIM_EXPORTED CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text) { (void)error; GIVE(text, "error"); }

SIM_EXPORTED CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) { GIVE(device, ordinal); }
SIM_EXPORTED CUresult CUDAAPI cuDeviceGetCount(int *count) { GIVE(count, 1); }
SIM_EXPORTED CUresult CUDAAPI cuDeviceGetName(char *name, int length, CUdevice device)
{
    (void)device;
    if (!name || length < 5)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(name, "noop", 5);
    return CUDA_SUCCESS;
}
/* GPU-00000000-0000-0000-0000-00000000000f */
static const CUuuid the_uuid = {.bytes = {[15] = 0x0f}};
SIM_EXPORTED CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { (void)device; GIVE(uuid, the_uuid); }
SIM_EXPORTED CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) { (void)device; GIVE(uuid, the_uuid); }
SIM_EXPORTED CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) { (void)device; GIVE(bytes, TOTAL_BYTES); }
SIM_EXPORTED CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    (void)device;
    int number = (int)which; /* enumerators are ints */
    GIVE(value, number == 16 ? 100 : number == 75 ? 9 : number == 39 ? 2048 : number == 1 ? 1024 : number == 10 ? 32 : 1);
}

/* Contexts: one, and each thread may have it current or not. */
#define CONTEXT ((CUcontext)(void *)&the_context) /* never looked into */
SIM_EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { (void)device; GIVE(context, CONTEXT); }
SIM_EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    (void)device;
    if (flags)
        *flags = 0;
    GIVE(active, 1);
}
static CUresult make_current(CUcontext *context) { current = CONTEXT; GIVE(context, CONTEXT); }
SIM_EXPORTED CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) { (void)flags; (void)device; return make_current(context); }
SIM_EXPORTED CUresult CUDAAPI cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned int flags, CUdevice device) { (void)params; (void)flags; (void)device; return make_current(context); }
SIM_EXPORTED CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) { current = context; return CUDA_SUCCESS; }
SIM_EXPORTED CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext context) { current = context; return CUDA_SUCCESS; }
SIM_EXPORTED CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *context)
{
    if (context)
        *context = current;
    current = NULL;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuCtxGetCurrent(CUcontext *context) { GIVE(context, current); }
SIM_EXPORTED CUresult CUDAAPI cuCtxGetDevice(CUdevice *device) { GIVE(device, 0); }
SIM_EXPORTED CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext context) { (void)context; GIVE(device, 0); }
SIM_EXPORTED CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = 0;
    GIVE(greatest, -5);
}

/* Memory: addresses and no limits. */
SIM_EXPORTED CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) { GIVE(address, new_address(bytes)); }
SIM_EXPORTED CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    (void)element;
    if (!pitch)
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = (width + 511) / 512 * 512;
    GIVE(address, new_address(*pitch * height));
}
SIM_EXPORTED CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags) { (void)flags; GIVE(address, new_address(bytes)); }
SIM_EXPORTED CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) { (void)stream; GIVE(address, new_address(bytes)); }
SIM_EXPORTED CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream) { (void)stream; GIVE(address, new_address(bytes)); }
SIM_EXPORTED CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) { (void)pool; (void)stream; GIVE(address, new_address(bytes)); }
SIM_EXPORTED CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) { (void)pool; (void)stream; GIVE(address, new_address(bytes)); }
SIM_EXPORTED CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    if (!free_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *free_bytes = TOTAL_BYTES;
    GIVE(total_bytes, TOTAL_BYTES);
}
SIM_EXPORTED CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *props, unsigned long long flags) { (void)size; (void)props; (void)flags; GIVE(handle, new_handle()); }
SIM_EXPORTED CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *props, CUmemAllocationGranularity_flags which) { (void)props; (void)which; GIVE(granularity, 2u << 20); }
SIM_EXPORTED CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wish, unsigned long long flags) { (void)alignment; (void)wish; (void)flags; GIVE(address, new_address(size)); }
SIM_EXPORTED CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) { (void)device; GIVE(pool, (CUmemoryPool)(void *)&the_context); /* never looked into */ }
SIM_EXPORTED CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) { (void)device; GIVE(pool, (CUmemoryPool)(void *)&the_context); }
SIM_EXPORTED CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) { (void)props; GIVE(pool, HANDLE(CUmemoryPool)); }
SIM_EXPORTED CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void *value) { (void)pool; (void)which; GIVE((cuuint64_t *)value, 0); }
SIM_EXPORTED CUresult CUDAAPI cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor) { (void)descriptor; GIVE(array, HANDLE(CUarray)); }
SIM_EXPORTED CUresult CUDAAPI cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) { (void)descriptor; GIVE(array, HANDLE(CUarray)); }

/* Functions: a name always gives the same handle, as far as 64 handles go. */
static CUfunction function_of(const char *name)
{
    unsigned hash = 5381;
    while (*name)
        hash = hash * 33 + (unsigned char)*name++;
    return (CUfunction)(void *)&functions[hash % 64]; /* never looked into */
}
SIM_EXPORTED CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image) { (void)image; GIVE(module, (CUmodule)(void *)&the_module); }
SIM_EXPORTED CUresult CUDAAPI cuModuleLoad(CUmodule *module, const char *path) { (void)path; GIVE(module, (CUmodule)(void *)&the_module); }
SIM_EXPORTED CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) { (void)module; if (!name) return CUDA_ERROR_INVALID_VALUE; GIVE(function, function_of(name)); }
SIM_EXPORTED CUresult CUDAAPI cuFuncGetName(const char **name, CUfunction function) { (void)function; GIVE(name, "noop"); }
SIM_EXPORTED CUresult CUDAAPI cuFuncGetModule(CUmodule *module, CUfunction function) { (void)function; GIVE(module, (CUmodule)(void *)&the_module); }
SIM_EXPORTED CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function) { (void)which; (void)function; GIVE(value, 32); }
SIM_EXPORTED CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values, unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count)
{
    (void)code;
    (void)jit;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    GIVE(library, (CUlibrary)(void *)&the_module);
}
SIM_EXPORTED CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) { (void)library; if (!name) return CUDA_ERROR_INVALID_VALUE; GIVE(kernel, (CUkernel)(void *)function_of(name)); }
SIM_EXPORTED CUresult CUDAAPI cuKernelGetName(const char **name, CUkernel kernel) { (void)kernel; GIVE(name, "noop"); }
SIM_EXPORTED CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel kernel) { GIVE(function, (CUfunction)(void *)kernel); }
SIM_EXPORTED CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared) { (void)function; (void)threads; (void)shared; GIVE(blocks, 2); }

/* Streams and events: everything is done at once; a measured span is 10 us, so that divisions by it work. */
SIM_EXPORTED CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned int flags) { (void)flags; GIVE(stream, HANDLE(CUstream)); }
SIM_EXPORTED CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) { (void)flags; (void)priority; GIVE(stream, HANDLE(CUstream)); }
SIM_EXPORTED CUresult CUDAAPI cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) { (void)stream; GIVE(status, CU_STREAM_CAPTURE_STATUS_NONE); }
SIM_EXPORTED CUresult CUDAAPI cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status) { (void)stream; GIVE(status, CU_STREAM_CAPTURE_STATUS_NONE); }
SIM_EXPORTED CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) { (void)stream; (void)id; GIVE(status, CU_STREAM_CAPTURE_STATUS_NONE); }
SIM_EXPORTED CUresult CUDAAPI cuStreamGetCtx(CUstream stream, CUcontext *context) { (void)stream; GIVE(context, CONTEXT); }
SIM_EXPORTED CUresult CUDAAPI cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context) { (void)stream; GIVE(context, CONTEXT); }
SIM_EXPORTED CUresult CUDAAPI cuStreamGetFlags(CUstream stream, unsigned int *flags) { (void)stream; GIVE(flags, 0); }
SIM_EXPORTED CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned int flags) { (void)flags; GIVE(event, HANDLE(CUevent)); }
SIM_EXPORTED CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) { (void)start; (void)end; GIVE(milliseconds, 0.01f); }
SIM_EXPORTED CUresult CUDAAPI cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) { (void)start; (void)end; GIVE(milliseconds, 0.01f); }

/* Graphs: empty ones that are run at once. */
SIM_EXPORTED CUresult CUDAAPI cuGraphCreate(CUgraph *graph, unsigned int flags) { (void)flags; GIVE(graph, HANDLE(CUgraph)); }
SIM_EXPORTED CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph *graph) { (void)stream; GIVE(graph, HANDLE(CUgraph)); }
SIM_EXPORTED CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) { (void)graph; (void)flags; GIVE(exec, HANDLE(CUgraphExec)); }
SIM_EXPORTED CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) { (void)graph; (void)nodes; GIVE(count, 0); }
SIM_EXPORTED CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS_v2 *params) { (void)graph; (void)after; (void)count; (void)params; GIVE(node, HANDLE(CUgraphNode)); }
