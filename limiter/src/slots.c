#include "slots.h"

#include "compiler.h"

static uint64_t phase_of(uint64_t state)
{
    return state & 0xff;
}

static uint64_t with_phase(uint64_t state, enum hv_slot_phase phase)
{
    return (state & ~UINT64_C(0xff)) | (uint64_t)phase;
}

static uint64_t returned(uint64_t state)
{
    return ((state >> 8) + 1) << 8 | HV_SLOT_FREE;
}

void hv_claim_step(struct hv_claim *claim)
{
    struct hv_process_slot *slot = hv_slot_at(&claim->table, claim->index);
    switch (claim->at) {
    case HV_CLAIM_OCCUPY:
        hv_or_acq_rel(&claim->table.occupancy->bits[claim->index / 64], UINT64_C(1) << (claim->index % 64));
        claim->at = HV_CLAIM_STATE;
        break;
    case HV_CLAIM_STATE:
        claim->state = hv_load_acquire(&slot->state);
        claim->at = phase_of(claim->state) == HV_SLOT_FREE ? HV_CLAIM_OWNER : HV_CLAIM_LOST;
        break;
    case HV_CLAIM_OWNER:
        claim->owner = hv_load_acquire(&slot->owner);
        claim->at = HV_CLAIM_TAKE;
        break;
    case HV_CLAIM_TAKE: {
        uint64_t expected = claim->state;
        claim->state = with_phase(claim->state, HV_SLOT_CLAIMING);
        claim->at = hv_cas_acq_rel(&slot->state, &expected, claim->state) ? HV_CLAIM_LOCK : HV_CLAIM_LOST;
        break;
    }
    case HV_CLAIM_LOCK: {
        uint64_t expected = claim->owner;
        claim->at = hv_cas_acq_rel(&slot->owner, &expected, claim->self.owner) ? HV_CLAIM_VERIFY : HV_CLAIM_LOST;
        break;
    }
    case HV_CLAIM_VERIFY:
        claim->filled = HV_SLOT_FIRST_CLEARED_WORD;
        claim->at = hv_load_acquire(&slot->state) == claim->state ? HV_CLAIM_FILL : HV_CLAIM_LOST;
        break;
    case HV_CLAIM_FILL: {
        /* The slot is plain 64-bit words to the claimer. */
        uint64_t *words = (uint64_t *)(void *)slot;
        if (claim->filled < HV_SLOT_WORDS) {
            hv_store_relaxed(&words[claim->filled++], 0);
        } else {
            hv_store_relaxed(&slot->start_time, claim->self.start_time);
            hv_store_relaxed(&slot->attached_at_ns, claim->now_ns);
            claim->at = HV_CLAIM_PUBLISH; /* whose release order makes all of this visible first */
        }
        break;
    }
    case HV_CLAIM_PUBLISH: {
        uint64_t expected = claim->state;
        claim->at = hv_cas_acq_rel(&slot->state, &expected, with_phase(claim->state, HV_SLOT_LIVE)) ? HV_CLAIM_DONE
                                                                                                    : HV_CLAIM_LOST;
        break;
    }
    case HV_CLAIM_DONE:
    case HV_CLAIM_LOST:
        break;
    }
}

