#include "backlog.h"

#include "bucket.h"
#include "hypervisor_atomics.h"

/* Of charges that have ended, over which a pace is measured: several rounds of turns, and of streams. The first one soon,
 * each other over twice as much. */
#define PACE_OVER_NS UINT64_C(100000000)
#define FIRST_PACE_NS (PACE_OVER_NS / 8)
#define NO_PACE_NS UINT64_C(100000000) /* of time, in which whoever waits for other devices ends little; any pace is better */

/* Of a process on the device, at most. */
#define TURN_NS UINT64_C(2000000)

static uint64_t worked(const struct hv_backlog *backlog, uint64_t charged_ns, uint64_t ended_ns, uint64_t ahead_ns,
                       uint64_t now_ns)
{
    uint64_t at = hv_load_relaxed(&backlog->at_ns);
    uint64_t paced = hv_load_relaxed(&backlog->paced_ns);
    uint64_t most = charged_ns - ended_ns > ahead_ns ? ended_ns + ahead_ns : charged_ns;
    uint64_t found = hv_load_relaxed(&backlog->worked_ns);
    if (paced != 0 && now_ns > at) { /* without a pace what has ended is all that is known */
        unsigned __int128 more = (unsigned __int128)(now_ns - at) * hv_load_relaxed(&backlog->pace_ns) / paced;
        found += more < ahead_ns ? (uint64_t)more : ahead_ns;
    }
    return found < ended_ns ? ended_ns : found > most ? most : found;
}

static uint64_t pace_over(const struct hv_backlog *backlog)
{
    uint64_t twice = backlog->pace_ns < PACE_OVER_NS / 2 ? 2 * backlog->pace_ns : PACE_OVER_NS;
    return twice < FIRST_PACE_NS ? FIRST_PACE_NS : twice;
}

static bool is_measured(const struct hv_backlog *backlog, uint64_t ended_ns, uint64_t now_ns)
{
    if (ended_ns == 0 || now_ns <= backlog->since_ns)
        return false;
    bool soon = backlog->pace_ns < FIRST_PACE_NS && now_ns - backlog->since_ns >= NO_PACE_NS;
    return soon || ended_ns >= pace_over(backlog);
}

static void begin_pace(struct hv_backlog *backlog, uint64_t ended_ns, uint64_t now_ns)
{
    backlog->since_ns = now_ns;
    backlog->from_ns = ended_ns;
}

void hv_backlog_note(struct hv_backlog *backlog, uint64_t charged_ns, uint64_t ended_ns, uint64_t ahead_ns, uint64_t now_ns)
{
    ended_ns = ended_ns < charged_ns ? ended_ns : charged_ns;
    uint64_t found = worked(backlog, charged_ns, ended_ns, ahead_ns, now_ns);
    hv_store_relaxed(&backlog->worked_ns, found);
    hv_store_relaxed(&backlog->at_ns, now_ns);
    if (ended_ns == charged_ns || ended_ns < backlog->from_ns) { /* nothing is under way, and no pace */
        backlog->busy = 0;
        begin_pace(backlog, ended_ns, now_ns);
    } else if (is_measured(backlog, ended_ns - backlog->from_ns, now_ns)) {
        hv_store_relaxed(&backlog->pace_ns, ended_ns - backlog->from_ns);
        hv_store_relaxed(&backlog->paced_ns, now_ns - backlog->since_ns);
        backlog->busy = 1;
        begin_pace(backlog, ended_ns, now_ns);
    }
}

uint64_t hv_backlog_left(const struct hv_backlog *backlog, uint64_t charged_ns, uint64_t ended_ns, uint64_t ahead_ns,
                         uint64_t now_ns)
{
    ended_ns = ended_ns < charged_ns ? ended_ns : charged_ns;
    return charged_ns - worked(backlog, charged_ns, ended_ns, ahead_ns, now_ns);
}

/* Charges that have ended lately, while there was always some, and the time in which; false where that is not known. */
static bool lately(const struct hv_backlog *backlog, uint64_t ended_ns, uint64_t now_ns, uint64_t *ended, uint64_t *took)
{
    *ended = backlog->pace_ns;
    *took = backlog->paced_ns;
    if (now_ns > backlog->since_ns && now_ns - backlog->since_ns > *took) { /* it has become slower */
        *ended = ended_ns > backlog->from_ns ? ended_ns - backlog->from_ns : 0;
        *took = now_ns - backlog->since_ns;
    }
    return backlog->busy != 0;
}

bool hv_backlog_fills_turns(const struct hv_backlog *backlog, uint64_t ended_ns, uint64_t crowd, uint64_t now_ns)
{
    uint64_t ended, took;
    return crowd > 1 && lately(backlog, ended_ns, now_ns, &ended, &took) && took / crowd <= ended + TURN_NS;
}

bool hv_backlog_is_too_little(const struct hv_backlog *backlog, uint64_t ended_ns, uint64_t crowd, uint32_t overlap_ppm,
                              uint64_t now_ns)
{
    uint64_t ended, took;
    if (crowd == 0 || !lately(backlog, ended_ns, now_ns, &ended, &took))
        return false;
    uint64_t charged = hv_bucket_gpu_ns(ended, overlap_ppm); /* the same product */
    return took / crowd > charged + charged / 2 + TURN_NS;
}
