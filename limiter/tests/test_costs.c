/* test: sources=limiter/src/functions.c,limiter/src/coverage.c include=limiter/include,limiter/src,limiter/tests variants=plain,address,thread */
/* What a launch costs, and what measured times come to over all of a Pod's processes. */
#include "coverage.h"

#include <pthread.h>

#include "check.h"
#include "functions.h"

#define MS UINT64_C(1000000)
#define NOT_LAID UINT64_MAX /* all of it is its own */
#define START (123456 * MS)

/* ---- the cost of a function ---- */

static void undisturbed(void)
{
    const uint32_t times[] = {900, 100, 110, 105, 5000, 120, 130, 140};
    uint32_t alike;
    CHECK_EQUAL(hv_undisturbed(times, 1, &alike), 900);
    CHECK_EQUAL(hv_undisturbed(times, 2, &alike), 100);
    CHECK_EQUAL(hv_undisturbed(times, 8, &alike), 110); /* the middle one of 100, 105, 110, 120 */
    CHECK_EQUAL(alike, 4);
    const uint32_t many[] = {3, 100, 100, 100, 2100, 2100, 2100, 2100, 2100};
    CHECK_EQUAL(hv_undisturbed(many, 9, &alike), 100); /* one that is wrong does not stand for all */
}

static void learn(struct hv_function *function, uint64_t ns, uint64_t own_ns, bool beside_others)
{
    hv_function_learn(function, &(struct hv_measured){.ns = ns, .own_ns = own_ns, .beside_others = beside_others, .at_ns = 1});
}

static void follows_a_change(void)
{
    struct hv_function function = {0};
    for (int i = 0; i < 40; i++)
        learn(&function, 100, NOT_LAID, false);
    CHECK_EQUAL(function.cost_ns, 100);
    for (int i = 0; i < HV_RECENT_SAMPLES - 2; i++)
        learn(&function, 300, NOT_LAID, false); /* a neighbour's turns may do this */
    CHECK_EQUAL(function.cost_ns, 100);
    for (int i = 0; i < 2; i++)
        learn(&function, 300, NOT_LAID, false);
    CHECK_EQUAL(function.cost_ns, 300);
    learn(&function, 0, NOT_LAID, false);
    CHECK(function.cost_ns >= 1); /* 0 would mean not learned */
}

/* Another process has measured it in peace; the first times of this one may be mostly others' turns. */
static void believes_what_others_measured_at_first(void)
{
    struct hv_function graph = {.kind = HV_FUNCTION_GRAPH, .first_cost_ns = 1 * MS, .first_measured = 1};
    struct hv_function summed = {.kind = HV_FUNCTION_GRAPH, .first_cost_ns = 1 * MS}; /* over nodes, by their guesses */
    for (int i = 0; i < HV_FIRST_SAMPLES; i++) {
        learn(&graph, 3 * MS, NOT_LAID, false);
        learn(&summed, 3 * MS, NOT_LAID, false);
    }
    CHECK_EQUAL(graph.cost_ns, 1 * MS);
    CHECK_EQUAL(summed.cost_ns, 3 * MS);
    learn(&graph, 3 * MS, NOT_LAID, false);
    CHECK_EQUAL(graph.cost_ns, 3 * MS);
}

/* Others' turns scatter times; a few among many that are not longer keep the cost. */
/* Eight processes that take turns: each launch of this one has seven others' in it, from the first on. */
static void turns_that_are_alike_make_nothing_long_that_others_measured_short(void)
{
    struct hv_function function = {.first_cost_ns = 1 * MS, .first_measured = 1}, alone = {0};
    for (uint32_t i = 0; i < HV_RECENT_SAMPLES; i++) {
        learn(&function, 8 * MS, 1 * MS, false);
        learn(&alone, 8 * MS, 1 * MS, false);
        CHECK(function.is_long == 0);
    }
    CHECK(alone.is_long);
    for (uint32_t i = 0; i < HV_RECENT_SAMPLES; i++) /* it does take so long, here */
        learn(&function, 8 * MS, 8 * MS, false);
    CHECK(function.is_long);
}

