/*
 * Copies that may lie within a device or not: where they are charged, the driver is asked what the addresses are of. Its
 * answer takes no time of the device's, and nobody asks where copies are free.
 */
#include "copies.h"

static bool is_on_device(CUdeviceptr address, int *ordinal)
{
    int type = 0;
    hv_call_type_cuPointerGetAttribute ask = HV_DRIVER(cuPointerGetAttribute);
    return ask != NULL && ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE &&
           ask(ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) == CUDA_SUCCESS;
}

static bool is_within(CUdeviceptr to, CUdeviceptr from)
{
    int to_ordinal = -1, from_ordinal = -2;
    return is_on_device(to, &to_ordinal) && is_on_device(from, &from_ordinal) && to_ordinal == from_ordinal;
}

/* ---- of bytes ---- */

#define PLAIN(name, twin)                                                                                             \
    COPY_WITHIN(name, (CUdeviceptr to, CUdeviceptr from, size_t bytes), (to, from, bytes), is_within(to, from), bytes, \
                NULL, twin)
#define PLAIN_ASYNC(name, twin)                                                                                       \
    COPY_WITHIN(name, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream),   \
                is_within(to, from), bytes, stream, twin)

PLAIN(cuMemcpy, false)
PLAIN(cuMemcpy_ptds, true)
PLAIN_ASYNC(cuMemcpyAsync, false)
PLAIN_ASYNC(cuMemcpyAsync_ptsz, true)

#define WITH_ATTRIBUTES(name, twin)                                                                                   \
    COPY_WITHIN(name, (CUdeviceptr to, CUdeviceptr from, size_t bytes, void *attributes, CUstream stream),            \
                (to, from, bytes, attributes, stream), is_within(to, from), bytes, stream, twin)

WITH_ATTRIBUTES(cuMemcpyWithAttributesAsync, false)
WITH_ATTRIBUTES(cuMemcpyWithAttributesAsync_ptsz, true)

#define PEER(name, twin)                                                                                              \
    COPY_WITHIN(name,                                                                                                 \
                (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes),       \
                (to, to_context, from, from_context, bytes), is_within(to, from), bytes, NULL, twin)
#define PEER_ASYNC(name, twin)                                                                                        \
    COPY_WITHIN(name,                                                                                                 \
                (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,        \
                 CUstream stream),                                                                                    \
                (to, to_context, from, from_context, bytes, stream), is_within(to, from), bytes, stream, twin)

PEER(cuMemcpyPeer, false)
PEER(cuMemcpyPeer_ptds, true)
PEER_ASYNC(cuMemcpyPeerAsync, false)
PEER_ASYNC(cuMemcpyPeerAsync_ptsz, true)

/* ---- many at once: charged as one of all their bytes ---- */

static size_t bytes_within(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; to != NULL && from != NULL && sizes != NULL && i < count; i++)
        if (is_within(to[i], from[i]))
            bytes += sizes[i];
    return bytes;
}

#define MANY(name, twin)                                                                                              \
    COPY_WITHIN(name,                                                                                                 \
                (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes, size_t *places,  \
                 size_t number, size_t *failed, CUstream stream),                                                     \
                (to, from, sizes, count, attributes, places, number, failed, stream),                                 \
                bytes_within(to, from, sizes, count) != 0, bytes_within(to, from, sizes, count), stream, twin)
#define MANY_2(name, twin)                                                                                            \
    COPY_WITHIN(name,                                                                                                 \
                (CUdeviceptr * to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes, size_t *places,  \
                 size_t number, CUstream stream),                                                                     \
                (to, from, sizes, count, attributes, places, number, stream),                                         \
                bytes_within(to, from, sizes, count) != 0, bytes_within(to, from, sizes, count), stream, twin)

MANY(cuMemcpyBatchAsync, false)
MANY(cuMemcpyBatchAsync_ptsz, true)
MANY_2(cuMemcpyBatchAsync_v2, false)
MANY_2(cuMemcpyBatchAsync_v2_ptsz, true)

/* ---- of rectangles and boxes ---- */

/* An array lies on a device; on which one is that of the thread's context, or the driver refuses it. */
static bool is_end_on_device(int type, CUdeviceptr address, int *ordinal)
{
    if (type == CU_MEMORYTYPE_ARRAY)
        return true;
    return type != CU_MEMORYTYPE_HOST && is_on_device(address, ordinal);
}

#define BOTH_ENDS(box)                                                                                                \
    int to = -1, from = -1;                                                                                           \
    if ((box) == NULL || !is_end_on_device((box)->dstMemoryType, (box)->dstDevice, &to) ||                            \
        !is_end_on_device((box)->srcMemoryType, (box)->srcDevice, &from))                                             \
        return false;                                                                                                 \
    return to == from || to == -1 || from == -1;

static bool is_flat_within(const CUDA_MEMCPY2D *box)
{
    BOTH_ENDS(box)
}

static bool is_box_within(const CUDA_MEMCPY3D *box)
{
    BOTH_ENDS(box)
}

