/*
 * load: a client of the CUDA driver API, for demonstrations, tests and benches.
 *
 * It keeps a device busy with kernels of a known length, holds device memory,
 * or grows until it is refused, and tells what it saw in one JSON object a
 * line on stdout. It runs unchanged on the simulated driver, which goes by the
 * kernel's name (sim_us<N> takes N microseconds), and on a real one, for which
 * the same name is a PTX kernel that spins for as long by the GPU's own timer.
 *
 * libcuda.so.1 is opened at run time, as CUDA's own runtime does it; the entry
 * points are looked up with cuGetProcAddress where --lookup=gpa says so, and
 * with dlsym otherwise.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct context *CUcontext;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef unsigned long long CUdeviceptr;

enum { CUDA_SUCCESS = 0, CUDA_ERROR_OUT_OF_MEMORY = 2 };
enum { MAX_STREAMS = 16, MAX_PROCESSES = 64, MAX_HELD = 65536 };

/* The entry points that are used: name, version asked of cuGetProcAddress,
 * exported symbol, parameters. */
#define ENTRY_POINTS(X) \
    X(cuInit, 2000, "cuInit", (unsigned)) \
    X(cuDeviceGet, 2000, "cuDeviceGet", (CUdevice *, int)) \
    X(cuDeviceGetCount, 2000, "cuDeviceGetCount", (int *)) \
    X(cuDevicePrimaryCtxRetain, 7000, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice)) \
    X(cuCtxSetCurrent, 4000, "cuCtxSetCurrent", (CUcontext)) \
    X(cuCtxSynchronize, 2000, "cuCtxSynchronize", (void)) \
    X(cuModuleLoadData, 2000, "cuModuleLoadData", (CUmodule *, const void *)) \
    X(cuModuleGetFunction, 2000, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *)) \
    X(cuLaunchKernel, 4000, "cuLaunchKernel", \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
    X(cuStreamCreate, 2000, "cuStreamCreate", (CUstream *, unsigned)) \
    X(cuStreamSynchronize, 2000, "cuStreamSynchronize", (CUstream)) \
    X(cuEventCreate, 2000, "cuEventCreate", (CUevent *, unsigned)) \
    X(cuEventRecord, 2000, "cuEventRecord", (CUevent, CUstream)) \
    X(cuEventSynchronize, 2000, "cuEventSynchronize", (CUevent)) \
    X(cuMemAlloc, 3020, "cuMemAlloc_v2", (CUdeviceptr *, size_t)) \
    X(cuMemFree, 3020, "cuMemFree_v2", (CUdeviceptr)) \
    X(cuMemGetInfo, 3020, "cuMemGetInfo_v2", (size_t *, size_t *)) \
    X(cuMemsetD8, 3020, "cuMemsetD8_v2", (CUdeviceptr, unsigned char, size_t)) \
    X(cuMemcpyHtoD, 3020, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t)) \
    X(cuMemcpyDtoH, 3020, "cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t))

#define DECLARE(name, version, symbol, parameters) static CUresult(*name) parameters;
ENTRY_POINTS(DECLARE)
#undef DECLARE

struct options {
    int device;
    unsigned kernel_us;
    unsigned grid;
    unsigned streams;
    unsigned depth;      /* launches in flight per stream */
    unsigned processes;
    double seconds;
    uint64_t hold_bytes;
    uint64_t grow_bytes; /* step of growth until refused; 0: don't grow */
    bool idle;           /* launch nothing */
    bool churn;          /* allocate and free at random instead of launching */
    bool through_gpa;
};

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    (void)number; /* both signals mean the same */
    stopped = 1;
}

static double now_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void fail(const char *what, CUresult result)
{
    fprintf(stderr, "load: %s failed with CUDA error %d\n", what, result);
    exit(1);
}

static void must(const char *what, CUresult result)
{
    if (result != CUDA_SUCCESS)
        fail(what, result);
}

