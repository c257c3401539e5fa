/* A set of states that were seen, for tests that explore all interleavings of
 * step machines. A state is remembered by 64 bits of hash: with some millions
 * of states the chance that two fall together is below one in a million. */
#ifndef HV_STATE_SET_H
#define HV_STATE_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct state_set {
    uint64_t *hashes;
    size_t capacity; /* a power of two */
    size_t count;
};

static inline uint64_t state_hash(const void *state, size_t bytes)
{
    const unsigned char *byte = state;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ byte[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash == 0 ? 1 : hash;
}

static inline bool state_set_place(struct state_set *set, uint64_t hash)
{
    size_t index = hash & (set->capacity - 1);
    while (set->hashes[index] != 0 && set->hashes[index] != hash)
        index = (index + 1) & (set->capacity - 1);
    if (set->hashes[index] == hash)
        return false;
    set->hashes[index] = hash;
    set->count++;
    return true;
}

/* true: it was not there. */
static inline bool state_set_add(struct state_set *set, const void *state, size_t bytes)
{
    if (set->count * 2 >= set->capacity) {
        struct state_set larger = {.capacity = set->capacity == 0 ? 1 << 16 : set->capacity * 2};
        larger.hashes = calloc(larger.capacity, sizeof *larger.hashes);
        if (larger.hashes == NULL) {
            fprintf(stderr, "no memory for %zu states\n", larger.capacity);
            exit(2);
        }
        for (size_t i = 0; i < set->capacity; i++)
            if (set->hashes[i] != 0)
                state_set_place(&larger, set->hashes[i]);
        free(set->hashes);
        *set = larger;
    }
    return state_set_place(set, state_hash(state, bytes));
}

#endif
