/*
 * The driver's events as the sampler uses them: recorded into the program's own
 * streams, asked without waiting, and never a reason for one of its captures to
 * fail.
 */
#ifndef HV_SAMPLER_EVENTS_H
#define HV_SAMPLER_EVENTS_H

#include <stdbool.h>

#include "cuda_abi.h"

/*
 * Another thread may be capturing a stream in the mode in which the driver
 * forbids everyone else what we do here, and such a call would spoil its
 * capture. In the relaxed mode, which is each thread's own, it may be done.
 * hv_events_leave() takes what hv_events_enter() gave.
 */
int hv_events_enter(void);
void hv_events_leave(int mode);

/* Does the driver have all calls that measuring takes? */
bool hv_events_are_there(void);

bool hv_events_capturing(CUstream stream, bool per_thread);
bool hv_events_idle(CUstream stream, bool per_thread);
bool hv_events_record(CUevent event, CUstream stream, bool per_thread);

#endif
