/*
 * The gate in front of each launch. The fast path is here: a launch that is
 * paid for touches the thread's own line, two words of the limit file that
 * seldom change, and the line of its function's cost. Everything else is the
 * slow path.
 */
#ifndef HV_PACING_H
#define HV_PACING_H

#include <stdbool.h>
#include <stdint.h>

#include "functions.h"
#include "hypervisor_atomics.h"
#include "sampler.h"
#include "thread.h"

enum hv_launch_kind { HV_LAUNCH_KERNEL = 0, HV_LAUNCH_GRAPH = HV_FUNCTION_GRAPH, HV_LAUNCH_COPY = HV_FUNCTION_COPY }; /* as in hv_learned_cost.kind */

struct hv_launch {
    const void *function;
    CUstream stream;
    uint64_t blocks;
    uint64_t threads_per_block;
    enum hv_launch_kind kind;
    bool per_thread; /* the stream's default is the thread's own */

    /* filled by the gate */
    struct hv_process *process;
    struct hv_sample *sample;
};

/* Streams of this process that are being captured. Not reset by a fork: too
 * high a number only leads to the slow path, which looks. */
extern uint32_t hv_captures;

enum hv_passage { HV_PASSAGE_SLOW, HV_PASSAGE_FREE, HV_PASSAGE_CHARGED };

/* How the next launch of this thread goes: freely, by its cost, or through the
 * slow path. Always inlined and calls nothing, so that a wrapper whose launches
 * are not limited is a few loads and a jump. */
static HV_ALWAYS_INLINE enum hv_passage hv_launch_passage(void)
{
    struct hv_thread *thread = &hv_thread;
    if (hv_unlikely(thread->launches_left == 0) ||
        hv_unlikely(hv_load_relaxed(thread->generation_word) != thread->generation) ||
        hv_unlikely(hv_load_relaxed_32(thread->freeze_word) != 0))
        return HV_PASSAGE_SLOW;
    if (thread->functions != NULL)
        return HV_PASSAGE_CHARGED;
    thread->launches_left--;
    return HV_PASSAGE_FREE;
}

/* Does the thread know that copies are not charged? Else the slow path looks. */
static HV_ALWAYS_INLINE bool hv_copies_are_free(void)
{
    const struct hv_thread *thread = &hv_thread;
    return thread->copies_are_free && hv_load_relaxed(thread->generation_word) == thread->generation;
}

/* After HV_PASSAGE_CHARGED: is the launch paid for already? */
static HV_ALWAYS_INLINE bool hv_launch_is_paid(const void *function, uint64_t blocks, uint64_t threads_per_block)
{
    struct hv_thread *thread = &hv_thread;
    uint64_t key = hv_function_key(function, blocks, threads_per_block, thread->device);
    struct hv_function *entry = hv_function_find(thread->functions, key);
    if (hv_unlikely(entry == NULL))
        return false;
    uint64_t cost = hv_load_relaxed(&entry->cost_ns);
    if (hv_unlikely(cost == 0 || cost > thread->credit_ns || hv_load_relaxed_32(&entry->is_long) != 0 ||
                    hv_load_relaxed_32(&hv_captures) != 0))
        return false;
    thread->credit_ns -= cost;
    thread->launches_left--;
    return true;
}

/* Wait until the launch may go and charge for it. Not CUDA_SUCCESS: to be
 * returned to the program instead of launching. */
CUresult hv_launch_begin(struct hv_launch *launch);

/* After the driver's answer, which is returned. */
CUresult hv_launch_end(struct hv_launch *launch, CUresult result);

/* Between the two, where something else was waited for meanwhile: now it goes to the driver. */
void hv_launch_ready(struct hv_launch *launch);

#endif
