/* test: sources=simulator/core/?*.c,simulator/cuda/?*.c include=simulator/include,simulator/core,simulator/cuda
   variants=address,thread */
/* The driver as a program sees it. Each case is a process of its own with a fresh driver. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "rig.h"

static struct sim_machine *machine;

static struct sim_gpu_usage mine(uint32_t gpu)
{
    struct sim_group_reading reading;
    OK(sim_read_group(machine, gpu, "driver", &reading));
    return reading.usage;
}

static void devices(void)
{
    int count, active;
    unsigned flags;
    char name[96], bus[32];
    CUuuid uuid;
    CUdevice device;
    size_t total;
    CUcontext context;
    SAME(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    SAME(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    OK(cuInit(0));
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    SAME(count, 3);
    SAME(cuDeviceGet(&device, 3), CUDA_ERROR_INVALID_DEVICE);
    OK(cuDeviceGet(&device, 2));
    OK(cuDeviceGetName(name, sizeof name, device));
    CHECK(strcmp(name, "Test GPU 2") == 0);
    OK(cuDeviceGetUuid_v2(&uuid, device));
    SAME(uuid.bytes[15], 3);
    OK(cuDeviceTotalMem_v2(&total, device));
    SAME(total, 1024 * MIB);
    OK(cuDeviceGetPCIBusId(bus, sizeof bus, device));
    CHECK(strcmp(bus, "0000:12:00.0") == 0);
    OK(cuDeviceGetByPCIBusId(&device, "0000:11:00.0"));
    SAME(device, 1);
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    SAME(active, 0);
    OK(cuDevicePrimaryCtxRetain(&context, 1));
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    SAME(active, 1);
    SAME(mine(1).bytes, 64 * MIB); /* the context's own, on that GPU only */
    SAME(mine(0).bytes, 0);
    OK(cuDevicePrimaryCtxRelease_v2(1));
    SAME(mine(1).bytes, 0);
    SAME(mine(1).peak_bytes, 64 * MIB);
    SAME(cuDevicePrimaryCtxRelease_v2(1), CUDA_ERROR_INVALID_CONTEXT);
}

static void contexts(void)
{
    CUcontext first, second, current;
    CUdeviceptr address;
    CUdevice device;
    OK(cuInit(0));
    SAME(cuMemAlloc_v2(&address, 1), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxCreate_v2(&first, 0, 0));
    OK(cuCtxCreate_v2(&second, 0, 1));
    OK(cuCtxGetDevice(&device));
    SAME(device, 1);
    OK(cuCtxPopCurrent_v2(&current));
    CHECK(current == second);
    OK(cuCtxGetCurrent(&current));
    CHECK(current == first);
    OK(cuMemAlloc_v2(&address, MIB));
    SAME(mine(0).bytes, 65 * MIB);
    OK(cuCtxPushCurrent_v2(second));
    OK(cuCtxDestroy_v2(first));
    SAME(mine(0).bytes, 0); /* its memory went with it */
    OK(cuCtxPopCurrent_v2(NULL));
    SAME(cuMemAlloc_v2(&address, 1), CUDA_ERROR_CONTEXT_IS_DESTROYED); /* still on the stack */
    SAME(cuCtxDestroy_v2(first), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuCtxSetCurrent(NULL));
    OK(cuCtxGetCurrent(&current));
    CHECK(current == NULL);
    OK(cuCtxDestroy_v2(second));
}

