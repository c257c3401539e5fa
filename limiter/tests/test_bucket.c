/* test: sources=limiter/src/bucket.c include=limiter/include,limiter/src,limiter/tests variants=plain,address,thread */
/* The bucket's arithmetic on a clock of our own. */
#include "bucket.h"

#include <pthread.h>

#include "check.h"

#define MS UINT64_C(1000000)
#define START (1000 * MS)

static uint64_t start_of(uint64_t *bucket, const struct hv_bucket_terms *terms, uint64_t gpu_ns, uint64_t now)
{
    uint64_t wall;
    uint64_t start = hv_bucket_charge(bucket, terms, gpu_ns, now, &wall);
    return start > now ? start : now;
}

static void arithmetic(void)
{
    CHECK_EQUAL(hv_bucket_wall_ns(10 * MS, 250000), 40 * MS);
    CHECK_EQUAL(hv_bucket_gpu_ns(40 * MS, 250000), 10 * MS);
    CHECK_EQUAL(hv_bucket_wall_ns(UINT64_MAX, 1), UINT64_MAX / 4); /* saturates */
    CHECK_EQUAL(hv_bucket_gpu_ns(0, 1), 0);
}

/* A program that always has the next launch ready gets its share and no more. */
static void long_run(uint32_t share_ppm, uint64_t kernel_ns)
{
    const struct hv_bucket_terms terms = {.share_ppm = share_ppm, .burst_ns = 5 * MS, .debt_ns = 100 * MS};
    uint64_t bucket = 0;
    uint64_t now = START;
    uint64_t used = 0;
    const uint64_t window = 10000 * MS;
    while (now < START + window) {
        now = start_of(&bucket, &terms, kernel_ns, now);
        used += kernel_ns;
    }
    uint64_t wanted = hv_bucket_gpu_ns(window, share_ppm);
    CHECK(used <= wanted + 5 * MS + 4 * MS + 2 * kernel_ns);
    CHECK(used + 5 * MS >= wanted);
}

/* Waking late by less than the window costs nothing. */
static void late_wakes(void)
{
    const struct hv_bucket_terms terms = {.share_ppm = 500000, .burst_ns = 0, .debt_ns = 0};
    uint64_t bucket = 0;
    uint64_t now = START;
    uint64_t used = 0;
    while (now < START + 1000 * MS) {
        now = start_of(&bucket, &terms, MS, now) + 70000;
        used += MS;
    }
    CHECK(used >= 498 * MS && used <= 506 * MS);
}

/* Who waited to learn its charge had work all the while: its place is as of when it came. That is no idle time, which pays
 * debts, either. */
static void waiting_for_a_cost_is_not_idle(void)
{
    struct hv_bucket_terms terms = {.share_ppm = 500000, .burst_ns = 0, .debt_ns = 100 * MS, .since_ns = START};
    uint64_t bucket = START + 10 * MS, debt = 0, wall;
    CHECK(hv_bucket_charge(&bucket, &terms, 50 * MS, START + 60 * MS, &wall) <= START + 60 * MS);
    CHECK_EQUAL(bucket, START + 110 * MS);
    bucket = START - 30 * MS; /* it was idle before */
    (void)hv_bucket_charge(&bucket, &terms, 50 * MS, START + 60 * MS, &wall);
    CHECK_EQUAL(bucket, START + 100 * MS);
    bucket = START - 30 * MS;
    hv_debt_add(&debt, &terms, 50 * MS);
    CHECK_EQUAL(hv_debt_take(&debt, &bucket, &terms, 100 * MS, START + 60 * MS), 35 * MS);
    terms.since_ns = START + 90 * MS; /* a clock that jumped */
    bucket = START;
    (void)hv_bucket_charge(&bucket, &terms, 50 * MS, START + 60 * MS, &wall);
    CHECK_EQUAL(bucket, START + 160 * MS);
}

