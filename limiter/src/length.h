/*
 * How long a long launch is by itself. It is measured with others' turns in it, and what they were somebody has to
 * tell. How long it is does not depend on them, so it is kept for when nobody does any more. Were they still taken for
 * as many as before, of two Pods that fill a device whoever is ahead would be charged less, and stay ahead. Pure.
 */
#ifndef HV_LENGTH_H
#define HV_LENGTH_H

#include <stdbool.h>
#include <stdint.h>

struct hv_length_mean {
    uint64_t mean_ns;
    uint64_t spread_ns; /* how far from it they are, in the mean */
    uint32_t count;     /* launches that this is of */
};

struct hv_length {
    struct hv_length_mean of; /* all so far, by what turns left to the process itself: who tells first of a moment is not always chance; */
    struct hv_length_mean sure; /* and those before somebody told of turns last: what they are since then nobody knows yet */
    uint64_t told;      /* the last word on turns; 0: none, or it is some time ago */
    uint64_t sudden_ns; /* since when they have been much less all of a sudden; 0: they are not */
    uint32_t since;     /* launches since nobody tells any more, and what they took in the mean of the last few: */
    uint64_t least_ns;  /* had others as many turns as there were others, */
    uint64_t most_ns;   /* had they none */
};

/* What of a launch is the Pod's own, by what is known of turns. */
struct hv_length_taken {
    uint64_t own_ns;   /* had others as many as were told of last; */
    uint64_t laid_ns;  /* had they none */
    uint64_t turn_ns;  /* what is left to this process, whoever tells first of a moment: as many as were told of last, */
    uint64_t least_ns; /* as many as they can have, */
    uint64_t most_ns;  /* none */
    uint32_t own;      /* processes of the Pod at work, of which it is seen now and then only how many there are */
};

/* Somebody tells of turns; told differs with each word. What of the launch is the Pod's own. What is told is of half a
 * second ago: where launches were alike and two in a row are much shorter others may have gone, and until that would have
 * been told they take as much as before, as far as there was time. */
uint64_t hv_length_told(struct hv_length *length, const struct hv_length_taken *taken, uint64_t told, uint64_t now_ns);

/* Nobody tells of turns any more, and a launch took this; what it takes by itself. left_ppm: what was learned while they
 * were told has to be multiplied by this. 0: not known well, or it is other work than it was; then own_ns is learned. */
uint64_t hv_length_untold(struct hv_length *length, const struct hv_length_taken *taken, uint64_t left_ppm);

#endif
