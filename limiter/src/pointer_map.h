/*
 * What each pointer or handle of the driver stands for: O(1), in shards with a
 * lock each, so that threads seldom meet. All of it lies in pages that are
 * zero again in the child of a fork, where it is an empty, unlocked map.
 */
#ifndef HV_POINTER_MAP_H
#define HV_POINTER_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "compiler.h"

#define HV_POINTER_SHARDS 8

enum hv_pointer_kind {
    HV_POINTER_MEMORY = 0,        /* device memory; a record */
    HV_POINTER_HOST = 1,          /* pinned host memory; a record */
    HV_POINTER_ARRAY = 2,         /* array or mipmapped array; a record */
    HV_POINTER_PHYSICAL = 3,      /* physical handle; a record with references */
    HV_POINTER_MAPPING = 4,       /* start of a mapped range; a record of its bytes */
    HV_POINTER_MAPPED_HANDLE = 5, /* start of a mapped range; its physical handle */
    HV_POINTER_CONTEXT = 6,       /* a context; a record with its device's ordinal */
    HV_POINTER_POOL = 7,          /* a memory pool; a record with its device's ordinal */
    HV_POINTER_GRAPH = 8,         /* an executable graph with allocation nodes; what they take (graph_memory.h) */
    HV_POINTER_HOST_PHYSICAL = 9, /* physical handle of host memory; a record with references */
    HV_POINTER_BODY = 10,         /* memory that has several handles, by a number of ours (bodies.h); a record */
    HV_POINTER_BODY_OF = 11,      /* physical handle; the number of its body */
    HV_POINTER_EXPORTED = 12,     /* descriptor; the body that it was given out for */
    HV_POINTER_EXPORTED_BYTES = 13, /* descriptor; a record of that body's bytes */
    HV_POINTER_ENDING = 14,       /* start of a range whose unmapping is under way; the record of its handle */
    HV_POINTER_KINDS_END = 15,    /* a key has room for so many */
};

#define HV_RECORD_BYTES_BITS 44 /* as in the ledger */
#define HV_RECORD_DEVICE_BITS 6
#define HV_RECORD_REFERENCE_BITS 14

struct hv_pointer_record {
    uint64_t bytes;
    uint32_t device;     /* index in hv_limits.devices, or an ordinal */
    uint32_t references; /* of physical handles; stays at its largest value once there. Of memory and arrays: the
                          * generation of the device's contexts when the record was entered, as far as it fits */
};

uint64_t hv_record_pack(const struct hv_pointer_record *record);
struct hv_pointer_record hv_record_unpack(uint64_t value);

struct hv_pointer_entry {
    uint64_t key; /* kind and pointer; 0: nothing here */
    uint64_t value;
};

/* A cache line each, and at the start of one: shards that share a line would
 * be shared by the threads that they are meant to keep apart. */
struct hv_pointer_shard {
    uint32_t lock;
    uint32_t capacity_log2;
    uint64_t count;
    struct hv_pointer_entry *entries; /* NULL: no table yet */
} __attribute__((aligned(HV_CACHE_LINE)));

/* Maps lie side by side, each for threads of its own. */
struct hv_pointer_map {
    struct hv_pointer_shard shards[HV_POINTER_SHARDS];
} __attribute__((aligned(HV_CACHE_LINES_FETCHED)));

/* Enter or replace; false: no memory for the table. */
bool hv_pointer_put(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer, uint64_t value);

/* The same; *replaced is what stood there, 0: nothing. */
bool hv_pointer_replace(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer, uint64_t value,
                        uint64_t *replaced);

/* Look without taking; false if there is no entry. */
bool hv_pointer_get(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer, uint64_t *value);

/* Take the entry out; false if there is none. */
bool hv_pointer_take(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer, uint64_t *value);

/* The same, only if that is still what stands there. */
bool hv_pointer_take_if(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer, uint64_t value);

/* Was memory or an array entered before this generation? One that is so old
 * that it looks new again was not: too much is counted then, and not too little. */
bool hv_record_is_before(const struct hv_pointer_record *record, uint32_t generation);

/* Take out the device memory and arrays of a device that are of generations
 * before this one: their driver objects are gone. What other threads entered
 * since is not. Returns the sum of their bytes. */
uint64_t hv_pointer_purge(struct hv_pointer_map *map, uint32_t device, uint32_t generation);

/* Some pointers of this kind, whose records are of the device, so many at most, from *cursor on, which
 * is 0 at first. Returns how many; 0: that was all. One that is taken out meanwhile
 * does not hide another. */
uint32_t hv_pointer_list(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint32_t device, uint64_t *cursor,
                         uint64_t *pointers, uint32_t most);

/* Add to the count of references of a record; false if there is no entry. */
bool hv_pointer_refer(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer);

/* Take one reference away; true when it was the last one and the entry, put in
 * *record, is gone. */
bool hv_pointer_unrefer(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer,
                        struct hv_pointer_record *record);

#endif
