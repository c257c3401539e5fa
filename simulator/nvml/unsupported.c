/* One body for every function that is asked for and not there. The arguments beyond the first are never
 * looked at: on the ABIs we build for, a caller may pass more than a function takes. */
#include "library.h"

#define DEVICE(name)                                         \
    NVML_EXPORT nvmlReturn_t name(nvmlDevice_t device)       \
    {                                                        \
        DEVICE_CALL(call, device);                           \
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);    \
    }
#define SYSTEM(name)                                         \
    NVML_EXPORT nvmlReturn_t name(void)                      \
    {                                                        \
        SYSTEM_CALL(call);                                   \
        return call_end(&call, NVML_ERROR_NOT_SUPPORTED);    \
    }
#include "unsupported.def"
