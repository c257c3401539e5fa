/* What libcuda, libnvidia-ml, the control tool and the tests may do with a machine file.
 *
 * Every function is safe from many threads and processes at once. Whoever calls one first brings the
 * GPU concerned up to now: there are no worker threads. Functions that can fail return 0 or an
 * `enum sim_status`; sim_status_text gives the words.
 */
#ifndef SIM_CORE_H
#define SIM_CORE_H

#include "sim_machine.h"

enum sim_status {
    SIM_OK = 0,
    SIM_NO_PATH = 1,        /* SIM_MACHINE is not set */
    SIM_NO_FILE = 2,
    SIM_NOT_REGULAR = 3,
    SIM_WRONG_SIZE = 4,     /* truncated, grown, or of another build */
    SIM_WRONG_MAGIC = 5,
    SIM_WRONG_VERSION = 6,
    SIM_HALF_WRITTEN = 7,
    SIM_SYSTEM_ERROR = 8,   /* errno says which */
    SIM_EXISTS = 9,
    SIM_BAD_DESCRIPTION = 10,
    SIM_TABLE_FULL = 11,
    SIM_NO_MEMORY = 12,     /* the GPU's memory, not the host's */
    SIM_NOT_FOUND = 13,
    SIM_GPU_GONE = 14,      /* lost or vanished */
    SIM_IN_USE = 15,
    SIM_NO_PLACE = 16,      /* no slices left where an instance of this profile may lie */
    SIM_NOT_SUPPORTED = 17, /* no MIG, or MIG is off */
    SIM_DAMAGED = 18,
};
const char *sim_status_text(int status);

/* ---- making, finding and leaving a machine ---- */

struct sim_mig_request { /* a GPU instance that is there from the beginning */
    uint32_t wanted;     /* 0: none */
    uint32_t profile;    /* place in the GPU's mig_profiles */
    uint32_t start;      /* first memory slice; SIM_NONE: where it leaves the most room */
    uint32_t compute[SIM_MAX_INSTANCES]; /* slices of each of its compute instances; 0: no more */
};

struct sim_description {
    struct sim_system_info system; /* created_wall_ns is ignored */
    struct sim_topology topology;
    uint32_t gpu_count;            /* 1 to SIM_MAX_GPUS */
    uint32_t rule_count;
    uint32_t fault_count;
    uint32_t padding;
    struct sim_gpu_info gpus[SIM_MAX_GPUS];
    struct sim_kernel_rule rules[SIM_MAX_RULES];
    struct sim_fault faults[SIM_MAX_FAULTS];
    struct sim_mig_request instances[SIM_MAX_GPUS][SIM_MAX_INSTANCES];
};

/* Fills `description` with harmless defaults (no GPU, real clock, 2 ms slice, 167 ms window, granule 512). */
void sim_description_defaults(struct sim_description *description);
/* Makes `path` whole or not at all (mode 0666 less umask); SIM_EXISTS if it is there. */
int sim_machine_create(const char *path, const struct sim_description *description);
/* Never creates anything. On success *out is the mapping; same path, same process: counts as its own mapping. */
int sim_machine_attach(const char *path, struct sim_machine **out);
/* Attach to $SIM_MACHINE (secure_getenv). */
int sim_machine_attach_environment(struct sim_machine **out);
void sim_machine_detach(struct sim_machine *machine);
/* Checks every invariant of a running machine; writes one line per breach to `text` (always ended by
 * a zero byte) and returns their number. 0: sound. */
int sim_machine_check(struct sim_machine *machine, char *text, size_t size);

/* ---- clock ---- */

uint64_t sim_now(const struct sim_machine *machine);      /* simulated ns since creation */
uint64_t sim_wall_ns(const struct sim_machine *machine, uint64_t sim_ns); /* as CLOCK_REALTIME */
/* Waits until simulated time `until_ns` (UINT64_MAX: no end) or until *word is no longer `seen`; `word` may be NULL. */
void sim_wait(struct sim_machine *machine, uint64_t until_ns, const uint32_t *word, uint32_t seen);
/* Virtual clock: advances it by `ns`, brings all GPUs up to it and wakes who waited. */
void sim_machine_step(struct sim_machine *machine, uint64_t ns);
/* Sleeps on clock_wake, which moves with each step and each wake-up, while it is `seen`; of real time. */
void sim_clock_sleep(struct sim_machine *machine, uint32_t seen, uint64_t timeout_ns);
/* Virtual clock: threads waiting now, and the earliest time one of them waits for (UINT64_MAX: none). */
uint32_t sim_machine_waiting(struct sim_machine *machine, uint64_t *earliest_ns);
/* Virtual clock: goes from deadline to deadline until `until_ns`, each time after `participants` threads wait; of
 * those whose time has come one goes on at a time. Who is due at `until_ns` itself goes on with the next run or step.
 * Returns 0, or SIM_NOT_FOUND when for `real_timeout_ns` they did not all come to wait. One run at a time. */
