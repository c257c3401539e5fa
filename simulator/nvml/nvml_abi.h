/* What a caller of libnvidia-ml.so.1 hands over and gets back: the binary interface, in our own words.
 *
 * Only what is implemented here is declared. Sizes are asserted: a caller was compiled against NVIDIA's
 * header, and a structure of another size shuffles its fields silently. A versioned structure carries
 * `version` = its size | version number << 24, set by the caller and checked by us.
 */
#ifndef SIM_NVML_ABI_H
#define SIM_NVML_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_ALREADY_INITIALIZED = 5,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_INSUFFICIENT_POWER = 8,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_IRQ_ISSUE = 11,
    NVML_ERROR_LIBRARY_NOT_FOUND = 12,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_CORRUPTED_INFOROM = 14,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_OPERATING_SYSTEM = 17,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_NO_DATA = 21,
    NVML_ERROR_VGPU_ECC_NOT_SUPPORTED = 22,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_FREQ_NOT_SUPPORTED = 24,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_DEPRECATED = 26,
    NVML_ERROR_NOT_READY = 27,
    NVML_ERROR_GPU_NOT_FOUND = 28,
    NVML_ERROR_INVALID_STATE = 29,
    NVML_ERROR_RESET_TYPE_NOT_SUPPORTED = 30,
    NVML_ERROR_UNKNOWN = 999,
};

typedef struct nvmlDevice_st *nvmlDevice_t;     /* one of this library's own rows: see library.c */
typedef struct nvmlEventSet_st *nvmlEventSet_t; /* see events.c */

#define NVML_STRUCT_VERSION(type, number) ((unsigned)(sizeof(type) | (size_t)(number) << 24))
#define NVML_SIZE_IS(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)

typedef struct { uint64_t total, free, used; } nvmlMemory_t;
NVML_SIZE_IS(nvmlMemory_t, 24);

typedef struct { unsigned version; uint64_t total, reserved, free, used; } nvmlMemory_v2_t;
NVML_SIZE_IS(nvmlMemory_v2_t, 40);

/* nameSpace: full path of a control group's directory. No limit: soft 0, hard 2^64 - 1. */
typedef struct { const char *nameSpace; uint64_t softLimit, hardLimit; } nvmlSetMemoryLimits_v1_t;
NVML_SIZE_IS(nvmlSetMemoryLimits_v1_t, 24);
typedef struct { const char *nameSpace; uint64_t softLimit, hardLimit, currentUsed; } nvmlGetMemoryLimits_v1_t;
NVML_SIZE_IS(nvmlGetMemoryLimits_v1_t, 32);

typedef struct { uint64_t total, free, used; } nvmlBAR1Memory_t;
NVML_SIZE_IS(nvmlBAR1Memory_t, 24);

typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
NVML_SIZE_IS(nvmlUtilization_t, 8);

/* The unsuffixed process list of old: no instance ids. By name that is what dlsym users get. */
typedef struct { unsigned pid; uint64_t used_bytes; } nvmlProcessInfo_v1_t;
NVML_SIZE_IS(nvmlProcessInfo_v1_t, 16);

/* Both _v2 and _v3. */
typedef struct { unsigned pid; uint64_t used_bytes; unsigned gpu_instance, compute_instance; } nvmlProcessInfo_v2_t;
NVML_SIZE_IS(nvmlProcessInfo_v2_t, 24);

typedef struct {
    unsigned pid;
    uint64_t used_bytes;
    unsigned gpu_instance, compute_instance;
    uint64_t used_protected_bytes;
} nvmlProcessDetail_v1_t;
NVML_SIZE_IS(nvmlProcessDetail_v1_t, 32);

typedef struct { unsigned version, mode, count; nvmlProcessDetail_v1_t *processes; } nvmlProcessDetailList_v1_t;
NVML_SIZE_IS(nvmlProcessDetailList_v1_t, 24);

typedef struct { unsigned pid; uint64_t time_us; unsigned sm, memory, encoder, decoder; } nvmlProcessUtilizationSample_t;
NVML_SIZE_IS(nvmlProcessUtilizationSample_t, 32);

typedef struct { uint64_t time_us; unsigned pid, sm, memory, encoder, decoder, jpeg, optical_flow; } nvmlProcessUtilizationInfo_v1_t;
NVML_SIZE_IS(nvmlProcessUtilizationInfo_v1_t, 40);

