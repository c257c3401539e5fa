#include "pacing_wait.h"

#include "costs.h"

/* Of a function whose cost is not known one launch may be under way: it is
 * charged a guess, and what it takes beyond that once it has ended. */
#define UNLEARNED_IN_FLIGHT 1

/* Most charged work that may be unfinished, and how long a launch waits for
 * less. The wait is bounded because work may be waiting for what the program
 * wants to launch next (a kernel that polls a flag, a peer of a collective). */
#define UNFINISHED_NS (50 * NS_PER_MS)
#define LEAST_UNFINISHED_NS (8 * NS_PER_MS) /* of a process: four turns, which are 2 ms */
#define FEW_UNFINISHED 16 /* launches of several streams, which wait for each other: half of them are to be there */
#define UNFINISHED_SAMPLES 2
#define PATIENCE_NS (2000 * NS_PER_MS)
#define MOST_DOUBLED 2 /* times, while launches that were let go so do not end */
#define MOST_TURNS 8 /* that are waited for */
#define FIRST_NAP_NS UINT64_C(50000)
#define LONGEST_NAP_NS NS_PER_MS

/* Charged work that the process may have unfinished. What is charged too little queues up to this, so the Pod's processes
 * share it, as far as each of their turns still finds some. The less the better the cost is known: all at once, whoever has
 * more would wait for all of the rest. Not in several streams: what is charged of launches that run beside each other is
 * more than the device is given, and they end in jumps. Of short launches on several devices four turns are enough: an
 * exchange beside others gets on by one launch in a round of turns, and whoever comes waits for all that is queued. */
uint64_t hv_wait_room_ns(const struct hv_gate *gate)
{
    uint64_t samples = hv_load_relaxed_32(&gate->function->samples);
    if (gate->terms.device_count > 1 && hv_load_relaxed_32(&gate->function->is_long) == 0 &&
        hv_load_relaxed(&gate->process->sampler.long_ns[gate->device]) == 0) {
        uint64_t room = hv_bucket_wall_ns(LEAST_UNFINISHED_NS, gate->overlap_ppm);
        uint64_t few = FEW_UNFINISHED * hv_load_relaxed(&gate->function->cost_ns);
        room = room > few ? room : few;
        return room < UNFINISHED_NS ? room : UNFINISHED_NS;
    }
    if (samples <= HV_RECENT_SAMPLES || hv_load_relaxed_32(&gate->process->sampler.streams_differ[gate->device]) != 0)
        return UNFINISHED_NS;
    uint32_t own = hv_slots_at_work(&hv_files()->slots, gate->device);
    uint64_t part = UNFINISHED_NS / (own != 0 ? own : 1);
    uint64_t least = part > LEAST_UNFINISHED_NS ? part : LEAST_UNFINISHED_NS;
    uint64_t known = UNFINISHED_NS * HV_RECENT_SAMPLES / samples; /* below 2^31 */
    return known > least ? known : least;
}

/* Is more than that left of the process's work? Half of what may be unfinished, or of a launch: the other half is for what
 * the pace of the work may be wrong by. */
static bool is_much_left(const struct hv_gate *gate)
{
    const struct hv_sampler *sampler = &gate->process->sampler;
    uint64_t cost = hv_costs_charge(gate->function), room = hv_wait_room_ns(gate);
    uint64_t half = (cost > room ? cost : room) / 2;
    /* Its turns are all that it waits for, and no more than two may be unfinished: each that ends lets one go. The pace is
     * wrong by a good part of such a launch, so by it one would go early, and another one behind it wait for two. */
    if (gate->unplaced && cost > UNFINISHED_NS / 4)
        return hv_sampler_unfinished_ns(sampler, gate->device) > cost + cost / 2;
    bool streams = hv_load_relaxed_32(&sampler->streams_differ[gate->device]) != 0; /* graphs: they end together anyway */
    if (gate->unplaced && streams)
        return hv_sampler_unfinished_ns(sampler, gate->device) > half;
    return hv_sampler_left_ns(sampler, gate->device, gate->now_ns) > half;
}

