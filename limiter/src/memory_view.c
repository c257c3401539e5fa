/* What the Pod sees of a device's memory. */
#include "memory.h"

#include "kept.h"
#include "ledger.h"

void hv_memory_view(uint32_t device, uint64_t card_total, uint64_t card_free, struct hv_memory_view *view)
{
    struct hv_device_terms terms;
    const struct hv_files *files = hv_files();
    *view = (struct hv_memory_view){0};
    if (!hv_terms_read(files, device, &terms)) {
        if (hv_terms_read(files, 0, &terms) && terms.isolation_mode != HV_ISOLATION_SOFT)
            *view = (struct hv_memory_view){.total = card_total, .free = card_free, .used = card_total - card_free};
        return;
    }
    bool virtualised = terms.isolation_mode == HV_ISOLATION_SOFT || terms.isolation_mode == HV_ISOLATION_HARD;
    if (!virtualised || terms.vram_limit_bytes >= card_total) {
        /* The card is the limit. */
        *view = (struct hv_memory_view){.total = card_total, .free = card_free, .used = card_total - card_free};
        return;
    }
    uint64_t used = hv_total_bytes(hv_load_relaxed(&files->devices[device]->total)) +
                    hv_load_relaxed(&files->control[device]->overhead_bytes);
    struct hv_process *process = hv_process();
    uint64_t kept = process == NULL ? 0 : hv_kept_sum(&process->kept, device);
    used = used > kept ? used - kept : 0;
    view->total = terms.vram_limit_bytes;
    view->used = used < view->total ? used : view->total;
    uint64_t left = view->total - view->used;
    view->free = left < card_free ? left : card_free;
}
