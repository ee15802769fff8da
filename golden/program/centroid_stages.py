"""Compiles the search for the nearest centroid of each token, on hardware that yields no index.

`CentroidPlan` takes the directions of a pass's tokens through two stages:

========  ==========================================================================================================
scores    GEMM: the products of each token with each centroid, FP32
nearest   the number of the centroid with the largest product less half its squared length, and that score
========  ==========================================================================================================

The results are those of `golden.retrieval.centroids.scores` and `nearest`, bit for bit.

Arg-max. The VPE finds the maximum of a row, but no index. Three instructions a row make the number of the maximum from
it. With the products p_i, the squared lengths q_i and a power of two N above all numbers:

    s_i = p_i - q_i / 2                   S = max s_i
    g_i = 1 / BF16(s_i - S)               infinite where s_i = S, as 1 / +0 is; zero or below elsewhere
    result = N - max min(g_i, N - i)      N - i is at least 1, and largest for the lowest number

No score is -0, because a product is not, so s_i - S is +0 for the maximum. Numbers below 2^24 are exact in FP32. Scores
closer to each other than 2^-126 count as equal. At least one score must be finite.

Where clusters do not fill a tile of `lanes`, or shall not be chosen, their -q / 2 is minus infinity.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.vector import SCALARS, Bank, Reduce
from openvrex.golden.function_params import check
from openvrex.golden.program.isa import LoadTo, LxeFormat, Queue
from openvrex.golden.program.layer_memory import Array, LayerShape, Register, Space, divisors
from openvrex.golden.program.layer_stages import LayerCompiler
from openvrex.golden.program.recipes import BANK, IMMEDIATE, SCALAR, STREAM, Row, Scalar, first_of, imm
from openvrex.golden.program.stage_plan import Plan, Planned


class CentroidCompiler(LayerCompiler):
    """Writes the arg-max of the scores."""

    plan: "CentroidPlan"

    def nearest(self) -> None:
        """Store the number of each token's nearest centroid and its score, each in all lanes of a word.

        Bank C holds -q / 2, the numbers N - i, and the results; bank A the scores of `rows` tokens.
        """
        p, n = self.plan, self.fmt.lanes
        words, rows, tokens = p.tiles, p.rows, self.shape.tokens
        self.take(p["minus_half"], 0, words, Bank.C)
        at = self.places(numbers=words, out=2 * rows)
        self.take(p["numbers"], 0, words, Bank.C, at.numbers)
        for first in range(0, tokens, rows):
            some = range(rows)
            for k in some:
                self.load(p["scores"], (first + k) * words * n, 1, words, 0, LoadTo.VECTOR)
                top: dict[str, int] = {"reduce": Reduce.MAX, "scalar_d": 2 * k}
                self.vector(words, Queue.LOAD, a=STREAM, wide=1, c=BANK, write=Bank.A, addr_d=k * words, **top)
            tops, found = [Scalar(2 * k) for k in some], [Scalar(2 * k + 1) for k in some]
            first_of(self, [Row(k * words, words, Bank.A) for k in some], tops, at.numbers, found)
            for k in some:
                self.vector(a=SCALAR, scalar_a=2 * k, write=Bank.C, addr_d=at.out + 2 * k + 1)
            for k in some:
                back: dict[str, int] = {"a": SCALAR, "scalar_a": 2 * k + 1, "negate_a": 1}
                self.vector(**back, c=IMMEDIATE, imm_c=imm(p.above), write=Bank.C, addr_d=at.out + 2 * k)
            self.give(p["nearest"], 2 * first * n, 2 * rows, at.out)


class CentroidPlan(Plan):
    """The program from directions to the nearest centroids, and its arrays in memory.

    shape : its `width` is the length of a direction, its `tokens` the number of them; other fields do not matter
    clusters : number of centroids
    tiles : words of a row of scores
    rows : tokens whose scores are in work at once
    above : N, a power of two

    Arrays of `table` start at the address in the register WEIGHTS, those of `work` at the one in KV, and `x` are the
    directions, at the address in OUT. `nearest` is FP32 [tokens, 2, lanes]: number and score.

    Raises `ParamError` if bank C does not hold two rows and the results, if `tokens` words exceed a bank, or if a half
    of W does not hold a centroid, or a half of X the tokens.
    """

    _compiler = CentroidCompiler

    def __init__(self, shape: LayerShape, fmt: LxeFormat, clusters: int):
        tokens, width, n = shape.tokens, shape.width, fmt.lanes
        self.shape, self.fmt, self.clusters = shape, fmt, clusters
        check(width % n == 0, "width", width, f"must be a multiple of lanes = {n}")
        most = (fmt.depth - 2) // 2 * n
        check(1 <= clusters <= most, "clusters", clusters, f"must be 1 to {most}: bank C holds two rows of numbers")
        check(tokens <= fmt.depth, "tokens", tokens, f"must be at most depth = {fmt.depth}: run fewer at once")
        self.tiles = -(-clusters // n)
        self.above = 1 << (self.tiles * n).bit_length()
        fits = (fmt.depth // self.tiles, (fmt.depth - 2 * self.tiles) // 2, SCALARS // 2)
        self.rows = max(d for d in divisors(tokens) if d <= min(fits))
        words = width // n  # a direction is one slice: sums of several slices would round once more
        halves = (fmt.w_depth // 2, fmt.x_depth // 2)
        check(words <= halves[0], "width", width, f"must be at most {halves[0] * n}: half of W holds a centroid")
        room = halves[1] // words
        check(tokens <= room, "tokens", tokens, f"must be at most {room}: half of X holds them; run fewer at once")
        cut = self._cut(self.tiles * n, width, width, given=words)
        self.cuts = {"centroid": cut}
        align = max(4096, 4 * n)
        self.table, self.work = Space(align, Register.WEIGHTS), Space(align, Register.KV)
        self.table.add("centroid_weight", cut.weights(n), BF16)
        self.table.add("minus_half", (self.tiles * n,), np.float32)
        self.table.add("numbers", (self.tiles * n,), np.float32)
        self.work.add("scores", (tokens, self.tiles * n), np.float32)
        self.work.add("nearest", (tokens, 2, n), np.float32)
        x = Array("x", 0, (1, tokens, width), BF16, Register.OUT)
        self.arrays = self.table.arrays | self.work.arrays | {"x": x}
        self.stages = list(self._stages())

    def _table(self, c: Any, gemm: Callable[..., None]) -> list[Planned]:
        a, cut = self.arrays, self.cuts["centroid"]
        return [
            Planned("scores", lambda: c.gemm(a["x"], a["centroid_weight"], cut, a["scores"], part=True)),
            Planned("nearest", c.nearest),
        ]

    def pack(self, centroids: np.ndarray, norms: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of the table by name. centroids : BF16 [clusters, width] · norms : their squared lengths, FP32"""
        more = self.tiles * self.fmt.lanes - self.clusters
        half = np.pad(-norms.astype(np.float32) / 2, (0, more), constant_values=-np.inf)
        return {
            "centroid_weight": self.matrix("centroid", np.pad(centroids.astype(np.float32), ((0, more), (0, 0))).T),
            "minus_half": half,
            "numbers": self.above - np.arange(len(half), dtype=np.float32),
        }
