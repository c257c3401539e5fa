/* A CUDA runtime for tests: the public runtime interface over the driver's. It reaches the driver as the real one does
 * (dlopen, one dlsym, then a recorded list of queries), so that whatever stands between program and driver sees the
 * true traffic. It imitates no authentication: it works on the simulated driver, and is no runtime for a real one.
 *
 * The runtime's error codes are the driver's numbers. */
#ifndef SIM_CUDART_H
#define SIM_CUDART_H

#include "cuda_abi.h"

#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))
#define RUNTIME_VERSION 13000
#define MAX_DEVICES 64

typedef int cudaError_t;
enum { CUDA_ERROR_INSUFFICIENT_DRIVER = 35, MISSING_CONFIGURATION = 52, INVALID_SYMBOL = 13, INVALID_DEVICE_FUNCTION = 98 }; /* the runtime's own */
typedef struct { unsigned x, y, z; } dim3;

/* Every driver function that is called here, under the name and version that the runtime asks for. */
#define DRIVER_FUNCTIONS(X) \
    X(cuInit, "cuInit", 2000, (unsigned)) \
    X(cuDriverGetVersion, "cuDriverGetVersion", 2020, (int *)) \
    X(cuGetErrorName, "cuGetErrorName", 6000, (CUresult, const char **)) \
    X(cuGetErrorString, "cuGetErrorString", 6000, (CUresult, const char **)) \
    X(cuDeviceGet, "cuDeviceGet", 2000, (CUdevice *, int)) \
    X(cuDeviceGetCount, "cuDeviceGetCount", 2000, (int *)) \
    X(cuDeviceGetName, "cuDeviceGetName", 2000, (char *, int, CUdevice)) \
    X(cuDeviceTotalMem, "cuDeviceTotalMem", 3020, (size_t *, CUdevice)) \
    X(cuDeviceGetUuid, "cuDeviceGetUuid", 9020, (CUuuid *, CUdevice)) \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000, (int *, CUdevice_attribute, CUdevice)) \
    X(cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId", 4010, (char *, int, CUdevice)) \
    X(cuDeviceGetByPCIBusId, "cuDeviceGetByPCIBusId", 4010, (CUdevice *, const char *)) \
    X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000, (int *, CUdevice, CUdevice)) \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, (CUmemoryPool *, CUdevice)) \
    X(cuDeviceGetMemPool, "cuDeviceGetMemPool", 11020, (CUmemoryPool *, CUdevice)) \
    X(cuDeviceSetMemPool, "cuDeviceSetMemPool", 11020, (CUdevice, CUmemoryPool)) \
    X(cuDeviceGetGraphMemAttribute, "cuDeviceGetGraphMemAttribute", 11040, (CUdevice, CUgraphMem_attribute, void *)) \
    X(cuDeviceSetGraphMemAttribute, "cuDeviceSetGraphMemAttribute", 11040, (CUdevice, CUgraphMem_attribute, void *)) \
    X(cuDeviceGraphMemTrim, "cuDeviceGraphMemTrim", 11040, (CUdevice)) \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, (CUcontext *, CUdevice)) \
    X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, (CUdevice)) \
    X(cuDevicePrimaryCtxGetState, "cuDevicePrimaryCtxGetState", 7000, (CUdevice, unsigned *, int *)) \
    X(cuDevicePrimaryCtxSetFlags, "cuDevicePrimaryCtxSetFlags", 11000, (CUdevice, unsigned)) \
    X(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, (CUcontext *)) \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, (CUcontext)) \
    X(cuCtxGetDevice, "cuCtxGetDevice", 2000, (CUdevice *)) \
    X(cuCtxSynchronize, "cuCtxSynchronize", 2000, (void)) \
    X(cuCtxGetLimit, "cuCtxGetLimit", 3010, (size_t *, CUlimit)) \
    X(cuCtxSetLimit, "cuCtxSetLimit", 3010, (CUlimit, size_t)) \
    X(cuCtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", 5050, (int *, int *)) \
    X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000, (CUcontext, unsigned)) \
    X(cuCtxDisablePeerAccess, "cuCtxDisablePeerAccess", 4000, (CUcontext)) \
    X(cuLibraryLoadData, "cuLibraryLoadData", 12000, (CUlibrary *, const void *, CUjit_option *, void **, unsigned, CUlibraryOption *, void **, unsigned)) \
    X(cuLibraryUnload, "cuLibraryUnload", 12000, (CUlibrary)) \
    X(cuLibraryGetKernel, "cuLibraryGetKernel", 12000, (CUkernel *, CUlibrary, const char *)) \
    X(cuLibraryGetGlobal, "cuLibraryGetGlobal", 12000, (CUdeviceptr *, size_t *, CUlibrary, const char *)) \
    X(cuKernelSetAttribute, "cuKernelSetAttribute", 12000, (CUfunction_attribute, int, CUkernel, CUdevice)) \
    X(cuFuncGetAttribute, "cuFuncGetAttribute", 2020, (int *, CUfunction_attribute, CUfunction)) \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", 9000, (CUfunction, CUfunction_attribute, int)) \
    X(cuLaunchKernel, "cuLaunchKernel", 4000, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", 11060, (const CUlaunchConfig *, CUfunction, void **, void **)) \
    X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", 9000, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **)) \
    X(cuLaunchHostFunc, "cuLaunchHostFunc", 10000, (CUstream, CUhostFn, void *)) \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 7000, (int *, CUfunction, int, size_t, unsigned)) \
    X(cuMemGetInfo, "cuMemGetInfo", 3020, (size_t *, size_t *)) \
    X(cuMemAlloc, "cuMemAlloc", 3020, (CUdeviceptr *, size_t)) \
    X(cuMemAllocPitch, "cuMemAllocPitch", 3020, (CUdeviceptr *, size_t *, size_t, size_t, unsigned)) \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000, (CUdeviceptr *, size_t, unsigned)) \
    X(cuMemFree, "cuMemFree", 3020, (CUdeviceptr)) \
    X(cuMemHostAlloc, "cuMemHostAlloc", 2020, (void **, size_t, unsigned)) \
    X(cuMemFreeHost, "cuMemFreeHost", 2000, (void *)) \
    X(cuMemHostRegister, "cuMemHostRegister", 6050, (void *, size_t, unsigned)) \
    X(cuMemHostUnregister, "cuMemHostUnregister", 4000, (void *)) \
    X(cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer", 3020, (CUdeviceptr *, void *, unsigned)) \
    X(cuPointerGetAttribute, "cuPointerGetAttribute", 4000, (void *, CUpointer_attribute, CUdeviceptr)) \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020, (CUdeviceptr *, size_t, CUstream)) \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, (CUdeviceptr, CUstream)) \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020, (CUmemoryPool *, const CUmemPoolProps *)) \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, (CUmemoryPool)) \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, (CUmemoryPool, size_t)) \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, (CUmemoryPool, CUmemPool_attribute, void *)) \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020, (CUmemoryPool, CUmemPool_attribute, void *)) \
    X(cuMemPoolSetAccess, "cuMemPoolSetAccess", 11020, (CUmemoryPool, const CUmemAccessDesc *, size_t)) \
    X(cuMemcpyHtoD, "cuMemcpyHtoD", 3020, (CUdeviceptr, const void *, size_t)) \
    X(cuMemcpyDtoH, "cuMemcpyDtoH", 3020, (void *, CUdeviceptr, size_t)) \
    X(cuMemcpyDtoD, "cuMemcpyDtoD", 3020, (CUdeviceptr, CUdeviceptr, size_t)) \
    X(cuMemcpy, "cuMemcpy", 4000, (CUdeviceptr, CUdeviceptr, size_t)) \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync", 3020, (CUdeviceptr, const void *, size_t, CUstream)) \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync", 3020, (void *, CUdeviceptr, size_t, CUstream)) \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync", 3020, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    X(cuMemcpyAsync, "cuMemcpyAsync", 4000, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
    X(cuMemcpyPeerAsync, "cuMemcpyPeerAsync", 4000, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t, CUstream)) \
    X(cuMemcpy2DUnaligned, "cuMemcpy2DUnaligned", 3020, (const CUDA_MEMCPY2D *)) \
    X(cuMemcpy2DAsync, "cuMemcpy2DAsync", 3020, (const CUDA_MEMCPY2D *, CUstream)) \
    X(cuMemsetD8, "cuMemsetD8", 3020, (CUdeviceptr, unsigned char, size_t)) \
    X(cuMemsetD8Async, "cuMemsetD8Async", 3020, (CUdeviceptr, unsigned char, size_t, CUstream)) \
    X(cuEventCreate, "cuEventCreate", 2000, (CUevent *, unsigned)) \
    X(cuEventDestroy, "cuEventDestroy", 4000, (CUevent)) \
    X(cuEventRecord, "cuEventRecord", 2000, (CUevent, CUstream)) \
    X(cuEventRecordWithFlags, "cuEventRecordWithFlags", 11010, (CUevent, CUstream, unsigned)) \
    X(cuEventQuery, "cuEventQuery", 2000, (CUevent)) \
    X(cuEventSynchronize, "cuEventSynchronize", 2000, (CUevent)) \
    X(cuEventElapsedTime, "cuEventElapsedTime", 2000, (float *, CUevent, CUevent)) \
    X(cuStreamCreate, "cuStreamCreate", 2000, (CUstream *, unsigned)) \
    X(cuStreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, (CUstream *, unsigned, int)) \
    X(cuStreamDestroy, "cuStreamDestroy", 4000, (CUstream)) \
    X(cuStreamGetPriority, "cuStreamGetPriority", 5050, (CUstream, int *)) \
    X(cuStreamGetFlags, "cuStreamGetFlags", 5050, (CUstream, unsigned *)) \
    X(cuStreamQuery, "cuStreamQuery", 2000, (CUstream)) \
    X(cuStreamSynchronize, "cuStreamSynchronize", 2000, (CUstream)) \
    X(cuStreamWaitEvent, "cuStreamWaitEvent", 3020, (CUstream, CUevent, unsigned)) \
    X(cuStreamAddCallback, "cuStreamAddCallback", 5000, (CUstream, CUstreamCallback, void *, unsigned)) \
    X(cuStreamBeginCapture, "cuStreamBeginCapture", 10010, (CUstream, CUstreamCaptureMode)) \
    X(cuStreamBeginCaptureToGraph, "cuStreamBeginCaptureToGraph", 12030, (CUstream, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t, CUstreamCaptureMode)) \
    X(cuStreamEndCapture, "cuStreamEndCapture", 10000, (CUstream, CUgraph *)) \
    X(cuStreamIsCapturing, "cuStreamIsCapturing", 10000, (CUstream, CUstreamCaptureStatus *)) \
    X(cuStreamGetCaptureInfo, "cuStreamGetCaptureInfo", 12030, (CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **, const CUgraphEdgeData **, size_t *)) \
    X(cuStreamUpdateCaptureDependencies, "cuStreamUpdateCaptureDependencies", 12030, (CUstream, CUgraphNode *, const CUgraphEdgeData *, size_t, unsigned)) \
    X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, (CUstreamCaptureMode *)) \
    X(cuIpcGetEventHandle, "cuIpcGetEventHandle", 4010, (CUipcEventHandle *, CUevent)) \
    X(cuIpcOpenEventHandle, "cuIpcOpenEventHandle", 4010, (CUevent *, CUipcEventHandle)) \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, (CUipcMemHandle *, CUdeviceptr)) \
    X(cuIpcOpenMemHandle, "cuIpcOpenMemHandle", 11000, (CUdeviceptr *, CUipcMemHandle, unsigned)) \
    X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, (CUdeviceptr)) \
    X(cuGraphCreate, "cuGraphCreate", 10000, (CUgraph *, unsigned)) \
    X(cuGraphDestroy, "cuGraphDestroy", 10000, (CUgraph)) \
    X(cuGraphAddNode, "cuGraphAddNode", 12030, (CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t, CUgraphNodeParams *)) \
    X(cuGraphGetNodes, "cuGraphGetNodes", 10000, (CUgraph, CUgraphNode *, size_t *)) \
    X(cuGraphNodeGetType, "cuGraphNodeGetType", 10000, (CUgraphNode, CUgraphNodeType *)) \
    X(cuGraphNodeGetDependencies, "cuGraphNodeGetDependencies", 12030, (CUgraphNode, CUgraphNode *, CUgraphEdgeData *, size_t *)) \
    X(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, (CUgraphExec *, CUgraph, unsigned long long)) \
    X(cuGraphExecUpdate, "cuGraphExecUpdate", 12000, (CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo *)) \
    X(cuGraphUpload, "cuGraphUpload", 11010, (CUgraphExec, CUstream)) \
    X(cuGraphLaunch, "cuGraphLaunch", 10000, (CUgraphExec, CUstream)) \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", 10000, (CUgraphExec)) \
    X(cuGraphRetainUserObject, "cuGraphRetainUserObject", 11030, (CUgraph, CUuserObject, unsigned, unsigned)) \
    X(cuGraphConditionalHandleCreate, "cuGraphConditionalHandleCreate", 12030, (CUgraphConditionalHandle *, CUgraph, CUcontext, unsigned, unsigned)) \
    X(cuUserObjectCreate, "cuUserObjectCreate", 11030, (CUuserObject *, void *, CUhostFn, unsigned, unsigned)) \
    X(cuUserObjectRetain, "cuUserObjectRetain", 11030, (CUuserObject, unsigned)) \
    X(cuUserObjectRelease, "cuUserObjectRelease", 11030, (CUuserObject, unsigned)) \
    X(cuProfilerStart, "cuProfilerStart", 4000, (void)) \
    X(cuProfilerStop, "cuProfilerStop", 4000, (void))

