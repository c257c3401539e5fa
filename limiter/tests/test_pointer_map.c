/* test: sources=limiter/src/pointer_map.c,limiter/src/os_linux.c,limiter/src/os_clock.c include=limiter/include,limiter/src,limiter/tests variants=plain,address,thread */
/* The pointer map against a model, and under many threads. */
#include "pointer_map.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "os.h"

#define POINTERS 5000
#define THREADS 4

static struct hv_pointer_map *make_map(void)
{
    struct hv_pointer_map *map = hv_os_pages_wiped_on_fork(sizeof *map);
    if (map == NULL)
        exit(2);
    return map;
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

/* Random operations; an array is the model. Pointers as a driver hands them
 * out, at even distances, so that their low bits say nothing. */
static void against_a_model(void)
{
    static uint64_t model[POINTERS]; /* 0: not there */
    struct hv_pointer_map *map = make_map();
    uint32_t random = 1;
    for (int i = 0; i < 300000; i++) {
        uint32_t which = next_random(&random) % POINTERS;
        uint64_t pointer = UINT64_C(0x7f0000000000) + (uint64_t)which * (2 << 20);
        uint64_t value = 0;
        switch (next_random(&random) % 3) {
        case 0:
            model[which] = 1 + next_random(&random);
            CHECK(hv_pointer_put(map, HV_POINTER_MEMORY, pointer, model[which]));
            break;
        case 1:
            CHECK_EQUAL(hv_pointer_get(map, HV_POINTER_MEMORY, pointer, &value), model[which] != 0);
            CHECK_EQUAL(value, model[which]);
            break;
        default:
            CHECK_EQUAL(hv_pointer_take(map, HV_POINTER_MEMORY, pointer, &value), model[which] != 0);
            CHECK_EQUAL(value, model[which]);
            model[which] = 0;
            break;
        }
    }
    for (uint32_t which = 0; which < POINTERS; which++) {
        uint64_t value;
        CHECK_EQUAL(hv_pointer_take(map, HV_POINTER_MEMORY, UINT64_C(0x7f0000000000) + (uint64_t)which * (2 << 20), &value),
                    model[which] != 0);
    }
    for (uint32_t shard = 0; shard < HV_POINTER_SHARDS; shard++)
        CHECK_EQUAL(map->shards[shard].count, 0);
}

static void records(void)
{
    struct hv_pointer_record record = {.bytes = (UINT64_C(1) << HV_RECORD_BYTES_BITS) - 1, .device = 63, .references = 7};
    struct hv_pointer_record back = hv_record_unpack(hv_record_pack(&record));
    CHECK_EQUAL(back.bytes, record.bytes);
    CHECK_EQUAL(back.device, 63);
    CHECK_EQUAL(back.references, 7);
}

static void references(void)
{
    struct hv_pointer_map *map = make_map();
    struct hv_pointer_record record = {.bytes = 4096, .device = 3, .references = 1};
    struct hv_pointer_record last = {0};
    CHECK(!hv_pointer_refer(map, HV_POINTER_PHYSICAL, 77));
    CHECK(hv_pointer_put(map, HV_POINTER_PHYSICAL, 77, hv_record_pack(&record)));
    CHECK(hv_pointer_refer(map, HV_POINTER_PHYSICAL, 77));
    CHECK(!hv_pointer_unrefer(map, HV_POINTER_PHYSICAL, 77, &last));
    CHECK(hv_pointer_unrefer(map, HV_POINTER_PHYSICAL, 77, &last));
    CHECK_EQUAL(last.bytes, 4096);
    CHECK_EQUAL(last.device, 3);
    CHECK(!hv_pointer_unrefer(map, HV_POINTER_PHYSICAL, 77, &last));
}

static void kinds_are_apart(void)
{
    struct hv_pointer_map *map = make_map();
    uint64_t value = 0;
    CHECK(hv_pointer_put(map, HV_POINTER_MEMORY, 4096, 1));
    CHECK(!hv_pointer_get(map, HV_POINTER_HOST, 4096, &value));
    CHECK(hv_pointer_put(map, HV_POINTER_HOST, 4096, 2));
    CHECK(hv_pointer_take(map, HV_POINTER_MEMORY, 4096, &value));
    CHECK_EQUAL(value, 1);
}

struct worker {
    struct hv_pointer_map *map;
    uint64_t number;
    uint64_t lost;
};

/* Each thread has pointers of its own: none may be lost or mixed up. */
static void *work(void *argument)
{
    struct worker *worker = argument;
    for (int round = 0; round < 20; round++) {
        for (uint64_t i = 1; i <= 500; i++)
            worker->lost += !hv_pointer_put(worker->map, HV_POINTER_MEMORY, worker->number << 32 | i << 12, i);
        for (uint64_t i = 1; i <= 500; i++) {
            uint64_t value = 0;
            bool there = hv_pointer_take(worker->map, HV_POINTER_MEMORY, worker->number << 32 | i << 12, &value);
            worker->lost += !there || value != i;
        }
    }
    return NULL;
}

static void many_threads(void)
{
    struct hv_pointer_map *map = make_map();
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    for (uint64_t i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.map = map, .number = i + 1};
        CHECK_EQUAL(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (uint64_t i = 0; i < THREADS; i++) {
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
        CHECK_EQUAL(workers[i].lost, 0);
    }
}

/* The child begins with an empty, unlocked map, whatever the parent was doing. */
static void empty_after_fork(void)
{
    struct hv_pointer_map *map = make_map();
    CHECK(hv_pointer_put(map, HV_POINTER_MEMORY, 4096, 1));
    for (uint32_t shard = 0; shard < HV_POINTER_SHARDS; shard++)
        map->shards[shard].lock = 1;
    pid_t child = fork();
    if (child == 0) {
        uint64_t value;
        bool right = !hv_pointer_get(map, HV_POINTER_MEMORY, 4096, &value) &&
                     hv_pointer_put(map, HV_POINTER_MEMORY, 4096, 2) &&
                     hv_pointer_take(map, HV_POINTER_MEMORY, 4096, &value) && value == 2;
        _exit(right ? 0 : 1);
    }
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
}

int main(void)
{
    records();
    references();
    kinds_are_apart();
    against_a_model();
    many_threads();
    empty_after_fork();
    return CHECK_RESULT();
}
