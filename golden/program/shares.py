"""Says which core computes what of a decoder layer: its KV heads, columns of its products, parts of their sums.

At most as many cores as KV heads: of n cores, core i has the KV heads h with h mod n = i, with a table for each
`heads` of them. The columns of every product are shared out as evenly as tiles of `lanes` columns allow.

More cores: core i is member i // k of the team of KV head i mod k, where k is the number of KV heads. Member 0, the
leader, has the head's table. The members share the columns of the head's queries, keys and values.

A product that adds to the hidden states may have so few tiles that many cores would have no work. It is then cut in
its sums, too: team t takes the t-th part of the inputs, and its members share the columns. Each team leaves FP32 sums,
which are added to the hidden states in the order of the teams (`Shares.parts`).
"""

from dataclasses import dataclass
from functools import cached_property

from golden.function_params import check
from golden.program.layer_memory import LayerShape


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

    Raises `ParamError` for numbers of cores or heads that do not divide.
    """

    whole: LayerShape
    lanes: int
    cores: int
    heads: int = 1

    def __post_init__(self):
        heads, n = self.whole.kv_heads, self.cores
        check(n >= 1, "cores", n, "must be at least 1")
        fits = heads % n == 0 or n % heads == 0
        check(fits, "cores", n, f"must divide kv_heads = {heads}, or be a multiple of it: cores have whole heads")
        of_core = heads // self.teams
        check(self.heads >= 1, "heads", self.heads, "must be at least 1")
        check(of_core % self.heads == 0, "heads", self.heads, f"must divide a core's {of_core} KV heads")

    @classmethod
    def of(cls, whole: LayerShape, lanes: int, cores: int, entry_bytes: int) -> "Shares":
        """The shares on hardware whose entries have so many bytes, which says how many KV heads a table has."""
        one = 4 * whole.head_size
        check(entry_bytes % one == 0, "entry_bytes", entry_bytes, f"must be a multiple of {one}: K and V of a head")
        return cls(whole, lanes, cores, entry_bytes // one)

    @property
    def teams(self) -> int:
        """Teams, of one core each where there are no more cores than KV heads."""
        return min(self.cores, self.whole.kv_heads)

    @property
    def members(self) -> int:
        """Cores of a team."""
        return self.cores // self.teams

    @property
    def groups(self) -> int:
        """Tables of a layer on a core."""
        return self.whole.kv_heads // self.teams // self.heads

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
        member, team = self.member(core), self.team(core)
        if name == "qkv":  # of one table
            columns = self.heads * (w.group + 2) * w.head_size // n
            return Product(divide(columns, self.members)[member], range(w.width // n))
        if name == "gate_up":
            return Product(divide(w.ffn // n, self.cores)[core], range(w.width // n))
        inputs = (w.heads * w.head_size if name == "output" else w.ffn) // n
        if self.parts == 1:
            return Product(divide(w.width // n, self.cores)[core], range(inputs))
        return Product(divide(w.width // n, self.members)[member], divide(inputs, self.teams)[team])

    @cached_property
    def parts(self) -> int:
        """Parts of the sums of `output` and `down`: 1, or the number of teams where this takes less time."""
        tiles = self.whole.width // self.lanes
        whole, cut = (-(-tiles // n) for n in (self.cores, self.members))
        return self.teams if cut < whole * self.teams else 1

    def summed(self, core: int) -> range:
        """Tiles of hidden states in which a core adds the sums of all parts."""
        return divide(self.whole.width // self.lanes, self.cores)[core]
