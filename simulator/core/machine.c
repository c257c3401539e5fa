/* Making a machine file, attaching to one, and checking that a running one is sound. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char *sim_status_text(int status)
{
    static const char *const texts[] = {
        [SIM_OK] = "done",
        [SIM_NO_PATH] = "SIM_MACHINE is not set",
        [SIM_NO_FILE] = "no such machine file",
        [SIM_NOT_REGULAR] = "not a regular file",
        [SIM_WRONG_SIZE] = "the file has not the size of a machine: truncated, or made by another build",
        [SIM_WRONG_MAGIC] = "not a machine file",
        [SIM_WRONG_VERSION] = "machine file of another layout version",
        [SIM_HALF_WRITTEN] = "machine file was never finished",
        [SIM_DAMAGED] = "the machine file is damaged: only part of it was written, or something wrote over it",
        [SIM_SYSTEM_ERROR] = "the operating system refused",
        [SIM_EXISTS] = "there is a file of that name already",
        [SIM_BAD_DESCRIPTION] = "the description is not of a possible machine",
        [SIM_TABLE_FULL] = "no free row in the machine file",
        [SIM_NO_MEMORY] = "the GPU's memory is exhausted",
        [SIM_NOT_FOUND] = "not found",
        [SIM_GPU_GONE] = "the GPU is lost",
        [SIM_IN_USE] = "in use",
        [SIM_NO_PLACE] = "no slices left where such an instance may lie",
        [SIM_NOT_SUPPORTED] = "not supported, or MIG is off",
    };
    return status >= 0 && status < (int)(sizeof texts / sizeof *texts) ? texts[status] : "unknown";
}

void sim_description_defaults(struct sim_description *description)
{
    memset(description, 0, sizeof *description);
    struct sim_system_info *system = &description->system;
    strcpy(system->profile, "custom");
    strcpy(system->driver_version, "580.65.06");
    strcpy(system->nvml_version, "13.580.65.06");
    system->cuda_version = 13000;
    system->clock_scale_ppm = PPM;
    system->window_ns = 167000000;
    system->slice_ns = 2000000;
    system->allocation_granule = 512;
}

static int parse_uuid(const char *text, uint8_t bytes[16])
{
    if (strncmp(text, "GPU-", 4) != 0)
        return 0;
    text += 4;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            if (*text++ != '-')
                return 0;
        unsigned value = 0;
        for (int digit = 0; digit < 2; digit++, text++) {
            char c = *text;
            if (c >= '0' && c <= '9')
                value = value * 16 + (unsigned)(c - '0');
            else if (c >= 'a' && c <= 'f')
                value = value * 16 + (unsigned)(c - 'a') + 10;
            else
                return 0;
        }
        bytes[i] = (uint8_t)value; /* two digits: below 256 */
    }
    return *text == 0;
}

static int description_sound(const struct sim_description *description)
{
    const struct sim_system_info *system = &description->system;
    if (description->gpu_count < 1 || description->gpu_count > SIM_MAX_GPUS || description->rule_count > SIM_MAX_RULES ||
        description->fault_count > SIM_MAX_FAULTS || system->clock_mode > SIM_CLOCK_VIRTUAL || system->clock_scale_ppm == 0 ||
        system->window_ns < 1000000 || system->slice_ns < 1000)
        return 0;
    for (uint32_t i = 0; i < description->gpu_count; i++) {
        const struct sim_gpu_info *gpu = &description->gpus[i];
        uint8_t bytes[16];
        if (!parse_uuid(gpu->uuid, bytes) || gpu->sm_count == 0 || gpu->memory_total_bytes <= gpu->memory_reserved_bytes ||
            gpu->link_count > SIM_MAX_LINKS || gpu->mig_profile_count > SIM_MAX_MIG_PROFILES || gpu->mig_memory_slices > SIM_MAX_INSTANCES || gpu->power_busy_mw < gpu->power_idle_mw)
            return 0;
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(gpu->uuid, description->gpus[j].uuid) == 0)
                return 0;
    }
    return 1;
}

