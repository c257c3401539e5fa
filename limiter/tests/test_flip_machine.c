/* test: include=limiter/include,limiter/src,limiter/tests variants=plain flags=-O2 seconds=120 */
/*
 * Every interleaving of a writer that publishes twice, is killed at any step
 * and begun anew, and of two readers that read twice each; over the very steps
 * that daemon and limiter run. Nobody ever reads a mixture, or limits that were
 * not in force when it began.
 */
#include <string.h>

#include "check.h"
#include "hypervisor_flip.h"
#include "state_set.h"

#define WORDS 2
#define READERS 2
#define READS 2
#define PUBLICATIONS 2
#define LIVES 3

/* Each life of the writer fills words of its own, so that a slot that a dead
 * one left half filled shows. */
struct writer {
    uint64_t next;
    uint8_t at, filled, left, life;
};

struct reader {
    uint64_t before;
    uint64_t copied[WORDS];
    uint8_t at, count, left;
};

struct world {
    uint64_t generation;
    uint64_t slots[2][WORDS];
    uint64_t in_force; /* what the words of the generation in force are */
    struct writer writer;
    struct reader readers[READERS];
};

enum fault { NONE, READS_ONCE, FILLS_THE_SLOT_IN_FORCE };

static enum fault fault;
static struct state_set seen;
static struct world *stack;
static size_t stack_count, stack_capacity;
static uint64_t broken, whole_reads, again;

static void push(const struct world *world)
{
    if (!state_set_add(&seen, world, sizeof *world))
        return;
    if (stack_count == stack_capacity) {
        stack_capacity = stack_capacity == 0 ? 4096 : stack_capacity * 2;
        stack = realloc(stack, stack_capacity * sizeof *stack);
        if (stack == NULL)
            exit(2);
    }
    stack[stack_count++] = *world;
}

static uint64_t content(const struct writer *writer)
{
    return writer->next << 8 | writer->life;
}

static bool fill_word(void *context, uint64_t slot)
{
    struct world *world = context;
    struct writer *writer = &world->writer;
    if (fault == FILLS_THE_SLOT_IN_FORCE)
        slot ^= 1;
    world->slots[slot][writer->filled++] = content(writer);
    return writer->filled == WORDS;
}

static void step_writer(struct world *world)
{
    struct writer *writer = &world->writer;
    struct hv_flip_publish machine = {&world->generation, writer->next, (enum hv_publish_step)writer->at};
    hv_publish_step(&machine, fill_word, world);
    if (machine.at == HV_PUBLISH_DONE) {
        world->in_force = content(writer);
        writer->left--;
        writer->filled = 0;
        machine.at = HV_PUBLISH_LOAD;
        machine.next = 0;
    }
    writer->at = (uint8_t)machine.at;
    writer->next = machine.next;
}

/* A new process, which knows nothing of what the dead one was about. */
static void begin_writer_anew(struct world *world)
{
    struct writer *writer = &world->writer;
    writer->next = 0;
    writer->at = HV_PUBLISH_LOAD;
    writer->filled = 0;
    writer->life++;
}

static struct reader *copying; /* whose copy it is */

static bool copy_word(void *context, uint64_t slot)
{
    const struct world *world = context;
    copying->copied[copying->count] = world->slots[slot][copying->count];
    return ++copying->count == WORDS;
}

static void check_read(const struct reader *reader)
{
    whole_reads++;
    for (uint32_t i = 0; i < WORDS; i++)
        if (reader->copied[i] != reader->copied[0] || reader->copied[i] >> 8 != reader->before)
            broken++;
}

static void step_reader(struct world *world, uint32_t which)
{
    struct reader *reader = &world->readers[which];
    struct hv_flip_read machine = {&world->generation, reader->before, (enum hv_read_step)reader->at};
    copying = reader;
    hv_read_step(&machine, copy_word, world);
    if (fault == READS_ONCE && machine.at == HV_READ_AFTER)
        machine.at = HV_READ_DONE;
    again += reader->at == HV_READ_AFTER && machine.at == HV_READ_BEFORE;
    reader->before = machine.before;
    if (machine.at == HV_READ_DONE) {
        check_read(reader);
        reader->left--;
    }
    if (machine.at == HV_READ_DONE || machine.at == HV_READ_BEFORE) {
        memset(reader->copied, 0, sizeof reader->copied);
        reader->count = 0;
        reader->before = 0;
        machine.at = HV_READ_BEFORE;
    }
    reader->at = (uint8_t)machine.at;
}

/* Whatever happened to the writer, what is in force is whole. */
static void check_world(const struct world *world)
{
    for (uint32_t i = 0; i < WORDS; i++)
        if (world->slots[world->generation & 1][i] != world->in_force)
            broken++;
}

static void expand(const struct world *world)
{
    struct world next;
    check_world(world);
    if (world->writer.left > 0) {
        next = *world;
        step_writer(&next);
        push(&next);
    }
    if (world->writer.life + 1 < LIVES) {
        next = *world;
        begin_writer_anew(&next);
        push(&next);
    }
    for (uint32_t r = 0; r < READERS; r++)
        if (world->readers[r].left > 0) {
            next = *world;
            step_reader(&next, r);
            push(&next);
        }
}

static void explore(const char *name, enum fault which)
{
    struct world start;
    memset(&start, 0, sizeof start); /* the padding is compared too */
    start.writer.left = PUBLICATIONS;
    for (uint32_t r = 0; r < READERS; r++)
        start.readers[r].left = READS;
    fault = which;
    broken = whole_reads = again = 0;
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
    explore("a writer that dies anywhere, two readers", NONE);
    CHECK_EQUAL(broken, 0);
    CHECK(whole_reads > 0 && again > 0);
    explore("control: a reader that does not look again", READS_ONCE);
    CHECK(broken > 0);
    explore("control: a writer that fills the slot in force", FILLS_THE_SLOT_IN_FORCE);
    CHECK(broken > 0);
    return CHECK_RESULT();
}
