/* The machine file of the simulated GPUs: one fixed binary layout, mapped shared by every process.
 *
 * libcuda.so.1, libnvidia-ml.so.1 and the control tool all map the same file and use it only through
 * core/core.h. Nothing in the file is a pointer. All times are simulated nanoseconds since the machine
 * was created (system.created_wall_ns turns them into wall time). All sizes are bytes.
 *
 * Locks: `table_lock` guards process, group, stream, event-chunk, fault and notice tables; `gpu[i].lock`
 * guards that GPU's ledger, streams and schedule; `clock_lock` the virtual clock while it goes on. Order:
 * clock_lock, table_lock, then GPU locks by rising index. All are robust: who finds a dead owner repairs what derives from the process rows.
 */
#ifndef SIM_MACHINE_H
#define SIM_MACHINE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MAGIC UINT64_C(0x314d49535550475f) /* "_GPUSIM1" read as a little-endian word */
#define SIM_LAYOUT_VERSION 9u

#define SIM_MAX_GPUS 16u
#define SIM_MAX_LINKS 18u
#define SIM_MAX_PROCESSES 1024u
#define SIM_MAX_GROUPS 512u
#define SIM_MAX_STREAMS 4096u
#define SIM_MAX_SHARES 4096u /* processes that hold a memory of several, times memories */
#define SIM_MAX_MEMORY_LIMITS 512u
#define SIM_RING_ITEMS 1024u
#define SIM_EVENT_CHUNKS 2048u
#define SIM_EVENTS_PER_CHUNK 64u
#define SIM_MAX_FAULTS 128u
#define SIM_MAX_RULES 64u
#define SIM_TRACE_ITEMS 8192u
#define SIM_NOTICE_ITEMS 1024u
#define SIM_SAMPLE_ITEMS 512u
#define SIM_PROCESS_SAMPLE_ITEMS 4096u
#define SIM_MAX_WAITERS 512u
#define SIM_MAX_MIG_PROFILES 10u
#define SIM_MAX_INSTANCES 8u /* GPU instances, and compute instances, of one GPU: it has no more slices */
#define SIM_LANES (SIM_MAX_INSTANCES + 1u) /* parts of a GPU that compute beside each other: see struct sim_gpu */
#define SIM_ACCOUNTING_ITEMS 64u
#define SIM_THROTTLE_REASONS 9u
#define SIM_NONE UINT32_MAX /* "no row", "no slot", "reading not available" */

/* ---- what a machine is made of: filled by the creator, constant or changed only by sim_set_* ---- */

enum sim_clock_mode { SIM_CLOCK_REAL = 0, SIM_CLOCK_VIRTUAL = 1 };
enum sim_visibility { SIM_VISIBLE_ALL = 0, SIM_VISIBLE_SAME_PID_NAMESPACE = 1 };

struct sim_system_info {
    char profile[64];            /* name of the profile this machine was made from */
    char driver_version[80];     /* "580.65.06" */
    char nvml_version[80];       /* "13.580.65.06" */
    uint32_t cuda_version;       /* 13000 */
    uint32_t clock_mode;         /* enum sim_clock_mode */
    uint64_t clock_scale_ppm;    /* simulated ns per real ns, in millionths: 1000000 = real time */
    uint64_t window_ns;          /* utilisation window: 167 ms unless the profile says otherwise */
    uint64_t slice_ns;           /* time slice between processes without MPS: 2 ms */
    uint64_t launch_latency_ns;  /* added before a kernel starts on an idle stream; 0 by default */
    uint64_t allocation_granule; /* device allocations are charged rounded up to this; 512 */
    uint32_t process_visibility; /* enum sim_visibility */
    uint32_t padding;
    uint64_t created_wall_ns;    /* CLOCK_REALTIME at creation; set by sim_machine_create */
};

enum sim_link_remote { SIM_REMOTE_GPU = 0, SIM_REMOTE_IBMNPU = 1, SIM_REMOTE_SWITCH = 2, SIM_REMOTE_UNKNOWN = 255 }; /* NVML values */

