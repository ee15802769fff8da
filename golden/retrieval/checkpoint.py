"""Checkpoints: the bytes of a context, which continue on another device, in another context and in other blocks.

A checkpoint holds everything that the engine knows of a context, without anything of the other contexts. Two contexts
that behave alike have the same checkpoint, whatever their blocks are. In this order, all little-endian:

=================  ====================================================================================================
part               bytes
=================  ====================================================================================================
header             four words of 32 bits: checksum of the layout, bytes of an entry, number of clusters, number of
                   blocks. With a 4-bit home (`kvmu.kv4_group`) the upper 8 bits of the second word are the group
PLACE              the item, as in memory (`golden.retrieval.table_layout`), with its check bits
RING               an item for each slot of the ring that holds an entry
HASH, COUNT, ROW   an item for each cluster. The blocks of ROW are numbered from 0 on in the order of the clusters, as
                   if the context were alone in an empty pool; so blocks of a cluster follow one another
entries            those in the ring, by slot; then those at home as they lie there, by cluster and slot
=================  ====================================================================================================

`ip/driver/openvrex_checkpoint.c` does the same on the memory of a device.
"""

import struct

import numpy as np

from openvrex.golden.arithmetic.secded import Verdict, decode, encode
from openvrex.golden.function_params import check
from openvrex.golden.retrieval.cluster_items import cluster_items
from openvrex.golden.retrieval.clustering import Clusterer
from openvrex.golden.retrieval.dre_model import DreModel
from openvrex.golden.retrieval.hashing import to_words
from openvrex.golden.retrieval.kvmap import KvMap
from openvrex.golden.retrieval.map_items import context_items
from openvrex.golden.retrieval.table_layout import Item, TableLayout

HEADER = struct.Struct("<4I")
GROUP = 24  # bit of the second word at which the group of a 4-bit home begins


def save(layout: TableLayout, model: DreModel, memory: np.ndarray, ctx: int) -> bytes:
    """The checkpoint of context `ctx` of `model`, whose entries are in `memory` (uint8, by address)."""
    kv, table = model.kv, model.tables.get(ctx) or Clusterer(model.params)
    c = kv.contexts.get(ctx)
    clusters = {k: (len(own.entries), own.offloaded) for k, own in c.clusters.items()} if c else {}
    alone = kv.like()
    alone.adopt(ctx, clusters, list(c.ring) if c else [])
    items = cluster_items(table) | context_items(layout, alone, ctx, table.counts.tolist())
    for place in range(layout.kept):  # a context takes no kept block with it
        items.pop((Item.RING, layout.recent + place), None)
    out = [HEADER.pack(layout.checksum, kv.entry_bytes | kv.sizes.kv4_group << GROUP, len(table), alone.fresh)]
    for item in (Item.PLACE, Item.RING, Item.HASH, Item.COUNT, Item.ROW):
        for index in sorted(i for kind, i in items if kind == item):
            word = encode(items[item, index], layout.bits(item), layout.protect)
            out.append(word.to_bytes(layout.bytes(item), "little"))
    return b"".join(out) + b"".join(memory[place].tobytes() for place in _places(kv, ctx))


def restore(layout: TableLayout, model: DreModel, memory: np.ndarray, ctx: int, checkpoint: bytes) -> None:
    """Let the empty context `ctx` be as the checkpoint says, in blocks that `model` takes, with entries in `memory`.

    Raises `ParamError` for a checkpoint of another layout, a context that holds something, a pool with too few free
    blocks, and more blocks than the quota. Then nothing changes.
    """
    kv = model.kv
    checksum, size, level, _ = HEADER.unpack_from(checkpoint)
    check(checksum == layout.checksum, "checkpoint", hex(checksum), f"must have the layout {layout.checksum:#x}")
    size, group = size & (1 << GROUP) - 1, size >> GROUP
    check(size == kv.entry_bytes, "checkpoint", size, f"must have entries of {kv.entry_bytes} bytes")
    check(group == kv.sizes.kv4_group, "checkpoint", group, f"must have a home of kv4_group = {kv.sizes.kv4_group}")
    check(model.level(ctx) == 0, "ctx", ctx, "must be empty: clear it first")
    at = HEADER.size

    def words(item: Item, n: int) -> list[int]:
        nonlocal at
        bytes_ = layout.bytes(item)
        parts = [checkpoint[at + i * bytes_ : at + (i + 1) * bytes_] for i in range(n)]
        at += n * bytes_
        found = [decode(int.from_bytes(part, "little"), layout.bits(item), layout.protect) for part in parts]
        check(all(v is not Verdict.DETECTED for _, v in found), "checkpoint", item.name, "has a wrong bit")
        return [data for data, _ in found]

    pos, filled, *_ = layout.unpack(Item.PLACE, words(Item.PLACE, 1)[0])
    ring = words(Item.RING, layout.recent if filled else pos)
    table = Clusterer(model.params)
    table.load(to_words(words(Item.HASH, level), layout.n_hp), np.array(words(Item.COUNT, level)))
    clusters = {}
    for cluster, row in enumerate(words(Item.ROW, level)):
        head, off, tail, off_slots, tail_slots = layout.unpack(Item.ROW, row)
        if tail_slots:
            n = layout.block_slots
            clusters[cluster] = (tail - head) * n + tail_slots, (off - head) * n + off_slots
    kv.adopt(ctx, clusters, ring[pos:] + ring[:pos] if filled else ring)
    if level:
        model.tables[ctx] = table
    for place in _places(kv, ctx):
        size = place.stop - place.start
        memory[place] = np.frombuffer(checkpoint, np.uint8, size, at)
        at += size


def _places(kv: KvMap, ctx: int) -> list[slice]:
    """Where the entries of a context lie, in the order of a checkpoint."""
    c, size = kv.contexts.get(ctx), kv.entry_bytes
    if c is None:
        return []
    first = kv.device_base + ctx * kv.recent * size
    out = [slice(first, first + len(c.ring) * size)]
    for cluster in sorted(c.clusters):
        for r in kv.ranges(ctx, cluster):
            at = kv.home_base + r.block * kv.block_slots * kv.home_bytes
            out.append(slice(at, at + r.slots * kv.home_bytes))
    return out
