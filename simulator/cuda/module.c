/* Modules, libraries and functions. Any image is taken. A text image that lists entry points (as PTX does,
 * ".entry NAME") has exactly these; every other image has whatever name is asked for. */
#define _GNU_SOURCE
#include "driver.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_LIMIT (16u << 20)

static int is_name_part(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$'; }

static int looks_like_text(const char *image)
{
    for (int i = 0; i < 8; i++) {
        if (image[i] == 0)
            return i > 0;
        if (!isprint((unsigned char)image[i]) && !isspace((unsigned char)image[i]))
            return 0;
    }
    return 1;
}

static int read_names(CUmodule module, const char *text)
{
    size_t room = 0;
    const char *end = text + strnlen(text, TEXT_LIMIT);
    for (const char *at = text; (at = strstr(at, ".entry")) != NULL && at < end;) {
        at += 6;
        while (isspace((unsigned char)*at))
            at++;
        size_t length = 0;
        while (is_name_part(at[length]))
            length++;
        if (length == 0)
            continue;
        if (module->name_count == room) {
            room = room ? room * 2 : 16;
            char **names = realloc(module->names, room * sizeof *names);
            if (!names)
                return 0;
            module->names = names;
        }
        module->names[module->name_count] = strndup(at, length);
        if (!module->names[module->name_count])
            return 0;
        module->name_count++;
        at += length;
    }
    return 1;
}

static void forget(CUmodule module)
{
    for (size_t i = 0; i < module->name_count; i++)
        free(module->names[i]);
    free(module->names);
    module->names = NULL;
    module->name_count = 0;
}

static CUresult load(const void *image, CUcontext context, uint32_t is_library, CUmodule *out)
{
    if (!image || !out)
        return CUDA_ERROR_INVALID_VALUE;
    CUmodule module = calloc(1, sizeof *module);
    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->kind = HANDLE_MODULE;
    module->context = context;
    module->is_library = is_library;
    if (!(looks_like_text(image) ? read_names(module, image) && sim_globals_of_text(module, image) && sim_textures_of_text(module, image) : sim_globals_of_object(module, image))) {
        sim_globals_drop(module);
        sim_textures_drop(module);
        forget(module);
        free(module);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = module;
    return CUDA_SUCCESS;
}

static CUresult load_file(const char *path, CUcontext context, uint32_t is_library, CUmodule *out)
{
    if (!path || !out)
        return CUDA_ERROR_INVALID_VALUE;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (fd < 0)
        return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult result = CUDA_ERROR_FILE_NOT_FOUND;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        size_t size = info.st_size < (off_t)TEXT_LIMIT ? (size_t)info.st_size : TEXT_LIMIT; /* not negative for a file */
        char *text = calloc(1, size + 16); /* a short image is still safe to look at */
        result = !text ? CUDA_ERROR_OUT_OF_MEMORY : read(fd, text, size) >= 0 ? load(text, context, is_library, out) : CUDA_ERROR_INVALID_IMAGE;
        free(text);
    }
    close(fd);
    return result;
}

CUresult sim_module_function(CUmodule module, const char *name, CUfunction *out)
{
    if (!module || module->kind != HANDLE_MODULE)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!name || !out || !*name)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_NOT_FOUND;
    sim_lock_driver();
    int known = module->names == NULL;
    for (size_t i = 0; i < module->name_count && !known; i++)
        known = strcmp(module->names[i], name) == 0;
    CUfunction function = module->functions;
    while (function && strcmp(function->name, name) != 0)
        function = function->next;
    if (known && !function) {
        size_t length = strlen(name) + 1;
        function = calloc(1, sizeof *function + length);
        if (function) {
            function->kind = HANDLE_FUNCTION;
            function->module = module;
            function->next = module->functions;
            function->block[0] = function->block[1] = function->block[2] = 1;
            memcpy(function->name, name, length);
            module->functions = function;
        } else {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (known && function) {
        *out = function;
        result = CUDA_SUCCESS;
    }
    sim_unlock_driver();
    return result;
}

CUfunction sim_function_of(CUfunction function) { return function && function->kind == HANDLE_FUNCTION ? function : NULL; }

/* The handles of its functions keep their memory, so that a use after this is an error and not a crash. */
static CUresult unload(CUmodule module)
{
    if (!module || module->kind != HANDLE_MODULE)
        return CUDA_ERROR_INVALID_HANDLE;
    sim_lock_driver();
    for (CUfunction function = module->functions; function; function = function->next)
        function->kind = HANDLE_DEAD;
    module->kind = HANDLE_DEAD;
    forget(module);
    sim_globals_drop(module);
    sim_textures_drop(module);
    sim_unlock_driver();
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuModuleLoad(CUmodule *module, const char *path) { CUcontext context; ENTER_CONTEXT(context); return load_file(path, context, 0, module); }
SIM_EXPORTED CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image) { CUcontext context; ENTER_CONTEXT(context); return load(image, context, 0, module); }
SIM_EXPORTED CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    (void)count;
    (void)options;
    (void)values;
    return load(image, context, 0, module);
}
SIM_EXPORTED CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *module, const void *image) { CUcontext context; ENTER_CONTEXT(context); return load(image, context, 0, module); }
SIM_EXPORTED CUresult CUDAAPI cuModuleUnload(CUmodule module) { ENTER(); return unload(module); }
SIM_EXPORTED CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) { ENTER(); return sim_module_function(module, name, function); }
SIM_EXPORTED CUresult CUDAAPI cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
    ENTER();
    if (!count || !module || module->kind != HANDLE_MODULE)
        return CUDA_ERROR_INVALID_VALUE;
    *count = (unsigned)module->name_count; /* bounded by the image's size */
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule module, const char *name)
{
    ENTER();
    return module && module->kind == HANDLE_MODULE ? sim_module_global(module, name, address, size) : CUDA_ERROR_INVALID_HANDLE;
}
/* All that a text image lists; of other images nobody knows. */
static CUresult enumerate(CUfunction *functions, unsigned room, CUmodule module)
{
    if (!functions || !room || !module || module->kind != HANDLE_MODULE)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < room; i++)
        functions[i] = NULL;
    for (unsigned i = 0; i < room && i < module->name_count; i++) {
        CUresult result = sim_module_function(module, module->names[i], &functions[i]);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuModuleEnumerateFunctions(CUfunction *functions, unsigned int room, CUmodule module) { ENTER(); return enumerate(functions, room, module); }
SIM_EXPORTED CUresult CUDAAPI cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int room, CUlibrary library) { ENTER(); return enumerate((CUfunction *)(void *)kernels, room, (CUmodule)(void *)library); } /* the same objects */
SIM_EXPORTED CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    ENTER();
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