int sim_machine_run_until(struct sim_machine *machine, uint64_t until_ns, uint32_t participants, uint64_t real_timeout_ns);

/* ---- processes ---- */

/* Registers the calling process (SIM_GROUP or its cgroup gives the group). *row is its place. */
int sim_process_register(struct sim_machine *machine, uint32_t *row);
/* Gives everything of the row back. */
void sim_process_unregister(struct sim_machine *machine, uint32_t row);
/* Cleans up after processes that are gone; returns how many there were. */
uint32_t sim_machine_reap(struct sim_machine *machine);
/* Key of a group of this name: what SIM_GROUP=name gives. */
uint64_t sim_group_key(const char *name);

/* ---- ledger ---- */

int sim_charge(struct sim_machine *machine, uint32_t gpu, uint32_t process, uint64_t bytes);
void sim_refund(struct sim_machine *machine, uint32_t gpu, uint32_t process, uint64_t bytes);
int sim_charge_context(struct sim_machine *machine, uint32_t gpu, uint32_t process);
void sim_refund_context(struct sim_machine *machine, uint32_t gpu, uint32_t process);
uint64_t sim_gpu_free_bytes(struct sim_machine *machine, uint32_t gpu);
/* Memory that others can hold too, known by a key. The process that was charged for it begins (again: no change). Who
 * joins is charged only where nobody holds it any more; *gpu becomes the one that the memory lies on. Who leaves gives
 * back what it was charged, or hands it to another one that holds the memory. To forget gives nothing back. */
int sim_share_own(struct sim_machine *machine, uint64_t key, uint32_t gpu, uint32_t process, uint64_t bytes);
int sim_share_join(struct sim_machine *machine, uint64_t key, uint32_t *gpu, uint32_t process, uint64_t bytes);
void sim_share_leave(struct sim_machine *machine, uint64_t key, uint32_t process);
void sim_share_forget(struct sim_machine *machine, uint64_t key, uint32_t process);
/* Bytes that an allocation of this size is charged: rounded up to system.allocation_granule. */
uint64_t sim_charged_size(const struct sim_machine *machine, uint64_t bytes);

/* ---- MIG ---- */

/* Rows of instances are places in machine->gpu[gpu].instances and .compute. SIM_IN_USE, SIM_NO_PLACE and
 * SIM_NOT_SUPPORTED say why something can't be; `start` SIM_NONE chooses the place that leaves the most room. */
int sim_mig_create(struct sim_machine *machine, uint32_t gpu, uint32_t profile, uint32_t start, uint32_t *instance);
int sim_mig_destroy(struct sim_machine *machine, uint32_t gpu, uint32_t instance); /* SIM_IN_USE: it has compute instances */
int sim_mig_create_compute(struct sim_machine *machine, uint32_t gpu, uint32_t instance, uint32_t slices, uint32_t start, uint32_t *compute);
int sim_mig_destroy_compute(struct sim_machine *machine, uint32_t gpu, uint32_t compute); /* SIM_IN_USE: a process runs on it */
/* Switches MIG on or off; off ends all instances. SIM_IN_USE: the mode is only pending, because processes use the GPU. */
int sim_mig_set_mode(struct sim_machine *machine, uint32_t gpu, uint32_t mode);
/* How many more instances of a profile fit now. */
uint32_t sim_mig_remaining(struct sim_machine *machine, uint32_t gpu, uint32_t profile);
uint32_t sim_mig_compute_remaining(struct sim_machine *machine, uint32_t gpu, uint32_t instance, uint32_t slices);
/* The SMs of a compute instance of so many slices of a GPU instance of this profile. */
uint32_t sim_mig_sm_count(const struct sim_gpu_info *info, uint32_t profile, uint32_t slices);

