/* Lists of boxes to copy. Their sizes are in elements: of the array that takes part, else of one byte. */
#define _GNU_SOURCE
#include "driver.h"

enum { OPERAND_POINTER = 1, OPERAND_ARRAY = 2, ORDER_STREAM = 1, ORDER_ANY = 3 };

struct operand {               /* CUmemcpy3DOperand */
    unsigned type;
    union {
        struct { CUdeviceptr address; size_t row, layer; CUmemLocation hint; } pointer;
        struct { CUarray array; size_t x, y, z; } array;
    };
};
struct box_operation { struct operand from, to; size_t width, height, depth; unsigned order, flags; }; /* CUDA_MEMCPY3D_BATCH_OP */

static size_t element_of(const struct operand *operand)
{
    CUDA_ARRAY3D_DESCRIPTOR shape;
    struct array_bytes bytes;
    if (operand->type != OPERAND_ARRAY || !sim_array_bytes(operand->array.array, &bytes) || !sim_array_shape(operand->array.array, &shape))
        return 0;
    return bytes.row / shape.Width;
}

static CUresult box_of(const struct box_operation *operation, CUDA_MEMCPY3D *box)
{
    size_t from = element_of(&operation->from), to = element_of(&operation->to), element = from ? from : to ? to : 1;
    if (!operation->width || !operation->height || !operation->depth || operation->order < ORDER_STREAM || operation->order > ORDER_ANY || (from && to && from != to))
        return CUDA_ERROR_INVALID_VALUE;
    *box = (CUDA_MEMCPY3D){.WidthInBytes = operation->width * element, .Height = operation->height, .Depth = operation->depth};
    if (operation->from.type == OPERAND_ARRAY) {
        box->srcMemoryType = CU_MEMORYTYPE_ARRAY;
        box->srcArray = operation->from.array.array;
        box->srcXInBytes = operation->from.array.x * element;
        box->srcY = operation->from.array.y;
        box->srcZ = operation->from.array.z;
    } else if (operation->from.type == OPERAND_POINTER) {
        box->srcMemoryType = CU_MEMORYTYPE_UNIFIED;
        box->srcDevice = operation->from.pointer.address;
        box->srcPitch = operation->from.pointer.row * element;
        box->srcHeight = operation->from.pointer.layer;
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (operation->to.type == OPERAND_ARRAY) {
        box->dstMemoryType = CU_MEMORYTYPE_ARRAY;
        box->dstArray = operation->to.array.array;
        box->dstXInBytes = operation->to.array.x * element;
        box->dstY = operation->to.array.y;
        box->dstZ = operation->to.array.z;
    } else if (operation->to.type == OPERAND_POINTER) {
        box->dstMemoryType = CU_MEMORYTYPE_UNIFIED;
        box->dstDevice = operation->to.pointer.address;
        box->dstPitch = operation->to.pointer.row * element;
        box->dstHeight = operation->to.pointer.layer;
    } else {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* In the order of the list; the first that cannot be made is named. */
static CUresult copy_boxes(const char *call, int per_thread, size_t count, const struct box_operation *list, size_t *failed, unsigned long long flags, CUstream given)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!list || !count || flags)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        CUDA_MEMCPY3D box;
        result = box_of(&list[i], &box);
        if (result == CUDA_SUCCESS)
            result = sim_copy_box(stream, &box, 0);
        if (result != CUDA_SUCCESS && failed)
            *failed = i;
    }
    return result;
}
static CUresult copy_boxes_2(const char *call, int per_thread, size_t count, const struct box_operation *list, unsigned long long flags, CUstream stream) { return copy_boxes(call, per_thread, count, list, NULL, flags, stream); }
DEFINE_TWINS(cuMemcpy3DBatchAsync, _ptsz, copy_boxes, (size_t count, const struct box_operation *list, size_t *failed, unsigned long long flags, CUstream stream), count, list, failed, flags, stream)
DEFINE_TWINS(cuMemcpy3DBatchAsync_v2, _ptsz, copy_boxes_2, (size_t count, const struct box_operation *list, unsigned long long flags, CUstream stream), count, list, flags, stream)
