/*
 * What the library has to say: into the ring of the usage file, where the
 * daemon reads it. On stderr only if TF_LOG_LEVEL asks for it.
 */
#ifndef HV_MESSAGES_H
#define HV_MESSAGES_H

#include "compiler.h"
#include "hypervisor_limits.h"

HV_PRINTF(2, 3) void hv_tell(enum hv_message_code code, const char *format, ...);

struct hv_files_fault;

/* The files can't be attached: into the ring where at least that can be used. */
void hv_tell_refusal(const char *shm_path, const char *usage_path, const struct hv_files_fault *fault);

#endif
