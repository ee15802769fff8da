"""Compiles a core's share of a decoder layer (`golden.program.shares`), in phases with barriers between them.

Before each phase but those marked *, every core waits for all others, because it reads what they have written. Where a
core has several tables, it runs the phases marked * for one after the other: the same programs with other values in the
registers WEIGHTS, KV, CONTEXT, OUT and ENTRIES.

==========  ==========================================================================================================
at most as many cores as tables
norm        the norm of all hidden states
attention*  stages keys to values of the KV heads of one table
output      the core's columns of the output projection, from the heads of all cores
ffn         the norm of all hidden states, and the core's columns of gate and up
down        the core's columns, from the FFN's columns of all cores
add_*       as below
==========  ==========================================================================================================

==========  ==========================================================================================================
the same with prefetch: three phases instead of `attention`, which the program memory of `core` does not hold
cluster*    stages guess to rotary of the KV heads of one table; in the first layer rank and select, too
guess*      chooses and fetches for the next layer. The FETCH goes on beside the phases behind it
attention*  stages resident to values
            a core with several tables runs `cluster` for all of them, then `attention`, then the phases of all heads,
            and `guess` in between (`spread`)
==========  ==========================================================================================================

==========  ==========================================================================================================
the same with coded pages (`golden.program.page_choice_stages`)
entries*    stages keys and entries of one KV head
hash*       stages hash and cluster, of the pass's tokens, or of those that complete keys that share a mean
code*       stage code, in passes that do so
rest*       stages hash and cluster of the tokens behind them, if there are any
attention*  stages queries to values
==========  ==========================================================================================================

==========  ==========================================================================================================
teams
project     the norm of all hidden states, and the core's columns of the queries, keys and values of the table's heads
place       the leader hashes, clusters and places the table's tokens; others rotate queries, each those of some heads
rank        multiplies queries by Key_cluster: each member takes pairs of tiles of clusters
select      the leader chooses clusters and fetches their entries; all members compute scores of their part of the ring
attend      scores behind the ring, softmax and values, of the member's own entries
join        joins the members' parts: each member takes rows
output      as above, or its part of the sums
add_output  only where sums are cut: adds the parts to the core's columns of the hidden states
ffn         as above
down        as output
add_down    as add_output
==========  ==========================================================================================================

==========  ==========================================================================================================
teams with prefetch: as above, `rank` and `select` in the first layer only
project     also guesses the next layer's queries: each member those among its columns
place       others rotate these, too
guess_rank  multiplies guessed queries by the next layer's Key_cluster, as `rank` does
guess       the leader chooses and fetches for the next layer. The FETCH goes on beside the phases behind it
attend      stages resident to values
==========  ==========================================================================================================

==========  ==========================================================================================================
batches: products take the rows of all streams; the phases between `qkv` or `project` and `output` run stream by stream
norm        the norm of the core's part of the hidden states, for all cores
qkv*        queries, keys and values of the KV heads of one table, in a team `project` as above; before the first table
            all cores wait, because they read what others have normed
entries*    stages entries to rotary; with coded pages `entries`, `hash`, `code` and `rest` as above
attention*  a SWITCH to the stream's context, then stages rank to values; with coded pages as above
norm_ffn    as `norm`, before `ffn`
...         as above; a team's other phases are those of teams
==========  ==========================================================================================================

With coded pages, `norm` and `norm_ffn` are those of batches where cores and tokens are several: each core norms some
rows for all. Before the first table's `entries` all cores then wait.

The retrieval engine works in order, so the next RETRIEVE waits for that FETCH: in `cluster` or `place` of the next
table or layer, after its guessed queries and its keys are computed.

Hidden states, attention outputs, the FFN's inner states and parts of sums are in memory that all cores share. A team
shares what its phases pass on. The weights of a team's layer are one stretch of memory: first those of each member,
then what belongs to the tables, one after the other.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.packed_weights import Matrix, part, vector
from openvrex.golden.function_params import check
from openvrex.golden.program.core_compiler import CorePlan, RetrievalShape
from openvrex.golden.program.isa import Instruction, LxeFormat, Opcode
from openvrex.golden.program.layer_compiler import GEMMS
from openvrex.golden.program.layer_memory import Array, Register, Space, Team, Tiling, divisors
from openvrex.golden.program.loop_rolling import POINTERS
from openvrex.golden.program.shares import Shares, divide
from openvrex.golden.program.stage_plan import Planned
from openvrex.golden.retrieval.key_matrices import KeyMatrices

RETRIEVAL = ("guess", "guess_rotary", "keys", "entries", "hash", "cluster", "rotary", "rank", "select")
ATTENTION = ("scores", "softmax", "values")
ALONE = {  # the stages of each phase
    "norm": ("norm1", "guess_norm"),
    "attention": (*RETRIEVAL, "resident", *ATTENTION),
    "output": ("output",),
    "add_output": ("add_output",),
    "ffn": ("norm2", "gate_up"),
    "down": ("down",),
    "add_down": ("add_down",),
}
PREFETCH = {
    "norm": ALONE["norm"],
    "cluster": RETRIEVAL,
    "guess": ("guess_rank", "guess_select"),
    "attention": ("resident", *ATTENTION),
    **{name: stages for name, stages in ALONE.items() if name not in ("norm", "attention")},
}
PAGES = {
    "norm": ("norm1",),
    "entries": ("keys", "entries"),
    "hash": ("early_hash", "early_cluster"),
    "code": ("code",),
    "rest": ("hash", "queries", "cluster", "rotary"),
    "attention": ("resident", "sums", "turn", "rank", "select", *ATTENTION),
    **{name: stages for name, stages in ALONE.items() if name not in ("norm", "attention")},
}
TEAMS = {
    "project": ("norm1", "qkv"),
    "place": ("entries", "hash", "cluster", "rotary"),
    "rank": ("rank",),
    "select": ("select", "resident"),
    "attend": ATTENTION,
    "join": ("join",),
    "output": ("output",),
    "add_output": ("add_output",),
    "ffn": ("norm2", "gate_up"),
    "down": ("down",),
    "add_down": ("add_down",),
}
TEAM_PREFETCH = {
    "project": (*TEAMS["project"], "guess_norm", "guess"),
    "place": (*TEAMS["place"], "guess_rotary"),
    "rank": ("rank",),
    "select": ("select",),
    "guess_rank": ("guess_rank",),
    "guess": ("guess_select",),
    "attend": ("resident", *ATTENTION),
    **{name: stages for name, stages in TEAMS.items() if name not in ("project", "place", "rank", "select", "attend")},
}
TEAM_PAGES = {
    "project": TEAMS["project"],
    "place": ("entries",),
    "hash": PAGES["hash"],
    "code": PAGES["code"],
    "rest": ("hash", "cluster", "rotary"),
    "rank": ("ring", "sums", "turn", "rank"),
    **{name: stages for name, stages in TEAMS.items() if name not in ("project", "place", "rank")},
}


def _apart(phases: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Phases whose norms are phases of their own."""
    out: dict[str, tuple[str, ...]] = {}
    for name, stages in phases.items():
        for norm, of in (("norm1", "norm"), ("norm2", "norm_ffn")):
            if norm in stages:
                out[of], stages = (norm,), tuple(stage for stage in stages if stage != norm)
        if stages:
            out[name] = stages
    return out


