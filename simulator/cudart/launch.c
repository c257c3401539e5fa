/* Kernels: launches, attributes, occupancy. A kernel's handle is a function's to the driver. */
#define _GNU_SOURCE
#include "cudart.h"

#include <string.h>

#define MAX_CONFIGURATIONS 16u

struct cudaLaunchConfig { dim3 grid, block; size_t shared; CUstream stream; CUlaunchAttribute *attributes; unsigned count; };
struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA, maxDynamicSharedSizeBytes, preferredShmemCarveout;
    int clusterDimMustBeSet, requiredClusterWidth, requiredClusterHeight, requiredClusterDepth, clusterSchedulingPolicyPreference, nonPortableClusterSizeAllowed;
    int reserved[16];
};
struct configuration { dim3 grid, block; size_t shared; CUstream stream; };
static _Thread_local struct { struct configuration stack[MAX_CONFIGURATIONS]; unsigned depth; } configurations;

EXPORTED unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream stream)
{
    if (configurations.depth == MAX_CONFIGURATIONS)
        return 1;
    configurations.stack[configurations.depth++] = (struct configuration){grid, block, shared, stream};
    return 0;
}
EXPORTED cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (configurations.depth == 0)
        return sim_runtime_told(MISSING_CONFIGURATION);
    const struct configuration *top = &configurations.stack[--configurations.depth];
    *grid = top->grid;
    *block = top->block;
    *shared = top->shared;
    *(CUstream *)stream = top->stream;
    return CUDA_SUCCESS;
}

static CUfunction function_of(CUkernel kernel) { return (CUfunction)(void *)kernel; /* the driver takes either */ }

static cudaError_t function_at(const void *host, CUfunction *out)
{
    CUkernel kernel = NULL;
    cudaError_t error = sim_runtime_enter();
    if (!error)
        error = sim_runtime_kernel(host, &kernel);
    *out = function_of(kernel);
    return error;
}

static CUresult launch(CUfunction function, dim3 grid, dim3 block, void **arguments, size_t shared, CUstream stream)
{
    return driver.cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream, arguments, NULL); /* a few hundred KiB at most */
}

EXPORTED cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, CUstream stream)
{
    CUfunction function;
    cudaError_t error = function_at(host, &function);
    return sim_runtime_told(error ? error : (cudaError_t)launch(function, grid, block, arguments, shared, stream));
}
EXPORTED cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, CUstream stream)
{
    CUfunction function;
    cudaError_t error = function_at(host, &function);
    return sim_runtime_told(error ? error : (cudaError_t)driver.cuLaunchCooperativeKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream, arguments)); /* as above */
}
EXPORTED cudaError_t cudaLaunchKernelExC(const struct cudaLaunchConfig *config, const void *host, void **arguments)
{
    CUfunction function;
    cudaError_t error = config ? function_at(host, &function) : CUDA_ERROR_INVALID_VALUE;
    if (error)
        return sim_runtime_told(error);
    CUlaunchConfig same = {config->grid.x, config->grid.y, config->grid.z, config->block.x, config->block.y, config->block.z, (unsigned)config->shared, config->stream, config->attributes, config->count}; /* as above */
    return sim_runtime_told((cudaError_t)driver.cuLaunchKernelEx(&same, function, arguments, NULL));
}
EXPORTED cudaError_t __cudaGetKernel(CUkernel *out, const void *host)
{
    cudaError_t error = sim_runtime_enter();
    return sim_runtime_told(error ? error : sim_runtime_kernel(host, out));
}
EXPORTED cudaError_t __cudaLaunchKernel(CUkernel kernel, dim3 grid, dim3 block, void **arguments, size_t shared, CUstream stream)
{
    cudaError_t error = sim_runtime_enter();
    return sim_runtime_told(error ? error : (cudaError_t)launch(function_of(kernel), grid, block, arguments, shared, stream));
}
EXPORTED cudaError_t cudaGetFuncBySymbol(CUfunction *out, const void *host) { return sim_runtime_told(function_at(host, out)); }

EXPORTED cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *host)
{
    CUfunction function;
    int shared = 0, constant = 0, local = 0;
    cudaError_t error = out ? function_at(host, &function) : CUDA_ERROR_INVALID_VALUE;
    if (error)
        return sim_runtime_told(error);
    memset(out, 0, sizeof *out);
    const struct { CUfunction_attribute which; int *to; } words[] = {
        {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &shared}, {CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, &constant}, {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &local},
        {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &out->maxThreadsPerBlock}, {CU_FUNC_ATTRIBUTE_NUM_REGS, &out->numRegs}, {CU_FUNC_ATTRIBUTE_PTX_VERSION, &out->ptxVersion},
        {CU_FUNC_ATTRIBUTE_BINARY_VERSION, &out->binaryVersion}, {CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, &out->cacheModeCA},
        {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, &out->maxDynamicSharedSizeBytes}, {CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, &out->preferredShmemCarveout}};
    for (size_t i = 0; i < sizeof words / sizeof *words && !error; i++)
        error = (cudaError_t)driver.cuFuncGetAttribute(words[i].to, words[i].which, function);
    out->sharedSizeBytes = (size_t)shared; /* none is negative */
    out->constSizeBytes = (size_t)constant;
    out->localSizeBytes = (size_t)local;
    return sim_runtime_told(error);
}
EXPORTED cudaError_t cudaFuncSetAttribute(const void *host, int which, int value)
{
    CUfunction function;
    cudaError_t error = function_at(host, &function);
    return sim_runtime_told(error ? error : (cudaError_t)driver.cuFuncSetAttribute(function, (CUfunction_attribute)which, value)); /* the same numbers */
}
EXPORTED cudaError_t cudaKernelSetAttributeForDevice(CUkernel kernel, int which, int value, int device) { THROUGH(cuKernelSetAttribute((CUfunction_attribute)which, value, kernel, device)); }
EXPORTED cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads, size_t shared, unsigned flags)
{
    CUfunction function;
    cudaError_t error = function_at(host, &function);
    return sim_runtime_told(error ? error : (cudaError_t)driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, flags));
}
EXPORTED cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads, size_t shared) { return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, shared, 0); }

EXPORTED cudaError_t cudaLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values, unsigned jit_count, CUlibraryOption *options, void **values, unsigned count) { THROUGH(cuLibraryLoadData(library, code, jit, jit_values, jit_count, options, values, count)); }
EXPORTED cudaError_t cudaLibraryUnload(CUlibrary library) { THROUGH(cuLibraryUnload(library)); }
EXPORTED cudaError_t cudaLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) { THROUGH(cuLibraryGetKernel(kernel, library, name)); }
