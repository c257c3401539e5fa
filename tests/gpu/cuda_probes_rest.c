/* Probes of the less common functions; see cuda_probes.c. What a GPU of the model at hand may refuse is asked in a way
 * that is refused by each. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_probes.h"

static word out[64];
static unsigned char host[4096];

void probe_managed(const struct probe_objects *objects)
{
    CUdeviceptr address = 0;
    size_t size = MIB, start = 0, sizes[2] = {4, 4};
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    unsigned which[2] = {1, 2};
    void *places[2] = {&out[0], &out[1]};
    P(cuMemAllocManaged, 0, W(&address), MIB, 1);
    P(cuMemAdvise, 0, address, MIB, 3, 0); P(cuMemAdvise, INVALID, address, MIB, 99, 0); P(cuMemAdvise, CUDA_ERROR_INVALID_DEVICE, address, MIB, 3, 99);
    P(cuMemRangeGetAttribute, 0, W(out), 4, 2, address, MIB); P(cuMemRangeGetAttribute, INVALID, 0, 4, 2, address, MIB); P(cuMemRangeGetAttribute, INVALID, W(out), 4, 99, address, MIB); P(cuMemRangeGetAttribute, INVALID, W(out), 4, 2, objects->memory, MIB);
    P(cuMemRangeGetAttributes, 0, W(places), W(sizes), W(which), 2, address, MIB); P(cuMemRangeGetAttributes, INVALID, W(places), W(sizes), W(which), 0, address, MIB);
    Z(cuMemPrefetchAsync, 0, address, MIB, 0, W(objects->stream));
    Z(cuMemPrefetchBatchAsync, 0, W(&address), W(&size), 1, W(&here), W(&start), 1, 0, W(objects->stream)); P(cuMemPrefetchBatchAsync, INVALID, W(&address), W(&size), 1, W(&here), W(&start), 0, 0, W(objects->stream));
    Z(cuMemDiscardBatchAsync, 0, W(&address), W(&size), 1, 0, W(objects->stream)); P(cuMemDiscardBatchAsync, INVALID, 0, W(&size), 1, 0, W(objects->stream));
    Z(cuMemDiscardAndPrefetchBatchAsync, 0, W(&address), W(&size), 1, W(&here), W(&start), 1, 0, W(objects->stream));
    P(cuStreamSynchronize, 0, W(objects->stream)); P(cuMemFree_v2, 0, address);
}

void probe_events_of_contexts(const struct probe_objects *objects)
{
    CUdevResource whole, part, left;
    CUdevResourceDesc description = NULL;
    CUgreenCtx green = NULL;
    CUstream stream = NULL;
    CUevent event = NULL;
    unsigned groups = 1;
    P(cuEventCreate, 0, W(&event), 2);
    P(cuCtxRecordEvent, 0, W(objects->context), W(event)); P(cuCtxWaitEvent, 0, W(objects->context), W(event)); P(cuCtxRecordEvent, HANDLE, W(objects->context), 0); P(cuCtxWaitEvent, HANDLE, W(objects->context), 0);
    P(cuDeviceGetDevResource, 0, 0, W(&whole), 1); P(cuDevSmResourceSplitByCount, 0, W(&part), W(&groups), W(&whole), W(&left), 0, 8); P(cuDevResourceGenerateDesc, 0, W(&description), W(&part), 1);
    P(cuGreenCtxCreate, 0, W(&green), W(description), 0, 1); P(cuGreenCtxStreamCreate, 0, W(&stream), W(green), 1, 0);
    P(cuGreenCtxRecordEvent, 0, W(green), W(event)); P(cuGreenCtxWaitEvent, 0, W(green), W(event)); P(cuGreenCtxRecordEvent, HANDLE, W(green), 0);
    P(cuStreamGetGreenCtx, 0, W(stream), W(out)); P(cuStreamGetGreenCtx, INVALID, W(stream), 0); Z(cuStreamGetCtx_v2, 0, W(stream), W(out), W(&out[1])); P(cuStreamGetCtx_v2, INVALID, W(stream), 0, 0);
    P(cuStreamDestroy_v2, 0, W(stream)); P(cuGreenCtxDestroy, 0, W(green)); P(cuEventDestroy_v2, 0, W(event));
}

/* A real driver takes a descriptor that another interface made, and there is none here: the imports are refused, and
 * what follows is asked of no semaphore. */
