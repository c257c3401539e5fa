/* Robust, process-shared locks. A dead owner costs at most the one step it was in the middle of: what
 * it may have left half done is derived again from the rows that are written first. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <stdlib.h>

void sim_lock_init(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

void sim_locks_init(struct sim_machine *machine)
{
    sim_lock_init(&machine->table_lock);
    sim_lock_init(&machine->clock_lock);
    for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
        sim_lock_init(&machine->gpu[i].lock);
}

static void repair_table(struct sim_machine *machine)
{
    for (uint32_t i = 0; i < SIM_MAX_GROUPS; i++)
        machine->groups[i].processes = 0;
    for (uint32_t i = 0; i < machine->process_high; i++)
        if (machine->processes[i].state && machine->processes[i].group < SIM_MAX_GROUPS)
            machine->groups[machine->processes[i].group].processes++;
}

static void repair_gpu(struct sim_machine *machine, uint32_t index)
{
    struct sim_gpu *gpu = &machine->gpu[index];
    gpu->first_active = SIM_NONE;
    gpu->active_count = 0;
    for (uint32_t i = 0; i < machine->stream_high; i++) {
        struct sim_stream *stream = &machine->streams[i];
        if (!stream->state || stream->gpu != index)
            continue;
        stream->active = 0;
        uint64_t left = 0;
        for (uint64_t at = stream->head; at != stream->tail; at++)
            left += machine->rings[i][at % SIM_RING_ITEMS].work;
        stream->pushed_work = stream->done_work + left;
        if (stream->head != stream->tail)
            sim_stream_activate(machine, gpu, i);
    }
    sim_ledger_recount(machine, index);
}

static int take(pthread_mutex_t *lock)
{
    int result = pthread_mutex_lock(lock);
    if (result == 0 || result == EOWNERDEAD)
        return result;
    abort(); /* ENOTRECOVERABLE or a smashed lock: the machine file is no longer one */
}

void sim_lock_table(struct sim_machine *machine)
{
    if (take(&machine->table_lock) == EOWNERDEAD) {
        repair_table(machine);
        __atomic_fetch_add(&machine->owner_deaths, 1, __ATOMIC_RELAXED); /* relaxed: a statistic */
        pthread_mutex_consistent(&machine->table_lock);
    }
}

void sim_unlock_table(struct sim_machine *machine) { pthread_mutex_unlock(&machine->table_lock); }

void sim_lock_gpu(struct sim_machine *machine, uint32_t gpu)
{
    if (take(&machine->gpu[gpu].lock) == EOWNERDEAD) {
        repair_gpu(machine, gpu);
        __atomic_fetch_add(&machine->owner_deaths, 1, __ATOMIC_RELAXED); /* relaxed: a statistic */
        pthread_mutex_consistent(&machine->gpu[gpu].lock);
    }
}

void sim_unlock_gpu(struct sim_machine *machine, uint32_t gpu) { pthread_mutex_unlock(&machine->gpu[gpu].lock); }

/* Of the virtual clock. A dead owner leaves nothing half done that counts: time, and rows of waiters, are words. */
void sim_lock_clock(struct sim_machine *machine)
{
    if (take(&machine->clock_lock) == EOWNERDEAD) {
        __atomic_fetch_add(&machine->owner_deaths, 1, __ATOMIC_RELAXED); /* relaxed: a statistic */
        pthread_mutex_consistent(&machine->clock_lock);
    }
}

void sim_unlock_clock(struct sim_machine *machine) { pthread_mutex_unlock(&machine->clock_lock); }
