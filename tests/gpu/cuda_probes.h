/* How a probe is made, for the files of the probing program. */
#ifndef CUDA_PROBES_H
#define CUDA_PROBES_H

#include <stdint.h>

#include "cuda_abi.h"

typedef uintptr_t word;

/* Calls by name, and prints the line of the probe; -1: there is no such function. */
int probe(const char *name, int expected, const word *a);
int told(const char *name, int expected, int code);
void *probed_symbol(const char *name); /* NULL: there is none */

#define W(x) ((word)(x))
#define P(name, expected, ...) probe(#name, expected, (const word[15]){__VA_ARGS__})
#define P0(name, expected) probe(#name, expected, (const word[15]){0})
/* Also the variant for per-thread default streams. */
#define Z(name, expected, ...) do { P(name, expected, __VA_ARGS__); P(name##_ptsz, expected, __VA_ARGS__); } while (0)
#define D(name, expected, ...) do { P(name, expected, __VA_ARGS__); P(name##_ptds, expected, __VA_ARGS__); } while (0)

enum { INVALID = CUDA_ERROR_INVALID_VALUE, HANDLE = CUDA_ERROR_INVALID_HANDLE };
#define MIB ((size_t)1 << 20)

/* What the probes of a file are made with: all of the first device, and alive. */
struct probe_objects { CUcontext context; CUstream stream; CUdeviceptr memory, second; CUfunction function; CUmodule module; };
void probe_managed(const struct probe_objects *objects);
void probe_events_of_contexts(const struct probe_objects *objects);
void probe_semaphores(const struct probe_objects *objects);
void probe_operations(const struct probe_objects *objects);
void probe_references(const struct probe_objects *objects);
void probe_old_forms(const struct probe_objects *objects);
void probe_small(const struct probe_objects *objects);

#endif
