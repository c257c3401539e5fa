/* The virtual clock: a word that moves by a step, or on its own while sim_machine_run_until is under way.
 *
 * Then whoever comes to wait as the last of the participants moves it to the next deadline and lets the one go on
 * whose deadline that is: itself, without any switch of threads, or one other. So one participant runs at a time, those
 * of the same moment in the order in which they came to wait, and the same programs give the same figures each time.
 *
 * A waiter sleeps on its own row, by the thread that is written there: to free the row is to let it go. It then looks
 * for what it waits for, and takes a row again when that has not come. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK_NS UINT64_C(10000000)      /* of real time: how often sim_machine_run_until looks whether all goes on */
#define PATIENCE_NS UINT64_C(200000000) /* of real time in which nothing went on: who has the turn waits for another one */
#define ELSEWHERE UINT64_MAX            /* a word that lies in another file */

static uint64_t offset_of(const struct sim_machine *machine, const uint32_t *word)
{
    const uintptr_t begin = (uintptr_t)machine, at = (uintptr_t)word;
    if (!word)
        return 0;
    return at >= begin && at - begin < sizeof *machine ? at - begin : ELSEWHERE;
}

/* Rows that were ever used; one that a test or a scribble made too high is bounded. */
static uint32_t rows(const struct sim_machine *machine)
{
    return (uint32_t)min_u64(__atomic_load_n(&machine->waiter_high, __ATOMIC_ACQUIRE), SIM_MAX_WAITERS); /* a small number */
}

/* All of a row and of what it waits for is in memory in one order for all: who takes a row and then looks sees what
 * moved, or who moves something and then looks sees the row. */
static int let_go(struct sim_waiter *waiter, int32_t thread)
{
    return __atomic_compare_exchange_n(&waiter->thread, &thread, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED); /* relaxed on failure: nothing of the row is read */
}

/* Who was let go sleeps until then. The futex's word is the row's, with the same bits as the kernel compares. */
static void wake(const struct sim_waiter *waiter) { sim_futex_wake((const uint32_t *)(const void *)&waiter->thread); }

/* Frees the rows of all who wait for the word at this offset; how many there were. */
static uint32_t let_go_all_of(struct sim_machine *machine, uint64_t offset)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < rows(machine); i++) {
        struct sim_waiter *waiter = &machine->waiters[i];
        int32_t thread = __atomic_load_n(&waiter->thread, __ATOMIC_SEQ_CST);
        if (thread <= 0 || waiter->word_offset != offset || !let_go(waiter, thread))
            continue;
        wake(waiter);
        found++;
    }
    return found;
}

/* Clock locked: whoever waits for the word at this offset has the turn once, to look, in the order in which they came. */
static void make_due(struct sim_machine *machine, uint64_t offset)
{
    for (uint32_t i = 0; i < rows(machine); i++) {
        struct sim_waiter *waiter = &machine->waiters[i];
        if (__atomic_load_n(&waiter->thread, __ATOMIC_SEQ_CST) > 0 && waiter->word_offset == offset)
            waiter->until_ns = 0;
    }
}

/* Whoever sleeps on the clock's word for "anything at all" has a look; how many of them have a row. */
static uint32_t tell_everybody(struct sim_machine *machine)
{
    __atomic_fetch_add(&machine->clock_wake, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&machine->clock_sleepers, __ATOMIC_SEQ_CST) != 0)
        sim_futex_wake(&machine->clock_wake);
    return let_go_all_of(machine, offsetof(struct sim_machine, clock_wake));
}

void sim_clock_sleep(struct sim_machine *machine, uint32_t seen, uint64_t timeout_ns)
{
    /* Killed in between, it leaves a count that is too high: then each step makes a call in vain. */
    __atomic_fetch_add(&machine->clock_sleepers, 1, __ATOMIC_SEQ_CST);
    sim_futex_wait(&machine->clock_wake, seen, timeout_ns);
    __atomic_fetch_sub(&machine->clock_sleepers, 1, __ATOMIC_SEQ_CST);
}

void sim_virtual_wake(struct sim_machine *machine, const uint32_t *word)
{
    tell_everybody(machine);
    let_go_all_of(machine, offset_of(machine, word));
}

/* ---- time ---- */

static void clock_to(struct sim_machine *machine, uint64_t now_ns)
{
    __atomic_store_n(&machine->virtual_now_ns, now_ns, __ATOMIC_SEQ_CST); /* a clock: one order for all */
}

/* All GPUs locked: to the next end on any of them, at most to `until`; gives that moment. What ends on one may be what a
 * stream of another waits for, and then also of one that comes before it. */
