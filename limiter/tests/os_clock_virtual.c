/*
 * The clock and the waits on the simulator's clock, in place of os_clock.c: on a
 * virtual machine nothing sleeps and every figure of a test is exact.
 */
#define _GNU_SOURCE
#include "os.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "core.h"
#include "os_clock_virtual.h"

static struct sim_machine *machine_of_this_process(void)
{
    static struct sim_machine *machine; /* whoever comes second has attached in vain, which is harmless */
    struct sim_machine *found = __atomic_load_n(&machine, __ATOMIC_ACQUIRE);
    if (found == NULL) {
        int saved = errno;
        if (sim_machine_attach_environment(&found) != SIM_OK) {
            fprintf(stderr, "this build of the limiter runs on a simulated machine only: SIM_MACHINE names none\n");
            abort();
        }
        __atomic_store_n(&machine, found, __ATOMIC_RELEASE);
        errno = saved;
    }
    return found;
}

uint64_t hv_os_now_ns(void)
{
    return sim_now(machine_of_this_process()) + HV_VIRTUAL_CLOCK_BEGAN_NS;
}

void hv_os_wait_on_word(const uint32_t *word, uint32_t expected, uint64_t until_ns)
{
    sim_wait(machine_of_this_process(), until_ns - HV_VIRTUAL_CLOCK_BEGAN_NS, word, expected);
}

void hv_os_wait_until(uint64_t until_ns)
{
    sim_wait(machine_of_this_process(), until_ns - HV_VIRTUAL_CLOCK_BEGAN_NS, NULL, 0);
}

void hv_os_yield(void)
{
    (void)sched_yield(); /* never fails on Linux */
}
