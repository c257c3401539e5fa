/*
 * Process slots: claim one, give back those of the dead. Step machines like
 * the ledger's, for the same reason.
 *
 * In the phase CLAIMING the owner word is the lock. Who wants the slot reads
 * the owner before it takes the state to CLAIMING and then swaps the owner from
 * the value it read to itself; only after that does it write anything else. A
 * reaper that finds a slot in CLAIMING with a dead owner takes it over by the
 * same swap, and is then the only one that may return it. So a claimer that
 * was stopped between its two swaps finds out, and writes nothing into a slot
 * that is another's by now.
 */
#ifndef HV_SLOTS_H
#define HV_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "hypervisor_atomics.h"
#include "hypervisor_limits.h"

struct hv_slot_table {
    struct hv_slot_occupancy *occupancy;
    unsigned char *slots; /* by stride: a later minor version may append fields */
    uint32_t stride;
};

struct hv_slot_identity {
    uint64_t owner; /* as in hv_process_slot */
    uint64_t start_time;
};

static inline uint64_t hv_slot_owner(uint32_t pid_namespace, uint32_t pid)
{
    return (uint64_t)pid_namespace << 32 | pid;
}

static inline struct hv_process_slot *hv_slot_at(const struct hv_slot_table *table, uint32_t index)
{
    /* The offset and the stride were checked for alignment when the file was attached. */
    return (struct hv_process_slot *)(void *)(table->slots + (uint64_t)index * table->stride);
}

static inline uint32_t hv_slot_index(const struct hv_slot_table *table, const struct hv_process_slot *slot)
{
    return (uint32_t)(((const unsigned char *)slot - table->slots) / table->stride);
}

static inline bool hv_slot_may_be_used(const struct hv_slot_table *table, uint32_t index)
{
    return (hv_load_acquire(&table->occupancy->bits[index / 64]) >> (index % 64) & 1) != 0;
}

enum hv_claim_step {
    HV_CLAIM_OCCUPY,   /* set the occupancy bit */
    HV_CLAIM_STATE,    /* read state */
    HV_CLAIM_OWNER,    /* read owner */
    HV_CLAIM_TAKE,     /* FREE -> CLAIMING */
    HV_CLAIM_LOCK,     /* owner: as read -> this process */
    HV_CLAIM_VERIFY,   /* state is still ours */
    HV_CLAIM_FILL,     /* clear the words, write start time and time */
    HV_CLAIM_PUBLISH,  /* CLAIMING -> LIVE */
    HV_CLAIM_DONE,     /* over */
    HV_CLAIM_LOST,     /* over: not free, or another was faster; try the next slot */
};

struct hv_claim {
    struct hv_slot_table table;
    struct hv_slot_identity self;
    uint64_t now_ns;
    uint32_t index;
    uint32_t filled; /* words cleared so far */
    uint64_t state;
    uint64_t owner;
    enum hv_claim_step at;
};

void hv_claim_step(struct hv_claim *claim);

/* Words of a slot that the claimer clears: all after the three of its identity. */
#define HV_SLOT_FIRST_CLEARED_WORD (__builtin_offsetof(struct hv_process_slot, attached_at_ns) / 8)
#define HV_SLOT_WORDS (sizeof(struct hv_process_slot) / 8)

/* Judges whether a slot's owner is dead. start_time 0: by the pid alone. */
typedef bool hv_owner_is_dead(const struct hv_slot_identity *owner, void *context);

enum hv_reap_step {
    HV_REAP_STATE,  /* read state */
    HV_REAP_OWNER,  /* read owner */
    HV_REAP_START,  /* read start time */
    HV_REAP_VERIFY, /* state has not moved: what was read belongs together; judge */
    HV_REAP_ADOPT,  /* CLAIMING: owner: the dead one -> this process */
    HV_REAP_RETURN, /* -> FREE, next sequence */
    HV_REAP_FREED,  /* over */
    HV_REAP_KEPT,   /* over: alive, free, or another was faster */
};

struct hv_reap {
    struct hv_slot_table table;
    struct hv_slot_identity self;
    uint32_t index;
    uint64_t state;
    struct hv_slot_identity found;
    enum hv_reap_step at;
};

void hv_reap_step(struct hv_reap *reap, hv_owner_is_dead *is_dead, void *context);

/* Claim a free slot; its index, or -1 when there is none. */
int32_t hv_slots_claim(const struct hv_slot_table *table, const struct hv_slot_identity *self, uint64_t now_ns);

/* Processes that have work on the device which has not been seen to end. */
uint32_t hv_slots_at_work(const struct hv_slot_table *table, uint32_t device);
/* The same, and those that have launched something since then. */
uint32_t hv_slots_at_work_since(const struct hv_slot_table *table, uint32_t device, uint64_t since_ns);

/* Give back the slots of dead processes; how many there were. */
uint32_t hv_slots_reap(const struct hv_slot_table *table, const struct hv_slot_identity *self,
                       hv_owner_is_dead *is_dead, void *context);

#endif
