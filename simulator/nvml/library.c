/* The library's own state: initialisation count, the mapped machine, the rows behind the handles. */
#include "library.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A handle is the address of one of these; the row in the machine is its place in the array. Static, so
 * that a handle kept over a shutdown is recognised and not followed into freed memory. */
struct nvmlDevice_st {
    unsigned char place;
};
static struct nvmlDevice_st device_rows[SIM_MAX_GPUS];
static struct nvmlDevice_st instance_rows[SIM_MAX_GPUS][SIM_MAX_INSTANCES]; /* of compute instances, likewise */

static struct {
    pthread_mutex_t lock;
    unsigned initialised; /* nvmlInit less nvmlShutdown */
    unsigned calls;       /* functions running now: the mapping stays until they have left */
    struct sim_machine *machine;
    uint64_t fits_origin;     /* the machine, by its beginning, and its count of driver changes when this */
    uint32_t fits_driver;     /* library first met it: another count, and library and driver no longer fit */
    unsigned gpu_count;
    uint32_t row_at[SIM_MAX_GPUS];   /* by index */
    int32_t index_of[SIM_MAX_GPUS];  /* by row; -1: not enumerated */
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- calls ---- */

nvmlReturn_t call_serve_fault(struct nvml_call *call)
{
    switch (sim_fault_check(call->machine, call->name, call->gpu, &call->fault)) {
    case SIM_FAULT_RETURN:
        return call_end(call, (nvmlReturn_t)call->fault.value); /* narrowing: NVML codes are small */
    case SIM_FAULT_MISSING: /* what a program sees that looks the symbol up in an older library */
        return call_end(call, NVML_ERROR_FUNCTION_NOT_FOUND);
    default:
        return call_end(call, NVML_SUCCESS);
    }
}

static bool driver_fits(const struct sim_machine *machine)
{
    return __atomic_load_n(&machine->driver_changes, __ATOMIC_ACQUIRE) == library.fits_driver; /* pairs with the change */
}

nvmlReturn_t call_enter_lookup(struct nvml_call *call)
{
    pthread_mutex_lock(&library.lock);
    call->entered = library.initialised != 0;
    if (call->entered) {
        library.calls++;
        call->machine = library.machine;
    }
    pthread_mutex_unlock(&library.lock);
    if (!call->entered)
        return call_end(call, NVML_ERROR_UNINITIALIZED);
    return call_end(call, driver_fits(call->machine) ? NVML_SUCCESS : NVML_ERROR_LIB_RM_VERSION_MISMATCH);
}

nvmlReturn_t call_enter(struct nvml_call *call)
{
    if (call_enter_lookup(call) != NVML_SUCCESS)
        return call->result;
    return call_serve_fault(call);
}

static nvmlReturn_t enter_row(struct nvml_call *call)
{
    if (call_serve_fault(call) != NVML_SUCCESS)
        return call->result;
    const struct sim_gpu *gpu = &call->machine->gpu[call->gpu];
    sim_gpu_advance(call->machine, (uint32_t)call->gpu); /* a timed loss may be due; not negative: checked above */
    /* relaxed: either answer is right for a GPU that is being lost now */
    if (__atomic_load_n(&gpu->lost, __ATOMIC_RELAXED) != 0 || __atomic_load_n(&gpu->vanished, __ATOMIC_RELAXED) != 0)
        return call_end(call, NVML_ERROR_GPU_IS_LOST);
    return NVML_SUCCESS;
}

nvmlReturn_t call_enter_device(struct nvml_call *call, nvmlDevice_t device)
{
    uint32_t parent = 0;
    if (call_enter_lookup(call) != NVML_SUCCESS)
        return call->result;
    call->gpu = handle_row(device);
    if (call->gpu >= 0)
        return enter_row(call);
    return call_end(call, handle_instance(device, &parent) != SIM_NONE ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT);
}

nvmlReturn_t call_enter_instance(struct nvml_call *call, nvmlDevice_t device, struct sim_mig_device *instance)
{
    uint32_t parent = 0;
    *instance = (struct sim_mig_device){.compute = SIM_NONE};
    if (call_enter_lookup(call) != NVML_SUCCESS)
        return call->result;
    call->compute = handle_instance(device, &parent);
    call->gpu = call->compute == SIM_NONE ? handle_row(device) : (int32_t)parent; /* at most 15 */
    if (call->gpu < 0)
        return call_end(call, NVML_ERROR_INVALID_ARGUMENT);
    if (enter_row(call) != NVML_SUCCESS || call->compute == SIM_NONE)
        return call->result;
    if (sim_mig_device(call->machine, parent, call->compute, instance) != SIM_OK) /* destroyed since */
        return call_end(call, NVML_ERROR_INVALID_ARGUMENT);
    return NVML_SUCCESS;
}

/* With the lock held: lets go of the machine once nobody uses it. */
static struct sim_machine *take_unused_machine(void)
{
    struct sim_machine *unused = NULL;
    if (library.initialised == 0 && library.calls == 0) {
        unused = library.machine;
        library.machine = NULL;
    }
    return unused;
}

void call_leave(struct nvml_call *call)
{
    if (!call->entered)
        return;
    sim_trace(call->machine, call->name, call->result);
    pthread_mutex_lock(&library.lock);
    library.calls--;
    struct sim_machine *unused = take_unused_machine();
    pthread_mutex_unlock(&library.lock);
    if (unused != NULL)
        sim_machine_detach(unused);
}

nvmlReturn_t call_read(struct nvml_call *call, struct sim_gpu_reading *reading)
{
    if (sim_read_gpu(call->machine, (uint32_t)call->gpu, reading) != SIM_OK) /* row was checked on entry */
        return call_end(call, NVML_ERROR_GPU_IS_LOST);
    return NVML_SUCCESS;
}

/* ---- start and end ---- */

nvmlReturn_t call_enter_anytime(struct nvml_call *call, struct sim_machine **own)
{
    *own = NULL;
    if (call_enter(call) != NVML_ERROR_UNINITIALIZED)
        return call->result;
    if (sim_machine_attach_environment(own) != SIM_OK)
        return call_end(call, NVML_ERROR_DRIVER_NOT_LOADED);
    call->machine = *own;
    return call_end(call, NVML_SUCCESS);
}

static void enumerate(void)
{
    library.gpu_count = sim_enumerate(library.machine, library.row_at);
    for (uint32_t row = 0; row < SIM_MAX_GPUS; row++)
        library.index_of[row] = -1;
    for (uint32_t index = 0; index < library.gpu_count; index++)
        library.index_of[library.row_at[index]] = (int32_t)index; /* at most 15 */
}

static nvmlReturn_t initialise(const char *name)
{
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&library.lock);
    if (library.initialised == 0) {
        if (library.machine != NULL) {
            /* A call of an earlier initialisation still hangs in the old mapping: that is kept, handles and
             * all, as the real library keeps its connection to the driver. */
        } else if (sim_machine_attach_environment(&library.machine) != SIM_OK) {
            library.machine = NULL;
            result = NVML_ERROR_DRIVER_NOT_LOADED;
        } else {
            enumerate();
            if (library.fits_origin != library.machine->clock_origin_ns) {
                library.fits_origin = library.machine->clock_origin_ns;
                library.fits_driver = library.machine->driver_changes;
            }
        }
    }
    if (result == NVML_SUCCESS)
        library.initialised++;
    pthread_mutex_unlock(&library.lock);
    if (result != NVML_SUCCESS)
        return result;

