/* Launches and occupancy. A kernel takes its time and does nothing. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>

#define REGISTERS_PER_THREAD 32u
#define MOST_IN_CLUSTER 16u /* with the attribute for sizes that are not portable */
#define PORTABLE_CLUSTER 8u

static const struct sim_gpu_info *info_of(CUcontext context) { return &sim_here()->gpu[context->gpu].info; }

uint64_t sim_blocks_resident(CUcontext context, CUfunction function, uint32_t threads, uint64_t shared)
{
    const struct sim_gpu_info *gpu = info_of(context);
    (void)function;
    uint64_t limit = gpu->max_blocks_per_sm, warps = (threads + 31) / 32 * 32;
    if (threads == 0 || threads > 1024)
        return 0;
    if (gpu->max_threads_per_sm / warps < limit)
        limit = gpu->max_threads_per_sm / warps;
    if (shared && gpu->shared_bytes_per_sm / shared < limit)
        limit = gpu->shared_bytes_per_sm / shared;
    if (gpu->registers_per_sm / (REGISTERS_PER_THREAD * warps) < limit)
        limit = gpu->registers_per_sm / (REGISTERS_PER_THREAD * warps);
    return limit;
}

CUresult sim_launch_check(CUcontext context, const struct launch *launch, int cooperative)
{
    const uint32_t *grid = launch->grid, *block = launch->block;
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2] || grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535 ||
        block[0] > 1024 || block[1] > 1024 || block[2] > 64 || block[0] * block[1] * block[2] > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t most = launch->function->max_dynamic_shared > 49152 ? launch->function->max_dynamic_shared : 49152;
    if (launch->shared > most)
        return CUDA_ERROR_INVALID_VALUE;
    if (cooperative) {
        uint64_t resident = sim_blocks_resident(context, launch->function, block[0] * block[1] * block[2], launch->shared);
        uint64_t sms = context->sm_limit ? context->sm_limit : sim_sm_count(context->gpu);
        if ((uint64_t)grid[0] * grid[1] * grid[2] > resident * sms)
            return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    return CUDA_SUCCESS;
}

void sim_launch_item(CUcontext context, const struct launch *launch, struct sim_item *item)
{
    struct sim_kernel_shape shape = {
        .blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2],
        .threads_per_block = launch->block[0] * launch->block[1] * launch->block[2],
        .shared_bytes_per_block = launch->shared,
        .registers_per_thread = REGISTERS_PER_THREAD,
        .sm_limit = context->sm_limit,
    };
    struct sim_machine *machine = sim_here();
    CUfunction function = launch->function;
    uint64_t ns;
    /* relaxed, both: whoever computes the cost gets the same figure */
    if (__atomic_load_n(&function->fixed_cost, __ATOMIC_ACQUIRE)) {
        ns = __atomic_load_n(&function->cost_ns, __ATOMIC_RELAXED);
    } else {
        struct sim_kernel_shape none = {0};
        ns = sim_kernel_cost(machine, function->name, &shape);
        uint64_t least = sim_kernel_cost(machine, function->name, &none);
        if (ns == least && !sim_kernel_changes(function->name)) { /* no part depends on the grid (of at least one block) */
            __atomic_store_n(&function->cost_ns, ns, __ATOMIC_RELAXED);
            __atomic_store_n(&function->fixed_cost, 1, __ATOMIC_RELEASE); /* the cost is there before it counts */
        }
    }
    *item = (struct sim_item){.kind = SIM_ITEM_KERNEL, .demand_ppm = sim_kernel_demand(machine, context->gpu, &shape), .work = ns * SIM_WORK_SCALE};
}

CUresult sim_launch(CUstream stream, const struct launch *launch, int cooperative)
{
    if (!sim_function_of(launch->function))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = sim_launch_check(stream->context, launch, cooperative);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return sim_capture_kernel(stream, launch);
    struct sim_item item;
    sim_launch_item(stream->context, launch, &item);
    return sim_enqueue(stream, &item);
}

static CUresult launch_on(const char *call, int per_thread, const struct launch *launch, CUstream given, int cooperative)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    return result == CUDA_SUCCESS ? sim_launch(stream, launch, cooperative) : result;
}