/* Idle time is not saved up beyond the burst. */
static void idle_is_lost(void)
{
    const struct hv_bucket_terms terms = {.share_ppm = 500000, .burst_ns = 10 * MS, .debt_ns = 0};
    uint64_t bucket = 0;
    uint64_t now = START + 1000000 * MS;
    uint64_t free_launches = 0;
    while (start_of(&bucket, &terms, MS, now) == now)
        free_launches++;
    CHECK_EQUAL(free_launches, 10);
}

/* Those who wait are served in order, each at its own time. */
static void queue_in_time(void)
{
    const struct hv_bucket_terms terms = {.share_ppm = 100000, .burst_ns = 0, .debt_ns = 0};
    uint64_t bucket = 0;
    uint64_t last = 0;
    for (int waiter = 0; waiter < 50; waiter++) {
        uint64_t start = start_of(&bucket, &terms, MS, START);
        CHECK(start >= last);
        last = start;
    }
    CHECK_EQUAL(last, START + 49 * 10 * MS);
}

static void give_back_and_rescale(void)
{
    const struct hv_bucket_terms terms = {.share_ppm = 100000, .burst_ns = 0, .debt_ns = 50 * MS};
    uint64_t bucket = 0;
    uint64_t wall;
    (void)hv_bucket_charge(&bucket, &terms, 10 * MS, START, &wall);
    CHECK_EQUAL(bucket, START + 100 * MS);
    hv_bucket_give_back(&bucket, wall);
    CHECK_EQUAL(bucket, START);
    (void)hv_bucket_charge(&bucket, &terms, 10 * MS, START, &wall);
    hv_bucket_rescale(&bucket, 100000, 500000, START);
    CHECK_EQUAL(bucket, START + 20 * MS);
    hv_bucket_rescale(&bucket, 500000, 100000, START + 30 * MS); /* nothing ahead: nothing to scale */
    CHECK_EQUAL(bucket, START + 20 * MS);
}

static void debt_is_bounded_and_paid_little_by_little(void)
{
    const struct hv_bucket_terms terms = {.share_ppm = 100000, .burst_ns = 0, .debt_ns = 50 * MS};
    uint64_t debt = 0, bucket = START;
    CHECK_EQUAL(hv_debt_take(&debt, &bucket, &terms, 2 * MS, START), 0);
    hv_debt_add(&debt, &terms, 30 * MS);
    hv_debt_add(&debt, &terms, 100000 * MS);
    CHECK_EQUAL(debt, 50 * MS);
    CHECK_EQUAL(hv_debt_take(&debt, &bucket, &terms, 2 * MS, START), 2 * MS);
    CHECK_EQUAL(debt, 48 * MS);
    /* 100 ms with nothing ahead of the clock pay 10 ms at a tenth. */
    CHECK_EQUAL(hv_debt_take(&debt, &bucket, &terms, 2 * MS, START + 100 * MS), 2 * MS);
    CHECK_EQUAL(debt, 36 * MS);
    CHECK_EQUAL(hv_debt_take(&debt, &bucket, &terms, 2 * MS, START + 1000 * MS), 0);
    CHECK_EQUAL(debt, 0);
    debt = UINT64_MAX; /* scribbled */
    CHECK_EQUAL(hv_debt_take(&debt, &bucket, &terms, 2 * MS, START), 2 * MS);
    CHECK_EQUAL(debt, 48 * MS);
}

