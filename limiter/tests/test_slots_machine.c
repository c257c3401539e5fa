/* test: sources=limiter/src/slots.c include=limiter/include,limiter/src,limiter/tests variants=plain flags=-O2 seconds=120 */
/*
 * Every interleaving of processes that claim two slots and of reapers, with
 * deaths at every step, over the very steps that the library runs. Never do two
 * living processes have one slot, and nobody writes into a slot that is
 * another's.
 */
#include <string.h>

#include "check.h"
#include "slots.h"
#include "state_set.h"

#define SLOTS 2
#define ACTORS 3

/* The words that matter, small enough to be compared. */
struct small_slot {
    uint64_t state, owner, start_time, word;
};

struct actor {
    struct hv_claim claim;
    struct hv_reap reap;
    uint8_t role; /* 0 done, 1 claims, 2 reaps, 3 dead */
    int8_t has;   /* slot that it believes to have */
};

struct world {
    struct small_slot slots[SLOTS];
    uint64_t occupancy;
    struct actor actors[ACTORS];
    uint8_t deaths_left;
};

/* The machine runs on the real structs; the world is copied in and out. */
static struct hv_process_slot real_slots[SLOTS];
static struct hv_slot_occupancy real_occupancy;
static const struct hv_slot_table table = {&real_occupancy, (unsigned char *)real_slots, sizeof real_slots[0]};

static struct state_set seen;
static struct world *stack;
static size_t stack_count, stack_capacity;
static uint64_t broken, claimed, freed;
static bool control_writes_early;

static void load(const struct world *world)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        real_slots[i].state = world->slots[i].state;
        real_slots[i].owner = world->slots[i].owner;
        real_slots[i].start_time = world->slots[i].start_time;
        real_slots[i].devices[0].bytes = world->slots[i].word;
    }
    real_occupancy.bits[0] = world->occupancy;
}

static void save(struct world *world)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        world->slots[i] = (struct small_slot){real_slots[i].state, real_slots[i].owner, real_slots[i].start_time,
                                              real_slots[i].devices[0].bytes};
    world->occupancy = real_occupancy.bits[0];
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

/* Actor i is process i + 1, started at 100 + i. Process 9 died before. */
static bool is_dead(const struct hv_slot_identity *owner, void *context)
{
    const struct world *world = context;
    if (owner->owner == 0 || owner->owner == 9)
        return true;
    const struct actor *actor = &world->actors[owner->owner - 1];
    return actor->role == 3;
}

static void start_claim(struct actor *actor, uint32_t a, uint32_t index)
{
    memset(&actor->claim, 0, sizeof actor->claim);
    actor->claim.self = (struct hv_slot_identity){a + 1, 100 + a};
    actor->claim.index = index;
    actor->claim.at = HV_CLAIM_OCCUPY;
}

static void start_reap(struct actor *actor, uint32_t a, uint32_t index)
{
    memset(&actor->reap, 0, sizeof actor->reap);
    actor->reap.self = (struct hv_slot_identity){a + 1, 100 + a};
    actor->reap.index = index;
    actor->reap.at = HV_REAP_STATE;
}

static void step_claim(struct world *world, uint32_t a)
{
    struct actor *actor = &world->actors[a];
    actor->claim.table = table;
    if (control_writes_early && actor->claim.at == HV_CLAIM_LOCK) {
        real_slots[actor->claim.index].owner = actor->claim.self.owner; /* a plain store instead of the swap */
        actor->claim.at = HV_CLAIM_FILL;
        actor->claim.filled = HV_SLOT_FIRST_CLEARED_WORD;
    } else {
        hv_claim_step(&actor->claim);
    }
    /* Nobody looks at single words while a slot is filled: one step for all. */
    while (actor->claim.at == HV_CLAIM_FILL)
        hv_claim_step(&actor->claim);
    memset(&actor->claim.table, 0, sizeof actor->claim.table);
    if (actor->claim.at == HV_CLAIM_DONE) {
        actor->has = (int8_t)actor->claim.index;
        actor->role = 0;
        real_slots[actor->has].devices[0].bytes = a + 1; /* it accounts something at once */
        claimed++;
        memset(&actor->claim, 0, sizeof actor->claim);
    } else if (actor->claim.at == HV_CLAIM_LOST) {
        uint32_t next = actor->claim.index + 1;
        if (next < SLOTS) {
            start_claim(actor, a, next);
        } else {
            actor->role = 0;
            memset(&actor->claim, 0, sizeof actor->claim);
        }
    }
}

