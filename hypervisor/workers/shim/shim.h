/* The parent of one supervised worker: it lives outside the daemon's cgroup and session, keeps the worker's exit
 * status, writes its output to a rotated log, and ends it in time when it is told to. Its contract is files:
 *
 *   start    read once: NUL-terminated fields, the last one "end": run=N, grace_ms=N, log_bytes=N, log_files=N,
 *            cgroup=PATH (a cgroup-v2 directory to move into, optional), cwd=PATH, arg=WORD..., env=NAME=VALUE...
 *   lock     held by flock while a shim lives: of two shims for one worker the second exits with 75
 *   status   written whole, by rename: lines KEY VALUE; state is running, exited or failed
 *   log      output of the run; log.1, log.2, ... are older, the oldest is removed
 *   grace    read when told to stop: milliseconds before the kill, where it differs from grace_ms
 *
 * SIGTERM to the shim: SIGTERM to the worker's process group; after the grace SIGKILL to the group and to every
 * descendant. A worker whose main process has ended leaves no descendant behind either. */
#ifndef SHIM_H
#define SHIM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { SHIM_LOCKED = 75, SHIM_UNUSABLE = 78, SHIM_FAILED = 1 }; /* exit statuses; 75 and 78 as in sysexits.h */

struct shim_start {
    char *content;      /* what the pointers below point into */
    char **arguments;   /* ended by NULL */
    char **environment; /* ended by NULL */
    const char *cgroup; /* NULL: stay */
    const char *cwd;
    uint64_t run;
    uint64_t grace_ms;
    uint64_t log_bytes;
    uint64_t log_files;
};

struct shim_log {
    int directory;
    int fd;
    uint64_t written;
    uint64_t limit;
    uint64_t files;
    uint64_t dropped; /* bytes that the disk did not take */
    uint64_t begun;   /* files that this run has begun after its first one */
};

struct shim_status {
    const char *state;
    uint64_t run;
    pid_t child;
    uint64_t child_start;
    int stopping;     /* it was told to stop */
    int killed_late;  /* the grace ran out */
    int exit_code;    /* -1: none */
    int term_signal;  /* 0: none */
    int failure;      /* errno of what failed before or at exec; 0: nothing */
    const char *step; /* which step that was */
    int cgroup_failure;
    uint64_t dropped;
    uint64_t begun;
    uint64_t started_ms, ended_ms; /* wall time since 1970; 0: not yet */
    uint64_t ran_ms;               /* by a clock that nobody sets */
};

int shim_read_start(int directory, struct shim_start *out);
int shim_write_status(int directory, const struct shim_status *status);
uint64_t shim_start_time(pid_t pid);
uint64_t shim_read_grace(int directory, uint64_t fallback);

void shim_log_open(struct shim_log *log, int directory, const struct shim_start *start);
void shim_log_write(struct shim_log *log, const char *data, size_t length);
void shim_log_remove(struct shim_log *log);

int shim_keep(int directory, const struct shim_start *start, int told);
int shim_serve(const char *socket_path, const char *root, char *self);

#endif
