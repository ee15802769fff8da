/* Driver of an OpenVRex DRE in C99: openvrex_dre_block.h, and commands.
 *
 * The GPU or NPU sends keys and rows of scores on streams; software gives one command at a time, key by key:
 * openvrex_dre_cluster, then openvrex_dre_place. Then openvrex_dre_switch, rows, and openvrex_dre_fetch.
 */
#ifndef OPENVREX_DRE_H
#define OPENVREX_DRE_H

#include "openvrex_dre_block.h"

#ifdef __cplusplus
extern "C" {
#endif

enum openvrex_dre_action {
    OPENVREX_DRE_CLUSTER = 0, /* take the cluster of the next key */
    OPENVREX_DRE_PLACE = 1,   /* copy entries into the ring, and those that they displace to their homes */
    OPENVREX_DRE_FETCH = 2,   /* copy the selected entries of the next query block */
    OPENVREX_DRE_CLEAR = 3,   /* empty a context */
    OPENVREX_DRE_SWITCH = 4,  /* choose the context of the rows that follow */
    OPENVREX_DRE_BUDGET = 5   /* the same, and each row selects the fewest clusters that hold `entries` tokens */
};

struct openvrex_dre_command {
    enum openvrex_dre_action action;
    uint64_t base;    /* an address, or a context */
    uint32_t entries; /* 1 to 65536 */
    uint32_t shift;   /* left shift of a result, 0 to 31 */
};

/* Start a command, which an interrupt or a poll will end. RANGE for one that the registers cannot hold. */
enum openvrex_dre_result openvrex_dre_start(const struct openvrex_dre *device,
                                            const struct openvrex_dre_command *command);

/* Start a command and poll until it has ended. `result` and `count` get what it gives, unless they are NULL. */
enum openvrex_dre_result openvrex_dre_run(const struct openvrex_dre *device, const struct openvrex_dre_command *command,
                                          uint32_t polls, uint64_t *result, uint64_t *count);

/* Take the cluster of the next key: `row` gets `base` + (its number << shift), `clusters` how many its context has. */
enum openvrex_dre_result openvrex_dre_cluster(const struct openvrex_dre *device, uint64_t base, uint32_t shift,
                                              uint32_t polls, uint64_t *row, uint64_t *clusters);

/* Copy `entries` fresh entries from `base` on into the ring. */
enum openvrex_dre_result openvrex_dre_place(const struct openvrex_dre *device, uint64_t base, uint32_t entries,
                                            uint32_t polls);

/* Choose the context of the rows that follow; `clusters` gets how many codes a row has. */
enum openvrex_dre_result openvrex_dre_switch(const struct openvrex_dre *device, uint32_t context, uint32_t polls,
                                             uint64_t *clusters);

/* Copy the selected entries of the next query block to `base`, where there is room for `room`; `entries` gets how
 * many there are. */
enum openvrex_dre_result openvrex_dre_fetch(const struct openvrex_dre *device, uint64_t base, uint32_t room,
                                            uint32_t polls, uint64_t *entries);

/* Empty a context and return its blocks. */
enum openvrex_dre_result openvrex_dre_clear(const struct openvrex_dre *device, uint32_t context, uint32_t polls);

#ifdef __cplusplus
}
#endif

#endif
