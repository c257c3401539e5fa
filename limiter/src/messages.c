#define _POSIX_C_SOURCE 200809L
#include "messages.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "attach.h"
#include "hypervisor_atomics.h"
#include "os.h"

static bool stderr_is_wanted(void)
{
    const char *level = hv_os_environment("TF_LOG_LEVEL");
    return level != NULL && level[0] != '\0' && strcmp(level, "off") != 0;
}

static void write_to_stderr(const char *text)
{
    if (!stderr_is_wanted())
        return;
    char line[HV_MESSAGE_TEXT_BYTES + 32];
    int length = snprintf(line, sizeof line, "libcuda_limiter: %s\n", text);
    /* Nobody can be told if stderr is closed. */
    if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0)
        return;
}

/* The ring has no lock: a place is taken by its number, and the sequence is
 * stored last. Two writers that are a whole ring apart can garble a text, and
 * a text is all that they can garble. */
static void write_to_ring(const struct hv_files *files, enum hv_message_code code, const char *text)
{
    struct hv_message_ring *ring = files->messages;
    uint64_t sequence = hv_add_acq_rel(&ring->next, 1);
    if (sequence == 0) /* a file of zeroes: sequences begin at 1 */
        sequence = hv_add_acq_rel(&ring->next, 1);
    struct hv_message *message = &ring->messages[sequence % HV_MESSAGES];
    hv_store_release(&message->sequence, 0);
    hv_store_relaxed(&message->at_ns, hv_os_now_ns());
    hv_store_relaxed_32(&message->code, (uint32_t)code);
    hv_store_relaxed_32(&message->pid, (uint32_t)getpid());
    memcpy(message->text, text, strnlen(text, HV_MESSAGE_TEXT_BYTES - 1) + 1);
    hv_store_release(&message->sequence, sequence);
}

void hv_tell(enum hv_message_code code, const char *format, ...)
{
    int saved = errno;
    char text[HV_MESSAGE_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (hv_attach_state() == HV_ATTACH_DONE)
        write_to_ring(hv_files(), code, text);
    write_to_stderr(text);
    errno = saved;
}

void hv_tell_refusal(const char *shm_path, const char *usage_path, const struct hv_files_fault *fault)
{
    int saved = errno;
    char text[HV_MESSAGE_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "CUDA is refused: the limit file %.120s %s; is the hypervisor running?",
                   shm_path, fault->reason);
    const struct hv_files *files = hv_files_open_usage(usage_path);
    if (files != NULL) {
        write_to_ring(files, fault->code, text);
        hv_files_close((struct hv_files *)(uintptr_t)files); /* the cast gives up const for the one who opened it */
    }
    write_to_stderr(text);
    errno = saved;
}
