/* Texture and surface references of modules: programs of before texture objects bind memory to them. Here each is a
 * handle that remembers what it was bound to and how; kernels read through none. A name belongs to one reference for as
 * long as its module lives. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define TEXTURE_ALIGNMENT 512 /* what CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT says */
#define PITCH_ALIGNMENT 32    /* what CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT says */
enum { MODE_WRAP = 0, MODE_BORDER = 3, FILTER_POINT = 0, FILTER_LINEAR = 1, OVERRIDE_FORMAT = 1 };

static CUtexref made(const char *name, size_t length, uint32_t kind)
{
    CUtexref reference = calloc(1, sizeof *reference + length + 1);
    if (!reference)
        return NULL;
    reference->kind = kind;
    reference->channels = 1;
    reference->anisotropy = 1;
    memcpy(reference->name, name, length);
    return reference;
}

static CUtexref add(CUtexref *list, const char *name, size_t length, uint32_t kind)
{
    CUtexref reference = made(name, length, kind);
    if (reference) {
        reference->next = *list;
        *list = reference;
    }
    return reference;
}

static int declared(CUtexref *list, const char *text, const char *word, uint32_t kind)
{
    for (const char *at = text; (at = strstr(at, word)) != NULL;) {
        at += strlen(word);
        at += strspn(at, " \t\r\n");
        size_t length = strcspn(at, " \t\r\n;,");
        if (length && !add(list, at, length, kind))
            return 0;
    }
    return 1;
}

/* An image of text has those that it declares, ".texref NAME" and ".surfref NAME"; 0: no memory. */
int sim_textures_of_text(CUmodule module, const char *text)
{
    return declared(&module->textures, text, ".texref", HANDLE_TEXTURE_REFERENCE) && declared(&module->surfaces, text, ".surfref", HANDLE_SURFACE_REFERENCE);
}

/* The handles keep their memory, as functions' do, so that a use after this is an error and not a crash. */
void sim_textures_drop(CUmodule module)
{
    for (CUtexref reference = module->textures; reference; reference = reference->next)
        reference->kind = HANDLE_DEAD;
    for (CUtexref reference = module->surfaces; reference; reference = reference->next)
        reference->kind = HANDLE_DEAD;
}

static CUresult of_module(CUtexref *out, CUmodule module, const char *name, uint32_t kind)
{
    if (!out || !name || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!module || module->kind != HANDLE_MODULE)
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = CUDA_SUCCESS;
    sim_lock_driver();
    CUtexref *list = kind == HANDLE_TEXTURE_REFERENCE ? &module->textures : &module->surfaces, found = *list;
    while (found && strcmp(found->name, name) != 0)
        found = found->next;
    if (!found && module->names) /* text, and it declares no such reference */
        result = CUDA_ERROR_NOT_FOUND;
    else if (!found && !(found = add(list, name, strlen(name), kind)))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        *out = found;
    sim_unlock_driver();
    return result;
}
SIM_EXPORTED CUresult CUDAAPI cuModuleGetTexRef(CUtexref *out, CUmodule module, const char *name) { ENTER(); return of_module(out, module, name, HANDLE_TEXTURE_REFERENCE); }
SIM_EXPORTED CUresult CUDAAPI cuModuleGetSurfRef(CUtexref *out, CUmodule module, const char *name) { ENTER(); return of_module(out, module, name, HANDLE_SURFACE_REFERENCE); }

static int is_texture(CUtexref reference) { return reference && reference->kind == HANDLE_TEXTURE_REFERENCE; }
static int is_surface(CUtexref reference) { return reference && reference->kind == HANDLE_SURFACE_REFERENCE; }