static void resolve(bool through_gpa)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == NULL) {
        fprintf(stderr, "load: %s\n", dlerror());
        exit(1);
    }
    CUresult (*look_up)(const char *, void **, int, uint64_t, int *) = NULL;
    if (through_gpa) {
        /* POSIX: dlsym's pointer may be converted to a function pointer. */
        *(void **)&look_up = dlsym(driver, "cuGetProcAddress_v2");
        if (look_up == NULL) {
            fprintf(stderr, "load: the driver has no cuGetProcAddress_v2\n");
            exit(1);
        }
    }
#define RESOLVE(name, version, symbol, parameters) \
    { \
        void *found = NULL; \
        int status = 0; \
        if (look_up != NULL) \
            must("cuGetProcAddress of " #name, look_up(#name, &found, version, 0, &status)); \
        else \
            found = dlsym(driver, symbol); \
        if (found == NULL) { \
            fprintf(stderr, "load: the driver has no " symbol "\n"); \
            exit(1); \
        } \
        *(void **)&name = found; \
    }
    ENTRY_POINTS(RESOLVE)
#undef RESOLVE
}

/* A kernel that spins for kernel_us microseconds by the GPU's nanosecond timer. */
static CUfunction load_kernel(unsigned kernel_us)
{
    static char text[1024];
    char name[32];
    CUmodule module;
    CUfunction function;
    snprintf(name, sizeof name, "sim_us%u", kernel_us);
    snprintf(text, sizeof text,
             ".version 6.4\n.target sm_50\n.address_size 64\n"
             ".visible .entry %s()\n{\n"
             "  .reg .pred %%p;\n  .reg .u64 %%start, %%now, %%spent;\n"
             "  mov.u64 %%start, %%globaltimer;\n"
             "again:\n"
             "  mov.u64 %%now, %%globaltimer;\n"
             "  sub.u64 %%spent, %%now, %%start;\n"
             "  setp.lt.u64 %%p, %%spent, %" PRIu64 ";\n"
             "  @%%p bra again;\n"
             "  ret;\n}\n",
             name, (uint64_t)kernel_us * 1000);
    must("cuModuleLoadData", cuModuleLoadData(&module, text));
    must("cuModuleGetFunction", cuModuleGetFunction(&function, module, name));
    return function;
}

static void tell_memory(const char *when)
{
    size_t free_bytes = 0, total_bytes = 0;
    must("cuMemGetInfo", cuMemGetInfo(&free_bytes, &total_bytes));
    printf("{\"pid\": %d, \"memory\": \"%s\", \"free_bytes\": %zu, \"total_bytes\": %zu}\n", (int)getpid(), when,
           free_bytes, total_bytes);
    fflush(stdout);
}

/* Allocate step by step until refused, tell it, give one step back and check
 * that the rest still works. */
static void grow(uint64_t step)
{
    static CUdeviceptr held[MAX_HELD];
    unsigned count = 0;
    uint64_t bytes = 0;
    CUresult result = CUDA_SUCCESS;
    while (count < MAX_HELD && !stopped) {
        result = cuMemAlloc(&held[count], step);
        if (result != CUDA_SUCCESS)
            break;
        count++;
        bytes += step;
    }
    printf("{\"pid\": %d, \"refused\": %s, \"error\": %d, \"held_bytes\": %" PRIu64 ", \"asked_bytes\": %" PRIu64 "}\n",
           (int)getpid(), result == CUDA_ERROR_OUT_OF_MEMORY ? "true" : "false", result, bytes, step);
    fflush(stdout);
    if (count == 0)
        return;
    unsigned char out[64], in[64];
    memset(out, 0x5a, sizeof out);
    must("copy after the refusal", cuMemcpyHtoD(held[0], out, sizeof out));
    must("copy after the refusal", cuMemcpyDtoH(in, held[0], sizeof in));
    if (memcmp(in, out, sizeof in) != 0) {
        fprintf(stderr, "load: memory does not hold what was written\n");
        exit(1);
    }
    must("cuMemFree", cuMemFree(held[--count]));
    must("allocation of what was given back", cuMemAlloc(&held[count], step));
    printf("{\"pid\": %d, \"alive\": true}\n", (int)getpid());
    fflush(stdout);
}

