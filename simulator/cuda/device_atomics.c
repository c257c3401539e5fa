/* Which atomic operations reach the host and other GPUs, and two device questions that have one answer here. */
#define _GNU_SOURCE
#include "driver.h"

enum { SIGNED = 1, UNSIGNED = 2, REDUCTION = 4, SCALAR_32 = 8, SCALAR_64 = 16 };
enum { OPERATION_ADD = 0, OPERATION_MAX = 2, OPERATION_CAS = 9, OPERATION_FLOAT_ADD = 10, OPERATIONS = 13 };

/* Over NVLink, as far as the public description goes: integers of both widths, and float addition. */
static unsigned over_links(unsigned operation)
{
    if (operation <= OPERATION_MAX)
        return SIGNED | UNSIGNED | REDUCTION | SCALAR_32 | SCALAR_64;
    if (operation <= OPERATION_CAS)
        return UNSIGNED | REDUCTION | SCALAR_32 | SCALAR_64;
    return operation == OPERATION_FLOAT_ADD ? REDUCTION | SCALAR_32 | SCALAR_64 : 0;
}

static CUresult capabilities(unsigned *out, const unsigned *operations, unsigned count, int linked)
{
    if (!out || !operations || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (operations[i] >= OPERATIONS)
            return CUDA_ERROR_INVALID_VALUE;
        out[i] = linked ? over_links(operations[i]) : 0;
    }
    return CUDA_SUCCESS;
}

/* The host is reached over PCIe, which carries none. */
CUresult CUDAAPI cuDeviceGetHostAtomicCapabilities(unsigned *out, const unsigned *operations, unsigned count, CUdevice device);
SIM_EXPORTED CUresult CUDAAPI cuDeviceGetHostAtomicCapabilities(unsigned *out, const unsigned *operations, unsigned count, CUdevice device) { ENTER_DEVICE(device); return capabilities(out, operations, count, 0); }

CUresult CUDAAPI cuDeviceGetP2PAtomicCapabilities(unsigned *out, const unsigned *operations, unsigned count, CUdevice from, CUdevice to);
SIM_EXPORTED CUresult CUDAAPI cuDeviceGetP2PAtomicCapabilities(unsigned *out, const unsigned *operations, unsigned count, CUdevice from, CUdevice to)
{
    ENTER_DEVICE(from);
    if (to < 0 || (uint32_t)to >= sim_driver.device_count || to == from)
        return CUDA_ERROR_INVALID_DEVICE;
    return capabilities(out, operations, count, sim_here()->topology.p2p_status[3][sim_driver.gpu_of[from]][sim_driver.gpu_of[to]] == 0); /* 3: NVML's place of atomics */
}

CUresult CUDAAPI cuDeviceGetTexture1DLinearMaxWidth(size_t *out, CUarray_format format, unsigned channels, CUdevice device);
SIM_EXPORTED CUresult CUDAAPI cuDeviceGetTexture1DLinearMaxWidth(size_t *out, CUarray_format format, unsigned channels, CUdevice device)
{
    ENTER_DEVICE(device);
    if (!out || !(unsigned)format || (channels != 1 && channels != 2 && channels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (size_t)1 << 28; /* elements, on GPUs since Kepler */
    return CUDA_SUCCESS;
}
