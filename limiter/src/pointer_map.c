#include "pointer_map.h"

#include <stddef.h>

#include "hypervisor_atomics.h"
#include "os.h"

#define FIRST_CAPACITY_LOG2 8
#define SPINS_BEFORE_YIELD 64

#define MOST_REFERENCES ((UINT32_C(1) << HV_RECORD_REFERENCE_BITS) - 1)

#define CURSOR_SHARD_AT 60
#define CURSOR_SEEN_MASK ((UINT64_C(1) << CURSOR_SHARD_AT) - 1)

_Static_assert(HV_RECORD_BYTES_BITS + HV_RECORD_DEVICE_BITS + HV_RECORD_REFERENCE_BITS == 64, "a record is one word");
_Static_assert(HV_POINTER_SHARDS == 8, "three bits of the hash choose one");
_Static_assert(sizeof(struct hv_pointer_shard) == HV_CACHE_LINE, "a shard is one cache line");

uint64_t hv_record_pack(const struct hv_pointer_record *record)
{
    return record->bytes | (uint64_t)record->device << HV_RECORD_BYTES_BITS |
           (uint64_t)(record->references & MOST_REFERENCES) << (HV_RECORD_BYTES_BITS + HV_RECORD_DEVICE_BITS);
}

struct hv_pointer_record hv_record_unpack(uint64_t value)
{
    return (struct hv_pointer_record){
        .bytes = value & ((UINT64_C(1) << HV_RECORD_BYTES_BITS) - 1),
        .device = (uint32_t)(value >> HV_RECORD_BYTES_BITS & ((1u << HV_RECORD_DEVICE_BITS) - 1)),
        .references = (uint32_t)(value >> (HV_RECORD_BYTES_BITS + HV_RECORD_DEVICE_BITS)),
    };
}

/* Pointers of one kind differ from those of another even where the driver
 * gives both the same number: user addresses leave the top bits free. */
_Static_assert(HV_POINTER_KINDS_END < 1 << 4, "the top bits hold the kind");

static uint64_t key_of(enum hv_pointer_kind kind, uint64_t pointer)
{
    return pointer ^ (uint64_t)(kind + 1) << 60;
}

static uint64_t hash_of(uint64_t key)
{
    key ^= key >> 32;
    key *= UINT64_C(0x9e3779b97f4a7c15); /* 2^64 over the golden ratio */
    key ^= key >> 29;
    key *= UINT64_C(0xbf58476d1ce4e5b9);
    return key ^ key >> 32;
}

static void lock(struct hv_pointer_shard *shard)
{
    uint32_t spins = 0;
    while (__atomic_exchange_n(&shard->lock, 1, __ATOMIC_ACQUIRE) != 0)
        while (hv_load_relaxed_32(&shard->lock) != 0)
            if (++spins % SPINS_BEFORE_YIELD == 0)
                hv_os_yield();
}

static void unlock(struct hv_pointer_shard *shard)
{
    hv_store_release_32(&shard->lock, 0);
}

/* By all of the pointer: threads that are given neighbouring addresses in turn
 * must not meet in one shard. */
static struct hv_pointer_shard *shard_of(struct hv_pointer_map *map, uint64_t hash)
{
    return &map->shards[hash >> 61]; /* the table uses the low bits */
}

static size_t table_bytes(uint32_t capacity_log2)
{
    return sizeof(struct hv_pointer_entry) << capacity_log2;
}

/* The entry of this key, or the free one where it would go. There is always a
 * free one: the table is kept less than three quarters full. */
static struct hv_pointer_entry *find(const struct hv_pointer_shard *shard, uint64_t key, uint64_t hash)
{
    uint64_t mask = (UINT64_C(1) << shard->capacity_log2) - 1;
    uint64_t index = hash & mask;
    while (shard->entries[index].key != 0 && shard->entries[index].key != key)
        index = (index + 1) & mask;
    return &shard->entries[index];
}

static bool make_room(struct hv_pointer_shard *shard)
{
    if (shard->entries != NULL && shard->count + 1 <= (UINT64_C(3) << shard->capacity_log2) / 4)
        return true;
    struct hv_pointer_shard larger = *shard;
    larger.capacity_log2 = shard->entries == NULL ? FIRST_CAPACITY_LOG2 : shard->capacity_log2 + 1;
    larger.entries = hv_os_pages_not_inherited(table_bytes(larger.capacity_log2));
    if (larger.entries == NULL)
        return false;
    if (shard->entries != NULL) {
        for (uint64_t index = 0; index < UINT64_C(1) << shard->capacity_log2; index++) {
            uint64_t key = shard->entries[index].key;
            if (key != 0)
                *find(&larger, key, hash_of(key)) = shard->entries[index];
        }
        hv_os_free_pages(shard->entries, table_bytes(shard->capacity_log2));
    }
    shard->entries = larger.entries;
    shard->capacity_log2 = larger.capacity_log2;
    return true;
}

/* Close the gap, so that no search stops too early. */
static void remove_entry(struct hv_pointer_shard *shard, struct hv_pointer_entry *entry)
{
    uint64_t mask = (UINT64_C(1) << shard->capacity_log2) - 1;
    uint64_t gap = (uint64_t)(entry - shard->entries);
    uint64_t index = gap;
    for (;;) {
        index = (index + 1) & mask;
        uint64_t key = shard->entries[index].key;
        if (key == 0)
            break;
        uint64_t home = hash_of(key) & mask;
        /* May move to the gap unless its home lies after the gap. */
        if (((index - home) & mask) >= ((index - gap) & mask)) {
            shard->entries[gap] = shard->entries[index];
            gap = index;
        }
    }
    shard->entries[gap] = (struct hv_pointer_entry){0};
    shard->count--;
}