typedef struct {
    unsigned version, count;
    uint64_t last_seen_us;
    nvmlProcessUtilizationInfo_v1_t *processes;
} nvmlProcessesUtilizationInfo_v1_t;
NVML_SIZE_IS(nvmlProcessesUtilizationInfo_v1_t, 24);

typedef union {
    double real;
    unsigned u32;
    uint64_t u64;
    int64_t s64;
    int s32;
} nvmlValue_t;
NVML_SIZE_IS(nvmlValue_t, 8);
enum nvml_value_type { NVML_VALUE_DOUBLE = 0, NVML_VALUE_U32 = 1, NVML_VALUE_ULONG = 2, NVML_VALUE_U64 = 3, NVML_VALUE_S64 = 4, NVML_VALUE_S32 = 5 };

typedef struct { uint64_t time_us; nvmlValue_t value; } nvmlSample_t;
NVML_SIZE_IS(nvmlSample_t, 16);

typedef struct {
    unsigned field, scope;
    int64_t time_us, latency_us;
    unsigned value_type;
    nvmlReturn_t result;
    nvmlValue_t value;
} nvmlFieldValue_t;
NVML_SIZE_IS(nvmlFieldValue_t, 40);

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t; /* _v3 */
NVML_SIZE_IS(nvmlPciInfo_t, 68);

typedef struct {
    char bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    unsigned reserved[4];
} nvmlPciInfo_v2_t; /* _v2 and unsuffixed: the caller's room is no larger */
NVML_SIZE_IS(nvmlPciInfo_v2_t, 52);

typedef struct {
    unsigned version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
    char bus_id[32];
} nvmlPciInfoExt_v1_t;
NVML_SIZE_IS(nvmlPciInfoExt_v1_t, 64);

typedef struct {
    nvmlDevice_t device;
    uint64_t type, data;
    unsigned gpu_instance, compute_instance;
} nvmlEventData_t; /* _v2 */
NVML_SIZE_IS(nvmlEventData_t, 32);

typedef struct { nvmlDevice_t device; uint64_t type, data; } nvmlEventData_v1_t;
NVML_SIZE_IS(nvmlEventData_v1_t, 24);

typedef struct { unsigned version, sensor; int celsius; } nvmlTemperature_v1_t;
NVML_SIZE_IS(nvmlTemperature_v1_t, 12);

typedef struct { unsigned version; int celsius; } nvmlMarginTemperature_v1_t;
NVML_SIZE_IS(nvmlMarginTemperature_v1_t, 8);

typedef struct { unsigned version, supported; } nvmlGpmSupport_t;
NVML_SIZE_IS(nvmlGpmSupport_t, 8);

typedef struct { unsigned version, value; } nvmlDeviceAddressingMode_t;
NVML_SIZE_IS(nvmlDeviceAddressingMode_t, 8);

typedef struct { unsigned version; char branch[80]; } nvmlSystemDriverBranchInfo_v1_t;
NVML_SIZE_IS(nvmlSystemDriverBranchInfo_v1_t, 84);

typedef struct {
    unsigned version, type;
    union { char text[41]; unsigned char bytes[16]; } value;
} nvmlUUID_t;
NVML_SIZE_IS(nvmlUUID_t, 52);

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, optical_flow, gpu_slices, compute_slices;
    uint64_t memory_mib;
} nvmlDeviceAttributes_t;
NVML_SIZE_IS(nvmlDeviceAttributes_t, 40);

typedef struct { unsigned char cluster_uuid[16]; nvmlReturn_t status; unsigned clique, state; } nvmlGpuFabricInfo_t;
NVML_SIZE_IS(nvmlGpuFabricInfo_t, 28);

typedef struct {
    unsigned version;
    unsigned char cluster_uuid[16];
    nvmlReturn_t status;
    unsigned clique, state, health_mask;
} nvmlGpuFabricInfo_v2_t;
NVML_SIZE_IS(nvmlGpuFabricInfo_v2_t, 36);

typedef struct {
    unsigned version;
    unsigned char cluster_uuid[16];
    nvmlReturn_t status;
    unsigned clique, state, health_mask;
    unsigned char health_summary;
} nvmlGpuFabricInfo_v3_t;
NVML_SIZE_IS(nvmlGpuFabricInfo_v3_t, 40);

/* ---- MIG ---- */

typedef struct nvmlGpuInstance_st *nvmlGpuInstance_t;         /* rows of gpu_instance.c */
typedef struct nvmlComputeInstance_st *nvmlComputeInstance_t; /* rows of compute_instance.c */

