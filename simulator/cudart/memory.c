/* Memory: allocations, pools, copies and fills. */
#define _GNU_SOURCE
#include "cudart.h"

enum { HOST_TO_HOST = 0, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3, BY_ADDRESS = 4 };
enum { UNREGISTERED = 0, OF_HOST = 1, OF_DEVICE = 2, MANAGED = 3 };

struct cudaPointerAttributes { int type, device; void *devicePointer, *hostPointer; long reserved[8]; };

/* The driver's addresses are numbers, the runtime's pointers. */
static cudaError_t hand_out(void **out, CUdeviceptr address, cudaError_t error)
{
    if (!error)
        *out = (void *)(uintptr_t)address;
    return sim_runtime_told(error);
}

EXPORTED cudaError_t cudaMalloc(void **out, size_t size)
{
    CUdeviceptr address = 0;
    cudaError_t error = out ? sim_runtime_enter() : CUDA_ERROR_INVALID_VALUE;
    if (!error && size)
        error = (cudaError_t)driver.cuMemAlloc(&address, size);
    return hand_out(out, address, error);
}
EXPORTED cudaError_t cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height)
{
    CUdeviceptr address = 0;
    cudaError_t error = out ? sim_runtime_enter() : CUDA_ERROR_INVALID_VALUE;
    if (!error)
        error = (cudaError_t)driver.cuMemAllocPitch(&address, pitch, width, height, 4);
    return hand_out(out, address, error);
}
EXPORTED cudaError_t cudaMallocManaged(void **out, size_t size, unsigned flags)
{
    CUdeviceptr address = 0;
    cudaError_t error = out ? sim_runtime_enter() : CUDA_ERROR_INVALID_VALUE;
    if (!error)
        error = (cudaError_t)driver.cuMemAllocManaged(&address, size, flags);
    return hand_out(out, address, error);
}
EXPORTED cudaError_t cudaMallocAsync(void **out, size_t size, CUstream stream)
{
    CUdeviceptr address = 0;
    cudaError_t error = out ? sim_runtime_enter() : CUDA_ERROR_INVALID_VALUE;
    if (!error)
        error = (cudaError_t)driver.cuMemAllocAsync(&address, size, stream);
    return hand_out(out, address, error);
}
EXPORTED cudaError_t cudaMallocFromPoolAsync(void **out, size_t size, CUmemoryPool pool, CUstream stream)
{
    CUdeviceptr address = 0;
    cudaError_t error = out ? sim_runtime_enter() : CUDA_ERROR_INVALID_VALUE;
    if (!error)
        error = (cudaError_t)driver.cuMemAllocFromPoolAsync(&address, size, pool, stream);
    return hand_out(out, address, error);
}
EXPORTED cudaError_t cudaFree(void *pointer) { THROUGH(cuMemFree(number_of(pointer))); }
EXPORTED cudaError_t cudaFreeAsync(void *pointer, CUstream stream) { THROUGH(cuMemFreeAsync(number_of(pointer), stream)); }
EXPORTED cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags) { THROUGH(cuMemHostAlloc(out, size, flags)); }
EXPORTED cudaError_t cudaMallocHost(void **out, size_t size) { THROUGH(cuMemHostAlloc(out, size, 0)); }
EXPORTED cudaError_t cudaFreeHost(void *pointer) { THROUGH(cuMemFreeHost(pointer)); }
EXPORTED cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned flags) { THROUGH(cuMemHostRegister(pointer, size, flags)); }
EXPORTED cudaError_t cudaHostUnregister(void *pointer) { THROUGH(cuMemHostUnregister(pointer)); }
EXPORTED cudaError_t cudaHostGetDevicePointer(void **out, void *pointer, unsigned flags)
{
    CUdeviceptr address = 0;
    cudaError_t error = out ? sim_runtime_enter() : CUDA_ERROR_INVALID_VALUE;
    if (!error)
        error = (cudaError_t)driver.cuMemHostGetDevicePointer(&address, pointer, flags);
    return hand_out(out, address, error);
}
EXPORTED cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) { THROUGH(cuMemGetInfo(free_bytes, total_bytes)); }

