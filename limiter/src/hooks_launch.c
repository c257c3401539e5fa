/* Everything that makes the device work: each form goes through the same gate. */
#include "driver.h"
#include "graph_costs.h"
#include "graph_memory.h"
#include "pacing.h"
#include "process.h"

/*
 * One form of launch on the thread's device: NAME with its PARAMETERS, passed
 * on as ARGUMENTS; what is launched, as what, in which shape and where. The
 * wrapper calls nothing on its fast path, so that it ends in a jump with the
 * arguments still where the caller put them.
 */
#define LAUNCH(name, parameters, arguments, launched, launch_kind, launch_blocks, launch_threads, launch_stream,      \
               launch_per_thread)                                                                                     \
    LAUNCH_IN(HV_WRAP(name, parameters), name, parameters, arguments, launched, launch_kind, launch_blocks,           \
              launch_threads, launch_stream, launch_per_thread)

/* The same in a function that begins with HEAD. */
#define LAUNCH_IN(head, name, parameters, arguments, launched, launch_kind, launch_blocks, launch_threads,            \
                  launch_stream, launch_per_thread)                                                                   \
    static CUresult name##_slowly parameters;                                                                         \
    static CUresult name##_charged parameters;                                                                        \
    head                                                                                                              \
    {                                                                                                                 \
        __typeof__(&hv_##name) real = HV_REAL_IF_KNOWN(name);                                                         \
        if (hv_unlikely(real == NULL))                                                                                \
            return name##_slowly arguments;                                                                           \
        enum hv_passage passage = hv_launch_passage();                                                                \
        if (hv_likely(passage == HV_PASSAGE_FREE))                                                                    \
            return real arguments;                                                                                    \
        return passage == HV_PASSAGE_CHARGED ? name##_charged arguments : name##_slowly arguments;                    \
    }                                                                                                                 \
    static HV_NOINLINE CUresult name##_charged parameters                                                             \
    {                                                                                                                 \
        if (hv_unlikely(!hv_launch_is_paid(launched, launch_blocks, launch_threads)))                                 \
            return name##_slowly arguments;                                                                           \
        return HV_REAL_IF_KNOWN(name) arguments;                                                                      \
    }                                                                                                                 \
    static HV_NOINLINE CUresult name##_slowly parameters                                                              \
    {                                                                                                                 \
        struct hv_launch launch = {.function = launched,                                                              \
                                   .stream = launch_stream,                                                           \
                                   .blocks = launch_blocks,                                                           \
                                   .threads_per_block = launch_threads,                                               \
                                   .kind = launch_kind,                                                               \
                                   .per_thread = launch_per_thread};                                                  \
        CUresult refused = hv_launch_begin(&launch);                                                                  \
        if (refused != CUDA_SUCCESS)                                                                                  \
            return refused;                                                                                           \
        return hv_launch_end(&launch, HV_REAL(name) arguments);                                                       \
    }

#define GRID ((uint64_t)grid_x * grid_y * grid_z)
#define BLOCK ((uint64_t)block_x * block_y * block_z)

#define KERNEL_PARAMETERS                                                                                             \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,        \
     unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters,       \
     void **extra)
#define KERNEL_ARGUMENTS                                                                                              \
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra)

LAUNCH(cuLaunchKernel, KERNEL_PARAMETERS, KERNEL_ARGUMENTS, function, HV_LAUNCH_KERNEL, GRID, BLOCK, stream, false)
LAUNCH(cuLaunchKernel_ptsz, KERNEL_PARAMETERS, KERNEL_ARGUMENTS, function, HV_LAUNCH_KERNEL, GRID, BLOCK, stream, true)

#define COOPERATIVE_PARAMETERS                                                                                        \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,        \
     unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters)
#define COOPERATIVE_ARGUMENTS                                                                                         \
    (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters)

LAUNCH(cuLaunchCooperativeKernel, COOPERATIVE_PARAMETERS, COOPERATIVE_ARGUMENTS, function, HV_LAUNCH_KERNEL, GRID,
       BLOCK, stream, false)
LAUNCH(cuLaunchCooperativeKernel_ptsz, COOPERATIVE_PARAMETERS, COOPERATIVE_ARGUMENTS, function, HV_LAUNCH_KERNEL, GRID,
       BLOCK, stream, true)

/* ---- with attributes ---- */

static uint64_t grid_of(const CUlaunchConfig *config)
{
    return config == NULL ? 0 : (uint64_t)config->gridDimX * config->gridDimY * config->gridDimZ;
}

