/*
 * lookup_probe: ask cuGetProcAddress_v2 what CUDA's own runtime asks at start
 * (lines "NAME ver=V flags=F from" on stdin), and tell for each the result,
 * the status and the name of the symbol that was handed out. Run with and
 * without the limiter, the two answers have to be the same.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char *symbol_of(void *address)
{
    Dl_info info;
    if (address == NULL)
        return "-";
    if (dladdr(address, &info) == 0 || info.dli_sname == NULL || info.dli_saddr != address)
        return "?";
    return info.dli_sname;
}

int main(int count, char **arguments)
{
    int with_status = count > 1 && strcmp(arguments[1], "status") == 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL)
        return 2;
    int (*look_up)(const char *, void **, int, uint64_t, int *) =
        (int (*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
    char line[256];
    while (fgets(line, sizeof line, stdin) != NULL) {
        char name[200] = "";
        int version = 0;
        unsigned flags = 0;
        if (sscanf(line, "%199s ver=%d flags=%u", name, &version, &flags) != 3) {
            name[0] = '\0'; /* the first query is for the empty name */
            if (sscanf(line, "ver=%d flags=%u", &version, &flags) != 2)
                continue;
        }
        int status = -1;
        void *function = (void *)main; /* to see whether it is touched */
        int result = look_up(name, &function, version, flags, with_status ? &status : NULL);
        printf("%s %d %u: %d %d %s\n", name, version, flags, result, status,
               function == (void *)main ? "untouched" : symbol_of(function));
    }
    return 0;
}
