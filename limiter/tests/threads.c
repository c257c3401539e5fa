/*
 * threads: every path that threads of one process share, at once, for the
 * thread sanitizer. Built together with the limiter's own sources, so that the
 * names below are its wrappers; the driver is whichever libcuda.so.1 is found.
 * Prints what is accounted in the end, which is nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes);
int cuMemFree_v2(uint64_t pointer);
int cuMemAllocManaged(uint64_t *pointer, size_t bytes, unsigned int flags);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
int cuDeviceGetCount(int *count);
int cuLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                   unsigned int block_y, unsigned int block_z, unsigned int shared, void *stream, void **parameters,
                   void **extra);

/* Of lookup_entry.c, which stays out: the sanitizer has a dlsym of its own. Nobody asks for them here. */
char hv_own_dlsym[1], hv_own_dlvsym[1];

#define THREADS 8
#define ROUNDS 300
#define HELD 16

static void *context;
static uint64_t mailbox[THREADS]; /* a pointer that another thread frees; 0: empty */

static void expect(int result, const char *what)
{
    if (result != 0) {
        fprintf(stderr, "threads: %s answers %d\n", what, result);
        exit(1);
    }
}

static void *work(void *argument)
{
    uintptr_t self = (uintptr_t)argument;
    uint64_t held[HELD];
    size_t left, total;
    int count;
    static char function[THREADS];
    expect(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (unsigned int round = 0; round < ROUNDS; round++) {
        for (unsigned int i = 0; i < HELD; i++) {
            size_t bytes = (size_t)1 << (9 + (round + i) % 14);
            expect(i % 5 == 0 ? cuMemAllocManaged(&held[i], bytes, 1) : cuMemAlloc_v2(&held[i], bytes), "an allocation");
        }
        held[0] = __atomic_exchange_n(&mailbox[(self + 1) % THREADS], held[0], __ATOMIC_ACQ_REL);
        for (unsigned int i = 0; i < HELD; i++)
            if (held[i] != 0)
                expect(cuMemFree_v2(held[i]), "cuMemFree");
        expect(cuMemGetInfo_v2(&left, &total), "cuMemGetInfo");
        expect(cuDeviceGetCount(&count), "cuDeviceGetCount");
        expect(cuLaunchKernel(&function[self], 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    size_t left, total;
    if (dlopen("libcuda.so.1", RTLD_NOW) == NULL)
        return 2;
    expect(cuInit(0), "cuInit");
    expect(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    expect(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (uintptr_t i = 0; i < THREADS; i++)
        expect(pthread_create(&threads[i], NULL, work, (void *)i), "pthread_create");
    for (unsigned int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned int i = 0; i < THREADS; i++)
        if (mailbox[i] != 0)
            expect(cuMemFree_v2(mailbox[i]), "cuMemFree");
    expect(cuMemGetInfo_v2(&left, &total), "cuMemGetInfo");
    printf("%zu\n", total - left);
    return 0;
}
