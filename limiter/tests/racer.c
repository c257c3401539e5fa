/*
 * racer: says "ready" when it has a context, waits for a line, then allocates
 * and frees at random. After the signal SIGUSR1 it says "still" and keeps what
 * it has until its stdin ends. Linked to the driver.
 *
 *   racer SEED LARGEST_MIB
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes);
int cuMemAllocManaged(uint64_t *pointer, size_t bytes, unsigned int flags);
int cuMemFree_v2(uint64_t pointer);

#define HELD 64

static volatile sig_atomic_t to_hold_still;

static void hold_still(int signal_number)
{
    (void)signal_number;
    to_hold_still = 1;
}

static int one_more(uint64_t *pointer, unsigned int *seed, unsigned long largest)
{
    size_t bytes = ((size_t)rand_r(seed) % largest << 20) + (size_t)rand_r(seed) % (1 << 20) + 1;
    return rand_r(seed) % 4 == 0 ? cuMemAllocManaged(pointer, bytes, 1) : cuMemAlloc_v2(pointer, bytes);
}

int main(int count, char **arguments)
{
    uint64_t held[HELD];
    int used = 0;
    void *context;
    if (count != 3)
        return 2;
    unsigned int seed = (unsigned int)strtoul(arguments[1], NULL, 10);
    unsigned long largest = strtoul(arguments[2], NULL, 10);
    signal(SIGUSR1, hold_still);
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0 || cuCtxSetCurrent(context) != 0)
        return 3;
    puts("ready");
    fflush(stdout);
    (void)getchar(); /* the start of the race */
    while (!to_hold_still) {
        if (used < HELD && one_more(&held[used], &seed, largest) == 0)
            used++;
        else if (used > 0 && cuMemFree_v2(held[--used]) != 0)
            return 4;
    }
    puts("still");
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    return 0;
}
