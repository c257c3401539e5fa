/* The files of the contract: start, status, grace. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_START = 1 << 20, MAX_FIELDS = 8192 };

static char *read_whole(int directory, const char *name, size_t most, size_t *length)
{
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* a pipe is not waited for */
    if (fd < 0)
        return NULL;
    char *content = malloc(most + 1);
    size_t have = 0;
    while (content && have < most) {
        ssize_t part = read(fd, content + have, most - have);
        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)
            break;
        have += (size_t)part; /* checked: above zero */
    }
    close(fd);
    if (content)
        content[have] = 0;
    *length = have;
    return content;
}

static int number(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || end == text || *end || *text == '-')
        return -1;
    *out = value;
    return 0;
}

static const char *after(const char *field, const char *key)
{
    size_t length = strlen(key);
    return strncmp(field, key, length) == 0 && field[length] == '=' ? field + length + 1 : NULL;
}

/* -1 with errno: it can't be read, is cut off, or has a field of nobody's. */
int shim_read_start(int directory, struct shim_start *out)
{
    size_t length = 0;
    *out = (struct shim_start){.cwd = "/", .log_bytes = 1 << 20, .log_files = 2};
    out->content = read_whole(directory, "start", MAX_START, &length);
    out->arguments = calloc(MAX_FIELDS, sizeof *out->arguments);
    out->environment = calloc(MAX_FIELDS, sizeof *out->environment);
    if (!out->content || !out->arguments || !out->environment)
        return -1;
    size_t arguments = 0, environment = 0;
    for (char *field = out->content; field < out->content + length; field += strlen(field) + 1) {
        const char *value;
        int bad = 0;
        if (strcmp(field, "end") == 0)
            return arguments ? 0 : (errno = EINVAL, -1);
        if ((value = after(field, "arg")))
            out->arguments[arguments++] = field + 4;
        else if ((value = after(field, "env")))
            out->environment[environment++] = field + 4;
        else if ((value = after(field, "cgroup")))
            out->cgroup = value;
        else if ((value = after(field, "cwd")))
            out->cwd = value;
        else if ((value = after(field, "run")))
            bad = number(value, &out->run);
        else if ((value = after(field, "grace_ms")))
            bad = number(value, &out->grace_ms);
        else if ((value = after(field, "log_bytes")))
            bad = number(value, &out->log_bytes);
        else if ((value = after(field, "log_files")))
            bad = number(value, &out->log_files);
        else
            bad = -1;
        if (bad || arguments + 1 == MAX_FIELDS || environment + 1 == MAX_FIELDS)
            break;
    }
    errno = EINVAL;
    return -1;
}

/* Field 22 of /proc/PID/stat, in clock ticks since boot; 0 where it can't be read. */
uint64_t shim_start_time(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid); /* a pid_t is an int */
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = 0;
    const char *at = strrchr(text, ')'); /* the name before it may hold anything */
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

uint64_t shim_read_grace(int directory, uint64_t fallback)
{
    size_t length = 0;
    uint64_t value = fallback;
    char *text = read_whole(directory, "grace", 32, &length);
    if (text) {
        text[strcspn(text, "\n")] = 0;
        if (number(text, &value) != 0)
            value = fallback;
        free(text);
    }
    return value;
}

/* Whole or not at all, and on disk before it counts: who reads it after a crash decides by it. */
int shim_write_status(int directory, const struct shim_status *status)
{
    char text[1024];
    struct stat namespace;
    uint64_t inode = stat("/proc/self/ns/pid", &namespace) == 0 ? namespace.st_ino : 0;
    int length = snprintf(text, sizeof text,
                          "state %s\nrun %" PRIu64 "\nshim %d\nshim_start %" PRIu64 "\nchild %d\nchild_start %" PRIu64
                          "\npid_namespace %" PRIu64 "\nstarted_ms %" PRIu64 "\nended_ms %" PRIu64 "\nexit %d\nsignal %d\nstopping %d\nkilled_late %d\nfailure %d\nstep %s\ncgroup_failure %d\ndropped %" PRIu64 "\nbegun %" PRIu64 "\nran_ms %" PRIu64 "\nend 1\n",
                          status->state, status->run, (int)getpid(), shim_start_time(getpid()), (int)status->child, status->child_start, inode,
                          status->started_ms, status->ended_ms, status->exit_code, status->term_signal, status->stopping, status->killed_late,
                          status->failure, status->step ? status->step : "-", status->cgroup_failure, status->dropped, status->begun, status->ran_ms);
    unlinkat(directory, ".status", 0); /* of a shim that was killed, or a pipe that opening would wait for */
    int fd = openat(directory, ".status", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -1;
    ssize_t written = write(fd, text, (size_t)length); /* snprintf of numbers: not negative */
    int failed = written != length || fsync(fd) != 0;
    close(fd);
    if (failed || renameat(directory, ".status", directory, "status") != 0)
        return -1;
    return 0;
}
