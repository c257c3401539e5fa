/* Sizes and offsets of the driver's structs, printed by whichever declarations
 * were included before: ours, or those of a real cuda.h and nvml.h. */
#include <stddef.h>
#include <stdio.h>

#define SIZE(type) printf("%s %zu\n", #type, sizeof(type))
#define PLACE(type, field) printf("%s.%s %zu\n", #type, #field, offsetof(type, field))
#define NUMBER(name) printf("%s %lld\n", #name, (long long)(name))

int main(void)
{
    SIZE(CUdevice);
    SIZE(CUdeviceptr);
    SIZE(CUdeviceptr_v1);
    SIZE(CUuuid);
    SIZE(CUmemGenericAllocationHandle);
    SIZE(CUmemLocation);
    PLACE(CUmemLocation, id);
    SIZE(CUmemAllocationProp);
    PLACE(CUmemAllocationProp, location);
    SIZE(CUmemPoolProps);
    PLACE(CUmemPoolProps, location);
    SIZE(CUDA_ARRAY_DESCRIPTOR);
    PLACE(CUDA_ARRAY_DESCRIPTOR, Format);
    PLACE(CUDA_ARRAY_DESCRIPTOR, NumChannels);
    SIZE(CUDA_ARRAY_DESCRIPTOR_v1);
    PLACE(CUDA_ARRAY_DESCRIPTOR_v1, NumChannels);
    SIZE(CUDA_ARRAY3D_DESCRIPTOR);
    PLACE(CUDA_ARRAY3D_DESCRIPTOR, Depth);
    PLACE(CUDA_ARRAY3D_DESCRIPTOR, Flags);
    SIZE(CUDA_ARRAY3D_DESCRIPTOR_v1);
    PLACE(CUDA_ARRAY3D_DESCRIPTOR_v1, Flags);
    SIZE(CUarrayMapInfo);
    PLACE(CUarrayMapInfo, resource);
    PLACE(CUarrayMapInfo, subresourceType);
    PLACE(CUarrayMapInfo, subresource);
    PLACE(CUarrayMapInfo, subresource.sparseLevel.offsetZ);
    PLACE(CUarrayMapInfo, subresource.miptail.offset);
    PLACE(CUarrayMapInfo, memOperationType);
    PLACE(CUarrayMapInfo, memHandle);
    NUMBER(CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL);
    NUMBER(CU_MEM_OPERATION_TYPE_MAP);
    SIZE(CUlaunchConfig);
    PLACE(CUlaunchConfig, blockDimX);
    PLACE(CUlaunchConfig, hStream);
    SIZE(CUDA_LAUNCH_PARAMS);
    PLACE(CUDA_LAUNCH_PARAMS, hStream);
    SIZE(CUDA_MEM_ALLOC_NODE_PARAMS);
    PLACE(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize);
    PLACE(CUDA_MEM_ALLOC_NODE_PARAMS, dptr);
    SIZE(CUDA_GRAPH_INSTANTIATE_PARAMS);
    PLACE(CUDA_GRAPH_INSTANTIATE_PARAMS, result_out);
    NUMBER(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
    NUMBER(CUDA_GRAPH_INSTANTIATE_ERROR);
    NUMBER(CU_GRAPH_NODE_TYPE_KERNEL);
    NUMBER(CU_GRAPH_NODE_TYPE_GRAPH);
    NUMBER(CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    NUMBER(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    NUMBER(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    NUMBER(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    NUMBER(CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    NUMBER(CUDA_ERROR_OUT_OF_MEMORY);
    NUMBER(CUDA_ERROR_NO_DEVICE);
    NUMBER(CUDA_ERROR_OPERATING_SYSTEM);
    NUMBER(CUDA_ERROR_NOT_READY);
    NUMBER(CUDA_ERROR_NOT_PERMITTED);
    NUMBER(CUDA_ERROR_SYSTEM_NOT_READY);
    NUMBER(CU_STREAM_CAPTURE_STATUS_NONE);
    NUMBER(CU_STREAM_CAPTURE_MODE_RELAXED);
    NUMBER(CU_EVENT_DEFAULT);
    NUMBER(CU_MEM_LOCATION_TYPE_DEVICE);
    NUMBER(CU_MEM_LOCATION_TYPE_HOST);
    NUMBER(CU_MEM_LOCATION_TYPE_HOST_NUMA);
    NUMBER(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
    NUMBER(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    NUMBER(CU_POINTER_ATTRIBUTE_IS_MANAGED);
    NUMBER(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
    NUMBER(CUDA_ARRAY3D_LAYERED);
    NUMBER(CUDA_ARRAY3D_CUBEMAP);
    NUMBER(CUDA_ARRAY3D_SPARSE);
    NUMBER(CUDA_ARRAY3D_DEFERRED_MAPPING);
    return 0;
}
