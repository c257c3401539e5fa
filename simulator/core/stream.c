/* Streams and events as their owners use them. */
#define _GNU_SOURCE
#include "internal.h"

#include <string.h>

#define LOOK_AGAIN_NS 200000u /* while a stream is blocked on something whose time nobody knows */

void sim_enter_gpu(struct sim_machine *machine, uint32_t index)
{
    uint64_t now = sim_now(machine);
    /* relaxed, both: only hints that something is due; what is done about it happens under locks */
    if (__builtin_expect(now >= __atomic_load_n(&machine->next_device_fault_ns, __ATOMIC_RELAXED), 0))
        sim_faults_apply_due(machine, now);
    uint64_t real = machine->system.clock_mode == SIM_CLOCK_REAL && machine->system.clock_scale_ppm == PPM
                        ? now + machine->clock_origin_ns
                        : sim_monotonic_coarse_ns();
    if (__builtin_expect(real >= __atomic_load_n(&machine->next_reap_ns, __ATOMIC_RELAXED), 0))
        sim_machine_reap(machine);
    sim_lock_gpu(machine, index);
    sim_schedule(machine, index, now);
}

void sim_gpu_advance(struct sim_machine *machine, uint32_t gpu)
{
    sim_enter_gpu(machine, gpu);
    sim_unlock_gpu(machine, gpu);
}

void sim_machine_advance(struct sim_machine *machine)
{
    for (uint32_t i = 0; i < machine->gpu_count; i++)
        sim_gpu_advance(machine, i);
}

int sim_stream_open(struct sim_machine *machine, uint32_t gpu, uint32_t process, uint32_t flags, int32_t priority, uint32_t *out)
{
    sim_lock_table(machine);
    for (uint32_t i = 0; i < SIM_MAX_STREAMS; i++) {
        struct sim_stream *stream = &machine->streams[i];
        if (stream->state)
            continue;
        uint64_t generation = stream->generation + 1;
        memset(stream, 0, sizeof *stream);
        stream->generation = generation;
        stream->process = process;
        stream->process_generation = machine->processes[process].generation;
        stream->gpu = gpu;
        stream->lane = machine->processes[process].compute_instance[gpu] + 1; /* SIM_NONE, the whole GPU, becomes 0 */
        stream->flags = flags;
        stream->priority = priority;
        if (i >= machine->stream_high)
            machine->stream_high = i + 1;
        machine->processes[process].stream_count++;
        __atomic_store_n(&stream->state, 1, __ATOMIC_RELEASE); /* a whole row before it counts */
        sim_unlock_table(machine);
        *out = i;
        return SIM_OK;
    }
    sim_unlock_table(machine);
    return SIM_TABLE_FULL;
}

void sim_stream_close(struct sim_machine *machine, uint32_t index)
{
    struct sim_stream *stream = &machine->streams[index];
    sim_lock_table(machine);
    sim_lock_gpu(machine, stream->gpu);
    sim_stream_drop(machine, index);
    machine->processes[stream->process].stream_count--;
    stream->state = 0;
    sim_unlock_gpu(machine, stream->gpu);
    sim_unlock_table(machine);
}

static uint64_t least_ns(uint64_t work) { return (work + SIM_WORK_SCALE - 1) / SIM_WORK_SCALE; }

/* GPU's lock held. When the stream's head waits for an event of another GPU, that GPU. */
static uint32_t foreign_gpu(struct sim_machine *machine, uint32_t index)
{
    const struct sim_stream *stream = &machine->streams[index];
    if (stream->head == stream->tail)
        return SIM_NONE;
    const struct sim_item *item = &machine->rings[index][stream->head % SIM_RING_ITEMS];
    if (item->kind != SIM_ITEM_EVENT_WAIT || machine->events[item->a].gpu == stream->gpu)
        return SIM_NONE;
    return machine->events[item->a].gpu;
}

/* GPU's lock held: waits, without it, for the stream to have had a chance to do `bound_work` more, and returns with it. */
static void wait_for_work(struct sim_machine *machine, uint32_t index, uint64_t bound_work)
{
    struct sim_stream *stream = &machine->streams[index];
    uint32_t gpu = stream->gpu;
    uint64_t now = machine->gpu[gpu].now_ns;
    uint64_t until = machine->system.clock_mode == SIM_CLOCK_VIRTUAL ? sim_schedule_least(machine, index, least_ns(bound_work)) : now + least_ns(bound_work);
    const struct sim_item *item = &machine->rings[index][stream->head % SIM_RING_ITEMS];
    if (item->kind == SIM_ITEM_EVENT_WAIT || item->kind == SIM_ITEM_STREAM_WAIT || item->kind == SIM_ITEM_HOST || bound_work == 0) {
        uint64_t next = sim_schedule_next(machine, gpu);
        if (next == UINT64_MAX && machine->system.clock_mode == SIM_CLOCK_REAL)
            next = now + LOOK_AGAIN_NS;
        until = max_u64(until, next);
        if (machine->system.clock_mode == SIM_CLOCK_REAL)
            until = min_u64(until, now + max_u64(LOOK_AGAIN_NS, least_ns(bound_work)));
    }
    uint32_t foreign = foreign_gpu(machine, index);
    /* What no clock brings (a host function) may be another stream's: then every wake-up is worth a look. */
    const uint32_t *word = machine->system.clock_mode == SIM_CLOCK_VIRTUAL && until == UINT64_MAX ? &machine->clock_wake : &stream->wake;
    uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE); /* pairs with sim_wake */
    sim_unlock_gpu(machine, gpu);
    if (foreign < machine->gpu_count) {
        sim_enter_gpu(machine, foreign);
        uint64_t next = sim_schedule_next(machine, foreign);
        sim_unlock_gpu(machine, foreign);
        if (next != UINT64_MAX)
            until = min_u64(until, next);
    }
    sim_wait(machine, until, word, seen);
    sim_enter_gpu(machine, gpu);
}

