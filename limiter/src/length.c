#include "length.h"

#include "hypervisor_limits.h"

#define MEAN_OVER 128
#define LATELY_OVER 16
#define LEAST_COUNT 4
#define KNOWN_PART 8 /* the standard error of a mean that is kept, of itself: what is learned later, by turns of before, is further off */
#define LEAST_LEFT_PPM (HV_SHARE_FULL_PPM / 2) /* as the daemon writes it */
#define MOST_LEFT_PPM (2 * HV_SHARE_FULL_PPM)
#define ALIKE_PART 8
#define TOLD_WITHIN_NS UINT64_C(700000000) /* four of the driver's windows: after two the daemon believes it */
#define NO_CHANCE 3 /* times how far a mean of so many launches is off by their spread */
#define TURN_NS UINT64_C(2000000) /* of a process, at most: one launch or the other needs one more, in which all others have one */
#define OTHER_PART 4 /* by which it must be longer or shorter than turns can make it: which processes have turns is seen now and then */

static uint64_t averaged(uint64_t mean, uint64_t new, uint32_t over)
{
    return new > mean ? mean + (new - mean) / over : mean - (mean - new) / over;
}

static void learn(struct hv_length_mean *of, uint64_t own_ns)
{
    of->count += of->count < MEAN_OVER;
    uint64_t off = own_ns > of->mean_ns ? own_ns - of->mean_ns : of->mean_ns - own_ns;
    if (of->count > 1)
        of->spread_ns = averaged(of->spread_ns, off, of->count - 1);
    of->mean_ns = averaged(of->mean_ns, own_ns, of->count);
}

static bool is_known(const struct hv_length_mean *of)
{
    unsigned __int128 spread = (unsigned __int128)of->spread_ns * KNOWN_PART, mean = of->mean_ns;
    return of->count >= LEAST_COUNT && spread * spread <= mean * mean * of->count;
}

/* Of launches that were alike this is the second one in a row that is much shorter. */
static bool is_sudden(struct hv_length *length, uint64_t turn_ns, uint64_t now_ns)
{
    const struct hv_length_mean *of = &length->of;
    uint64_t since = length->sudden_ns;
    bool alike = is_known(of) && of->spread_ns <= of->mean_ns / ALIKE_PART;
    bool shorter = alike && turn_ns < of->mean_ns - of->mean_ns / OTHER_PART;
    length->sudden_ns = !shorter ? 0 : since == 0 ? now_ns : since;
    return shorter && since != 0 && now_ns - since < TOLD_WITHIN_NS;
}

uint64_t hv_length_told(struct hv_length *length, const struct hv_length_taken *taken, uint64_t told, uint64_t now_ns)
{
    if (is_sudden(length, taken->turn_ns, now_ns)) {
        unsigned __int128 as_before = (unsigned __int128)taken->own_ns * length->of.mean_ns;
        if (as_before >= (unsigned __int128)taken->laid_ns * taken->turn_ns)
            return taken->laid_ns;
        return (uint64_t)(as_before / taken->turn_ns); /* less than laid_ns */
    }
    if (told != length->told)
        length->sure = length->of;
    length->told = told;
    length->since = 0;
    learn(&length->of, taken->turn_ns);
    return taken->own_ns;
}

static uint64_t scaled(uint64_t ns, uint64_t left_ppm)
{
    bool told = left_ppm >= LEAST_LEFT_PPM && left_ppm <= MOST_LEFT_PPM; /* else it is not known, or not written by the daemon */
    return told ? (uint64_t)((unsigned __int128)ns * left_ppm / HV_SHARE_FULL_PPM) : ns; /* at most twice */
}

/* By the turns that were told while it was learned it came out as more or less than the driver saw. */
static void set_right(struct hv_length_mean *of, uint64_t left_ppm)
{
    of->mean_ns = scaled(of->mean_ns, left_ppm);
    of->spread_ns = scaled(of->spread_ns, left_ppm);
}

/* Is what so many launches took in the mean no chance, and further off than how many have turns may be known wrongly? */
static bool is_far(const struct hv_length_mean *of, uint64_t took_ns, uint32_t launches)
{
    uint64_t off = took_ns > of->mean_ns ? took_ns - of->mean_ns : of->mean_ns - took_ns;
    unsigned __int128 chance = (unsigned __int128)of->spread_ns * NO_CHANCE + TURN_NS;
    return off > of->mean_ns / OTHER_PART && (unsigned __int128)off * off * launches > chance * chance;
}

uint64_t hv_length_untold(struct hv_length *length, const struct hv_length_taken *taken, uint64_t left_ppm)
{
    struct hv_length_mean *of = &length->sure;
    if (length->told != 0)
        set_right(of, left_ppm);
    length->told = 0;
    if (is_known(of)) {
        length->since += length->since < LATELY_OVER; /* without an end it would be 0 again some day */
        uint32_t over = length->since;
        /* How many of the Pod's processes had turns is known as well as before, and what it is wrong by is in the mean. */
        uint64_t least = taken->own > 1 ? scaled(taken->least_ns, left_ppm) : taken->least_ns;
        uint64_t most = taken->own > 1 ? scaled(taken->most_ns, left_ppm) : taken->most_ns;
        length->least_ns = averaged(over == 1 ? least : length->least_ns, least, over);
        length->most_ns = averaged(over == 1 ? most : length->most_ns, most, over);
        if (length->least_ns <= of->mean_ns || !is_far(of, length->least_ns, over))
            return length->most_ns < of->mean_ns && is_far(of, length->most_ns, over) ? length->most_ns : of->mean_ns;
        *length = (struct hv_length){0};
    }
    learn(of, taken->own_ns); /* nobody finds out any more what the sum of turns is wrong by; of own moments it is right */
    length->of = *of; /* for when somebody tells again */
    return 0;
}
