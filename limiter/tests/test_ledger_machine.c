/* test: include=limiter/include,limiter/src,limiter/tests variants=plain flags=-O2 seconds=120 */
/*
 * Every interleaving of three processes that each take and give back memory, of
 * a healer that recounts, and of deaths at every step; over the very steps that
 * the library runs. The invariants of ledger.h are checked in each state.
 */
#include <stddef.h>
#include <string.h>

#include "check.h"
#include "ledger.h"
#include "state_set.h"

#define PROCESSES 3

/* What a process does, one letter an operation: r reserves, f frees. */
struct scenario {
    const char *name;
    uint64_t limit;
    uint64_t bytes[PROCESSES];
    const char *program[PROCESSES];
    bool heals_when_refused; /* and then tries once more, as the library does */
    bool single_reading;     /* a healer that reads in_flight only once, as a control */
};

struct slot {
    uint64_t state, bytes, in_flight;
};

enum activity { IDLE, RESERVING, RELEASING, RECOUNTING, FINISHED, DEAD };

struct actor {
    uint64_t held; /* what the driver has given to this process */
    uint64_t seen; /* of its operation */
    struct hv_recount recount;
    uint8_t activity; /* enum activity */
    uint8_t at;       /* enum hv_ledger_step */
    uint8_t next;     /* index in its program */
    uint8_t retried;  /* has healed once for this operation */
};

/* All that there is, without pointers, so that it can be copied and compared. */
struct world {
    uint64_t total;
    struct slot slots[PROCESSES];
    struct actor actors[PROCESSES];
    struct hv_recount heal;
    uint8_t heals_left;
    uint8_t healing;
    uint8_t deaths_left;
};

static const struct scenario *scenario;
static struct state_set seen;
static struct world *stack;
static size_t stack_count, stack_capacity;
static uint64_t refusals, grants, broken;

static bool lookup(const void *slots, uint32_t index, struct hv_recount_words *words)
{
    struct slot *all = (struct slot *)(uintptr_t)slots; /* the machine only reads them */
    *words = (struct hv_recount_words){
        .state = &all[index].state, .bytes = &all[index].bytes, .in_flight = &all[index].in_flight};
    return true;
}

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

/* ---- one step of each kind ---- */

static void step_recount(struct world *world, struct hv_recount *recount)
{
    recount->total = &world->total;
    hv_recount_step(recount, world->slots, PROCESSES, lookup);
    if (scenario->single_reading && recount->at == HV_RECOUNT_IN_FLIGHT_AFTER)
        hv_recount_next(recount, PROCESSES);
    recount->total = NULL; /* states with other addresses are the same state */
}

static void start_recount(struct hv_recount *recount)
{
    memset(recount, 0, sizeof *recount);
    recount->at = HV_RECOUNT_LOAD_TOTAL;
}

static void start_operation(struct world *world, uint32_t p)
{
    struct actor *actor = &world->actors[p];
    char operation = scenario->program[p][actor->next];
    if (operation == '\0') {
        actor->activity = FINISHED;
        return;
    }
    if (operation == 'f' && actor->held == 0) { /* was refused before */
        actor->next++;
        return;
    }
    if (operation == 'f')
        actor->held = 0; /* the driver has freed it before we are told */
    actor->activity = operation == 'r' ? RESERVING : RELEASING;
    actor->at = HV_LEDGER_MARK;
    actor->seen = 0;
}

static void operation_over(struct actor *actor, uint64_t n)
{
    if (actor->activity == RESERVING && actor->at == HV_LEDGER_REFUSED && scenario->heals_when_refused &&
        !actor->retried) {
        actor->retried = 1;
        actor->activity = RECOUNTING;
        start_recount(&actor->recount);
        return;
    }
    if (actor->activity == RESERVING && actor->at == HV_LEDGER_GRANTED) {
        actor->held = n;
        grants++;
    }
    refusals += actor->at == HV_LEDGER_REFUSED;
    actor->activity = IDLE;
    actor->next++;
    actor->retried = 0;
    actor->seen = 0;
    actor->at = 0;
}

static void step_operation(struct world *world, uint32_t p)
{
    struct actor *actor = &world->actors[p];
    struct slot *slot = &world->slots[p];
    struct hv_ledger_operation operation = {
        .account = {.total = &world->total, .bytes = &slot->bytes, .in_flight = &slot->in_flight},
        .n = scenario->bytes[p],
        .limit = scenario->limit,
        .seen = actor->seen,
        .at = actor->at,
    };
    if (actor->activity == RESERVING)
        hv_reserve_step(&operation);
    else
        hv_release_step(&operation);
    actor->at = (uint8_t)operation.at;
    actor->seen = operation.seen;
    if (operation.at == HV_LEDGER_GRANTED || operation.at == HV_LEDGER_REFUSED)
        operation_over(actor, operation.n);
}

