/* One probe and more for each function of the driver's interface that the simulator has, for any libcuda.so.1.
 *
 * As a program it prints a line a probe: function, number of the probe of that function, expected code, code. The
 * expected code is what the interface's description says. It uses the first device, allocates a few MiB and ends with
 * status 0 whatever the answers were; 2: there is no driver or no device.
 *
 * Functions are called by name with words as arguments: on the ABIs in question integers and pointers travel alike, 64
 * bits each. The few with structures by value, or with a float, have casts of their own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_probes.h"

typedef int (*called)(word, word, word, word, word, word, word, word, word, word, word, word, word, word, word);

static void *library;
static struct { const char *name; int count; } counts[1024];

static int number_of(const char *name)
{
    size_t at = 0;
    while (counts[at].name && strcmp(counts[at].name, name) != 0)
        at++;
    counts[at].name = name;
    return ++counts[at].count;
}

int told(const char *name, int expected, int code)
{
    printf("%s %d %d %d\n", name, number_of(name), expected, code);
    return code;
}

void *probed_symbol(const char *name) { return dlsym(library, name); }

static called find(const char *name)
{
    void *symbol = probed_symbol(name);
    called function = NULL;
    memcpy(&function, &symbol, sizeof symbol); /* ISO C has no cast between the two kinds of pointers */
    return function;
}

int probe(const char *name, int expected, const word *a)
{
    called function = find(name);
    return told(name, expected, function ? function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14]) : -1);
}

