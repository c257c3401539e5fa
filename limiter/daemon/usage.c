#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "guard.h"
#include "hypervisor_atomics.h"
#include "hypervisor_contexts.h"

#define HOST_ACCOUNT HV_MAX_DEVICES
#define RECOUNT_TRIES 64

static uint64_t phase_of(uint64_t state)
{
    return state & 0xff;
}

/* All of it or nothing; 1: the file ends before. */
static int read_at(int descriptor, void *to, size_t bytes, uint64_t offset)
{
    ssize_t got = pread(descriptor, to, bytes, (off_t)offset);
    if (got < 0)
        return -1;
    /* Cast: got is not negative. A regular file gives less only at its end. */
    return (size_t)got == bytes ? 0 : 1;
}

/* The state of a slot only grows: each phase is a larger number than the one
 * before, and the sequence above it grows when the slot is returned. */
static void follow(uint64_t *last, uint64_t state, uint32_t *backward)
{
    *backward += state < *last;
    *last = state;
}

/* The next stretch of the file that holds data, as far as it was looked for. */
struct stretch {
    uint64_t begin;
    uint64_t end;
};

/* A hole reads as zeros, so nobody needs to read it. Where the file system
 * does not say, everything is data. */
static bool in_a_hole(int descriptor, uint64_t offset, struct stretch *data)
{
    if (offset >= data->end) {
        off_t begin = lseek(descriptor, (off_t)offset, SEEK_DATA);
        off_t end = begin < 0 ? begin : lseek(descriptor, begin, SEEK_HOLE);
        if (end >= 0) /* casts: not negative */
            *data = (struct stretch){.begin = (uint64_t)begin, .end = (uint64_t)end};
        else
            *data = (struct stretch){.begin = begin < 0 && errno == ENXIO ? UINT64_MAX : offset, .end = UINT64_MAX};
    }
    return offset < data->begin;
}

int hv_usage_survey(int descriptor, const struct hv_usage_view *view, int full, uint64_t *states,
                    struct hv_usage_survey *survey)
{
    struct hv_slot_occupancy occupancy;
    struct stretch data = {0};
    survey->slot_count = 0;
    survey->hidden_count = 0;
    survey->backward_count = 0;
    for (uint32_t device = 0; device < HV_MAX_DEVICES; device++) {
        int result = read_at(descriptor, &survey->devices[device], sizeof survey->devices[device],
                             view->devices_offset + device * view->device_stride);
        if (result != 0)
            return result;
    }
    int result = read_at(descriptor, &occupancy, sizeof occupancy, view->occupancy_offset);
    for (uint32_t slot = 0; result == 0 && slot < HV_PROCESS_SLOTS; slot++) {
        uint64_t offset = view->slots_offset + slot * view->slot_stride;
        struct hv_process_slot *into = &survey->slots[survey->slot_count];
        struct hv_slot_contexts *contexts = &survey->contexts[survey->slot_count];
        if (occupancy.bits[slot / 64] >> (slot % 64) & 1) {
            memset(contexts, 0, sizeof *contexts);
            if (view->contexts_offset != 0)
                result = read_at(descriptor, contexts, sizeof *contexts,
                                 view->contexts_offset + slot * view->contexts_stride);
            if (result == 0)
                result = read_at(descriptor, into, sizeof *into, offset);
            if (result != 0)
                break;
            follow(&states[slot], into->state, &survey->backward_count);
            if (phase_of(into->state) != HV_SLOT_FREE)
                survey->slot_numbers[survey->slot_count++] = slot;
        } else if (states[slot] != 0 || (full && !in_a_hole(descriptor, offset, &data))) {
            uint64_t state;
            result = read_at(descriptor, &state, sizeof state, offset);
            if (result != 0)
                break;
            follow(&states[slot], state, &survey->backward_count);
            survey->hidden_count += phase_of(state) != HV_SLOT_FREE;
        }
    }
    return result;
}

