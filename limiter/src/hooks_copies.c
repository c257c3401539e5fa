/*
 * Memset and copies within a device: charged like a launch where the Pod's
 * limits say so (HV_DEVICE_CHARGE_COPIES), else the driver's own. What is
 * charged goes by the function and the amount of bytes.
 */
#include "copies.h"

#define MEMSETS(bits, type)                                                                                           \
    COPY(cuMemsetD##bits##_v2, (CUdeviceptr to, type value, size_t count), (to, value, count), count *(bits / 8),      \
         NULL, false)                                                                                                 \
    COPY(cuMemsetD##bits##_v2_ptds, (CUdeviceptr to, type value, size_t count), (to, value, count),                   \
         count *(bits / 8), NULL, true)                                                                               \
    COPY(cuMemsetD##bits##Async, (CUdeviceptr to, type value, size_t count, CUstream stream),                         \
         (to, value, count, stream), count *(bits / 8), stream, false)                                                \
    COPY(cuMemsetD##bits##Async_ptsz, (CUdeviceptr to, type value, size_t count, CUstream stream),                    \
         (to, value, count, stream), count *(bits / 8), stream, true)                                                 \
    COPY(cuMemsetD2D##bits##_v2, (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),             \
         (to, pitch, value, width, height), width *height *(bits / 8), NULL, false)                                   \
    COPY(cuMemsetD2D##bits##_v2_ptds, (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height),        \
         (to, pitch, value, width, height), width *height *(bits / 8), NULL, true)                                    \
    COPY(cuMemsetD2D##bits##Async,                                                                                    \
         (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream),                    \
         (to, pitch, value, width, height, stream), width *height *(bits / 8), stream, false)                         \
    COPY(cuMemsetD2D##bits##Async_ptsz,                                                                               \
         (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream),                    \
         (to, pitch, value, width, height, stream), width *height *(bits / 8), stream, true)

/* As they were before 3.2, with addresses and sizes of 32 bits. */
#define MEMSETS_BEFORE_3_2(bits, type)                                                                                \
    COPY(cuMemsetD##bits, (CUdeviceptr_v1 to, type value, unsigned int count), (to, value, count),                      \
         (uint64_t)count *(bits / 8), NULL, false)                                                                    \
    COPY(cuMemsetD2D##bits,                                                                                           \
         (CUdeviceptr_v1 to, unsigned int pitch, type value, unsigned int width, unsigned int height),                  \
         (to, pitch, value, width, height), (uint64_t)width *height *(bits / 8), NULL, false)

MEMSETS_BEFORE_3_2(8, unsigned char)
MEMSETS_BEFORE_3_2(16, unsigned short)
MEMSETS_BEFORE_3_2(32, unsigned int)

COPY(cuMemcpyDtoD, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes), (to, from, bytes), bytes, NULL, false)
COPY(cuMemcpyDtoDAsync, (CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream),
     (to, from, bytes, stream), bytes, stream, false)

MEMSETS(8, unsigned char)
MEMSETS(16, unsigned short)
MEMSETS(32, unsigned int)

COPY(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes), bytes, NULL, false)
COPY(cuMemcpyDtoD_v2_ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes), bytes, NULL, true)
COPY(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream), bytes, stream, false)
COPY(cuMemcpyDtoDAsync_v2_ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
     (to, from, bytes, stream), bytes, stream, true)