static uint64_t to_next_end(struct sim_machine *machine, uint64_t now, uint64_t until)
{
    uint64_t next = until;
    for (uint32_t i = 0; i < machine->gpu_count; i++)
        next = min_u64(next, sim_schedule_next(machine, i));
    next = max_u64(next, now + 1);
    clock_to(machine, next);
    for (uint32_t i = 0; i < 2 * machine->gpu_count; i++)
        sim_schedule(machine, i % machine->gpu_count, next);
    return next;
}

/* Clock locked. Several GPUs go from one end to the next together, and stop where a timed fault is due. */
static void advance(struct sim_machine *machine, uint64_t now, uint64_t until)
{
    if (machine->gpu_count == 1)
        clock_to(machine, until);
    sim_machine_advance(machine); /* serves what is due */
    while (machine->gpu_count > 1 && now < until) {
        for (uint32_t i = 0; i < machine->gpu_count; i++)
            sim_lock_gpu(machine, i);
        do
            now = to_next_end(machine, now, until);
        while (now < until && now < __atomic_load_n(&machine->next_device_fault_ns, __ATOMIC_RELAXED)); /* a hint */
        for (uint32_t i = machine->gpu_count; i-- > 0;)
            sim_unlock_gpu(machine, i);
        sim_machine_advance(machine);
    }
}

void sim_machine_step(struct sim_machine *machine, uint64_t ns)
{
    sim_lock_clock(machine);
    uint64_t began = sim_now(machine), now = began + ns;
    advance(machine, began, now);
    for (uint32_t i = 0; i < rows(machine); i++) {
        struct sim_waiter *waiter = &machine->waiters[i];
        int32_t thread = __atomic_load_n(&waiter->thread, __ATOMIC_SEQ_CST);
        if (thread > 0 && waiter->until_ns <= now && let_go(waiter, thread))
            wake(waiter);
    }
    let_go_all_of(machine, ELSEWHERE);
    tell_everybody(machine);
    sim_unlock_clock(machine);
}

/* ---- who waits ---- */

/* Has what it waits for come, and it only has not been given a processor yet? Then time must not go on without it. */
static int is_waking(const struct sim_machine *machine, const struct sim_waiter *waiter)
{
    const uint64_t offset = waiter->word_offset;
    if (offset == 0 || offset > sizeof *machine - sizeof(uint32_t))
        return 0;
    return sim_moved((const uint32_t *)(const void *)((const char *)machine + offset), waiter->seen); /* as it was made */
}

/* How many wait, and whose turn is next; NULL: nobody waits. */
static uint32_t waiting(struct sim_machine *machine, struct sim_waiter **next)
{
    uint32_t count = 0;
    *next = NULL;
    for (uint32_t i = 0; i < rows(machine); i++) {
        struct sim_waiter *waiter = &machine->waiters[i];
        if (__atomic_load_n(&waiter->thread, __ATOMIC_SEQ_CST) <= 0 || is_waking(machine, waiter))
            continue;
        count++;
        if (*next == NULL || waiter->until_ns < (*next)->until_ns ||
            (waiter->until_ns == (*next)->until_ns && waiter->order < (*next)->order))
            *next = waiter;
    }
    return count;
}

