/* test: sources=simulator/core/?*.c,simulator/cuda/?*.c include=simulator/include,simulator/core,simulator/cuda
   variants=plain flags=-rdynamic */
/* cuGetProcAddress: what real drivers (535, 550) were measured to answer, row by row. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "rig.h"

#define LEGACY CU_GET_PROC_ADDRESS_LEGACY_STREAM
#define THREAD CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

static const struct row { const char *name; int version; unsigned flags; int status; const char *symbol; } rows[] = {
    {"cuInit", 2000, 0, 0, "cuInit"},
    {"cuMemAlloc", 2000, 0, 0, "cuMemAlloc"},
    {"cuMemAlloc", 3010, 0, 0, "cuMemAlloc"},
    {"cuMemAlloc", 3020, 0, 0, "cuMemAlloc_v2"},
    {"cuMemAlloc", 99999, 0, 0, "cuMemAlloc_v2"}, /* a version from the future gives the newest */
    {"cuMemAlloc", 1999, 0, 2, NULL},
    {"cuMemAlloc", 0, 0, 2, NULL},
    {"cuMemcpyDtoH", 2000, 0, 0, "cuMemcpyDtoH"},
    {"cuMemcpyDtoH", 3020, LEGACY, 0, "cuMemcpyDtoH_v2"},
    {"cuMemcpyDtoH", 7000, THREAD, 0, "cuMemcpyDtoH_v2_ptds"},
    {"cuMemcpyDtoH", 6000, THREAD, 2, NULL}, /* the twin is newer than the version asked for */
    {"cuInit", -1, 0, 0, "cuInit"},
    {"cuMemAlloc", -1, THREAD, 0, "cuMemAlloc_v2"}, /* no twin: the only one there is */
    {"cuGLGetDevices", 6050, 0, 0, "cuGLGetDevices_v2"},
    {"cuCtxCreate", 2000, 0, 0, "cuCtxCreate"},
    {"cuCtxCreate", 3020, 0, 0, "cuCtxCreate_v2"},
    {"cuCtxCreate", 11040, 0, 0, "cuCtxCreate_v3"},
    {"cuCtxCreate", 12050, 0, 0, "cuCtxCreate_v4"},
    {"cuCtxGetDevice", 12090, 0, 0, "cuCtxGetDevice"},
    {"cuCtxGetDevice", 13000, 0, 0, "cuCtxGetDevice_v2"}, /* another ABI under the same name */
    {"cuGraphInstantiate", 10000, 0, 0, "cuGraphInstantiate"},
    {"cuGraphInstantiate", 11000, 0, 0, "cuGraphInstantiate_v2"},
    {"cuGraphInstantiate", 13000, 0, 0, "cuGraphInstantiate_v2"}, /* never WithFlags */
    {"cuGraphAddKernelNode", 10000, 0, 0, "cuGraphAddKernelNode"},
    {"cuGraphAddKernelNode", 12000, 0, 0, "cuGraphAddKernelNode_v2"},
    {"cuGraphAddNode", 12010, 0, 2, NULL},
    {"cuGraphAddNode", 12020, 0, 0, "cuGraphAddNode"},
    {"cuGraphAddNode", 12030, 0, 0, "cuGraphAddNode_v2"},
    {"cuIpcOpenMemHandle", 4010, 0, 0, "cuIpcOpenMemHandle"},
    {"cuIpcOpenMemHandle", 11000, 0, 0, "cuIpcOpenMemHandle_v2"},
    {"cuMemCreate", 10010, 0, 2, NULL},
    {"cuMemCreate", 10020, 0, 0, "cuMemCreate"},
    {"cuMemPrefetchAsync", 8000, 0, 0, "cuMemPrefetchAsync"},
    {"cuMemPrefetchAsync", 8000, THREAD, 0, "cuMemPrefetchAsync_ptsz"},
    {"cuMemPrefetchAsync", 12020, THREAD, 0, "cuMemPrefetchAsync_v2_ptsz"},
    {"cuLaunchKernel", 4000, 0, 0, "cuLaunchKernel"},
    {"cuLaunchKernel", 7000, THREAD, 0, "cuLaunchKernel_ptsz"},
    {"cuLaunchKernel", 7000, LEGACY, 0, "cuLaunchKernel"},
    {"cuLaunchKernelEx", 11050, 0, 2, NULL},
    {"cuLaunchKernelEx", 11060, THREAD, 0, "cuLaunchKernelEx_ptsz"},
    {"cuMemAllocAsync", 11020, THREAD, 0, "cuMemAllocAsync_ptsz"},
    {"cuMulticastBindMem", 12010, 0, 0, "cuMulticastBindMem"},
    {"cuGreenCtxCreate", 12040, 0, 0, "cuGreenCtxCreate"},
    {"cuGetProcAddress", 11030, 0, 0, "cuGetProcAddress"},
    {"cuGetProcAddress", 12000, 0, 0, "cuGetProcAddress_v2"},
    {"cuMemAlloc_v2", 12000, 0, 1, NULL}, /* suffixed names are unknown */
    {"cuLaunchKernel_ptsz", 12000, 0, 1, NULL},
    {"cuNoSuchThing", 12000, 0, 1, NULL},
    {"", 0, 0, 1, NULL},
    {"", 12000, 0, 1, NULL},
};

