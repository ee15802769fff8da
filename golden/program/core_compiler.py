"""The layer compiler for a core: turns a decoder layer with its retrieval into a program (V-Rex Fig. 10).

It replaces the stages `qkv`, `rotary`, `append` and `scores` of `golden.program.layer_compiler` by these:

==========  ==========================================================================================================
keys        the blocks of the GEMM `qkv` that hold keys or values
entries     rotates keys; puts keys and values together as entries
hash        multiplies keys by hyperplanes; the signs go to the HCU (with `RetrievalShape.centre` those of the products
            less the thresholds, which the first pass of a context computes; `golden.retrieval.hashing`)
cluster     for each token: asks for its cluster, copies its entry to the place that the KVMU gives, and updates the
            cluster's Key_cluster: FP32 sums and count, BF16 mean. Between tokens run the blocks of `qkv` that hold
            queries only. At the end it switches the DRE to the layer's context, for `select`
rotary      rotates queries
rank        multiplies queries by Key_cluster, FP32
select      sends rows of score codes to the WTU (`vector_programs.score_codes`), each as often as the WTU reads it;
            starts the FETCH of chosen entries
resident    multiplies queries by the keys of the ring
scores      multiplies queries by the keys behind the ring, once they are there
==========  ==========================================================================================================

Prefetch. A layer with `RetrievalShape.ahead` also chooses entries for the next layer, whose weights lie behind its own.
It then runs guess_norm, guess and guess_rotary after norm1, guess_rank and guess_select before `resident`: norm, query
projection, rotary, rank and select with this layer's input and the next layer's weights and clusters. The FETCH runs
beside all stages that follow. The next layer (`fetched`) has no rank and no select. It attends to the entries that were
fetched for it, as `golden.policies.resv_policy` does with prefetch `only`. Tokens that leave the ring in between are
not among them. The register ROW passes the number of fetched entries from one program to the next.

A row of the cluster table holds the FP32 sums of the keys of all KV heads, then a word whose first number is their
count, then the BF16 means. Rows lie a power of two of bytes apart. Memory must be zero at first.

Sinks are entries that the host puts first behind the ring (array `behind`); fetched entries follow them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.vector import ONE, Bank, Format, Post
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.function_params import check
from openvrex.golden.program.compiler import FREE, FULL, semaphores
from openvrex.golden.program.isa import LoadTo, LxeFormat, Opcode, Queue, Retrieve, StoreTo
from openvrex.golden.program.layer_compiler import LayerPlan, Work
from openvrex.golden.program.layer_memory import Array, LayerShape, Register, Team, Tiling, divisors
from openvrex.golden.program.loop_rolling import op
from openvrex.golden.program.recipes import BANK, IMMEDIATE, STREAM, Row, imm, mean
from openvrex.golden.program.score_stages import LEVEL, RetrievalShape, ScoreCompiler
from openvrex.golden.program.sequencer_model import register_values
from openvrex.golden.program.stage_plan import Planned

# Register that the program uses, free as there is no `append`: address of a cluster's row.
ROW = Register.SLOT
# Semaphores: the cluster or count is in its register, its row is in memory, the entries to be placed are in memory, all
# are placed, the chosen entries are fetched, the DRE has the counts of the layer's clusters.
CLUSTER, SUMMED, ROTATED, PLACED, FETCHED, SWITCHED = range(4, 10)


class CoreCompiler(ScoreCompiler):
    """Writes the stages of a core, which add the retrieval to those of an LXE."""

    plan: "CorePlan"

    def hash(self) -> None:
        """Multiply the keys of the pass by the hyperplanes; send the signs of each token to the HCU."""
        s, p, n = self.shape, self.plan, self.fmt.lanes
        cut, weight, x = p.cuts["hash"], p["hash_weight"], p["fresh"]
        numbers, many = cut.words * n, s.tokens * cut.tiles
        centre = p.retrieval.centre
        for k in range(cut.slices):
            w_at, x_at = self.turn()
            size, to = cut.tiles * n, {"step": cut.words}
            self.load(weight, k * size * numbers, size, cut.words, numbers, LoadTo.W, (FREE,), to=w_at, **to)
            self.load(x, k * numbers, s.tokens, cut.words, s.entry, LoadTo.X, (), (FULL,), to=x_at, **to)
            self.mul(w_at, x_at, s.tokens, cut.tiles, cut.words, cut.words)
            last = k == cut.slices - 1
            result: dict[str, int] = {"write": Bank.B, "post": Post.ROUND} if last else {"write": Bank.C}
            if last and centre:
                result = {"write": Bank.A}
            self.vector(many, a=STREAM, wide=1, **({"c": BANK} if k else {}), **result)
        if centre:
            self.centre(cut.tiles, many)
        self.vector(many, op=VectorOp.STORE, format=Format.SIGN)
        self._emit(Opcode.STORE, target=StoreTo.HASH, rows=s.tokens - 1, words=cut.tiles - 1, **self.context())

    def centre(self, tiles: int, many: int) -> None:
        """B = the `many` words of products in bank A less the thresholds, `tiles` words.

        Thresholds come from memory to the end of the `many` words of bank C. The first pass of a context, which has no
        cluster yet, overwrites them there by its own, and stores these.
        """
        p, at = self.plan, many - tiles
        self.take(p["thresholds"], 0, tiles, Bank.C, at)
        self.level(self.context())
        with self.when(self.above_zero(LEVEL, yes=0)):
            part: dict[str, int] = {"a": BANK, "imm_b": imm(1 / self.shape.tokens), "write": Bank.C}
            self.vector(tiles, **part)
            if at:  # a token's words add to those of the token before
                self.vector(at, **part, addr_a=tiles, c=BANK, addr_d=tiles)
            self.give(p["thresholds"], 0, tiles, at)
        less = {"c": BANK, "addr_c": at, "span_c": tiles.bit_length() - 1, "negate_c": 1}
        self.vector(many, a=BANK, **less, post=Post.ROUND, write=Bank.B)

    def retrieve(self, action: Retrieve, array: Array, at: int, wait=(), signal=(), **fields: int) -> None:
        """RETRIEVE with the address of byte `at` of an array."""
        where = {"base": array.base, "addr": array.offset + at}
        self._emit(Opcode.RETRIEVE, action=action, **where, **semaphores(wait, signal), **fields)

    def sync(self, semaphore: int) -> None:
        """Make the sequencer wait for a semaphore."""
        self._emit(Opcode.SYNC, **semaphores((semaphore,), ()))

    def context(self, ahead: bool = False) -> dict[str, int]:
        """The fields that name the layer's context, or the next layer's."""
        r = self.plan.retrieval
        return {"base": int(Register.CONTEXT), "addr": r.ahead if ahead else r.ctx}

    def level(self, context: dict[str, int]) -> None:
        """Switch the DRE to a context; LEVEL = its clusters."""
        self._emit(Opcode.RETRIEVE, action=Retrieve.SWITCH, level=LEVEL, **context, **semaphores((), (CLUSTER,)))
        self.sync(CLUSTER)

    def cluster(self) -> None:
        """Cluster and place every token; before each few tokens, run some blocks of the queries' GEMM."""
        p = self.plan
        if p.retrieval.fetched and not p.given:
            self.entries_are(ROW)
        self.fence(Opcode.STORE, signal=(ROTATED, SUMMED))
        self.fence(Opcode.RETRIEVE, wait=(ROTATED,))
        at_once = self.shape.tokens // p.turns
        for turn in range(p.turns):
            self.product(p["norm1"], p["qkv_weight"], range(turn * p.beside, (turn + 1) * p.beside))
            for t in range(turn * at_once, (turn + 1) * at_once):
                self.join(t)
        self.fence(Opcode.LOAD, wait=(SUMMED,))
        if p.retrieval.fetched:
            self.fence(Opcode.RETRIEVE, signal=(PLACED,))
        else:
            switch = {"action": Retrieve.SWITCH, **self.context()}
            self._emit(Opcode.RETRIEVE, **switch, **semaphores((), (PLACED, SWITCHED)))

    def product(self, x: Array, weight: Array, blocks: range) -> None:
        """Some blocks of the GEMM of normalised hidden states with the weights of queries, keys and values."""
        p = self.plan
        self.gemm(x, weight, p.cuts["qkv"], p["qkv"], blocks=blocks)

    def entries_are(self, fetched: int) -> None:
        """ENTRIES = sinks + the register `fetched`."""
        self.items.append(op(Opcode.ADD, to=Register.ENTRIES, a=fetched, imm=self.plan.retrieval.sinks))

    def join(self, t: int) -> None:
        """Cluster and place token `t`; update the sums, count and mean of its cluster in memory."""
        s, p = self.shape, self.plan
        words, entry = p.key_words, s.entry * 2
        row = Array("table", 0, (p.pitch // 4,), np.float32, ROW)
        mean_at, count = words + 1, words  # words of the banks that hold them
        shift = p.pitch.bit_length() - 1
        self.retrieve(Retrieve.CLUSTER, p["table"], 0, (), (CLUSTER,), to=ROW, level=LEVEL, shift=shift)
        self.retrieve(Retrieve.PLACE, p["fresh"], t * entry)
        self.sync(CLUSTER)
        self.load(row, 0, 1, words + 1, 0, LoadTo.VECTOR, (SUMMED,))
        self.vector(words + 1, Queue.LOAD, a=STREAM, wide=1, write=Bank.A | Bank.C)
        self.take(p["fresh"], t * s.entry, words, Bank.A | Bank.C, c=BANK)
        one = {"a": BANK, "addr_a": count, "c": IMMEDIATE, "imm_c": ONE, "write": Bank.C, "addr_d": count}
        with self.scalars(4) as (whole, inverse, low, high):
            self.vector(1, **one, **whole.to, keep=0)
            self.give(row, 0, words + 1)
            mean(self, Row(0, words), whole, inverse, low, high, mean_at)
        self.out(words, at=mean_at)
        means = Array("means", p.mean_bytes, (p.pitch // 2,), BF16, ROW)
        self.store(means, 0, 1, words, 0, **semaphores((), (SUMMED,)))

    def rank(self, q: Array, means: Array) -> None:
        """Multiply queries `q` by the means of the core's clusters; FP32 scores go to `ranks`."""
        p = self.plan
        apart = p.pitch // 2

        def keys(g: int, i: int) -> tuple[Array, int, int]:
            return means, i * self.fmt.lanes * apart + g * self.shape.head_size, apart

        if p.team.members > 1:
            self.deal(LEVEL, 0, p.retrieval.clusters)
        own = 2 * p.team.member, LEVEL, 2 * p.team.members
        self.products(q, p["ranks"], keys, lambda step: self.pairs(step, *own))

    def rank_ahead(self) -> None:
        """Multiply the guessed queries by the next layer's Key_cluster."""
        p = self.plan
        self.level(self.context(ahead=True))
        self.rank(p["guess"], p.ahead("means"))

    def select(self) -> None:
        """Choose clusters by their scores and fetch their entries behind the ring."""
        self.fence(Opcode.STORE, wait=(SWITCHED,))
        self.choose()
        self.fetch(self.plan["behind"], Register.ENTRIES, (FETCHED,))

    def select_ahead(self) -> None:
        """Choose and fetch for the next layer, if it has a cluster. The next program waits for these entries."""
        self._emit(Opcode.SET, to=ROW)
        with self.when(self.above_zero(LEVEL)):
            self.choose()
            self.fetch(self.plan.ahead("behind"), ROW)

    def fetch(self, to: Array, register: int, signal=()) -> None:
        """FETCH the chosen entries behind the sinks of array `to`; their number goes to a register."""
        self.writes[to.name] = None
        sinks = self.plan.retrieval.sinks
        at, room = sinks * self.shape.entry * 2, self.shape.entries - sinks - 1
        self.retrieve(Retrieve.FETCH, to, at, (), signal, to=register, rows=room)

    def resident(self) -> None:
        """Multiply queries by the keys of the ring, once all tokens are placed."""
        p = self.plan
        self.fence(Opcode.LOAD, wait=(PLACED,))
        self.products(p["q"], p["scores"], self.keys, self.ring_tiles)

    def scores(self) -> None:
        """Multiply queries by the keys behind the ring, once they are there."""
        p = self.plan
        if not p.retrieval.fetched and not p.given:
            self.sync(FETCHED)
            self.entries_are(Register.ENTRIES)
        self.count()
        self.products(p["q"], p["scores"], self.keys, self.tiles_behind)


class CorePlan(LayerPlan):
    """The program of a layer's pass on a core, and its arrays: those of `LayerPlan` and of the retrieval.

    `kv` is the ring of the layer's context, as the KVMU places it. Entries behind the ring lie among the weights. The
    program owns the registers SLOT and FIRST. One program serves one context. In `cluster`, `turns` times, `beside`
    blocks of the queries' GEMM precede some tokens.

    Raises `ParamError` as `LayerPlan` does, and for a retrieval that does not fit.
    """

    _compiler = CoreCompiler
    # `resident` needs only queries and the ring.
    _beside = {"resident": ("select", "guess_select")}
    _hands = {PLACED: ("cluster", "resident"), SWITCHED: ("cluster", "select"), FETCHED: ("select", "scores")}

    def __init__(
        self,
        shape: LayerShape,
        fmt: LxeFormat,
        retrieval: RetrievalShape,
        cuts: dict[str, Tiling] | None = None,
        team: Team | None = None,
    ):
        self.retrieval = retrieval
        super().__init__(shape, fmt, cuts, team)

    @property
    def given(self) -> bool:
        """Whether the host gives ENTRIES to a program with `scores`, because others have fetched the entries."""
        return self.team.members > 1

    def of(self, tokens: int) -> "CorePlan":
        """The plan of a pass of fewer tokens over the same weights and entries."""
        return CorePlan(self._fewer(tokens), self.fmt, self.retrieval, self.cuts, self.team)

    def _entry_arrays(self) -> None:
        """Place the ring where the KVMU has it, and the entries behind it with the layer's weights."""
        s = self.shape
        self.kv.add("ring", (s.recent, s.entry), BF16)
        self.weights.add("behind", (self.behind, s.entry), BF16)
        self._views = {}

    def _more_arrays(self) -> None:
        s, f, r = self.shape, self.fmt, self.retrieval
        n, keys = f.lanes, s.kv_heads * s.head_size
        self.key_words = keys // n
        self.mean_bytes = 4 * (keys + n)
        self.pitch = 1 << (self.mean_bytes + 2 * keys - 1).bit_length()
        need = 2 * self.key_words + 1
        reason = f"needs {need} words of a bank, but depth = {f.depth}: raise depth"
        check(need <= f.depth, "kv_heads * head_size", keys, reason)
        reason = "the keys that the HCU holds: raise hcu.frame, or take fewer tokens"
        check(s.tokens <= r.frame, "tokens", s.tokens, f"must be at most frame = {r.frame}, {reason}")
        check(r.sinks < s.entries, "sinks", r.sinks, f"must be below entries = {s.entries}, which count the sinks, too")
        tiles = -(-r.n_hp // n)
        fits = [w for w in divisors(self.key_words) if tiles * w <= f.w_depth // 2 and s.tokens * w <= f.x_depth // 2]
        reason = f"its {tiles} tiles of hyperplanes do not fit: take fewer, or raise w_depth, x_depth or depth"
        check(bool(fits) and tiles * s.tokens <= f.depth, "n_hp", r.n_hp, reason)
        reason = f"its {tiles} tiles of {n} hyperplanes must be a power of two for centred hash bits: choose other n_hp"
        check(not r.centre or tiles & (tiles - 1) == 0, "n_hp", r.n_hp, reason)
        cut = self.cuts.setdefault("hash", Tiling(1, tiles, self.key_words // max(fits), max(fits)))
        self.weights.add("hash_weight", cut.weights(n), BF16)
        rows = -(-r.clusters // (2 * n)) * 2 * n
        table = self.weights.add("table", (rows, self.pitch // 4), np.float32)
        means = table.offset + self.mean_bytes
        if r.centre:
            self.weights.add("thresholds", (tiles * n,), np.float32)
        self._views["means"] = Array("means", means, (rows, self.pitch // 2), BF16, table.base)
        self.work.add("ranks", (s.kv_heads * s.rows, rows), np.float32)
        if r.ahead >= 0:
            self.work.add("guess_norm", self.work.arrays["norm1"].shape, BF16)
            self.work.add("guess", self.work.arrays["q"].shape, BF16)
        self.turns, self.beside = self._beside_queries()

    def _beside_queries(self) -> tuple[int, int]:
        """The blocks of the GEMM that hold queries only run within `cluster`, spread evenly over its tokens."""
        s = self.shape
        blocks = s.heads * s.head_size // (self.cuts["qkv"].tiles * self.fmt.lanes)
        turns = max(d for d in divisors(s.tokens) if d <= max(1, blocks))
        return turns, blocks // turns

    def _table(self, c: Any, gemm: Callable[..., None]) -> list[Planned]:
        a, r = self.arrays, self.retrieval
        cut, size = self.cuts["qkv"], self.shape.heads * self.shape.head_size
        keys = range(self.turns * self.beside, cut.blocks)
        queries = range(-(-size // (cut.tiles * self.fmt.lanes)))
        guesses = r.ahead >= 0
        table = super()._table(c, gemm)
        names = [row.name for row in table]
        return [
            *table[: names.index("qkv")],
            Planned("guess_norm", lambda: c.norm(a["hidden"], self.ahead("norm1_weight"), a["guess_norm"]), guesses),
            Planned("guess", lambda: c.product(a["guess_norm"], self.ahead("qkv_weight"), queries), guesses),
            Planned("guess_rotary", lambda: c.queries(a["guess"]), guesses),
            Planned("keys", lambda: c.product(a["norm1"], a["qkv_weight"], keys)),
            Planned("entries", c.entries),
            Planned("hash", c.hash),
            Planned("cluster", c.cluster),
            Planned("rotary", lambda: c.queries(a["q"])),
            Planned("rank", lambda: c.rank(a["q"], a["means"]), not r.fetched),
            Planned("select", c.select, not r.fetched),
            Planned("guess_rank", c.rank_ahead, guesses),
            Planned("guess_select", c.select_ahead, guesses),
            Planned("resident", c.resident),
            *table[names.index("scores") :],
        ]

    def costs(self, entries: int, clusters: int | None = None) -> dict[str, Work]:
        """The work of each stage, by name. A RETRIEVE counts as an issued instruction only.

        entries : entries behind the ring
        clusters : clusters of the context that the layer ranks; the most it may have if not given
        """
        level = self.retrieval.clusters if clusters is None else clusters
        sinks = self.retrieval.sinks * (not self.retrieval.fetched and not self.given)  # `scores` adds them
        given: dict[int, int] = {
            LEVEL: level,
            Register.ENTRIES: entries - sinks,
        }
        out, names = {}, [stage.name for stage in self.stages]
        for k, name in enumerate(names):
            if k <= names.index("scores"):  # the stages behind it use registers that it sets
                registers = register_values(given)
            out[name] = self._cost(name, registers)
        return out

    def ahead(self, name: str) -> Array:
        """The array `name` of the next layer."""
        array = self.arrays[name]
        return replace(array, offset=array.offset + self.apart)

    @property
    def apart(self) -> int:
        """Bytes from the weights of a layer to those of the next."""
        return self.weights.size

    def planes(self, hyperplanes: np.ndarray) -> np.ndarray:
        """The array `hash_weight` for hyperplanes [n_hp, KV heads * head size]."""
        _, slices, rows, numbers = self["hash_weight"].shape
        padded = np.zeros((rows, hyperplanes.shape[1]), BF16)
        padded[: len(hyperplanes)] = to_bf16(hyperplanes)
        return padded.reshape(1, rows, slices, numbers).swapaxes(1, 2)
