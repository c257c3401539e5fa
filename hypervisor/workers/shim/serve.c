/* The launcher: a process of another unit or Pod than the daemon's, which starts shims where it lives itself. */
#define _GNU_SOURCE
#include "shim.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BACKLOG = 64, REQUEST_SECONDS = 5 };

static void answer(int connection, int status)
{
    char text[32];
    int length = snprintf(text, sizeof text, "%d\n", status);
    if (send(connection, text, (size_t)length, MSG_NOSIGNAL) < 0) /* a number: not negative */
        return; /* the daemon has gone; it reads the status file when it is back */
}

/* A directory right below the root, whatever links the name holds. */
static int allowed(const char *root, const char *name, char *resolved)
{
    char whole_root[PATH_MAX];
    if (!realpath(root, whole_root) || !realpath(name, resolved))
        return 0;
    size_t length = strlen(whole_root);
    return strncmp(resolved, whole_root, length) == 0 && resolved[length] == '/' && !strchr(resolved + length + 1, '/');
}

static void serve_one(int connection, const char *root, char *self)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    char name[PATH_MAX], resolved[PATH_MAX];
    struct timeval limit = {.tv_sec = REQUEST_SECONDS};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || (peer.uid != 0 && peer.uid != geteuid())) {
        answer(connection, SHIM_UNUSABLE);
        return;
    }
    ssize_t length = recv(connection, name, sizeof name - 1, 0);
    if (length <= 0)
        return;
    name[length] = 0;
    name[strcspn(name, "\n")] = 0;
    if (!allowed(root, name, resolved)) {
        answer(connection, SHIM_UNUSABLE);
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        char *arguments[] = {self, resolved, NULL};
        execv("/proc/self/exe", arguments);
        _exit(SHIM_FAILED);
    }
    int how = 0;
    if (child < 0 || waitpid(child, &how, 0) != child)
        answer(connection, SHIM_FAILED);
    else
        answer(connection, WIFEXITED(how) ? WEXITSTATUS(how) : SHIM_FAILED);
}

int shim_serve(const char *socket_path, const char *root, char *self)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(socket_path) >= sizeof address.sun_path) {
        fprintf(stderr, "worker-shim: the socket's path %s is longer than %zu bytes\n", socket_path, sizeof address.sun_path - 1);
        return SHIM_UNUSABLE;
    }
    memcpy(address.sun_path, socket_path, strlen(socket_path));
    int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unlink(socket_path); /* of a launcher before us */
    mode_t before = umask(0177);
    int bound = listening < 0 ? -1 : bind(listening, (struct sockaddr *)&address, sizeof address); /* as the socket API wants it */
    umask(before);
    if (bound != 0 || listen(listening, BACKLOG) != 0) {
        fprintf(stderr, "worker-shim: can't listen on %s: %s\n", socket_path, strerror(errno));
        return SHIM_FAILED;
    }
    signal(SIGHUP, SIG_IGN);
    for (;;) {
        int connection = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0)
            continue; /* a client that went away, or a shortage that passes */
        serve_one(connection, root, self);
        close(connection);
        while (waitpid(-1, NULL, WNOHANG) > 0)
            continue; /* as the first process of a container we are the parent of each shim that was left behind */
    }
}