struct sim_link {
    uint64_t replay_errors, recovery_errors, crc_errors;
    uint32_t present;      /* 0: this GPU has no such link */
    uint32_t active;       /* NVML link state */
    uint32_t version;      /* NVLink generation as NVML numbers it */
    uint32_t capabilities; /* bit n = NVML capability n */
    uint32_t remote_type;  /* enum sim_link_remote */
    uint32_t remote_link;
    uint32_t speed_mbps;
    uint32_t remote_pci_device_id;
    char remote_bus_id[32]; /* "00000000:18:00.0" */
};

/* Clock domains in NVML's numbering. */
enum sim_clock_domain { SIM_CLOCK_GRAPHICS = 0, SIM_CLOCK_SM = 1, SIM_CLOCK_MEMORY = 2, SIM_CLOCK_VIDEO = 3, SIM_CLOCK_DOMAINS = 4 };
#define SIM_THRESHOLDS 9u
#define SIM_AFFINITY_WORDS 16u

/* A way to cut a GPU instance out of a GPU of this model. Memory slices are numbered from 0; an instance
 * lies on `memory_slices` of them that follow each other. */
struct sim_mig_profile {
    char name[24];          /* "3g.40gb", "1g.10gb+me" */
    uint32_t id;            /* as nvidia-smi numbers it: 9 */
    uint32_t kind;          /* NVML's constant: 0 to 4 for 1, 2, 3, 4, 7 slices, 7 with media, 9 double memory */
    uint32_t compute_slices;
    uint32_t memory_slices;
    uint32_t starts;        /* bit n: may begin at memory slice n */
    uint32_t most;          /* instances of this profile at one time */
    uint32_t sm_count;
    uint32_t copy_engines, decoders, encoders, jpegs, optical_flows;
    uint64_t memory_bytes;
};