/* What turned out to be no debt leaves the rest. */
/* Work that took more than its charge: put where the charge stood, and not beyond what was said. */
static void put_right_at_its_place(void)
{
    const struct hv_bucket_terms terms = {.share_ppm = 500000, .burst_ns = 10 * MS, .debt_ns = 10000 * MS};
    uint64_t bucket = 1000 * MS;
    /* It began at 1000 ms, took 20 ms more than was charged, and nobody waits: 40 ms of wall time from there. */
    CHECK_EQUAL(hv_bucket_charge_since(&bucket, &terms, 20 * MS, 1000 * MS, 1060 * MS), 0);
    CHECK_EQUAL(bucket, 1040 * MS);
    /* Idle since before it began: what was idle is not saved up. */
    bucket = 500 * MS;
    CHECK_EQUAL(hv_bucket_charge_since(&bucket, &terms, 20 * MS, 1000 * MS, 1060 * MS), 0);
    CHECK_EQUAL(bucket, 1040 * MS);
    /* Others wait already: what has no room is left. */
    bucket = 1050 * MS;
    CHECK_EQUAL(hv_bucket_charge_since(&bucket, &terms, 20 * MS, 1000 * MS, 1060 * MS), 15 * MS);
    CHECK_EQUAL(bucket, 1060 * MS);
    CHECK_EQUAL(hv_bucket_charge_since(&bucket, &terms, 20 * MS, 1000 * MS, 1060 * MS), 20 * MS);
    bucket = UINT64_MAX; /* scribbled */
    CHECK_EQUAL(hv_bucket_charge_since(&bucket, &terms, 20 * MS, 1000 * MS, 1060 * MS), 20 * MS);
    CHECK_EQUAL(bucket, UINT64_MAX);
}

static void debt_is_lowered(void)
{
    uint64_t debt = 20 * MS;
    CHECK_EQUAL(hv_debt_lower(&debt, 5 * MS), 5 * MS);
    CHECK_EQUAL(hv_debt_lower(&debt, 30 * MS), 15 * MS);
    CHECK_EQUAL(debt, 0);
}

/* Whatever somebody scribbles into the word, the wait has a bound. */
static void scribbled(void)
{
    const struct hv_bucket_terms terms = {.share_ppm = 100000, .burst_ns = 10 * MS, .debt_ns = 50 * MS};
    const uint64_t words[] = {UINT64_MAX, UINT64_MAX / 2, START + 1000000 * MS, 1};
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        uint64_t bucket = words[i];
        CHECK(start_of(&bucket, &terms, MS, START) <= START + 600 * MS);
    }
}

/* Eight processes wait, each with a launch of two seconds at a share of a tenth: the last one's place is a real one. */
static void many_who_wait_for_long(void)
{
    struct hv_bucket_terms terms = {.share_ppm = 100000, .burst_ns = 10 * MS, .debt_ns = 50 * MS};
    uint64_t bucket = 0;
    for (terms.waiters = 0; terms.waiters < 8; terms.waiters++)
        CHECK(start_of(&bucket, &terms, 2000 * MS, START) >= START + terms.waiters * 20000 * MS);
    CHECK(bucket >= START + 160000 * MS);
}

/* A clock that jumps, or a machine that slept: no burst beyond the window, and no wait beyond what is owed. */
static void clocks_that_jump(void)
{
    const struct hv_bucket_terms terms = {.share_ppm = 250000, .burst_ns = 10 * MS, .debt_ns = 1000 * MS};
    const uint64_t day = 86400 * 1000 * MS;
    uint64_t bucket = 0, now = START + day, wall, gone = 0;
    for (int i = 0; i < 100; i++)
        (void)start_of(&bucket, &terms, MS, now);
    now += day; /* forwards: what was ahead is past, and the idle day is not saved up */
    while (start_of(&bucket, &terms, MS, now) <= now)
        gone++;
    CHECK(gone <= 11);
    bucket = now + 20 * MS;
    now -= day; /* backwards: no launch waits for a day */
    uint64_t start = hv_bucket_charge(&bucket, &terms, MS, now, &wall);
    CHECK(start <= now + 5000 * MS);
}

static uint32_t share_of(uint32_t limit_ppm, uint32_t policy, uint64_t borrowed, uint64_t contracted, uint64_t now_ns)
{
    const struct hv_share_terms terms = {limit_ppm, policy, borrowed, contracted};
    return hv_effective_share(&terms, now_ns);
}