static const char image[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .global .align 4 .b8 variable[16];\n.visible .global .texref texture;\n.visible .global .surfref surface;\n.visible .entry probe()\n{\n    ret;\n}\n";

static CUcontext context, other;
static CUstream stream;
static CUdeviceptr memory, second;
static CUfunction function;
static CUmodule module;
static char text[256];
static word out[64]; /* room for whatever a call gives */
static unsigned char host[4096];

static void nothing(void *argument) { (void)argument; }
static void nothing_either(CUstream given, CUresult status, void *argument) { (void)given; (void)status; (void)argument; }

static void devices(void)
{
    P(cuDriverGetVersion, 0, W(out)); P(cuDriverGetVersion, INVALID, 0);
    P(cuGetErrorName, 0, 1, W(out)); P(cuGetErrorName, INVALID, 12345, W(out)); P(cuGetErrorString, 0, 2, W(out));
    P(cuGetProcAddress, 0, W("cuInit"), W(out), 2000, 0); P(cuGetProcAddress, 500, W("cuNoSuchThing"), W(out), 12000, 0);
    P(cuGetProcAddress_v2, 0, W("cuNoSuchThing"), W(out), 12000, 0, W(&out[1]));
    P(cuGetProcAddress_v2_ptsz, 0, W("cuInit"), W(out), 12000, 0, W(&out[1]));
    P(cuGetExportTable, INVALID, W(out), W(text));
    P(cuDeviceGet, 0, W(out), 0); P(cuDeviceGet, CUDA_ERROR_INVALID_DEVICE, W(out), 99); P(cuDeviceGet, INVALID, 0, 0);
    P(cuDeviceGetCount, 0, W(out)); P(cuDeviceGetCount, INVALID, 0);
    P(cuDeviceGetName, 0, W(text), sizeof text, 0); P(cuDeviceGetName, CUDA_ERROR_INVALID_DEVICE, W(text), sizeof text, 99);
    P(cuDeviceGetUuid, 0, W(out), 0); P(cuDeviceGetUuid_v2, 0, W(out), 0); P(cuDeviceTotalMem_v2, 0, W(out), 0); P(cuDeviceTotalMem, 0, W(out), 0);
    P(cuDeviceComputeCapability, 0, W(out), W(&out[1]), 0); P(cuDeviceGetAttribute, 0, W(out), 16, 0); P(cuDeviceGetAttribute, INVALID, W(out), 100000, 0);
    P(cuDeviceGetProperties, 0, W(out), 0); P(cuDeviceGetPCIBusId, 0, W(text), 32, 0); P(cuDeviceGetByPCIBusId, 0, W(out), W(text));
    P(cuDeviceGetByPCIBusId, INVALID, W(out), W("nonsense")); P(cuDeviceCanAccessPeer, CUDA_ERROR_INVALID_DEVICE, W(out), 0, 99);
    P(cuDeviceGetP2PAttribute, CUDA_ERROR_INVALID_DEVICE, W(out), 1, 0, 0); P(cuDeviceGetExecAffinitySupport, 0, W(out), 0, 0);
    P(cuDeviceGetLuid, CUDA_ERROR_NOT_SUPPORTED, W(text), W(out), 0);
    P(cuDevicePrimaryCtxGetState, 0, 0, W(out), W(&out[1])); P(cuDevicePrimaryCtxSetFlags, 0, 0, 0); P(cuDevicePrimaryCtxSetFlags_v2, 0, 0, 0);
    P(cuDevicePrimaryCtxRelease, CUDA_ERROR_INVALID_CONTEXT, 0);
    P(cuDevicePrimaryCtxRetain, 0, W(&context), 0); P(cuDevicePrimaryCtxRetain, 0, W(out), 0); P(cuDevicePrimaryCtxRelease_v2, 0, 0);
    P(cuCtxSetCurrent, 0, W(context));
}

static void contexts(void)
{
    P(cuCtxGetCurrent, 0, W(out)); P(cuCtxGetCurrent, INVALID, 0); P(cuCtxGetDevice, 0, W(out)); P(cuCtxGetDevice_v2, 0, W(out), 0);
    P(cuCtxGetFlags, 0, W(out)); P(cuCtxSetFlags, 0, 0); P(cuCtxGetId, 0, W(context), W(out)); P(cuCtxGetApiVersion, 0, W(context), W(out));
    P(cuCtxGetLimit, 0, W(out), 0); P(cuCtxGetLimit, INVALID, 0, 0); P(cuCtxSetLimit, 0, 0, 1024); P(cuCtxGetCacheConfig, 0, W(out)); P(cuCtxSetCacheConfig, 0, 0);
    P(cuCtxGetSharedMemConfig, 0, W(out)); P(cuCtxSetSharedMemConfig, 0, 0); P(cuCtxGetStreamPriorityRange, 0, W(out), W(&out[1]));
    P0(cuCtxResetPersistingL2Cache, 0); P(cuCtxGetExecAffinity, 0, W(out), 0); P0(cuCtxSynchronize, 0); P(cuCtxSynchronize_v2, 0, 0);
    P(cuCtxCreate, 0, W(&other), 0, 0); P(cuCtxDestroy, 0, W(other)); P(cuCtxCreate_v2, 0, W(&other), 0, 0);
    P(cuCtxPopCurrent, 0, W(out)); P(cuCtxPushCurrent, 0, W(other)); P(cuCtxPopCurrent_v2, 0, W(out)); P(cuCtxPushCurrent_v2, 0, W(other));
    P(cuCtxAttach, 0, W(out), 0); P(cuCtxDetach, 0, W(other)); P(cuCtxEnablePeerAccess, INVALID, 0, 0); P(cuCtxDisablePeerAccess, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, W(context));
    P(cuCtxDestroy_v2, 0, W(other)); P(cuCtxDestroy_v2, CUDA_ERROR_INVALID_CONTEXT, 0);
    P(cuCtxCreate_v3, 0, W(&other), 0, 0, 0, 0); P(cuCtxDestroy_v2, 0, W(other)); P(cuCtxCreate_v4, 0, W(&other), 0, 0, 0); P(cuCtxDestroy_v2, 0, W(other));
    P(cuCtxSetCurrent, 0, W(context));
}

static void memories(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0, again = 0;
    CUdeviceptr range = 0;
    void *pinned = NULL;
    int fd = -1;
    P(cuMemGetInfo_v2, 0, W(out), W(&out[1])); P(cuMemGetInfo_v2, INVALID, 0, 0); P(cuMemGetInfo, 0, W(out), W(&out[1]));
    P(cuMemAlloc_v2, 0, W(&memory), 4 * MIB); P(cuMemAlloc_v2, INVALID, W(&second), 0); P(cuMemAlloc_v2, CUDA_ERROR_OUT_OF_MEMORY, W(&second), (size_t)1 << 50);
    P(cuMemAlloc_v2, 0, W(&second), 4 * MIB); P(cuMemAlloc, INVALID, 0, 16); P(cuMemAllocPitch_v2, 0, W(out), W(&out[1]), 100, 10, 4); P(cuMemFree_v2, 0, out[0]);
    P(cuMemAllocManaged, 0, W(out), MIB, 1); P(cuMemAdvise, 0, out[0], MIB, 1, 0); P(cuMemFree_v2, 0, out[0]); P(cuMemFree_v2, INVALID, 16); P(cuMemFree, 0, 0);
    P(cuMemGetAddressRange_v2, 0, W(out), W(&out[1]), memory); P(cuPointerGetAttribute, 0, W(out), 2, memory); P(cuPointerGetAttribute, INVALID, W(out), 2, 16);
    static int which[] = {2, 9};
    void *places[] = {&out[0], &out[1]};
    P(cuPointerGetAttributes, 0, 2, W(which), W(places), memory);
    unsigned one = 1;
    P(cuPointerSetAttribute, 0, W(&one), 6, memory);
    P(cuMemAllocHost_v2, 0, W(&pinned), 4096); P(cuMemHostGetDevicePointer_v2, 0, W(out), W(pinned), 0); P(cuMemHostGetFlags, 0, W(out), W(pinned)); P(cuMemFreeHost, 0, W(pinned));
    P(cuMemAllocHost, 0, W(&pinned), 4096); P(cuMemFreeHost, 0, W(pinned)); P(cuMemHostAlloc, 0, W(&pinned), 4096, 0); P(cuMemFreeHost, 0, W(pinned)); P(cuMemHostAlloc, INVALID, W(&pinned), 4096, 0x1000);
    void *page = aligned_alloc(4096, 4096);
    P(cuMemHostRegister_v2, 0, W(page), 4096, 0); P(cuMemHostRegister_v2, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, W(page), 4096, 0); P(cuMemHostUnregister, 0, W(page));
    P(cuMemHostUnregister, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, W(page)); P(cuMemHostRegister, 0, W(page), 4096, 0); P(cuMemHostUnregister, 0, W(page)); free(page);
    P(cuMemGetAllocationGranularity, 0, W(out), W(&prop), 0); size_t size = out[0] ? out[0] : 2 * MIB;
    P(cuMemCreate, 0, W(&handle), size, W(&prop), 0); P(cuMemCreate, INVALID, W(&handle), size + 1, W(&prop), 0); P(cuMemAddressReserve, 0, W(&range), size, 0, 0, 0);
    P(cuMemMap, 0, range, size, 0, handle, 0); P(cuMemSetAccess, 0, range, size, W(&access), 1); P(cuMemGetAccess, 0, W(out), W(&access.location), range);
    P(cuMemRetainAllocationHandle, 0, W(&again), range); P(cuMemRelease, 0, again); P(cuMemGetAllocationPropertiesFromHandle, 0, W(out), handle);
    P(cuMemExportToShareableHandle, 0, W(&fd), handle, 1, 0); P(cuMemImportFromShareableHandle, 0, W(&again), W((intptr_t)fd), 1); P(cuMemRelease, 0, again);
    P(cuMemUnmap, 0, range, size); P(cuMemUnmap, INVALID, range, size); P(cuMemAddressFree, 0, range, size); P(cuMemRelease, 0, handle); P(cuMemRelease, INVALID, 12345);
    close(fd);
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC none = {.type = 1, .handle = {.fd = -1}, .size = 4096};
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC piece = {.size = 4096};
    P(cuImportExternalMemory, INVALID, 0, W(&none)); P(cuExternalMemoryGetMappedBuffer, HANDLE, W(out), 0, W(&piece)); P(cuDestroyExternalMemory, HANDLE, 0);
}

static void pools(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {.location = props.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemPoolPtrExportData data;
    CUmemoryPool pool = NULL, imported = NULL;
    CUdeviceptr address = 0;
    int fd = -1;
    P(cuDeviceGetDefaultMemPool, 0, W(out), 0); P(cuDeviceGetMemPool, 0, W(out), 0); P(cuMemPoolCreate, 0, W(&pool), W(&props)); P(cuMemPoolCreate, INVALID, 0, W(&props));
    P(cuMemGetDefaultMemPool, 0, W(out), W(&props.location), 1); P(cuMemGetMemPool, 0, W(out), W(&props.location), 1);
    P(cuMemPoolGetAttribute, 0, W(pool), 4, W(out)); out[0] = MIB; P(cuMemPoolSetAttribute, 0, W(pool), 4, W(out)); P(cuMemPoolSetAccess, 0, W(pool), W(&access), 1);
    P(cuMemPoolGetAccess, 0, W(out), W(pool), W(&props.location)); Z(cuMemAllocFromPoolAsync, 0, W(&address), 4096, W(pool), W(stream));
    P(cuMemPoolExportToShareableHandle, 0, W(&fd), W(pool), 1, 0); P(cuMemPoolExportPointer, 0, W(&data), address);
    P(cuMemPoolImportFromShareableHandle, 0, W(&imported), W((intptr_t)fd), 1, 0); P(cuMemPoolImportPointer, INVALID, 0, W(imported), W(&data));
    close(fd);
    Z(cuMemAllocAsync, 0, W(&address), 4096, W(stream)); Z(cuMemFreeAsync, INVALID, 16, W(stream)); P(cuMemFreeAsync, 0, address, W(stream)); P(cuMemPoolTrimTo, 0, W(pool), 0);
    P(cuDeviceSetMemPool, 0, 0, W(pool)); P(cuDeviceGetDefaultMemPool, 0, W(out), 0); P(cuDeviceSetMemPool, 0, 0, out[0]); P(cuMemSetMemPool, 0, W(&props.location), 1, out[0]);
    P(cuMemPoolDestroy, 0, W(pool)); P(cuMemPoolDestroy, INVALID, 0);
}

static void copies(void)
{
    CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory, .WidthInBytes = 64, .Height = 4};
    CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = host, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory, .WidthInBytes = 64, .Height = 4, .Depth = 2};
    CUDA_MEMCPY3D_PEER peer = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = second, .srcContext = context, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory, .dstContext = context, .WidthInBytes = 64, .Height = 1, .Depth = 1};
    CUdeviceptr to[] = {memory}, from[] = {second};
    size_t sizes[] = {64}, failed = 0, places[] = {0};
    word attributes[16] = {1};
    D(cuMemcpyHtoD_v2, 0, memory, W(host), 64); P(cuMemcpyHtoD_v2, INVALID, 16, W(host), 64); D(cuMemcpyDtoH_v2, 0, W(host), memory, 64); D(cuMemcpyDtoD_v2, 0, second, memory, 64); D(cuMemcpy, 0, second, memory, 64);
    P(cuMemcpyHtoD, INVALID, 16, W(host), 64); P(cuMemcpyDtoH, INVALID, W(host), 16, 64); P(cuMemcpyDtoD, INVALID, 16, 16, 64);
    Z(cuMemcpyHtoDAsync_v2, 0, memory, W(host), 64, W(stream)); Z(cuMemcpyDtoHAsync_v2, 0, W(host), memory, 64, W(stream)); Z(cuMemcpyDtoDAsync_v2, 0, second, memory, 64, W(stream)); Z(cuMemcpyAsync, 0, second, memory, 64, W(stream));
    P(cuMemcpyHtoDAsync, INVALID, 16, W(host), 64, W(stream)); P(cuMemcpyDtoHAsync, INVALID, W(host), 16, 64, W(stream)); P(cuMemcpyDtoDAsync, INVALID, 16, 16, 64, W(stream));
    D(cuMemcpyPeer, 0, second, W(context), memory, W(context), 64); Z(cuMemcpyPeerAsync, 0, second, W(context), memory, W(context), 64, W(stream));
    D(cuMemcpy2D_v2, 0, W(&flat)); D(cuMemcpy2DUnaligned_v2, 0, W(&flat)); Z(cuMemcpy2DAsync_v2, 0, W(&flat), W(stream)); P(cuMemcpy2D_v2, INVALID, 0);
    D(cuMemcpy3D_v2, 0, W(&box)); Z(cuMemcpy3DAsync_v2, 0, W(&box), W(stream)); D(cuMemcpy3DPeer, 0, W(&peer)); Z(cuMemcpy3DPeerAsync, 0, W(&peer), W(stream));
    Z(cuMemcpyBatchAsync, 0, W(to), W(from), W(sizes), 1, W(attributes), W(places), 1, W(&failed), W(stream)); Z(cuMemcpyBatchAsync_v2, 0, W(to), W(from), W(sizes), 1, W(attributes), W(places), 1, W(stream));
    D(cuMemsetD8_v2, 0, memory, 1, 64); D(cuMemsetD16_v2, 0, memory, 1, 64); D(cuMemsetD32_v2, 0, memory, 1, 64); P(cuMemsetD32_v2, INVALID, memory + 1, 1, 64);
    P(cuMemsetD8, INVALID, 16, 1, 64); P(cuMemsetD16, INVALID, 16, 1, 64); P(cuMemsetD32, INVALID, 16, 1, 64);
    Z(cuMemsetD8Async, 0, memory, 1, 64, W(stream)); Z(cuMemsetD16Async, 0, memory, 1, 64, W(stream)); Z(cuMemsetD32Async, 0, memory, 1, 64, W(stream));
    D(cuMemsetD2D8_v2, 0, memory, 512, 1, 64, 4); D(cuMemsetD2D16_v2, 0, memory, 512, 1, 64, 4); D(cuMemsetD2D32_v2, 0, memory, 512, 1, 64, 4);
    Z(cuMemsetD2D8Async, 0, memory, 512, 1, 64, 4, W(stream)); Z(cuMemsetD2D16Async, 0, memory, 512, 1, 64, 4, W(stream)); Z(cuMemsetD2D32Async, 0, memory, 512, 1, 64, 4, W(stream));
    Z(cuMemPrefetchAsync, INVALID, memory, 0, 0, W(stream));
    struct { CUresult (*v2)(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream); CUresult (*advise)(CUdeviceptr, size_t, int, CUmemLocation); } by_value;
    CUmemLocation here = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    static const char *const names[] = {"cuMemPrefetchAsync_v2", "cuMemPrefetchAsync_v2_ptsz"};
    for (int i = 0; i < 2; i++) {
        void *symbol = dlsym(library, names[i]);
        memcpy(&by_value.v2, &symbol, sizeof symbol); /* as in find */
        told(names[i], INVALID, symbol ? (int)by_value.v2(memory, 0, here, 0, stream) : -1);
    }
    void *symbol = dlsym(library, "cuMemAdvise_v2");
    memcpy(&by_value.advise, &symbol, sizeof symbol);
    told("cuMemAdvise_v2", INVALID, symbol ? (int)by_value.advise(memory, 0, 1, here) : -1);
    P0(cuCtxSynchronize, 0);
}

