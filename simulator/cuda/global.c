/* Variables of modules. A text image says ".global" or ".const" with type, name and count, as PTX does; a device
 * object is an ELF file, whose symbols of data are its variables. Their memory comes with the first question for them
 * and is charged as an allocation is; it begins as zero, whatever the image says. */
#define _GNU_SOURCE
#include "driver.h"

#include <ctype.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_LIMIT (16u << 20)
#define OBJECT_LIMIT (256u << 20)

struct global {
    struct global *next;
    uint64_t size;
    CUdeviceptr address;      /* 0: nobody asked yet */
    char name[];
};

static int add(CUmodule module, const char *name, size_t length, uint64_t size)
{
    struct global *made = calloc(1, sizeof *made + length + 1);
    if (!made)
        return 0;
    made->size = size;
    memcpy(made->name, name, length);
    made->next = module->globals;
    module->globals = made;
    return 1;
}

static int is_name_part(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%'; }

/* From behind ".global" to the ';': ".align 4 .b8 name[16][2]" with more words possibly between. */
static int read_one(CUmodule module, const char *at, const char *end)
{
    uint64_t width = 0, count = 1;
    const char *name = NULL;
    size_t length = 0;
    while (at < end) {
        if (*at == '.' && strchr("busf", at[1]) && isdigit((unsigned char)at[2])) {
            width = strtoul(at + 2, NULL, 10) / 8;
            for (at++; at < end && is_name_part(*at); at++)
                ;
        } else if (*at == '.' || isdigit((unsigned char)*at)) {
            for (at++; at < end && is_name_part(*at); at++)
                ;
        } else if (*at == '[') {
            count *= strtoul(at + 1, NULL, 10);
            at++;
        } else if (*at == '=') {
            break;
        } else if (is_name_part(*at) && !name && width) {
            name = at;
            while (at < end && is_name_part(*at))
                at++;
            length = (size_t)(at - name); /* not negative */
            while (at < end && *at != '[' && *at != '=')
                at++;
        } else if (*at == ']') {
            at++;
        } else {
            at++;
        }
    }
    return name && width && count ? add(module, name, length, width * count) : 1;
}

int sim_globals_of_text(CUmodule module, const char *text)
{
    static const char *const words[] = {".global", ".const"};
    const char *end = text + strnlen(text, TEXT_LIMIT);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (const char *at = text; (at = strstr(at, words[i])) != NULL && at < end;) {
            at += strlen(words[i]);
            const char *stop = memchr(at, ';', (size_t)(end - at)); /* not negative */
            /* At the beginning of a declaration, not in an instruction such as ld.global. */
            const char *before = at - strlen(words[i]);
            int declares = isspace((unsigned char)*at) && (before == text || isspace((unsigned char)before[-1]));
            if (stop && declares && !read_one(module, at, stop))
                return 0;
        }
    return 1;
}

/* The size of an image is known from its own headers only: each offset is checked against what they say. */
int sim_globals_of_object(CUmodule module, const void *image)
{
    const unsigned char *base = image;
    const Elf64_Ehdr *header = image;
    if (memcmp(base, ELFMAG, SELFMAG) != 0 || base[EI_CLASS] != ELFCLASS64 || header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shoff > OBJECT_LIMIT)
        return 1;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(const void *)(base + header->e_shoff);
    for (unsigned i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr *table = &sections[i];
        if (table->sh_type != SHT_SYMTAB || table->sh_entsize != sizeof(Elf64_Sym) || table->sh_link >= header->e_shnum || table->sh_offset > OBJECT_LIMIT)
            continue;
        const Elf64_Shdr *texts = &sections[table->sh_link];
        const Elf64_Sym *symbols = (const Elf64_Sym *)(const void *)(base + table->sh_offset);
        if (texts->sh_offset > OBJECT_LIMIT || !texts->sh_size || texts->sh_size > OBJECT_LIMIT)
            continue;
        const char *names = (const char *)base + texts->sh_offset;
        for (uint64_t at = 0; at < table->sh_size / sizeof *symbols; at++) {
            const Elf64_Sym *symbol = &symbols[at];
            if (ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT || !symbol->st_size || symbol->st_name >= texts->sh_size)
                continue;
            const char *name = names + symbol->st_name;
            size_t length = strnlen(name, texts->sh_size - symbol->st_name);
            if (length && !add(module, name, length, symbol->st_size))
                return 0;
        }
    }
    return 1;
}

void sim_globals_drop(CUmodule module)
{
    for (struct global *global = module->globals, *next; global; global = next) {
        struct memory *memory = global->address ? sim_memory_find(global->address) : NULL;
        next = global->next;
        if (memory)
            sim_memory_delete(memory, 1);
        free(global);
    }
    module->globals = NULL;
}

CUresult sim_module_global(CUmodule module, const char *name, CUdeviceptr *address, size_t *size)
{
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context = module->context ? module->context : sim_current_context();
    sim_lock_driver();
    struct global *global = module->globals;
    while (global && strcmp(global->name, name) != 0)
        global = global->next;
    CUdeviceptr known = global ? global->address : 0;
    sim_unlock_driver();
    if (!global)
        return CUDA_ERROR_NOT_FOUND;
    if (!known && address) {
        struct memory *memory;
        if (!sim_context_valid(context))
            return CUDA_ERROR_INVALID_CONTEXT;
        CUresult result = sim_memory_new(context, context->gpu, context->device, global->size, MEMORY_DEVICE, sim_charged_size(sim_here(), global->size), &memory);
        if (result != CUDA_SUCCESS)
            return result;
        sim_lock_driver();
        if (global->address) /* another thread was quicker */
            sim_memory_delete(memory, 1);
        else
            global->address = memory->start;
        known = global->address;
        sim_unlock_driver();
    }
    if (address)
        *address = known;
    if (size)
        *size = global->size;
    return CUDA_SUCCESS;
}
