/* test: sources=limiter/src/survey_time.c,limiter/src/functions.c include=limiter/include,limiter/src,limiter/tests variants=plain,address */
/* How far launches run beside each other, from what was measured of some of them. */
#include "survey_time.h"

#include "check.h"

#define STREAMS 4
#define TURN_MS 2.0f

struct world {
    struct hv_surveyed launches[HV_SURVEYED];
    uint32_t spoke[HV_SURVEY_FITS];
};

static CUstream stream(uint32_t number)
{
    static char streams[STREAMS];
    return (CUstream)(void *)&streams[number];
}

/* What others' turns make of a moment of the process's own time: every turn of its own is followed by theirs. */
static float with_turns(float own_ms, uint32_t crowd)
{
    uint32_t turns = (uint32_t)(own_ms / TURN_MS);
    return own_ms + (float)turns * (float)(crowd - 1) * TURN_MS;
}

/* Rounds of launches into all streams at once, each round behind the one before; each takes its cost times slower. */
static void rounds(struct world *world, float cost_ms, float slower, uint32_t crowd)
{
    for (uint32_t i = 0; i < HV_SURVEYED; i++) {
        float begin = (float)(i / STREAMS) * cost_ms * slower;
        world->launches[i] = (struct hv_surveyed){.begin_ms = with_turns(begin, crowd),
                                                  .end_ms = with_turns(begin + cost_ms * slower - 0.001f, crowd),
                                                  .cost_ms = cost_ms,
                                                  .stream = stream(i % STREAMS)};
    }
}

static float overlap(struct world *world, uint32_t crowd)
{
    struct hv_survey_found found;
    CHECK(hv_survey_time(world->launches, HV_SURVEYED, crowd, world->spoke, &found));
    return found.covered_ms / found.charged_ms;
}

static void check_near(float is, float wanted)
{
    CHECK(is > wanted * 0.95f && is < wanted * 1.05f);
}

static void beside_each_other(void)
{
    struct world world = {0};
    rounds(&world, 1, 1, 1);
    check_near(overlap(&world, 1), 0.25f);
    check_near(overlap(&world, 0), 0.25f);
}

/* Others' turns stop all launches at once, and are nobody's here. */
static void others_turns_are_left_out(void)
{
    for (uint32_t crowd = 2; crowd <= 9; crowd++) {
        struct world short_ones = {0}, longer = {0};
        rounds(&short_ones, 0.1f, 1, crowd);
        check_near(overlap(&short_ones, crowd), 0.25f);
        rounds(&longer, 1, 1, crowd);
        check_near(overlap(&longer, crowd), 0.25f);
        check_near(overlap(&longer, 0), 0.25f);
    }
}

/* A program that paces itself: each launch waits for its turn, and what has come meanwhile runs with it. */
static void all_wait_for_a_turn(void)
{
    struct world world = {0};
    for (uint32_t i = 0; i < HV_SURVEYED; i++) {
        uint32_t turn = i / STREAMS;
        world.launches[i] = (struct hv_surveyed){.begin_ms = (float)turn * 4 + (i % STREAMS < 2 ? 0.5f : 1.5f),
                                                 .end_ms = (float)turn * 4 + 3.1f,
                                                 .cost_ms = 0.1f,
                                                 .stream = stream(i % STREAMS)};
    }
    check_near(overlap(&world, 9), 0.25f);
}

/* Launches that fill the device take so much longer that nothing is won. */
static void slow_each_other_down(void)
{
    struct world world = {0};
    rounds(&world, 1, STREAMS, 1);
    check_near(overlap(&world, 1), 1);
    for (uint32_t crowd = 2; crowd <= 9; crowd++) {
        struct world beside = {0};
        rounds(&beside, 0.02f, STREAMS, crowd);
        check_near(overlap(&beside, crowd), 1);
    }
}

/* Each was lengthened by others' turns and by those beside it: that the process has had its turns all the time tells. */
static void turns_are_as_long_as_others(void)
{
    struct world world = {0};
    for (uint32_t i = 0; i < HV_SURVEYED; i++) {
        float begin = (float)(i / STREAMS) * 11;
        world.launches[i] = (struct hv_surveyed){
            .begin_ms = begin, .end_ms = begin + 11, .cost_ms = 1, .stream = stream(i % STREAMS)};
    }
    check_near(overlap(&world, 3), 1);
}

/* Pairs that run alone in their turns: each of them counts up to the launch that was made last, also where the streams of
 * the last but one have ended before. */
static void until_the_last_was_made(void)
{
    struct world world = {0};
    struct hv_survey_found found;
    for (uint32_t i = 0; i < HV_SURVEYED; i++) {
        float begin = (float)(i / 2);
        world.launches[i] = (struct hv_surveyed){.begin_ms = begin,
                                                 .end_ms = begin + 0.5f,
                                                 .cost_ms = 0.1f,
                                                 .stream = stream(i % STREAMS),
                                                 .idle = true};
    }
    CHECK(hv_survey_time(world.launches, HV_SURVEYED, 9, world.spoke, &found));
    check_near(found.charged_ms, 0.1f * (HV_SURVEYED - 4)); /* all but the first and the last pair */
    check_near(found.covered_ms, 0.1f * (HV_SURVEYED - 4) / 2);
}

static void one_after_the_other(void)
{
    struct world world = {0};
    struct hv_survey_found found;
    for (uint32_t i = 0; i < HV_SURVEYED; i++)
        world.launches[i] = (struct hv_surveyed){.begin_ms = (float)i,
                                                 .end_ms = (float)i + 1,
                                                 .cost_ms = 1,
                                                 .stream = stream(i < HV_SURVEYED / 2 ? 0 : 1)};
    CHECK(!hv_survey_time(world.launches, HV_SURVEYED, 1, world.spoke, &found));
    for (uint32_t i = 0; i < HV_SURVEYED; i++)
        world.launches[i].stream = stream(i % STREAMS);
    check_near(overlap(&world, 1), 1);
}

int main(void)
{
    beside_each_other();
    others_turns_are_left_out();
    all_wait_for_a_turn();
    slow_each_other_down();
    turns_are_as_long_as_others();
    until_the_last_was_made();
    one_after_the_other();
    return CHECK_RESULT();
}
