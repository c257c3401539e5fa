/* Devices: names, attributes, PCI addresses, and which can reach which. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct sim_gpu_info *info_of(CUdevice device) { return &sim_here()->gpu[sim_driver.gpu_of[device]].info; }
static uint64_t total_memory(CUdevice device) { return sim_total_memory(sim_driver.gpu_of[device]); }
static const uint8_t *uuid_of(CUdevice device) { return sim_driver.on_instance ? sim_driver.instance.uuid_bytes : info_of(device)->uuid_bytes; }
static const char *name_of(CUdevice device) { return sim_driver.on_instance ? sim_driver.instance.name : info_of(device)->name; }

SIM_EXPORTED CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER_DEVICE(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetCount(int *count)
{
    ENTER();
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = (int)sim_faulty(sim_driver.device_count); /* at most SIM_MAX_GPUS, or what a fault says */
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetName(char *name, int length, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!name || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, "%s", sim_faulty(1) == 1 ? name_of(device) : "\x01\x7f?"); /* positive; a fault that changes figures spoils the text */
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, uuid_of(device), sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, uuid_of(device), sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = sim_faulty(total_memory(device));
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t total = total_memory(device);
    *bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned)total; /* the old 32-bit interface */
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!major || !minor)
        return CUDA_ERROR_INVALID_VALUE;
    *major = (int)info_of(device)->cc_major; /* small */
    *minor = (int)info_of(device)->cc_minor;
    return CUDA_SUCCESS;
}

/* One attribute: by its public number, either a figure of the GPU or a constant. */
#define MULTICAST_SUPPORTED 132

