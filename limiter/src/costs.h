/* Learned costs in the usage file: for people, for the daemon, and for the other processes of the Pod. */
#ifndef HV_COSTS_H
#define HV_COSTS_H

#include <stdbool.h>
#include <stdint.h>

#include "functions.h"
#include "sampler.h"

/* How long others wait for the first time of a function: were they all to begin with a guess, the last would wait for
 * all of them afterwards. Not long, for it may be waiting for them, as the ranks of a collective do. */
#define HV_LEARNING_NS UINT64_C(100000000)

/* The driver's name of a kernel; NULL where it does not tell. */
const char *hv_costs_kernel_name(const void *kernel);

uint64_t hv_costs_name_hash(const char *name);

/* Write what this process has learned of a function into the shared table;
 * nothing if there is no name for it or no room. */
void hv_costs_publish(struct hv_function *function, uint64_t now_ns);

/* Of a function that this process has not measured: take over what another
 * process of the Pod has learned. False: one measures it just now, and its
 * launches would all begin with a guess; ask again soon. Bounded: a process that
 * is stopped meanwhile holds up nobody for long. */
bool hv_costs_settled(struct hv_function *function, uint64_t now_ns);

/* The first half of it: has another process told? */
bool hv_costs_told(struct hv_function *function);

/* A launch that is measured so has not ended yet: the others go on waiting. */
void hv_costs_measures_on(const struct hv_function *function, uint64_t now_ns);

/* A long launch has ended: its function costs the mean over all processes of the
 * Pod. Which of several that run by turns is the first to tell of a moment is
 * chance, and would make one pay for others; so the first time counts as what
 * turns left of it. told: somebody tells how many turns others have. Measured before
 * anybody ever did, it is priced once somebody does: in the next one of these, or by
 * hv_costs_price(). early: in the first second of the process, in which what the latest have in common may be others' turns. */
void hv_costs_average(struct hv_function *function, const struct hv_sample_result *result, bool told, bool early,
                      uint64_t others_ppm);

/* Others turn out to have had so many turns on the device while its cost was learned. */
void hv_costs_price(struct hv_function *function, uint64_t others_ppm);

/* What a launch of it is charged now. */
uint64_t hv_costs_charge(const struct hv_function *function);

/* It is other work than before: what all processes have found out about it is nothing any more. */
void hv_costs_begin_anew(struct hv_function *function);

#endif
