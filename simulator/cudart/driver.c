/* How the runtime finds the driver, and what it keeps for each thread. */
#define _GNU_SOURCE
#include "cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct runtime_driver driver;

struct query { const char *name; int version; cuuint64_t flags; };
#define QUERY(name, version, flags) {name, version, flags},
static const struct query of_12_9[] = {
#include "cudart-12.9.def"
};
static const struct query of_13_0[] = {
#include "cudart-13.0.def"
};
static const struct query of_13_5[] = {
#include "cudart-13.5.def"
};
#undef QUERY

/* Whose queries are made: SIM_RUNTIME says which of the recorded runtimes is to be followed; 13.0 if none. */
static const struct recorded { const char *name; const struct query *queries; size_t count; } recorded[] = {
    {"13.0", of_13_0, sizeof of_13_0 / sizeof *of_13_0}, {"12.9", of_12_9, sizeof of_12_9 / sizeof *of_12_9}, {"13.5", of_13_5, sizeof of_13_5 / sizeof *of_13_5}};
enum { RECORDED = sizeof recorded / sizeof *recorded, MOST_QUERIES = 512 };
_Static_assert(sizeof of_12_9 / sizeof *of_12_9 <= MOST_QUERIES && sizeof of_13_0 / sizeof *of_13_0 <= MOST_QUERIES && sizeof of_13_5 / sizeof *of_13_5 <= MOST_QUERIES, "room for the answers");

static pthread_once_t loaded = PTHREAD_ONCE_INIT;
static cudaError_t load_error;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `contexts` */
static CUcontext contexts[MAX_DEVICES];
static _Thread_local int device_of_thread;
static _Thread_local cudaError_t last_error;

static const struct recorded *followed(void)
{
    const char *wish = getenv("SIM_RUNTIME");
    for (size_t i = 0; wish && i < RECORDED; i++)
        if (strcmp(recorded[i].name, wish) == 0)
            return &recorded[i];
    return wish ? NULL : &recorded[0];
}

static void *answer(const struct recorded *list, void *const *answers, const char *name, int version)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->queries[i].version == version && list->queries[i].flags == 0 && strcmp(list->queries[i].name, name) == 0)
            return answers[i];
    return NULL;
}

static void load(void)
{
    static void *answers[MOST_QUERIES];
    const struct recorded *list = followed();
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void *look_up = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    load_error = CUDA_ERROR_INSUFFICIENT_DRIVER;
    if (!look_up || !list) /* or a list that nobody recorded */
        return;
    memcpy(&driver.look_up, &look_up, sizeof look_up); /* ISO C has no cast between the two kinds of pointers */
    for (size_t i = 0; i < list->count; i++)
        driver.look_up(list->queries[i].name, &answers[i], list->queries[i].version, list->queries[i].flags, NULL);
#define FILL(member, name, version, parameters) \
    { \
        void *found = answer(list, answers, name, version); \
        memcpy(&driver.member, &found, sizeof found); /* as above */ \
    }
    DRIVER_FUNCTIONS(FILL)
#undef FILL
    load_error = driver.cuInit ? (cudaError_t)driver.cuInit(0) : (cudaError_t)CUDA_ERROR_INSUFFICIENT_DRIVER;
}

cudaError_t sim_runtime_ready(void)
{
    pthread_once(&loaded, load);
    return load_error;
}

cudaError_t sim_runtime_told(cudaError_t error)
{
    if (error && error != CUDA_ERROR_NOT_READY)
        last_error = error;
    return error;
}

CUcontext sim_runtime_context(int device)
{
    CUdevice number;
    pthread_mutex_lock(&lock);
    CUcontext context = contexts[device];
    if (!context && driver.cuDeviceGet(&number, device) == CUDA_SUCCESS && driver.cuDevicePrimaryCtxRetain(&context, number) == CUDA_SUCCESS)
        contexts[device] = context;
    pthread_mutex_unlock(&lock);
    return context;
}

static cudaError_t make_current(int device)
{
    CUcontext context = sim_runtime_context(device);
    return context ? (cudaError_t)driver.cuCtxSetCurrent(context) : CUDA_ERROR_OUT_OF_MEMORY;
}

cudaError_t sim_runtime_enter(void)
{
    CUcontext current = NULL;
    cudaError_t error = sim_runtime_ready();
    if (!error)
        error = (cudaError_t)driver.cuCtxGetCurrent(&current);
    return error || current ? error : make_current(device_of_thread);
}

/* A context that the program made current by the driver's own interface counts. */
int sim_runtime_device(void)
{
    CUdevice device;
    return driver.cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : device_of_thread;
}

