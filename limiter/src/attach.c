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
        hv_files_close((struct hv_files *)(uintptr_t)files);
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
        struct hv_files_fault fault;
        const struct hv_files *files = hv_files_open(paths.shm, paths.usage, &fault);
        if (files != NULL) {
            publish(files);
            return HV_ATTACH_DONE;
        }
        uint64_t now = hv_os_now_ns();
        if (!fault.may_pass || now >= deadline_ns) {
            hv_tell_refusal(paths.shm, paths.usage, &fault);
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
