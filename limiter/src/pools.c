#include "pools.h"

#include "driver.h"
#include "graph_memory.h"
#include "memory.h"

static void lock(uint32_t *word)
{
    while (__atomic_exchange_n(word, 1, __ATOMIC_ACQUIRE) != 0)
        hv_os_yield();
}

static void unlock(uint32_t *word)
{
    hv_store_release_32(word, 0);
}

/* Pools grow by so much at a time as long as nothing else is known of them. */
#define GRANULE_BYTES (UINT64_C(32) << 20)

static bool is_graph_memory(CUmemoryPool handle, CUdevice *ordinal)
{
    *ordinal = (CUdevice)((uintptr_t)handle - 1); /* only looked at where it is small */
    return (uintptr_t)handle - 1 < HV_ORDINALS;
}

static bool held_by(CUmemoryPool handle, uint64_t *bytes)
{
    CUdevice ordinal;
    if (is_graph_memory(handle, &ordinal)) {
        hv_call_type_cuDeviceGetGraphMemAttribute ask_graph = HV_DRIVER(cuDeviceGetGraphMemAttribute);
        return ask_graph != NULL && ask_graph(ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
    }
    hv_call_type_cuMemPoolGetAttribute ask = HV_DRIVER(cuMemPoolGetAttribute);
    return ask != NULL && ask(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, bytes) == CUDA_SUCCESS;
}

static struct hv_pool *find(struct hv_process *process, CUmemoryPool handle)
{
    for (uint32_t i = 0; i < HV_POOLS; i++)
        if (__atomic_load_n(&process->pools.pools[i].handle, __ATOMIC_ACQUIRE) == handle)
            return &process->pools.pools[i];
    return NULL;
}

static struct hv_pool *enter(struct hv_process *process, CUmemoryPool handle, uint32_t device)
{
    struct hv_pool *pool = find(process, handle); /* another thread may have been faster */
    if (pool == NULL)
        pool = find(process, NULL);
    if (pool != NULL && pool->handle == NULL) {
        pool->device = device;
        __atomic_store_n(&pool->handle, handle, __ATOMIC_RELEASE);
    }
    return pool;
}

struct hv_pool *hv_pool_of(struct hv_process *process, CUmemoryPool handle, uint32_t device)
{
    uint64_t bytes;
    struct hv_pool *pool = find(process, handle);
    if (pool != NULL || (device >= HV_MAX_DEVICES && device != HV_POOL_ON_HOST) || !held_by(handle, &bytes))
        return pool;
    lock(&process->pools.lock);
    pool = enter(process, handle, device);
    unlock(&process->pools.lock);
    return pool;
}

/* The wrappers of these, for the type of the driver's functions. */
int hv_cuDeviceGraphMemTrim(CUdevice device);
int hv_cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes);
int hv_cuMemPoolDestroy(CUmemoryPool pool);

static void give_up(CUmemoryPool handle)
{
    CUdevice ordinal;
    if (is_graph_memory(handle, &ordinal)) /* errors, both: then it keeps what it has */
        (void)HV_REAL(cuDeviceGraphMemTrim)(ordinal);
    else
        (void)HV_REAL(cuMemPoolTrimTo)(handle, 0);
}

uint64_t hv_pool_reservation(const struct hv_pool *pool, uint64_t bytes)
{
    uint64_t granule = pool == NULL ? 1 : hv_load_relaxed(&pool->granule); /* a figure that only improves */
    granule = granule == 0 ? GRANULE_BYTES : granule;
    return bytes > HV_TOTAL_BYTES_MASK ? bytes : (bytes + granule - 1) / granule * granule;
}

/* The largest power of two that all growth so far was a multiple of. */
static void learn_granule(struct hv_pool *pool, uint64_t growth)
{
    uint64_t power = growth & -growth;
    uint64_t known = pool->granule == 0 ? GRANULE_BYTES : pool->granule;
    if (growth != 0)
        hv_store_relaxed(&pool->granule, power < known ? power : known);
}

