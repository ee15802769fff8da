"""Writes the stages of the hybrid memory's history branch: causal convolution, step sizes, selective scan, gate.

A column is `lanes` inner channels: one word of a row. The scan keeps the state of a column, `state` words of FP32
numbers, in banks A and C for all tokens of the pass. For each token it computes, word by word,

    e = expm1(dt A)        h = h e + h + u B        y = sum of h C        with u = dt x

`e` is BF16. h + h e keeps the accuracy of the FP32 state, which h exp(dt A) would lose: a BF16 number near 1 has steps
of 2^-8. B and C of a token are the same for all channels. The DPE makes words of equal lanes of them: it multiplies the
row of B and C by weights that are 1 in one place. These products are exact.

Banks during the scan, in words, with n = state:

====  ========================  ==========================
bank  words 0 to n - 1          behind
====  ========================  ==========================
A     h                         dt, u, partial sums
B     A of the column           e
C     h (1 + e), then h         not used, not used, partial sums
====  ========================  ==========================

The sums of a token's products are finished in the cycles in which the next token waits for its results. So row t of
`y` holds the output of token t - 1, and row 0 nothing. dt and u of the next token come before these products.
"""

from typing import TYPE_CHECKING

from golden.arithmetic.vector import Bank, Post
from golden.program.isa import LoadTo, Queue
from golden.program.layer_memory import Array
from golden.program.layer_stages import BANK, FREE, FULL, STREAM, Compiler

if TYPE_CHECKING:
    from golden.program.scan_compiler import BranchPlan