#define PLAIN_PARAMETERS (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters, void **extra)
static CUresult launch_plain(const char *call, int per_thread, CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream)
{
    return launch_on(call, per_thread, &(struct launch){f, {gx, gy, gz}, {bx, by, bz}, shared}, stream, 0);
}
#define PLAIN(name, per_thread) SIM_EXPORTED CUresult CUDAAPI name PLAIN_PARAMETERS { (void)parameters; (void)extra; return launch_plain(__func__, per_thread, f, gx, gy, gz, bx, by, bz, shared, stream); }
PLAIN(cuLaunchKernel, 0)
PLAIN(cuLaunchKernel_ptsz, 1)

#define COOPERATIVE_PARAMETERS (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **parameters)
#define COOPERATIVE(name, per_thread) SIM_EXPORTED CUresult CUDAAPI name COOPERATIVE_PARAMETERS { (void)parameters; return launch_on(__func__, per_thread, &(struct launch){f, {gx, gy, gz}, {bx, by, bz}, shared}, stream, 1); }
COOPERATIVE(cuLaunchCooperativeKernel, 0)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, 1)

static CUresult launch_extended(const char *call, int per_thread, const CUlaunchConfig *config, CUfunction function)
{
    int cooperative = 0;
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs && config->attrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
            cooperative = config->attrs[i].value.cooperative;
    struct launch launch = {function, {config->gridDimX, config->gridDimY, config->gridDimZ}, {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes};
    return launch_on(call, per_thread, &launch, config->hStream, cooperative);
}
SIM_EXPORTED CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra) { (void)parameters; (void)extra; return launch_extended(__func__, 0, config, f); }
CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra);
SIM_EXPORTED CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra) { (void)parameters; (void)extra; return launch_extended(__func__, 1, config, f); }

SIM_EXPORTED CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count, unsigned int flags)
{
    ENTER();
    if (!list || !count || flags & ~3u)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        CUstream stream = list[i].hStream;
        if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD || stream->kind != HANDLE_STREAM)
            return CUDA_ERROR_INVALID_HANDLE;
        struct launch launch = {list[i].function, {list[i].gridDimX, list[i].gridDimY, list[i].gridDimZ}, {list[i].blockDimX, list[i].blockDimY, list[i].blockDimZ}, list[i].sharedMemBytes};
        CUresult result = sim_launch(stream, &launch, 1);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

/* ---- the interface before CUDA 4: a remembered block shape ---- */

