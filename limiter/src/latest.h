/*
 * The latest launches of a long function, of all processes of the Pod, in one
 * word of the usage file: the mean of about the last 32 follows work that takes
 * longer from now on too slowly, and what is charged too little until then is
 * more than can be owed. Pure but for the word, which any process may write.
 */
#ifndef HV_LATEST_H
#define HV_LATEST_H

#include <stdint.h>

/* So many in a row are looked at together. */
#define HV_LATEST 8
#define HV_LATEST_UNIT_NS UINT64_C(16000)

/* Means over the last HV_LATEST launches, and over as many before them; 0: not known, or those under way are not so many. */
struct hv_latest {
    uint64_t now_ns;
    uint64_t before_ns;
};

/* After one more launch, of the function with this number (below 4096), took own_ns. Of two functions that share the word
 * each begins anew when it comes. Any content of the word is one that it can have. */
struct hv_latest hv_latest_with(uint64_t *word, uint64_t number, uint64_t own_ns);

/* The mean over about the last `over` launches after one more that took own_ns: at once that of the latest, where they
 * took twice as much, or where both they and those before them took more. What is charged too much is given back. */
uint64_t hv_latest_mean(uint64_t mean_ns, uint64_t own_ns, uint64_t over, const struct hv_latest *latest);

#endif
