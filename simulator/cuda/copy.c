/* Copies and fills. The bytes move when the call is made, in the order of calls, and the time passes on the
 * stream: kernels compute nothing, so no program can tell the difference, unless it reads early. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define DROP_PAGES_FROM (UINT64_C(1) << 20)
#define PAGE UINT64_C(4096)

/* Device addresses are ordinary addresses of this process: the two integer types have the same width. */
static void *pointer_of(uint64_t address) { return (void *)(uintptr_t)address; }
static CUdeviceptr address_of(const void *pointer) { return (CUdeviceptr)(uintptr_t)pointer; }

/* SIM_ENGINES: none, from host to host. */
static enum sim_engine engine_of(int to_device, int from_device)
{
    return to_device && from_device ? SIM_ENGINE_D2D : to_device ? SIM_ENGINE_H2D : from_device ? SIM_ENGINE_D2H : SIM_ENGINES;
}

CUresult sim_copy_now(CUdeviceptr destination, CUdeviceptr source, size_t bytes, enum sim_engine *engine)
{
    int to_device, from_device;
    CUresult result = sim_range_check(pointer_of(destination), bytes, 0, &to_device);
    if (result == CUDA_SUCCESS)
        result = sim_range_check(pointer_of(source), bytes, 0, &from_device);
    if (result != CUDA_SUCCESS)
        return result;
    memmove(pointer_of(destination), pointer_of(source), bytes);
    *engine = engine_of(to_device, from_device);
    return CUDA_SUCCESS;
}

static CUresult enqueue_copy(CUstream stream, enum sim_engine engine, uint64_t bytes)
{
    if (engine >= SIM_ENGINES)
        return CUDA_SUCCESS; /* host to host */
    uint64_t work = sim_copy_cost(sim_here(), stream->context->gpu, engine, bytes) * SIM_WORK_SCALE;
    return sim_enqueue(stream, &(struct sim_item){.kind = SIM_ITEM_COPY, .a = engine, .bytes = bytes, .work = work});
}

CUresult sim_copy(CUstream stream, CUdeviceptr destination, CUdeviceptr source, size_t bytes, int wait)
{
    enum sim_engine engine = SIM_ENGINES;
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (!destination || !source)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return wait ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : sim_capture_copy(stream, destination, source, bytes);
    CUresult result = sim_copy_now(destination, source, bytes, &engine);
    if (result == CUDA_SUCCESS)
        result = enqueue_copy(stream, engine, bytes);
    return result == CUDA_SUCCESS && wait ? sim_stream_drain(stream) : result;
}

/* Both addresses must be the device's where the name of the call says so. */
static CUresult copy_typed(const char *call, int per_thread, CUstream given, CUdeviceptr destination, int device_destination, CUdeviceptr source,
                           int device_source, size_t bytes, int wait)
{
    CUstream stream;
    int device;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result == CUDA_SUCCESS && device_destination && bytes)
        result = sim_range_check(pointer_of(destination), bytes, 1, &device);
    if (result == CUDA_SUCCESS && device_source && bytes)
        result = sim_range_check(pointer_of(source), bytes, 1, &device);
    return result == CUDA_SUCCESS ? sim_copy(stream, destination, source, bytes, wait) : result;
}

static CUresult host_to_device(const char *call, int per_thread, CUdeviceptr to, const void *from, size_t bytes) { return copy_typed(call, per_thread, NULL, to, 1, address_of(from), 0, bytes, 1); }
DEFINE_TWINS(cuMemcpyHtoD_v2, _ptds, host_to_device, (CUdeviceptr to, const void *from, size_t bytes), to, from, bytes)
static CUresult host_to_device_v1(const char *call, int per_thread, CUdeviceptr_v1 to, const void *from, unsigned bytes) { return copy_typed(call, per_thread, NULL, to, 1, address_of(from), 0, bytes, 1); }
SIM_EXPORTED CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr_v1 to, const void *from, unsigned int bytes) { return host_to_device_v1(__func__, 0, to, from, bytes); }

static CUresult device_to_host(const char *call, int per_thread, void *to, CUdeviceptr from, size_t bytes) { return copy_typed(call, per_thread, NULL, address_of(to), 0, from, 1, bytes, 1); }
DEFINE_TWINS(cuMemcpyDtoH_v2, _ptds, device_to_host, (void *to, CUdeviceptr from, size_t bytes), to, from, bytes)
SIM_EXPORTED CUresult CUDAAPI cuMemcpyDtoH(void *to, CUdeviceptr_v1 from, unsigned int bytes) { return device_to_host(__func__, 0, to, from, bytes); }

