/* Devices and their properties. */
#define _GNU_SOURCE
#include "cudart.h"

#include <string.h>

/* The public structure of the 13 series, member by member. */
struct cudaDeviceProp {
    char name[256];
    CUuuid uuid;
    char luid[8];
    unsigned luidDeviceNodeMask;
    size_t totalGlobalMem, sharedMemPerBlock;
    int regsPerBlock, warpSize;
    size_t memPitch;
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
    size_t totalConstMem;
    int major, minor;
    size_t textureAlignment, texturePitchAlignment;
    int multiProcessorCount, integrated, canMapHostMemory;
    int maxTexture1D, maxTexture1DMipmap, maxTexture2D[2], maxTexture2DMipmap[2], maxTexture2DLinear[3], maxTexture2DGather[2], maxTexture3D[3],
        maxTexture3DAlt[3], maxTextureCubemap, maxTexture1DLayered[2], maxTexture2DLayered[3], maxTextureCubemapLayered[2];
    int maxSurface1D, maxSurface2D[2], maxSurface3D[3], maxSurface1DLayered[2], maxSurface2DLayered[3], maxSurfaceCubemap, maxSurfaceCubemapLayered[2];
    size_t surfaceAlignment;
    int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver, asyncEngineCount, unifiedAddressing, memoryBusWidth, l2CacheSize,
        persistingL2CacheMaxSize, maxThreadsPerMultiProcessor, streamPrioritiesSupported, globalL1CacheSupported, localL1CacheSupported;
    size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID, hostNativeAtomicSupported, pageableMemoryAccess,
        concurrentManagedAccess, computePreemptionSupported, canUseHostPointerForRegisteredMem, cooperativeLaunch;
    size_t sharedMemPerBlockOptin;
    int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost, maxBlocksPerMultiProcessor, accessPolicyMaxWindowSize;
    size_t reservedSharedMemPerBlock;
    int hostRegisterSupported, sparseCudaArraySupported, hostRegisterReadOnlySupported, timelineSemaphoreInteropSupported, memoryPoolsSupported,
        gpuDirectRDMASupported;
    unsigned gpuDirectRDMAFlushWritesOptions;
    int gpuDirectRDMAWritesOrdering;
    unsigned memoryPoolSupportedHandleTypes;
    int deferredMappingCudaArraySupported, ipcEventSupported, clusterLaunch, unifiedFunctionPointers, deviceNumaConfig, deviceNumaId, mpsEnabled, hostNumaId;
    unsigned gpuPciDeviceID, gpuPciSubsystemID;
    int hostNumaMultinodeIpcSupported;
    int reserved[56];
};

static cudaError_t checked(int device)
{
    int count = 0;
    cudaError_t error = sim_runtime_ready();
    if (!error)
        error = (cudaError_t)driver.cuDeviceGetCount(&count);
    return error ? error : device < 0 || device >= count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

#define ON_DEVICE(device, call) do { cudaError_t checked_ = checked(device); return sim_runtime_told(checked_ ? checked_ : (cudaError_t)driver.call); } while (0)

EXPORTED cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t error = sim_runtime_ready();
    if (count)
        *count = 0;
    if (!count)
        error = CUDA_ERROR_INVALID_VALUE;
    return sim_runtime_told(error ? error : (cudaError_t)driver.cuDeviceGetCount(count));
}

EXPORTED cudaError_t cudaGetDevice(int *device)
{
    cudaError_t error = sim_runtime_ready();
    if (!error && !device)
        error = CUDA_ERROR_INVALID_VALUE;
    if (!error)
        *device = sim_runtime_device();
    return sim_runtime_told(error);
}

EXPORTED cudaError_t cudaDeviceGetAttribute(int *value, int which, int device) { ON_DEVICE(device, cuDeviceGetAttribute(value, (CUdevice_attribute)which, device)); } /* the same numbers */
EXPORTED cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) { ON_DEVICE(device, cuDeviceGetPCIBusId(text, length, device)); }
EXPORTED cudaError_t cudaDeviceCanAccessPeer(int *answer, int device, int peer) { ON_DEVICE(device, cuDeviceCanAccessPeer(answer, device, peer)); }
EXPORTED cudaError_t cudaDeviceGetDefaultMemPool(CUmemoryPool *pool, int device) { ON_DEVICE(device, cuDeviceGetDefaultMemPool(pool, device)); }
EXPORTED cudaError_t cudaDeviceGetMemPool(CUmemoryPool *pool, int device) { ON_DEVICE(device, cuDeviceGetMemPool(pool, device)); }
EXPORTED cudaError_t cudaDeviceSetMemPool(int device, CUmemoryPool pool) { ON_DEVICE(device, cuDeviceSetMemPool(device, pool)); }
EXPORTED cudaError_t cudaDeviceGetGraphMemAttribute(int device, int which, void *value) { ON_DEVICE(device, cuDeviceGetGraphMemAttribute(device, (CUgraphMem_attribute)which, value)); } /* the same numbers */
EXPORTED cudaError_t cudaDeviceSetGraphMemAttribute(int device, int which, void *value) { ON_DEVICE(device, cuDeviceSetGraphMemAttribute(device, (CUgraphMem_attribute)which, value)); }
EXPORTED cudaError_t cudaDeviceGraphMemTrim(int device) { ON_DEVICE(device, cuDeviceGraphMemTrim(device)); }
EXPORTED cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text) { THROUGH(cuDeviceGetByPCIBusId(device, text)); }
EXPORTED cudaError_t cudaDeviceSynchronize(void) { THROUGH(cuCtxSynchronize()); }
EXPORTED cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { THROUGH(cuCtxGetStreamPriorityRange(least, greatest)); }
EXPORTED cudaError_t cudaDeviceGetLimit(size_t *value, int limit) { THROUGH(cuCtxGetLimit(value, (CUlimit)limit)); } /* the same numbers */
EXPORTED cudaError_t cudaDeviceSetLimit(int limit, size_t value) { THROUGH(cuCtxSetLimit((CUlimit)limit, value)); }
EXPORTED cudaError_t cudaSetDeviceFlags(unsigned flags) { cudaError_t error = sim_runtime_ready(); return sim_runtime_told(error ? error : (cudaError_t)driver.cuDevicePrimaryCtxSetFlags(sim_runtime_device(), flags)); }
EXPORTED cudaError_t cudaGetDeviceFlags(unsigned *flags)
{
    int active;
    cudaError_t error = sim_runtime_ready();
    return sim_runtime_told(error ? error : (cudaError_t)driver.cuDevicePrimaryCtxGetState(sim_runtime_device(), flags, &active));
}

