/*
 * The limit files, ABI v1: the one contract between the daemon and the
 * processes of a Pod. Both the limiter (C) and the daemon (through cffi) are
 * built from this header and from nothing else.
 *
 * Two files per allocation, both created in full and filled in before anything
 * is told to start, never truncated, never recreated in place:
 *
 *   shm    256 KiB, 0644, written by the daemon only, mapped read-only by the
 *          Pod. What the Pod may have.
 *   usage    1 MiB, 0666, written by the Pod's processes. What they account.
 *          The daemon trusts none of it and reads it with pread.
 *
 * Both are sparse: a page that nobody wrote costs nothing.
 *
 * Both begin with struct hv_file_header, whose section table says where each
 * section lies. A later minor version adds sections, makes fields of reserved
 * words, and appends fields; nothing moves and no word gets another meaning. A
 * reader ignores section types that it does not know, does without those that a
 * file of an earlier version has not, and takes a word that is 0 as one that
 * nobody writes. Another major version is refused.
 *   1.1  the sections of coverage and of contexts; contracted, others_ppm, neighbours, brief_ns, laid_ns,
 *        left_ppm, settled_ppm, crowd_ns, relearned_at_ns, latest, turns_ns, priced_ns, learning_until_ns,
 *        HV_MESSAGE_REFUSED and HV_MESSAGE_NODES_LOST
 *
 * Units are in the names: bytes, ns (nanoseconds), ppm (parts per million; a
 * share of GPU time of 1 000 000 ppm is the whole device). Every time is
 * CLOCK_MONOTONIC, which is the same in all containers of a boot: no time
 * namespace may lie between daemon and Pod (the daemon checks).
 *
 * ---- Publishing limits (shm) ----
 * Two slots of struct hv_limits. hv_state.generation is 64 bits; its low bit
 * selects the slot in force. The daemon fills the other slot, then stores
 * generation + 1 with release order, then wakes futex waiters on its low half.
 * A reader loads the generation (acquire), copies the slot, issues an acquire
 * fence, loads the generation again and retries if it moved. A daemon that is
 * killed at any store leaves the old limits in force. The hot path compares
 * one word with its cached copy.
 *
 * ---- Accounting (usage) ----
 * For each device there is a total word and, in each process slot, a bytes
 * word and an in_flight word. An operation of n bytes by a process:
 *
 *   reserve: slot.in_flight += n;  total += n (only if it stays within the
 *            limit);  slot.bytes += n;  slot.in_flight -= n
 *   release: slot.in_flight += n;  slot.bytes -= n;  total -= n;
 *            slot.in_flight -= n
 *
 * At every point between two stores, and whoever is killed there,
 *   total  >=  sum of (bytes) over live slots,  and
 *   sum of (in_flight + bytes) over live slots is never less than what is held.
 * So the error is always on the high side: a grant is never made that takes
 * the Pod over its limit. The recount heals it: read total; for each live slot
 * add up in_flight, bytes and in_flight once more, in this order; replace total
 * by compare-and-swap. Both readings of in_flight are needed: of a release that
 * has not reached the total yet, the first may come too early and that of bytes
 * too late. An operation that both readings see counts twice, so a sum with any
 * in_flight in it may only lower the total. The
 * total carries a count of changes (HV_TOTAL_EPOCH_BITS) in its high bits,
 * which every change advances, so a recount that raced with any operation
 * fails and is tried again.
 *
 * ---- Contexts that were measured (usage) ----
 * A new context takes memory that nobody can measure yet: bytes and
 * context_bytes of its process's slot then hold a stand-in for it. When the
 * daemon has measured the process, and entered it in overhead_bytes, it gives
 * the stand-in up, so that an idle process is not charged for both: one word a
 * slot and device, in a section of its own, says how much of bytes stands for
 * nothing any more. The daemon sets it by one compare-and-swap and then
 * recounts; nothing else of a slot is the daemon's to change. The process
 * changes context_bytes only after it has opened the word, which takes what was
 * given up over into bytes and context_bytes. Who does not know the section
 * counts what was given up: more, never less. See hypervisor_contexts.h.
 *
 * ---- Process slots ----
 * 512 slots that never move. Their life is one word, hv_process_slot.state =
 * sequence << 8 | phase: FREE -> CLAIMING -> LIVE -> FREE with the sequence
 * advanced by each return to FREE. Each step is one compare-and-swap. The
 * claimer, not the reaper, clears the slot's words, between CLAIMING and LIVE.
 * A dead process's slot is returned by whoever sees that it is dead and wins
 * the compare-and-swap; the recount then gives its bytes back. The identity of
 * the owner is (PID-namespace inode, pid, start time). A process judges only
 * slots of its own PID namespace; all others are the daemon's.
 * In CLAIMING the owner word is the lock. The claimer reads it before it takes
 * the state to CLAIMING, then swaps it from what it read to itself, and writes
 * nothing else into the slot before that. A slot in CLAIMING whose owner word
 * names no live process is free for all to return, by first taking the owner
 * word over with the same swap: so two never write into one slot.
 */
