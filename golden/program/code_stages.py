"""Writes the program that codes the keys of adjacent tokens that share a mean.

Its results are those of `golden.retrieval.coded_pages`, steps 1 to 5, bit for bit. `CodeCompiler.code` takes the keys
of a KV head from entries in memory. It goes over them twice: for their mean, then in batches. A batch is as many tokens
as have their codes in one word of memory, which is 16 words of signs.

A bit of a code is the sign of a number in a lane. So each bit has a lane of its own, in one or several words of signs a
token, the tiles. The DPE makes a difference's number anew for each lane of `numbers` that needs it: its matrix has the
rows of the code matrix three times, and rows of zeros behind them.

==============  ======================================================  ==============================
bits of a code  set where this is above zero, the number of the lane    golden
==============  ======================================================  ==============================
signs           -x                                                      a negative number, `quantised`
upper           |x| - 2 STEP g                                          `upper` in `quantised`
lower           max(|x| - 3 STEP g, min(|x| - STEP g, 2 STEP g - |x|))  `lower` in `quantised`
gain            1 or 0                                                  `gains_of`
==============  ======================================================  ==============================

One formula serves all lanes, as constants of a lane are 0 where they do not count: with its factor S, 1 or -1,

    m = max(S x, -x)        lane = max(m - main g, min(m - low g, high g - m)) + bit

g is the middle of the gain's range. The sum of squares that a gain follows from is a product with ones, which gives it
to all lanes. Each bit of the gain is 0 or 1 in all lanes, too: min(max((left - bound) * SURE, 0), 1).
"""

from typing import Any, Protocol

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.vector import ONE, Bank, Format, Post
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.function_params import check
from openvrex.golden.program.compiler import FREE, FULL, semaphores
from openvrex.golden.program.isa import SIGNS, LoadTo, LxeFormat, Opcode, Queue, StoreTo
from openvrex.golden.program.layer_memory import Array, Register
from openvrex.golden.program.layer_stages import LayerCompiler, LayerSizes
from openvrex.golden.program.recipes import BANK, IMMEDIATE, STREAM, imm
from openvrex.golden.retrieval.coded_pages import (
    BITS,
    GAIN_BITS,
    LARGEST,
    LOWEST_MIDDLE,
    SURE,
    CodeWords,
    PageParams,
    limits,
    norm,
)
from openvrex.golden.retrieval.key_matrices import KeyMatrices

# Registers of this program: addresses of the first entry, of its code, and of the mean, the latter two of KV head 0.
KEYS, CODES, MEAN = Register.SLOT, Register.ENTRIES, Register.TAIL
# Semaphores: differences are in X, squares are in X, both are multiplied.
DIFFERENCES, SQUARES, MULTIPLIED = range(10, 13)


class CodeSizes(LayerSizes, Protocol):
    """What `CodeCompiler` reads of its plan."""

    coding: "Coding"


class Coding:
    """Sizes of the coding of keys: words of signs of a code (`tiles`), tokens of a batch, constants of the lanes.

    tokens : that share a mean · period : words of a key

    Raises `ParamError` for sizes that do not fit the format.
    """

    def __init__(self, fmt: LxeFormat, params: PageParams, size: int):
        n, self.numbers, self.period = fmt.lanes, params.numbers, size // fmt.lanes
        self.tokens = params.mean
        bits = 8 * CodeWords(n, params.numbers).code_bytes
        check(n <= bits, "lanes", n, f"must be at most {bits}, the bits of a code: it is whole words of signs")
        self.tiles, self.lanes = bits // n, n
        check(self.tiles <= SIGNS, "lanes", n, f"must be at least {bits // SIGNS}: a code is part of a word of memory")
        self.batch = SIGNS // self.tiles
        reason = f"must be at least {self.batch}, the tokens whose codes are a word of memory"
        check(params.mean >= self.batch, "mean", params.mean, reason)
        check(self.period & (self.period - 1) == 0, "head_size", size, f"must be a power of two times lanes = {n}")
        need = self.tiles * (self.period + 1)
        check(2 * need <= fmt.w_depth, "w_depth", fmt.w_depth, f"must be at least {2 * need}, to code keys")
        self.squares = self.batch * self.period  # word of X where they begin
        need = self.squares + SIGNS
        check(need <= fmt.x_depth, "x_depth", fmt.x_depth, f"must be at least {need}, to code keys")

    def arrays(self, heads: int, size: int) -> list[tuple[str, tuple[int, ...], Any]]:
        """Name, shape and type of the constants."""
        tiles, n = self.tiles, self.lanes
        return [
            ("code_weight", (heads, tiles * n, size), BF16),
            ("counted", (n,), BF16),
            ("factors", (tiles, n), BF16),
            ("gain_bits", (GAIN_BITS, tiles, n), BF16),
            ("limits", (3, tiles, n), np.float32),
        ]

    def constants(self, matrices: KeyMatrices) -> dict[str, np.ndarray]:
        """The constants by name."""
        n, numbers, bits = self.lanes, self.numbers, np.arange(self.tiles * self.lanes)
        third = bits // numbers  # 0: signs, 1: upper bits, 2: lower bits
        weight = matrices.code[:, bits % numbers]
        weight[:, third > 2] = 0
        one, two, three = limits()
        main = np.select([third == 1, third == 2], [two, three], 0)
        low, high = (np.where(third == 2, x, 0) for x in (one, two))
        highest = 3 * numbers + GAIN_BITS - 1
        found = {
            "code_weight": weight,
            "counted": np.arange(n) < numbers,
            "factors": np.where(third == 0, -1, 1),
            "gain_bits": np.stack([bits == highest - k for k in range(GAIN_BITS)]),
            "limits": np.stack([main, low, high]),
        }
        arrays = self.arrays(len(weight), weight.shape[2])
        return {name: found[name].astype(dtype).reshape(shape) for name, shape, dtype in arrays}