/* Those who were killed while they waited; kill() finds threads too. */
static void forget_the_dead(struct sim_machine *machine)
{
    for (uint32_t i = 0; i < rows(machine); i++) {
        struct sim_waiter *waiter = &machine->waiters[i];
        int32_t thread = __atomic_load_n(&waiter->thread, __ATOMIC_SEQ_CST);
        int saved = errno;
        if (thread > 0 && kill(thread, 0) != 0 && errno == ESRCH)
            __atomic_compare_exchange_n(&waiter->thread, &thread, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
        errno = saved;
    }
}

uint32_t sim_machine_waiting(struct sim_machine *machine, uint64_t *earliest_ns)
{
    struct sim_waiter *next;
    forget_the_dead(machine);
    uint32_t count = waiting(machine, &next);
    *earliest_ns = next ? next->until_ns : UINT64_MAX;
    return count;
}

static struct sim_waiter *claim(struct sim_machine *machine, const struct sim_waiter *wanted)
{
    for (;;) {
        for (uint32_t i = 0; i < SIM_MAX_WAITERS; i++) {
            struct sim_waiter *waiter = &machine->waiters[i];
            int32_t free_row = 0;
            if (!__atomic_compare_exchange_n(&waiter->thread, &free_row, -1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
                continue; /* relaxed on failure: nothing of the row is read */
            waiter->until_ns = wanted->until_ns;
            waiter->seen = wanted->seen;
            waiter->word_offset = wanted->word_offset;
            waiter->order = wanted->order;
            uint32_t high = __atomic_load_n(&machine->waiter_high, __ATOMIC_RELAXED); /* relaxed: only ever grows */
            while (high < i + 1 && !__atomic_compare_exchange_n(&machine->waiter_high, &high, i + 1, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
            }
            __atomic_store_n(&waiter->thread, wanted->thread, __ATOMIC_SEQ_CST); /* a whole row before it counts */
            return waiter;
        }
        sched_yield();
    }
}

/* ---- going on ---- */

/* Clock locked: the turn goes to the next, after a step where its time has not come. Gives whom to wake. */
static const struct sim_waiter *give_turn(struct sim_machine *machine, struct sim_waiter *next)
{
    const uint64_t now = sim_now(machine), until = machine->run_until_ns;
    if (next == NULL || next->until_ns > now) {
        const uint64_t then = next ? min_u64(next->until_ns, until) : until;
        advance(machine, now, then);
        if (then >= until) { /* who is due goes on with the next run: nobody is in the middle of something now */
            machine->run_until_ns = 0;
            __atomic_fetch_add(&machine->run_wake, 1, __ATOMIC_SEQ_CST);
            sim_futex_wake(&machine->run_wake);
            return NULL;
        }
        if (tell_everybody(machine) != 0)
            return NULL; /* the last of them to wait again goes on from here */
    }
    int32_t thread = __atomic_load_n(&next->thread, __ATOMIC_SEQ_CST);
    return thread > 0 && let_go(next, thread) ? next : NULL;
}

/* Where a run is under way and all wait, it goes on. impatient: also where some do not wait, but somebody's time has
 * come. own: the caller's row, if it has one. */
static void go_on(struct sim_machine *machine, int impatient, const struct sim_waiter *own)
{
    if (__atomic_load_n(&machine->run_until_ns, __ATOMIC_SEQ_CST) == 0)
        return;
    sim_lock_clock(machine);
    struct sim_waiter *next;
    const struct sim_waiter *gone = NULL;
    if (machine->run_until_ns != 0 && (waiting(machine, &next) >= machine->run_participants ||
                                       (impatient && next && next->until_ns <= sim_now(machine))))
        gone = give_turn(machine, next);
    sim_unlock_clock(machine);
    if (gone != NULL && gone != own) /* not before: it would come back and wait for the lock */
        wake(gone);
}

void sim_virtual_wait(struct sim_machine *machine, uint64_t until, const uint32_t *word, uint32_t seen)
{
    if (sim_now(machine) >= until || sim_moved(word, seen))
        return;
    int32_t mine = (int32_t)syscall(SYS_gettid);
    const struct sim_waiter wanted = {.thread = mine,
                                      .seen = seen,
                                      .until_ns = until,
                                      .word_offset = offset_of(machine, word),
                                      .order = __atomic_add_fetch(&machine->waits, 1, __ATOMIC_RELAXED)}; /* a number */
    struct sim_waiter *waiter = claim(machine, &wanted);
    while (sim_now(machine) < until && !sim_moved(word, seen)) {
        if (__atomic_load_n(&waiter->thread, __ATOMIC_SEQ_CST) != mine) {
            waiter = claim(machine, &wanted); /* and look again: it may have come before the row was there */
            continue;
        }
        go_on(machine, 0, waiter);
        if (__atomic_load_n(&waiter->thread, __ATOMIC_SEQ_CST) == mine) /* else the turn came to the caller at once */
            sim_futex_wait((const uint32_t *)(const void *)&waiter->thread, (uint32_t)mine, UINT64_MAX); /* the same bits */
    }
    __atomic_compare_exchange_n(&waiter->thread, &mine, 0, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED); /* where it came by itself */
}

/* What tells whether somebody went on since. */
static uint64_t progress(const struct sim_machine *machine)
{
    return sim_now(machine) + __atomic_load_n(&machine->waits, __ATOMIC_RELAXED); /* both only grow; relaxed: looked at again */
}

int sim_machine_run_until(struct sim_machine *machine, uint64_t until_ns, uint32_t participants, uint64_t real_timeout_ns)
{
    if (sim_now(machine) >= until_ns)
        return SIM_OK;
    forget_the_dead(machine);
    sim_lock_clock(machine);
    machine->run_participants = participants;
    __atomic_store_n(&machine->run_until_ns, until_ns, __ATOMIC_SEQ_CST);
    make_due(machine, ELSEWHERE); /* somebody may have changed those words meanwhile */
    sim_unlock_clock(machine);
    uint64_t before = progress(machine), since = sim_monotonic_ns();
    for (;;) {
        uint32_t seen = __atomic_load_n(&machine->run_wake, __ATOMIC_SEQ_CST);
        uint64_t real = sim_monotonic_ns();
        go_on(machine, real - since >= PATIENCE_NS, NULL);
        if (sim_now(machine) >= until_ns)
            return SIM_OK;
        if (progress(machine) != before) {
            before = progress(machine);
            since = real;
        } else if (real - since >= real_timeout_ns) {
            __atomic_store_n(&machine->run_until_ns, 0, __ATOMIC_SEQ_CST);
            return SIM_NOT_FOUND;
        }
        sim_futex_wait(&machine->run_wake, seen, LOOK_NS);
    }
}
