/* test: sources=simulator/core/?*.c,simulator/cuda/?*.c include=simulator/include,simulator/core,simulator/cuda
   variants=plain,address */
/* What lies side by side: branches of a graph, parts of a GPU, processes; and what waits for what. Each case is a
 * process of its own with a fresh driver, judged by the machine's own ledger or clock. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "rig.h"

CUresult CUDAAPI cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources, unsigned int count);
CUresult CUDAAPI cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *groups, const CUdevResource *input, CUdevResource *remaining, unsigned int flags, unsigned int count);
CUresult CUDAAPI cuDeviceGetDevResource(CUdevice device, CUdevResource *out, CUdevResourceType type);
CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count);
CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_KERNEL_NODE_PARAMS_v1 *params);
CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *answer);
CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type);
CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc description, CUdevice device, unsigned int flags);
CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx green);
CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags, int priority);
CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event);
CUresult CUDAAPI cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle);
CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name);
CUresult CUDAAPI cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags);
CUresult CUDAAPI cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags);

static struct sim_machine *machine;
static CUcontext context;

static void begin(void)
{
    CUdevice device;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
}

static CUfunction kernel(const char *name)
{
    CUmodule module;
    CUfunction function;
    OK(cuModuleLoadData(&module, "\x7f\0\0\0\0\0\0\0any name is taken"));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static CUgraphNode add(CUgraph graph, CUfunction function, const CUgraphNode *after, size_t count)
{
    CUDA_KERNEL_NODE_PARAMS_v1 params = {.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
    CUgraphNode node;
    OK(cuGraphAddKernelNode(&node, graph, after, count, &params));
    return node;
}

/* The least of several launches: a busy host can only make one longer, and never one shorter than its kernels. */
static uint64_t launched(CUgraph graph, CUstream stream)
{
    CUgraphExec exec;
    uint64_t least = UINT64_MAX;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 5; i++) {
        uint64_t start = sim_now(machine);
        OK(cuGraphLaunch(exec, stream));
        OK(cuStreamSynchronize(stream));
        uint64_t took = sim_now(machine) - start;
        least = took < least ? took : least;
    }
    OK(cuGraphExecDestroy(exec));
    return least;
}

/* Four kernels of 5 ms: beside each other 5 ms, one after another 20, and a diamond 15. */
static void branches(void)
{
    CUgraph graph;
    CUstream stream;
    CUgraphNode nodes[4];
    begin();
    CUfunction function = kernel("sim_us5000");
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuGraphCreate(&graph, 0));
    for (int i = 0; i < 4; i++)
        nodes[i] = add(graph, function, NULL, 0);
    uint64_t beside = launched(graph, stream);
    CHECK(beside >= 5 * MS && beside < 10 * MS);
    OK(cuGraphDestroy(graph));
    OK(cuGraphCreate(&graph, 0));
    for (int i = 0; i < 4; i++)
        nodes[i] = add(graph, function, i ? &nodes[i - 1] : NULL, i != 0);
    uint64_t chain = launched(graph, stream);
    CHECK(chain >= 20 * MS && chain < 30 * MS);
    OK(cuGraphDestroy(graph));
    OK(cuGraphCreate(&graph, 0));
    nodes[0] = add(graph, function, NULL, 0);
    nodes[1] = add(graph, function, nodes, 1);
    nodes[2] = add(graph, function, nodes, 1);
    nodes[3] = add(graph, function, &nodes[1], 2);
    uint64_t diamond = launched(graph, stream);
    CHECK(diamond >= 15 * MS && diamond < 19 * MS);
}

/* A graph that is launched into a recording becomes a child; an update names the node that differs. */
static void recordings(void)
{
    CUgraph inner, outer, wrong;
    CUgraphExec exec, outer_exec;
    CUgraphNode node, found[2];
    CUgraphNodeType type;
    CUstream stream;
    CUgraphExecUpdateResultInfo answer;
    size_t count = 2;
    begin();
    CUfunction function = kernel("sim_us1000");
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuGraphCreate(&inner, 0));
    add(inner, function, NULL, 0);
    OK(cuGraphInstantiateWithFlags(&exec, inner, 0));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamEndCapture(stream, &outer));
    OK(cuGraphGetNodes(outer, found, &count));
    SAME(count, 1);
    OK(cuGraphNodeGetType(found[0], &type));
    SAME(type, CU_GRAPH_NODE_TYPE_GRAPH);
    OK(cuGraphInstantiateWithFlags(&outer_exec, outer, 0));
    OK(cuGraphLaunch(outer_exec, stream));
    OK(cuStreamSynchronize(stream));
    struct sim_gpu_reading reading;
    OK(sim_read_gpu(machine, 0, &reading));
    SAME(reading.launches, 1);
    OK(cuGraphCreate(&wrong, 0));
    OK(cuGraphAddEmptyNode(&node, wrong, NULL, 0));
    SAME(cuGraphExecUpdate_v2(exec, wrong, &answer), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    SAME(answer.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
    CHECK(answer.errorNode == node);
}

/* Destroying a stream returns at once; what it was given is done all the same. */
static void destroyed_streams(void)
{
    CUstream stream;
    begin();
    CUfunction function = kernel("sim_us30000");
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    uint64_t start = sim_now(machine);
    OK(cuStreamDestroy_v2(stream));
    CHECK(sim_now(machine) - start < 20 * MS);
    SAME(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxSynchronize());
    CHECK(sim_now(machine) - start >= 29 * MS);
    struct sim_gpu_reading reading;
    OK(sim_read_gpu(machine, 0, &reading));
    CHECK(reading.busy_ns >= 30 * MS);
}

/* A stream waits for a word that the host writes. */
static void words(void)
{
    CUstream stream;
    CUdeviceptr word;
    begin();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&word, 4096));
    OK(cuMemsetD32_v2(word, 0, 1));
    OK(cuStreamWaitValue32_v2(stream, word, 7, 1));
    SAME(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    OK(cuStreamWriteValue32_v2(CU_STREAM_LEGACY, word, 7, 0));
    OK(cuStreamSynchronize(stream));
}

