/* Every name of the driver's interface: what noop.c does not write is a weak function that succeeds at once.
 * Functions are only addresses here, so the declarations are not included. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define WEAK(symbol) __attribute__((weak, visibility("default"))) int symbol(void); __attribute__((weak, visibility("default"))) int symbol(void) { return 0; }
#define SIM_API(name, since, symbol) WEAK(symbol)
#define SIM_API_THREAD(name, since, symbol) WEAK(symbol)
#define SIM_EXPORT(symbol) WEAK(symbol)
#include "driver_api.def"
#undef SIM_API
#undef SIM_API_THREAD
#undef SIM_EXPORT

static const struct entry { const char *name; int since, per_thread; int (*address)(void); } entries[] = {
#define SIM_API(name, since, symbol) {#name, since, 0, symbol},
#define SIM_API_THREAD(name, since, symbol) {#name, since, 1, symbol},
#define SIM_EXPORT(symbol)
#include "driver_api.def"
};

int noop_look_up(const char *name, int version, uint64_t flags, void **address);

/* 0 found, 1 unknown, 2 not in that version. */
int noop_look_up(const char *name, int version, uint64_t flags, void **address)
{
    const struct entry *plain = NULL, *threaded = NULL;
    int known = 0;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        if (strcmp(entries[i].name, name) != 0)
            continue;
        known = 1;
        if (entries[i].since > version)
            continue;
        if (entries[i].per_thread)
            threaded = &entries[i];
        else
            plain = &entries[i];
    }
    const struct entry *chosen = (flags & 2) && threaded ? threaded : plain;
    if (!chosen)
        return known ? 2 : 1;
    union { int (*function)(void); void *object; } cast = {.function = chosen->address}; /* ISO C has no cast between the two */
    *address = cast.object;
    return 0;
}