static void step_actor(struct world *world, uint32_t p)
{
    struct actor *actor = &world->actors[p];
    switch ((enum activity)actor->activity) {
    case IDLE:
        start_operation(world, p);
        break;
    case RESERVING:
    case RELEASING:
        step_operation(world, p);
        break;
    case RECOUNTING:
        step_recount(world, &actor->recount);
        if (actor->recount.at < HV_RECOUNT_HEALED)
            break;
        memset(&actor->recount, 0, sizeof actor->recount);
        actor->activity = RESERVING;
        actor->at = HV_LEDGER_MARK;
        break;
    case FINISHED:
    case DEAD:
        break;
    }
}

static void step_healer(struct world *world)
{
    step_recount(world, &world->heal);
    if (world->heal.at < HV_RECOUNT_HEALED)
        return;
    memset(&world->heal, 0, sizeof world->heal);
    world->healing = 0;
}

/* ---- what must hold ---- */

static void check_world(const struct world *world)
{
    uint64_t held = 0;
    for (uint32_t p = 0; p < PROCESSES; p++) {
        const struct slot *slot = &world->slots[p];
        if (world->actors[p].activity == DEAD)
            continue; /* the driver has freed what it held */
        held += world->actors[p].held;
        if (slot->bytes + slot->in_flight < world->actors[p].held)
            broken++;
    }
    if (held > scenario->limit || hv_total_bytes(world->total) < held)
        broken++;
}

/* When nothing moves any more, a recount has to find the truth. */
static void check_end(struct world world)
{
    uint64_t held = 0;
    for (uint32_t p = 0; p < PROCESSES; p++) {
        if (world.actors[p].activity == DEAD)
            world.slots[p].state = HV_SLOT_FREE;
        else
            held += world.slots[p].bytes;
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
    return !world->healing;
}

static void expand_actor(const struct world *world, uint32_t p)
{
    struct world next = *world;
    step_actor(&next, p);
    push(&next);
    if (world->deaths_left == 0)
        return;
    next = *world;
    struct actor *actor = &next.actors[p];
    memset(actor, 0, sizeof *actor);
    actor->activity = DEAD;
    next.deaths_left--;
    push(&next);
}

static void expand(const struct world *world)
{
    struct world next;
    check_world(world);
    if (is_over(world))
        check_end(*world);
    for (uint32_t p = 0; p < PROCESSES; p++) {
        if (world->actors[p].activity == DEAD && world->slots[p].state == HV_SLOT_LIVE) {
            next = *world; /* somebody saw it and gave its slot back */
            next.slots[p].state = HV_SLOT_FREE;
            push(&next);
        } else if (world->actors[p].activity != FINISHED && world->actors[p].activity != DEAD) {
            expand_actor(world, p);
        }
    }
    next = *world;
    if (world->healing) {
        step_healer(&next);
        push(&next);
    } else if (world->heals_left > 0) {
        next.heals_left--;
        next.healing = 1;
        start_recount(&next.heal);
        push(&next);
    }
}

static void explore(const struct scenario *which, uint8_t heals, uint8_t deaths)
{
    scenario = which;
    struct world start;
    memset(&start, 0, sizeof start); /* the padding is compared too */
    for (uint32_t p = 0; p < PROCESSES; p++)
        start.slots[p].state = HV_SLOT_LIVE;
    start.heals_left = heals;
    start.deaths_left = deaths;
    refusals = grants = broken = 0;
    push(&start);
    while (stack_count > 0) {
        struct world world = stack[--stack_count];
        expand(&world);
    }
    printf("%s: %zu states, %llu broken\n", which->name, seen.count, (unsigned long long)broken);
    free(seen.hashes);
    seen = (struct state_set){0};
}

int main(void)
{
    static const struct scenario races = {
        .name = "three take what only two can have and give it back, any of them dies anywhere",
        .limit = 4,
        .bytes = {2, 2, 2},
        .program = {"rf", "rf", "rf"},
    };
    static const struct scenario heals = {
        .name = "a recount meanwhile, one may die",
        .limit = 4,
        .bytes = {2, 2, 3},
        .program = {"rf", "r", "r"},
    };
    static const struct scenario retries = {
        .name = "who is refused recounts and tries again",
        .limit = 3,
        .bytes = {2, 3, 1},
        .program = {"rf", "r", ""},
        .heals_when_refused = true,
    };
    struct scenario control = heals;
    control.name = "control: a recount that reads in_flight once";
    control.single_reading = true;
    explore(&races, 0, 3);
    CHECK_EQUAL(broken, 0);
    CHECK(grants > 0 && refusals > 0);
    explore(&heals, 1, 1);
    CHECK_EQUAL(broken, 0);
    explore(&retries, 0, 2);
    CHECK_EQUAL(broken, 0);
    explore(&control, 1, 0);
    CHECK(broken > 0); /* the test sees the mistake that it is there for */
    return CHECK_RESULT();
}
