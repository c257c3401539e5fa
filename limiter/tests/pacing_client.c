/*
 * pacing_client: a program that keeps simulated devices as busy as it is let,
 * in the forms of work that a limit has to hold for. It runs until it is
 * killed; what it has seen lies in a file of words that others read meanwhile.
 * Times are the simulated machine's own, so it runs on the virtual clock too.
 *
 *   pacing_client --out=FILE [--kernels=US,US,...] [--later=US,US,...] [--change-ms=MS] [--grid=N] [--streams=N]
 *                 [--devices=N] [--form=plain|graph|cooperative|memset|copy] [--wait] [--same] [--stop-ms=MS]
 *                 [--first=N] [--rank=R --ranks=N --meet=FILE [--ahead]] [--skew-us=N]
 *
 * --kernels are launched in turn; after --change-ms, those of --later. With
 * more than one device every device waits for all others between rounds, as in
 * a collective. --wait: each launch waits for the one before. --same: the
 * kernels stay, and take as long as those of --later from --change-ms on.
 * --stop-ms: from then on nothing more is launched.
 * --first: the first of its devices; they are --devices from there on.
 * --skew-us: it begins so much later on each device than on the one before.
 * --rank: one of several such programs of one job; after each launch each waits
 * for its work and then for all others. With --ahead it waits for no work: its
 * devices wait for those of all ranks, by events of other processes, as those
 * of a collective do, and it launches until it is AHEAD rounds before another.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core.h"
#include "cuda_abi.h"

CUresult cuInit(unsigned int flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event);
CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void **parameters, void **extra);
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                   unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                   unsigned int shared_bytes, CUstream stream, void **parameters);
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags);
CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS_v1 *parameters);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemsetD8Async(CUdeviceptr pointer, unsigned char value, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);

enum { MOST_KERNELS = 8, MOST_STREAMS = 16, MOST_DEVICES = 4, MOST_RANKS = 16, GRAPH_NODES = 50, THREADS = 256 };
enum { AHEAD = 3, EVENTS = 2 * (AHEAD + 1) }; /* rounds; nobody waits any more for what was recorded EVENTS ago */
#define MEET_NS 20000 /* between two looks at the others */
#define LONG_MEET_NS 1000000 /* the same, once it takes longer: then it costs more than it tells */
#define COPIED_BYTES (UINT64_C(64) << 20)

/* What the file holds, in this order. */
struct seen {
    uint64_t ready;      /* 1: launching */
    uint64_t launches;
    uint64_t longest_ns; /* that one launch took */
    uint64_t stalled_ns; /* that all launches took together */
    uint64_t longest_later_ns; /* that one launch took which began after the first second */
};

/* The contexts of its devices, and the events of each rank and device; one event where there are no other ranks. */
struct exchange {
    CUcontext contexts[MOST_DEVICES];
    CUevent reached[MOST_RANKS][MOST_DEVICES][EVENTS];
};

enum form { PLAIN, GRAPH, COOPERATIVE, MEMSET, COPY };

struct work {
    unsigned count;
    unsigned microseconds[MOST_KERNELS];
    CUfunction functions[MOST_DEVICES][MOST_KERNELS];
    CUgraphExec graphs[MOST_DEVICES][MOST_KERNELS];
};

/* What the ranks of a job know of each other. */
struct meet {
    uint64_t come[MOST_RANKS]; /* how often each has come so far */
    CUipcEventHandle reached[MOST_RANKS][MOST_DEVICES][EVENTS];
};

struct options {
    const char *out;
    struct work work, later;
    uint64_t change_ns, stop_ns;
    unsigned skew_us;
    unsigned grid, streams, first, devices;
    enum form form;
    int wait, same, ahead;
    unsigned rank, ranks; /* ranks 0: a program of its own */
    struct meet *meet;
};

static void must(const char *what, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "pacing_client: %s failed with CUDA error %d\n", what, (int)result);
        exit(1);
    }
}

static void wrong(const char *what)
{
    fprintf(stderr, "pacing_client: wrong %s; see the head of pacing_client.c\n", what);
    exit(2);
}

static struct seen *open_out(const char *path)
{
    int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0 || ftruncate(descriptor, sizeof(struct seen)) != 0)
        wrong("--out");
    struct seen *seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (seen == MAP_FAILED)
        wrong("--out");
    return seen;
}

