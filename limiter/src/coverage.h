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
/* What of such times is the Pod's GPU time, in ppm, after one more: its measured
 * time and what hv_cover said of it. *times is shared by the Pod's processes:
 * which of several that run by turns lays a moment down first is chance. */
uint32_t hv_cover_part(uint64_t *times, uint64_t measured_ns, uint64_t covered_ns);

#endif
