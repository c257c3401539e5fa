/* What kernels and copies cost. */
#include "internal.h"

#include <ctype.h>
#include <string.h>

/* `*` any run, `?` any one character. */
int sim_glob(const char *pattern, const char *text)
{
    const char *star = NULL, *mark = NULL;
    while (*text) {
        if (*pattern == '*') {
            star = pattern++;
            mark = text;
        } else if (*pattern == '?' || *pattern == *text) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star + 1;
            text = ++mark;
        } else {
            return 0;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == 0;
}

/* The number that begins here; *at is moved behind it. */
static uint64_t number(const char **at)
{
    uint64_t value = 0;
    for (; isdigit((unsigned char)**at) && value < UINT64_C(1000000000000); ++*at)
        value = value * 10 + (uint64_t)(**at - '0');
    return value;
}

/* The N of "sim_us<N>", anywhere in the name, so that mangled names work too. "sim_us<N>_then<M>_at<T>": M instead, once
 * the machine's clock says T milliseconds; the one kernel that changes without a new name. */
static int named_microseconds(const struct sim_machine *machine, const char *name, uint64_t *ns)
{
    const char *at = strstr(name, "sim_us");
    if (!at || !isdigit((unsigned char)at[6]))
        return 0;
    at += 6;
    uint64_t value = number(&at);
    if (strncmp(at, "_then", 5) == 0 && isdigit((unsigned char)at[5])) {
        at += 5;
        uint64_t then = number(&at);
        if (strncmp(at, "_at", 3) == 0 && isdigit((unsigned char)at[3])) {
            at += 3;
            value = sim_now(machine) / 1000000 >= number(&at) ? then : value;
        }
    }
    *ns = value * 1000;
    return 1;
}

int sim_kernel_changes(const char *name)
{
    const char *at = strstr(name, "sim_us");
    return at && strstr(at, "_then") != NULL;
}

uint64_t sim_kernel_cost(const struct sim_machine *machine, const char *name, const struct sim_kernel_shape *shape)
{
    uint64_t ns;
    if (named_microseconds(machine, name, &ns))
        return ns;
    for (uint32_t i = 0; i < machine->rule_count; i++)
        if (sim_glob(machine->rules[i].match, name))
            return machine->rules[i].ns + machine->rules[i].ns_per_block * min_u64(shape->blocks, UINT32_MAX);
    return 8000;
}

uint32_t sim_kernel_demand(const struct sim_machine *machine, uint32_t index, const struct sim_kernel_shape *shape)
{
    const struct sim_gpu_info *info = &machine->gpu[index].info;
    uint64_t threads = shape->threads_per_block ? shape->threads_per_block : 1;
    uint64_t per_sm = info->max_blocks_per_sm ? info->max_blocks_per_sm : 32;
    uint64_t sms = info->sm_count;
    if (info->max_threads_per_sm)
        per_sm = min_u64(per_sm, max_u64(info->max_threads_per_sm / threads, 1));
    if (shape->shared_bytes_per_block && info->shared_bytes_per_sm)
        per_sm = min_u64(per_sm, max_u64(info->shared_bytes_per_sm / shape->shared_bytes_per_block, 1));
    if (shape->registers_per_thread && info->registers_per_sm)
        per_sm = min_u64(per_sm, max_u64(info->registers_per_sm / (shape->registers_per_thread * threads), 1));
    uint64_t blocks = max_u64(shape->blocks, 1);
    uint64_t capacity = sms * per_sm;
    uint64_t demand = blocks >= capacity ? PPM : blocks * PPM / capacity;
    if (shape->sm_limit)
        demand = min_u64(demand, PPM * min_u64(shape->sm_limit, sms) / sms);
    return (uint32_t)min_u64(max_u64(demand, PPM / sms), PPM); /* at most PPM: fits */
}

uint64_t sim_copy_cost(const struct sim_machine *machine, uint32_t index, enum sim_engine engine, uint64_t bytes)
{
    const struct sim_gpu_info *info = &machine->gpu[index].info;
    uint64_t rate = engine == SIM_ENGINE_H2D ? info->host_to_device_bytes_per_s
                    : engine == SIM_ENGINE_D2H ? info->device_to_host_bytes_per_s
                                               : info->device_to_device_bytes_per_s;
    if (rate == 0 || bytes == 0)
        return 0;
    return (uint64_t)((unsigned __int128)bytes * 1000000000u / rate) + 1;
}