struct sim_gpu_info {
    char name[96];
    char uuid[48];           /* "GPU-…", lower case */
    uint8_t uuid_bytes[16];  /* the same, as cuDeviceGetUuid gives it; set by sim_machine_create from uuid */
    char serial[32];
    char board_part_number[32];
    char vbios_version[32];
    uint32_t minor;
    uint32_t brand;          /* NVML brand enum */
    uint32_t architecture;   /* NVML architecture enum: Turing 6, Ampere 7, Ada 8, Hopper 9, Blackwell 10 */
    uint32_t pci_domain, pci_bus, pci_device;
    uint32_t pci_device_id;    /* device << 16 | 0x10de */
    uint32_t pci_subsystem_id;
    uint32_t cc_major, cc_minor;
    uint32_t sm_count;
    uint32_t cuda_cores;
    uint32_t max_threads_per_sm;
    uint32_t max_blocks_per_sm;
    uint32_t registers_per_sm;
    uint32_t shared_bytes_per_sm;
    uint32_t shared_bytes_per_block_optin;
    uint32_t memory_bus_bits;
    uint64_t l2_bytes;
    uint64_t memory_total_bytes;    /* what NVML calls total */
    uint64_t memory_reserved_bytes; /* held by firmware and driver; never available to programs */
    uint64_t bar1_total_bytes;
    uint64_t context_bytes;         /* charged to a process for each context on this GPU */
    uint64_t host_to_device_bytes_per_s;
    uint64_t device_to_host_bytes_per_s;
    uint64_t device_to_device_bytes_per_s;
    uint32_t mps;                   /* non-zero: processes share the GPU; zero: they are time sliced */
    uint32_t clock_mhz[SIM_CLOCK_DOMAINS];
    uint32_t clock_max_mhz[SIM_CLOCK_DOMAINS];
    uint32_t clock_application_mhz[SIM_CLOCK_DOMAINS];
    uint32_t power_idle_mw, power_busy_mw; /* usage is between the two, by utilisation of the last window */
    uint32_t power_limit_mw, power_limit_min_mw, power_limit_max_mw, power_limit_default_mw;
    uint32_t temperature_idle_c, temperature_busy_c; /* likewise */
    uint32_t temperature_memory_c;                   /* SIM_NONE: not reported */
    uint32_t temperature_threshold_c[SIM_THRESHOLDS]; /* by NVML's threshold enum; SIM_NONE: not supported */
    uint32_t fan_percent;                             /* SIM_NONE: no fan */
    uint32_t pcie_gen, pcie_gen_max, pcie_width, pcie_width_max;
    int32_t numa_node;                                /* -1: none */
    uint64_t cpu_affinity[SIM_AFFINITY_WORDS];        /* bit n = CPU n */
    uint64_t memory_affinity;                         /* bit n = NUMA node n */
    uint32_t persistence_mode;
    uint32_t compute_mode;       /* NVML and CUDA agree: 0 default, 2 prohibited, 3 exclusive process */
    uint32_t display_active;
    uint32_t performance_state;
    uint64_t throttle_reasons;   /* NVML clocks-event-reasons bits */
    uint32_t ecc_supported, ecc_mode, ecc_pending_mode;
    uint32_t ecc_corrected_volatile, ecc_uncorrected_volatile, ecc_corrected_aggregate, ecc_uncorrected_aggregate;
    uint32_t sram_corrected_volatile, sram_uncorrected_volatile, sram_corrected_aggregate, sram_uncorrected_aggregate; /* the four above are of device memory */
    uint32_t sram_threshold_exceeded; /* so many that the GPU should be exchanged */
    uint32_t remapped_corrected, remapped_uncorrected, remap_pending, remap_failed;
    uint32_t retired_single, retired_double, retire_pending; /* pages, before Ampere */
    uint32_t unrepairable;     /* memory that no spare row can mend */
    uint32_t recovery_action;  /* NVML: 0 none, 1 reset the GPU, 2 reboot, 3 drain peers, 4 drain and reset */
    uint32_t mig_supported, mig_mode, mig_pending_mode;
    uint32_t mig_memory_slices; /* 8, or 4 on small models; 0: no MIG */
    uint32_t mig_profile_count;
    struct sim_mig_profile mig_profiles[SIM_MAX_MIG_PROFILES];
    uint32_t accounting_mode;
    uint32_t pcie_replays;
    uint32_t sample_ahead_ms;    /* of the stamps of utilisation samples to wall time: a driver's clock of its own */
    uint32_t fabric_state;       /* NVML: 0 not supported, 1 not started, 2 in progress, 3 completed */
    uint32_t fabric_status;
    uint32_t fabric_clique_id;
    uint32_t fabric_health;      /* NVML's mask; 0: made from the state */
    uint8_t fabric_cluster_uuid[16];
    uint32_t module_id;
    uint32_t link_count;         /* links this model has; the rest of links[] is absent */
    struct sim_link links[SIM_MAX_LINKS];
};

#define SIM_P2P_CAPABILITIES 5u /* NVML: read, write, nvlink, atomics, prop */
struct sim_topology {
    uint8_t ancestor[SIM_MAX_GPUS][SIM_MAX_GPUS]; /* NVML levels: 0, 10, 20, 30, 40, 50 */
    uint8_t p2p_status[SIM_P2P_CAPABILITIES][SIM_MAX_GPUS][SIM_MAX_GPUS]; /* NVML P2P status: 0 is OK */
};

/* How long a kernel takes: the first rule whose glob matches the name wins. A kernel called sim_us<N>
 * takes N microseconds whatever the rules say. Cost = ns + ns_per_block * blocks. */
struct sim_kernel_rule {
    char match[96];
    uint64_t ns;
    uint64_t ns_per_block;
};

/* ---- faults: one vocabulary for both libraries ---- */

