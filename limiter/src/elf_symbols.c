#define _GNU_SOURCE
#include "elf_symbols.h"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

/* What we need of a dynamic section. */
struct tables {
    const ElfW(Sym) *symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint32_t *hash;
    const uint16_t *versions;
    const char *soname;
};

/* glibc writes addresses into the dynamic section in memory, others leave
 * offsets from the load bias. */
static const void *resolve(uintptr_t base, uintptr_t value)
{
    return (const void *)(value < base ? base + value : value);
}

static struct tables read_tables(uintptr_t base, const void *dynamic)
{
    struct tables tables = {0};
    uintptr_t soname = 0;
    bool has_soname = false;
    for (const ElfW(Dyn) *entry = dynamic; entry != NULL && entry->d_tag != DT_NULL; entry++) {
        switch (entry->d_tag) {
        case DT_SYMTAB:
            tables.symbols = resolve(base, entry->d_un.d_ptr);
            break;
        case DT_STRTAB:
            tables.strings = resolve(base, entry->d_un.d_ptr);
            break;
        case DT_GNU_HASH:
            tables.gnu_hash = resolve(base, entry->d_un.d_ptr);
            break;
        case DT_HASH:
            tables.hash = resolve(base, entry->d_un.d_ptr);
            break;
        case DT_VERSYM:
            tables.versions = resolve(base, entry->d_un.d_ptr);
            break;
        case DT_SONAME:
            soname = entry->d_un.d_val;
            has_soname = true;
            break;
        default:
            break;
        }
    }
    if (has_soname && tables.strings != NULL)
        tables.soname = tables.strings + soname;
    return tables;
}

static bool is_wanted(const struct tables *tables, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &tables->symbols[index];
    uint8_t type = symbol->st_info & 0xf; /* the same for both classes */
    if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0 || (type != STT_FUNC && type != STT_NOTYPE))
        return false;
    if (strcmp(tables->strings + symbol->st_name, name) != 0)
        return false;
    /* A hidden version is one of the past, kept for old programs. */
    return tables->versions == NULL || (tables->versions[index] & 0x8000) == 0;
}

static uint32_t gnu_hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (const unsigned char *c = (const unsigned char *)name; *c != '\0'; c++)
        hash = hash * 33 + *c;
    return hash;
}

/* Layout of the table: bucket count, first hashed symbol, bloom words, bloom
 * shift; bloom filter; buckets; one word a symbol. */
static uint32_t find_by_gnu_hash(const struct tables *tables, const char *name)
{
    const uint32_t *header = tables->gnu_hash;
    uint32_t bucket_count = header[0];
    uint32_t first = header[1];
    const uint32_t *buckets = header + 4 + header[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chains = buckets + bucket_count;
    uint32_t hash = gnu_hash_of(name);
    if (bucket_count == 0)
        return 0;
    for (uint32_t index = buckets[hash % bucket_count]; index >= first; index++) {
        uint32_t chain = chains[index - first];
        if (((chain ^ hash) >> 1) == 0 && is_wanted(tables, index, name))
            return index;
        if (chain & 1) /* the last of its bucket */
            break;
    }
    return 0;
}

static uint32_t find_by_order(const struct tables *tables, const char *name)
{
    uint32_t count = tables->hash[1]; /* as many chains as symbols */
    for (uint32_t index = 1; index < count; index++)
        if (is_wanted(tables, index, name))
            return index;
    return 0;
}

void *hv_module_symbol(const struct hv_module *module, const char *name)
{
    struct tables tables = read_tables(module->base, module->dynamic);
    uint32_t index = 0;
    if (tables.symbols == NULL || tables.strings == NULL)
        return NULL;
    if (tables.gnu_hash != NULL)
        index = find_by_gnu_hash(&tables, name);
    else if (tables.hash != NULL)
        index = find_by_order(&tables, name);
    return index == 0 ? NULL : (void *)(module->base + tables.symbols[index].st_value);
}

struct search {
    const char *soname_prefix;
    uintptr_t address;
    struct hv_module *module;
};

static void describe(const struct dl_phdr_info *info, struct hv_module *module)
{
    module->base = info->dlpi_addr;
    module->start = UINTPTR_MAX;
    module->end = 0;
    module->dynamic = NULL;
    for (uint32_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_DYNAMIC)
            module->dynamic = (const void *)start;
        if (header->p_type != PT_LOAD)
            continue;
        if (start < module->start)
            module->start = start;
        if (start + header->p_memsz > module->end)
            module->end = start + header->p_memsz;
    }
    (void)snprintf(module->path, sizeof module->path, "%s", info->dlpi_name == NULL ? "" : info->dlpi_name);
}

static int visit(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    struct search *search = context;
    describe(info, search->module);
    if (search->soname_prefix == NULL)
        return search->address >= search->module->start && search->address < search->module->end;
    struct tables tables = read_tables(search->module->base, search->module->dynamic);
    return tables.soname != NULL && strncmp(tables.soname, search->soname_prefix, strlen(search->soname_prefix)) == 0;
}

bool hv_module_named(const char *soname_prefix, struct hv_module *module)
{
    struct search search = {.soname_prefix = soname_prefix, .module = module};
    return dl_iterate_phdr(visit, &search) != 0;
}

bool hv_module_containing(const void *address, struct hv_module *module)
{
    struct search search = {.address = (uintptr_t)address, .module = module};
    return dl_iterate_phdr(visit, &search) != 0;
}

void *hv_c_library_symbol(const char *name)
{
    struct hv_module module;
    void *function = NULL;
    if (hv_module_named("libc.so", &module))
        function = hv_module_symbol(&module, name);
    /* Before glibc 2.34 those of the loader are in a library of their own. */
    if (function == NULL && hv_module_named("libdl.so", &module))
        function = hv_module_symbol(&module, name);
    return function;
}