static void modules(void)
{
    CUlibrary library_handle = NULL;
    CUkernel kernel = NULL;
    CUlinkState link = NULL;
    char path[] = "/tmp/cuda-probe-XXXXXX";
    int file = mkstemp(path);
    ssize_t written = write(file, image, sizeof image);
    P(cuModuleLoadData, 0, W(&module), W(image)); P(cuModuleLoadData, INVALID, 0, W(image)); P(cuModuleGetFunction, 0, W(&function), W(module), W("probe")); P(cuModuleGetFunction, 500, W(out), W(module), W("absent"));
    P(cuModuleGetGlobal_v2, 0, W(out), W(&out[1]), W(module), W("variable")); P(cuModuleGetGlobal_v2, 500, W(out), W(&out[1]), W(module), W("absent")); P(cuModuleGetFunctionCount, 0, W(out), W(module));
    CUtexref reference = NULL;
    P(cuModuleGetTexRef, 0, W(&reference), W(module), W("texture")); P(cuModuleGetTexRef, 500, W(out), W(module), W("absent")); P(cuTexRefSetFormat, 0, W(reference), 32 /* float */, 1); P(cuTexRefGetFormat, 0, W(out), W(&out[1]), W(reference)); P(cuTexRefSetFormat, INVALID, W(reference), 32, 3);
    P(cuTexRefSetAddress_v2, 0, W(out), W(reference), memory, MIB); P(cuTexRefGetAddress_v2, 0, W(out), W(reference)); P(cuTexRefSetAddress_v2, INVALID, 0, W(reference), memory + 16, MIB / 2); P(cuTexRefSetAddress_v2, INVALID, W(out), 0, memory, MIB);
    P(cuModuleEnumerateFunctions, 0, W(out), 1, W(module)); P(cuModuleGetLoadingMode, 0, W(out)); P(cuModuleLoadDataEx, 0, W(out), W(image), 0, 0, 0); P(cuModuleUnload, 0, out[0]);
    P(cuModuleLoad, written > 0 ? 0 : CUDA_ERROR_FILE_NOT_FOUND, W(out), W(path)); P(cuModuleUnload, 0, out[0]); P(cuModuleLoad, CUDA_ERROR_FILE_NOT_FOUND, W(out), W("/nonexistent")); P(cuModuleLoadFatBinary, INVALID, 0, W(image));
    P(cuLibraryLoadData, 0, W(&library_handle), W(image), 0, 0, 0, 0, 0, 0); P(cuLibraryGetKernel, 0, W(&kernel), W(library_handle), W("probe")); P(cuLibraryGetKernelCount, 0, W(out), W(library_handle));
    P(cuLibraryEnumerateKernels, 0, W(out), 1, W(library_handle)); P(cuLibraryGetModule, 0, W(out), W(library_handle)); P(cuLibraryGetGlobal, 0, W(out), W(&out[1]), W(library_handle), W("variable"));
    P(cuLibraryGetManaged, 500, W(out), W(&out[1]), W(library_handle), W("absent")); P(cuLibraryLoadFromFile, 0, W(out), W(path), 0, 0, 0, 0, 0, 0); P(cuLibraryUnload, 0, out[0]);
    P(cuKernelGetFunction, 0, W(out), W(kernel)); P(cuKernelGetLibrary, 0, W(out), W(kernel)); P(cuKernelGetName, 0, W(out), W(kernel)); P(cuKernelGetAttribute, 0, W(out), 4, W(kernel), 0); P(cuKernelSetAttribute, 0, 8, 1024, W(kernel), 0);
    P(cuKernelSetCacheConfig, 0, W(kernel), 0, 0); P(cuKernelGetParamInfo, INVALID, W(kernel), 0, W(out), W(&out[1])); P(cuLibraryUnload, 0, W(library_handle));
    P(cuFuncGetAttribute, 0, W(out), 0, W(function)); P(cuFuncGetAttribute, INVALID, W(out), 1000, W(function)); P(cuFuncSetAttribute, 0, W(function), 8, 1024); P(cuFuncSetCacheConfig, 0, W(function), 0); P(cuFuncSetSharedMemConfig, 0, W(function), 0);
    P(cuFuncGetName, 0, W(out), W(function)); P(cuFuncGetModule, 0, W(out), W(function)); P(cuFuncLoad, 0, W(function)); P(cuFuncIsLoaded, 0, W(out), W(function)); P(cuFuncGetParamInfo, INVALID, W(function), 0, W(out), W(&out[1]));
    P(cuLinkCreate_v2, 0, 0, 0, 0, W(&link)); P(cuLinkAddData_v2, 0, W(link), 1, W(image), sizeof image, W("probe"), 0, 0, 0); P(cuLinkAddFile_v2, CUDA_ERROR_FILE_NOT_FOUND, W(link), 1, W("/nonexistent"), 0, 0, 0);
    P(cuLinkComplete, 0, W(link), W(out), W(&out[1])); P(cuLinkDestroy, 0, W(link)); P(cuLinkCreate, 0, 0, 0, 0, W(&link)); P(cuLinkAddData, INVALID, W(link), 1, 0, 0, 0, 0, 0, 0); P(cuLinkAddFile, CUDA_ERROR_FILE_NOT_FOUND, W(link), 1, W("/nonexistent"), 0, 0, 0); P(cuLinkDestroy, 0, W(link));
    close(file);
    unlink(path);
}

