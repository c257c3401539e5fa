/* Device memory: what is there, what is held. The ledger is the one that libcuda writes. */
#include "library.h"

/* Under a "stale" fault the bytes in use stand still, and the free ones with them. */
static uint64_t used_bytes(struct nvml_call *call, struct sim_gpu_reading *reading)
{
    const uint64_t used = call_u64(call, reading->used_bytes);
    if (call->fault.action == SIM_FAULT_STALE)
        reading->free_bytes = reading->info.memory_total_bytes - reading->info.memory_reserved_bytes - used;
    return used;
}

/* A MIG device has the memory of its GPU instance, and nothing of it is reserved. */
static void narrow(const struct nvml_call *call, const struct sim_mig_device *instance, struct sim_gpu_reading *reading)
{
    if (call->compute == SIM_NONE)
        return;
    reading->info.memory_total_bytes = instance->memory_bytes;
    reading->info.memory_reserved_bytes = 0;
    reading->used_bytes = instance->used_bytes;
    reading->free_bytes = instance->memory_bytes > instance->used_bytes ? instance->memory_bytes - instance->used_bytes : 0;
}

/* What a process held is given back when it has ended, before anybody can ask. */
#define READING_OF_THE_LIVING(call, reading) \
    sim_machine_reap((call).machine);        \
    READING(call, reading)

/* Old form: what firmware and driver hold counts as used, so an idle GPU is never quite empty. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    READING_OF_THE_LIVING(call, reading);
    narrow(&call, &instance, &reading);
    REQUIRE(call, out != NULL);
    const uint64_t used = used_bytes(&call, &reading);
    out->total = call_further_u64(&call, reading.info.memory_total_bytes);
    out->free = call_further_u64(&call, reading.free_bytes);
    out->used = call_further_u64(&call, used + reading.info.memory_reserved_bytes);
    return call_end(&call, NVML_SUCCESS);
}

/* New form: reserved stands by itself, and free + used + reserved = total. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    READING_OF_THE_LIVING(call, reading);
    narrow(&call, &instance, &reading);
    REQUIRE(call, out != NULL);
    if (out->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return call_end(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    out->used = used_bytes(&call, &reading);
    out->total = call_further_u64(&call, reading.info.memory_total_bytes);
    out->reserved = call_further_u64(&call, reading.info.memory_reserved_bytes);
    out->free = call_further_u64(&call, reading.free_bytes);
    return call_end(&call, NVML_SUCCESS);
}

/* Each process that has a context maps a little of the window; a few MiB, as nvidia-smi shows it. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    DEVICE_OR_INSTANCE_CALL(call, device, instance);
    READING(call, reading);
    REQUIRE(call, out != NULL);
    if (call.compute != SIM_NONE) { /* the window is shared out as the memory is */
        reading.info.bar1_total_bytes = reading.info.bar1_total_bytes / reading.info.mig_memory_slices * instance.profile.memory_slices;
        reading.process_count = 0;
    }
    const uint64_t each = UINT64_C(2) << 20;
    uint64_t used = (1 + (uint64_t)reading.process_count) * each;
    if (used > reading.info.bar1_total_bytes)
        used = reading.info.bar1_total_bytes;
    out->total = call_further_u64(&call, reading.info.bar1_total_bytes);
    out->free = call_further_u64(&call, reading.info.bar1_total_bytes - used);
    out->used = call_u64(&call, used);
    return call_end(&call, NVML_SUCCESS);
}
