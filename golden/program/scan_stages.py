"""Writes the stages of the hybrid memory's history branch that work on columns: convolution, and the selective scan.

A column is `lanes` inner channels: one word of a row. Both stages take one column after the other, and the DPE makes
what a column needs from the column's own tile of weights: the inputs of the convolution, the step sizes, the gate. So
the weights of one column are loaded while the VPE works on another, and only x, y and the last inputs are ever stored.
W is used in two parts in turns, which need not be equal.

The scan keeps the state of a column, `state` words of FP32 numbers, in banks A and C for a group of tokens. For each
token it computes, word by word,

    e = expm1(dt A)        h = h e + h + u B        y = sum of h C        with dt = softplus(v + bias), u = dt x

`e` is BF16. h + h e keeps the accuracy of the FP32 state, which h exp(dt A) would lose: a BF16 number near 1 has steps
of 2^-8. B and C of a token are the same for all channels. The DPE makes words of equal lanes of them: all its trees
hold B and C of the group's tokens as weights, and the activations are rows that are 1 in one place. These products are
exact. Behind the last token the output becomes (y + D x) SiLU(z).

Values in the banks during the scan, with n = state and G tokens in a group; those of n words start at word 0:

====  ==========================================================================
bank  holds
====  ==========================================================================
A     h; G of dt, later of y + D x; G of u; D; n / 2 partial sums
B     A of the column; n of e; G of x; G of SiLU(z), later of the output
C     h (1 + e), then h; the bias; G of y; G of the sums of z; n / 2 partial sums
====  ==========================================================================

The sums of a token's products are finished in the cycles in which the next token waits for its results
(`golden.program.schedule`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from types import SimpleNamespace
from typing import Protocol

import numpy as np

from openvrex.golden.arithmetic.state_space import StateSpaceParams
from openvrex.golden.arithmetic.vector import Bank, Post
from openvrex.golden.program.compiler import FREE, FULL
from openvrex.golden.program.isa import LoadTo, Opcode, Queue
from openvrex.golden.program.layer_memory import Array, Tiling
from openvrex.golden.program.layer_stages import LayerCompiler, LayerSizes
from openvrex.golden.program.recipes import BANK, STREAM

NONE: dict[str, int] = {}


@dataclass(frozen=True)
class Record:
    """An array of weights with a record for each column: everything that is constant for it, in the order of its use.

    parts : first word and number of words of each part · second : first word of the second part of W, which the slices
    of the record's tiles take in turns with the first · behind : first word behind both
    """

    name: str
    parts: dict[str, tuple[int, int]]
    second: int
    behind: int

    @property
    def words(self) -> int:
        """Words of a column's record."""
        return max(at + count for at, count in self.parts.values())


@dataclass(frozen=True)
class Operands:
    """Where a MUL finds its operands: first words in W and X, words from row to row in X."""

    w: int
    x: int
    x_step: int


