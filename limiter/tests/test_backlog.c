/* test: sources=limiter/src/backlog.c,limiter/src/bucket.c include=limiter/include,limiter/src,limiter/tests variants=plain,address,thread */
/* How much of what was charged has been worked through, between the ends that are seen. */
#include "backlog.h"

#include "check.h"

#define MS UINT64_C(1000000)
#define START (5000 * MS)
#define AHEAD (25 * MS)
#define WHOLE 1000000

/* Four launches of 10 ms end together every 80 ms, and four new ones begin, while 200 ms are charged ahead. */
static struct hv_backlog in_rounds(uint64_t rounds)
{
    struct hv_backlog backlog = {0};
    for (uint64_t ms = 0; ms <= rounds * 80; ms++)
        hv_backlog_note(&backlog, 200 * MS + ms / 80 * 40 * MS, ms / 80 * 40 * MS, AHEAD, START + ms * MS);
    return backlog;
}

static uint64_t left_after(const struct hv_backlog *backlog, uint64_t rounds, uint64_t ms)
{
    return hv_backlog_left(backlog, 200 * MS + rounds * 40 * MS, rounds * 40 * MS, AHEAD, START + (rounds * 80 + ms) * MS);
}

static void goes_on_between_ends(void)
{
    struct hv_backlog backlog = in_rounds(10);
    uint64_t now = left_after(&backlog, 10, 0);
    CHECK(now <= 200 * MS && now >= 175 * MS);
    CHECK(left_after(&backlog, 10, 80) < left_after(&backlog, 10, 0));
    for (uint64_t ms = 0; ms < 40; ms++) { /* half a ms of work in each */
        uint64_t before = left_after(&backlog, 10, ms), after = left_after(&backlog, 10, ms + 1);
        CHECK(before == after || (before - after > MS / 3 && before - after < MS * 2 / 3));
    }
}

/* However long nothing ends: a kernel may be waiting for another one, or have become longer. */
static void not_further_than_may_be(void)
{
    struct hv_backlog backlog = in_rounds(10);
    CHECK_EQUAL(left_after(&backlog, 10, 1000), 175 * MS);
    CHECK_EQUAL(left_after(&backlog, 10, 100000000), 175 * MS);
    hv_backlog_note(&backlog, 410 * MS, 400 * MS, AHEAD, START + 1000 * MS);
    CHECK_EQUAL(hv_backlog_left(&backlog, 410 * MS, 400 * MS, AHEAD, START + 2000 * MS), 0); /* all of it, but no more */
}

static void without_a_pace_what_has_ended_counts(void)
{
    struct hv_backlog backlog = {0};
    hv_backlog_note(&backlog, 100 * MS, 0, AHEAD, START);
    CHECK_EQUAL(hv_backlog_left(&backlog, 100 * MS, 0, AHEAD, START + 500 * MS), 100 * MS);
    CHECK_EQUAL(hv_backlog_left(&backlog, 100 * MS, 10 * MS, AHEAD, START + 500 * MS), 90 * MS);
    CHECK_EQUAL(hv_backlog_left(&backlog, 100 * MS, 120 * MS, AHEAD, START + 500 * MS), 0); /* read while it changes */
}

/* What the process did not ask for tells nothing of how fast its work goes. */
static void idling_is_no_pace(void)
{
    struct hv_backlog backlog = in_rounds(10);
    uint64_t charged = 640 * MS, then = START + 900 * MS;
    hv_backlog_note(&backlog, charged, charged, AHEAD, then);
    hv_backlog_note(&backlog, charged, charged, AHEAD, then + 3000 * MS);
    hv_backlog_note(&backlog, charged + 200 * MS, charged, AHEAD, then + 3001 * MS);
    hv_backlog_note(&backlog, charged + 200 * MS, charged + 120 * MS, AHEAD, then + 3241 * MS);
    uint64_t now = hv_backlog_left(&backlog, charged + 200 * MS, charged + 120 * MS, AHEAD, then + 3241 * MS);
    uint64_t soon = hv_backlog_left(&backlog, charged + 200 * MS, charged + 120 * MS, AHEAD, then + 3251 * MS);
    CHECK(now - soon > 4 * MS && now - soon < 6 * MS);
}

/* In rounds of 80 ms 40 are worked through: no more is there for one of two processes. Of four it would have been less,
 * alone more; and when nothing ends any more what is under way must be longer than was charged. */
static void turns_that_are_filled(void)
{
    struct hv_backlog backlog = in_rounds(10);
    uint64_t now = START + 810 * MS;
    CHECK(hv_backlog_fills_turns(&backlog, 400 * MS, 2, now));
    CHECK(hv_backlog_fills_turns(&backlog, 400 * MS, 4, now));
    CHECK(!hv_backlog_fills_turns(&backlog, 400 * MS, 1, now)); /* nobody else has turns */
    CHECK(!hv_backlog_fills_turns(&backlog, 400 * MS, 0, now)); /* nobody tells */
    CHECK(!hv_backlog_fills_turns(&backlog, 410 * MS, 2, now + 2000 * MS));
    CHECK(hv_backlog_fills_turns(&backlog, 1500 * MS, 2, now + 2000 * MS));
    hv_backlog_note(&backlog, 1600 * MS, 1600 * MS, AHEAD, now + 2000 * MS); /* it has waited for its place, not for a turn */
    CHECK(!hv_backlog_fills_turns(&backlog, 1600 * MS, 2, now + 2001 * MS));
}

static void charges_that_are_too_low_fill_no_turns(void)
{
    struct hv_backlog backlog = {0};
    for (uint64_t ms = 0; ms <= 1000; ms++) /* charged a tenth */
        hv_backlog_note(&backlog, 200 * MS, ms / 20 * MS, AHEAD, START + ms * MS);
    CHECK(!hv_backlog_fills_turns(&backlog, 50 * MS, 2, START + 1000 * MS));
    CHECK(hv_backlog_is_too_little(&backlog, 50 * MS, 2, WHOLE, START + 1000 * MS));
    CHECK(hv_backlog_is_too_little(&backlog, 50 * MS, 1, WHOLE, START + 1000 * MS));
    CHECK(!hv_backlog_is_too_little(&backlog, 50 * MS, 0, WHOLE, START + 1000 * MS)); /* nobody tells */
    CHECK(!hv_backlog_is_too_little(&backlog, 50 * MS, 15, WHOLE, START + 1000 * MS)); /* among so many it is right */
}

/* One of two processes that has worked through 40 ms in rounds of 80: all of its turns, if they do not overlap. */
static void what_overlaps_is_less(void)
{
    struct hv_backlog backlog = in_rounds(10);
    CHECK(!hv_backlog_is_too_little(&backlog, 400 * MS, 2, WHOLE, START + 810 * MS));
    CHECK(hv_backlog_is_too_little(&backlog, 400 * MS, 2, WHOLE / 4, START + 810 * MS));
}

int main(void)
{
    turns_that_are_filled();
    charges_that_are_too_low_fill_no_turns();
    what_overlaps_is_less();
    goes_on_between_ends();
    not_further_than_may_be();
    without_a_pace_what_has_ended_counts();
    idling_is_no_pace();
    return CHECK_RESULT();
}