#ifndef HYPERVISOR_LIMITS_H
#define HYPERVISOR_LIMITS_H

#include <stdint.h>

/* cffi reads what lies between the two marker lines: only constants, enums and
 * structs of fixed-width integers here. */
/* CFFI BEGIN */
#define HV_ABI_MAJOR 1
#define HV_ABI_MINOR 1
#define HV_MAX_DEVICES 16
#define HV_MAX_SECTIONS 16
#define HV_PROCESS_SLOTS 512
#define HV_SLOT_BITMAP_WORDS 8
#define HV_LEARNED_COSTS 1024
#define HV_MESSAGES 64
#define HV_MESSAGE_TEXT_BYTES 232
#define HV_DEVICE_UUID_BYTES 96
#define HV_ALLOCATION_ID_BYTES 64
#define HV_BOOT_ID_BYTES 40
#define HV_FUNCTION_NAME_BYTES 72
#define HV_SHM_FILE_BYTES 262144
#define HV_USAGE_FILE_BYTES 1048576
#define HV_SHARE_FULL_PPM 1000000
#define HV_TOTAL_EPOCH_BITS 20
#define HV_TOTAL_BYTES_BITS 44
#define HV_BORROWED_SHARE_BITS 20
#define HV_COVERAGE_WORDS 512

enum hv_section_type {
    HV_SECTION_END = 0,
    /* in shm */
    HV_SECTION_STATE = 1,   /* one struct hv_state */
    HV_SECTION_LIMITS = 2,  /* two struct hv_limits */
    HV_SECTION_CONTROL = 3, /* HV_MAX_DEVICES struct hv_device_control */
    /* in usage */
    HV_SECTION_DEVICES = 16,  /* HV_MAX_DEVICES struct hv_device_usage */
    HV_SECTION_OCCUPANCY = 17, /* one struct hv_slot_occupancy */
    HV_SECTION_SLOTS = 18,    /* HV_PROCESS_SLOTS struct hv_process_slot */
    HV_SECTION_COSTS = 19,    /* HV_LEARNED_COSTS struct hv_learned_cost */
    HV_SECTION_MESSAGES = 20, /* one struct hv_message_ring */
    HV_SECTION_COVERAGE = 21, /* HV_MAX_DEVICES struct hv_coverage; since 1.1 */
    HV_SECTION_CONTEXTS = 22, /* HV_PROCESS_SLOTS struct hv_slot_contexts; since 1.1 */
};

enum hv_isolation_mode {
    HV_ISOLATION_NONE = 0,
    HV_ISOLATION_SHARED = 1,      /* whole devices; nothing is limited */
    HV_ISOLATION_SOFT = 2,        /* this library limits */
    HV_ISOLATION_HARD = 3,        /* the driver limits each process (MPS); this library the sum of VRAM */
    HV_ISOLATION_PARTITIONED = 4, /* a MIG instance */
};

enum hv_compute_policy {
    HV_POLICY_HARD_CAP = 0,
    HV_POLICY_WORK_CONSERVING = 1, /* may use a borrowed share until it expires */
};

