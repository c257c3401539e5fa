/*
 * Every operating-system call of the limiter. os_clock.c holds the clock and
 * the waits, so that a build on a virtual clock replaces that one file;
 * os_linux.c holds the rest. None of these changes errno.
 */
#ifndef HV_OS_H
#define HV_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t hv_os_now_ns(void);

/* Sleep until the time comes or *word (in a file shared between processes,
 * perhaps mapped read-only) is no longer expected; may wake early. */
void hv_os_wait_on_word(const uint32_t *word, uint32_t expected, uint64_t until_ns);

/* Sleep until the time comes; may wake early. */
void hv_os_wait_until(uint64_t until_ns);

/* Give another thread of this processor its turn. */
void hv_os_yield(void);

enum hv_os_open_result { HV_OS_OPENED = 0, HV_OS_NOT_THERE, HV_OS_FAILED, HV_OS_TOO_SMALL };

struct hv_os_mapping {
    void *base;
    size_t bytes;
};

/* Map the whole of a regular file of at least minimum_bytes, shared. The
 * descriptor is closed again, so a program that closes every descriptor does
 * no harm. */
enum hv_os_open_result hv_os_map_file(const char *path, bool writable, size_t minimum_bytes,
                                      struct hv_os_mapping *mapping);
void hv_os_unmap(struct hv_os_mapping *mapping);

/* Which file a descriptor is of, well mixed; false: of none. */
bool hv_os_file_identity(int descriptor, uint64_t *identity);

enum hv_os_path_kind { HV_OS_PATH_ABSENT, HV_OS_PATH_FILE, HV_OS_PATH_DIRECTORY, HV_OS_PATH_UNKNOWN };
enum hv_os_path_kind hv_os_path_kind(const char *path);

/* Zeroed private pages; NULL when there is no memory. */
void *hv_os_pages(size_t bytes);
/* The same, but zero again in the child of a fork. */
void *hv_os_pages_wiped_on_fork(size_t bytes);
/* The same, but absent in the child of a fork. */
void *hv_os_pages_not_inherited(size_t bytes);
void hv_os_free_pages(void *pages, size_t bytes);

/* The value of an environment variable, NULL in a set-uid program. */
const char *hv_os_environment(const char *name);

struct hv_os_process {
    uint32_t pid;           /* as this process sees itself */
    uint32_t pid_namespace; /* inode; 0 where /proc does not say */
    uint64_t start_time;    /* clock ticks since boot; 0 where /proc does not say */
};

void hv_os_this_process(struct hv_os_process *process);

enum hv_os_life { HV_OS_ALIVE, HV_OS_DEAD, HV_OS_LIFE_UNKNOWN };

/* Is there a process of this pid in our namespace, and did it start then?
 * start_time 0 asks for the pid alone. */
enum hv_os_life hv_os_process_life(uint32_t pid, uint64_t start_time);

#endif
