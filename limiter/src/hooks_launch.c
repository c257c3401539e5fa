/* Everything that makes the device work: each form goes through the same gate. */
#include "driver.h"
#include "pacing.h"
#include "process.h"

/* The gate around one launch on the thread's device. */
#define LAUNCH(launch_function, launch_kind, launch_blocks, launch_threads, launch_stream, launch_per_thread, call)   \
    if (hv_likely(hv_launch_is_paid(launch_function, launch_blocks, launch_threads)))                                 \
        return call;                                                                                                  \
    struct hv_launch launch = {.function = launch_function,                                                           \
                               .stream = launch_stream,                                                               \
                               .blocks = launch_blocks,                                                               \
                               .threads_per_block = launch_threads,                                                   \
                               .kind = launch_kind,                                                                   \
                               .per_thread = launch_per_thread};                                                      \
    CUresult refused = hv_launch_begin(&launch);                                                                      \
    if (refused != CUDA_SUCCESS)                                                                                      \
        return refused;                                                                                               \
    return hv_launch_end(&launch, call)

#define GRID ((uint64_t)grid_x * grid_y * grid_z)
#define BLOCK ((uint64_t)block_x * block_y * block_z)

#define KERNEL_PARAMETERS                                                                                             \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,        \
     unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters,       \
     void **extra)
#define KERNEL_ARGUMENTS                                                                                              \
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra)

HV_WRAP(cuLaunchKernel, KERNEL_PARAMETERS)
{
    LAUNCH(function, HV_LAUNCH_KERNEL, GRID, BLOCK, stream, false, HV_REAL(cuLaunchKernel) KERNEL_ARGUMENTS);
}

HV_WRAP(cuLaunchKernel_ptsz, KERNEL_PARAMETERS)
{
    LAUNCH(function, HV_LAUNCH_KERNEL, GRID, BLOCK, stream, true, HV_REAL(cuLaunchKernel_ptsz) KERNEL_ARGUMENTS);
}

#define COOPERATIVE_PARAMETERS                                                                                        \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,        \
     unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters)
#define COOPERATIVE_ARGUMENTS                                                                                         \
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters)

HV_WRAP(cuLaunchCooperativeKernel, COOPERATIVE_PARAMETERS)
{
    LAUNCH(function, HV_LAUNCH_KERNEL, GRID, BLOCK, stream, false,
           HV_REAL(cuLaunchCooperativeKernel) COOPERATIVE_ARGUMENTS);
}

HV_WRAP(cuLaunchCooperativeKernel_ptsz, COOPERATIVE_PARAMETERS)
{
    LAUNCH(function, HV_LAUNCH_KERNEL, GRID, BLOCK, stream, true,
           HV_REAL(cuLaunchCooperativeKernel_ptsz) COOPERATIVE_ARGUMENTS);
}

/* ---- with attributes ---- */

static uint64_t grid_of(const CUlaunchConfig *config)
{
    return config == NULL ? 0 : (uint64_t)config->gridDimX * config->gridDimY * config->gridDimZ;
}

static uint64_t block_of(const CUlaunchConfig *config)
{
    return config == NULL ? 0 : (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
}

HV_WRAP(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra))
{
    LAUNCH(function, HV_LAUNCH_KERNEL, grid_of(config), block_of(config), config == NULL ? NULL : config->hStream, false,
           HV_REAL(cuLaunchKernelEx)(config, function, parameters, extra));
}

HV_WRAP(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra))
{
    LAUNCH(function, HV_LAUNCH_KERNEL, grid_of(config), block_of(config), config == NULL ? NULL : config->hStream, true,
           HV_REAL(cuLaunchKernelEx_ptsz)(config, function, parameters, extra));
}

/* ---- on several devices at once ---- */

static CUcontext context_of(CUstream stream)
{
    CUcontext context = NULL;
    hv_call_type_cuStreamGetCtx ask = HV_DRIVER(cuStreamGetCtx);
    if (ask == NULL || ask(stream, &context) != CUDA_SUCCESS)
        return NULL;
    return context;
}

