/* Events shared between processes by handle. The row in the machine file is the event: both processes record and
 * wait for the same one. It is its maker's and ends with it, as everything that was to be waited for then has. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define HANDLE_MAGIC UINT64_C(0x31564549474d4953)

struct event_ticket {
    uint64_t magic;
    uint64_t base;         /* the row's sequence when it became this event's */
    uint32_t row;
    uint32_t process, generation; /* of its maker */
    int32_t pid;
};
_Static_assert(sizeof(struct event_ticket) <= sizeof(CUipcEventHandle), "a handle holds a ticket");

SIM_EXPORTED CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
    ENTER();
    if (!handle || !event || event->kind != HANDLE_EVENT)
        return !handle ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    if (!event->shared || event->imported)
        return CUDA_ERROR_INVALID_HANDLE;
    const struct sim_process *process = &sim_here()->processes[sim_driver.process];
    struct event_ticket ticket = {.magic = HANDLE_MAGIC, .base = event->base, .row = event->row, .process = sim_driver.process,
                                  .generation = process->generation, .pid = process->pid};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &ticket, sizeof ticket);
    return CUDA_SUCCESS;
}

SIM_EXPORTED CUresult CUDAAPI cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle handle)
{
    CUcontext context;
    ENTER_CONTEXT(context);
    struct event_ticket ticket;
    memcpy(&ticket, &handle, sizeof ticket);
    if (!out || ticket.magic != HANDLE_MAGIC || ticket.row >= SIM_EVENT_CHUNKS * SIM_EVENTS_PER_CHUNK || ticket.process >= SIM_MAX_PROCESSES)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_process *maker = &sim_here()->processes[ticket.process];
    if (ticket.process == sim_driver.process)
        return CUDA_ERROR_INVALID_CONTEXT; /* not in the process that made it */
    if (!maker->state || maker->generation != ticket.generation || maker->pid != ticket.pid)
        return CUDA_ERROR_INVALID_VALUE; /* its maker is gone */
    CUevent event = calloc(1, sizeof *event);
    if (!event)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *event = (struct CUevent_st){.kind = HANDLE_EVENT, .row = ticket.row, .context = context, .flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS,
                                 .base = ticket.base, .recorded = ticket.base, .shared = 1, .imported = 1};
    *out = event;
    return CUDA_SUCCESS;
}
