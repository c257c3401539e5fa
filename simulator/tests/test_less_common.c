/* test: sources=simulator/core/?*.c,simulator/cuda/?*.c include=simulator/include,simulator/core,simulator/cuda
   variants=address */
/* The less common parts of the driver, as a program sees them: advice about managed memory, semaphores and memory of
 * others, conditional nodes, events of contexts, multicast, references. Each case is a process with a fresh driver. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "rig.h"

typedef struct { unsigned devices; size_t size; unsigned long long types, flags; } team_properties;
CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise what, CUdevice device);
CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream);
CUresult cuMemRangeGetAttribute(void *out, size_t size, unsigned which, CUdeviceptr address, size_t bytes);
CUresult cuImportExternalSemaphore(CUexternalSemaphore *out, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *description);
CUresult cuSignalExternalSemaphoresAsync(const CUexternalSemaphore *list, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *params, unsigned count, CUstream stream);
CUresult cuWaitExternalSemaphoresAsync(const CUexternalSemaphore *list, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *params, unsigned count, CUstream stream);
CUresult cuGraphAddExternalSemaphoresSignalNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS *params);
CUresult cuGraphAddExternalSemaphoresWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_EXT_SEM_WAIT_NODE_PARAMS *params);
CUresult cuGraphAddBatchMemOpNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params);
CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *out, CUgraph graph, CUcontext context, unsigned value, unsigned flags);
CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *params);
CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context);
CUresult cuGraphClone(CUgraph *copy, CUgraph graph);
CUresult cuCtxRecordEvent(CUcontext context, CUevent event);
CUresult cuCtxWaitEvent(CUcontext context, CUevent event);
CUresult cuMulticastCreate(CUmemGenericAllocationHandle *out, const team_properties *properties);
CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle number, CUdevice device);
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle number, size_t offset, CUmemGenericAllocationHandle memory, size_t memory_offset, size_t size, unsigned long long flags);
CUresult cuMulticastUnbind(CUmemGenericAllocationHandle number, CUdevice device, size_t offset, size_t size);
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device);
CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description);
CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory external, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description);
CUresult cuDestroyExternalMemory(CUexternalMemory external);
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream);
CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr address);
CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *data);

static struct sim_machine *machine;

static uint64_t held(uint32_t gpu)
{
    struct sim_group_reading reading;
    OK(sim_read_group(machine, gpu, "driver", &reading));
    return reading.usage.bytes;
}

static CUcontext current(void)
{
    CUcontext context;
    OK(cuCtxGetCurrent(&context));
    return context;
}

static void managed(void)
{
    CUdeviceptr address, plain;
    int value, by[4];
    ready_kernel("sim_us1");
    OK(cuMemAllocManaged(&address, MIB, 1));
    OK(cuMemAlloc_v2(&plain, MIB));
    OK(cuMemRangeGetAttribute(&value, 4, 2, address, MIB));
    SAME(value, -2); /* no place is preferred */
    OK(cuMemAdvise(address, MIB, (CUmem_advise)3, 1));
    OK(cuMemAdvise(address, MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    OK(cuMemAdvise(address, MIB, (CUmem_advise)5, 2));
    OK(cuMemAdvise(address, MIB, (CUmem_advise)5, -1));
    OK(cuMemPrefetchAsync(address, MIB, -1, NULL));
    OK(cuMemRangeGetAttribute(&value, 4, 1, address, MIB));
    SAME(value, 1);
    OK(cuMemRangeGetAttribute(&value, 4, 2, address, 16));
    SAME(value, 1);
    OK(cuMemRangeGetAttribute(&value, 4, 4, address, MIB));
    SAME(value, -1);
    OK(cuMemRangeGetAttribute(by, sizeof by, 3, address, MIB));
    SAME(by[0], 2);
    SAME(by[1], -1);
    SAME(by[2], -2);
    OK(cuMemAdvise(address, MIB, (CUmem_advise)4, 0));
    OK(cuMemRangeGetAttribute(&value, 4, 2, address, MIB));
    SAME(value, -2);
    SAME(cuMemAdvise(plain, MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, 0), CUDA_ERROR_INVALID_VALUE);
    SAME(cuMemRangeGetAttribute(&value, 4, 1, address, MIB + 1), CUDA_ERROR_INVALID_VALUE);
}

static int word_file(uint64_t **word)
{
    int fd = memfd_create("semaphore", 0);
    CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
    *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(*word != MAP_FAILED);
    return fd;
}

static void semaphores(void)
{
    uint64_t *line, *flag;
    CUfunction function = ready_kernel("sim_us20000");
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC of_line = {.type = 9, .handle = {.fd = word_file(&line)}}, of_flag = {.type = 1, .handle = {.fd = word_file(&flag)}};
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS signal = {.params = {.fence = {7}}};
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait = {.params = {.fence = {9}}};
    CUexternalSemaphore timeline, opaque;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode first, second;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuImportExternalSemaphore(&timeline, &of_line));
    OK(cuImportExternalSemaphore(&opaque, &of_flag));
    OK(launch(function, 1, stream));
    OK(cuSignalExternalSemaphoresAsync(&timeline, &signal, 1, stream));
    SAME(__atomic_load_n(line, __ATOMIC_ACQUIRE), 0); /* after the kernel, and not before */
    OK(cuStreamSynchronize(stream));
    SAME(__atomic_load_n(line, __ATOMIC_ACQUIRE), 7);
    OK(cuWaitExternalSemaphoresAsync(&timeline, &wait, 1, stream));
    SAME(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    __atomic_store_n(line, 8, __ATOMIC_RELEASE);
    SAME(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    __atomic_store_n(line, 10, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(stream));
    CUDA_EXT_SEM_SIGNAL_NODE_PARAMS signals = {&opaque, &signal, 1};
    CUDA_EXT_SEM_WAIT_NODE_PARAMS waits = {&opaque, &wait, 1};
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddExternalSemaphoresSignalNode(&first, graph, NULL, 0, &signals));
    OK(cuGraphAddExternalSemaphoresWaitNode(&second, graph, &first, 1, &waits));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph)); /* the executable graph has lists of its own */
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    SAME(__atomic_load_n(flag, __ATOMIC_ACQUIRE), 0); /* taken by the wait */
    OK(cuGraphExecDestroy(exec));
}

