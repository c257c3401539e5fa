/* The GPU's time: event-driven processor sharing, worked out by whoever looks.
 *
 * Between two events the set of running kernels is constant, so progress is exact. The kernels at the
 * heads of the streams of one sharing unit run together: at full rate while their demands fit the SMs,
 * else each slowed by the sum of demands. A sharing unit is one process, or, under MPS, all of them;
 * units take turns of system.slice_ns. With MIG on, each compute instance is a lane of its own: lanes run
 * beside each other, units take turns within theirs, and a lane's demands share what it has of the SMs.
 * Copies run beside kernels, each engine shared by its copies.
 *
 * Order of stores in one step: the clock of the GPU first, then its busy time, the groups', the
 * processes', then the work left. A process killed in between loses at most that step's busy time and
 * never breaks "process <= group <= GPU <= clock".
 */
#include "internal.h"

#include <string.h>

void sim_stream_activate(struct sim_machine *machine, struct sim_gpu *gpu, uint32_t index)
{
    struct sim_stream *stream = &machine->streams[index];
    if (stream->active)
        return;
    stream->next_active = gpu->first_active;
    stream->previous_active = SIM_NONE;
    if (gpu->first_active != SIM_NONE)
        machine->streams[gpu->first_active].previous_active = index;
    gpu->first_active = index;
    gpu->active_count++;
    stream->active = 1;
}

void sim_stream_deactivate(struct sim_machine *machine, struct sim_gpu *gpu, uint32_t index)
{
    struct sim_stream *stream = &machine->streams[index];
    if (!stream->active)
        return;
    if (stream->previous_active != SIM_NONE)
        machine->streams[stream->previous_active].next_active = stream->next_active;
    else
        gpu->first_active = stream->next_active;
    if (stream->next_active != SIM_NONE)
        machine->streams[stream->next_active].previous_active = stream->previous_active;
    gpu->active_count--;
    stream->active = 0;
}

static struct sim_item *head_item(struct sim_machine *machine, uint32_t stream)
{
    return &machine->rings[stream][machine->streams[stream].head % SIM_RING_ITEMS];
}

static void pop(struct sim_stream *stream)
{
    __atomic_store_n(&stream->head, stream->head + 1, __ATOMIC_RELEASE); /* readers without the lock see a finished item */
}

void sim_stream_drop(struct sim_machine *machine, uint32_t index)
{
    struct sim_stream *stream = &machine->streams[index];
    while (stream->head != stream->tail) {
        struct sim_item *item = head_item(machine, index);
        if (item->kind == SIM_ITEM_RELEASE)
            sim_ledger_sub(machine, stream->gpu, stream->process, item->bytes);
        pop(stream);
    }
    stream->done_work = stream->pushed_work;
    sim_stream_deactivate(machine, &machine->gpu[stream->gpu], index);
}

/* Takes all items from the head of a stream that need no time. Returns non-zero when another stream may have waited for one. */
static int resolve(struct sim_machine *machine, struct sim_gpu *gpu, uint32_t index)
{
    struct sim_stream *stream = &machine->streams[index];
    int moved = 0;
    while (stream->head != stream->tail) {
        struct sim_item *item = head_item(machine, index);
        switch (item->kind) {
        case SIM_ITEM_EVENT_RECORD: {
            struct sim_event *event = &machine->events[item->a];
            if (item->b > event->done) {
                event->time_ns = gpu->now_ns;
                __atomic_store_n(&event->done, item->b, __ATOMIC_RELEASE); /* the time is there before it counts */
            }
            break;
        }
        case SIM_ITEM_EVENT_WAIT:
            if (__atomic_load_n(&machine->events[item->a].done, __ATOMIC_ACQUIRE) < item->b) /* may be another GPU's */
                return moved;
            break;
        case SIM_ITEM_STREAM_WAIT: {
            const struct sim_stream *other = &machine->streams[item->a];
            if (other->state && other->generation == item->bytes && (int64_t)(item->b - other->head) > 0) /* free-running: the sign of the difference */
                return moved;
            break;
        }
        case SIM_ITEM_RELEASE:
            sim_ledger_sub(machine, stream->gpu, stream->process, item->bytes);
            break;
        case SIM_ITEM_HOST:
            item->started = 1; /* its turn has come; the owner pops it */
            return moved;
        case SIM_ITEM_KERNEL:
        case SIM_ITEM_COPY:
        case SIM_ITEM_DELAY:
            if (item->work != 0)
                return moved;
            break;
        default: /* torn by a killed writer: nothing can be done with it */
            break;
        }
        if (item->kind == SIM_ITEM_COPY && item->a < SIM_ENGINES)
            gpu->engine_bytes[item->a] += item->bytes;
        pop(stream);
        moved = 1;
    }
    sim_stream_deactivate(machine, gpu, index);
    return moved;
}

