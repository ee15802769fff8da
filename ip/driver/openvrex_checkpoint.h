/* Checkpoints of contexts: save a context, and let it continue in another context, block of memory or device.
 *
 * Memory holds everything that the block knows of a context. A checkpoint holds the same bytes in a form that does not
 * depend on where they lie. Arrays of your programs, such as sums of keys, are yours to save. A stream has a context for
 * each layer, or for each head group of a layer: save them all.
 *
 * In this order, all little-endian:
 *   header    four words of 32 bits: checksum of the layout, bytes of an entry, number of clusters, number of blocks.
 *             With a home of 4 bits a number, the upper 8 bits of the second word are the group
 *   PLACE     the item, as in memory, with its check bits
 *   RING      an item for each slot of the ring that holds an entry
 *   HASH, COUNT, ROW   an item for each cluster. The blocks of ROW are numbered from 0 on in the order of the clusters
 *   entries   those in the ring, by slot; then those at home as they lie there, by cluster and slot
 */
#ifndef OPENVREX_CHECKPOINT_H
#define OPENVREX_CHECKPOINT_H

#include "core_ip_tables.h"
#include "openvrex_block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes from table_base on that the pool and the tables of contexts 0 to `contexts` - 1 take. */
#define OPENVREX_TABLES_BYTES(contexts) \
    (CORE_IP_TABLES__POOL_BYTES + (uint64_t)(contexts) * CORE_IP_TABLES__TABLE_BYTES)

/* The memory behind the block's AXI4 managers, by the addresses that it uses. */
struct openvrex_memory {
    void (*read)(void *memory, uint64_t address, void *bytes, size_t count);
    void (*write)(void *memory, uint64_t address, const void *bytes, size_t count);
    void *memory; /* first argument of both */
};

/* Write the checkpoint of context `ctx` by calls of `put`, which returns 0 if it succeeds. Changes nothing in memory.
 *
 * BUSY while something runs or the bus owes an answer, FAULT after a fault, MEMORY if check bits cannot correct an item
 * or a chain of blocks does not end, FILE if `put` fails. */
enum openvrex_result openvrex_save(const struct openvrex *device, const struct openvrex_memory *memory, uint32_t ctx,
                                   int (*put)(void *file, const void *bytes, size_t count), void *file);

/* Let the empty context `ctx` be what a checkpoint says, which `get` gives, and reset the block as openvrex_reset does:
 * it must read the pool again. Other contexts keep their state.
 *
 * BUSY, FAULT and MEMORY as above; USED if the context is not empty, FULL if the pool has too few free blocks,
 * CHECKPOINT for one of another layout or with impossible numbers, FILE if `get` does not return 0. Then the context is
 * empty, and the pool as it was. */
enum openvrex_result openvrex_restore(const struct openvrex *device, const struct openvrex_memory *memory, uint32_t ctx,
                                      int (*get)(void *file, void *bytes, size_t count), void *file, uint32_t polls);

#ifdef __cplusplus
}
#endif

#endif