/* The offsets and strides of the view were checked for alignment and range. */
static struct hv_process_slot *slot_at(void *base, const struct hv_usage_view *view, uint32_t slot)
{
    return (void *)((unsigned char *)base + view->slots_offset + slot * view->slot_stride);
}

static bool may_be_used(const void *base, const struct hv_usage_view *view, uint32_t slot)
{
    const struct hv_slot_occupancy *occupancy = (const void *)((const unsigned char *)base + view->occupancy_offset);
    return (hv_load_acquire(&occupancy->bits[slot / 64]) >> (slot % 64) & 1) != 0;
}

struct return_call {
    struct hv_process_slot *slot;
    uint64_t state;
    uint64_t owner;
    uint64_t self;
    volatile int result;
};

/* As the limiter does it: in CLAIMING the owner word is the lock, so whoever
 * swaps it from the dead owner to itself is the only one that may return the
 * slot, and a claimer that was merely stopped finds that it has lost. */
static void return_slot(void *context)
{
    struct return_call *call = context;
    uint64_t state = call->state;
    uint64_t owner = call->owner;
    if (hv_load_acquire(&call->slot->state) != state || hv_load_acquire(&call->slot->owner) != owner)
        return;
    if (phase_of(state) == HV_SLOT_CLAIMING && !hv_cas_acq_rel(&call->slot->owner, &owner, call->self))
        return;
    uint64_t returned = ((state >> 8) + 1) << 8 | HV_SLOT_FREE;
    call->result = hv_cas_acq_rel(&call->slot->state, &state, returned);
}

int hv_usage_return_slot(void *base, const struct hv_usage_view *view, uint32_t slot, uint64_t state, uint64_t owner,
                         uint64_t self)
{
    struct return_call call = {
        .slot = slot_at(base, view, slot), .state = state, .owner = owner, .self = self, .result = 0};
    return hv_guarded(base, view->file_bytes, return_slot, &call) ? call.result : -1;
}

struct tell_call {
    struct hv_process_slot *slot;
    uint64_t state;
    uint64_t host_pid;
};

/* A slot that moves on in between shows a wrong pid until the next round, and
 * its claimer clears the word. */
static void tell_host_pid(void *context)
{
    struct tell_call *call = context;
    if (hv_load_acquire(&call->slot->state) == call->state)
        hv_store_relaxed(&call->slot->host_pid, call->host_pid); /* only shown to people; orders nothing */
}

int hv_usage_tell_host_pid(void *base, const struct hv_usage_view *view, uint32_t slot, uint64_t state,
                           uint64_t host_pid)
{
    struct tell_call call = {.slot = slot_at(base, view, slot), .state = state, .host_pid = host_pid};
    return hv_guarded(base, view->file_bytes, tell_host_pid, &call) ? 0 : -1;
}

/* ---- stand-ins for contexts that were measured ---- */

static uint64_t *contexts_word(void *base, const struct hv_usage_view *view, uint32_t slot, uint32_t device)
{
    struct hv_slot_contexts *contexts =
        (void *)((unsigned char *)base + view->contexts_offset + slot * view->contexts_stride);
    return &contexts->words[device];
}

struct give_up_call {
    uint64_t *word;
    uint64_t seen;
    uint64_t bytes;
    volatile int result;
};

static void give_up(void *context)
{
    struct give_up_call *call = context;
    call->result = hv_contexts_give_up(call->word, call->seen, call->bytes);
}

int hv_usage_give_up(void *base, const struct hv_usage_view *view, uint32_t slot, uint32_t device, uint64_t seen,
                     uint64_t bytes)
{
    struct give_up_call call = {.seen = seen, .bytes = bytes};
    if (view->contexts_offset == 0)
        return 0;
    call.word = contexts_word(base, view, slot, device);
    return hv_guarded(base, view->file_bytes, give_up, &call) ? call.result : -1;
}

uint64_t hv_usage_given_up(uint64_t word, uint64_t state)
{
    return hv_contexts_given_up(word, state);
}

int hv_usage_can_give_up(uint64_t word, uint64_t state)
{
    return hv_contexts_can_be_given_up(word, state);
}