enum sim_fault_action {
    SIM_FAULT_NONE = 0,
    SIM_FAULT_RETURN = 1,    /* the call returns code `value` and does nothing */
    SIM_FAULT_ZERO = 2,      /* the call succeeds and gives zero */
    SIM_FAULT_VALUE = 3,     /* the call succeeds and gives `value` */
    SIM_FAULT_SENTINEL = 4,  /* the call succeeds and gives the type's "no value" (2^63-1, or all ones) */
    SIM_FAULT_STALE = 5,     /* the call succeeds and gives the first value it gave while this fault was on */
    SIM_FAULT_GARBAGE = 6,   /* the call succeeds and gives unprintable text or absurd numbers */
    SIM_FAULT_DELAY = 7,     /* the call takes `value` ns longer, then goes on as usual */
    SIM_FAULT_HANG = 8,      /* the call does not return for `value` ns (0: until the fault is cleared) */
    SIM_FAULT_HANG_LOCK = 9, /* likewise, and every later call of that library hangs with it */
    SIM_FAULT_MISSING = 10,  /* the symbol is answered as not found */
    SIM_FAULT_XID = 11,      /* device: an Xid `value` is reported once */
    SIM_FAULT_LOST = 12,     /* device: lost until cleared; `value` is the Xid reported (0: none) */
    SIM_FAULT_VANISH = 13,   /* device: not enumerated any more */
    SIM_FAULT_SET = 14,      /* device: the reading named in `call` (see sim_reading_names) is `value` */
    SIM_FAULT_RESET = 15,    /* device: reset once */
    SIM_FAULT_RENUMBER = 16, /* device: enumerated at index `value` by who initialises from then on */
    SIM_FAULT_DRIVER = 17,   /* machine: the driver's version is what stands in `call`; older libraries no longer fit */
};

struct sim_fault {
    uint32_t id;           /* given by sim_fault_add; 0: the row is free */
    uint32_t action;       /* enum sim_fault_action */
    int32_t gpu;           /* -1: any */
    int32_t pid;           /* 0: any process */
    char call[80];         /* glob over the exported symbol's name; reading or version for the faults that say so */
    int64_t value;
    uint64_t at_ns;        /* not before this time */
    uint64_t until_ns;     /* not from this time on; 0: no end */
    uint64_t every;        /* only each n-th matching call; 0 and 1: each */
    uint64_t count;        /* at most this many hits; 0: no bound */
    uint64_t seen, hits;   /* kept by the simulator */
    uint32_t applied;      /* device faults: done */
    uint32_t stale_valid;
    int64_t stale_value;
};

/* ---- rows that live ---- */

struct sim_gpu_usage {      /* what one process, or one group, does on one GPU */
    uint64_t bytes;         /* held now, contexts included */
    uint64_t peak_bytes;    /* the most ever held at one time, exact: updated under the GPU's lock */
    uint64_t context_bytes; /* part of bytes that is context overhead */
    uint64_t queued_ns;     /* time with anything in one of its streams, under way or waiting: never below busy_ns */
    uint64_t busy_ns;       /* time with at least one of its kernels resident */
    uint64_t sm_ns;         /* integral of the share of SMs in use: occupancy, never utilisation */
    uint64_t launches;      /* kernels started */
    uint64_t copied_bytes;
    uint32_t contexts;
    uint32_t padding;
};

