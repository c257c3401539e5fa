/* Arrays: memory that is charged, has no address, and is filled and read by copies. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_LEVELS 32u
#define ARRAY_UNIT UINT64_C(65536) /* what one array is rounded up to */

struct CUarray_st {
    uint32_t kind;
    uint32_t gpu;
    uint64_t charged;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    uint32_t levels;             /* more than one: a mipmapped array */
    CUcontext context;
    CUarray next;
    unsigned char *data;         /* rows, then slices, then levels, close together; costs nothing until touched */
    uint64_t bytes;              /* mapped at data; 0: it is a level of `parent` */
    CUarray parent;
    CUarray level[MAX_LEVELS];   /* handles of levels that were asked for */
};

/* Bytes of one channel, by the public format numbers; 0: a format that is not known. */
static uint64_t channel_bytes(CUarray_format format)
{
    switch ((unsigned)format) {
    case 0x01: case 0x08: return 1; /* 8-bit integers */
    case 0x02: case 0x09: case 0x10: return 2; /* 16-bit integers, half */
    case 0x03: case 0x0a: case 0x20: return 4; /* 32-bit integers, float */
    default: return 0;
    }
}

static uint64_t or_one(uint64_t value) { return value ? value : 1; }

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape, uint32_t level)
{
    uint64_t element = channel_bytes(shape->Format) * shape->NumChannels;
    return or_one(shape->Width >> level) * or_one(shape->Height >> level) * or_one(shape->Depth >> level) * element;
}

static CUresult create(CUcontext context, CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape, uint32_t levels)
{
    if (!out || !shape || !shape->Width || !levels || levels > MAX_LEVELS || !channel_bytes(shape->Format) || (shape->NumChannels != 1 && shape->NumChannels != 2 && shape->NumChannels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    if (shape->Width > 131072 || shape->Height > 131072 || shape->Depth > 16384)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t bytes = 0;
    for (uint32_t level = 0; level < levels; level++)
        bytes += level_bytes(shape, level);
    bytes = (bytes + ARRAY_UNIT - 1) / ARRAY_UNIT * ARRAY_UNIT;
    int status = sim_charge(sim_here(), context->gpu, sim_driver.process, bytes);
    if (status != SIM_OK)
        return sim_result(status);
    CUarray array = calloc(1, sizeof *array);
    unsigned char *data = array ? sim_memory_room(bytes) : NULL;
    if (!data) {
        free(array);
        sim_refund(sim_here(), context->gpu, sim_driver.process, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *array = (struct CUarray_st){.kind = HANDLE_ARRAY, .gpu = context->gpu, .charged = bytes, .shape = *shape, .levels = levels, .context = context, .data = data, .bytes = bytes};
    sim_lock_driver();
    /* Its context went meanwhile, and what it held with it: this came too late for that. */
    int late = context->kind != HANDLE_CONTEXT;
    if (!late) {
        array->next = sim_driver.arrays;
        sim_driver.arrays = array;
    }
    sim_unlock_driver();
    if (late) {
        munmap(data, bytes);
        free(array);
        sim_refund(sim_here(), context->gpu, sim_driver.process, bytes);
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    *out = array;
    return CUDA_SUCCESS;
}

CUresult sim_array_over(CUcontext context, unsigned char *data, uint64_t bytes, const CUDA_ARRAY3D_DESCRIPTOR *shape, uint32_t levels, CUmipmappedArray *out)
{
    uint64_t needed = 0;
    if (!shape->Width || !levels || levels > MAX_LEVELS || !channel_bytes(shape->Format) || (shape->NumChannels != 1 && shape->NumChannels != 2 && shape->NumChannels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t level = 0; level < levels; level++)
        needed += level_bytes(shape, level);
    if (needed > bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUarray array = calloc(1, sizeof *array);
    if (!array)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *array = (struct CUarray_st){.kind = HANDLE_ARRAY, .gpu = context->gpu, .shape = *shape, .levels = levels > 1 ? levels : 2, .context = context, .data = data, .bytes = bytes};
    sim_lock_driver();
    array->next = sim_driver.arrays;
    sim_driver.arrays = array;
    sim_unlock_driver();
    *out = (CUmipmappedArray)(void *)array; /* the same objects, under the interface's other name */
    return CUDA_SUCCESS;
}

/* Driver lock held. The handle keeps its memory, so that a use after this is an error and not a crash. */
static void give_back(CUarray array)
{
    array->kind = HANDLE_DEAD;
    for (uint32_t i = 0; i < MAX_LEVELS; i++)
        if (array->level[i])
            array->level[i]->kind = HANDLE_DEAD;
    munmap(array->data, array->bytes);
    array->data = NULL;
    if (array->charged)
        sim_refund(sim_here(), array->gpu, sim_driver.process, array->charged);
}

static CUresult destroy(CUarray array, int mipmapped)
{
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    sim_lock_driver();
    for (CUarray *link = &sim_driver.arrays; array && *link; link = &(*link)->next)
        if (*link == array && (array->levels > 1) == mipmapped) {
            *link = array->next;
            give_back(array);
            result = CUDA_SUCCESS;
            break;
        }
    sim_unlock_driver();
    return result;
}

void sim_arrays_drop_context(CUcontext context)
{
    sim_lock_driver();
    for (CUarray *link = &sim_driver.arrays; *link;) {
        CUarray array = *link;
        if (array->context == context) {
            *link = array->next;
            give_back(array);
        } else {
            link = &array->next;
        }
    }
    sim_unlock_driver();
}

SIM_EXPORTED CUresult CUDAAPI cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *flat)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!flat)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = flat->Width, .Height = flat->Height, .Format = flat->Format, .NumChannels = flat->NumChannels};
    return create(context, array, &shape, 1);
}

SIM_EXPORTED CUresult CUDAAPI cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return create(context, array, shape, 1);
}

SIM_EXPORTED CUresult CUDAAPI cuArrayDestroy(CUarray array)
{
    ENTER();
    return destroy(array, 0);
}

static int valid(CUarray array) { return array && array->kind == HANDLE_ARRAY; }

int sim_array_bytes(CUarray array, struct array_bytes *out)
{
    if (!valid(array))
        return 0;
    const CUDA_ARRAY3D_DESCRIPTOR *shape = &array->shape;
    *out = (struct array_bytes){array->data, shape->Width * channel_bytes(shape->Format) * shape->NumChannels, or_one(shape->Height), or_one(shape->Depth)};
    return 1;
}

int sim_array_shape(CUarray array, CUDA_ARRAY3D_DESCRIPTOR *out)
{
    if (!valid(array))
        return 0;
    *out = array->shape;
    return 1;
}

SIM_EXPORTED CUresult CUDAAPI cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *flat, CUarray array)
{
    ENTER();
    if (!flat)
        return CUDA_ERROR_INVALID_VALUE;
    if (!valid(array))
        return CUDA_ERROR_INVALID_HANDLE;
    *flat = (CUDA_ARRAY_DESCRIPTOR){.Width = array->shape.Width, .Height = array->shape.Height, .Format = array->shape.Format, .NumChannels = array->shape.NumChannels};
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray array)
{
    ENTER();
    if (!shape)
        return CUDA_ERROR_INVALID_VALUE;
    if (!valid(array))
        return CUDA_ERROR_INVALID_HANDLE;
    *shape = array->shape;
    return CUDA_SUCCESS;
}

/* A mipmapped array is an array with levels, under the interface's other name. */
SIM_EXPORTED CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned int levels)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    CUarray array;
    if (!out || levels < 1)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t possible = 1;
    uint64_t side = shape ? or_one(shape->Width) : 1;
    for (uint64_t other = shape ? shape->Height | shape->Depth : 0; (side | other) >> possible; possible++)
        ;
    CUresult result = create(context, &array, shape, levels < possible ? levels : possible);
    if (result == CUDA_SUCCESS) {
        array->levels = array->levels > 1 ? array->levels : 2; /* told apart from a plain one by this */
        *out = (CUmipmappedArray)(void *)array;
    }
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    ENTER();
    return destroy((CUarray)(void *)array, 1); /* the same objects */
}

