#include "latest.h"

#include "hypervisor_atomics.h"

#define TIMES 2
#define OFF_PART 16 /* further off than this part of the mean */

/* The word: number, mean before, sum since then, how many that is of; times in units. */
#define COUNT_BITS 4
#define COUNT_MASK ((UINT64_C(1) << COUNT_BITS) - 1)
#define TIME_BITS 24
#define MOST ((UINT64_C(1) << TIME_BITS) - 1)
#define BEFORE_SHIFT (COUNT_BITS + TIME_BITS)
#define NUMBER_SHIFT (BEFORE_SHIFT + TIME_BITS)
_Static_assert(HV_LATEST <= COUNT_MASK, "the count has room");

struct hv_latest hv_latest_with(uint64_t *word, uint64_t number, uint64_t own_ns)
{
    uint64_t own = own_ns / HV_LATEST_UNIT_NS < MOST / HV_LATEST ? own_ns / HV_LATEST_UNIT_NS : MOST / HV_LATEST;
    uint64_t found = hv_load_relaxed(word); /* carries no other data */
    uint64_t count, sum, before, next;
    do {
        uint64_t known = found >> NUMBER_SHIFT == number ? found : 0;
        count = (known & COUNT_MASK) + 1;
        sum = (known >> COUNT_BITS & MOST) + own;
        sum = sum < MOST ? sum : MOST; /* scribbled over */
        before = known >> BEFORE_SHIFT & MOST;
        next = number << NUMBER_SHIFT |
               (count < HV_LATEST ? before << BEFORE_SHIFT | sum << COUNT_BITS | count : sum / count << BEFORE_SHIFT);
    } while (!hv_cas_relaxed(word, &found, next));
    return (struct hv_latest){.now_ns = count < HV_LATEST ? 0 : sum / count * HV_LATEST_UNIT_NS,
                              .before_ns = before * HV_LATEST_UNIT_NS};
}

uint64_t hv_latest_mean(uint64_t mean_ns, uint64_t own_ns, uint64_t over, const struct hv_latest *latest)
{
    uint64_t off = mean_ns / OFF_PART;
    if (latest->now_ns / TIMES > mean_ns)
        return latest->now_ns;
    if (latest->now_ns > mean_ns + off && latest->before_ns > mean_ns + off)
        return latest->now_ns;
    return mean_ns - mean_ns / over + own_ns / over;
}
