/*
 * GPU time as it is defined: time with at least one kernel of the Pod resident,
 * over all its streams and processes. Measured intervals are laid onto one line
 * that all processes of the Pod share, and what of an interval nobody has laid
 * down before is what it adds. In which order they are told does not matter.
 *
 * Pure but for the shared words; the line is of ticks of HV_COVERAGE_TICK_NS,
 * so it is for work that is longer than those.
 */
#ifndef HV_COVERAGE_H
#define HV_COVERAGE_H

#include <stdint.h>

#include "hypervisor_limits.h"

/* Lay [begin_ns, end_ns) down; the time of it that was not there yet, to the
 * tick. All of it where there is no line. */
uint64_t hv_cover(struct hv_coverage *coverage, uint64_t begin_ns, uint64_t end_ns);

#define HV_MOST_OTHERS_PPM (UINT64_C(64) * HV_SHARE_FULL_PPM) /* more is a fault of the controller */

/* On a device that gives each process turns of the same length, what of a time
 * is that of own processes, beside others that have others_ppm turns for one of
 * a process: as the daemon finds out. */
uint64_t hv_own_turns(uint64_t ns, uint32_t own, uint64_t others_ppm);

/* others_ppm, but not more than others can have beside a launch of own_ns: so many processes have a turn each for one of
 * ours, the last of which ends early with the launch, and with those in other streams beside it. As it is where nobody is known to be there. */
uint64_t hv_turns_within(uint64_t others_ppm, uint64_t processes, uint64_t own_ns);

#endif