enum hv_device_flags {
    HV_DEVICE_MIG = 1,                 /* uuid names a MIG instance */
    HV_DEVICE_CHARGE_COPIES = 2,       /* memset and device-to-device copies are charged */
    HV_DEVICE_MANAGED_UNCOUNTED = 4,   /* managed memory does not count (unified-memory parts) */
    HV_DEVICE_SCALE_UTILIZATION = 8,   /* NVML utilisation is shown as a share of the limit */
};

enum hv_slot_phase { HV_SLOT_FREE = 0, HV_SLOT_CLAIMING = 1, HV_SLOT_LIVE = 2 };

/* What a message in the ring is about; the text carries the details. */
enum hv_message_code {
    HV_MESSAGE_NONE = 0,
    HV_MESSAGE_DENIED = 1,           /* an allocation was refused at the limit */
    HV_MESSAGE_SLOTS_EXHAUSTED = 2,  /* cuInit failed: no free process slot */
    HV_MESSAGE_ABI_MISMATCH = 3,     /* a process was refused: the limits are of another version */
    HV_MESSAGE_UNKNOWN_POINTER = 4,  /* a free of memory that was never accounted */
    HV_MESSAGE_LEDGER_HEALED = 5,    /* a recount changed a total */
    HV_MESSAGE_EXPORT_TABLE = 6,     /* a private driver table was handed out */
    HV_MESSAGE_INTERNAL = 7,
    HV_MESSAGE_REFUSED = 8,          /* a process was refused: the limits are not in order, or not there in time */
    HV_MESSAGE_NODES_LOST = 9,       /* the driver could not begin: a device node may no longer be opened */
};

struct hv_section {
    uint32_t type;   /* enum hv_section_type; HV_SECTION_END ends the table */
    uint32_t stride; /* bytes of one element */
    uint64_t offset; /* from the start of the file, a multiple of 4096 */
    uint64_t length; /* bytes of the whole section */
};

struct hv_file_header {
    uint64_t magic;        /* HV_SHM_MAGIC or HV_USAGE_MAGIC; stored last */
    uint16_t abi_major;
    uint16_t abi_minor;
    uint32_t header_bytes; /* sizeof(struct hv_file_header) of the writer */
    uint64_t file_bytes;
    uint64_t created_at_ns;
    uint64_t node_epoch;   /* epoch of the daemon that created the file */
    uint32_t section_count;
    uint32_t reserved0;
    char allocation_id[HV_ALLOCATION_ID_BYTES]; /* NUL-terminated; the Pod UID for Pods */
    char boot_id[HV_BOOT_ID_BYTES];             /* NUL-terminated */
    struct hv_section sections[HV_MAX_SECTIONS];
};

/* One page: the words of the whole file that change. */
struct hv_state {
    uint64_t generation;   /* low bit: slot in force; its low 32 bits are a futex word */
    uint64_t reserved0[7];
    uint64_t heartbeat_ns; /* the daemon's last sign of life */
    uint64_t daemon_pid;   /* in the host's PID namespace; for people */
    uint32_t armed;        /* 1: the limits are complete and may be relied on */
    uint32_t revoked;      /* 1: last limits hold, new allocations are refused */
    uint64_t reserved1[5];
};

/* One device of the Pod, as granted. 256 bytes. */
struct hv_device_limit {
    char uuid[HV_DEVICE_UUID_BYTES]; /* as NVML spells it, GPU-... or MIG-...; NUL-terminated */
    uint64_t vram_limit_bytes;       /* UINT64_MAX: the card is the limit */
    uint64_t vram_request_bytes;
    uint32_t limit_share_ppm;        /* of GPU time; HV_SHARE_FULL_PPM: not limited */
    uint32_t request_share_ppm;      /* guaranteed share */
    uint32_t weight;                 /* among borrowers: low 1, medium 2, high 3, critical 4 */
    uint32_t policy;                 /* enum hv_compute_policy */
    uint64_t burst_ns;               /* GPU time that may be used ahead of the clock */
    uint64_t debt_limit_ns;          /* most GPU time that is carried as debt */
    uint32_t flags;                  /* enum hv_device_flags */
    uint32_t host_index;             /* for people and metrics; never used as identity */
    uint64_t reserved0[13];
};