static void resolve_all(struct sim_machine *machine, struct sim_gpu *gpu)
{
    int again;
    do {
        again = 0;
        for (uint32_t i = gpu->first_active, next; i != SIM_NONE; i = next) {
            next = machine->streams[i].next_active;
            again |= resolve(machine, gpu, i);
        }
    } while (again && gpu->first_active != SIM_NONE);
}

static uint64_t unit_of(const struct sim_machine *machine, const struct sim_gpu *gpu, const struct sim_stream *stream)
{
    const int served = (machine->processes[stream->process].mps_client & SIM_MPS_SERVED) != 0;
    return gpu->info.mps || served ? 1 : (uint64_t)stream->process + 2;
}

/* What runs now in one lane. */
struct lane {
    uint32_t kernels;     /* of the unit whose turn it is */
    int others;           /* kernels of another unit wait for their turn */
    uint64_t demand;      /* of the kernels that run, in millionths of the GPU's SMs */
    uint64_t capacity;    /* what the lane has of them */
};
struct running {
    uint32_t kernels, delays;
    uint32_t copies[SIM_ENGINES];
    uint32_t lanes;       /* rows of lane[] in use: 1 without MIG */
    struct lane lane[SIM_LANES];
};

/* A stream of an instance that is gone computes with the whole GPU; there is nothing else left. */
static uint32_t lane_of(const struct running *run, const struct sim_stream *stream) { return stream->lane < run->lanes ? stream->lane : 0; }

/* Whose turn it is in a lane. */
static void choose_in_lane(struct sim_machine *machine, struct sim_gpu *gpu, struct running *run, uint32_t number)
{
    uint64_t above = UINT64_MAX, lowest = UINT64_MAX;
    int owner_runs = 0, units = 0;
    struct lane *lane = &run->lane[number];
    uint64_t *owner = &gpu->slice_owner[number], *end = &gpu->slice_end_ns[number];
    for (uint32_t i = gpu->first_active; i != SIM_NONE; i = machine->streams[i].next_active) {
        const struct sim_stream *stream = &machine->streams[i];
        if (head_item(machine, i)->kind != SIM_ITEM_KERNEL || lane_of(run, stream) != number)
            continue;
        uint64_t unit = unit_of(machine, gpu, stream);
        if (unit == *owner)
            owner_runs = 1;
        else {
            units = 1;
            lowest = min_u64(lowest, unit);
            if (unit > *owner)
                above = min_u64(above, unit);
        }
    }
    if (!owner_runs && !units)
        return;
    if (!owner_runs || (units && gpu->now_ns >= *end)) {
        uint64_t previous = *owner;
        *owner = above != UINT64_MAX ? above : lowest;
        *end = gpu->now_ns + machine->system.slice_ns;
        lane->others = owner_runs && previous != *owner;
    } else if (gpu->now_ns >= *end) {
        *end = gpu->now_ns + machine->system.slice_ns; /* alone: the turn is renewed */
    } else {
        lane->others = units;
    }
    for (uint32_t i = gpu->first_active; i != SIM_NONE; i = machine->streams[i].next_active) {
        const struct sim_item *item = head_item(machine, i);
        const struct sim_stream *stream = &machine->streams[i];
        if (item->kind != SIM_ITEM_KERNEL || lane_of(run, stream) != number)
            continue;
        if (unit_of(machine, gpu, stream) == *owner) {
            lane->kernels++;
            lane->demand += min_u64(item->demand_ppm, lane->capacity); /* no kernel is wider than its instance */
        } else {
            lane->others = 1;
        }
    }
    run->kernels += lane->kernels;
}

