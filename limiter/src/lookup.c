/*
 * How programs find functions: dlsym, dlvsym and cuGetProcAddress. The driver
 * is asked first and the address that it gives is translated, so that version,
 * flags and status are the driver's own (reference: the same name stands for
 * other functions at other versions).
 *
 * dlsym and dlvsym are jumps (lookup_entry.S): a name that is none of ours is
 * passed on to the C library with the caller's return address still on the
 * stack, because RTLD_NEXT goes by it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "attach.h"
#include "driver.h"
#include "elf_symbols.h"
#include "thread.h"

/* In registers, to lookup_entry.S. */
struct hv_lookup_answer {
    void *pointer;  /* the answer, or where to jump */
    uint64_t final; /* 0: jump */
};

typedef void *dlsym_type(void *handle, const char *name);
typedef void *dlvsym_type(void *handle, const char *name, const char *version);

static void *real_dlsym;
static void *real_dlvsym;

static void *real_lookup(void **place, const char *name)
{
    void *real = __atomic_load_n(place, __ATOMIC_RELAXED); /* a code address carries no data */
    if (real == NULL) {
        real = hv_c_library_symbol(name);
        __atomic_store_n(place, real, __ATOMIC_RELAXED);
    }
    return real;
}

static bool may_be_driver_name(const char *name)
{
    return name != NULL && ((name[0] == 'c' && name[1] == 'u') ||
                            (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l'));
}

/* The answer to a lookup through the global scope, where our own exports come
 * first: a wrapper if a loaded driver has the function, else what would be
 * there without us. */
static struct hv_lookup_answer global_answer(void *handle, const char *name, enum hv_hook_id id)
{
    void *real = hv_driver_real(id);
    if (real != NULL)
        return (struct hv_lookup_answer){hv_attach_is_wanted() ? hv_driver_wrapper(id) : real, 1};
    dlsym_type *next = (dlsym_type *)real_lookup(&real_dlsym, "dlsym");
    if (handle == RTLD_NEXT)
        return (struct hv_lookup_answer){(void *)next, 0};
    return (struct hv_lookup_answer){next(RTLD_NEXT, name), 1};
}

/* In lookup_entry.c. */
extern __attribute__((visibility("hidden"))) char hv_own_dlsym[], hv_own_dlvsym[];

/* Of ours, for who asks the C library for its own: another library between a
 * program and dlsym does, by dlvsym or by the C library's handle, and passes
 * the program's lookups on to what it got. NULL: the name is another. */
static void *own_lookup(const char *name)
{
    if (name == NULL || name[0] != 'd' || name[1] != 'l')
        return NULL;
    return strcmp(name, "dlsym") == 0 ? hv_own_dlsym : strcmp(name, "dlvsym") == 0 ? hv_own_dlvsym : NULL;
}

static struct hv_lookup_answer lookup_answer(void *handle, const char *name, const char *version, void *own,
                                             void *forward)
{
    struct hv_lookup_answer pass = {forward, 0};
    if (handle == RTLD_NEXT) /* goes by the caller; what has the C library's version is the C library's */
        return version != NULL && strncmp(version, "GLIBC_", 6) == 0 ? (struct hv_lookup_answer){own, 1} : pass;
    void *found = version == NULL ? ((dlsym_type *)forward)(handle, name)
                                  : ((dlvsym_type *)forward)(handle, name, version);
    bool is_c_library = found != NULL && (found == real_lookup(&real_dlsym, "dlsym") ||
                                          found == real_lookup(&real_dlvsym, "dlvsym"));
    return is_c_library ? (struct hv_lookup_answer){own, 1} : pass; /* asked once more, for dlerror's sake */
}

static struct hv_lookup_answer decide(void *handle, const char *name, const char *version, void *caller, void *forward)
{
    struct hv_lookup_answer pass = {forward, 0};
    void *own = own_lookup(name);
    if (hv_unlikely(own != NULL) && hv_thread.in_lookup == 0 && !hv_driver_contains(caller))
        return lookup_answer(handle, name, version, own, forward);
    if (!may_be_driver_name(name) || hv_thread.in_lookup != 0)
        return pass;
    enum hv_hook_id id = hv_driver_hook_named(name);
    if (id == HV_HOOK_COUNT || hv_driver_contains(caller))
        return pass; /* the driver itself gets its own functions */
    if ((handle == RTLD_DEFAULT || handle == RTLD_NEXT) && version == NULL)
        return global_answer(handle, name, id);
    void *found = version == NULL ? ((dlsym_type *)forward)(handle, name)
                                  : ((dlvsym_type *)forward)(handle, name, version);
    if (found == NULL)
        return (struct hv_lookup_answer){NULL, 1};
    if (hv_limiter_contains(found))
        return global_answer(RTLD_DEFAULT, name, id);
    return (struct hv_lookup_answer){hv_attach_is_wanted() ? hv_driver_translate(found) : found, 1};
}

struct hv_lookup_answer hv_decide_dlsym(void *handle, const char *name, const char *unused, void *caller);
struct hv_lookup_answer hv_decide_dlvsym(void *handle, const char *name, const char *version, void *caller);

struct hv_lookup_answer hv_decide_dlsym(void *handle, const char *name, const char *unused, void *caller)
{
    (void)unused; /* the third register, whatever it holds */
    return decide(handle, name, NULL, caller, real_lookup(&real_dlsym, "dlsym"));
}

struct hv_lookup_answer hv_decide_dlvsym(void *handle, const char *name, const char *version, void *caller)
{
    return decide(handle, name, version, caller, real_lookup(&real_dlvsym, "dlvsym"));
}

/* ---- cuGetProcAddress ---- */

/* Tells whether the driver wrote to the place that it was given: on some
 * answers it does not, and then neither do we. */
static char untouched;

static void *begin_lookup(void)
{
    hv_thread.in_lookup++;
    return &untouched;
}

static int end_lookup(int result, void *found, void **function)
{
    hv_thread.in_lookup--;
    if (found != (void *)&untouched)
        *function = hv_attach_is_wanted() ? hv_driver_translate(found) : found;
    return result;
}

HV_WRAP(cuGetProcAddress, (const char *symbol, void **function, int version, uint64_t flags))
{
    if (function == NULL)
        return HV_REAL(cuGetProcAddress)(symbol, NULL, version, flags);
    void *found = begin_lookup();
    int result = HV_REAL(cuGetProcAddress)(symbol, &found, version, flags);
    return end_lookup(result, found, function);
}

HV_WRAP(cuGetProcAddress_v2, (const char *symbol, void **function, int version, uint64_t flags, int *status))
{
    if (function == NULL)
        return HV_REAL(cuGetProcAddress_v2)(symbol, NULL, version, flags, status);
    void *found = begin_lookup();
    int result = HV_REAL(cuGetProcAddress_v2)(symbol, &found, version, flags, status);
    return end_lookup(result, found, function);
}

/* The form that programs with per-thread default streams get. */
HV_WRAP(cuGetProcAddress_v2_ptsz, (const char *symbol, void **function, int version, uint64_t flags, int *status))
{
    if (function == NULL)
        return HV_REAL(cuGetProcAddress_v2_ptsz)(symbol, NULL, version, flags, status);
    void *found = begin_lookup();
    int result = HV_REAL(cuGetProcAddress_v2_ptsz)(symbol, &found, version, flags, status);
    return end_lookup(result, found, function);
}