cudaError_t sim_runtime_use(int device)
{
    int count = 0;
    cudaError_t error = sim_runtime_ready();
    if (!error)
        error = (cudaError_t)driver.cuDeviceGetCount(&count);
    if (!error && (device < 0 || device >= count || device >= MAX_DEVICES))
        error = CUDA_ERROR_INVALID_DEVICE;
    if (!error)
        error = make_current(device);
    if (!error)
        device_of_thread = device;
    return error;
}

EXPORTED cudaError_t cudaSetDevice(int device) { return sim_runtime_told(sim_runtime_use(device)); }

EXPORTED cudaError_t cudaDeviceReset(void)
{
    cudaError_t error = sim_runtime_ready();
    if (error)
        return sim_runtime_told(error);
    int device = sim_runtime_device();
    pthread_mutex_lock(&lock);
    contexts[device] = NULL;
    pthread_mutex_unlock(&lock);
    driver.cuCtxSetCurrent(NULL);
    return sim_runtime_told((cudaError_t)driver.cuDevicePrimaryCtxReset(device));
}

EXPORTED cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = CUDA_SUCCESS;
    return error;
}
EXPORTED cudaError_t cudaPeekAtLastError(void) { return last_error; }

EXPORTED const char *cudaGetErrorName(cudaError_t error)
{
    static const struct { int code; const char *name; } names[] = {
        {0, "cudaSuccess"}, {1, "cudaErrorInvalidValue"}, {2, "cudaErrorMemoryAllocation"}, {3, "cudaErrorInitializationError"},
        {35, "cudaErrorInsufficientDriver"}, {98, "cudaErrorInvalidDeviceFunction"}, {100, "cudaErrorNoDevice"}, {101, "cudaErrorInvalidDevice"},
        {201, "cudaErrorDeviceUninitialized"}, {400, "cudaErrorInvalidResourceHandle"}, {500, "cudaErrorSymbolNotFound"}, {600, "cudaErrorNotReady"},
        {700, "cudaErrorIllegalAddress"}, {704, "cudaErrorPeerAccessAlreadyEnabled"}, {719, "cudaErrorLaunchFailure"}, {801, "cudaErrorNotSupported"},
        {900, "cudaErrorStreamCaptureUnsupported"}, {901, "cudaErrorStreamCaptureInvalidated"}, {999, "cudaErrorUnknown"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == error)
            return names[i].name;
    return "cudaErrorUnknown";
}

EXPORTED const char *cudaGetErrorString(cudaError_t error)
{
    const char *text = NULL;
    if (error == CUDA_ERROR_INSUFFICIENT_DRIVER)
        return "CUDA driver version is insufficient for CUDA runtime version";
    if (error == INVALID_DEVICE_FUNCTION)
        return "invalid device function";
    if (sim_runtime_ready() != CUDA_ERROR_INSUFFICIENT_DRIVER && driver.cuGetErrorString((CUresult)error, &text) == CUDA_SUCCESS) /* the same numbers */
        return text;
    return "unrecognized error code";
}

EXPORTED cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (!version)
        return sim_runtime_told(CUDA_ERROR_INVALID_VALUE);
    *version = RUNTIME_VERSION;
    return CUDA_SUCCESS;
}

EXPORTED cudaError_t cudaDriverGetVersion(int *version)
{
    if (!version)
        return sim_runtime_told(CUDA_ERROR_INVALID_VALUE);
    *version = 0; /* no driver: that is what the real one says */
    return sim_runtime_ready() == CUDA_ERROR_INSUFFICIENT_DRIVER ? CUDA_SUCCESS : (cudaError_t)driver.cuDriverGetVersion(version);
}

EXPORTED cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags, int *status)
{
    CUdriverProcAddressQueryResult result;
    if (sim_runtime_ready() == CUDA_ERROR_INSUFFICIENT_DRIVER)
        return sim_runtime_told(CUDA_ERROR_INSUFFICIENT_DRIVER);
    CUresult looked = driver.look_up(symbol, function, (int)version, flags, &result); /* five digits */
    if (looked == CUDA_SUCCESS && status)
        *status = (int)result;
    return sim_runtime_told((cudaError_t)looked);
}
EXPORTED cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *status) { return cudaGetDriverEntryPointByVersion(symbol, function, RUNTIME_VERSION, flags, status); }
EXPORTED cudaError_t cudaProfilerStart(void) { THROUGH(cuProfilerStart()); }
EXPORTED cudaError_t cudaProfilerStop(void) { THROUGH(cuProfilerStop()); }