static int fill(struct sim_machine *machine, const struct sim_description *description)
{
    machine->magic = SIM_MAGIC;
    machine->layout_version = SIM_LAYOUT_VERSION;
    machine->total_bytes = sizeof *machine;
    machine->gpu_count = description->gpu_count;
    machine->rule_count = description->rule_count;
    machine->system = description->system;
    machine->topology = description->topology;
    memcpy(machine->rules, description->rules, sizeof machine->rules);
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    machine->system.created_wall_ns = (uint64_t)wall.tv_sec * UINT64_C(1000000000) + (uint64_t)wall.tv_nsec;
    machine->clock_origin_ns = sim_monotonic_ns();
    machine->next_device_fault_ns = UINT64_MAX;
    machine->next_fault_id = 1;
    sim_locks_init(machine);
    for (uint32_t i = 0; i < SIM_EVENT_CHUNKS; i++)
        machine->event_chunks[i].process = SIM_NONE;
    for (uint32_t i = 0; i < description->gpu_count; i++) {
        struct sim_gpu *gpu = &machine->gpu[i];
        gpu->info = description->gpus[i];
        parse_uuid(gpu->info.uuid, gpu->info.uuid_bytes);
        gpu->first_active = SIM_NONE;
        if (sim_mig_lay_out(machine, i, description->instances[i]) != SIM_OK)
            return SIM_BAD_DESCRIPTION;
    }
    for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
        machine->enumeration[i] = i;
    for (uint32_t i = 0; i < description->fault_count; i++) {
        uint32_t id;
        if (sim_fault_add(machine, &description->faults[i], &id) != SIM_OK)
            return SIM_BAD_DESCRIPTION;
    }
    machine->seal = sim_machine_seal(machine);
    __atomic_store_n(&machine->ready, 1, __ATOMIC_RELEASE); /* all of the above is in the file before it counts */
    return SIM_OK;
}

int sim_machine_create(const char *path, const struct sim_description *description)
{
    if (!description_sound(description))
        return SIM_BAD_DESCRIPTION;
    char scratch[4096];
    int length = snprintf(scratch, sizeof scratch, "%s.new-%d", path, (int)getpid());
    if (length < 0 || (size_t)length >= sizeof scratch) {
        errno = ENAMETOOLONG;
        return SIM_SYSTEM_ERROR;
    }
    int fd = open(scratch, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return SIM_SYSTEM_ERROR;
    int status = SIM_SYSTEM_ERROR;
    struct sim_machine *machine = MAP_FAILED;
    if (ftruncate(fd, (off_t)sizeof *machine) == 0)
        machine = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (machine != MAP_FAILED) {
        status = fill(machine, description);
        munmap(machine, sizeof *machine);
        if (status != SIM_OK)
            errno = 0;
        else if (link(scratch, path) == 0) /* unlike rename, refuses to replace */
            status = SIM_OK;
        else if (errno == EEXIST)
            status = SIM_EXISTS;
        else
            status = SIM_SYSTEM_ERROR;
    }
    int saved = errno;
    unlink(scratch);
    close(fd);
    errno = saved;
    return status;
}

int sim_machine_attach(const char *path, struct sim_machine **out)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR ? SIM_NO_FILE : SIM_SYSTEM_ERROR;
    struct stat info;
    int status = SIM_OK;
    struct sim_machine *machine = MAP_FAILED;
    if (fstat(fd, &info) != 0)
        status = SIM_SYSTEM_ERROR;
    else if (!S_ISREG(info.st_mode))
        status = SIM_NOT_REGULAR;
    else if ((uint64_t)info.st_size < offsetof(struct sim_machine, ready) + sizeof(uint32_t))
        status = SIM_WRONG_SIZE;
    else {
        uint64_t magic = 0;
        uint32_t version = 0;
        if (pread(fd, &magic, sizeof magic, offsetof(struct sim_machine, magic)) != (ssize_t)sizeof magic || magic != SIM_MAGIC)
            status = SIM_WRONG_MAGIC;
        else if (pread(fd, &version, sizeof version, offsetof(struct sim_machine, layout_version)) != (ssize_t)sizeof version ||
                 version != SIM_LAYOUT_VERSION)
            status = SIM_WRONG_VERSION;
        else if ((uint64_t)info.st_size != sizeof *machine)
            status = SIM_WRONG_SIZE;
    }
    if (status == SIM_OK) {
        machine = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (machine == MAP_FAILED)
            status = SIM_SYSTEM_ERROR;
        else if (__atomic_load_n(&machine->ready, __ATOMIC_ACQUIRE) != 1) /* pairs with the creator's last store */
            status = SIM_HALF_WRITTEN;
        else if (machine->total_bytes != sizeof *machine)
            status = SIM_WRONG_SIZE;
        else if (!sim_machine_sound(machine))
            status = SIM_DAMAGED;
    }
    if (status != SIM_OK) {
        int saved = errno;
        if (machine != MAP_FAILED)
            munmap(machine, sizeof *machine);
        close(fd);
        errno = saved;
        return status;
    }
    sim_attachment_add(machine, fd);
    *out = machine;
    return SIM_OK;
}