static cudaError_t peer(int device, int enable, unsigned flags)
{
    cudaError_t error = checked(device);
    if (!error)
        error = sim_runtime_enter();
    CUcontext context = error ? NULL : sim_runtime_context(device);
    if (!error && !context)
        error = CUDA_ERROR_OUT_OF_MEMORY;
    return sim_runtime_told(error ? error : (cudaError_t)(enable ? driver.cuCtxEnablePeerAccess(context, flags) : driver.cuCtxDisablePeerAccess(context)));
}
EXPORTED cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned flags) { return peer(device, 1, flags); }
EXPORTED cudaError_t cudaDeviceDisablePeerAccess(int device) { return peer(device, 0, 0); }

static int attribute(int which, int device)
{
    int value = 0;
    driver.cuDeviceGetAttribute(&value, (CUdevice_attribute)which, device); /* the driver's public numbers */
    return value;
}
static size_t size_attribute(int which, int device) { return (size_t)attribute(which, device); /* none is negative */ }

EXPORTED cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device)
{
    cudaError_t error = checked(device);
    if (!error && !out)
        error = CUDA_ERROR_INVALID_VALUE;
    if (error)
        return sim_runtime_told(error);
    memset(out, 0, sizeof *out);
    driver.cuDeviceGetName(out->name, sizeof out->name, device);
    driver.cuDeviceGetUuid(&out->uuid, device);
    driver.cuDeviceTotalMem(&out->totalGlobalMem, device);
    const struct { int which; int *to; } words[] = {
        {12, &out->regsPerBlock}, {10, &out->warpSize}, {1, &out->maxThreadsPerBlock}, {2, &out->maxThreadsDim[0]}, {3, &out->maxThreadsDim[1]},
        {4, &out->maxThreadsDim[2]}, {5, &out->maxGridSize[0]}, {6, &out->maxGridSize[1]}, {7, &out->maxGridSize[2]}, {75, &out->major}, {76, &out->minor},
        {16, &out->multiProcessorCount}, {18, &out->integrated}, {19, &out->canMapHostMemory}, {31, &out->concurrentKernels}, {32, &out->ECCEnabled},
        {33, &out->pciBusID}, {34, &out->pciDeviceID}, {50, &out->pciDomainID}, {35, &out->tccDriver}, {40, &out->asyncEngineCount}, {41, &out->unifiedAddressing},
        {37, &out->memoryBusWidth}, {38, &out->l2CacheSize}, {108, &out->persistingL2CacheMaxSize}, {39, &out->maxThreadsPerMultiProcessor},
        {78, &out->streamPrioritiesSupported}, {79, &out->globalL1CacheSupported}, {80, &out->localL1CacheSupported}, {82, &out->regsPerMultiprocessor},
        {83, &out->managedMemory}, {84, &out->isMultiGpuBoard}, {85, &out->multiGpuBoardGroupID}, {86, &out->hostNativeAtomicSupported},
        {88, &out->pageableMemoryAccess}, {89, &out->concurrentManagedAccess}, {90, &out->computePreemptionSupported},
        {91, &out->canUseHostPointerForRegisteredMem}, {95, &out->cooperativeLaunch}, {100, &out->pageableMemoryAccessUsesHostPageTables},
        {101, &out->directManagedMemAccessFromHost}, {106, &out->maxBlocksPerMultiProcessor}, {109, &out->accessPolicyMaxWindowSize},
        {99, &out->hostRegisterSupported}, {115, &out->memoryPoolsSupported}, {120, &out->clusterLaunch}, {134, &out->hostNumaId}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        *words[i].to = attribute(words[i].which, device);
    out->sharedMemPerBlock = size_attribute(8, device);
    out->memPitch = size_attribute(11, device);
    out->totalConstMem = size_attribute(9, device);
    out->textureAlignment = size_attribute(14, device);
    out->texturePitchAlignment = size_attribute(51, device);
    out->sharedMemPerMultiprocessor = size_attribute(81, device);
    out->sharedMemPerBlockOptin = size_attribute(97, device);
    out->reservedSharedMemPerBlock = size_attribute(111, device);
    out->memoryPoolSupportedHandleTypes = (unsigned)attribute(119, device); /* a mask */
    return CUDA_SUCCESS;
}
