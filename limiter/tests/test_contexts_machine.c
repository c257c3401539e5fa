/* test: sources=limiter/tests/contexts_world.c include=limiter/include,limiter/src,limiter/tests variants=plain flags=-O2 seconds=120 */
/*
 * Every interleaving of processes that make and destroy contexts, of a daemon
 * that measures them, enters that as overhead and gives up what stood for them,
 * of others that take memory and recount, of deaths at every step and of slots
 * that get another owner; over the very steps that the library and the daemon
 * run. What is held, measured or not, is never more than the limit.
 */
#include <string.h>

#include "check.h"
#include "contexts_world.h"
#include "state_set.h"

static struct state_set seen;
static struct world *stack;
static size_t stack_count, stack_capacity;
static uint64_t broken;

static void push(const struct world *world)
{
    if (!state_set_add(&seen, world, sizeof *world))
        return;
    if (stack_count == stack_capacity) {
        stack_capacity = stack_capacity == 0 ? 1024 : stack_capacity * 2;
        stack = realloc(stack, stack_capacity * sizeof *stack);
        if (stack == NULL)
            exit(2);
    }
    stack[stack_count++] = *world;
}

/* ---- what must hold ---- */

static uint64_t settled(const struct slot *slot)
{
    uint64_t given_up = hv_contexts_given_up(slot->word, slot->state);
    return slot->bytes > given_up ? slot->bytes - given_up : 0;
}

static void check_world(const struct world *world)
{
    uint64_t held = 0;
    for (uint32_t p = 0; p < PROCESSES; p++) {
        const struct actor *actor = &world->actors[p];
        if (actor->activity == DEAD)
            continue; /* the driver has freed what it held */
        held += actor->held + actor->made;
        if (settled(&world->slots[p]) + world->slots[p].in_flight < actor->held + actor->context)
            broken++;
    }
    uint64_t counted = hv_total_bytes(world->total) + world->overhead;
    if (held > scenario->limit || counted < held)
        broken++;
}

/* When nothing moves any more, a recount has to find what is held and not measured, and no more. */
static void check_end(struct world world)
{
    uint64_t held = 0;
    for (uint32_t p = 0; p < PROCESSES; p++) {
        if (world.actors[p].activity == DEAD)
            world.slots[p].state &= ~UINT64_C(0xff);
        else
            held += world.actors[p].held + world.actors[p].context;
    }
    struct hv_recount recount;
    start_recount(&recount);
    while (recount.at < HV_RECOUNT_HEALED)
        step_recount(&world, &recount);
    if (hv_total_bytes(world.total) != held)
        broken++;
}

/* ---- exploring ---- */

static bool is_over(const struct world *world)
{
    for (uint32_t p = 0; p < PROCESSES; p++)
        if (world->actors[p].activity != FINISHED && world->actors[p].activity != DEAD)
            return false;
    return world->daemon.at == RESTS || world->daemon.at == GONE;
}

/* Somebody saw that it is dead and gave its slot back, and another process claims it. */
static void push_successor(struct world next, uint32_t p)
{
    next.slots[p].state = ((next.slots[p].state >> 8) + !scenario->sequence_stands) << 8 | HV_SLOT_LIVE;
    next.slots[p].bytes = next.slots[p].in_flight = next.slots[p].context_bytes = 0;
    memset(&next.actors[p], 0, sizeof next.actors[p]);
    next.actors[p].reborn = 1;
    push(&next);
}

static void expand_daemon(const struct world *world)
{
    struct world next = *world;
    if (world->daemon.at == GONE)
        return;
    if (world->daemon.at != RESTS) {
        step_daemon(&next);
        push(&next);
        next = *world; /* it may die anywhere */
        memset(&next.daemon, 0, sizeof next.daemon);
        next.daemon.at = GONE;
        push(&next);
        return;
    }
    for (uint8_t p = 0; p < PROCESSES && world->daemon.left > 0; p++) {
        next = *world;
        next.daemon.left--;
        next.daemon.of = p;
        next.daemon.at = READS_STATE;
        push(&next);
    }
}

static void expand(const struct world *world)
{
    check_world(world);
    if (is_over(world))
        check_end(*world);
    for (uint32_t p = 0; p < PROCESSES; p++) {
        struct world next = *world;
        if (world->actors[p].activity == DEAD && !world->actors[p].reborn && scenario->reborn != NULL) {
            push_successor(next, p);
        } else if (world->actors[p].activity != FINISHED && world->actors[p].activity != DEAD) {
            step_actor(&next, p);
            push(&next);
        }
        if (world->actors[p].activity != DEAD && world->deaths_left > 0) {
            next = *world;
            uint8_t reborn = next.actors[p].reborn;
            memset(&next.actors[p], 0, sizeof next.actors[p]);
            next.actors[p].activity = DEAD;
            next.actors[p].reborn = reborn;
            next.deaths_left--;
            push(&next);
        }
    }
    expand_daemon(world);
}

static void explore(const struct scenario *which, uint8_t gives, uint8_t deaths)
{
    scenario = which;
    struct world start;
    memset(&start, 0, sizeof start); /* the padding is compared too */
    for (uint32_t p = 0; p < PROCESSES; p++)
        start.slots[p].state = HV_SLOT_LIVE;
    start.daemon.left = gives;
    start.deaths_left = deaths;
    grants = given = broken = 0;
    push(&start);
    while (stack_count > 0) {
        struct world world = stack[--stack_count];
        expand(&world);
    }
    printf("%s: %zu states, %llu broken\n", which->name, seen.count, (unsigned long long)broken);
    fflush(stdout);
    free(seen.hashes);
    seen = (struct state_set){0};
}

int main(void)
{
    static const struct scenario beside = {
        .name = "a context comes and goes beside one who takes what is left",
        .limit = 4 * UNIT,
        .memory = 3 * UNIT, /* fits when the context is measured */
        .context = 2 * UNIT,
        .program = {"cd", "r"},
    };
    static const struct scenario late = {
        .name = "one whose limit is from before the context was measured",
        .limit = 3 * UNIT,
        .memory = 3 * UNIT,
        .context = 2 * UNIT,
        .program = {"c", "r"},
    };
    static const struct scenario again = {
        .name = "one context after another",
        .limit = 4 * UNIT,
        .memory = UNIT,
        .context = 2 * UNIT,
        .program = {"cdc", ""},
    };
    static const struct scenario successor = {
        .name = "the slot gets another owner",
        .limit = 4 * UNIT,
        .memory = UNIT,
        .context = 2 * UNIT,
        .program = {"c", ""},
        .reborn = "r",
    };
    explore(&beside, 1, 1);
    CHECK_EQUAL(broken, 0);
    CHECK(grants > 0 && given > 0);
    explore(&late, 1, 0);
    CHECK_EQUAL(broken, 0);
    explore(&again, 2, 0);
    CHECK_EQUAL(broken, 0);
    explore(&successor, 1, 1);
    CHECK_EQUAL(broken, 0);
    struct scenario control = again;
    control.name = "control: an opened word looks as before";
    control.count_stands = true;
    explore(&control, 2, 0);
    CHECK(broken > 0); /* the test sees the mistakes that it is there for */
    control = successor;
    control.name = "control: a word that the owner before has left counts";
    control.sequence_stands = true;
    explore(&control, 1, 1);
    CHECK(broken > 0);
    control = late;
    control.name = "control: who was granted does not look again";
    control.looks_once = true;
    explore(&control, 1, 0);
    CHECK(broken > 0);
    return CHECK_RESULT();
}