void probe_semaphores(const struct probe_objects *objects)
{
    CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC none = {.type = 1, .handle = {.fd = -1}};
    CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS signal = {.flags = 0};
    CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS wait = {.flags = 0};
    CUDA_EXT_SEM_SIGNAL_NODE_PARAMS signals = {NULL, &signal, 0};
    CUDA_EXT_SEM_WAIT_NODE_PARAMS waits = {NULL, &wait, 0};
    CUgraph graph = NULL;
    CUgraphNode node = NULL;
    P(cuImportExternalSemaphore, INVALID, 0, W(&none)); P(cuDestroyExternalSemaphore, HANDLE, 0);
    Z(cuSignalExternalSemaphoresAsync, INVALID, 0, W(&signal), 1, W(objects->stream)); Z(cuWaitExternalSemaphoresAsync, INVALID, 0, W(&wait), 1, W(objects->stream));
    P(cuGraphCreate, 0, W(&graph), 0); P(cuGraphAddEmptyNode, 0, W(&node), W(graph), 0, 0);
    P(cuGraphAddExternalSemaphoresSignalNode, INVALID, W(out), W(graph), 0, 0, 0); P(cuGraphAddExternalSemaphoresWaitNode, INVALID, W(out), W(graph), 0, 0, 0);
    P(cuGraphExternalSemaphoresSignalNodeGetParams, INVALID, W(node), W(&signals)); P(cuGraphExternalSemaphoresSignalNodeSetParams, INVALID, W(node), W(&signals)); P(cuGraphExecExternalSemaphoresSignalNodeSetParams, INVALID, 0, W(node), W(&signals));
    P(cuGraphExternalSemaphoresWaitNodeGetParams, INVALID, W(node), W(&waits)); P(cuGraphExternalSemaphoresWaitNodeSetParams, INVALID, W(node), W(&waits)); P(cuGraphExecExternalSemaphoresWaitNodeSetParams, INVALID, 0, W(node), W(&waits));
    P(cuGraphDestroy, 0, W(graph));
}

void probe_operations(const struct probe_objects *objects)
{
    CUstreamBatchMemOpParams one = {.value = {.operation = 2 /* write 32 bits */, .address = objects->memory, .value = 7}};
    CUDA_BATCH_MEM_OP_NODE_PARAMS list = {objects->context, 1, &one, 0};
    CUgraph graph = NULL;
    CUgraphNode node = NULL, condition_node = NULL;
    CUgraphExec exec = NULL;
    CUgraphConditionalHandle handle = 0;
    char path[] = "/tmp/cuda-probe-XXXXXX";
    int file = mkstemp(path);
    P(cuGraphCreate, 0, W(&graph), 0);
    P(cuGraphAddBatchMemOpNode, 0, W(&node), W(graph), 0, 0, W(&list)); P(cuGraphAddBatchMemOpNode, INVALID, W(&node), W(graph), 0, 0, 0); P(cuGraphBatchMemOpNodeGetParams, 0, W(node), W(&list)); list.paramArray = &one; P(cuGraphBatchMemOpNodeSetParams, 0, W(node), W(&list));
    P(cuGraphConditionalHandleCreate, 0, W(&handle), W(graph), W(objects->context), 0, 1); P(cuGraphConditionalHandleCreate, INVALID, 0, W(graph), W(objects->context), 0, 1);
    CUgraphNodeParams condition = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    condition.conditional = (CUDA_CONDITIONAL_NODE_PARAMS){.handle = handle, .type = CU_GRAPH_COND_TYPE_IF, .size = 1, .ctx = objects->context};
    P(cuGraphAddNode, 0, W(&condition_node), W(graph), 0, 0, W(&condition));
    P(cuGraphDebugDotPrint, 0, W(graph), W(path), 0); P(cuGraphDebugDotPrint, INVALID, 0, W(path), 0);
    P(cuGraphInstantiateWithFlags, 0, W(&exec), W(graph), 0); P(cuGraphExecBatchMemOpNodeSetParams, 0, W(exec), W(node), W(&list)); P(cuGraphLaunch, 0, W(exec), W(objects->stream)); P(cuStreamSynchronize, 0, W(objects->stream));
    P(cuGraphExecDestroy, 0, W(exec)); P(cuGraphDestroy, 0, W(graph));
    close(file);
    unlink(path);
}