/* A locked shard and where in it the key is, or would go. */
struct place {
    struct hv_pointer_shard *shard;
    struct hv_pointer_entry *entry; /* NULL: there is no table */
    bool found;
};

static struct place enter(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer, bool to_add)
{
    uint64_t key = key_of(kind, pointer);
    uint64_t hash = hash_of(key);
    struct place place = {.shard = shard_of(map, hash)};
    lock(place.shard);
    if (to_add && !make_room(place.shard))
        return place;
    if (place.shard->entries != NULL) {
        place.entry = find(place.shard, key, hash);
        place.found = place.entry->key == key;
    }
    return place;
}

bool hv_pointer_put(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer, uint64_t value)
{
    uint64_t replaced;
    return hv_pointer_replace(map, kind, pointer, value, &replaced);
}

bool hv_pointer_replace(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer, uint64_t value,
                        uint64_t *replaced)
{
    struct place place = enter(map, kind, pointer, true);
    *replaced = place.found ? place.entry->value : 0;
    if (place.entry != NULL) {
        place.shard->count += !place.found;
        *place.entry = (struct hv_pointer_entry){.key = key_of(kind, pointer), .value = value};
    }
    unlock(place.shard);
    return place.entry != NULL;
}

bool hv_pointer_get(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer, uint64_t *value)
{
    struct place place = enter(map, kind, pointer, false);
    if (place.found)
        *value = place.entry->value;
    unlock(place.shard);
    return place.found;
}

bool hv_pointer_take(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer, uint64_t *value)
{
    struct place place = enter(map, kind, pointer, false);
    if (place.found) {
        *value = place.entry->value;
        remove_entry(place.shard, place.entry);
    }
    unlock(place.shard);
    return place.found;
}

bool hv_pointer_take_if(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer, uint64_t value)
{
    struct place place = enter(map, kind, pointer, false);
    bool taken = place.found && place.entry->value == value;
    if (taken)
        remove_entry(place.shard, place.entry);
    unlock(place.shard);
    return taken;
}

bool hv_record_is_before(const struct hv_pointer_record *record, uint32_t generation)
{
    uint64_t age = (generation - record->references) & MOST_REFERENCES;
    return age != 0 && age <= MOST_REFERENCES / 2;
}

static bool goes_with_its_context(uint64_t key, uint64_t value, uint32_t device, uint32_t generation)
{
    uint64_t kind = (key >> 60) - 1;
    if (kind != HV_POINTER_MEMORY && kind != HV_POINTER_ARRAY)
        return false;
    struct hv_pointer_record record = hv_record_unpack(value);
    return record.device == device && hv_record_is_before(&record, generation);
}

uint64_t hv_pointer_purge(struct hv_pointer_map *map, uint32_t device, uint32_t generation)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < HV_POINTER_SHARDS; i++) {
        struct hv_pointer_shard *shard = &map->shards[i];
        lock(shard);
        uint64_t index = 0;
        while (shard->entries != NULL && index < UINT64_C(1) << shard->capacity_log2) {
            struct hv_pointer_entry *entry = &shard->entries[index];
            if (entry->key != 0 && goes_with_its_context(entry->key, entry->value, device, generation)) {
                bytes += hv_record_unpack(entry->value).bytes;
                remove_entry(shard, entry); /* may move another one here: look again */
            } else {
                index++;
            }
        }
        unlock(shard);
    }
    return bytes;
}

/* From the end of each table: closing a gap moves entries towards its start. */
uint32_t hv_pointer_list(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint32_t device, uint64_t *cursor,
                         uint64_t *pointers, uint32_t most)
{
    uint32_t found = 0;
    uint64_t shard_at = *cursor >> CURSOR_SHARD_AT;        /* where it goes on */
    uint64_t seen = *cursor & CURSOR_SEEN_MASK;            /* of its entries, from the end */
    for (; shard_at < HV_POINTER_SHARDS && found < most; shard_at++, seen = 0) {
        struct hv_pointer_shard *shard = &map->shards[shard_at];
        lock(shard);
        uint64_t entries = shard->entries == NULL ? 0 : UINT64_C(1) << shard->capacity_log2;
        for (; seen < entries && found < most; seen++) {
            const struct hv_pointer_entry *entry = &shard->entries[entries - 1 - seen];
            if (entry->key >> 60 == key_of(kind, 0) >> 60 && hv_record_unpack(entry->value).device == device)
                pointers[found++] = entry->key ^ key_of(kind, 0);
        }
        unlock(shard);
        if (seen < entries)
            break;
    }
    *cursor = shard_at << CURSOR_SHARD_AT | seen;
    return found;
}

bool hv_pointer_refer(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer)
{
    struct place place = enter(map, kind, pointer, false);
    if (place.found) {
        struct hv_pointer_record record = hv_record_unpack(place.entry->value);
        record.references += record.references < MOST_REFERENCES;
        place.entry->value = hv_record_pack(&record);
    }
    unlock(place.shard);
    return place.found;
}

bool hv_pointer_unrefer(struct hv_pointer_map *map, enum hv_pointer_kind kind, uint64_t pointer,
                        struct hv_pointer_record *record)
{
    struct place place = enter(map, kind, pointer, false);
    bool last = false;
    if (place.found) {
        *record = hv_record_unpack(place.entry->value);
        if (record->references <= 1) {
            last = true;
            remove_entry(place.shard, place.entry);
        } else if (record->references < MOST_REFERENCES) {
            record->references--;
            place.entry->value = hv_record_pack(record);
        }
    }
    unlock(place.shard);
    return last;
}
