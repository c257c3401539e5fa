/*
 * overhead: nanoseconds of a launch and of an allocation with its free, on
 * whichever libcuda.so.1 is found, with or without the limiter preloaded. Run
 * by tests/bench/bench_limiter.py, which alternates the two.
 *
 *   overhead init                       ns of the first lookup and cuInit
 *   overhead launch                     ns per launch, least of the batches
 *   overhead keep-launching             on the second processor, until stdin
 *                                       ends: what another one launches beside
 *   overhead memory LIVE THREADS [BYTES]
 *                                       ns per alloc and per free with so many
 *                                       allocations live, pairs per second and
 *                                       CPU time per pair
 *
 * One figure a line: name value unit.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BATCHES 60
#define LAUNCHES 20000
#define PAIRS 4000
#define MEMORY_BATCHES 600 /* also on a driver that does nothing, far longer than threads take to start */
#define MOST_THREADS 16

typedef int launch_type(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);

static void *driver;
static int (*mem_alloc)(uint64_t *, size_t);
static int (*mem_free)(uint64_t);
static void *context;
static size_t allocation_bytes = 4096;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Of all threads of the process. */
static uint64_t cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

static void *look_up(const char *name)
{
    void *function = dlsym(driver, name);
    if (function == NULL) {
        fprintf(stderr, "overhead: the driver has no %s\n", name);
        exit(1);
    }
    return function;
}

static void expect(int result, const char *what)
{
    if (result != 0) {
        fprintf(stderr, "overhead: %s answers %d\n", what, result);
        exit(1);
    }
}

static void pin(unsigned cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    CPU_SET(online > 0 ? cpu % (unsigned)online : cpu, &set); /* positive */
    (void)sched_setaffinity(0, sizeof set, &set); /* without it the figures only spread more */
}

static void start_driver(void)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "overhead: %s\n", dlerror());
        exit(1);
    }
    expect(((int (*)(unsigned))look_up("cuInit"))(0), "cuInit");
    expect(((int (*)(void **, int))look_up("cuDevicePrimaryCtxRetain"))(&context, 0), "cuDevicePrimaryCtxRetain");
    expect(((int (*)(void *))look_up("cuCtxSetCurrent"))(context), "cuCtxSetCurrent");
}

static void *find_kernel(void)
{
    void *module = NULL;
    void *function = NULL;
    expect(((int (*)(void **, const void *))look_up("cuModuleLoadData"))(&module, ".version 7.0"), "cuModuleLoadData");
    expect(((int (*)(void **, void *, const char *))look_up("cuModuleGetFunction"))(&function, module, "sim_us1"),
           "cuModuleGetFunction");
    return function;
}

static void launch_batch(launch_type *launch, void *function)
{
    for (int i = 0; i < LAUNCHES; i++)
        expect(launch(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
}

static void keep_launching(void)
{
    launch_type *launch = (launch_type *)look_up("cuLaunchKernel");
    void *function = find_kernel();
    struct pollfd end = {.fd = STDIN_FILENO, .events = POLLIN};
    pin(1);
    launch_batch(launch, function);
    puts("ready 1 process");
    fflush(stdout);
    while (poll(&end, 1, 0) == 0)
        launch_batch(launch, function);
}

static void measure_launch(void)
{
    launch_type *launch = (launch_type *)look_up("cuLaunchKernel");
    void *function = find_kernel();
    uint64_t least = UINT64_MAX;
    for (int batch = 0; batch < BATCHES; batch++) {
        uint64_t began = now_ns();
        launch_batch(launch, function);
        uint64_t took = now_ns() - began;
        least = took < least ? took : least;
    }
    printf("launch %.2f ns\n", (double)least / LAUNCHES);
}

struct worker {
    double alloc_ns, free_ns;
    uint64_t began, ended;
    unsigned cpu;
    pthread_barrier_t *together; /* threads that do not run at once say nothing about each other */
};

static void *run_pairs(void *argument)
{
    struct worker *worker = argument;
    static __thread uint64_t pointers[PAIRS];
    uint64_t least_alloc = UINT64_MAX, least_free = UINT64_MAX;
    pin(worker->cpu);
    expect(((int (*)(void *))look_up("cuCtxSetCurrent"))(context), "cuCtxSetCurrent");
    pthread_barrier_wait(worker->together);
    worker->began = now_ns();
    for (int batch = 0; batch < MEMORY_BATCHES; batch++) {
        uint64_t began = now_ns();
        for (int i = 0; i < PAIRS; i++)
            expect(mem_alloc(&pointers[i], allocation_bytes), "cuMemAlloc");
        uint64_t middle = now_ns();
        for (int i = 0; i < PAIRS; i++)
            expect(mem_free(pointers[i]), "cuMemFree");
        uint64_t ended = now_ns();
        least_alloc = middle - began < least_alloc ? middle - began : least_alloc;
        least_free = ended - middle < least_free ? ended - middle : least_free;
    }
    worker->alloc_ns = (double)least_alloc / PAIRS;
    worker->free_ns = (double)least_free / PAIRS;
    worker->ended = now_ns();
    return NULL;
}

static void measure_memory(unsigned long live, unsigned threads)
{
    struct worker workers[MOST_THREADS] = {0};
    pthread_t handles[MOST_THREADS];
    pthread_barrier_t together;
    mem_alloc = (int (*)(uint64_t *, size_t))look_up("cuMemAlloc_v2");
    mem_free = (int (*)(uint64_t))look_up("cuMemFree_v2");
    uint64_t pointer;
    for (unsigned long i = 0; i < live; i++)
        expect(mem_alloc(&pointer, allocation_bytes), "cuMemAlloc");
    uint64_t cpu_before = cpu_ns();
    pthread_barrier_init(&together, NULL, threads);
    for (unsigned i = 0; i < threads; i++) {
        workers[i].cpu = i;
        workers[i].together = &together;
        if (pthread_create(&handles[i], NULL, run_pairs, &workers[i]) != 0)
            exit(1);
    }
    uint64_t began = UINT64_MAX, ended = 0;
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(handles[i], NULL);
        began = workers[i].began < began ? workers[i].began : began;
        ended = workers[i].ended > ended ? workers[i].ended : ended;
    }
    double all = (double)MEMORY_BATCHES * PAIRS * threads;
    double pairs = all * 1e9 / (double)(ended - began);
    double cpu_pair = (double)(cpu_ns() - cpu_before) / all;
    printf("alloc %.1f ns\nfree %.1f ns\npairs %.0f 1/s\ncpu_pair %.1f ns\n", workers[0].alloc_ns, workers[0].free_ns,
           pairs, cpu_pair);
}

int main(int count, char **arguments)
{
    pin(0);
    uint64_t began = now_ns();
    start_driver();
    if (count >= 2 && strcmp(arguments[1], "init") == 0) {
        printf("init %.0f ns\n", (double)(now_ns() - began));
    } else if (count >= 2 && strcmp(arguments[1], "launch") == 0) {
        measure_launch();
    } else if (count == 2 && strcmp(arguments[1], "keep-launching") == 0) {
        keep_launching();
    } else if ((count == 4 || count == 5) && strcmp(arguments[1], "memory") == 0) {
        if (count == 5)
            allocation_bytes = strtoul(arguments[4], NULL, 10);
        unsigned long threads = strtoul(arguments[3], NULL, 10);
        measure_memory(strtoul(arguments[2], NULL, 10), threads > MOST_THREADS ? MOST_THREADS : (unsigned)threads);
    } else {
        fprintf(stderr, "overhead: init | launch | keep-launching | memory LIVE THREADS [BYTES]\n");
        return 2;
    }
    return 0;
}