static void launches(void)
{
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, stream, NULL, 0};
    CUDA_LAUNCH_PARAMS many = {.function = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1, .hStream = stream};
    Z(cuLaunchKernel, 0, W(function), 1, 1, 1, 32, 1, 1, 0, W(stream)); P(cuLaunchKernel, INVALID, W(function), 1, 1, 1, 2048, 1, 1, 0, W(stream)); P(cuLaunchKernel, INVALID, W(function), 0, 1, 1, 32, 1, 1, 0, W(stream)); P(cuLaunchKernel, HANDLE, 0, 1, 1, 1, 32, 1, 1, 0, W(stream));
    Z(cuLaunchKernelEx, 0, W(&config), W(function), 0, 0); Z(cuLaunchCooperativeKernel, 0, W(function), 1, 1, 1, 32, 1, 1, 0, W(stream), 0); P(cuLaunchCooperativeKernel, CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, W(function), 1000000, 1, 1, 1024, 1, 1, 0, W(stream), 0);
    P(cuLaunchCooperativeKernelMultiDevice, 0, W(&many), 1, 0); Z(cuLaunchHostFunc, 0, W(stream), W(nothing), 0); P(cuLaunchHostFunc, INVALID, W(stream), 0, 0);
    P(cuFuncSetBlockShape, 0, W(function), 32, 1, 1); P(cuFuncSetSharedSize, 0, W(function), 0); P(cuParamSetSize, 0, W(function), 0); P(cuParamSeti, HANDLE, 0, 0, 1); P(cuParamSetv, HANDLE, 0, 0, W(host), 4);
    void *symbol = dlsym(library, "cuParamSetf");
    CUresult (*with_float)(CUfunction, int, float);
    memcpy(&with_float, &symbol, sizeof symbol); /* as in find */
    told("cuParamSetf", HANDLE, symbol ? (int)with_float(NULL, 0, 1.0f) : -1);
    P(cuLaunch, 0, W(function)); P(cuLaunchGrid, 0, W(function), 1, 1); P(cuLaunchGridAsync, 0, W(function), 1, 1, W(stream));
    P(cuOccupancyMaxActiveBlocksPerMultiprocessor, 0, W(out), W(function), 256, 0); P(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 0, W(out), W(function), 256, 0, 0); P(cuOccupancyMaxPotentialBlockSize, 0, W(out), W(&out[1]), W(function), 0, 0, 0);
    P(cuOccupancyMaxPotentialBlockSizeWithFlags, 0, W(out), W(&out[1]), W(function), 0, 0, 0, 0); P(cuOccupancyAvailableDynamicSMemPerBlock, 0, W(out), W(function), 1, 256);
    P(cuOccupancyMaxActiveClusters, INVALID, 0, W(function), W(&config)); P(cuOccupancyMaxPotentialClusterSize, INVALID, 0, W(function), W(&config));
    P0(cuCtxSynchronize, 0);
}

