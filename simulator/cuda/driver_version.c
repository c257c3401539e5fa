/* Versions, error names, private tables, and what happens where there is nothing. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRITTEN_FOR 13000u
#define SIM_STUBS 512u /* more than there are stubs */

uint32_t sim_newest_version(void);
int sim_symbol_missing(const char *symbol);
int sim_stub(const char *symbol);
int sim_look_up(const char *name, int version, uint64_t flags, void **address); /* lookup.c */

int sim_symbol_missing(const char *symbol)
{
    struct sim_fault_hit hit;
    struct sim_machine *machine = sim_driver.machine; /* NULL before cuInit: then there are no faults */
    return machine && sim_fault_check(machine, symbol, -1, &hit) == SIM_FAULT_MISSING;
}

/* SIM_LOG=1 says once for each stub on stderr that it was called. */
static void tell_once(const char *symbol)
{
    static struct { pthread_mutex_t lock; const char *told[SIM_STUBS]; } log = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const char *wish = secure_getenv("SIM_LOG");
    if (!wish || strcmp(wish, "1") != 0)
        return;
    pthread_mutex_lock(&log.lock);
    size_t at = 0;
    while (at < SIM_STUBS && log.told[at] && log.told[at] != symbol) /* the names are constants: one address each */
        at++;
    if (at < SIM_STUBS && !log.told[at]) {
        log.told[at] = symbol;
        fprintf(stderr, "libcuda (simulated): %s is not modelled and answers CUDA_ERROR_NOT_SUPPORTED\n", symbol);
    }
    pthread_mutex_unlock(&log.lock);
}

int sim_stub(const char *symbol)
{
    int saved = errno;
    int result = CUDA_ERROR_NOT_SUPPORTED;
    struct sim_fault_hit hit = {0};
    if (sim_driver.machine) {
        if (sim_fault_check(sim_driver.machine, symbol, -1, &hit) == SIM_FAULT_RETURN)
            result = (int)hit.value; /* the code that the fault asks for */
        sim_trace(sim_driver.machine, symbol, result);
    }
    tell_once(symbol);
    errno = saved;
    return result;
}

/* The machine's CUDA version; with no machine the one this driver was written for. Before cuInit the machine is
 * looked at once and let go: both questions that come here are allowed then. */
uint32_t sim_newest_version(void)
{
    static uint32_t seen;
    const struct sim_machine *machine = sim_driver.machine;
    if (machine)
        return machine->system.cuda_version;
    uint32_t version = __atomic_load_n(&seen, __ATOMIC_RELAXED); /* relaxed: one word, the same from whoever looks */
    struct sim_machine *peek;
    if (version == 0 && sim_machine_attach_environment(&peek) == SIM_OK) {
        version = peek->system.cuda_version;
        (void)sim_fits_driver(peek); /* noted: what it says is cuInit's to judge */
        sim_machine_detach(peek);
        __atomic_store_n(&seen, version, __ATOMIC_RELAXED);
    }
    return version ? version : WRITTEN_FOR;
}

/* Works before cuInit, as the real one does. */
SIM_EXPORTED CUresult CUDAAPI cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_fault_hit hit = {0};
    uint64_t given = sim_newest_version();
    if (sim_driver.machine) {
        if (sim_fault_check(sim_driver.machine, __func__, -1, &hit) == SIM_FAULT_RETURN)
            return (CUresult)hit.value; /* the code that the fault asks for */
        sim_thread()->fault = hit;
        given = sim_faulty(given);
    }
    *version = (int)given; /* five digits, or a fault's */
    return CUDA_SUCCESS;
}

/* Tables private to the vendor's own libraries: none of them is imitated. A test of a program with an old runtime links
 * a definition of sim_private_table into a driver of its own; without one the name is NULL here, and stays so. */
SIM_EXPORTED CUresult CUDAAPI cuGetExportTable(const void **table, const CUuuid *id)
{
    const void *found = sim_private_table && table && id ? sim_private_table(id) : NULL;
    if (!found)
        return CUDA_ERROR_INVALID_VALUE;
    *table = found;
    return CUDA_SUCCESS;
}

static const struct { int code; const char *name, *text; } errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {211, "CUDA_ERROR_NOT_MAPPED", "resource not mapped"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
    {909, "CUDA_ERROR_TIMEOUT", "wait operation timed out"},
    {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"},
    {911, "CUDA_ERROR_EXTERNAL_DEVICE", "an async error has occurred in external entity outside of CUDA"},
    {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "a kernel launch error has occurred due to cluster misconfiguration"},
    {914, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "the provided resource configuration is invalid"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int find_error(CUresult code)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == (int)code) /* enumerators are ints */
            return (int)i;               /* a few dozen */
    return -1;
}

SIM_EXPORTED CUresult CUDAAPI cuGetErrorName(CUresult error, const char **text)
{
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    int at = find_error(error);
    *text = at < 0 ? NULL : errors[at].name;
    return at < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text)
{
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    int at = find_error(error);
    *text = at < 0 ? NULL : errors[at].text;
    return at < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* ---- cuGetProcAddress: what real drivers were measured to answer; see tests/test_lookup.c ---- */

#define FLAGS_KNOWN ((cuuint64_t)(CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))

CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags);
SIM_EXPORTED CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    void *address;
    if (!symbol || !pfn || (flags & ~FLAGS_KNOWN))
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_look_up(symbol, version, flags, &address) != CU_GET_PROC_ADDRESS_SUCCESS)
        return CUDA_ERROR_NOT_FOUND; /* and *pfn stays as it was */
    *pfn = address;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    void *address = NULL;
    if (!symbol || !pfn || (flags & ~FLAGS_KNOWN)) /* the real ones crash on NULL */
        return CUDA_ERROR_INVALID_VALUE;
    int found = sim_look_up(symbol, version, flags, &address);
    *pfn = address; /* NULL where there is none, with and without a status */
    if (status)
        *status = (CUdriverProcAddressQueryResult)found; /* lookup.c has the same three values */
    return CUDA_SUCCESS;
}

/* What the public header makes of the name in a program built for per-thread default streams. */
CUresult CUDAAPI cuGetProcAddress_v2_ptsz(const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status);
SIM_EXPORTED CUresult CUDAAPI cuGetProcAddress_v2_ptsz(const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    return cuGetProcAddress_v2(symbol, pfn, version, flags ? flags : CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, status);
}
