/*
 * roads: reach cuMemAlloc_v2 by one road and allocate 2 GiB, which the limit
 * of the test does not allow. Prints the driver's answer.
 *
 *   roads linked | dlsym | dlvsym | default | next | deepbind | dlmopen | lookup | lookup-old
 *
 * Built twice: "linked" needs -lcuda.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef LINKED
extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(uint64_t *, size_t);
#endif

typedef int init_type(unsigned);
typedef int retain_type(void **, int);
typedef int set_current_type(void *);
typedef int alloc_type(uint64_t *, size_t);

static void *driver;

static void *find(const char *road, const char *symbol, const char *name, int version)
{
    void *function = NULL;
    if (strcmp(road, "default") == 0)
        return dlsym(RTLD_DEFAULT, symbol);
    if (strcmp(road, "next") == 0)
        return dlsym(RTLD_NEXT, symbol);
    if (strcmp(road, "dlvsym") == 0)
        return dlvsym(driver, symbol, "CUDA_1");
    if (strcmp(road, "lookup") == 0) {
        int (*look_up)(const char *, void **, int, uint64_t, int *) =
            (int (*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
        return look_up(name, &function, version, 0, NULL) == 0 ? function : NULL;
    }
    if (strcmp(road, "lookup-old") == 0) {
        int (*look_up)(const char *, void **, int, uint64_t) =
            (int (*)(const char *, void **, int, uint64_t))dlsym(driver, "cuGetProcAddress");
        return look_up(name, &function, version, 0) == 0 ? function : NULL;
    }
    return dlsym(driver, symbol);
}

int main(int count, char **arguments)
{
    const char *road = count > 1 ? arguments[1] : "";
    uint64_t pointer = 0;
    void *context = NULL;
#ifdef LINKED
    init_type *init = cuInit;
    retain_type *retain = cuDevicePrimaryCtxRetain;
    set_current_type *set_current = cuCtxSetCurrent;
    alloc_type *alloc = cuMemAlloc_v2;
    (void)find, (void)road;
#else
    int mode = RTLD_NOW | (strcmp(road, "default") == 0 || strcmp(road, "next") == 0 ? RTLD_GLOBAL : RTLD_LOCAL);
    if (strcmp(road, "dlmopen") == 0)
        driver = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    else
        driver = dlopen("libcuda.so.1", strcmp(road, "deepbind") == 0 ? mode | RTLD_DEEPBIND : mode);
    if (driver == NULL) {
        fprintf(stderr, "roads: %s\n", dlerror());
        return 2;
    }
    init_type *init = (init_type *)find(road, "cuInit", "cuInit", 2000);
    retain_type *retain = (retain_type *)find(road, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000);
    set_current_type *set_current = (set_current_type *)find(road, "cuCtxSetCurrent", "cuCtxSetCurrent", 4000);
    alloc_type *alloc = (alloc_type *)find(road, "cuMemAlloc_v2", "cuMemAlloc", 3020);
#endif
    if (init == NULL || retain == NULL || set_current == NULL || alloc == NULL) {
        printf("not found\n");
        return 0;
    }
    int result = init(0);
    if (result == 0)
        result = retain(&context, 0);
    if (result == 0)
        result = set_current(context);
    if (result == 0)
        result = alloc(&pointer, (size_t)2 << 30);
    printf("%d\n", result);
    return 0;
}