static void streams(void)
{
    CUstream one = NULL;
    CUevent start = NULL, end = NULL;
    CUlaunchAttributeValue value = {{0}};
    CUstreamBatchMemOpParams operation = {.value = {.operation = 2, .address = memory, .value = 1}};
    float milliseconds;
    P(cuStreamCreate, 0, W(&one), 1); P(cuStreamCreate, INVALID, 0, 0); P(cuStreamCreate, INVALID, W(out), 0x100); P(cuStreamDestroy, 0, W(one)); P(cuStreamCreateWithPriority, 0, W(&one), 1, 0);
    Z(cuStreamGetFlags, 0, W(one), W(out)); Z(cuStreamGetPriority, 0, W(one), W(out)); Z(cuStreamGetId, 0, W(one), W(out)); Z(cuStreamGetCtx, 0, W(one), W(out)); Z(cuStreamGetDevice, 0, W(one), W(out)); Z(cuStreamQuery, 0, W(one)); Z(cuStreamSynchronize, 0, W(one));
    Z(cuStreamAttachMemAsync, INVALID, W(one), 16, 0, 1); Z(cuStreamAddCallback, 0, W(one), W(nothing_either), 0, 0); P(cuStreamAddCallback, INVALID, W(one), 0, 0, 0);
    Z(cuStreamGetAttribute, 0, W(one), 1, W(&value)); Z(cuStreamSetAttribute, INVALID, W(one), 1, 0); Z(cuStreamCopyAttributes, 0, W(one), W(stream));
    P(cuEventCreate, 0, W(&start), 0); P(cuEventCreate, 0, W(&end), 0); P(cuEventCreate, INVALID, 0, 0); P(cuEventQuery, 0, W(start)); Z(cuEventRecord, 0, W(start), W(one)); Z(cuEventRecordWithFlags, 0, W(end), W(one), 0); P(cuEventSynchronize, 0, W(end));
    P(cuEventElapsedTime, 0, W(&milliseconds), W(start), W(end)); P(cuEventElapsedTime_v2, 0, W(&milliseconds), W(start), W(end)); Z(cuStreamWaitEvent, 0, W(one), W(end), 0); P(cuEventDestroy, 0, W(start)); P(cuEventDestroy_v2, 0, W(end)); P(cuEventDestroy_v2, HANDLE, 0);
    Z(cuStreamWriteValue32, 0, W(one), memory, 1, 0); Z(cuStreamWriteValue64, 0, W(one), memory, 1, 0); Z(cuStreamWriteValue32_v2, 0, W(one), memory, 1, 0); Z(cuStreamWriteValue64_v2, 0, W(one), memory, 1, 0);
    Z(cuStreamWaitValue32, 0, W(one), memory, 1, 1); Z(cuStreamWaitValue64, 0, W(one), memory, 1, 1); Z(cuStreamWaitValue32_v2, 0, W(one), memory, 1, 1); Z(cuStreamWaitValue64_v2, 0, W(one), memory, 1, 1);
    Z(cuStreamBatchMemOp, 0, W(one), 1, W(&operation), 0); Z(cuStreamBatchMemOp_v2, 0, W(one), 1, W(&operation), 0); P(cuStreamSynchronize, 0, W(one)); P(cuStreamDestroy_v2, 0, W(one));
    P(cuEventCreate, INVALID, W(&end), 4); /* shared between processes only without timing */
    CUevent shared = NULL;
    CUipcEventHandle event_handle;
    CUipcMemHandle memory_handle;
    P(cuEventCreate, 0, W(&shared), 6); P(cuIpcGetEventHandle, 0, W(&event_handle), W(shared)); P(cuIpcGetMemHandle, 0, W(&memory_handle), memory); P(cuIpcCloseMemHandle, INVALID, memory);
    static const char *const opens[] = {"cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2"};
    for (int i = 0; i < 2; i++) {
        void *symbol = dlsym(library, opens[i]);
        CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned);
        memcpy(&open, &symbol, sizeof symbol); /* as in find */
        CUdeviceptr address;
        told(opens[i], CUDA_ERROR_INVALID_CONTEXT, symbol ? (int)open(&address, memory_handle, 1) : -1); /* in the process that made it */
    }
    void *symbol = dlsym(library, "cuIpcOpenEventHandle");
    CUresult (*open_event)(CUevent *, CUipcEventHandle);
    memcpy(&open_event, &symbol, sizeof symbol);
    told("cuIpcOpenEventHandle", CUDA_ERROR_INVALID_CONTEXT, symbol ? (int)open_event(&end, event_handle) : -1);
    P(cuEventDestroy_v2, 0, W(shared));
}

