"""The layer compiler for a core: a decoder layer with its retrieval (V-Rex Fig. 10), as stages of `golden.layer`.

Between `rotary` and `scores` stand, instead of `append`:

=========  ===========================================================================================================
hash       keys times hyperplanes, their signs to the HCU
cluster    of each token: its cluster, its entry to the KVMU's place, Key_cluster: FP32 sums and count, BF16 mean
rank       queries against Key_cluster, FP32
select     rows of score codes to the WTU (`vector_programs.score_codes`); the chosen clusters' entries are fetched
=========  ===========================================================================================================

A row of the cluster table: sums of the keys of all KV heads, FP32; a word whose first number is their count; the means;
rows are a power of two of bytes apart. Memory must be zero at first.

Sinks are entries that the host has put behind the ring; fetched ones come behind them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from golden.isa import LoadTo, LxeFormat, Opcode, Queue, Retrieve, StoreTo
from golden.layer import LayerPlan
from golden.layer_memory import Array, LayerShape, Register, Tiling, divisors
from golden.layer_stages import BANK, FREE, FULL, IMMEDIATE, QUERIES, SCALAR, STREAM, Compiler, _vector, semaphores
from golden.loops import op, repeat
from golden.numerics import BF16, to_bf16
from golden.params import check, check_ints
from golden.vector import ONE, Bank, Format, Post, Reduce
from golden.vector import Op as VectorOp
from golden.vector_programs import imm

ROW, LEVEL = Register.SLOT, Register.FIRST  # a cluster's row; clusters so far: the program's where there is no `append`
CLUSTER, SUMMED, ROTATED, FETCHED = range(4, 8)  # semaphores


@dataclass(frozen=True)
class RetrievalShape:
    """What a layer's retrieval is made of: hash bits, most clusters, its context in the DRE, sinks."""

    n_hp: int = 32
    clusters: int = 256
    ctx: int = 0
    sinks: int = 0

    def __post_init__(self):
        check_ints(self)
        for name, low in (("n_hp", 1), ("clusters", 1), ("ctx", 0), ("sinks", 0)):
            check(getattr(self, name) >= low, name, getattr(self, name), f"must be at least {low}")


