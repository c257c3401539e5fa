/* The simulated driver's own objects, as its files share them. */
#ifndef SIM_DRIVER_H
#define SIM_DRIVER_H

#include "core.h"
#include "cuda_abi.h"

#define SIM_EXPORTED __attribute__((visibility("default")))
#define MAX_CONTEXT_DEPTH 32
#define MAX_THREAD_STREAMS 8

/* Handles start with a word that says what they are; a destroyed one keeps its memory and loses the word. */
enum handle_kind { HANDLE_DEAD = 0, HANDLE_CONTEXT = 0x43545831, HANDLE_STREAM, HANDLE_EVENT, HANDLE_MODULE, HANDLE_FUNCTION, HANDLE_POOL, HANDLE_GRAPH, HANDLE_NODE, HANDLE_EXEC, HANDLE_ARRAY, HANDLE_USER_OBJECT, HANDLE_TEXTURE, HANDLE_EXTERNAL, HANDLE_GREEN, HANDLE_TEXTURE_REFERENCE, HANDLE_SURFACE_REFERENCE, HANDLE_SEMAPHORE, HANDLE_NOTIFICATION };

struct CUctx_st {
    uint32_t kind;
    uint32_t device;           /* CUDA ordinal */
    uint32_t gpu;              /* row in the machine */
    uint32_t flags;
    uint32_t primary;
    uint32_t green;
    uint32_t api_version;
    uint64_t id;
    uint32_t sm_limit;         /* 0: all SMs */
    uint32_t attached;         /* calls of cuCtxAttach not yet undone */
    CUstream legacy;           /* the default stream */
    CUstream streams;          /* all streams of the context, linked by next */
    uint32_t closing;          /* destroyed streams that still have work */
    uint32_t blocking;         /* streams other than the legacy one that keep order with it */
    uint64_t limits[CU_LIMIT_MAX];
    uint32_t peers;            /* bit n: may access device n */
    CUgreenCtx green_handle;   /* what the program holds of a green context */
    uint32_t awaits;           /* cuCtxWaitEvent: streams that come later wait for this record of the event's row, too */
    uint32_t awaited_row;
    uint64_t awaited;
    CUcontext next;            /* of all contexts */
};

struct CUstream_st {
    uint32_t kind;
    uint32_t row;              /* in the machine */
    CUcontext context;
    uint32_t flags;
    int32_t priority;
    uint64_t id;
    CUgraph capture;           /* not NULL: being captured */
    uint32_t capture_mode;
    uint32_t capture_status;
    uint32_t capture_origin;   /* the stream that began it, and may end it */
    uint32_t capture_into;     /* it began with a graph of the program's own */
    CUgraphNode *capture_after; /* what the next node will depend on */
    size_t capture_after_count;
    uint64_t capture_id;
    uint64_t legacy_tail;      /* how far this stream was made to wait for the legacy one */
    uint64_t followed_tail;    /* how far the legacy stream was made to wait for this one */
    struct attributes *attributes; /* NULL: none was set */
    uint32_t closing;          /* destroyed, with work left: its row goes when that is done */
    CUstream next;
};

struct CUevent_st {
    uint32_t kind;
    uint32_t row;
    CUcontext context;
    uint32_t flags;
    uint64_t base;             /* the row's sequence when it became this event's */
    uint64_t recorded;         /* sequence of the last record; base: never recorded */
    uint32_t shared;           /* other processes may record it too: the row knows the last record */
    uint32_t imported;         /* the row is another process's */
    CUgraph captured_graph;    /* not NULL: last recorded in a stream that was being captured */
    CUgraphNode *captured_after;
    size_t captured_after_count;
};

struct CUfunc_st {
    uint32_t kind;
    CUmodule module;
    struct CUfunc_st *next;
    uint32_t max_dynamic_shared;
    uint32_t carveout;
    uint32_t block[3];         /* legacy cuFuncSetBlockShape */
    uint32_t legacy_shared;
    uint32_t fixed_cost;       /* the cost does not depend on the grid */
    uint64_t cost_ns;
    char name[];
};

struct CUmod_st {
    uint32_t kind;
    uint32_t is_library;       /* a library's functions belong to no context */
    CUcontext context;
    CUfunction functions;
    char **names;              /* functions listed in a text image; NULL: any name is taken */
    size_t name_count;
    struct global *globals;    /* variables that the image has */
    CUtexref textures, surfaces; /* references that were asked for */
};

struct CUtexref_st {           /* a surface reference too: those have an array and nothing else */
    uint32_t kind;
    CUarray_format format;
    int channels;
    CUdeviceptr address;       /* 0: bound to no address */
    CUarray array;
    CUmipmappedArray mipmapped;
    int address_mode[3], filter_mode, mipmap_filter_mode;
    unsigned flags, anisotropy;
    float bias, clamp[2], border[4];
    CUtexref next;             /* of the module */
    char name[];
};

