#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "files.h"
#include "guard.h"
#include "hypervisor_atomics.h"
#include "hypervisor_flip.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the futex word is the low half of the generation");

void *hv_map_file(int descriptor, uint64_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    return base == MAP_FAILED ? NULL : base;
}

void hv_unmap_file(void *base, uint64_t bytes)
{
    (void)munmap(base, bytes);
}

/* Where a section lies; the offset was checked for alignment and range. */
static void *at(const struct hv_shm_view *view, uint64_t offset)
{
    return (unsigned char *)view->base + offset;
}

static struct hv_state *state_of(const struct hv_shm_view *view)
{
    return at(view, view->state_offset);
}

static struct hv_device_control *control_of(const struct hv_shm_view *view, uint32_t device)
{
    return at(view, view->control_offset + device * view->control_stride);
}

/* Wakes all who wait, in any process: not the private form. */
static void wake(const uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static int guarded(const struct hv_shm_view *view, hv_guarded_body *body, void *call)
{
    return hv_guarded(view->base, view->file_bytes, body, call) ? 0 : -1;
}

struct limits_call {
    const struct hv_shm_view *view;
    const struct hv_limits *from;
    struct hv_limits *to;
    uint64_t *generation;
};

static bool fill_slot(void *context, uint64_t slot)
{
    const struct limits_call *call = context;
    memcpy(at(call->view, call->view->limits_offset + slot * call->view->limits_stride), call->from,
           sizeof *call->from);
    return true;
}

static void publish(void *context)
{
    const struct limits_call *call = context;
    struct hv_state *state = state_of(call->view);
    struct hv_flip_publish machine = {.generation = &state->generation, .at = HV_PUBLISH_LOAD};
    while (machine.at != HV_PUBLISH_DONE)
        hv_publish_step(&machine, fill_slot, context);
    *call->generation = machine.next;
    /* The low half of the word is the futex. */
    wake((const uint32_t *)(const void *)&state->generation);
}

int hv_shm_publish(const struct hv_shm_view *view, const struct hv_limits *limits, uint64_t *generation)
{
    struct limits_call call = {.view = view, .from = limits, .generation = generation};
    return guarded(view, publish, &call);
}

static void read_limits(void *context)
{
    const struct limits_call *call = context;
    /* This process is the only writer, so nothing moves meanwhile. */
    uint64_t now = hv_load_acquire(&state_of(call->view)->generation);
    memcpy(call->to, at(call->view, call->view->limits_offset + (now & 1) * call->view->limits_stride),
           sizeof *call->to);
    *call->generation = now;
}

int hv_shm_read_limits(const struct hv_shm_view *view, struct hv_limits *limits, uint64_t *generation)
{
    struct limits_call call = {.view = view, .to = limits, .generation = generation};
    return guarded(view, read_limits, &call);
}

struct copy_call {
    void *to;
    const void *from;
    size_t bytes;
};

static void copy(void *context)
{
    const struct copy_call *call = context;
    memcpy(call->to, call->from, call->bytes);
}

int hv_shm_read_state(const struct hv_shm_view *view, struct hv_state *state)
{
    struct copy_call call = {.to = state, .from = state_of(view), .bytes = sizeof *state};
    return guarded(view, copy, &call);
}

int hv_shm_read_control(const struct hv_shm_view *view, uint32_t device, struct hv_device_control *control)
{
    struct copy_call call = {.to = control, .from = control_of(view, device), .bytes = sizeof *control};
    return guarded(view, copy, &call);
}

struct words_call {
    uint64_t *first;
    uint64_t first_value;
    uint64_t *second; /* NULL: none */
    uint64_t second_value;
};

static void store_words(void *context)
{
    const struct words_call *call = context;
    if (call->second != NULL)
        hv_store_relaxed(call->second, call->second_value);
    /* Release: the second word belongs to the first. */
    hv_store_release(call->first, call->first_value);
}

int hv_shm_beat(const struct hv_shm_view *view, uint64_t now_ns, uint64_t pid)
{
    struct hv_state *state = state_of(view);
    struct words_call call = {&state->heartbeat_ns, now_ns, &state->daemon_pid, pid};
    return guarded(view, store_words, &call);
}

int hv_shm_control(const struct hv_shm_view *view, uint32_t device, uint32_t word, uint64_t value)
{
    /* The record is of 64-bit words, and place 8 of two halves. */
    uint64_t *words = (uint64_t *)(void *)control_of(view, device);
    struct words_call call = {.first = &words[word], .first_value = value};
    return guarded(view, store_words, &call);
}

struct flag_call {
    uint32_t *word;
    uint32_t value;
};

static void store_flag(void *context)
{
    const struct flag_call *call = context;
    /* Release: what the flag stands for was written before. */
    hv_store_release_32(call->word, call->value);
    wake(call->word);
}

int hv_shm_arm(const struct hv_shm_view *view)
{
    struct flag_call call = {&state_of(view)->armed, 1};
    return guarded(view, store_flag, &call);
}

int hv_shm_set_revoked(const struct hv_shm_view *view, uint32_t revoked)
{
    struct flag_call call = {&state_of(view)->revoked, revoked};
    return guarded(view, store_flag, &call);
}

int hv_shm_freeze(const struct hv_shm_view *view, uint32_t device, uint32_t frozen)
{
    struct flag_call call = {&control_of(view, device)->freeze, frozen};
    return guarded(view, store_flag, &call);
}