struct sim_process {
    uint32_t state;           /* 0 free, 1 alive */
    int32_t pid;              /* in its own PID namespace */
    uint64_t start_time;      /* field 22 of /proc/PID/stat: boot ticks */
    uint64_t pid_namespace;   /* inode */
    uint64_t group_key;
    uint32_t group;           /* row in groups[] */
    uint32_t generation;      /* grows with each new owner of the row */
    uint64_t registered_ns;
    uint32_t mps_client;      /* non-zero: on a GPU that is shared; SIM_MPS_SERVED: through a control daemon */
    uint32_t stream_count;
    char name[128];           /* from /proc/self/cmdline, as nvmlSystemGetProcessName would give it */
    uint32_t compute_instance[SIM_MAX_GPUS]; /* row in that GPU's compute[]; SIM_NONE: the whole GPU */
    uint32_t checkpoint_state; /* as CUDA numbers them: 0 running, 1 locked, 2 checkpointed, 3 failed */
    uint32_t checkpoint_room;
    uint64_t frozen_bytes[SIM_MAX_GPUS]; /* of a checkpointed process: what it holds on the host instead */
    uint64_t mps_memory_limit[SIM_MAX_GPUS]; /* bytes that the process may hold; 0: not limited */
    uint16_t memory_limit[SIM_MAX_GPUS]; /* row in memory_limits[] that counts for it, plus one; 0: none */
    struct sim_gpu_usage gpu[SIM_MAX_GPUS];
};
#define SIM_MPS_SERVED 2u /* a bit of mps_client: connected to an MPS server, or one itself */

struct sim_group {
    uint64_t key;             /* 0: free row */
    uint32_t processes;       /* alive members; a row with none is kept until its place is needed */
    uint32_t padding;
    char name[64];            /* SIM_GROUP, or what the key was derived from */
    uint64_t last_used_ns;
    struct sim_gpu_usage gpu[SIM_MAX_GPUS];
};

struct sim_memory_limit {     /* of a control group; see memory_limit.c */
    char group[488];          /* full path of its directory; "": free row */
    uint64_t inode;           /* of that directory: one of the same name that was made later is another */
    uint32_t set;             /* bit n: limited on GPU n */
    uint32_t padding;
    uint64_t soft_bytes[SIM_MAX_GPUS], hard_bytes[SIM_MAX_GPUS];
};

struct sim_share {            /* one process that holds a memory of several; see share.c */
    uint64_t key;             /* inode of the file that the bytes are; 0: free row */
    uint64_t bytes;
    uint32_t gpu, process;    /* rows */
    uint32_t pays;            /* non-zero: the bytes are on this process's account */
    uint32_t references;      /* times that the process holds it */
};

enum sim_item_kind {
    SIM_ITEM_KERNEL = 1,
    SIM_ITEM_COPY = 2,        /* engine in `a`: enum sim_engine */
    SIM_ITEM_EVENT_RECORD = 3, /* event in `a`, sequence in `b` */
    SIM_ITEM_EVENT_WAIT = 4,
    SIM_ITEM_HOST = 5,        /* waits for the owner to call a function; `a` is the owner's cookie */
    SIM_ITEM_RELEASE = 6,     /* `bytes` go back to the ledger when the stream gets here */
    SIM_ITEM_DELAY = 7,       /* takes `work` without using the GPU */
    SIM_ITEM_STREAM_WAIT = 8, /* until stream `a` of the same GPU, in its generation `bytes`, has done its items before `b` */
};
enum sim_engine { SIM_ENGINE_H2D = 0, SIM_ENGINE_D2H = 1, SIM_ENGINE_D2D = 2, SIM_ENGINES = 3 };

struct sim_item {
    uint32_t kind;
    uint32_t demand_ppm;  /* share of the SMs that a kernel wants, 1 to 1000000 */
    uint64_t work;        /* ns left at full rate, times SIM_WORK_SCALE */
    uint64_t a, b;
    uint64_t bytes;
    uint64_t enqueued_ns;
    uint32_t started;
    uint32_t padding;
    uint64_t total_work;  /* `work` as it was when pushed */
};
#define SIM_WORK_SCALE 1024u /* fractions of a ns, so that shared progress rounds to nothing visible */

