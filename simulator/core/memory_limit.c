/* Limits on the device memory of control groups, as the driver keeps them by itself where the kernel has no controller
 * for it: a flat map. The nearest limited group at or above a process counts, and none above that one; what all processes
 * below it hold counts together. A group that was removed takes its limit along. */
#define _GNU_SOURCE
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NONE 0

/* The line of the unified hierarchy in /proc/PID/cgroup; "" where there is none. */
static void group_of(int32_t pid, char *path, size_t size)
{
    char name[64], text[4096];
    snprintf(name, sizeof name, "/proc/%d/cgroup", pid);
    path[0] = 0;
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    const char *line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (!line)
        return;
    line = strchr(line, '/');
    if (line)
        snprintf(path, size, "%.*s", (int)strcspn(line, "\n"), line); /* a line of a small file */
}

/* How deep a limited group lies, when it is the one of this path in the hierarchy or above it; 0: it is not. */
static size_t depth_above(const char *group, const char *own)
{
    static const char *const mounts[] = {"/sys/fs/cgroup/unified", "/sys/fs/cgroup"};
    for (size_t i = 0; i < 2; i++) {
        size_t mount = strlen(mounts[i]);
        if (strncmp(group, mounts[i], mount) != 0 || group[mount] != '/')
            continue;
        size_t length = strlen(group + mount);
        if (strncmp(group + mount, own, length) == 0 && (own[length] == 0 || own[length] == '/'))
            return length;
    }
    return 0;
}

static int is_there(const struct sim_memory_limit *limit)
{
    struct stat status;
    return limit->group[0] && stat(limit->group, &status) == 0 && (uint64_t)status.st_ino == limit->inode;
}

/* Table lock held. Which limits count for a process now. */
static void place(struct sim_machine *machine, struct sim_process *process)
{
    char own[1024];
    size_t best[SIM_MAX_GPUS] = {0};
    uint16_t rows[SIM_MAX_GPUS] = {NONE};
    group_of(process->pid, own, sizeof own);
    for (uint32_t row = 0; row < machine->memory_limit_high && own[0]; row++) {
        const struct sim_memory_limit *limit = &machine->memory_limits[row];
        size_t depth = limit->group[0] ? depth_above(limit->group, own) : 0;
        if (depth && is_there(limit))
            for (uint32_t gpu = 0; gpu < machine->gpu_count; gpu++)
                if (limit->set >> gpu & 1 && depth > best[gpu]) {
                    best[gpu] = depth;
                    rows[gpu] = (uint16_t)(row + 1); /* at most SIM_MAX_MEMORY_LIMITS */
                }
    }
    for (uint32_t gpu = 0; gpu < machine->gpu_count; gpu++)
        __atomic_store_n(&process->memory_limit[gpu], rows[gpu], __ATOMIC_RELAXED); /* read under the GPU's lock, where old or new will do */
}

void sim_memory_limit_follow(struct sim_machine *machine, uint32_t row)
{
    if (!__atomic_load_n(&machine->memory_limit_high, __ATOMIC_ACQUIRE)) /* whole rows before they count */
        return;
    sim_lock_table(machine);
    if (machine->processes[row].pid == getpid()) /* the forked child of a process has no row yet */
        place(machine, &machine->processes[row]);
    sim_unlock_table(machine);
}

/* GPU's lock held. */
static uint64_t held_below(const struct sim_machine *machine, uint32_t gpu, uint16_t limit)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < machine->process_high; i++) {
        const struct sim_process *process = &machine->processes[i];
        /* relaxed: see place() */
        if (process->state && __atomic_load_n(&process->memory_limit[gpu], __ATOMIC_RELAXED) == limit)
            bytes += process->gpu[gpu].bytes;
    }
    return bytes;
}

