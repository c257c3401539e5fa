/* The clock and the waits on real time. */
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_SECOND UINT64_C(1000000000)

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_SECOND), .tv_nsec = (long)(ns % NS_PER_SECOND)};
}

uint64_t hv_os_now_ns(void)
{
    struct timespec now;
    /* Cannot fail for this clock, and goes through the vdso. */
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

void hv_os_wait_on_word(const uint32_t *word, uint32_t expected, uint64_t until_ns)
{
    int saved = errno;
    struct timespec until = timespec_of(until_ns);
    /* WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC. Not the private
     * form: the daemon wakes from another process. */
    (void)syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, &until, NULL, FUTEX_BITSET_MATCH_ANY);
    errno = saved;
}

void hv_os_wait_until(uint64_t until_ns)
{
    struct timespec until = timespec_of(until_ns);
    /* Returns its error instead of setting errno. */
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

void hv_os_yield(void)
{
    (void)sched_yield(); /* never fails on Linux */
}
