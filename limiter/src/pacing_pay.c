#include "pacing_gate.h"
#include "costs.h"
#include "pacing_untold.h"

/* How much GPU time is paid for in one go, in wall time of the bucket: small
 * against the 20 ms that a launch may be stalled, large against the cost of
 * the slow path. */
#define SLICE_WALL_NS (2 * NS_PER_MS)

/* Longest time between two looks of one who waits for its place: places move up
 * when others get back what they were charged too much. */
#define LOOK_AGAIN_NS (5 * NS_PER_MS)
#define LOOK_SOON_NS NS_PER_MS /* where a word about others' turns will move them up by much, soon */

/* Devices of one Pod let launches go at common moments, so that the ranks of a collective that wait on several of them go on
 * together, and as they would without a limit until the next one: let go one by one, a device's launches run beside each
 * other less than those of the devices that wait for it, which then take more time for the same work, and hold all up in turn.
 * Not further apart than the window, or what is rounded up is lost. */
#define LONGEST_STEP_NS (4 * SLICE_WALL_NS)

/* What a charge pays of a debt: this part of itself, so that whoever has one is
 * within a hundredth of its share while it pays; or more where launches are so
 * long that a hundred of them are a long time. */
#define REPAID_PART 100
#define REPAID_SELDOM_PART 4
#define SELDOM_NS (200 * NS_PER_MS)

/* By so much wall time, at most, what is paid of a debt lengthens a wait, however long it is: all who wait together pay
 * before the last of them goes. Half of what a launch may be stalled beyond their own time. */
#define REPAID_WALL_NS (10 * NS_PER_MS)

/* Places over which what a process takes with one is averaged, and how much more it may take so that all have as much. */
#define PLACES_OVER 64
#define LEAST_PLACES 12 /* before that they are of a program that has just begun */
#define UNEVEN 3 /* less may be how places and launches of alike processes come together */
#define MOST_EVEN_NS (25 * NS_PER_MS)

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

/* What has been given back so far. The words only increase; scribbled over, they end a wait too early. */
struct back {
    uint64_t returned_ns; /* of launches that have ended: all who wait have their places behind them */
    uint64_t priced_ns;   /* of places that were taken while nobody told how many turns others had */
};

static struct back given_back(const struct hv_gate *gate)
{
    return (struct back){.returned_ns = hv_load_relaxed(&gate->usage->returned_ns),
                         .priced_ns = hv_load_relaxed(&gate->usage->priced_ns)};
}

/* By the burst, which is the window of a whole device: the step has to be the same whatever the share of each. A long launch
 * is further from the next one anyway, and held up by it by as much, where no more than two may be unfinished. */
static uint64_t step_ns(const struct hv_gate *gate)
{
    uint64_t step = hv_load_relaxed_32(&gate->function->is_long) != 0 ? SLICE_WALL_NS : LONGEST_STEP_NS;
    while (step > SLICE_WALL_NS && step > gate->terms.burst_ns)
        step /= 2;
    return step;
}

/* The moment of a step: by chance within a slice, the same for all who ask. Turns of others have a period too, and with
 * equal steps each launch would wait for them as long as the one before it, for ever. */
static uint64_t moment(uint64_t number, uint64_t step)
{
    return number * step + (number * UINT64_C(0x9E3779B97F4A7C15) >> 32) % SLICE_WALL_NS; /* modulo 2^64: a hash */
}

static uint64_t in_step(const struct hv_gate *gate, uint64_t start)
{
    if (gate->terms.device_count <= 1 || start <= gate->now_ns)
        return start;
    uint64_t step = step_ns(gate), number = start / step;
    uint64_t at = moment(number, step);
    return at >= start ? at : moment(number + 1, step);
}

static uint64_t scaled(uint64_t value, uint64_t by, uint64_t over)
{
    return over == 0 ? value : (uint64_t)((unsigned __int128)value * by / over); /* by is at most over */
}

/* A place that was taken while nobody told how many turns others have. What it was taken for is half theirs then. */
struct place {
    uint64_t charge_ns; /* of the launch */
    uint64_t cost_ns; /* asked for */
    uint64_t paid_ns; /* that, and a slice beyond it */
    uint64_t all_ns;  /* GPU time of that, */
    uint64_t placed_ns; /* of which so much has a place in the bucket; the rest is owed */
    uint64_t wall_ns; /* of the place */
    uint64_t start_ns;
    bool untold;
};

