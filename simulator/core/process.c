/* Processes: their rows, their groups, and how the dead are told from the living.
 *
 * Each registered process holds an open-file-description lock on one byte of the machine file (its row's
 * number). The kernel lets go of it when the process ends, however it ends and in whichever PID namespace.
 * A process that closed our descriptor by accident is still recognised by pid and start time.
 */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_ATTACHMENTS 32
#define REAP_PERIOD_NS UINT64_C(50000000)

struct attachment { const struct sim_machine *machine; int fd; };
static struct attachment attachments[MAX_ATTACHMENTS]; /* this process's mappings; changed under the lock below */
static pthread_mutex_t attachments_lock = PTHREAD_MUTEX_INITIALIZER;
static int fork_handler_set;

/* The child must not keep its parent's row alive through the inherited descriptor. */
static void close_in_child(void)
{
    for (int i = 0; i < MAX_ATTACHMENTS; i++)
        if (attachments[i].machine && attachments[i].fd >= 0) {
            close(attachments[i].fd);
            attachments[i].fd = -1;
        }
    pthread_mutex_init(&attachments_lock, NULL); /* another thread of the parent may have held it */
}

void sim_attachment_add(struct sim_machine *machine, int fd)
{
    pthread_mutex_lock(&attachments_lock);
    if (!fork_handler_set) {
        fork_handler_set = 1;
        pthread_atfork(NULL, NULL, close_in_child);
    }
    int place = -1;
    for (int i = MAX_ATTACHMENTS - 1; i >= 0; i--)
        if (!attachments[i].machine)
            place = i;
    if (place >= 0) {
        attachments[place].fd = fd;
        attachments[place].machine = machine;
    } else {
        close(fd); /* more mappings than any real program has: it is recognised by pid and start time */
    }
    pthread_mutex_unlock(&attachments_lock);
}

int sim_attachment_fd(const struct sim_machine *machine)
{
    for (int i = 0; i < MAX_ATTACHMENTS; i++)
        if (attachments[i].machine == machine)
            return attachments[i].fd;
    return -1;
}

int sim_attachment_remove(const struct sim_machine *machine)
{
    int fd = -1;
    pthread_mutex_lock(&attachments_lock);
    for (int i = 0; i < MAX_ATTACHMENTS; i++)
        if (attachments[i].machine == machine) {
            fd = attachments[i].fd;
            attachments[i].machine = NULL;
        }
    pthread_mutex_unlock(&attachments_lock);
    return fd;
}

static size_t read_file(const char *path, char *text, size_t size)
{
    size_t length = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t got;
        while (length < size - 1 && (got = read(fd, text + length, size - 1 - length)) > 0)
            length += (size_t)got; /* got > 0 */
        close(fd);
    }
    text[length] = 0;
    return length;
}

/* State letter and start time from /proc/PID/stat; returns 0 when there is no such process. */
static int process_stat(int32_t pid, char *state, uint64_t *start_time)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (read_file(path, text, sizeof text) == 0)
        return 0;
    const char *at = strrchr(text, ')'); /* the command may hold spaces and parentheses */
    if (!at || at[1] != ' ')
        return 0;
    at += 2;
    *state = *at;
    for (int field = 3; field < 22; field++) {
        at = strchr(at, ' ');
        if (!at)
            return 0;
        at++;
    }
    *start_time = strtoull(at, NULL, 10);
    return 1;
}