static void graphs(void)
{
    CUgraph graph = NULL, copy = NULL, child = NULL, captured = NULL;
    CUgraphNode nodes[12] = {NULL};
    CUgraphExec exec = NULL, other_exec = NULL;
    CUevent event = NULL, event_2 = NULL;
    CUuserObject object = NULL;
    CUDA_KERNEL_NODE_PARAMS_v1 kernel_1 = {.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
    CUDA_KERNEL_NODE_PARAMS_v2 kernel_2 = {.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
    CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = second, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = memory, .WidthInBytes = 64, .Height = 1, .Depth = 1};
    CUDA_MEMSET_NODE_PARAMS fill = {.dst = memory, .elementSize = 4, .width = 16, .height = 1};
    CUDA_HOST_NODE_PARAMS call = {nothing, NULL};
    CUDA_MEM_ALLOC_NODE_PARAMS allocation = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = 4096};
    CUDA_GRAPH_INSTANTIATE_PARAMS how = {0};
    CUgraphExecUpdateResultInfo answer;
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_EMPTY}, kernel_any = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    CUlaunchAttributeValue value = {{0}};
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    size_t count;
    kernel_any.kernel = (CUDA_KERNEL_NODE_PARAMS_v3){.func = function, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
    P(cuEventCreate, 0, W(&event), 0); P(cuEventCreate, 0, W(&event_2), 0);
    P(cuGraphCreate, 0, W(&graph), 0); P(cuGraphCreate, INVALID, W(out), 1); P(cuGraphCreate, 0, W(&child), 0);
    P(cuGraphAddEmptyNode, 0, W(&nodes[0]), W(graph), 0, 0); P(cuGraphAddKernelNode, 0, W(&nodes[1]), W(graph), W(nodes), 1, W(&kernel_1)); P(cuGraphAddKernelNode_v2, 0, W(&nodes[2]), W(graph), W(nodes), 1, W(&kernel_2));
    P(cuGraphAddMemcpyNode, 0, W(&nodes[3]), W(graph), W(nodes), 1, W(&box), W(context)); P(cuGraphAddMemsetNode, 0, W(&nodes[4]), W(graph), W(nodes), 1, W(&fill), W(context)); P(cuGraphAddHostNode, 0, W(&nodes[5]), W(graph), W(nodes), 1, W(&call));
    P(cuGraphAddChildGraphNode, 0, W(&nodes[6]), W(graph), 0, 0, W(child)); P(cuGraphAddEventRecordNode, 0, W(&nodes[7]), W(graph), 0, 0, W(event)); P(cuGraphAddEventWaitNode, 0, W(&nodes[8]), W(graph), 0, 0, W(event));
    P(cuGraphAddNode, 0, W(&nodes[9]), W(graph), 0, 0, W(&any)); P(cuGraphAddNode_v2, 0, W(&nodes[10]), W(graph), 0, 0, 0, W(&any)); P(cuGraphAddKernelNode, INVALID, W(out), W(graph), 0, 1, W(&kernel_1));
    P(cuGraphAddDependencies, 0, W(graph), W(&nodes[1]), W(&nodes[9]), 1); P(cuGraphRemoveDependencies, 0, W(graph), W(&nodes[1]), W(&nodes[9]), 1); P(cuGraphAddDependencies_v2, 0, W(graph), W(&nodes[1]), W(&nodes[9]), 0, 1); P(cuGraphRemoveDependencies_v2, 0, W(graph), W(&nodes[1]), W(&nodes[9]), 0, 1);
    P(cuGraphGetNodes, 0, W(graph), 0, W(&count)); P(cuGraphGetRootNodes, 0, W(graph), 0, W(&count)); P(cuGraphGetEdges, 0, W(graph), 0, 0, W(&count)); P(cuGraphGetEdges_v2, 0, W(graph), 0, 0, 0, W(&count));
    P(cuGraphNodeGetDependencies, 0, W(nodes[1]), 0, W(&count)); P(cuGraphNodeGetDependencies_v2, 0, W(nodes[1]), 0, 0, W(&count)); P(cuGraphNodeGetDependentNodes, 0, W(nodes[0]), 0, W(&count)); P(cuGraphNodeGetDependentNodes_v2, 0, W(nodes[0]), 0, 0, W(&count)); P(cuGraphNodeGetType, 0, W(nodes[1]), W(out));
    P(cuGraphKernelNodeGetParams, 0, W(nodes[1]), W(&kernel_1)); P(cuGraphKernelNodeGetParams_v2, 0, W(nodes[1]), W(&kernel_2)); P(cuGraphKernelNodeSetParams, 0, W(nodes[1]), W(&kernel_1)); P(cuGraphKernelNodeSetParams_v2, 0, W(nodes[1]), W(&kernel_2));
    P(cuGraphKernelNodeGetAttribute, 0, W(nodes[1]), 2, W(&value)); P(cuGraphKernelNodeSetAttribute, 0, W(nodes[1]), 2, W(&value)); P(cuGraphKernelNodeCopyAttributes, 0, W(nodes[2]), W(nodes[1]));
    P(cuGraphMemcpyNodeGetParams, 0, W(nodes[3]), W(&box)); P(cuGraphMemcpyNodeSetParams, 0, W(nodes[3]), W(&box)); P(cuGraphMemsetNodeGetParams, 0, W(nodes[4]), W(&fill)); P(cuGraphMemsetNodeSetParams, 0, W(nodes[4]), W(&fill)); P(cuGraphHostNodeGetParams, 0, W(nodes[5]), W(&call)); P(cuGraphHostNodeSetParams, 0, W(nodes[5]), W(&call));
    P(cuGraphChildGraphNodeGetGraph, 0, W(nodes[6]), W(out)); P(cuGraphEventRecordNodeGetEvent, 0, W(nodes[7]), W(out)); P(cuGraphEventRecordNodeSetEvent, 0, W(nodes[7]), W(event)); P(cuGraphEventWaitNodeGetEvent, 0, W(nodes[8]), W(out)); P(cuGraphEventWaitNodeSetEvent, 0, W(nodes[8]), W(event)); P(cuGraphNodeSetParams, 0, W(nodes[1]), W(&kernel_any));
    P(cuUserObjectCreate, 0, W(&object), W(host), W(nothing), 1, 1); P(cuUserObjectRetain, 0, W(object), 1); P(cuUserObjectRelease, 0, W(object), 1); P(cuGraphRetainUserObject, 0, W(graph), W(object), 1, 0); P(cuGraphReleaseUserObject, 0, W(graph), W(object), 1); P(cuGraphReleaseUserObject, INVALID, W(graph), 0, 1);
    P(cuGraphClone, 0, W(&copy), W(graph)); P(cuGraphNodeFindInClone, 0, W(out), W(nodes[1]), W(copy)); P(cuGraphDestroy, 0, W(copy)); P(cuGraphDestroyNode, 0, W(nodes[10]));
    P(cuGraphInstantiate, 0, W(&exec), W(graph), W(out), W(text), sizeof text); P(cuGraphExecDestroy, 0, W(exec)); P(cuGraphInstantiate_v2, 0, W(&exec), W(graph), W(out), W(text), sizeof text); P(cuGraphExecDestroy, 0, W(exec)); Z(cuGraphInstantiateWithParams, 0, W(&other_exec), W(graph), W(&how)); P(cuGraphExecDestroy, 0, W(other_exec));
    P(cuGraphInstantiateWithFlags, 0, W(&exec), W(graph), 0); P(cuGraphInstantiateWithFlags, INVALID, 0, W(graph), 0); P(cuGraphExecGetFlags, 0, W(exec), W(out)); Z(cuGraphUpload, 0, W(exec), W(stream)); Z(cuGraphLaunch, 0, W(exec), W(stream)); P(cuStreamSynchronize, 0, W(stream)); P(cuGraphLaunch, INVALID, 0, W(stream));
    P(cuGraphExecKernelNodeSetParams, 0, W(exec), W(nodes[1]), W(&kernel_1)); P(cuGraphExecKernelNodeSetParams_v2, 0, W(exec), W(nodes[1]), W(&kernel_2)); P(cuGraphExecMemcpyNodeSetParams, 0, W(exec), W(nodes[3]), W(&box), W(context)); P(cuGraphExecMemsetNodeSetParams, 0, W(exec), W(nodes[4]), W(&fill), W(context)); P(cuGraphExecHostNodeSetParams, 0, W(exec), W(nodes[5]), W(&call));
    P(cuGraphExecChildGraphNodeSetParams, 0, W(exec), W(nodes[6]), W(child)); P(cuGraphExecEventRecordNodeSetEvent, 0, W(exec), W(nodes[7]), W(event_2)); P(cuGraphExecEventWaitNodeSetEvent, 0, W(exec), W(nodes[8]), W(event_2)); P(cuGraphExecNodeSetParams, 0, W(exec), W(nodes[1]), W(&kernel_any));
    P(cuGraphNodeSetEnabled, 0, W(exec), W(nodes[1]), 0); P(cuGraphNodeGetEnabled, 0, W(exec), W(nodes[1]), W(out)); P(cuGraphExecUpdate, 0, W(exec), W(graph), W(out), W(&out[1])); P(cuGraphExecUpdate_v2, 0, W(exec), W(graph), W(&answer)); P(cuGraphExecUpdate_v2, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, W(exec), W(child), W(&answer));
    P(cuGraphExecDestroy, 0, W(exec)); P(cuGraphDestroy, 0, W(graph)); P(cuGraphDestroy, INVALID, 0);
    P(cuGraphCreate, 0, W(&graph), 0); P(cuGraphAddMemAllocNode, 0, W(&nodes[0]), W(graph), 0, 0, W(&allocation)); P(cuGraphMemAllocNodeGetParams, 0, W(nodes[0]), W(&allocation)); P(cuGraphAddMemFreeNode, 0, W(&nodes[1]), W(graph), W(nodes), 1, allocation.dptr); P(cuGraphMemFreeNodeGetParams, 0, W(nodes[1]), W(out)); P(cuGraphDestroy, 0, W(graph));
    P(cuDeviceGetGraphMemAttribute, 0, 0, 0, W(out)); out[0] = 0; P(cuDeviceSetGraphMemAttribute, 0, 0, 1, W(out)); P(cuDeviceGraphMemTrim, 0, 0);
    P(cuThreadExchangeStreamCaptureMode, 0, W(&mode));
    P(cuStreamBeginCapture_v2, 0, W(stream), 2); P(cuStreamBeginCapture_v2_ptsz, CUDA_ERROR_ILLEGAL_STATE, W(stream), 2); P(cuStreamEndCapture, 0, W(stream), W(&captured)); P(cuGraphDestroy, 0, W(captured));
    P(cuStreamBeginCapture, 0, W(stream)); Z(cuStreamIsCapturing, 0, W(stream), W(out)); Z(cuStreamGetCaptureInfo, 0, W(stream), W(out), W(&out[1])); Z(cuStreamGetCaptureInfo_v2, 0, W(stream), W(out), W(&out[1]), W(&out[2]), W(&out[3]), W(&out[4])); Z(cuStreamGetCaptureInfo_v3, 0, W(stream), W(out), W(&out[1]), W(&out[2]), W(&out[3]), W(&out[5]), W(&out[4]));
    Z(cuStreamUpdateCaptureDependencies, 0, W(stream), 0, 0, 1); Z(cuStreamUpdateCaptureDependencies_v2, 0, W(stream), 0, 0, 0, 1); P(cuStreamSynchronize, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, W(stream)); P(cuStreamEndCapture_ptsz, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, W(stream), W(&captured));
    P(cuStreamBeginCapture_ptsz, 0, W(stream)); P(cuStreamEndCapture, 0, W(stream), W(&captured)); P(cuGraphDestroy, 0, W(captured)); P(cuStreamEndCapture, CUDA_ERROR_ILLEGAL_STATE, W(stream), W(&captured));
    P(cuStreamBeginCaptureToGraph, 0, W(stream), W(child), 0, 0, 0, 2); P(cuStreamEndCapture, 0, W(stream), W(&captured)); P(cuStreamBeginCaptureToGraph_ptsz, 0, W(stream), W(child), 0, 0, 0, 2); P(cuStreamEndCapture, 0, W(stream), W(&captured));
    P(cuGraphDestroy, 0, W(child)); P(cuEventDestroy_v2, 0, W(event)); P(cuEventDestroy_v2, 0, W(event_2)); P(cuUserObjectRelease, 0, W(object), 1);
}

