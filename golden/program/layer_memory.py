"""What a layer's program and its host agree on: shape, registers, arrays in memory."""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from golden.function_params import check, check_ints


class Register(IntEnum):
    """What the host puts into registers before a pass; the others are the program's."""

    WEIGHTS = 1  # address of the layer's weights
    KV = 2  # address of its entries
    SLOT = 3  # address of the slot of the pass's first token
    FIRST = 4  # tokens of the pass from there to the ring's end
    REST = 5  # those that go on at the ring's start
    ENTRIES = 6  # behind the ring; read from the stage `scores` on
    # The program's:
    TAIL = 7  # bytes to the mask of the last tile with an entry
    PARTS = 8  # where a bank does not hold a row of scores: whole parts behind the ring
    LEFT = 9  # entries behind those


@dataclass(frozen=True)
class LayerShape:
    """A layer and its pass: sizes of vectors in numbers, `tokens` of a pass, slots of the ring, entries behind it."""

    width: int = 576
    heads: int = 9
    kv_heads: int = 3
    head_size: int = 64
    ffn: int = 1536
    tokens: int = 10
    recent: int = 256
    entries: int = 256
    epsilon: float = 1e-5

    def __post_init__(self):
        check_ints(self)
        for name in ("width", "heads", "kv_heads", "head_size", "ffn", "tokens", "recent"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        check(self.entries >= 0, "entries", self.entries, "must not be negative")
        check(self.heads % self.kv_heads == 0, "heads", self.heads, f"must be a multiple of kv_heads = {self.kv_heads}")
        reason = f"must be at most recent = {self.recent} (a pass sees its own tokens in the ring): split it in passes"
        check(self.tokens <= self.recent, "tokens", self.tokens, f"{reason}, or raise recent")

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        """Rows of attention of a KV head."""
        return self.tokens * self.group

    @property
    def entry(self) -> int:
        """Numbers of an entry."""
        return 2 * self.kv_heads * self.head_size


@dataclass(frozen=True)
class Array:
    """An array in memory, `offset` bytes behind the register `base` (0: address 0)."""

    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: type
    base: int = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


class Space:
    """Arrays one after the other behind a register, each at a multiple of `align` bytes."""

    def __init__(self, align: int, base: int = 0):
        self.align, self.base, self.size = align, base, 0
        self.arrays: dict[str, Array] = {}

    def add(self, name: str, shape: tuple[int, ...], dtype: type) -> Array:
        """A new array."""
        a = self.arrays[name] = Array(name, self.size, shape, dtype, self.base)
        self.size += -(-a.size // self.align) * self.align
        return a


@dataclass(frozen=True)
class Tiling:
    """How a GEMM is cut: `blocks` blocks of `tiles` tiles of outputs, `slices` slices of `words` words of K."""

    blocks: int
    tiles: int
    slices: int
    words: int


def divisors(n: int) -> list[int]:
    """All divisors of n."""
    return [d for d in range(1, n + 1) if n % d == 0]
