/* test: sources=simulator/core/?*.c,simulator/cuda/?*.c include=simulator/include,simulator/core,simulator/cuda
   variants=plain,address */
/* The ledger under racing and dying processes, and machine files that are not machines. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "rig.h"

/* Eight processes of one group allocate in lock step, so that the peak of their sum is known in advance,
 * though each one's own peak is reached at another moment. */
enum { RACERS = 8, ROUNDS = 200 };

static void peaks_are_exact(void)
{
    struct sim_machine *machine = new_machine("peaks", 1, SIM_CLOCK_REAL, 0);
    atomic_int *holding = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(holding != MAP_FAILED);
    atomic_int *begun = holding + 1; /* contexts that are there: where they are not, others may have taken their room */
    CHECK(setenv("SIM_GROUP", "racers", 1) == 0);
    pid_t children[RACERS];
    for (int i = 0; i < RACERS; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            CUcontext context;
            CUdeviceptr address;
            OK(cuInit(0));
            OK(cuDevicePrimaryCtxRetain(&context, 0));
            OK(cuCtxSetCurrent(context));
            atomic_fetch_add(begun, 1);
            UNTIL(atomic_load(begun) == RACERS);
            for (int round = 0; round < ROUNDS; round++) { /* more than fits, most of the time */
                CUresult result = cuMemAlloc_v2(&address, 200 * MIB);
                CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
                if (result == CUDA_SUCCESS) {
                    CHECK(atomic_fetch_add(holding, 1) < 2); /* 1024 - 8 x 64 = 512: never more than two */
                    atomic_fetch_sub(holding, 1);
                    OK(cuMemFree_v2(address));
                }
            }
            _exit(0);
        }
    }
    for (int i = 0; i < RACERS; i++)
        ended_well(children[i]);
    sound(machine);
    struct sim_group_reading reading;
    OK(sim_read_group(machine, 0, "racers", &reading));
    SAME(reading.processes, 0);
    SAME(reading.usage.bytes, 0);
    /* Nothing that contexts and buffers cannot add up to, and never more than the card has. */
    CHECK(reading.usage.peak_bytes <= 1024 * MIB);
    CHECK(reading.usage.peak_bytes >= 264 * MIB);
    SAME(reading.usage.peak_bytes % (8 * MIB), 0);
    SAME(machine->gpu[0].peak_bytes, reading.usage.peak_bytes); /* the only group there was */
    unlink(machine_path);
}

/* Two processes of a group, driven by pipes: 300, +200, -300, +100 MiB, so the peak is 500 MiB and two contexts. */
static void peak_of_a_group(void)
{
    struct sim_machine *machine = new_machine("group", 1, SIM_CLOCK_REAL, 0);
    CHECK(setenv("SIM_GROUP", "pair", 1) == 0);
    static const struct { int who; int size; } steps[] = {{0, 300}, {1, 200}, {0, -300}, {1, 100}};
    int orders[2][2], answers[2];
    CHECK(pipe(answers) == 0);
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        CHECK(pipe(orders[i]) == 0);
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            CUcontext context;
            CUdeviceptr last = 0;
            int size;
            close(orders[i][1]); /* so that the end of orders is seen */
            if (i == 1)
                close(orders[0][1]);
            OK(cuInit(0));
            OK(cuDevicePrimaryCtxRetain(&context, 0));
            OK(cuCtxSetCurrent(context));
            while (read(orders[i][0], &size, sizeof size) == (ssize_t)sizeof size) {
                if (size > 0)
                    OK(cuMemAlloc_v2(&last, (size_t)size * MIB));
                else
                    OK(cuMemFree_v2(last));
                CHECK(write(answers[1], &size, sizeof size) == (ssize_t)sizeof size);
            }
            _exit(0);
        }
    }
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        int answer;
        CHECK(write(orders[steps[i].who][1], &steps[i].size, sizeof answer) == (ssize_t)sizeof answer);
        CHECK(read(answers[0], &answer, sizeof answer) == (ssize_t)sizeof answer);
    }
    struct sim_group_reading reading;
    OK(sim_read_group(machine, 0, "pair", &reading));
    SAME(reading.usage.bytes, (300 + 128) * MIB);
    SAME(reading.usage.peak_bytes, (500 + 128) * MIB);
    SAME(reading.processes, 2);
    for (int i = 0; i < 2; i++)
        close(orders[i][1]);
    for (int i = 0; i < 2; i++)
        ended_well(children[i]);
    sound(machine);
    unlink(machine_path);
}

