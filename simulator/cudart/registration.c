/* What a program that nvcc compiled registers at its start: images, kernels and variables, each known by an address
 * of the program. An image is given to the driver when something of it is first used. */
#define _GNU_SOURCE
#include "cudart.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct wrapper { int magic, version; const void *data; void *filename; }; /* what the compiler leaves in the program */
struct binary {
    const void *image;
    CUlibrary library; /* NULL: not given to the driver yet */
};
struct entry {
    const void *host;  /* NULL: the place is free */
    struct binary *binary;
    const char *name;
    size_t size;       /* of a variable; 0: a kernel */
    CUkernel kernel;
    CUdeviceptr address;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static struct entry *entries;
static size_t room, used;

static size_t place_of(const struct entry *table, size_t places, const void *host)
{
    size_t at = ((uintptr_t)host >> 4) * UINT64_C(0x9e3779b97f4a7c15) % places;
    while (table[at].host && table[at].host != host)
        at = (at + 1) % places;
    return at;
}

static int grow(void)
{
    size_t places = room ? room * 2 + 1 : 1023;
    struct entry *larger = calloc(places, sizeof *larger);
    if (!larger)
        return 0;
    for (size_t i = 0; i < room; i++)
        if (entries[i].host)
            larger[place_of(larger, places, entries[i].host)] = entries[i];
    free(entries);
    entries = larger;
    room = places;
    return 1;
}

static void put(const struct entry *entry)
{
    pthread_mutex_lock(&lock);
    if (used * 2 < room || grow()) {
        struct entry *place = &entries[place_of(entries, room, entry->host)];
        used += place->host == NULL;
        *place = *entry;
    }
    pthread_mutex_unlock(&lock);
}

EXPORTED void **__cudaRegisterFatBinary(void *given)
{
    const struct wrapper *wrapper = given;
    struct binary *binary = calloc(1, sizeof *binary);
    if (binary)
        binary->image = wrapper->data;
    return (void **)(void *)binary; /* to the program it is only a handle */
}
EXPORTED void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
EXPORTED char __cudaInitModule(void **handle) { (void)handle; return 1; }

EXPORTED void __cudaUnregisterFatBinary(void **handle)
{
    struct binary *binary = (struct binary *)(void *)handle;
    if (!binary)
        return;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < room; i++)
        if (entries[i].binary == binary)
            entries[i].binary = NULL; /* a later use says that there is no such function */
    pthread_mutex_unlock(&lock);
    free(binary); /* the driver keeps the library: the process is ending or the module is being unloaded */
}

EXPORTED void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid, void *bid, dim3 *block, dim3 *grid, int *warp)
{
    (void)device; (void)limit; (void)tid; (void)bid; (void)block; (void)grid; (void)warp;
    put(&(struct entry){.host = host, .binary = (struct binary *)(void *)handle, .name = name});
}
EXPORTED void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global)
{
    (void)device; (void)external; (void)constant; (void)global;
    put(&(struct entry){.host = host, .binary = (struct binary *)(void *)handle, .name = name, .size = size});
}
EXPORTED void __cudaRegisterManagedVar(void **handle, void **host, char *device, const char *name, int external, size_t size, int constant, int global)
{
    __cudaRegisterVar(handle, (char *)(void *)host, device, name, external, size, constant, global);
}

/* Lock held. The entry of an address, its image given to the driver; NULL: *error says why not. */
static struct entry *find(const void *host, int variable, cudaError_t missing, cudaError_t *error)
{
    struct entry *entry = room ? &entries[place_of(entries, room, host)] : NULL;
    *error = missing;
    if (!entry || !entry->host || !entry->binary || (entry->size != 0) != variable)
        return NULL;
    if (!entry->binary->library)
        *error = (cudaError_t)driver.cuLibraryLoadData(&entry->binary->library, entry->binary->image, NULL, NULL, 0, NULL, NULL, 0);
    else
        *error = CUDA_SUCCESS;
    return *error ? NULL : entry;
}

cudaError_t sim_runtime_kernel(const void *host, CUkernel *out)
{
    cudaError_t error;
    pthread_mutex_lock(&lock);
    struct entry *entry = find(host, 0, INVALID_DEVICE_FUNCTION, &error);
    if (entry && !entry->kernel)
        error = (cudaError_t)driver.cuLibraryGetKernel(&entry->kernel, entry->binary->library, entry->name);
    if (entry)
        *out = entry->kernel;
    pthread_mutex_unlock(&lock);
    return error;
}

/* An image that the driver cannot look into has no variables for it: then the registered size is allocated here. */
cudaError_t sim_runtime_variable(const void *host, CUdeviceptr *address, size_t *size)
{
    cudaError_t error;
    pthread_mutex_lock(&lock);
    struct entry *entry = find(host, 1, INVALID_SYMBOL, &error);
    if (entry && !entry->address) {
        error = (cudaError_t)driver.cuLibraryGetGlobal(&entry->address, NULL, entry->binary->library, entry->name);
        if (error == CUDA_ERROR_NOT_FOUND)
            error = (cudaError_t)driver.cuMemAlloc(&entry->address, entry->size);
    }
    if (entry && !error) {
        *address = entry->address;
        if (size)
            *size = entry->size;
    }
    pthread_mutex_unlock(&lock);
    return error;
}
