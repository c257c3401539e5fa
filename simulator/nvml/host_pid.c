/* Pids as the host has them, which is what the real library lists wherever it is asked.
 *
 * A process of another PID namespace has told the machine the pid that it has there. Who asks from outside
 * finds it in /proc by both; who asks where it can't be seen is told the pid as it is.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "library.h"

#define REMEMBERED 256u

struct found { uint64_t pid_namespace; int32_t pid, host; };

static struct found remembered[REMEMBERED]; /* under the lock below; what no longer holds is looked for anew */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t inode_of(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* The pid that a process has in its own, innermost namespace; 0 where that can't be read. */
static int32_t innermost_pid(int32_t process)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/status", process);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    const ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = 0;
    char *line = strstr(text, "\nNSpid:");
    if (line == NULL)
        return 0;
    line += sizeof "\nNSpid:" - 1;
    line[strcspn(line, "\n")] = 0;
    const char *last = strrchr(line, '\t');
    return last == NULL ? 0 : (int32_t)strtol(last + 1, NULL, 10); /* the kernel's pids fit */
}

static bool is_it(int32_t process, uint64_t pid_namespace, int32_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/pid", process);
    return inode_of(path) == pid_namespace && innermost_pid(process) == pid;
}

static int32_t look_for(uint64_t pid_namespace, int32_t pid)
{
    DIR *processes = opendir("/proc");
    if (processes == NULL)
        return pid;
    int32_t host = 0;
    const struct dirent *entry;
    while (host == 0 && (entry = readdir(processes)) != NULL) {
        const int32_t process = (int32_t)strtol(entry->d_name, NULL, 10); /* 0 where the name is no number */
        if (process > 0 && is_it(process, pid_namespace, pid))
            host = process;
    }
    closedir(processes);
    return host > 0 ? host : pid;
}

int32_t host_pid(uint64_t pid_namespace, int32_t pid)
{
    static uint64_t own; /* written once, always the same */
    uint64_t ours = __atomic_load_n(&own, __ATOMIC_RELAXED);
    if (ours == 0) {
        ours = inode_of("/proc/self/ns/pid");
        __atomic_store_n(&own, ours, __ATOMIC_RELAXED);
    }
    if (pid_namespace == ours)
        return pid;
    const size_t place = (size_t)(pid_namespace * 31 + (uint64_t)(uint32_t)pid) % REMEMBERED;
    pthread_mutex_lock(&lock);
    struct found found = remembered[place];
    pthread_mutex_unlock(&lock);
    if (found.pid_namespace == pid_namespace && found.pid == pid && is_it(found.host, pid_namespace, pid))
        return found.host;
    found = (struct found){.pid_namespace = pid_namespace, .pid = pid, .host = look_for(pid_namespace, pid)};
    pthread_mutex_lock(&lock);
    remembered[place] = found;
    pthread_mutex_unlock(&lock);
    return found.host;
}