static void rises_slowly_among_scattered_times(void)
{
    struct hv_function function = {0};
    for (int i = 0; i < 40; i++)
        learn(&function, 100000, NOT_LAID, false);
    for (uint64_t i = 0; i < 60; i++)
        learn(&function, 150000 + i * 7919 % 64 * 7000, NOT_LAID, false);
    CHECK(function.cost_ns < 160000);
}

/* Where times depend on how many launches run beside each other, a cost falls at once and rises slowly. */
static void rises_slowly_beside_others(void)
{
    struct hv_function function = {0};
    for (int i = 0; i < 40; i++)
        learn(&function, 100000, NOT_LAID, true);
    for (int i = 0; i < 40; i++)
        learn(&function, 200000, NOT_LAID, true);
    CHECK(function.cost_ns > 100000 && function.cost_ns < 125000);
    learn(&function, 50000, NOT_LAID, true);
    learn(&function, 50000, NOT_LAID, true);
    CHECK_EQUAL(function.cost_ns, 50000);
}

/* Of long ones the mean counts, and of that what is the Pod's own GPU time. */
static void long_ones(void)
{
    struct hv_function function = {0};
    for (int i = 0; i < 200; i++)
        learn(&function, i % 2 == 0 ? 30 * MS : 50 * MS, i % 2 == 0 ? 8 * MS : 12 * MS, false);
    CHECK(function.is_long);
    CHECK(function.cost_ns > 9 * MS && function.cost_ns < 11 * MS);
}

static void grids(void)
{
    CHECK(hv_grid_bucket(1) != hv_grid_bucket(2));
    CHECK(hv_grid_bucket(108) != hv_grid_bucket(10000));
    CHECK_EQUAL(hv_grid_bucket(10000), hv_grid_bucket(10001));
    CHECK(hv_function_key(&grids, 1, 1, 0) != hv_function_key(&grids, 1, 1, 1));
    CHECK(hv_function_key(&grids, 1, 32, 0) != hv_function_key(&grids, 1, 64, 0));
}

/* ---- coverage ---- */

/* Each moment counts once, in whatever order and from however many it comes. */
static void each_moment_counts_once(void)
{
    static struct hv_coverage line;
    CHECK_EQUAL(hv_cover(&line, START, START + 40 * MS), 40 * MS);
    CHECK_EQUAL(hv_cover(&line, START, START + 40 * MS), 0);
    CHECK_EQUAL(hv_cover(&line, START + 30 * MS, START + 60 * MS), 20 * MS);
    CHECK_EQUAL(hv_cover(&line, START - 100 * MS, START + 200 * MS), 240 * MS); /* what is told late fills the rest */
    CHECK_EQUAL(hv_cover(&line, START + 70 * MS, START + 70 * MS), 0);
    CHECK_EQUAL(hv_cover(&line, START + 70 * MS, START), 0);
    CHECK_EQUAL(hv_cover(NULL, START, START + 3 * MS), 3 * MS); /* a file without it */
}

/* What is no whole number of ticks is neither lost nor added in the long run. */
static void ticks_round_fairly(void)
{
    static struct hv_coverage line;
    uint64_t at = START, sum = 0;
    for (int i = 0; i < 1000; i++, at += 7300000)
        sum += hv_cover(&line, at, at + 4700000);
    CHECK(sum > 1000 * 4690000ull && sum < 1000 * 4710000ull);
}

/* The ring comes round after 24.6 s: what lies there from the round before is nothing. */
static void old_rounds_are_forgotten(void)
{
    static struct hv_coverage line;
    const uint64_t round_ns = (uint64_t)HV_COVERAGE_WORDS * HV_COVERAGE_TICKS_A_WORD * HV_COVERAGE_TICK_NS;
    CHECK_EQUAL(hv_cover(&line, START, START + 40 * MS), 40 * MS);
    CHECK_EQUAL(hv_cover(&line, START + round_ns, START + round_ns + 40 * MS), 40 * MS);
    CHECK_EQUAL(hv_cover(&line, START, START + 40 * MS), 40 * MS);              /* told a whole round late */
    CHECK_EQUAL(hv_cover(&line, START + round_ns, START + round_ns + 40 * MS), 0); /* and does no harm */
    CHECK_EQUAL(hv_cover(&line, START + 50000 * round_ns, START + 50000 * round_ns + 40 * MS), 40 * MS);
    CHECK_EQUAL(hv_cover(&line, START, START + 3 * round_ns), 3 * round_ns); /* longer than the ring */
    for (uint32_t i = 0; i < HV_COVERAGE_WORDS; i++)
        line.words[i] = UINT64_MAX; /* scribbled */
    CHECK(hv_cover(&line, START, START + 40 * MS) <= 40 * MS);
}