    struct nvml_call call = {.name = name, .gpu = -1, .compute = SIM_NONE};
    result = call_enter(&call); /* faults on initialisation */
    call_leave(&call);
    if (result != NVML_SUCCESS) {
        pthread_mutex_lock(&library.lock);
        library.initialised--;
        struct sim_machine *unused = take_unused_machine();
        pthread_mutex_unlock(&library.lock);
        if (unused != NULL)
            sim_machine_detach(unused);
    }
    return result;
}

NVML_EXPORT nvmlReturn_t nvmlInit(void)
{
    return initialise(__func__);
}

NVML_EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return initialise(__func__);
}

/* The flags change which GPUs are woken up; a simulated one is never asleep. */
NVML_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    const unsigned known = 1u | 2u | 4u; /* no GPUs is fine, do not attach, force */
    return (flags & ~known) != 0 ? NVML_ERROR_INVALID_ARGUMENT : initialise(__func__);
}

/* With more of them than initialisations there is nothing to do and no error, whatever the documentation says:
 * measured on 535 and 550. A library that no longer fits the driver can be left too. */
NVML_EXPORT nvmlReturn_t nvmlShutdown(void)
{
    CALL_FRAME(call);
    call_enter(&call);
    if (call.result == NVML_ERROR_UNINITIALIZED)
        return call_end(&call, NVML_SUCCESS);
    if (call.result != NVML_SUCCESS && call.result != NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        return call.result;
    pthread_mutex_lock(&library.lock);
    bool last = false;
    if (library.initialised > 0)
        last = --library.initialised == 0;
    pthread_mutex_unlock(&library.lock);
    if (last)
        events_forget_all();
    return call_end(&call, NVML_SUCCESS);
}

/* ---- handles ---- */

unsigned handle_count(void)
{
    return library.gpu_count;
}

nvmlDevice_t handle_of_row(uint32_t gpu)
{
    return gpu < SIM_MAX_GPUS && library.index_of[gpu] >= 0 ? &device_rows[gpu] : NULL;
}

nvmlDevice_t handle_at(unsigned index)
{
    return index < library.gpu_count ? &device_rows[library.row_at[index]] : NULL;
}

int32_t handle_row(nvmlDevice_t device)
{
    for (uint32_t row = 0; row < SIM_MAX_GPUS; row++)
        if (device == &device_rows[row])
            return library.index_of[row] < 0 ? -1 : (int32_t)row; /* at most 15 */
    return -1;
}

nvmlDevice_t handle_of_instance(uint32_t gpu, uint32_t compute)
{
    return &instance_rows[gpu][compute];
}

uint32_t handle_instance(nvmlDevice_t device, uint32_t *gpu)
{
    for (uint32_t row = 0; row < SIM_MAX_GPUS; row++)
        for (uint32_t compute = 0; library.index_of[row] >= 0 && compute < SIM_MAX_INSTANCES; compute++)
            if (device == &instance_rows[row][compute]) {
                *gpu = row;
                return compute;
            }
    return SIM_NONE;
}

unsigned handle_index(nvmlDevice_t device)
{
    return (unsigned)library.index_of[handle_row(device)]; /* not negative for a handle of ours */
}

/* ---- changes ---- */

nvmlReturn_t change_begin(struct nvml_call *call, struct sim_gpu_reading *reading)
{
    if (geteuid() != 0)
        return call_end(call, NVML_ERROR_NO_PERMISSION);
    return call_read(call, reading);
}

nvmlReturn_t change_end(struct nvml_call *call, const struct sim_gpu_info *info)
{
    const int status = sim_gpu_set_info(call->machine, (uint32_t)call->gpu, info); /* a row: checked on entry */
    return call_end(call, status == SIM_OK ? NVML_SUCCESS : NVML_ERROR_UNKNOWN);
}

nvmlReturn_t call_end_status(struct nvml_call *call, int status)
{
    switch (status) {
    case SIM_OK:
        return call_end(call, NVML_SUCCESS);
    case SIM_IN_USE:
        return call_end(call, NVML_ERROR_IN_USE);
    case SIM_NO_PLACE:
        return call_end(call, NVML_ERROR_INSUFFICIENT_RESOURCES);
    case SIM_NOT_SUPPORTED:
        return call_end(call, NVML_ERROR_NOT_SUPPORTED);
    case SIM_GPU_GONE:
        return call_end(call, NVML_ERROR_GPU_IS_LOST);
    case SIM_NOT_FOUND:
    case SIM_BAD_DESCRIPTION:
        return call_end(call, NVML_ERROR_INVALID_ARGUMENT);
    default:
        return call_end(call, NVML_ERROR_UNKNOWN);
    }
}

/* ---- values ---- */

static int64_t faulty_number(struct nvml_call *call, int64_t fresh, int64_t sentinel, int64_t garbage)
{
    switch (call->fault.action) {
    case SIM_FAULT_ZERO:
        return 0;
    case SIM_FAULT_VALUE:
        return call->fault.value;
    case SIM_FAULT_SENTINEL:
        return sentinel;
    case SIM_FAULT_STALE:
        return sim_fault_stale(call->machine, call->fault.id, fresh);
    case SIM_FAULT_GARBAGE:
        return garbage;
    default:
        return fresh;
    }
}

uint32_t call_u32(struct nvml_call *call, uint32_t fresh)
{
    return (uint32_t)faulty_number(call, fresh, UINT32_MAX, 0x5bad5bad); /* low half: a 32-bit reading */
}

uint64_t call_u64(struct nvml_call *call, uint64_t fresh)
{
    /* through the signed type and back: the bits are kept */
    return (uint64_t)faulty_number(call, (int64_t)fresh, INT64_MAX, 0x5badc0de5badc0de);
}

uint32_t call_further_u32(struct nvml_call *call, uint32_t fresh)
{
    return call->fault.action == SIM_FAULT_STALE ? fresh : call_u32(call, fresh);
}

uint64_t call_further_u64(struct nvml_call *call, uint64_t fresh)
{
    return call->fault.action == SIM_FAULT_STALE ? fresh : call_u64(call, fresh);
}

nvmlReturn_t give_u32(struct nvml_call *call, unsigned *out, uint32_t fresh)
{
    REQUIRE((*call), out != NULL);
    *out = call_u32(call, fresh);
    return call_end(call, NVML_SUCCESS);
}

nvmlReturn_t give_u64(struct nvml_call *call, uint64_t *out, uint64_t fresh)
{
    REQUIRE((*call), out != NULL);
    *out = call_u64(call, fresh);
    return call_end(call, NVML_SUCCESS);
}

const char *call_text(const struct nvml_call *call, const char *fresh)
{
    if (call->fault.action == SIM_FAULT_ZERO)
        return "";
    return call->fault.action == SIM_FAULT_GARBAGE ? "\xff\xfe\x01{\x7f\xc3" : fresh;
}

nvmlReturn_t give_text(struct nvml_call *call, char *out, unsigned room, const char *fresh)
{
    REQUIRE((*call), out != NULL);
    fresh = call_text(call, fresh);
    const size_t length = strlen(fresh);
    if (length >= room)
        return call_end(call, NVML_ERROR_INSUFFICIENT_SIZE);
    memcpy(out, fresh, length + 1);
    return call_end(call, NVML_SUCCESS);
}

struct sim_process_reading *call_processes(struct nvml_call *call, uint32_t gpu, uint32_t *count)
{
    struct sim_process_reading *processes = malloc(SIM_MAX_PROCESSES * sizeof *processes);
    if (processes == NULL) {
        call_end(call, NVML_ERROR_MEMORY);
        return NULL;
    }
    const uint32_t found = sim_read_processes(call->machine, gpu, processes, SIM_MAX_PROCESSES);
    *count = 0;
    for (uint32_t at = 0; at < found && at < SIM_MAX_PROCESSES; at++)
        if (sim_process_visible(call->machine, processes[at].pid_namespace)) {
            processes[*count] = processes[at];
            processes[*count].pid = host_pid(processes[at].pid_namespace, processes[at].pid);
            (*count)++;
        }
    return processes;
}

uint64_t call_time_us(const struct nvml_call *call, uint64_t sim_ns)
{
    return sim_wall_ns(call->machine, sim_ns) / 1000;
}

uint64_t call_time_ns(const struct nvml_call *call, uint64_t time_us)
{
    const uint64_t origin_us = sim_wall_ns(call->machine, 0) / 1000;
    if (time_us <= origin_us)
        return 0;
    const uint64_t since_us = time_us - origin_us;
    return since_us > UINT64_MAX / 1000 ? UINT64_MAX : since_us * 1000;
}

void bus_id_text(const struct nvml_call *call, char *out, size_t room, int domain_digits, const struct sim_gpu_info *info)
{
    char text[32];
    snprintf(text, sizeof text, "%0*X:%02X:%02X.0", domain_digits, info->pci_domain, info->pci_bus, info->pci_device);
    snprintf(out, room, "%s", call_text(call, text));
}

/* ---- words ---- */

NVML_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const words[] = {
        [NVML_SUCCESS] = "success",
        [NVML_ERROR_UNINITIALIZED] = "not initialised",
        [NVML_ERROR_INVALID_ARGUMENT] = "invalid argument",
        [NVML_ERROR_NOT_SUPPORTED] = "not supported",
        [NVML_ERROR_NO_PERMISSION] = "no permission",
        [NVML_ERROR_ALREADY_INITIALIZED] = "already initialised",
        [NVML_ERROR_NOT_FOUND] = "not found",
        [NVML_ERROR_INSUFFICIENT_SIZE] = "insufficient size",
        [NVML_ERROR_INSUFFICIENT_POWER] = "insufficient external power",
        [NVML_ERROR_DRIVER_NOT_LOADED] = "driver not loaded",
        [NVML_ERROR_TIMEOUT] = "timeout",
        [NVML_ERROR_IRQ_ISSUE] = "interrupt request issue",
        [NVML_ERROR_LIBRARY_NOT_FOUND] = "library not found",
        [NVML_ERROR_FUNCTION_NOT_FOUND] = "function not found",
        [NVML_ERROR_CORRUPTED_INFOROM] = "corrupted infoROM",
        [NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
        [NVML_ERROR_RESET_REQUIRED] = "GPU requires reset",
        [NVML_ERROR_OPERATING_SYSTEM] = "blocked by the operating system",
        [NVML_ERROR_LIB_RM_VERSION_MISMATCH] = "driver and library versions differ",
        [NVML_ERROR_IN_USE] = "in use by another client",
        [NVML_ERROR_MEMORY] = "insufficient memory",
        [NVML_ERROR_NO_DATA] = "no data",
        [NVML_ERROR_VGPU_ECC_NOT_SUPPORTED] = "vGPU operation needs ECC off",
        [NVML_ERROR_INSUFFICIENT_RESOURCES] = "insufficient resources",
        [NVML_ERROR_FREQ_NOT_SUPPORTED] = "frequency not supported",
        [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "argument version mismatch",
        [NVML_ERROR_DEPRECATED] = "deprecated",
        [NVML_ERROR_NOT_READY] = "not ready",
        [NVML_ERROR_GPU_NOT_FOUND] = "no GPU found",
        [NVML_ERROR_INVALID_STATE] = "invalid state",
        [NVML_ERROR_RESET_TYPE_NOT_SUPPORTED] = "reset type not supported",
    };
    if (result < 0 || (size_t)result >= sizeof words / sizeof words[0]) /* not negative: tested first */
        return "unknown error";
    return words[result];
}
