#include "attach.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compiler.h"
#include "messages.h"

/* Tests put another directory here. */
#ifndef HV_FIXED_DIRECTORY
#define HV_FIXED_DIRECTORY HV_CONTAINER_DIRECTORY
#endif

#define DEFAULT_WAIT_MS 10000
#define POLL_NS UINT64_C(5000000)
#define NS_PER_MS UINT64_C(1000000)
#define PATH_BYTES 4096

uint32_t hv_attach_word;
const struct hv_files *hv_attached_files;

/* ---- checking a file ---- */

struct section_need {
    enum hv_section_type type;
    uint32_t stride; /* at least */
    uint32_t count;
};

/* Where the section lies, NULL if it is missing or does not fit; *stride as
 * the file says. */
static unsigned char *find_section(const struct hv_os_mapping *file, const struct section_need *need, uint32_t *stride)
{
    const struct hv_file_header *header = file->base;
    for (uint32_t i = 0; i < header->section_count && i < HV_MAX_SECTIONS; i++) {
        struct hv_section section = header->sections[i];
        if (section.type != (uint32_t)need->type)
            continue;
        if (section.stride < need->stride || section.stride % 8 != 0 || section.offset % 4096 != 0 ||
            section.offset < sizeof *header || section.offset > header->file_bytes ||
            section.length > header->file_bytes - section.offset ||
            section.length / section.stride < need->count)
            return NULL;
        *stride = section.stride;
        return (unsigned char *)file->base + section.offset;
    }
    return NULL;
}

static const char *check_header(const struct hv_os_mapping *file, uint64_t magic)
{
    const struct hv_file_header *header = file->base;
    if (hv_load_acquire(&header->magic) != magic)
        return "is not a limit file, or is not complete yet";
    if (header->abi_major != HV_ABI_MAJOR)
        return "is of another ABI version";
    if (header->header_bytes < sizeof *header || header->file_bytes > file->bytes ||
        header->file_bytes < sizeof *header || header->section_count > HV_MAX_SECTIONS)
        return "has a damaged header";
    return NULL;
}

static bool find_shm_sections(struct hv_files *files)
{
    uint32_t stride;
    unsigned char *state = find_section(&files->shm, &(struct section_need){HV_SECTION_STATE, sizeof(struct hv_state), 1}, &stride);
    unsigned char *limits = find_section(&files->shm, &(struct section_need){HV_SECTION_LIMITS, sizeof(struct hv_limits), 2}, &stride);
    uint32_t limits_stride = stride;
    unsigned char *control = find_section(
        &files->shm, &(struct section_need){HV_SECTION_CONTROL, sizeof(struct hv_device_control), HV_MAX_DEVICES}, &stride);
    if (state == NULL || limits == NULL || control == NULL)
        return false;
    /* Sections begin on pages and strides are multiples of 8: aligned for the structs. */
    files->state = (const void *)state;
    files->limits[0] = (const void *)limits;
    files->limits[1] = (const void *)(limits + limits_stride);
    for (uint32_t i = 0; i < HV_MAX_DEVICES; i++)
        files->control[i] = (const void *)(control + (size_t)i * stride);
    return true;
}

static bool find_usage_sections(struct hv_files *files)
{
    uint32_t stride;
    unsigned char *devices = find_section(
        &files->usage, &(struct section_need){HV_SECTION_DEVICES, sizeof(struct hv_device_usage), HV_MAX_DEVICES}, &stride);
    if (devices == NULL)
        return false;
    for (uint32_t i = 0; i < HV_MAX_DEVICES; i++)
        files->devices[i] = (void *)(devices + (size_t)i * stride);
    unsigned char *occupancy = find_section(
        &files->usage, &(struct section_need){HV_SECTION_OCCUPANCY, sizeof(struct hv_slot_occupancy), 1}, &stride);
    unsigned char *messages = find_section(
        &files->usage, &(struct section_need){HV_SECTION_MESSAGES, sizeof(struct hv_message_ring), 1}, &stride);
    files->costs = find_section(
        &files->usage, &(struct section_need){HV_SECTION_COSTS, sizeof(struct hv_learned_cost), HV_LEARNED_COSTS},
        &files->cost_stride);
    files->slots.slots = find_section(
        &files->usage, &(struct section_need){HV_SECTION_SLOTS, sizeof(struct hv_process_slot), HV_PROCESS_SLOTS},
        &files->slots.stride);
    files->slots.occupancy = (void *)occupancy;
    files->messages = (void *)messages;
    return occupancy != NULL && messages != NULL && files->costs != NULL && files->slots.slots != NULL;
}

static void close_files(struct hv_files *files)
{
    hv_os_unmap(&files->shm);
    hv_os_unmap(&files->usage);
    hv_os_free_pages(files, sizeof *files);
}