def scan_depth(state: int, rows: int) -> int:
    """Words of a bank that a scan takes, for states of `state` words and groups of `rows` tokens."""
    return max(state + 2 * rows + 1 + state // 2, state + max(state, rows) + rows)


class ScanSizes(LayerSizes, Protocol):
    """What the branch reads of its plan (`golden.program.scan_compiler.BranchPlan`)."""

    params: StateSpaceParams
    cuts: dict[str, Tiling]
    inner: int  # channels
    inputs: Record
    gates: Record
    keeps_normed: bool  # whether X holds the input of all tokens in `project`

    def x_places(self, rows: int) -> tuple[int, int]: ...


class ScanCompiler(LayerCompiler):
    """Writes the stages of the branch."""

    plan: ScanSizes

    def __init__(self, plan: ScanSizes):
        super().__init__(plan)
        self.columns_ = plan.inner // self.fmt.lanes

    def product(self, x: Array, name: str, y: Array, add: bool = False) -> None:
        """y = x W^T by the cut of the GEMM `name`; with `add` it is added to y, which is BF16."""
        self.gemm(x, self.plan[f"{name}_weight"], self.plan.cuts[name], y, part=True, add=add)

    # Parts of stages

    def part(self, record: Record, column: int, part: str) -> tuple[Array, int, int]:
        """A part of a column's record: the array, the first number, words."""
        array, (at, count), n = self.plan[record.name], record.parts[part], self.fmt.lanes
        at = (column * record.words + at) * n
        if part == "bias":  # FP32 numbers, of twice the bytes
            array, at, count = replace(array, dtype=np.float32), at // 2, count // 2
        return array, at, count

    def resident(self, array: Array, first: int, rows: int, to: int) -> None:
        """LOAD rows of an array into X from word `to` on, where they stay."""
        words = array.shape[-1] // self.fmt.lanes
        self.load(array, first * array.shape[-1], rows, words, words * self.fmt.lanes, LoadTo.X, to=to, step=words)

    def tile(self, record: Record, column: int, name: str, x: int, k: int = 0) -> Operands:
        """LOAD slice k of a column's tile of weights into the next part of W; where the MUL finds its operands.

        x : first word of the rows in X; negative if the slice of `normed` is to be loaded, too, into a half of X
        """
        n, cut = self.fmt.lanes, self.plan.cuts[name]
        at = (column * record.words + record.parts[name][0] + k * n * cut.words) * n
        half, self.half = self.half, 1 - self.half
        to, array, own = half * record.second, self.plan[record.name], x < 0
        self.load(array, at, n, cut.words, cut.words * n, LoadTo.W, (FREE,), (FULL,)[own:], to=to, step=cut.words)
        if not own:
            return Operands(to, x + k * cut.words, cut.slices * cut.words)
        x = half * (self.fmt.x_depth // 2)
        rows, row, numbers = self.shape.tokens, self.shape.width, cut.words * n
        self.load(self.plan["normed"], k * numbers, rows, cut.words, row, LoadTo.X, (), (FULL,), to=x, step=cut.words)
        return Operands(to, x, cut.words)

    def tiles(self, record: Record, columns: Iterable[int], name: str, x: int) -> Iterator[Operands]:
        """LOAD the slices of columns' tiles, each when it is asked for."""
        return (self.tile(record, g, name, x, k) for g in columns for k in range(self.plan.cuts[name].slices))

    def tile_product(
        self, name: str, ahead: list[Operands], rest: Iterator[Operands], rows: int, sums: int, result: dict[str, int]
    ) -> None:
        """Rows of X times a column's tile, slice by slice.

        ahead : slices that are in W or on their way, at most 2 · rest : slices to load as those are multiplied
        sums : where bank C keeps the sums of slices · result : fields of the last VECTOR
        """
        cut = self.plan.cuts[name]
        for k in range(cut.slices):
            now = ahead.pop(0)
            self.mul(now.w, now.x, rows, 1, cut.words, now.x_step)
            ahead += islice(rest, 1)
            more = {"c": BANK, "addr_c": sums} if k else NONE
            last = result if k == cut.slices - 1 else {"write": Bank.C, "addr_d": sums}
            self.vector(rows, a=STREAM, wide=1, **more, **last)

    # Stages

    def project(self) -> None:
        """Inputs of the convolution, rounded to BF16, then x: their causal convolution and SiLU."""
        p, tokens, n = self.plan, self.shape.tokens, self.fmt.lanes
        record, old = p.inputs, p.params.conv - 1
        at = old + tokens  # of the weights in bank B; inputs begin in word 0 of A and B, the old ones first
        self.half, x = 0, 0 if p.keeps_normed else -1
        if p.keeps_normed:
            self.resident(p["normed"], 0, tokens, x)
        rest = self.tiles(record, range(self.columns_), "x_in", x)
        ahead = [next(rest)]
        for g in range(self.columns_):
            if old:
                self.take(p["kept"], g * n, 1, Bank.A | Bank.B, rows=old, stride=p.inner)
            self.take(*self.part(record, g, "taps"), Bank.B, at)
            self.take(*self.part(record, g, "bias"), Bank.C, tokens)
            result: dict[str, int] = {"post": Post.ROUND, "write": Bank.A | Bank.B, "addr_d": old}
            self.tile_product("x_in", ahead, rest, tokens, 0, result)
            for j in range(old + 1):
                start = {"addr_c": tokens, "span_c": 0} if j == 0 else NONE
                result = {"post": Post.SILU, "write": Bank.B} if j == old else {"write": Bank.C}
                self.vector(tokens, a=BANK, addr_a=j, b=BANK, addr_b=at + j, span_b=0, c=BANK, **start, **result)
            self.give(p["x"], g * n, 1, rows=tokens, stride=p.inner)
            if old:  # the last inputs stay for the next pass
                self.give(p["kept"], g * n, 1, tokens, rows=old, stride=p.inner)

    def scan(self, first: int, rows: int) -> None:
        """The selective scan of every column through `rows` tokens from token `first` on, and their gate."""
        self.half = 0
        p, n, state = self.plan, self.fmt.lanes, self.plan.params.state
        record = p.gates
        tokens = dict.fromkeys(("dt", "u", "x", "z", "y", "parts"), rows)
        at = self.places(**tokens, d=1, bias=1, e=state, sums=state // 2)
        self._operands(first, rows)
        low, normed = p.x_places(rows)
        for g in range(self.columns_):
            step = list(self.tiles(record, (g,), "dt", low))
            self.take(*self.part(record, g, "bias"), Bank.C, at.bias)
            self.take(p["x"], first * p.inner + g * n, 1, Bank.B, at.x, rows=rows, stride=p.inner)
            array, number, count = self.part(record, g, "a_d")
            self.load(array, number, 1, count, 0, LoadTo.VECTOR)
            self.vector(state, Queue.LOAD, a=STREAM, write=Bank.B)
            self.vector(1, Queue.LOAD, a=STREAM, write=Bank.A, addr_d=at.d)
            bias: dict[str, int] = {"c": BANK, "addr_c": at.bias, "span_c": 0}
            dt = bias | {"post": Post.SOFTPLUS, "write": Bank.A, "addr_d": at.dt}
            self.tile_product("dt", step, iter(()), rows, 0, dt)
            self.vector(rows, a=BANK, addr_a=at.dt, b=BANK, addr_b=at.x, write=Bank.A, addr_d=at.u)
            self.take(p["state"], g * state * n, state, Bank.A | Bank.C)
            rest = self.tiles(record, (g,), "z_in", normed)
            gate = list(islice(rest, 2))
            self._step(at, 0)
            for t in range(1, rows):
                with self.overlapped():
                    self._output(at, t - 1)
                    self._step(at, t)
            z: dict[str, int] = {"post": Post.SILU, "write": Bank.B, "addr_d": at.z}
            self._output(at, rows - 1)
            self.tile_product("z_in", gate, rest, rows, at.parts, z)
            d = {"a": BANK, "addr_a": at.d, "span_a": 0, "b": BANK, "addr_b": at.x}
            self.vector(rows, **d, c=BANK, addr_c=at.y, write=Bank.A, addr_d=at.dt)
            self.vector(rows, a=BANK, addr_a=at.dt, b=BANK, addr_b=at.z, post=Post.ROUND, write=Bank.B, addr_d=at.z)
            self.give(p["gated"], first * p.inner + g * n, 1, at.z, rows=rows, stride=p.inner)
            self.give(p["state"], g * state * n, state)

    def _operands(self, first: int, rows: int) -> None:
        """Fill X with rows that are 1 in one place and with what the tiles multiply, all trees of W with B and C."""
        p, n = self.plan, self.fmt.lanes
        low, normed = p.x_places(rows)
        self.resident(p["ones"], 0, low, 0)
        self.resident(p["low"], first, rows, low)
        self.resident(p["normed"], first, rows, normed)
        words = p["bc"].shape[-1] // n
        self.load(p["bc"], first * words * n, n, rows * words, 0, LoadTo.W, to=p.gates.behind, step=rows * words)

    def _step(self, at: SimpleNamespace, t: int) -> None:
        """The step of the state by token t of a group."""
        n, state = self.fmt.lanes, self.plan.params.state
        words = self.plan["bc"].shape[-1] // n
        for k in range(-(-2 * state // n)):  # B and C of the token, each number in all lanes of a word
            w, rows = self.plan.gates.behind + t * words + k, min(n, 2 * state - k * n)
            self._emit(Opcode.MUL, w=w, x=0, rows=rows - 1, keep=n - 1, x_step=1, start=1, end=1)
        e = {"a": BANK, "addr_a": at.dt + t, "span_a": 0, "b": BANK}
        self.vector(state, **e, post=Post.EXPM1, write=Bank.B, addr_d=at.e)
        self.vector(state, a=BANK, b=BANK, addr_b=at.e, c=BANK, write=Bank.C)
        new = {"a": BANK, "addr_a": at.u + t, "span_a": 0, "b": STREAM, "wide": 1, "c": BANK}
        self.vector(state, **new, write=Bank.A | Bank.C)

    def _output(self, at: SimpleNamespace, t: int) -> None:
        """y of token t: products of the state, a half added to the other, and so on until one word is left."""
        words = self.plan.params.state // 2

        def to(words: int) -> dict[str, int]:
            last = {"write": Bank.C, "addr_d": at.y + t}
            return last if words == 1 else {"write": Bank.A | Bank.C, "addr_d": at.sums}

        product = {"a": BANK, "b": STREAM, "wide": 1}
        self.vector(words, **product, write=Bank.A | Bank.C, addr_d=at.sums)
        self.vector(words, **product, addr_a=words, c=BANK, addr_c=at.sums, **to(words))
        while words > 1:
            words //= 2
            self.vector(words, a=BANK, addr_a=at.sums, c=BANK, addr_c=at.sums + words, **to(words))
