/* Field values: the readings that have a number instead of a function. */
#include "library.h"

enum field {
    FIELD_ECC_CURRENT = 1, FIELD_ECC_PENDING = 2,
    FIELD_ECC_CORRECTED_VOLATILE = 3, FIELD_ECC_UNCORRECTED_VOLATILE = 4,
    FIELD_ECC_CORRECTED_AGGREGATE = 5, FIELD_ECC_UNCORRECTED_AGGREGATE = 6,
    FIELD_RETIRED_SINGLE = 29, FIELD_RETIRED_DOUBLE = 30, FIELD_RETIRE_PENDING = 31,
    FIELD_THROTTLED_POWER = 74, FIELD_THROTTLED_THERMAL = 75, FIELD_THROTTLED_SYNC_BOOST = 76,
    FIELD_MEMORY_TEMPERATURE = 82,
    FIELD_ENERGY = 83,
    FIELD_LINK_SPEED_COMMON = 90,
    FIELD_LINK_COUNT = 91,
    FIELD_PCIE_REPLAYS = 94,
    FIELD_LINK_DATA_SENT = 138, FIELD_LINK_DATA_RECEIVED = 139, FIELD_LINK_RAW_SENT = 140, FIELD_LINK_RAW_RECEIVED = 141,
    FIELD_REMAPPED_CORRECTED = 142, FIELD_REMAPPED_UNCORRECTED = 143, FIELD_REMAP_PENDING = 144, FIELD_REMAP_FAILED = 145,
    FIELD_LINK_REMOTE_ID = 146,
    FIELD_SWITCH_LINK_COUNT = 147,
    FIELD_LINK_REPLAY_ERRORS = 161, FIELD_LINK_RECOVERY_ERRORS = 162, FIELD_LINK_CRC_ERRORS = 163,
    FIELD_LINK_SPEED = 164, FIELD_LINK_STATE = 165, FIELD_LINK_VERSION = 166,
    FIELD_POWER_AVERAGE = 185, FIELD_POWER_INSTANT = 186,
    FIELD_POWER_LIMIT_MIN = 187, FIELD_POWER_LIMIT_MAX = 188, FIELD_POWER_LIMIT_DEFAULT = 189,
    FIELD_POWER_LIMIT_CURRENT = 190, FIELD_POWER_LIMIT_REQUESTED = 192,
    FIELD_ENERGY_OF_SCOPE = 191,
    FIELD_PCIE_SENT = 197, FIELD_PCIE_RECEIVED = 198,
    FIELD_RECOVERY_ACTION = 230,
    FIELD_THROTTLED_SW_THERMAL = 269, FIELD_THROTTLED_HW_THERMAL = 270, FIELD_THROTTLED_POWER_BRAKE = 271,
    FIELD_LAST = 307, /* beyond this, a number is no field at all */
};

static void set_u32(nvmlFieldValue_t *field, struct nvml_call *call, uint32_t value)
{
    field->value_type = NVML_VALUE_U32;
    field->value = (nvmlValue_t){.u32 = call_further_u32(call, value)};
}

static void set_u64(nvmlFieldValue_t *field, struct nvml_call *call, uint64_t value)
{
    field->value_type = NVML_VALUE_U64;
    field->value = (nvmlValue_t){.u64 = call_further_u64(call, value)};
}