int sim_machine_attach_environment(struct sim_machine **out)
{
    const char *path = secure_getenv("SIM_MACHINE");
    return path && *path ? sim_machine_attach(path, out) : SIM_NO_PATH;
}

void sim_machine_detach(struct sim_machine *machine)
{
    int fd = sim_attachment_remove(machine);
    munmap(machine, sizeof *machine);
    if (fd >= 0)
        close(fd);
}

struct report { char *text; size_t size, length; int breaches; };

__attribute__((format(printf, 2, 3))) static void breach(struct report *report, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(report->text + report->length, report->size - report->length, format, arguments);
    va_end(arguments);
    report->breaches++;
    if (length > 0)
        report->length = min_u64(report->length + (size_t)length, report->size - 1);
}

static void check_usage(struct report *report, uint32_t gpu, const char *what, uint32_t row, const struct sim_gpu_usage *usage, uint64_t busy_bound)
{
    if (usage->bytes > usage->peak_bytes)
        breach(report, "gpu %u %s %u: holds %llu bytes, above its peak of %llu\n", gpu, what, row, (unsigned long long)usage->bytes,
               (unsigned long long)usage->peak_bytes);
    if (usage->context_bytes > usage->bytes)
        breach(report, "gpu %u %s %u: more context bytes than bytes\n", gpu, what, row);
    if (usage->busy_ns > busy_bound)
        breach(report, "gpu %u %s %u: busy for %llu ns of at most %llu\n", gpu, what, row, (unsigned long long)usage->busy_ns,
               (unsigned long long)busy_bound);
    if (usage->busy_ns > usage->queued_ns)
        breach(report, "gpu %u %s %u: busy for %llu ns, had work for %llu\n", gpu, what, row, (unsigned long long)usage->busy_ns,
               (unsigned long long)usage->queued_ns);
}