/* The word that node after node writes. */
static uint32_t ran(CUgraph graph, CUdeviceptr address)
{
    uint32_t value = 0;
    CUgraphExec exec;
    OK(cuMemsetD32_v2(address, 0, 1));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(&value, address, sizeof value));
    OK(cuGraphExecDestroy(exec));
    return value;
}

static CUgraph with_condition(CUgraphConditionalNodeType type, unsigned value, unsigned bodies, CUdeviceptr address)
{
    CUgraph graph;
    CUgraphNode node, inner;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    OK(cuGraphCreate(&graph, 0));
    params.conditional = (CUDA_CONDITIONAL_NODE_PARAMS){.type = type, .size = bodies, .ctx = current()};
    OK(cuGraphConditionalHandleCreate(&params.conditional.handle, graph, current(), value, 1));
    OK(cuGraphAddNode(&node, graph, NULL, 0, &params));
    for (unsigned i = 0; i < bodies; i++) {
        CUDA_MEMSET_NODE_PARAMS fill = {.dst = address, .elementSize = 4, .value = 100 + i, .width = 1, .height = 1};
        OK(cuGraphAddMemsetNode(&inner, params.conditional.phGraph_out[i], NULL, 0, &fill, current()));
    }
    return graph;
}

static void conditions(void)
{
    static const struct { CUgraphConditionalNodeType type; unsigned value, bodies, wanted; } rows[] = {
        {CU_GRAPH_COND_TYPE_IF, 1, 1, 100}, {CU_GRAPH_COND_TYPE_IF, 0, 1, 0}, {CU_GRAPH_COND_TYPE_IF, 0, 2, 101}, {CU_GRAPH_COND_TYPE_SWITCH, 2, 3, 102},
        {CU_GRAPH_COND_TYPE_SWITCH, 3, 3, 0}, {CU_GRAPH_COND_TYPE_WHILE, 0, 1, 0}, {CU_GRAPH_COND_TYPE_WHILE, 1, 1, 100}};
    CUdeviceptr address;
    CUgraph graph, copy;
    CUgraphNode node;
    ready_kernel("sim_us1");
    OK(cuMemAlloc_v2(&address, 4096));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        graph = with_condition(rows[i].type, rows[i].value, rows[i].bodies, address);
        OK(cuGraphClone(&copy, graph));
        OK(cuGraphDestroy(graph));
        SAME(ran(copy, address), rows[i].wanted);
        OK(cuGraphDestroy(copy));
    }
    CUgraphNodeParams wrong = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    wrong.conditional = (CUDA_CONDITIONAL_NODE_PARAMS){.handle = 12345, .size = 1};
    OK(cuGraphCreate(&graph, 0));
    SAME(cuGraphAddNode(&node, graph, NULL, 0, &wrong), CUDA_ERROR_INVALID_VALUE); /* no handle of this graph */
    CUstreamBatchMemOpParams write = {.value = {.operation = 2, .address = address, .value = 55}};
    CUDA_BATCH_MEM_OP_NODE_PARAMS list = {current(), 1, &write, 0};
    OK(cuGraphAddBatchMemOpNode(&node, graph, NULL, 0, &list));
    SAME(ran(graph, address), 55);
    OK(cuGraphDestroy(graph));
}