static nvmlReturn_t read_ecc(struct nvml_call *call, const struct sim_gpu_info *info, nvmlFieldValue_t *field)
{
    if (info->ecc_supported == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    switch (field->field) {
    case FIELD_ECC_CURRENT:
        set_u32(field, call, info->ecc_mode);
        return NVML_SUCCESS;
    case FIELD_ECC_PENDING:
        set_u32(field, call, info->ecc_pending_mode);
        return NVML_SUCCESS;
    case FIELD_ECC_CORRECTED_VOLATILE:
        set_u64(field, call, (uint64_t)info->ecc_corrected_volatile + info->sram_corrected_volatile);
        return NVML_SUCCESS;
    case FIELD_ECC_UNCORRECTED_VOLATILE:
        set_u64(field, call, (uint64_t)info->ecc_uncorrected_volatile + info->sram_uncorrected_volatile);
        return NVML_SUCCESS;
    case FIELD_ECC_CORRECTED_AGGREGATE:
        set_u64(field, call, (uint64_t)info->ecc_corrected_aggregate + info->sram_corrected_aggregate);
        return NVML_SUCCESS;
    default:
        set_u64(field, call, (uint64_t)info->ecc_uncorrected_aggregate + info->sram_uncorrected_aggregate);
        return NVML_SUCCESS;
    }
}

static nvmlReturn_t read_remapping(struct nvml_call *call, const struct sim_gpu_info *info, nvmlFieldValue_t *field)
{
    const unsigned ampere = 7;
    if (info->architecture < ampere || info->ecc_supported == 0 || info->mig_mode != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    const uint32_t values[] = {info->remapped_corrected, info->remapped_uncorrected, info->remap_pending, info->remap_failed};
    set_u32(field, call, values[field->field - FIELD_REMAPPED_CORRECTED]);
    return NVML_SUCCESS;
}

/* The fields of one link, named by the scope. */
static nvmlReturn_t read_link(struct nvml_call *call, const struct sim_gpu_info *info, nvmlFieldValue_t *field)
{
    if (info->link_count == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (field->scope >= info->link_count || info->links[field->scope].present == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    const struct sim_link *link = &info->links[field->scope];
    switch (field->field) {
    case FIELD_LINK_REMOTE_ID:
        if (link->active == 0)
            return NVML_ERROR_NOT_SUPPORTED;
        set_u32(field, call, link->remote_link);
        return NVML_SUCCESS;
    case FIELD_LINK_SPEED:
        set_u32(field, call, link->active != 0 ? link->speed_mbps : 0);
        return NVML_SUCCESS;
    case FIELD_LINK_STATE:
        set_u32(field, call, link->active);
        return NVML_SUCCESS;
    case FIELD_LINK_VERSION:
        set_u32(field, call, link->version);
        return NVML_SUCCESS;
    case FIELD_LINK_REPLAY_ERRORS:
        set_u64(field, call, link->replay_errors);
        return NVML_SUCCESS;
    case FIELD_LINK_RECOVERY_ERRORS:
        set_u64(field, call, link->recovery_errors);
        return NVML_SUCCESS;
    default:
        set_u64(field, call, link->crc_errors);
        return NVML_SUCCESS;
    }
}

static nvmlReturn_t read_links(struct nvml_call *call, const struct sim_gpu_info *info, nvmlFieldValue_t *field)
{
    unsigned active_switch_links = 0;
    uint32_t speed = 0;
    for (uint32_t at = 0; at < info->link_count; at++) {
        const struct sim_link *link = &info->links[at];
        if (link->active != 0) {
            active_switch_links += link->remote_type == SIM_REMOTE_SWITCH;
            speed = link->speed_mbps;
        }
    }
    switch (field->field) {
    case FIELD_LINK_COUNT: /* of a GPU without links too: 0 */
        set_u32(field, call, info->link_count);
        return NVML_SUCCESS;
    case FIELD_SWITCH_LINK_COUNT:
        set_u32(field, call, active_switch_links);
        return info->link_count == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
    default:
        set_u32(field, call, speed);
        return info->link_count == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
    }
}

/* KiB over one link, or with the largest scope over all. What crossed is taken to be spread evenly. */
static nvmlReturn_t read_traffic(struct nvml_call *call, const struct sim_gpu_reading *reading, nvmlFieldValue_t *field)
{
    const struct sim_gpu_info *info = &reading->info;
    const bool sent = field->field == FIELD_LINK_DATA_SENT || field->field == FIELD_LINK_RAW_SENT;
    const uint64_t bytes = sent ? reading->peer_out_bytes : reading->peer_in_bytes;
    uint64_t active = 0;
    if (info->link_count == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    for (uint32_t at = 0; at < info->link_count; at++)
        active += info->links[at].active != 0;
    if (field->scope == UINT32_MAX) {
        set_u64(field, call, bytes / 1024);
        return NVML_SUCCESS;
    }
    if (field->scope >= info->link_count || info->links[field->scope].present == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    set_u64(field, call, info->links[field->scope].active != 0 ? bytes / active / 1024 : 0); /* one is active: not by zero */
    return NVML_SUCCESS;
}

/* Pages were retired before rows were remapped. */
static nvmlReturn_t read_retirement(struct nvml_call *call, const struct sim_gpu_info *info, nvmlFieldValue_t *field)
{
    const unsigned ampere = 7;
    if (info->architecture >= ampere || info->ecc_supported == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    const uint32_t values[] = {info->retired_single, info->retired_double, info->retire_pending};
    set_u64(field, call, values[field->field - FIELD_RETIRED_SINGLE]);
    return NVML_SUCCESS;
}

/* Time that a reason has held clocks down, in ns. */
static nvmlReturn_t read_throttling(struct nvml_call *call, const struct sim_gpu_reading *reading, nvmlFieldValue_t *field)
{
    enum { BIT_SW_POWER = 2, BIT_SYNC_BOOST = 4, BIT_SW_THERMAL = 5, BIT_HW_THERMAL = 6, BIT_POWER_BRAKE = 7 };
    const uint64_t *ns = reading->throttled_ns;
    switch (field->field) {
    case FIELD_THROTTLED_POWER:
        set_u64(field, call, ns[BIT_SW_POWER]);
        return NVML_SUCCESS;
    case FIELD_THROTTLED_THERMAL:
        set_u64(field, call, ns[BIT_SW_THERMAL] + ns[BIT_HW_THERMAL]);
        return NVML_SUCCESS;
    case FIELD_THROTTLED_SYNC_BOOST:
        set_u64(field, call, ns[BIT_SYNC_BOOST]);
        return NVML_SUCCESS;
    default:
        set_u64(field, call, ns[BIT_SW_THERMAL + field->field - FIELD_THROTTLED_SW_THERMAL]); /* the three follow each other in both */
        return NVML_SUCCESS;
    }
}

static nvmlReturn_t read_power(struct nvml_call *call, const struct sim_gpu_reading *reading, nvmlFieldValue_t *field)
{
    const struct sim_gpu_info *info = &reading->info;
    if (field->scope != 0) /* 0 is the GPU; module and memory have no sensor of their own */
        return NVML_ERROR_NOT_SUPPORTED;
    switch (field->field) {
    case FIELD_POWER_AVERAGE:
    case FIELD_POWER_INSTANT:
        set_u32(field, call, reading->power_mw);
        return NVML_SUCCESS;
    case FIELD_POWER_LIMIT_MIN:
        set_u32(field, call, info->power_limit_min_mw);
        return NVML_SUCCESS;
    case FIELD_POWER_LIMIT_MAX:
        set_u32(field, call, info->power_limit_max_mw);
        return NVML_SUCCESS;
    case FIELD_POWER_LIMIT_DEFAULT:
        set_u32(field, call, info->power_limit_default_mw);
        return NVML_SUCCESS;
    default:
        set_u32(field, call, info->power_limit_mw);
        return NVML_SUCCESS;
    }
}

static nvmlReturn_t read_field(struct nvml_call *call, const struct sim_gpu_reading *reading, nvmlFieldValue_t *field)
{
    const struct sim_gpu_info *info = &reading->info;
    switch (field->field) {
    case FIELD_ECC_CURRENT ... FIELD_ECC_UNCORRECTED_AGGREGATE:
        return read_ecc(call, info, field);
    case FIELD_MEMORY_TEMPERATURE:
        if (info->temperature_memory_c == SIM_NONE)
            return NVML_ERROR_NOT_SUPPORTED;
        set_u32(field, call, info->temperature_memory_c);
        return NVML_SUCCESS;
    case FIELD_ENERGY:
    case FIELD_ENERGY_OF_SCOPE:
        set_u64(field, call, reading->energy_mj);
        return NVML_SUCCESS;
    case FIELD_LINK_SPEED_COMMON:
    case FIELD_LINK_COUNT:
    case FIELD_SWITCH_LINK_COUNT:
        return read_links(call, info, field);
    case FIELD_PCIE_REPLAYS:
        set_u32(field, call, info->pcie_replays);
        return NVML_SUCCESS;
    case FIELD_PCIE_SENT:
        set_u64(field, call, reading->engine_bytes[SIM_ENGINE_D2H]);
        return NVML_SUCCESS;
    case FIELD_PCIE_RECEIVED:
        set_u64(field, call, reading->engine_bytes[SIM_ENGINE_H2D]);
        return NVML_SUCCESS;
    case FIELD_LINK_DATA_SENT ... FIELD_LINK_RAW_RECEIVED:
        return read_traffic(call, reading, field);
    case FIELD_RETIRED_SINGLE ... FIELD_RETIRE_PENDING:
        return read_retirement(call, info, field);
    case FIELD_THROTTLED_POWER ... FIELD_THROTTLED_SYNC_BOOST:
    case FIELD_THROTTLED_SW_THERMAL ... FIELD_THROTTLED_POWER_BRAKE:
        return read_throttling(call, reading, field);
    case FIELD_REMAPPED_CORRECTED ... FIELD_REMAP_FAILED:
        return read_remapping(call, info, field);
    case FIELD_LINK_REMOTE_ID:
    case FIELD_LINK_REPLAY_ERRORS ... FIELD_LINK_VERSION:
        return read_link(call, info, field);
    case FIELD_POWER_AVERAGE ... FIELD_POWER_LIMIT_CURRENT:
    case FIELD_POWER_LIMIT_REQUESTED:
        return read_power(call, reading, field);
    case FIELD_RECOVERY_ACTION: /* a row to be remapped asks for a reset by itself; a lost GPU does not get here */
        set_u32(field, call, info->recovery_action == 0 && info->remap_pending != 0 ? 1 : info->recovery_action);
        return NVML_SUCCESS;
    default:
        return field->field == 0 || field->field > FIELD_LAST ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
    }
}

/* The call succeeds whenever it can be made at all: each field carries its own result. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    DEVICE_CALL(call, device);
    READING(call, reading);
    REQUIRE(call, count > 0 && fields != NULL);
    for (int at = 0; at < count; at++) {
        fields[at].time_us = (int64_t)call_time_us(&call, reading.now_ns); /* far from overflow until the year 294000 */
        fields[at].latency_us = 0;
        fields[at].result = read_field(&call, &reading, &fields[at]);
    }
    return call_end(&call, NVML_SUCCESS);
}