/* One of no module's: bound and asked as the others, used by none. */
SIM_EXPORTED CUresult CUDAAPI cuTexRefCreate(CUtexref *out)
{
    ENTER();
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = made("", 0, HANDLE_TEXTURE_REFERENCE);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
SIM_EXPORTED CUresult CUDAAPI cuTexRefDestroy(CUtexref reference)
{
    ENTER();
    if (!is_texture(reference) || reference->name[0])
        return CUDA_ERROR_INVALID_VALUE;
    reference->kind = HANDLE_DEAD;
    return CUDA_SUCCESS;
}

/* ---- what it is bound to: an address, an array or a mipmapped array, the last one said ---- */

static void bind(CUtexref reference, CUdeviceptr address, CUarray array, CUmipmappedArray mipmapped)
{
    reference->address = address;
    reference->array = array;
    reference->mipmapped = mipmapped;
}

/* Address 0 unbinds. Allocations are aligned for any texture, so the offset, in bytes, is that within 512. */
static CUresult set_address(size_t *offset, CUtexref reference, CUdeviceptr address, size_t bytes)
{
    int device;
    uint64_t within = address % TEXTURE_ALIGNMENT;
    if (!is_texture(reference) || (within && !offset))
        return CUDA_ERROR_INVALID_VALUE;
    if (address && sim_range_check((const void *)(uintptr_t)address, bytes, 1, &device) != CUDA_SUCCESS) /* the same width */
        return CUDA_ERROR_INVALID_VALUE;
    bind(reference, address - within, NULL, NULL);
    if (offset)
        *offset = within;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuTexRefSetAddress_v2(size_t *offset, CUtexref reference, CUdeviceptr address, size_t bytes) { ENTER(); return set_address(offset, reference, address, bytes); }
SIM_EXPORTED CUresult CUDAAPI cuTexRefSetAddress(unsigned int *offset, CUtexref reference, CUdeviceptr_v1 address, unsigned int bytes)
{
    ENTER();
    size_t wide = 0;
    CUresult result = set_address(offset ? &wide : NULL, reference, address, bytes);
    if (result == CUDA_SUCCESS && offset)
        *offset = (unsigned)wide; /* below 512 */
    return result;
}

static CUresult set_plane(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR *shape, CUdeviceptr address, size_t pitch, size_t alignment)
{
    int device;
    if (!is_texture(reference) || !shape || !address || !shape->Height || address % TEXTURE_ALIGNMENT || pitch % alignment)
        return CUDA_ERROR_INVALID_VALUE;
    if (sim_range_check((const void *)(uintptr_t)address, (shape->Height - 1) * pitch + 1, 1, &device) != CUDA_SUCCESS) /* the same width */
        return CUDA_ERROR_INVALID_VALUE;
    reference->format = shape->Format;
    reference->channels = (int)shape->NumChannels; /* 1, 2 or 4 */
    bind(reference, address, NULL, NULL);
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuTexRefSetAddress2D_v2(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR *shape, CUdeviceptr address, size_t pitch) { ENTER(); return set_plane(reference, shape, address, pitch, 1); }
SIM_EXPORTED CUresult CUDAAPI cuTexRefSetAddress2D_v3(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR *shape, CUdeviceptr address, size_t pitch) { ENTER(); return set_plane(reference, shape, address, pitch, PITCH_ALIGNMENT); }
SIM_EXPORTED CUresult CUDAAPI cuTexRefSetAddress2D(CUtexref reference, const CUDA_ARRAY_DESCRIPTOR_v1 *shape, CUdeviceptr_v1 address, unsigned int pitch)
{
    ENTER();
    if (!shape)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY_DESCRIPTOR wide = {shape->Width, shape->Height, shape->Format, shape->NumChannels};
    return set_plane(reference, &wide, address, pitch, 1);
}

static CUresult get_address(CUdeviceptr *address, CUtexref reference)
{
    if (!is_texture(reference) || !reference->address)
        return CUDA_ERROR_INVALID_VALUE;
    *address = reference->address;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuTexRefGetAddress_v2(CUdeviceptr *address, CUtexref reference) { ENTER(); return address ? get_address(address, reference) : CUDA_ERROR_INVALID_VALUE; }
SIM_EXPORTED CUresult CUDAAPI cuTexRefGetAddress(CUdeviceptr_v1 *address, CUtexref reference)
{
    ENTER();
    CUdeviceptr wide;
    CUresult result = address ? get_address(&wide, reference) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *address = (CUdeviceptr_v1)wide; /* as the first interface gave it */
    return result;
}

SIM_EXPORTED CUresult CUDAAPI cuTexRefSetArray(CUtexref reference, CUarray array, unsigned int flags)
{
    ENTER();
    struct array_bytes bytes;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    if (!is_texture(reference) || flags != OVERRIDE_FORMAT || !sim_array_bytes(array, &bytes) || !sim_array_shape(array, &shape))
        return CUDA_ERROR_INVALID_VALUE;
    reference->format = shape.Format;
    reference->channels = (int)shape.NumChannels; /* 1, 2 or 4 */
    bind(reference, 0, array, NULL);
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuTexRefSetMipmappedArray(CUtexref reference, CUmipmappedArray array, unsigned int flags)
{
    ENTER();
    CUDA_ARRAY3D_DESCRIPTOR shape;
    if (!is_texture(reference) || flags != OVERRIDE_FORMAT || !sim_array_shape((CUarray)(void *)array, &shape)) /* the same objects: array.c */
        return CUDA_ERROR_INVALID_VALUE;
    reference->format = shape.Format;
    reference->channels = (int)shape.NumChannels; /* 1, 2 or 4 */
    bind(reference, 0, NULL, array);
    return CUDA_SUCCESS;
}

#define DEFINE_GET(name, type, valid, expression) \
    CUresult CUDAAPI name(type *out, CUtexref reference); \
    SIM_EXPORTED CUresult CUDAAPI name(type *out, CUtexref reference) \
    { \
        ENTER(); \
        if (!out || !valid(reference)) \
            return CUDA_ERROR_INVALID_VALUE; \
        *out = (expression); \
        return CUDA_SUCCESS; \
    }
#define DEFINE_SET(name, type, allowed, field) \
    CUresult CUDAAPI name(CUtexref reference, type value); \
    SIM_EXPORTED CUresult CUDAAPI name(CUtexref reference, type value) \
    { \
        ENTER(); \
        if (!is_texture(reference) || !(allowed)) \
            return CUDA_ERROR_INVALID_VALUE; \
        reference->field = value; \
        return CUDA_SUCCESS; \
    }

static int has_array(CUtexref reference) { return is_texture(reference) && reference->array; }
static int has_mipmapped(CUtexref reference) { return is_texture(reference) && reference->mipmapped; }
DEFINE_GET(cuTexRefGetArray, CUarray, has_array, reference->array)
DEFINE_GET(cuTexRefGetMipmappedArray, CUmipmappedArray, has_mipmapped, reference->mipmapped)

SIM_EXPORTED CUresult CUDAAPI cuSurfRefSetArray(CUtexref reference, CUarray array, unsigned int flags)
{
    ENTER();
    struct array_bytes bytes;
    if (!is_surface(reference) || flags || !sim_array_bytes(array, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    reference->array = array;
    return CUDA_SUCCESS;
}
DEFINE_GET(cuSurfRefGetArray, CUarray, is_surface, reference->array)

/* ---- how it is read ---- */

SIM_EXPORTED CUresult CUDAAPI cuTexRefSetFormat(CUtexref reference, CUarray_format format, int channels)
{
    ENTER();
    if (!is_texture(reference) || (channels != 1 && channels != 2 && channels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    reference->format = format;
    reference->channels = channels;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuTexRefGetFormat(CUarray_format *format, int *channels, CUtexref reference)
{
    ENTER();
    if (!format || !channels || !is_texture(reference))
        return CUDA_ERROR_INVALID_VALUE;
    *format = reference->format;
    *channels = reference->channels;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuTexRefSetAddressMode(CUtexref reference, int dimension, int mode)
{
    ENTER();
    if (!is_texture(reference) || dimension < 0 || dimension > 2 || mode < MODE_WRAP || mode > MODE_BORDER)
        return CUDA_ERROR_INVALID_VALUE;
    reference->address_mode[dimension] = mode;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuTexRefGetAddressMode(int *mode, CUtexref reference, int dimension)
{
    ENTER();
    if (!mode || !is_texture(reference) || dimension < 0 || dimension > 2)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = reference->address_mode[dimension];
    return CUDA_SUCCESS;
}

DEFINE_SET(cuTexRefSetFilterMode, int, value == FILTER_POINT || value == FILTER_LINEAR, filter_mode)
DEFINE_GET(cuTexRefGetFilterMode, int, is_texture, reference->filter_mode)
DEFINE_SET(cuTexRefSetMipmapFilterMode, int, value == FILTER_POINT || value == FILTER_LINEAR, mipmap_filter_mode)
DEFINE_GET(cuTexRefGetMipmapFilterMode, int, is_texture, reference->mipmap_filter_mode)
DEFINE_SET(cuTexRefSetMipmapLevelBias, float, 1, bias)
DEFINE_GET(cuTexRefGetMipmapLevelBias, float, is_texture, reference->bias)
DEFINE_SET(cuTexRefSetMaxAnisotropy, unsigned, 1, anisotropy)
DEFINE_GET(cuTexRefGetMaxAnisotropy, int, is_texture, (int)reference->anisotropy) /* as it was given */
DEFINE_SET(cuTexRefSetFlags, unsigned, 1, flags)
DEFINE_GET(cuTexRefGetFlags, unsigned, is_texture, reference->flags)

SIM_EXPORTED CUresult CUDAAPI cuTexRefSetMipmapLevelClamp(CUtexref reference, float least, float most)
{
    ENTER();
    if (!is_texture(reference))
        return CUDA_ERROR_INVALID_VALUE;
    reference->clamp[0] = least;
    reference->clamp[1] = most;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuTexRefGetMipmapLevelClamp(float *least, float *most, CUtexref reference)
{
    ENTER();
    if (!least || !most || !is_texture(reference))
        return CUDA_ERROR_INVALID_VALUE;
    *least = reference->clamp[0];
    *most = reference->clamp[1];
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuTexRefSetBorderColor(CUtexref reference, float *color)
{
    ENTER();
    if (!color || !is_texture(reference))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(reference->border, color, sizeof reference->border);
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuTexRefGetBorderColor(float *color, CUtexref reference)
{
    ENTER();
    if (!color || !is_texture(reference))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(color, reference->border, sizeof reference->border);
    return CUDA_SUCCESS;
}

/* Before textures followed from the module's own names; the unit must be -1, "as the name says". */
SIM_EXPORTED CUresult CUDAAPI cuParamSetTexRef(CUfunction function, int unit, CUtexref reference) { ENTER(); return sim_function_of(function) && unit == -1 && is_texture(reference) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }
