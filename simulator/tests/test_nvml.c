/* test: sources=simulator/nvml/?*.c,simulator/core/?*.c include=simulator/include,simulator/core,simulator/nvml
   variants=plain,address,thread */
/* The library's own state under many threads: initialisation that comes and goes, readings, event sets that
   are waited on and freed, faults that come and go. The sanitizers are the judges, and the counts. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library.h"

nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlShutdown(void);
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v2_t *out);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out);
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out);
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set);
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned timeout_ms);
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, uint64_t types, nvmlEventSet_t set);

#define CHECK(condition)                                                          \
    do {                                                                          \
        if (!(condition)) {                                                       \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

enum { ROUNDS = 200, GPUS = 2, XID_EVENT = 8, XIDS = 50 };
static struct sim_machine *machine;
static atomic_bool ending, all_seen;

static void make_machine(const char *path)
{
    static struct sim_description description; /* too large for a stack */
    sim_description_defaults(&description);
    description.gpu_count = GPUS;
    for (unsigned at = 0; at < GPUS; at++) {
        struct sim_gpu_info *gpu = &description.gpus[at];
        snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-00000000-0000-0000-0000-%012x", at);
        strcpy(gpu->name, "Test GPU");
        gpu->sm_count = 10;
        gpu->memory_total_bytes = UINT64_C(1) << 30;
    }
    CHECK(sim_machine_create(path, &description) == SIM_OK);
    CHECK(sim_machine_attach(path, &machine) == SIM_OK);
    CHECK(setenv("SIM_MACHINE", path, 1) == 0);
}

/* A client of its own: comes, reads, goes. In between the library may be left by all. */
static void *come_and_go(void *unused)
{
    (void)unused;
    for (int round = 0; round < ROUNDS; round++) {
        nvmlDevice_t device = NULL;
        nvmlMemory_v2_t memory = {.version = NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2)};
        nvmlUtilization_t load;
        unsigned count = 0;
        CHECK(nvmlInit_v2() == NVML_SUCCESS);
        CHECK(nvmlDeviceGetCount_v2(&count) == NVML_SUCCESS && count == GPUS);
        CHECK(nvmlDeviceGetHandleByIndex_v2((unsigned)round % GPUS, &device) == NVML_SUCCESS); /* not negative */
        CHECK(nvmlDeviceGetMemoryInfo_v2(device, &memory) == NVML_SUCCESS);
        CHECK(memory.total == UINT64_C(1) << 30 && memory.free + memory.used + memory.reserved == memory.total);
        const nvmlReturn_t code = nvmlDeviceGetUtilizationRates(device, &load);
        CHECK(code == NVML_SUCCESS || code == NVML_ERROR_TIMEOUT); /* the fault of add_and_clear */
        count = 0;
        CHECK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL) == NVML_SUCCESS && count == 0);
        CHECK(nvmlShutdown() == NVML_SUCCESS);
    }
    return NULL;
}

static void *add_and_clear(void *unused)
{
    (void)unused;
    while (!atomic_load(&ending)) {
        struct sim_fault fault = {.action = SIM_FAULT_RETURN, .gpu = -1, .value = NVML_ERROR_TIMEOUT, .call = "nvmlDeviceGetUtilizationRates"};
        uint32_t id = 0;
        CHECK(sim_fault_add(machine, &fault, &id) == SIM_OK);
        CHECK(sim_fault_clear(machine, id) == SIM_OK);
    }
    return NULL;
}

/* Sees every Xid once and in order; then the set is freed while it waits on it, or just before. */
static void *watch(void *argument)
{
    nvmlEventSet_t set = argument;
    nvmlEventData_t event;
    for (uint64_t expected = 1; expected <= XIDS; expected++) {
        nvmlReturn_t code = nvmlEventSetWait_v2(set, &event, 20000);
        CHECK(code == NVML_SUCCESS && event.type == XID_EVENT && event.data == expected);
    }
    atomic_store(&all_seen, true);
    CHECK(nvmlEventSetWait_v2(set, &event, 20000) == NVML_ERROR_INVALID_ARGUMENT); /* freed meanwhile */
    return NULL;
}

static pthread_t start(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, argument) == 0);
    return thread;
}

static void events_reach_their_set(void)
{
    nvmlEventSet_t set = NULL;
    nvmlDevice_t device = NULL;
    CHECK(nvmlInit_v2() == NVML_SUCCESS);
    CHECK(nvmlEventSetCreate(&set) == NVML_SUCCESS);
    CHECK(nvmlDeviceGetHandleByIndex_v2(1, &device) == NVML_SUCCESS);
    CHECK(nvmlDeviceRegisterEvents(device, XID_EVENT, set) == NVML_SUCCESS);
    CHECK(nvmlDeviceRegisterEvents(device, UINT64_C(1) << 40, set) == NVML_ERROR_NOT_SUPPORTED);
    pthread_t watcher = start(watch, set);
    for (uint64_t xid = 1; xid <= XIDS; xid++) {
        sim_notice_post(machine, 0, SIM_NOTICE_XID, xid); /* of a GPU that was not registered: not told */
        sim_notice_post(machine, 1, SIM_NOTICE_XID, xid);
    }
    while (!atomic_load(&all_seen))
        sched_yield(); /* the watcher gives up by itself after 20 s */
    CHECK(nvmlEventSetFree(set) == NVML_SUCCESS);
    CHECK(pthread_join(watcher, NULL) == 0);
    CHECK(nvmlEventSetFree(set) == NVML_ERROR_INVALID_ARGUMENT);
    CHECK(nvmlShutdown() == NVML_SUCCESS);
}

int main(void)
{
    char path[] = "machine-XXXXXX";
    CHECK(mkdtemp(path) != NULL);
    char file[64];
    snprintf(file, sizeof file, "%s/machine", path);
    make_machine(file);
    unsigned count = 0;
    CHECK(nvmlDeviceGetCount_v2(&count) == NVML_ERROR_UNINITIALIZED);

    pthread_t disturber = start(add_and_clear, NULL);
    pthread_t clients[4];
    for (int at = 0; at < 4; at++)
        clients[at] = start(come_and_go, NULL);
    for (int at = 0; at < 4; at++)
        CHECK(pthread_join(clients[at], NULL) == 0);
    atomic_store(&ending, true);
    CHECK(pthread_join(disturber, NULL) == 0);

    events_reach_their_set();
    CHECK(nvmlDeviceGetCount_v2(&count) == NVML_ERROR_UNINITIALIZED);
    static char breaches[4096];
    CHECK(sim_machine_check(machine, breaches, sizeof breaches) == 0);
    sim_machine_detach(machine);
    return 0;
}
