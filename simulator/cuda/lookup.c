/* The table of what this driver offers, by name and version. cuGetProcAddress itself is in driver_version.c:
 * this file and stubs.c see functions only as addresses, so they do not include the declarations. */
#define _GNU_SOURCE
#include "core.h"

#include <stdlib.h>
#include <string.h>

#define FLAG_PER_THREAD 2u

#define SIM_API(name, since, symbol) extern int symbol(void);
#define SIM_API_THREAD(name, since, symbol) extern int symbol(void);
#define SIM_EXPORT(symbol)
#include "driver_api.def"
#undef SIM_API
#undef SIM_API_THREAD

struct entry {
    const char *name;
    uint32_t since;
    uint32_t per_thread;
    int (*address)(void);
    const char *symbol;
};

static const struct entry entries[] = {
#define SIM_API(name, since, symbol) {#name, since, 0, symbol, #symbol},
#define SIM_API_THREAD(name, since, symbol) {#name, since, 1, symbol, #symbol},
#include "driver_api.def"
};

enum { FOUND = 0, UNKNOWN = 1, TOO_OLD = 2 }; /* CUdriverProcAddressQueryResult */

int sim_look_up(const char *name, int version, uint64_t flags, void **address);
int sim_symbol_missing(const char *symbol); /* driver_version.c: a fault says that this driver lacks it */
uint32_t sim_newest_version(void);          /* driver_version.c: what came later is not in this driver */

int sim_look_up(const char *name, int version, uint64_t flags, void **address)
{
    const struct entry *plain = NULL, *threaded = NULL;
    int known = 0, has_threaded = 0;
    uint32_t newest = sim_newest_version(), asked = (uint32_t)version; /* a negative one is later than all, as with the real ones */
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const struct entry *entry = &entries[i];
        if (entry->since > newest || strcmp(entry->name, name) != 0 || sim_symbol_missing(entry->symbol))
            continue;
        known = 1;
        has_threaded |= entry->per_thread != 0;
        if (entry->since > asked)
            continue;
        if (entry->per_thread)
            threaded = entry;
        else
            plain = entry;
    }
    if (!known)
        return UNKNOWN;
    const struct entry *chosen = (flags & FLAG_PER_THREAD) && has_threaded ? threaded : plain;
    if (!chosen)
        return TOO_OLD;
    union { int (*function)(void); void *object; } cast = {.function = chosen->address}; /* ISO C has no cast between the two */
    *address = cast.object;
    return FOUND;
}
