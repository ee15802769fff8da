"""A golden engine with its memory, and streams for it: what tests of checkpoints save, restore and continue."""

from random import Random

import numpy as np

from openvrex.golden.function_params import ReSVParams
from openvrex.golden.retrieval import kv4
from openvrex.golden.retrieval.clustering import Joined
from openvrex.golden.retrieval.dre_model import DreModel
from openvrex.golden.retrieval.kvmap import KvMap, MapSizes
from openvrex.golden.retrieval.table_image import TableMemory
from openvrex.golden.retrieval.table_layout import Item, TableLayout

N_CTX = 5
SIZES = {"n_hp": 16, "clusters": 12, "recent": 5, "count_bits": 3, "blocks": 160, "block_slots": 2, "beat": 16}
BLOCKS = 150  # of the second engine's pool
ENTRY = 24  # bytes
PACKED = {"entry_bytes": 32, "kv4_group": 16}  # of an engine with a 4-bit home


class Engine:
    """An engine of `layout` with `N_CTX` contexts, and every byte of its memory: tables, rings, homes.

    `keys` runs keys through a context and writes their entries. `fetch` gives the entries of a query.
    """

    def __init__(self, layout: TableLayout, *, blocks: int, entry_bytes: int, th_hd: int = 3, kv4_group: int = 0):
        self.layout, self.size = layout, entry_bytes
        params = ReSVParams(n_hp=layout.n_hp, max_clusters=layout.clusters, count_bits=layout.count_bits, th_hd=th_hd)
        self.table_base = 0x1000
        block, packed = layout.block_slots * entry_bytes, layout.block_slots * entry_bytes // (4 if kv4_group else 1)
        self.device_base = self.table_base + layout.address(Item.LEVEL, N_CTX) + N_CTX * layout.kept * block
        self.home_base = self.device_base + N_CTX * layout.recent * entry_bytes
        if layout.kept:
            self.home_base = -(-self.home_base // packed) * packed
        self.memory = np.zeros(self.home_base + blocks * layout.block_slots * entry_bytes, np.uint8)
        sizes = {"clusters": layout.clusters, "block_slots": layout.block_slots, "recent": layout.recent}
        sizes |= {"entry_bytes": entry_bytes, "boundary": 4096, "n_ctx": N_CTX, "blocks": blocks}
        sizes |= {"kv4_group": kv4_group, "kept": layout.kept}
        self.kv = KvMap(MapSizes(**sizes), self.device_base, self.home_base)
        self.model = DreModel(params, self.kv)
        self.tables = TableMemory(layout, self.model, self.memory[self.table_base : self.device_base])

    def keys(self, ctx: int, hashes: list[int]) -> list[Joined]:
        """Run keys, with entries that depend on the key and its number; a refused entry is not written."""
        out = []
        for key_hash in hashes:
            joined, placed = self.model.key(ctx, key_hash)
            out.append(joined)
            if not placed.ok:
                continue
            if placed.move:
                src, dst, _ = placed.move
                entry = self.memory[src : src + self.size]
                if self.kv.sizes.kv4_group:
                    entry = kv4.pack(entry.view(np.uint16), self.kv.sizes.kv4_group)
                self.memory[dst : dst + len(entry)] = entry
            entry = Random(key_hash * 1000 + joined.count).randbytes(self.size)
            self.memory[placed.device : placed.device + self.size] = np.frombuffer(entry, np.uint8)
        self.tables.write()
        return out

    def clear(self, ctx: int) -> None:
        """Forget a context."""
        self.model.clear(ctx)
        self.tables.write()

    def fetch(self, ctx: int, rng: Random) -> tuple[list[int], bytes]:
        """The clusters that a random row selects, and the bytes of their entries at home."""
        n = self.model.switch(ctx)
        if not n:
            return [], b""
        query = self.model.query(np.array([[rng.randrange(200) for _ in range(n)]]))
        return query.clusters, b"".join(self.memory[b.addr : b.addr + b.bytes].tobytes() for b in query.bursts)


def hashes(rng: Random, n: int, bits: int) -> list[int]:
    """Keys of few clusters, each near a centre."""
    centres = [rng.getrandbits(bits) for _ in range(6)]
    return [rng.choice(centres) ^ 1 << rng.randrange(bits) for _ in range(n)]


def engines(seed: int, layout: TableLayout, **more: int) -> tuple[Engine, Engine]:
    """Two engines in mid-stream, the second with freed blocks in its pool and nothing in context 0."""
    rng = Random(seed)
    first, second = (
        Engine(layout, blocks=blocks, **{"entry_bytes": ENTRY} | more) for blocks in (layout.blocks, BLOCKS)
    )
    for engine in (first, second):
        for _ in range(6):
            ctx = rng.randrange(N_CTX)
            engine.keys(ctx, hashes(rng, rng.randrange(12), layout.n_hp))
        engine.clear(rng.randrange(1, N_CTX))
    second.clear(0)
    least = rng.randrange(8)
    while second.kv.blocks - second.kv.fresh > least:
        second.keys(0, hashes(rng, 5, layout.n_hp))
    second.clear(0)
    return first, second