static void array_bytes(void)
{
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = 64, .Height = 4, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    unsigned char from[256], to[256] = {0};
    CUarray array;
    begin();
    for (int i = 0; i < 256; i++)
        from[i] = (unsigned char)i; /* below 256 */
    OK(cuArrayCreate_v2(&array, &shape));
    CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from, .srcPitch = 64, .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = array, .WidthInBytes = 64, .Height = 4};
    CUDA_MEMCPY2D back = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = array, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = to, .dstPitch = 64, .WidthInBytes = 64, .Height = 4};
    OK(cuMemcpy2D_v2(&in));
    OK(cuMemcpy2D_v2(&back));
    CHECK(memcmp(from, to, sizeof to) == 0);
    in.Height = 5;
    SAME(cuMemcpy2D_v2(&in), CUDA_ERROR_INVALID_VALUE);
    OK(cuArrayDestroy(array));
}

static void variables(void)
{
    CUmodule module;
    CUdeviceptr address;
    size_t size;
    begin();
    OK(cuModuleLoadData(&module, ".version 8.0\n.visible .global .align 4 .b8 table[12];\n.visible .const .u32 limit = 5;\n.visible .entry go() { ld.global.u32 %r1, [table]; }\n"));
    OK(cuModuleGetGlobal_v2(&address, &size, module, "table"));
    SAME(size, 12);
    OK(cuMemsetD8_v2(address, 1, 12));
    OK(cuModuleGetGlobal_v2(NULL, &size, module, "limit"));
    SAME(size, 4);
    SAME(cuModuleGetGlobal_v2(&address, &size, module, "absent"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleUnload(module));
}

/* A green context of half of the SMs: a kernel that wants all of them takes twice the SM time share that it gets. */
static void green(void)
{
    CUdevResource whole, half;
    CUdevResourceDesc description;
    CUgreenCtx part;
    CUstream stream;
    unsigned groups = 1;
    size_t before, after, total;
    begin();
    OK(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    SAME(whole.sm.smCount, 10);
    OK(cuDevSmResourceSplitByCount(&half, &groups, &whole, NULL, 0, 8));
    SAME(half.sm.smCount, 8);
    OK(cuDevResourceGenerateDesc(&description, &half, 1));
    OK(cuMemGetInfo_v2(&before, &total));
    OK(cuGreenCtxCreate(&part, description, 0, 1));
    OK(cuMemGetInfo_v2(&after, &total));
    SAME(before, after); /* it costs no memory of its own */
    OK(cuGreenCtxStreamCreate(&stream, part, CU_STREAM_NON_BLOCKING, 0));
    OK(cuLaunchKernel(kernel("sim_us10000"), 1000, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamSynchronize(stream));
    struct sim_gpu_reading reading;
    OK(sim_read_gpu(machine, 0, &reading));
    CHECK(reading.busy_ns >= 10 * MS);
    CHECK(reading.sm_ns * 10 <= reading.busy_ns * 8 + MS); /* at most 8 of its 10 SMs */
    OK(cuStreamDestroy_v2(stream));
    OK(cuGreenCtxDestroy(part));
}

/* Another process records the event; this one waits for it. */
static void shared_events(void)
{
    int there[2], back[2];
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CUipcEventHandle handle;
        CUevent event;
        CUstream stream;
        begin();
        CHECK(read(there[0], &handle, sizeof handle) == (ssize_t)sizeof handle);
        OK(cuIpcOpenEventHandle(&event, handle));
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuLaunchKernel(kernel("sim_us20000"), 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
        OK(cuEventRecord(event, stream));
        CHECK(write(back[1], "r", 1) == 1);
        OK(cuStreamSynchronize(stream));
        OK(cuEventDestroy_v2(event));
        _exit(0);
    }
    CUipcEventHandle handle;
    CUevent event;
    char byte;
    int status;
    begin();
    SAME(cuEventCreate(&event, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
    OK(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    OK(cuIpcGetEventHandle(&handle, event));
    CHECK(write(there[1], &handle, sizeof handle) == (ssize_t)sizeof handle);
    CHECK(read(back[0], &byte, 1) == 1);
    OK(cuEventSynchronize(event));
    struct sim_gpu_reading reading;
    OK(sim_read_gpu(machine, 0, &reading));
    CHECK(reading.busy_ns >= 20 * MS); /* the other's kernel was over */
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
    static const struct test_case cases[] = {
        {"branches", branches},
        {"recordings", recordings},
        {"destroyed streams", destroyed_streams},
        {"words", words},
        {"array bytes", array_bytes},
        {"variables", variables},
        {"green", green},
        {"shared events", shared_events},
    };
    return run_cases(cases, sizeof cases / sizeof *cases, &machine, "sharing", 1, 1);
}