/* Now somebody has told: the charge is that of the own time, and so are those before it, which were all taken like it and
 * see it for themselves. Those who came since then have their places behind all of them. */
static void price_place(struct hv_gate *gate, struct place *place)
{
    uint64_t before = place->charge_ns;
    hv_untold_price(gate, gate->function);
    (void)hv_costs_settled(gate->function, gate->now_ns); /* what others have measured is priced as well */
    uint64_t after = hv_bucket_wall_ns(hv_costs_charge(gate->function), gate->overlap_ppm); /* the same quotient */
    if (after >= before)
        return; /* nobody is there: what is owed is owed */
    uint64_t own = scaled(place->all_ns, after, before);
    uint64_t placed = own < place->placed_ns ? own : place->placed_ns;
    uint64_t back = hv_bucket_wall_ns(place->placed_ns - placed, gate->share_ppm);
    back = back < place->wall_ns ? back : place->wall_ns;
    hv_bucket_give_back(&gate->usage->bucket_ns, back);
    hv_add_relaxed(&gate->usage->priced_ns, back);
    hv_debt_lower(&gate->usage->debt_ns, place->all_ns - place->placed_ns - (own - placed));
    if (place->start_ns > gate->now_ns)
        place->start_ns = gate->now_ns + scaled(place->start_ns - gate->now_ns, place->wall_ns - back, place->wall_ns);
    place->wall_ns -= back;
    place->charge_ns = after;
    place->all_ns = own;
    place->placed_ns = placed;
    place->cost_ns = scaled(place->cost_ns, after, before);
    place->paid_ns = scaled(place->paid_ns, after, before);
}

/* Of a debt, by this place. */
static uint64_t repaid_at_most(const struct hv_gate *gate, const struct place *place)
{
    uint64_t part = place->paid_ns / (place->cost_ns > SELDOM_NS ? REPAID_SELDOM_PART : REPAID_PART);
    uint64_t held_up = hv_bucket_gpu_ns(REPAID_WALL_NS / waiting(gate), gate->share_ppm);
    return place->cost_ns <= SELDOM_NS && part > held_up ? held_up : part;
}

/* Places go by the order of coming, so who takes more with each has more. A process with short launches takes as much with
 * one as the others do with theirs, ahead: its next launches have no place to wait for. Only where somebody waits, and where
 * it is no chance. The word is open to be scribbled into. */
static uint64_t even_slice(struct hv_gate *gate, uint64_t paid_ns)
{
    struct hv_sampler *sampler = &gate->process->sampler;
    uint64_t mean = hv_load_relaxed(&sampler->place_ns[gate->device]), longest = hv_load_relaxed(&gate->usage->place_ns);
    uint32_t over = hv_load_relaxed_32(&sampler->places[gate->device]);
    over = over < PLACES_OVER ? over + 1 : PLACES_OVER;
    mean = mean - mean / over + paid_ns / over;
    hv_store_relaxed(&sampler->place_ns[gate->device], mean);
    hv_store_relaxed_32(&sampler->places[gate->device], over);
    if (over < LEAST_PLACES)
        return 0; /* the first ones are guesses */
    /* Others may have gone, or have shorter ones by now. */
    hv_store_relaxed(&gate->usage->place_ns, mean > longest ? mean : longest - (longest - mean) / PLACES_OVER);
    /* What several streams take with a place depends on how they come together. */
    if (waiting(gate) == 1 || longest / UNEVEN < mean || hv_load_relaxed_32(&sampler->streams_differ[gate->device]) != 0)
        return 0;
    return longest - mean < MOST_EVEN_NS ? longest - mean : MOST_EVEN_NS;
}

