/* One run of a worker, from fork to its last descendant. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REAP_ROUNDS = 200, REAP_PAUSE_MS = 10, DRAIN_MS = 200 };

static uint64_t clock_ms(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000; /* times since 1970 or boot: not negative */
}

static int join_cgroup(const char *path)
{
    char file[4096];
    if (snprintf(file, sizeof file, "%s/cgroup.procs", path) >= (int)sizeof file) /* the size is a small constant */
        return ENAMETOOLONG;
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int failure = write(fd, "0", 1) == 1 ? 0 : errno;
    close(fd);
    return failure;
}

/* In the child. What fails is told through `told`, which exec closes. */
static void become(const struct shim_start *start, pid_t shim, int output, int told)
{
    int failure[2];
    sigset_t none;
    sigemptyset(&none);
    failure[1] = 1;
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a worker that nobody keeps the status of must not go on */
    if (getppid() != shim)
        _exit(SHIM_FAILED);
    int input = open("/dev/null", O_RDONLY);
    if (input < 0 || dup2(input, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0)
        goto failed;
    if (input > 2)
        close(input);
    failure[1] = 2;
    if (chdir(start->cwd) != 0)
        goto failed;
    signal(SIGPIPE, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    failure[1] = 3;
    execvpe(start->arguments[0], start->arguments, start->environment);
failed:
    failure[0] = errno;
    if (write(told, failure, sizeof failure) != sizeof failure)
        _exit(126);
    _exit(127);
}

static const char *step_name(int step)
{
    static const char *const names[] = {"none", "output", "directory", "exec"};
    return names[step > 0 && step < 4 ? step : 0];
}

/* All that is left below us: orphans of the worker come to us, for we are their reaper. */
static void end_descendants(pid_t group)
{
    kill(-group, SIGKILL);
    for (int round = 0; round < REAP_ROUNDS; round++) {
        char path[64], text[4096];
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            continue;
        if (pid < 0 && errno == ECHILD)
            return;
        snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid()); /* a pid_t is an int */
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (fd >= 0)
            close(fd);
        if (length > 0) {
            text[length] = 0;
            char *saved = NULL;
            for (char *word = strtok_r(text, " \n", &saved); word; word = strtok_r(NULL, " \n", &saved))
                kill((pid_t)strtol(word, NULL, 10), SIGKILL); /* the kernel's own list of pids */
        }
        poll(NULL, 0, REAP_PAUSE_MS);
    }
}

struct keeper {
    int directory, signals, output;
    const struct shim_start *start;
    struct shim_log log;
    struct shim_status status;
    uint64_t began;    /* CLOCK_MONOTONIC in ms */
    uint64_t deadline; /* the same at which the kill is due; 0: none */
};

/* 0: nothing more is there now, or at all. */
static int take_output(struct keeper *keeper)
{
    char data[16384];
    ssize_t length = read(keeper->output, data, sizeof data);
    if (length > 0)
        shim_log_write(&keeper->log, data, (size_t)length); /* checked: above zero */
    return length > 0;
}

static void drain(struct keeper *keeper)
{
    uint64_t until = clock_ms(CLOCK_MONOTONIC) + DRAIN_MS;
    struct pollfd ready = {.fd = keeper->output, .events = POLLIN};
    while (clock_ms(CLOCK_MONOTONIC) < until && poll(&ready, 1, 0) > 0 && take_output(keeper))
        continue;
}

static void stop(struct keeper *keeper)
{
    if (keeper->status.stopping)
        return;
    keeper->status.stopping = 1;
    keeper->deadline = clock_ms(CLOCK_MONOTONIC) + shim_read_grace(keeper->directory, keeper->start->grace_ms);
    shim_write_status(keeper->directory, &keeper->status);
    kill(-keeper->status.child, SIGTERM);
}

/* 1 when the worker's main process has ended. */
static int take_signal(struct keeper *keeper)
{
    struct signalfd_siginfo info;
    if (read(keeper->signals, &info, sizeof info) != sizeof info)
        return 0;
    if (info.ssi_signo != SIGCHLD) {
        stop(keeper);
        return 0;
    }
    for (;;) {
        siginfo_t ended = {.si_pid = 0};
        /* Not yet reaped: until its group has been killed, nobody else may be given its number. */
        if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid == 0)
            return 0;
        if (ended.si_pid != keeper->status.child) {
            waitpid(ended.si_pid, NULL, 0);
            continue;
        }
        if (ended.si_code == CLD_EXITED)
            keeper->status.exit_code = ended.si_status;
        else
            keeper->status.term_signal = ended.si_status;
        return 1;
    }
}

