"""The items of tables (`golden.retrieval.table_layout`) that a KV memory map and token counts come to."""

from collections.abc import Sequence
from itertools import pairwise

from openvrex.golden.retrieval.kvmap import KvMap
from openvrex.golden.retrieval.table_layout import Item, TableLayout

Items = dict[tuple[Item, int], int]  # content by kind and index


def context_items(layout: TableLayout, kv: KvMap, ctx: int, counts: Sequence[int]) -> Items:
    """PLACE, RING, COUNT, ROW and NEXT of a context whose clusters have `counts` tokens.

    Items that mean nothing are left out: RING of slots never used, COUNT and ROW of clusters beyond `counts` (these
    ROWs are 0), NEXT of last blocks.
    """
    c = kv.contexts.get(ctx)
    clusters, ring, n = (c.clusters, c.ring, c.n) if c else ({}, (), 0)
    held = [kv.held(ctx)] if layout.shared else []
    out = {(Item.PLACE, 0): layout.pack(Item.PLACE, n % kv.recent, int(n >= kv.recent), *held)}
    for entry, cluster in enumerate(ring, n - len(ring)):
        out[Item.RING, entry % kv.recent] = cluster
    for place, kept in c.kept.items() if c else ():
        out[Item.RING, kv.recent + place] = 0 if kept is None else 1 + kept // kv.sizes.kept
    for cluster, count in enumerate(counts):
        out[Item.COUNT, cluster] = count
        out[Item.ROW, cluster] = 0
    for cluster, k in clusters.items():
        whole, rest = divmod(k.offloaded, kv.block_slots)
        # A full block takes offloads until the next entry leaves the ring.
        off, off_slots = (whole - 1, kv.block_slots) if whole and not rest else (whole, rest)
        tail_slots = len(k.entries) - (len(k.blocks) - 1) * kv.block_slots
        fields = k.blocks[0], k.blocks[off], k.blocks[-1], off_slots, tail_slots
        out[Item.ROW, cluster] = layout.pack(Item.ROW, *fields)
        out |= {(Item.NEXT, block): behind for block, behind in pairwise(k.blocks)}
    return out


def pool_items(layout: TableLayout, kv: KvMap) -> Items:
    """POOL, and NEXT of the freed blocks but the last."""
    ends = (kv.freed[0], kv.freed[-1]) if kv.freed else (0, 0)
    pool = layout.pack(Item.POOL, kv.fresh, *ends, int(bool(kv.freed)))
    return {(Item.POOL, 0): pool, **{(Item.NEXT, block): behind for block, behind in pairwise(kv.freed)}}
