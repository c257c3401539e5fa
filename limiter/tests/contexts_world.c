/* See contexts_world.h. */
#include "contexts_world.h"

#include <stddef.h>
#include <string.h>

const struct scenario *scenario;
uint64_t grants, given;

/* ---- recounts ---- */

static bool lookup(const void *slots, uint32_t index, struct hv_recount_words *words)
{
    struct slot *all = (struct slot *)(uintptr_t)slots; /* the machine only reads them */
    *words = (struct hv_recount_words){&all[index].state, &all[index].bytes, &all[index].in_flight, &all[index].word};
    return true;
}

void start_recount(struct hv_recount *recount)
{
    memset(recount, 0, sizeof *recount);
    recount->at = HV_RECOUNT_LOAD_TOTAL;
}

void step_recount(struct world *world, struct hv_recount *recount)
{
    recount->total = &world->total;
    hv_recount_step(recount, world->slots, PROCESSES, lookup);
    recount->total = NULL; /* states with other addresses are the same state */
}

/* ---- what a process does ---- */

static uint64_t limit_now(const struct world *world)
{
    return scenario->limit > world->overhead ? scenario->limit - world->overhead : 0;
}

static void next_operation(struct actor *actor)
{
    uint64_t held = actor->held, context = actor->context, made = actor->made;
    uint8_t next = actor->next, reborn = actor->reborn;
    memset(actor, 0, sizeof *actor);
    actor->held = held;
    actor->context = context;
    actor->made = made;
    actor->next = (uint8_t)(next + 1);
    actor->reborn = reborn;
}

static char operation_of(const struct actor *actor, uint32_t p)
{
    return (actor->reborn ? scenario->reborn : scenario->program[p])[actor->next];
}

static void open_word(struct actor *actor)
{
    memset(&actor->open, 0, sizeof actor->open);
    actor->activity = OPENING;
}

static void start_operation(struct actor *actor, uint32_t p)
{
    char operation = operation_of(actor, p);
    if (operation == '\0') {
        actor->activity = FINISHED;
        return;
    }
    actor->n = operation == 'c' || operation == 'd' ? scenario->context : scenario->memory;
    actor->at = HV_LEDGER_MARK;
    if (operation == 'c' || operation == 'r') {
        actor->activity = LIMITING;
    } else if (operation == 'd') {
        actor->context = actor->made = 0; /* the driver has destroyed it before we are told, whether it was measured or not */
        open_word(actor);
    } else if (actor->held == 0) {
        next_operation(actor); /* was refused before */
    } else {
        actor->held = 0;
        actor->activity = RELEASING;
    }
}

static void reserved(struct actor *actor, bool granted, char operation)
{
    if (!granted && !actor->retried) {
        actor->retried = 1;
        actor->activity = RECOUNTING;
        start_recount(&actor->recount);
        return;
    }
    grants += granted;
    if (granted && operation == 'c') {
        actor->context += actor->n;
        actor->made += UNIT;
        open_word(actor);
        return;
    }
    if (granted)
        actor->held = actor->n;
    next_operation(actor);
}

static void step_ledger(struct world *world, uint32_t p)
{
    struct actor *actor = &world->actors[p];
    struct slot *slot = &world->slots[p];
    struct hv_ledger_operation operation = {
        .account = {.total = &world->total, .bytes = &slot->bytes, .in_flight = &slot->in_flight},
        .n = actor->n,
        .limit = actor->limit,
        .seen = actor->seen,
        .at = actor->at,
    };
    bool reserves = actor->activity == RESERVING;
    if (reserves)
        hv_reserve_step(&operation);
    else
        hv_release_step(&operation);
    actor->at = (uint8_t)operation.at;
    actor->seen = operation.seen;
    if (operation.at != HV_LEDGER_GRANTED && operation.at != HV_LEDGER_REFUSED)
        return;
    if (reserves && operation.at == HV_LEDGER_GRANTED && !scenario->looks_once)
        actor->activity = LOOKING_AGAIN;
    else if (reserves || actor->activity == GIVING_BACK)
        reserved(actor, reserves && operation.at == HV_LEDGER_GRANTED, operation_of(actor, p));
    else if (operation_of(actor, p) == 'd')
        actor->activity = TAKING;
    else
        next_operation(actor);
}