void hv_reap_step(struct hv_reap *reap, hv_owner_is_dead *is_dead, void *context)
{
    struct hv_process_slot *slot = hv_slot_at(&reap->table, reap->index);
    switch (reap->at) {
    case HV_REAP_STATE:
        reap->state = hv_load_acquire(&slot->state);
        reap->at = phase_of(reap->state) == HV_SLOT_FREE ? HV_REAP_KEPT : HV_REAP_OWNER;
        break;
    case HV_REAP_OWNER:
        reap->found.owner = hv_load_acquire(&slot->owner);
        reap->at = HV_REAP_START;
        break;
    case HV_REAP_START:
        reap->found.start_time = hv_load_acquire(&slot->start_time);
        reap->at = HV_REAP_VERIFY;
        break;
    case HV_REAP_VERIFY:
        if (hv_load_acquire(&slot->state) != reap->state) {
            reap->at = HV_REAP_KEPT;
            break;
        }
        /* The start time is written last before LIVE, so in CLAIMING it may be
         * of an owner before. */
        if (phase_of(reap->state) == HV_SLOT_CLAIMING)
            reap->found.start_time = 0;
        if (!is_dead(&reap->found, context))
            reap->at = HV_REAP_KEPT;
        else
            reap->at = phase_of(reap->state) == HV_SLOT_CLAIMING ? HV_REAP_ADOPT : HV_REAP_RETURN;
        break;
    case HV_REAP_ADOPT: {
        uint64_t expected = reap->found.owner;
        reap->at = hv_cas_acq_rel(&slot->owner, &expected, reap->self.owner) ? HV_REAP_RETURN : HV_REAP_KEPT;
        break;
    }
    case HV_REAP_RETURN: {
        uint64_t expected = reap->state;
        reap->at = hv_cas_acq_rel(&slot->state, &expected, returned(reap->state)) ? HV_REAP_FREED : HV_REAP_KEPT;
        break;
    }
    case HV_REAP_FREED:
    case HV_REAP_KEPT:
        break;
    }
}

int32_t hv_slots_claim(const struct hv_slot_table *table, const struct hv_slot_identity *self, uint64_t now_ns)
{
    for (uint32_t index = 0; index < HV_PROCESS_SLOTS; index++) {
        struct hv_claim claim = {
            .table = *table, .self = *self, .now_ns = now_ns, .index = index, .at = HV_CLAIM_OCCUPY};
        if (hv_slot_may_be_used(table, index))
            claim.at = HV_CLAIM_STATE; /* spares the write to a line that all share */
        while (claim.at != HV_CLAIM_DONE && claim.at != HV_CLAIM_LOST) {
            HV_CRASH_POINT("claim");
            hv_claim_step(&claim);
        }
        HV_CRASH_POINT("claim");
        if (claim.at == HV_CLAIM_DONE)
            return (int32_t)index;
    }
    return -1;
}

uint32_t hv_slots_reap(const struct hv_slot_table *table, const struct hv_slot_identity *self,
                       hv_owner_is_dead *is_dead, void *context)
{
    uint32_t freed = 0;
    for (uint32_t index = 0; index < HV_PROCESS_SLOTS; index++) {
        if (!hv_slot_may_be_used(table, index))
            continue;
        struct hv_reap reap = {.table = *table, .self = *self, .index = index, .at = HV_REAP_STATE};
        while (reap.at != HV_REAP_FREED && reap.at != HV_REAP_KEPT) {
            HV_CRASH_POINT("reap");
            hv_reap_step(&reap, is_dead, context);
        }
        freed += reap.at == HV_REAP_FREED;
    }
    return freed;
}

uint32_t hv_slots_at_work_since(const struct hv_slot_table *table, uint32_t device, uint64_t since_ns)
{
    uint32_t count = 0;
    for (uint32_t word = 0; word < HV_SLOT_BITMAP_WORDS; word++) {
        uint64_t bits = hv_load_relaxed(&table->occupancy->bits[word]); /* a process more or less for a moment */
        for (; bits != 0; bits &= bits - 1) {
            const struct hv_process_slot *slot = hv_slot_at(table, word * 64 + (uint32_t)__builtin_ctzll(bits));
            if ((hv_load_relaxed(&slot->state) & 0xff) == HV_SLOT_LIVE &&
                (hv_load_relaxed(&slot->devices[device].unfinished_ns) != 0 ||
                 hv_load_relaxed(&slot->last_launch_ns) >= since_ns))
                count++;
        }
    }
    return count;
}

uint32_t hv_slots_at_work(const struct hv_slot_table *table, uint32_t device)
{
    return hv_slots_at_work_since(table, device, UINT64_MAX);
}