static CUresult device_to_device(const char *call, int per_thread, CUdeviceptr to, CUdeviceptr from, size_t bytes) { return copy_typed(call, per_thread, NULL, to, 1, from, 1, bytes, 0); }
DEFINE_TWINS(cuMemcpyDtoD_v2, _ptds, device_to_device, (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, bytes)
SIM_EXPORTED CUresult CUDAAPI cuMemcpyDtoD(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes) { return device_to_device(__func__, 0, to, from, bytes); }

static CUresult any_to_any(const char *call, int per_thread, CUdeviceptr to, CUdeviceptr from, size_t bytes) { return copy_typed(call, per_thread, NULL, to, 0, from, 0, bytes, 1); }
DEFINE_TWINS(cuMemcpy, _ptds, any_to_any, (CUdeviceptr to, CUdeviceptr from, size_t bytes), to, from, bytes)

static CUresult host_to_device_async(const char *call, int per_thread, CUdeviceptr to, const void *from, size_t bytes, CUstream stream) { return copy_typed(call, per_thread, stream, to, 1, address_of(from), 0, bytes, 0); }
DEFINE_TWINS(cuMemcpyHtoDAsync_v2, _ptsz, host_to_device_async, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), to, from, bytes, stream)
SIM_EXPORTED CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr_v1 to, const void *from, unsigned int bytes, CUstream stream) { return host_to_device_async(__func__, 0, to, from, bytes, stream); }

static CUresult device_to_host_async(const char *call, int per_thread, void *to, CUdeviceptr from, size_t bytes, CUstream stream) { return copy_typed(call, per_thread, stream, address_of(to), 0, from, 1, bytes, 0); }
DEFINE_TWINS(cuMemcpyDtoHAsync_v2, _ptsz, device_to_host_async, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes, stream)
SIM_EXPORTED CUresult CUDAAPI cuMemcpyDtoHAsync(void *to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream) { return device_to_host_async(__func__, 0, to, from, bytes, stream); }

static CUresult device_to_device_async(const char *call, int per_thread, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) { return copy_typed(call, per_thread, stream, to, 1, from, 1, bytes, 0); }
DEFINE_TWINS(cuMemcpyDtoDAsync_v2, _ptsz, device_to_device_async, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes, stream)
SIM_EXPORTED CUresult CUDAAPI cuMemcpyDtoDAsync(CUdeviceptr_v1 to, CUdeviceptr_v1 from, unsigned int bytes, CUstream stream) { return device_to_device_async(__func__, 0, to, from, bytes, stream); }

static CUresult any_to_any_async(const char *call, int per_thread, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) { return copy_typed(call, per_thread, stream, to, 0, from, 0, bytes, 0); }
DEFINE_TWINS(cuMemcpyAsync, _ptsz, any_to_any_async, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes, stream)

static CUresult peer(const char *call, int per_thread, CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes)
{
    return sim_context_valid(to_context) && sim_context_valid(from_context) ? copy_typed(call, per_thread, NULL, to, 1, from, 1, bytes, 1) : CUDA_ERROR_INVALID_CONTEXT;
}
DEFINE_TWINS(cuMemcpyPeer, _ptds, peer, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes), to, to_context, from, from_context, bytes)

static CUresult peer_async(const char *call, int per_thread, CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream)
{
    return sim_context_valid(to_context) && sim_context_valid(from_context) ? copy_typed(call, per_thread, stream, to, 1, from, 1, bytes, 0) : CUDA_ERROR_INVALID_CONTEXT;
}
DEFINE_TWINS(cuMemcpyPeerAsync, _ptsz, peer_async, (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream), to, to_context, from, from_context, bytes, stream)

