#include "length.h"

#include "hypervisor_limits.h"

#define MEAN_OVER 128
#define LATELY_OVER 16
#define LEAST_COUNT 4
#define KNOWN_PART 8 /* the standard error of a mean that is kept, of itself: what is learned later, by turns of before, is further off */
#define LEAST_LEFT_PPM (HV_SHARE_FULL_PPM / 2) /* as the daemon writes it */
#define MOST_LEFT_PPM (2 * HV_SHARE_FULL_PPM)
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

void hv_length_learn(struct hv_length *length, uint64_t own_ns, uint64_t told)
{
    if (told != length->told)
        length->sure = length->of;
    length->told = told;
    length->since = 0;
    learn(&length->of, own_ns);
}

/* By the turns that were told while it was learned it came out as more or less than the driver saw. */
static void set_right(struct hv_length_mean *of, uint64_t left_ppm)
{
    if (left_ppm < LEAST_LEFT_PPM || left_ppm > MOST_LEFT_PPM) /* not known, or not written by the daemon */
        return;
    of->mean_ns = (uint64_t)((unsigned __int128)of->mean_ns * left_ppm / HV_SHARE_FULL_PPM); /* at most twice */
    of->spread_ns = (uint64_t)((unsigned __int128)of->spread_ns * left_ppm / HV_SHARE_FULL_PPM);
}

uint64_t hv_length_untold(struct hv_length *length, const struct hv_length_taken *taken, uint64_t left_ppm)
{
    struct hv_length_mean *of = &length->sure;
    if (length->told != 0)
        set_right(of, left_ppm);
    length->told = 0;
    if (is_known(of)) {
        uint32_t over = ++length->since < LATELY_OVER ? length->since : LATELY_OVER;
        length->least_ns = averaged(over == 1 ? taken->least_ns : length->least_ns, taken->least_ns, over);
        length->most_ns = averaged(over == 1 ? taken->most_ns : length->most_ns, taken->most_ns, over);
        if (length->least_ns <= of->mean_ns + of->mean_ns / OTHER_PART)
            return length->most_ns < of->mean_ns - of->mean_ns / OTHER_PART ? length->most_ns : of->mean_ns;
        *length = (struct hv_length){0};
    }
    learn(of, taken->own_ns);
    length->of = *of; /* for when somebody tells again */
    return 0;
}
