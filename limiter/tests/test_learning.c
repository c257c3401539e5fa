/* test: sources=limiter/src/costs.c,limiter/src/latest.c,limiter/src/bucket.c,limiter/src/coverage.c include=limiter/include,limiter/src,limiter/tests variants=plain,address */
/* What processes of a Pod learn from each other about a function that none of them has measured. The tests play two: what
 * this one measures, and what another one has written into the table they share. */
#include "costs.h"

#include "attach.h"
#include "check.h"
#include "driver.h"

#define MS UINT64_C(1000000)
#define START (123456 * MS)

static struct hv_learned_cost table[HV_LEARNED_COSTS];
static struct hv_device_usage usage;
static struct hv_files files = {.costs = (unsigned char *)table, .cost_stride = sizeof *table, .devices = {&usage}};
const struct hv_files *hv_attached_files = &files;

void *hv_driver_call(enum hv_call_id id)
{
    (void)id;
    return NULL; /* names of kernels; graphs have none to ask for */
}

static uint64_t shapes; /* of graphs so far: each has a place of its own in the table */

static struct hv_function graph(void)
{
    return (struct hv_function){.kind = HV_FUNCTION_GRAPH, .shape = ++shapes * 7919};
}

static struct hv_learned_cost *shared(const struct hv_function *function)
{
    return &table[function->published - 1];
}

static void one_measures_as_long_as_it_takes(void)
{
    struct hv_function first = graph(), other = {.kind = first.kind, .shape = first.shape};
    CHECK(hv_costs_settled(&first, START));
    CHECK(!hv_costs_settled(&other, START + MS));
    for (uint64_t at = START; at < START + 3000 * MS; at += 20 * MS) {
        hv_costs_measures_on(&first, at);
        CHECK(!hv_costs_settled(&other, at + 19 * MS));
    }
    /* It is stopped or killed: then one of the others does it. */
    CHECK(!hv_costs_settled(&other, START + 3000 * MS + 70 * MS));
    CHECK(hv_costs_settled(&other, START + 3000 * MS + 81 * MS));
    CHECK(!hv_costs_settled(&first, START + 3000 * MS + 82 * MS));
}

static void nobody_goes_on_for_another(void)
{
    struct hv_function first = graph();
    CHECK(hv_costs_settled(&first, START));
    uint64_t until = START + 99 * MS;
    shared(&first)->learning_until_ns = until; /* another one has begun to */
    hv_costs_measures_on(&first, START + 50 * MS);
    CHECK_EQUAL(shared(&first)->learning_until_ns, until);
}

/* Once one time is known the others wait for 20 ms, and whoever measures does not wait for itself. */
static void a_short_one_is_measured_some_times(void)
{
    struct hv_function first = graph(), again = {.kind = first.kind, .shape = first.shape};
    CHECK(hv_costs_settled(&first, START));
    first.cost_ns = MS;
    first.samples = 1;
    hv_costs_publish(&first, START + 2 * MS);
    CHECK(hv_costs_settled(&again, START + 3 * MS)); /* this process */
    shared(&first)->learning_until_ns -= MS;         /* another one's */
    CHECK(!hv_costs_settled(&again, START + 3 * MS));
    CHECK(hv_costs_settled(&again, START + 20 * MS));
    first.samples = 3;
    hv_costs_publish(&first, START + 21 * MS);
    CHECK(hv_costs_settled(&again, START + 22 * MS));
    CHECK_EQUAL(again.first_cost_ns, MS);
}

static void believes_what_no_launch_would_wait_for_without_end(void)
{
    struct hv_function first = graph();
    CHECK(hv_costs_settled(&first, START));
    shared(&first)->cost_ns = UINT64_MAX; /* scribbled */
    CHECK(hv_costs_settled(&first, START + MS));
    CHECK_EQUAL(first.first_measured, 0);
    CHECK_EQUAL(hv_costs_charge(&first), HV_GUESSED_COST_NS);
    shared(&first)->cost_ns = 1000 * MS;
    CHECK(hv_costs_settled(&first, START + MS));
    CHECK_EQUAL(hv_costs_charge(&first), 1000 * MS);
}

