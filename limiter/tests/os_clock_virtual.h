#ifndef HV_OS_CLOCK_VIRTUAL_H
#define HV_OS_CLOCK_VIRTUAL_H

/* What the limiter's clock says when the machine's says 0: a time of 0 means "never" in the files. */
#define HV_VIRTUAL_CLOCK_BEGAN_NS UINT64_C(1000000000)

#endif