int sim_memory_limited(const struct sim_machine *machine, uint32_t gpu, uint32_t row, uint64_t *hard, uint64_t *held)
{
    uint16_t limit = __atomic_load_n(&machine->processes[row].memory_limit[gpu], __ATOMIC_RELAXED); /* see place() */
    if (limit == NONE)
        return 0;
    *hard = __atomic_load_n(&machine->memory_limits[limit - 1].hard_bytes[gpu], __ATOMIC_RELAXED); /* one word */
    *held = held_below(machine, gpu, limit);
    return 1;
}

/* Table lock held. The row of a group, or one that can be its; SIM_NONE when all are taken. */
static uint32_t row_of(const struct sim_machine *machine, const char *group, int make)
{
    uint32_t free_row = SIM_NONE;
    for (uint32_t row = 0; row < SIM_MAX_MEMORY_LIMITS; row++) {
        const struct sim_memory_limit *limit = &machine->memory_limits[row];
        if (strcmp(limit->group, group) == 0 && is_there(limit))
            return row;
        if (free_row == SIM_NONE && !is_there(limit))
            free_row = row;
        if (row >= machine->memory_limit_high)
            break; /* nothing behind was ever used */
    }
    return make ? free_row : SIM_NONE;
}

static void place_all(struct sim_machine *machine)
{
    for (uint32_t i = 0; i < machine->process_high; i++)
        if (machine->processes[i].state)
            place(machine, &machine->processes[i]);
}

int sim_memory_limit_set(struct sim_machine *machine, uint32_t gpu, const char *group, uint64_t soft, uint64_t hard)
{
    struct stat status;
    int result = SIM_OK;
    if (strlen(group) >= sizeof machine->memory_limits[0].group)
        return SIM_BAD_DESCRIPTION;
    sim_lock_table(machine);
    int lifted = soft == 0 && hard == UINT64_MAX;
    uint32_t row = row_of(machine, group, !lifted);
    if (stat(group, &status) != 0)
        result = SIM_NOT_FOUND;
    else if (row == SIM_NONE)
        result = lifted ? SIM_OK : SIM_TABLE_FULL;
    else {
        struct sim_memory_limit *limit = &machine->memory_limits[row];
        if (strcmp(limit->group, group) != 0 || limit->inode != (uint64_t)status.st_ino) {
            memset(limit, 0, sizeof *limit);
            snprintf(limit->group, sizeof limit->group, "%s", group);
            limit->inode = (uint64_t)status.st_ino;
        }
        limit->soft_bytes[gpu] = soft;
        __atomic_store_n(&limit->hard_bytes[gpu], hard, __ATOMIC_RELAXED); /* one word, taken as it is found */
        limit->set = lifted ? limit->set & ~(1u << gpu) : limit->set | 1u << gpu;
        if (row >= machine->memory_limit_high)
            __atomic_store_n(&machine->memory_limit_high, row + 1, __ATOMIC_RELEASE); /* after the row */
        place_all(machine);
    }
    sim_unlock_table(machine);
    return result;
}

int sim_memory_limit_get(struct sim_machine *machine, uint32_t gpu, const char *group, uint64_t *soft, uint64_t *hard, uint64_t *held)
{
    *soft = *held = 0;
    *hard = UINT64_MAX;
    if (access(group, F_OK) != 0)
        return SIM_NOT_FOUND;
    sim_lock_table(machine);
    uint32_t row = row_of(machine, group, 0);
    if (row != SIM_NONE && machine->memory_limits[row].set >> gpu & 1) {
        *soft = machine->memory_limits[row].soft_bytes[gpu];
        *hard = machine->memory_limits[row].hard_bytes[gpu];
        place_all(machine);
        sim_enter_gpu(machine, gpu);
        *held = held_below(machine, gpu, (uint16_t)(row + 1)); /* at most SIM_MAX_MEMORY_LIMITS */
        sim_unlock_gpu(machine, gpu);
    }
    sim_unlock_table(machine);
    return SIM_OK;
}
