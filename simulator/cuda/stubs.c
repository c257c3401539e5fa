/* Every export that nobody wrote: a weak function that says NOT_SUPPORTED, overruled by a real one. */
#define _GNU_SOURCE
#include "core.h"

#define CUDA_ERROR_NOT_SUPPORTED 801

int sim_stub(const char *symbol); /* driver_version.c */

#define STUB(symbol) __attribute__((weak, visibility("default"))) int symbol(void); __attribute__((weak, visibility("default"))) int symbol(void) { return sim_stub(#symbol); }
#define SIM_API(name, since, symbol) STUB(symbol)
#define SIM_API_THREAD(name, since, symbol) STUB(symbol)
#define SIM_EXPORT(symbol) STUB(symbol)
#include "driver_api.def"
