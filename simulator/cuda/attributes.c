/* Attributes of streams and of kernels in graphs: hints that are kept and given back. Those that say how a launch is
 * made are read where it is made. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#define ATTRIBUTES 32u

struct attributes { CUlaunchAttributeValue value[ATTRIBUTES]; };

struct attributes *sim_attributes_copy(const struct attributes *from)
{
    struct attributes *copy = malloc(sizeof *copy);
    if (copy)
        *copy = *from;
    return copy;
}

static CUresult get(const struct attributes *attributes, unsigned which, CUlaunchAttributeValue *value)
{
    if (!value || !which || which >= ATTRIBUTES)
        return CUDA_ERROR_INVALID_VALUE;
    memset(value, 0, sizeof *value);
    if (attributes)
        *value = attributes->value[which];
    return CUDA_SUCCESS;
}

static CUresult set(struct attributes **attributes, unsigned which, const CUlaunchAttributeValue *value)
{
    if (!value || !which || which >= ATTRIBUTES)
        return CUDA_ERROR_INVALID_VALUE;
    if (!*attributes)
        *attributes = calloc(1, sizeof **attributes);
    if (!*attributes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*attributes)->value[which] = *value;
    return CUDA_SUCCESS;
}

static CUresult copy(struct attributes **to, const struct attributes *from)
{
    struct attributes *made = from ? sim_attributes_copy(from) : NULL;
    if (from && !made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    free(*to);
    *to = made;
    return CUDA_SUCCESS;
}

static CUresult stream_get(const char *call, int per_thread, CUstream given, CUlaunchAttributeID which, CUlaunchAttributeValue *value)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    result = get(stream->attributes, which, value);
    if (result == CUDA_SUCCESS && which == CU_LAUNCH_ATTRIBUTE_PRIORITY)
        value->priority = stream->priority;
    return result;
}
DEFINE_TWINS(cuStreamGetAttribute, _ptsz, stream_get, (CUstream stream, CUlaunchAttributeID which, CUlaunchAttributeValue *value), stream, which, value)
static CUresult stream_set(const char *call, int per_thread, CUstream given, CUlaunchAttributeID which, const CUlaunchAttributeValue *value)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    return result == CUDA_SUCCESS ? set(&stream->attributes, which, value) : result;
}
DEFINE_TWINS(cuStreamSetAttribute, _ptsz, stream_set, (CUstream stream, CUlaunchAttributeID which, const CUlaunchAttributeValue *value), stream, which, value)
static CUresult stream_copy(const char *call, int per_thread, CUstream to, CUstream from)
{
    CUstream target, source;
    CUresult result = sim_enter_stream(call, per_thread, to, &target);
    if (result == CUDA_SUCCESS)
        result = sim_stream_resolve(target->context, from, per_thread, &source);
    return result == CUDA_SUCCESS ? copy(&target->attributes, source->attributes) : result;
}
DEFINE_TWINS(cuStreamCopyAttributes, _ptsz, stream_copy, (CUstream to, CUstream from), to, from)

static int is_kernel(CUgraphNode node) { return sim_node_valid(node) && node->type == CU_GRAPH_NODE_TYPE_KERNEL; }
SIM_EXPORTED CUresult CUDAAPI cuGraphKernelNodeGetAttribute(CUgraphNode node, CUlaunchAttributeID which, CUlaunchAttributeValue *value) { ENTER(); return is_kernel(node) ? get(node->attributes, which, value) : CUDA_ERROR_INVALID_VALUE; }
SIM_EXPORTED CUresult CUDAAPI cuGraphKernelNodeSetAttribute(CUgraphNode node, CUlaunchAttributeID which, const CUlaunchAttributeValue *value) { ENTER(); return is_kernel(node) ? set(&node->attributes, which, value) : CUDA_ERROR_INVALID_VALUE; }
SIM_EXPORTED CUresult CUDAAPI cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from) { ENTER(); return is_kernel(to) && is_kernel(from) ? copy(&to->attributes, from->attributes) : CUDA_ERROR_INVALID_VALUE; }
