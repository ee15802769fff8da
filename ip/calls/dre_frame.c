#include "openvrex_dre.h"

#define POLLS 1000000u

/* The n keys of a frame, sent on s_axis_k, with entries from `fresh` on; clusters[i] is the cluster of key i. */
enum openvrex_dre_result dre_keys(const struct openvrex_dre *dre, uint64_t fresh, uint32_t n, uint64_t *clusters)
{
    enum openvrex_dre_result result = OPENVREX_DRE_OK;
    uint32_t i, size = OPENVREX_DRE_READ(dre, identity.entry_bytes);

    for (i = 0; i < n && result == OPENVREX_DRE_OK; i++) {
        result = openvrex_dre_cluster(dre, 0, 0, POLLS, &clusters[i], NULL);
        if (result == OPENVREX_DRE_OK)
            result = openvrex_dre_place(dre, fresh + (uint64_t)i * size, 1, POLLS);
    }
    return result;
}

/* The context of the rows that follow; *clusters: codes of a row. Send the rows before `dre_fetch`. */
enum openvrex_dre_result dre_rows(const struct openvrex_dre *dre, uint32_t context, uint64_t *clusters)
{
    return openvrex_dre_switch(dre, context, POLLS, clusters);
}

/* A query block, sent on s_axis_s: at most `room` entries to `buffer`; *entries: how many there are. */
enum openvrex_dre_result dre_fetch(const struct openvrex_dre *dre, uint64_t buffer, uint32_t room, uint64_t *entries)
{
    return openvrex_dre_fetch(dre, buffer, room, POLLS, entries);
}
