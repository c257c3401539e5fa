/* Memory errors, remapped rows, retired pages, fabric: what a health check reads. */
#include <string.h>

#include "library.h"

enum error_type { ERROR_CORRECTED = 0, ERROR_UNCORRECTED = 1 };
enum counter_type { COUNTER_VOLATILE = 0, COUNTER_AGGREGATE = 1 };

static uint64_t memory_count(const struct sim_gpu_info *info, unsigned error, unsigned counter)
{
    if (error == ERROR_CORRECTED)
        return counter == COUNTER_VOLATILE ? info->ecc_corrected_volatile : info->ecc_corrected_aggregate;
    return counter == COUNTER_VOLATILE ? info->ecc_uncorrected_volatile : info->ecc_uncorrected_aggregate;
}

static uint64_t sram_count(const struct sim_gpu_info *info, unsigned error, unsigned counter)
{
    if (error == ERROR_CORRECTED)
        return counter == COUNTER_VOLATILE ? info->sram_corrected_volatile : info->sram_corrected_aggregate;
    return counter == COUNTER_VOLATILE ? info->sram_uncorrected_volatile : info->sram_uncorrected_aggregate;
}

/* Of the whole GPU. */
static uint64_t ecc_count(const struct sim_gpu_info *info, unsigned error, unsigned counter) { return memory_count(info, error, counter) + sram_count(info, error, counter); }

static nvmlReturn_t check_ecc(struct nvml_call *call, const struct sim_gpu_info *info, unsigned error, unsigned counter)
{
    REQUIRE((*call), error <= ERROR_UNCORRECTED && counter <= COUNTER_AGGREGATE);
    return info->ecc_supported == 0 || info->ecc_mode == 0 ? call_end(call, NVML_ERROR_NOT_SUPPORTED) : NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned error, unsigned counter, uint64_t *count)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    if (check_ecc(&call, &reading.info, error, counter) != NVML_SUCCESS)
        return call.result;
    return give_u64(&call, count, ecc_count(&reading.info, error, counter));
}

/* All errors happen in device memory, or in SRAM without saying in which. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned error, unsigned counter, unsigned location, uint64_t *count)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    READING(call, reading);
    const unsigned locations = 8, device_memory = 2, sram = 7;
    REQUIRE(call, location < locations);
    if (check_ecc(&call, &reading.info, error, counter) != NVML_SUCCESS)
        return call.result;
    return give_u64(&call, count, location == device_memory ? memory_count(&reading.info, error, counter) : location == sram ? sram_count(&reading.info, error, counter) : 0);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, unsigned error, unsigned counter, nvmlEccErrorCounts_t *counts)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, counts != NULL);
    if (check_ecc(&call, &reading.info, error, counter) != NVML_SUCCESS)
        return call.result;
    *counts = (nvmlEccErrorCounts_t){.device_memory = call_u64(&call, memory_count(&reading.info, error, counter))};
    return call_end(&call, NVML_SUCCESS);
}

#define AMPERE 7u /* from here on rows are remapped; before, pages were retired */

