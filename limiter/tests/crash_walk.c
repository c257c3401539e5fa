/*
 * crash_walk: kills a process at every atomic store of the library, one after
 * another, and looks each time at what is left. Linked to the library of
 * crash_sites.h, and to a driver; never limited itself.
 *
 *   crash_walk DIRECTORY LIMIT_BYTES CONTEXT_BYTES STRIDE OFFSET
 *
 * There are several lives (crash_life.h). Of each the first child dies
 * nowhere, and tells which points are passed how often. Then, for each point
 * that no life before came to, one dies there the first time that it is passed
 * and one the last, and afterwards a process that has been there all along must
 * get what the limit leaves it: all of it, not a block more, and in time. Each
 * finds a file as others may have left it: slots of the dead, a claim that was
 * not ended, lost waiters, a bucket of another share.
 * Of the points only each STRIDE-th from OFFSET on is tried.
 *
 * Prints "DEATHS deaths at POINTS points of PASSED sites" and one line
 * "unpassed FILE LINE" for each site that no life came to.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "crash_life.h"
#include "file_maker.h"
#include "hypervisor_contexts.h"
#include "ledger.h"
#include "os.h"
#include "slots.h"

#define SECONDS_TO_ANSWER 20
#define DEVICES 2 /* of the same limit */

/* What each life finds of those before. */
#define CLAIMED_SLOT 5
#define DEAD_SLOT 6
#define DEAD_BYTES (UINT64_C(64) << 20)
#define OTHER_SHARE_PPM 300000
#define AHEAD_NS UINT64_C(2000000)

static struct made_files files;
static uint64_t limit, context_bytes;
static uint64_t *passed;
static uint32_t sites;
static uint64_t dead_owner;

/* Of the library, crash_sites.c. */
uint32_t hv_crash_sites(void);
const char *hv_crash_site_file(uint32_t number);
uint32_t hv_crash_site_line(uint32_t number);
void hv_crash_watch(uint64_t *words);
void hv_crash_choose(uint32_t number, uint32_t after, uint64_t pass);

static void fail(uint32_t site, const char *what, uint64_t is, uint64_t should)
{
    printf("%s:%u: %s: %llu, not %llu\n", site == 0 ? "before" : hv_crash_site_file(site), site == 0 ? 0 : hv_crash_site_line(site), what,
           (unsigned long long)is, (unsigned long long)should);
    exit(1);
}

/* A process of this namespace that was, as a slot names it. */
static uint64_t owner_that_died(void)
{
    struct hv_os_process self;
    hv_os_this_process(&self);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (waitpid(child, NULL, 0) != child)
        exit(2);
    return hv_slot_owner(self.pid_namespace, (uint32_t)child);
}