EXPORTED cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer)
{
    unsigned type = 0;
    int managed = 0, device = -2; /* as the real one says of what it does not know */
    cudaError_t error = out ? sim_runtime_enter() : CUDA_ERROR_INVALID_VALUE;
    if (error)
        return sim_runtime_told(error);
    CUdeviceptr address = number_of(pointer);
    void *plain = (void *)(uintptr_t)address;
    if (driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS) {
        *out = (struct cudaPointerAttributes){.type = UNREGISTERED, .device = device, .hostPointer = plain};
        return CUDA_SUCCESS;
    }
    driver.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
    driver.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    *out = (struct cudaPointerAttributes){.type = managed ? MANAGED : type == CU_MEMORYTYPE_HOST ? OF_HOST : OF_DEVICE, .device = device,
                                          .devicePointer = plain, .hostPointer = managed || type == CU_MEMORYTYPE_HOST ? plain : NULL};
    return CUDA_SUCCESS;
}

EXPORTED cudaError_t cudaMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) { THROUGH(cuMemPoolCreate(pool, props)); } /* the same structure */
EXPORTED cudaError_t cudaMemPoolDestroy(CUmemoryPool pool) { THROUGH(cuMemPoolDestroy(pool)); }
EXPORTED cudaError_t cudaMemPoolTrimTo(CUmemoryPool pool, size_t keep) { THROUGH(cuMemPoolTrimTo(pool, keep)); }
EXPORTED cudaError_t cudaMemPoolSetAttribute(CUmemoryPool pool, int which, void *value) { THROUGH(cuMemPoolSetAttribute(pool, (CUmemPool_attribute)which, value)); } /* the same numbers */
EXPORTED cudaError_t cudaMemPoolGetAttribute(CUmemoryPool pool, int which, void *value) { THROUGH(cuMemPoolGetAttribute(pool, (CUmemPool_attribute)which, value)); }
EXPORTED cudaError_t cudaMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count) { THROUGH(cuMemPoolSetAccess(pool, access, count)); } /* the same structure */

static CUresult copy(void *to, const void *from, size_t size, int kind)
{
    switch (kind) {
    case HOST_TO_DEVICE: return driver.cuMemcpyHtoD(number_of(to), from, size);
    case DEVICE_TO_HOST: return driver.cuMemcpyDtoH(to, number_of(from), size);
    case DEVICE_TO_DEVICE: return driver.cuMemcpyDtoD(number_of(to), number_of(from), size);
    case HOST_TO_HOST:
    case BY_ADDRESS: return driver.cuMemcpy(number_of(to), number_of(from), size);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}
static CUresult copy_on(void *to, const void *from, size_t size, int kind, CUstream stream)
{
    switch (kind) {
    case HOST_TO_DEVICE: return driver.cuMemcpyHtoDAsync(number_of(to), from, size, stream);
    case DEVICE_TO_HOST: return driver.cuMemcpyDtoHAsync(to, number_of(from), size, stream);
    case DEVICE_TO_DEVICE: return driver.cuMemcpyDtoDAsync(number_of(to), number_of(from), size, stream);
    case HOST_TO_HOST:
    case BY_ADDRESS: return driver.cuMemcpyAsync(number_of(to), number_of(from), size, stream);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}
EXPORTED cudaError_t cudaMemcpy(void *to, const void *from, size_t size, int kind)
{
    cudaError_t error = sim_runtime_enter();
    return sim_runtime_told(error || !size ? error : (cudaError_t)copy(to, from, size, kind));
}
EXPORTED cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, CUstream stream)
{
    cudaError_t error = sim_runtime_enter();
    return sim_runtime_told(error || !size ? error : (cudaError_t)copy_on(to, from, size, kind, stream));
}
EXPORTED cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size, CUstream stream)
{
    cudaError_t error = sim_runtime_enter();
    if (!error && (to_device < 0 || to_device >= MAX_DEVICES || from_device < 0 || from_device >= MAX_DEVICES))
        error = CUDA_ERROR_INVALID_DEVICE;
    if (!error && size)
        error = (cudaError_t)driver.cuMemcpyPeerAsync(number_of(to), sim_runtime_context(to_device), number_of(from), sim_runtime_context(from_device), size, stream);
    return sim_runtime_told(error);
}