static void step_reap(struct world *world, uint32_t a)
{
    struct actor *actor = &world->actors[a];
    actor->reap.table = table;
    hv_reap_step(&actor->reap, is_dead, world);
    memset(&actor->reap.table, 0, sizeof actor->reap.table);
    if (actor->reap.at != HV_REAP_FREED && actor->reap.at != HV_REAP_KEPT)
        return;
    freed += actor->reap.at == HV_REAP_FREED;
    uint32_t next = actor->reap.index + 1;
    memset(&actor->reap, 0, sizeof actor->reap);
    if (next < SLOTS) {
        start_reap(actor, a, next);
    } else { /* having reaped, it claims */
        actor->role = 1;
        start_claim(actor, a, 0);
    }
}

static void check_world(const struct world *world)
{
    for (uint32_t a = 0; a < ACTORS; a++) {
        const struct actor *actor = &world->actors[a];
        if (actor->has < 0 || actor->role == 3)
            continue;
        const struct small_slot *slot = &world->slots[actor->has];
        if ((slot->state & 0xff) != HV_SLOT_LIVE || slot->owner != a + 1 || slot->start_time != 100 + a ||
            slot->word != a + 1)
            broken++;
    }
}

static void expand(const struct world *world)
{
    check_world(world);
    for (uint32_t a = 0; a < ACTORS; a++) {
        const struct actor *actor = &world->actors[a];
        struct world next = *world;
        if (actor->role == 1 || actor->role == 2) {
            load(&next);
            if (actor->role == 1)
                step_claim(&next, a);
            else
                step_reap(&next, a);
            save(&next);
            push(&next);
        }
        if (actor->role != 3 && world->deaths_left > 0) {
            next = *world;
            memset(&next.actors[a].claim, 0, sizeof next.actors[a].claim);
            memset(&next.actors[a].reap, 0, sizeof next.actors[a].reap);
            next.actors[a].role = 3;
            next.actors[a].has = -1;
            next.deaths_left--;
            push(&next);
        }
    }
}

static void explore(const char *name, uint8_t deaths, uint8_t first_phase, bool control)
{
    struct world start;
    memset(&start, 0, sizeof start); /* the padding is compared too */
    start.deaths_left = deaths;
    start.occupancy = 1;
    /* The first slot is a dead process's: live, or dead while claiming it. */
    start.slots[0] = (struct small_slot){first_phase, 9, 99, 77};
    for (uint32_t a = 0; a < ACTORS; a++) {
        start.actors[a].has = -1;
        start.actors[a].role = 2;
        start_reap(&start.actors[a], a, 0);
    }
    control_writes_early = control;
    broken = claimed = freed = 0;
    push(&start);
    while (stack_count > 0) {
        struct world world = stack[--stack_count];
        expand(&world);
    }
    printf("%s: %zu states, %llu broken\n", name, seen.count, (unsigned long long)broken);
    free(seen.hashes);
    seen = (struct state_set){0};
}

int main(void)
{
    explore("a dead process's slot, one more dies anywhere", 1, HV_SLOT_LIVE, false);
    CHECK_EQUAL(broken, 0);
    CHECK(claimed > 0 && freed > 0);
    explore("a process died while claiming, one more dies anywhere", 1, HV_SLOT_CLAIMING, false);
    CHECK_EQUAL(broken, 0);
    CHECK(claimed > 0 && freed > 0);
    explore("control: the owner is stored and not swapped", 0, HV_SLOT_LIVE, true);
    CHECK(broken > 0);
    return CHECK_RESULT();
}