struct sim_stream {
    uint32_t state;       /* 0 free, 1 in use */
    uint32_t process;     /* row of the owner */
    uint32_t process_generation;
    uint32_t gpu;
    uint32_t flags;       /* CUDA stream flags */
    int32_t priority;
    uint32_t next_active, previous_active; /* the GPU's list of streams with work */
    uint32_t active;
    uint32_t wake;        /* futex word: moves when the stream gets empty or room appears */
    uint64_t head, tail;  /* free-running; items are [head, tail) modulo SIM_RING_ITEMS */
    uint64_t pushed_work; /* work ever enqueued, and the part of it done: the difference is the least */
    uint64_t done_work;   /* time that the stream still needs */
    uint64_t generation;  /* grows with each new owner of the row */
    uint32_t lane;        /* 0: the whole GPU; n + 1: its compute instance n */
    uint32_t padding;
    uint64_t spare[2];
};

struct sim_event {
    uint64_t recorded;    /* sequence of the last record that was enqueued */
    uint64_t done;        /* sequence of the last record that completed */
    uint64_t time_ns;     /* when that was */
    uint32_t gpu;         /* of the last record */
    uint32_t stream;
};
struct sim_event_chunk {
    uint32_t process;     /* owner's row, SIM_NONE when free */
    uint32_t generation;
    uint64_t used;        /* bit n: event n of the chunk is in use */
};

struct sim_sample {         /* one full window of one GPU */
    uint64_t end_ns;
    uint64_t busy_ns;
    uint64_t memory_used_bytes;
    uint64_t sm_ns;
    uint64_t copy_ns;
};
struct sim_process_sample { /* one process in one full window: only where it was busy or held memory */
    uint64_t end_ns;
    uint64_t busy_ns;
    uint64_t bytes;
    uint64_t sm_ns;
    int32_t pid;
    uint32_t process;       /* row */
    uint64_t pid_namespace;
};

/* A part of the GPU's memory with some of its SMs. Its place in gpu.instances is its row. */
struct sim_gpu_instance {
    uint32_t state;          /* 0 free, 1 there */
    uint32_t id;             /* NVML's: follows from the placement */
    uint32_t profile;        /* place in info.mig_profiles */
    uint32_t start;          /* first memory slice */
    uint64_t used_bytes;     /* sum of its processes' bytes */
    uint64_t busy_ns, sm_ns; /* as the GPU's own, of its kernels; sm_ns as a share of its own SMs */
};

/* What a program runs on: some or all compute slices of a GPU instance, with all of that one's memory.
 * Its place in gpu.compute is its row, and NVML's index of the MIG device. */
struct sim_compute_instance {
    uint32_t state;
    uint32_t instance;       /* row of its GPU instance */
    uint32_t id;             /* NVML's, within the GPU instance */
    uint32_t kind;           /* NVML's constant: 0 to 4 for 1, 2, 3, 4, 7 slices */
    uint32_t start, slices;  /* compute slices within the GPU instance */
    uint32_t sm_count;
    uint32_t padding;
    char uuid[48];           /* "MIG-…", the same each time for the same GPU and ids */
    uint8_t uuid_bytes[16];
};

struct sim_accounting {      /* a process that ended while accounting was on */
    int32_t pid;
    uint32_t padding;
    uint64_t started_ns, ended_ns;
    uint64_t busy_ns;
    uint64_t peak_bytes;
    uint64_t pid_namespace;
};