/* Nobody told how many turns others have: a launch of so much, of which turns left so much to this process. */
static uint64_t priced(uint64_t measured_ns, uint64_t turn_ns, uint64_t others_ppm)
{
    struct hv_function first = graph(), other = {.kind = first.kind, .shape = first.shape, .is_long = 1};
    const struct hv_sample_result result = {
        .measured_ns = measured_ns, .used_ns = measured_ns, .turn_ns = turn_ns, .untold_ns = measured_ns};
    hv_costs_average(&first, &result, false, true, 0);
    CHECK_EQUAL(shared(&first)->cost_ns, turn_ns);
    hv_costs_price(&other, others_ppm);
    uint64_t cost = other.cost_ns;
    hv_costs_price(&other, others_ppm);
    CHECK_EQUAL(other.cost_ns, cost); /* once */
    return cost;
}

static void others_turns_are_taken_off_once_they_are_told(void)
{
    CHECK_EQUAL(priced(40 * MS, 40 * MS, HV_SHARE_FULL_PPM), 20 * MS);
    CHECK_EQUAL(priced(40 * MS, 40 * MS, 0), 40 * MS);                     /* nobody is there */
    CHECK_EQUAL(priced(60 * MS, 30 * MS, HV_SHARE_FULL_PPM), 20 * MS);     /* two of the Pod were at work meanwhile */
    CHECK(priced(40 * MS, 40 * MS, UINT64_MAX) >= 40 * MS / 65);           /* scribbled */
}

/* The next launch of whichever process has ended after that: its own time is not averaged with what had others' turns in it. */
static void one_that_was_told_of_prices_those_before(void)
{
    struct hv_function first = graph();
    struct hv_sample_result result = {.measured_ns = 40 * MS, .used_ns = 40 * MS, .turn_ns = 40 * MS, .untold_ns = 40 * MS};
    hv_costs_average(&first, &result, false, true, 0);
    result.untold_ns = result.used_ns = 0; /* all of its moments were told of by others already: that tells nobody anything */
    hv_costs_average(&first, &result, false, true, 0);
    result.used_ns = 20 * MS;
    hv_costs_average(&first, &result, true, true, HV_SHARE_FULL_PPM);
    CHECK(first.cost_ns >= 19 * MS && first.cost_ns <= 20 * MS);
}

/* The own time of a launch that is long with its turns may be short; who comes next begins with that, and learns nothing that
 * would keep it from being priced. */
static void one_that_waits_for_its_price_is_not_learned_again(void)
{
    struct hv_function first = graph(), other = {.kind = first.kind, .shape = first.shape, .is_long = 1};
    const struct hv_sample_result result = {.measured_ns = 16 * MS, .used_ns = 2 * MS, .turn_ns = 2 * MS, .untold_ns = 2 * MS};
    hv_costs_average(&first, &result, false, true, 0);
    CHECK(hv_costs_settled(&other, START));
    CHECK_EQUAL(other.first_cost_ns, 2 * MS);
    hv_costs_price(&other, 8 * HV_SHARE_FULL_PPM); /* as many others as were at work of the Pod's */
    CHECK_EQUAL(other.cost_ns, MS);
}

/* From half way on they take ten times as long. */
static uint64_t after_eight_longer(bool early)
{
    struct hv_function first = graph();
    struct hv_sample_result result = {.measured_ns = 5 * MS, .used_ns = 5 * MS, .turn_ns = 5 * MS};
    for (int i = 0; i < 16; i++)
        hv_costs_average(&first, &result, true, early, HV_SHARE_FULL_PPM);
    result.used_ns = 50 * MS;
    for (int i = 0; i < 8; i++)
        hv_costs_average(&first, &result, true, early, HV_SHARE_FULL_PPM);
    return first.cost_ns;
}

static void work_that_takes_longer_is_followed_at_once(void)
{
    CHECK(after_eight_longer(false) > 49 * MS);
    CHECK(after_eight_longer(true) < 20 * MS); /* may be others' turns */
}

int main(void)
{
    work_that_takes_longer_is_followed_at_once();
    one_measures_as_long_as_it_takes();
    nobody_goes_on_for_another();
    a_short_one_is_measured_some_times();
    believes_what_no_launch_would_wait_for_without_end();
    others_turns_are_taken_off_once_they_are_told();
    one_that_was_told_of_prices_those_before();
    one_that_waits_for_its_price_is_not_learned_again();
    return CHECK_RESULT();
}