static void check_gpu(struct sim_machine *machine, uint32_t index, struct report *report)
{
    struct sim_gpu *gpu = &machine->gpu[index];
    uint64_t group_bytes[SIM_MAX_GROUPS] = {0}, instance_bytes[SIM_MAX_INSTANCES] = {0}, used = 0;
    for (uint32_t i = 0; i < machine->process_high; i++) {
        const struct sim_process *process = &machine->processes[i];
        if (!process->state)
            continue;
        if (process->group >= SIM_MAX_GROUPS) {
            breach(report, "process %u: no group\n", i);
            continue;
        }
        used += process->gpu[index].bytes;
        const struct sim_gpu_instance *instance = sim_instance_of(machine, index, i);
        if (instance)
            instance_bytes[instance - gpu->instances] += process->gpu[index].bytes;
        group_bytes[process->group] += process->gpu[index].bytes;
        check_usage(report, index, "process", i, &process->gpu[index], machine->groups[process->group].gpu[index].busy_ns);
    }
    if (used != gpu->used_bytes)
        breach(report, "gpu %u: ledger says %llu bytes, processes hold %llu\n", index, (unsigned long long)gpu->used_bytes, (unsigned long long)used);
    if (used + gpu->info.memory_reserved_bytes > gpu->info.memory_total_bytes)
        breach(report, "gpu %u: more memory held than there is\n", index);
    if (gpu->busy_ns > gpu->now_ns)
        breach(report, "gpu %u: busy for longer than it exists\n", index);
    for (uint32_t i = 0; i < SIM_MAX_GROUPS; i++) {
        const struct sim_group *group = &machine->groups[i];
        if (!group->key)
            continue;
        if (group_bytes[i] != group->gpu[index].bytes)
            breach(report, "gpu %u group %u: ledger says %llu bytes, its processes hold %llu\n", index, i,
                   (unsigned long long)group->gpu[index].bytes, (unsigned long long)group_bytes[i]);
        check_usage(report, index, "group", i, &group->gpu[index], gpu->busy_ns);
    }
    for (uint32_t i = 0; i < SIM_MAX_INSTANCES; i++) {
        const struct sim_gpu_instance *instance = &gpu->instances[i];
        if (!instance->state)
            continue;
        if (instance->used_bytes != instance_bytes[i])
            breach(report, "gpu %u instance %u: ledger says %llu bytes, its processes hold %llu\n", index, instance->id,
                   (unsigned long long)instance->used_bytes, (unsigned long long)instance_bytes[i]);
        if (instance->used_bytes > gpu->info.mig_profiles[instance->profile].memory_bytes)
            breach(report, "gpu %u instance %u: more memory held than it has\n", index, instance->id);
        if (instance->busy_ns > gpu->busy_ns)
            breach(report, "gpu %u instance %u: busy for longer than the GPU\n", index, instance->id);
    }
    uint32_t listed = 0;
    for (uint32_t i = gpu->first_active; i != SIM_NONE && listed <= SIM_MAX_STREAMS; i = machine->streams[i].next_active) {
        if (i >= SIM_MAX_STREAMS) {
            breach(report, "gpu %u: broken list of streams\n", index);
            return;
        }
        listed++;
    }
    if (listed != gpu->active_count)
        breach(report, "gpu %u: %u streams listed, %u counted\n", index, listed, gpu->active_count);
}

static void check_stream(struct sim_machine *machine, uint32_t index, struct report *report)
{
    const struct sim_stream *stream = &machine->streams[index];
    if (!stream->state)
        return;
    uint64_t left = 0, items = stream->tail - stream->head;
    for (uint64_t at = stream->head; items <= SIM_RING_ITEMS && at != stream->tail; at++)
        left += machine->rings[index][at % SIM_RING_ITEMS].work;
    if (items > SIM_RING_ITEMS)
        breach(report, "stream %u: %llu items in a ring of %u\n", index, (unsigned long long)items, SIM_RING_ITEMS);
    else if (stream->pushed_work - stream->done_work != left)
        breach(report, "stream %u: work left is %llu, its items hold %llu\n", index,
               (unsigned long long)(stream->pushed_work - stream->done_work), (unsigned long long)left);
    if ((items != 0) != (stream->active != 0))
        breach(report, "stream %u: has work but is not scheduled, or the reverse\n", index);
    if (stream->process >= SIM_MAX_PROCESSES || !machine->processes[stream->process].state)
        breach(report, "stream %u: its process is gone\n", index);
}

int sim_machine_check(struct sim_machine *machine, char *text, size_t size)
{
    struct report report = {.text = text, .size = size};
    if (size)
        text[0] = 0;
    sim_machine_reap(machine);
    sim_lock_table(machine);
    for (uint32_t i = 0; i < machine->gpu_count; i++) {
        sim_lock_gpu(machine, i);
        sim_schedule(machine, i, sim_now(machine));
        check_gpu(machine, i, &report);
        for (uint32_t s = 0; s < machine->stream_high; s++)
            if (machine->streams[s].gpu == i)
                check_stream(machine, s, &report);
        sim_unlock_gpu(machine, i);
    }
    sim_unlock_table(machine);
    return report.breaches;
}
