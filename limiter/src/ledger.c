#include "ledger.h"

#include <stddef.h>

#include "compiler.h"

/* At once, while the line that total and peak share is this processor's. */
static void note_peak(uint64_t *word, uint64_t bytes)
{
    uint64_t peak = hv_load_relaxed(word);
    while (bytes > peak && !hv_cas_relaxed(word, &peak, bytes)) {
    }
}

bool hv_ledger_reserve(const struct hv_account *account, uint64_t n, uint64_t limit)
{
    struct hv_ledger_operation operation = {.account = *account, .n = n, .limit = limit, .at = HV_LEDGER_MARK};
    while (operation.at != HV_LEDGER_GRANTED && operation.at != HV_LEDGER_REFUSED) {
        HV_CRASH_POINT("reserve");
        hv_reserve_step(&operation);
        if (operation.at == HV_LEDGER_OWN && account->peak != NULL)
            note_peak(account->peak, hv_total_bytes(operation.seen) + n);
    }
    HV_CRASH_POINT("reserve");
    return operation.at == HV_LEDGER_GRANTED;
}

void hv_ledger_release(const struct hv_account *account, uint64_t n)
{
    struct hv_ledger_operation operation = {.account = *account, .n = n, .at = HV_LEDGER_MARK};
    while (operation.at != HV_LEDGER_GRANTED) {
        HV_CRASH_POINT("release");
        hv_release_step(&operation);
    }
    HV_CRASH_POINT("release");
}
