/* test: sources=limiter/daemon/guard.c,limiter/daemon/usage.c include=limiter/include,limiter/daemon
   variants=plain,address,thread flags=-Wno-unused-parameter seconds=60 */
/* Guarded access to files that somebody truncates meanwhile: an answer, and the program's own handlers as before. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "files.h"
#include "guard.h"

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                      \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

#define BYTES HV_USAGE_FILE_BYTES

struct file {
    int descriptor;
    unsigned char *base;
};

static struct file make_file(void)
{
    FILE *stream = tmpfile();
    CHECK(stream != NULL);
    struct file file = {.descriptor = fileno(stream)};
    CHECK(ftruncate(file.descriptor, BYTES) == 0);
    file.base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor, 0);
    CHECK(file.base != MAP_FAILED);
    return file;
}

static void touch(void *context)
{
    *(volatile unsigned char *)context += 1;
}

static void a_whole_file_is_touched(void)
{
    struct file file = make_file();
    CHECK(hv_guarded(file.base, BYTES, touch, file.base + 5000));
    CHECK(file.base[5000] == 1);
}

static void a_lost_page_is_an_answer_again_and_again(void)
{
    struct file file = make_file();
    CHECK(ftruncate(file.descriptor, 4096) == 0);
    for (int i = 0; i < 100; i++)
        CHECK(!hv_guarded(file.base, BYTES, touch, file.base + 5000));
    CHECK(hv_guarded(file.base, BYTES, touch, file.base));
    sigset_t blocked;
    CHECK(sigprocmask(SIG_SETMASK, NULL, &blocked) == 0 && !sigismember(&blocked, SIGBUS));
}

static sigjmp_buf back;
static volatile sig_atomic_t others;

static void other_handler(int number)
{
    others++;
    siglongjmp(back, 1);
}

static void the_handler_of_the_program_is_put_back(void)
{
    struct file file = make_file();
    struct sigaction mine = {.sa_handler = other_handler}, found;
    CHECK(sigaction(SIGBUS, &mine, NULL) == 0);
    CHECK(ftruncate(file.descriptor, 0) == 0);
    CHECK(!hv_guarded(file.base, BYTES, touch, file.base));
    CHECK(others == 0);
    CHECK(sigaction(SIGBUS, NULL, &found) == 0 && found.sa_handler == other_handler);
    /* And it still gets what is its own. */
    if (sigsetjmp(back, 1) == 0)
        touch(file.base);
    CHECK(others == 1);
    struct sigaction usual = {.sa_handler = SIG_DFL};
    CHECK(sigaction(SIGBUS, &usual, NULL) == 0);
}

static pthread_barrier_t inside;

static void wait_inside(void *context)
{
    (void)pthread_barrier_wait(&inside);
    (void)pthread_barrier_wait(&inside);
}

static void *guard_for_a_while(void *context)
{
    struct file *file = context;
    CHECK(hv_guarded(file->base, BYTES, wait_inside, NULL));
    return NULL;
}

/* A SIGBUS of another thread, while one is guarded, goes to the program's handler. */
static void a_fault_of_another_thread_is_not_ours(void)
{
    struct file guarded = make_file(), lost = make_file();
    struct sigaction mine = {.sa_handler = other_handler}, usual = {.sa_handler = SIG_DFL};
    CHECK(sigaction(SIGBUS, &mine, NULL) == 0);
    CHECK(ftruncate(lost.descriptor, 0) == 0);
    CHECK(pthread_barrier_init(&inside, NULL, 2) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, guard_for_a_while, &guarded) == 0);
    others = 0;
    (void)pthread_barrier_wait(&inside);
    if (sigsetjmp(back, 1) == 0)
        touch(lost.base);
    CHECK(others == 1);
    (void)pthread_barrier_wait(&inside);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(sigaction(SIGBUS, &usual, NULL) == 0);
}

static void fault_outside(void *context)
{
    touch(context);
}

/* Outside the range it ends the process, as it would have without us. */
static void a_fault_outside_the_range_ends_the_process(void)
{
    struct file guarded = make_file(), lost = make_file();
    CHECK(ftruncate(lost.descriptor, 0) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct sigaction usual = {.sa_handler = SIG_DFL};
        (void)sigaction(SIGBUS, &usual, NULL);
        (void)hv_guarded(guarded.base, BYTES, fault_outside, lost.base);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

static struct hv_usage_view view(void)
{
    return (struct hv_usage_view){.file_bytes = BYTES,
                                  .devices_offset = HV_USAGE_DEVICES_OFFSET,
                                  .device_stride = sizeof(struct hv_device_usage),
                                  .occupancy_offset = HV_USAGE_OCCUPANCY_OFFSET,
                                  .slots_offset = HV_USAGE_SLOTS_OFFSET,
                                  .slot_stride = sizeof(struct hv_process_slot)};
}

static atomic_bool stop;

static void *truncate_and_grow(void *context)
{
    struct file *file = context;
    while (!atomic_load(&stop)) {
        CHECK(ftruncate(file->descriptor, 0) == 0);
        CHECK(ftruncate(file->descriptor, BYTES) == 0);
    }
    return NULL;
}

struct counted {
    struct file *file;
    int lost;
};

static void *recount_all_the_time(void *context)
{
    struct counted *counted = context;
    struct hv_usage_view whole = view();
    static _Thread_local uint64_t states[HV_PROCESS_SLOTS];
    struct hv_usage_survey *survey = malloc(sizeof *survey);
    CHECK(survey != NULL);
    while (!atomic_load(&stop)) {
        uint64_t before, after;
        int result = hv_usage_recount(counted->file->base, &whole, 3, &before, &after);
        CHECK(result >= -1 && result <= HV_RECOUNT_BUSY);
        counted->lost += result == -1;
        result = hv_usage_return_slot(counted->file->base, &whole, 511, 2, 0, 1);
        CHECK(result >= -1 && result <= 1);
        result = hv_usage_survey(counted->file->descriptor, &whole, 1, states, survey);
        CHECK(result == 0 || result == 1);
    }
    free(survey);
    return NULL;
}

/* A tenant that truncates without end, and two threads that recount: no crash. */
static void a_race_with_a_truncating_tenant_is_survived(void)
{
    struct file file = make_file();
    struct counted counted[2] = {{.file = &file}, {.file = &file}};
    pthread_t tenant, daemon[2];
    CHECK(pthread_create(&tenant, NULL, truncate_and_grow, &file) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&daemon[i], NULL, recount_all_the_time, &counted[i]) == 0);
    (void)usleep(500 * 1000); /* how long the race runs, not something to wait for */
    atomic_store(&stop, true);
    CHECK(pthread_join(tenant, NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(daemon[i], NULL) == 0);
    (void)printf("pages lost under a recount: %d and %d times\n", counted[0].lost, counted[1].lost);
}

int main(void)
{
    a_whole_file_is_touched();
    a_lost_page_is_an_answer_again_and_again();
    the_handler_of_the_program_is_put_back();
    a_fault_of_another_thread_is_not_ours();
    a_fault_outside_the_range_ends_the_process();
    a_race_with_a_truncating_tenant_is_survived();
    return 0;
}