class CodeCompiler(LayerCompiler):
    """Writes the program of `Coding`."""

    plan: CodeSizes

    def code(self, g: int) -> None:
        """Store the mean of a KV head's keys, and their codes."""
        s, p, own, n = self.shape, self.plan, self.plan.coding, self.fmt.lanes
        weights = own.tiles * n
        to = {"to": 0, "step": own.period}
        self.load(
            p["code_weight"], g * weights * s.head_size, weights, own.period, s.head_size, LoadTo.W, (FREE,), **to
        )
        for k in range(own.tiles):
            hands = (FULL,) if k == own.tiles - 1 else ()
            self.load(p["counted"], 0, n, 1, 0, LoadTo.W, (), hands, to=own.tiles * own.period + k)
        self.average(g)
        self.fence(Opcode.MUL, wait=(FULL,), signal=(MULTIPLIED,))
        for first in range(0, own.tokens, own.batch):
            self.differences(g, first)
            self.numbers_and_squares()
            self.gains()
            self.bits()
            self.vector(SIGNS, op=VectorOp.STORE, format=Format.SIGN)
            codes = Array("codes", 0, p["codes"].shape, BF16, CODES)
            row = codes.shape[-1]
            self.store(codes, (g * codes.shape[1] + first) * row, 1, 1, 0, step=1)
        self.fence(Opcode.STORE, wait=(MULTIPLIED,))
        self.fence(Opcode.MUL, signal=(FREE,))

    def entries_of(self, g: int, first: int, tokens: int) -> None:
        """LOAD keys to the VPE."""
        s, own = self.shape, self.plan.coding
        entries = Array("keys", 0, (own.tokens, s.entry), BF16, KEYS)
        self.load(entries, first * s.entry + g * s.head_size, tokens, own.period, s.entry, LoadTo.VECTOR)

    def average(self, g: int) -> None:
        """The mean of the keys, to bank C and to memory."""
        own = self.plan.coding
        at = self.places(mean=own.period).mean
        self.vector(own.period, a=IMMEDIATE, imm_a=0, write=Bank.C, addr_d=at)
        for token in range(own.tokens):
            self.entries_of(g, token, 1)
            self.vector(own.period, Queue.LOAD, a=STREAM, c=BANK, addr_c=at, write=Bank.A | Bank.C, addr_d=at)
        share = {"imm_b": imm(1 / own.tokens), "post": Post.ROUND}
        self.vector(own.period, a=BANK, addr_a=at, **share, write=Bank.B | Bank.C, addr_d=at)
        means = Array("means", 0, self.plan["means"].shape, BF16, MEAN)
        self.give(means, g * means.shape[1] * means.shape[2], own.period, at)

    def differences(self, g: int, first: int) -> None:
        """The keys of a batch less their mean, to X."""
        own = self.plan.coding
        words, mean = own.batch * own.period, self.places(mean=own.period).mean
        self.entries_of(g, first, own.batch)
        less = {"c": BANK, "addr_c": mean, "span_c": own.period.bit_length() - 1, "negate_c": 1}
        self.vector(words, Queue.LOAD, a=STREAM, **less, post=Post.ROUND, write=Bank.B)
        self.out(words)
        size = {"rows": own.batch - 1, "words": own.period - 1, "to": 0, "step": own.period}
        self._emit(Opcode.STORE, target=StoreTo.X, **size, **semaphores((MULTIPLIED,), (DIFFERENCES,)))

    def numbers_and_squares(self) -> None:
        """C = m of each lane, and the squares of the numbers to X and on to the DPE."""
        own, n, left = self.plan.coding, self.fmt.lanes, self.places(left=SIGNS).left
        size = {"rows": own.batch - 1, "tiles": own.tiles - 1, "keep": n - 1, "start": 1, "end": 1}
        one = {"w": 0, "x": 0, "chunks": own.period - 1, "x_step": own.period}
        self._emit(Opcode.MUL, **size, **one, **semaphores((DIFFERENCES,), ()))
        self.vector(SIGNS, a=STREAM, wide=1, post=Post.ROUND, write=Bank.A | Bank.B | Bank.C)
        self.vector(SIGNS, a=BANK, b=BANK, write=Bank.A, addr_d=left)
        least = {"op": VectorOp.MIN, "a": BANK, "addr_a": left, "imm_c": imm(LARGEST)}
        self.vector(SIGNS, **least, post=Post.ROUND, write=Bank.B)
        self.out(SIGNS)
        to = {"words": SIGNS - 1, "to": own.squares}
        self._emit(Opcode.STORE, target=StoreTo.X, **to, **semaphores((), (SQUARES,)))
        two = {"w": own.tiles * own.period, "x": own.squares, "x_step": own.tiles}
        self._emit(Opcode.MUL, **size, **two, **semaphores((SQUARES,), (MULTIPLIED,)))
        self.constants("factors", 0)
        self.vector(SIGNS, Queue.LOAD, a=BANK, b=STREAM, write=Bank.A)
        self.vector(SIGNS, op=VectorOp.MAX, a=BANK, c=BANK, negate_c=1, write=Bank.C)

    def constants(self, name: str, k: int) -> None:
        """LOAD row `k` of constants to the VPE, once for each token."""
        own, n = self.plan.coding, self.fmt.lanes
        self.load(self.plan[name], k * own.tiles * n, own.batch, own.tiles, 0, LoadTo.VECTOR)

    def gains(self) -> None:
        """B = the middles of the gains, `gain` of C their bits."""
        own, at = self.plan.coding, self.places(left=SIGNS, middle=SIGNS, gain=SIGNS)
        bit, left, middle = ({"a": BANK, "addr_a": word} for word in (0, at.left, at.middle))
        self.vector(SIGNS, a=STREAM, wide=1, imm_b=imm(norm(own.numbers)), write=Bank.A, addr_d=at.left)
        self.vector(SIGNS, a=IMMEDIATE, imm_a=imm(LOWEST_MIDDLE), write=Bank.A, addr_d=at.middle)
        self.vector(SIGNS, a=IMMEDIATE, imm_a=0, write=Bank.C, addr_d=at.gain)
        for k, of in enumerate(BITS):
            self.vector(SIGNS, **left, imm_b=imm(SURE), imm_c=imm(-of.bound * SURE), write=Bank.A)
            self.vector(SIGNS, op=VectorOp.MAX, **bit, imm_c=0, write=Bank.A)
            self.vector(SIGNS, op=VectorOp.MIN, **bit, imm_c=ONE, write=Bank.A)
            self.constants("gain_bits", k)
            lane = {"b": STREAM, "c": BANK, "addr_c": at.gain}
            self.vector(SIGNS, Queue.LOAD, **bit, **lane, write=Bank.C, addr_d=at.gain)
            for value, to, factor in ((left, at.left, of.square), (middle, at.middle, of.middle)):
                self.vector(SIGNS, **bit, imm_b=imm(factor - 1), imm_c=ONE, post=Post.ROUND, write=Bank.B)
                self.vector(SIGNS, **value, b=BANK, write=Bank.A, addr_d=to)
        self.vector(SIGNS, **middle, post=Post.ROUND, write=Bank.B)

    def bits(self) -> None:
        """B = what is above zero in the lanes of bits that are set."""
        at = self.places(low=SIGNS, high=SIGNS, gain=SIGNS)
        terms: list[dict[str, int]] = [
            {"write": Bank.A, "negate_a": 1},
            {"write": Bank.A, "addr_d": at.low, "negate_a": 1},
            {"write": Bank.C, "addr_d": at.high, "negate_c": 1},
        ]
        for k, fields in enumerate(terms):
            self.constants("limits", k)
            self.vector(SIGNS, Queue.LOAD, a=STREAM, wide=1, b=BANK, c=BANK, **fields)
        high = {"c": BANK, "addr_c": at.high, "write": Bank.C, "addr_d": at.high}
        self.vector(SIGNS, op=VectorOp.MIN, a=BANK, addr_a=at.low, **high)
        self.vector(SIGNS, op=VectorOp.MAX, a=BANK, **high | {"write": Bank.A, "addr_d": 0})
        self.vector(SIGNS, a=BANK, c=BANK, addr_c=at.gain, post=Post.ROUND, write=Bank.B)