/* Many copies at once, in the order of the list. The first that cannot be made is named. */
static CUresult copy_list(const char *call, int per_thread, const CUdeviceptr *to, const CUdeviceptr *from, const size_t *sizes, size_t count, size_t *failed, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!to || !from || !sizes || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = sim_copy(stream, to[i], from[i], sizes[i], 0);
        if (result != CUDA_SUCCESS && failed)
            *failed = i;
    }
    return result;
}
static CUresult copy_list_1(const char *call, int per_thread, CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes, size_t *places, size_t number, size_t *failed, CUstream stream) { (void)attributes; (void)places; (void)number; return copy_list(call, per_thread, to, from, sizes, count, failed, stream); }
DEFINE_TWINS(cuMemcpyBatchAsync, _ptsz, copy_list_1, (CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes, size_t *places, size_t number, size_t *failed, CUstream stream), to, from, sizes, count, attributes, places, number, failed, stream)
static CUresult copy_list_2(const char *call, int per_thread, CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes, size_t *places, size_t number, CUstream stream) { (void)attributes; (void)places; (void)number; return copy_list(call, per_thread, to, from, sizes, count, NULL, stream); }
DEFINE_TWINS(cuMemcpyBatchAsync_v2, _ptsz, copy_list_2, (CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count, void *attributes, size_t *places, size_t number, CUstream stream), to, from, sizes, count, attributes, places, number, stream)

/* ---- boxes ---- */

struct box_side { uint64_t base; uint64_t pitch, slice; int is_array, known; /* known: only memory of the driver's will do */ };

/* `x`, `y` and `z` are where the box begins; an array's box must lie within it. */
static CUresult side(const CUDA_MEMCPY3D *box, int source, struct box_side *out)
{
    CUmemorytype type = source ? box->srcMemoryType : box->dstMemoryType;
    uint64_t x = source ? box->srcXInBytes : box->dstXInBytes, y = source ? box->srcY : box->dstY, z = source ? box->srcZ : box->dstZ;
    uint64_t pitch = source ? box->srcPitch : box->dstPitch, height = source ? box->srcHeight : box->dstHeight;
    out->is_array = type == CU_MEMORYTYPE_ARRAY;
    out->known = type == CU_MEMORYTYPE_DEVICE;
    if (out->is_array) {
        struct array_bytes bytes;
        if (!sim_array_bytes(source ? box->srcArray : box->dstArray, &bytes))
            return CUDA_ERROR_INVALID_HANDLE;
        if (x + box->WidthInBytes > bytes.row || y + box->Height > bytes.rows || z + box->Depth > bytes.slices)
            return CUDA_ERROR_INVALID_VALUE;
        out->base = address_of(bytes.data);
        out->pitch = bytes.row;
        out->slice = bytes.row * bytes.rows;
    } else {
        out->base = type == CU_MEMORYTYPE_HOST ? address_of(source ? box->srcHost : box->dstHost) : source ? box->srcDevice : box->dstDevice;
        out->pitch = pitch ? pitch : box->WidthInBytes;
        out->slice = out->pitch * (height ? height : box->Height);
        if (!out->base || ((box->Height > 1 || box->Depth > 1) && out->pitch < box->WidthInBytes))
            return CUDA_ERROR_INVALID_VALUE;
    }
    out->base += z * out->slice + y * out->pitch + x;
    return CUDA_SUCCESS;
}

/* One row; arrays are the device's and were checked as a whole. */
static CUresult copy_row(const struct box_side *to, uint64_t destination, const struct box_side *from, uint64_t source, size_t bytes, enum sim_engine *engine)
{
    int to_device = 1, from_device = 1;
    CUresult result = to->is_array ? CUDA_SUCCESS : sim_range_check(pointer_of(destination), bytes, to->known, &to_device);
    if (result == CUDA_SUCCESS && !from->is_array)
        result = sim_range_check(pointer_of(source), bytes, from->known, &from_device);
    if (result != CUDA_SUCCESS)
        return result;
    memmove(pointer_of(destination), pointer_of(source), bytes);
    *engine = engine_of(to_device, from_device);
    return CUDA_SUCCESS;
}

CUresult sim_copy_box(CUstream stream, const CUDA_MEMCPY3D *box, int wait)
{
    struct box_side from, to;
    size_t width = box->WidthInBytes, height = box->Height, depth = box->Depth;
    if (width == 0 || height == 0 || depth == 0)
        return CUDA_SUCCESS;
    CUresult result = side(box, 1, &from);
    if (result == CUDA_SUCCESS)
        result = side(box, 0, &to);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return wait ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : sim_capture_box(stream, box);
    enum sim_engine engine = SIM_ENGINES;
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < height; y++) {
            result = copy_row(&to, to.base + z * to.slice + y * to.pitch, &from, from.base + z * from.slice + y * from.pitch, width, &engine);
            if (result != CUDA_SUCCESS)
                return result;
        }
    result = enqueue_copy(stream, engine, width * height * depth);
    return result == CUDA_SUCCESS && wait ? sim_stream_drain(stream) : result;
}

