/*
 * The real driver: the address of each function that we wrap or call, and the
 * wrapper that stands for an address.
 */
#ifndef HV_DRIVER_H
#define HV_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "compiler.h"
#include "cuda_abi.h"
#include "nvml_abi.h"

enum hv_library { HV_LIBRARY_CUDA, HV_LIBRARY_NVML, HV_LIBRARY_COUNT };

enum hv_hook_id {
#define HV_HOOK(library, name) HV_HOOK_##name,
#include "hooks.def"
#undef HV_HOOK
    HV_HOOK_COUNT
};

enum hv_call_id {
#define HV_CALL(library, name, parameters) HV_CALL_##name,
#include "calls.def"
#undef HV_CALL
    HV_CALL_COUNT
};

#define HV_CALL(library, name, parameters) typedef int(*hv_call_type_##name) parameters;
#include "calls.def"
#undef HV_CALL

extern void *hv_hook_reals[HV_HOOK_COUNT];
extern void *hv_call_reals[HV_CALL_COUNT];

/* Find the library that has this function, if it is loaded by now, and all
 * that we want of it. Never NULL: where there is no such function, one that
 * only answers with an error. */
void *hv_driver_hook_slowly(enum hv_hook_id id);

static inline void *hv_driver_hook(enum hv_hook_id id)
{
    void *real = __atomic_load_n(&hv_hook_reals[id], __ATOMIC_RELAXED); /* a code address carries no data */
    return hv_likely(real != NULL) ? real : hv_driver_hook_slowly(id);
}

/* NULL: the driver does not have it. */
void *hv_driver_call(enum hv_call_id id);

/* The driver's own function with the type of our wrapper. */
#define HV_REAL(name) ((__typeof__(&hv_##name))hv_driver_hook(HV_HOOK_##name))
/* The same, NULL if it was not looked up yet: for paths that may not call. */
#define HV_REAL_IF_KNOWN(name)                                                                                        \
    ((__typeof__(&hv_##name))__atomic_load_n(&hv_hook_reals[HV_HOOK_##name], __ATOMIC_RELAXED))
/* One that we do not wrap; may be NULL. */
#define HV_DRIVER(name) ((hv_call_type_##name)hv_driver_call(HV_CALL_##name))

/* Define a wrapper: hv_NAME for us, NAME exported. The alias keeps our own
 * table from being bound to another library that exports the same name. */
#define HV_WRAP(name, parameters)                                                                                     \
    int hv_##name parameters;                                                                                         \
    HV_EXPORT int name parameters __attribute__((alias("hv_" #name)));                                                \
    int hv_##name parameters

/* HV_HOOK_COUNT: not one of ours. */
enum hv_hook_id hv_driver_hook_named(const char *name);
/* The wrapper of a hook. */
void *hv_driver_wrapper(enum hv_hook_id id);
/* The real function if its library is loaded and has it, else NULL. */
void *hv_driver_real(enum hv_hook_id id);
/* The wrapper that stands for this address of the driver, or the address. */
void *hv_driver_translate(void *address);
/* Does the address lie in the driver's libraries, or in ours? */
bool hv_driver_contains(const void *address);
bool hv_limiter_contains(const void *address);

#endif
