#define _POSIX_C_SOURCE 200809L
#include "device_nodes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "attach.h"
#include "hypervisor_atomics.h"
#include "messages.h"

#define MOST_GPUS 32 /* /dev/nvidia0 and so on; no node has more */

static uint32_t told;

/* A control group's refusal is EPERM; a file's own mode is EACCES, and an absent node ENOENT. */
static bool is_lost(const char *node)
{
    int descriptor = open(node, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (descriptor < 0)
        return errno == EPERM;
    (void)close(descriptor); /* nothing was written */
    return false;
}

static bool find_lost(char *node, size_t bytes)
{
    static const char *const shared[] = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        (void)snprintf(node, bytes, "%s", shared[i]);
        if (is_lost(node))
            return true;
    }
    for (unsigned int i = 0; i < MOST_GPUS; i++) {
        (void)snprintf(node, bytes, "/dev/nvidia%u", i);
        if (is_lost(node))
            return true;
    }
    return false;
}

void hv_tell_lost_nodes(void)
{
    int saved = errno;
    char node[32];
    if (hv_attach() == HV_ATTACH_DONE && hv_load_relaxed_32(&told) == 0 && find_lost(node, sizeof node) &&
        hv_add_acq_rel_32(&told, 1) == 0)
        hv_tell(HV_MESSAGE_NODES_LOST,
                "the driver could not begin, for the container may no longer open %s; restart the Pod, and give the "
                "runtime the nodes by CDI", node);
    errno = saved;
}