int sim_stream_push(struct sim_machine *machine, uint32_t index, const struct sim_item *item)
{
    struct sim_stream *stream = &machine->streams[index];
    struct sim_gpu *gpu = &machine->gpu[stream->gpu];
    sim_enter_gpu(machine, stream->gpu);
    while (stream->tail - stream->head >= SIM_RING_ITEMS - 1 && !gpu->lost) /* one place is kept for a launch latency */
        wait_for_work(machine, index, machine->rings[index][stream->head % SIM_RING_ITEMS].work);
    if (gpu->lost || gpu->vanished) {
        sim_unlock_gpu(machine, stream->gpu);
        return SIM_GPU_GONE;
    }
    if (item->kind == SIM_ITEM_KERNEL && machine->system.launch_latency_ns && stream->head == stream->tail) {
        uint64_t latency = machine->system.launch_latency_ns * SIM_WORK_SCALE;
        machine->rings[index][stream->tail % SIM_RING_ITEMS] = (struct sim_item){.kind = SIM_ITEM_DELAY, .work = latency, .total_work = latency};
        stream->pushed_work += latency;
        stream->tail++;
    }
    struct sim_item *place = &machine->rings[index][stream->tail % SIM_RING_ITEMS];
    *place = *item;
    if (place->kind == SIM_ITEM_KERNEL && place->work == 0)
        place->work = 1; /* so that it is seen to run */
    place->total_work = place->work;
    place->enqueued_ns = gpu->now_ns;
    if (place->kind == SIM_ITEM_COPY) {
        machine->processes[stream->process].gpu[stream->gpu].copied_bytes += place->bytes;
        uint32_t group = machine->processes[stream->process].group;
        if (group < SIM_MAX_GROUPS)
            machine->groups[group].gpu[stream->gpu].copied_bytes += place->bytes;
    }
    stream->pushed_work += place->work;
    __atomic_store_n(&stream->tail, stream->tail + 1, __ATOMIC_RELEASE); /* a whole item before it counts */
    if (!stream->active)
        sim_stream_activate(machine, gpu, index);
    sim_unlock_gpu(machine, stream->gpu);
    return SIM_OK;
}

int sim_stream_follow(struct sim_machine *machine, uint32_t stream, uint32_t other)
{
    const struct sim_stream *row = &machine->streams[other];
    /* The tail only grows by the owner's own calls; acquire: with it goes the item in front of it. */
    struct sim_item item = {.kind = SIM_ITEM_STREAM_WAIT, .a = other, .b = __atomic_load_n(&row->tail, __ATOMIC_ACQUIRE), .bytes = row->generation};
    return sim_stream_push(machine, stream, &item);
}

int sim_stream_idle(struct sim_machine *machine, uint32_t index)
{
    struct sim_stream *stream = &machine->streams[index];
    sim_enter_gpu(machine, stream->gpu);
    uint32_t foreign = foreign_gpu(machine, index);
    int idle = stream->head == stream->tail;
    sim_unlock_gpu(machine, stream->gpu);
    if (foreign < machine->gpu_count)
        sim_gpu_advance(machine, foreign);
    return idle;
}

int sim_stream_wait(struct sim_machine *machine, uint32_t index)
{
    struct sim_stream *stream = &machine->streams[index];
    struct sim_gpu *gpu = &machine->gpu[stream->gpu];
    sim_enter_gpu(machine, stream->gpu);
    uint64_t last = stream->tail, work = stream->pushed_work;
    int status = SIM_OK;
    for (;;) {
        if (gpu->lost || gpu->vanished)
            status = SIM_GPU_GONE;
        if (status != SIM_OK || (int64_t)(last - stream->head) <= 0) /* free-running counters: the sign of the difference */
            break;
        wait_for_work(machine, index, work > stream->done_work ? work - stream->done_work : 0);
    }
    sim_unlock_gpu(machine, stream->gpu);
    return status;
}

