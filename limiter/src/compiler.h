/* Words for the compiler, in one place. */
#ifndef HV_COMPILER_H
#define HV_COMPILER_H

#define hv_likely(condition) __builtin_expect(!!(condition), 1)
#define hv_unlikely(condition) __builtin_expect(!!(condition), 0)
#define HV_NOINLINE __attribute__((noinline))
#define HV_ALWAYS_INLINE inline __attribute__((always_inline))
#define HV_EXPORT __attribute__((visibility("default")))
#define HV_PRINTF(text, first) __attribute__((__format__(__printf__, text, first)))
#define HV_CACHE_LINE 64
#define HV_CACHE_LINES_FETCHED 128 /* processors fetch the neighbour of a line with it */

/* A place between two stores where a test kills the process. Nothing in the
 * shipped library. */
#ifdef HV_CRASH_POINTS
void hv_crash_point(const char *name);
#define HV_CRASH_POINT(name) hv_crash_point(name)
#else
#define HV_CRASH_POINT(name) ((void)0)
#endif

#endif
