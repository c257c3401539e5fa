/* The machine's clock: the host's monotonic clock, scaled, or a word that a test advances. */
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
    if (machine->system.clock_mode == SIM_CLOCK_VIRTUAL) { /* there, every wait is on the clock's word */
        __atomic_fetch_add(&machine->clock_wake, 1, __ATOMIC_RELEASE);
        sim_futex_wake(&machine->clock_wake);
    }
}

static int moved(const uint32_t *word, uint32_t seen)
{
    return word && __atomic_load_n(word, __ATOMIC_ACQUIRE) != seen; /* pairs with sim_wake */
}

static void wait_real(struct sim_machine *machine, uint64_t until, const uint32_t *word, uint32_t seen)
{
    for (;;) {
        if (moved(word, seen))
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

static struct sim_waiter *claim_waiter(struct sim_machine *machine, int32_t thread, uint64_t until, const uint32_t *word, uint32_t seen)
{
    for (;;) {
        for (uint32_t i = 0; i < SIM_MAX_WAITERS; i++) {
            struct sim_waiter *waiter = &machine->waiters[i];
            int32_t free_slot = 0;
            if (!__atomic_compare_exchange_n(&waiter->thread, &free_slot, -1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
                continue; /* relaxed on failure: nothing of the slot is read */
            waiter->until_ns = until;
            waiter->seen = seen;
            waiter->word_offset = word ? (uint64_t)((const char *)word - (const char *)machine) : 0; /* words lie in the machine */
            __atomic_store_n(&waiter->thread, thread, __ATOMIC_RELEASE); /* until_ns is set before it counts */
            __atomic_fetch_add(&machine->waiter_wake, 1, __ATOMIC_RELEASE);
            sim_futex_wake(&machine->waiter_wake);
            return waiter;
        }
        sched_yield();
    }
}

static void wait_virtual(struct sim_machine *machine, uint64_t until, const uint32_t *word, uint32_t seen)
{
    if (sim_now(machine) >= until || moved(word, seen))
        return;
    int32_t mine = (int32_t)syscall(SYS_gettid);
    struct sim_waiter *waiter = claim_waiter(machine, mine, until, word, seen);
    for (;;) {
        uint32_t clock = __atomic_load_n(&machine->clock_wake, __ATOMIC_ACQUIRE);
        if (sim_now(machine) >= until || moved(word, seen))
            break;
        /* The stepper may have meant the wait before, which ended by itself and was in the same slot; then the clock's
         * word moves after it, and we are here again. */
        if (__atomic_load_n(&waiter->thread, __ATOMIC_ACQUIRE) != mine)
            waiter = claim_waiter(machine, mine, until, word, seen);
        sim_futex_wait(&machine->clock_wake, clock, UINT64_MAX);
    }
    /* The stepper frees the slots of those it wakes, so that they do not count as waiting while they wake up. */
    __atomic_compare_exchange_n(&waiter->thread, &mine, 0, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

void sim_wait(struct sim_machine *machine, uint64_t until_ns, const uint32_t *word, uint32_t seen)
{
    if (machine->system.clock_mode == SIM_CLOCK_VIRTUAL)
        wait_virtual(machine, until_ns, word, seen);
    else
        wait_real(machine, until_ns, word, seen);
}

/* The next moment up to this one at which something ends on some GPU. */
static uint64_t next_end(struct sim_machine *machine, uint64_t until_ns)
{
    for (uint32_t i = 0; i < machine->gpu_count; i++) {
        sim_enter_gpu(machine, i);
        uint64_t next = sim_schedule_next(machine, i);
        sim_unlock_gpu(machine, i);
        until_ns = min_u64(until_ns, next);
    }
    return until_ns;
}

/* What ends on one GPU may be what a stream of another waits for, so several go from one end to the next together. */
static void advance_together(struct sim_machine *machine, uint64_t now, uint64_t until)
{
    while (now < until) {
        uint64_t next = machine->gpu_count > 1 ? max_u64(next_end(machine, until), now + 1) : until;
        __atomic_add_fetch(&machine->virtual_now_ns, next - now, __ATOMIC_ACQ_REL); /* a clock: one order for all */
        now = next;
        sim_machine_advance(machine);
        if (machine->gpu_count > 1)
            sim_machine_advance(machine); /* those before the one that ended */
    }
}

void sim_machine_step(struct sim_machine *machine, uint64_t ns)
{
    uint64_t began = sim_now(machine), now = began + ns;
    advance_together(machine, began, now);
    if (ns == 0)
        sim_machine_advance(machine);
    for (uint32_t i = 0; i < SIM_MAX_WAITERS; i++) {
        struct sim_waiter *waiter = &machine->waiters[i];
        int32_t thread = __atomic_load_n(&waiter->thread, __ATOMIC_ACQUIRE);
        if (thread > 0 && waiter->until_ns <= now)
            __atomic_compare_exchange_n(&waiter->thread, &thread, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    }
    __atomic_fetch_add(&machine->clock_wake, 1, __ATOMIC_RELEASE);
    sim_futex_wake(&machine->clock_wake);
}

/* Has what it waits for come, and it only has not been given a processor yet? Then time must not go on without it. */
static int is_waking(const struct sim_machine *machine, const struct sim_waiter *waiter)
{
    const uint64_t offset = waiter->word_offset;
    if (offset == 0 || offset > sizeof *machine - sizeof(uint32_t))
        return 0;
    return moved((const uint32_t *)(const void *)((const char *)machine + offset), waiter->seen); /* as it was made */
}

uint32_t sim_machine_waiting(struct sim_machine *machine, uint64_t *earliest_ns)
{
    uint32_t count = 0;
    *earliest_ns = UINT64_MAX;
    for (uint32_t i = 0; i < SIM_MAX_WAITERS; i++) {
        struct sim_waiter *waiter = &machine->waiters[i];
        int32_t thread = __atomic_load_n(&waiter->thread, __ATOMIC_ACQUIRE);
        if (thread <= 0)
            continue;
        if (kill(thread, 0) != 0 && errno == ESRCH) { /* killed while it waited; kill() finds threads too */
            __atomic_compare_exchange_n(&waiter->thread, &thread, 0, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
            continue;
        }
        if (is_waking(machine, waiter))
            continue;
        *earliest_ns = min_u64(*earliest_ns, waiter->until_ns);
        count++;
    }
    return count;
}

int sim_machine_run_until(struct sim_machine *machine, uint64_t until_ns, uint32_t participants, uint64_t real_timeout_ns)
{
    while (sim_now(machine) < until_ns) {
        uint64_t deadline = sim_monotonic_ns() + real_timeout_ns, earliest;
        for (;;) {
            uint32_t seen = __atomic_load_n(&machine->waiter_wake, __ATOMIC_ACQUIRE);
            if (sim_machine_waiting(machine, &earliest) >= participants)
                break;
            uint64_t now = sim_monotonic_ns();
            if (now >= deadline)
                return SIM_NOT_FOUND;
            sim_futex_wait(&machine->waiter_wake, seen, min_u64(deadline - now, 10000000u)); /* and look for the dead each 10 ms */
        }
        uint64_t now = sim_now(machine); /* a deadline already past: its waiter is just noticing; step by nothing */
        sim_machine_step(machine, max_u64(min_u64(earliest, until_ns), now) - now);
    }
    return SIM_OK;
}