static void step_open(struct world *world, uint32_t p)
{
    struct actor *actor = &world->actors[p];
    struct slot *slot = &world->slots[p];
    struct hv_contexts_open open = actor->open;
    open.word = &slot->word;
    open.total = &world->total;
    open.bytes = &slot->bytes;
    open.in_flight = &slot->in_flight;
    open.context_bytes = &slot->context_bytes;
    open.state = slot->state;
    hv_contexts_open_step(&open);
    actor->open.seen = open.seen;
    actor->open.n = open.n;
    actor->open.seen_total = open.seen_total;
    actor->open.at = open.at;
    if (open.at != HV_OPEN_DONE)
        return;
    actor->opened = open.seen;
    memset(&actor->open, 0, sizeof actor->open);
    if (operation_of(actor, p) == 'c') {
        actor->activity = ADDING;
        return;
    }
    /* Nobody else changes context_bytes while it is open. */
    actor->n = slot->context_bytes < actor->n ? slot->context_bytes : actor->n;
    actor->at = HV_LEDGER_MARK;
    actor->activity = actor->n == 0 ? CLOSING : RELEASING;
}

void step_actor(struct world *world, uint32_t p)
{
    struct actor *actor = &world->actors[p];
    struct slot *slot = &world->slots[p];
    switch ((enum activity)actor->activity) {
    case IDLE:
        start_operation(actor, p);
        break;
    case LIMITING:
        actor->limit = limit_now(world);
        actor->at = HV_LEDGER_MARK;
        actor->seen = 0;
        actor->activity = RESERVING;
        break;
    case LOOKING_AGAIN: /* two accesses, of which only the total moves by others' hands towards the wrong side */
        actor->at = HV_LEDGER_MARK;
        if (hv_total_bytes(world->total) > limit_now(world))
            actor->activity = GIVING_BACK;
        else
            reserved(actor, true, operation_of(actor, p));
        break;
    case RESERVING:
    case GIVING_BACK:
    case RELEASING:
        step_ledger(world, p);
        break;
    case OPENING:
        step_open(world, p);
        break;
    case ADDING:
        hv_add_acq_rel(&slot->context_bytes, actor->n);
        actor->activity = CLOSING;
        break;
    case TAKING:
        hv_sub_acq_rel(&slot->context_bytes, actor->n);
        actor->activity = CLOSING;
        break;
    case CLOSING:
        hv_contexts_close(&slot->word, actor->opened);
        if (scenario->count_stands)
            slot->word = (slot->word & ~(HV_CONTEXTS_COUNT_MASK << HV_CONTEXTS_COUNT_AT)) | UINT64_C(1) << HV_CONTEXTS_COUNT_AT;
        next_operation(actor);
        break;
    case RECOUNTING:
        step_recount(world, &actor->recount);
        if (actor->recount.at < HV_RECOUNT_HEALED)
            break;
        memset(&actor->recount, 0, sizeof actor->recount);
        actor->activity = LIMITING;
        break;
    case FINISHED:
    case DEAD:
        break;
    }
}

/* ---- what the daemon does ---- */

static void give_up(struct world *world)
{
    struct daemon *daemon = &world->daemon;
    struct actor *actor = &world->actors[daemon->of];
    if (!hv_contexts_give_up(&world->slots[daemon->of].word, daemon->word, daemon->bytes)) {
        daemon->at = RESTS;
        return;
    }
    given++;
    /* From here on it is in the daemon's figure, unless the driver has destroyed it by now. */
    actor->context -= daemon->bytes < actor->context ? daemon->bytes : actor->context;
    daemon->at = RECOUNTS;
    start_recount(&daemon->recount);
}

void step_daemon(struct world *world)
{
    struct daemon *daemon = &world->daemon;
    const struct slot *slot = &world->slots[daemon->of];
    switch ((enum giving)daemon->at) {
    case READS_STATE:
        daemon->state = hv_load_acquire(&slot->state);
        daemon->at = (daemon->state & 0xff) == HV_SLOT_LIVE ? READS_WORD : RESTS;
        break;
    case READS_WORD:
        daemon->word = hv_load_acquire(&slot->word);
        daemon->at = hv_contexts_can_be_given_up(daemon->word, daemon->state) ? READS_BYTES : RESTS;
        break;
    case READS_BYTES: /* and measures, before it gives up */
        daemon->bytes = hv_load_acquire(&slot->context_bytes);
        daemon->at = daemon->bytes == 0 ? RESTS : ENTERS;
        break;
    case ENTERS: /* of all that it has measured; more than there is where a context is gone by now */
        world->overhead += UNIT * daemon->bytes / scenario->context;
        daemon->at = GIVES;
        break;
    case GIVES:
        give_up(world);
        break;
    case RECOUNTS:
        step_recount(world, &daemon->recount);
        if (daemon->recount.at < HV_RECOUNT_HEALED)
            break;
        if (daemon->recount.at == HV_RECOUNT_RACED)
            start_recount(&daemon->recount);
        else
            daemon->at = RESTS;
        break;
    case RESTS:
    case GONE:
        break;
    }
    if (daemon->at == RESTS) {
        uint8_t left = daemon->left;
        memset(daemon, 0, sizeof *daemon);
        daemon->left = left;
    }
}
