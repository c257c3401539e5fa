/* A libnvidia-ml.so.1 with the oddities of drivers that the simulated one does not have: a divided card, a process
 * list of another layout under the newest name, reserved memory counted as used, memory of a process not told, and
 * most functions missing. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

#define GIB ((uint64_t)1 << 30)
#define UNKNOWN_BYTES UINT64_MAX

struct device {
    const char *uuid, *name, *bus_id;
    unsigned bus, gpu_instance, multiprocessors;
    int divided;
    uint64_t total;
};

/* 0: divided, 1: whole, 2 and 3: parts of the first. */
static struct device devices[] = {
    {"GPU-divided", "NVIDIA A100-SXM4-80GB", "00000000:10:00.0", 0x10, 0, 0, 1, 80 * GIB},
    {"GPU-whole", "NVIDIA A100-SXM4-80GB", "00000000:20:00.0", 0x20, 0, 0, 0, 80 * GIB},
    {"MIG-first", "NVIDIA A100-SXM4-80GB MIG 3g.40gb", "", 0, 2, 42, 0, 40 * GIB},
    {"MIG-second", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "", 0, 9, 14, 0, 10 * GIB},
};

static int text(char *out, unsigned room, const char *value)
{
    return snprintf(out, room, "%s", value) < (int)room ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlInitWithFlags(unsigned flags) { return flags == 0 ? SUCCESS : INVALID_ARGUMENT; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == SUCCESS ? "success" : "an error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned room) { return text(out, room, "535.54.03"); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **out)
{
    *out = &devices[index];
    return index < 2 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct device **out)
{
    *out = strncmp(bus_id, "0000:10", 7) == 0 ? &devices[0] : &devices[1];
    return SUCCESS;
}

int nvmlDeviceGetUUID(struct device *device, char *out, unsigned room) { return text(out, room, device->uuid); }
int nvmlDeviceGetName(struct device *device, char *out, unsigned room) { return text(out, room, device->name); }

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *out)
{
    *out = (struct pci){.bus = device->bus, .id = 0x20b210de};
    snprintf(out->bus_id, sizeof out->bus_id, "%s", device->bus_id);
    return device->bus == 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor)
{
    (void)device;
    *major = 8;
    *minor = 0;
    return SUCCESS;
}

int nvmlDeviceGetNumGpuCores(struct device *device, unsigned *cores)
{
    *cores = 108 * 64;
    return device->bus == 0 ? NOT_SUPPORTED : SUCCESS;
}

/* ---- parts ---- */

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
    *current = *pending = (unsigned)device->divided; /* 0 or 1 */
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count)
{
    *count = device->divided ? 7 : 0;
    return SUCCESS;
}

/* With holes, as after parts were removed. */
int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **out)
{
    if (!device->divided || (index != 1 && index != 5))
        return NOT_FOUND;
    *out = &devices[index == 1 ? 2 : 3];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *id)
{
    *id = device->gpu_instance;
    return device->multiprocessors ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetComputeInstanceId(struct device *device, unsigned *id)
{
    *id = 0;
    return device->multiprocessors ? SUCCESS : NOT_SUPPORTED;
}

struct attributes { unsigned multiprocessors, copy, decoder, encoder, jpeg, flow, slices, compute_slices; uint64_t mebibytes; };
int nvmlDeviceGetAttributes_v2(struct device *device, struct attributes *out)
{
    *out = (struct attributes){.multiprocessors = device->multiprocessors, .mebibytes = device->total >> 20};
    return device->multiprocessors ? SUCCESS : NOT_SUPPORTED;
}

/* ---- readings ---- */

struct memory_v2 { unsigned version; uint64_t total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *out)
{
    const uint64_t allocated = 3 * GIB, reserved = GIB / 2;
    out->total = device->total;
    out->reserved = reserved;
    out->used = allocated + reserved;
    out->free = device->total - out->used;
    return SUCCESS;
}

struct process_v2 { unsigned pid; uint64_t bytes; unsigned gpu_instance, compute_instance; };
static const struct process_v2 running[] = {
    {4001, 1 * GIB, UINT32_MAX, UINT32_MAX}, {4002, 2 * GIB, UINT32_MAX, UINT32_MAX}, {4003, UNKNOWN_BYTES, UINT32_MAX, UINT32_MAX},
};
enum { RUNNING = sizeof running / sizeof running[0] };

static int room_for(unsigned *count)
{
    const unsigned had = *count;
    *count = RUNNING;
    return had >= RUNNING ? SUCCESS : INSUFFICIENT_SIZE;
}

/* Eight bytes more an entry than the callers of this name know. */
struct process_535 { struct process_v2 known; uint64_t protected_bytes; };
int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count, struct process_535 *out)
{
    (void)device;
    if (room_for(count) != SUCCESS)
        return INSUFFICIENT_SIZE;
    for (unsigned at = 0; at < RUNNING; at++)
        out[at] = (struct process_535){running[at], 7 * GIB};
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(struct device *device, unsigned *count, struct process_v2 *out)
{
    (void)device;
    if (room_for(count) != SUCCESS)
        return INSUFFICIENT_SIZE;
    memcpy(out, running, sizeof running);
    return SUCCESS;
}