static void memory(void)
{
    size_t before, after, total, size, pitch;
    CUdeviceptr address, all, base, two;
    unsigned type;
    (void)ready_kernel("k");
    OK(cuMemGetInfo_v2(&before, &total));
    SAME(total, 1024 * MIB);
    SAME(before, 960 * MIB);
    SAME(cuMemAlloc_v2(&address, 0), CUDA_ERROR_INVALID_VALUE);
    SAME(cuMemAlloc_v2(&address, 960 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    SAME(cuMemAlloc_v2(&address, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc_v2(&all, 960 * MIB)); /* the last byte can be had */
    SAME(cuMemAlloc_v2(&address, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree_v2(all));
    SAME(cuMemFree_v2(all), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc_v2(&address, 1000));
    OK(cuMemGetInfo_v2(&after, &total));
    SAME(before - after, 1024); /* charged in units of 512 */
    SAME(cuMemFree_v2(address + 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetAddressRange_v2(&base, &size, address + 999));
    CHECK(base == address && size == 1000);
    SAME(cuMemGetAddressRange_v2(&base, &size, address + 1000), CUDA_ERROR_NOT_FOUND);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    SAME(type, CU_MEMORYTYPE_DEVICE);
    SAME(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)&type), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(address));
    OK(cuMemAllocPitch_v2(&address, &pitch, 1000, 10, 4));
    SAME(pitch, 1024);
    OK(cuMemFree_v2(address));
    OK(cuMemAllocManaged(&address, 3 * MIB, 1));
    memset((void *)(uintptr_t)address, 1, 3 * MIB); /* the host may touch it */
    OK(cuMemFree_v2(address));
    OK(cuMemAlloc_v2(&address, 4096));
    OK(cuMemAlloc_v2(&two, 4096));
    OK(cuMemFree_v2(address));
    OK(cuMemFree_v2(two));
    OK(cuMemGetInfo_v2(&after, &total));
    SAME(after, before);
    SAME(mine(0).peak_bytes, 1024 * MIB);
}

static void arrays(void)
{
    CUarray array;
    CUmipmappedArray levels;
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = 1024, .Height = 1024, .Format = (CUarray_format)0x20, .NumChannels = 4};
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1024, .Height = 1024, .Format = (CUarray_format)0x20, .NumChannels = 1};
    (void)ready_kernel("k");
    OK(cuArrayCreate_v2(&array, &flat));
    SAME(mine(0).bytes, (64 + 16) * MIB);
    OK(cuMipmappedArrayCreate(&levels, &shape, 99)); /* more levels than there can be: 11 are */
    SAME(mine(0).bytes, (64 + 16) * MIB + (4 * MIB * 4 / 3 + 65535) / 65536 * 65536);
    SAME(cuArrayDestroy((CUarray)(void *)levels), CUDA_ERROR_INVALID_HANDLE);
    OK(cuMipmappedArrayDestroy(levels));
    OK(cuArrayDestroy(array));
    SAME(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
    SAME(mine(0).bytes, 64 * MIB);
    flat.NumChannels = 3;
    SAME(cuArrayCreate_v2(&array, &flat), CUDA_ERROR_INVALID_VALUE);
}

static void copies(void)
{
    enum { BYTES = 3 * 1024 * 1024 + 17 };
    static unsigned char out[BYTES], back[BYTES];
    CUdeviceptr a, b, c;
    (void)ready_kernel("k");
    for (size_t i = 0; i < BYTES; i++)
        out[i] = (unsigned char)(i * 31 + i / 251);
    OK(cuMemAlloc_v2(&a, BYTES));
    OK(cuMemAlloc_v2(&b, BYTES));
    OK(cuMemcpyHtoD_v2(a, out, BYTES));
    OK(cuMemcpyDtoD_v2(b, a, BYTES));
    OK(cuMemcpyDtoH_v2(back, b, BYTES));
    CHECK(memcmp(out, back, BYTES) == 0);
    OK(cuMemcpyDtoH_v2(back, a + 100, BYTES - 100));
    CHECK(memcmp(out + 100, back, BYTES - 100) == 0);
    SAME(cuMemcpyHtoD_v2(a + 1, out, BYTES), CUDA_ERROR_INVALID_VALUE); /* over the end */
    SAME(cuMemcpyHtoD_v2((CUdeviceptr)(uintptr_t)back, out, 10), CUDA_ERROR_INVALID_VALUE); /* not the device's */
    OK(cuMemsetD8_v2(a, 0, BYTES)); /* a large zero is made by dropping pages */
    OK(cuMemcpyDtoH_v2(back, a, BYTES));
    for (size_t i = 0; i < BYTES; i++)
        CHECK(back[i] == 0);
    OK(cuMemsetD32_v2(a + 4, 0x04030201, 5));
    OK(cuMemcpyDtoH_v2(back, a, 32));
    CHECK(back[3] == 0 && back[4] == 1 && back[7] == 4 && back[23] == 4 && back[24] == 0);
    SAME(cuMemsetD32_v2(a + 1, 0, 1), CUDA_ERROR_INVALID_VALUE); /* not a multiple of 4 */
    OK(cuMemAlloc_v2(&c, 64 * 8));
    CUDA_MEMCPY2D box = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = out, .srcPitch = 10, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                         .dstDevice = c, .dstPitch = 64, .dstXInBytes = 3, .WidthInBytes = 10, .Height = 8};
    OK(cuMemcpy2D_v2(&box));
    OK(cuMemcpyDtoH_v2(back, c, 64 * 8));
    for (int y = 0; y < 8; y++)
        CHECK(memcmp(back + y * 64 + 3, out + y * 10, 10) == 0);
    OK(cuMemcpyHtoDAsync_v2_ptsz(c, out + 7, 20, NULL));
    OK(cuMemcpyDtoH_v2(back, c, 20));
    CHECK(memcmp(back, out + 7, 20) == 0);
    SAME(mine(0).copied_bytes > 4 * (uint64_t)BYTES, 1);
}

static void functions(void)
{
    static const char text[] = ".version 8.0\n.visible .entry first(\n)\n{ret;}\n.entry second() {ret;}";
    CUmodule module, any;
    CUfunction function, again;
    const char *name;
    int blocks;
    CUcontext context;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuModuleLoadData(&module, text));
    OK(cuModuleLoadData(&any, "\x50\xed\x55\xba"));
    OK(cuModuleGetFunction(&function, module, "second"));
    OK(cuModuleGetFunction(&again, module, "second"));
    CHECK(function == again);
    SAME(cuModuleGetFunction(&function, module, "third"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleGetFunction(&function, any, "sim_us10"));
    OK(cuFuncGetName(&name, function));
    CHECK(strcmp(name, "sim_us10") == 0);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0));
    SAME(blocks, 4); /* 1024 threads an SM */
    SAME(launch(function, 0, NULL), CUDA_ERROR_INVALID_VALUE);
    SAME(cuLaunchKernel(function, 1, 1, 1, 2048, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    SAME(cuLaunchCooperativeKernel(function, 11, 1, 1, 1024, 1, 1, 0, NULL, NULL), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    OK(cuLaunchCooperativeKernel(function, 10, 1, 1, 1024, 1, 1, 0, NULL, NULL));
    CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
    OK(cuLaunchKernelEx(&config, function, NULL, NULL));
    OK(cuLaunchKernel_ptsz(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    OK(cuFuncSetBlockShape(function, 32, 1, 1));
    OK(cuLaunchGrid(function, 2, 2));
    OK(cuCtxSynchronize());
    SAME(mine(0).launches, 4);
    OK(cuModuleUnload(any));
    SAME(launch(function, 1, NULL), CUDA_ERROR_INVALID_HANDLE);
    SAME(cuStreamSynchronize((CUstream)(void *)module), CUDA_ERROR_INVALID_HANDLE);
}

static atomic_int called;
static void count_call(void *argument) { atomic_fetch_add((atomic_int *)argument, 1); }

static void host_functions(void)
{
    CUfunction function = ready_kernel("sim_us100000");
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(launch(function, 1, stream));
    OK(cuLaunchHostFunc(stream, count_call, &called));
    OK(launch(function, 1, stream));
    OK(cuLaunchHostFunc(stream, count_call, &called));
    SAME(atomic_load(&called), 0); /* the first kernel has a tenth of a second to go */
    UNTIL(atomic_load(&called) == 2); /* with no call of ours in between */
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy_v2(stream));
    SAME(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
}

static void pools(void)
{
    CUdeviceptr a, b;
    CUmemoryPool pool;
    cuuint64_t threshold = UINT64_MAX;
    (void)ready_kernel("k");
    OK(cuMemAllocAsync(&a, 10 * MIB, NULL));
    SAME(mine(0).bytes, 74 * MIB);
    OK(cuMemFreeAsync(a, NULL));
    SAME(mine(0).bytes, 74 * MIB); /* the pool's until the next synchronisation */
    OK(cuMemAllocAsync(&b, 10 * MIB, NULL));
    SAME(mine(0).bytes, 74 * MIB); /* out of the pool */
    OK(cuMemFreeAsync(b, NULL));
    OK(cuStreamSynchronize(NULL));
    SAME(mine(0).bytes, 64 * MIB);
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(cuMemAllocAsync(&a, 10 * MIB, NULL));
    OK(cuMemFree_v2(a)); /* allowed too */
    OK(cuCtxSynchronize());
    SAME(mine(0).bytes, 74 * MIB); /* kept up to the threshold */
    OK(cuMemPoolTrimTo(pool, 2 * MIB));
    SAME(mine(0).bytes, 66 * MIB);
    SAME(cuMemAllocAsync(&a, 961 * MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemPoolTrimTo(pool, 0));
    SAME(mine(0).bytes, 64 * MIB);
}

static void virtual_memory(void)
{
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle, imported;
    CUdeviceptr range, other;
    size_t granule;
    int fd;
    char text[16] = {0};
    (void)ready_kernel("k");
    OK(cuMemGetAllocationGranularity(&granule, &props, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    SAME(granule, 2 * MIB);
    SAME(cuMemCreate(&handle, granule + 1, &props, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemCreate(&handle, 2 * granule, &props, 0));
    SAME(mine(0).bytes, 64 * MIB + 2 * granule);
    OK(cuMemAddressReserve(&range, 8 * granule, 0, 0, 0));
    SAME(cuMemcpyHtoD_v2(range, "no", 3), CUDA_ERROR_INVALID_VALUE); /* nothing is mapped there */
    OK(cuMemMap(range + granule, 2 * granule, 0, handle, 0));
    OK(cuMemMap(range + 4 * granule, granule, granule, handle, 0)); /* its second half again */
    SAME(cuMemMap(range + 2 * granule, granule, 0, handle, 0), CUDA_ERROR_INVALID_VALUE); /* taken */
    OK(cuMemSetAccess(range + granule, 2 * granule, &access, 1));
    OK(cuMemSetAccess(range + 4 * granule, granule, &access, 1));
    OK(cuMemcpyHtoD_v2(range + 2 * granule + 5, "aliased", 8));
    OK(cuMemcpyDtoH_v2(text, range + 4 * granule + 5, 8));
    CHECK(strcmp(text, "aliased") == 0);
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    OK(cuMemAddressReserve(&other, 2 * granule, 0, 0, 0));
    OK(cuMemMap(other, 2 * granule, 0, imported, 0));
    OK(cuMemSetAccess(other, 2 * granule, &access, 1));
    OK(cuMemcpyDtoH_v2(text, other + granule + 5, 8));
    CHECK(strcmp(text, "aliased") == 0);
    OK(cuMemRelease(imported));
    OK(cuMemUnmap(other, 2 * granule));
    OK(cuMemAddressFree(other, 2 * granule));
    OK(cuMemRelease(handle));
    SAME(mine(0).bytes, 64 * MIB + 2 * granule); /* the mappings hold it */
    OK(cuMemUnmap(range + granule, 2 * granule));
    SAME(mine(0).bytes, 64 * MIB + 2 * granule);
    SAME(cuMemAddressFree(range, 8 * granule), CUDA_ERROR_INVALID_VALUE); /* still mapped in part */
    OK(cuMemUnmap(range + 4 * granule, granule));
    SAME(mine(0).bytes, 64 * MIB);
    OK(cuMemAddressFree(range, 8 * granule));
    SAME(cuMemCreate(&handle, 962 * MIB, &props, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CUmemGenericAllocationHandle many[400]; /* more than descriptors would go round for */
    props.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    for (int i = 0; i < 400; i++)
        OK(cuMemCreate(&many[i], granule, &props, 0));
    SAME(cuMemExportToShareableHandle(&fd, many[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_ERROR_INVALID_VALUE);
    int next_free = dup(0);
    CHECK(next_free < 100);
    close(next_free);
    for (int i = 0; i < 400; i++)
        OK(cuMemRelease(many[i]));
    SAME(mine(0).bytes, 64 * MIB);
}

static void graphs(void)
{
    CUfunction function = ready_kernel("sim_us50");
    CUstream stream, side;
    CUevent fork_point, join_point;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node, allocated, freed;
    CUdeviceptr buffer, inside;
    CUstreamCaptureStatus status;
    size_t count = 0;
    static unsigned char back[64];
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fork_point, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join_point, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc_v2(&buffer, sizeof back));
    OK(cuMemsetD8_v2(buffer, 1, sizeof back));
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL)); /* asking for the end of what is only recorded spoils it */
    OK(cuEventRecord(fork_point, stream));
    OK(cuStreamWaitEvent(side, fork_point, 0));
    SAME(cuStreamSynchronize(side), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(cuStreamIsCapturing(stream, &status));
    SAME(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    SAME(launch(function, 1, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    SAME(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(graph == NULL);
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamIsCapturing(stream, &status));
    SAME(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(launch(function, 1, stream));
    OK(cuEventRecord(fork_point, stream));
    OK(cuStreamWaitEvent(side, fork_point, 0));
    OK(launch(function, 1, side)); /* the side stream has joined the capture */
    OK(cuEventRecord(join_point, side));
    OK(cuMemAllocAsync(&inside, MIB, stream));
    OK(cuMemFreeAsync(inside, stream));
    OK(cuStreamWaitEvent(stream, join_point, 0));
    OK(launch(function, 1, stream));
    SAME(cuStreamEndCapture(side, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuStreamIsCapturing(side, &status));
    SAME(status, CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuGraphGetNodes(graph, NULL, &count));
    SAME(count, 5); /* three kernels, an allocation, its end */
    SAME(mine(0).launches, 0); /* nothing ran yet */
    uint64_t base = mine(0).bytes;
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    for (int i = 0; i < 3; i++)
        OK(cuGraphLaunch(exec, stream));
    SAME(mine(0).peak_bytes, base + MIB);
    OK(cuStreamSynchronize(stream));
    SAME(mine(0).launches, 9);
    SAME(mine(0).busy_ns, 9 * 50000);
    SAME(mine(0).bytes, base + MIB); /* kept for the next launch */
    OK(cuDeviceGraphMemTrim(0));
    SAME(mine(0).bytes, base);
    OK(cuGraphExecDestroy(exec));

    OK(cuGraphCreate(&graph, 0));
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = 3 * MIB};
    OK(cuGraphAddMemAllocNode(&allocated, graph, NULL, 0, &params));
    CHECK(params.dptr != 0);
    SAME(mine(0).bytes, base); /* only an address so far */
    CUDA_KERNEL_NODE_PARAMS_v2 kernel = {.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1};
    OK(cuGraphAddKernelNode_v2(&node, graph, &allocated, 1, &kernel));
    OK(cuGraphAddMemFreeNode(&freed, graph, &node, 1, params.dptr));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    SAME(mine(0).bytes, base + 3 * MIB); /* held while the kernel runs */
    OK(cuStreamSynchronize(stream));
    OK(cuGraphLaunch(exec, stream));
    SAME(mine(0).bytes, base + 3 * MIB); /* the same bytes again */
    OK(cuStreamSynchronize(stream));
    OK(cuDeviceGraphMemTrim(0));
    SAME(mine(0).bytes, base);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

static void faults_and_loss(void)
{
    CUfunction function = ready_kernel("sim_us100000");
    CUdeviceptr address;
    struct sim_fault fault = {.action = SIM_FAULT_RETURN, .gpu = 0, .call = "cuMemAlloc_v2", .value = 2, .every = 3, .count = 2};
    uint32_t id;
    int failures = 0;
    OK(sim_fault_add(machine, &fault, &id));
    for (int i = 0; i < 12; i++) {
        CUresult result = cuMemAlloc_v2(&address, 512);
        CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        failures += result != CUDA_SUCCESS;
    }
    SAME(failures, 2); /* each third call, at most two */
    OK(sim_fault_clear(machine, id));
    SAME(sim_fault_clear(machine, id), SIM_NOT_FOUND);
    size_t free_bytes, total;
    static const struct { uint32_t action; int64_t value; size_t want; } figures[] = {
        {SIM_FAULT_ZERO, 5, 0}, {SIM_FAULT_VALUE, 12345, 12345}, {SIM_FAULT_SENTINEL, 0, INT64_MAX},
    };
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        fault = (struct sim_fault){.action = figures[i].action, .gpu = -1, .call = "cuMemGetInfo*", .value = figures[i].value};
        OK(sim_fault_add(machine, &fault, &id));
        OK(cuMemGetInfo_v2(&free_bytes, &total));
        SAME(free_bytes, figures[i].want);
        OK(sim_fault_clear(machine, id));
    }
    fault = (struct sim_fault){.action = SIM_FAULT_STALE, .gpu = -1, .call = "cuMemGetInfo_v2"};
    OK(sim_fault_add(machine, &fault, &id));
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    size_t stale = free_bytes;
    OK(cuMemAlloc_v2(&address, MIB));
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    SAME(free_bytes, stale);
    OK(sim_fault_clear(machine, id));
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    SAME(free_bytes, stale - MIB);
    uint64_t before = sim_now(machine);
    fault = (struct sim_fault){.action = SIM_FAULT_DELAY, .gpu = -1, .call = "cuMemGetInfo_v2", .value = 20 * MS};
    OK(sim_fault_add(machine, &fault, &id));
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    CHECK(sim_now(machine) - before >= 20 * MS);
    OK(sim_fault_clear(machine, id));
    uint64_t seen = sim_notice_last(machine);
    OK(launch(function, 1, NULL));
    fault = (struct sim_fault){.action = SIM_FAULT_LOST, .gpu = 0, .value = 79, .at_ns = sim_now(machine) + 5 * MS};
    OK(sim_fault_add(machine, &fault, &id));
    SAME(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED); /* waiting when it happened: 5 ms, not 100 */
    SAME(launch(function, 1, NULL), CUDA_ERROR_LAUNCH_FAILED);
    CHECK(cuMemAlloc_v2(&address, 512) != CUDA_SUCCESS);
    struct sim_notice notice;
    CHECK(sim_notice_next(machine, seen, &notice) == 1);
    SAME(notice.kind, SIM_NOTICE_XID);
    SAME(notice.value, 79);
    SAME(notice.gpu, 0);
    OK(sim_fault_clear(machine, id));
    OK(cuMemAlloc_v2(&address, 512));
    CUcontext other; /* the others were never touched */
    OK(cuCtxCreate_v2(&other, 0, 1));
    OK(cuMemAlloc_v2(&address, 512));
}

static void forked(void)
{
    CUfunction function = ready_kernel("sim_us10");
    OK(launch(function, 1, NULL));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int count;
        SAME(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
        function = ready_kernel("sim_us10");
        OK(launch(function, 1, NULL));
        OK(cuCtxSynchronize());
        _exit(0);
    }
    ended_well(child);
    OK(launch(function, 1, NULL));
    OK(cuCtxSynchronize());
    sim_machine_reap(machine);
    SAME(mine(0).launches, 3);
    SAME(mine(0).bytes, 64 * MIB); /* the child's context is gone, the parent's is not */
    SAME(mine(0).peak_bytes, 128 * MIB);
}

/* Reaping is by descriptor as well as by pid: a child that inherits it must not keep its dead parent's row. */
static void child_outlives_parent(void)
{
    int pipe_ends[2];
    CHECK(pipe(pipe_ends) == 0);
    pid_t parent = fork();
    CHECK(parent >= 0);
    if (parent == 0) {
        (void)ready_kernel("k");
        pid_t child = fork();
        if (child == 0) {
            char byte;
            close(pipe_ends[1]);
            _exit(read(pipe_ends[0], &byte, 1) != 0);
        }
        _exit(0);
    }
    ended_well(parent);
    sim_machine_reap(machine);
    SAME(mine(0).bytes, 0);
    close(pipe_ends[1]);
}

static void shared_by_handle(void)
{
    int to_other[2], back[2];
    CHECK(pipe(to_other) == 0 && pipe(back) == 0);
    pid_t other = fork(); /* before the driver is used */
    CHECK(other >= 0);
    CUipcMemHandle handle;
    CUdeviceptr address;
    char text[32] = {0}, byte;
    if (other == 0) {
        CHECK(read(to_other[0], &handle, sizeof handle) == (ssize_t)sizeof handle);
        (void)ready_kernel("k");
        uint64_t before = mine(0).bytes;
        OK(cuIpcOpenMemHandle_v2(&address, handle, 1));
        SAME(mine(0).bytes, before); /* on its maker's account */
        OK(cuMemcpyDtoH_v2(text, address + 5000, 6));
        CHECK(strcmp(text, "hello") == 0);
        OK(cuMemcpyHtoD_v2(address + 9 * MIB, "world", 6));
        SAME(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
        OK(cuIpcCloseMemHandle(address));
        SAME(cuIpcCloseMemHandle(address), CUDA_ERROR_INVALID_VALUE);
        CHECK(write(back[1], "x", 1) == 1);
        CHECK(read(to_other[0], &byte, 1) == 1); /* now it is freed */
        SAME(cuIpcOpenMemHandle_v2(&address, handle, 1), CUDA_ERROR_INVALID_VALUE);
        _exit(0);
    }
    (void)ready_kernel("k");
    OK(cuMemAlloc_v2(&address, 10 * MIB));
    OK(cuMemcpyHtoD_v2(address + 5000, "hello", 6));
    OK(cuIpcGetMemHandle(&handle, address));
    OK(cuIpcGetMemHandle(&handle, address)); /* as often as one likes */
    CUdeviceptr again;
    SAME(cuIpcOpenMemHandle_v2(&again, handle, 1), CUDA_ERROR_INVALID_CONTEXT); /* not in its own process */
    CHECK(write(to_other[1], &handle, sizeof handle) == (ssize_t)sizeof handle);
    CHECK(read(back[0], &byte, 1) == 1);
    OK(cuMemcpyDtoH_v2(text, address + 9 * MIB, 6));
    CHECK(strcmp(text, "world") == 0);
    OK(cuMemsetD8_v2(address, 0, 10 * MIB)); /* no pages to be dropped here */
    OK(cuMemcpyDtoH_v2(text, address + 9 * MIB, 6));
    CHECK(text[0] == 0);
    OK(cuMemFree_v2(address));
    CHECK(write(to_other[1], "x", 1) == 1);
    ended_well(other);
}

static void visible_devices(void)
{
    static const struct { const char *list; int count; int first; } rows[] = {
        {"1", 1, 2}, {"2,0", 2, 3}, {"0,7,1", 1, 1}, {"GPU-00000000-0000-0000-0000-000000000002", 1, 2}, {"", 0, 0}, {"-1", 0, 0}, {"nonsense", 0, 0}, {"1,1", 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            int count;
            CUuuid uuid;
            CHECK(setenv("CUDA_VISIBLE_DEVICES", rows[i].list, 1) == 0);
            SAME(cuInit(0), rows[i].count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE);
            if (rows[i].count) {
                OK(cuDeviceGetCount(&count));
                SAME(count, rows[i].count);
                OK(cuDeviceGetUuid_v2(&uuid, 0));
                SAME(uuid.bytes[15], rows[i].first);
            }
            _exit(0);
        }
        ended_well(child);
    }
}

enum { THREADS = 4, LAUNCHES = 300 };
static CUcontext shared_context;
static CUfunction shared_function;
static CUstream shared_stream; /* keeps order with the legacy one, and all threads launch into both */

static void *thread_work(void *unused)
{
    CUdeviceptr address;
    CUstream stream;
    (void)unused;
    OK(cuCtxSetCurrent(shared_context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < LAUNCHES; i++) {
        OK(launch(shared_function, 1, i % 3 == 0 ? stream : i % 3 == 1 ? shared_stream : NULL));
        OK(cuMemAlloc_v2(&address, 4096));
        OK(cuMemFree_v2(address));
    }
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy_v2(stream));
    return NULL;
}

static void threads(void)
{
    pthread_t workers[THREADS];
    shared_function = ready_kernel("sim_us1");
    OK(cuCtxGetCurrent(&shared_context));
    OK(cuStreamCreate(&shared_stream, 0));
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&workers[i], NULL, thread_work, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(workers[i], NULL) == 0);
    OK(cuCtxSynchronize());
    SAME(mine(0).launches, THREADS * LAUNCHES);
    SAME(mine(0).bytes, 64 * MIB);
}

int main(void)
{
    static const struct test_case cases[] = {
        {"devices", devices}, {"contexts", contexts}, {"memory", memory}, {"arrays", arrays}, {"copies", copies}, {"functions", functions},
        {"host functions", host_functions}, {"pools", pools}, {"virtual memory", virtual_memory}, {"graphs", graphs},
        {"faults and loss", faults_and_loss}, {"forked", forked}, {"child outlives parent", child_outlives_parent},
        {"shared by handle", shared_by_handle},
        {"visible devices", visible_devices}, {"threads", threads},
    };
    return run_cases(cases, sizeof cases / sizeof *cases, &machine, "driver", 3, 0);
}
