/*
 * Access to a mapping that somebody else may truncate or punch at any time.
 *
 * Touching a page of a shared mapping that lies beyond the end of its file, or
 * that the file system has no room for, raises SIGBUS, and its default is the
 * end of the process. hv_guarded runs a short piece of code and comes back when
 * that happens, so that a tenant who truncates its usage file gets a finding
 * and not a dead daemon.
 *
 * The handler is in place only while guarded code runs; the disposition that
 * was there before (Python's faulthandler, for instance) is put back
 * afterwards, and gets every SIGBUS meanwhile that is not ours: of another
 * thread, or at an address outside the guarded range. Guarded code of several
 * threads runs one after the other.
 */
#ifndef HV_DAEMON_GUARD_H
#define HV_DAEMON_GUARD_H

#include <stdbool.h>
#include <stddef.h>

typedef void hv_guarded_body(void *context);

/* Run body(context); false when it touched a page of [base, base + bytes) that
 * has gone. The body is then left in the middle: it must hold no lock and own
 * no memory, and what it changed outside the range must be volatile or unused
 * afterwards. */
bool hv_guarded(const void *base, size_t bytes, hv_guarded_body *body, void *context);

#endif