BATCH = {
    "norm": ("norm1",),
    "qkv": ("qkv",),
    "entries": TEAMS["place"],
    "attention": ("switch", "rank", "select", "resident", *ATTENTION),
    **{name: stages for name, stages in ALONE.items() if name not in ("norm", "attention")},
}
BATCH_PAGES = {
    "norm": BATCH["norm"],
    "qkv": BATCH["qkv"],
    "entries": TEAM_PAGES["place"],
    "hash": PAGES["hash"],
    "code": PAGES["code"],
    "rest": TEAM_PAGES["rest"],
    "attention": PAGES["attention"],
    **{name: stages for name, stages in ALONE.items() if name not in ("norm", "attention")},
}
# Phases that take the rows of all streams.
JOINT = ("norm", "project", "qkv", "output", "add_output", "norm_ffn", "ffn", "down", "add_down")
OF_TABLES = (
    "qkv",
    "cluster",
    "guess",
    "entries",
    "hash",
    "code",
    "rest",
    "attention",
)  # phases that a core runs for each of its tables
AHEAD = ("guess_rank", "guess")  # phases of a team that ask for the clusters of the next layer's table
# Stages of the leader only.
LEADERS = ("entries", "early_hash", "early_cluster", "code", "hash", "cluster", "select", "guess_select")
OF_TEAM = ("qkv", "q", "ranks", "stats", "parts", "guess_qkv", "guess")  # arrays that a team shares
QUERIES = ("q", "guess")
ADDS = ("add_output", "add_down")  # phases that `spread` does not count
INPUTS = ("tables", "mask", "marks", "candidates")  # that the host writes for each stream
NORMS = ("norm1", "norm2")  # one array for all cores where each norms a part of the hidden states
HEADS = ("attention", "attend", "join")  # phases in which OUT is the address of the attention outputs in a batch


