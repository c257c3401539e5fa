#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <string.h>

#include "elf_symbols.h"

/* ---- the table of hooks ---- */

#define HV_HOOK(library, name) int hv_##name(void);
/* Declared without their parameters here: the table only wants addresses. */
#pragma GCC diagnostic push
#include "hooks.def"
#pragma GCC diagnostic pop
#undef HV_HOOK

struct row {
    const char *name;
    void *wrapper;
    enum hv_library library;
};

static const struct row hooks[HV_HOOK_COUNT] = {
#define HV_HOOK(library, name) {#name, (void *)hv_##name, HV_LIBRARY_##library},
#include "hooks.def"
#undef HV_HOOK
};

static const struct row calls[HV_CALL_COUNT] = {
#define HV_CALL(library, name, parameters) {#name, NULL, HV_LIBRARY_##library},
#include "calls.def"
#undef HV_CALL
};

void *hv_hook_reals[HV_HOOK_COUNT];
void *hv_call_reals[HV_CALL_COUNT];

/* ---- the libraries ---- */

static const char *const sonames[HV_LIBRARY_COUNT] = {"libcuda.so", "libnvidia-ml.so"};

/* Segments of a library, once it was seen. Written by any thread that sees it
 * first, always with the same values, `ready` last. */
static struct {
    uintptr_t start;
    uintptr_t end;
    uint32_t ready;
} ranges[HV_LIBRARY_COUNT];

static bool in_library(enum hv_library library, uintptr_t address)
{
    return __atomic_load_n(&ranges[library].ready, __ATOMIC_ACQUIRE) != 0 &&
           address >= __atomic_load_n(&ranges[library].start, __ATOMIC_RELAXED) &&
           address < __atomic_load_n(&ranges[library].end, __ATOMIC_RELAXED);
}

static void store(void **place, void *value)
{
    __atomic_store_n(place, value, __ATOMIC_RELAXED); /* a code address carries no data */
}

typedef void *dlopen_type(const char *path, int flags);

/* Its addresses are in our tables from now on, so it has to stay. dlopen is
 * looked up, because its version differs between C libraries. */
static bool pin_library(const struct hv_module *module)
{
    dlopen_type *open_library = (dlopen_type *)hv_c_library_symbol("dlopen");
    return open_library != NULL && open_library(module->path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) != NULL;
}

/* False if it is not loaded. */
static bool find_library(enum hv_library library)
{
    if (__atomic_load_n(&ranges[library].ready, __ATOMIC_ACQUIRE) != 0)
        return true;
    struct hv_module module;
    if (!hv_module_named(sonames[library], &module) || !pin_library(&module))
        return false;
    for (uint32_t id = 0; id < HV_HOOK_COUNT; id++)
        if (hooks[id].library == library)
            store(&hv_hook_reals[id], hv_module_symbol(&module, hooks[id].name));
    for (uint32_t id = 0; id < HV_CALL_COUNT; id++)
        if (calls[id].library == library)
            store(&hv_call_reals[id], hv_module_symbol(&module, calls[id].name));
    __atomic_store_n(&ranges[library].start, module.start, __ATOMIC_RELAXED);
    __atomic_store_n(&ranges[library].end, module.end, __ATOMIC_RELAXED);
    __atomic_store_n(&ranges[library].ready, 1, __ATOMIC_RELEASE);
    return true;
}

/* What a wrapper calls where there is no driver: a program that was linked to
 * it weakly, say. */
static int no_cuda(void)
{
    return CUDA_ERROR_NO_DEVICE;
}

static int no_nvml(void)
{
    return NVML_ERROR_LIBRARY_NOT_FOUND;
}

void *hv_driver_real(enum hv_hook_id id)
{
    return find_library(hooks[id].library) ? __atomic_load_n(&hv_hook_reals[id], __ATOMIC_RELAXED) : NULL;
}

HV_NOINLINE void *hv_driver_hook_slowly(enum hv_hook_id id)
{
    void *real = hv_driver_real(id);
    if (real != NULL)
        return real;
    return hooks[id].library == HV_LIBRARY_CUDA ? (void *)no_cuda : (void *)no_nvml;
}

void *hv_driver_call(enum hv_call_id id)
{
    void *real = __atomic_load_n(&hv_call_reals[id], __ATOMIC_RELAXED);
    if (hv_likely(real != NULL))
        return real;
    return find_library(calls[id].library) ? __atomic_load_n(&hv_call_reals[id], __ATOMIC_RELAXED) : NULL;
}

enum hv_hook_id hv_driver_hook_named(const char *name)
{
    uint32_t id = 0;
    while (id < HV_HOOK_COUNT && strcmp(hooks[id].name, name) != 0)
        id++;
    return (enum hv_hook_id)id;
}

void *hv_driver_wrapper(enum hv_hook_id id)
{
    return hooks[id].wrapper;
}

void *hv_driver_translate(void *address)
{
    if (address == NULL || !hv_driver_contains(address))
        return address;
    for (uint32_t id = 0; id < HV_HOOK_COUNT; id++)
        if (__atomic_load_n(&hv_hook_reals[id], __ATOMIC_RELAXED) == address)
            return hooks[id].wrapper;
    return address;
}

bool hv_driver_contains(const void *address)
{
    for (uint32_t library = 0; library < HV_LIBRARY_COUNT; library++)
        if (find_library(library) && in_library(library, (uintptr_t)address))
            return true;
    return false;
}

bool hv_limiter_contains(const void *address)
{
    struct hv_module ours;
    return hv_module_containing((const void *)hooks, &ours) && (uintptr_t)address >= ours.start &&
           (uintptr_t)address < ours.end;
}
