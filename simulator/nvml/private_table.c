/* The table that nvidia-smi asks for beside the public functions.
 *
 * Nothing about it is published by name; what stands here was learned from which places nvidia-smi 535 and 550
 * call with which arguments, and agrees with what NVIDIA's own open mock of NVML says of 580. Word 0 is the
 * table's size, which must be above 648. Places that are not known here answer SUCCESS and give zero to who
 * asks about a GPU: nvidia-smi probes many and gives up on an error.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

#define PLACES 256u
enum place { PLACE_MONITORING = 72, PLACE_HANDLE_BY_INDEX = 81, PLACE_COMPUTE = 213, PLACE_GRAPHICS = 214, PLACE_MPS = 215, PLACE_HOST_PCIE_GENERATION = 230 };

typedef struct {
    unsigned pid;
    uint64_t used_bytes;
    unsigned gpu_instance, compute_instance;
    uint64_t protected_bytes;
    char name[4096];
} table_process_t;
NVML_SIZE_IS(table_process_t, 4128);

/* In the words of their public kin, so that a fault set on those strikes here too. */
static nvmlReturn_t handle_by_index(unsigned index, nvmlDevice_t *out)
{
    struct nvml_call call __attribute__((cleanup(call_leave))) = {.name = "nvmlDeviceGetHandleByIndex_v2", .gpu = -1, .compute = SIM_NONE};
    if (call_enter_lookup(&call) != NVML_SUCCESS)
        return call.result;
    REQUIRE(call, out != NULL && handle_at(index) != NULL);
    call.gpu = handle_row(handle_at(index));
    if (call_serve_fault(&call) != NVML_SUCCESS)
        return call.result;
    READING(call, reading);
    if (reading.lost != 0 || reading.vanished != 0)
        return call_end(&call, NVML_ERROR_GPU_IS_LOST);
    *out = handle_at(index);
    return call_end(&call, NVML_SUCCESS);
}

/* On a GPU with MPS its clients are in the list of MPS and not in that of compute; nothing simulated draws. */
static nvmlReturn_t processes_of(enum place place, nvmlDevice_t device, unsigned *count, table_process_t *out)
{
    struct nvml_call call __attribute__((cleanup(call_leave))) = {.name = "nvmlDeviceGetComputeRunningProcesses_v3", .gpu = -1, .compute = SIM_NONE};
    struct sim_mig_device instance;
    if (call_enter_instance(&call, device, &instance) != NVML_SUCCESS)
        return call.result;
    REQUIRE(call, count != NULL && (out != NULL || *count == 0));
    const bool shared = call.machine->gpu[call.gpu].info.mps != 0; /* never changes */
    uint32_t total = 0;
    struct sim_process_reading *processes = call_processes(&call, (uint32_t)call.gpu, &total); /* a row: checked on entry */
    if (processes == NULL)
        return call.result;
    unsigned found = 0;
    for (uint32_t at = 0; at < total; at++) {
        const bool mps = shared || (processes[at].mps_client & SIM_MPS_SERVED) != 0;
        if (place == PLACE_GRAPHICS || mps != (place == PLACE_MPS) || (call.compute != SIM_NONE && processes[at].compute != call.compute))
            continue;
        if (found < *count) {
            table_process_t *entry = &out[found];
            entry->pid = (unsigned)processes[at].pid; /* positive */
            entry->used_bytes = processes[at].usage.bytes;
            entry->gpu_instance = processes[at].gpu_instance_id;
            entry->compute_instance = processes[at].compute_instance_id;
            entry->protected_bytes = 0;
            snprintf(entry->name, sizeof entry->name, "%s", processes[at].name);
        }
        found++;
    }
    free(processes);
    const bool fits = found <= *count;
    *count = found;
    return call_end(&call, fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}

static nvmlReturn_t host_generation(nvmlDevice_t device, unsigned *out)
{
    struct nvml_call call __attribute__((cleanup(call_leave))) = {.name = "nvmlDeviceGetMaxPcieLinkGeneration", .gpu = -1, .compute = SIM_NONE};
    if (call_enter_device(&call, device) != NVML_SUCCESS)
        return call.result;
    READING(call, reading);
    return give_u32(&call, out, reading.info.pcie_gen_max);
}

/* Whether the GPU can be watched at all: with a zero here `nvidia-smi dmon` refuses it. */
static nvmlReturn_t monitoring(nvmlDevice_t device, unsigned *out)
{
    struct nvml_call call __attribute__((cleanup(call_leave))) = {.name = "nvmlDeviceGetHandleByIndex_v2", .gpu = -1, .compute = SIM_NONE};
    if (call_enter_device(&call, device) != NVML_SUCCESS)
        return call.result;
    REQUIRE(call, out != NULL);
    *out = 1;
    return call_end(&call, NVML_SUCCESS);
}

/* A place whose meaning is not known: zero for who asks about a GPU, success for everybody; but where the second
 * argument is a number and no place (165: a link of POWER machines; 145: a time, from `pmon`), there is no answer. */
static nvmlReturn_t unknown(void *first, void *second)
{
    const uintptr_t lowest_address = 4096, highest_address = (uintptr_t)1 << 47;
    if (handle_row(first) < 0 || second == NULL)
        return NVML_SUCCESS;
    if ((uintptr_t)second < lowest_address || (uintptr_t)second >= highest_address)
        return NVML_ERROR_NOT_SUPPORTED;
    memset(second, 0, sizeof(unsigned));
    return NVML_SUCCESS;
}

static void *table[PLACES];
static pthread_once_t filled = PTHREAD_ONCE_INIT;

static nvmlReturn_t compute_processes(nvmlDevice_t device, unsigned *count, table_process_t *out) { return processes_of(PLACE_COMPUTE, device, count, out); }
static nvmlReturn_t graphics_processes(nvmlDevice_t device, unsigned *count, table_process_t *out) { return processes_of(PLACE_GRAPHICS, device, count, out); }
static nvmlReturn_t mps_processes(nvmlDevice_t device, unsigned *count, table_process_t *out) { return processes_of(PLACE_MPS, device, count, out); }

/* Functions as words: POSIX says that the two have one size, ISO C does not. */
#define WORD(function) ((void *)(uintptr_t)(function))

static void fill(void)
{
    table[0] = (void *)(uintptr_t)sizeof table;
    for (unsigned place = 1; place < PLACES; place++)
        table[place] = WORD(unknown);
    table[PLACE_MONITORING] = WORD(monitoring);
    table[PLACE_HANDLE_BY_INDEX] = WORD(handle_by_index);
    table[PLACE_COMPUTE] = WORD(compute_processes);
    table[PLACE_GRAPHICS] = WORD(graphics_processes);
    table[PLACE_MPS] = WORD(mps_processes);
    table[PLACE_HOST_PCIE_GENERATION] = WORD(host_generation);
}

nvmlReturn_t nvmlInternalGetExportTable(const void **out, const unsigned char *uuid);
NVML_EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **out, const unsigned char *uuid)
{
    static const unsigned char wanted[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
    static const unsigned char as_text[16] = {0x6c, 0x3e, 0xfe, 0xc4, 0x8f, 0xc9, 0x4e, 0x6c, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
    if (out == NULL || uuid == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (memcmp(uuid, wanted, sizeof wanted) != 0 && memcmp(uuid, as_text, sizeof as_text) != 0) /* either order of bytes */
        return NVML_ERROR_NOT_FOUND;
    pthread_once(&filled, fill);
    *out = table;
    return NVML_SUCCESS;
}
