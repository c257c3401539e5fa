/* The first interface, with 32-bit sizes and addresses. A 64-bit process meets it only by name; it goes where the later
 * forms go. Allocations of the first interface have addresses that fit. */
#define _GNU_SOURCE
#include "driver.h"

typedef struct { unsigned srcXInBytes, srcY; CUmemorytype srcMemoryType; const void *srcHost; CUdeviceptr_v1 srcDevice; CUarray srcArray; unsigned srcPitch,
    dstXInBytes, dstY; CUmemorytype dstMemoryType; void *dstHost; CUdeviceptr_v1 dstDevice; CUarray dstArray; unsigned dstPitch, WidthInBytes, Height; } flat_box_v1; /* CUDA_MEMCPY2D_v1 */
typedef struct { unsigned srcXInBytes, srcY, srcZ, srcLOD; CUmemorytype srcMemoryType; const void *srcHost; CUdeviceptr_v1 srcDevice; CUarray srcArray; void *reserved0; unsigned srcPitch, srcHeight,
    dstXInBytes, dstY, dstZ, dstLOD; CUmemorytype dstMemoryType; void *dstHost; CUdeviceptr_v1 dstDevice; CUarray dstArray; void *reserved1; unsigned dstPitch, dstHeight, WidthInBytes, Height, Depth; } deep_box_v1; /* CUDA_MEMCPY3D_v1 */

static CUresult flat(const char *call, const flat_box_v1 *old, CUstream given, int wait)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, 0, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!old)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D box = {.srcXInBytes = old->srcXInBytes, .srcY = old->srcY, .srcMemoryType = old->srcMemoryType, .srcHost = old->srcHost, .srcDevice = old->srcDevice,
        .srcArray = old->srcArray, .srcPitch = old->srcPitch, .dstXInBytes = old->dstXInBytes, .dstY = old->dstY, .dstMemoryType = old->dstMemoryType, .dstHost = old->dstHost,
        .dstDevice = old->dstDevice, .dstArray = old->dstArray, .dstPitch = old->dstPitch, .WidthInBytes = old->WidthInBytes, .Height = old->Height, .Depth = 1};
    return sim_copy_box(stream, &box, wait);
}
CUresult CUDAAPI cuMemcpy2D(const flat_box_v1 *box);
SIM_EXPORTED CUresult CUDAAPI cuMemcpy2D(const flat_box_v1 *box) { return flat(__func__, box, NULL, 1); }
CUresult CUDAAPI cuMemcpy2DUnaligned(const flat_box_v1 *box);
SIM_EXPORTED CUresult CUDAAPI cuMemcpy2DUnaligned(const flat_box_v1 *box) { return flat(__func__, box, NULL, 1); }
CUresult CUDAAPI cuMemcpy2DAsync(const flat_box_v1 *box, CUstream stream);
SIM_EXPORTED CUresult CUDAAPI cuMemcpy2DAsync(const flat_box_v1 *box, CUstream stream) { return flat(__func__, box, stream, 0); }

static CUresult deep(const char *call, const deep_box_v1 *old, CUstream given, int wait)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, 0, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!old)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D box = {.srcXInBytes = old->srcXInBytes, .srcY = old->srcY, .srcZ = old->srcZ, .srcMemoryType = old->srcMemoryType, .srcHost = old->srcHost,
        .srcDevice = old->srcDevice, .srcArray = old->srcArray, .srcPitch = old->srcPitch, .srcHeight = old->srcHeight, .dstXInBytes = old->dstXInBytes, .dstY = old->dstY,
        .dstZ = old->dstZ, .dstMemoryType = old->dstMemoryType, .dstHost = old->dstHost, .dstDevice = old->dstDevice, .dstArray = old->dstArray, .dstPitch = old->dstPitch,
        .dstHeight = old->dstHeight, .WidthInBytes = old->WidthInBytes, .Height = old->Height, .Depth = old->Depth};
    return sim_copy_box(stream, &box, wait);
}
CUresult CUDAAPI cuMemcpy3D(const deep_box_v1 *box);
SIM_EXPORTED CUresult CUDAAPI cuMemcpy3D(const deep_box_v1 *box) { return deep(__func__, box, NULL, 1); }
CUresult CUDAAPI cuMemcpy3DAsync(const deep_box_v1 *box, CUstream stream);
SIM_EXPORTED CUresult CUDAAPI cuMemcpy3DAsync(const deep_box_v1 *box, CUstream stream) { return deep(__func__, box, stream, 0); }

/* The rest differs from the later form in nothing but the width of its figures. */
#define FORWARD(name, later, later_parameters, parameters, ...) \
    CUresult CUDAAPI later later_parameters; \
    CUresult CUDAAPI name parameters; \
    SIM_EXPORTED CUresult CUDAAPI name parameters { return later(__VA_ARGS__); }

