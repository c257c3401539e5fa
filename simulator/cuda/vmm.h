/* Physical memory that programs map by themselves, as vmm.c and multicast.c share it. */
#ifndef SIM_VMM_H
#define SIM_VMM_H

#include "driver.h"

#define GRANULARITY (UINT64_C(2) << 20)

struct vmm_handle;
struct vmm_binding {
    struct vmm_handle *memory;
    uint64_t offset, size;   /* in the object */
    struct vmm_binding *next;
};

struct vmm_handle {
    uint64_t number;         /* what the caller holds */
    int fd;
    int own_file;            /* else its bytes are a part of the process's common file */
    uint64_t offset;
    uint64_t size, charged;
    uint64_t share;          /* 0: no other process was given it */
    uint32_t gpu, device;
    uint32_t references;     /* of callers */
    uint32_t mappings;
    CUmemAllocationProp props;
    uint32_t multicast;      /* how many devices it is for; 0: plain memory */
    uint32_t members;        /* bit n: device n was added */
    struct vmm_binding *bound; /* memory of its members that is bound to it, and held for as long */
    struct vmm_handle *next;
};

/* Driver lock held for all. */
struct vmm_handle *sim_vmm_find(uint64_t number);
void sim_vmm_drop_if_unused(struct vmm_handle *handle);
int sim_vmm_give_bytes(struct vmm_handle *handle); /* 0: the system has none */

#endif