struct hv_limits {
    uint32_t device_count;
    uint32_t isolation_mode;          /* enum hv_isolation_mode */
    uint64_t host_memory_limit_bytes; /* pinned host memory; UINT64_MAX: no quota */
    uint64_t updated_at_ns;
    uint64_t revision;                /* of the allocation in the daemon's state */
    uint64_t reserved0[4];
    struct hv_device_limit devices[HV_MAX_DEVICES];
};

/* What the daemon's control loop writes, one word at a time; same index as
 * hv_limits.devices. 128 bytes. */
struct hv_device_control {
    uint64_t correction_ppm;     /* learned costs are multiplied by this; 0 or HV_SHARE_FULL_PPM: as they are */
    uint64_t correction_at_ns;   /* of the last reading it was compared with, whether or not that moved it; twice a second */
    uint64_t borrowed;           /* low HV_BORROWED_SHARE_BITS: ppm on top of the limit; above: expiry in ms */
    uint64_t overhead_bytes;     /* contexts and modules of the whole Pod; counts against the limit */
    uint64_t context_bytes;      /* of one new context, reserved until it is measured */
    uint64_t overhead_at_ns;
    uint64_t measured_busy_ns;   /* GPU time that NVML attributes to the Pod, ever increasing */
    uint64_t measured_at_ns;
    uint32_t freeze;             /* futex word; 1: launches wait */
    uint32_t reserved0;
    uint64_t contracted;         /* packed like borrowed: the share in force instead of a higher limit; 0: none */
    uint64_t others_ppm;         /* turns that others have on the device for one of a process of the Pod */
    uint64_t neighbours;         /* packed like borrowed: processes that are not of the Pod and were at work in the last window */
    uint64_t left_ppm;           /* what turns left of long launches, as they were told, is to be multiplied by this; 0: not known */
    uint64_t settled_ppm;        /* what to take for correction_ppm once nobody corrects it any more; 0: that itself */
    uint64_t reserved1[2];
};

/* Per device, shared by all processes of the Pod. Each line has its own
 * reason to be written, so each is a cache line. 256 bytes. */
struct hv_device_usage {
    uint64_t total;          /* epoch << HV_TOTAL_BYTES_BITS | reserved bytes */
    uint64_t peak_bytes;
    uint64_t line0[6];
    uint64_t bucket_ns;      /* theoretical arrival time of the next charge (GCRA) */
    uint32_t wake;           /* futex word for waiters, advanced when a charge is given back */
    uint32_t waiters;
    uint64_t bucket_share_ppm; /* share that bucket_ns is scaled to; 0: none yet */
    uint64_t debt_ns;        /* GPU time that was used beyond its charges and is still to be paid */
    uint64_t retired0;       /* processes of 1.0 write the moment here up to which they have settled; nobody else uses it */
    uint64_t returned_ns;    /* wall time of charges that were given back because the work took less; ever increasing */
    uint64_t priced_ns;      /* the same of those given back because others turned out to have turns; ever increasing */
    uint64_t place_ns;       /* GPU time that processes take with a place in the bucket, in the mean of the one with the longest ones */
    uint64_t host_bytes;     /* pinned host memory, same protocol as total */
    uint64_t line2[7];
    uint64_t charged_ns;     /* GPU time charged since the file was made */
    uint64_t brief_ns;       /* of that, all but long launches: those are in hv_coverage. 0: nobody tells */
    uint64_t laid_ns;        /* laid down in hv_coverage since the file was made */
    uint64_t crowd_ns;       /* the same, each moment times the processes of the Pod that had work then */
    uint64_t relearned_at_ns; /* when work was last found to be other work than it was charged for, by any process */
    uint64_t latest[2];      /* of a long function, by the low bit of its entry in the table of costs: the entry's number << 52, mean own time of some launches << 28, sum over those since then << 4, how many those are; times in 16 us */
    uint64_t turns_ns;       /* of long launches what others' turns, as they were told, left to each process; the sum over all of them */
};

/* Which slots may be other than FREE; a hint that saves readers from touching
 * the pages of the rest. A bit is set before its slot is claimed. */
struct hv_slot_occupancy {
    uint64_t bits[HV_SLOT_BITMAP_WORDS];
};