/* Processes are killed in the middle of launches and allocations; somebody else cleans up, and the machine is sound. */
static void killed_in_the_middle(void)
{
    struct sim_machine *machine = new_machine("kill", 1, SIM_CLOCK_REAL, 0);
    unsetenv("SIM_GROUP");
    unsigned seed = 1;
    for (int round = 0; round < 60; round++) {
        pid_t children[2];
        uint32_t before = machine->reaped;
        for (int i = 0; i < 2; i++) {
            children[i] = fork();
            CHECK(children[i] >= 0);
            if (children[i] == 0) {
                CUfunction function = ready_kernel("sim_us1");
                CUdeviceptr address;
                for (;;) {
                    OK(launch(function, 10, NULL));
                    CUresult result = cuMemAlloc_v2(&address, 4 * MIB);
                    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
                    if (result == CUDA_SUCCESS && address % (8 * MIB))
                        OK(cuMemFree_v2(address));
                }
            }
        }
        seed = seed * 1103515245u + 12345u;
        uint64_t launches = machine->gpu[0].launches + 1 + (seed >> 16) % 400;
        UNTIL(__atomic_load_n(&machine->gpu[0].launches, __ATOMIC_RELAXED) >= launches);
        for (int i = 0; i < 2; i++)
            CHECK(kill(children[i], SIGKILL) == 0);
        for (int i = 0; i < 2; i++)
            CHECK(waitpid(children[i], NULL, 0) == children[i]);
        sound(machine); /* reaps as well */
        CHECK(machine->reaped > before); /* one may have died before it was registered */
        SAME(sim_read_processes(machine, SIM_NONE, NULL, 0), 0);
        SAME(machine->gpu[0].used_bytes, 0);
    }
    unlink(machine_path);
}

/* The lock's owner dies with everything half done: the next one repairs what follows from the process rows. */
static void owner_of_the_lock_dies(void)
{
    struct sim_machine *machine = new_machine("owner", 1, SIM_CLOCK_REAL, 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CUfunction function = ready_kernel("sim_us1000");
        OK(launch(function, 1, NULL));
        pthread_mutex_lock(&machine->gpu[0].lock);
        machine->gpu[0].used_bytes += 77;
        machine->gpu[0].first_active = 3;
        machine->gpu[0].active_count = 9;
        machine->streams[0].done_work += 5;
        kill(getpid(), SIGKILL);
    }
    CHECK(waitpid(child, NULL, 0) == child);
    sound(machine);
    SAME(machine->owner_deaths, 1);
    SAME(machine->gpu[0].used_bytes, 0);
    unlink(machine_path);
}