static struct hv_coverage shared;
static uint64_t covered_together;

static void *cover_often(void *argument)
{
    (void)argument;
    for (uint64_t i = 0; i < 20000; i++)
        __atomic_fetch_add(&covered_together, hv_cover(&shared, START + i * MS, START + (i + 3) * MS), __ATOMIC_RELAXED);
    return NULL;
}

static void many_at_once(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK_EQUAL(pthread_create(&threads[i], NULL, cover_often, NULL), 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    CHECK_EQUAL(covered_together, 20002 * MS);
}

static void own_turns(void)
{
    CHECK_EQUAL(hv_own_turns(180 * MS, 8, HV_SHARE_FULL_PPM), 160 * MS);
    CHECK_EQUAL(hv_own_turns(40 * MS, 1, HV_SHARE_FULL_PPM), 20 * MS);
    CHECK_EQUAL(hv_own_turns(40 * MS, 3, 0), 40 * MS);                 /* nobody else */
    CHECK_EQUAL(hv_own_turns(40 * MS, 0, HV_SHARE_FULL_PPM), 20 * MS); /* at least the one that asks */
    CHECK(hv_own_turns(65 * MS, 1, UINT64_MAX) == 1 * MS);             /* scribbled */
}

static void others_have_no_more_turns_than_there_are_others(void)
{
    const uint64_t one = HV_SHARE_FULL_PPM;
    CHECK_EQUAL(hv_turns_within(one * 12 / 10, 1, 1000 * MS), one + one * 16 / 1000);
    CHECK_EQUAL(hv_turns_within(one * 3, 1, 5 * MS), one * 3); /* turns that end early */
    CHECK_EQUAL(hv_turns_within(one / 2, 1, 2000 * MS), one / 2);
    CHECK_EQUAL(hv_turns_within(one * 3, 4, 2000 * MS), one * 3);
    CHECK_EQUAL(hv_turns_within(one * 3, 0, 2000 * MS), one * 3); /* who is there nobody has told */
    CHECK_EQUAL(hv_turns_within(one * 3, UINT64_MAX, 2000 * MS), one * 3);
    CHECK_EQUAL(hv_turns_within(one * 3, 1, 0), one * 3);
}

/* With the daemon gone what its correction is for stays, until the work is other work. */
static void held_costs_stay(void)
{
    struct hv_function function = {0};
    for (int i = 0; i < 40; i++)
        learn(&function, 100000, NOT_LAID, false);
    struct hv_measured held = {.held = true, .at_ns = 1, .own_ns = NOT_LAID, .ns = 120000};
    for (int i = 0; i < 40; i++)
        hv_function_learn(&function, &held);
    CHECK_EQUAL(function.cost_ns, 100000);
    held.ns = 1000000;
    for (int i = 0; i < 40; i++)
        hv_function_learn(&function, &held);
    CHECK(function.cost_ns > 900000);
}

/* What has seemed to take longer since the daemon has gone, and does not any more, costs what it did, and not less. */
static void what_rose_without_the_daemon_falls_again(void)
{
    struct hv_function function = {0};
    for (int i = 0; i < 40; i++)
        learn(&function, 1 * MS, NOT_LAID, false);
    struct hv_measured held = {.held = true, .at_ns = 1, .own_ns = NOT_LAID, .ns = 3 * MS};
    for (int i = 0; i < 300; i++)
        hv_function_learn(&function, &held);
    CHECK_EQUAL(function.cost_ns, 3 * MS);
    for (held.ns = MS + MS / 2; held.ns >= MS; held.ns -= MS / 4)
        for (int i = 0; i < 3; i++)
            hv_function_learn(&function, &held);
    CHECK_EQUAL(function.cost_ns, 1 * MS);
    held.ns = MS - MS / 5;
    for (int i = 0; i < 40; i++)
        hv_function_learn(&function, &held);
    CHECK_EQUAL(function.cost_ns, 1 * MS);
    held.ns = MS / 10;
    for (int i = 0; i < 40; i++)
        hv_function_learn(&function, &held);
    CHECK_EQUAL(function.cost_ns, MS / 10); /* other work */
}

/* Times that scatter are taken for the launch's own sooner where the driver sees more than is charged. */
static void rises_sooner_where_charges_are_too_little(void)
{
    struct hv_function told = {0}, not_told = {0};
    for (int i = 0; i < 40; i++) {
        learn(&told, 100000, NOT_LAID, true);
        learn(&not_told, 100000, NOT_LAID, true);
    }
    struct hv_measured longer = {.ns = 600000, .own_ns = NOT_LAID, .beside_others = true, .at_ns = 1};
    for (int i = 0; i < 150; i++) {
        hv_function_learn(&not_told, &longer);
        longer.too_little = true;
        hv_function_learn(&told, &longer);
        longer.too_little = false;
    }
    CHECK(told.cost_ns > 250000);
    CHECK(not_told.cost_ns < 110000);
}

/* ---- other work ---- */

/* A function that has cost `before` for long. Times in a row of ns from then on, until it costs more; 0: it does not. */
static int longer_than(uint64_t before, uint64_t ns, uint32_t crowd, bool idle, bool beside_others)
{
    struct hv_function function = {0};
    struct hv_measured measured = {
        .ns = before, .own_ns = NOT_LAID, .crowd = crowd, .idle = idle, .beside_others = beside_others, .at_ns = 1};
    for (int i = 0; i < 40; i++)
        (void)hv_function_learn(&function, &measured);
    measured.ns = ns;
    for (int i = 1; i <= 16; i++) {
        bool other = hv_function_learn(&function, &measured);
        CHECK(other == (function.cost_ns > before * 2));
        if (other)
            return i;
    }
    return 0;
}

static int longer_after(uint64_t ns, uint32_t crowd, bool idle, bool beside_others)
{
    return longer_than(100000, ns, crowd, idle, beside_others);
}

static void other_work_is_seen_soon(void)
{
    CHECK_EQUAL(longer_after(1000000, 1, false, false), 4);
    CHECK_EQUAL(longer_after(1000000, 1, true, false), 4); /* nobody is there to wait for */
    CHECK_EQUAL(longer_after(1000000, 2, false, false), 4);
    CHECK_EQUAL(longer_after(1000000, 0, false, false), 8); /* nobody tells */
    CHECK_EQUAL(longer_after(1000000, 1, false, true), 4);
    CHECK_EQUAL(longer_after(1000000, 9, false, false), 4); /* eight others, whose turns few launches meet */
    CHECK_EQUAL(longer_than(1000000, 20000000, 2, false, false), 4);
}

static void turns_are_no_other_work(void)
{
    CHECK_EQUAL(longer_after(150000, 1, false, false), 0);
    CHECK_EQUAL(longer_after(1000000, 2, true, false), 0);  /* each may have waited for its turn */
    CHECK_EQUAL(longer_after(1000000, 0, true, false), 0);
    CHECK_EQUAL(longer_after(300000, 2, false, false), 0);
    CHECK_EQUAL(longer_than(1000000, 5000000, 2, false, false), 0);  /* another's turns in each */
    CHECK_EQUAL(longer_than(1000000, 10000000, 4, false, false), 0); /* three others' */
    CHECK_EQUAL(longer_than(1000000, 100000000, 0, false, false), 0); /* nobody tells */
    CHECK_EQUAL(longer_after(400000, 1, false, true), 0);   /* four streams at once */
    CHECK_EQUAL(longer_after(4000000, 2, false, true), 0);  /* which another's turn lengthens together */
}

/* A function that has cost 1 ms for long, and from then on takes ns in launches that ran behind others of their stream:
 * its cost after so many. The daemon is silent and has told of so many processes last. */
static uint64_t cost_when_silent(uint64_t ns, uint32_t crowd_told, int launches)
{
    struct hv_function function = {0};
    struct hv_measured measured = {
        .ns = 1 * MS, .own_ns = NOT_LAID, .crowd_told = crowd_told, .held = true, .at_ns = 1};
    for (int i = 0; i < 40; i++)
        (void)hv_function_learn(&function, &measured);
    measured.ns = ns;
    for (int i = 0; i < launches; i++)
        (void)hv_function_learn(&function, &measured);
    return function.cost_ns;
}

/* Nine processes in turn, told of: each launch of 1 ms takes 9. */
static void turns_that_fall_in_alike_are_turns_unless_charges_are_seen_to_be_too_little(void)
{
    struct hv_function function = {0}, other = {0};
    for (int i = 0; i < HV_RECENT_SAMPLES; i++)
        hv_function_learn(&function, &(struct hv_measured){.ns = MS, .own_ns = MS, .crowd = 9, .at_ns = 1});
    other = function;
    for (int i = 0; i < 2 * HV_RECENT_SAMPLES; i++) {
        hv_function_learn(&function, &(struct hv_measured){.ns = 9 * MS, .own_ns = 9 * MS, .crowd = 9, .at_ns = 1});
        hv_function_learn(&other, &(struct hv_measured){.ns = 9 * MS, .own_ns = 9 * MS, .crowd = 9, .too_little = true, .at_ns = 1});
    }
    CHECK(function.cost_ns < MS + MS / 10);
    CHECK(function.is_long == 0);
    CHECK(other.cost_ns > 8 * MS);
}

static void turns_that_fall_in_alike_raise_no_cost_when_nobody_looks(void)
{
    CHECK(cost_when_silent(MS + MS * 6 / 10, 2, 100) < MS + MS / 10);
    CHECK_EQUAL(cost_when_silent(MS + MS * 6 / 10, 1, 100), MS + MS * 6 / 10); /* nobody was there */
    CHECK(cost_when_silent(10 * MS, 2, 100) > 9 * MS); /* more than turns */
    CHECK_EQUAL(cost_when_silent(MS + MS * 6 / 10, 2, 1000), MS + MS * 6 / 10); /* for too long to be a chance */
}

/* What one that has cost 1 ms for long costs after so many times in a row of ns, alike, beside others of its process. */
static uint64_t cost_in_turns(uint64_t ns, bool enough_charged, bool held, bool beside_others)
{
    struct hv_function function = {0};
    struct hv_measured measured = {.ns = MS, .own_ns = NOT_LAID, .crowd = held ? 0 : 9, .crowd_told = held ? 9 : 0,
                                   .held = held, .beside_others = beside_others, .at_ns = 1};
    for (int i = 0; i < 40; i++)
        (void)hv_function_learn(&function, &measured);
    measured.ns = ns;
    measured.idle = !beside_others;
    measured.enough_charged = enough_charged;
    for (int i = 0; i < 400; i++)
        (void)hv_function_learn(&function, &measured);
    return function.cost_ns;
}

/* Four streams whose launches of 1 ms fill the device, and eight other processes with turns: each takes two rounds, for
 * ever. What was charged meanwhile fills the turns of this process, so it is no longer than it was. */
static void for_however_long_turns_are_alike_what_was_charged_was_enough(void)
{
    CHECK(cost_in_turns(36 * MS, true, true, true) < MS + MS / 10);
    CHECK(cost_in_turns(18 * MS, true, false, false) < MS + MS / 10);
    CHECK(cost_in_turns(36 * MS, false, true, true) > 30 * MS); /* it was not: the work is longer */
    CHECK(cost_in_turns(18 * MS, false, false, false) > 17 * MS);
}

/* Without the daemon: that a launch became longer once is no word about those that may have waited for their turn. */
static void waits_after_a_change_raise_no_cost_when_nobody_looks(void)
{
    struct hv_function function = {0};
    struct hv_measured measured = {.ns = MS, .own_ns = NOT_LAID, .crowd_told = 2, .held = true, .at_ns = 1};
    for (int i = 0; i < 40; i++)
        (void)hv_function_learn(&function, &measured);
    for (uint64_t i = 0; i < 300 && function.cost_ns < 2 * MS; i++) {
        measured.ns = 3 * MS + i * 7919 % 64 * MS / 10;
        (void)hv_function_learn(&function, &measured);
    }
    CHECK(function.cost_ns > 2 * MS && function.cost_ns < 4 * MS);
    measured.idle = true;
    for (uint64_t i = 0; i < 60; i++) {
        measured.ns = 9 * MS + i * 7919 % 64 * MS / 4;
        (void)hv_function_learn(&function, &measured);
    }
    CHECK(function.cost_ns < 4 * MS);
}

/* Without the daemon too: what ends is far less than this process's turns, so times that scatter, of several streams, are
 * the launches' own. */
static void rises_sooner_where_turns_are_seen_to_be_longer_and_nobody_looks(void)
{
    struct hv_function function = {0};
    struct hv_measured measured = {.ns = MS / 4, .own_ns = NOT_LAID, .crowd_told = 2, .held = true, .beside_others = true, .at_ns = 1};
    for (int i = 0; i < 40; i++)
        (void)hv_function_learn(&function, &measured);
    measured.too_little = true;
    for (uint64_t i = 0; i < 150; i++) {
        measured.ns = MS + i * 7919 % 64 * MS / 32;
        (void)hv_function_learn(&function, &measured);
    }
    CHECK(function.cost_ns > MS / 2 && function.cost_ns < 3 * MS / 2);
}

/* One time that is not longer says that the work is as it was. */
static void one_short_time_ends_a_run(void)
{
    struct hv_function function = {0};
    struct hv_measured measured = {.ns = 100000, .own_ns = NOT_LAID, .crowd = 2, .at_ns = 1};
    for (int i = 0; i < 400; i++) {
        measured.ns = i < 40 || i % 4 == 0 ? 100000 : 1000000;
        CHECK(!hv_function_learn(&function, &measured));
    }
    CHECK(function.cost_ns < 110000);
}

/* What was taken for other work by mistake is put right by the first time that shows it. */
static void a_mistake_is_short(void)
{
    struct hv_function function = {0};
    struct hv_measured measured = {.ns = 100000, .own_ns = NOT_LAID, .crowd = 1, .at_ns = 1};
    for (int i = 0; i < 40; i++)
        (void)hv_function_learn(&function, &measured);
    measured.ns = 2000000;
    for (int i = 0; i < 4; i++)
        (void)hv_function_learn(&function, &measured);
    CHECK_EQUAL(function.cost_ns, 2000000);
    measured.ns = 100000;
    (void)hv_function_learn(&function, &measured);
    CHECK_EQUAL(function.cost_ns, 100000);
}

/* One that has become long costs what of it is the Pod's own. */
static void other_work_that_is_long(void)
{
    struct hv_function function = {0};
    struct hv_measured measured = {.ns = 1 * MS, .own_ns = NOT_LAID, .crowd = 2, .at_ns = 1};
    for (int i = 0; i < 40; i++)
        (void)hv_function_learn(&function, &measured);
    measured.ns = 20 * MS;
    for (int i = 0; i < 4; i++)
        (void)hv_function_learn(&function, &measured);
    CHECK(function.is_long);
    CHECK_EQUAL(function.cost_ns, 10 * MS);
}

int main(void)
{
    undisturbed();
    follows_a_change();
    believes_what_others_measured_at_first();
    turns_that_are_alike_make_nothing_long_that_others_measured_short();
    rises_slowly_among_scattered_times();
    rises_slowly_beside_others();
    long_ones();
    grids();
    each_moment_counts_once();
    ticks_round_fairly();
    old_rounds_are_forgotten();
    many_at_once();
    own_turns();
    others_have_no_more_turns_than_there_are_others();
    held_costs_stay();
    what_rose_without_the_daemon_falls_again();
    rises_sooner_where_charges_are_too_little();
    other_work_is_seen_soon();
    turns_are_no_other_work();
    turns_that_fall_in_alike_are_turns_unless_charges_are_seen_to_be_too_little();
    turns_that_fall_in_alike_raise_no_cost_when_nobody_looks();
    for_however_long_turns_are_alike_what_was_charged_was_enough();
    waits_after_a_change_raise_no_cost_when_nobody_looks();
    rises_sooner_where_turns_are_seen_to_be_longer_and_nobody_looks();
    one_short_time_ends_a_run();
    a_mistake_is_short();
    other_work_that_is_long();
    return CHECK_RESULT();
}