SIM_EXPORTED CUresult CUDAAPI cuFuncSetBlockShape(CUfunction function, int x, int y, int z)
{
    ENTER();
    if (!sim_function_of(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (x <= 0 || y <= 0 || z <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    function->block[0] = (uint32_t)x; /* all positive */
    function->block[1] = (uint32_t)y;
    function->block[2] = (uint32_t)z;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuFuncSetSharedSize(CUfunction function, unsigned int bytes)
{
    ENTER();
    if (!sim_function_of(function))
        return CUDA_ERROR_INVALID_HANDLE;
    function->legacy_shared = bytes;
    return CUDA_SUCCESS;
}
static CUresult parameter(CUfunction function) { return sim_function_of(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
SIM_EXPORTED CUresult CUDAAPI cuParamSetSize(CUfunction function, unsigned int bytes) { ENTER(); (void)bytes; return parameter(function); }
SIM_EXPORTED CUresult CUDAAPI cuParamSeti(CUfunction function, int offset, unsigned int value) { ENTER(); (void)offset; (void)value; return parameter(function); }
SIM_EXPORTED CUresult CUDAAPI cuParamSetf(CUfunction function, int offset, float value) { ENTER(); (void)offset; (void)value; return parameter(function); }
SIM_EXPORTED CUresult CUDAAPI cuParamSetv(CUfunction function, int offset, void *value, unsigned int bytes) { ENTER(); (void)offset; (void)value; (void)bytes; return parameter(function); }

static CUresult launch_grid(const char *call, CUfunction function, int width, int height, CUstream stream)
{
    if (!sim_function_of(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (width <= 0 || height <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct launch launch = {function, {(uint32_t)width, (uint32_t)height, 1}, {function->block[0], function->block[1], function->block[2]}, function->legacy_shared}; /* both positive */
    return launch_on(call, 0, &launch, stream, 0);
}
SIM_EXPORTED CUresult CUDAAPI cuLaunch(CUfunction function) { return launch_grid(__func__, function, 1, 1, NULL); }
SIM_EXPORTED CUresult CUDAAPI cuLaunchGrid(CUfunction function, int width, int height) { return launch_grid(__func__, function, width, height, NULL); }
SIM_EXPORTED CUresult CUDAAPI cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) { return launch_grid(__func__, function, width, height, stream); }

/* ---- occupancy ---- */

static CUresult resident_blocks(CUcontext context, int *blocks, CUfunction function, int threads, size_t shared)
{
    if (!blocks || threads <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_function_of(function))
        return CUDA_ERROR_INVALID_HANDLE;
    *blocks = (int)sim_blocks_resident(context, function, (uint32_t)threads, shared); /* positive; at most a few dozen */
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared) { CUcontext context; ENTER_CONTEXT(context); return resident_blocks(context, blocks, function, threads, shared); }
SIM_EXPORTED CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads, size_t shared, unsigned int flags) { CUcontext context; ENTER_CONTEXT(context); (void)flags; return resident_blocks(context, blocks, function, threads, shared); }

static CUresult best_block(CUcontext context, int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared, int limit)
{
    uint64_t best = 0;
    if (!grid || !block)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_function_of(function))
        return CUDA_ERROR_INVALID_HANDLE;
    int most = limit > 0 && limit < 1024 ? limit : 1024;
    *grid = *block = 0;
    int whole_warps = most / 32 * 32;
    for (int threads = whole_warps > 0 ? whole_warps : most; threads > 0; threads -= 32) {
        uint64_t blocks = sim_blocks_resident(context, function, (uint32_t)threads, shared_of ? shared_of(threads) : shared); /* positive */
        if (blocks * (uint32_t)threads > best) {
            best = blocks * (uint32_t)threads;
            *block = threads;
            *grid = (int)(blocks * sim_usable_sms(context->gpu)); /* a few thousand */
        }
    }
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared, int limit) { CUcontext context; ENTER_CONTEXT(context); return best_block(context, grid, block, function, shared_of, shared, limit); }
SIM_EXPORTED CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared, int limit, unsigned int flags) { CUcontext context; ENTER_CONTEXT(context); (void)flags; return best_block(context, grid, block, function, shared_of, shared, limit); }
SIM_EXPORTED CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks, int threads)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    (void)threads;
    if (!bytes || blocks <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_function_of(function))
        return CUDA_ERROR_INVALID_HANDLE;
    *bytes = info_of(context)->shared_bytes_per_sm / (unsigned)blocks; /* positive */
    return CUDA_SUCCESS;
}

/* A cluster is as many blocks as the launch's attribute says; all of them must be resident together. */
static CUresult active_clusters(CUcontext context, int *count, CUfunction function, const CUlaunchConfig *config)
{
    if (!count || !config)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_function_of(function))
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t size = 1;
    for (unsigned i = 0; i < config->numAttrs && config->attrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            size = (uint64_t)config->attrs[i].value.cluster.x * config->attrs[i].value.cluster.y * config->attrs[i].value.cluster.z;
    if (size == 0 || size > MOST_IN_CLUSTER)
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    uint64_t blocks = sim_blocks_resident(context, function, config->blockDimX * config->blockDimY * config->blockDimZ, config->sharedMemBytes) * sim_usable_sms(context->gpu);
    *count = (int)(blocks / size); /* a few thousand */
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *config) { CUcontext context; ENTER_CONTEXT(context); return active_clusters(context, count, function, config); }
SIM_EXPORTED CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function, const CUlaunchConfig *config)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    if (!size || !config)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_function_of(function))
        return CUDA_ERROR_INVALID_HANDLE;
    *size = info_of(context)->cc_major >= 9 ? (int)PORTABLE_CLUSTER : 1; /* small */
    return CUDA_SUCCESS;
}
