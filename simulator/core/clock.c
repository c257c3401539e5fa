/* The machine's clock: the host's monotonic clock, scaled, or a word that is advanced: virtual_clock.c. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 60000u /* the kernel's timer slack: a sleep is ended this much early and the rest is yielded away */

uint64_t sim_monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* Some milliseconds late, for a part of the cost. */
uint64_t sim_monotonic_coarse_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* A futex that other processes may wait on: not the PRIVATE operations. */
void sim_futex_wait(const uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    struct timespec limit = {.tv_sec = (time_t)(timeout_ns / 1000000000u), .tv_nsec = (long)(timeout_ns % 1000000000u)};
    int saved = errno; /* a driver call changes nobody's errno */
    syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout_ns == UINT64_MAX ? NULL : &limit, NULL, 0);
    errno = saved;
}

void sim_futex_wake(const uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

uint64_t sim_now(const struct sim_machine *machine)
{
    if (machine->system.clock_mode == SIM_CLOCK_VIRTUAL)
        return __atomic_load_n(&machine->virtual_now_ns, __ATOMIC_ACQUIRE); /* what the stepper did before is seen */
    uint64_t real = sim_monotonic_ns() - machine->clock_origin_ns;
    uint64_t scale = machine->system.clock_scale_ppm;
    if (scale == PPM)
        return real;
    return (uint64_t)((unsigned __int128)real * scale / PPM);
}

uint64_t sim_wall_ns(const struct sim_machine *machine, uint64_t sim_ns) { return machine->system.created_wall_ns + sim_ns; }

void sim_wake(struct sim_machine *machine, uint32_t *word)
{
    __atomic_fetch_add(word, 1, __ATOMIC_RELEASE); /* what changed is seen by who sees the word move */
    sim_futex_wake(word);
    if (machine->system.clock_mode == SIM_CLOCK_VIRTUAL)
        sim_virtual_wake(machine, word);
}

int sim_moved(const uint32_t *word, uint32_t seen)
{
    return word && __atomic_load_n(word, __ATOMIC_ACQUIRE) != seen; /* pairs with sim_wake */
}

static void wait_real(struct sim_machine *machine, uint64_t until, const uint32_t *word, uint32_t seen)
{
    for (;;) {
        if (sim_moved(word, seen))
            return;
        uint64_t left = UINT64_MAX;
        if (until != UINT64_MAX) {
            uint64_t now = sim_now(machine);
            if (now >= until)
                return;
            left = (uint64_t)((unsigned __int128)(until - now) * PPM / machine->system.clock_scale_ppm);
        }
        if (left <= SPIN_NS) {
            sched_yield();
        } else if (word) {
            sim_futex_wait(word, seen, left == UINT64_MAX ? left : left - SPIN_NS);
        } else {
            left = min_u64(left, UINT64_C(3600000000000)) - SPIN_NS;
            struct timespec span = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
            int saved = errno;
            nanosleep(&span, NULL);
            errno = saved;
        }
    }
}

void sim_wait(struct sim_machine *machine, uint64_t until_ns, const uint32_t *word, uint32_t seen)
{
    if (machine->system.clock_mode == SIM_CLOCK_VIRTUAL)
        sim_virtual_wait(machine, until_ns, word, seen);
    else
        wait_real(machine, until_ns, word, seen);
}