static void choose(struct sim_machine *machine, struct sim_gpu *gpu, struct running *run)
{
    memset(run, 0, offsetof(struct running, lane));
    run->lanes = gpu->info.mig_mode ? SIM_LANES : 1;
    for (uint32_t number = 0; number < run->lanes; number++) {
        run->lane[number] = (struct lane){.capacity = PPM};
        if (number > 0 && gpu->compute[number - 1].state)
            run->lane[number].capacity = max_u64(PPM * gpu->compute[number - 1].sm_count / gpu->info.sm_count, 1);
    }
    uint32_t wanted = 0; /* bit n: lane n has a kernel at the head of a stream */
    for (uint32_t i = gpu->first_active; i != SIM_NONE; i = machine->streams[i].next_active) {
        const struct sim_item *item = head_item(machine, i);
        if (item->kind == SIM_ITEM_COPY && item->a < SIM_ENGINES)
            run->copies[item->a]++;
        else if (item->kind == SIM_ITEM_DELAY)
            run->delays++;
        else if (item->kind == SIM_ITEM_KERNEL)
            wanted |= 1u << lane_of(run, &machine->streams[i]);
    }
    for (uint32_t number = 0; number < run->lanes; number++)
        if (wanted >> number & 1u)
            choose_in_lane(machine, gpu, run, number);
}

static uint64_t divide_up(unsigned __int128 value, uint64_t by) { return (uint64_t)((value + by - 1) / by); }

/* ns until this item ends if nothing changes; UINT64_MAX: it does not run. */
static uint64_t time_left(const struct sim_machine *machine, const struct sim_gpu *gpu, const struct sim_stream *stream, const struct sim_item *item, const struct running *run)
{
    if (item->kind == SIM_ITEM_KERNEL) {
        uint32_t number = lane_of(run, stream);
        const struct lane *lane = &run->lane[number];
        if (unit_of(machine, gpu, stream) != gpu->slice_owner[number])
            return UINT64_MAX;
        if (lane->demand <= lane->capacity)
            return (item->work + SIM_WORK_SCALE - 1) / SIM_WORK_SCALE;
        return divide_up((unsigned __int128)item->work * lane->demand, lane->capacity * SIM_WORK_SCALE);
    }
    if (item->kind == SIM_ITEM_COPY && item->a < SIM_ENGINES)
        return divide_up((unsigned __int128)item->work * run->copies[item->a], SIM_WORK_SCALE);
    if (item->kind == SIM_ITEM_DELAY)
        return (item->work + SIM_WORK_SCALE - 1) / SIM_WORK_SCALE;
    return UINT64_MAX;
}

static uint64_t next_end(struct sim_machine *machine, struct sim_gpu *gpu, const struct running *run)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = gpu->first_active; i != SIM_NONE; i = machine->streams[i].next_active)
        least = min_u64(least, time_left(machine, gpu, &machine->streams[i], head_item(machine, i), run));
    for (uint32_t number = 0; number < run->lanes; number++)
        if (run->lane[number].others && gpu->slice_end_ns[number] > gpu->now_ns)
            least = min_u64(least, gpu->slice_end_ns[number] - gpu->now_ns);
    return least;
}

struct marks {
    uint64_t groups[SIM_MAX_GROUPS / 64];
    uint64_t processes[SIM_MAX_PROCESSES / 64];
};

static int mark(uint64_t *bits, uint32_t index)
{
    uint64_t bit = UINT64_C(1) << (index % 64);
    if (bits[index / 64] & bit)
        return 0;
    bits[index / 64] |= bit;
    return 1;
}

