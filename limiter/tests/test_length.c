/* test: sources=limiter/src/length.c include=limiter/include,limiter/src,limiter/tests variants=plain,address */
/* How long a long launch is by itself, once nobody tells of others' turns any more. */
#include "length.h"

#include "check.h"
#include "hypervisor_limits.h"

#define MS UINT64_C(1000000)
#define AS_IT_IS HV_SHARE_FULL_PPM

/* Alone of its Pod, and one other has each second turn, as far as anybody has told. */
static uint64_t told(struct hv_length *length, uint64_t own_ns, uint64_t word, uint64_t now_ns)
{
    const struct hv_length_taken taken = {
        .own_ns = own_ns, .turn_ns = own_ns, .laid_ns = 2 * own_ns, .least_ns = own_ns, .most_ns = 2 * own_ns};
    return hv_length_told(length, &taken, word, now_ns);
}

/* Somebody tells, with each fourth launch anew. */
static struct hv_length learned(const uint64_t *own_ns, uint32_t kinds, uint32_t count)
{
    struct hv_length length = {0};
    for (uint32_t i = 0; i < count; i++)
        told(&length, own_ns[i % kinds], 1 + i / 4, i * 30 * MS);
    return length;
}

/* One other can have each second turn; it has so much of the time that a launch took for one it had before. */
static uint64_t untold(struct hv_length *length, uint64_t took_ns, uint64_t left_ppm)
{
    const struct hv_length_taken taken = {.own_ns = took_ns / 2, .turn_ns = took_ns / 2, .least_ns = took_ns / 2, .most_ns = took_ns};
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
        told(&length, 20 * MS, 1 + i / 4, i * MS);
    for (uint32_t i = 0; i < 20; i++)
        told(&length, 30 * MS, 6, 20 * MS + i * MS);
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

/* Months of launches without a word: they are averaged over the last few, and never over none. */
static void any_number_of_launches_can_be_untold(void)
{
    const uint64_t own = 20 * MS;
    struct hv_length length = learned(&own, 1, 20);
    (void)untold(&length, 40 * MS, AS_IT_IS);
    length.since = UINT32_MAX;
    CHECK_EQUAL(untold(&length, 40 * MS, AS_IT_IS), 20 * MS);
}

/* All of its time is its own, and what is told takes half of it off. */
static void others_who_go_are_noticed_before_that_is_told(void)
{
    const uint64_t own = 20 * MS;
    struct hv_length length = learned(&own, 1, 60);
    CHECK_EQUAL(told(&length, 10 * MS, 17, 1000 * MS), 10 * MS); /* one may be an odd one */
    for (uint64_t now = 1020; now < 1600; now += 20)
        CHECK(told(&length, 10 * MS, 17, now * MS) > 19 * MS);
    CHECK_EQUAL(told(&length, 20 * MS, 18, 1600 * MS), 20 * MS); /* it is told, so nothing is taken off any more */
    CHECK_EQUAL(told(&length, 20 * MS, 18, 1620 * MS), 20 * MS);
}

/* It would have been told: it is the work that is shorter. */
static void work_that_is_shorter_is_believed_soon(void)
{
    const uint64_t own = 20 * MS;
    struct hv_length length = learned(&own, 1, 21);
    for (uint64_t now = 1000; now < 2000; now += 20)
        CHECK(told(&length, 4 * MS, 7 + now / 160, now * MS) <= 8 * MS); /* never more than there was time for */
    CHECK_EQUAL(told(&length, 4 * MS, 20, 2000 * MS), 4 * MS);
}

/* Which launches are short by themselves nobody knows. */
static void launches_that_differ_are_taken_as_they_come(void)
{
    const uint64_t own[] = {10 * MS, 30 * MS, 20 * MS, 40 * MS};
    struct hv_length length = learned(own, 4, 41);
    for (int i = 0; i < 4; i++)
        CHECK_EQUAL(told(&length, 10 * MS, 20, 2000 * MS + i * MS), 10 * MS);
}

/* Half as much again of one launch is chance where they scatter, and of a short one it may be one turn more. */
static void one_launch_is_no_other_work(void)
{
    const uint64_t scattered[] = {10 * MS, 30 * MS, 20 * MS, 20 * MS}, short_ones[] = {3 * MS};
    struct hv_length length = learned(scattered, 4, 41), brief = learned(short_ones, 1, 41);
    CHECK(untold(&length, 60 * MS, AS_IT_IS) > 16 * MS);
    CHECK(untold(&length, 40 * MS, AS_IT_IS) > 16 * MS);
    CHECK_EQUAL(untold(&brief, 9 * MS, AS_IT_IS), 3 * MS);
    CHECK_EQUAL(untold(&brief, 6 * MS, AS_IT_IS), 3 * MS);
    for (int i = 0; i < 8; i++)
        (void)untold(&brief, 10 * MS, AS_IT_IS);
    CHECK_EQUAL(untold(&brief, 10 * MS, AS_IT_IS), 5 * MS);
}

/* Another process was the first to tell of half of its moments. */
static void what_others_tell_first_makes_it_no_shorter(void)
{
    struct hv_length length = {0};
    for (uint32_t i = 0; i < 20; i++) {
        const struct hv_length_taken taken = {
            .own_ns = 10 * MS, .turn_ns = 20 * MS, .laid_ns = 20 * MS, .least_ns = 20 * MS, .most_ns = 40 * MS};
        CHECK_EQUAL(hv_length_told(&length, &taken, 1 + i / 4, i * MS), 10 * MS);
    }
    CHECK_EQUAL(untold(&length, 40 * MS, AS_IT_IS), 20 * MS);
}

/* Two processes, of which both are taken to have turns all the time and have not. */
static void others_who_go_are_not_missed_where_own_turns_are_taken_for_too_many(void)
{
    const struct hv_length_taken taken = {
        .own_ns = 4 * MS, .turn_ns = 2 * MS, .laid_ns = 6 * MS, .least_ns = 2 * MS, .most_ns = 2 * MS, .own = 2};
    struct hv_length length = {0};
    for (uint32_t i = 0; i < 200; i++)
        CHECK_EQUAL(hv_length_told(&length, &taken, 1 + i / 4, i * MS), 4 * MS);
    for (uint32_t i = 0; i < 40; i++)
        CHECK_EQUAL(hv_length_untold(&length, &taken, AS_IT_IS * 3 / 2), 3 * MS);
}

int main(void)
{
    others_who_go_are_not_missed_where_own_turns_are_taken_for_too_many();
    one_launch_is_no_other_work();
    what_others_tell_first_makes_it_no_shorter();
    others_who_go_are_noticed_before_that_is_told();
    work_that_is_shorter_is_believed_soon();
    launches_that_differ_are_taken_as_they_come();
    does_not_depend_on_turns();
    launches_that_differ_are_known_by_their_mean();
    what_came_after_the_last_word_does_not_count();
    is_set_right_by_what_the_driver_saw();
    nothing_is_longer_than_it_takes();
    ten_times_as_long_is_noticed();
    few_or_scattered_ones_are_not_known();
    any_number_of_launches_can_be_untold();
    return CHECK_RESULT();
}