static uint64_t own_pid_namespace(void)
{
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

int sim_process_visible(const struct sim_machine *machine, uint64_t pid_namespace)
{
    return machine->system.process_visibility == SIM_VISIBLE_ALL || pid_namespace == own_pid_namespace();
}

static int row_locked(int fd, uint32_t row)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = row, .l_len = 1};
    return fd >= 0 && fcntl(fd, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

int sim_process_alive(const struct sim_machine *machine, uint32_t row)
{
    const struct sim_process *process = &machine->processes[row];
    if (row_locked(sim_attachment_fd(machine), row))
        return 1;
    if (process->pid_namespace != own_pid_namespace())
        return 0;
    char state;
    uint64_t start_time;
    return process_stat(process->pid, &state, &start_time) && start_time == process->start_time && state != 'Z' && state != 'X';
}

/* FNV-1a: any stable 64-bit hash of a name will do; 0 means "free row". */
uint64_t sim_group_key(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return hash ? hash : 1;
}

/* SIM_GROUP, else the control group, else (at the root of the hierarchy) the session. */
static void own_group_name(char *name, size_t size)
{
    const char *given = secure_getenv("SIM_GROUP");
    if (given && *given) {
        snprintf(name, size, "%s", given);
        return;
    }
    char text[1024];
    read_file("/proc/self/cgroup", text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    const char *path = strrchr(text, ':');
    if (path && strcmp(path, ":/") != 0 && path[1])
        snprintf(name, size, "cgroup:%.*s#%016llx", 32, path + 1, (unsigned long long)sim_group_key(path + 1));
    else
        snprintf(name, size, "session:%d", (int)getsid(0));
}

static uint32_t find_group(struct sim_machine *machine, uint64_t key, const char *name)
{
    uint32_t place = SIM_NONE;
    for (uint32_t i = 0; i < SIM_MAX_GROUPS; i++) {
        struct sim_group *group = &machine->groups[i];
        if (group->key == key)
            return i;
        if (!group->key) {
            place = i;
            break; /* rows are never emptied, so there is none behind */
        }
        if (!group->processes && (place == SIM_NONE || group->last_used_ns < machine->groups[place].last_used_ns))
            place = i;
    }
    if (place == SIM_NONE)
        return SIM_NONE;
    struct sim_group *group = &machine->groups[place];
    memset(group, 0, sizeof *group);
    snprintf(group->name, sizeof group->name, "%s", name);
    group->key = key;
    return place;
}

static void own_name(char *name, size_t size)
{
    read_file("/proc/self/cmdline", name, size); /* up to the first zero byte: the program, as NVML shows it */
}

static uint32_t free_row(struct sim_machine *machine)
{
    for (uint32_t i = 0; i < SIM_MAX_PROCESSES; i++)
        if (!machine->processes[i].state)
            return i;
    return SIM_NONE;
}

int sim_process_register(struct sim_machine *machine, uint32_t *out)
{
    char name[64], command[128];
    own_group_name(name, sizeof name);
    own_name(command, sizeof command);
    char state = 'R';
    uint64_t start_time = 0;
    process_stat(getpid(), &state, &start_time);
    uint64_t namespace = own_pid_namespace();
    int fd = sim_attachment_fd(machine);

    sim_lock_table(machine);
    uint32_t row = free_row(machine);
    if (row == SIM_NONE) {
        sim_unlock_table(machine);
        if (sim_machine_reap(machine) == 0)
            return SIM_TABLE_FULL;
        sim_lock_table(machine);
        row = free_row(machine);
    }
    uint32_t group = row == SIM_NONE ? SIM_NONE : find_group(machine, sim_group_key(name), name);
    if (group == SIM_NONE) {
        sim_unlock_table(machine);
        return SIM_TABLE_FULL;
    }
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = row, .l_len = 1};
    if (fd >= 0)
        fcntl(fd, F_OFD_SETLK, &range); /* refused only when another filesystem semantics applies: then pid and start time tell */
    struct sim_process *process = &machine->processes[row];
    uint32_t generation = process->generation + 1;
    memset(process, 0, sizeof *process);
    process->generation = generation;
    process->pid = getpid();
    process->start_time = start_time;
    process->pid_namespace = namespace;
    process->group = group;
    process->group_key = machine->groups[group].key;
    process->registered_ns = sim_now(machine);
    memcpy(process->name, command, sizeof process->name);
    for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
        process->compute_instance[i] = SIM_NONE;
    for (uint32_t i = 0; i < machine->gpu_count; i++) {
        machine->gpu[i].process_window_base[row] = 0;
        machine->gpu[i].process_window_sm_base[row] = 0;
        process->mps_client |= machine->gpu[i].info.mps != 0;
    }
    machine->process_high = row + 1 > machine->process_high ? row + 1 : machine->process_high;
    machine->groups[group].processes++;
    machine->groups[group].last_used_ns = process->registered_ns;
    __atomic_store_n(&process->state, 1, __ATOMIC_RELEASE); /* a whole row before it counts */
    sim_unlock_table(machine);
    *out = row;
    return SIM_OK;
}

/* Table and GPU locks held. What accounting keeps of a process that used the GPU. */
static void record_end(struct sim_machine *machine, uint32_t index, uint32_t row)
{
    struct sim_gpu *gpu = &machine->gpu[index];
    const struct sim_process *process = &machine->processes[row];
    const struct sim_gpu_usage *usage = &process->gpu[index];
    if (!gpu->info.accounting_mode || usage->peak_bytes == 0)
        return;
    gpu->accounting[gpu->accounting_next % SIM_ACCOUNTING_ITEMS] = (struct sim_accounting){
        .pid = process->pid, .started_ns = process->registered_ns, .ended_ns = gpu->now_ns, .busy_ns = usage->busy_ns,
        .peak_bytes = usage->peak_bytes, .pid_namespace = process->pid_namespace};
    gpu->accounting_next++;
}

/* Table lock held. */
static void clear_process(struct sim_machine *machine, uint32_t row)
{
    struct sim_process *process = &machine->processes[row];
    sim_shares_of_the_dead(machine, row);
    for (uint32_t g = 0; g < machine->gpu_count; g++) {
        sim_lock_gpu(machine, g);
        sim_schedule(machine, g, sim_now(machine));
        for (uint32_t i = 0; i < machine->stream_high; i++) {
            struct sim_stream *stream = &machine->streams[i];
            if (stream->state && stream->process == row && stream->gpu == g) {
                sim_stream_drop(machine, i);
                stream->state = 0;
            }
        }
        record_end(machine, g, row);
        sim_ledger_sub(machine, g, row, process->gpu[g].bytes);
        process->gpu[g].contexts = 0;
        process->gpu[g].context_bytes = 0;
        sim_unlock_gpu(machine, g);
    }
    for (uint32_t i = 0; i < SIM_EVENT_CHUNKS; i++)
        if (machine->event_chunks[i].used && machine->event_chunks[i].process == row) {
            machine->event_chunks[i].used = 0;
            machine->event_chunks[i].process = SIM_NONE;
        }
    if (machine->groups[process->group].processes)
        machine->groups[process->group].processes--;
    machine->groups[process->group].last_used_ns = sim_now(machine);
    __atomic_store_n(&process->state, 0, __ATOMIC_RELEASE); /* everything is given back before the row is free */
}

void sim_process_unregister(struct sim_machine *machine, uint32_t row)
{
    sim_lock_table(machine);
    if (machine->processes[row].state)
        clear_process(machine, row);
    sim_unlock_table(machine);
    struct flock range = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = row, .l_len = 1};
    int fd = sim_attachment_fd(machine);
    if (fd >= 0)
        fcntl(fd, F_OFD_SETLK, &range);
}

uint32_t sim_machine_reap(struct sim_machine *machine)
{
    uint32_t dead = 0;
    int saved = errno;
    sim_lock_table(machine);
    /* relaxed: only says when to look again */
    __atomic_store_n(&machine->next_reap_ns, sim_monotonic_ns() + REAP_PERIOD_NS, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < machine->process_high; i++)
        if (machine->processes[i].state && !sim_process_alive(machine, i)) {
            clear_process(machine, i);
            dead++;
        }
    machine->reaped += dead;
    sim_unlock_table(machine);
    errno = saved;
    return dead;
}
