/* Ends the process by SIGKILL at its Nth change of a regular file, after half of what it wanted to write.
 *
 * Preloaded into a test: crash_at(n) begins to count, crash_at(0) counts without an end; crash_count() tells how far.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static long counted;
static long last;
static bool counting;

void crash_at(long number) {
    counted = 0;
    last = number;
    counting = true;
}

long crash_count(void) { return counted; }

static bool reached(int descriptor) {
    struct stat found;
    if (!counting || fstat(descriptor, &found) != 0 || !S_ISREG(found.st_mode)) return false;
    counted += 1;
    return counted == last;
}

static void end(void) { raise(SIGKILL); }

/* dlsym gives a pointer to an object, and POSIX says that it may be called. */
#define REAL(type, name) ((type)dlsym(RTLD_NEXT, name))

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t at) {
    ssize_t (*real)(int, const void *, size_t, off64_t) = REAL(ssize_t (*)(int, const void *, size_t, off64_t), "pwrite64");
    if (reached(descriptor)) {
        real(descriptor, data, size / 2, at);
        end();
    }
    return real(descriptor, data, size, at);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t at) { return pwrite64(descriptor, data, size, at); }

ssize_t write(int descriptor, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = REAL(ssize_t (*)(int, const void *, size_t), "write");
    if (reached(descriptor)) {
        real(descriptor, data, size / 2);
        end();
    }
    return real(descriptor, data, size);
}

int ftruncate64(int descriptor, off64_t size) {
    int (*real)(int, off64_t) = REAL(int (*)(int, off64_t), "ftruncate64");
    if (reached(descriptor)) end();
    return real(descriptor, size);
}

int ftruncate(int descriptor, off_t size) { return ftruncate64(descriptor, size); }

int fdatasync(int descriptor) {
    int (*real)(int) = REAL(int (*)(int), "fdatasync");
    if (reached(descriptor)) end();
    return real(descriptor);
}

int fsync(int descriptor) {
    int (*real)(int) = REAL(int (*)(int), "fsync");
    if (reached(descriptor)) end();
    return real(descriptor);
}
