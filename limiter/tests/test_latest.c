/* test: sources=limiter/src/latest.c include=limiter/include,limiter/src,limiter/tests variants=plain,address,thread */
/* The mean over the launches of a long function, and how soon it follows work that takes longer from now on. */
#include "latest.h"

#include "check.h"

#define MS UINT64_C(1000000)
#define OVER 32

static uint64_t after(uint64_t *word, uint64_t mean_ns, const uint64_t *launches_ms, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        struct hv_latest latest = hv_latest_with(word, 7, launches_ms[i] * MS);
        mean_ns = hv_latest_mean(mean_ns, launches_ms[i] * MS, OVER, &latest);
    }
    return mean_ns;
}

static uint64_t after_alike(uint64_t *word, uint64_t mean_ns, uint64_t launch_ms, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        mean_ns = after(word, mean_ns, &launch_ms, 1);
    return mean_ns;
}

static void twice_as_much_is_seen_after_eight(void)
{
    uint64_t word = 0;
    uint64_t mean = after_alike(&word, 5 * MS, 5, 3 * HV_LATEST);
    CHECK(mean > 4900000 && mean <= 5 * MS);
    CHECK(after_alike(&word, mean, 50, HV_LATEST) >= 49 * MS);
}

static void a_tenth_more_after_sixteen(void)
{
    uint64_t word = 0;
    CHECK(after_alike(&word, 50 * MS, 56, HV_LATEST) < 52 * MS);
    CHECK(after_alike(&word, 51 * MS, 56, HV_LATEST) > 54 * MS);
    word = 0;
    CHECK(after_alike(&word, 50 * MS, 25, HV_LATEST) > 40 * MS); /* what is charged too much is given back */
}

/* One of two takes all that both lay down. */
static void by_turns_the_mean_stays(void)
{
    static const uint64_t launches[] = {50, 0, 0, 50, 50, 0, 50, 0};
    uint64_t word = 0, mean = 25 * MS;
    for (uint64_t round = 0; round < 20; round++)
        mean = after(&word, mean, launches, HV_LATEST);
    CHECK(mean > 22 * MS && mean < 28 * MS);
}

static void another_function_begins_anew(void)
{
    uint64_t word = 0;
    (void)after_alike(&word, 50 * MS, 50, HV_LATEST - 1);
    struct hv_latest latest = hv_latest_with(&word, 9, 500 * MS);
    CHECK(latest.now_ns == 0 && latest.before_ns == 0);
    for (uint64_t i = 1; i < HV_LATEST; i++)
        latest = hv_latest_with(&word, 9, 500 * MS);
    CHECK(latest.now_ns == 500 * MS / HV_LATEST_UNIT_NS * HV_LATEST_UNIT_NS);
}

static void any_word_is_one_that_it_can_have(void)
{
    uint64_t seed = 1;
    for (uint64_t i = 0; i < 100000; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        uint64_t word = seed, own_ns = i % 2 == 0 ? UINT64_MAX : seed >> (i % 64);
        struct hv_latest latest = hv_latest_with(&word, seed >> 52, own_ns);
        CHECK(latest.now_ns <= UINT64_MAX / 1000 && latest.before_ns <= UINT64_MAX / 1000);
    }
}

int main(void)
{
    twice_as_much_is_seen_after_eight();
    a_tenth_more_after_sixteen();
    by_turns_the_mean_stays();
    another_function_begins_anew();
    any_word_is_one_that_it_can_have();
    return CHECK_RESULT();
}