SIM_EXPORTED CUresult CUDAAPI cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray mipmapped, unsigned int level)
{
    ENTER();
    CUarray array = (CUarray)(void *)mipmapped; /* the same objects */
    if (!out || !valid(array) || level >= array->levels)
        return !out || valid(array) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    CUresult result = CUDA_SUCCESS;
    sim_lock_driver();
    CUarray *made = &array->level[level];
    if (!*made && (*made = calloc(1, sizeof **made))) {
        uint64_t before = 0;
        for (uint32_t i = 0; i < level; i++)
            before += level_bytes(&array->shape, i);
        **made = (struct CUarray_st){.kind = HANDLE_ARRAY, .gpu = array->gpu, .shape = array->shape, .levels = 1, .context = array->context, .data = array->data + before, .parent = array};
        (*made)->shape.Width = or_one(array->shape.Width >> level);
        (*made)->shape.Height = array->shape.Height ? or_one(array->shape.Height >> level) : 0;
        (*made)->shape.Depth = array->shape.Depth ? or_one(array->shape.Depth >> level) : 0;
    }
    if (*made)
        *out = *made;
    else
        result = CUDA_ERROR_OUT_OF_MEMORY;
    sim_unlock_driver();
    return result;
}

struct requirements { size_t size, alignment; unsigned reserved[4]; }; /* CUDA_ARRAY_MEMORY_REQUIREMENTS */
CUresult CUDAAPI cuArrayGetMemoryRequirements(struct requirements *out, CUarray array, CUdevice device);
SIM_EXPORTED CUresult CUDAAPI cuArrayGetMemoryRequirements(struct requirements *out, CUarray array, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!out || !valid(array))
        return out ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *out = (struct requirements){.size = array->charged, .alignment = ARRAY_UNIT};
    return CUDA_SUCCESS;
}

/* Formats with planes, sparse arrays and arrays that are bound later are not modelled: what is asked of these is refused as of any array
 * that is none of them. */
CUresult CUDAAPI cuArrayGetPlane(CUarray *out, CUarray array, unsigned int plane);
SIM_EXPORTED CUresult CUDAAPI cuArrayGetPlane(CUarray *out, CUarray array, unsigned int plane) { ENTER(); (void)plane; return out && !valid(array) ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE; }
CUresult CUDAAPI cuArrayGetSparseProperties(void *out, CUarray array);
SIM_EXPORTED CUresult CUDAAPI cuArrayGetSparseProperties(void *out, CUarray array) { ENTER(); return out && !valid(array) ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE; }
CUresult CUDAAPI cuMipmappedArrayGetSparseProperties(void *out, CUmipmappedArray array);
SIM_EXPORTED CUresult CUDAAPI cuMipmappedArrayGetSparseProperties(void *out, CUmipmappedArray array) { ENTER(); return out && !valid((CUarray)(void *)array) ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE; /* the same objects */ }
CUresult CUDAAPI cuMipmappedArrayGetMemoryRequirements(struct requirements *out, CUmipmappedArray mipmapped, CUdevice device);
SIM_EXPORTED CUresult CUDAAPI cuMipmappedArrayGetMemoryRequirements(struct requirements *out, CUmipmappedArray mipmapped, CUdevice device) { return cuArrayGetMemoryRequirements(out, (CUarray)(void *)mipmapped, device); /* the same objects */ }
