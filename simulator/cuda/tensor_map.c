/* Descriptors of tensors for bulk copies. What stands in the 128 bytes is the driver's own affair: here the figures as
 * they were given, so that a descriptor with another address can be made of it. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>

#define RANKS 5u

struct tensor_map {
    uint64_t address;
    uint64_t dimensions[RANKS], strides[RANKS - 1];
    uint16_t box[RANKS];
    int16_t lower[RANKS - 2], upper[RANKS - 2]; /* of windows of pixels */
    uint8_t element_strides[RANKS], type, rank, interleave, swizzle, promotion, fill, kind;
};
typedef struct CUtensorMap_st { _Alignas(64) cuuint64_t opaque[16]; } CUtensorMap;
_Static_assert(sizeof(struct tensor_map) <= sizeof(CUtensorMap), "a descriptor holds the figures");

CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap *out, int type, cuuint32_t rank, void *address, const cuuint64_t *dimensions, const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *element_strides, int interleave, int swizzle, int promotion, int fill);
SIM_EXPORTED CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap *out, int type, cuuint32_t rank, void *address, const cuuint64_t *dimensions, const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *element_strides, int interleave, int swizzle, int promotion, int fill)
{
    ENTER();
    if (!out || !address || !rank || rank > RANKS || !dimensions || !box || !element_strides || (rank > 1 && !strides) || (uintptr_t)address % 16 || type < 0 || type > 15)
        return CUDA_ERROR_INVALID_VALUE;
    struct tensor_map map = {.address = (uintptr_t)address, .type = (uint8_t)type, .rank = (uint8_t)rank, .interleave = (uint8_t)interleave, .swizzle = (uint8_t)swizzle, .promotion = (uint8_t)promotion, .fill = (uint8_t)fill}; /* small enumerators */
    for (uint32_t i = 0; i < rank; i++) {
        if (!dimensions[i] || dimensions[i] > UINT64_C(1) << 32 || !box[i] || box[i] > 256 || !element_strides[i] || element_strides[i] > 8)
            return CUDA_ERROR_INVALID_VALUE;
        if (i + 1 < rank && (strides[i] % 16 || strides[i] >= UINT64_C(1) << 40))
            return CUDA_ERROR_INVALID_VALUE;
        map.dimensions[i] = dimensions[i];
        map.box[i] = (uint16_t)box[i];                         /* at most 256 */
        map.element_strides[i] = (uint8_t)element_strides[i];  /* at most 8 */
        if (i + 1 < rank)
            map.strides[i] = strides[i];
    }
    memset(out, 0, sizeof *out);
    memcpy(out, &map, sizeof map);
    return CUDA_SUCCESS;
}

/* Windows of pixels: a tensor of images has 3 to 5 dimensions, and the window's corners are of all but channels and images. */
CUresult CUDAAPI cuTensorMapEncodeIm2col(CUtensorMap *out, int type, cuuint32_t rank, void *address, const cuuint64_t *dimensions, const cuuint64_t *strides, const int *lower, const int *upper, cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *element_strides, int interleave, int swizzle, int promotion, int fill);
SIM_EXPORTED CUresult CUDAAPI cuTensorMapEncodeIm2col(CUtensorMap *out, int type, cuuint32_t rank, void *address, const cuuint64_t *dimensions, const cuuint64_t *strides, const int *lower, const int *upper, cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *element_strides, int interleave, int swizzle, int promotion, int fill)
{
    if (rank < 3 || rank > RANKS || !lower || !upper || !channels || channels > 256 || !pixels || pixels > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    cuuint32_t box[RANKS] = {channels, 1, 1, 1, 1};
    CUresult result = cuTensorMapEncodeTiled(out, type, rank, address, dimensions, strides, box, element_strides, interleave, swizzle, promotion, fill);
    if (result != CUDA_SUCCESS)
        return result;
    struct tensor_map map;
    memcpy(&map, out, sizeof map);
    map.kind = 1;
    map.box[1] = (uint16_t)pixels; /* at most 1024 */
    for (uint32_t i = 0; i + 2 < rank; i++) {
        if (lower[i] < INT16_MIN || lower[i] > INT16_MAX || upper[i] < INT16_MIN || upper[i] > INT16_MAX)
            return CUDA_ERROR_INVALID_VALUE;
        map.lower[i] = (int16_t)lower[i]; /* checked */
        map.upper[i] = (int16_t)upper[i]; /* checked */
    }
    memcpy(out, &map, sizeof map);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTensorMapReplaceAddress(CUtensorMap *map, void *address);
SIM_EXPORTED CUresult CUDAAPI cuTensorMapReplaceAddress(CUtensorMap *map, void *address)
{
    ENTER();
    uint64_t word = (uintptr_t)address;
    if (!map || !address || word % 16)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(map, &word, sizeof word); /* the address stands first */
    return CUDA_SUCCESS;
}
