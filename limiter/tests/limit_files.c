/*
 * limit_files: the daemon's part for tests and benches that have no daemon.
 *
 *   limit_files make DIRECTORY UUID VRAM_BYTES SHARE_PPM [CONTEXT_BYTES [BURST_NS]]
 *   limit_files set DIRECTORY UUID VRAM_BYTES SHARE_PPM   the same, in place
 *   limit_files also DIRECTORY UUID VRAM_BYTES SHARE_PPM  one more device
 *   limit_files freeze DIRECTORY 0|1
 *   limit_files flags DIRECTORY FLAGS                     enum hv_device_flags of the first device
 *   limit_files host-memory DIRECTORY BYTES               the Pod's quota for pinned host memory
 *   limit_files host-pid DIRECTORY PID                    of the process in the first slot
 *   limit_files show DIRECTORY                            one JSON object
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "file_maker.h"
#include "hypervisor_atomics.h"
#include "ledger.h"

static void *map(const char *path, uint64_t bytes)
{
    int descriptor = open(path, O_RDWR | O_CLOEXEC);
    void *base = descriptor < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (base == MAP_FAILED) {
        perror(path);
        exit(1);
    }
    close(descriptor);
    return base;
}

static void open_files(struct made_files *files, const char *directory)
{
    snprintf(files->shm_path, sizeof files->shm_path, "%s/" HV_SHM_FILE_NAME, directory);
    snprintf(files->usage_path, sizeof files->usage_path, "%s/" HV_USAGE_FILE_NAME, directory);
    files->shm = map(files->shm_path, HV_SHM_FILE_BYTES);
    files->usage = map(files->usage_path, HV_USAGE_FILE_BYTES);
}

static void show(const struct made_files *files)
{
    const struct hv_device_usage *usage = made_usage(files, 0);
    uint64_t launches = 0, blocked = 0, denials = 0, bytes = 0;
    uint32_t live = 0;
    for (uint32_t i = 0; i < HV_PROCESS_SLOTS; i++) {
        const struct hv_process_slot *slot = made_slot(files, i);
        if ((slot->state & 0xff) != HV_SLOT_LIVE)
            continue;
        live++;
        launches += slot->devices[0].launches;
        blocked += slot->devices[0].blocked_ns;
        denials += slot->devices[0].denials;
        bytes += slot->devices[0].bytes;
    }
    printf("{\"total\": %llu, \"peak\": %llu, \"slot_bytes\": %llu, \"charged_ns\": %llu, \"live\": %u, "
           "\"launches\": %llu, \"blocked_ns\": %llu, \"denials\": %llu, \"waiters\": %u, \"costs\": [",
           (unsigned long long)hv_total_bytes(usage->total), (unsigned long long)usage->peak_bytes,
           (unsigned long long)bytes, (unsigned long long)usage->charged_ns, live, (unsigned long long)launches,
           (unsigned long long)blocked, (unsigned long long)denials, usage->waiters);
    const struct hv_learned_cost *costs = (void *)(files->usage + HV_USAGE_COSTS_OFFSET);
    const char *comma = "";
    for (uint32_t i = 0; i < HV_LEARNED_COSTS; i++)
        if (costs[i].key != 0) {
            printf("%s{\"name\": \"%s\", \"ns\": %llu, \"samples\": %llu}", comma, costs[i].name,
                   (unsigned long long)costs[i].cost_ns, (unsigned long long)costs[i].samples);
            comma = ", ";
        }
    printf("], \"messages\": [");
    const struct hv_message_ring *ring = (void *)(files->usage + HV_USAGE_MESSAGES_OFFSET);
    comma = "";
    for (uint32_t i = 0; i < HV_MESSAGES; i++)
        if (ring->messages[i].sequence != 0) {
            printf("%s{\"code\": %u, \"text\": \"%s\"}", comma, ring->messages[i].code, ring->messages[i].text);
            comma = ", ";
        }
    printf("]}\n");
}

static struct hv_limits limits_in_force(const struct made_files *files)
{
    struct hv_limits limits;
    uint64_t slot = made_state(files)->generation & 1;
    memcpy(&limits, files->shm + HV_SHM_LIMITS_OFFSET + slot * sizeof limits, sizeof limits);
    return limits;
}

static int usage_error(void)
{
    fprintf(stderr, "limit_files: wrong arguments; see the head of limit_files.c\n");
    return 2;
}

int main(int count, char **arguments)
{
    struct made_files files;
    if (count < 3)
        return usage_error();
    const char *command = arguments[1];
    const char *directory = arguments[2];
    if (strcmp(command, "make") == 0 && count >= 6) {
        make_files(&files, directory);
        if (count > 6)
            for (uint32_t i = 0; i < HV_MAX_DEVICES; i++)
                made_control(&files, i)->context_bytes = strtoull(arguments[6], NULL, 10);
    } else {
        open_files(&files, directory);
    }
    if ((strcmp(command, "make") == 0 || strcmp(command, "set") == 0) && count >= 6) {
        struct hv_limits limits = soft_limits(arguments[3], strtoull(arguments[4], NULL, 10),
                                              (uint32_t)strtoul(arguments[5], NULL, 10));
        if (count > 7)
            limits.devices[0].burst_ns = strtoull(arguments[7], NULL, 10);
        publish_limits(&files, &limits);
        arm(&files);
        return 0;
    }
    if (strcmp(command, "host-pid") == 0 && count == 4) {
        hv_store_relaxed(&made_slot(&files, 0)->host_pid, strtoull(arguments[3], NULL, 10)); /* nothing hangs on it */
        return 0;
    }
    if (strcmp(command, "flags") == 0 && count == 4) {
        struct hv_limits limits = limits_in_force(&files);
        limits.devices[0].flags = (uint32_t)strtoul(arguments[3], NULL, 10);
        publish_limits(&files, &limits);
        return 0;
    }
    if (strcmp(command, "also") == 0 && count == 6) {
        struct hv_limits limits = limits_in_force(&files);
        struct hv_limits more = soft_limits(arguments[3], strtoull(arguments[4], NULL, 10),
                                            (uint32_t)strtoul(arguments[5], NULL, 10));
        if (limits.device_count >= HV_MAX_DEVICES)
            return usage_error();
        limits.devices[limits.device_count++] = more.devices[0];
        publish_limits(&files, &limits);
        return 0;
    }
    if (strcmp(command, "host-memory") == 0 && count == 4) {
        struct hv_limits limits = limits_in_force(&files);
        limits.host_memory_limit_bytes = strtoull(arguments[3], NULL, 10);
        publish_limits(&files, &limits);
        return 0;
    }
    if (strcmp(command, "freeze") == 0 && count == 4) {
        uint32_t *word = &made_control(&files, 0)->freeze;
        hv_store_release_32(word, (uint32_t)strtoul(arguments[3], NULL, 10));
        (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
        return 0;
    }
    if (strcmp(command, "show") == 0) {
        show(&files);
        return 0;
    }
    return usage_error();
}