/* A library is a module that belongs to no context, a kernel is a function of one. The pointers are the
 * same objects under the interface's two names. */
static CUmodule module_of(CUlibrary library) { return (CUmodule)(void *)library; }
static CUfunction function_of(CUkernel kernel) { return sim_function_of((CUfunction)(void *)kernel); }

SIM_EXPORTED CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values, unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count)
{
    ENTER();
    CUmodule module;
    (void)jit;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    if (!library)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = load(code, NULL, 1, &module);
    if (result == CUDA_SUCCESS)
        *library = (CUlibrary)(void *)module;
    return result;
}
SIM_EXPORTED CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit, void **jit_values, unsigned int jit_count, CUlibraryOption *options, void **values, unsigned int count)
{
    ENTER();
    CUmodule module;
    (void)jit;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    if (!library)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = load_file(path, NULL, 1, &module);
    if (result == CUDA_SUCCESS)
        *library = (CUlibrary)(void *)module;
    return result;
}
SIM_EXPORTED CUresult CUDAAPI cuLibraryUnload(CUlibrary library) { ENTER(); return unload(module_of(library)); }
SIM_EXPORTED CUresult CUDAAPI cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    ENTER();
    CUfunction function;
    if (!kernel)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sim_module_function(module_of(library), name, &function);
    if (result == CUDA_SUCCESS)
        *kernel = (CUkernel)(void *)function;
    return result;
}
SIM_EXPORTED CUresult CUDAAPI cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    ENTER();
    if (!module || !library || module_of(library)->kind != HANDLE_MODULE)
        return CUDA_ERROR_INVALID_HANDLE;
    *module = module_of(library);
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuLibraryGetKernelCount(unsigned int *count, CUlibrary library) { return cuModuleGetFunctionCount(count, module_of(library)); }
SIM_EXPORTED CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name) { return cuModuleGetGlobal_v2(address, size, module_of(library), name); }
SIM_EXPORTED CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr *address, size_t *size, CUlibrary library, const char *name) { return cuModuleGetGlobal_v2(address, size, module_of(library), name); }
SIM_EXPORTED CUresult CUDAAPI cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    ENTER();
    if (!function || !function_of(kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    *function = function_of(kernel);
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    ENTER();
    if (!library || !function_of(kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    *library = (CUlibrary)(void *)function_of(kernel)->module;
    return CUDA_SUCCESS;
}

static CUresult name_of(const char **name, CUfunction function)
{
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_function_of(function))
        return CUDA_ERROR_INVALID_HANDLE;
    *name = function->name;
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuFuncGetName(const char **name, CUfunction function) { ENTER(); return name_of(name, function); }
SIM_EXPORTED CUresult CUDAAPI cuKernelGetName(const char **name, CUkernel kernel) { ENTER(); return name_of(name, function_of(kernel)); }
SIM_EXPORTED CUresult CUDAAPI cuFuncGetModule(CUmodule *module, CUfunction function)
{
    ENTER();
    if (!module || !sim_function_of(function))
        return CUDA_ERROR_INVALID_HANDLE;
    *module = function->module;
    return CUDA_SUCCESS;
}

static CUresult get_attribute(int *value, int which, CUfunction function)
{
    if (!value || which < 0 || which >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_function_of(function))
        return CUDA_ERROR_INVALID_HANDLE;
    CUcontext context = sim_current_context();
    const struct sim_gpu_info *gpu = &sim_here()->gpu[context ? context->gpu : sim_driver.gpu_of[0]].info;
    int version = (int)(gpu->cc_major * 10 + gpu->cc_minor); /* two digits */
    switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = version; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function->max_dynamic_shared ? (int)function->max_dynamic_shared : 49152; break; /* a few hundred KiB */
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = (int)function->carveout; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction function, int which, int value)
{
    if (!sim_function_of(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        CUcontext context = sim_current_context();
        const struct sim_gpu_info *gpu = &sim_here()->gpu[context ? context->gpu : sim_driver.gpu_of[0]].info;
        if (value < 0 || (uint32_t)value > gpu->shared_bytes_per_block_optin)
            return CUDA_ERROR_INVALID_VALUE;
        function->max_dynamic_shared = (uint32_t)value; /* not negative */
    } else if (which == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        function->carveout = (uint32_t)value; /* kept as it came */
    } else if (which < 10 || which >= CU_FUNC_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE; /* the rest describe the code and cannot be set */
    }
    return CUDA_SUCCESS;
}
SIM_EXPORTED CUresult CUDAAPI cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function) { ENTER(); return get_attribute(value, (int)which, function); }
SIM_EXPORTED CUresult CUDAAPI cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) { ENTER(); return set_attribute(function, (int)which, value); }
SIM_EXPORTED CUresult CUDAAPI cuKernelGetAttribute(int *value, CUfunction_attribute which, CUkernel kernel, CUdevice device) { ENTER_DEVICE(device); return get_attribute(value, (int)which, function_of(kernel)); }
SIM_EXPORTED CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute which, int value, CUkernel kernel, CUdevice device) { ENTER_DEVICE(device); return set_attribute(function_of(kernel), (int)which, value); }
static CUresult hint(CUfunction function) { return sim_function_of(function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
SIM_EXPORTED CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { ENTER(); (void)config; return hint(function); }
SIM_EXPORTED CUresult CUDAAPI cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config) { ENTER(); (void)config; return hint(function); }
SIM_EXPORTED CUresult CUDAAPI cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice device) { ENTER_DEVICE(device); (void)config; return hint(function_of(kernel)); }
SIM_EXPORTED CUresult CUDAAPI cuFuncLoad(CUfunction function) { ENTER(); return hint(function); }
SIM_EXPORTED CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    ENTER();
    if (!state)
        return CUDA_ERROR_INVALID_VALUE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return hint(function);
}
SIM_EXPORTED CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
    ENTER();
    (void)index;
    (void)offset;
    (void)size;
    return function_of(kernel) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE; /* as for functions */
}
SIM_EXPORTED CUresult CUDAAPI cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size)
{
    ENTER();
    (void)index;
    (void)offset;
    (void)size;
    return sim_function_of(function) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE; /* parameters are not known: no such index */
}

/* Functions with one address for host and device: no image here has any. */
SIM_EXPORTED CUresult CUDAAPI cuLibraryGetUnifiedFunction(void **address, CUlibrary library, const char *name) { ENTER(); return !address || !name ? CUDA_ERROR_INVALID_VALUE : module_of(library) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE; }