typedef struct { unsigned start, size; } nvmlPlacement_t; /* of GPU and compute instances alike */
NVML_SIZE_IS(nvmlPlacement_t, 8);

typedef struct {
    unsigned id, peers, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, optical_flow;
    uint64_t memory_mib;
} nvmlGpuInstanceProfileInfo_t;
NVML_SIZE_IS(nvmlGpuInstanceProfileInfo_t, 48);

typedef struct {
    unsigned version, id, peers, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, optical_flow;
    uint64_t memory_mib;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;
NVML_SIZE_IS(nvmlGpuInstanceProfileInfo_v2_t, 152);

/* Without the word for peers, with one of capabilities at the end. */
typedef struct {
    unsigned version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, optical_flow;
    uint64_t memory_mib;
    char name[96];
    unsigned capabilities;
} nvmlGpuInstanceProfileInfo_v3_t;
NVML_SIZE_IS(nvmlGpuInstanceProfileInfo_v3_t, 152);

typedef struct { nvmlDevice_t device; unsigned id, profile; nvmlPlacement_t placement; } nvmlGpuInstanceInfo_t;
NVML_SIZE_IS(nvmlGpuInstanceInfo_t, 24);

typedef struct { unsigned id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, optical_flow; } nvmlComputeInstanceProfileInfo_t;
NVML_SIZE_IS(nvmlComputeInstanceProfileInfo_t, 36);

typedef struct {
    unsigned version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, optical_flow;
    char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;
NVML_SIZE_IS(nvmlComputeInstanceProfileInfo_v2_t, 136);

typedef struct {
    unsigned version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, optical_flow;
    char name[96];
    unsigned capabilities;
} nvmlComputeInstanceProfileInfo_v3_t;
NVML_SIZE_IS(nvmlComputeInstanceProfileInfo_v3_t, 140);

typedef struct { nvmlDevice_t device; nvmlGpuInstance_t instance; unsigned id, profile; } nvmlComputeInstanceInfo_v1_t;
NVML_SIZE_IS(nvmlComputeInstanceInfo_v1_t, 24);

typedef struct { nvmlDevice_t device; nvmlGpuInstance_t instance; unsigned id, profile; nvmlPlacement_t placement; } nvmlComputeInstanceInfo_t; /* _v2 */
NVML_SIZE_IS(nvmlComputeInstanceInfo_t, 32);

/* ---- GPM ---- */

typedef struct nvmlGpmSample_st *nvmlGpmSample_t; /* see gpm.c */
typedef struct {
    unsigned metric;
    nvmlReturn_t result;
    double value;
    const char *short_name, *long_name, *unit;
} nvmlGpmMetric_t;
NVML_SIZE_IS(nvmlGpmMetric_t, 40);
typedef struct {
    unsigned version, count;
    nvmlGpmSample_t first, second;
    nvmlGpmMetric_t metrics[]; /* as many as the caller's header has; `count` of them are asked for */
} nvmlGpmMetricsGet_t;
NVML_SIZE_IS(nvmlGpmMetricsGet_t, 24);

typedef struct {
    unsigned gpu, memory;
    uint64_t peak_bytes, time_ms, start_us;
    unsigned running, reserved[5];
} nvmlAccountingStats_t;
NVML_SIZE_IS(nvmlAccountingStats_t, 56);

typedef struct { uint64_t reference_us, violation_ns; } nvmlViolationTime_t;
NVML_SIZE_IS(nvmlViolationTime_t, 16);

typedef struct {
    unsigned version;
    uint64_t aggregate_parity, aggregate_secded, aggregate_corrected, volatile_parity, volatile_secded, volatile_corrected;
    uint64_t aggregate_l2, aggregate_sm, aggregate_pcie, aggregate_microcontroller, aggregate_other;
    unsigned threshold_exceeded;
} nvmlEccSramErrorStatus_v1_t;
NVML_SIZE_IS(nvmlEccSramErrorStatus_v1_t, 104);

typedef struct { unsigned version, unrepairable; } nvmlUnrepairableMemory_v1_t;

typedef struct { unsigned max, high, partial, low, none; } nvmlRowRemapperHistogramValues_t;
NVML_SIZE_IS(nvmlRowRemapperHistogramValues_t, 20);

typedef struct { uint64_t l1, l2, device_memory, register_file; } nvmlEccErrorCounts_t;
NVML_SIZE_IS(nvmlEccErrorCounts_t, 32);

#endif
