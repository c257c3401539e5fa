/*
 * A driver that does nothing but remember: enough of libcuda for tests of the
 * limiter's own logic where the simulated machine would only be in the way.
 * Knobs and counters are exported by names that begin with fake_.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT uint64_t fake_total = UINT64_C(16) << 30;
EXPORT uint64_t fake_used;
EXPORT uint64_t fake_frees;
EXPORT uint64_t fake_launches;
EXPORT int fake_fail_next; /* error of the next allocation */
EXPORT uint64_t fake_asked; /* which device the thread has */
EXPORT int fake_device_uuid = 1; /* last byte of the device's UUID */

static __thread int current = 1;
static uint64_t next_pointer = UINT64_C(0x700000000000);

EXPORT int cuInit(unsigned int flags)
{
    return flags == 0 ? 0 : 1;
}

/* One table is there: the one whose name begins with a 1. */
EXPORT int cuGetExportTable(const void **table, const unsigned char *id)
{
    static const uint64_t functions[1] = {sizeof functions};
    if (id[0] != 1)
        return 1;
    *table = functions;
    return 0;
}

EXPORT int cuDriverGetVersion(int *version)
{
    *version = 12040;
    return 0;
}

EXPORT int cuCtxGetDevice(int *device)
{
    __atomic_fetch_add(&fake_asked, 1, __ATOMIC_RELAXED);
    if (!current)
        return 201;
    *device = 0;
    return 0;
}

EXPORT int cuCtxGetCurrent(void **context)
{
    *context = current ? (void *)0x1000 : NULL;
    return 0;
}

EXPORT int cuCtxSetCurrent(void *context)
{
    current = context != NULL;
    return 0;
}

/* Of the first two devices the faster one lies behind the other on the bus. */
EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    const char *order = getenv("CUDA_DEVICE_ORDER");
    if (order != NULL && strcmp(order, "PCI_BUS_ID") == 0 && device < 2)
        device = 1 - device;
    memset(uuid, 0, 16);
    uuid[15] = (unsigned char)(fake_device_uuid + device);
    return 0;
}

static int allocate(uint64_t *pointer, uint64_t bytes)
{
    if (fake_fail_next != 0) {
        int error = fake_fail_next;
        fake_fail_next = 0;
        return error;
    }
    *pointer = __atomic_fetch_add(&next_pointer, 1 << 20, __ATOMIC_RELAXED);
    __atomic_fetch_add(&fake_used, bytes, __ATOMIC_RELAXED);
    return 0;
}

EXPORT int cuMemAlloc_v2(uint64_t *pointer, size_t bytes)
{
    return allocate(pointer, bytes);
}

EXPORT int cuMemAllocPitch_v2(uint64_t *pointer, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    (void)element;
    *pitch = (width + 4095) / 4096 * 4096;
    return allocate(pointer, *pitch * height);
}

EXPORT int cuMemFree_v2(uint64_t pointer)
{
    (void)pointer;
    __atomic_fetch_add(&fake_frees, 1, __ATOMIC_RELAXED);
    return 0;
}

/* Nothing here is of a pool, or managed. */
EXPORT int cuPointerGetAttribute(void *data, int attribute, uint64_t pointer)
{
    (void)data, (void)attribute, (void)pointer;
    return 1;
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    *total_bytes = fake_total;
    *free_bytes = fake_total - fake_used;
    return 0;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    *bytes = fake_total;
    return 0;
}

EXPORT int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h,
                          void *stream, void **parameters, void **extra)
{
    (void)f, (void)a, (void)b, (void)c, (void)d, (void)e, (void)g, (void)h;
    (void)stream, (void)parameters, (void)extra;
    fake_launches++;
    return 0;
}

EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status)
{
    int found = 1;
    if (flags == 4)
        return 1; /* undefined: nothing is touched */
#ifdef LOOKS_ITSELF_UP /* as drivers from 570 on do */
    if (strcmp(symbol, "cuMemAlloc") == 0 && version >= 3020)
        *function = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "cuMemAlloc_v2");
#else
    if (strcmp(symbol, "cuMemAlloc") == 0 && version >= 3020)
        *function = (void *)cuMemAlloc_v2;
#endif
    else if (strcmp(symbol, "cuDriverGetVersion") == 0)
        *function = (void *)cuDriverGetVersion;
    else
        found = 0;
    if (status != NULL) {
        *status = found ? 0 : 1;
        if (!found)
            *function = NULL;
    }
    return 0; /* with no status, an unknown name leaves *function untouched */
}

/* Events that are always over and took no time. */
EXPORT int cuEventCreate(void **event, unsigned int flags)
{
    (void)flags;
    *event = (void *)0x2000;
    return 0;
}

EXPORT int cuEventDestroy_v2(void *event)
{
    (void)event;
    return 0;
}

EXPORT int cuEventRecord(void *event, void *stream)
{
    (void)event, (void)stream;
    return 0;
}

EXPORT int cuEventQuery(void *event)
{
    (void)event;
    return 0;
}

EXPORT int cuEventElapsedTime(float *milliseconds, void *start, void *end)
{
    (void)start, (void)end;
    *milliseconds = 0;
    return 0;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
    (void)device;
    *context = (void *)0x1000;
    return 0;
}

EXPORT int cuModuleLoadData(void **module, const void *image)
{
    (void)image;
    *module = (void *)0x3000;
    return 0;
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name)
{
    (void)module, (void)name;
    *function = (void *)0x4000;
    return 0;
}

/* Arrays and mipmapped arrays: handles and nothing else. */
static int make_array(void **array)
{
    uint64_t pointer;
    int result = allocate(&pointer, 0);
    if (result == 0)
        *array = (void *)pointer;
    return result;
}

EXPORT int cuArrayCreate_v2(void **array, const void *descriptor)
{
    (void)descriptor;
    return make_array(array);
}

EXPORT int cuMipmappedArrayCreate(void **array, const void *descriptor, unsigned int levels)
{
    (void)descriptor, (void)levels;
    return make_array(array);
}

/* Of fake_physical.c, where that is part of the driver. */
__attribute__((weak)) void fake_object_is_gone(uint64_t object);

EXPORT int cuArrayDestroy(void *array)
{
    if (array != NULL && fake_object_is_gone != NULL)
        fake_object_is_gone((uint64_t)(uintptr_t)array);
    return array == NULL ? 1 : 0;
}

EXPORT int cuMipmappedArrayDestroy(void *array)
{
    return cuArrayDestroy(array);
}