static CUDA_MEMCPY2D flat(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height)
{
    return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .srcDevice = number_of(from), .srcPitch = from_pitch, .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                           .dstDevice = number_of(to), .dstPitch = to_pitch, .WidthInBytes = width, .Height = height};
}
EXPORTED cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind)
{
    CUDA_MEMCPY2D box = flat(to, to_pitch, from, from_pitch, width, height);
    (void)kind; /* addresses say it themselves */
    THROUGH(cuMemcpy2DUnaligned(&box));
}
EXPORTED cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind, CUstream stream)
{
    CUDA_MEMCPY2D box = flat(to, to_pitch, from, from_pitch, width, height);
    (void)kind; /* as above */
    THROUGH(cuMemcpy2DAsync(&box, stream));
}
EXPORTED cudaError_t cudaMemset(void *pointer, int value, size_t size) { THROUGH(cuMemsetD8(number_of(pointer), (unsigned char)value, size)); } /* one byte, as documented */
EXPORTED cudaError_t cudaMemsetAsync(void *pointer, int value, size_t size, CUstream stream) { THROUGH(cuMemsetD8Async(number_of(pointer), (unsigned char)value, size, stream)); }

EXPORTED cudaError_t cudaGetSymbolAddress(void **out, const void *symbol)
{
    CUdeviceptr address = 0;
    cudaError_t error = out ? sim_runtime_enter() : CUDA_ERROR_INVALID_VALUE;
    if (!error)
        error = sim_runtime_variable(symbol, &address, NULL);
    return hand_out(out, address, error);
}
EXPORTED cudaError_t cudaGetSymbolSize(size_t *size, const void *symbol)
{
    CUdeviceptr address;
    cudaError_t error = size ? sim_runtime_enter() : CUDA_ERROR_INVALID_VALUE;
    return sim_runtime_told(error ? error : sim_runtime_variable(symbol, &address, size));
}
EXPORTED cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t size, size_t offset, int kind)
{
    CUdeviceptr address = 0;
    size_t whole = 0;
    cudaError_t error = sim_runtime_enter();
    if (!error)
        error = sim_runtime_variable(symbol, &address, &whole);
    if (!error && (offset > whole || size > whole - offset))
        error = CUDA_ERROR_INVALID_VALUE;
    return sim_runtime_told(error ? error : (cudaError_t)copy((void *)(uintptr_t)(address + offset), from, size, kind));
}

EXPORTED cudaError_t cudaIpcGetMemHandle(CUipcMemHandle *handle, void *pointer) { THROUGH(cuIpcGetMemHandle(handle, number_of(pointer))); }
EXPORTED cudaError_t cudaIpcOpenMemHandle(void **out, CUipcMemHandle handle, unsigned flags)
{
    CUdeviceptr address = 0;
    cudaError_t error = out ? sim_runtime_enter() : CUDA_ERROR_INVALID_VALUE;
    if (!error)
        error = (cudaError_t)driver.cuIpcOpenMemHandle(&address, handle, flags);
    return hand_out(out, address, error);
}
EXPORTED cudaError_t cudaIpcCloseMemHandle(void *pointer) { THROUGH(cuIpcCloseMemHandle(number_of(pointer))); }
EXPORTED cudaError_t cudaIpcGetEventHandle(CUipcEventHandle *handle, CUevent event) { THROUGH(cuIpcGetEventHandle(handle, event)); }
EXPORTED cudaError_t cudaIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle) { THROUGH(cuIpcOpenEventHandle(event, handle)); }
