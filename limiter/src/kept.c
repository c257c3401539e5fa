#include "kept.h"

#include "hypervisor_atomics.h"

#define PROCESSES_COUNTED_ON 64
#define FRACTION_OF_LIMIT 1000

uint64_t hv_kept_most(uint64_t limit_bytes)
{
    return limit_bytes / (UINT64_C(1) * PROCESSES_COUNTED_ON * HV_KEPT_STRIPES * FRACTION_OF_LIMIT);
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
