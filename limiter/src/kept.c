#include "kept.h"

#include "hypervisor_atomics.h"

#define FRACTION_OF_LIMIT UINT64_C(7000) /* the sum of 1/k up to 512 is below 7 */
/* Of this limit a process keeps less than 1 MiB, the granule in which the daemon measures overhead: what is kept is
 * accounted and not held, and would make the overhead too small. */
#define LARGEST_LIMIT (FRACTION_OF_LIMIT * ((UINT64_C(1) << 20) - 1))

uint32_t hv_kept_join(struct hv_kept *kept)
{
    return hv_add_acq_rel_32(&kept->threads, 1);
}

uint64_t hv_kept_most(const struct hv_kept *kept, uint64_t limit_bytes)
{
    limit_bytes = limit_bytes < LARGEST_LIMIT ? limit_bytes : LARGEST_LIMIT;
    /* Hints, both; they carry no other data. */
    uint64_t processes = hv_load_relaxed_32(&kept->processes);
    uint64_t threads = hv_load_relaxed_32(&kept->threads);
    uint64_t stripes = threads == 0 ? 1 : threads < HV_KEPT_STRIPES ? threads : HV_KEPT_STRIPES;
    return limit_bytes / (FRACTION_OF_LIMIT * stripes * (processes == 0 ? HV_PROCESS_SLOTS : processes));
}

void hv_kept_count_processes(struct hv_kept *kept, const struct hv_slot_table *slots)
{
    uint32_t processes = 0;
    for (uint32_t word = 0; word < HV_SLOT_BITMAP_WORDS; word++)
        processes += (uint32_t)__builtin_popcountll(hv_load_relaxed(&slots->occupancy->bits[word]));
    if (hv_load_relaxed_32(&kept->processes) != processes) /* a line that every thread reads */
        hv_store_relaxed_32(&kept->processes, processes);
}

bool hv_kept_take(struct hv_kept *kept, uint32_t stripe, uint32_t device, uint64_t n)
{
    uint64_t *word = &kept->stripes[stripe % HV_KEPT_STRIPES].bytes[device];
    uint64_t bytes = hv_load_relaxed(word); /* carries no other data */
    while (bytes >= n)
        if (hv_cas_relaxed(word, &bytes, bytes - n))
            return true;
    return false;
}

bool hv_kept_put(struct hv_kept *kept, uint32_t stripe, uint32_t device, uint64_t n, uint64_t most)
{
    uint64_t *word = &kept->stripes[stripe % HV_KEPT_STRIPES].bytes[device];
    uint64_t bytes = hv_load_relaxed(word);
    while (n <= most && bytes <= most - n)
        if (hv_cas_relaxed(word, &bytes, bytes + n))
            return true;
    return false;
}

uint64_t hv_kept_empty(struct hv_kept *kept, uint32_t device)
{
    uint64_t sum = 0;
    for (uint32_t stripe = 0; stripe < HV_KEPT_STRIPES; stripe++)
        sum += hv_exchange_acq_rel(&kept->stripes[stripe].bytes[device], 0);
    return sum;
}

uint64_t hv_kept_sum(const struct hv_kept *kept, uint32_t device)
{
    uint64_t sum = 0;
    for (uint32_t stripe = 0; stripe < HV_KEPT_STRIPES; stripe++)
        sum += hv_load_relaxed(&kept->stripes[stripe].bytes[device]);
    return sum;
}
