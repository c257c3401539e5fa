/* What the simulated driver's calls cost, in nanoseconds on stdout, and loads for its other figures.
 *
 *   launch COUNT          launches of kernels that take no time
 *   allocate COUNT        an allocation of 1 MiB and its freeing, together
 *   busy SECONDS PERCENT  keeps one kernel of 1 ms after another running for PERCENT of each 20 ms, prints how many ran
 *   hold MIB              allocates, prints how many KiB the process grew, waits for the end of stdin
 *   endless               launches until it is killed */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cuda_abi.h"

CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuModuleLoadData(CUmodule *, const void *);
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *);
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **);
CUresult cuStreamCreate(CUstream *, unsigned);
CUresult cuStreamSynchronize(CUstream);
CUresult cuEventCreate(CUevent *, unsigned);
CUresult cuEventRecord(CUevent, CUstream);
CUresult cuEventSynchronize(CUevent);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemFree_v2(CUdeviceptr);

static CUstream stream;

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, (int)result);
        exit(1);
    }
}

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static CUfunction kernel(const char *name)
{
    CUmodule module;
    CUfunction function;
    must(cuModuleLoadData(&module, "\x7f\0\0\0\0\0\0\0any name is taken"), "module");
    must(cuModuleGetFunction(&function, module, name), "function");
    return function;
}

/* 13 of 132 SMs: a tenth of the GPU of the bench. */
static void launch(CUfunction function) { must(cuLaunchKernel(function, 26, 1, 1, 1024, 1, 1, 0, stream, NULL, NULL), "launch"); }

static void launches(long count)
{
    enum { BATCH = 500 }; /* less than a stream holds: no launch waits for room */
    CUfunction function = kernel("sim_us0");
    int64_t spent = 0;
    for (long done = 0; done < count; done += BATCH) {
        int64_t start = now();
        for (int i = 0; i < BATCH; i++)
            launch(function);
        spent += now() - start;
        must(cuStreamSynchronize(stream), "wait");
    }
    printf("%.1f\n", (double)spent / (double)count);
}

/* The least of short batches: whatever else runs on the host can only make one longer. */
static void allocations(long count)
{
    enum { BATCH = 200 };
    int64_t least = INT64_MAX;
    for (long done = 0; done < count; done += BATCH) {
        int64_t start = now();
        for (int i = 0; i < BATCH; i++) {
            CUdeviceptr address;
            must(cuMemAlloc_v2(&address, 1 << 20), "allocate");
            must(cuMemFree_v2(address), "free");
        }
        int64_t took = now() - start;
        least = took < least ? took : least;
    }
    printf("%.1f\n", (double)least / BATCH);
}

/* At 100 % there is always a batch waiting behind the one that runs: how fast the host is does not show. */
static void busy(double seconds, long percent)
{
    CUfunction function = kernel("sim_us1000");
    CUevent ends[2];
    must(cuEventCreate(&ends[0], CU_EVENT_DISABLE_TIMING), "event");
    must(cuEventCreate(&ends[1], CU_EVENT_DISABLE_TIMING), "event");
    int64_t start = now(), end = start + (int64_t)(seconds * 1e9);
    long ran = 0;
    for (long rounds = 0; now() < end; rounds++) {
        int64_t round = now();
        for (long i = 0; i < percent / 5; i++, ran++)
            launch(function);
        must(cuEventRecord(ends[rounds % 2], stream), "record");
        must(cuEventSynchronize(ends[percent < 100 ? rounds % 2 : (rounds + 1) % 2]), "wait");
        int64_t left = 20000000 - (now() - round);
        if (percent < 100 && left > 0)
            nanosleep(&(struct timespec){0, left}, NULL);
    }
    must(cuStreamSynchronize(stream), "wait");
    printf("%.6f %ld\n", (double)(now() - start) / 1e9, ran);
}

static long grown(void)
{
    long size, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &size, &resident) != 2)
        exit(1);
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

int main(int count, char **words)
{
    CUcontext context;
    const char *what = count > 1 ? words[1] : "";
    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, 0), "context");
    must(cuCtxSetCurrent(context), "current");
    must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "stream");
    if (strcmp(what, "launch") == 0 && count == 3) {
        launches(atol(words[2]));
    } else if (strcmp(what, "allocate") == 0 && count == 3) {
        allocations(atol(words[2]));
    } else if (strcmp(what, "busy") == 0 && count == 4) {
        busy(atof(words[2]), atol(words[3]));
    } else if (strcmp(what, "hold") == 0 && count == 3) {
        CUdeviceptr address;
        long before = grown();
        must(cuMemAlloc_v2(&address, (size_t)atol(words[2]) << 20), "allocate");
        printf("%ld\n", grown() - before);
    } else if (strcmp(what, "endless") == 0) {
        CUfunction function = kernel("sim_us10");
        puts("begun");
        fflush(stdout);
        for (;;)
            launch(function);
    } else {
        fputs("simulator_costs: which of launch, allocate, busy, hold, endless?\n", stderr);
        return 2;
    }
    return 0;
}
