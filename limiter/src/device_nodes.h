/*
 * Device nodes that a running container has lost: its control group no longer
 * allows them, as after a systemd daemon-reload under a runtime that set them
 * behind systemd's back. The driver then fails with errors that say nothing of
 * it ("Failed to initialize NVML: Unknown Error").
 */
#ifndef HV_DEVICE_NODES_H
#define HV_DEVICE_NODES_H

/* After the driver has failed to begin: tell the daemon, once a process, if a
 * node is there and may not be opened. Keeps errno. */
void hv_tell_lost_nodes(void);

#endif
