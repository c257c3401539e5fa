/* Texture references of modules: programs of before texture objects bind memory to them. Here each is a handle that
 * remembers what it was bound to and how; kernels read through none. A name belongs to one reference for as long as its module lives. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define TEXTURE_ALIGNMENT 512 /* what CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT says */

static CUtexref add(CUmodule module, const char *name, size_t length)
{
    CUtexref made = calloc(1, sizeof *made + length + 1);
    if (!made)
        return NULL;
    made->kind = HANDLE_TEXTURE_REFERENCE;
    made->channels = 1;
    memcpy(made->name, name, length);
    made->next = module->textures;
    module->textures = made;
    return made;
}

/* An image of text has those that it declares, ".texref NAME"; 0: no memory. */
int sim_textures_of_text(CUmodule module, const char *text)
{
    for (const char *at = text; (at = strstr(at, ".texref")) != NULL;) {
        at += strlen(".texref");
        at += strspn(at, " \t\r\n");
        size_t length = strcspn(at, " \t\r\n;,");
        if (length && !add(module, at, length))
            return 0;
    }
    return 1;
}

/* The handles keep their memory, as functions' do, so that a use after this is an error and not a crash. */
void sim_textures_drop(CUmodule module)
{
    for (CUtexref reference = module->textures; reference; reference = reference->next)
        reference->kind = HANDLE_DEAD;
}

SIM_EXPORTED CUresult CUDAAPI cuModuleGetTexRef(CUtexref *out, CUmodule module, const char *name);
SIM_EXPORTED CUresult CUDAAPI cuModuleGetTexRef(CUtexref *out, CUmodule module, const char *name)
{
    ENTER();
    if (!out || !name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!module || module->kind != HANDLE_MODULE)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = CUDA_SUCCESS;
    sim_lock_driver();
    CUtexref found = module->textures;
    while (found && strcmp(found->name, name) != 0)
        found = found->next;
    if (!found && module->names) /* text, and it declares no such reference */
        result = CUDA_ERROR_NOT_FOUND;
    else if (!found && !(found = add(module, name, strlen(name))))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        *out = found;
    sim_unlock_driver();
    return result;
}

static int is_reference(CUtexref reference) { return reference && reference->kind == HANDLE_TEXTURE_REFERENCE; }

/* Address 0 unbinds. Allocations are aligned for any texture, so the offset, in bytes, is that within 512. */
SIM_EXPORTED CUresult CUDAAPI cuTexRefSetAddress_v2(size_t *offset, CUtexref reference, CUdeviceptr address, size_t bytes);
SIM_EXPORTED CUresult CUDAAPI cuTexRefSetAddress_v2(size_t *offset, CUtexref reference, CUdeviceptr address, size_t bytes)
{
    ENTER();
    int device;
    uint64_t within = address % TEXTURE_ALIGNMENT;
    if (!is_reference(reference) || (within && !offset))
        return CUDA_ERROR_INVALID_VALUE;
    if (address && sim_range_check((const void *)(uintptr_t)address, bytes, 1, &device) != CUDA_SUCCESS) /* the same width */
        return CUDA_ERROR_INVALID_VALUE;
    reference->address = address - within;
    if (offset)
        *offset = within;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuTexRefGetAddress_v2(CUdeviceptr *address, CUtexref reference);
SIM_EXPORTED CUresult CUDAAPI cuTexRefGetAddress_v2(CUdeviceptr *address, CUtexref reference)
{
    ENTER();
    if (!address || !is_reference(reference) || !reference->address)
        return CUDA_ERROR_INVALID_VALUE;
    *address = reference->address;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuTexRefSetFormat(CUtexref reference, CUarray_format format, int channels);
SIM_EXPORTED CUresult CUDAAPI cuTexRefSetFormat(CUtexref reference, CUarray_format format, int channels)
{
    ENTER();
    if (!is_reference(reference) || (channels != 1 && channels != 2 && channels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    reference->format = format;
    reference->channels = channels;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuTexRefGetFormat(CUarray_format *format, int *channels, CUtexref reference);
SIM_EXPORTED CUresult CUDAAPI cuTexRefGetFormat(CUarray_format *format, int *channels, CUtexref reference)
{
    ENTER();
    if (!format || !channels || !is_reference(reference))
        return CUDA_ERROR_INVALID_VALUE;
    *format = reference->format;
    *channels = reference->channels;
    return CUDA_SUCCESS;
}
