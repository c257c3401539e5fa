/*
 * Included before every source of the library in the build with numbered crash
 * points: each atomic store of the library, by name or by the compiler's own
 * builtin, becomes two points, one before and one after it. The sources know
 * nothing of it. crash_sites.c has the list and the deaths.
 */
#ifndef HV_CRASH_SITES_H
#define HV_CRASH_SITES_H

#include "hypervisor_atomics.h"

struct hv_crash_site {
    const char *file;
    uint32_t line;
    uint32_t number; /* 0: not numbered yet; the same for all copies of an inline function */
};

/* Ends the process if this is the point that was chosen. */
void hv_crash_at(const struct hv_crash_site *site, uint32_t after);

/* All sites lie side by side in one section, so that nobody has to list them. */
#define HV_CRASH_SITE                                                                                                 \
    static struct hv_crash_site hv_site __attribute__((section("hv_crash_sites"), used)) = {__FILE__, __LINE__, 0}

#define HV_AT_STORE(store)                                                                                            \
    __extension__({                                                                                                   \
        HV_CRASH_SITE;                                                                                                \
        hv_crash_at(&hv_site, 0);                                                                                     \
        store;                                                                                                        \
        hv_crash_at(&hv_site, 1);                                                                                     \
    })

#define HV_AT_CHANGE(change)                                                                                          \
    __extension__({                                                                                                   \
        HV_CRASH_SITE;                                                                                                \
        hv_crash_at(&hv_site, 0);                                                                                     \
        __auto_type hv_before = change;                                                                               \
        hv_crash_at(&hv_site, 1);                                                                                     \
        hv_before;                                                                                                    \
    })

/* A macro's own name is not expanded again: inside, each is the function. */
#define hv_store_release(...) HV_AT_STORE(hv_store_release(__VA_ARGS__))
#define hv_store_relaxed(...) HV_AT_STORE(hv_store_relaxed(__VA_ARGS__))
#define hv_store_release_32(...) HV_AT_STORE(hv_store_release_32(__VA_ARGS__))
#define hv_store_relaxed_32(...) HV_AT_STORE(hv_store_relaxed_32(__VA_ARGS__))
#define hv_add_relaxed(...) HV_AT_CHANGE(hv_add_relaxed(__VA_ARGS__))
#define hv_sub_relaxed(...) HV_AT_CHANGE(hv_sub_relaxed(__VA_ARGS__))
#define hv_add_acq_rel(...) HV_AT_CHANGE(hv_add_acq_rel(__VA_ARGS__))
#define hv_sub_acq_rel(...) HV_AT_CHANGE(hv_sub_acq_rel(__VA_ARGS__))
#define hv_or_acq_rel(...) HV_AT_CHANGE(hv_or_acq_rel(__VA_ARGS__))
#define hv_and_acq_rel(...) HV_AT_CHANGE(hv_and_acq_rel(__VA_ARGS__))
#define hv_exchange_acq_rel(...) HV_AT_CHANGE(hv_exchange_acq_rel(__VA_ARGS__))
#define hv_add_acq_rel_32(...) HV_AT_CHANGE(hv_add_acq_rel_32(__VA_ARGS__))
#define hv_sub_acq_rel_32(...) HV_AT_CHANGE(hv_sub_acq_rel_32(__VA_ARGS__))
#define hv_cas_acq_rel(...) HV_AT_CHANGE(hv_cas_acq_rel(__VA_ARGS__))
#define hv_cas_relaxed(...) HV_AT_CHANGE(hv_cas_relaxed(__VA_ARGS__))
#define __atomic_store_n(...) HV_AT_STORE(__atomic_store_n(__VA_ARGS__))
#define __atomic_exchange_n(...) HV_AT_CHANGE(__atomic_exchange_n(__VA_ARGS__))
#define __atomic_fetch_add(...) HV_AT_CHANGE(__atomic_fetch_add(__VA_ARGS__))
#define __atomic_fetch_sub(...) HV_AT_CHANGE(__atomic_fetch_sub(__VA_ARGS__))
#define __atomic_compare_exchange_n(...) HV_AT_CHANGE(__atomic_compare_exchange_n(__VA_ARGS__))

#endif
