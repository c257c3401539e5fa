/* The lives that crash_walk.c tells of. Each returns 0, or the number of the step that failed. */
#ifndef HV_CRASH_LIFE_H
#define HV_CRASH_LIFE_H

#include <stdint.h>

enum life {
    ORDINARY_LIFE,    /* everything that a program can do under the limiter, once or more */
    LONG_LIFE,        /* work on two streams for long enough to be surveyed */
    TWO_DEVICES_LIFE, /* of a thread that goes from one device to the other and back */
    REFUSED_LIFE,     /* of a program whose limit files are not there */
    FREE_LIFE,        /* of one that is not to be limited, and looks the driver's functions up */
    FREE_LINKED_LIFE, /* the same, of one that is linked to them */
    LIVES
};

int live(enum life life);

/* Called in the middle of an ordinary life: the daemon has measured the contexts. */
extern void (*daemon_measures)(void);

/* Answers each byte on `ask` with '0' when on each of the two devices `most`
 * bytes can be had, not a block more, and work is done; with another byte when
 * not. Returns when `ask` ends. */
void survive(int ask, int answer, uint64_t most);

#endif
