/* The crash points of the library (crash_sites.h): their numbers, which of
 * them were passed and how often, and the one at which the process dies. */
#define _GNU_SOURCE
#include "crash_sites.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

extern struct hv_crash_site __start_hv_crash_sites[];
extern struct hv_crash_site __stop_hv_crash_sites[];

static uint64_t *passed; /* two words a site: before its store, after it; shared with who watches */
static uint32_t chosen;  /* number of the site; 0: nobody dies */
static uint32_t chosen_after;
static uint64_t passes_left;

EXPORT uint32_t hv_crash_sites(void);
EXPORT const char *hv_crash_site_file(uint32_t number);
EXPORT uint32_t hv_crash_site_line(uint32_t number);
EXPORT void hv_crash_watch(uint64_t *words);
EXPORT void hv_crash_choose(uint32_t number, uint32_t after, uint64_t pass);

static int is_same(const struct hv_crash_site *a, const struct hv_crash_site *b)
{
    return a->line == b->line && strcmp(a->file, b->file) == 0;
}

/* Numbers them from 1, in the order of the section; returns how many there are. */
uint32_t hv_crash_sites(void)
{
    uint32_t count = 0;
    for (struct hv_crash_site *site = __start_hv_crash_sites; site < __stop_hv_crash_sites; site++) {
        struct hv_crash_site *other = __start_hv_crash_sites;
        while (!is_same(other, site))
            other++;
        site->number = other == site ? ++count : other->number;
    }
    return count;
}

static const struct hv_crash_site *numbered(uint32_t number)
{
    struct hv_crash_site *site = __start_hv_crash_sites;
    while (site->number != number)
        site++;
    return site;
}

const char *hv_crash_site_file(uint32_t number)
{
    return numbered(number)->file;
}

uint32_t hv_crash_site_line(uint32_t number)
{
    return numbered(number)->line;
}

void hv_crash_watch(uint64_t *words)
{
    passed = words;
}

void hv_crash_choose(uint32_t number, uint32_t after, uint64_t pass)
{
    chosen_after = after;
    passes_left = pass;
    chosen = number;
}

void hv_crash_at(const struct hv_crash_site *site, uint32_t after)
{
    if (passed == NULL || site->number == 0)
        return;
    (void)(__atomic_add_fetch)(&passed[2 * site->number + after], 1, __ATOMIC_RELAXED);
    if (site->number == chosen && after == chosen_after &&
        (__atomic_sub_fetch)(&passes_left, 1, __ATOMIC_RELAXED) == 0)
        (void)kill(getpid(), SIGKILL);
}