static int attribute(const struct sim_gpu_info *gpu, uint32_t sms, int number, int *value)
{
    int newer = gpu->cc_major >= 7;
    switch (number) {
    case 1: *value = 1024; break;                 /* threads per block */
    case 2: case 3: *value = 1024; break;         /* block x, y */
    case 4: *value = 64; break;                   /* block z */
    case 5: *value = INT32_MAX; break;            /* grid x */
    case 6: case 7: *value = 65535; break;        /* grid y, z */
    case 8: *value = 49152; break;                /* shared memory per block */
    case 9: *value = 65536; break;                /* constant memory */
    case 10: *value = 32; break;                  /* warp size */
    case 11: *value = INT32_MAX; break;           /* pitch */
    case 12: *value = (int)gpu->registers_per_sm; break;   /* registers per block; figures of a GPU are small */
    case 13: *value = (int)gpu->clock_max_mhz[SIM_CLOCK_SM] * 1000; break;
    case 14: *value = 512; break;                 /* texture alignment */
    case 15: *value = 1; break;                   /* overlap */
    case 16: *value = (int)sms; break;
    case 17: *value = 0; break;                   /* kernel timeout */
    case 18: *value = 0; break;                   /* integrated */
    case 19: *value = 1; break;                   /* can map host memory */
    case 20: *value = (int)gpu->compute_mode; break;
    case 31: *value = 1; break;                   /* concurrent kernels */
    case 32: *value = (int)gpu->ecc_mode; break;
    case 33: *value = (int)gpu->pci_bus; break;
    case 34: *value = (int)gpu->pci_device; break;
    case 35: *value = 0; break;                   /* TCC driver */
    case 36: *value = (int)gpu->clock_max_mhz[SIM_CLOCK_MEMORY] * 1000; break;
    case 37: *value = (int)gpu->memory_bus_bits; break;
    case 38: *value = (int)gpu->l2_bytes; break;
    case 39: *value = (int)gpu->max_threads_per_sm; break;
    case 40: *value = 3; break;                   /* copy engines */
    case 41: *value = 1; break;                   /* unified addressing */
    case 50: *value = (int)gpu->pci_domain; break;
    case 51: *value = 32; break;                  /* texture pitch alignment */
    case 75: *value = (int)gpu->cc_major; break;
    case 76: *value = (int)gpu->cc_minor; break;
    case 78: *value = 1; break;                   /* stream priorities */
    case 79: case 80: *value = 1; break;          /* global and local L1 */
    case 81: *value = (int)gpu->shared_bytes_per_sm; break;
    case 82: *value = (int)gpu->registers_per_sm; break;
    case 83: *value = 1; break;                   /* managed memory */
    case 84: *value = 0; break;                   /* multi-GPU board */
    case 85: *value = 0; break;
    case 86: *value = 0; break;                   /* host native atomics: PCIe has none */
    case 87: *value = 2; break;                   /* single to double performance ratio */
    case 88: *value = 0; break;                   /* pageable memory access */
    case 89: *value = 1; break;                   /* concurrent managed access */
    case 90: *value = newer; break;               /* compute preemption */
    case 91: *value = 1; break;                   /* host pointer for registered memory */
    case 95: *value = 1; break;                   /* cooperative launch */
    case 96: *value = 0; break;                   /* cooperative multi-device launch: gone since 13 */
    case 97: *value = (int)gpu->shared_bytes_per_block_optin; break;
    case 98: *value = 1; break;                   /* flush of remote writes */
    case 99: *value = 1; break;                   /* host register */
    case 100: *value = 0; break;                  /* page tables of the host */
    case 101: *value = 0; break;
    case 102: *value = 1; break;                  /* virtual memory management */
    case 103: *value = 1; break;                  /* export as a POSIX file descriptor */
    case 106: *value = (int)gpu->max_blocks_per_sm; break;
    case 107: *value = 0; break;                  /* compression */
    case 108: *value = (int)(gpu->l2_bytes / 4 * 3); break; /* persisting L2 */
    case 109: *value = 134213632; break;          /* access policy window */
    case 110: *value = 0; break;
    case 111: *value = 1024; break;               /* reserved shared memory per block */
    case 112: case 113: *value = 0; break;
    case 115: *value = 1; break;                  /* memory pools */
    case 119: *value = 1; break;                  /* pool handle types: POSIX file descriptor */
    case 120: *value = gpu->cc_major >= 9; break; /* clusters */
    case 122: *value = gpu->cc_major >= 9; break; /* 64-bit stream memory operations live in 122 and 123 */
    case 123: *value = 1; break;
    case 124: *value = 0; break;                  /* dma-buf */
    case 128: *value = 0; break;                  /* fabric handles */
    case 134: *value = gpu->numa_node; break;
    default:
        if (number < 1 || number > 160)
            return 0;
        *value = 0; /* what is not modelled is not there */
    }
    return 1;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!value || !attribute(info_of(device), sim_usable_sms(sim_driver.gpu_of[device]), (int)which, value)) /* enumerators are ints */
        return CUDA_ERROR_INVALID_VALUE;
    if ((int)which == MULTICAST_SUPPORTED) /* likewise */
        *value = sim_multicast_supported(sim_driver.gpu_of[device]);
    *value = (int)sim_faulty((uint64_t)*value); /* back as it came, unless a fault says otherwise */
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetProperties(CUdevprop *properties, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!properties)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_gpu_info *gpu = info_of(device);
    *properties = (CUdevprop){.maxThreadsPerBlock = 1024, .maxThreadsDim = {1024, 1024, 64}, .maxGridSize = {INT32_MAX, 65535, 65535},
        .sharedMemPerBlock = 49152, .totalConstantMemory = 65536, .SIMDWidth = 32, .memPitch = INT32_MAX,
        .regsPerBlock = (int)gpu->registers_per_sm, .clockRate = (int)gpu->clock_max_mhz[SIM_CLOCK_SM] * 1000, .textureAlign = 512};
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    ENTER_DEVICE(device);
    const struct sim_gpu_info *gpu = info_of(device);
    if (!text || length < 13)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(text, (size_t)length, "%04x:%02x:%02x.0", gpu->pci_domain, gpu->pci_bus, gpu->pci_device); /* positive */
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    ENTER();
    unsigned domain = 0, bus, slot;
    if (!device || !text)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (uint32_t i = 0; i < sim_driver.device_count; i++) {
        const struct sim_gpu_info *gpu = info_of((CUdevice)i);
        if (gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == slot) {
            *device = (CUdevice)i; /* at most SIM_MAX_GPUS */
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

static int reachable(CUdevice from, CUdevice to, unsigned capability)
{
    return from != to && sim_here()->topology.p2p_status[capability][sim_driver.gpu_of[from]][sim_driver.gpu_of[to]] == 0;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceCanAccessPeer(int *answer, CUdevice device, CUdevice peer)
{
    ENTER_DEVICE(device);
    if (!answer)
        return CUDA_ERROR_INVALID_VALUE;
    if (peer < 0 || (uint32_t)peer >= sim_driver.device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *answer = (int)sim_faulty((uint64_t)reachable(device, peer, 0)); /* 0 or 1, or what a fault says */
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute which, CUdevice device, CUdevice peer)
{
    ENTER_DEVICE(device);
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (peer < 0 || (uint32_t)peer >= sim_driver.device_count || peer == device)
        return CUDA_ERROR_INVALID_DEVICE;
    switch (which) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: *value = !reachable(device, peer, 2); break; /* 0 is the best */
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED: *value = reachable(device, peer, 0); break;
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = reachable(device, peer, 3); break;
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: *value = reachable(device, peer, 0); break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    *value = (int)sim_faulty((uint64_t)*value); /* 0 or 1, or what a fault says */
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetExecAffinitySupport(int *answer, CUexecAffinityType type, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!answer)
        return CUDA_ERROR_INVALID_VALUE;
    *answer = type == CU_EXEC_AFFINITY_TYPE_SM_COUNT;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice device)
{
    ENTER_DEVICE(device);
    (void)luid;
    (void)mask;
    return CUDA_ERROR_NOT_SUPPORTED; /* Windows only */
}
