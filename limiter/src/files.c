#include "files.h"

#include <string.h>

#include "compiler.h"
#include "hypervisor_flip.h"

/* ---- checking a file ---- */

struct section_need {
    enum hv_section_type type;
    uint32_t stride; /* at least */
    uint32_t count;
};

/* Where the section lies, NULL if it is missing or does not fit; *stride as
 * the file says. */
static unsigned char *find_needed(const struct hv_os_mapping *file, const struct section_need *need, uint32_t *stride)
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

#define find_section(file, type, element, count, stride)                                                              \
    find_needed(file, &(struct section_need){type, sizeof(struct element), count}, stride)

/* Told apart from the other faults by its address. */
static const char other_version[] = "is of another ABI version";

static const char *check_header(const struct hv_os_mapping *file, uint64_t magic)
{
    const struct hv_file_header *header = file->base;
    if (hv_load_acquire(&header->magic) != magic)
        return "is not a limit file, or is not complete yet";
    if (header->abi_major != HV_ABI_MAJOR)
        return other_version;
    if (header->header_bytes < sizeof *header || header->file_bytes > file->bytes ||
        header->file_bytes < sizeof *header || header->section_count > HV_MAX_SECTIONS)
        return "has a damaged header";
    return NULL;
}

static bool find_shm_sections(struct hv_files *files)
{
    uint32_t stride, limits_stride;
    unsigned char *state = find_section(&files->shm, HV_SECTION_STATE, hv_state, 1, &stride);
    unsigned char *limits = find_section(&files->shm, HV_SECTION_LIMITS, hv_limits, 2, &limits_stride);
    unsigned char *control =
        find_section(&files->shm, HV_SECTION_CONTROL, hv_device_control, HV_MAX_DEVICES, &stride);
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
    const struct hv_os_mapping *file = &files->usage;
    unsigned char *devices = find_section(file, HV_SECTION_DEVICES, hv_device_usage, HV_MAX_DEVICES, &stride);
    if (devices == NULL)
        return false;
    for (uint32_t i = 0; i < HV_MAX_DEVICES; i++)
        files->devices[i] = (void *)(devices + (size_t)i * stride);
    unsigned char *coverage = find_section(file, HV_SECTION_COVERAGE, hv_coverage, HV_MAX_DEVICES, &stride);
    for (uint32_t i = 0; i < HV_MAX_DEVICES && coverage != NULL; i++)
        files->coverage[i] = (void *)(coverage + (size_t)i * stride);
    files->contexts =
        find_section(file, HV_SECTION_CONTEXTS, hv_slot_contexts, HV_PROCESS_SLOTS, &files->contexts_stride);
    files->slots.occupancy = (void *)find_section(file, HV_SECTION_OCCUPANCY, hv_slot_occupancy, 1, &stride);
    files->messages = (void *)find_section(file, HV_SECTION_MESSAGES, hv_message_ring, 1, &stride);
    files->costs =
        find_section(file, HV_SECTION_COSTS, hv_learned_cost, HV_LEARNED_COSTS, &files->cost_stride);
    files->slots.slots =
        find_section(file, HV_SECTION_SLOTS, hv_process_slot, HV_PROCESS_SLOTS, &files->slots.stride);
    return files->slots.occupancy != NULL && files->messages != NULL && files->costs != NULL &&
           files->slots.slots != NULL;
}

void hv_files_close(struct hv_files *files)
{
    hv_os_unmap(&files->shm);
    hv_os_unmap(&files->usage);
    hv_os_free_pages(files, sizeof *files);
}

static const char *open_shm(struct hv_files *files, const char *path)
{
    enum hv_os_open_result opened = hv_os_map_file(path, false, sizeof(struct hv_file_header), &files->shm);
    if (opened != HV_OS_OPENED)
        return opened == HV_OS_NOT_THERE ? "does not exist" : "can't be read";
    const char *fault = check_header(&files->shm, HV_SHM_MAGIC);
    if (fault != NULL)
        return fault;
    if (!find_shm_sections(files))
        return "has a damaged section table";
    return hv_load_acquire_32(&files->state->armed) == 0 ? "is not armed yet" : NULL;
}

static const char *open_usage(struct hv_files *files, const char *path)
{
    enum hv_os_open_result opened = hv_os_map_file(path, true, sizeof(struct hv_file_header), &files->usage);
    if (opened != HV_OS_OPENED)
        return opened == HV_OS_NOT_THERE ? "has no usage file beside it" : "has a usage file that can't be written";
    if (check_header(&files->usage, HV_USAGE_MAGIC) != NULL)
        return "has a usage file that is not of this version";
    return find_usage_sections(files) ? NULL : "has a usage file with a damaged section table";
}