/* Busy time of the GPU instance of a lane; of several lanes of one instance, the lowest busy one counts it. */
static void account_instance(struct sim_gpu *gpu, const struct running *run, uint32_t number, uint64_t ns)
{
    const struct sim_compute_instance *compute = &gpu->compute[number - 1];
    struct sim_gpu_instance *instance = &gpu->instances[compute->instance];
    const struct lane *lane = &run->lane[number];
    uint64_t whole = PPM * gpu->info.mig_profiles[instance->profile].sm_count / gpu->info.sm_count;
    if (!compute->state || whole == 0)
        return;
    instance->sm_ns += ns * min_u64(lane->demand, lane->capacity) / whole;
    for (uint32_t lower = 1; lower < number; lower++)
        if (run->lane[lower].kernels != 0 && gpu->compute[lower - 1].instance == compute->instance)
            return;
    instance->busy_ns += ns;
}

/* Before the busy time, which is part of it. */
static void account_queued(struct sim_machine *machine, const struct sim_gpu *gpu, uint32_t index, uint64_t ns)
{
    struct marks seen;
    const int several = gpu->active_count > 1;
    if (several)
        memset(&seen, 0, sizeof seen);
    for (uint32_t i = gpu->first_active; i != SIM_NONE; i = machine->streams[i].next_active) {
        uint32_t row = machine->streams[i].process, group = machine->processes[row].group;
        if (group < SIM_MAX_GROUPS && (!several || mark(seen.groups, group)))
            machine->groups[group].gpu[index].queued_ns += ns;
        if (!several || mark(seen.processes, row))
            machine->processes[row].gpu[index].queued_ns += ns;
    }
}

static void account(struct sim_machine *machine, struct sim_gpu *gpu, uint32_t index, const struct running *run, uint64_t ns)
{
    gpu->now_ns += ns;
    account_queued(machine, gpu, index, ns);
    if (run->copies[0] | run->copies[1] | run->copies[2])
        gpu->copy_ns += ns;
    if (run->kernels == 0)
        return;
    gpu->busy_ns += ns;
    for (uint32_t number = 0; number < run->lanes; number++) {
        const struct lane *lane = &run->lane[number];
        gpu->sm_ns += ns * min_u64(lane->demand, lane->capacity) / PPM;
        if (number == 0 || lane->kernels == 0)
            continue;
        account_instance(gpu, run, number, ns);
    }
    struct marks seen;
    if (run->kernels > 1)
        memset(&seen, 0, sizeof seen);
    for (uint32_t i = gpu->first_active; i != SIM_NONE; i = machine->streams[i].next_active) {
        const struct sim_item *item = head_item(machine, i);
        const struct sim_stream *stream = &machine->streams[i];
        const uint32_t number = lane_of(run, stream);
        const struct lane *lane = &run->lane[number];
        if (item->kind != SIM_ITEM_KERNEL || unit_of(machine, gpu, stream) != gpu->slice_owner[number])
            continue;
        struct sim_process *process = &machine->processes[stream->process];
        uint64_t wide = min_u64(item->demand_ppm, lane->capacity);
        uint64_t sm = lane->demand <= lane->capacity ? ns * wide / PPM : ns * wide / lane->demand * lane->capacity / PPM;
        if (process->group < SIM_MAX_GROUPS) {
            struct sim_gpu_usage *group = &machine->groups[process->group].gpu[index];
            group->sm_ns += sm;
            if (run->kernels == 1 || mark(seen.groups, process->group))
                group->busy_ns += ns;
        }
        process->gpu[index].sm_ns += sm;
        if (run->kernels == 1 || mark(seen.processes, stream->process))
            process->gpu[index].busy_ns += ns;
    }
}

static void progress(struct sim_machine *machine, struct sim_gpu *gpu, uint32_t index, const struct running *run, uint64_t ns)
{
    for (uint32_t i = gpu->first_active; i != SIM_NONE; i = machine->streams[i].next_active) {
        struct sim_item *item = head_item(machine, i);
        struct sim_stream *stream = &machine->streams[i];
        uint64_t left = time_left(machine, gpu, stream, item, run);
        if (left == UINT64_MAX)
            continue;
        if (item->kind == SIM_ITEM_KERNEL && !item->started) {
            item->started = 1;
            gpu->launches++;
            struct sim_process *process = &machine->processes[stream->process];
            process->gpu[index].launches++;
            if (process->group < SIM_MAX_GROUPS)
                machine->groups[process->group].gpu[index].launches++;
        }
        uint64_t done = item->work;
        if (left > ns) {
            unsigned __int128 scaled = (unsigned __int128)ns * SIM_WORK_SCALE;
            const struct lane *lane = &run->lane[lane_of(run, stream)];
            if (item->kind == SIM_ITEM_KERNEL && lane->demand > lane->capacity)
                scaled = scaled * lane->capacity / lane->demand;
            else if (item->kind == SIM_ITEM_COPY)
                scaled = scaled / run->copies[item->a];
            done = min_u64((uint64_t)scaled, item->work);
        }
        stream->done_work += done;
        item->work -= done;
    }
}

