"""Says which core computes what of a decoder layer: its KV heads, columns of its products, parts of their sums.

A table has `heads` KV heads. At most as many cores as tables: of n cores, core i has the KV heads h with h mod n = i,
in one table or several. The columns of every product are shared out as evenly as tiles of `lanes` columns allow.

More cores: core i is member i // k of the team of table i mod k, where k is the number of tables. Member 0, the leader,
has the table. The members share the columns of its heads' queries, keys and values, and the rotation of queries.

A product that adds to the hidden states may have so few tiles that many cores would have no work. It is then cut in
its sums, too: core i takes part i mod p of the inputs, and the cores of a part share the columns. Each part leaves FP32
sums, which are added to the hidden states in the order of the parts (`Shares.parts`).
"""

from dataclasses import dataclass
from functools import cached_property
from math import gcd

from openvrex.golden.function_params import check
from openvrex.golden.program.layer_memory import LayerShape


def divide(count: int, parts: int) -> list[range]:
    """The numbers below `count` in so many consecutive ranges, as even as possible; the first ones are the longest."""
    size, more = divmod(count, parts)
    ends = [i * size + min(i, more) for i in range(parts + 1)]
    return [range(a, b) for a, b in zip(ends, ends[1:], strict=False)]


@dataclass(frozen=True)
class Product:
    """What a core computes of a product.

    tiles : its columns, in tiles of `lanes`
    words : its inputs, in words of `lanes`
    """

    tiles: range
    words: range


@dataclass(frozen=True)
class Shares:
    """How cores share a layer.

    whole : shape of the whole layer
    lanes : numbers of a word
    cores : number of cores
    heads : KV heads of a table
    batch : tokens of all streams whose products run together; 0: those of one stream

    Raises `ParamError` for numbers of cores or heads that do not divide, and for a batch of fewer tokens than a pass.
    """

    whole: LayerShape
    lanes: int
    cores: int
    heads: int = 1
    batch: int = 0

    def __post_init__(self):
        heads, n = self.whole.kv_heads, self.cores
        check(n >= 1, "cores", n, "must be at least 1")
        check(self.heads >= 1, "heads", self.heads, "must be at least 1")
        check(heads % self.heads == 0, "heads", self.heads, f"must divide kv_heads = {heads}: a table has whole heads")
        fits = self.tables % n == 0 or n % self.tables == 0
        reason = f"the tables of a layer ({heads} KV heads, {self.heads} a table), or be a multiple of it"
        check(fits, "cores", n, f"must divide {self.tables}, {reason}")
        few = 0 < self.batch < self.whole.tokens
        check(not few, "batch", self.batch, f"must be at least {self.whole.tokens}, the tokens of a pass")

    @classmethod
    def of(cls, whole: LayerShape, lanes: int, cores: int, entry_bytes: int) -> "Shares":
        """The shares on hardware whose entries have so many bytes, which says how many KV heads a table has."""
        one = 4 * whole.head_size
        check(entry_bytes % one == 0, "entry_bytes", entry_bytes, f"must be a multiple of {one}: K and V of a head")
        return cls(whole, lanes, cores, entry_bytes // one)

    @property
    def joint(self) -> int:
        """Tokens whose rows a product takes together."""
        return self.batch or self.whole.tokens

    @property
    def tables(self) -> int:
        """Tables of a layer."""
        return self.whole.kv_heads // self.heads

    @property
    def teams(self) -> int:
        """Teams, of one core each where there are no more cores than tables."""
        return min(self.cores, self.tables)

    @property
    def members(self) -> int:
        """Cores of a team."""
        return self.cores // self.teams

    @property
    def groups(self) -> int:
        """Tables of a layer on a core."""
        return self.tables // self.teams

    def team(self, core: int) -> int:
        """The core's team. Its leader is the core of the same number."""
        return core % self.teams

    def member(self, core: int) -> int:
        """The core's number in its team; 0 is the leader."""
        return core // self.teams

    def heads_of(self, core: int, group: int | None = None) -> list[int]:
        """Numbers of the KV heads of a core, or of one of its tables."""
        own = list(range(self.team(core), self.whole.kv_heads, self.teams))
        return own if group is None else own[group * self.heads : (group + 1) * self.heads]

    @property
    def order(self) -> list[int]:
        """The KV heads in the order in which their attention outputs lie in memory."""
        return [h for team in range(self.teams) for h in self.heads_of(team)]

    def product(self, name: str, core: int) -> Product:
        """What a core computes of the product `name`, one of `golden.program.layer_compiler.GEMMS`."""
        w, n = self.whole, self.lanes
        if name == "qkv":  # of one table
            columns = self.heads * (w.group + 2) * w.head_size // n
            return Product(divide(columns, self.members)[self.member(core)], range(w.width // n))
        if name == "gate_up":
            return Product(divide(w.ffn // n, self.cores)[core], range(w.width // n))
        inputs = (w.heads * w.head_size if name == "output" else w.ffn) // n
        beside = self.cores // self.parts  # cores of a part
        return Product(divide(w.width // n, beside)[core // self.parts], divide(inputs, self.parts)[self.part(core)])

    def in_step(self, name: str) -> int:
        """Cores that read the rows of a product of a batch together (`hdl.bus.arbiter`, `system.common`).

        They are the largest groups of a power of two of adjacent cores that have as many tiles of the same sums.
        """
        own = [(len(p.tiles), p.words) for p in (self.product(name, core) for core in range(self.cores))]
        size = self.cores & -self.cores
        while any(len(set(own[i : i + size])) > 1 for i in range(0, self.cores, size)):
            size //= 2
        return size

    @cached_property
    def parts(self) -> int:
        """Parts of the sums of `output` and `down`, of whole KV heads: 1, or as many as take less time."""
        tiles, most = self.whole.width // self.lanes, gcd(self.cores, self.whole.kv_heads)
        whole, cut = (-(-tiles // n) for n in (self.cores, self.cores // most))
        return most if cut < whole * most else 1

    def part(self, core: int) -> int:
        """The part of the sums that a core computes."""
        return core % self.parts

    def rotates(self, core: int) -> range:
        """The query heads of a table that a core rotates, those of whole KV heads.

        In a team its leader is busy with the keys; the others share, the last one first.
        """
        if self.members == 1:
            return range(self.heads * self.whole.group)
        if not self.member(core):
            return range(0)
        own = divide(self.heads, self.members - 1)[self.members - 1 - self.member(core)]
        return range(own.start * self.whole.group, own.stop * self.whole.group)

    def guesses(self, core: int) -> range:
        """Tiles of a table's queries that a core guesses for the next layer: those among its columns of `qkv`."""
        own, w = self.product("qkv", core).tiles, self.whole
        return own[: max(0, self.heads * w.group * w.head_size // self.lanes - own.start)]

    def summed(self, core: int) -> range:
        """Tiles of hidden states in which a core adds the sums of all parts."""
        return divide(self.whole.width // self.lanes, self.cores)[core]
