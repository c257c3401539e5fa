/* The driver as the lives of crash_life.c and the process that stays call it: looked up as programs do it, through the
 * library's dlsym. */
#ifndef HV_CRASH_CLIENT_H
#define HV_CRASH_CLIENT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "cuda_abi.h"

#define MIB (UINT64_C(1) << 20)
#define BLOCK 512
#define DEVICES 2

extern void *driver, *management; /* libraries */
extern CUcontext context;         /* the primary one of the first device */
extern CUstream stream;

/* The library's function; ends the process where there is none. */
void *look_up(void *library, const char *name);

/* The driver's function with these parameters. */
#define CALL(name, parameters) ((int(*) parameters)look_up(driver, #name))
#define ASK(name, parameters) ((int(*) parameters)look_up(management, #name))

/* The step of this line failed. */
#define MUST(call)                                                                                                    \
    do {                                                                                                              \
        int answer_ = (call);                                                                                         \
        if (answer_ != 0) {                                                                                           \
            fprintf(stderr, "%s:%d: %s answers %d\n", __FILE__, __LINE__, #call, answer_);                            \
            return 2;                                                                                                 \
        }                                                                                                             \
    } while (0)

/* 0 is success in all of them. */
int open_libraries(void);
int start(void); /* libraries, driver, context and stream */
int allocate(CUdeviceptr *pointer, size_t bytes);
int release(CUdeviceptr pointer);
int find_kernel(CUfunction *function, const char *name);
int launch(CUfunction function, CUstream on);
int synchronize(void);

#endif
