/*
 * Whether this process is limited, and by which files. Decided once, at the first cu* or nvml* call; nothing before.
 */
#ifndef HV_ATTACH_H
#define HV_ATTACH_H

#include <stdbool.h>
#include <stdint.h>

#include "files.h"
#include "hypervisor_atomics.h"

enum hv_attach_state {
    HV_ATTACH_UNDECIDED = 0,
    HV_ATTACH_ABSENT,   /* no file and no variable: this library does nothing */
    HV_ATTACH_DONE,     /* limited */
    HV_ATTACH_REFUSED,  /* should be limited and can't be: nothing is granted */
};

extern uint32_t hv_attach_word; /* enum hv_attach_state */
extern const struct hv_files *hv_attached_files;

/* The state as it is, without deciding it. */
static inline enum hv_attach_state hv_attach_state(void)
{
    return (enum hv_attach_state)hv_load_acquire_32(&hv_attach_word);
}

/* Decides, which may wait for the files to be armed, up to a deadline. */
enum hv_attach_state hv_attach_decide(void);

static inline enum hv_attach_state hv_attach(void)
{
    enum hv_attach_state state = hv_attach_state();
    return __builtin_expect(state == HV_ATTACH_UNDECIDED, 0) ? hv_attach_decide() : state;
}

/* One more look after a refusal, without waiting: for a program that tries
 * cuInit again. */
enum hv_attach_state hv_attach_again(void);

/* false: neither file nor variable. Decides only that, and waits for nothing. */
bool hv_attach_is_wanted(void);

/* Not NULL in state HV_ATTACH_DONE. */
static inline const struct hv_files *hv_files(void)
{
    return hv_attached_files;
}

#endif
