#include "survey_time.h"

#include "functions.h"

/* Launches of a stream in one survey from which on it counts. */
#define TAKES_PART 3

#define POINTS (2 * HV_SURVEYED)
#define PPM 1e6f

#define NEAR 1.25f
#define MOST_RATIO 1000

/* Launches that speak for another way than the first by chance. */
#define UNPROVEN 4

#define FADING 16 /* of what spoke for a way with each new survey */

/* Of a process on the device, at most. */
#define TURN_MS 2

/* So many launches run beside each other at full speed, and each more slows all of them down; 0: however many. */
static const uint32_t fits[HV_SURVEY_FITS] = {0, 4, 2, 1};

/* The time of the survey in pieces, in each of which the same launches are under way. */
struct pieces {
    uint32_t count;
    float at_ms[POINTS]; /* piece i lies between i and i + 1 */
    uint32_t beside[POINTS];
    float own_ms[POINTS]; /* of the piece, turns of this process */
};

struct within {
    float from_ms, to_ms; /* both are beginnings of launches, so that it is whole rounds of what the program does */
    float all_until_ms;   /* until then all launches were surveyed */
};

static float speed(uint32_t beside, uint32_t fit)
{
    return fits[fit] == 0 || beside <= fits[fit] ? 1 : (float)fits[fit] / (float)beside;
}

static bool is_under_way(const struct hv_surveyed *launch, const struct pieces *pieces, uint32_t piece)
{
    return launch->begin_ms <= pieces->at_ms[piece] && launch->end_ms >= pieces->at_ms[piece + 1];
}

static void cut(const struct hv_surveyed *launches, uint32_t count, struct pieces *pieces)
{
    for (uint32_t i = 0; i < 2 * count; i++) {
        float at_ms = i < count ? launches[i].begin_ms : launches[i - count].end_ms;
        uint32_t at = i;
        for (; at > 0 && pieces->at_ms[at - 1] > at_ms; at--)
            pieces->at_ms[at] = pieces->at_ms[at - 1];
        pieces->at_ms[at] = at_ms;
    }
    pieces->count = 2 * count - 1;
    for (uint32_t i = 0; i < pieces->count; i++) {
        pieces->beside[i] = 0;
        for (uint32_t j = 0; j < count; j++)
            pieces->beside[i] += is_under_way(&launches[j], pieces, i);
    }
}

/* A survey cuts streams off in mid-course: only from where every stream that takes part has begun are all of the launches
 * under way known, and until the first of them has ended, or the last launch was made: what came later has begun later. */
static bool find_within(const struct hv_surveyed *launches, uint32_t count, struct within *within)
{
    bool any = false;
    *within = (struct within){0};
    for (uint32_t i = 0; i < count; i++) {
        float first = launches[i].begin_ms, last = launches[i].end_ms;
        uint32_t times = 0;
        for (uint32_t j = 0; j < count; j++) {
            if (launches[j].stream != launches[i].stream)
                continue;
            times++;
            first = launches[j].begin_ms < first ? launches[j].begin_ms : first;
            last = launches[j].end_ms > last ? launches[j].end_ms : last;
        }
        if (times < TAKES_PART)
            continue;
        within->from_ms = !any || first > within->from_ms ? first : within->from_ms;
        within->all_until_ms = !any || last < within->all_until_ms ? last : within->all_until_ms;
        any = true;
    }
    for (uint32_t i = 0; i < count; i++)
        if (launches[i].idle && launches[i].begin_ms > within->all_until_ms)
            within->all_until_ms = launches[i].begin_ms;
    for (uint32_t i = 0; i < count && launches[i].begin_ms <= within->all_until_ms; i++)
        within->to_ms = launches[i].begin_ms;
    return any && within->to_ms > within->from_ms;
}

static float work_ms(const struct hv_surveyed *launch, const struct pieces *pieces, uint32_t fit)
{
    float work = 0;
    for (uint32_t i = 0; i < pieces->count; i++)
        if (is_under_way(launch, pieces, i))
            work += (pieces->at_ms[i + 1] - pieces->at_ms[i]) * speed(pieces->beside[i], fit);
    return work;
}

/* What launches took by a way over their costs, others' turns left out. alike: so many took the same, by_cost: and so many
 * what they cost. */
static float usual_of(const struct hv_surveyed *launches, uint32_t count, const struct pieces *pieces,
                      const struct within *within, uint32_t fit, uint32_t *alike, uint32_t *by_cost)
{
    uint32_t ratios[HV_SURVEYED], known = 0;
    *alike = *by_cost = 0;
    for (uint32_t i = 0; i < count; i++)
        if (launches[i].begin_ms >= within->from_ms && launches[i].end_ms <= within->all_until_ms) {
            float ratio = work_ms(&launches[i], pieces, fit) / launches[i].cost_ms;
            *by_cost += ratio * NEAR >= 1 && ratio <= NEAR;
            ratios[known++] = (uint32_t)((ratio < MOST_RATIO ? ratio : MOST_RATIO) * PPM);
        }
    return known == 0 ? 1 : (float)hv_undisturbed(ratios, known, alike) / PPM;
}

static uint32_t explained(const struct hv_surveyed *launches, uint32_t count, const struct pieces *pieces,
                          const struct within *within, uint32_t fit)
{
    uint32_t alike, by_cost;
    (void)usual_of(launches, count, pieces, within, fit, &alike, &by_cost); /* not asked for */
    return alike + by_cost;
}

/* The way for which the surveys speak most. Where others' turns lengthen all launches none does. */
static uint32_t find_fit(const uint32_t *spoke)
{
    uint32_t fit = 0, most = spoke[0] + UNPROVEN;
    for (uint32_t i = 1; i < HV_SURVEY_FITS; i++)
        if (spoke[i] > most) {
            fit = i;
            most = spoke[i];
        }
    return fit;
}