struct CUmemPoolHandle_st {
    uint32_t kind;
    uint32_t gpu;
    uint32_t device;
    uint32_t host;             /* a pool of host memory: never charged */
    uint32_t destroyed;
    uint64_t threshold;
    uint64_t used, used_high, reserved, reserved_high;
    CUmemPoolProps props;
    int file;                  /* when exported or imported: the descriptor that stands for it; else -1 */
    uint32_t imported;
    CUmemoryPool next;
};

enum memory_kind { MEMORY_DEVICE = 1, MEMORY_MANAGED, MEMORY_HOST, MEMORY_REGISTERED, MEMORY_RESERVED, MEMORY_MAPPED, MEMORY_POOLED, MEMORY_GRAPH, MEMORY_IPC, MEMORY_IMPORTED };

struct managed_advice {        /* places as the interface writes them; all zero: nothing was said */
    uint32_t read_mostly;
    uint32_t accessed_by;      /* bit n: by device n; bit 31: by the host */
    CUmemLocation preferred, prefetched;
};

struct memory {                /* one range of addresses that the driver knows */
    uint64_t start, size;      /* size as asked for */
    uint64_t mapped;           /* bytes mapped at start */
    uint64_t charged;          /* MEMORY_GRAPH: bytes in use of the GPU's graph memory, else of the ledger */
    uint32_t kind;
    uint32_t gpu, device;
    uint32_t host_flags;
    uint64_t id;
    CUcontext context;
    CUmemoryPool pool;
    struct vmm_handle *handle; /* MEMORY_MAPPED */
    struct memory *left, *right;
    uint32_t rank;             /* treap priority */
    uint32_t sync_memops;
    uint32_t has_file;         /* shared with other processes: its bytes are in `file` */
    int file;
    uint64_t share;            /* key among those that others hold too (share.c); 0: nobody else was given it */
    uint32_t nodes;            /* MEMORY_GRAPH: allocation nodes, copies included, that have this address */
    struct managed_advice advice; /* MEMORY_MANAGED: what the program said about it */
};

struct driver {
    struct sim_machine *machine;
    uint32_t process;
    uint32_t ready;
    uint32_t epoch;            /* grows in each fork child */
    uint32_t device_count;
    uint32_t gpu_of[SIM_MAX_GPUS];
    uint32_t on_instance;      /* the only device is a MIG instance: this one */
    struct sim_mig_device instance;
    CUcontext primary[SIM_MAX_GPUS];
    uint32_t primary_references[SIM_MAX_GPUS];
    CUcontext primary_reserved[SIM_MAX_GPUS]; /* handles given out before their context was made */
    uint32_t primary_flags[SIM_MAX_GPUS];
    CUcontext contexts;
    CUmemoryPool default_pool[SIM_MAX_GPUS], current_pool[SIM_MAX_GPUS];
    CUmemoryPool pools;
    struct memory *memory;     /* root */
    struct vmm_handle *vmm_handles;
    uint32_t vmm_open;         /* vmm_file is a descriptor */
    int vmm_file;              /* the bytes of all handles that cannot be exported */
    uint64_t vmm_end;          /* its size so far */
    struct CUarray_st *arrays;
    uint64_t next_id;
    uint64_t graph_used[SIM_MAX_GPUS], graph_used_high[SIM_MAX_GPUS], graph_reserved[SIM_MAX_GPUS], graph_reserved_high[SIM_MAX_GPUS];
    pthread_mutex_t lock;      /* guards all of the above; never held while waiting for a GPU's work */
    pthread_mutex_t making;    /* one thread at a time makes a primary context; taken before `lock` */
};
extern struct driver sim_driver;

void sim_checkpoint_wait(void); /* while this process is locked by a checkpoint */

/* MPS with a control daemon; see mps.c. */
CUresult sim_mps_join(void);
uint32_t sim_usable_sms(uint32_t gpu);
int sim_mps_may_use(uint32_t gpu);

struct thread_stream { CUcontext context; uint64_t context_id; CUstream stream; };
struct thread_state {
    uint32_t epoch;
    uint32_t depth;
    uint32_t capture_mode;
    struct sim_fault_hit fault; /* what a fault asks of the call being made; no action: nothing */
    CUcontext stack[MAX_CONTEXT_DEPTH];
    struct thread_stream streams[MAX_THREAD_STREAMS];
};
struct thread_state *sim_thread(void);