const struct hv_files *hv_files_open(const char *shm_path, const char *usage_path, struct hv_files_fault *fault)
{
    struct hv_files *files = hv_os_pages(sizeof *files);
    if (files == NULL) {
        *fault = (struct hv_files_fault){.reason = "finds no memory", .code = HV_MESSAGE_REFUSED};
        return NULL;
    }
    *fault = (struct hv_files_fault){.reason = open_shm(files, shm_path), .code = HV_MESSAGE_REFUSED, .may_pass = true};
    if (fault->reason == other_version)
        fault->code = HV_MESSAGE_ABI_MISMATCH;
    if (fault->reason == NULL)
        fault->reason = open_usage(files, usage_path);
    if (fault->reason == NULL)
        return files;
    hv_files_close(files);
    return NULL;
}

const struct hv_files *hv_files_open_usage(const char *usage_path)
{
    struct hv_files *files = hv_os_pages(sizeof *files);
    if (files == NULL || open_usage(files, usage_path) == NULL)
        return files;
    hv_files_close(files);
    return NULL;
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
    terms->device_count = hv_load_relaxed_32(&limits->device_count);
}

/* Reads what is in force in one piece; the generation that it is of. */
static HV_ALWAYS_INLINE uint64_t read_in_force(const struct hv_files *files, hv_flip_copy *copy, void *context)
{
    struct hv_flip_read machine = {.generation = &files->state->generation, .at = HV_READ_BEFORE};
    while (machine.at != HV_READ_DONE)
        hv_read_step(&machine, copy, context);
    return machine.before;
}

struct terms_read {
    const struct hv_files *files;
    struct hv_device_terms *terms;
    uint32_t device;
    bool there;
};

static bool read_terms(void *context, uint64_t slot)
{
    struct terms_read *read = context;
    const struct hv_limits *limits = read->files->limits[slot];
    read->there = read->device < HV_MAX_DEVICES && read->device < hv_load_relaxed_32(&limits->device_count);
    if (read->there)
        copy_terms(limits, read->device, read->terms);
    return true;
}

bool hv_terms_read(const struct hv_files *files, uint32_t device, struct hv_device_terms *terms)
{
    struct terms_read read = {.files = files, .terms = terms, .device = device};
    terms->generation = read_in_force(files, read_terms, &read);
    return read.there;
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

/* A device by its name: the 16 bytes, or NVML's text. The names are read in
 * place and the result is thrown away if the limits were replaced meanwhile. */
struct device_search {
    const struct hv_files *files;
    const unsigned char *uuid; /* NULL: by the text */
    const char *text;
    uint32_t found; /* HV_MAX_DEVICES: it is not there */
};

static bool is_wanted(const struct device_search *search, const char *stored)
{
    return search->uuid != NULL ? uuid_is(stored, search->uuid)
                                : strncmp(stored, search->text, HV_DEVICE_UUID_BYTES) == 0;
}

static bool search_device(void *context, uint64_t slot)
{
    struct device_search *search = context;
    const struct hv_limits *limits = search->files->limits[slot];
    uint32_t count = hv_load_relaxed_32(&limits->device_count);
    count = count < HV_MAX_DEVICES ? count : HV_MAX_DEVICES;
    search->found = 0;
    while (search->found < count && !is_wanted(search, limits->devices[search->found].uuid))
        search->found++;
    if (search->found == count)
        search->found = HV_MAX_DEVICES;
    return true;
}

uint32_t hv_device_by_uuid(const struct hv_files *files, const unsigned char uuid[16], uint64_t *generation)
{
    struct device_search search = {.files = files, .uuid = uuid};
    *generation = read_in_force(files, search_device, &search);
    return search.found;
}

uint32_t hv_device_by_uuid_text(const struct hv_files *files, const char *uuid)
{
    struct device_search search = {.files = files, .text = uuid};
    (void)read_in_force(files, search_device, &search); /* of whichever generation */
    return search.found;
}

struct host_limit_read {
    const struct hv_files *files;
    uint64_t bytes;
};

static bool read_host_limit(void *context, uint64_t slot)
{
    struct host_limit_read *read = context;
    read->bytes = hv_load_relaxed(&read->files->limits[slot]->host_memory_limit_bytes);
    return true;
}

uint64_t hv_host_memory_limit(const struct hv_files *files)
{
    struct host_limit_read read = {.files = files};
    (void)read_in_force(files, read_host_limit, &read); /* of whichever generation */
    return read.bytes;
}