static void watch(struct keeper *keeper)
{
    struct pollfd ready[2] = {{.fd = keeper->signals, .events = POLLIN}, {.fd = keeper->output, .events = POLLIN}};
    for (;;) {
        int wait = -1;
        if (keeper->deadline) {
            uint64_t now = clock_ms(CLOCK_MONOTONIC);
            if (now >= keeper->deadline) {
                keeper->status.killed_late = 1;
                kill(-keeper->status.child, SIGKILL);
                kill(keeper->status.child, SIGKILL);
                keeper->deadline = 0;
            } else {
                uint64_t left = keeper->deadline - now;
                wait = left > 60000 ? 60000 : (int)left; /* bounded above */
            }
        }
        if (poll(ready, 2, wait) <= 0)
            continue;
        if (ready[1].revents && !take_output(keeper) && ready[1].revents & (POLLHUP | POLLERR))
            ready[1].fd = -1; /* closed by all who had it; poll leaves it out */
        if (ready[0].revents && take_signal(keeper))
            return;
    }
}

static int fail(struct keeper *keeper, const char *step, int failure)
{
    keeper->status.state = "failed";
    keeper->status.step = step;
    keeper->status.failure = failure;
    keeper->status.ended_ms = clock_ms(CLOCK_REALTIME);
    shim_write_status(keeper->directory, &keeper->status);
    return SHIM_FAILED;
}

/* `told` is closed once the worker runs, or can't. */
int shim_keep(int directory, const struct shim_start *start, int told)
{
    struct keeper keeper = {.directory = directory, .start = start, .began = clock_ms(CLOCK_MONOTONIC)};
    keeper.status = (struct shim_status){.state = "running", .run = start->run, .exit_code = -1, .started_ms = clock_ms(CLOCK_REALTIME)};
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_NAME, "worker-shim");
    if (start->cgroup)
        keeper.status.cgroup_failure = join_cgroup(start->cgroup);
    shim_log_open(&keeper.log, directory, start);
    sigset_t taken;
    sigemptyset(&taken);
    sigaddset(&taken, SIGCHLD);
    sigaddset(&taken, SIGTERM);
    sigaddset(&taken, SIGINT);
    sigprocmask(SIG_BLOCK, &taken, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    keeper.signals = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    int output[2], failure[2] = {0, 0}, failures[2];
    if (keeper.signals < 0 || pipe2(output, O_CLOEXEC) != 0 || pipe2(failures, O_CLOEXEC) != 0)
        return fail(&keeper, "pipe", errno);
    keeper.output = output[0];
    pid_t shim = getpid(), child = fork();
    if (child < 0)
        return fail(&keeper, "fork", errno);
    if (child == 0)
        become(start, shim, output[1], failures[1]);
    close(output[1]);
    close(failures[1]);
    keeper.status.child = child;
    keeper.status.child_start = shim_start_time(child);
    ssize_t length = read(failures[0], failure, sizeof failure); /* nothing: exec has closed it */
    close(failures[0]);
    if (length == sizeof failure) {
        waitpid(child, NULL, 0);
        return fail(&keeper, step_name(failure[1]), failure[0]);
    }
    if (shim_write_status(directory, &keeper.status) != 0) {
        int why = errno; /* a worker that nobody can find again must not run */
        kill(-child, SIGKILL);
        waitpid(child, NULL, 0);
        end_descendants(child);
        return fail(&keeper, "status", why);
    }
    close(told);
    watch(&keeper);
    end_descendants(child);
    drain(&keeper);
    keeper.status.state = "exited";
    keeper.status.dropped = keeper.log.dropped;
    keeper.status.begun = keeper.log.begun;
    keeper.status.ran_ms = clock_ms(CLOCK_MONOTONIC) - keeper.began;
    keeper.status.ended_ms = clock_ms(CLOCK_REALTIME);
    if (shim_write_status(directory, &keeper.status) == 0)
        return 0;
    /* How it ended is worth more than what it said: where the disk is full, its own log makes room. */
    shim_log_remove(&keeper.log);
    return shim_write_status(directory, &keeper.status) == 0 ? 0 : SHIM_FAILED;
}