static void parse_kernels(struct work *work, char *list)
{
    char *rest = NULL;
    work->count = 0;
    for (char *one = strtok_r(list, ",", &rest); one != NULL; one = strtok_r(NULL, ",", &rest)) {
        if (work->count == MOST_KERNELS)
            wrong("number of kernels");
        work->microseconds[work->count++] = (unsigned)strtoul(one, NULL, 10);
    }
}

static void load(struct work *work, const struct options *options, unsigned device, CUmodule module)
{
    for (unsigned i = 0; i < work->count; i++) {
        char name[64];
        if (options->same)
            snprintf(name, sizeof name, "sim_us%u_then%u_at%llu", work->microseconds[i],
                     options->later.microseconds[i % options->later.count],
                     (unsigned long long)(options->change_ns / 1000000));
        else
            snprintf(name, sizeof name, "sim_us%u", work->microseconds[i]);
        must("cuModuleGetFunction", cuModuleGetFunction(&work->functions[device][i], module, name));
        if (options->form != GRAPH)
            continue;
        CUgraph graph;
        CUgraphNode before = NULL;
        must("cuGraphCreate", cuGraphCreate(&graph, 0));
        for (unsigned node = 0; node < GRAPH_NODES; node++) {
            CUDA_KERNEL_NODE_PARAMS_v1 parameters = {.func = work->functions[device][i],
                                                     .gridDimX = options->grid,
                                                     .gridDimY = 1,
                                                     .gridDimZ = 1,
                                                     .blockDimX = THREADS,
                                                     .blockDimY = 1,
                                                     .blockDimZ = 1};
            CUgraphNode added;
            must("cuGraphAddKernelNode", cuGraphAddKernelNode(&added, graph, &before, node > 0, &parameters));
            before = added;
        }
        must("cuGraphInstantiateWithFlags", cuGraphInstantiateWithFlags(&work->graphs[device][i], graph, 0));
    }
}