static CUresult array_piece(const char *call, int per_thread, CUarray to_array, size_t to_offset, CUarray from_array, size_t from_offset, const void *host, CUdeviceptr device, size_t bytes, CUstream given, int wait)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    CUmemorytype other = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    CUDA_MEMCPY3D box = {.srcXInBytes = from_offset, .srcMemoryType = from_array ? CU_MEMORYTYPE_ARRAY : other, .srcHost = host, .srcDevice = device, .srcArray = from_array,
                         .dstXInBytes = to_offset, .dstMemoryType = to_array ? CU_MEMORYTYPE_ARRAY : other, .dstHost = (void *)(uintptr_t)host, .dstDevice = device, .dstArray = to_array, /* written only where it is the destination */
                         .WidthInBytes = bytes, .Height = 1, .Depth = 1};
    return sim_copy_box(stream, &box, wait);
}
static CUresult array_from_host(const char *call, int per_thread, CUarray to, size_t offset, const void *from, size_t bytes) { return array_piece(call, per_thread, to, offset, NULL, 0, from, 0, bytes, NULL, 1); }
DEFINE_TWINS(cuMemcpyHtoA_v2, _ptds, array_from_host, (CUarray to, size_t offset, const void *from, size_t bytes), to, offset, from, bytes)
static CUresult array_to_host(const char *call, int per_thread, void *to, CUarray from, size_t offset, size_t bytes) { return array_piece(call, per_thread, NULL, 0, from, offset, to, 0, bytes, NULL, 1); }
DEFINE_TWINS(cuMemcpyAtoH_v2, _ptds, array_to_host, (void *to, CUarray from, size_t offset, size_t bytes), to, from, offset, bytes)
static CUresult array_from_device(const char *call, int per_thread, CUarray to, size_t offset, CUdeviceptr from, size_t bytes) { return array_piece(call, per_thread, to, offset, NULL, 0, NULL, from, bytes, NULL, 0); }
DEFINE_TWINS(cuMemcpyDtoA_v2, _ptds, array_from_device, (CUarray to, size_t offset, CUdeviceptr from, size_t bytes), to, offset, from, bytes)
static CUresult array_to_device(const char *call, int per_thread, CUdeviceptr to, CUarray from, size_t offset, size_t bytes) { return array_piece(call, per_thread, NULL, 0, from, offset, NULL, to, bytes, NULL, 0); }
DEFINE_TWINS(cuMemcpyAtoD_v2, _ptds, array_to_device, (CUdeviceptr to, CUarray from, size_t offset, size_t bytes), to, from, offset, bytes)
static CUresult array_to_array(const char *call, int per_thread, CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) { return array_piece(call, per_thread, to, to_offset, from, from_offset, NULL, 0, bytes, NULL, 0); }
DEFINE_TWINS(cuMemcpyAtoA_v2, _ptds, array_to_array, (CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes), to, to_offset, from, from_offset, bytes)
static CUresult array_from_host_async(const char *call, int per_thread, CUarray to, size_t offset, const void *from, size_t bytes, CUstream stream) { return array_piece(call, per_thread, to, offset, NULL, 0, from, 0, bytes, stream, 0); }
DEFINE_TWINS(cuMemcpyHtoAAsync_v2, _ptsz, array_from_host_async, (CUarray to, size_t offset, const void *from, size_t bytes, CUstream stream), to, offset, from, bytes, stream)
static CUresult array_to_host_async(const char *call, int per_thread, void *to, CUarray from, size_t offset, size_t bytes, CUstream stream) { return array_piece(call, per_thread, NULL, 0, from, offset, to, 0, bytes, stream, 0); }
DEFINE_TWINS(cuMemcpyAtoHAsync_v2, _ptsz, array_to_host_async, (void *to, CUarray from, size_t offset, size_t bytes, CUstream stream), to, from, offset, bytes, stream)

static void flat_box(const CUDA_MEMCPY2D *flat, CUDA_MEMCPY3D *box)
{
    *box = (CUDA_MEMCPY3D){.srcXInBytes = flat->srcXInBytes, .srcY = flat->srcY, .srcMemoryType = flat->srcMemoryType, .srcHost = flat->srcHost,
        .srcDevice = flat->srcDevice, .srcArray = flat->srcArray, .srcPitch = flat->srcPitch, .dstXInBytes = flat->dstXInBytes, .dstY = flat->dstY,
        .dstMemoryType = flat->dstMemoryType, .dstHost = flat->dstHost, .dstDevice = flat->dstDevice, .dstArray = flat->dstArray, .dstPitch = flat->dstPitch,
        .WidthInBytes = flat->WidthInBytes, .Height = flat->Height, .Depth = 1};
}