class ScanCompiler(Compiler):
    """Writes the stages of the branch."""

    plan: "BranchPlan"

    def __init__(self, plan: "BranchPlan"):
        super().__init__(plan)
        self.columns_ = plan.inner // self.fmt.lanes

    def product(self, x: Array, name: str, y: Array, add: bool = False) -> None:
        """y = x W^T by the cut of the GEMM `name`; with `add` it is added to y, which is BF16."""
        self.gemm(x, self.plan[f"{name}_weight"], self.plan.cuts[name], y, part=True, add=add)

    def row(self, array: Array, rows: int, column: int, first: int = 0) -> None:
        """LOAD one column of `rows` rows into the queue to the VPE, from row `first` on."""
        length = array.shape[-1]
        self.load(array, first * length + column * self.fmt.lanes, rows, 1, length, LoadTo.VECTOR)

    def words(self, array: Array, count: int, at: int) -> None:
        """LOAD `count` words of a constant of a column into the queue, the first of them word `at`."""
        self.load(array, at * self.fmt.lanes, 1, count, 0, LoadTo.VECTOR)

    def take(self, words: int, wide: bool, write: Bank, to: int = 0, **fields: int) -> None:
        """Write the next words of the queue to banks."""
        self.vector(words, Queue.LOAD, a=STREAM, wide=int(wide), write=write, addr_d=to, **fields)

    def convolve(self) -> None:
        """Causal convolution and SiLU of `inputs`, whose first rows are the last of the pass before."""
        p, tokens, n = self.plan, self.shape.tokens, self.fmt.lanes
        taps = p.params.conv
        inputs, length = p["inputs"], p["inputs"].shape[-1]
        for g in range(self.columns_):
            self.row(inputs, tokens + taps - 1, g)
            self.take(tokens + taps - 1, False, Bank.A)
            self.words(p["conv_weight"], taps, g * taps)
            self.take(taps, False, Bank.B)
            self.words(p["conv_bias"], 1, g)
            self.take(1, True, Bank.C, tokens)
            for j in range(taps):
                last = j == taps - 1
                start = {"addr_c": tokens, "span_c": 0} if j == 0 else {}
                result = {"post": Post.SILU, "write": Bank.B, "addr_d": taps} if last else {"write": Bank.C}
                self.vector(tokens, a=BANK, addr_a=j, b=BANK, addr_b=j, span_b=0, c=BANK, **start, **result)
            self.out(tokens, at=taps)
            self.store(p["x"], g * n, tokens, 1, p["x"].shape[-1])
            if taps > 1:  # one tap needs no earlier inputs
                self.row(inputs, taps - 1, g, tokens)
                self.take(taps - 1, False, Bank.B)
                self.out(taps - 1)
                self.store(p["kept"], g * n, taps - 1, 1, length)

    def steps(self) -> None:
        """dt = softplus(v + bias) and u = dt x, in FP32."""
        p, tokens, n = self.plan, self.shape.tokens, self.fmt.lanes
        for g in range(self.columns_):
            self.words(p["dt_bias"], 1, g)
            self.take(1, True, Bank.C, tokens)
            self.row(p["v"], tokens, g)
            self.take(tokens, True, Bank.A | Bank.C, c=BANK, addr_c=tokens, span_c=0, post=Post.SOFTPLUS)
            self.out(tokens, True)
            self.store(p["dt"], g * n, tokens, 1, p.inner)
            self.row(p["x"], tokens, g)
            self.vector(tokens, Queue.LOAD, a=BANK, b=STREAM, write=Bank.C)
            self.out(tokens, True)
            self.store(p["u"], g * n, tokens, 1, p.inner)

    def scan(self) -> None:
        """The selective scan of every column through all tokens."""
        words = self.plan["bc"].shape[-1] // self.fmt.lanes
        self.load(
            self.plan["ones"],
            0,
            2 * self.plan.params.state * self.fmt.lanes,
            words,
            words * self.fmt.lanes,
            LoadTo.W,
            step=words,
        )
        p, n, state, tokens = self.plan, self.fmt.lanes, self.plan.params.state, self.shape.tokens
        sums = state + 2
        half = state // 2
        for g in range(self.columns_):
            self.words(p["a"], state, g * state)
            self.take(state, False, Bank.B)
            self.words(p["state"], state, g * state)
            self.take(state, True, Bank.A | Bank.C)
            self.vector(half, a=BANK, imm_b=0, write=Bank.A | Bank.C, addr_d=sums)  # row 0 of y
            self._fetch(g, 0)
            self._step()
            for t in range(tokens):
                if t < tokens - 1:
                    self._fetch(g, t + 1)
                e = {"a": BANK, "addr_a": state, "span_a": 0, "b": BANK}
                self.vector(state, **e, post=Post.EXPM1, write=Bank.B, addr_d=state)
                folds = self._folds(sums, half)
                self._next(folds)
                self.vector(state, a=BANK, b=BANK, addr_b=state, c=BANK, write=Bank.C)
                self._next(folds)
                new = {"a": BANK, "addr_a": state + 1, "span_a": 0, "b": STREAM, "wide": 1, "c": BANK}
                self.vector(state, **new, write=Bank.A | Bank.C)
                while folds:
                    self._next(folds)
                self.out(1, True, at=sums)
                self.store(p["y"], t * p.inner + g * n, 1, 1, 0)
                if t < tokens - 1:
                    self._step()
                part = {"b": STREAM, "wide": 1, "write": Bank.A | Bank.C, "addr_d": sums}
                self.vector(half, a=BANK, **part)
                self.vector(half, a=BANK, addr_a=half, **part, c=BANK, addr_c=sums)
            folds = self._folds(sums, half)
            while folds:
                self._next(folds)
            self.out(1, True, at=sums)
            self.store(p["y"], tokens * p.inner + g * n, 1, 1, 0)
            self.out(state, True)
            self.store(p["state"], g * state * n, 1, state, 0)

    def _fetch(self, column: int, token: int) -> None:
        """Load dt and u of a token, and let the DPE put out its B and C, each number in all lanes of a word.

        This stands a token ahead of the instructions that take them, as the memory's latency passes in between.
        """
        p, n = self.plan, self.fmt.lanes
        for name in ("dt", "u"):
            self.row(p[name], 1, column, token)
        words = p["bc"].shape[-1] // n
        _, x_at = self.turn()
        self.load(p["bc"], token * words * n, 1, words, 0, LoadTo.X, (FREE,), (FULL,), to=x_at, step=words)
        self.mul(0, x_at, 1, 2 * p.params.state, words, words)

    def _step(self) -> None:
        """Take dt and u of the next token into bank A, behind the state."""
        for k in range(2):
            self.take(1, True, Bank.A, self.plan.params.state + k)

    def _folds(self, at: int, words: int) -> list[tuple[int, int]]:
        """Steps that add `words` words of partial sums from word `at` to one: first word, words of each half."""
        out = []
        while words > 1:
            words //= 2
            out.append((at, words))
        return out

    def _next(self, folds: list[tuple[int, int]]) -> None:
        """Write the next of these steps, if there is one."""
        if folds:
            at, words = folds.pop(0)
            c = {"c": BANK, "addr_c": at + words}
            self.vector(words, a=BANK, addr_a=at, **c, write=Bank.A | Bank.C, addr_d=at)

    def gate(self) -> None:
        """(y + D x) SiLU(z), rounded to BF16."""
        p, tokens, n = self.plan, self.shape.tokens, self.fmt.lanes
        for g in range(self.columns_):
            self.words(p["d"], 1, g)
            self.take(1, False, Bank.B, tokens)
            self.row(p["y"], tokens, g, 1)
            self.take(tokens, True, Bank.C)
            self.row(p["x"], tokens, g)
            self.vector(tokens, Queue.LOAD, a=STREAM, b=BANK, addr_b=tokens, span_b=0, c=BANK, write=Bank.A)
            self.row(p["z"], tokens, g)
            self.take(tokens, False, Bank.B, post=Post.SILU)
            self.vector(tokens, a=BANK, b=BANK, post=Post.ROUND, write=Bank.B)
            self.out(tokens)
            self.store(p["gated"], g * n, tokens, 1, p.inner)