/* A place to run on, as CUDA and NVML number them: a whole GPU, or a compute instance of one with MIG on. */
struct sim_mig_device {
    uint32_t gpu;
    uint32_t compute;               /* row of the compute instance */
    uint32_t gpu_instance_id, compute_instance_id;
    uint32_t sm_count;
    uint32_t gpu_slices, compute_slices;
    uint64_t memory_bytes, used_bytes;
    char name[128];                 /* "NVIDIA H100 80GB HBM3 MIG 1g.10gb" */
    char uuid[48];
    uint8_t uuid_bytes[16];
    struct sim_mig_profile profile; /* of its GPU instance */
};
/* SIM_NOT_FOUND when there is no such compute instance. */
int sim_mig_device(struct sim_machine *machine, uint32_t gpu, uint32_t compute, struct sim_mig_device *out);
/* From now on the process's memory and kernels on this GPU are of this compute instance (SIM_NONE: of the whole
 * GPU). To be called before its first charge or stream there; SIM_NOT_FOUND when there is no such instance. */
int sim_process_use_instance(struct sim_machine *machine, uint32_t process, uint32_t gpu, uint32_t compute);
/* Bytes left for a process: of its GPU instance, or of the whole GPU. */
uint64_t sim_process_free_bytes(struct sim_machine *machine, uint32_t gpu, uint32_t process);

/* ---- work ---- */

int sim_stream_open(struct sim_machine *machine, uint32_t gpu, uint32_t process, uint32_t flags, int32_t priority, uint32_t *stream);
void sim_stream_close(struct sim_machine *machine, uint32_t stream);
/* Appends an item; waits while the ring is full. SIM_GPU_GONE when the GPU is lost. */
int sim_stream_push(struct sim_machine *machine, uint32_t stream, const struct sim_item *item);
/* What is pushed from now on waits for what `other`, a stream of the same GPU, has been given so far. */
int sim_stream_follow(struct sim_machine *machine, uint32_t stream, uint32_t other);
/* 1: all work done; 0: not yet. */
int sim_stream_idle(struct sim_machine *machine, uint32_t stream);
/* Waits until all work enqueued before the call is done. SIM_GPU_GONE as above. */
int sim_stream_wait(struct sim_machine *machine, uint32_t stream);
/* When the head of the stream is a host function whose turn has come: 1 and its cookie; else 0. */
int sim_stream_host_ready(struct sim_machine *machine, uint32_t stream, uint64_t *cookie);
void sim_stream_host_done(struct sim_machine *machine, uint32_t stream);
/* The futex word that moves whenever the stream makes progress others may wait for. */
const uint32_t *sim_stream_wake_word(struct sim_machine *machine, uint32_t stream);

int sim_event_open(struct sim_machine *machine, uint32_t process, uint32_t *event);
void sim_event_close(struct sim_machine *machine, uint32_t event);
/* 1 when record `sequence` of the event is done, with its time; GPUs are brought up to now first. */
int sim_event_done(struct sim_machine *machine, uint32_t event, uint64_t sequence, uint64_t *time_ns);
int sim_event_wait(struct sim_machine *machine, uint32_t event, uint64_t sequence);

struct sim_kernel_shape {
    uint64_t blocks;             /* grid x*y*z */
    uint32_t threads_per_block;
    uint32_t shared_bytes_per_block;
    uint32_t registers_per_thread;
    uint32_t sm_limit;           /* SMs the context may use; 0: all */
};
/* Time in ns of a kernel of this name and shape by the machine's rules. */
uint64_t sim_kernel_cost(const struct sim_machine *machine, const char *name, const struct sim_kernel_shape *shape);
int sim_kernel_changes(const char *name); /* what it costs now is not what it will cost */
/* Share of the GPU's SMs it asks for, in millionths. */
uint32_t sim_kernel_demand(const struct sim_machine *machine, uint32_t gpu, const struct sim_kernel_shape *shape);
/* Time in ns of a copy of so many bytes on an engine of a GPU. */
uint64_t sim_copy_cost(const struct sim_machine *machine, uint32_t gpu, enum sim_engine engine, uint64_t bytes);
/* Counts bytes that went from one GPU to another over NVLink. */
void sim_count_peer(struct sim_machine *machine, uint32_t from, uint32_t to, uint64_t bytes);
/* Brings one GPU, or all, up to now. */
void sim_gpu_advance(struct sim_machine *machine, uint32_t gpu);
void sim_machine_advance(struct sim_machine *machine);

