/* Functions that a stream calls on the host. The only thread this driver ever starts runs them; it exists
 * from the first such call on, and in no process that never makes one. */
#define _GNU_SOURCE
#include "driver.h"
#include "internal.h"

#include <signal.h>
#include <stdlib.h>

struct host_call {
    CUhostFn function;       /* NULL: nothing is called, the stream only waits */
    int (*condition)(const void *); /* NULL: its turn is enough */
    void *argument;
    uint32_t row;            /* of the stream */
    uint64_t cookie;
    struct host_call *next;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct host_call *first, **end;
    uint64_t cookies;
    int started;
} host = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

void sim_host_forget(void)
{
    host.first = NULL; /* the calls are the parent's */
    host.end = NULL;
    host.started = 0;
    pthread_mutex_init(&host.lock, NULL);
    pthread_cond_init(&host.more, NULL);
}

/* Lock held. The first call whose turn has come, taken off the list. */
static struct host_call *take_ready(struct sim_machine *machine)
{
    for (struct host_call **link = &host.first; *link; link = &(*link)->next) {
        struct host_call *call = *link;
        uint64_t cookie;
        if (!sim_stream_host_ready(machine, call->row, &cookie) || cookie != call->cookie || (call->condition && !call->condition(call->argument)))
            continue;
        *link = call->next;
        if (host.end == &call->next)
            host.end = link;
        return call;
    }
    return NULL;
}

static void *serve(void *machine_argument)
{
    struct sim_machine *machine = machine_argument;
    pthread_mutex_lock(&host.lock);
    while (machine) { /* always: the mapping lives as long as the process */
        while (!host.first)
            pthread_cond_wait(&host.more, &host.lock);
        uint32_t seen = __atomic_load_n(&machine->clock_wake, __ATOMIC_ACQUIRE);
        struct host_call *call = take_ready(machine);
        pthread_mutex_unlock(&host.lock);
        if (call) {
            if (call->function)
                call->function(call->argument);
            else
                free(call->argument);
            sim_stream_host_done(machine, call->row);
            free(call);
        } else { /* on the virtual clock its step wakes us; on the real one this is the resolution of callbacks */
            sim_clock_sleep(machine, seen, machine->system.clock_mode == SIM_CLOCK_VIRTUAL ? 1000000 : 50000);
        }
        pthread_mutex_lock(&host.lock);
    }
    return NULL;
}

static int start(struct sim_machine *machine)
{
    pthread_t thread;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the program's signals are not for this thread */
    int result = pthread_create(&thread, NULL, serve, machine);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (result == 0)
        pthread_detach(thread);
    return result == 0;
}

static CUresult enqueue(CUstream stream, CUhostFn function, int (*condition)(const void *), void *argument)
{
    struct host_call *call = calloc(1, sizeof *call);
    if (!call)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&host.lock);
    if (!host.started && !(host.started = start(sim_here()))) {
        pthread_mutex_unlock(&host.lock);
        free(call);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *call = (struct host_call){.function = function, .condition = condition, .argument = argument, .row = stream->row, .cookie = ++host.cookies};
    uint64_t cookie = call->cookie;
    if (!host.first || !host.end)
        host.end = &host.first;
    *host.end = call;
    host.end = &call->next;
    pthread_cond_signal(&host.more);
    pthread_mutex_unlock(&host.lock);
    return sim_enqueue(stream, &(struct sim_item){.kind = SIM_ITEM_HOST, .a = cookie});
}

CUresult sim_host_enqueue(CUstream stream, CUhostFn function, void *argument) { return enqueue(stream, function, NULL, argument); }
CUresult sim_host_await(CUstream stream, int (*condition)(const void *), void *argument) { return enqueue(stream, NULL, condition, argument); }

static CUresult launch_host(const char *call, int per_thread, CUstream given, CUhostFn function, void *argument)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!function)
        return CUDA_ERROR_INVALID_VALUE;
    return stream->capture ? sim_capture_host(stream, function, argument) : sim_host_enqueue(stream, function, argument);
}
DEFINE_TWINS(cuLaunchHostFunc, _ptsz, launch_host, (CUstream stream, CUhostFn function, void *argument), stream, function, argument)

struct callback { CUstreamCallback function; CUstream stream; void *argument; };

static void run_callback(void *argument)
{
    struct callback *callback = argument;
    callback->function(callback->stream, CUDA_SUCCESS, callback->argument);
    free(callback);
}

static CUresult add_callback(const char *call, int per_thread, CUstream given, CUstreamCallback function, void *argument, unsigned flags)
{
    CUstream stream;
    CUresult result = sim_enter_stream(call, per_thread, given, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!function || flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct callback *callback = malloc(sizeof *callback);
    if (!callback)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *callback = (struct callback){function, given, argument};
    return sim_host_enqueue(stream, run_callback, callback);
}
DEFINE_TWINS(cuStreamAddCallback, _ptsz, add_callback, (CUstream stream, CUstreamCallback function, void *argument, unsigned int flags), stream, function, argument, flags)
