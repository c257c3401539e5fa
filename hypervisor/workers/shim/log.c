/* The worker's output: written to `log`, rotated by size and with each run. A full disk costs lines, never the worker. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static void name_of(char *out, size_t size, uint64_t number)
{
    if (number)
        snprintf(out, size, "log.%u", (unsigned)number); /* bounded by log_files, at most 99 */
    else
        snprintf(out, size, "log");
}

static void rotate(struct shim_log *log)
{
    char from[32], to[32];
    if (log->fd >= 0)
        close(log->fd);
    for (uint64_t number = log->files; number > 0; number--) {
        name_of(from, sizeof from, number - 1);
        name_of(to, sizeof to, number);
        if (number == log->files && number > 0)
            unlinkat(log->directory, to, 0);
        renameat(log->directory, from, log->directory, to);
    }
    log->written = 0;
    /* Not waited for: what is no plain file there, a pipe for instance, is the worker's own doing. */
    log->fd = openat(log->directory, "log", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0640);
}

void shim_log_open(struct shim_log *log, int directory, const struct shim_start *start)
{
    *log = (struct shim_log){.directory = directory, .fd = -1, .limit = start->log_bytes, .files = start->log_files > 99 ? 99 : start->log_files};
    rotate(log);
}

void shim_log_remove(struct shim_log *log)
{
    char name[32];
    if (log->fd >= 0)
        close(log->fd);
    log->fd = -1;
    for (uint64_t number = 0; number <= log->files; number++) {
        name_of(name, sizeof name, number);
        unlinkat(log->directory, name, 0);
    }
}

void shim_log_write(struct shim_log *log, const char *data, size_t length)
{
    while (length) {
        if (log->limit && log->written >= log->limit) {
            rotate(log);
            log->begun++;
        }
        size_t room = log->limit && log->limit - log->written < length ? (size_t)(log->limit - log->written) : length; /* below length */
        ssize_t part = log->fd < 0 ? -1 : write(log->fd, data, room);
        if (part < 0 && log->fd >= 0 && errno == EINTR)
            continue;
        if (part <= 0) {
            log->dropped += length;
            return;
        }
        log->written += (uint64_t)part; /* checked: above zero */
        data += part;
        length -= (size_t)part;
    }
}