struct sim_gpu {
    pthread_mutex_t lock;
    uint8_t lock_room[64 - sizeof(pthread_mutex_t)];
    struct sim_gpu_info info;
    uint32_t lost;             /* non-zero: calls fail as for a GPU fallen off the bus */
    uint32_t vanished;
    uint32_t first_active;     /* streams with work */
    uint32_t active_count;
    uint32_t resets;
    uint32_t wake;             /* futex word: moves when something finished that others may wait for */
    uint64_t now_ns;           /* the schedule is worked out up to here */
    uint64_t used_bytes;       /* sum of the processes' bytes */
    uint64_t peak_bytes;
    uint64_t busy_ns;          /* time with at least one kernel resident */
    uint64_t sm_ns;
    uint64_t copy_ns;          /* time with at least one copy engine at work */
    uint64_t launches;
    uint64_t slice_owner[SIM_LANES]; /* sharing unit that has the lane: see schedule.c; 0: none */
    uint64_t slice_end_ns[SIM_LANES];
    uint64_t engine_bytes[3];  /* bytes copied so far, by enum sim_engine */
    uint64_t window_engine_base[3], window_engine_bytes[3]; /* at window_start_ns; in the last full window */
    uint64_t peer_in_bytes, peer_out_bytes; /* over NVLink, from and to other GPUs */
    uint64_t throttled_ns[SIM_THROTTLE_REASONS]; /* time with bit n of info.throttle_reasons set, in full windows */
    uint64_t window_start_ns;
    uint64_t window_busy_base, window_sm_base, window_copy_base; /* integrals at window_start_ns */
    uint64_t energy_uj;
    uint64_t energy_at_ns;
    uint64_t sample_next;         /* free-running index of the next sample to be written */
    uint64_t process_sample_next;
    uint64_t process_window_base[SIM_MAX_PROCESSES]; /* busy_ns of each process at window_start_ns */
    uint64_t process_window_sm_base[SIM_MAX_PROCESSES];
    struct sim_gpu_instance instances[SIM_MAX_INSTANCES];
    struct sim_compute_instance compute[SIM_MAX_INSTANCES];
    uint64_t accounting_next;     /* free-running */
    struct sim_accounting accounting[SIM_ACCOUNTING_ITEMS];
    struct sim_sample samples[SIM_SAMPLE_ITEMS];
    struct sim_process_sample process_samples[SIM_PROCESS_SAMPLE_ITEMS];
};

enum sim_notice_kind { SIM_NOTICE_XID = 1, SIM_NOTICE_ECC_SINGLE = 2, SIM_NOTICE_ECC_DOUBLE = 3, SIM_NOTICE_MIG = 4, SIM_NOTICE_CLOCK = 5, SIM_NOTICE_LOST = 6, SIM_NOTICE_VANISHED = 7, SIM_NOTICE_RESET = 8, SIM_NOTICE_RECOVERY = 9 };
struct sim_notice {
    uint64_t sequence;  /* 1, 2, …; the ring keeps the last SIM_NOTICE_ITEMS */
    uint64_t time_ns;
    uint32_t gpu;
    uint32_t kind;      /* enum sim_notice_kind */
    uint64_t value;     /* Xid number, ECC count, recovery action */
    uint32_t gpu_instance, compute_instance; /* NVML's ids; SIM_NONE: the whole GPU */
};

struct sim_trace {
    uint64_t sequence;
    uint64_t time_ns;
    int32_t pid;
    int32_t result;
    char call[48];
};

struct sim_waiter {      /* a thread that waits on the virtual clock */
    int32_t thread;      /* kernel thread id, 0: free; the futex word that it sleeps on: it goes on when this is 0 */
    uint32_t seen;       /* of the word at word_offset: once that moves, the thread wakes up and waits no more */
    uint64_t until_ns;   /* UINT64_MAX: for something that no clock brings */
    uint64_t word_offset; /* in the machine; 0: it waits for the clock alone; UINT64_MAX: a word that lies elsewhere */
    uint64_t order;      /* of those whose deadline is the same, who came first goes on first */
};

