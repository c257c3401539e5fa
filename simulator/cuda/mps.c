/* The client's side of MPS: cuInit looks for a control daemon at its pipe directory, as the real driver does, and goes
 * on without MPS where there is none. What the daemon says of its server are the bounds; what stands in the client's
 * own environment only tightens them.
 *
 * The wire is ours (the real one is not published): "CLIENT pid uid\n" on the socket `control`, answered by
 * "OK server percent [uuid=bytes]...\n" or "ERROR code\n"; the connection lasts as long as the client. The server
 * itself says so by SIM_MPS_SERVER, and holds its GPU for all its clients. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MPS_CONNECTION_FAILED = 805, MPS_RPC_FAILURE = 806 }; /* CUresult */

static uint32_t sm_percent_ppm; /* of this process; 0: not limited */

static int connect_to_daemon(void)
{
    const char *directory = secure_getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (snprintf(address.sun_path, sizeof address.sun_path, "%s/control", directory ? directory : "/tmp/nvidia-mps") >= (int)sizeof address.sun_path) /* a small constant */
        return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) { /* as the socket API wants it */
        close(fd);
        return -1;
    }
    return fd;
}

/* One line; it may take as long as the clients of another user run. */
static int ask(int fd, char *answer, size_t room)
{
    int length = snprintf(answer, room, "CLIENT %d %d\n", (int)getpid(), (int)getuid()); /* for a %d */
    if (send(fd, answer, (size_t)length, MSG_NOSIGNAL) != length) /* formatted numbers: not negative */
        return -1;
    for (size_t have = 0; have + 1 < room;) {
        ssize_t part = recv(fd, answer + have, room - 1 - have, 0);
        if (part <= 0)
            return -1;
        have += (size_t)part; /* checked: above zero */
        answer[have] = 0;
        if (answer[have - 1] == '\n')
            return 0;
    }
    return -1;
}

static uint64_t least(uint64_t bound, uint64_t wanted) { return wanted && (!bound || wanted < bound) ? wanted : bound; }

/* "512M", "2G". */
static uint64_t amount(const char *text)
{
    char *unit;
    uint64_t value = strtoull(text, &unit, 10);
    return *unit == 'G' || *unit == 'g' ? value << 30 : *unit == 'M' || *unit == 'm' ? value << 20 : 0;
}

/* "0=1G,GPU-…=512M": by ordinal or by UUID. */
static void tighten_memory(struct sim_process *process)
{
    const char *wish = secure_getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    char text[2048];
    if (!wish || strlen(wish) >= sizeof text)
        return;
    memcpy(text, wish, strlen(wish) + 1);
    char *saved = NULL;
    for (char *entry = strtok_r(text, ",", &saved); entry; entry = strtok_r(NULL, ",", &saved)) {
        char *value = strchr(entry, '=');
        if (!value)
            continue;
        *value++ = 0;
        for (uint32_t device = 0; device < sim_driver.device_count; device++) {
            uint32_t gpu = sim_driver.gpu_of[device];
            char *end;
            unsigned long ordinal = strtoul(entry, &end, 10);
            if ((*end == 0 && ordinal == device) || strcasecmp(entry, sim_driver.machine->gpu[gpu].info.uuid) == 0)
                process->mps_memory_limit[gpu] = least(process->mps_memory_limit[gpu], amount(value));
        }
    }
}

static void obey(struct sim_process *process, char *terms)
{
    char *saved = NULL, *word = strtok_r(terms, " \n", &saved);
    double percent = word ? strtod(word, NULL) : 0;
    while ((word = strtok_r(NULL, " \n", &saved))) {
        char *value = strchr(word, '=');
        if (!value)
            continue;
        *value++ = 0;
        for (uint32_t gpu = 0; gpu < sim_driver.machine->gpu_count; gpu++)
            if (strcasecmp(word, sim_driver.machine->gpu[gpu].info.uuid) == 0)
                process->mps_memory_limit[gpu] = strtoull(value, NULL, 10);
    }
    const char *wish = secure_getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    uint64_t own = wish && strtod(wish, NULL) > 0 ? (uint64_t)(strtod(wish, NULL) * 10000) : 0; /* a percentage in ppm */
    sm_percent_ppm = (uint32_t)least(percent > 0 ? (uint64_t)(percent * 10000) : 0, own); /* at most a million, or a wish above it, which limits nothing */
    tighten_memory(process);
}

/* In cuInit, driver lock held. */
CUresult sim_mps_join(void)
{
    struct sim_process *process = &sim_driver.machine->processes[sim_driver.process];
    char answer[4096];
    if (secure_getenv("SIM_MPS_SERVER")) {
        process->mps_client |= SIM_MPS_SERVED;
        return CUDA_SUCCESS;
    }
    int fd = connect_to_daemon();
    if (fd < 0)
        return CUDA_SUCCESS; /* without MPS, and nobody is told: as the real driver */
    unsigned code = MPS_RPC_FAILURE;
    int after = 0;
    if (ask(fd, answer, sizeof answer) == 0 && sscanf(answer, "OK %*u%n", &after) == 0 && after > 0) {
        obey(process, answer + after);
        process->mps_client |= SIM_MPS_SERVED;
        return CUDA_SUCCESS; /* the connection stays open: its end tells the server of ours */
    }
    if (sscanf(answer, "ERROR %u", &code) != 1)
        code = MPS_CONNECTION_FAILED;
    close(fd);
    return (CUresult)code; /* a code of the driver's, from the daemon */
}

/* The part that this process may use, in ppm; 0: all. Without a control daemon it is the process's own wish, on a GPU
 * whose description says that it is shared by MPS. */
static uint64_t share_ppm(uint32_t gpu)
{
    if (sm_percent_ppm || !sim_driver.machine->gpu[gpu].info.mps)
        return sm_percent_ppm;
    const char *wish = secure_getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    double percent = wish ? strtod(wish, NULL) : 0;
    return percent > 0 && percent < 100 ? (uint64_t)(percent * 10000) : 0;
}

/* SMs that this process may use of a GPU, which is also what the device says that it has. As the MPS documentation has
 * it: down to what the hardware keeps apart, which are SMs in pairs; one pair at least. */
uint32_t sim_usable_sms(uint32_t gpu)
{
    uint32_t sms = sim_sm_count(gpu);
    uint64_t ppm = share_ppm(gpu), pairs = sms * ppm / 1000000 / 2;
    if (!ppm || ppm >= 1000000 || sms < 2)
        return sms;
    return (uint32_t)(pairs ? pairs * 2 : 2); /* at most sms */
}

/* In exclusive-process mode a GPU has one process, or one MPS server with its clients. */
int sim_mps_may_use(uint32_t gpu)
{
    struct sim_machine *machine = sim_driver.machine;
    int may = 1;
    sim_machine_reap(machine);
    uint32_t mine = machine->processes[sim_driver.process].mps_client & SIM_MPS_SERVED;
    for (uint32_t row = 0; row < machine->process_high; row++) {
        const struct sim_process *other = &machine->processes[row];
        /* relaxed: a process that comes or goes at this moment is seen or not, as on a real card */
        if (row == sim_driver.process || !__atomic_load_n(&other->state, __ATOMIC_RELAXED) || !other->gpu[gpu].contexts)
            continue;
        may &= mine && (other->mps_client & SIM_MPS_SERVED);
    }
    return may;
}