struct runtime_driver {
#define MEMBER(member, name, version, parameters) CUresult (CUDAAPI *member) parameters;
    DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
    CUresult (CUDAAPI *look_up)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
};
extern struct runtime_driver driver;

/* The driver is there and initialised; else the error that every call then gives. */
cudaError_t sim_runtime_ready(void);
/* Also: a context of this thread's device is current. */
cudaError_t sim_runtime_enter(void);
int sim_runtime_device(void);
cudaError_t sim_runtime_use(int device);
CUcontext sim_runtime_context(int device); /* NULL: it could not be made */
/* Keeps an error for cudaGetLastError, and hands it on. "Not ready" is none. */
cudaError_t sim_runtime_told(cudaError_t error);

/* registration.c: the kernel or variable that a program's own address stands for */
cudaError_t sim_runtime_kernel(const void *host, CUkernel *out);
cudaError_t sim_runtime_variable(const void *host, CUdeviceptr *address, size_t *size);

/* The body of nearly every function: a context is current, then one call of the driver. */
#define THROUGH(call) do { cudaError_t entered_ = sim_runtime_enter(); return sim_runtime_told(entered_ ? entered_ : (cudaError_t)driver.call); } while (0)

/* Device addresses are ordinary addresses of this process: the two integer types have the same width. */
static inline CUdeviceptr number_of(const void *pointer) { return (CUdeviceptr)(uintptr_t)pointer; }

#endif
