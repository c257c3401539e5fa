#include "functions.h"

#include <string.h>

struct hv_function *hv_function_enter(struct hv_function_table *table, uint64_t key, uint32_t device, uint32_t kind,
                                      const void *handle)
{
    uint32_t index = (uint32_t)(key >> (64 - HV_FUNCTIONS_LOG2));
    for (uint32_t probe = 0; probe < HV_FUNCTION_PROBES; probe++) {
        struct hv_function *entry = &table->entries[(index + probe) & (HV_FUNCTIONS - 1)];
        uint64_t found = 0;
        if (hv_cas_acq_rel(&entry->key, &found, key)) {
            hv_store_relaxed_32(&entry->device, device);
            hv_store_relaxed_32(&entry->kind, kind);
            hv_store_relaxed(&entry->handle, (uint64_t)(uintptr_t)handle);
            return entry;
        }
        if (found == key)
            return entry;
    }
    hv_store_relaxed_32(&table->overflow.device, device);
    return &table->overflow;
}

uint32_t hv_low_quantile(const uint32_t *times, uint32_t count)
{
    uint32_t sorted[HV_RECENT_SAMPLES];
    memcpy(sorted, times, count * sizeof *times);
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = i; j > 0 && sorted[j - 1] > sorted[j]; j--) {
            uint32_t larger = sorted[j - 1];
            sorted[j - 1] = sorted[j];
            sorted[j] = larger;
        }
    return sorted[count <= 8 ? (count - 1) / 4 : (count - 1) / 8];
}

void hv_function_learn(struct hv_function *function, uint64_t measured_ns, uint64_t now_ns)
{
    uint32_t samples = hv_load_relaxed_32(&function->samples);
    uint32_t measured = measured_ns == 0 ? 1 : measured_ns > UINT32_MAX ? UINT32_MAX : (uint32_t)measured_ns;
    function->recent_ns[samples % HV_RECENT_SAMPLES] = measured;
    samples++;
    hv_store_relaxed_32(&function->samples, samples);
    uint32_t count = samples < HV_RECENT_SAMPLES ? samples : HV_RECENT_SAMPLES;
    hv_store_relaxed(&function->cost_ns, hv_low_quantile(function->recent_ns, count));
    hv_store_relaxed(&function->sampled_at_ns, now_ns);
}