/* Per process and device: one cache line. */
struct hv_slot_device {
    uint64_t bytes;
    uint64_t in_flight_bytes;
    uint64_t context_bytes;     /* part of bytes that stands for contexts not yet measured */
    uint64_t launches;
    uint64_t blocked_ns;
    uint64_t denials;
    uint64_t charged_ns;
    uint64_t unfinished_ns;     /* charged work that has not been seen to end */
};

struct hv_process_slot {
    uint64_t state;             /* sequence << 8 | enum hv_slot_phase */
    uint64_t owner;             /* PID-namespace inode << 32 | pid, as seen inside that namespace */
    uint64_t start_time;        /* field 22 of /proc/PID/stat, clock ticks since boot */
    uint64_t attached_at_ns;
    uint64_t last_launch_ns;
    uint64_t host_bytes;
    uint64_t host_in_flight_bytes;
    uint64_t host_pid;          /* 0, or as the daemon found it, for the Pod's own view of NVML's lists */
    struct hv_slot_device devices[HV_MAX_DEVICES];
};

/* Beside a process slot: what was given up of its stand-ins for contexts, by
 * device. hypervisor_contexts.h says what a word holds. */
struct hv_slot_contexts {
    uint64_t words[HV_MAX_DEVICES];
};

/* A learned cost: key 0 is free, an entry is claimed by compare-and-swap of
 * its key and never moves. 128 bytes. */
struct hv_learned_cost {
    uint64_t key;         /* hash of function identity, launch shape and device */
    uint64_t cost_ns;     /* GPU time of one launch */
    uint64_t samples;
    uint64_t launches;
    uint64_t updated_at_ns;
    uint32_t device;      /* index in hv_limits.devices */
    uint32_t kind;        /* 0 kernel, 1 graph, 2 memset or copy */
    uint64_t learning_until_ns; /* some process measures it for the first time; the others wait until then at most. Near UINT64_MAX: measured before anybody told how many turns others have */
    char name[HV_FUNCTION_NAME_BYTES]; /* may be cut; NUL-terminated */
};

/* Which moments of the recent past are accounted for as GPU time of the Pod on
 * one device, whichever of its processes told: a ring of bits, each a moment of
 * HV_COVERAGE_TICK_NS. A word holds the bits of HV_COVERAGE_TICKS_A_WORD ticks
 * in a row, and above them the number of the ring's round that they are of, so
 * that old bits count as none. Advanced by compare-and-swap. One page. */
struct hv_coverage {
    uint64_t words[HV_COVERAGE_WORDS];
};

struct hv_message {
    uint64_t sequence;    /* 0: never written; stored last, so that a reader can tell */
    uint64_t at_ns;
    uint32_t code;        /* enum hv_message_code */
    uint32_t pid;         /* as seen by the writer */
    char text[HV_MESSAGE_TEXT_BYTES];
};

struct hv_message_ring {
    uint64_t next;        /* sequence of the next message, from 1 */
    uint64_t reserved0[31];
    struct hv_message messages[HV_MESSAGES];
};
/* CFFI END */

#define HV_SHM_MAGIC UINT64_C(0x3154494d494c5648)   /* "HVLIMIT1" in memory order */
#define HV_USAGE_MAGIC UINT64_C(0x3145474153555648) /* "HVUSAGE1" in memory order */

#define HV_COVERAGE_TICK_NS UINT64_C(1000000)
#define HV_COVERAGE_TICKS_A_WORD 48

#define HV_TOTAL_BYTES_MASK ((UINT64_C(1) << HV_TOTAL_BYTES_BITS) - 1)
/* The bytes of a total word. */
static inline uint64_t hv_total_bytes(uint64_t total)
{
    return total & HV_TOTAL_BYTES_MASK;
}

/* The total with other bytes and the next epoch. */
static inline uint64_t hv_total_changed(uint64_t total, uint64_t bytes)
{
    uint64_t epoch = (total >> HV_TOTAL_BYTES_BITS) + 1; /* wraps: the shift below drops the carry */
    return epoch << HV_TOTAL_BYTES_BITS | bytes;
}

#define HV_BORROWED_SHARE_MASK ((UINT64_C(1) << HV_BORROWED_SHARE_BITS) - 1)

