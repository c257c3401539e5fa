/*
 * How much of a process's charged work on a device has been worked through.
 * Ends are seen in jumps: launches of several streams slow each other down and
 * end together, and where many processes have turns all that was done in one is
 * seen at once. Were the next launches let go by what has ended alone, they
 * would go together again, and whoever comes next would wait for a whole round.
 * So between two ends work goes on at the pace at which it ended lately.
 *
 * Pure; one writer at a time, read without a lock.
 */
#ifndef HV_BACKLOG_H
#define HV_BACKLOG_H

#include <stdbool.h>
#include <stdint.h>

struct hv_backlog {
    uint64_t worked_ns; /* of the sum of charges */
    uint64_t at_ns;     /* then */
    uint64_t pace_ns;   /* of charges so much ended */
    uint64_t paced_ns;  /* in so long; 0: not known */
    uint64_t since_ns;  /* from then on the next pace is measured, */
    uint64_t from_ns;   /* and so much had ended */
    uint32_t busy;      /* 1: some work was under way all the time since the pace was measured, and while it was */
};

/* So much of all that was charged has ended. ahead_ns: what may have been worked through beyond that. */
void hv_backlog_note(struct hv_backlog *backlog, uint64_t charged_ns, uint64_t ended_ns, uint64_t ahead_ns, uint64_t now_ns);

/* What is left of it now. */
uint64_t hv_backlog_left(const struct hv_backlog *backlog, uint64_t charged_ns, uint64_t ended_ns, uint64_t ahead_ns,
                         uint64_t now_ns);

/* Whoever always has work has one turn in each round of all processes'. Does what has ended lately fill those turns? Then
 * charges are not too low, however long launches take. False where that is not known, and where nobody else has turns. */
bool hv_backlog_fills_turns(const struct hv_backlog *backlog, uint64_t ended_ns, uint64_t crowd, uint64_t now_ns);

/* Were its turns much longer than that? Of charges overlap_ppm is GPU time. */
bool hv_backlog_is_too_little(const struct hv_backlog *backlog, uint64_t ended_ns, uint64_t crowd, uint32_t overlap_ppm,
                              uint64_t now_ns);

#endif
