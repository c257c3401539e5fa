/* Texture and surface objects: what they were made of is kept and given back; no kernel reads through them. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

struct texture {
    uint32_t kind;
    uint32_t surface, has_view;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC how;
    CUDA_RESOURCE_VIEW_DESC view;
};
enum { RESOURCE_ARRAY = 0, RESOURCE_MIPMAPPED = 1, RESOURCE_LINEAR = 2, RESOURCE_PITCH = 3 };

/* An object's number is its address: the two integer types have the same width. */
static struct texture *of(CUtexObject number, uint32_t surface)
{
    struct texture *texture = (struct texture *)(uintptr_t)number;
    return texture && texture->kind == HANDLE_TEXTURE && texture->surface == surface ? texture : NULL;
}

static CUresult create(CUtexObject *out, uint32_t surface, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *how, const CUDA_RESOURCE_VIEW_DESC *view)
{
    struct array_bytes bytes;
    int device;
    if (!out || !resource || (surface ? resource->resType != RESOURCE_ARRAY : !how || resource->resType > RESOURCE_PITCH))
        return CUDA_ERROR_INVALID_VALUE;
    if (resource->resType == RESOURCE_ARRAY && !sim_array_bytes(resource->res.array, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (resource->resType == RESOURCE_MIPMAPPED && !sim_array_bytes((CUarray)(void *)resource->res.mipmapped, &bytes)) /* the same objects: array.c */
        return CUDA_ERROR_INVALID_VALUE;
    if (resource->resType >= RESOURCE_LINEAR && sim_range_check((const void *)(uintptr_t)resource->res.address, 1, 1, &device) != CUDA_SUCCESS) /* the same width */
        return CUDA_ERROR_INVALID_VALUE;
    struct texture *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct texture){.kind = HANDLE_TEXTURE, .surface = surface, .has_view = view != NULL, .resource = *resource};
    if (how)
        made->how = *how;
    if (view)
        made->view = *view;
    *out = (uintptr_t)made;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUtexObject number, uint32_t surface)
{
    struct texture *texture = of(number, surface);
    if (!texture)
        return CUDA_ERROR_INVALID_VALUE;
    texture->kind = HANDLE_DEAD; /* it keeps its memory, so that a use after this is an error and not a crash */
    return CUDA_SUCCESS;
}

static CUresult resource_of(CUDA_RESOURCE_DESC *out, const struct texture *texture)
{
    if (!out || !texture)
        return CUDA_ERROR_INVALID_VALUE;
    *out = texture->resource;
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *how, const CUDA_RESOURCE_VIEW_DESC *view) { CUcontext context; ENTER_CONTEXT(context); return create(out, 0, resource, how, view); }
SIM_EXPORTED CUresult CUDAAPI cuTexObjectDestroy(CUtexObject texture) { ENTER(); return destroy(texture, 0); }
SIM_EXPORTED CUresult CUDAAPI cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject texture) { ENTER(); return resource_of(out, of(texture, 0)); }
SIM_EXPORTED CUresult CUDAAPI cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *out, CUtexObject texture)
{
    ENTER();
    if (!out || !of(texture, 0))
        return CUDA_ERROR_INVALID_VALUE;
    *out = of(texture, 0)->how;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *out, CUtexObject texture)
{
    ENTER();
    if (!out || !of(texture, 0) || !of(texture, 0)->has_view)
        return CUDA_ERROR_INVALID_VALUE;
    *out = of(texture, 0)->view;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *resource) { CUcontext context; ENTER_CONTEXT(context); return create(out, 1, resource, NULL, NULL); }
SIM_EXPORTED CUresult CUDAAPI cuSurfObjectDestroy(CUsurfObject surface) { ENTER(); return destroy(surface, 1); }
SIM_EXPORTED CUresult CUDAAPI cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUsurfObject surface) { ENTER(); return resource_of(out, of(surface, 1)); }