/* Uncorrected errors of SRAM are taken to be ones that two bits make, and to happen in the SMs. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_v1_t *out)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, out != NULL);
    if (reading.info.architecture < AMPERE || reading.info.ecc_supported == 0 || reading.info.ecc_mode == 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    if (out->version != NVML_STRUCT_VERSION(nvmlEccSramErrorStatus_v1_t, 1))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    *out = (nvmlEccSramErrorStatus_v1_t){.version = out->version, .aggregate_secded = reading.info.sram_uncorrected_aggregate, .aggregate_corrected = reading.info.sram_corrected_aggregate,
        .volatile_secded = reading.info.sram_uncorrected_volatile, .volatile_corrected = reading.info.sram_corrected_volatile,
        .aggregate_sm = reading.info.sram_uncorrected_aggregate, .threshold_exceeded = call_u32(&call, reading.info.sram_threshold_exceeded)};
    return call_end(&call, NVML_SUCCESS);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, corrected != NULL && uncorrected != NULL && pending != NULL && failed != NULL);
    if (reading.info.architecture < AMPERE || reading.info.ecc_supported == 0 || reading.info.mig_mode != 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    *corrected = call_u32(&call, reading.info.remapped_corrected);
    *uncorrected = call_further_u32(&call, reading.info.remapped_uncorrected);
    *pending = call_further_u32(&call, reading.info.remap_pending);
    *failed = call_further_u32(&call, reading.info.remap_failed);
    return call_end(&call, NVML_SUCCESS);
}

/* Banks by the spare rows they have left; each remapped row is taken to be of another bank. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *out)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, out != NULL);
    if (reading.info.architecture < AMPERE || reading.info.ecc_supported == 0 || reading.info.mig_mode != 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    const unsigned banks = 640;
    unsigned used = reading.info.remapped_corrected + reading.info.remapped_uncorrected;
    if (used > banks)
        used = banks;
    *out = (nvmlRowRemapperHistogramValues_t){.max = banks - used, .high = used};
    if (reading.info.remap_failed != 0 && used > 0) {
        out->high--;
        out->none++;
    }
    out->max = call_u32(&call, out->max);
    out->high = call_further_u32(&call, out->high);
    out->none = call_further_u32(&call, out->none);
    return call_end(&call, NVML_SUCCESS);
}

static nvmlReturn_t check_retirement(struct nvml_call *call)
{
    READING((*call), reading);
    return reading.info.architecture >= AMPERE || reading.info.ecc_supported == 0 ? call_end(call, NVML_ERROR_NOT_SUPPORTED) : NVML_SUCCESS;
}

/* The machine knows how many pages are retired; addresses and times are made up, the same each time. */
static nvmlReturn_t give_pages(struct nvml_call *call, unsigned cause, unsigned *count, uint64_t *addresses, uint64_t *times)
{
    if (check_retirement(call) != NVML_SUCCESS)
        return call->result;
    enum { SINGLE_BIT = 0, DOUBLE_BIT = 1 };
    REQUIRE((*call), cause <= DOUBLE_BIT && count != NULL);
    READING((*call), reading);
    const unsigned pages = call_u32(call, cause == SINGLE_BIT ? reading.info.retired_single : reading.info.retired_double);
    const bool fits = *count >= pages && (addresses != NULL || pages == 0);
    const uint64_t page_bytes = 0x10000, first = cause == SINGLE_BIT ? 0x1000 : 0x8000;
    for (unsigned page = 0; fits && page < pages; page++) {
        addresses[page] = (first + page) * page_bytes;
        if (times != NULL)
            times[page] = call_time_us(call, 0) / 1000000;
    }
    *count = pages;
    return call_end(call, fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count, uint64_t *addresses)
{
    DEVICE_CALL(call, device);
    return give_pages(&call, cause, count, addresses, NULL);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned cause, unsigned *count, uint64_t *addresses, uint64_t *times)
{
    DEVICE_CALL(call, device);
    return give_pages(&call, cause, count, addresses, times);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending)
{
    DEVICE_CALL(call, device);
    if (check_retirement(&call) != NVML_SUCCESS)
        return call.result;
    READING(call, reading);
    return give_u32(&call, pending, reading.info.retire_pending);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, nvmlUnrepairableMemory_v1_t *out)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, out != NULL);
    if (reading.info.ecc_supported == 0)
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);
    if (out->version != NVML_STRUCT_VERSION(nvmlUnrepairableMemory_v1_t, 1))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    return give_u32(&call, &out->unrepairable, reading.info.unrepairable);
}

/* Volatile or aggregate counters begin anew. */
NVML_EXPORT nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, unsigned counter)
{
    DEVICE_CALL(call, device);
    struct sim_gpu_reading reading;
    REQUIRE(call, counter <= COUNTER_AGGREGATE);
    if (change_begin(&call, &reading) != NVML_SUCCESS)
        return call.result;
    if (check_ecc(&call, &reading.info, ERROR_CORRECTED, counter) != NVML_SUCCESS)
        return call.result;
    if (counter == COUNTER_VOLATILE)
        reading.info.ecc_corrected_volatile = reading.info.ecc_uncorrected_volatile = reading.info.sram_corrected_volatile = reading.info.sram_uncorrected_volatile = 0;
    else
        reading.info.ecc_corrected_aggregate = reading.info.ecc_uncorrected_aggregate = reading.info.sram_corrected_aggregate = reading.info.sram_uncorrected_aggregate = 0;
    return change_end(&call, &reading.info);
}

/* ---- fabric ---- */

#define FABRIC_COMPLETED 3u

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, out != NULL);
    memcpy(out->cluster_uuid, reading.info.fabric_cluster_uuid, sizeof out->cluster_uuid);
    out->status = (nvmlReturn_t)reading.info.fabric_status; /* an NVML code */
    out->clique = reading.info.fabric_clique_id;
    out->state = call_u32(&call, reading.info.fabric_state);
    return call_end(&call, NVML_SUCCESS);
}

/* Each condition has two bits where 1 is yes and 2 is no; bad configuration has four where 1 is none. */
static unsigned healthy_mask(const struct sim_gpu_info *info)
{
    const unsigned no = 2, none = 1;
    if (info->fabric_health != 0)
        return info->fabric_health;
    return info->fabric_state == FABRIC_COMPLETED ? no | no << 2 | no << 4 | no << 6 | none << 8 : 0;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *out)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, out != NULL);
    const bool third = out->version == NVML_STRUCT_VERSION(nvmlGpuFabricInfo_v3_t, 3);
    if (!third && out->version != NVML_STRUCT_VERSION(nvmlGpuFabricInfo_v2_t, 2))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    memcpy(out->cluster_uuid, reading.info.fabric_cluster_uuid, sizeof out->cluster_uuid);
    out->status = (nvmlReturn_t)reading.info.fabric_status; /* an NVML code */
    out->clique = reading.info.fabric_clique_id;
    out->state = call_u32(&call, reading.info.fabric_state);
    out->health_mask = healthy_mask(&reading.info);
    if (third) /* beyond the end of the second version */
        out->health_summary = reading.info.fabric_state != FABRIC_COMPLETED ? 0 : reading.info.fabric_health == 0 ? 1 : 2;
    return call_end(&call, NVML_SUCCESS);
}
_Static_assert(offsetof(nvmlGpuFabricInfo_v3_t, health_summary) == sizeof(nvmlGpuFabricInfo_v2_t), "version 3 begins as version 2 does");
