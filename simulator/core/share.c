/* Memory that several processes hold, or one holds several times. There is a row for each process that can reach it;
 * one of them has the bytes on its account. When that one lets go, by itself or by its end, another takes them over,
 * so that memory is held, and by somebody, until the last one has let go. Table lock for all rows. */
#include "internal.h"

static struct sim_share *row_of(struct sim_machine *machine, uint64_t key, uint32_t process)
{
    for (uint32_t i = 0; i < machine->share_high; i++)
        if (machine->shares[i].key == key && machine->shares[i].process == process)
            return &machine->shares[i];
    return NULL;
}

/* Another process's row, one that pays before one that does not. */
static struct sim_share *other_row(struct sim_machine *machine, uint64_t key, uint32_t process)
{
    struct sim_share *other = NULL;
    for (uint32_t i = 0; i < machine->share_high; i++) {
        struct sim_share *share = &machine->shares[i];
        if (share->key == key && share->process != process && (!other || share->pays))
            other = share;
    }
    return other;
}

static struct sim_share *free_row(struct sim_machine *machine)
{
    for (uint32_t i = 0; i < SIM_MAX_SHARES; i++)
        if (!machine->shares[i].key) {
            machine->share_high = i + 1 > machine->share_high ? i + 1 : machine->share_high;
            return &machine->shares[i];
        }
    return NULL;
}

int sim_share_own(struct sim_machine *machine, uint64_t key, uint32_t gpu, uint32_t process, uint64_t bytes)
{
    sim_lock_table(machine);
    struct sim_share *share = row_of(machine, key, process) ? NULL : free_row(machine);
    int status = share || row_of(machine, key, process) ? SIM_OK : SIM_TABLE_FULL;
    if (share)
        *share = (struct sim_share){.key = key, .bytes = bytes, .gpu = gpu, .process = process, .pays = 1, .references = 1};
    sim_unlock_table(machine);
    return status;
}

int sim_share_join(struct sim_machine *machine, uint64_t key, uint32_t *gpu, uint32_t process, uint64_t bytes)
{
    sim_lock_table(machine);
    struct sim_share *share = row_of(machine, key, process);
    const struct sim_share *other = share ? share : other_row(machine, key, process);
    int status = SIM_OK, alone = !other;
    if (share)
        share->references++;
    else if (!(share = free_row(machine)))
        status = SIM_TABLE_FULL;
    else
        *share = (struct sim_share){.key = key, .bytes = other ? other->bytes : bytes, .gpu = other ? other->gpu : *gpu,
                                    .process = process, .pays = (uint32_t)alone, .references = 1}; /* 0 or 1 */
    if (status == SIM_OK)
        *gpu = share->gpu;
    sim_unlock_table(machine);
    if (status != SIM_OK || !alone)
        return status;
    status = sim_charge(machine, *gpu, process, bytes); /* without the lock: it may bury the dead */
    if (status != SIM_OK)
        sim_share_forget(machine, key, process);
    return status;
}

static void move_bytes(struct sim_machine *machine, const struct sim_share *from, struct sim_share *to)
{
    sim_lock_gpu(machine, from->gpu);
    uint64_t held = machine->processes[from->process].gpu[from->gpu].bytes;
    uint64_t bytes = min_u64(from->bytes, held); /* as the ledger takes off */
    sim_ledger_sub(machine, from->gpu, from->process, bytes);
    if (to)
        sim_ledger_add(machine, from->gpu, to->process, bytes);
    sim_unlock_gpu(machine, from->gpu);
    if (to)
        to->pays = 1;
}

static void end_row(struct sim_machine *machine, struct sim_share *share)
{
    struct sim_share *heir = share->pays ? other_row(machine, share->key, share->process) : NULL;
    if (share->pays)
        move_bytes(machine, share, heir);
    *share = (struct sim_share){0};
}

void sim_share_leave(struct sim_machine *machine, uint64_t key, uint32_t process)
{
    sim_lock_table(machine);
    struct sim_share *share = row_of(machine, key, process);
    if (share && --share->references == 0)
        end_row(machine, share);
    sim_unlock_table(machine);
}

void sim_share_forget(struct sim_machine *machine, uint64_t key, uint32_t process)
{
    sim_lock_table(machine);
    struct sim_share *share = row_of(machine, key, process);
    if (share)
        *share = (struct sim_share){0};
    sim_unlock_table(machine);
}

void sim_shares_of_the_dead(struct sim_machine *machine, uint32_t process)
{
    for (uint32_t i = 0; i < machine->share_high; i++)
        if (machine->shares[i].key && machine->shares[i].process == process)
            end_row(machine, &machine->shares[i]);
}