/* ---- faults, notices, trace ---- */

struct sim_fault_hit {
    uint32_t action; /* SIM_FAULT_NONE: go on as usual. Delays and hangs have already been served. */
    uint32_t id;
    int64_t value;
};
/* To be asked at the start of each call: `call` is the exported symbol, gpu -1 where there is none.
 * Returns the action (0 in nearly every case). */
uint32_t sim_fault_check_slow(struct sim_machine *machine, const char *call, int32_t gpu, struct sim_fault_hit *hit);
static inline uint32_t sim_fault_check(struct sim_machine *machine, const char *call, int32_t gpu, struct sim_fault_hit *hit)
{
    /* relaxed: a fault that is being added needs no order with the caller's other reads */
    if (__builtin_expect(__atomic_load_n(&machine->faults_on, __ATOMIC_RELAXED) == 0, 1))
        return hit->action = SIM_FAULT_NONE;
    return sim_fault_check_slow(machine, call, gpu, hit);
}
/* For SIM_FAULT_STALE: the value to give, `fresh` being today's. */
int64_t sim_fault_stale(struct sim_machine *machine, uint32_t fault_id, int64_t fresh);
/* Adds a fault; times in it are absolute simulated ns. *id names it for sim_fault_clear. */
int sim_fault_add(struct sim_machine *machine, const struct sim_fault *fault, uint32_t *id);
int sim_fault_clear(struct sim_machine *machine, uint32_t id);
void sim_fault_clear_all(struct sim_machine *machine);

/* Reports an event (Xid, …) to whoever watches; returns its sequence number. */
uint64_t sim_notice_post(struct sim_machine *machine, uint32_t gpu, uint32_t kind, uint64_t value);
uint64_t sim_notice_post_instance(struct sim_machine *machine, uint32_t gpu, uint32_t kind, uint64_t value, uint32_t gpu_instance, uint32_t compute_instance);
/* Copies the first notice after `after` into *out and returns 1; 0 when there is none yet. A watcher that
 * fell behind the ring is taken to the oldest one kept. */
int sim_notice_next(struct sim_machine *machine, uint64_t after, struct sim_notice *out);
/* Waits for a notice after `after`, at most `timeout_ns` of real time; 1 when there is one. */
int sim_notice_wait(struct sim_machine *machine, uint64_t after, uint64_t timeout_ns, struct sim_notice *out);
uint64_t sim_notice_last(const struct sim_machine *machine);

void sim_gpu_lose(struct sim_machine *machine, uint32_t gpu, uint64_t xid); /* xid 0: none reported */
void sim_gpu_restore(struct sim_machine *machine, uint32_t gpu);            /* back, not reset */
void sim_gpu_reset(struct sim_machine *machine, uint32_t gpu);              /* back, integrals kept, ECC and faults cleared */
/* Names that SIM_FAULT_SET knows: fields of sim_gpu_info, and "link<n>.<field>"; NULL past the last. */
const char *sim_reading_name(uint32_t at);
/* The GPUs in the order in which programs meet them now, vanished ones left out; returns how many. */
uint32_t sim_enumerate(struct sim_machine *machine, uint32_t *rows); /* room for SIM_MAX_GPUS */
void sim_gpu_set_vanished(struct sim_machine *machine, uint32_t gpu, uint32_t vanished);
/* Replaces a GPU's readings (clocks, power, ECC…) under its lock. Identity fields must be the old ones. */
int sim_gpu_set_info(struct sim_machine *machine, uint32_t gpu, const struct sim_gpu_info *info);

void sim_trace_write(struct sim_machine *machine, const char *call, int32_t result);
static inline void sim_trace(struct sim_machine *machine, const char *call, int32_t result)
{
    if (__builtin_expect(__atomic_load_n(&machine->tracing, __ATOMIC_RELAXED) != 0, 0)) /* relaxed: a switch, no data */
        sim_trace_write(machine, call, result);
}

/* ---- consistent copies for readers: each brings the GPU up to now first ---- */