/* Allocate and free blocks of 1 to 64 MiB at random, every two milliseconds; a
 * refusal is nothing special. */
static void churn(double seconds)
{
    enum { MOST_BLOCKS = 512 };
    static CUdeviceptr held[MOST_BLOCKS];
    unsigned count = 0;
    uint64_t granted = 0, refused = 0;
    unsigned seed = (unsigned)getpid();
    double end = now_seconds() + seconds;
    while (!stopped && now_seconds() < end) {
        struct timespec pause = {0, 2 * 1000 * 1000};
        bool more = count == 0 || (count < MOST_BLOCKS && rand_r(&seed) % 3 != 0);
        if (more && cuMemAlloc(&held[count], (size_t)(1 + rand_r(&seed) % 64) << 20) == CUDA_SUCCESS) {
            count++;
            granted++;
        } else {
            refused += more;
            if (count > 0) {
                unsigned victim = (unsigned)rand_r(&seed) % count;
                must("cuMemFree", cuMemFree(held[victim]));
                held[victim] = held[--count];
            }
        }
        nanosleep(&pause, NULL);
    }
    printf("{\"pid\": %d, \"granted\": %" PRIu64 ", \"turned_away\": %" PRIu64 "}\n", (int)getpid(), granted, refused);
    fflush(stdout);
}

static void run(const struct options *options)
{
    CUdevice device;
    CUcontext context;
    CUstream streams[MAX_STREAMS];
    static CUevent events[MAX_STREAMS][64];
    resolve(options->through_gpa);
    must("cuInit", cuInit(0));
    must("cuDeviceGet", cuDeviceGet(&device, options->device));
    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    tell_memory("start");
    if (options->hold_bytes > 0) {
        CUdeviceptr pointer;
        CUresult result = cuMemAlloc(&pointer, options->hold_bytes);
        if (result != CUDA_SUCCESS)
            fail("the allocation of --hold", result);
        tell_memory("held");
    }
    if (options->grow_bytes > 0)
        grow(options->grow_bytes);

    if (options->churn) {
        churn(options->seconds);
        return;
    }
    CUfunction kernel = options->idle ? NULL : load_kernel(options->kernel_us);
    for (unsigned s = 0; s < options->streams && kernel != NULL; s++) {
        must("cuStreamCreate", cuStreamCreate(&streams[s], 1 /* non-blocking */));
        for (unsigned d = 0; d < options->depth; d++)
            must("cuEventCreate", cuEventCreate(&events[s][d], 2 /* no timing */));
    }
    uint64_t launches = 0, rounds = 0;
    double begin = now_seconds(), end = begin + options->seconds, longest = 0;
    while (!stopped && now_seconds() < end) {
        if (kernel == NULL) {
            struct timespec pause = {0, 20 * 1000 * 1000};
            nanosleep(&pause, NULL);
            continue;
        }
        unsigned slot = (unsigned)(rounds % options->depth);
        for (unsigned s = 0; s < options->streams; s++) {
            /* The slot's launch of `depth` rounds ago must be over. */
            if (rounds >= options->depth)
                must("cuEventSynchronize", cuEventSynchronize(events[s][slot]));
            double before = now_seconds();
            must("cuLaunchKernel",
                 cuLaunchKernel(kernel, options->grid, 1, 1, 256, 1, 1, 0, streams[s], NULL, NULL));
            double took = now_seconds() - before;
            if (took > longest)
                longest = took;
            must("cuEventRecord", cuEventRecord(events[s][slot], streams[s]));
            launches++;
        }
        rounds++;
    }
    if (kernel != NULL)
        must("cuCtxSynchronize", cuCtxSynchronize());
    printf("{\"pid\": %d, \"launches\": %" PRIu64 ", \"seconds\": %.6f, \"kernel_us\": %u, "
           "\"longest_launch_seconds\": %.6f}\n",
           (int)getpid(), launches, now_seconds() - begin, options->kernel_us, longest);
    fflush(stdout);
}