/* What its launch is to be charged is being found out, by a launch of this process or of another one. */
static bool must_wait_for_cost(struct hv_gate *gate)
{
    struct hv_function *function = gate->function;
    struct hv_sampler *sampler = &gate->process->sampler;
    if (hv_load_relaxed(&function->cost_ns) != 0)
        return false;
    /* A short one is measured by itself first: what runs beside it would lengthen it. */
    bool told = hv_costs_told(function);
    bool known = told && hv_load_relaxed(&function->first_cost_ns) >= HV_LONG_NS;
    if (!known && hv_load_acquire_32(&function->in_flight) >= UNLEARNED_IN_FLIGHT)
        return true;
    bool in_vain = hv_load_relaxed_32(&sampler->waited_in_vain) != 0;
    uint32_t turns = hv_load_relaxed_32(&sampler->turns[gate->device]);
    if (turns != gate->turns_seen) { /* one after the other, so nothing waits for this one: of many threads each waits long */
        gate->turns_seen = turns;
        gate->patient_since_ns = gate->now_ns;
    }
    if (in_vain && gate->now_ns - gate->patient_since_ns >= HV_LEARNING_NS)
        return false;
    if (!told && !gate->measures) {
        gate->in_turn = turns != 0;
        if (!hv_sampler_take_turn(sampler, gate->device))
            return true;
        gate->measures = true;
    }
    return !hv_costs_settled(function, gate->now_ns);
}

static bool must_wait_for_room(struct hv_gate *gate)
{
    return hv_load_acquire_32(&gate->process->sampler.pending[gate->device]) >= UNFINISHED_SAMPLES && is_much_left(gate);
}

/* Who has each eighth turn only gets as far in eight times as long. */
static uint64_t patience_ns(const struct hv_gate *gate, uint32_t before)
{
    uint64_t others = hv_load_relaxed(&gate->control->others_ppm) / HV_SHARE_FULL_PPM;
    uint64_t turns = hv_slots_at_work(&hv_files()->slots, gate->device) + (others < MOST_TURNS ? others : MOST_TURNS);
    uint64_t slowed = PATIENCE_NS * (turns < MOST_TURNS ? turns : MOST_TURNS);
    uint64_t doubled = PATIENCE_NS << (before < MOST_DOUBLED ? before : MOST_DOUBLED);
    return slowed > doubled ? slowed : doubled;
}

/* False: it has waited as long as it may, because what it waits for may be waiting for this launch. */
static bool wait_while(bool (*must_wait)(struct hv_gate *), struct hv_gate *gate)
{
    struct hv_function *function = gate->function;
    uint64_t nap = FIRST_NAP_NS;
    gate->patient_since_ns = gate->now_ns;
    gate->turns_seen = hv_load_relaxed_32(&gate->process->sampler.turns[gate->device]);
    uint32_t before = hv_load_relaxed_32(&function->impatient);
    bool patient = true;
    while (gate->share_ppm < HV_SHARE_FULL_PPM && must_wait(gate) &&
           (patient = gate->now_ns - gate->patient_since_ns < patience_ns(gate, before))) {
        hv_gate_wait(gate, gate->now_ns + nap);
        nap = nap * 2 < LONGEST_NAP_NS ? nap * 2 : LONGEST_NAP_NS;
        hv_gate_look(gate);
        hv_gate_poll(gate);
        hv_gate_poll_others(gate);
    }
    if (!patient)
        hv_store_relaxed_32(&function->impatient, before + 1);
    return patient;
}

/* The place will be as of when the launch came, for it had work for the device all the while. */
void hv_wait_for_cost(struct hv_gate *gate)
{
    uint64_t began = gate->waits_since_ns = gate->now_ns;
    bool others = hv_load_acquire_32(&gate->function->in_flight) == 0;
    if (!wait_while(must_wait_for_cost, gate) && others) /* work that waits for its peers does so again with the next function */
        hv_store_relaxed_32(&gate->process->sampler.waited_in_vain, 1);
    if (gate->now_ns == began)
        gate->waits_since_ns = 0;
}

/* Those in other processes who have waited for the same cost look for it each LONGEST_NAP_NS. They came before whatever
 * this process launches next, and are to have their places before it. */
void hv_wait_for_others_places(struct hv_gate *gate)
{
    if (gate->waits_since_ns == 0 || hv_load_relaxed_32(&gate->function->is_long) == 0)
        return;
    hv_gate_wait(gate, gate->now_ns + LONGEST_NAP_NS);
    hv_gate_look(gate);
}

void hv_wait_for_room(struct hv_gate *gate)
{
    (void)wait_while(must_wait_for_room, gate);
}

/* Its sample has the turn from here on, or nobody. */
void hv_wait_pass_turn_on(struct hv_gate *gate, struct hv_sample *sample)
{
    if (!gate->measures)
        return;
    if (sample != NULL && sample->unlearned) {
        sample->holds_turn = true;
        sample->in_turn = gate->in_turn;
    } else {
        hv_sampler_leave_turn(&gate->process->sampler, gate->device);
    }
    gate->measures = false;
}