def norms_apart(shares: Shares, pages: bool) -> bool:
    """Whether each core norms its part of the hidden states, for all: in a batch, and with coded pages."""
    return shares.batch > 0 or (pages and shares.cores > 1 and shares.whole.tokens > 1)


def shared_space(shares: Shares, pages: bool = False, ahead: bool = False) -> Space:
    """The arrays that all cores share, from address 0.

    pages : with those of coded pages
    ahead : layers prefetch: each of several tables of a core has queries, and guessed ones, where OUT says
    """
    w = shares.whole
    space = Space(max(4096, 4 * shares.lanes))
    space.add("hidden", (shares.joint, w.width), np.float32)
    if shares.batch and shares.parts > 1:  # in front of what cores read together
        space.add("sums", (shares.parts, shares.joint, w.width), np.float32)
    space.add("attention", (w.kv_heads, shares.joint, w.group * w.head_size), BF16)
    space.add("gated", (1, shares.joint, w.ffn), BF16)
    if shares.parts > 1 and not shares.batch:
        space.add("sums", (shares.parts, shares.joint, w.width), np.float32)
    if ahead and shares.groups > 1:
        for name in QUERIES:
            space.add(name, space.arrays["attention"].shape, BF16)
    if norms_apart(shares, pages):
        space.add("normed", (1, shares.joint, w.width), BF16)
    return space


def barriers(phases: Iterable[str], cores: int) -> int:
    """Times that all cores wait for all others in a layer of these phases."""
    names = list(phases)
    of_norms = "norm_ffn" in names and "project" not in names  # the first table's product waits for what others norm
    return (sum(phase not in OF_TABLES for phase in names) + of_norms) * (cores > 1)