static void give_back(struct hv_process *process, const struct hv_pool *pool, uint64_t bytes)
{
    bool host = pool->device == HV_POOL_ON_HOST;
    hv_memory_release(process, host ? 0 : pool->device, host, bytes);
}

/* Lock held. The pool holds so much less; what launches under way count on may
 * be among it. They take that anew, so it stays accounted until they are over. */
static void shrink(struct hv_process *process, struct hv_pool *pool, uint64_t held, uint64_t shrunk)
{
    pool->lent += shrunk;
    uint64_t over = pool->lent > pool->claimed ? pool->lent - pool->claimed : 0;
    give_back(process, pool, over);
    pool->lent -= over;
    pool->accounted = held + pool->lent;
}

static uint64_t less_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void hv_pool_grown(struct hv_pool *pool, struct hv_reservation *reservation, uint64_t claimed)
{
    uint64_t held;
    lock(&pool->lock);
    uint64_t before = pool->accounted - pool->lent;
    if (!held_by(pool->handle, &held))
        held = before + reservation->bytes;
    uint64_t growth = held > before ? held - before : 0;
    uint64_t anew = less_of(growth, less_of(pool->lent, claimed)); /* accounted already */
    learn_granule(pool, growth);
    hv_reservation_correct(reservation, growth - anew);
    pool->lent -= anew;
    pool->claimed -= claimed;
    shrink(reservation->process, pool, held, before > held ? before - held : 0);
    unlock(&pool->lock);
}

static void leave(struct hv_process *process, struct hv_pool *pool)
{
    give_back(process, pool, pool->accounted);
    pool->accounted = 0;
    pool->lent = 0;
    pool->granule = 0;
    pool->ending = false;
    __atomic_store_n(&pool->handle, NULL, __ATOMIC_RELEASE);
}

/* Only ever less: growth is entered by who allocates, and until it is, the
 * reservation covers it. */
static void refresh(struct hv_process *process, struct hv_pool *pool)
{
    uint64_t held;
    lock(&pool->lock);
    if (held_by(pool->handle, &held) && held < pool->accounted - pool->lent)
        shrink(process, pool, held, pool->accounted - pool->lent - held);
    CUmemoryPool ended = pool->ending && pool->accounted == 0 ? pool->handle : NULL;
    if (ended != NULL) /* before the driver may give its handle to another */
        leave(process, pool);
    unlock(&pool->lock);
    if (ended != NULL)
        (void)HV_REAL(cuMemPoolDestroy)(ended); /* the program was told already */
}

static void for_each(struct hv_process *process, uint32_t device, bool trim)
{
    for (uint32_t i = 0; i < HV_POOLS; i++) {
        struct hv_pool *pool = &process->pools.pools[i];
        CUmemoryPool handle = __atomic_load_n(&pool->handle, __ATOMIC_ACQUIRE);
        if (handle == NULL || pool->device != device || hv_load_relaxed(&pool->accounted) == 0)
            continue;
        if (trim)
            give_up(handle);
        refresh(process, pool);
    }
}

void hv_pools_refresh(struct hv_process *process, uint32_t device)
{
    for_each(process, device, false);
}

void hv_pools_trim(struct hv_process *process, uint32_t device)
{
    for_each(process, device, true);
}

/* ---- graph memory ---- */