struct sim_gpu_reading {
    struct sim_gpu_info info;
    uint32_t lost, vanished;
    uint64_t now_ns;
    uint64_t used_bytes;       /* by processes, contexts included; without reserved */
    uint64_t peak_bytes;
    uint64_t free_bytes;       /* total - reserved - used */
    uint64_t busy_ns, sm_ns, copy_ns, launches;
    uint64_t engine_bytes[3];
    uint64_t window_engine_bytes[3]; /* in the last full window */
    uint64_t peer_in_bytes, peer_out_bytes;
    uint64_t throttled_ns[SIM_THROTTLE_REASONS];
    uint32_t utilization_percent;        /* of the last full window */
    uint32_t memory_utilization_percent; /* share of the last full window with a copy engine at work */
    uint32_t power_mw, temperature_c;
    uint64_t energy_mj;
    uint32_t process_count;
    uint32_t active_streams;
};
int sim_read_gpu(struct sim_machine *machine, uint32_t gpu, struct sim_gpu_reading *out);

struct sim_process_reading {
    uint32_t row, generation;
    int32_t pid;
    uint32_t mps_client;
    uint64_t start_time, pid_namespace, group_key;
    char name[128];
    struct sim_gpu_usage usage;
    uint64_t window_busy_ns;  /* in the last full window */
    uint64_t registered_ns;
    uint32_t gpu_instance_id, compute_instance_id; /* SIM_NONE: the whole GPU */
    uint32_t compute;         /* row of the compute instance; SIM_NONE as above */
    uint32_t padding;
};
/* Processes with a context or memory on the GPU (gpu SIM_NONE: all processes, usage zero).
 * Fills at most `room`; returns how many there are. Dead ones are reaped first. */
uint32_t sim_read_processes(struct sim_machine *machine, uint32_t gpu, struct sim_process_reading *out, uint32_t room);

struct sim_group_reading {
    uint64_t key;
    uint32_t processes;
    uint32_t padding;
    char name[64];
    struct sim_gpu_usage usage;
};
uint32_t sim_read_groups(struct sim_machine *machine, uint32_t gpu, struct sim_group_reading *out, uint32_t room);
/* Limits of control groups, by the full path of their directory: SIM_NOT_FOUND when there is no such group. Soft 0 and
 * hard UINT64_MAX are no limit. */
int sim_memory_limit_set(struct sim_machine *machine, uint32_t gpu, const char *group, uint64_t soft, uint64_t hard);
int sim_memory_limit_get(struct sim_machine *machine, uint32_t gpu, const char *group, uint64_t *soft, uint64_t *hard, uint64_t *held);
/* The calling process may have been moved into another group since; to be called without a lock. */
void sim_memory_limit_follow(struct sim_machine *machine, uint32_t process);
/* The limit that counts for a process and what is held under it; 0: none. */
int sim_memory_limited(const struct sim_machine *machine, uint32_t gpu, uint32_t process, uint64_t *hard, uint64_t *held);
/* What a process is told of its GPU's memory: no more than its limit. */
void sim_process_memory(struct sim_machine *machine, uint32_t gpu, uint32_t process, uint64_t *free_bytes, uint64_t *total_bytes);

/* Usage of the group of this name; SIM_NOT_FOUND when it never ran. */
int sim_read_group(struct sim_machine *machine, uint32_t gpu, const char *name, struct sim_group_reading *out);

/* Ended processes of a GPU that accounting recorded, newest first; returns how many were copied. */
uint32_t sim_read_accounting(struct sim_machine *machine, uint32_t gpu, struct sim_accounting *out, uint32_t room);
void sim_clear_accounting(struct sim_machine *machine, uint32_t gpu);

/* Samples whose window ended after `since_ns`, oldest first; returns how many were copied. */
uint32_t sim_read_samples(struct sim_machine *machine, uint32_t gpu, uint64_t since_ns, struct sim_sample *out, uint32_t room);
uint32_t sim_read_process_samples(struct sim_machine *machine, uint32_t gpu, uint64_t since_ns, struct sim_process_sample *out, uint32_t room);
uint32_t sim_read_trace(struct sim_machine *machine, uint64_t after, struct sim_trace *out, uint32_t room);
uint32_t sim_read_faults(struct sim_machine *machine, struct sim_fault *out, uint32_t room);
/* Does the caller see this process, by system.process_visibility? */
int sim_process_visible(const struct sim_machine *machine, uint64_t pid_namespace);

#endif