static void arrays(void)
{
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = 64, .Height = 4, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    CUDA_ARRAY3D_DESCRIPTOR deep = {.Width = 64, .Height = 4, .Depth = 2, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1, .Flags = 2 /* surfaces too */};
    CUDA_ARRAY3D_DESCRIPTOR square = {.Width = 64, .Height = 64, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};
    CUarray array = NULL, volume = NULL;
    CUmipmappedArray levels = NULL;
    CUtexObject texture = 0;
    static CUDA_TEXTURE_DESC how;
    P(cuArrayCreate_v2, 0, W(&array), W(&flat)); P(cuArrayCreate_v2, INVALID, 0, W(&flat)); P(cuArray3DCreate_v2, 0, W(&volume), W(&deep)); P(cuArrayGetDescriptor_v2, 0, W(&flat), W(array)); P(cuArray3DGetDescriptor_v2, 0, W(&deep), W(volume)); P(cuArrayGetMemoryRequirements, INVALID, 0, W(array), 0);
    D(cuMemcpyHtoA_v2, 0, W(array), 0, W(host), 64); D(cuMemcpyAtoH_v2, 0, W(host), W(array), 0, 64); D(cuMemcpyDtoA_v2, 0, W(array), 0, memory, 64); D(cuMemcpyAtoD_v2, 0, memory, W(array), 0, 64); D(cuMemcpyAtoA_v2, 0, W(array), 0, W(array), 0, 16); Z(cuMemcpyHtoAAsync_v2, 0, W(array), 0, W(host), 64, W(stream)); Z(cuMemcpyAtoHAsync_v2, 0, W(host), W(array), 0, 64, W(stream));
    CUDA_RESOURCE_DESC resource = {.resType = 0, .res = {.array = array}}, surface = {.resType = 0, .res = {.array = volume}};
    P(cuTexObjectCreate, 0, W(&texture), W(&resource), W(&how), 0); P(cuTexObjectGetResourceDesc, 0, W(&resource), texture); P(cuTexObjectGetTextureDesc, 0, W(&how), texture); P(cuTexObjectGetResourceViewDesc, INVALID, 0, texture); P(cuTexObjectDestroy, 0, texture); P(cuTexObjectCreate, INVALID, 0, W(&resource), W(&how), 0);
    P(cuSurfObjectCreate, 0, W(&texture), W(&surface)); P(cuSurfObjectGetResourceDesc, 0, W(&surface), texture); P(cuSurfObjectDestroy, 0, texture);
    P(cuMipmappedArrayCreate, 0, W(&levels), W(&square), 3); P(cuMipmappedArrayGetLevel, 0, W(out), W(levels), 1); P(cuMipmappedArrayGetLevel, INVALID, W(out), W(levels), 30); P(cuMipmappedArrayDestroy, 0, W(levels));
    P(cuArrayDestroy, 0, W(array)); P(cuArrayDestroy, 0, W(volume)); P(cuArrayDestroy, HANDLE, 0);
}