static uint64_t number(const char *name, const char *text, uint64_t most)
{
    char *rest;
    errno = 0;
    unsigned long long value = strtoull(text, &rest, 10);
    if (errno != 0 || rest == text || *rest != '\0' || *text == '-' || value > most) {
        fprintf(stderr, "load: --%s takes a whole number up to %" PRIu64 ", not '%s'\n", name, most, text);
        exit(2);
    }
    return value;
}

static void usage(void)
{
    puts("load [--device=N] [--kernel-us=N] [--grid=N] [--streams=N] [--depth=N] [--processes=N]\n"
         "     [--seconds=S] [--hold=BYTES] [--grow=BYTES] [--idle] [--churn] [--lookup=dlsym|gpa]");
}

int main(int argc, char **argv)
{
    static const struct option known[] = {
        {"device", required_argument, NULL, 'd'},  {"kernel-us", required_argument, NULL, 'k'},
        {"grid", required_argument, NULL, 'g'},    {"streams", required_argument, NULL, 's'},
        {"depth", required_argument, NULL, 'q'},   {"processes", required_argument, NULL, 'p'},
        {"seconds", required_argument, NULL, 't'}, {"hold", required_argument, NULL, 'm'},
        {"grow", required_argument, NULL, 'w'},    {"idle", no_argument, NULL, 'i'},
        {"churn", no_argument, NULL, 'c'},
        {"lookup", required_argument, NULL, 'l'},  {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    struct options options = {
        .kernel_us = 1000, .grid = 108, .streams = 1, .depth = 4, .processes = 1, .seconds = 10};
    int choice;
    while ((choice = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (choice) {
        case 'd': options.device = (int)number("device", optarg, 1023); break;
        case 'k': options.kernel_us = (unsigned)number("kernel-us", optarg, 60000000); break;
        case 'g': options.grid = (unsigned)number("grid", optarg, 2147483647); break;
        case 's': options.streams = (unsigned)number("streams", optarg, MAX_STREAMS); break;
        case 'q': options.depth = (unsigned)number("depth", optarg, 64); break;
        case 'p': options.processes = (unsigned)number("processes", optarg, MAX_PROCESSES); break;
        case 't': options.seconds = strtod(optarg, NULL); break;
        case 'm': options.hold_bytes = number("hold", optarg, UINT64_MAX); break;
        case 'w': options.grow_bytes = number("grow", optarg, UINT64_MAX); break;
        case 'i': options.idle = true; break;
        case 'c': options.churn = true; break;
        case 'l': options.through_gpa = strcmp(optarg, "gpa") == 0; break;
        case 'h': usage(); return 0;
        default: usage(); return 2;
        }
    }
    if (options.streams == 0 || options.depth == 0 || options.processes == 0 || options.kernel_us == 0) {
        fprintf(stderr, "load: --streams, --depth, --processes and --kernel-us are at least 1\n");
        return 2;
    }
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    /* Children are made before CUDA is touched: a context does not survive fork. */
    pid_t children[MAX_PROCESSES];
    for (unsigned p = 1; p < options.processes; p++) {
        children[p] = fork();
        if (children[p] == 0) {
            run(&options);
            return 0;
        }
    }
    run(&options);
    int worst = 0;
    for (unsigned p = 1; p < options.processes; p++) {
        int status = 1;
        while (waitpid(children[p], &status, 0) < 0 && errno == EINTR) {
            kill(children[p], SIGTERM);
        }
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            worst = 1;
    }
    return worst;
}