static void one(const struct row *row)
{
    void *untouched = &untouched, *pointer = untouched;
    CUdriverProcAddressQueryResult status = 77;
    void *want = row->symbol ? dlsym(RTLD_DEFAULT, row->symbol) : NULL;
    if (row->symbol && !want) {
        fprintf(stderr, "%s is not exported\n", row->symbol);
        exit(1);
    }
    OK(cuGetProcAddress_v2(row->name, &pointer, row->version, row->flags, &status));
    if (pointer != want || (int)status != row->status) {
        fprintf(stderr, "%s at %d, flags %u: status %d, %p; not %d, %p\n", row->name, row->version, row->flags, (int)status, pointer, row->status, want);
        exit(1);
    }
    pointer = untouched;
    OK(cuGetProcAddress_v2(row->name, &pointer, row->version, row->flags, NULL));
    CHECK(pointer == want);
    pointer = untouched;
    SAME(cuGetProcAddress(row->name, &pointer, row->version, row->flags), row->status ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS);
    CHECK(pointer == (want ? want : untouched));
}

static void bad_questions(void)
{
    void *untouched = &untouched, *pointer = untouched;
    CUdriverProcAddressQueryResult status;
    SAME(cuGetProcAddress_v2("cuInit", &pointer, 12000, 4, &status), CUDA_ERROR_INVALID_VALUE);
    CHECK(pointer == untouched);
    SAME(cuGetProcAddress_v2(NULL, &pointer, 12000, 0, &status), CUDA_ERROR_INVALID_VALUE);
    SAME(cuGetProcAddress("cuInit", &pointer, 12000, 4), CUDA_ERROR_INVALID_VALUE);
    CHECK(pointer == untouched);
}

/* A fault takes a symbol away, as an older driver would not have it. */
static void missing_symbol(void)
{
    struct sim_machine *machine = new_machine("lookup", 1, SIM_CLOCK_REAL, 0);
    struct sim_fault fault = {.action = SIM_FAULT_MISSING, .gpu = -1, .call = "cuLaunchKernelEx*"};
    uint32_t id;
    void *pointer;
    CUdriverProcAddressQueryResult status;
    OK(cuInit(0));
    OK(sim_fault_add(machine, &fault, &id));
    OK(cuGetProcAddress_v2("cuLaunchKernelEx", &pointer, 12000, 0, &status));
    SAME(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(sim_fault_clear(machine, id));
    OK(cuGetProcAddress_v2("cuLaunchKernelEx", &pointer, 12000, 0, &status));
    SAME(status, CU_GET_PROC_ADDRESS_SUCCESS);
    unlink(machine_path);
}

/* A stub is there, can be found, and says that it does nothing. */
static void stubs(void)
{
    union { void *object; int (*function)(void); } stub; /* ISO C has no cast between the two */
    OK(cuGetProcAddress("cuGraphicsMapResources", &stub.object, 12000, 0));
    SAME(stub.function(), CUDA_ERROR_NOT_SUPPORTED);
    static const CUuuid any = {{1}};
    const void *table;
    SAME(cuGetExportTable(&table, &any), CUDA_ERROR_INVALID_VALUE);
}

int main(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        one(&rows[i]); /* before cuInit: it works then too */
    bad_questions();
    stubs();
    missing_symbol();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        one(&rows[i]);
    return 0;
}