struct sim_machine {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t ready;           /* stored last by the creator: a half-written file never says 1 */
    uint64_t total_bytes;     /* sizeof(struct sim_machine) */
    uint32_t gpu_count;
    uint32_t rule_count;
    struct sim_system_info system;
    struct sim_topology topology;
    uint64_t clock_origin_ns; /* CLOCK_MONOTONIC at creation */
    uint64_t virtual_now_ns;
    uint32_t clock_wake;      /* futex word of the virtual clock */
    uint32_t clock_sleepers;  /* threads that sleep on clock_wake itself */
    uint64_t run_until_ns;    /* where sim_machine_run_until is to come to; 0: none is under way */
    uint32_t run_participants; /* that have to wait before time goes on */
    uint32_t run_wake;        /* futex word: moves when the run is over */
    uint32_t waiter_high;     /* rows of waiters[] from here on were never used */
    uint32_t waiter_room;
    uint64_t waits;           /* how often somebody came to wait */
    uint32_t faults_on;       /* number of rows in use: the one word that the hot path looks at */
    uint32_t next_fault_id;
    uint64_t next_device_fault_ns; /* when the next timed device fault is due; UINT64_MAX: none */
    uint32_t tracing;         /* non-zero: calls are written to the trace ring */
    uint32_t owner_deaths;    /* times a dead lock owner was found and repaired */
    uint64_t trace_next;
    uint64_t notice_next;     /* sequence of the last notice */
    uint32_t notice_wake;     /* futex word */
    uint32_t reaped;          /* dead processes cleaned up */
    uint64_t next_reap_ns;    /* when the next look for dead processes is due */
    uint32_t process_high;    /* rows from here on were never used: bounds the scans */
    uint32_t stream_high;
    uint32_t share_high;
    uint32_t memory_limit_high; /* likewise; 0: no group was ever limited */
    uint32_t lock_hung; /* id of the SIM_FAULT_HANG_LOCK that is being served */
    uint32_t driver_changes;  /* grows when system.driver_version changes; libraries loaded before no longer fit */
    uint64_t lock_hung_until_ns; /* when that ends, whether the process that hangs still lives or not; UINT64_MAX: when it is cleared */
    uint32_t enumeration[SIM_MAX_GPUS]; /* rows of gpu[] in the order in which they are enumerated */
    pthread_mutex_t table_lock;
    uint8_t table_lock_room[64 - sizeof(pthread_mutex_t)];
    pthread_mutex_t clock_lock; /* of the virtual clock */
    uint8_t clock_lock_room[64 - sizeof(pthread_mutex_t)];
    struct sim_kernel_rule rules[SIM_MAX_RULES];
    struct sim_fault faults[SIM_MAX_FAULTS];
    struct sim_waiter waiters[SIM_MAX_WAITERS];
    struct sim_process processes[SIM_MAX_PROCESSES];
    struct sim_group groups[SIM_MAX_GROUPS];
    struct sim_share shares[SIM_MAX_SHARES];
    struct sim_memory_limit memory_limits[SIM_MAX_MEMORY_LIMITS];
    struct sim_event_chunk event_chunks[SIM_EVENT_CHUNKS];
    struct sim_event events[SIM_EVENT_CHUNKS * SIM_EVENTS_PER_CHUNK];
    struct sim_notice notices[SIM_NOTICE_ITEMS];
    struct sim_trace traces[SIM_TRACE_ITEMS];
    struct sim_gpu gpu[SIM_MAX_GPUS];
    struct sim_stream streams[SIM_MAX_STREAMS];
    struct sim_item rings[SIM_MAX_STREAMS][SIM_RING_ITEMS]; /* sparse: only rings in use take memory */
    uint64_t seal;            /* at the very end, and made from all that never changes: a file cut short or written over has another */
};

/* The layout is fixed: who changes a row must raise SIM_LAYOUT_VERSION and these figures. */
#if defined(__aarch64__)
_Static_assert(sizeof(pthread_mutex_t) == 48, "robust mutex of another libc: the file cannot be shared with it");
#endif
#if !defined(__aarch64__)
_Static_assert(sizeof(pthread_mutex_t) == 40, "robust mutex of another libc: the file cannot be shared with it");
#endif
_Static_assert(sizeof(struct sim_item) == 64, "item");
_Static_assert(sizeof(struct sim_gpu_usage) == 72, "usage");
_Static_assert(sizeof(struct sim_event) == 32, "event");
_Static_assert(sizeof(struct sim_stream) == 104, "stream");
_Static_assert(offsetof(struct sim_machine, system) == 32, "file header");

#endif