/* A borrowed share holds until it expires, whoever lent it. */
static void borrowed_shares(void)
{
    const uint64_t borrowed = UINT64_C(1200) << HV_BORROWED_SHARE_BITS | 300000; /* until 1200 ms */
    CHECK_EQUAL(share_of(250000, HV_POLICY_WORK_CONSERVING, borrowed, 0, 1199 * MS), 550000);
    CHECK_EQUAL(share_of(250000, HV_POLICY_WORK_CONSERVING, borrowed, 0, 1200 * MS), 250000);
    CHECK_EQUAL(share_of(250000, HV_POLICY_HARD_CAP, borrowed, 0, 1000 * MS), 250000);
    CHECK_EQUAL(share_of(900000, HV_POLICY_WORK_CONSERVING, borrowed, 0, 1000 * MS), HV_SHARE_FULL_PPM - 1); /* still paced */
    CHECK_EQUAL(share_of(HV_SHARE_FULL_PPM, HV_POLICY_WORK_CONSERVING, borrowed, 0, 1000 * MS), HV_SHARE_FULL_PPM);
    CHECK_EQUAL(share_of(0, HV_POLICY_HARD_CAP, 0, 0, 0), 1); /* never divided by 0 */
}

/* A contracted share too, and it never opens a limit. */
static void contracted_shares(void)
{
    const uint64_t contracted = UINT64_C(1200) << HV_BORROWED_SHARE_BITS | 300000;
    CHECK_EQUAL(share_of(HV_SHARE_FULL_PPM, HV_POLICY_HARD_CAP, 0, contracted, 1199 * MS), 300000);
    CHECK_EQUAL(share_of(HV_SHARE_FULL_PPM, HV_POLICY_HARD_CAP, 0, contracted, 1200 * MS), HV_SHARE_FULL_PPM);
    CHECK_EQUAL(share_of(250000, HV_POLICY_HARD_CAP, 0, contracted, 1000 * MS), 250000);
    CHECK_EQUAL(share_of(500000, HV_POLICY_WORK_CONSERVING, contracted, contracted, 1000 * MS), 600000);
}

static void corrections(void)
{
    CHECK_EQUAL(hv_plausible_correction(0), HV_SHARE_FULL_PPM);
    CHECK_EQUAL(hv_plausible_correction(1200000), 1200000);
    CHECK_EQUAL(hv_plausible_correction(UINT64_MAX), 8 * HV_SHARE_FULL_PPM);
    CHECK_EQUAL(hv_plausible_correction(1), HV_SHARE_FULL_PPM / 8);
}

/* Many at once: no charge is lost. */
static uint64_t shared_bucket;

static void *charge_often(void *argument)
{
    const struct hv_bucket_terms terms = {.share_ppm = 500000, .burst_ns = 0, .debt_ns = 0};
    (void)argument;
    for (int i = 0; i < 20000; i++) {
        uint64_t wall;
        (void)hv_bucket_charge(&shared_bucket, &terms, 1000, START, &wall);
    }
    return NULL;
}

static void many_threads(void)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK_EQUAL(pthread_create(&threads[i], NULL, charge_often, NULL), 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
    CHECK_EQUAL(shared_bucket, START + 4 * 20000 * 2000);
}

int main(void)
{
    arithmetic();
    for (uint32_t share = 100000; share <= 900000; share += 200000) {
        long_run(share, 20000);
        long_run(share, MS);
        long_run(share, 20 * MS);
    }
    late_wakes();
    waiting_for_a_cost_is_not_idle();
    idle_is_lost();
    queue_in_time();
    give_back_and_rescale();
    debt_is_bounded_and_paid_little_by_little();
    debt_is_lowered();
    put_right_at_its_place();
    scribbled();
    many_who_wait_for_long();
    clocks_that_jump();
    borrowed_shares();
    contracted_shares();
    corrections();
    many_threads();
    return CHECK_RESULT();
}
