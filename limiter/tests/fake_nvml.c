/* Functions of NVML that the simulated one answers as older drivers do. */
#define EXPORT __attribute__((visibility("default")))

/* Says which pid it was asked for, in the place after it. */
EXPORT int nvmlDeviceGetAccountingStats_v2(void *device, unsigned int *told)
{
    (void)device;
    told[1] = told[0];
    return 0;
}