static const char *open_into(struct hv_files *files, const char *shm_path, const char *usage_path, bool *retry)
{
    *retry = true;
    enum hv_os_open_result opened = hv_os_map_file(shm_path, false, sizeof(struct hv_file_header), &files->shm);
    if (opened != HV_OS_OPENED)
        return opened == HV_OS_NOT_THERE ? "does not exist" : "can't be read";
    const char *fault = check_header(&files->shm, HV_SHM_MAGIC);
    if (fault != NULL)
        return fault;
    if (!find_shm_sections(files))
        return "has a damaged section table";
    if (hv_load_acquire_32(&files->state->armed) == 0)
        return "is not armed yet";
    opened = hv_os_map_file(usage_path, true, sizeof(struct hv_file_header), &files->usage);
    if (opened != HV_OS_OPENED)
        return opened == HV_OS_NOT_THERE ? "has no usage file beside it" : "has a usage file that can't be written";
    fault = check_header(&files->usage, HV_USAGE_MAGIC);
    if (fault != NULL)
        return "has a usage file that is not of this version";
    if (!find_usage_sections(files))
        return "has a usage file with a damaged section table";
    return NULL;
}

const struct hv_files *hv_files_open(const char *shm_path, const char *usage_path, const char **reason, bool *retry)
{
    struct hv_files *files = hv_os_pages(sizeof *files);
    if (files == NULL) {
        *reason = "finds no memory";
        *retry = false;
        return NULL;
    }
    *reason = open_into(files, shm_path, usage_path, retry);
    if (*reason == NULL)
        return files;
    close_files(files);
    return NULL;
}

/* ---- where the files are ---- */

struct paths {
    char shm[PATH_BYTES];
    char usage[PATH_BYTES];
};

static bool join(char *out, const char *directory, size_t directory_length, const char *name)
{
    int length = snprintf(out, PATH_BYTES, "%.*s/%s", (int)directory_length, directory, name);
    return length > 0 && length < PATH_BYTES;
}

static bool in_directory(struct paths *paths, const char *directory, size_t length)
{
    return join(paths->shm, directory, length, HV_SHM_FILE_NAME) &&
           join(paths->usage, directory, length, HV_USAGE_FILE_NAME);
}

static bool soft_mode(void)
{
    const char *mode = hv_os_environment("TF_ISOLATION_MODE");
    return mode != NULL && strcmp(mode, "soft") == 0;
}

/* false: this process is not to be limited. The fixed path wins, and a path
 * that we may not look at counts as there: nobody gets out by hiding it. */
static bool find_paths(struct paths *paths)
{
    if (!in_directory(paths, HV_FIXED_DIRECTORY, strlen(HV_FIXED_DIRECTORY)))
        return false;
    if (hv_os_path_kind(paths->shm) != HV_OS_PATH_ABSENT)
        return true;
    const char *named = hv_os_environment("TF_SHM_PATH");
    if (named == NULL || named[0] == '\0')
        return soft_mode();
    size_t length = strlen(named);
    if (hv_os_path_kind(named) == HV_OS_PATH_DIRECTORY)
        return in_directory(paths, named, length);
    const char *slash = strrchr(named, '/');
    const char *directory = slash == NULL ? "." : named;
    size_t directory_length = slash == NULL ? 1 : (size_t)(slash - named);
    int written = snprintf(paths->shm, PATH_BYTES, "%s", named);
    return written > 0 && written < PATH_BYTES && join(paths->usage, directory, directory_length, HV_USAGE_FILE_NAME);
}

/* ---- deciding ---- */

static uint64_t wait_ns(void)
{
    const char *text = hv_os_environment("TF_LIMITER_WAIT_MS");
    if (text == NULL || text[0] < '0' || text[0] > '9')
        return DEFAULT_WAIT_MS * NS_PER_MS;
    uint64_t milliseconds = 0;
    for (; *text >= '0' && *text <= '9' && milliseconds < 10 * 60 * 1000; text++)
        milliseconds = milliseconds * 10 + (uint64_t)(*text - '0');
    return milliseconds * NS_PER_MS;
}

/* No lock: threads that attach at once each map the files, the first one
 * publishes its mapping and the others drop theirs. A fork meanwhile does no
 * harm. */
