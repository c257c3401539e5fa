/* test: sources=limiter/src/length.c include=limiter/include,limiter/src,limiter/tests variants=plain,address */
/* How long a long launch is by itself, once nobody tells of others' turns any more. */
#include "length.h"

#include "check.h"
#include "hypervisor_limits.h"

#define MS UINT64_C(1000000)
#define AS_IT_IS HV_SHARE_FULL_PPM

/* Somebody tells, with each fourth launch anew. */
static struct hv_length learned(const uint64_t *own_ns, uint32_t kinds, uint32_t count)
{
    struct hv_length length = {0};
    for (uint32_t i = 0; i < count; i++)
        hv_length_learn(&length, own_ns[i % kinds], 1 + i / 4);
    return length;
}

/* One other can have each second turn; it has so much of the time that a launch took for one it had before. */
static uint64_t untold(struct hv_length *length, uint64_t took_ns, uint64_t left_ppm)
{
    const struct hv_length_taken taken = {.own_ns = took_ns / 2, .least_ns = took_ns / 2, .most_ns = took_ns};
    return hv_length_untold(length, &taken, left_ppm);
}

static void does_not_depend_on_turns(void)
{
    const uint64_t own = 20 * MS;
    struct hv_length length = learned(&own, 1, 20);
    for (uint64_t took = 20 * MS; took <= 40 * MS; took += 5 * MS)
        CHECK_EQUAL(untold(&length, took, AS_IT_IS), 20 * MS);
}

static void launches_that_differ_are_known_by_their_mean(void)
{
    const uint64_t own[] = {10 * MS, 30 * MS, 20 * MS, 40 * MS};
    struct hv_length length = learned(own, 4, 41);
    CHECK(untold(&length, 60 * MS, AS_IT_IS) > 24 * MS);
    CHECK(untold(&length, 20 * MS, AS_IT_IS) < 26 * MS);
}

/* Turns changed, and nobody has told of that yet: what was measured since the last word does not count. */
static void what_came_after_the_last_word_does_not_count(void)
{
    struct hv_length length = {0};
    for (uint32_t i = 0; i < 20; i++)
        hv_length_learn(&length, 20 * MS, 1 + i / 4);
    for (uint32_t i = 0; i < 20; i++)
        hv_length_learn(&length, 30 * MS, 6);
    CHECK_EQUAL(untold(&length, 40 * MS, AS_IT_IS), 20 * MS);
}

static void is_set_right_by_what_the_driver_saw(void)
{
    const uint64_t own = 20 * MS;
    struct hv_length length = learned(&own, 1, 21);
    CHECK_EQUAL(untold(&length, 40 * MS, AS_IT_IS * 9 / 10), 18 * MS);
    CHECK_EQUAL(untold(&length, 40 * MS, AS_IT_IS * 9 / 10), 18 * MS); /* once */
    struct hv_length other = learned(&own, 1, 21);
    CHECK_EQUAL(untold(&other, 40 * MS, 0), 20 * MS); /* a daemon that does not tell it */
    struct hv_length scribbled = learned(&own, 1, 21);
    CHECK_EQUAL(untold(&scribbled, 40 * MS, UINT64_MAX), 20 * MS);
}

/* Shorter than it is by itself: other work, of which all is charged. */
static void nothing_is_longer_than_it_takes(void)
{
    const uint64_t own = 20 * MS;
    struct hv_length length = learned(&own, 1, 21);
    for (int i = 0; i < 40; i++)
        (void)untold(&length, 2 * MS, AS_IT_IS);
    CHECK(untold(&length, 2 * MS, AS_IT_IS) < 3 * MS);
}

/* Longer than turns can make it: it is learned anew, by the turns of before. */
static void ten_times_as_long_is_noticed(void)
{
    const uint64_t own = 20 * MS;
    struct hv_length length = learned(&own, 1, 21);
    (void)untold(&length, 40 * MS, AS_IT_IS);
    int launches = 1;
    while (launches < 20 && untold(&length, 400 * MS, AS_IT_IS) != 0)
        launches++;
    CHECK(launches <= 3);
    for (int i = 0; i < 5; i++)
        (void)untold(&length, 400 * MS, AS_IT_IS);
    CHECK_EQUAL(untold(&length, 300 * MS, AS_IT_IS), 200 * MS);
}

static void few_or_scattered_ones_are_not_known(void)
{
    const uint64_t own = 20 * MS, scattered[] = {5 * MS, 5 * MS, 5 * MS, 5 * MS, 5 * MS, 5 * MS, 5 * MS, 500 * MS};
    struct hv_length few = learned(&own, 1, 3), wild = learned(scattered, 8, 41);
    CHECK_EQUAL(untold(&few, 40 * MS, AS_IT_IS), 0);
    CHECK_EQUAL(untold(&wild, 40 * MS, AS_IT_IS), 0);
    for (int i = 0; i < 4; i++)
        (void)untold(&few, 40 * MS, AS_IT_IS);
    CHECK_EQUAL(untold(&few, 60 * MS, AS_IT_IS), 20 * MS); /* learned without a word */
}

int main(void)
{
    does_not_depend_on_turns();
    launches_that_differ_are_known_by_their_mean();
    what_came_after_the_last_word_does_not_count();
    is_set_right_by_what_the_driver_saw();
    nothing_is_longer_than_it_takes();
    ten_times_as_long_is_noticed();
    few_or_scattered_ones_are_not_known();
    return CHECK_RESULT();
}
