/* A plugin that is linked to the driver and allocates 2 GiB, which the limit of
 * the test does not allow; how it is opened decides whose functions it gets. */
#include <stddef.h>
#include <stdint.h>

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes);

__attribute__((visibility("default"))) int allocate(void);

int allocate(void)
{
    void *context;
    uint64_t pointer;
    int result = cuInit(0);
    if (result == 0)
        result = cuDevicePrimaryCtxRetain(&context, 0);
    if (result == 0)
        result = cuCtxSetCurrent(context);
    return result != 0 ? result : cuMemAlloc_v2(&pointer, (size_t)2 << 30);
}
