/* Memory of graphs' allocation nodes. The driver keeps what a launch used for the next one, per GPU, until it
 * is asked to trim; a launch is charged only for what is not kept already. */
#define _GNU_SOURCE
#include "driver.h"

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

CUresult sim_graph_memory_take(struct memory *memory)
{
    struct driver *driver = &sim_driver;
    uint32_t gpu = memory->gpu;
    uint64_t bytes = sim_charged_size(driver->machine, memory->size);
    if (memory->charged) /* still allocated from an earlier launch */
        return CUDA_SUCCESS;
    uint64_t kept = driver->graph_reserved[gpu] - driver->graph_used[gpu], more = bytes > kept ? bytes - kept : 0;
    int status = more ? sim_charge(driver->machine, gpu, driver->process, more) : SIM_OK;
    if (status != SIM_OK)
        return sim_result(status);
    memory->charged = bytes;
    driver->graph_reserved[gpu] += more;
    driver->graph_used[gpu] += bytes;
    driver->graph_reserved_high[gpu] = larger(driver->graph_reserved_high[gpu], driver->graph_reserved[gpu]);
    driver->graph_used_high[gpu] = larger(driver->graph_used_high[gpu], driver->graph_used[gpu]);
    return CUDA_SUCCESS;
}

void sim_graph_memory_give(struct memory *memory)
{
    sim_driver.graph_used[memory->gpu] -= memory->charged;
    memory->charged = 0;
}

void sim_graph_memory_trim(uint32_t gpu)
{
    uint64_t kept = sim_driver.graph_reserved[gpu] - sim_driver.graph_used[gpu];
    sim_driver.graph_reserved[gpu] -= kept;
    if (kept)
        sim_refund(sim_driver.machine, gpu, sim_driver.process, kept);
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute which, void *value)
{
    ENTER_DEVICE(device);
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t gpu = sim_driver.gpu_of[device];
    CUresult result = CUDA_SUCCESS;
    cuuint64_t *out = value;
    sim_lock_driver();
    switch (which) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: *out = sim_driver.graph_used[gpu]; break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *out = sim_driver.graph_used_high[gpu]; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *out = sim_driver.graph_reserved[gpu]; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *out = sim_driver.graph_reserved_high[gpu]; break;
    default: result = CUDA_ERROR_INVALID_VALUE;
    }
    sim_unlock_driver();
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute which, void *value)
{
    ENTER_DEVICE(device);
    if (!value || *(const cuuint64_t *)value != 0) /* the high-water marks can be reset, nothing else be set */
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t gpu = sim_driver.gpu_of[device];
    CUresult result = CUDA_SUCCESS;
    sim_lock_driver();
    if (which == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        sim_driver.graph_used_high[gpu] = sim_driver.graph_used[gpu];
    else if (which == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        sim_driver.graph_reserved_high[gpu] = sim_driver.graph_reserved[gpu];
    else
        result = CUDA_ERROR_INVALID_VALUE;
    sim_unlock_driver();
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device)
{
    ENTER_DEVICE(device);
    sim_lock_driver();
    sim_graph_memory_trim(sim_driver.gpu_of[device]);
    sim_unlock_driver();
    return CUDA_SUCCESS;
}
