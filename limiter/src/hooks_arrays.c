/*
 * Arrays and mipmapped arrays. The driver does not say what they take, so the
 * size is computed; a sparse or deferred one takes nothing by itself.
 */
#include "array_size.h"
#include "driver.h"
#include "held.h"
#include "memory.h"

/* It goes with the thread's context. */
static void made_here(const struct hv_reservation *reservation, uint64_t array)
{
    CUcontext context = NULL;
    hv_call_type_cuCtxGetCurrent ask = HV_DRIVER(cuCtxGetCurrent);
    if (reservation->process != NULL && ask != NULL && ask(&context) == CUDA_SUCCESS && context != NULL)
        hv_held_array_is_of(reservation->process, array, context);
}

#define CREATE(size, call)                                                                                            \
    struct hv_reservation reservation;                                                                                \
    CUresult refused = hv_reserve_current(&reservation, size);                                                        \
    if (refused != CUDA_SUCCESS)                                                                                      \
        return refused;                                                                                               \
    CUresult result = call;                                                                                           \
    uint64_t made = result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*array : 0;                                         \
    if (result == CUDA_SUCCESS)                                                                                       \
        made_here(&reservation, made);                                                                                \
    return hv_reservation_end(&reservation, result, HV_POINTER_ARRAY, made)

#define DESTROY(call)                                                                                                 \
    struct hv_giveback giveback;                                                                                      \
    CUresult refused = hv_giveback_begin(&giveback, HV_POINTER_ARRAY, (uint64_t)(uintptr_t)array);                    \
    if (refused != CUDA_SUCCESS)                                                                                      \
        return refused;                                                                                               \
    struct hv_process *process = giveback.process;                                                                    \
    uint64_t context = process == NULL ? 0 : hv_held_forget_context_of(process, giveback.pointer);                    \
    CUresult result = call;                                                                                           \
    if (result != CUDA_SUCCESS && context != 0) /* it stays, and where it was */                                      \
        hv_held_array_is_of(process, giveback.pointer, (CUcontext)(uintptr_t)context);                                \
    result = hv_giveback_end(&giveback, result);                                                                      \
    if (result == CUDA_SUCCESS && process != NULL) /* what was mapped into a sparse one */                            \
        hv_bindings_of_object_ended(process, giveback.pointer);                                                    \
    return result

/* The size of the driver's argument; 0 for NULL, which the driver refuses. */
static uint64_t size_2d(const CUDA_ARRAY_DESCRIPTOR *d)
{
    CUDA_ARRAY3D_DESCRIPTOR full = {0};
    if (d == NULL)
        return 0;
    full.Width = d->Width;
    full.Height = d->Height;
    full.Format = d->Format;
    full.NumChannels = d->NumChannels;
    return hv_array_bytes(&full, 1);
}

static uint64_t size_2d_v1(const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
    if (d == NULL)
        return 0;
    CUDA_ARRAY_DESCRIPTOR full = {
        .Width = d->Width, .Height = d->Height, .Format = d->Format, .NumChannels = d->NumChannels};
    return size_2d(&full);
}

static uint64_t size_3d(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
    return d == NULL ? 0 : hv_array_bytes(d, levels);
}

static uint64_t size_3d_v1(const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
    if (d == NULL)
        return 0;
    CUDA_ARRAY3D_DESCRIPTOR full = {.Width = d->Width,
                                    .Height = d->Height,
                                    .Depth = d->Depth,
                                    .Format = d->Format,
                                    .NumChannels = d->NumChannels,
                                    .Flags = d->Flags};
    return hv_array_bytes(&full, 1);
}

HV_WRAP(cuArrayCreate, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor))
{
    CREATE(size_2d_v1(descriptor), HV_REAL(cuArrayCreate)(array, descriptor));
}

HV_WRAP(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *descriptor))
{
    CREATE(size_2d(descriptor), HV_REAL(cuArrayCreate_v2)(array, descriptor));
}

HV_WRAP(cuArray3DCreate, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor))
{
    CREATE(size_3d_v1(descriptor), HV_REAL(cuArray3DCreate)(array, descriptor));
}

HV_WRAP(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor))
{
    CREATE(size_3d(descriptor, 1), HV_REAL(cuArray3DCreate_v2)(array, descriptor));
}

HV_WRAP(cuMipmappedArrayCreate,
        (CUmipmappedArray * array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels))
{
    CREATE(size_3d(descriptor, levels), HV_REAL(cuMipmappedArrayCreate)(array, descriptor, levels));
}

HV_WRAP(cuArrayDestroy, (CUarray array))
{
    DESTROY(HV_REAL(cuArrayDestroy)(array));
}

HV_WRAP(cuMipmappedArrayDestroy, (CUmipmappedArray array))
{
    DESTROY(HV_REAL(cuMipmappedArrayDestroy)(array));
}
