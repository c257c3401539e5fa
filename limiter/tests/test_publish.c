/* test: sources=limiter/daemon/shm.c,limiter/daemon/guard.c include=limiter/include,limiter/daemon seconds=60 */
/* Publishing against readers in other processes: no torn limits, a wake for who waits, and a writer that is killed at
   any moment leaves limits in force that it had published whole. */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "files.h"
#include "hypervisor_atomics.h"

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                      \
            _exit(1);                                                                                                 \
        }                                                                                                             \
    } while (0)

static int descriptor;
static struct hv_shm_view view;

/* Every word of limits number n is n, so that a mixture of two shows. */
static void fill(struct hv_limits *limits, uint64_t n)
{
    uint64_t *words = (uint64_t *)(void *)limits;
    for (size_t i = 0; i < sizeof *limits / sizeof *words; i++)
        words[i] = n;
}

static uint64_t whole(const struct hv_limits *limits)
{
    const uint64_t *words = (const uint64_t *)(const void *)limits;
    for (size_t i = 1; i < sizeof *limits / sizeof *words; i++)
        CHECK(words[i] == words[0]);
    return words[0];
}

static void make_file(void)
{
    FILE *stream = tmpfile();
    CHECK(stream != NULL);
    descriptor = fileno(stream);
    CHECK(ftruncate(descriptor, HV_SHM_FILE_BYTES) == 0);
    view = (struct hv_shm_view){.base = hv_map_file(descriptor, HV_SHM_FILE_BYTES),
                                .file_bytes = HV_SHM_FILE_BYTES,
                                .state_offset = HV_SHM_STATE_OFFSET,
                                .limits_offset = HV_SHM_LIMITS_OFFSET,
                                .limits_stride = sizeof(struct hv_limits),
                                .control_offset = HV_SHM_CONTROL_OFFSET,
                                .control_stride = sizeof(struct hv_device_control)};
    CHECK(view.base != NULL);
}

static uint64_t publish(uint64_t n)
{
    struct hv_limits limits;
    uint64_t generation;
    fill(&limits, n);
    CHECK(hv_shm_publish(&view, &limits, &generation) == 0);
    return generation;
}

static int64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* As the header says a reader does it, through a mapping that can't write. */
static uint64_t read_as_a_tenant(const unsigned char *base, uint64_t *generation)
{
    const struct hv_state *state = (const void *)(base + HV_SHM_STATE_OFFSET);
    struct hv_limits copy;
    uint64_t before;
    do {
        before = hv_load_acquire(&state->generation);
        memcpy(&copy, base + HV_SHM_LIMITS_OFFSET + (before & 1) * sizeof copy, sizeof copy);
        hv_fence_acquire();
    } while (hv_load_relaxed(&state->generation) != before);
    *generation = before;
    return whole(&copy);
}

static const unsigned char *map_read_only(void)
{
    const unsigned char *base = mmap(NULL, HV_SHM_FILE_BYTES, PROT_READ, MAP_SHARED, descriptor, 0);
    CHECK(base != MAP_FAILED);
    return base;
}

static pid_t start(void (*child)(void))
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        child();
        _exit(0);
    }
    return pid;
}

static void ended_well(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#define LAST 20000

static void read_until_last(void)
{
    const unsigned char *base = map_read_only();
    uint64_t generation = 0, last = 0;
    while (last < LAST) {
        uint64_t n = read_as_a_tenant(base, &generation);
        CHECK(n >= last && n == generation);
        last = n;
    }
}

static void readers_never_see_a_mixture(void)
{
    pid_t readers[2] = {start(read_until_last), start(read_until_last)};
    for (uint64_t n = 1; n <= LAST; n++)
        CHECK(publish(n) == n);
    ended_well(readers[0]);
    ended_well(readers[1]);
}

static void wait_for_a_change(void)
{
    const unsigned char *base = map_read_only();
    const struct hv_state *state = (const void *)(base + HV_SHM_STATE_OFFSET);
    int64_t deadline = now_ns() + 20 * INT64_C(1000000000);
    /* The low half of the generation, as a waiter of the limiter has it. */
    while (hv_load_acquire(&state->generation) == LAST) {
        CHECK(now_ns() < deadline);
        struct timespec most = {.tv_sec = 20};
        (void)syscall(SYS_futex, &state->generation, FUTEX_WAIT, (uint32_t)LAST, &most, NULL, 0);
    }
}

/* Sleeps in the futex, by the kernel's word, and is awake long before its time is over. */
static void a_waiter_is_woken(void)
{
    pid_t waiter = start(wait_for_a_change);
    char path[64], text[64] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/wchan", (int)waiter);
    int64_t deadline = now_ns() + 10 * INT64_C(1000000000);
    while (strstr(text, "futex") == NULL && now_ns() < deadline) {
        FILE *file = fopen(path, "r");
        if (file == NULL || fgets(text, sizeof text, file) == NULL)
            text[0] = '\0';
        if (file != NULL)
            (void)fclose(file);
        if (strcmp(text, "0") == 0 || text[0] == '\0') { /* the kernel does not say: give it a moment */
            (void)usleep(100 * 1000);
            break;
        }
    }
    int64_t began = now_ns();
    (void)publish(LAST + 1);
    ended_well(waiter);
    CHECK(now_ns() - began < 10 * INT64_C(1000000000));
}

static void publish_without_end(void)
{
    const struct hv_state *state = (const void *)((unsigned char *)view.base + HV_SHM_STATE_OFFSET);
    for (;;)
        (void)publish(hv_load_acquire(&state->generation) + 1);
}

/* kill -9 at random points of the writer; the reader runs on, and finds whole limits of the generation in force. */
static void a_killed_writer_leaves_whole_limits(void)
{
    const unsigned char *base = map_read_only();
    uint64_t generation;
    unsigned seed = 7;
    for (int round = 0; round < 100; round++) {
        pid_t writer = start(publish_without_end);
        (void)usleep(1000 + (useconds_t)(rand_r(&seed) % 3000)); /* the random point */
        (void)kill(writer, SIGKILL);
        CHECK(waitpid(writer, NULL, 0) == writer);
        CHECK(read_as_a_tenant(base, &generation) == generation);
    }
}

int main(void)
{
    make_file();
    readers_never_see_a_mixture();
    a_waiter_is_woken();
    a_killed_writer_leaves_whole_limits();
    return 0;
}
