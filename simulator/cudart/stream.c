/* Streams, events, capture and graphs: the driver's objects under the runtime's names. */
#define _GNU_SOURCE
#include "cudart.h"

EXPORTED cudaError_t cudaStreamCreate(CUstream *stream) { THROUGH(cuStreamCreate(stream, 0)); }
EXPORTED cudaError_t cudaStreamCreateWithFlags(CUstream *stream, unsigned flags) { THROUGH(cuStreamCreate(stream, flags)); }
EXPORTED cudaError_t cudaStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) { THROUGH(cuStreamCreateWithPriority(stream, flags, priority)); }
EXPORTED cudaError_t cudaStreamDestroy(CUstream stream) { THROUGH(cuStreamDestroy(stream)); }
EXPORTED cudaError_t cudaStreamGetPriority(CUstream stream, int *priority) { THROUGH(cuStreamGetPriority(stream, priority)); }
EXPORTED cudaError_t cudaStreamGetFlags(CUstream stream, unsigned *flags) { THROUGH(cuStreamGetFlags(stream, flags)); }
EXPORTED cudaError_t cudaStreamQuery(CUstream stream) { THROUGH(cuStreamQuery(stream)); }
EXPORTED cudaError_t cudaStreamSynchronize(CUstream stream) { THROUGH(cuStreamSynchronize(stream)); }
EXPORTED cudaError_t cudaStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) { THROUGH(cuStreamWaitEvent(stream, event, flags)); }
EXPORTED cudaError_t cudaStreamAddCallback(CUstream stream, CUstreamCallback callback, void *argument, unsigned flags) { THROUGH(cuStreamAddCallback(stream, callback, argument, flags)); } /* the status is the same number */
EXPORTED cudaError_t cudaLaunchHostFunc(CUstream stream, CUhostFn function, void *argument) { THROUGH(cuLaunchHostFunc(stream, function, argument)); }

EXPORTED cudaError_t cudaEventCreate(CUevent *event) { THROUGH(cuEventCreate(event, 0)); }
EXPORTED cudaError_t cudaEventCreateWithFlags(CUevent *event, unsigned flags) { THROUGH(cuEventCreate(event, flags)); }
EXPORTED cudaError_t cudaEventDestroy(CUevent event) { THROUGH(cuEventDestroy(event)); }
EXPORTED cudaError_t cudaEventRecord(CUevent event, CUstream stream) { THROUGH(cuEventRecord(event, stream)); }
EXPORTED cudaError_t cudaEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) { THROUGH(cuEventRecordWithFlags(event, stream, flags)); }
EXPORTED cudaError_t cudaEventQuery(CUevent event) { THROUGH(cuEventQuery(event)); }
EXPORTED cudaError_t cudaEventSynchronize(CUevent event) { THROUGH(cuEventSynchronize(event)); }
EXPORTED cudaError_t cudaEventElapsedTime(float *milliseconds, CUevent start, CUevent end) { THROUGH(cuEventElapsedTime(milliseconds, start, end)); }

EXPORTED cudaError_t cudaStreamBeginCapture(CUstream stream, int mode) { THROUGH(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode)); } /* the same numbers */
EXPORTED cudaError_t cudaStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, int mode) { THROUGH(cuStreamBeginCaptureToGraph(stream, graph, after, edges, count, (CUstreamCaptureMode)mode)); }
EXPORTED cudaError_t cudaStreamEndCapture(CUstream stream, CUgraph *graph) { THROUGH(cuStreamEndCapture(stream, graph)); }
EXPORTED cudaError_t cudaStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) { THROUGH(cuStreamIsCapturing(stream, status)); }
EXPORTED cudaError_t cudaStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **after, const CUgraphEdgeData **edges, size_t *count) { THROUGH(cuStreamGetCaptureInfo(stream, status, id, graph, after, edges, count)); }
EXPORTED cudaError_t cudaStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count, unsigned flags) { THROUGH(cuStreamUpdateCaptureDependencies(stream, nodes, edges, count, flags)); }
EXPORTED cudaError_t cudaThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) { THROUGH(cuThreadExchangeStreamCaptureMode(mode)); }

EXPORTED cudaError_t cudaGraphCreate(CUgraph *graph, unsigned flags) { THROUGH(cuGraphCreate(graph, flags)); }
EXPORTED cudaError_t cudaGraphDestroy(CUgraph graph) { THROUGH(cuGraphDestroy(graph)); }
EXPORTED cudaError_t cudaGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) { THROUGH(cuGraphGetNodes(graph, nodes, count)); }
EXPORTED cudaError_t cudaGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) { THROUGH(cuGraphNodeGetType(node, type)); }
EXPORTED cudaError_t cudaGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count) { THROUGH(cuGraphNodeGetDependencies(node, nodes, edges, count)); }
EXPORTED cudaError_t cudaGraphInstantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags) { THROUGH(cuGraphInstantiateWithFlags(exec, graph, flags)); }
EXPORTED cudaError_t cudaGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) { THROUGH(cuGraphInstantiateWithFlags(exec, graph, flags)); }
EXPORTED cudaError_t cudaGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *answer) { THROUGH(cuGraphExecUpdate(exec, graph, answer)); }
EXPORTED cudaError_t cudaGraphUpload(CUgraphExec exec, CUstream stream) { THROUGH(cuGraphUpload(exec, stream)); }
EXPORTED cudaError_t cudaGraphLaunch(CUgraphExec exec, CUstream stream) { THROUGH(cuGraphLaunch(exec, stream)); }
EXPORTED cudaError_t cudaGraphExecDestroy(CUgraphExec exec) { THROUGH(cuGraphExecDestroy(exec)); }
EXPORTED cudaError_t cudaGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) { THROUGH(cuGraphRetainUserObject(graph, object, count, flags)); }
EXPORTED cudaError_t cudaUserObjectCreate(CUuserObject *object, void *pointer, CUhostFn destroy, unsigned count, unsigned flags) { THROUGH(cuUserObjectCreate(object, pointer, destroy, count, flags)); }
EXPORTED cudaError_t cudaUserObjectRetain(CUuserObject object, unsigned count) { THROUGH(cuUserObjectRetain(object, count)); }
EXPORTED cudaError_t cudaUserObjectRelease(CUuserObject object, unsigned count) { THROUGH(cuUserObjectRelease(object, count)); }

/* Nodes whose parameters are laid out as the driver's. A kernel's are not; programs add those by capture. */
EXPORTED cudaError_t cudaGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params)
{
    if (!params || params->type == CU_GRAPH_NODE_TYPE_KERNEL || params->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        return sim_runtime_told(params ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE);
    THROUGH(cuGraphAddNode(node, graph, after, edges, count, params));
}
EXPORTED cudaError_t cudaGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph, unsigned value, unsigned flags)
{
    CUcontext context = NULL;
    cudaError_t error = sim_runtime_enter();
    if (!error)
        error = (cudaError_t)driver.cuCtxGetCurrent(&context);
    return sim_runtime_told(error ? error : (cudaError_t)driver.cuGraphConditionalHandleCreate(handle, graph, context, value, flags));
}