static void publish(const struct hv_files *files)
{
    const struct hv_files *none = NULL;
    if (!__atomic_compare_exchange_n(&hv_attached_files, &none, files, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        /* The cast gives up const for the one who made it. */
        close_files((struct hv_files *)(uintptr_t)files);
    }
    hv_store_release_32(&hv_attach_word, HV_ATTACH_DONE);
}

static enum hv_attach_state attach_until(uint64_t deadline_ns)
{
    struct paths paths;
    if (!find_paths(&paths)) {
        hv_store_release_32(&hv_attach_word, HV_ATTACH_ABSENT);
        return HV_ATTACH_ABSENT;
    }
    for (;;) {
        const char *reason;
        bool retry;
        const struct hv_files *files = hv_files_open(paths.shm, paths.usage, &reason, &retry);
        if (files != NULL) {
            publish(files);
            return HV_ATTACH_DONE;
        }
        uint64_t now = hv_os_now_ns();
        if (!retry || now >= deadline_ns) {
            hv_tell_refusal(paths.shm, reason);
            hv_store_release_32(&hv_attach_word, HV_ATTACH_REFUSED);
            return HV_ATTACH_REFUSED;
        }
        hv_os_wait_until(now + POLL_NS < deadline_ns ? now + POLL_NS : deadline_ns);
        if (!find_paths(&paths)) /* the fixed path may have come */
            return HV_ATTACH_REFUSED;
    }
}

HV_NOINLINE enum hv_attach_state hv_attach_decide(void)
{
    return attach_until(hv_os_now_ns() + wait_ns());
}

enum hv_attach_state hv_attach_again(void)
{
    return attach_until(0);
}

bool hv_attach_is_wanted(void)
{
    enum hv_attach_state state = hv_attach_state();
    if (state != HV_ATTACH_UNDECIDED)
        return state != HV_ATTACH_ABSENT;
    struct paths paths;
    if (find_paths(&paths))
        return true;
    hv_store_release_32(&hv_attach_word, HV_ATTACH_ABSENT);
    return false;
}

/* ---- reading limits ---- */

/* Each field is copied with a relaxed load: the daemon may be filling this
 * slot if we are two generations late, which the check afterwards finds. */
static void copy_terms(const struct hv_limits *limits, uint32_t device, struct hv_device_terms *terms)
{
    const struct hv_device_limit *limit = &limits->devices[device];
    terms->vram_limit_bytes = hv_load_relaxed(&limit->vram_limit_bytes);
    terms->burst_ns = hv_load_relaxed(&limit->burst_ns);
    terms->debt_limit_ns = hv_load_relaxed(&limit->debt_limit_ns);
    terms->limit_share_ppm = hv_load_relaxed_32(&limit->limit_share_ppm);
    terms->policy = hv_load_relaxed_32(&limit->policy);
    terms->flags = hv_load_relaxed_32(&limit->flags);
    terms->isolation_mode = hv_load_relaxed_32(&limits->isolation_mode);
}

bool hv_terms_read(const struct hv_files *files, uint32_t device, struct hv_device_terms *terms)
{
    for (;;) {
        uint64_t generation = hv_generation(files);
        const struct hv_limits *limits = files->limits[generation & 1];
        bool there = device < HV_MAX_DEVICES && device < hv_load_relaxed_32(&limits->device_count);
        if (there)
            copy_terms(limits, device, terms);
        terms->generation = generation;
        hv_fence_acquire();
        if (hv_load_relaxed(&files->state->generation) == generation)
            return there;
    }
}

static uint32_t hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return (uint32_t)(digit - '0');
    if (digit >= 'a' && digit <= 'f')
        return (uint32_t)(digit - 'a' + 10);
    if (digit >= 'A' && digit <= 'F')
        return (uint32_t)(digit - 'A' + 10);
    return 16;
}

/* "GPU-" or "MIG-" and 32 digits with dashes anywhere. */
static bool uuid_is(const char *text, const unsigned char uuid[16])
{
    if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
        return false;
    uint32_t digits = 0;
    for (uint32_t i = 4; i < HV_DEVICE_UUID_BYTES && text[i] != '\0'; i++) {
        if (text[i] == '-')
            continue;
        uint32_t digit = hex_digit(text[i]);
        if (digits == 32 || digit != (digits % 2 == 0 ? uuid[digits / 2] >> 4 : uuid[digits / 2] & 0xf))
            return false;
        digits++;
    }
    return digits == 32;
}

static bool same_uuid_text(const char *stored, const char *uuid)
{
    return strncmp(stored, uuid, HV_DEVICE_UUID_BYTES) == 0;
}

/* The names are read in place and the result is thrown away if the limits were
 * replaced meanwhile. */
uint32_t hv_device_by_uuid(const struct hv_files *files, const unsigned char uuid[16], uint64_t *generation)
{
    uint32_t found;
    do {
        *generation = hv_generation(files);
        const struct hv_limits *limits = files->limits[*generation & 1];
        for (found = 0; found < HV_MAX_DEVICES; found++)
            if (found >= limits->device_count || uuid_is(limits->devices[found].uuid, uuid))
                break;
        if (found >= limits->device_count)
            found = HV_MAX_DEVICES;
        hv_fence_acquire();
    } while (hv_load_relaxed(&files->state->generation) != *generation);
    return found;
}

uint32_t hv_device_by_uuid_text(const struct hv_files *files, const char *uuid)
{
    uint32_t found;
    uint64_t generation;
    do {
        generation = hv_generation(files);
        const struct hv_limits *limits = files->limits[generation & 1];
        for (found = 0; found < HV_MAX_DEVICES; found++)
            if (found >= limits->device_count || same_uuid_text(limits->devices[found].uuid, uuid))
                break;
        if (found >= limits->device_count)
            found = HV_MAX_DEVICES;
        hv_fence_acquire();
    } while (hv_load_relaxed(&files->state->generation) != generation);
    return found;
}

uint64_t hv_host_memory_limit(const struct hv_files *files)
{
    for (;;) {
        uint64_t generation = hv_generation(files);
        uint64_t limit = hv_load_relaxed(&files->limits[generation & 1]->host_memory_limit_bytes);
        hv_fence_acquire();
        if (hv_load_relaxed(&files->state->generation) == generation)
            return limit;
    }
}
