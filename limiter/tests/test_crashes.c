/* test: sources=limiter/src/ledger.c,limiter/src/slots.c,limiter/src/os_linux.c,limiter/src/os_clock.c,limiter/tests/file_maker.c include=limiter/include,limiter/src,limiter/tests variants=plain,address flags=-DHV_CRASH_POINTS seconds=120 */
/*
 * kill -9 at every crash point of claim, reserve, release and reap, in real
 * processes on a real file: afterwards the dead one's slot comes back, exactly
 * its bytes are given back, and what the living hold stays.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "compiler.h"
#include "file_maker.h"
#include "ledger.h"
#include "os.h"
#include "slots.h"

#define LIMIT UINT64_C(1000)

static struct made_files files;
static long crash_after = -1; /* crash points to pass before death; -1: never */

void hv_crash_point(const char *name)
{
    (void)name;
    if (crash_after >= 0 && crash_after-- == 0)
        kill(getpid(), SIGKILL);
}

static struct hv_slot_table table(void)
{
    return (struct hv_slot_table){.occupancy = (void *)(files.usage + HV_USAGE_OCCUPANCY_OFFSET),
                                  .slots = files.usage + HV_USAGE_SLOTS_OFFSET,
                                  .stride = sizeof(struct hv_process_slot)};
}

static struct hv_slot_identity identity(void)
{
    struct hv_os_process self;
    hv_os_this_process(&self);
    return (struct hv_slot_identity){hv_slot_owner(self.pid_namespace, self.pid), self.start_time};
}

static bool is_dead(const struct hv_slot_identity *owner, void *context)
{
    (void)context;
    return owner->owner == 0 || hv_os_process_life((uint32_t)owner->owner, owner->start_time) == HV_OS_DEAD;
}

static struct hv_account account(int32_t slot)
{
    struct hv_slot_device *words = &made_slot(&files, (uint32_t)slot)->devices[0];
    return (struct hv_account){
        .total = &made_usage(&files, 0)->total, .bytes = &words->bytes, .in_flight = &words->in_flight_bytes};
}

static bool lookup(const void *context, uint32_t index, struct hv_recount_words *words)
{
    struct hv_process_slot *slot = hv_slot_at(context, index);
    *words = (struct hv_recount_words){.state = &slot->state,
                                       .bytes = &slot->devices[0].bytes,
                                       .in_flight = &slot->devices[0].in_flight_bytes};
    return true;
}

static uint64_t healed_total(void)
{
    struct hv_slot_table slots = table();
    struct hv_recount recount = {.total = &made_usage(&files, 0)->total, .at = HV_RECOUNT_LOAD_TOTAL};
    while (recount.at < HV_RECOUNT_HEALED)
        hv_recount_step(&recount, &slots, HV_PROCESS_SLOTS, lookup);
    return hv_total_bytes(hv_load_acquire(&made_usage(&files, 0)->total));
}

static uint32_t live_slots(void)
{
    uint32_t live = 0;
    for (uint32_t i = 0; i < HV_PROCESS_SLOTS; i++)
        live += (made_slot(&files, i)->state & 0xff) != HV_SLOT_FREE;
    return live;
}

/* Reap, claim, take, take, give back: all that a process does. */
static void live_a_life(void)
{
    struct hv_slot_table slots = table();
    struct hv_slot_identity self = identity();
    (void)hv_slots_reap(&slots, &self, is_dead, NULL);
    int32_t slot = hv_slots_claim(&slots, &self, 1);
    if (slot < 0)
        _exit(3);
    struct hv_account mine = account(slot);
    if (!hv_ledger_reserve(&mine, 300, LIMIT) || !hv_ledger_reserve(&mine, 200, LIMIT))
        _exit(4);
    hv_ledger_release(&mine, 300);
}

/* True if the child died at the point, false if it lived through all of them. */
static bool die_at(long point)
{
    pid_t child = fork();
    if (child == 0) {
        crash_after = point;
        live_a_life();
        _exit(0);
    }
    int status = -1;
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    return WIFSIGNALED(status);
}

int main(void)
{
    char directory[] = "/tmp/limiter-crashes-XXXXXX";
    if (mkdtemp(directory) == NULL)
        return 2;
    make_files(&files, directory);
    struct hv_slot_table slots = table();
    struct hv_slot_identity self = identity();
    int32_t ours = hv_slots_claim(&slots, &self, 1);
    CHECK(ours >= 0);
    struct hv_account mine = account(ours);
    CHECK(hv_ledger_reserve(&mine, 400, LIMIT));
    long point = 0;
    while (die_at(point)) {
        /* Before anything is healed the error is on the high side only. */
        CHECK(hv_total_bytes(made_usage(&files, 0)->total) >= 400);
        CHECK(hv_total_bytes(made_usage(&files, 0)->total) <= LIMIT);
        (void)hv_slots_reap(&slots, &self, is_dead, NULL);
        CHECK_EQUAL(live_slots(), 1);
        CHECK_EQUAL(healed_total(), 400);
        point++;
    }
    CHECK(point > 150); /* it did pass by all of them: the slot alone has 130 words */
    CHECK_EQUAL(made_slot(&files, (uint32_t)ours)->devices[0].bytes, 400);
    unlink(files.shm_path);
    unlink(files.usage_path);
    rmdir(directory);
    return CHECK_RESULT();
}