/* Something that runs first, longer on each device than on the one before. */
static void begin_later(const struct options *options, unsigned device, CUcontext context, CUmodule module,
                        CUstream stream)
{
    char name[64];
    CUfunction function;
    snprintf(name, sizeof name, "sim_us%u", options->skew_us * (options->first + device));
    if (options->skew_us == 0 || options->first + device == 0)
        return;
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    must("cuModuleGetFunction", cuModuleGetFunction(&function, module, name));
    must("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, THREADS, 1, 1, 0, stream, NULL, NULL));
}

static CUresult start(const struct options *options, const struct work *work, unsigned device, unsigned at,
                      CUstream stream, CUdeviceptr memory)
{
    switch (options->form) {
    case GRAPH:
        return cuGraphLaunch(work->graphs[device][at], stream);
    case COOPERATIVE:
        return cuLaunchCooperativeKernel(work->functions[device][at], options->grid, 1, 1, THREADS, 1, 1, 0, stream,
                                         NULL);
    case MEMSET:
        return cuMemsetD8Async(memory, 0, COPIED_BYTES, stream);
    case COPY:
        return cuMemcpyDtoDAsync_v2(memory, memory + COPIED_BYTES, COPIED_BYTES, stream);
    case PLAIN:
        break;
    }
    return cuLaunchKernel(work->functions[device][at], options->grid, 1, 1, THREADS, 1, 1, 0, stream, NULL, NULL);
}

static struct meet *open_meet(const char *path)
{
    int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0 || ftruncate(descriptor, sizeof(struct meet)) != 0)
        wrong("--meet");
    struct meet *meet = mmap(NULL, sizeof *meet, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (meet == MAP_FAILED)
        wrong("--meet");
    return meet;
}

/* This rank has done its part; wait until none is more than so many rounds behind. */
static void meet_others(struct sim_machine *machine, const struct options *options, unsigned ahead)
{
    uint64_t mine = __atomic_add_fetch(&options->meet->come[options->rank], 1, __ATOMIC_ACQ_REL); /* after the work */
    uint64_t began = sim_now(machine);
    for (unsigned other = 0; other < options->ranks; other++)
        while (__atomic_load_n(&options->meet->come[other], __ATOMIC_ACQUIRE) + ahead < mine) {
            uint64_t now = sim_now(machine), pause = (now - began) / 8;
            pause = ahead == 0 || pause < MEET_NS ? MEET_NS : pause > LONG_MEET_NS ? LONG_MEET_NS : pause;
            sim_wait(machine, now + pause, NULL, 0);
        }
}

/* The events of all ranks, of which this one records its own; all have made theirs when it returns. */
static void share_events(struct sim_machine *machine, const struct options *options, struct exchange *exchange)
{
    for (unsigned device = 0; device < options->devices; device++)
        for (unsigned i = 0; i < EVENTS; i++) {
            must("cuCtxSetCurrent", cuCtxSetCurrent(exchange->contexts[device]));
            must("cuEventCreate", cuEventCreate(&exchange->reached[options->rank][device][i], 2 | 4 /* between processes */));
            must("cuIpcGetEventHandle", cuIpcGetEventHandle(&options->meet->reached[options->rank][device][i],
                                                            exchange->reached[options->rank][device][i]));
        }
    meet_others(machine, options, 0);
    for (unsigned rank = 0; rank < options->ranks; rank++)
        for (unsigned device = 0; device < options->devices && rank != options->rank; device++)
            for (unsigned i = 0; i < EVENTS; i++)
                must("cuIpcOpenEventHandle",
                     cuIpcOpenEventHandle(&exchange->reached[rank][device][i], options->meet->reached[rank][device][i]));
}

/* Each device has recorded that it has reached the end of this round: what is launched into the stream next waits for
 * all devices of all ranks, of other ranks for the last round of which all are known to have recorded it. */
static void exchange_round(struct sim_machine *machine, const struct options *options, struct exchange *exchange,
                           uint64_t round, CUstream streams[MOST_DEVICES])
{
    if (options->ahead)
        meet_others(machine, options, AHEAD);
    for (unsigned device = 0; device < options->devices; device++)
        for (unsigned rank = 0; rank < (options->ahead ? options->ranks : 1); rank++)
            for (unsigned other = 0; other < options->devices; other++) {
                int own = !options->ahead || rank == options->rank;
                if ((own && other == device) || (!own && round < AHEAD))
                    continue;
                CUevent event = exchange->reached[rank][other][options->ahead ? (own ? round : round - AHEAD) % EVENTS : 0];
                must("cuStreamWaitEvent", cuStreamWaitEvent(streams[device], event, 0));
            }
}

static void run(struct options *options, struct sim_machine *machine, struct seen *seen)
{
    static struct exchange exchange;
    CUcontext *contexts = exchange.contexts;
    CUstream streams[MOST_STREAMS][MOST_DEVICES];
    CUmodule modules[MOST_DEVICES];
    const int exchanges = options->devices > 1 || options->ahead;
    CUdeviceptr memory[MOST_DEVICES] = {0};
    must("cuInit", cuInit(0));
    for (unsigned device = 0; device < options->devices; device++) {
        CUmodule module;
        must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&contexts[device], (CUdevice)(device + options->first)));
        must("cuCtxSetCurrent", cuCtxSetCurrent(contexts[device]));
        must("cuModuleLoadData", cuModuleLoadData(&module, ".version 7.0\n.target sm_70\n.address_size 64\n"));
        load(&options->work, options, device, module);
        load(&options->later, options, device, module);
        for (unsigned s = 0; s < options->streams; s++)
            must("cuStreamCreate", cuStreamCreate(&streams[s][device], 1 /* non-blocking */));
        modules[device] = module;
        if (!options->ahead)
            must("cuEventCreate", cuEventCreate(&exchange.reached[0][device][0], 2 /* no timing */));
        if (options->form == MEMSET || options->form == COPY)
            must("cuMemAlloc", cuMemAlloc_v2(&memory[device], 2 * COPIED_BYTES));
    }
    seen->ready = 1;
    for (unsigned device = 0; device < options->devices; device++)
        begin_later(options, device, contexts[device], modules[device], streams[0][device]);
    if (options->ahead)
        share_events(machine, options, &exchange);
    uint64_t began_all = sim_now(machine);
    for (uint64_t round = 0;; round++) {
        uint64_t began = sim_now(machine);
        while (began >= options->stop_ns)
            sim_wait(machine, UINT64_MAX - 1, NULL, 0);
        const struct work *work =
            options->later.count != 0 && !options->same && began >= options->change_ns ? &options->later : &options->work;
        for (unsigned device = 0; device < options->devices; device++) {
            CUstream stream = streams[round % options->streams][device];
            if (options->devices > 1)
                must("cuCtxSetCurrent", cuCtxSetCurrent(contexts[device]));
            uint64_t before = sim_now(machine);
            must("launch", start(options, work, device, (unsigned)(round % work->count), stream, memory[device]));
            uint64_t took = sim_now(machine) - before;
            seen->launches++;
            seen->stalled_ns += took;
            if (took > seen->longest_ns)
                seen->longest_ns = took;
            if (took > seen->longest_later_ns && before - began_all > 1000000000)
                seen->longest_later_ns = took;
            if (exchanges)
                must("cuEventRecord",
                     cuEventRecord(exchange.reached[options->ahead ? options->rank : 0][device]
                                                   [options->ahead ? round % EVENTS : 0], stream));
        }
        if (exchanges)
            exchange_round(machine, options, &exchange, round, streams[round % options->streams]);
        if (options->wait || (options->ranks != 0 && !options->ahead))
            must("cuStreamSynchronize", cuStreamSynchronize(streams[round % options->streams][0]));
        if (options->ranks != 0 && !options->ahead)
            meet_others(machine, options, 0);
    }
}

