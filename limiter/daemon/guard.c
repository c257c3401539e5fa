#define _GNU_SOURCE
#include "guard.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>

/* One guarded piece of code at a time. Plain statics and not thread-local: a
 * thread's first access to the thread-local storage of a library that was
 * loaded late may allocate, which a signal handler must not. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static struct {
    volatile sig_atomic_t active;
    pthread_t thread;
    uintptr_t begin;
    uintptr_t end;
    struct sigaction previous;
    sigjmp_buf back;
} guard;

static void pass_on(int number, siginfo_t *information, void *context)
{
    if (guard.previous.sa_flags & SA_SIGINFO) {
        guard.previous.sa_sigaction(number, information, context);
    } else if (guard.previous.sa_handler == SIG_DFL || guard.previous.sa_handler == SIG_IGN) {
        /* Positive: the kernel's, for an access that is repeated when we return and then ends the process, as it
         * would have without us. Otherwise somebody sent it. */
        if (information->si_code <= 0 && guard.previous.sa_handler == SIG_IGN)
            return;
        struct sigaction as_usual = {.sa_handler = SIG_DFL};
        (void)sigaction(number, &as_usual, NULL);
        if (information->si_code <= 0)
            (void)raise(number); /* delivered when this handler returns */
    } else {
        guard.previous.sa_handler(number);
    }
}

static void on_bus_error(int number, siginfo_t *information, void *context)
{
    /* The address as a number: it is compared, never followed. */
    uintptr_t address = (uintptr_t)information->si_addr;
    if (guard.active && pthread_equal(guard.thread, pthread_self()) && information->si_code > 0 &&
        address >= guard.begin && address < guard.end)
        siglongjmp(guard.back, 1);
    pass_on(number, information, context);
}

bool hv_guarded(const void *base, size_t bytes, hv_guarded_body *body, void *context)
{
    struct sigaction ours = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    (void)sigemptyset(&ours.sa_mask);
    volatile bool whole = false;

    (void)pthread_mutex_lock(&one_at_a_time);
    guard.thread = pthread_self();
    guard.begin = (uintptr_t)base; /* numbers, for the comparison in the handler */
    guard.end = (uintptr_t)base + bytes;
    (void)sigaction(SIGBUS, &ours, &guard.previous);
    /* 1: the signal mask comes back too, or SIGBUS would stay blocked after the first one. */
    if (sigsetjmp(guard.back, 1) == 0) {
        guard.active = 1;
        body(context);
        whole = true;
    }
    guard.active = 0;
    struct sigaction found;
    (void)sigaction(SIGBUS, &guard.previous, &found);
    /* Somebody set another handler meanwhile: theirs is the later word. */
    if (!(found.sa_flags & SA_SIGINFO) || found.sa_sigaction != on_bus_error)
        (void)sigaction(SIGBUS, &found, NULL);
    (void)pthread_mutex_unlock(&one_at_a_time);
    return whole;
}