/* Own turns were in the launch's time for so much of its work that is not found in the pieces yet: most likely just
 * before its end, when it was its turn. */
static void place(const struct hv_surveyed *launch, struct pieces *pieces, uint32_t fit, float work)
{
    for (uint32_t i = 0; i < pieces->count; i++)
        if (is_under_way(launch, pieces, i))
            work -= pieces->own_ms[i] * speed(pieces->beside[i], fit);
    for (uint32_t i = pieces->count; i-- > 0 && work > 0;) {
        if (!is_under_way(launch, pieces, i))
            continue;
        float left = pieces->at_ms[i + 1] - pieces->at_ms[i] - pieces->own_ms[i];
        float more = work / speed(pieces->beside[i], fit);
        more = more < left ? more : left;
        pieces->own_ms[i] += more;
        work -= more * speed(pieces->beside[i], fit);
    }
}

/* Those first that others' turns have delayed the least: they tell best when the process had its own. A cost is what
 * undisturbed launches take, so what is beyond it are others' turns; unless it is known that nobody else has any. */
static void find_own(const struct hv_surveyed *launches, uint32_t count, struct pieces *pieces,
                     const struct within *within, uint32_t fit, bool alone)
{
    uint32_t order[HV_SURVEYED], alike, by_cost;
    float delay[HV_SURVEYED], work[HV_SURVEYED];
    float usual = usual_of(launches, count, pieces, within, fit, &alike, &by_cost);
    for (uint32_t i = 0; i < pieces->count; i++)
        pieces->own_ms[i] = 0;
    for (uint32_t i = 0; i < count; i++) {
        float whole = work_ms(&launches[i], pieces, fit), most = launches[i].cost_ms * (usual < 1 ? usual : 1);
        work[i] = alone || whole < most ? whole : most;
        delay[i] = whole - work[i];
        uint32_t at = i;
        for (; at > 0 && (delay[order[at - 1]] > delay[i] ||
                          (delay[order[at - 1]] == delay[i] && launches[order[at - 1]].end_ms < launches[i].end_ms));
             at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    for (uint32_t i = 0; i < count; i++)
        place(&launches[order[i]], pieces, fit, work[order[i]]);
}

/* What costs charge for the part of the launch that lies within. */
static float charged_ms(const struct hv_surveyed *launch, const struct pieces *pieces, const struct within *within,
                        uint32_t fit)
{
    float all = 0, part = 0;
    for (uint32_t i = 0; i < pieces->count; i++) {
        if (!is_under_way(launch, pieces, i))
            continue;
        float work = pieces->own_ms[i] * speed(pieces->beside[i], fit);
        all += work;
        if (pieces->at_ms[i] >= within->from_ms && pieces->at_ms[i + 1] <= within->to_ms)
            part += work;
    }
    return all > 0 ? launch->cost_ms * part / all : 0;
}

static float own_within(const struct pieces *pieces, const struct within *within)
{
    float own = 0;
    for (uint32_t i = 0; i < pieces->count; i++)
        if (pieces->at_ms[i] >= within->from_ms && pieces->at_ms[i + 1] <= within->to_ms)
            own += pieces->own_ms[i];
    return own;
}

/* Whoever has work all the time has turns as long as anybody's: is so little own time found that it can't be? */
static bool is_too_little(const struct pieces *pieces, const struct within *within, uint32_t crowd)
{
    float all = within->to_ms - within->from_ms;
    if (crowd < 2 || all < (float)crowd * 2 * TURN_MS)
        return false;
    for (uint32_t i = 0; i < pieces->count; i++)
        if (pieces->beside[i] == 0 && pieces->at_ms[i] >= within->from_ms && pieces->at_ms[i + 1] <= within->to_ms &&
            pieces->at_ms[i + 1] > pieces->at_ms[i])
            return false;
    return (own_within(pieces, within) + TURN_MS) * (float)crowd < all;
}

static void measure(const struct hv_surveyed *launches, uint32_t count, struct pieces *pieces, const struct within *within,
                    uint32_t fit, uint32_t crowd, struct hv_survey_found *found)
{
    find_own(launches, count, pieces, within, fit, crowd == 1);
    found->covered_ms = own_within(pieces, within);
    found->charged_ms = 0;
    for (uint32_t i = 0; i < count; i++)
        found->charged_ms += charged_ms(&launches[i], pieces, within, fit);
}

bool hv_survey_time(const struct hv_surveyed *launches, uint32_t count, uint32_t crowd, uint32_t *spoke,
                    struct hv_survey_found *found)
{
    struct pieces pieces;
    struct within within;
    *found = (struct hv_survey_found){0};
    if (!find_within(launches, count, &within))
        return false;
    cut(launches, count, &pieces);
    for (uint32_t fit = 0; fit < HV_SURVEY_FITS; fit++)
        spoke[fit] += explained(launches, count, &pieces, &within, fit) - spoke[fit] / FADING;
    uint32_t fit = find_fit(spoke);
    measure(launches, count, &pieces, &within, fit, crowd, found);
    if (fit + 1 < HV_SURVEY_FITS &&
        (is_too_little(&pieces, &within, crowd) || found->covered_ms > found->charged_ms * NEAR)) {
        /* What else explains it is not known, but no more than all that was charged is GPU time. */
        spoke[fit] /= 2;
        measure(launches, count, &pieces, &within, HV_SURVEY_FITS - 1, crowd, found);
    }
    return found->charged_ms > 0;
}
