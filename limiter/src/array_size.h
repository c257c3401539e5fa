/* What an array takes on the device. Pure. */
#ifndef HV_ARRAY_SIZE_H
#define HV_ARRAY_SIZE_H

#include <stdint.h>

#include "cuda_abi.h"

/* Bytes of an array with so many mipmap levels, 0 for one whose memory is
 * mapped later; UINT64_MAX where the product does not fit. */
uint64_t hv_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned int levels);

#endif
