#include "bucket.h"

#include "compiler.h"

#define NS_PER_MS UINT64_C(1000000)

/* 128 bits, so that no file content can make the product wrap. */
typedef unsigned __int128 wide;

static uint64_t saturate(wide value)
{
    /* A quarter of the range, so that sums of results cannot wrap either. */
    return value > UINT64_MAX / 4 ? UINT64_MAX / 4 : (uint64_t)value;
}

uint64_t hv_bucket_gpu_ns(uint64_t wall_ns, uint32_t share_ppm)
{
    return saturate((wide)wall_ns * share_ppm / HV_SHARE_FULL_PPM);
}

uint64_t hv_bucket_wall_ns(uint64_t gpu_ns, uint32_t share_ppm)
{
    return saturate((wide)gpu_ns * HV_SHARE_FULL_PPM / share_ppm);
}

uint64_t hv_bucket_window_ns(const struct hv_bucket_terms *terms)
{
    uint64_t window = hv_bucket_wall_ns(terms->burst_ns, terms->share_ppm);
    return window > HV_BUCKET_SMALLEST_WINDOW_NS ? window : HV_BUCKET_SMALLEST_WINDOW_NS;
}

/* From when on time in which nothing was charged was idle time. Who waited to learn its charge had work then. */
static uint64_t idle_until(const struct hv_bucket_terms *terms, uint64_t now_ns)
{
    return terms->since_ns != 0 && terms->since_ns < now_ns ? terms->since_ns : now_ns;
}

/* The word as it counts now: idle time is not saved up, and a word that no
 * charge can have left is brought back. */
static uint64_t arrival_at(uint64_t word, const struct hv_bucket_terms *terms, uint64_t now_ns)
{
    if (word < idle_until(terms, now_ns))
        return idle_until(terms, now_ns);
    if (word < now_ns)
        return word;
    if (word - now_ns > hv_bucket_wall_ns(terms->debt_ns, terms->share_ppm) + HV_BUCKET_IMPLAUSIBLE_NS +
                            terms->waiters * HV_BUCKET_WAITER_NS)
        return now_ns + hv_bucket_window_ns(terms);
    return word;
}

uint64_t hv_bucket_charge(uint64_t *bucket, const struct hv_bucket_terms *terms, uint64_t gpu_ns, uint64_t now_ns,
                          uint64_t *wall_ns)
{
    uint64_t wall = hv_bucket_wall_ns(gpu_ns, terms->share_ppm);
    uint64_t window = hv_bucket_window_ns(terms);
    uint64_t word = hv_load_relaxed(bucket); /* carries no other data */
    uint64_t arrival;
    do {
        arrival = arrival_at(word, terms, now_ns);
    } while (!hv_cas_relaxed(bucket, &word, arrival + wall));
    *wall_ns = wall;
    /* Work larger than the window may start when there is no debt before it. */
    uint64_t ahead = wall < window ? window - wall : 0;
    return arrival > ahead ? arrival - ahead : 0;
}

uint64_t hv_bucket_charge_since(uint64_t *bucket, const struct hv_bucket_terms *terms, uint64_t gpu_ns,
                                uint64_t since_ns, uint64_t until_ns)
{
    uint64_t wall = hv_bucket_wall_ns(gpu_ns, terms->share_ppm);
    uint64_t word = hv_load_relaxed(bucket); /* carries no other data */
    uint64_t from, to;
    do {
        from = word < since_ns ? since_ns : word;
        to = from + wall < until_ns ? from + wall : until_ns;
        if (to <= from)
            return gpu_ns;
    } while (!hv_cas_relaxed(bucket, &word, to));
    uint64_t put = hv_bucket_gpu_ns(to - from, terms->share_ppm);
    return put < gpu_ns ? gpu_ns - put : 0;
}

