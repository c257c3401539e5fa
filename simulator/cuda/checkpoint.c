/* Checkpoints of other processes: locked, what they hold on GPUs moved to the host, brought back, unlocked.
 *
 * A process that is locked waits in its next call; see sim_checkpoint_wait. */
#define _GNU_SOURCE
#include "driver.h"

#include <time.h>

enum { STATE_RUNNING = 0, STATE_LOCKED = 1, STATE_CHECKPOINTED = 2, STATE_FAILED = 3 }; /* as the driver numbers them */
enum { ILLEGAL_STATE = 401 };                                                           /* CUresult */

void sim_checkpoint_wait(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const struct sim_process *mine = &sim_driver.machine->processes[sim_driver.process];
    while (__atomic_load_n(&mine->checkpoint_state, __ATOMIC_ACQUIRE) != STATE_RUNNING) /* what was moved is back when it says so */
        nanosleep(&pause, NULL);
}

static uint32_t row_of(int pid)
{
    const struct sim_machine *machine = sim_driver.machine;
    uint64_t namespace = machine->processes[sim_driver.process].pid_namespace;
    for (uint32_t row = 0; row < machine->process_high; row++)
        if (machine->processes[row].state && machine->processes[row].pid == pid && machine->processes[row].pid_namespace == namespace)
            return row;
    return SIM_NONE;
}

/* From one state to another; illegal where the process is in a third. */
static CUresult move(uint32_t row, uint32_t from, uint32_t to)
{
    uint32_t expected = from;
    return __atomic_compare_exchange_n(&sim_driver.machine->processes[row].checkpoint_state, &expected, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) /* one of two callers wins */
               ? CUDA_SUCCESS
               : (CUresult)ILLEGAL_STATE;
}

#define ENTER_PROCESS(pid, row) \
    ENTER(); \
    uint32_t row = row_of(pid); \
    if (row == SIM_NONE) \
        return CUDA_ERROR_INVALID_VALUE

SIM_EXPORTED CUresult CUDAAPI cuCheckpointProcessGetState(int pid, int *state)
{
    ENTER_PROCESS(pid, row);
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    *state = (int)__atomic_load_n(&sim_driver.machine->processes[row].checkpoint_state, __ATOMIC_ACQUIRE); /* 0 to 3 */
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCheckpointProcessGetRestoreThreadId(int pid, int *thread)
{
    ENTER_PROCESS(pid, row);
    if (!thread)
        return CUDA_ERROR_INVALID_VALUE;
    *thread = sim_driver.machine->processes[row].pid;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuCheckpointProcessLock(int pid, const void *arguments)
{
    ENTER_PROCESS(pid, row);
    (void)arguments; /* a time limit: nothing here takes long */
    return move(row, STATE_RUNNING, STATE_LOCKED);
}

SIM_EXPORTED CUresult CUDAAPI cuCheckpointProcessCheckpoint(int pid, const void *arguments)
{
    ENTER_PROCESS(pid, row);
    (void)arguments;
    CUresult result = move(row, STATE_LOCKED, STATE_CHECKPOINTED);
    struct sim_process *process = &sim_driver.machine->processes[row];
    for (uint32_t gpu = 0; result == CUDA_SUCCESS && gpu < sim_driver.machine->gpu_count; gpu++) {
        process->frozen_bytes[gpu] = process->gpu[gpu].bytes; /* a locked process changes nothing */
        sim_refund(sim_driver.machine, gpu, row, process->frozen_bytes[gpu]);
    }
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuCheckpointProcessRestore(int pid, const void *arguments)
{
    ENTER_PROCESS(pid, row);
    (void)arguments;
    struct sim_machine *machine = sim_driver.machine;
    struct sim_process *process = &machine->processes[row];
    if (__atomic_load_n(&process->checkpoint_state, __ATOMIC_ACQUIRE) != STATE_CHECKPOINTED)
        return (CUresult)ILLEGAL_STATE;
    for (uint32_t gpu = 0; gpu < machine->gpu_count; gpu++) {
        if (!process->frozen_bytes[gpu] || sim_charge(machine, gpu, row, process->frozen_bytes[gpu]) == SIM_OK)
            continue;
        while (gpu-- > 0) /* all or nothing */
            sim_refund(machine, gpu, row, process->frozen_bytes[gpu]);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return move(row, STATE_CHECKPOINTED, STATE_LOCKED);
}

SIM_EXPORTED CUresult CUDAAPI cuCheckpointProcessUnlock(int pid, const void *arguments)
{
    ENTER_PROCESS(pid, row);
    (void)arguments;
    return move(row, STATE_LOCKED, STATE_RUNNING);
}