/* Where the sections of this version lie. Readers go by the section table;
 * the writer and the tests use these. */
#define HV_SHM_STATE_OFFSET 4096
#define HV_SHM_LIMITS_OFFSET 8192
#define HV_SHM_CONTROL_OFFSET 20480
#define HV_USAGE_DEVICES_OFFSET 4096
#define HV_USAGE_OCCUPANCY_OFFSET 8192
#define HV_USAGE_MESSAGES_OFFSET 12288
#define HV_USAGE_COSTS_OFFSET 32768
#define HV_USAGE_SLOTS_OFFSET 163840
#define HV_USAGE_COVERAGE_OFFSET 720896
#define HV_USAGE_CONTEXTS_OFFSET 786432

/* Names inside the directory of an allocation, and where a Pod finds them. */
#define HV_SHM_FILE_NAME "shm"
#define HV_USAGE_FILE_NAME "usage"
#define HV_CONTAINER_DIRECTORY "/run/tensor-fusion/shm"

#define HV_ASSERT_OFFSET(type, field, offset) \
    _Static_assert(__builtin_offsetof(struct type, field) == (offset), #type "." #field " moved")
#define HV_ASSERT_SIZE(type, bytes) \
    _Static_assert(sizeof(struct type) == (bytes), "struct " #type " changed its size")

HV_ASSERT_SIZE(hv_section, 24);
HV_ASSERT_OFFSET(hv_section, stride, 4);
HV_ASSERT_OFFSET(hv_section, offset, 8);
HV_ASSERT_OFFSET(hv_section, length, 16);

HV_ASSERT_OFFSET(hv_file_header, magic, 0);
HV_ASSERT_OFFSET(hv_file_header, abi_major, 8);
HV_ASSERT_OFFSET(hv_file_header, abi_minor, 10);
HV_ASSERT_OFFSET(hv_file_header, header_bytes, 12);
HV_ASSERT_OFFSET(hv_file_header, file_bytes, 16);
HV_ASSERT_OFFSET(hv_file_header, created_at_ns, 24);
HV_ASSERT_OFFSET(hv_file_header, node_epoch, 32);
HV_ASSERT_OFFSET(hv_file_header, section_count, 40);
HV_ASSERT_OFFSET(hv_file_header, allocation_id, 48);
HV_ASSERT_OFFSET(hv_file_header, boot_id, 112);
HV_ASSERT_OFFSET(hv_file_header, sections, 152);
HV_ASSERT_SIZE(hv_file_header, 536);

HV_ASSERT_OFFSET(hv_state, generation, 0);
HV_ASSERT_OFFSET(hv_state, heartbeat_ns, 64);
HV_ASSERT_OFFSET(hv_state, daemon_pid, 72);
HV_ASSERT_OFFSET(hv_state, armed, 80);
HV_ASSERT_OFFSET(hv_state, revoked, 84);
HV_ASSERT_SIZE(hv_state, 128);

HV_ASSERT_OFFSET(hv_device_limit, uuid, 0);
HV_ASSERT_OFFSET(hv_device_limit, vram_limit_bytes, 96);
HV_ASSERT_OFFSET(hv_device_limit, vram_request_bytes, 104);
HV_ASSERT_OFFSET(hv_device_limit, limit_share_ppm, 112);
HV_ASSERT_OFFSET(hv_device_limit, request_share_ppm, 116);
HV_ASSERT_OFFSET(hv_device_limit, weight, 120);
HV_ASSERT_OFFSET(hv_device_limit, policy, 124);
HV_ASSERT_OFFSET(hv_device_limit, burst_ns, 128);
HV_ASSERT_OFFSET(hv_device_limit, debt_limit_ns, 136);
HV_ASSERT_OFFSET(hv_device_limit, flags, 144);
HV_ASSERT_OFFSET(hv_device_limit, host_index, 148);
HV_ASSERT_SIZE(hv_device_limit, 256);

HV_ASSERT_OFFSET(hv_limits, device_count, 0);
HV_ASSERT_OFFSET(hv_limits, isolation_mode, 4);
HV_ASSERT_OFFSET(hv_limits, host_memory_limit_bytes, 8);
HV_ASSERT_OFFSET(hv_limits, updated_at_ns, 16);
HV_ASSERT_OFFSET(hv_limits, revision, 24);
HV_ASSERT_OFFSET(hv_limits, devices, 64);
HV_ASSERT_SIZE(hv_limits, 64 + HV_MAX_DEVICES * 256);

HV_ASSERT_OFFSET(hv_device_control, correction_ppm, 0);
HV_ASSERT_OFFSET(hv_device_control, correction_at_ns, 8);
HV_ASSERT_OFFSET(hv_device_control, borrowed, 16);
HV_ASSERT_OFFSET(hv_device_control, overhead_bytes, 24);
HV_ASSERT_OFFSET(hv_device_control, context_bytes, 32);
HV_ASSERT_OFFSET(hv_device_control, overhead_at_ns, 40);
HV_ASSERT_OFFSET(hv_device_control, measured_busy_ns, 48);
HV_ASSERT_OFFSET(hv_device_control, measured_at_ns, 56);
HV_ASSERT_OFFSET(hv_device_control, freeze, 64);
HV_ASSERT_OFFSET(hv_device_control, contracted, 72);
HV_ASSERT_OFFSET(hv_device_control, others_ppm, 80);
HV_ASSERT_OFFSET(hv_device_control, left_ppm, 96);
HV_ASSERT_OFFSET(hv_device_control, settled_ppm, 104);
HV_ASSERT_OFFSET(hv_device_control, neighbours, 88);
HV_ASSERT_SIZE(hv_device_control, 128);

HV_ASSERT_OFFSET(hv_device_usage, total, 0);
HV_ASSERT_OFFSET(hv_device_usage, peak_bytes, 8);
HV_ASSERT_OFFSET(hv_device_usage, bucket_ns, 64);
HV_ASSERT_OFFSET(hv_device_usage, wake, 72);
HV_ASSERT_OFFSET(hv_device_usage, waiters, 76);
HV_ASSERT_OFFSET(hv_device_usage, bucket_share_ppm, 80);
HV_ASSERT_OFFSET(hv_device_usage, debt_ns, 88);
HV_ASSERT_OFFSET(hv_device_usage, retired0, 96);
HV_ASSERT_OFFSET(hv_device_usage, returned_ns, 104);
HV_ASSERT_OFFSET(hv_device_usage, priced_ns, 112);
HV_ASSERT_OFFSET(hv_device_usage, host_bytes, 128);
HV_ASSERT_OFFSET(hv_device_usage, charged_ns, 192);
HV_ASSERT_OFFSET(hv_device_usage, brief_ns, 200);
HV_ASSERT_OFFSET(hv_device_usage, laid_ns, 208);
HV_ASSERT_OFFSET(hv_device_usage, crowd_ns, 216);
HV_ASSERT_OFFSET(hv_device_usage, relearned_at_ns, 224);
HV_ASSERT_OFFSET(hv_device_usage, turns_ns, 248);
HV_ASSERT_SIZE(hv_device_usage, 256);

HV_ASSERT_SIZE(hv_slot_occupancy, 64);

HV_ASSERT_OFFSET(hv_slot_device, bytes, 0);
HV_ASSERT_OFFSET(hv_slot_device, in_flight_bytes, 8);
HV_ASSERT_OFFSET(hv_slot_device, context_bytes, 16);
HV_ASSERT_OFFSET(hv_slot_device, launches, 24);
HV_ASSERT_OFFSET(hv_slot_device, blocked_ns, 32);
HV_ASSERT_OFFSET(hv_slot_device, denials, 40);
HV_ASSERT_OFFSET(hv_slot_device, charged_ns, 48);
HV_ASSERT_OFFSET(hv_slot_device, unfinished_ns, 56);
HV_ASSERT_SIZE(hv_slot_device, 64);

HV_ASSERT_OFFSET(hv_process_slot, state, 0);
HV_ASSERT_OFFSET(hv_process_slot, owner, 8);
HV_ASSERT_OFFSET(hv_process_slot, start_time, 16);
HV_ASSERT_OFFSET(hv_process_slot, attached_at_ns, 24);
HV_ASSERT_OFFSET(hv_process_slot, last_launch_ns, 32);
HV_ASSERT_OFFSET(hv_process_slot, host_bytes, 40);
HV_ASSERT_OFFSET(hv_process_slot, host_in_flight_bytes, 48);
HV_ASSERT_OFFSET(hv_process_slot, host_pid, 56);
HV_ASSERT_OFFSET(hv_process_slot, devices, 64);
HV_ASSERT_SIZE(hv_process_slot, 64 + HV_MAX_DEVICES * 64);

HV_ASSERT_OFFSET(hv_slot_contexts, words, 0);
HV_ASSERT_SIZE(hv_slot_contexts, HV_MAX_DEVICES * 8);

HV_ASSERT_OFFSET(hv_learned_cost, key, 0);
HV_ASSERT_OFFSET(hv_learned_cost, cost_ns, 8);
HV_ASSERT_OFFSET(hv_learned_cost, samples, 16);
HV_ASSERT_OFFSET(hv_learned_cost, launches, 24);
HV_ASSERT_OFFSET(hv_learned_cost, updated_at_ns, 32);
HV_ASSERT_OFFSET(hv_learned_cost, device, 40);
HV_ASSERT_OFFSET(hv_learned_cost, kind, 44);
HV_ASSERT_OFFSET(hv_learned_cost, learning_until_ns, 48);
HV_ASSERT_OFFSET(hv_learned_cost, name, 56);
HV_ASSERT_SIZE(hv_learned_cost, 128);

HV_ASSERT_OFFSET(hv_coverage, words, 0);
HV_ASSERT_SIZE(hv_coverage, HV_COVERAGE_WORDS * 8);

HV_ASSERT_OFFSET(hv_message, sequence, 0);
HV_ASSERT_OFFSET(hv_message, at_ns, 8);
HV_ASSERT_OFFSET(hv_message, code, 16);
HV_ASSERT_OFFSET(hv_message, pid, 20);
HV_ASSERT_OFFSET(hv_message, text, 24);
HV_ASSERT_SIZE(hv_message, 256);
HV_ASSERT_OFFSET(hv_message_ring, messages, 256);
HV_ASSERT_SIZE(hv_message_ring, 256 + HV_MESSAGES * 256);

_Static_assert(HV_SHM_STATE_OFFSET + sizeof(struct hv_state) <= HV_SHM_LIMITS_OFFSET, "state overlaps limits");
_Static_assert(HV_SHM_LIMITS_OFFSET + 2 * sizeof(struct hv_limits) <= HV_SHM_CONTROL_OFFSET, "limits overlap control");
_Static_assert(HV_SHM_CONTROL_OFFSET + HV_MAX_DEVICES * sizeof(struct hv_device_control) <= HV_SHM_FILE_BYTES, "shm is too small");
_Static_assert(HV_USAGE_DEVICES_OFFSET + HV_MAX_DEVICES * sizeof(struct hv_device_usage) <= HV_USAGE_OCCUPANCY_OFFSET, "devices overlap occupancy");
_Static_assert(HV_USAGE_MESSAGES_OFFSET + sizeof(struct hv_message_ring) <= HV_USAGE_COSTS_OFFSET, "messages overlap costs");
_Static_assert(HV_USAGE_COSTS_OFFSET + HV_LEARNED_COSTS * sizeof(struct hv_learned_cost) <= HV_USAGE_SLOTS_OFFSET, "costs overlap slots");
_Static_assert(HV_USAGE_SLOTS_OFFSET + HV_PROCESS_SLOTS * sizeof(struct hv_process_slot) <= HV_USAGE_COVERAGE_OFFSET, "slots overlap coverage");
_Static_assert(HV_USAGE_COVERAGE_OFFSET + HV_MAX_DEVICES * sizeof(struct hv_coverage) <= HV_USAGE_CONTEXTS_OFFSET, "coverage overlaps contexts");
_Static_assert(HV_USAGE_CONTEXTS_OFFSET + HV_PROCESS_SLOTS * sizeof(struct hv_slot_contexts) <= HV_USAGE_FILE_BYTES, "usage is too small");

#endif