static uint64_t told(CUdevice ordinal, int attribute)
{
    uint64_t bytes = 0;
    hv_call_type_cuDeviceGetGraphMemAttribute ask = HV_DRIVER(cuDeviceGetGraphMemAttribute);
    return ask != NULL && ask(ordinal, attribute, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

/*
 * Each graph that was launched takes at most its bytes, however often: the
 * driver lets no two launches of one overlap, and what one left allocated it
 * finds again. So where the device keeps what all of them take together, one
 * that is launched again finds room, whatever the others do. Else only what
 * nobody uses now is there for it.
 */
uint64_t hv_pool_claim(struct hv_pool *pool, struct hv_graph_need *need, uint64_t *claimed)
{
    lock(&pool->lock);
    uint64_t reserved = told(need->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    uint64_t used = told(need->ordinal, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    uint64_t all = less_of(reserved, pool->accounted); /* what grew is entered when its launch is over */
    if (used == 0 && pool->claimed == 0) {
        pool->launched = 0;
        pool->round++;
    }
    if (need->round != pool->round)
        need->launches = 0;
    need->round = pool->round;
    if (need->launches != 0 && all >= pool->launched) {
        *claimed = need->bytes;
    } else {
        uint64_t busy = used + pool->claimed;
        *claimed = less_of(all > busy ? all - busy : 0, need->bytes);
    }
    if (need->launches++ == 0)
        pool->launched += need->bytes;
    pool->claimed += *claimed;
    unlock(&pool->lock);
    return need->bytes - *claimed;
}

void hv_pool_unclaim(struct hv_process *process, struct hv_pool *pool, uint64_t claimed, struct hv_graph_need *need)
{
    lock(&pool->lock);
    pool->claimed -= claimed;
    if (need->launches == 1 && need->round == pool->round) { /* the only one, and it was none */
        need->launches = 0;
        pool->launched -= need->bytes;
    }
    shrink(process, pool, pool->accounted - pool->lent, 0);
    unlock(&pool->lock);
}

/* As the driver would: a device whose pool is destroyed has its default one
 * again, and nothing is kept of what is freed. */
static void set_aside(CUmemoryPool handle, CUdevice ordinal)
{
    uint64_t threshold = 0;
    CUmemoryPool usual = NULL, current = NULL;
    hv_call_type_cuMemPoolSetAttribute set = HV_DRIVER(cuMemPoolSetAttribute);
    hv_call_type_cuDeviceGetMemPool ask = HV_DRIVER(cuDeviceGetMemPool);
    hv_call_type_cuDeviceGetDefaultMemPool ask_usual = HV_DRIVER(cuDeviceGetDefaultMemPool);
    hv_call_type_cuDeviceSetMemPool choose = HV_DRIVER(cuDeviceSetMemPool);
    if (set != NULL)
        (void)set(handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold); /* else it goes with the next trim */
    if (ask != NULL && ask_usual != NULL && choose != NULL && ask(&current, ordinal) == CUDA_SUCCESS &&
        current == handle && ask_usual(&usual, ordinal) == CUDA_SUCCESS)
        (void)choose(ordinal, usual); /* an error: then the program goes on with the one it destroyed */
}

bool hv_pool_stays(struct hv_process *process, CUmemoryPool handle, CUdevice ordinal)
{
    uint64_t held;
    struct hv_pool *pool = find(process, handle);
    if (pool == NULL)
        return false;
    give_up(handle);
    lock(&pool->lock);
    bool stays = held_by(handle, &held) && held != 0;
    if (!stays) {
        leave(process, pool);
    } else {
        if (held < pool->accounted) {
            give_back(process, pool, pool->accounted - held);
            pool->accounted = held;
        }
        pool->ending = true;
    }
    unlock(&pool->lock);
    if (stays)
        set_aside(handle, ordinal);
    return stays;
}

bool hv_pool_is_ending(struct hv_process *process, CUmemoryPool handle)
{
    struct hv_pool *pool = find(process, handle);
    if (pool == NULL)
        return false;
    lock(&pool->lock);
    bool ending = pool->ending && pool->handle == handle;
    unlock(&pool->lock);
    return ending;
}

void hv_pool_destroyed(struct hv_process *process, CUmemoryPool handle)
{
    struct hv_pool *pool = find(process, handle);
    if (pool == NULL)
        return;
    lock(&pool->lock);
    leave(process, pool);
    unlock(&pool->lock);
}
