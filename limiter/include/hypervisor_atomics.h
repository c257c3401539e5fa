/*
 * Atomic accesses to the words of the limit files, named by their memory
 * order, so that no call leaves the order to be guessed. Shared by the limiter
 * and by the daemon's cffi module: both sides use the same order.
 *
 * The structs hold plain integers, because cffi and the file layout want them
 * plain; every word that another process may write is read and written through
 * these functions only. 64-bit words are lock-free on x86-64 and arm64, which
 * is asserted: a lock inside a library would not work between processes.
 */
#ifndef HYPERVISOR_ATOMICS_H
#define HYPERVISOR_ATOMICS_H

#include <stdbool.h>
#include <stdint.h>

_Static_assert(__atomic_always_lock_free(8, 0), "64-bit atomics need a lock here");
_Static_assert(__atomic_always_lock_free(4, 0), "32-bit atomics need a lock here");

static inline uint64_t hv_load_acquire(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline uint64_t hv_load_relaxed(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline uint32_t hv_load_acquire_32(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline uint32_t hv_load_relaxed_32(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

static inline void hv_store_release(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
static inline void hv_store_relaxed(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
static inline void hv_store_release_32(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
static inline void hv_store_relaxed_32(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

/* Each returns the value before. */
static inline uint64_t hv_add_relaxed(uint64_t *word, uint64_t value) { return __atomic_fetch_add(word, value, __ATOMIC_RELAXED); }
static inline uint64_t hv_sub_relaxed(uint64_t *word, uint64_t value) { return __atomic_fetch_sub(word, value, __ATOMIC_RELAXED); }
static inline uint64_t hv_add_acq_rel(uint64_t *word, uint64_t value) { return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL); }
static inline uint64_t hv_sub_acq_rel(uint64_t *word, uint64_t value) { return __atomic_fetch_sub(word, value, __ATOMIC_ACQ_REL); }
static inline uint64_t hv_or_acq_rel(uint64_t *word, uint64_t bits) { return __atomic_fetch_or(word, bits, __ATOMIC_ACQ_REL); }
static inline uint64_t hv_and_acq_rel(uint64_t *word, uint64_t bits) { return __atomic_fetch_and(word, bits, __ATOMIC_ACQ_REL); }
static inline uint64_t hv_exchange_acq_rel(uint64_t *word, uint64_t value) { return __atomic_exchange_n(word, value, __ATOMIC_ACQ_REL); }
static inline uint32_t hv_add_acq_rel_32(uint32_t *word, uint32_t value) { return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL); }
static inline uint32_t hv_sub_acq_rel_32(uint32_t *word, uint32_t value) { return __atomic_fetch_sub(word, value, __ATOMIC_ACQ_REL); }

/* On failure *expected becomes the value found. */
static inline bool hv_cas_acq_rel(uint64_t *word, uint64_t *expected, uint64_t desired)
{
    return __atomic_compare_exchange_n(word, expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* For a bucket word that carries no other data with it. */
static inline bool hv_cas_relaxed(uint64_t *word, uint64_t *expected, uint64_t desired)
{
    return __atomic_compare_exchange_n(word, expected, desired, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static inline void hv_fence_acquire(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
static inline void hv_fence_release(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }

#endif
