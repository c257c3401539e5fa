/* Green contexts: a part of a GPU's SMs. A split hands out multiples of what the architecture schedules together. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

struct CUdevResourceDesc_st { uint32_t gpu, sm_count; };
struct CUgreenCtx_st {
    uint32_t kind;
    CUcontext context;
};

static int valid(CUgreenCtx green) { return green && green->kind == HANDLE_GREEN; }
CUcontext sim_green_inside(CUgreenCtx green) { return valid(green) ? green->context : NULL; }

static uint32_t least(uint32_t gpu)
{
    uint32_t major = sim_here()->gpu[gpu].info.cc_major;
    return major >= 9 ? 8 : major == 8 ? 4 : 2; /* as the public description says, by compute capability */
}
static uint32_t together(uint32_t gpu) { return sim_here()->gpu[gpu].info.cc_major >= 9 ? 8 : 2; }

/* The GPU stands in the padding that the interface keeps for the driver. */
static void describe(CUdevResource *out, uint32_t gpu, uint32_t sm_count)
{
    memset(out, 0, sizeof *out);
    if (!sm_count)
        return;
    out->type = CU_DEV_RESOURCE_TYPE_SM;
    out->sm = (CUdevSmResource){sm_count, least(gpu), together(gpu)};
    memcpy(out->_internal_padding, &gpu, sizeof gpu);
}
static int described(const CUdevResource *resource, uint32_t *gpu)
{
    if (!resource || resource->type != CU_DEV_RESOURCE_TYPE_SM || !resource->sm.smCount)
        return 0;
    memcpy(gpu, resource->_internal_padding, sizeof *gpu);
    return *gpu < sim_here()->gpu_count && resource->sm.smCount <= sim_sm_count(*gpu);
}

static CUresult of_context(CUcontext context, CUdevResource *out, CUdevResourceType type)
{
    if (!out || type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    describe(out, context->gpu, context->sm_limit ? context->sm_limit : sim_sm_count(context->gpu));
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetDevResource(CUdevice device, CUdevResource *out, CUdevResourceType type)
{
    ENTER_DEVICE(device);
    if (!out || type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    describe(out, sim_driver.gpu_of[device], sim_sm_count(sim_driver.gpu_of[device]));
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuCtxGetDevResource(CUcontext context, CUdevResource *out, CUdevResourceType type)
{
    ENTER();
    context = context ? context : sim_current_context();
    return sim_context_valid(context) ? of_context(context, out, type) : CUDA_ERROR_INVALID_CONTEXT;
}
SIM_EXPORTED CUresult CUDAAPI cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *out, CUdevResourceType type)
{
    ENTER();
    return valid(green) ? of_context(green->context, out, type) : CUDA_ERROR_INVALID_CONTEXT;
}

/* Flag 1 lifts the alignment that clusters need: groups are then as small as 2. */
SIM_EXPORTED CUresult CUDAAPI cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *groups, const CUdevResource *input, CUdevResource *remaining, unsigned int flags, unsigned int count)
{
    ENTER();
    uint32_t gpu;
    if (!groups || !described(input, &gpu) || flags & ~3u)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t unit = flags & 1 ? 2 : together(gpu), smallest = flags & 1 ? 2 : least(gpu), total = input->sm.smCount;
    uint32_t size = count < smallest ? smallest : count;
    if (size > total)
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    size = (size + unit - 1) / unit * unit;
    uint32_t possible = total / size;
    if (!result) {
        *groups = possible;
        return CUDA_SUCCESS;
    }
    if (*groups > possible)
        *groups = possible;
    for (uint32_t i = 0; i < *groups; i++)
        describe(&result[i], gpu, size);
    if (remaining)
        describe(remaining, gpu, total - *groups * size);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources, unsigned int count)
{
    ENTER();
    uint32_t gpu = 0, sum = 0, other;
    if (!out || !resources || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (!described(&resources[i], &other) || (i && other != gpu))
            return CUDA_ERROR_INVALID_VALUE;
        gpu = other;
        sum += resources[i].sm.smCount;
    }
    if (sum > sim_sm_count(gpu))
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    CUdevResourceDesc made = malloc(sizeof *made); /* the interface has no way to give it back */
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUdevResourceDesc_st){gpu, sum};
    *out = made;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc description, CUdevice device, unsigned int flags)
{
    ENTER_DEVICE(device);
    if (!out || !description || flags != 1 || description->gpu != sim_driver.gpu_of[device]) /* "default stream" must be given */
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext primary;
    CUresult result = cuDevicePrimaryCtxRetain(&primary, device);
    CUgreenCtx green = result == CUDA_SUCCESS ? calloc(1, sizeof *green) : NULL;
    if (result != CUDA_SUCCESS)
        return result;
    result = green ? sim_green_context((uint32_t)device, description->sm_count, &green->context) : CUDA_ERROR_OUT_OF_MEMORY; /* checked: not negative */
    if (result != CUDA_SUCCESS) {
        free(green);
        cuDevicePrimaryCtxRelease_v2(device);
        return result;
    }
    green->kind = HANDLE_GREEN;
    green->context->green_handle = green;
    *out = green;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx green)
{
    ENTER();
    if (!valid(green))
        return CUDA_ERROR_INVALID_CONTEXT;
    green->kind = HANDLE_DEAD; /* the handle keeps its memory, so that a use after this is an error and not a crash */
    CUdevice device = (CUdevice)green->context->device; /* small */
    sim_green_destroy(green->context);
    return cuDevicePrimaryCtxRelease_v2(device);
}
SIM_EXPORTED CUresult CUDAAPI cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx green)
{
    ENTER();
    if (!out || !valid(green))
        return out ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    *out = green->context;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGreenCtxGetId(CUgreenCtx green, unsigned long long *id)
{
    ENTER();
    if (!id || !valid(green))
        return id ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    *id = green->context->id;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags, int priority)
{
    ENTER();
    if (!stream || flags != CU_STREAM_NON_BLOCKING) /* the only kind there is in a green context */
        return CUDA_ERROR_INVALID_VALUE;
    if (!valid(green))
        return CUDA_ERROR_INVALID_CONTEXT;
    priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    return sim_stream_create(green->context, flags, priority, stream);
}