class CoreCompiler(Compiler):
    """Builds the stages of a core."""

    def hash(self) -> None:
        """Keys of the pass times the hyperplanes; the signs of a token are a row of HASH."""
        s, p, n = self.shape, self.plan, self.fmt.lanes
        cut, weight, x = p.cuts["hash"], p["hash_weight"], p["fresh"]
        numbers, many = cut.words * n, s.tokens * cut.tiles
        for k in range(cut.slices):
            w_at, x_at = self.turn()
            size, to = cut.tiles * n, {"step": cut.words}
            self.load(weight, k * size * numbers, size, cut.words, numbers, LoadTo.W, (FREE,), to=w_at, **to)
            self.load(x, k * numbers, s.tokens, cut.words, s.entry, LoadTo.X, (), (FULL,), to=x_at, **to)
            self.mul(w_at, x_at, s.tokens, cut.tiles, cut.words, cut.words)
            last = k == cut.slices - 1
            result = {"write": Bank.B, "post": Post.ROUND} if last else {"write": Bank.C}
            self.vector(many, a=STREAM, wide=1, **({"c": BANK} if k else {}), **result)
        self.vector(many, op=VectorOp.STORE, format=Format.SIGN)
        self._emit(Opcode.STORE, target=StoreTo.HASH, rows=s.tokens - 1, words=cut.tiles - 1, to=p.retrieval.ctx)

    def retrieve(self, action: Retrieve, array: Array, at: int, wait=(), signal=(), **fields: int) -> None:
        """RETRIEVE at byte `at` of an array."""
        where = {"base": array.base, "addr": array.offset + at}
        self._emit(Opcode.RETRIEVE, action=action, **where, **semaphores(wait, signal), **fields)

    def sync(self, semaphore: int) -> None:
        """The sequencer waits."""
        self._emit(Opcode.SYNC, **semaphores((semaphore,), ()))

    def cluster(self) -> None:
        """Every token to its cluster and its place; the cluster's sums, count and mean in memory."""
        s, p = self.shape, self.plan
        words, entry = p.key_words, s.entry * 2
        row = Array("row", 0, (p.pitch // 4,), np.float32, ROW)
        mean_at, count = words + 1, words  # words of the banks
        whole, inverse, low, high = range(4)
        self._emit(Opcode.STORE, len=Register.REST, add=-(1 << 15), **semaphores((), (ROTATED, SUMMED)))
        for t in range(s.tokens):
            shift = p.pitch.bit_length() - 1
            self.retrieve(Retrieve.CLUSTER, p["table"], 0, (), (CLUSTER,), to=ROW, level=LEVEL, shift=shift)
            self.retrieve(Retrieve.PLACE, p["fresh"], t * entry, (ROTATED,) if t == 0 else ())
            self.sync(CLUSTER)
            self.load(row, 0, 1, words + 1, 0, LoadTo.VECTOR, (SUMMED,))
            self.vector(words + 1, Queue.LOAD, a=STREAM, wide=1, write=Bank.A | Bank.C)
            self.load(p["fresh"], t * s.entry, 1, words, 0, LoadTo.VECTOR)
            self.vector(words, Queue.LOAD, a=STREAM, c=BANK, write=Bank.A | Bank.C)
            one = {"a": BANK, "addr_a": count, "c": IMMEDIATE, "imm_c": ONE, "write": Bank.C, "addr_d": count}
            self.vector(1, **one, keep=0, reduce=Reduce.LAST, scalar_d=whole)
            self.out(words + 1, True)
            self.store(row, 0, 1, words + 1, 0)
            # As `vector_programs.cluster_mean`, the count from memory.
            self.scalar(inverse, scalar_a=whole, post=Post.RECIPROCAL)
            self.scalar(low, scalar_a=whole, negate_a=1, b=SCALAR, scalar_b=inverse, imm_c=ONE)
            self.scalar(inverse, scalar_a=low, b=SCALAR, scalar_b=inverse, c=SCALAR, scalar_c=inverse)
            self.scalar(high, scalar_a=inverse, post=Post.ROUND)
            self.scalar(low, scalar_a=inverse, c=SCALAR, scalar_c=high, negate_c=1, post=Post.ROUND)
            to = {"addr_d": mean_at}
            self.vector(words, a=BANK, b=SCALAR, scalar_b=high, post=Post.ROUND, write=Bank.B | Bank.C, **to)
            rest = {"a": SCALAR, "scalar_a": whole, "negate_a": 1, "b": BANK, "addr_b": mean_at, "c": BANK}
            self.vector(words, **rest, write=Bank.A, **to)
            part = {"a": BANK, "addr_a": mean_at, "b": SCALAR, "c": BANK, "addr_c": mean_at}
            self.vector(words, **part, scalar_b=low, write=Bank.C, **to)
            self.vector(words, **part, scalar_b=high, post=Post.ROUND, write=Bank.B, **to)
            self.out(words, at=mean_at)
            mean = Array("mean", p.mean_bytes, (p.pitch // 2,), BF16, ROW)
            self.store(mean, 0, 1, words, 0, **semaphores((), (SUMMED,)))
        self._emit(Opcode.LOAD, len=Register.REST, add=-(1 << 15), **semaphores((SUMMED,), ()))

    def rank(self) -> None:
        """Queries of a KV head, as in `scores`, against its slices of Key_cluster."""
        s, p, n, batch = self.shape, self.plan, self.fmt.lanes, self.plan.batch
        period, out = s.head_size // n, p["ranks"]
        pitch = p.pitch // 2
        self.signal_queries()
        for g in range(s.kv_heads):
            for first in range(g * s.rows, (g + 1) * s.rows, batch):
                at = first * s.head_size
                self.load(p["q"], at, batch, period, s.head_size, LoadTo.X, (QUERIES,), to=0, step=period)

                def tile(i: int, g=g, first=first) -> None:
                    w_at, _ = self.turn()
                    at = i * n * pitch + g * s.head_size
                    self.load(p["means"], at, n, period, pitch, LoadTo.W, (FREE,), (FULL,), to=w_at, step=period)
                    self.mul(w_at, 0, batch, 1, period, period)
                    self.vector(batch, a=STREAM, wide=1, write=Bank.C)
                    self.out(batch, True)
                    self.store(out, first * out.shape[-1] + i * n, batch, 1, out.shape[-1])

                before, bodies = self.items, []
                for k in range(2):
                    self.items = []
                    for i in range(2):
                        tile(2 * k + i)
                    bodies.append(self.items)
                self.items = [*before, repeat(LEVEL, "pair", *bodies)]
                self.signal_queries()

    def select(self) -> None:
        """Score codes of every row to the WTU, then the fetch."""
        s, p, n = self.shape, self.plan, self.fmt.lanes
        ranks, rows = p["ranks"], s.kv_heads * s.rows
        header = {"len": LEVEL}
        size = ranks.shape[-1]
        for r in range(rows):
            self.load(ranks, r * size, 1, 1, n, LoadTo.VECTOR, len=LEVEL, unit=1)
            self.row_vector(header, a=STREAM, wide=1, imm_b=imm(p.scale), write=Bank.A, reduce=Reduce.MAX, scalar_d=0)
            less = {"a": BANK, "c": SCALAR, "scalar_c": 0, "negate_c": 1}
            self.row_vector(header, **less, post=Post.EXP, code=1, write=Bank.B)
            self.row_vector(header, op=VectorOp.STORE, format=Format.HALF)
            self._emit(Opcode.STORE, target=StoreTo.SCORE, to=p.retrieval.ctx, wide=int(r == rows - 1))
        at = (s.recent + p.retrieval.sinks) * s.entry * 2
        room = s.entries - p.retrieval.sinks - 1
        self.retrieve(Retrieve.FETCH, p["ring"], at, (), (FETCHED,), to=Register.ENTRIES, rows=room)
        self.sync(FETCHED)
        self.items.append(op(Opcode.ADD, to=Register.ENTRIES, a=Register.ENTRIES, imm=p.retrieval.sinks))

    def row_vector(self, header: dict[str, int], **fields: int) -> None:
        """VECTOR on a row whose length `header` gives."""
        header = (("source", int(Queue.LOAD)), *((k, int(v)) for k, v in header.items()))
        self.items.append(_vector(header, **{k: int(v) for k, v in fields.items()}))


class CorePlan(LayerPlan):
    """The program of a layer's pass on a core, and its memory: that of `LayerPlan` and the retrieval's.

    `kv` is the ring of the layer's context, as the KVMU places it, with room for entries behind it. The registers
    SLOT and FIRST are the program's. One program serves one context.

    Raises `ParamError` as `LayerPlan`, and for a retrieval that does not fit.
    """

    _compiler = CoreCompiler

    def __init__(
        self, shape: LayerShape, fmt: LxeFormat, retrieval: RetrievalShape, cuts: dict[str, Tiling] | None = None
    ):
        self.retrieval = retrieval
        super().__init__(shape, fmt, cuts)

    def of(self, tokens: int) -> "CorePlan":
        """The plan of a pass of fewer tokens over the same weights and entries."""
        return CorePlan(replace(self.shape, tokens=tokens), self.fmt, self.retrieval, self.cuts)

    def _more_arrays(self) -> None:
        s, f, r = self.shape, self.fmt, self.retrieval
        n, keys = f.lanes, s.kv_heads * s.head_size
        self.key_words = keys // n
        self.mean_bytes = 4 * (keys + n)
        self.pitch = 1 << (self.mean_bytes + 2 * keys - 1).bit_length()
        need = 2 * self.key_words + 1
        check(need <= f.depth, "kv_heads * head_size", keys, f"needs {need} words of a bank of {f.depth}")
        most = f.depth * n
        check(r.clusters <= most, "clusters", r.clusters, f"must be at most {most}: a row of scores is in a bank")
        check(r.sinks < s.entries, "sinks", r.sinks, f"must be below entries = {s.entries}, which they are among")
        tiles = -(-r.n_hp // n)
        fits = [w for w in divisors(self.key_words) if tiles * w <= f.w_depth // 2 and s.tokens * w <= f.x_depth // 2]
        check(bool(fits) and tiles * s.tokens <= f.depth, "n_hp", r.n_hp, f"does not fit: {tiles} tiles of hyperplanes")
        cut = self.cuts.setdefault("hash", Tiling(1, tiles, self.key_words // max(fits), max(fits)))
        self.weights.add("hash_weight", (1, cut.slices, cut.tiles * n, cut.words * n), BF16)
        rows = -(-r.clusters // (2 * n)) * 2 * n
        table = self.weights.add("table", (rows, self.pitch // 4), np.float32)
        self.weights.arrays["means"] = Array(
            "means", table.offset + self.mean_bytes, (rows, self.pitch // 2), BF16, table.base
        )
        self.work.add("ranks", (s.kv_heads * s.rows, rows), np.float32)

    def _steps(
        self, c: CoreCompiler, gemm: Callable[..., None]
    ) -> list[tuple[str, tuple[str, ...], Callable[[], None]]]:
        steps = super()._steps(c, gemm)
        at = [name for name, _, _ in steps].index("append")
        retrieval = [
            ("hash", (), c.hash),
            ("cluster", ("table",), c.cluster),
            ("rank", ("ranks",), c.rank),
            ("select", (), c.select),
        ]
        return steps[:at] + retrieval + steps[at + 1 :]

    def planes(self, hyperplanes: np.ndarray) -> np.ndarray:
        """The array `hash_weight` of hyperplanes [n_hp, KV heads * head size]."""
        _, slices, rows, numbers = self["hash_weight"].shape
        padded = np.zeros((rows, hyperplanes.shape[1]), BF16)
        padded[: len(hyperplanes)] = to_bf16(hyperplanes)
        return padded.reshape(1, rows, slices, numbers).swapaxes(1, 2)
