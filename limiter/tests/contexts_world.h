/* The world of test_contexts_machine.c, and how those who live in it make one step. */
#ifndef HV_CONTEXTS_WORLD_H
#define HV_CONTEXTS_WORLD_H

#include "contexts.h"
#include "ledger.h"

#define PROCESSES 2
#define UNIT (UINT64_C(1) << HV_CONTEXTS_UNIT_BITS)

/* One letter an operation: c makes a context, d destroys the last one, r takes memory, f frees it. */
struct scenario {
    const char *name;
    uint64_t limit, memory, context; /* context: what stands for one; it takes a UNIT */
    const char *program[PROCESSES];
    const char *reborn;     /* of the process that gets the slot of a dead one */
    bool count_stands;      /* controls: an opened word looks as before; */
    bool sequence_stands;   /* the next owner of a slot is taken for the one before; */
    bool looks_once;        /* who was granted does not look at the overhead again */
};

struct slot {
    uint64_t state, bytes, in_flight, context_bytes, word;
};

enum activity { IDLE, LIMITING, RESERVING, LOOKING_AGAIN, GIVING_BACK, OPENING, ADDING, RELEASING, TAKING, CLOSING, RECOUNTING, FINISHED, DEAD };

struct actor {
    uint64_t held;    /* memory that the driver has given to this process */
    uint64_t context; /* stand-ins of its contexts that the daemon has not measured */
    uint64_t made;    /* what its contexts really hold */
    uint64_t limit;   /* of the total, as last read */
    uint64_t n;       /* of the operation */
    uint64_t seen;    /* of the ledger's operation */
    uint64_t opened;  /* the word while it is open */
    struct hv_contexts_open open;
    struct hv_recount recount;
    uint8_t activity, at, next, retried, reborn;
};

enum giving { RESTS, READS_STATE, READS_WORD, READS_BYTES, ENTERS, GIVES, RECOUNTS, GONE };

struct daemon {
    uint64_t state, word, bytes;
    struct hv_recount recount;
    uint8_t at, of, left;
};

/* All that there is, without pointers, so that it can be copied and compared. */
struct world {
    uint64_t total;
    uint64_t overhead; /* as the daemon has entered it */
    struct slot slots[PROCESSES];
    struct actor actors[PROCESSES];
    struct daemon daemon;
    uint8_t deaths_left;
};

extern const struct scenario *scenario;
extern uint64_t grants, given;

void start_recount(struct hv_recount *recount);
void step_recount(struct world *world, struct hv_recount *recount);
void step_actor(struct world *world, uint32_t p);
void step_daemon(struct world *world);

#endif
