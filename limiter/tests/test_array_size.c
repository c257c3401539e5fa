/* test: sources=limiter/src/array_size.c include=limiter/include,limiter/src,limiter/tests */
/* What arrays take, by hand. */
#include "array_size.h"

#include "check.h"

#define KIB UINT64_C(1024)

static uint64_t bytes(size_t width, size_t height, size_t depth, int format, unsigned channels, unsigned flags,
                      unsigned levels)
{
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {width, height, depth, format, channels, flags};
    return hv_array_bytes(&descriptor, levels);
}

int main(void)
{
    CHECK_EQUAL(bytes(1024, 1024, 0, 0x01, 1, 0, 1), 1024 * KIB);  /* bytes, not bits */
    CHECK_EQUAL(bytes(1024, 1024, 0, 0x20, 4, 0, 1), 16384 * KIB); /* float4 */
    CHECK_EQUAL(bytes(1024, 0, 0, 0x10, 1, 0, 1), 64 * KIB);       /* one dimension, rounded up */
    CHECK_EQUAL(bytes(256, 256, 16, 0x20, 1, 0, 1), 4096 * KIB);
    /* levels: 1024^2 + 512^2 + 256^2 and rounding */
    CHECK_EQUAL(bytes(1024, 1024, 0, 0x01, 1, 0, 3), 1344 * KIB);
    /* layers do not shrink */
    CHECK_EQUAL(bytes(1024, 1024, 4, 0x01, 1, CUDA_ARRAY3D_LAYERED, 2), 5120 * KIB);
    CHECK_EQUAL(bytes(1024, 1024, 4, 0x01, 1, CUDA_ARRAY3D_SPARSE, 1), 0);
    CHECK_EQUAL(bytes(SIZE_MAX, SIZE_MAX, 1, 0x20, 4, 0, 1), UINT64_MAX);
    return CHECK_RESULT();
}