static void refused(const char *path, int status)
{
    struct sim_machine *none = NULL;
    SAME(sim_machine_attach(path, &none), status);
    CHECK(none == NULL);
    CHECK(setenv("SIM_MACHINE", path, 1) == 0);
    pid_t child = fork(); /* cuInit of a fresh process */
    CHECK(child >= 0);
    if (child == 0) {
        int count;
        SAME(cuInit(0), CUDA_ERROR_NO_DEVICE);
        SAME(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
        _exit(0);
    }
    ended_well(child);
}

static void poke(const char *path, size_t offset, uint32_t value)
{
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    CHECK(pwrite(fd, &value, sizeof value, (off_t)offset) == (ssize_t)sizeof value);
    close(fd);
}

static void damaged_files(void)
{
    sim_machine_detach(new_machine("damaged", 1, SIM_CLOCK_REAL, 0));
    char path[sizeof machine_path];
    strcpy(path, machine_path);
    refused("./no-such-machine", SIM_NO_FILE);
    refused(".", SIM_SYSTEM_ERROR); /* a folder cannot be opened for writing */
    refused("/dev/null", SIM_NOT_REGULAR);
    poke(path, offsetof(struct sim_machine, ready), 0);
    refused(path, SIM_HALF_WRITTEN);
    poke(path, offsetof(struct sim_machine, ready), 1);
    poke(path, offsetof(struct sim_machine, layout_version), SIM_LAYOUT_VERSION + 1);
    refused(path, SIM_WRONG_VERSION);
    poke(path, offsetof(struct sim_machine, layout_version), SIM_LAYOUT_VERSION);
    CHECK(truncate(path, sizeof(struct sim_machine) - 8) == 0 && truncate(path, sizeof(struct sim_machine)) == 0);
    refused(path, SIM_DAMAGED); /* all but its end was written */
    unlink(path);
    const size_t marred[] = {offsetof(struct sim_machine, table_lock), offsetof(struct sim_machine, rules),
                             offsetof(struct sim_machine, gpu_count), offsetof(struct sim_machine, process_high),
                             offsetof(struct sim_machine, enumeration), offsetof(struct sim_machine, system.clock_scale_ppm),
                             offsetof(struct sim_machine, gpu[0].info.sm_count), offsetof(struct sim_machine, gpu[0].first_active)};
    for (size_t i = 0; i < sizeof marred / sizeof *marred; i++) {
        sim_machine_detach(new_machine("damaged", 1, SIM_CLOCK_REAL, 0));
        const size_t kind = i == 0 ? offsetof(pthread_mutex_t, __data.__kind) : 0;
        poke(path, marred[i] + kind, 0x5a5a5a5a);
        refused(path, SIM_DAMAGED);
        if (i + 1 < sizeof marred / sizeof *marred)
            unlink(path);
    }
    CHECK(truncate(path, sizeof(struct sim_machine) - 1) == 0);
    refused(path, SIM_WRONG_SIZE);
    CHECK(truncate(path, 0) == 0);
    refused(path, SIM_WRONG_SIZE);
    CHECK(truncate(path, sizeof(struct sim_machine)) == 0);
    refused(path, SIM_WRONG_MAGIC);
    unlink(path);
    unsetenv("SIM_MACHINE");
    struct sim_machine *none;
    SAME(sim_machine_attach_environment(&none), SIM_NO_PATH);
    SAME(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

static void creation_is_whole_or_nothing(void)
{
    static struct sim_description description;
    struct sim_machine *machine = new_machine("create", 1, SIM_CLOCK_REAL, 0);
    struct stat before, after;
    sim_description_defaults(&description);
    SAME(sim_machine_create("./impossible.machine", &description), SIM_BAD_DESCRIPTION); /* no GPU */
    CHECK(access("./impossible.machine", F_OK) != 0);
    description.gpu_count = 1;
    description.gpus[0] = machine->gpu[0].info;
    strcpy(description.gpus[0].uuid, "GPU-nonsense");
    SAME(sim_machine_create("./impossible.machine", &description), SIM_BAD_DESCRIPTION);
    description.gpus[0] = machine->gpu[0].info;
    CHECK(stat(machine_path, &before) == 0);
    SAME(sim_machine_create(machine_path, &description), SIM_EXISTS);
    CHECK(stat(machine_path, &after) == 0 && before.st_ino == after.st_ino);
    SAME(sim_machine_create("./no/such/folder/machine", &description), SIM_SYSTEM_ERROR);
    unlink(machine_path);
}

int main(void)
{
    peaks_are_exact();
    peak_of_a_group();
    killed_in_the_middle();
    owner_of_the_lock_dies();
    damaged_files();
    creation_is_whole_or_nothing();
    return 0;
}
