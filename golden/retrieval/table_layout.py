"""Where the tables of contexts lie in memory: one table a context, and the pool of blocks that all contexts share.

A context is (stream, layer, head group). Its table holds everything that the engine knows about it, so a host saves a
context when it copies the table. Memory that is zero holds empty contexts and a pool of which no block is taken.

==========  =======================  ================================================================================
item        one for each             holds
==========  =======================  ================================================================================
LEVEL       context                  its number of clusters
PLACE       context                  the ring slot of the next entry; whether all slots are taken; with `shared` the
                                     number of its blocks
RING        slot of a ring           the cluster of the entry in the slot. Behind the slots, one for each place of kept
                                     blocks: 0, or 1 + k div `kept` if cluster k has the place
HASH        cluster                  the hash bits of its first member
COUNT       cluster                  its number of tokens, which saturates
ROW         cluster                  its first block, the block that takes the next offload (or the full one before
                                     it), its last block; the slots of `off` that are at home, the slots of `tail` that
                                     are taken. All are 0 without an entry
NEXT        block                    the block behind it, in its cluster or in the list of freed blocks
POOL        memory                   the number of blocks handed out at least once; first and last freed block, and
                                     whether there is a freed block. Both blocks are 0 without one
==========  =======================  ================================================================================

::

    table_base   +-----------------------------------------+
                 | POOL                                    |  the pool, which all contexts share
                 | NEXT of block 0, 1, 2, ...              |
    + pool       +-----------------------------------------+  a multiple of 4,096 bytes
                 | LEVEL  |  PLACE                         |  the table of context 0
                 | RING of slot 0, 1, ...                  |
                 | HASH of cluster 0, 1, ...               |  each array starts at a multiple of `burst` bytes
                 | COUNT of cluster 0, 1, ...              |
                 | ROW of cluster 0, 1, ...                |
    + table      +-----------------------------------------+
                 | the table of context 1                  |
                 | ...                                     |

HASH and COUNT mean something only below LEVEL; above it a ROW is 0. RING means something only where an entry was
placed, NEXT only in front of another block. An item takes a power of two of bytes: its bits, lowest first, then its
check bits (`golden.arithmetic.secded`), then zeros. The lowest byte comes first.

Source: V-Rex sections V-B and V-C keep the HC table and the mapping in DRAM; the layout is this project's.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from zlib import crc32

from openvrex.golden.arithmetic.secded import check_bits
from openvrex.golden.function_params import bits_for, check


class Item(IntEnum):
    """The kinds of items, as above."""

    LEVEL = 0
    PLACE = 1
    RING = 2
    HASH = 3
    COUNT = 4
    ROW = 5
    NEXT = 6
    POOL = 7


SHARED = (Item.NEXT, Item.POOL)  # one for all contexts
PAGE = 4096  # bytes; tables start at multiples of it, as no burst crosses one (AXI)


@dataclass(frozen=True)
class TableLayout:
    """Bits, sizes and places of all items.

    n_hp : hash bits · clusters : most clusters of a context · recent : slots of a ring · count_bits : bits of a count
    kept : blocks of a context that device memory keeps
    shared : PLACE has the number of the context's blocks
    blocks : most blocks of the pool · block_slots : entries of a block · protect : check bits of every item
    beat : bytes of a beat of the bus, which holds whole items
    burst : bytes of the longest read; arrays start at multiples of it

    Raises `ParamError` for a beat that is too small for an item.
    """

    n_hp: int
    clusters: int
    recent: int
    count_bits: int
    blocks: int
    block_slots: int
    protect: str = "none"
    beat: int = 64
    burst: int = 256
    kept: int = 0
    shared: bool = False

    def __post_init__(self):
        for item in Item:
            reason = f"takes {self.bytes(item)} bytes, more than a beat of {self.beat}: raise bus_bytes"
            check(self.bytes(item) <= self.beat, item.name, self.fields(item), reason)

    def fields(self, item: Item) -> dict[str, int]:
        """Fields of an item and their bits, lowest first."""
        block, slots = bits_for(self.blocks), bits_for(self.block_slots + 1)
        held = {"blocks": bits_for(self.blocks + 1)} if self.shared else {}
        return {
            Item.LEVEL: {"clusters": bits_for(self.clusters + 1)},
            Item.PLACE: {"pos": bits_for(self.recent), "filled": 1, **held},
            Item.RING: {"cluster": bits_for(self.clusters)},
            Item.HASH: {"hash": self.n_hp},
            Item.COUNT: {"count": self.count_bits},
            Item.ROW: {"head": block, "off": block, "tail": block, "off_slots": slots, "tail_slots": slots},
            Item.NEXT: {"block": block},
            Item.POOL: {"fresh": bits_for(self.blocks + 1), "free_head": block, "free_tail": block, "freed": 1},
        }[item]

    def bits(self, item: Item) -> int:
        """Bits of an item without its check bits."""
        return sum(self.fields(item).values())

    def bytes(self, item: Item) -> int:
        """Bytes of an item in memory, a power of two."""
        bits = self.bits(item)
        return 1 << (-(-(bits + check_bits(bits, self.protect)) // 8) - 1).bit_length()

    def pack(self, item: Item, *values: int) -> int:
        """An item of these values of its fields, without its check bits."""
        out, at = 0, 0
        for bits, value in zip(self.fields(item).values(), values, strict=True):
            check(0 <= value < 1 << bits, item.name, value, f"must fit {bits} bits")
            out |= value << at
            at += bits
        return out

    def unpack(self, item: Item, word: int) -> list[int]:
        """The values of an item's fields."""
        out = []
        for bits in self.fields(item).values():
            out.append(word & (1 << bits) - 1)
            word >>= bits
        return out

    def number(self, item: Item) -> int:
        """Items of this kind in a table, or in the pool."""
        return {
            **{Item.LEVEL: 1, Item.PLACE: 1, Item.RING: self.recent + self.kept, Item.NEXT: self.blocks, Item.POOL: 1},
            **dict.fromkeys((Item.HASH, Item.COUNT, Item.ROW), self.clusters),
        }[item]

    @cached_property
    def offsets(self) -> dict[Item, int]:
        """First byte of each array in its table, of the shared ones behind the base."""
        out: dict[Item, int] = {}
        for items in ((Item.POOL, Item.NEXT), [i for i in Item if i not in SHARED]):
            at = 0
            for item in items:
                out[item] = at
                at = self._up(at + self.number(item) * self.bytes(item), self.burst)
        return out

    @cached_property
    def table_bytes(self) -> int:
        """Bytes of a context's table, a multiple of `PAGE`."""
        return self._up(self.offsets[Item.ROW] + self.number(Item.ROW) * self.bytes(Item.ROW), PAGE)

    @cached_property
    def pool_bytes(self) -> int:
        """Bytes of the pool in front of the tables, a multiple of `PAGE`."""
        return self._up(self.offsets[Item.NEXT] + self.number(Item.NEXT) * self.bytes(Item.NEXT), PAGE)

    @cached_property
    def checksum(self) -> int:
        """CRC-32 of these parameters. Layouts with the same checksum are the same."""
        return crc32(repr(self).encode())

    def address(self, item: Item, ctx: int = 0, index: int = 0) -> int:
        """First byte of an item behind the base of all tables."""
        first = 0 if item in SHARED else self.pool_bytes + ctx * self.table_bytes
        return first + self.offsets[item] + index * self.bytes(item)

    @staticmethod
    def _up(size: int, unit: int) -> int:
        return -(-size // unit) * unit
