"""The contract between a layer's program and its host: the shape, the registers, the arrays in memory."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.packed_weights import Packing
from openvrex.golden.function_params import check, check_ints


class Register(IntEnum):
    """Registers with a fixed meaning. The host sets those down to STREAM before a pass; the program owns the others."""

    WEIGHTS = 1  # address of the layer's weights
    KV = 2  # address of the layer's entries
    SLOT = 3  # address of the ring's slot of the first token of the pass
    FIRST = 4  # tokens of the pass that fit between that slot and the end of the ring
    REST = 5  # remaining tokens of the pass, which go to the start of the ring
    ENTRIES = 6  # entries behind the ring; in a team `scores` replaces them by the member's own; read from `scores` on
    CONTEXT = 7  # context of the layer's entries in the retrieval engine; a core's programs add to it
    OUT = 8  # address of the attention outputs, where a core computes a layer's heads one after the other
    STREAM = 15  # in a batch of streams, address of what the host writes for one of them; else a pointer of loops
    # Set by the program:
    TAIL = 9  # byte offset in `tails` of the mask for the last tile that holds an entry
    LEFT = 10  # entries behind the whole parts
    PARTS = 7  # number of whole parts behind the ring, where a bank does not hold a row of scores; replaces CONTEXT


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a decoder layer and of one pass through it. Raises `ParamError` for sizes that do not fit together."""

    width: int = 576  # numbers of a hidden state
    heads: int = 9  # query heads
    kv_heads: int = 3
    head_size: int = 64  # numbers of a head
    ffn: int = 1536  # numbers of the inner state of the feed-forward network
    tokens: int = 10  # tokens of a pass
    recent: int = 256  # slots of the ring of the latest entries
    entries: int = 256  # most entries behind the ring
    epsilon: float = 1e-5  # of the RMS norms
    packing: Packing | None = None  # of the weights of its GEMMs, of 4 or 8 bits each; None: BF16

    def __post_init__(self):
        check_ints(self)
        for name in ("width", "heads", "kv_heads", "head_size", "ffn", "tokens", "recent"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        check(self.entries >= 0, "entries", self.entries, "must not be negative")
        check(self.heads % self.kv_heads == 0, "heads", self.heads, f"must be a multiple of kv_heads = {self.kv_heads}")
        reason = f"must be at most recent = {self.recent} (the ring holds all tokens of a pass): split it in passes"
        check(self.tokens <= self.recent, "tokens", self.tokens, f"{reason}, or raise recent")

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        """Rows of attention of a KV head: one for each token and query head."""
        return self.tokens * self.group

    @property
    def entry(self) -> int:
        """Numbers of an entry: a token's keys and values of all KV heads."""
        return 2 * self.kv_heads * self.head_size


@dataclass(frozen=True)
class Team:
    """A core's place in a team of cores that share the attention of the same heads.

    Entries are dealt out in pairs of tiles: pair k, those of the ring first, belongs to member k mod members. Raises
    `ParamError` for a member that the team does not have.
    """

    member: int = 0
    members: int = 1

    def __post_init__(self):
        check_ints(self)
        check(self.members >= 1, "members", self.members, "must be at least 1")
        check(0 <= self.member < self.members, "member", self.member, f"must be 0 to {self.members - 1}")

    def ahead(self, start: int) -> int:
        """Pairs of others between pair `start` and this member's first one from there on."""
        return (self.member - start) % self.members

    def share(self, start: int, pairs: int) -> int:
        """The number of this member's pairs among `pairs` pairs from number `start` on."""
        return max(0, -(-(pairs - self.ahead(start)) // self.members))

    def rows(self, rows: int) -> range:
        """The rows of attention, of `rows` rows, that this member joins: as many as others join, or one more."""
        return range(rows * self.member // self.members, rows * (self.member + 1) // self.members)


@dataclass(frozen=True)
class Array:
    """An array in memory, `offset` bytes behind the address in register `base`; base 0 stands for address 0."""

    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: type
    base: int = 0
    packing: Packing | None = None  # of an array of packed weights, which is bytes

    @property
    def size(self) -> int:
        """Size of the array in bytes."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize

    def check(self, x: np.ndarray) -> None:
        """Raise `ParamError` for numbers of another shape or type."""
        same = x.shape == self.shape and x.dtype == self.dtype
        check(same, self.name, (x.shape, x.dtype), f"must be {self.shape}, {np.dtype(self.dtype)}")


class Space:
    """Lays out arrays one after the other behind one register, each at a multiple of `align` bytes."""

    def __init__(self, align: int, base: int = 0):
        self.align, self.base, self.size = align, base, 0
        self.arrays: dict[str, Array] = {}

    def add(self, name: str, shape: tuple[int, ...], dtype: type, packing: Packing | None = None) -> Array:
        """Place a new array behind the others."""
        a = self.arrays[name] = Array(name, self.size, shape, dtype, self.base, packing)
        self.size += -(-a.size // self.align) * self.align
        return a

    def add_weights(self, name: str, cut: "Tiling", lanes: int, packing: Packing | None) -> Array:
        """Place the weights of a GEMM in the order in which they are loaded."""
        blocks, slices, outputs, numbers = cut.weights(lanes)
        if packing is None:
            return self.add(name, (blocks, slices, outputs, numbers), BF16)
        words = packing.read(outputs * numbers // lanes)
        return self.add(name, (blocks, slices, words, 2 * lanes), np.uint8, packing)


@dataclass(frozen=True)
class Tiling:
    """How a GEMM is cut: N into `blocks` of `tiles` of `lanes` outputs each, K into `slices` of `words` words each."""

    blocks: int
    tiles: int
    slices: int
    words: int

    def weights(self, lanes: int) -> tuple[int, int, int, int]:
        """The array of its weights, in the order in which they are loaded: blocks, slices, outputs, numbers."""
        return self.blocks, self.slices, self.tiles * lanes, self.words * lanes


def divisors(n: int) -> list[int]:
    """All divisors of n, rising."""
    return [d for d in range(1, n + 1) if n % d == 0]
