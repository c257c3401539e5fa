/* The whole test framework: CHECK says what was expected where, and the
 * program ends with the count of failures. */
#ifndef HV_CHECK_H
#define HV_CHECK_H

#include <stdio.h>

static int check_failures;

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                                   \
            check_failures++;                                                                                         \
        }                                                                                                             \
    } while (0)

/* Both as unsigned long long, which every count and size of ours fits. */
#define CHECK_EQUAL(got, wanted)                                                                                      \
    do {                                                                                                              \
        unsigned long long got_ = (unsigned long long)(got), wanted_ = (unsigned long long)(wanted);                  \
        if (got_ != wanted_) {                                                                                        \
            fprintf(stderr, "%s:%d: %s is %llu, not %llu\n", __FILE__, __LINE__, #got, got_, wanted_);                \
            check_failures++;                                                                                         \
        }                                                                                                             \
    } while (0)

/* Ends main. */
#define CHECK_RESULT() (check_failures == 0 ? 0 : 1)

#endif
