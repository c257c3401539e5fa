/* The vendor's private tables that a CUDA runtime of 10.2 asks a driver for, as far as it uses them: what it was seen to
 * call and nothing else. Only the test of such a program links this into a driver; the one that is shipped has none.
 * The table by which runtimes from 11.2 on authenticate the driver is not here, and must not be. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image);

typedef void (*slot)(void);
#define SLOT(function) ((slot)(function)) /* called with the type it has: the caller knows it by the slot's number */
#define SIZE_OF_TABLE(slots) ((slot)((slots) * sizeof(slot))) /* the first word is no function: the table's bytes */

/* Runtime and driver: which handle is a device's primary context. Asked for all devices, so nothing is made. */
static CUresult CUDAAPI primary_context(CUcontext *context, CUdevice device)
{
    if (!context || device < 0 || (uint32_t)device >= sim_driver.device_count) /* not negative */
        return CUDA_ERROR_INVALID_VALUE;
    *context = sim_primary_handle((uint32_t)device);
    return *context ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

struct wrapper { int magic, version; const void *data; void *filename; }; /* what the compiler leaves in the program */

static CUresult CUDAAPI load_module(CUmodule *module, const struct wrapper *wrapper, void *unknown1, void *unknown2, size_t unknown3)
{
    (void)unknown1;
    (void)unknown2;
    (void)unknown3;
    return wrapper ? cuModuleLoadData(module, wrapper->data) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult CUDAAPI accepted(size_t unknown)
{
    (void)unknown;
    return CUDA_SUCCESS;
}

/* Hooks of profilers: two places that nobody watches. */
static CUresult CUDAAPI callbacks(void **place, size_t *size)
{
    static void *room[1024];
    *place = room;
    *size = sizeof room / sizeof *room;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI enabled(void **place, size_t *size)
{
    static unsigned char room[16];
    *place = room;
    *size = 14;
    return CUDA_SUCCESS;
}

/* What a runtime keeps for each context. */
typedef void (*ender)(CUcontext, void *key, void *value);
struct kept { CUcontext context; void *key, *value; struct kept *next; };
static struct kept *all_kept;
static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;

static struct kept **place_of(CUcontext context, const void *key)
{
    struct kept **link = &all_kept;
    while (*link && ((*link)->context != context || (*link)->key != key))
        link = &(*link)->next;
    return link;
}

static CUresult CUDAAPI keep(CUcontext context, void *key, void *value, ender end)
{
    (void)end; /* how the runtime lets go of it; the programs of the test keep their contexts to the end */
    context = context ? context : sim_current_context();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&keeping);
    struct kept **link = place_of(context, key);
    if (!*link && (*link = calloc(1, sizeof **link)) != NULL) {
        (*link)->context = context;
        (*link)->key = key;
    }
    CUresult result = *link ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (*link)
        (*link)->value = value;
    pthread_mutex_unlock(&keeping);
    return result;
}

static CUresult CUDAAPI drop(CUcontext context, void *key)
{
    pthread_mutex_lock(&keeping);
    struct kept **link = place_of(context ? context : sim_current_context(), key), *found = *link;
    if (found)
        *link = found->next;
    pthread_mutex_unlock(&keeping);
    free(found);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult CUDAAPI look_up(void **value, CUcontext context, void *key)
{
    pthread_mutex_lock(&keeping);
    const struct kept *found = *place_of(context ? context : sim_current_context(), key);
    if (found)
        *value = found->value;
    pthread_mutex_unlock(&keeping);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static const slot runtime_table[] = {SIZE_OF_TABLE(10), NULL, SLOT(primary_context), NULL, NULL, NULL, SLOT(load_module), SLOT(accepted), NULL, NULL};
static const slot hooks_table[] = {SIZE_OF_TABLE(7), NULL, SLOT(callbacks), NULL, NULL, NULL, SLOT(enabled)};
static const slot threads_table[] = {SIZE_OF_TABLE(4), NULL, NULL, NULL};
static const slot storage_table[] = {SLOT(keep), SLOT(drop), SLOT(look_up)};

const void *sim_private_table(const CUuuid *id)
{
    static const struct { unsigned char begins[4]; const slot *table; } tables[] = {
        {{0x6b, 0xd5, 0xfb, 0x6c}, runtime_table},
        {{0xa0, 0x94, 0x79, 0x8c}, hooks_table},
        {{0x42, 0xd8, 0x5a, 0x81}, threads_table},
        {{0xc6, 0x93, 0x33, 0x6e}, storage_table},
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (memcmp(id->bytes, tables[i].begins, 4) == 0)
            return tables[i].table;
    return NULL;
}