def spread(tables: int, behind: int) -> list[int]:
    """Before which of a core's programs it chooses for the next layer, for each table in turn.

    tables : attentions, which are the first programs · behind : those of all heads, which follow

    One FETCH is in flight: the next choice waits for it. So there is one before each of the last programs, which take
    longest; the others are spread over the attentions.
    """
    last = min(behind, tables - 1)
    first = tables - last
    return [*(k * tables // first for k in range(first)), *range(tables + behind - last, tables + behind)]


def together(shares: Shares) -> tuple[int, int]:
    """Addresses from the first to behind the last that only products of a batch read: the rows that they multiply."""
    space = shared_space(shares)
    return space.arrays["attention"].offset, space.size


class SharePlan(CorePlan):
    """The program of one core's share of a layer, in phases.

    shares : how the cores share the layer
    core : the core's number
    base, team_base : addresses of the work arrays of the core, and of its team
    cuts : how each product is cut, which decides how its weights lie in memory; chosen for the pass if not given

    `apart` is the distance between the weights of two layers, `group_bytes` that of two tables in a layer. Of the
    latter the last `context_bytes` belong to a stream.

    In a batch, OUT has the address of the stream's rows: of the table's queries, keys and values, in `HEADS` of its
    attention outputs. STREAM has that of `INPUTS`.

    Raises `ParamError` as `CorePlan` does, for a core without a tile of columns, and for a batch that prefetches or
    whose tables have several heads.
    """

    def __init__(
        self,
        shares: Shares,
        fmt: LxeFormat,
        retrieval: RetrievalShape,
        core: int,
        base: int = 0,
        team_base: int = 0,
        cuts: dict[str, Tiling] | None = None,
    ):
        check(0 <= core < shares.cores, "core", core, f"must be 0 to {shares.cores - 1}")
        if shares.batch:
            alone = retrieval.ahead < 0 and not retrieval.fetched
            check(alone, "ahead", retrieval.ahead, "must be -1 in a batch: its streams do not prefetch")
            check(shares.heads == 1, "heads", shares.heads, "must be 1 in a batch: a table has one KV head")
            self.pointers = POINTERS[:-1]
        w = self.whole = shares.whole
        self.shares, self.core, self.base, self.team_base = shares, core, base, team_base
        shape = replace(w, heads=w.group * shares.heads, kv_heads=shares.heads)
        self.shape, self.fmt = shape, fmt  # `_cut` reads them
        self.products = {name: shares.product(name, core) for name in GEMMS}
        for name, p in self.products.items():
            reason = f"leaves core {core} without a column of {name}: take fewer cores"
            check(len(p.tiles) > 0 and len(p.words) > 0, "cores", shares.cores, reason)
        cuts = cuts or {name: self._cut_share(name) for name in GEMMS}
        super().__init__(shape, fmt, retrieval, cuts, Team(shares.member(core), shares.members))

    def _cut_share(self, name: str) -> Tiling:
        """How the core's part of a product is cut.

        Slices of K decide how sums are rounded. Those of `qkv`, on which the retrieval rests, are the same for any
        number of cores: they leave room for four tiles, or are a group of 4-bit weights if that is longer. Without
        teams the others are those of a core alone. Those of a batch are those of a stream alone, if they fit.
        """
        return self._as_alone(name, self.whole.tokens, partial(self._cut_for, name))

    def _cut_for(self, name: str, tokens: int, words: int) -> Tiling:
        """How the core's part of a product of so many tokens is cut, in slices of so many words if given."""
        w, n, p = self.whole, self.fmt.lanes, self.products[name]
        length = len(p.words) * n
        segment, gates = w.group * w.head_size if name == "output" else length, 2 if name == "gate_up" else 1
        if name == "qkv" and not words:
            few = min(self.fmt.w_depth // 8, self.fmt.x_depth // 2 // tokens)
            group = w.packing.group if w.packing else 1
            whole = [d for d in divisors(len(p.words)) if d * n % group == 0]  # if none, `_cut` says so
            words = max((d for d in whole if d <= max(1, few)), default=min(whole, default=0))
        elif self.shares.members == 1 and not words:
            outputs = w.ffn if gates > 1 else w.width
            words = self._cut(outputs, length, segment, gates, packing=w.packing, tokens=tokens).words
        return self._cut(len(p.tiles) * n, length, segment, gates, words, w.packing, tokens)

    def of(self, tokens: int, batch: int = 0) -> "SharePlan":
        """The plan of a pass of fewer tokens, alone or in a batch, that uses the same weights and entries in memory."""
        most = self.joint
        check(batch <= most, "batch", batch, f"must be at most {most}, the tokens for which products were cut")
        shares = replace(self.shares, whole=replace(self.whole, tokens=self._fewer(tokens).tokens), batch=batch)
        return SharePlan(shares, self.fmt, self.retrieval, self.core, self.base, self.team_base, self.cuts)

    @property
    def joint(self) -> int:
        return self.shares.joint

    @property
    def phases(self) -> dict[str, tuple[str, ...]]:
        """The stages of each phase; a member of a team has only some of them."""
        pages, batch = self.retrieval.pages is not None, self.shares.batch > 0
        if self.team.members > 1:
            of_team = TEAM_PAGES if pages else TEAM_PREFETCH if self.prefetches else TEAMS
            return _apart(of_team) if self.norms_apart else of_team
        if batch:
            return _apart(BATCH_PAGES if pages else BATCH)
        if pages:
            return _apart(PAGES) if self.norms_apart else PAGES
        return PREFETCH if self.prefetches else ALONE

    @property
    def norms_apart(self) -> bool:
        """Whether the core norms its part of the hidden states only."""
        return norms_apart(self.shares, self.retrieval.pages is not None)

    @property
    def prefetches(self) -> bool:
        """Whether the layer fetches for the next one, or the one before has fetched for it."""
        return self.retrieval.ahead >= 0 or self.retrieval.fetched

    @property
    def given(self) -> bool:
        return super().given or self.prefetches

    @property
    def switches(self) -> bool:
        return super().switches and (self.team.members > 1 or not self.shares.batch)

    @property
    def apart(self) -> int:
        """Bytes from the weights of a layer to those of the next."""
        return self.weights.size + (self.shares.groups - 1) * self.group_bytes

    def _entry_arrays(self) -> None:
        """Leave room for the weights of all members of the team; what belongs to the tables follows them."""
        arrays = self.weights.arrays
        s = self.shares
        own = max(self._own_bytes(core) for core in range(s.team(self.core), s.cores, s.teams))
        for name, a in arrays.items():
            arrays[name] = replace(a, offset=a.offset + self.team.member * own)
        many = self.team.members > 1
        self._tables_at = self.team.members * own if many else arrays["qkv_weight"].offset
        self.weights.size = max(self.weights.size, self.team.members * own)
        super()._entry_arrays()

    def _own_bytes(self, core: int) -> int:
        """Bytes of the weights of a core's products and norms."""
        n, align = self.fmt.lanes, self.weights.align
        sizes = [2 * self.whole.width] * 2
        for name in GEMMS:
            p = self.shares.product(name, core)
            words = len(p.tiles) * len(p.words) * n * (2 if name == "gate_up" else 1)  # of W
            packing = self.whole.packing
            sizes.append((words if packing is None else packing.read(words)) * n * 2)
        return sum(-(-size // align) * align for size in sizes)

    def _more_arrays(self) -> None:
        super()._more_arrays()
        self.group_bytes = self.weights.size - self._tables_at
        self.context_at = self.weights.arrays["behind"].offset  # first of what belongs to a stream, behind WEIGHTS
        self.context_bytes = self.weights.size - self.context_at
        many, n, batch = self.team.members > 1, self.fmt.lanes, self.shares.batch
        queries = self.work.arrays["q"].shape
        shared = shared_space(self.shares, self.retrieval.pages is not None, self.prefetches).arrays
        own, team, inputs = (Space(self.work.align, base) for base in (0, 0, Register.STREAM))
        for name, a in self.work.arrays.items():
            space = inputs if batch and name in INPUTS else team if many and name in OF_TEAM else own
            if name not in shared and not (self.norms_apart and name in NORMS):
                tables = self.shares.groups if batch and name == "qkv" else 1
                space.add(name, (tables, *a.shape) if tables > 1 else a.shape, a.dtype)
        self.team_bytes, self.input_bytes = team.size, inputs.size
        for space, base in ((own, self.base), (team, self.team_base)):
            space.arrays = {name: replace(a, offset=a.offset + base) for name, a in space.arrays.items()}
        self.work = own

        def columns(name: str, of: Array, product: str) -> Array:
            at = self.products[product].tiles.start * n * np.dtype(of.dtype).itemsize
            return Array(name, of.offset + at, of.shape, of.dtype)

        arrays = own.arrays
        arrays |= team.arrays | {"hidden": shared["hidden"], "all_attention": shared["attention"]}
        arrays |= inputs.arrays | (dict.fromkeys(NORMS, shared["normed"]) if self.norms_apart else {})
        if batch:
            self.rows_at, of = arrays["qkv"].offset, shared["attention"]
            arrays["qkv"] = Array("qkv", 0, arrays["qkv"].shape[-2:], BF16, Register.OUT)
            arrays["own_qkv"] = replace(columns("own_qkv", arrays["qkv"], "qkv"), base=Register.OUT)
            arrays["attention"] = Array("attention", 0, (1, *of.shape[1:]), BF16, Register.OUT)
        elif many:
            of = shared["attention"]
            dims = (self.shape.kv_heads, *of.shape[1:])
            at = of.offset + self.shares.team(self.core) * of.size // self.shares.teams
            arrays["attention"] = Array("attention", at, dims, of.dtype)
            arrays["own_qkv"] = columns("own_qkv", arrays["qkv"], "qkv")
            if self.retrieval.ahead >= 0:
                arrays["own_guess"] = columns("own_guess", arrays["guess_qkv"], "qkv")
        else:
            dims = (self.shape.kv_heads, *shared["attention"].shape[1:])
            arrays["attention"] = Array("attention", 0, dims, BF16, Register.OUT)
            for name in (name for name in QUERIES if name in shared):
                behind = shared[name].offset - shared["attention"].offset
                arrays[name] = Array(name, behind, queries, BF16, Register.OUT)
        arrays["gated"] = shared["gated"]
        arrays["own_gated"] = columns("own_gated", shared["gated"], "gate_up")
        sums = hidden = shared["hidden"]
        if self.shares.parts > 1:
            whole = shared["sums"]
            at = whole.offset + self.shares.part(self.core) * hidden.size
            sums, arrays["sums"] = Array("part", at, hidden.shape, hidden.dtype), whole
        arrays["own_output"] = columns("own_output", sums, "output")
        arrays["own_down"] = columns("own_down", sums, "down")

    def _beside_queries(self) -> tuple[int, int]:
        return (1, 0) if self.team.members > 1 or self.shares.batch else super()._beside_queries()

    def _table(self, c: Any, gemm: Callable[..., None]) -> list[Planned]:
        a, n, parts = self.arrays, self.fmt.lanes, self.shares.parts > 1
        member, members, turned = self.team.member, self.team.members, self.shares.rotates(self.core)

        def adds(name: str, x: str) -> Callable[[], None]:
            first, y = self.products[name].words.start * n, a[f"own_{name}"]
            return lambda: c.gemm(a[x], a[f"{name}_weight"], self.cuts[name], y, first=first, part=parts)

        mine = self.shares.summed(self.core)
        columns = range(mine.start * n, mine.stop * n)

        def total() -> None:
            c.total(a["sums"], a["hidden"], columns)

        given = super()._table(c, gemm)
        assert len({row.name for row in given}) == len(given)  # those below replace some
        rows = [
            *given,
            Planned("output", adds("output", "all_attention")),
            Planned("add_output", total, parts),
            Planned("gate_up", lambda: gemm("gate_up", "norm2", "own_gated", True)),
            Planned("down", adds("down", "gated")),
            Planned("add_down", total, parts),
        ]
        if self.norms_apart:
            own = divide(self.shares.joint, self.shares.cores)[self.core]
            for name in NORMS:
                norm = partial(c.norm, a["hidden"], a[f"{name}_weight"], a[name], tokens=own)
                rows.append(Planned(name, norm, len(own) > 0))
        if members > 1 or self.shares.batch:
            rows += [
                Planned("qkv", lambda: gemm("qkv", "norm1", "own_qkv")),
                Planned("rotary", lambda: c.queries(a["q"], turned), len(turned) > 0),
                Planned("switch", lambda: c.level(c.context()), members == 1),
            ]
        if members > 1 and self.retrieval.ahead >= 0:
            rows += self._guesses(c, a["own_guess"])
        table = {row.name: row for row in rows}
        names = dict.fromkeys(name for stages in self.phases.values() for name in stages if name in table)
        return [table[name] for name in names if name not in LEADERS or member == 0]

    def _guesses(self, c: Any, y: Array) -> list[Planned]:
        """The stages of a team's member that guess the next layer's queries: those among its columns go to `y`."""
        a, cut, turned = self.arrays, self.cuts["qkv"], self.shares.rotates(self.core)
        blocks = range(-(-len(self.shares.guesses(self.core)) // cut.tiles))
        norm, weights = self.ahead("norm1_weight"), self.ahead("qkv_weight")
        return [
            Planned("guess_norm", lambda: c.norm(a["hidden"], norm, a["guess_norm"]), len(blocks) > 0),
            Planned("guess", lambda: c.gemm(a["guess_norm"], weights, cut, y, blocks=blocks), len(blocks) > 0),
            Planned("guess_rotary", lambda: c.queries(a["guess"], turned, a["guess_qkv"]), len(turned) > 0),
        ]

    def phase(self, name: str) -> list[Instruction] | None:
        """The core's program of a phase, or None if it has nothing to do. That of `guess` leaves its FETCH."""
        own = [stage.name for stage in self.stages if stage.name in self.phases[name]]
        if not own:
            return None
        out = self.program(own[0], own[-1])
        return [*out[:-1], Instruction(Opcode.HALT, {"leave": 1})] if name == "guess" else out

    def pack(self, layer: dict[str, Matrix]) -> dict[str, np.ndarray]:
        """The core's arrays of weights of a layer by name, without those of its tables (`pack_table`).

        layer : the whole layer, as `golden.inputs.decoder` keeps it
        """
        w = self.whole
        rows = _columns(self.shares.order, w.group * w.head_size)
        ffn = self._numbers("gate_up")[1]
        matrices = {
            "output": [part(layer["attn_output"], rows)],
            "gate_up": [part(layer["gate_up"], outputs=x) for x in (ffn, w.ffn + ffn)],
            "down": [layer["ffn_down"]],
        }
        for name in ("output", "down"):
            inputs, columns = self._numbers(name)
            matrices[name] = [part(matrices[name][0], inputs, columns)]
        out = {name: self.matrix(name.removesuffix("_weight"), *x) for name, x in matrices.items()}
        norms = {"norm1_weight": vector(layer["attn_norm"]), "norm2_weight": vector(layer["ffn_norm"])}
        return {name: to_bf16(x) for name, x in norms.items()} | {f"{name}_weight": x for name, x in out.items()}

    def pack_table(
        self, layer: dict[str, Matrix], matrices: np.ndarray | KeyMatrices, group: int = 0
    ) -> dict[str, np.ndarray]:
        """The arrays of weights that belong to one of the core's tables, by name.

        layer, matrices : of the whole layer; matrices: hyperplanes [n_hp, KV heads * head size], or those of pages
        """
        w, heads = self.whole, self.shares.heads_of(self.core, group)
        keys = w.heads * w.head_size + _columns(heads, w.head_size)
        values = w.kv_heads * w.head_size + keys
        columns = np.concatenate([_columns(heads, w.group * w.head_size), keys, values])
        own = columns[self._numbers("qkv")[1]]
        out = {"qkv_weight": self.matrix("qkv", part(layer["qkv"], outputs=own))}
        if isinstance(matrices, KeyMatrices):
            return out | self.index.constants(KeyMatrices(matrices.code[heads], matrices.query[heads]))
        return out | {"hash_weight": self.planes(matrices[:, _columns(heads, w.head_size)])}

    def _numbers(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the inputs and of the columns of the core's part of a product."""
        p, n = self.products[name], self.fmt.lanes
        return tuple(_columns(some, n) for some in (p.words, p.tiles))  # type: ignore[return-value]


def _columns(parts: list[int] | range, size: int) -> np.ndarray:
    """Numbers of the columns of some parts of `size` columns each."""
    return (np.asarray(parts)[:, None] * size + np.arange(size)).reshape(-1)