static unsigned char *map(const char *path, uint64_t bytes)
{
    int descriptor = open(path, O_RDWR | O_CLOEXEC);
    void *base = descriptor < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (base == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(descriptor);
    return base;
}

static void open_files(const char *directory)
{
    snprintf(files.shm_path, sizeof files.shm_path, "%s/" HV_SHM_FILE_NAME, directory);
    snprintf(files.usage_path, sizeof files.usage_path, "%s/" HV_USAGE_FILE_NAME, directory);
    files.shm = map(files.shm_path, HV_SHM_FILE_BYTES);
    files.usage = map(files.usage_path, HV_USAGE_FILE_BYTES);
}

/* ---- the process that stays ---- */

struct survivor {
    pid_t pid;
    int ask, answer;
};

static struct survivor begin_survivor(void)
{
    int ask[2], answer[2];
    if (pipe(ask) != 0 || pipe(answer) != 0)
        exit(2);
    struct survivor survivor = {.pid = fork(), .ask = ask[1], .answer = answer[0]};
    if (survivor.pid == 0) {
        close(ask[1]);
        survive(ask[0], answer[1], limit - context_bytes);
        _exit(0);
    }
    return survivor;
}

/* On each device it takes all that is left, is refused one more, launches, and lets go. */
static void ask_survivor(const struct survivor *survivor, uint32_t site)
{
    char word = 0;
    (void)alarm(SECONDS_TO_ANSWER); /* its silence ends us */
    if (write(survivor->ask, "?", 1) != 1 || read(survivor->answer, &word, 1) != 1)
        fail(site, "the survivor has ended", 1, 0);
    (void)alarm(0);
    if (word != '0')
        fail(site, "the survivor failed at its step", (uint64_t)word, (uint64_t)'0');
}

/* ---- what is left ---- */

static uint64_t live_bytes(uint32_t device, uint32_t *live)
{
    uint64_t sum = 0;
    *live = 0;
    for (uint32_t i = 0; i < HV_PROCESS_SLOTS; i++) {
        if ((made_slot(&files, i)->state & 0xff) != HV_SLOT_LIVE)
            continue;
        sum += made_slot(&files, i)->devices[device].bytes;
        ++*live;
    }
    return sum;
}

static void check_death(const struct survivor *survivor, uint32_t site)
{
    uint32_t live;
    uint64_t total, held;
    for (uint32_t device = 0; device < DEVICES; device++) {
        total = hv_total_bytes(made_usage(&files, device)->total);
        held = live_bytes(device, &live);
        if (total < held || total > limit)
            fail(site, "the total before it is healed", total, held);
    }
    ask_survivor(survivor, site);
    for (uint32_t device = 0; device < DEVICES; device++) {
        total = hv_total_bytes(made_usage(&files, device)->total);
        held = live_bytes(device, &live);
        if (live != 1)
            fail(site, "live slots", live, 1);
        if (total != held || held > context_bytes + (limit >> 10)) /* it may keep a little */
            fail(site, "the total afterwards", total, held);
    }
    if (made_usage(&files, 0)->host_bytes != 0 && hv_total_bytes(made_usage(&files, 0)->host_bytes) != 0)
        fail(site, "host memory", hv_total_bytes(made_usage(&files, 0)->host_bytes), 0);
    const struct hv_message_ring *ring = (const void *)(files.usage + HV_USAGE_MESSAGES_OFFSET);
    for (uint32_t i = 0; i < HV_MESSAGES; i++)
        if (ring->messages[i].sequence > ring->next || strnlen(ring->messages[i].text, HV_MESSAGE_TEXT_BYTES) == HV_MESSAGE_TEXT_BYTES)
            fail(site, "a message's sequence", ring->messages[i].sequence, ring->next);
}

/* ---- the walk ---- */

static struct hv_process_slot *leave_slot(uint32_t index, uint64_t phase)
{
    struct hv_process_slot *slot = made_slot(&files, index);
    hv_or_acq_rel(&((struct hv_slot_occupancy *)(void *)(files.usage + HV_USAGE_OCCUPANCY_OFFSET))->bits[0],
                  UINT64_C(1) << index);
    hv_store_relaxed(&slot->owner, dead_owner);
    hv_store_relaxed(&slot->start_time, 1); /* of nobody who lives */
    hv_store_release(&slot->state, (hv_load_relaxed(&slot->state) & ~UINT64_C(0xff)) | phase);
    return slot;
}

static void leave_traces_on(uint32_t device, struct hv_process_slot *dead)
{
    struct hv_device_usage *usage = made_usage(&files, device);
    hv_store_relaxed(&dead->devices[device].bytes, DEAD_BYTES);
    hv_store_relaxed(&usage->total, hv_total_changed(usage->total, hv_total_bytes(usage->total) + DEAD_BYTES));
    hv_store_relaxed(&usage->peak_bytes, 0);
    hv_store_relaxed_32(&usage->waiters, 3);
    hv_store_relaxed(&usage->bucket_share_ppm, OTHER_SHARE_PPM);
    hv_store_relaxed(&usage->bucket_ns, hv_os_now_ns() + AHEAD_NS);
}

/* What others may leave behind, at its worst. */
static void leave_traces(void)
{
    struct hv_message_ring *ring = (void *)(files.usage + HV_USAGE_MESSAGES_OFFSET);
    struct hv_slot_occupancy *occupancy = (void *)(files.usage + HV_USAGE_OCCUPANCY_OFFSET);
    hv_store_relaxed(&occupancy->bits[0], 1); /* the survivor's; the others are free */
    (void)leave_slot(CLAIMED_SLOT, HV_SLOT_CLAIMING);
    struct hv_process_slot *dead = leave_slot(DEAD_SLOT, HV_SLOT_LIVE);
    for (uint32_t device = 0; device < DEVICES; device++)
        leave_traces_on(device, dead);
    memset(ring, 0, sizeof *ring);
}

/* In the long life contexts are not counted. */
static void count_contexts(bool counted)
{
    for (uint32_t device = 0; device < DEVICES; device++)
        hv_store_release(&made_control(&files, device)->context_bytes, counted ? context_bytes : 0);
}

static void measured_at(uint64_t now_ns)
{
    for (uint32_t device = 0; device < DEVICES; device++)
        hv_store_release(&made_control(&files, device)->overhead_at_ns, now_ns);
}

/* As the daemon does it, when it is killed before it has recounted. */
static void give_up_contexts(uint32_t index)
{
    struct hv_slot_contexts *contexts = (struct hv_slot_contexts *)(void *)(files.usage + HV_USAGE_CONTEXTS_OFFSET) + index;
    struct hv_process_slot *slot = made_slot(&files, index);
    for (uint32_t device = 0; device < DEVICES; device++) {
        uint64_t word = hv_load_acquire(&contexts->words[device]);
        if (hv_contexts_can_be_given_up(word, hv_load_acquire(&slot->state)))
            (void)hv_contexts_give_up(&contexts->words[device], word, slot->devices[device].context_bytes);
    }
}

static void measure_contexts(void)
{
    for (uint32_t index = 1; index < HV_PROCESS_SLOTS; index++) /* the first is the survivor's */
        give_up_contexts(index);
    measured_at(hv_os_now_ns());
}

/* True if the child died of it, false if it came to its end. */
static bool one_life(enum life life, uint32_t site, uint32_t after, uint64_t pass)
{
    leave_traces();
    count_contexts(life != LONG_LIFE);
    pid_t child = fork();
    if (child == 0) {
        daemon_measures = measure_contexts;
        hv_crash_watch(passed);
        hv_crash_choose(site, after, pass);
        _exit(live(life));
    }
    int status = -1;
    if (waitpid(child, &status, 0) != child)
        exit(2);
    count_contexts(true);
    measured_at(0); /* the survivor's stay unmeasured */
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return true;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail(site, "the status of a life that went on", (uint64_t)status, 0);
    return false;
}

struct walk {
    enum life life;
    uint32_t stride, offset;
    uint32_t points, deaths;
};

static void die(struct walk *walk, const struct survivor *survivor, uint32_t site, uint32_t after, uint64_t pass)
{
    /* The last time may not come again: threads and the clock have a part in it. */
    walk->deaths += one_life(walk->life, site, after, pass);
    check_death(survivor, site);
}

/* Through the points of one life that none before came to; counts are of all lives so far. */
static void walk_through(struct walk *walk, const struct survivor *survivor, uint64_t *counts)
{
    size_t words = 2 * (size_t)sites + 2;
    memset(passed, 0, words * sizeof *passed);
    if (one_life(walk->life, 0, 0, 0))
        fail(0, "a life without a death", 1, 0);
    check_death(survivor, 0);
    uint64_t *now = malloc(words * sizeof *now);
    if (now == NULL)
        exit(2);
    memcpy(now, passed, words * sizeof *now);
    for (uint32_t point = 2; point < words; point++) {
        if (counts[point] != 0 || now[point] == 0)
            continue;
        counts[point] = now[point];
        if ((++walk->points + walk->offset) % walk->stride != 0)
            continue;
        die(walk, survivor, point / 2, point % 2, 1);
        if (now[point] > 1)
            die(walk, survivor, point / 2, point % 2, now[point]);
    }
    free(now);
}

int main(int count, char **arguments)
{
    if (count != 6)
        return 2;
    open_files(arguments[1]);
    limit = strtoull(arguments[2], NULL, 10);
    context_bytes = strtoull(arguments[3], NULL, 10);
    sites = hv_crash_sites();
    size_t words = 2 * (size_t)sites + 2;
    passed = mmap(NULL, words * sizeof *passed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t *counts = calloc(words, sizeof *counts);
    if (passed == MAP_FAILED || counts == NULL)
        return 2;
    dead_owner = owner_that_died();
    struct survivor survivor = begin_survivor();
    ask_survivor(&survivor, 0);
    struct walk walk = {.stride = (uint32_t)atoi(arguments[4]), .offset = (uint32_t)atoi(arguments[5])};
    for (walk.life = 0; walk.life < LIVES; walk.life++)
        walk_through(&walk, &survivor, counts);
    close(survivor.ask);
    int status = -1;
    if (waitpid(survivor.pid, &status, 0) != survivor.pid || status != 0)
        fail(0, "the survivor's status", (uint64_t)status, 0);
    uint32_t unpassed = 0;
    for (uint32_t site = 1; site <= sites; site++) {
        if (counts[2 * site] != 0)
            continue;
        unpassed++;
        printf("unpassed %s %u\n", hv_crash_site_file(site), hv_crash_site_line(site));
    }
    printf("%u deaths at %u points of %u sites\n", walk.deaths, walk.points, sites - unpassed);
    return 0;
}