static CUresult flat_on(const char *call, int per_thread, const CUDA_MEMCPY2D *flat, CUstream given, int wait)
{
    CUstream stream;
    CUDA_MEMCPY3D box;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!flat)
        return CUDA_ERROR_INVALID_VALUE;
    flat_box(flat, &box);
    return sim_copy_box(stream, &box, wait);
}

static CUresult flat_sync(const char *call, int per_thread, const CUDA_MEMCPY2D *flat) { return flat_on(call, per_thread, flat, NULL, 1); }
static CUresult flat_async(const char *call, int per_thread, const CUDA_MEMCPY2D *flat, CUstream stream) { return flat_on(call, per_thread, flat, stream, 0); }
DEFINE_TWINS(cuMemcpy2D_v2, _ptds, flat_sync, (const CUDA_MEMCPY2D *flat), flat)
DEFINE_TWINS(cuMemcpy2DUnaligned_v2, _ptds, flat_sync, (const CUDA_MEMCPY2D *flat), flat)
DEFINE_TWINS(cuMemcpy2DAsync_v2, _ptsz, flat_async, (const CUDA_MEMCPY2D *flat, CUstream stream), flat, stream)

static CUresult box_on(const char *call, int per_thread, const CUDA_MEMCPY3D *box, CUstream given, int wait)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    return box ? sim_copy_box(stream, box, wait) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult box_sync(const char *call, int per_thread, const CUDA_MEMCPY3D *box) { return box_on(call, per_thread, box, NULL, 1); }
static CUresult box_async(const char *call, int per_thread, const CUDA_MEMCPY3D *box, CUstream stream) { return box_on(call, per_thread, box, stream, 0); }
DEFINE_TWINS(cuMemcpy3D_v2, _ptds, box_sync, (const CUDA_MEMCPY3D *box), box)
DEFINE_TWINS(cuMemcpy3DAsync_v2, _ptsz, box_async, (const CUDA_MEMCPY3D *box, CUstream stream), box, stream)

static CUresult peer_box(const char *call, int per_thread, const CUDA_MEMCPY3D_PEER *peer, CUstream given, int wait)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!peer || !sim_context_valid(peer->srcContext) || !sim_context_valid(peer->dstContext))
        return peer ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D box = {.srcXInBytes = peer->srcXInBytes, .srcY = peer->srcY, .srcZ = peer->srcZ, .srcMemoryType = peer->srcMemoryType, .srcHost = peer->srcHost,
        .srcDevice = peer->srcDevice, .srcArray = peer->srcArray, .srcPitch = peer->srcPitch, .srcHeight = peer->srcHeight, .dstXInBytes = peer->dstXInBytes,
        .dstY = peer->dstY, .dstZ = peer->dstZ, .dstMemoryType = peer->dstMemoryType, .dstHost = peer->dstHost, .dstDevice = peer->dstDevice, .dstArray = peer->dstArray,
        .dstPitch = peer->dstPitch, .dstHeight = peer->dstHeight, .WidthInBytes = peer->WidthInBytes, .Height = peer->Height, .Depth = peer->Depth};
    return sim_copy_box(stream, &box, wait);
}
static CUresult peer_box_sync(const char *call, int per_thread, const CUDA_MEMCPY3D_PEER *box) { return peer_box(call, per_thread, box, NULL, 1); }
static CUresult peer_box_async(const char *call, int per_thread, const CUDA_MEMCPY3D_PEER *box, CUstream stream) { return peer_box(call, per_thread, box, stream, 0); }
DEFINE_TWINS(cuMemcpy3DPeer, _ptds, peer_box_sync, (const CUDA_MEMCPY3D_PEER *box), box)
DEFINE_TWINS(cuMemcpy3DPeerAsync, _ptsz, peer_box_async, (const CUDA_MEMCPY3D_PEER *box, CUstream stream), box, stream)

/* ---- fills ---- */

