"""Compiles what follows the last layer of a decoder: final norm, language head, and the choice of the next token.

`HeadPlan` takes the hidden state of one token, the last of a pass, through three stages:

=======  =============================================================================================================
norm     RMSNorm, as before the layers' products
head     GEMM: one FP32 logit for each token of the vocabulary
argmax   the number of the largest logit; of equal ones the lowest number
=======  =============================================================================================================

Arg-max. The VPE has no comparison that yields a number, so the program takes two turns over the logits x_i. The first
finds their maximum m. The second turns each logit into a number that is -i where x_i = m, and minus infinity elsewhere:

    d_i = x_i - m        c_i = (d_i * 2^127) * 2^127 - i        result = -max c_i

d_i is zero or at most -2^-126, because the VPE flushes subnormals to zero. Times 2^254 it is zero or minus infinity.
Numbers below 2^24 are exact in FP32. So the result is exact. Logits closer to each other than 2^-126 count as equal.
An infinite or undefined maximum gives infinity in place of a number.

Where tiles of `lanes` logits are not all full, the head repeats its last row. A copy never wins over the original,
whose number is lower.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.packed_weights import Matrix, Packing
from openvrex.golden.arithmetic.packed_weights import part as part_of
from openvrex.golden.arithmetic.vector import MINUS_ZERO, Bank, Reduce
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.function_params import check
from openvrex.golden.program.isa import LoadTo, LxeFormat, Queue
from openvrex.golden.program.join_stage import MINUS_INFINITY
from openvrex.golden.program.layer_memory import Array, LayerShape, Register, Space, Tiling
from openvrex.golden.program.layer_stages import LayerCompiler
from openvrex.golden.program.loop_rolling import POINTERS
from openvrex.golden.program.recipes import BANK, IMMEDIATE, STREAM, Scalar, imm
from openvrex.golden.program.stage_plan import Plan, Planned

HUGE = imm(2.0**127)  # twice this factor makes the smallest difference infinite


class HeadCompiler(LayerCompiler):
    """Writes the stages of the head."""

    plan: "HeadPlan"

    def __init__(self, plan: "HeadPlan"):
        super().__init__(plan)
        self.words = plan["numbers"].shape[0] // self.fmt.lanes  # of a part of the logits, which half a bank holds

    def argmax(self) -> None:
        """For each row, store the number of the largest logit, and that logit, each in all lanes of a word."""
        n, logits = self.fmt.lanes, self.plan["logits"]
        for row in range(logits.shape[0]):
            with self.scalars(2) as (top, number):
                self._find(top, number, row * logits.shape[1])
                self.vector(**number.of("a"), negate_a=1, write=Bank.C)
                self.vector(**top.of("a"), write=Bank.C, addr_d=1)
            self.give(self.plan["next"], 2 * row * n, 2)

    def _find(self, top: Scalar, number: Scalar, row: int) -> None:
        """The largest of the logits from number `row` on, and less the number of the first token that has it."""
        n, many = self.fmt.lanes, self.words
        at = self.places(numbers=many).numbers
        best: dict[str, int] = {"c": BANK, "write": Bank.C}
        numbers: dict[str, int] = {"c": BANK, "addr_c": at}
        lowest: dict[str, int] = {"a": IMMEDIATE, "imm_a": MINUS_INFINITY, "write": Bank.C}
        self.vector(many, **lowest)
        for words, part in self._parts(row):
            self.vector(words, Queue.LOAD, op=VectorOp.MAX, **part, **best)
        self._largest(top)
        self.take(self.plan["numbers"], 0, many, Bank.C, at)
        self.vector(many, **lowest)
        for words, part in self._parts(row):
            self.vector(words, Queue.LOAD, **part, **top.of("c"), negate_c=1, write=Bank.A)
            self.vector(words, a=BANK, imm_b=HUGE, write=Bank.A)
            self.vector(words, a=BANK, imm_b=HUGE, **numbers, negate_c=1, write=Bank.A)
            self.vector(words, op=VectorOp.MAX, a=BANK, **best)
            self.vector(many, a=IMMEDIATE, imm_a=imm(many * n), **numbers, write=Bank.C, addr_d=at)
        self._largest(number)

    def _parts(self, row: int) -> Iterator[tuple[int, dict[str, int]]]:
        """LOAD a row of logits, a part after the other: words of each, and the fields of the VECTOR that takes them."""
        n, logits = self.fmt.lanes, self.plan["logits"]
        words = logits.shape[1] // n
        for first in range(0, words, self.words):
            some = min(self.words, words - first)
            self.load(logits, row + first * n, 1, some, 0, LoadTo.VECTOR)
            yield some, {"a": STREAM, "wide": 1}

    def _largest(self, to: Scalar) -> None:
        """to = the largest number of the part in bank C."""
        self.vector(self.words, a=IMMEDIATE, imm_a=MINUS_ZERO, c=BANK, reduce=Reduce.MAX, scalar_d=to.number)


class HeadPlan(Plan):
    """The program from a hidden state to the next token, and its arrays in memory.

    shape : of the decoder's layers; its `tokens` do not matter
    vocabulary : number of tokens
    rows : hidden states of which each gets a token; with several, the stage `norm` runs once for each, with the address
        in OUT and that of its row in STREAM
    most : rows for which there is room; `rows` if not given
    cut : of the head; chosen if not given
    packing : of the head's weights, of 8 or 4 bits; None: BF16

    Arrays of `weights` start at the address in the register WEIGHTS, those of `work` at the one in KV, and `hidden` is
    the hidden state at the address in OUT. Raises `ParamError` for a vocabulary whose numbers FP32 does not hold, and
    for a packing that the LXE does not expand, or whose groups do not divide the width.
    """

    _compiler = HeadCompiler

    def __init__(
        self,
        shape: LayerShape,
        fmt: LxeFormat,
        vocabulary: int,
        rows: int = 1,
        most: int = 0,
        cut: Tiling | None = None,
        packing: Packing | None = None,
    ):
        self.shape, self.fmt, self.vocabulary, self.rows = replace(shape, tokens=1), fmt, vocabulary, rows
        n, width = fmt.lanes, shape.width
        tiles = -(-vocabulary // n)
        check(vocabulary >= 1, "vocabulary", vocabulary, "must be at least 1 token")
        check(tiles * n < 1 << 24, "vocabulary", vocabulary, "must be below 2^24: FP32 numbers name the tokens")
        check(width % n == 0, "width", width, f"must be a multiple of lanes = {n}")
        check(fmt.depth >= 2, "depth", fmt.depth, "must be at least 2: a bank holds a maximum and a number")
        check(fmt.weights or packing is None, "lxe.weights", fmt.weights, "must be true for a packed head")
        most = most or rows
        if cut is None:
            cut = self._as_alone(
                "head", 1, lambda tokens, words: self._cut(tiles * n, width, width, 1, words, packing, tokens)
            )
        self.cuts = {"head": cut}
        align = max(4096, 4 * n)
        self.weights, self.work = Space(align, Register.WEIGHTS), Space(align, Register.KV)
        self.weights.add("norm_weight", (width,), BF16)
        self.weights.add_weights("head_weight", cut, n, packing)
        self.weights.add("numbers", (min(fmt.depth // 2, tiles) * n,), np.float32)
        self.work.add("norm", (1, most, width), BF16)
        self.work.add("logits", (most, tiles * n), np.float32)
        self.work.add("next", (most, 2, n), np.float32)
        own = dict(self.work.arrays)
        for name, dims in (("norm", (1, rows, width)), ("logits", (rows, tiles * n)), ("next", (rows, 2, n))):
            own[name] = replace(own[name], shape=dims)
        own["hidden"] = Array("hidden", 0, (1, width), np.float32, Register.OUT)
        own["normed"] = Array("normed", 0, (1, 1, width), BF16, Register.STREAM) if rows > 1 else own["norm"]
        self.arrays = self.weights.arrays | own
        if rows > 1:
            self.pointers = POINTERS[:-1]
        self.stages = list(self._stages())

    def of(self, rows: int) -> "HeadPlan":
        """The plan for fewer rows, with the same weights and the same places in memory."""
        most = self.work.arrays["logits"].shape[0]
        packing = self["head_weight"].packing
        return HeadPlan(self.shape, self.fmt, self.vocabulary, rows, most, self.cuts["head"], packing)

    @property
    def joint(self) -> int:
        return self.rows

    def _table(self, c: Any, gemm: Callable[..., None]) -> list[Planned]:
        a = self.arrays
        return [
            Planned("norm", lambda: c.norm(a["hidden"], a["norm_weight"], a["normed"])),
            Planned("head", lambda: c.gemm(a["norm"], a["head_weight"], self.cuts["head"], a["logits"], part=True)),
            Planned("argmax", c.argmax),
        ]

    def pack(self, norm: np.ndarray, head: Matrix) -> dict[str, np.ndarray]:
        """The arrays of weights by name. norm : [width] · head : [width, vocabulary], a column for each token"""
        tiles = self["logits"].shape[1]
        rows = np.minimum(np.arange(tiles), self.vocabulary - 1)
        return {
            "norm_weight": to_bf16(norm),
            "head_weight": self.matrix("head", part_of(head, outputs=rows)),
            "numbers": np.arange(self["numbers"].shape[0], dtype=np.float32),
        }
