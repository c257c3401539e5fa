/* Files, pages, environment and processes. Raw system calls where the C
 * library's function is a cancellation point: a program may cancel the thread
 * that we run in. */
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int open_quietly(const char *path, int flags)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
}

/* The C library's stat and fstat got new names in glibc 2.33, which an older
 * one lacks; the kernel's structs are the C library's on 64-bit systems. */
static int status_of_path(const char *path, struct stat *status)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, 0);
}

static int status_of_descriptor(int descriptor, struct stat *status)
{
    return (int)syscall(SYS_fstat, descriptor, status);
}

static void close_quietly(int descriptor)
{
    (void)syscall(SYS_close, descriptor);
}

enum hv_os_open_result hv_os_map_file(const char *path, bool writable, size_t minimum_bytes,
                                      struct hv_os_mapping *mapping)
{
    int saved = errno;
    enum hv_os_open_result result = HV_OS_FAILED;
    int descriptor = open_quietly(path, writable ? O_RDWR : O_RDONLY);
    if (descriptor < 0) {
        result = errno == ENOENT || errno == ENOTDIR ? HV_OS_NOT_THERE : HV_OS_FAILED;
        errno = saved;
        return result;
    }
    struct stat status;
    if (status_of_descriptor(descriptor, &status) == 0 && S_ISREG(status.st_mode)) {
        if ((uint64_t)status.st_size < minimum_bytes) {
            result = HV_OS_TOO_SMALL;
        } else {
            size_t bytes = (size_t)status.st_size;
            void *base = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, descriptor, 0);
            if (base != MAP_FAILED) {
                *mapping = (struct hv_os_mapping){.base = base, .bytes = bytes};
                result = HV_OS_OPENED;
            }
        }
    }
    close_quietly(descriptor);
    errno = saved;
    return result;
}

void hv_os_unmap(struct hv_os_mapping *mapping)
{
    int saved = errno;
    if (mapping->base != NULL)
        (void)munmap(mapping->base, mapping->bytes);
    *mapping = (struct hv_os_mapping){0};
    errno = saved;
}

bool hv_os_file_identity(int descriptor, uint64_t *identity)
{
    struct stat status;
    int saved = errno;
    bool known = status_of_descriptor(descriptor, &status) == 0;
    errno = saved;
    if (known) /* 2^64 over the golden ratio: the top bits depend on all */
        *identity = (status.st_ino ^ status.st_dev << 32) * UINT64_C(0x9e3779b97f4a7c15);
    return known;
}

enum hv_os_path_kind hv_os_path_kind(const char *path)
{
    int saved = errno;
    struct stat status;
    enum hv_os_path_kind kind;
    if (status_of_path(path, &status) == 0)
        kind = S_ISDIR(status.st_mode) ? HV_OS_PATH_DIRECTORY : HV_OS_PATH_FILE;
    else
        kind = errno == ENOENT || errno == ENOTDIR ? HV_OS_PATH_ABSENT : HV_OS_PATH_UNKNOWN;
    errno = saved;
    return kind;
}

void *hv_os_pages(size_t bytes)
{
    int saved = errno;
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    errno = saved;
    return pages == MAP_FAILED ? NULL : pages;
}

/* For kernels before 4.14, which cannot wipe pages by themselves. */
static struct {
    void *pages;
    size_t bytes;
} wiped_by_hand;

static void wipe_in_child(void)
{
    memset(wiped_by_hand.pages, 0, wiped_by_hand.bytes);
}

void *hv_os_pages_wiped_on_fork(size_t bytes)
{
    int saved = errno;
    void *pages = hv_os_pages(bytes);
    if (pages != NULL && madvise(pages, bytes, MADV_WIPEONFORK) != 0) {
        wiped_by_hand.pages = pages;
        wiped_by_hand.bytes = bytes;
        if (pthread_atfork(NULL, NULL, wipe_in_child) != 0) {
            hv_os_free_pages(pages, bytes);
            pages = NULL;
        }
    }
    errno = saved;
    return pages;
}

void *hv_os_pages_not_inherited(size_t bytes)
{
    int saved = errno;
    void *pages = hv_os_pages(bytes);
    if (pages != NULL)
        (void)madvise(pages, bytes, MADV_DONTFORK); /* without it the child keeps a copy that nobody uses */
    errno = saved;
    return pages;
}

void hv_os_free_pages(void *pages, size_t bytes)
{
    int saved = errno;
    (void)munmap(pages, bytes);
    errno = saved;
}

const char *hv_os_environment(const char *name)
{
    return secure_getenv(name);
}

/* What a stat file says. */
struct process_stat {
    uint64_t start_time; /* field 22 */
    bool ended;          /* waits for its parent: what it held is gone already */
};

/* The start of a field after the position of another; NULL: the line is too short. */
static const char *fields_on(const char *position, int count)
{
    for (; position != NULL && count > 0; count--) {
        position = strchr(position, ' ');
        position = position == NULL ? NULL : position + 1;
    }
    return position;
}

/* false when there is no such file. */
static bool read_process_stat(const char *path, struct process_stat *found)
{
    char text[1024];
    int descriptor = open_quietly(path, O_RDONLY);
    if (descriptor < 0)
        return false;
    long length = syscall(SYS_read, descriptor, text, sizeof text - 1);
    close_quietly(descriptor);
    if (length <= 0)
        return false;
    text[length] = '\0';
    /* The command, field 2, may hold spaces and parentheses: count from its last one. */
    const char *state = fields_on(strrchr(text, ')'), 1);
    const char *threads = fields_on(state, 17);
    const char *start_time = fields_on(threads, 2);
    if (start_time == NULL)
        return false;
    /* A first thread that ended while others run on looks ended too. */
    found->ended = (*state == 'Z' || *state == 'X') && strtoull(threads, NULL, 10) <= 1;
    found->start_time = strtoull(start_time, NULL, 10);
    return true;
}

void hv_os_this_process(struct hv_os_process *process)
{
    int saved = errno;
    *process = (struct hv_os_process){.pid = (uint32_t)getpid()};
    struct stat status;
    if (status_of_path("/proc/self/ns/pid", &status) == 0)
        process->pid_namespace = (uint32_t)status.st_ino; /* namespace inodes are 32 bits */
    struct process_stat self;
    if (read_process_stat("/proc/self/stat", &self))
        process->start_time = self.start_time;
    errno = saved;
}

enum hv_os_life hv_os_process_life(uint32_t pid, uint64_t start_time)
{
    int saved = errno;
    enum hv_os_life life = HV_OS_ALIVE;
    if (pid == 0 || pid > INT32_MAX) {
        life = HV_OS_DEAD;
    } else if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) {
        life = HV_OS_DEAD;
    } else {
        char path[32];
        struct process_stat found;
        (void)snprintf(path, sizeof path, "/proc/%u/stat", pid);
        /* hidepid, or /proc of another namespace: not ours to judge */
        if (!read_process_stat(path, &found))
            life = start_time == 0 ? HV_OS_ALIVE : HV_OS_LIFE_UNKNOWN;
        else if (found.ended || (start_time != 0 && found.start_time != start_time))
            life = HV_OS_DEAD;
    }
    errno = saved;
    return life;
}