void sim_fill_now(CUdeviceptr destination, size_t pitch, unsigned value, unsigned element, size_t width, size_t height)
{
    for (size_t y = 0; y < height; y++) {
        unsigned char *row = pointer_of(destination + y * pitch);
        size_t bytes = width * element;
        if (value == 0 && bytes >= DROP_PAGES_FROM) { /* untouched pages are zero and cost nothing */
            unsigned char *first = pointer_of((destination + y * pitch + PAGE - 1) / PAGE * PAGE);
            size_t head = (size_t)(first - row), middle = (bytes - head) / PAGE * PAGE; /* first is not below row */
            int saved = errno, dropped = 0;
            sim_lock_driver();
            const struct memory *memory = sim_memory_find(address_of(first));
            if (memory && memory->kind != MEMORY_MAPPED && memory->kind != MEMORY_REGISTERED && memory->kind != MEMORY_IPC && memory->kind != MEMORY_IMPORTED && !memory->has_file) /* only private mappings come back as zeros */
                dropped = madvise(first, middle, MADV_DONTNEED) == 0;
            sim_unlock_driver();
            errno = saved;
            if (dropped) {
                memset(row, 0, head);
                memset(first + middle, 0, bytes - head - middle);
                continue;
            }
        }
        if (element == 1) {
            memset(row, (int)(value & 0xff), width); /* one byte */
        } else if (element == 2) {
            uint16_t *at = (uint16_t *)(void *)row; /* the address was checked to be a multiple of 2 */
            for (size_t x = 0; x < width; x++)
                at[x] = (uint16_t)value;
        } else {
            uint32_t *at = (uint32_t *)(void *)row; /* of 4 */
            for (size_t x = 0; x < width; x++)
                at[x] = value;
        }
    }
}

CUresult sim_fill(CUstream stream, CUdeviceptr destination, size_t pitch, unsigned value, unsigned element, size_t width, size_t height, int wait)
{
    int device;
    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    if (destination % element || (height > 1 && (pitch < width * element || pitch % element)) || width > SIZE_MAX / element / height)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_range_check(pointer_of(destination), (height - 1) * pitch + width * element, 0, &device);
    if (result == CUDA_SUCCESS && !device)
        result = sim_range_check(pointer_of(destination), 1, 1, &device); /* host memory that the driver knows will do */
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->capture)
        return wait ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : sim_capture_fill(stream, destination, pitch, value, element, width, height);
    sim_fill_now(destination, pitch, value, element, width, height);
    result = enqueue_copy(stream, SIM_ENGINE_D2D, width * height * element);
    return result == CUDA_SUCCESS && wait ? sim_stream_drain(stream) : result;
}

static CUresult fill_on(const char *call, int per_thread, CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width, size_t height, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    return result == CUDA_SUCCESS ? sim_fill(stream, to, pitch, value, element, width, height, 0) : result;
}

#define DEFINE_FILL(bits, type, element) \
    static CUresult fill_##bits(const char *call, int per_thread, CUdeviceptr to, type value, size_t count) { return fill_on(call, per_thread, to, 0, value, element, count, 1, NULL); } \
    DEFINE_TWINS(cuMemsetD##bits##_v2, _ptds, fill_##bits, (CUdeviceptr to, type value, size_t count), to, value, count) \
    SIM_EXPORTED CUresult CUDAAPI cuMemsetD##bits(CUdeviceptr_v1 to, type value, unsigned int count) { return fill_on(__func__, 0, to, 0, value, element, count, 1, NULL); } \
    static CUresult fill_##bits##_async(const char *call, int per_thread, CUdeviceptr to, type value, size_t count, CUstream stream) { return fill_on(call, per_thread, to, 0, value, element, count, 1, stream); } \
    DEFINE_TWINS(cuMemsetD##bits##Async, _ptsz, fill_##bits##_async, (CUdeviceptr to, type value, size_t count, CUstream stream), to, value, count, stream) \
    static CUresult fill_flat_##bits(const char *call, int per_thread, CUdeviceptr to, size_t pitch, type value, size_t width, size_t height) { return fill_on(call, per_thread, to, pitch, value, element, width, height, NULL); } \
    DEFINE_TWINS(cuMemsetD2D##bits##_v2, _ptds, fill_flat_##bits, (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height), to, pitch, value, width, height) \
    static CUresult fill_flat_##bits##_async(const char *call, int per_thread, CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream) { return fill_on(call, per_thread, to, pitch, value, element, width, height, stream); } \
    DEFINE_TWINS(cuMemsetD2D##bits##Async, _ptsz, fill_flat_##bits##_async, (CUdeviceptr to, size_t pitch, type value, size_t width, size_t height, CUstream stream), to, pitch, value, width, height, stream)

DEFINE_FILL(8, unsigned char, 1)
DEFINE_FILL(16, unsigned short, 2)
DEFINE_FILL(32, unsigned int, 4)