HV_WRAP(cuLaunchCooperativeKernelMultiDevice, (CUDA_LAUNCH_PARAMS * list, unsigned int count, unsigned int flags))
{
    for (unsigned int i = 0; list != NULL && i < count; i++) {
        const CUDA_LAUNCH_PARAMS *one = &list[i];
        struct hv_launch launch = {.function = one->function,
                                   .stream = one->hStream,
                                   .blocks = (uint64_t)one->gridDimX * one->gridDimY * one->gridDimZ,
                                   .threads_per_block = (uint64_t)one->blockDimX * one->blockDimY * one->blockDimZ,
                                   .kind = HV_LAUNCH_KERNEL};
        CUresult refused = hv_launch_elsewhere(&launch, context_of(one->hStream));
        if (refused != CUDA_SUCCESS)
            return refused;
    }
    return HV_REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
}

/* ---- the forms of the first driver API ---- */

HV_WRAP(cuLaunch, (CUfunction function))
{
    LAUNCH(function, HV_LAUNCH_KERNEL, 1, 0, NULL, false, HV_REAL(cuLaunch)(function));
}

HV_WRAP(cuLaunchGrid, (CUfunction function, int width, int height))
{
    LAUNCH(function, HV_LAUNCH_KERNEL, (uint64_t)width * (uint64_t)height, 0, NULL, false,
           HV_REAL(cuLaunchGrid)(function, width, height));
}

HV_WRAP(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream))
{
    LAUNCH(function, HV_LAUNCH_KERNEL, (uint64_t)width * (uint64_t)height, 0, stream, false,
           HV_REAL(cuLaunchGridAsync)(function, width, height, stream));
}

/* ---- graphs ---- */

HV_WRAP(cuGraphLaunch, (CUgraphExec graph, CUstream stream))
{
    LAUNCH(graph, HV_LAUNCH_GRAPH, 1, 0, stream, false, HV_REAL(cuGraphLaunch)(graph, stream));
}

HV_WRAP(cuGraphLaunch_ptsz, (CUgraphExec graph, CUstream stream))
{
    LAUNCH(graph, HV_LAUNCH_GRAPH, 1, 0, stream, true, HV_REAL(cuGraphLaunch_ptsz)(graph, stream));
}

/* ---- capture ---- */

static CUresult capture_begun(CUresult result)
{
    if (result == CUDA_SUCCESS)
        hv_add_acq_rel_32(&hv_captures, 1);
    return result;
}

/* A failed end also ends the capture, unless there was none. */
static CUresult capture_ended(CUresult result)
{
    uint32_t captures = hv_load_relaxed_32(&hv_captures);
    while (captures != 0 && !__atomic_compare_exchange_n(&hv_captures, &captures, captures - 1, true, __ATOMIC_ACQ_REL,
                                                         __ATOMIC_RELAXED)) {
    }
    return result;
}

HV_WRAP(cuStreamBeginCapture, (CUstream stream))
{
    return capture_begun(HV_REAL(cuStreamBeginCapture)(stream));
}

HV_WRAP(cuStreamBeginCapture_ptsz, (CUstream stream))
{
    return capture_begun(HV_REAL(cuStreamBeginCapture_ptsz)(stream));
}

HV_WRAP(cuStreamBeginCapture_v2, (CUstream stream, int mode))
{
    return capture_begun(HV_REAL(cuStreamBeginCapture_v2)(stream, mode));
}

HV_WRAP(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode))
{
    return capture_begun(HV_REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

HV_WRAP(cuStreamBeginCaptureToGraph, (CUstream stream, CUgraph graph, const void *dependencies, const void *edges,
                                      size_t count, int mode))
{
    return capture_begun(HV_REAL(cuStreamBeginCaptureToGraph)(stream, graph, dependencies, edges, count, mode));
}

HV_WRAP(cuStreamBeginCaptureToGraph_ptsz, (CUstream stream, CUgraph graph, const void *dependencies, const void *edges,
                                           size_t count, int mode))
{
    return capture_begun(HV_REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, dependencies, edges, count, mode));
}

HV_WRAP(cuStreamEndCapture, (CUstream stream, CUgraph *graph))
{
    return capture_ended(HV_REAL(cuStreamEndCapture)(stream, graph));
}

HV_WRAP(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph))
{
    return capture_ended(HV_REAL(cuStreamEndCapture_ptsz)(stream, graph));
}