#define FLAT(name, twin)                                                                                              \
    COPY_WITHIN(name, (const CUDA_MEMCPY2D *box), (box), is_flat_within(box), box->WidthInBytes * box->Height, NULL,  \
                twin)
#define FLAT_ASYNC(name, twin)                                                                                        \
    COPY_WITHIN(name, (const CUDA_MEMCPY2D *box, CUstream stream), (box, stream), is_flat_within(box),                \
                box->WidthInBytes * box->Height, stream, twin)
/* One between peers has the same fields. */
#define BOX(name, twin)                                                                                               \
    COPY_WITHIN(name, (const CUDA_MEMCPY3D *box), (box), is_box_within(box),                                          \
                box->WidthInBytes * box->Height * box->Depth, NULL, twin)
#define BOX_ASYNC(name, twin)                                                                                         \
    COPY_WITHIN(name, (const CUDA_MEMCPY3D *box, CUstream stream), (box, stream), is_box_within(box),                 \
                box->WidthInBytes * box->Height * box->Depth, stream, twin)

FLAT(cuMemcpy2D_v2, false)
FLAT(cuMemcpy2D_v2_ptds, true)
FLAT(cuMemcpy2DUnaligned_v2, false)
FLAT(cuMemcpy2DUnaligned_v2_ptds, true)
FLAT_ASYNC(cuMemcpy2DAsync_v2, false)
FLAT_ASYNC(cuMemcpy2DAsync_v2_ptsz, true)
BOX(cuMemcpy3D_v2, false)
BOX(cuMemcpy3D_v2_ptds, true)
BOX_ASYNC(cuMemcpy3DAsync_v2, false)
BOX_ASYNC(cuMemcpy3DAsync_v2_ptsz, true)
BOX(cuMemcpy3DPeer, false)
BOX(cuMemcpy3DPeer_ptds, true)
BOX_ASYNC(cuMemcpy3DPeerAsync, false)
BOX_ASYNC(cuMemcpy3DPeerAsync_ptsz, true)

/* As they were before 3.2. */
static bool is_old_flat_within(const CUDA_MEMCPY2D_v1 *box)
{
    BOTH_ENDS(box)
}

static bool is_old_box_within(const CUDA_MEMCPY3D_v1 *box)
{
    BOTH_ENDS(box)
}

#define FLAT_BYTES ((uint64_t)box->WidthInBytes * box->Height)
#define BOX_BYTES (FLAT_BYTES * box->Depth)

COPY_WITHIN(cuMemcpy2D, (const CUDA_MEMCPY2D_v1 *box), (box), is_old_flat_within(box), FLAT_BYTES, NULL, false)
COPY_WITHIN(cuMemcpy2DUnaligned, (const CUDA_MEMCPY2D_v1 *box), (box), is_old_flat_within(box), FLAT_BYTES, NULL, false)
COPY_WITHIN(cuMemcpy2DAsync, (const CUDA_MEMCPY2D_v1 *box, CUstream stream), (box, stream), is_old_flat_within(box),
            FLAT_BYTES, stream, false)
COPY_WITHIN(cuMemcpy3D, (const CUDA_MEMCPY3D_v1 *box), (box), is_old_box_within(box), BOX_BYTES, NULL, false)
COPY_WITHIN(cuMemcpy3DAsync, (const CUDA_MEMCPY3D_v1 *box, CUstream stream), (box, stream), is_old_box_within(box),
            BOX_BYTES, stream, false)

COPY(cuMemcpyDtoA, (CUarray to, unsigned int offset, CUdeviceptr_v1 from, unsigned int bytes), (to, offset, from, bytes),
     bytes, NULL, false)
COPY(cuMemcpyAtoD, (CUdeviceptr_v1 to, CUarray from, unsigned int offset, unsigned int bytes), (to, from, offset, bytes),
     bytes, NULL, false)
COPY(cuMemcpyAtoA, (CUarray to, unsigned int to_offset, CUarray from, unsigned int from_offset, unsigned int bytes),
     (to, to_offset, from, from_offset, bytes), bytes, NULL, false)

/* ---- of arrays, which lie on devices ---- */

#define FROM_DEVICE(name, twin)                                                                                       \
    COPY(name, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes), (to, offset, from, bytes), bytes, NULL, twin)
#define TO_DEVICE(name, twin)                                                                                         \
    COPY(name, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes), (to, from, offset, bytes), bytes, NULL, twin)
#define BETWEEN_ARRAYS(name, twin)                                                                                    \
    COPY(name, (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes),                        \
         (to, to_offset, from, from_offset, bytes), bytes, NULL, twin)

FROM_DEVICE(cuMemcpyDtoA_v2, false)
FROM_DEVICE(cuMemcpyDtoA_v2_ptds, true)
TO_DEVICE(cuMemcpyAtoD_v2, false)
TO_DEVICE(cuMemcpyAtoD_v2_ptds, true)
BETWEEN_ARRAYS(cuMemcpyAtoA_v2, false)
BETWEEN_ARRAYS(cuMemcpyAtoA_v2_ptds, true)