void hv_bucket_give_back(uint64_t *bucket, uint64_t wall_ns)
{
    uint64_t word = hv_load_relaxed(bucket);
    while (!hv_cas_relaxed(bucket, &word, word > wall_ns ? word - wall_ns : 0)) {
    }
}

void hv_debt_add(uint64_t *debt, const struct hv_bucket_terms *terms, uint64_t gpu_ns)
{
    uint64_t word = hv_load_relaxed(debt); /* carries no other data */
    uint64_t next;
    do {
        next = word < terms->debt_ns && gpu_ns < terms->debt_ns - word ? word + gpu_ns : terms->debt_ns;
    } while (!hv_cas_relaxed(debt, &word, next));
}

uint64_t hv_debt_take(uint64_t *debt, const uint64_t *bucket, const struct hv_bucket_terms *terms, uint64_t most_gpu_ns,
                      uint64_t now_ns)
{
    uint64_t word = hv_load_relaxed(debt);
    if (hv_likely(word == 0))
        return 0;
    uint64_t ahead_until = hv_load_relaxed(bucket);
    uint64_t idle = idle_until(terms, now_ns);
    uint64_t paid_by_idling =
        ahead_until != 0 && ahead_until < idle ? hv_bucket_gpu_ns(idle - ahead_until, terms->share_ppm) : 0;
    uint64_t due, next;
    do {
        uint64_t left = word > terms->debt_ns ? terms->debt_ns : word; /* not written by us */
        left -= left < paid_by_idling ? left : paid_by_idling;
        due = left < most_gpu_ns ? left : most_gpu_ns;
        next = left - due;
    } while (!hv_cas_relaxed(debt, &word, next));
    return due;
}

uint64_t hv_debt_lower(uint64_t *debt, uint64_t gpu_ns)
{
    uint64_t word = hv_load_relaxed(debt);
    uint64_t lower;
    do {
        lower = word < gpu_ns ? word : gpu_ns;
    } while (!hv_cas_relaxed(debt, &word, word - lower));
    return lower;
}

void hv_bucket_rescale(uint64_t *bucket, uint32_t old_share_ppm, uint32_t new_share_ppm, uint64_t now_ns)
{
    uint64_t word = hv_load_relaxed(bucket);
    uint64_t next;
    do {
        if (word <= now_ns)
            return;
        next = now_ns + hv_bucket_wall_ns(hv_bucket_gpu_ns(word - now_ns, old_share_ppm), new_share_ppm);
    } while (!hv_cas_relaxed(bucket, &word, next));
}

static uint32_t in_force(uint64_t packed, uint64_t now_ns)
{
    return packed >> HV_BORROWED_SHARE_BITS > now_ns / NS_PER_MS ? (uint32_t)(packed & HV_BORROWED_SHARE_MASK) : 0;
}

uint32_t hv_effective_share(const struct hv_share_terms *terms, uint64_t now_ns)
{
    uint32_t share = terms->limit_ppm;
    uint32_t contracted = in_force(terms->contracted, now_ns);
    if (contracted != 0 && contracted < share)
        share = contracted;
    if (share >= HV_SHARE_FULL_PPM)
        return HV_SHARE_FULL_PPM;
    if (terms->policy == HV_POLICY_WORK_CONSERVING)
        share += in_force(terms->borrowed, now_ns); /* below 2^21 together */
    if (share >= HV_SHARE_FULL_PPM)
        return HV_SHARE_FULL_PPM - 1;
    return share == 0 ? 1 : share; /* 0 was refused at admission; never divide by it */
}

uint32_t hv_plausible_correction(uint64_t correction_ppm)
{
    if (correction_ppm == 0)
        return HV_SHARE_FULL_PPM;
    if (correction_ppm < HV_SHARE_FULL_PPM / 8)
        return HV_SHARE_FULL_PPM / 8;
    return correction_ppm > 8 * HV_SHARE_FULL_PPM ? 8 * HV_SHARE_FULL_PPM : (uint32_t)correction_ppm;
}