/* ---- recounting ---- */

struct recount_call {
    void *base;
    const struct hv_usage_view *view;
    uint32_t account;
    volatile int outcome;
    volatile uint64_t before;
    volatile uint64_t after;
};

static uint64_t *total_word(const struct recount_call *call)
{
    uint32_t device = call->account == HOST_ACCOUNT ? 0 : call->account;
    struct hv_device_usage *usage =
        (void *)((unsigned char *)call->base + call->view->devices_offset + device * call->view->device_stride);
    return call->account == HOST_ACCOUNT ? &usage->host_bytes : &usage->total;
}

/* in_flight, bytes, what was given up of them, and in_flight once more: of a
 * release that is under way, one of the two readings of in_flight sees it, or
 * bytes still does. An operation seen by both counts twice, which errs on the
 * high side. */
static uint64_t held_by(const struct recount_call *call, uint32_t index, uint64_t state, bool *quiet)
{
    struct hv_process_slot *slot = slot_at(call->base, call->view, index);
    bool host = call->account == HOST_ACCOUNT;
    uint64_t *bytes = host ? &slot->host_bytes : &slot->devices[call->account].bytes;
    uint64_t *in_flight = host ? &slot->host_in_flight_bytes : &slot->devices[call->account].in_flight_bytes;
    uint64_t first = hv_load_acquire(in_flight);
    uint64_t settled = hv_load_acquire(bytes);
    if (!host && call->view->contexts_offset != 0) {
        uint64_t *word = contexts_word(call->base, call->view, index, call->account);
        uint64_t given_up = hv_contexts_given_up(hv_load_acquire(word), state);
        settled = settled > given_up ? settled - given_up : 0;
    }
    uint64_t second = hv_load_acquire(in_flight);
    *quiet = *quiet && first == 0 && second == 0;
    return first + settled + second;
}

static bool recount_once(struct recount_call *call)
{
    uint64_t *total = total_word(call);
    uint64_t seen = hv_load_acquire(total);
    uint64_t bytes = seen & HV_TOTAL_BYTES_MASK;
    uint64_t sum = 0;
    bool quiet = true;
    for (uint32_t index = 0; index < HV_PROCESS_SLOTS; index++) {
        if (!may_be_used(call->base, call->view, index))
            continue;
        uint64_t state = hv_load_acquire(&slot_at(call->base, call->view, index)->state);
        if (phase_of(state) != HV_SLOT_LIVE)
            continue;
        uint64_t held = held_by(call, index, state, &quiet);
        /* Only scribbling makes this wrap: then the most there can be. */
        sum = held > HV_TOTAL_BYTES_MASK - sum ? HV_TOTAL_BYTES_MASK : sum + held;
    }
    call->before = bytes;
    call->after = bytes;
    call->outcome = HV_RECOUNT_WAS_RIGHT;
    /* With operations under way the sum may be too high, so it may only lower the total. */
    if (sum == bytes || (sum > bytes && !quiet))
        return true;
    uint64_t epoch = (seen >> HV_TOTAL_BYTES_BITS) + 1; /* the shift below drops the carry */
    if (!hv_cas_acq_rel(total, &seen, epoch << HV_TOTAL_BYTES_BITS | sum))
        return false;
    call->after = sum;
    call->outcome = HV_RECOUNT_CHANGED;
    return true;
}

static void recount(void *context)
{
    struct recount_call *call = context;
    for (int tries = 0; tries < RECOUNT_TRIES; tries++)
        if (recount_once(call))
            return;
    call->outcome = HV_RECOUNT_BUSY;
}

int hv_usage_recount(void *base, const struct hv_usage_view *view, uint32_t account, uint64_t *before, uint64_t *after)
{
    struct recount_call call = {.base = base, .view = view, .account = account, .outcome = HV_RECOUNT_WAS_RIGHT};
    if (!hv_guarded(base, view->file_bytes, recount, &call))
        return -1;
    *before = call.before;
    *after = call.after;
    return call.outcome;
}
