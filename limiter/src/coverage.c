#include "coverage.h"

#include <stddef.h>

#include "hypervisor_atomics.h"

#define TICKS_A_ROUND ((uint64_t)HV_COVERAGE_WORDS * HV_COVERAGE_TICKS_A_WORD) /* ticks are counted in 64 bits */
#define MOST_LATER 8
#define TURN_NS UINT64_C(2000000) /* the longest turn of a process, of today's drivers */
#define MOST_STREAMS 8 /* whose launches may each end a turn of the process */
#define MOST_PROCESSES 1000 /* as the daemon counts them */
#define BITS_MASK ((UINT64_C(1) << HV_COVERAGE_TICKS_A_WORD) - 1)

/* The tick whose middle comes next: each belongs to the interval that its
 * middle lies in, so that rounding neither adds nor takes in the long run. */
static uint64_t tick_of(uint64_t ns)
{
    return (ns + HV_COVERAGE_TICK_NS / 2) / HV_COVERAGE_TICK_NS;
}

/* Set these bits of one word; how many were not set in this round. */
static uint32_t set_bits(uint64_t *word, uint16_t round, uint64_t bits)
{
    uint64_t found = hv_load_relaxed(word); /* carries no other data */
    uint64_t next, old;
    do {
        uint16_t found_round = (uint16_t)(found >> HV_COVERAGE_TICKS_A_WORD); /* the bits above are all there is */
        uint16_t later = (uint16_t)(found_round - round); /* modulo 2^16 */
        if (later != 0 && later < MOST_LATER) /* told so late that its place is another round's */
            return (uint32_t)__builtin_popcountll(bits);
        old = found_round == round ? found & BITS_MASK : 0;
        next = (uint64_t)round << HV_COVERAGE_TICKS_A_WORD | old | bits;
    } while (!hv_cas_relaxed(word, &found, next));
    return (uint32_t)__builtin_popcountll(bits & ~old);
}

uint64_t hv_cover(struct hv_coverage *coverage, uint64_t begin_ns, uint64_t end_ns)
{
    if (end_ns <= begin_ns)
        return 0;
    if (coverage == NULL)
        return end_ns - begin_ns;
    uint64_t tick = tick_of(begin_ns), end = tick_of(end_ns), added = 0;
    if (end - tick > TICKS_A_ROUND) { /* older moments than the ring holds: nobody else can have told of them */
        added = end - tick - TICKS_A_ROUND;
        tick = end - TICKS_A_ROUND;
    }
    while (tick < end) {
        uint64_t in_word = tick % HV_COVERAGE_TICKS_A_WORD;
        uint64_t count = HV_COVERAGE_TICKS_A_WORD - in_word;
        if (count > end - tick)
            count = end - tick;
        uint64_t bits = ((UINT64_C(1) << count) - 1) << in_word;
        uint64_t place = tick % TICKS_A_ROUND / HV_COVERAGE_TICKS_A_WORD;
        uint16_t round = (uint16_t)(tick / TICKS_A_ROUND); /* modulo 2^16: 18 days */
        added += set_bits(&coverage->words[place], round, bits);
        tick += count;
    }
    return added * HV_COVERAGE_TICK_NS;
}

uint64_t hv_turns_within(uint64_t others_ppm, uint64_t processes, uint64_t own_ns)
{
    if (processes == 0 || processes > MOST_PROCESSES || own_ns == 0)
        return others_ppm;
    uint64_t more = processes * MOST_STREAMS * TURN_NS * HV_SHARE_FULL_PPM / own_ns; /* below 2^54 */
    uint64_t most = processes * HV_SHARE_FULL_PPM + more;
    return others_ppm < most ? others_ppm : most;
}

uint64_t hv_own_turns(uint64_t ns, uint32_t own, uint64_t others_ppm)
{
    uint64_t turns = (uint64_t)(own == 0 ? 1 : own) * HV_SHARE_FULL_PPM;
    others_ppm = others_ppm < HV_MOST_OTHERS_PPM ? others_ppm : HV_MOST_OTHERS_PPM;
    return (uint64_t)((unsigned __int128)ns * turns / (turns + others_ppm)); /* at most ns */
}