static void rest(void)
{
    CUdevResource whole, parts[2], left;
    CUdevResourceDesc description = NULL;
    CUgreenCtx green = NULL;
    CUstream one = NULL;
    unsigned groups = 2;
    _Alignas(64) word map[16];
    cuuint64_t dimensions[2] = {64, 64}, strides[1] = {64};
    cuuint32_t box[2] = {8, 8}, steps[2] = {1, 1};
    P0(cuProfilerStart, 0); P0(cuProfilerStop, 0); P(cuLogsRegisterCallback, INVALID, 0, 0, W(out)); P(cuLogsUnregisterCallback, INVALID, 0); P(cuLogsCurrent, 0, W(out), 0); P(cuLogsDumpToMemory, INVALID, 0, 0, 0, 0);
    P(cuDeviceGetDevResource, 0, 0, W(&whole), 1); P(cuDeviceGetDevResource, INVALID, 0, 0, 1); P(cuDevSmResourceSplitByCount, 0, W(parts), W(&groups), W(&whole), W(&left), 0, 8); P(cuDevResourceGenerateDesc, 0, W(&description), W(parts), 1);
    P(cuGreenCtxCreate, 0, W(&green), W(description), 0, 1); P(cuGreenCtxGetDevResource, 0, W(green), W(&left), 1); P(cuGreenCtxGetId, 0, W(green), W(out)); P(cuCtxFromGreenCtx, 0, W(out), W(green)); P(cuCtxGetDevResource, 0, W(context), W(&left), 1); P(cuGreenCtxStreamCreate, 0, W(&one), W(green), 1, 0); P(cuStreamDestroy_v2, 0, W(one)); P(cuGreenCtxDestroy, 0, W(green));
    P(cuTensorMapEncodeTiled, INVALID, 0, 0, 2, memory, W(dimensions), W(strides), W(box), W(steps), 0, 0, 0, 0); P(cuTensorMapReplaceAddress, INVALID, W(map), 8);
    P(cuModuleUnload, 0, W(module)); P(cuModuleUnload, HANDLE, 0); P(cuMemFree_v2, 0, memory); P(cuMemFree_v2, 0, second); P(cuStreamDestroy_v2, 0, W(stream)); P(cuDevicePrimaryCtxReset, 0, 0); P(cuDevicePrimaryCtxReset_v2, 0, 0);
}

int main(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    P(cuDeviceGetCount, CUDA_ERROR_NOT_INITIALIZED, W(out));
    P(cuInit, INVALID, 1);
    if (P(cuInit, 0, 0) != 0) {
        fprintf(stderr, "there is no device\n");
        return 2;
    }
    devices();
    contexts();
    if (P(cuStreamCreate, 0, W(&stream), 1) != 0)
        return 2;
    memories();
    pools();
    copies();
    modules();
    launches();
    streams();
    graphs();
    arrays();
    const struct probe_objects objects = {context, stream, memory, second, function, module};
    probe_managed(&objects);
    probe_events_of_contexts(&objects);
    probe_semaphores(&objects);
    probe_operations(&objects);
    probe_references(&objects);
    probe_old_forms(&objects);
    probe_small(&objects);
    rest();
    return 0;
}
