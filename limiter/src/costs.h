/* Learned costs in the usage file: for people and for the daemon. */
#ifndef HV_COSTS_H
#define HV_COSTS_H

#include <stdint.h>

#include "functions.h"

/* Write what this process has learned of a function into the shared table;
 * nothing if there is no name for it or no room. */
void hv_costs_publish(struct hv_function *function, uint64_t now_ns);

#endif