typedef int (*with_float)(word, float);
typedef int (*with_floats)(word, float, float);

void probe_references(const struct probe_objects *objects)
{
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = 64, .Height = 4, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    CUDA_ARRAY3D_DESCRIPTOR drawn = {.Width = 64, .Height = 4, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1, .Flags = 2 /* surfaces too */};
    CUDA_ARRAY3D_DESCRIPTOR square = {.Width = 64, .Height = 64, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    CUtexref texture = NULL, surface = NULL, own = NULL;
    CUarray array = NULL, drawn_array = NULL;
    CUmipmappedArray levels = NULL;
    float color[4] = {0};
    with_float one;
    with_floats two;
    P(cuArrayCreate_v2, 0, W(&array), W(&flat)); P(cuArray3DCreate_v2, 0, W(&drawn_array), W(&drawn)); P(cuMipmappedArrayCreate, 0, W(&levels), W(&square), 3);
    P(cuModuleGetTexRef, 0, W(&texture), W(objects->module), W("texture")); P(cuModuleGetSurfRef, 0, W(&surface), W(objects->module), W("surface")); P(cuModuleGetSurfRef, 500, W(out), W(objects->module), W("absent"));
    P(cuTexRefCreate, 0, W(&own)); P(cuTexRefCreate, INVALID, 0); P(cuTexRefDestroy, 0, W(own)); P(cuTexRefDestroy, INVALID, 0);
    P(cuTexRefSetArray, 0, W(texture), W(array), 1); P(cuTexRefGetArray, 0, W(out), W(texture)); P(cuTexRefSetArray, INVALID, 0, W(array), 1); P(cuTexRefGetMipmappedArray, INVALID, W(out), W(texture));
    P(cuTexRefSetMipmappedArray, 0, W(texture), W(levels), 1); P(cuTexRefGetMipmappedArray, 0, W(out), W(texture)); P(cuTexRefGetArray, INVALID, W(out), W(texture));
    P(cuTexRefSetAddress2D_v2, 0, W(texture), W(&flat), objects->memory, 512); P(cuTexRefSetAddress2D_v3, 0, W(texture), W(&flat), objects->memory, 512); P(cuTexRefSetAddress2D_v3, INVALID, 0, W(&flat), objects->memory, 512); P(cuTexRefSetAddress2D, INVALID, 0, 0, 0, 0);
    P(cuTexRefSetAddress, INVALID, 0, 0, 0, 0); P(cuTexRefGetAddress, INVALID, 0, W(texture));
    P(cuTexRefSetAddressMode, 0, W(texture), 0, 1); P(cuTexRefGetAddressMode, 0, W(out), W(texture), 0); P(cuTexRefSetAddressMode, INVALID, 0, 0, 1);
    P(cuTexRefSetFilterMode, 0, W(texture), 1); P(cuTexRefGetFilterMode, 0, W(out), W(texture)); P(cuTexRefSetMipmapFilterMode, 0, W(texture), 1); P(cuTexRefGetMipmapFilterMode, 0, W(out), W(texture));
    P(cuTexRefSetMaxAnisotropy, 0, W(texture), 4); P(cuTexRefGetMaxAnisotropy, 0, W(out), W(texture)); P(cuTexRefSetFlags, 0, W(texture), 1); P(cuTexRefGetFlags, 0, W(out), W(texture));
    P(cuTexRefSetBorderColor, 0, W(texture), W(color)); P(cuTexRefGetBorderColor, 0, W(color), W(texture)); P(cuTexRefGetMipmapLevelBias, 0, W(out), W(texture)); P(cuTexRefGetMipmapLevelClamp, 0, W(out), W(&out[1]), W(texture));
    void *symbol = probed_symbol("cuTexRefSetMipmapLevelBias");
    memcpy(&one, &symbol, sizeof symbol); /* ISO C has no cast between the two kinds of pointers */
    told("cuTexRefSetMipmapLevelBias", 0, symbol ? one(W(texture), 1.0f) : -1);
    symbol = probed_symbol("cuTexRefSetMipmapLevelClamp");
    memcpy(&two, &symbol, sizeof symbol); /* likewise */
    told("cuTexRefSetMipmapLevelClamp", 0, symbol ? two(W(texture), 0.0f, 1.0f) : -1);
    P(cuParamSetTexRef, INVALID, 0, W((intptr_t)-1), W(texture));
    P(cuSurfRefSetArray, 0, W(surface), W(drawn_array), 0); P(cuSurfRefGetArray, 0, W(out), W(surface)); P(cuSurfRefSetArray, INVALID, 0, W(drawn_array), 0);
    P(cuArrayGetPlane, INVALID, W(out), W(array), 0); P(cuArrayGetSparseProperties, INVALID, W(out), W(array)); P(cuMipmappedArrayGetSparseProperties, INVALID, W(out), W(levels)); P(cuMipmappedArrayGetMemoryRequirements, INVALID, 0, W(levels), 0);
    P(cuArrayDestroy, 0, W(array)); P(cuArrayDestroy, 0, W(drawn_array)); P(cuMipmappedArrayDestroy, 0, W(levels));
}

/* A 64-bit driver may give the 32-bit forms nothing to work with: they are asked for what each refuses, and arrays,
 * which have no address, for what works. */
void probe_old_forms(const struct probe_objects *objects)
{
    CUDA_ARRAY_DESCRIPTOR_v1 flat = {64, 4, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    CUDA_ARRAY3D_DESCRIPTOR_v1 deep = {64, 4, 2, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
    CUarray array = NULL, volume = NULL;
    P(cuArrayCreate, 0, W(&array), W(&flat)); P(cuArray3DCreate, 0, W(&volume), W(&deep)); P(cuArrayCreate, INVALID, W(&array), 0); P(cuArrayGetDescriptor, 0, W(&flat), W(array)); P(cuArray3DGetDescriptor, 0, W(&deep), W(volume));
    P(cuMemcpyHtoA, 0, W(array), 0, W(host), 64); P(cuMemcpyAtoH, 0, W(host), W(array), 0, 64); P(cuMemcpyAtoA, 0, W(array), 0, W(array), 0, 16); P(cuMemcpyDtoA, INVALID, W(array), 0, 16, 64); P(cuMemcpyAtoD, INVALID, 16, W(array), 0, 64);
    P(cuMemcpyHtoAAsync, 0, W(array), 0, W(host), 64, W(objects->stream)); P(cuMemcpyAtoHAsync, 0, W(host), W(array), 0, 64, W(objects->stream)); P(cuStreamSynchronize, 0, W(objects->stream));
    P(cuMemcpy2D, INVALID, 0); P(cuMemcpy2DUnaligned, INVALID, 0); P(cuMemcpy2DAsync, INVALID, 0, W(objects->stream)); P(cuMemcpy3D, INVALID, 0); P(cuMemcpy3DAsync, INVALID, 0, W(objects->stream));
    P(cuMemsetD2D8, INVALID, 16, 512, 1, 64, 4); P(cuMemsetD2D16, INVALID, 16, 512, 1, 64, 4); P(cuMemsetD2D32, INVALID, 16, 512, 1, 64, 4);
    P(cuMemAllocPitch, INVALID, W(out), 0, 64, 4, 4); P(cuMemGetAddressRange, CUDA_ERROR_NOT_FOUND, W(out), W(&out[1]), 16); P(cuMemHostGetDevicePointer, INVALID, W(out), W(host), 0); P(cuModuleGetGlobal, 500, W(out), W(&out[1]), W(objects->module), W("absent"));
    P(cuArrayDestroy, 0, W(array)); P(cuArrayDestroy, 0, W(volume));
}

struct operand { unsigned type; struct { CUdeviceptr address; size_t row, layer; CUmemLocation hint; } pointer; }; /* CUmemcpy3DOperand, of a pointer */
struct box_operation { struct operand from, to; size_t width, height, depth; unsigned order, flags; };                 /* CUDA_MEMCPY3D_BATCH_OP */
_Static_assert(sizeof(struct box_operation) == 112, "as the public description lays it out");

void probe_small(const struct probe_objects *objects)
{
    struct box_operation box = {.from = {1, {.address = objects->second}}, .to = {1, {.address = objects->memory}}, .width = 64, .height = 2, .depth = 1, .order = 1};
    struct { unsigned devices; size_t size; unsigned long long types, flags; } team = {1, 2 * MIB, 0, 0};
    _Alignas(64) word map[16];
    cuuint64_t dimensions[3] = {64, 64, 64}, strides[2] = {64, 4096};
    cuuint32_t steps[3] = {1, 1, 1};
    int corner[1] = {0};
    unsigned add = 0, none = 99;
    CUlibrary unit = NULL;
    char path[] = "/tmp/cuda-probe-XXXXXX";
    int file = mkstemp(path);
    Z(cuMemcpy3DBatchAsync, 0, 1, W(&box), W(out), 0, W(objects->stream)); Z(cuMemcpy3DBatchAsync_v2, 0, 1, W(&box), 0, W(objects->stream)); P(cuMemcpy3DBatchAsync_v2, INVALID, 0, W(&box), 0, W(objects->stream)); P(cuStreamSynchronize, 0, W(objects->stream));
    P(cuMulticastCreate, INVALID, 0, W(&team)); P(cuMulticastGetGranularity, INVALID, 0, W(&team), 0); P(cuMulticastAddDevice, INVALID, 12345, 0); P(cuMulticastBindMem, INVALID, 12345, 0, 12345, 0, 2 * MIB, 0); P(cuMulticastBindAddr, INVALID, 12345, 0, 16, 2 * MIB, 0); P(cuMulticastUnbind, INVALID, 12345, 0, 0, 2 * MIB);
    P(cuDeviceGetTexture1DLinearMaxWidth, 0, W(out), 1, 1, 0); P(cuDeviceGetTexture1DLinearMaxWidth, INVALID, 0, 1, 1, 0);
    P(cuDeviceGetHostAtomicCapabilities, 0, W(out), W(&add), 1, 0); P(cuDeviceGetHostAtomicCapabilities, INVALID, W(out), W(&none), 1, 0); P(cuDeviceGetP2PAtomicCapabilities, CUDA_ERROR_INVALID_DEVICE, W(out), W(&add), 1, 0, 99);
    P(cuDeviceRegisterAsyncNotification, INVALID, 0, 0, 0, W(out)); P(cuDeviceUnregisterAsyncNotification, INVALID, 0, 0);
    P(cuFlushGPUDirectRDMAWrites, INVALID, 0, 1); P(cuLogsDumpToFile, 0, 0, W(path), 0); P(cuLogsDumpToFile, INVALID, 0, 0, 0);
    P(cuLibraryLoadData, 0, W(&unit), W(".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry probe()\n{\n    ret;\n}\n"), 0, 0, 0, 0, 0, 0); P(cuLibraryGetUnifiedFunction, 500, W(out), W(unit), W("absent")); P(cuLibraryUnload, 0, W(unit));
    P(cuTensorMapEncodeIm2col, INVALID, W(map), 0, 2, objects->memory, W(dimensions), W(strides), W(corner), W(corner), 64, 64, W(steps), 0, 0, 0, 0);
    P(cuExternalMemoryGetMappedMipmappedArray, HANDLE, W(out), 0, W(host));
    enum { ILLEGAL = 401 }; /* of a process that is neither locked nor checkpointed */
    P(cuCheckpointProcessGetState, 0, W(getpid()), W(out)); P(cuCheckpointProcessGetState, INVALID, W(getpid()), 0); P(cuCheckpointProcessGetRestoreThreadId, 0, W(getpid()), W(out)); P(cuCheckpointProcessLock, INVALID, W(-1), 0);
    P(cuCheckpointProcessCheckpoint, ILLEGAL, W(getpid()), 0); P(cuCheckpointProcessRestore, ILLEGAL, W(getpid()), 0); P(cuCheckpointProcessUnlock, ILLEGAL, W(getpid()), 0);
    close(file);
    unlink(path);
}