void sim_schedule(struct sim_machine *machine, uint32_t index, uint64_t now_ns)
{
    struct sim_gpu *gpu = &machine->gpu[index];
    const uint64_t window = machine->system.window_ns;
    for (;;) {
        if (gpu->first_active != SIM_NONE)
            resolve_all(machine, gpu);
        if (now_ns <= gpu->now_ns)
            return;
        struct running run; /* filled by choose */
        uint64_t step = now_ns - gpu->now_ns;
        if (gpu->first_active != SIM_NONE) {
            choose(machine, gpu, &run);
            step = min_u64(step, next_end(machine, gpu, &run));
            step = min_u64(step, gpu->window_start_ns + window - gpu->now_ns);
            account(machine, gpu, index, &run, step);
            progress(machine, gpu, index, &run, step);
        } else {
            gpu->now_ns = now_ns;
        }
        if (gpu->now_ns >= gpu->window_start_ns + window)
            sim_windows_close(machine, index, gpu->now_ns);
    }
}

uint64_t sim_schedule_next(struct sim_machine *machine, uint32_t index)
{
    struct sim_gpu *gpu = &machine->gpu[index];
    if (gpu->first_active == SIM_NONE)
        return UINT64_MAX;
    struct running run;
    choose(machine, gpu, &run);
    uint64_t left = next_end(machine, gpu, &run);
    return left == UINT64_MAX ? left : gpu->now_ns + left;
}

#define LOOKED_AHEAD 64u /* items of a stream that are looked at */

/* How long the stream has a kernel at its head at the least, by its first items. */
static uint64_t supplied(const struct sim_machine *machine, uint32_t index)
{
    const struct sim_stream *stream = &machine->streams[index];
    const uint64_t end = min_u64(stream->tail, stream->head + LOOKED_AHEAD);
    uint64_t work = 0;
    for (uint64_t at = stream->head; at != end; at++) {
        const struct sim_item *item = &machine->rings[index][at % SIM_RING_ITEMS];
        if (item->kind == SIM_ITEM_KERNEL)
            work += item->work;
        else if (item->kind != SIM_ITEM_EVENT_RECORD) /* which takes no time */
            break;
    }
    return work / SIM_WORK_SCALE;
}

uint64_t sim_schedule_least(struct sim_machine *machine, uint32_t index, uint64_t ns)
{
    const struct sim_stream *stream = &machine->streams[index];
    struct sim_gpu *gpu = &machine->gpu[stream->gpu];
    if (stream->head == stream->tail || head_item(machine, index)->kind != SIM_ITEM_KERNEL)
        return gpu->now_ns + ns;
    struct running run;
    choose(machine, gpu, &run);
    const uint32_t number = lane_of(&run, stream);
    if (unit_of(machine, gpu, stream) == gpu->slice_owner[number]) /* up to the next end its rate stays as it is */
        return gpu->now_ns + max_u64(ns, min_u64(next_end(machine, gpu, &run), time_left(machine, gpu, stream, head_item(machine, index), &run)));
    uint64_t turn = 0; /* that the others have at the least: until they have nothing ready, or for the slice */
    for (uint32_t i = gpu->first_active; i != SIM_NONE; i = machine->streams[i].next_active) {
        const struct sim_stream *other = &machine->streams[i];
        if (lane_of(&run, other) == number && unit_of(machine, gpu, other) == gpu->slice_owner[number])
            turn = max_u64(turn, supplied(machine, i));
    }
    return min_u64(gpu->now_ns + turn, max_u64(gpu->slice_end_ns[number], gpu->now_ns)) + ns;
}
