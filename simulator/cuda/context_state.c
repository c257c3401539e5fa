/* What a context can be asked and told. */
#define _GNU_SOURCE
#include "driver.h"

SIM_EXPORTED CUresult CUDAAPI cuCtxGetDevice(CUdevice *device)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdevice)context->device; /* below SIM_MAX_GPUS */
    return CUDA_SUCCESS;
}

/* From 13.0 on the same names take a context; NULL means the current one. */
static CUresult given_or_current(CUcontext *context)
{
    if (!*context)
        *context = sim_current_context();
    if (!*context)
        return CUDA_ERROR_INVALID_CONTEXT;
    return sim_context_valid(*context) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    ENTER();
    CUresult result = given_or_current(&context);
    if (result == CUDA_SUCCESS && !device)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *device = (CUdevice)context->device; /* below SIM_MAX_GPUS */
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxSynchronize(void)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return sim_context_synchronize(context);
}

SIM_EXPORTED CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext context)
{
    ENTER();
    CUresult result = given_or_current(&context);
    return result == CUDA_SUCCESS ? sim_context_synchronize(context) : result;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxGetFlags(unsigned int *flags)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxSetFlags(unsigned int flags)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    context->flags = flags;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxGetId(CUcontext context, unsigned long long *id)
{
    ENTER();
    CUresult result = given_or_current(&context);
    if (result == CUDA_SUCCESS && !id)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *id = context->id;
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxGetApiVersion(CUcontext context, unsigned int *version)
{
    ENTER();
    CUresult result = given_or_current(&context);
    if (result == CUDA_SUCCESS && !version)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *version = context->api_version;
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxGetLimit(size_t *value, CUlimit limit)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!value || (unsigned)limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if ((unsigned)limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache *config)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    *config = CU_FUNC_CACHE_PREFER_NONE;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache config)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    (void)config; /* a hint; this GPU has no caches */
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxResetPersistingL2Cache(void)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxGetExecAffinity(CUexecAffinityParam *param, CUexecAffinityType type)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!param || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
        return CUDA_ERROR_INVALID_VALUE;
    param->type = type;
    param->param.smCount.val = context->sm_limit ? context->sm_limit : sim_sm_count(context->gpu);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (flags || !sim_context_valid(peer) || peer->device == context->device)
        return CUDA_ERROR_INVALID_VALUE;
    if (context->peers & (1u << peer->device))
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= 1u << peer->device;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!sim_context_valid(peer) || !(context->peers & (1u << peer->device)))
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers &= ~(1u << peer->device);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    *config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    (void)config; /* without effect on GPUs since Maxwell */
    return CUDA_SUCCESS;
}

/* Writes of other devices are in memory when they are made. The target must be the current context, the scope its owner or all devices. */
CUresult CUDAAPI cuFlushGPUDirectRDMAWrites(int target, int scope);
SIM_EXPORTED CUresult CUDAAPI cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    return target == 0 && (scope == 100 || scope == 200) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
