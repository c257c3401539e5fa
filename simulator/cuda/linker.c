/* The linker: what is added is handed on. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct CUlinkState_st { char *text; size_t size; };

static CUresult add(CUlinkState state, const void *data, size_t size)
{
    if (!state || !data)
        return CUDA_ERROR_INVALID_VALUE;
    char *text = realloc(state->text, state->size + size + 16);
    if (!text)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(text + state->size, data, size);
    state->text = text;
    state->size += size;
    if (state->size && state->text[state->size - 1] == 0)
        state->size--; /* so that texts join */
    memset(text + state->size, 0, 16);
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuLinkCreate_v2(unsigned int count, CUjit_option *options, void **values, CUlinkState *state)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    (void)count;
    (void)options;
    (void)values;
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    *state = calloc(1, sizeof **state);
    return *state ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
SIM_EXPORTED CUresult CUDAAPI cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned int count, CUjit_option *options, void **values)
{
    ENTER();
    (void)type;
    (void)name;
    (void)count;
    (void)options;
    (void)values;
    return add(state, data, size);
}
SIM_EXPORTED CUresult CUDAAPI cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned int count, CUjit_option *options, void **values)
{
    ENTER();
    (void)type;
    (void)count;
    (void)options;
    (void)values;
    if (!state || !path)
        return CUDA_ERROR_INVALID_VALUE;
    return access(path, R_OK) == 0 ? CUDA_SUCCESS : CUDA_ERROR_FILE_NOT_FOUND; /* libraries of device code add no entry points */
}
SIM_EXPORTED CUresult CUDAAPI cuLinkComplete(CUlinkState state, void **image, size_t *size)
{
    ENTER();
    if (!state || !image)
        return CUDA_ERROR_INVALID_VALUE;
    if (!state->text && add(state, "", 0) != CUDA_SUCCESS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *image = state->text;
    if (size)
        *size = state->size + 1;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuLinkDestroy(CUlinkState state)
{
    ENTER();
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    free(state->text);
    free(state);
    return CUDA_SUCCESS;
}
/* The interface before 5.5 differs in the name only. */
SIM_EXPORTED CUresult CUDAAPI cuLinkCreate(unsigned int count, CUjit_option *options, void **values, CUlinkState *state) { return cuLinkCreate_v2(count, options, values, state); }
SIM_EXPORTED CUresult CUDAAPI cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name, unsigned int count, CUjit_option *options, void **values) { return cuLinkAddData_v2(state, type, data, size, name, count, options, values); }
SIM_EXPORTED CUresult CUDAAPI cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned int count, CUjit_option *options, void **values) { return cuLinkAddFile_v2(state, type, path, count, options, values); }