FORWARD(cuMemcpyHtoA, cuMemcpyHtoA_v2, (CUarray, size_t, const void *, size_t), (CUarray to, unsigned offset, const void *from, unsigned bytes), to, offset, from, bytes)
FORWARD(cuMemcpyAtoH, cuMemcpyAtoH_v2, (void *, CUarray, size_t, size_t), (void *to, CUarray from, unsigned offset, unsigned bytes), to, from, offset, bytes)
FORWARD(cuMemcpyDtoA, cuMemcpyDtoA_v2, (CUarray, size_t, CUdeviceptr, size_t), (CUarray to, unsigned offset, CUdeviceptr_v1 from, unsigned bytes), to, offset, from, bytes)
FORWARD(cuMemcpyAtoD, cuMemcpyAtoD_v2, (CUdeviceptr, CUarray, size_t, size_t), (CUdeviceptr_v1 to, CUarray from, unsigned offset, unsigned bytes), to, from, offset, bytes)
FORWARD(cuMemcpyAtoA, cuMemcpyAtoA_v2, (CUarray, size_t, CUarray, size_t, size_t), (CUarray to, unsigned to_offset, CUarray from, unsigned from_offset, unsigned bytes), to, to_offset, from, from_offset, bytes)
FORWARD(cuMemcpyHtoAAsync, cuMemcpyHtoAAsync_v2, (CUarray, size_t, const void *, size_t, CUstream), (CUarray to, unsigned offset, const void *from, unsigned bytes, CUstream stream), to, offset, from, bytes, stream)
FORWARD(cuMemcpyAtoHAsync, cuMemcpyAtoHAsync_v2, (void *, CUarray, size_t, size_t, CUstream), (void *to, CUarray from, unsigned offset, unsigned bytes, CUstream stream), to, from, offset, bytes, stream)
FORWARD(cuMemsetD2D8, cuMemsetD2D8_v2, (CUdeviceptr, size_t, unsigned char, size_t, size_t), (CUdeviceptr_v1 to, unsigned pitch, unsigned char value, unsigned width, unsigned height), to, pitch, value, width, height)
FORWARD(cuMemsetD2D16, cuMemsetD2D16_v2, (CUdeviceptr, size_t, unsigned short, size_t, size_t), (CUdeviceptr_v1 to, unsigned pitch, unsigned short value, unsigned width, unsigned height), to, pitch, value, width, height)
FORWARD(cuMemsetD2D32, cuMemsetD2D32_v2, (CUdeviceptr, size_t, unsigned, size_t, size_t), (CUdeviceptr_v1 to, unsigned pitch, unsigned value, unsigned width, unsigned height), to, pitch, value, width, height)

CUresult CUDAAPI cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape);
CUresult CUDAAPI cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *flat);
CUresult CUDAAPI cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *flat, CUarray array);
CUresult CUDAAPI cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray array);

SIM_EXPORTED CUresult CUDAAPI cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *old)
{
    CUDA_ARRAY_DESCRIPTOR shape = old ? (CUDA_ARRAY_DESCRIPTOR){old->Width, old->Height, old->Format, old->NumChannels} : (CUDA_ARRAY_DESCRIPTOR){0};
    return cuArrayCreate_v2(array, old ? &shape : NULL);
}
CUresult CUDAAPI cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *old);
SIM_EXPORTED CUresult CUDAAPI cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *old)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = old ? (CUDA_ARRAY3D_DESCRIPTOR){old->Width, old->Height, old->Depth, old->Format, old->NumChannels, old->Flags} : (CUDA_ARRAY3D_DESCRIPTOR){0};
    return cuArray3DCreate_v2(array, old ? &shape : NULL);
}
SIM_EXPORTED CUresult CUDAAPI cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *old, CUarray array)
{
    CUDA_ARRAY_DESCRIPTOR shape;
    CUresult result = cuArrayGetDescriptor_v2(old ? &shape : NULL, array);
    if (result == CUDA_SUCCESS) /* sides of arrays fit */
        *old = (CUDA_ARRAY_DESCRIPTOR_v1){(unsigned)shape.Width, (unsigned)shape.Height, shape.Format, shape.NumChannels};
    return result;
}
CUresult CUDAAPI cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *old, CUarray array);
SIM_EXPORTED CUresult CUDAAPI cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *old, CUarray array)
{
    CUDA_ARRAY3D_DESCRIPTOR shape;
    CUresult result = cuArray3DGetDescriptor_v2(old ? &shape : NULL, array);
    if (result == CUDA_SUCCESS) /* likewise */
        *old = (CUDA_ARRAY3D_DESCRIPTOR_v1){(unsigned)shape.Width, (unsigned)shape.Height, (unsigned)shape.Depth, shape.Format, shape.NumChannels, shape.Flags};
    return result;
}

/* ---- addresses that must fit into 32 bits ---- */

static CUresult narrow(CUresult result, uint64_t wide, unsigned *out)
{
    if (result != CUDA_SUCCESS || !out)
        return result;
    if (wide > UINT32_MAX)
        return CUDA_ERROR_INVALID_VALUE; /* made by a later form: this one can't name it */
    *out = (unsigned)wide; /* checked */
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr_v1 *address, unsigned int bytes);
SIM_EXPORTED CUresult CUDAAPI cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element)
{
    uint64_t row = ((uint64_t)width + 511) / 512 * 512;
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16) || row * height > UINT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuMemAlloc(address, (unsigned)(row * height)); /* checked */
    if (result == CUDA_SUCCESS)
        *pitch = (unsigned)row; /* likewise */
    return result;
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address);
SIM_EXPORTED CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *size, CUdeviceptr_v1 address)
{
    CUdeviceptr wide_base = 0;
    size_t wide_size = 0;
    CUresult result = cuMemGetAddressRange_v2(&wide_base, &wide_size, address);
    result = narrow(result, wide_base, base);
    return narrow(result, wide_size, size);
}

CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *pointer, unsigned int flags);
SIM_EXPORTED CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr_v1 *address, void *pointer, unsigned int flags)
{
    CUdeviceptr wide = 0;
    return narrow(cuMemHostGetDevicePointer_v2(address ? &wide : NULL, pointer, flags), wide, address);
}

CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name);
SIM_EXPORTED CUresult CUDAAPI cuModuleGetGlobal(CUdeviceptr_v1 *address, unsigned int *size, CUmodule module, const char *name)
{
    CUdeviceptr wide = 0;
    size_t wide_size = 0;
    CUresult result = cuModuleGetGlobal_v2(address ? &wide : NULL, &wide_size, module, name);
    result = narrow(result, wide, address);
    return narrow(result, wide_size, size);
}
