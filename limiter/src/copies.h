/* The wrapper of a copy or memset within a device, for the files of their hooks alone. */
#ifndef HV_COPIES_H
#define HV_COPIES_H

#include "driver.h"
#include "pacing.h"

/* Charged where the Pod's limits say so, and where it is one within a device. By function and bytes: these in steps of an
 * eighth, as grids are. */
#define COPY_WITHIN(name, parameters, arguments, is_within, copied_bytes, copy_stream, copy_per_thread)               \
    HV_WRAP(name, parameters)                                                                                         \
    {                                                                                                                 \
        if (hv_likely(hv_copies_are_free()) || !(is_within))                                                          \
            return HV_REAL(name) arguments;                                                                           \
        static const char identity; /* its address stands for the function */                                        \
        struct hv_launch launch = {.function = &identity,                                                             \
                                   .stream = copy_stream,                                                             \
                                   .blocks = copied_bytes,                                                            \
                                   .kind = HV_LAUNCH_COPY,                                                            \
                                   .per_thread = copy_per_thread};                                                    \
        CUresult refused = hv_launch_begin(&launch);                                                                  \
        if (refused != CUDA_SUCCESS)                                                                                  \
            return refused;                                                                                           \
        return hv_launch_end(&launch, HV_REAL(name) arguments);                                                       \
    }

#define COPY(name, parameters, arguments, copied_bytes, copy_stream, copy_per_thread)                                 \
    COPY_WITHIN(name, parameters, arguments, true, copied_bytes, copy_stream, copy_per_thread)

#endif