int sim_stream_host_ready(struct sim_machine *machine, uint32_t index, uint64_t *cookie)
{
    struct sim_stream *stream = &machine->streams[index];
    sim_enter_gpu(machine, stream->gpu);
    const struct sim_item *item = &machine->rings[index][stream->head % SIM_RING_ITEMS];
    int ready = stream->head != stream->tail && item->kind == SIM_ITEM_HOST;
    if (ready)
        *cookie = item->a;
    uint32_t foreign = foreign_gpu(machine, index);
    sim_unlock_gpu(machine, stream->gpu);
    if (foreign < machine->gpu_count)
        sim_gpu_advance(machine, foreign);
    return ready;
}

void sim_stream_host_done(struct sim_machine *machine, uint32_t index)
{
    struct sim_stream *stream = &machine->streams[index];
    sim_enter_gpu(machine, stream->gpu);
    if (stream->head != stream->tail && machine->rings[index][stream->head % SIM_RING_ITEMS].kind == SIM_ITEM_HOST)
        __atomic_store_n(&stream->head, stream->head + 1, __ATOMIC_RELEASE); /* what the function wrote is seen first */
    if (stream->head == stream->tail)
        sim_stream_deactivate(machine, &machine->gpu[stream->gpu], index);
    sim_unlock_gpu(machine, stream->gpu);
    sim_wake(machine, &stream->wake);
}

const uint32_t *sim_stream_wake_word(struct sim_machine *machine, uint32_t stream) { return &machine->streams[stream].wake; }

int sim_event_open(struct sim_machine *machine, uint32_t process, uint32_t *out)
{
    sim_lock_table(machine);
    uint32_t place = SIM_NONE;
    for (uint32_t i = 0; i < SIM_EVENT_CHUNKS; i++) {
        const struct sim_event_chunk *chunk = &machine->event_chunks[i];
        if (chunk->process == process && chunk->used != UINT64_MAX) {
            place = i;
            break;
        }
        if (chunk->process == SIM_NONE && place == SIM_NONE)
            place = i;
    }
    if (place == SIM_NONE) {
        sim_unlock_table(machine);
        return SIM_TABLE_FULL;
    }
    struct sim_event_chunk *chunk = &machine->event_chunks[place];
    chunk->process = process;
    uint32_t bit = (uint32_t)__builtin_ctzll(~chunk->used); /* at most 63 */
    uint32_t index = place * SIM_EVENTS_PER_CHUNK + bit;
    /* Sequences go on where the last owner of the row stopped, so that records of his still in a stream mean nothing to the new one. */
    struct sim_event *event = &machine->events[index];
    event->done = event->recorded;
    event->gpu = event->stream = SIM_NONE;
    chunk->used |= UINT64_C(1) << bit;
    sim_unlock_table(machine);
    *out = index;
    return SIM_OK;
}

void sim_event_close(struct sim_machine *machine, uint32_t event)
{
    sim_lock_table(machine);
    struct sim_event_chunk *chunk = &machine->event_chunks[event / SIM_EVENTS_PER_CHUNK];
    chunk->used &= ~(UINT64_C(1) << (event % SIM_EVENTS_PER_CHUNK));
    if (!chunk->used)
        chunk->process = SIM_NONE;
    sim_unlock_table(machine);
}

int sim_event_done(struct sim_machine *machine, uint32_t index, uint64_t sequence, uint64_t *time_ns)
{
    struct sim_event *event = &machine->events[index];
    if (__atomic_load_n(&event->done, __ATOMIC_ACQUIRE) < sequence) { /* pairs with the record: the time is there */
        uint32_t stream = event->stream;
        if (stream < SIM_MAX_STREAMS && machine->streams[stream].state)
            sim_stream_idle(machine, stream); /* brings its GPU, and one it waits for, up to now */
    }
    if (__atomic_load_n(&event->done, __ATOMIC_ACQUIRE) < sequence)
        return 0;
    *time_ns = event->time_ns;
    return 1;
}

int sim_event_wait(struct sim_machine *machine, uint32_t index, uint64_t sequence)
{
    struct sim_event *event = &machine->events[index];
    uint64_t time;
    if (sim_event_done(machine, index, sequence, &time) || event->gpu >= machine->gpu_count)
        return SIM_OK;
    uint32_t gpu = event->gpu, stream = event->stream;
    sim_enter_gpu(machine, gpu);
    int status = SIM_OK;
    while (event->done < sequence) {
        if (machine->gpu[gpu].lost || machine->gpu[gpu].vanished) {
            status = SIM_GPU_GONE;
            break;
        }
        const struct sim_stream *row = &machine->streams[stream];
        uint64_t bound = 0; /* work in front of the record */
        uint64_t at = row->head;
        for (; at != row->tail; at++) {
            const struct sim_item *item = &machine->rings[stream][at % SIM_RING_ITEMS];
            if (item->kind == SIM_ITEM_EVENT_RECORD && item->a == index && item->b == sequence)
                break;
            bound += item->work;
        }
        if (at == row->tail)
            break; /* dropped with its stream: nothing will complete it */
        wait_for_work(machine, stream, bound);
    }
    sim_unlock_gpu(machine, gpu);
    return status;
}