static uint64_t block_of(const CUlaunchConfig *config)
{
    return config == NULL ? 0 : (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
}

static CUstream stream_of(const CUlaunchConfig *config)
{
    return config == NULL ? NULL : config->hStream;
}

#define EX_PARAMETERS (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
#define EX_ARGUMENTS (config, function, parameters, extra)

LAUNCH(cuLaunchKernelEx, EX_PARAMETERS, EX_ARGUMENTS, function, HV_LAUNCH_KERNEL, grid_of(config), block_of(config),
       stream_of(config), false)
LAUNCH(cuLaunchKernelEx_ptsz, EX_PARAMETERS, EX_ARGUMENTS, function, HV_LAUNCH_KERNEL, grid_of(config),
       block_of(config), stream_of(config), true)

/* ---- on several devices at once ---- */

/* The driver takes one for each device, and refuses more of them. */
HV_WRAP(cuLaunchCooperativeKernelMultiDevice, (CUDA_LAUNCH_PARAMS * list, unsigned int count, unsigned int flags))
{
    struct hv_launch launches[HV_MAX_DEVICES];
    unsigned int begun = 0;
    CUresult result = CUDA_SUCCESS;
    for (unsigned int i = 0; list != NULL && i < count && result == CUDA_SUCCESS; i++) {
        const CUDA_LAUNCH_PARAMS *one = &list[i];
        struct hv_launch *launch = &launches[begun];
        *launch = (struct hv_launch){.function = one->function,
                                     .stream = one->hStream,
                                     .blocks = (uint64_t)one->gridDimX * one->gridDimY * one->gridDimZ,
                                     .threads_per_block = (uint64_t)one->blockDimX * one->blockDimY * one->blockDimZ,
                                     .kind = HV_LAUNCH_KERNEL};
        result = hv_launch_begin(launch);
        if (result == CUDA_SUCCESS && begun + 1 < HV_MAX_DEVICES)
            begun++;
        else if (result == CUDA_SUCCESS)
            (void)hv_launch_end(launch, CUDA_ERROR_INVALID_VALUE); /* charged, and not measured */
    }
    for (unsigned int i = 0; i < begun; i++)
        hv_launch_ready(&launches[i]);
    if (result == CUDA_SUCCESS)
        result = HV_REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
    for (unsigned int i = 0; i < begun; i++)
        (void)hv_launch_end(&launches[i], result);
    return result;
}

/* ---- the forms of the first driver API ---- */

#define AREA ((uint64_t)width * (uint64_t)height) /* negative ones are for the driver to refuse */

LAUNCH(cuLaunch, (CUfunction function), (function), function, HV_LAUNCH_KERNEL, 1, 0, NULL, false)
LAUNCH(cuLaunchGrid, (CUfunction function, int width, int height), (function, width, height), function,
       HV_LAUNCH_KERNEL, AREA, 0, NULL, false)
LAUNCH(cuLaunchGridAsync, (CUfunction function, int width, int height, CUstream stream),
       (function, width, height, stream), function, HV_LAUNCH_KERNEL, AREA, 0, stream, false)

/* ---- graphs ---- */

/* Around the launch of one that has allocation nodes, their memory. */
#define LAUNCH_GRAPH(name, launch_per_thread)                                                                         \
    int hv_##name(CUgraphExec graph, CUstream stream);                                                                \
    LAUNCH_IN(static CUresult name##_paced(CUgraphExec graph, CUstream stream), name,                                 \
              (CUgraphExec graph, CUstream stream), (graph, stream), graph, HV_LAUNCH_GRAPH, 1, 0, stream,            \
              launch_per_thread)                                                                                      \
    static HV_NOINLINE CUresult name##_with_memory(CUgraphExec graph, CUstream stream)                                \
    {                                                                                                                 \
        struct hv_graph_launch launch;                                                                                \
        CUresult refused = hv_graph_memory_begin(&launch, graph);                                                     \
        return refused != CUDA_SUCCESS ? refused : hv_graph_memory_end(&launch, name##_paced(graph, stream));         \
    }                                                                                                                 \
    HV_WRAP(name, (CUgraphExec graph, CUstream stream))                                                               \
    {                                                                                                                 \
        if (hv_unlikely(hv_graph_memory_in_use()))                                                                    \
            return name##_with_memory(graph, stream);                                                                 \
        return name##_paced(graph, stream);                                                                           \
    }

LAUNCH_GRAPH(cuGraphLaunch, false)
LAUNCH_GRAPH(cuGraphLaunch_ptsz, true)

/* ---- capture ---- */

static CUresult capture_begun(CUresult result)
{
    if (result == CUDA_SUCCESS)
        hv_add_acq_rel_32(&hv_captures, 1);
    return result;
}

static bool is_captured(hv_call_type_cuStreamIsCapturing ask, CUstream stream)
{
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return ask != NULL && ask(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* A failed end may have ended the capture too; or there was none of this stream, and those of others go on. A stream that is
 * destroyed meanwhile stays counted: then launches look whether they are captured, which is all that the count is for. */
static CUresult capture_ended(CUresult result, bool was_captured, bool is_captured_still)
{
    uint32_t captures = hv_load_relaxed_32(&hv_captures);
    while (was_captured && !is_captured_still && captures != 0 &&
           !__atomic_compare_exchange_n(&hv_captures, &captures, captures - 1, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
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

/* Gives the graph's nodes what is captured. */
static CUresult recapture_begun(CUresult result)
{
    struct hv_process *process = result == CUDA_SUCCESS && hv_attach_state() == HV_ATTACH_DONE ? hv_process() : NULL;
    if (process != NULL)
        hv_graph_costs_source_changed(process);
    return capture_begun(result);
}

HV_WRAP(cuStreamBeginRecaptureToGraph, (CUstream stream, int mode, CUgraph graph, void *callback, void *data))
{
    return recapture_begun(HV_REAL(cuStreamBeginRecaptureToGraph)(stream, mode, graph, callback, data));
}

HV_WRAP(cuStreamBeginRecaptureToGraph_ptsz, (CUstream stream, int mode, CUgraph graph, void *callback, void *data))
{
    return recapture_begun(HV_REAL(cuStreamBeginRecaptureToGraph_ptsz)(stream, mode, graph, callback, data));
}

#define END_CAPTURE(name, ask)                                                                                        \
    HV_WRAP(name, (CUstream stream, CUgraph * graph))                                                                 \
    {                                                                                                                 \
        bool was_captured = is_captured(HV_DRIVER(ask), stream);                                                      \
        CUresult result = HV_REAL(name)(stream, graph);                                                               \
        return capture_ended(result, was_captured, is_captured(HV_DRIVER(ask), stream));                              \
    }

END_CAPTURE(cuStreamEndCapture, cuStreamIsCapturing)
END_CAPTURE(cuStreamEndCapture_ptsz, cuStreamIsCapturing_ptsz)