static void events_of_contexts(void)
{
    CUfunction function = ready_kernel("sim_us30000");
    CUstream one, two, late;
    CUevent event;
    OK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(launch(function, 1, one));
    OK(cuCtxRecordEvent(current(), event));
    SAME(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    OK(cuStreamQuery(two)); /* recording holds nobody up */
    OK(cuCtxWaitEvent(current(), event));
    OK(cuStreamCreate(&late, CU_STREAM_NON_BLOCKING));
    SAME(cuStreamQuery(two), CUDA_ERROR_NOT_READY);
    SAME(cuStreamQuery(late), CUDA_ERROR_NOT_READY);
    OK(cuEventSynchronize(event));
    OK(cuStreamQuery(one));
    OK(cuStreamSynchronize(two));
    OK(cuStreamSynchronize(late));
}

static void multicast(void)
{
    team_properties team = {2, 4 * MIB, 0, 0};
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemGenericAllocationHandle object, memory;
    int able;
    ready_kernel("sim_us1");
    OK(cuDeviceGetAttribute(&able, (CUdevice_attribute)132, 0));
    SAME(able, 0);
    SAME(cuMulticastCreate(&object, &team), CUDA_ERROR_NOT_SUPPORTED); /* no links that end in a switch */
    for (int gpu = 0; gpu < 2; gpu++) {
        struct sim_gpu_info *info = &machine->gpu[gpu].info;
        info->link_count = 1;
        info->links[0] = (struct sim_link){.present = 1, .active = 1, .remote_type = SIM_REMOTE_SWITCH};
    }
    OK(cuDeviceGetAttribute(&able, (CUdevice_attribute)132, 0));
    SAME(able, 1);
    OK(cuMulticastCreate(&object, &team));
    OK(cuMemCreate(&memory, 2 * MIB, &props, 0));
    OK(cuMulticastAddDevice(object, 0));
    SAME(cuMulticastAddDevice(object, 0), CUDA_ERROR_INVALID_VALUE);
    SAME(cuMulticastAddDevice(object, 2), CUDA_ERROR_INVALID_VALUE); /* has no such links */
    SAME(cuMulticastBindMem(object, 0, memory, 0, 2 * MIB, 0), CUDA_ERROR_ILLEGAL_STATE);
    OK(cuMulticastAddDevice(object, 1));
    OK(cuMulticastBindMem(object, 2 * MIB, memory, 0, 2 * MIB, 0));
    SAME(cuMulticastBindMem(object, 4 * MIB, memory, 0, 2 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMulticastUnbind(object, 1, 2 * MIB, 2 * MIB));
    SAME(cuMulticastUnbind(object, 1, 2 * MIB, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    SAME(held(0), 64 * MIB); /* the object itself is nobody's memory */
    SAME(held(1), 2 * MIB);
    OK(cuMemRelease(memory));
    OK(cuMemRelease(object));
}

/* In a child, which has a driver of its own: what the parent made reads "from afar", and is answered. */
static void answer(CUdeviceptr address)
{
    char text[16] = "";
    OK(cuMemcpyDtoH_v2(text, address, sizeof text));
    CHECK(strcmp(text, "from afar") == 0);
    OK(cuMemcpyHtoD_v2(address, "and back", 9));
    SAME(held(0), 64 * MIB * 2 + 2 * MIB); /* two contexts, and the memory once: it is its maker's */
    _exit(0);
}

static void pool_of_two_processes(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemPoolPtrExportData data;
    CUmemoryPool pool, imported;
    CUdeviceptr address, there;
    char text[16] = "";
    int fd;
    ready_kernel("sim_us1");
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&address, 2 * MIB, pool, NULL));
    OK(cuMemcpyHtoD_v2(address, "from afar", 10));
    OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolExportPointer(&data, address));
    pid_t child = fork();
    if (child == 0) {
        ready_kernel("sim_us1");
        OK(cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        OK(cuMemPoolImportPointer(&there, imported, &data));
        answer(there);
    }
    ended_well(child);
    OK(cuMemcpyDtoH_v2(text, address, sizeof text));
    CHECK(strcmp(text, "and back") == 0);
}

static void external_memory_of_two_processes(void)
{
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUexternalMemory external;
    CUdeviceptr range, there;
    char text[16] = "";
    int fd;
    ready_kernel("sim_us1");
    OK(cuMemCreate(&handle, 2 * MIB, &props, 0));
    OK(cuMemAddressReserve(&range, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(range, 2 * MIB, 0, handle, 0));
    OK(cuMemSetAccess(range, 2 * MIB, &access, 1));
    OK(cuMemcpyHtoD_v2(range, "from afar", 10));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    pid_t child = fork();
    if (child == 0) {
        CUDA_EXTERNAL_MEMORY_HANDLE_DESC from = {.type = 1, .handle = {.fd = fd}, .size = 2 * MIB};
        CUDA_EXTERNAL_MEMORY_BUFFER_DESC whole = {.size = 2 * MIB}, beyond = {.offset = 4096, .size = 2 * MIB};
        ready_kernel("sim_us1");
        OK(cuImportExternalMemory(&external, &from));
        SAME(cuExternalMemoryGetMappedBuffer(&there, external, &beyond), CUDA_ERROR_INVALID_VALUE);
        OK(cuExternalMemoryGetMappedBuffer(&there, external, &whole));
        OK(cuDestroyExternalMemory(external));
        answer(there);
    }
    ended_well(child);
    OK(cuMemcpyDtoH_v2(text, range, sizeof text));
    CHECK(strcmp(text, "and back") == 0);
}

int main(void)
{
    static const struct test_case cases[] = {
        {"managed memory", managed}, {"semaphores", semaphores}, {"conditions", conditions}, {"events of contexts", events_of_contexts}, {"multicast", multicast},
        {"a pool of two processes", pool_of_two_processes}, {"external memory of two processes", external_memory_of_two_processes}};
    return run_cases(cases, sizeof cases / sizeof *cases, &machine, "less-common", 3, 0);
}
