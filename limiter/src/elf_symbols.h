/*
 * Loaded libraries and their exported symbols, read from their own tables:
 * needed to find the C library's dlsym, which we hide, and free of dlerror.
 */
#ifndef HV_ELF_SYMBOLS_H
#define HV_ELF_SYMBOLS_H

#include <stdbool.h>
#include <stdint.h>

struct hv_module {
    uintptr_t base;  /* load bias */
    uintptr_t start; /* of its segments */
    uintptr_t end;
    const void *dynamic;
    char path[512]; /* as it was loaded; "" for the program */
};

/* The first loaded library whose DT_SONAME begins so; false if there is none. */
bool hv_module_named(const char *soname_prefix, struct hv_module *module);

/* The library with this address in one of its segments. */
bool hv_module_containing(const void *address, struct hv_module *module);

/* A defined function of the library; NULL if it exports none of that name. */
void *hv_module_symbol(const struct hv_module *module, const char *name);

/* A function of the C library; NULL if it has none of that name. */
void *hv_c_library_symbol(const char *name);

#endif
