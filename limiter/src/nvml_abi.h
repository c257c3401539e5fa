/* As much of NVML's ABI as the limiter touches, declared by us. */
#ifndef HV_NVML_ABI_H
#define HV_NVML_ABI_H

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_LIBRARY_NOT_FOUND = 12,
};

typedef void *nvmlDevice_t;

typedef struct {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_v2_t;

/* The version word of the struct above: its size and a 2. */
#define NVML_MEMORY_V2 ((unsigned int)sizeof(nvmlMemory_v2_t) | 2u << 24)

typedef struct {
    unsigned int gpu;    /* percent */
    unsigned int memory; /* percent */
} nvmlUtilization_t;

typedef struct {
    unsigned int slices[8]; /* engines and slices of the instance */
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

/* What lists of processes are made of; each row begins with, or has at an
 * offset, the pid. */
typedef struct {
    unsigned int version;
    unsigned int mode;
    unsigned int count;
    void *processes;
} nvmlProcessDetailList_t;

typedef struct {
    unsigned int version;
    unsigned int count;
    unsigned long long lastSeenTimeStamp;
    void *processes;
} nvmlProcessesUtilizationInfo_t;

#define NVML_UUID_BYTES 96

#endif
