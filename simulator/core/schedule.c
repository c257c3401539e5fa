/* The GPU's time: event-driven processor sharing, worked out by whoever looks.
 *
 * Between two events the set of running kernels is constant, so progress is exact. The kernels at the
 * heads of the streams of one sharing unit run together: at full rate while their demands fit the SMs,
 * else each slowed by the sum of demands. A sharing unit is one process, or, under MPS, all of them;
 * units take turns of system.slice_ns. Copies run beside kernels, each engine shared by its copies.
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

static uint64_t unit_of(const struct sim_gpu *gpu, const struct sim_stream *stream)
{
    return gpu->info.mps ? 1 : (uint64_t)stream->process + 2;
}

/* What runs now. */
struct running {
    uint32_t kernels, delays;
    uint32_t copies[SIM_ENGINES];
    uint64_t demand;      /* of the chosen unit's kernels */
    int others;           /* kernels of another unit wait for the GPU */
};

static void choose(struct sim_machine *machine, struct sim_gpu *gpu, struct running *run)
{
    uint64_t above = UINT64_MAX, lowest = UINT64_MAX;
    int owner_runs = 0, units = 0;
    memset(run, 0, sizeof *run);
    for (uint32_t i = gpu->first_active; i != SIM_NONE; i = machine->streams[i].next_active) {
        const struct sim_item *item = head_item(machine, i);
        if (item->kind == SIM_ITEM_COPY && item->a < SIM_ENGINES)
            run->copies[item->a]++;
        else if (item->kind == SIM_ITEM_DELAY)
            run->delays++;
        else if (item->kind == SIM_ITEM_KERNEL) {
            uint64_t unit = unit_of(gpu, &machine->streams[i]);
            if (unit == gpu->slice_owner)
                owner_runs = 1;
            else {
                units = 1;
                lowest = min_u64(lowest, unit);
                if (unit > gpu->slice_owner)
                    above = min_u64(above, unit);
            }
        }
    }
    if (!owner_runs && !units)
        return;
    if (!owner_runs || (units && gpu->now_ns >= gpu->slice_end_ns)) {
        uint64_t previous = gpu->slice_owner;
        gpu->slice_owner = above != UINT64_MAX ? above : lowest;
        gpu->slice_end_ns = gpu->now_ns + machine->system.slice_ns;
        run->others = owner_runs && previous != gpu->slice_owner;
    } else if (gpu->now_ns >= gpu->slice_end_ns) {
        gpu->slice_end_ns = gpu->now_ns + machine->system.slice_ns; /* alone: the turn is renewed */
    } else {
        run->others = units;
    }
    for (uint32_t i = gpu->first_active; i != SIM_NONE; i = machine->streams[i].next_active) {
        struct sim_item *item = head_item(machine, i);
        if (item->kind != SIM_ITEM_KERNEL)
            continue;
        if (unit_of(gpu, &machine->streams[i]) == gpu->slice_owner) {
            run->kernels++;
            run->demand += item->demand_ppm;
        } else {
            run->others = 1;
        }
    }
}

static uint64_t divide_up(unsigned __int128 value, uint64_t by) { return (uint64_t)((value + by - 1) / by); }

/* ns until this item ends if nothing changes; UINT64_MAX: it does not run. */
static uint64_t time_left(const struct sim_gpu *gpu, const struct sim_stream *stream, const struct sim_item *item, const struct running *run)
{
    if (item->kind == SIM_ITEM_KERNEL) {
        if (unit_of(gpu, stream) != gpu->slice_owner)
            return UINT64_MAX;
        if (run->demand <= PPM)
            return (item->work + SIM_WORK_SCALE - 1) / SIM_WORK_SCALE;
        return divide_up((unsigned __int128)item->work * run->demand, PPM * SIM_WORK_SCALE);
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
        least = min_u64(least, time_left(gpu, &machine->streams[i], head_item(machine, i), run));
    if (run->others && gpu->slice_end_ns > gpu->now_ns)
        least = min_u64(least, gpu->slice_end_ns - gpu->now_ns);
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

static void account(struct sim_machine *machine, struct sim_gpu *gpu, uint32_t index, const struct running *run, uint64_t ns)
{
    gpu->now_ns += ns;
    if (run->copies[0] | run->copies[1] | run->copies[2])
        gpu->copy_ns += ns;
    if (run->kernels == 0)
        return;
    gpu->busy_ns += ns;
    gpu->sm_ns += ns * min_u64(run->demand, PPM) / PPM;
    struct marks seen;
    if (run->kernels > 1)
        memset(&seen, 0, sizeof seen);
    uint64_t divisor = max_u64(run->demand, PPM);
    for (uint32_t i = gpu->first_active; i != SIM_NONE; i = machine->streams[i].next_active) {
        const struct sim_item *item = head_item(machine, i);
        const struct sim_stream *stream = &machine->streams[i];
        if (item->kind != SIM_ITEM_KERNEL || unit_of(gpu, stream) != gpu->slice_owner)
            continue;
        struct sim_process *process = &machine->processes[stream->process];
        uint64_t sm = ns * item->demand_ppm / divisor;
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
        uint64_t left = time_left(gpu, stream, item, run);
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
            if (item->kind == SIM_ITEM_KERNEL && run->demand > PPM)
                scaled = scaled * PPM / run->demand;
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
        struct running run = {0};
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
