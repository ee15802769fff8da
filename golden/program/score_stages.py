"""Writes the part of a core's program that sends rows of score codes to the WTU.

The WTU keeps no row, so it is sent each row several times. A row that a bank of the VPE holds stays there meanwhile.
The codes of a longer one are stored in memory, in parts, and read again each time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self

from openvrex.golden.arithmetic.vector import Bank, Format, Reduce
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.function_params import ReSVParams, check, check_ints
from openvrex.golden.program.attention_stages import MINUS_INFINITY, PART, TOP, AttentionCompiler, AttentionSizes
from openvrex.golden.program.isa import Opcode, Queue, StoreTo
from openvrex.golden.program.layer_memory import LayerShape, Register, divisors
from openvrex.golden.program.recipes import Row, Scalar, Words, exponentials, imm, put
from openvrex.golden.retrieval.coded_pages import PageParams
from openvrex.golden.retrieval.dre_model import DreSizes

LEVEL = Register.FIRST  # number of clusters of the context; free where there is no `append`
ROWS_AT_ONCE = 2  # rows of scores that a bank holds for `select`: one enters the lanes while the other leaves


@dataclass(frozen=True)
class RetrievalShape:
    """Sizes of a layer's retrieval, and how it shares the work with the layers beside it.

    n_hp : hyperplanes, which is the number of hash bits of a key
    clusters : most clusters of the context
    ctx : the layer's context in the DRE, less the register CONTEXT
    sinks : entries that stand first behind the ring and are always attended
    ahead : context of the next layer, less that register, if this layer chooses and fetches its entries, else -1
    fetched : whether the layer before has chosen and fetched the entries of this one
    centre : whether hash bits are centred, as `ReSVParams.centre` says
    readings : times that the WTU reads a row
    frame : keys that the HCU holds, at least the tokens of a pass: a pass hashes all its keys before it asks for one
    pages : retrieve coded pages, each a cluster (`golden.program.page_choice_stages`); None: clusters of similar keys
    """

    n_hp: int = 32
    clusters: int = 256
    ctx: int = 0
    sinks: int = 0
    ahead: int = -1
    fetched: bool = False
    centre: bool = True
    readings: int = 1
    frame: int = 32
    pages: PageParams | None = None

    def __post_init__(self):
        check_ints(self)
        least = {"n_hp": 1, "clusters": 1, "readings": 1, "frame": 1, "ctx": 0, "sinks": 0, "ahead": -1}
        for name, low in least.items():
            check(getattr(self, name) >= low, name, getattr(self, name), f"must be at least {low}")

    @classmethod
    def of(cls, sizes: DreSizes, centre: bool, **more: Any) -> Self:
        """The retrieval on an engine of these sizes, with more fields."""
        own: dict[str, Any] = {"n_hp": sizes.layout.n_hp, "clusters": sizes.layout.clusters}
        return cls(**{**own, "centre": centre, "readings": sizes.readings, "frame": sizes.frame, **more})

    def check_engine(self, sizes: DreSizes, params: ReSVParams, shape: LayerShape) -> None:
        """Raise `ParamError` unless a program suits an engine of these sizes, and hashes keys as `params` say.

        shape : of the layer on a core, whose entries the engine keeps
        """
        wanted = self.of(sizes, params.centre)
        for name in ("n_hp", "clusters", "centre", "readings"):
            own, known = getattr(self, name), getattr(wanted, name)
            check(own == known, name, own, f"must be {known}, as in the retrieval engine and its parameters")
        if self.pages is not None:
            check(
                sizes.budgets, "budget", False, "must be true: the WTU chooses pages within a budget: wtu.budget=true"
            )
            check(params.th_hd == 1, "th_hd", params.th_hd, "must be 1: tokens of equal hash bits are a page")
        for name, own, known in (
            ("entry_bytes", sizes.map.entry_bytes, 2 * shape.entry),
            ("recent", sizes.map.recent, shape.recent),
        ):
            check(own == known, name, own, f"must be {known}, as in the layers")


class ScoreSizes(AttentionSizes, Protocol):
    """What rows of score codes need of their plan (`golden.program.core_compiler.CorePlan`)."""

    retrieval: RetrievalShape
    long_rows: bool  # a bank does not hold a row of scores


class ScoreCompiler(AttentionCompiler):
    """Writes instructions that convert rows of `ranks`, one FP32 score for each of LEVEL clusters, to score codes."""

    plan: ScoreSizes

    def choose(self, rows: int, scale: float) -> None:
        """Send the score codes of `rows` rows to the WTU, `readings` times each: of scores times `scale`."""
        p = self.plan
        if p.long_rows:
            self.count_parts(LEVEL, p.retrieval.clusters, self.fmt.depth * self.fmt.lanes, 1)
            for r in range(rows):
                self.long_codes(r * p["ranks"].shape[-1], scale, r == rows - 1)
        else:
            self.codes(rows, scale)

    def codes(self, rows: int, scale: float) -> None:
        """Send rows that a bank holds, `ROWS_AT_ONCE` rows at a time."""
        p, n = self.plan, self.fmt.lanes
        size = p["ranks"].shape[-1]
        words = size // n
        at_once = max(d for d in divisors(rows) if d * words <= self.fmt.depth and d <= ROWS_AT_ONCE)
        row: Words = {"len": int(LEVEL)}  # one number for each cluster
        for first in range(0, rows, at_once):
            with self.overlapped(words):
                for k in range(at_once):
                    most = {"keep": 0, "reduce": int(Reduce.MAX), "scalar_d": k}
                    self.ranked((first + k) * size, row, scale, k * words, **most)
                    self.raised((first + k) * size, 1, Scalar(k), k * words)
                    exponentials(self, Row(k * words, row, keep=0), Scalar(k), code=1, source=Queue.LOAD)
                    for _ in range(p.retrieval.readings):
                        self.vector(row, Queue.LOAD, 0, op=VectorOp.STORE, format=Format.HALF, addr_b=k * words)
                        self._emit(Opcode.STORE, target=StoreTo.SCORE, wide=int(first + k == rows - 1))

    def long_codes(self, at: int, scale: float, last: bool) -> None:
        """Send a row that a bank does not hold, from number `at` of `ranks`, in parts: its maximum is found first, then
        its codes are stored.
        """
        codes = self.plan["score_codes"]
        self.constant(TOP, MINUS_INFINITY)

        def highest(k: int, size: Words) -> None:
            self.ranked(at + k, size, scale, reduce=Reduce.MAX, scalar_d=PART.number)
            put(self, TOP, op=VectorOp.MAX, **PART.of("a"), **TOP.of("c"))

        def convert(k: int, size: Words) -> None:
            self.ranked(at + k, size, scale)
            self.raised(at + k, size, TOP)
            exponentials(self, Row(0, size), TOP, code=1)
            self.give(codes, k, size)

        def send(k: int, size: Words) -> None:
            self.take(codes, k, size, Bank.B)
            self.out(size)
            self._emit(Opcode.STORE, target=StoreTo.SCORE, wide=int(last), step=int(isinstance(size, int)))

        self.row_parts(highest)
        self.row_parts(convert)
        self.end()
        self.begin()
        for _ in range(self.plan.retrieval.readings):
            self.row_parts(send)

    def ranked(self, at: int, size: Words, scale: float, to: int = 0, **fields: int) -> None:
        """A = ranks from number `at`, scaled, from word `to`."""
        self.take(self.plan["ranks"], at, size, Bank.A, to, imm_b=imm(scale), **fields)

    def raised(self, at: int, size: Words, top: Scalar, to: int = 0) -> None:
        """Raise some of what `ranked` has left to the row's maximum, those in its first word: here none."""

    def row_parts(self, part: Callable[[int, Words], None]) -> None:
        """Call `part` for the whole parts of a row, and for the rest, which has a number.

        `part` takes the number of its first score, and the words or the field that counts them.
        """
        words, n = self.fmt.depth, self.fmt.lanes
        for k in self.rounds(Register.PARTS, behind=lambda k: part(k * words * n, {"len": int(Register.LEFT)})):
            part(k * words * n, words)
