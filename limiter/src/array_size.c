#include "array_size.h"

/* The driver hands arrays out in blocks of this size. */
#define ARRAY_GRANULARITY 65536

/* Bytes of a channel: formats of plain numbers by their size, anything else
 * (compressed and video formats) at the most that such a texel takes. */
static uint64_t channel_bytes(int format)
{
    switch (format) {
    case 0x01: /* unsigned 8 */
    case 0x08: /* signed 8 */
        return 1;
    case 0x02: /* unsigned 16 */
    case 0x09: /* signed 16 */
    case 0x10: /* half */
        return 2;
    default:
        return 4;
    }
}

static uint64_t product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) ? UINT64_MAX : result;
}

static uint64_t at_least_one(uint64_t value)
{
    return value == 0 ? 1 : value; /* a dimension that the array does not have */
}

static uint64_t half(uint64_t value)
{
    return at_least_one(value / 2);
}

uint64_t hv_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels)
{
    if (descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    uint64_t texel = product(channel_bytes(descriptor->Format), at_least_one(descriptor->NumChannels));
    uint64_t width = at_least_one(descriptor->Width);
    uint64_t height = at_least_one(descriptor->Height);
    uint64_t depth = at_least_one(descriptor->Depth);
    /* Layers and cube faces are counted in depth and do not shrink by level. */
    int layered = (descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    uint64_t total = 0;
    for (unsigned int level = 0; level < levels && level < 64; level++) {
        uint64_t bytes = product(product(product(width, height), depth), texel);
        if (__builtin_add_overflow(total, bytes, &total))
            return UINT64_MAX;
        width = half(width);
        height = half(height);
        depth = layered ? depth : half(depth);
    }
    if (total > UINT64_MAX - ARRAY_GRANULARITY)
        return UINT64_MAX;
    return (total + ARRAY_GRANULARITY - 1) / ARRAY_GRANULARITY * ARRAY_GRANULARITY;
}
