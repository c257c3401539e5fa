/* worker-shim DIRECTORY: returns when the worker runs (0), or can't, and leaves the shim behind in the background.
 * worker-shim --serve SOCKET ROOT: starts shims for the directories below ROOT that it is asked for, in the cgroup and
 * the container that it lives in itself. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

static int complain(int status, const char *what, const char *name)
{
    fprintf(stderr, "worker-shim: %s %s: %s\n", what, name, strerror(errno));
    return status;
}

static void leave_terminal(void)
{
    setsid();
    int nothing = open("/dev/null", O_RDWR);
    for (int fd = 0; nothing >= 0 && fd < 3; fd++)
        dup2(nothing, fd);
    if (nothing > 2)
        close(nothing);
    if (chdir("/") != 0)
        errno = 0; /* a root that can't be entered keeps another file system busy, and does no other harm */
}

int main(int count, char **arguments)
{
    if (count == 4 && strcmp(arguments[1], "--serve") == 0)
        return shim_serve(arguments[2], arguments[3], arguments[0]);
    if (count != 2) {
        fprintf(stderr, "usage: worker-shim DIRECTORY | worker-shim --serve SOCKET ROOT\n");
        return SHIM_UNUSABLE;
    }
    const char *name = arguments[1];
    int directory = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (directory < 0)
        return complain(SHIM_UNUSABLE, "can't open", name);
    int lock = openat(directory, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock < 0)
        return complain(SHIM_UNUSABLE, "can't open the lock in", name);
    if (flock(lock, LOCK_EX | LOCK_NB) != 0)
        return complain(SHIM_LOCKED, "another shim keeps", name);
    struct shim_start start;
    if (shim_read_start(directory, &start) != 0)
        return complain(SHIM_UNUSABLE, "can't use the start file in", name);
    int told[2];
    if (pipe2(told, O_CLOEXEC) != 0)
        return complain(SHIM_FAILED, "no pipe for", name);
    pid_t shim = fork(); /* it takes the lock along: the lock belongs to the open file */
    if (shim < 0)
        return complain(SHIM_FAILED, "can't fork for", name);
    if (shim == 0) {
        close(told[0]);
        leave_terminal();
        _exit(shim_keep(directory, &start, told[1]));
    }
    close(told[1]);
    char byte;
    while (read(told[0], &byte, 1) < 0 && errno == EINTR)
        continue;
    int how; /* a shim that could not start its worker has ended by now, or is about to */
    pid_t ended = waitpid(shim, &how, WNOHANG);
    (void)ended; /* what came of it stands in the status file, which the caller reads */
    return 0;
}