static void take_place(struct hv_gate *gate, const struct hv_bucket_terms *terms, bool copy, bool is_long,
                       struct place *place, uint64_t *repaid)
{
    gate->unplaced = is_long && hv_gate_turns_hold(gate);
    if (gate->unplaced) {
        *place = (struct place){.charge_ns = place->charge_ns,
                                .cost_ns = place->cost_ns,
                                .paid_ns = place->cost_ns,
                                .start_ns = gate->now_ns};
        *repaid = 0;
        return;
    }
    uint64_t slice = gate->in_turn ? 0 : hv_bucket_gpu_ns(SLICE_WALL_NS / waiting(gate), gate->share_ppm);
    place->paid_ns = place->cost_ns + slice;
    if (!copy && !gate->measures)
        place->paid_ns += even_slice(gate, place->paid_ns);
    *repaid = hv_debt_take(&gate->usage->debt_ns, &gate->usage->bucket_ns, terms, repaid_at_most(gate, place), gate->now_ns);
    place->all_ns = hv_gate_corrected(gate, copy, hv_gate_overlapped(gate, place->paid_ns));
    place->placed_ns = is_long ? hv_untold_placed(gate, place->all_ns) : place->all_ns;
    place->untold = place->placed_ns < place->all_ns;
    place->start_ns =
        hv_bucket_charge(&gate->usage->bucket_ns, terms, place->placed_ns + *repaid, gate->now_ns, &place->wall_ns);
    hv_debt_add(&gate->usage->debt_ns, terms, place->all_ns - place->placed_ns);
}

/* Where the place is now, after what has been given back since *before. */
static void move_up(struct place *place, struct back *before, struct back now)
{
    uint64_t moved = now.returned_ns - before->returned_ns;
    if (!place->untold)
        moved += now.priced_ns - before->priced_ns;
    place->start_ns = place->start_ns > moved ? place->start_ns - moved : 0;
    *before = now;
}

static void wait_for_place(struct hv_gate *gate, const struct hv_bucket_terms *terms, struct place *place,
                           struct back before)
{
    uint64_t generation = gate->terms.generation;
    bool priced = !place->untold;
    count_waiter(gate);
    place->start_ns = in_step(gate, place->start_ns);
    while (place->start_ns > gate->now_ns && gate->terms.generation == generation && gate->share_ppm == terms->share_ppm) {
        uint64_t nap = priced ? LOOK_AGAIN_NS : LOOK_SOON_NS;
        hv_gate_wait(gate, place->start_ns - gate->now_ns < nap ? place->start_ns : gate->now_ns + nap);
        hv_gate_look(gate);
        if (!priced && hv_untold_is_told(gate)) {
            price_place(gate, place);
            priced = true;
            if (hv_gate_turns_hold(gate)) /* had it been known when it came, it would have no place to wait for */
                break;
        }
        hv_gate_poll(gate);
        hv_gate_poll_others(gate);
        move_up(place, &before, given_back(gate));
        place->start_ns = in_step(gate, place->start_ns);
    }
    count_off_waiter(gate);
}

/* On news the place is given back and taken anew at the share then in force. */
uint64_t hv_gate_pay(struct hv_gate *gate, bool copy, uint64_t charge_ns, uint64_t cost_ns)
{
    uint64_t began = gate->now_ns;
    bool waited = false;
    bool is_long = charge_ns >= HV_LONG_NS;
    struct place place = {.charge_ns = charge_ns, .cost_ns = cost_ns};
    forget_lost_waiters(gate);
    while (gate->share_ppm < HV_SHARE_FULL_PPM) {
        struct hv_bucket_terms terms = hv_gate_bucket_terms(gate);
        uint64_t repaid;
        terms.since_ns = gate->waits_since_ns;
        struct back before = given_back(gate);
        take_place(gate, &terms, copy, is_long, &place, &repaid);
        if (place.start_ns > gate->now_ns) {
            waited = true;
            wait_for_place(gate, &terms, &place, before);
        }
        if (place.start_ns <= gate->now_ns)
            break;
        hv_bucket_give_back(&gate->usage->bucket_ns, place.wall_ns);
        hv_debt_lower(&gate->usage->debt_ns, place.all_ns - place.placed_ns);
        hv_debt_add(&gate->usage->debt_ns, &terms, repaid);
        place.paid_ns = 0;
    }
    if (waited)
        hv_add_relaxed(&gate->slot->devices[gate->device].blocked_ns, gate->now_ns - began);
    return place.paid_ns;
}