static enum form form_of(const char *name)
{
    static const char *const names[] = {"plain", "graph", "cooperative", "memset", "copy"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return (enum form)i;
    wrong("--form");
    return PLAIN;
}

int main(int argc, char **argv)
{
    static const struct option known[] = {
        {"out", required_argument, NULL, 'o'},     {"kernels", required_argument, NULL, 'k'},
        {"later", required_argument, NULL, 'l'},   {"change-ms", required_argument, NULL, 'c'},
        {"grid", required_argument, NULL, 'g'},    {"streams", required_argument, NULL, 's'},
        {"devices", required_argument, NULL, 'd'}, {"form", required_argument, NULL, 'f'},
        {"wait", no_argument, NULL, 'w'},          {"same", no_argument, NULL, 'a'},
        {"stop-ms", required_argument, NULL, 'p'}, {"rank", required_argument, NULL, 'r'},
        {"ranks", required_argument, NULL, 'n'},   {"meet", required_argument, NULL, 'm'},
        {"first", required_argument, NULL, 'i'},   {"ahead", no_argument, NULL, 'h'},
        {"skew-us", required_argument, NULL, 'u'},
        {NULL, 0, NULL, 0},
    };
    struct options options = {.grid = 108, .streams = 1, .devices = 1, .stop_ns = UINT64_MAX};
    int choice;
    while ((choice = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (choice) {
        case 'o': options.out = optarg; break;
        case 'k': parse_kernels(&options.work, optarg); break;
        case 'l': parse_kernels(&options.later, optarg); break;
        case 'c': options.change_ns = strtoull(optarg, NULL, 10) * 1000000; break;
        case 'g': options.grid = (unsigned)strtoul(optarg, NULL, 10); break;
        case 's': options.streams = (unsigned)strtoul(optarg, NULL, 10); break;
        case 'd': options.devices = (unsigned)strtoul(optarg, NULL, 10); break;
        case 'f': options.form = form_of(optarg); break;
        case 'w': options.wait = 1; break;
        case 'a': options.same = 1; break;
        case 'p': options.stop_ns = strtoull(optarg, NULL, 10) * 1000000; break;
        case 'r': options.rank = (unsigned)strtoul(optarg, NULL, 10); break;
        case 'n': options.ranks = (unsigned)strtoul(optarg, NULL, 10); break;
        case 'm': options.meet = open_meet(optarg); break;
        case 'i': options.first = (unsigned)strtoul(optarg, NULL, 10); break;
        case 'h': options.ahead = 1; break;
        case 'u': options.skew_us = (unsigned)strtoul(optarg, NULL, 10); break;
        default: wrong("option");
        }
    }
    if (options.out == NULL || options.work.count == 0 || options.streams == 0 || options.streams > MOST_STREAMS ||
        options.devices == 0 || options.devices > MOST_DEVICES || (options.same && options.later.count == 0) ||
        options.ranks > MOST_RANKS || options.rank > options.ranks || ((options.ranks != 0 || options.ahead) && options.meet == NULL) ||
        (options.ahead && options.rank >= options.ranks))
        wrong("options");
    struct sim_machine *machine;
    if (sim_machine_attach_environment(&machine) != SIM_OK)
        wrong("SIM_MACHINE");
    run(&options, machine, open_out(options.out));
}
