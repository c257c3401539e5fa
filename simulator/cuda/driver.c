/* Initialisation, the way into every call, and what a fork means. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

struct driver sim_driver = {.lock = PTHREAD_MUTEX_INITIALIZER, .making = PTHREAD_MUTEX_INITIALIZER};
static _Thread_local struct thread_state thread;
static int fork_handlers_set;

struct thread_state *sim_thread(void)
{
    if (__builtin_expect(thread.epoch != sim_driver.epoch, 0)) { /* the first call, or the first one after a fork */
        memset(&thread, 0, sizeof thread);
        thread.epoch = sim_driver.epoch;
    }
    return &thread;
}

void sim_lock_driver(void) { pthread_mutex_lock(&sim_driver.lock); }
void sim_unlock_driver(void) { pthread_mutex_unlock(&sim_driver.lock); }

CUresult sim_result(int status)
{
    switch (status) {
    case SIM_OK: return CUDA_SUCCESS;
    case SIM_NO_MEMORY: return CUDA_ERROR_OUT_OF_MEMORY;
    case SIM_TABLE_FULL: return CUDA_ERROR_OUT_OF_MEMORY;
    case SIM_GPU_GONE: return CUDA_ERROR_LAUNCH_FAILED;
    default: return CUDA_ERROR_UNKNOWN;
    }
}

/* Both locks are held over a fork, so that the child finds nothing half done. */
static void hold_for_fork(void)
{
    pthread_mutex_lock(&sim_driver.making);
    sim_lock_driver();
}

static void release_after_fork(void)
{
    sim_unlock_driver();
    pthread_mutex_unlock(&sim_driver.making);
}

/* The child starts as a process that never called cuInit; the parent's objects stay the parent's. */
static void forget_in_child(void)
{
    struct sim_machine *old = sim_driver.machine;
    uint32_t epoch = sim_driver.epoch + 1;
    memset(&sim_driver, 0, offsetof(struct driver, lock)); /* the locks come last in it */
    sim_driver.epoch = epoch;
    if (old)
        sim_machine_detach(old);
    sim_host_forget();
    release_after_fork();
}

/* A library that was in use before the driver's version changed no longer fits the driver. The first look at the machine says what it fits. */
int sim_fits_driver(const struct sim_machine *machine)
{
    static uint32_t seen_plus_one;
    uint32_t now = __atomic_load_n(&machine->driver_changes, __ATOMIC_ACQUIRE) + 1, none = 0; /* acquire: with it comes the new version */
    /* relaxed: one word, and who comes second sees either nothing or what the first saw */
    return __atomic_compare_exchange_n(&seen_plus_one, &none, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) || none == now;
}

SIM_EXPORTED CUresult CUDAAPI cuInit(unsigned int flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    sim_lock_driver();
    struct driver *driver = &sim_driver;
    if (!driver->ready) {
        if (!driver->machine && sim_machine_attach_environment(&driver->machine) != SIM_OK)
            result = CUDA_ERROR_NO_DEVICE;
        struct sim_fault_hit hit = {0};
        if (result == CUDA_SUCCESS && sim_fault_check(driver->machine, __func__, -1, &hit) == SIM_FAULT_RETURN)
            result = (CUresult)hit.value; /* the code that the fault asks for */
        if (result == CUDA_SUCCESS && !sim_fits_driver(driver->machine))
            result = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
        if (result == CUDA_SUCCESS) {
            sim_choose_devices(driver);
            if (driver->device_count == 0)
                result = CUDA_ERROR_NO_DEVICE;
        }
        if (result == CUDA_SUCCESS && sim_process_register(driver->machine, &driver->process) != SIM_OK)
            result = CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS && driver->on_instance &&
            sim_process_use_instance(driver->machine, driver->process, driver->instance.gpu, driver->instance.compute) != SIM_OK) {
            sim_process_unregister(driver->machine, driver->process); /* it was destroyed meanwhile */
            result = CUDA_ERROR_NO_DEVICE;
        }
        if (result == CUDA_SUCCESS && !driver->on_instance && (result = sim_mps_join()) != CUDA_SUCCESS)
            sim_process_unregister(driver->machine, driver->process);
        if (result == CUDA_SUCCESS) {
            if (!fork_handlers_set) {
                fork_handlers_set = 1;
                pthread_atfork(hold_for_fork, release_after_fork, forget_in_child);
            }
            driver->next_id = 1;
            __atomic_store_n(&driver->ready, 1, __ATOMIC_RELEASE); /* everything is set up before a call may see it */
            sim_trace(driver->machine, __func__, 0);
        }
    }
    sim_unlock_driver();
    return result;
}

static CUresult check_fault(const char *call, int32_t gpu)
{
    /* relaxed: only says whether to look closer */
    if (__builtin_expect(__atomic_load_n(&sim_driver.machine->processes[sim_driver.process].checkpoint_state, __ATOMIC_RELAXED), 0))
        sim_checkpoint_wait();
    struct sim_fault_hit hit = {0};
    CUresult result = CUDA_SUCCESS;
    struct thread_state *thread_state = sim_thread();
    if (sim_fault_check(sim_driver.machine, call, gpu, &hit) == SIM_FAULT_RETURN)
        result = (CUresult)hit.value; /* the code that the fault asks for */
    if (__builtin_expect(hit.action | thread_state->fault.action, 0))
        thread_state->fault = hit;
    sim_trace(sim_driver.machine, call, result);
    return result;
}

uint64_t sim_faulty(uint64_t fresh)
{
    const struct sim_fault_hit *hit = &sim_thread()->fault;
    switch (hit->action) {
    case SIM_FAULT_ZERO: return 0;
    case SIM_FAULT_VALUE: return (uint64_t)hit->value; /* the bits as they were given */
    case SIM_FAULT_SENTINEL: return INT64_MAX;
    case SIM_FAULT_GARBAGE: return UINT64_C(0xdeadbeefdeadbeef);
    case SIM_FAULT_STALE: return (uint64_t)sim_fault_stale(sim_driver.machine, hit->id, (int64_t)fresh); /* kept as bits */
    default: return fresh;
    }
}

static int ready(void) { return __atomic_load_n(&sim_driver.ready, __ATOMIC_ACQUIRE) != 0; /* pairs with cuInit */ }

CUresult sim_enter(const char *call)
{
    if (__builtin_expect(!ready(), 0))
        return CUDA_ERROR_NOT_INITIALIZED;
    CUcontext context = sim_current_context();
    return check_fault(call, context && context->kind == HANDLE_CONTEXT ? (int32_t)context->gpu : -1);
}

CUresult sim_enter_context(const char *call, CUcontext *context)
{
    if (__builtin_expect(!ready(), 0))
        return CUDA_ERROR_NOT_INITIALIZED;
    *context = sim_current_context();
    if (!*context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if ((*context)->kind != HANDLE_CONTEXT)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return check_fault(call, (int32_t)(*context)->gpu); /* below SIM_MAX_GPUS */
}

CUresult sim_enter_device(const char *call, CUdevice device)
{
    if (__builtin_expect(!ready(), 0))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (device < 0 || (uint32_t)device >= sim_driver.device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    return check_fault(call, (int32_t)sim_driver.gpu_of[device]); /* below SIM_MAX_GPUS */
}
