#include "pacing_gate.h"
#include "pacing_untold.h"

/* How much GPU time is paid for in one go, in wall time of the bucket: small
 * against the 20 ms that a launch may be stalled, large against the cost of
 * the slow path. */
#define SLICE_WALL_NS (2 * NS_PER_MS)

/* Longest time between two looks of one who waits for its place: places move up
 * when others get back what they were charged too much. */
#define LOOK_AGAIN_NS (5 * NS_PER_MS)

/* Devices of one Pod let launches go at common moments, so that the ranks of a
 * collective that wait on several of them go on together. Less than half of the
 * smallest window, so that what is rounded up is made up for. */
#define STEP_NS SLICE_WALL_NS

/* What a charge pays of a debt: this part of itself, so that whoever has one is
 * within a hundredth of its share while it pays; or more where launches are so
 * long that a hundred of them are a long time. */
#define REPAID_PART 100
#define REPAID_SELDOM_PART 4
#define SELDOM_NS (200 * NS_PER_MS)

/* This one and those who wait already. */
static uint32_t waiting(const struct hv_gate *gate)
{
    uint32_t waiters = hv_load_relaxed_32(&gate->usage->waiters);
    return 1 + (waiters < MOST_COUNTED_WAITERS ? waiters : MOST_COUNTED_WAITERS);
}

/* The count of those who wait. A killed one is not counted off by itself; but
 * whoever waits has a place ahead of the clock, so where nothing is ahead the
 * count is wrong and begins anew. Not below 0 for one that this meets. */
static void count_waiter(struct hv_gate *gate)
{
    hv_add_acq_rel_32(&gate->usage->waiters, 1);
}

static void count_off_waiter(struct hv_gate *gate)
{
    uint32_t waiters = hv_load_relaxed_32(&gate->usage->waiters);
    while (waiters != 0 && !__atomic_compare_exchange_n(&gate->usage->waiters, &waiters, waiters - 1, true,
                                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
}

static void forget_lost_waiters(struct hv_gate *gate)
{
    if (hv_load_relaxed_32(&gate->usage->waiters) != 0 && hv_load_relaxed(&gate->usage->bucket_ns) < gate->now_ns)
        hv_store_relaxed_32(&gate->usage->waiters, 0);
}

/* Where the place is now that stood at start when *returned was the sum of what was given back. */
static uint64_t moved_up(const struct hv_gate *gate, uint64_t start, uint64_t *returned)
{
    uint64_t now_returned = hv_load_relaxed(&gate->usage->returned_ns);
    uint64_t moved = now_returned - *returned; /* ever increasing; scribbled over, it ends this wait too early */
    *returned = now_returned;
    return start > moved ? start - moved : 0;
}

static uint64_t in_step(const struct hv_gate *gate, uint64_t start)
{
    return gate->terms.device_count > 1 && start > gate->now_ns ? (start + STEP_NS - 1) / STEP_NS * STEP_NS : start;
}

/* On news the place is given back and taken anew at the share then in force. */
uint64_t hv_gate_pay(struct hv_gate *gate, bool copy, bool is_long, uint64_t cost_ns)
{
    uint64_t began = gate->now_ns;
    bool waited = false;
    uint64_t paid = 0;
    forget_lost_waiters(gate);
    while (gate->share_ppm < HV_SHARE_FULL_PPM) {
        struct hv_bucket_terms terms = hv_gate_bucket_terms(gate);
        uint64_t generation = gate->terms.generation;
        uint64_t wall;
        uint64_t returned = hv_load_relaxed(&gate->usage->returned_ns);
        uint32_t rank = waiting(gate);
        paid = cost_ns + hv_bucket_gpu_ns(SLICE_WALL_NS / rank, gate->share_ppm); /* a slice beyond the launch itself */
        uint64_t most = paid / (cost_ns > SELDOM_NS ? REPAID_SELDOM_PART : REPAID_PART);
        uint64_t repaid = hv_debt_take(&gate->usage->debt_ns, &gate->usage->bucket_ns, &terms, most, gate->now_ns);
        uint64_t all = hv_gate_corrected(gate, copy, hv_gate_overlapped(gate, paid));
        uint64_t placed = is_long ? hv_untold_placed(gate, all) : all;
        uint64_t start = hv_bucket_charge(&gate->usage->bucket_ns, &terms, placed + repaid, gate->now_ns, &wall);
        hv_debt_add(&gate->usage->debt_ns, &terms, all - placed);
        if (start > gate->now_ns) {
            waited = true;
            count_waiter(gate);
            start = in_step(gate, start);
            while (start > gate->now_ns && gate->terms.generation == generation && gate->share_ppm == terms.share_ppm) {
                hv_gate_wait(gate, start - gate->now_ns < LOOK_AGAIN_NS ? start : gate->now_ns + LOOK_AGAIN_NS);
                hv_gate_look(gate);
                hv_gate_poll(gate);
                start = in_step(gate, moved_up(gate, start, &returned));
            }
            count_off_waiter(gate);
        }
        if (start <= gate->now_ns)
            break;
        hv_bucket_give_back(&gate->usage->bucket_ns, wall);
        hv_debt_lower(&gate->usage->debt_ns, all - placed);
        hv_debt_add(&gate->usage->debt_ns, &terms, repaid);
        paid = 0;
    }
    if (waited)
        hv_add_relaxed(&gate->slot->devices[gate->device].blocked_ns, gate->now_ns - began);
    return paid;
}