/* Every call begins with one of these: initialised, not forked, fault asked for, current context known. */
CUresult sim_enter(const char *call);                          /* no context needed */
CUresult sim_enter_context(const char *call, CUcontext *context); /* a current context is */
CUresult sim_enter_device(const char *call, CUdevice device);
#define ENTER() do { CUresult entered_ = sim_enter(__func__); if (entered_ != CUDA_SUCCESS) return entered_; } while (0)
#define ENTER_CONTEXT(context) do { CUresult entered_ = sim_enter_context(__func__, &(context)); if (entered_ != CUDA_SUCCESS) return entered_; } while (0)
#define ENTER_DEVICE(device) do { CUresult entered_ = sim_enter_device(__func__, (device)); if (entered_ != CUDA_SUCCESS) return entered_; } while (0)

/* Enters a call on a stream: NULL means the legacy stream or, in the twins for per-thread streams, the thread's own. */
CUresult sim_enter_stream(const char *call, int per_thread, CUstream given, CUstream *stream);

/* The figure that the call shall give: `fresh`, or what a fault puts in its place (zero, a value, a stale one…). */
uint64_t sim_faulty(uint64_t fresh);

/* Defines an exported function and its twin for per-thread default streams, both by `body(call, per_thread, arguments…)`. */
#define DEFINE_TWINS(name, suffix, body, parameters, ...) \
    CUresult CUDAAPI name parameters; \
    SIM_EXPORTED CUresult CUDAAPI name parameters { return body(#name, 0, __VA_ARGS__); } \
    CUresult CUDAAPI name##suffix parameters; \
    SIM_EXPORTED CUresult CUDAAPI name##suffix parameters { return body(#name #suffix, 1, __VA_ARGS__); }

CUresult sim_result(int status); /* of a core function */
int sim_fits_driver(const struct sim_machine *machine);
void sim_lock_driver(void);
void sim_unlock_driver(void);
static inline struct sim_machine *sim_here(void) { return sim_driver.machine; }

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device);

/* visible.c */
void sim_choose_devices(struct driver *driver);
uint32_t sim_sm_count(uint32_t gpu);     /* SMs that a program has of a GPU: all, or its instance's */
uint64_t sim_total_memory(uint32_t gpu); /* bytes, likewise, without what the driver keeps for itself */

/* driver_version.c; hidden, so that it is bound when the library is linked and by nothing that is loaded later */
extern const void *sim_private_table(const CUuuid *id) __attribute__((weak, visibility("hidden")));

/* context.c */
CUcontext sim_primary_handle(uint32_t device); /* what the primary context is or will be; makes no context. NULL: no memory */
CUcontext sim_current_context(void);
int sim_context_valid(CUcontext context);
CUresult sim_primary_context(uint32_t device, CUcontext *out); /* made when there is none; counts no reference */

CUresult sim_green_context(uint32_t device, uint32_t sm_limit, CUcontext *out);
void sim_green_destroy(CUcontext context);
CUcontext sim_green_inside(CUgreenCtx green); /* green.c; NULL: it is none */

/* stream.c */
CUresult sim_stream_resolve(CUcontext context, CUstream given, int per_thread, CUstream *out);
CUresult sim_stream_create(CUcontext context, uint32_t flags, int32_t priority, CUstream *out);
void sim_stream_free(CUstream stream);
CUresult sim_context_synchronize(CUcontext context);
CUresult sim_stream_drain(CUstream stream);
CUresult sim_enqueue(CUstream stream, const struct sim_item *item);

/* event.c */
uint64_t sim_event_latest(CUevent event);

/* host.c */
CUresult sim_host_enqueue(CUstream stream, CUhostFn function, void *argument);
/* The stream goes on when `condition` first says so; it is asked again and again and must not block. */
CUresult sim_host_await(CUstream stream, int (*condition)(const void *), void *argument);
void sim_host_forget(void); /* in a fork child: the helper thread stayed with the parent */

/* memory_map.c: driver lock held */
struct memory *sim_memory_find(uint64_t address);
struct memory *sim_memory_next(uint64_t address); /* first range that ends above address */
void sim_memory_insert(struct memory *memory);
void sim_memory_remove(struct memory *memory);

/* memory.c */
void *sim_memory_room(uint64_t bytes);
CUresult sim_memory_new(CUcontext context, uint32_t gpu, uint32_t device, uint64_t bytes, uint32_t kind, uint64_t charge, struct memory **out);
void sim_memory_delete(struct memory *memory, int refund); /* driver lock held */
CUresult sim_range_check(const void *address, uint64_t bytes, int must_be_device, int *device);
void sim_memory_drop_context(CUcontext context);

/* pool.c */
CUresult sim_pool_allocate(CUmemoryPool pool, CUcontext context, uint64_t bytes, CUdeviceptr *out);
void sim_pool_give_back(struct memory *memory); /* driver lock held */
void sim_pools_trim(uint32_t gpu);
CUmemoryPool sim_pool_current(uint32_t device);

void sim_pools_empty(uint32_t gpu); /* gives up everything kept and not in use */

/* ipc.c: bytes of memory that other processes may map; driver lock held for the first */
CUresult sim_share_ticket(struct memory *memory, void *ticket, size_t size);
CUresult sim_open_ticket(CUdeviceptr *out, const void *ticket, size_t size, uint32_t kind);

/* external_semaphore.c */
int sim_semaphore_valid(CUexternalSemaphore semaphore);
CUresult sim_semaphore_signal(CUstream stream, CUexternalSemaphore semaphore, uint64_t value);
CUresult sim_semaphore_await(CUstream stream, CUexternalSemaphore semaphore, uint64_t value);

/* multicast.c */
int sim_multicast_supported(uint32_t gpu);

/* memory_operations.c */
CUresult sim_memory_operations(CUstream stream, const CUstreamBatchMemOpParams *list, unsigned count);

/* graph_memory.c: what allocation nodes use is kept for the next launch until it is trimmed. Driver lock held. */
CUresult sim_graph_memory_take(struct memory *memory);
void sim_graph_memory_give(struct memory *memory);
void sim_graph_memory_trim(uint32_t gpu);

/* array.c */
void sim_arrays_drop_context(CUcontext context);

/* copy.c */
CUresult sim_copy_now(CUdeviceptr destination, CUdeviceptr source, size_t bytes, enum sim_engine *engine);
CUresult sim_copy(CUstream stream, CUdeviceptr destination, CUdeviceptr source, size_t bytes, int wait);
CUresult sim_fill(CUstream stream, CUdeviceptr destination, size_t pitch, unsigned value, unsigned element, size_t width, size_t height, int wait);
void sim_fill_now(CUdeviceptr destination, size_t pitch, unsigned value, unsigned element, size_t width, size_t height);

/* launch.c */
struct launch { CUfunction function; uint32_t grid[3], block[3], shared; };
CUresult sim_launch(CUstream stream, const struct launch *launch, int cooperative);
CUresult sim_launch_check(CUcontext context, const struct launch *launch, int cooperative);
void sim_launch_item(CUcontext context, const struct launch *launch, struct sim_item *item);
uint64_t sim_blocks_resident(CUcontext context, CUfunction function, uint32_t threads, uint64_t shared);

/* attributes.c */
struct attributes *sim_attributes_copy(const struct attributes *from);

/* copy.c: of boxes, with arrays or without */
CUresult sim_copy_box(CUstream stream, const CUDA_MEMCPY3D *box, int wait);

/* capture.c */
CUresult sim_capture_box(CUstream stream, const CUDA_MEMCPY3D *box);
CUresult sim_capture_graph(CUstream stream, CUgraph graph);

/* array.c: where the bytes of an array lie, row by row; 0: no such array */
struct array_bytes { unsigned char *data; uint64_t row, rows, slices; };
int sim_array_bytes(CUarray array, struct array_bytes *out);
int sim_array_shape(CUarray array, CUDA_ARRAY3D_DESCRIPTOR *out);
/* An array with levels over bytes of another interface; they are charged to nobody, and unmapped with it. */
CUresult sim_array_over(CUcontext context, unsigned char *data, uint64_t bytes, const CUDA_ARRAY3D_DESCRIPTOR *shape, uint32_t levels, CUmipmappedArray *out);

/* graph.c */
CUresult sim_capture_kernel(CUstream stream, const struct launch *launch);
CUresult sim_capture_copy(CUstream stream, CUdeviceptr destination, CUdeviceptr source, size_t bytes);
CUresult sim_capture_fill(CUstream stream, CUdeviceptr destination, size_t pitch, unsigned value, unsigned element, size_t width, size_t height);
CUresult sim_capture_host(CUstream stream, CUhostFn function, void *argument);
CUresult sim_capture_allocate(CUstream stream, CUdeviceptr *out, size_t bytes);
CUresult sim_capture_free(CUstream stream, CUdeviceptr address);
void sim_capture_end(CUgraph graph);
void sim_capture_spoil(CUgraph graph);
CUresult sim_capture_record(CUstream stream, CUevent event);
CUresult sim_capture_wait(CUstream stream, CUevent event);

/* global.c; images are looked at where they are, driver lock held for dropping */
int sim_globals_of_text(CUmodule module, const char *text);     /* 0: no memory */
int sim_globals_of_object(CUmodule module, const void *image);
void sim_globals_drop(CUmodule module);
CUresult sim_module_global(CUmodule module, const char *name, CUdeviceptr *address, size_t *size);

/* texture_reference.c */
int sim_textures_of_text(CUmodule module, const char *text);    /* 0: no memory */
void sim_textures_drop(CUmodule module);

/* module.c */
CUresult sim_module_function(CUmodule module, const char *name, CUfunction *out);
CUfunction sim_function_of(CUfunction or_kernel); /* NULL when it is neither */

#endif
