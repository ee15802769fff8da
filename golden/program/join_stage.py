"""Joins the parts of attention that the members of a team have computed, each over entries of its own.

For a row of attention, member i leaves the maximum m_i of its scores, the sum l_i of exp(score - m_i), and its values
o_i = sum exp(score - m_i) value / l_i. The joined row is

    m = max m_i        w_i = l_i exp(m_i - m) / sum_j l_j exp(m_j - m)        result = sum w_i o_i

A member that attends to no entry leaves l_i = 0 and o_i = 0, so its weight is 0. Here is every rounding, in the order
of the steps. A line rounds its result once to FP32, unless BF16(...) says that it rounds to BF16. Sums run in the order
of the members.

    g_i = exp(BF16(m_i - m))                m_i - m is rounded to FP32 before; g_i is BF16 (`elementwise.exp`)
    T_i = T_(i-1) + l_i g_i                 T is the last one
    r = 1 / BF16(T)                         BF16 (`elementwise.reciprocal`)
    e = 1 - T r,   q = r + e r              q is the refined 1 / T
    h = BF16(q),   l = BF16(q - h)
    t_i = l_i g_i,   w_i = t_i h + (t_i l)  t_i l is rounded before it is added
    u_i = BF16(w_i),   v_i = BF16(w_i - u_i)
    y_i = (y_(i-1) + o_i u_i) + o_i v_i     the sum in brackets is rounded, too
    result = BF16(y)                        y is the last one

Error bound for M members. Let d_i = m - m_i, and let a_i be the largest relative error of g_i:
a_i = exp(d_i (2^-8 + 2^-23)) (1 + 0.69 * 2^-7) - 1, but 0 where d_i = 0. The relative error of w_i is at most

    b_i = (1 + a_i) (1 + c) / (1 - sum_j w_j a_j) - 1,   c = 2^-13.9 + 2^-15 + (M + 6) 2^-24

where c is for q, for both splits and for the roundings to FP32. The result differs from the exact one by at most

    2^-8 |exact| + (1 + 2^-8) sum_i w_i |o_i| (b_i + 2^-23 M (1 + b_i)) + 2^-112 (L + M) (1 + max_i |o_i|)

Sums over i leave out members with d_i > 80; L is the sum of the l_i of these. The last term is for them, and for
results below the smallest normal number.
"""

from openvrex.golden.arithmetic.vector import MINUS_ZERO, Bank, Post
from openvrex.golden.arithmetic.vector import Op as VectorOp
from openvrex.golden.program.compiler import Compiler
from openvrex.golden.program.isa import LoadTo, Queue
from openvrex.golden.program.layer_memory import Array
from openvrex.golden.program.recipes import BANK, IMMEDIATE, STREAM, Row, split, split_reciprocal, times

MINUS_INFINITY = 0xFF80  # BF16
WORDS = 4  # words of a bank for each row that is joined, besides the row itself


def join(c: Compiler, parts: Array, stats: Array, out: Array, rows: range) -> None:
    """Join the members' parts of some rows of attention, in batches that fit in the banks.

    parts : FP32 [members, rows, head], values of each member
    stats : FP32 [members, rows, 2, lanes], maximum and sum of exponentials of each row, each in all lanes
    out : BF16, takes the rows [rows, head]
    rows : numbers of the rows to join; may be empty
    """
    most = c.fmt.depth // (WORDS + parts.shape[-1] // c.fmt.lanes)
    some = -(-len(rows) // max(1, -(-len(rows) // most)))  # equal batches, but for the last one
    for first in range(rows.start, rows.stop, max(1, some)):
        _Batch(c, parts, stats, out, first, min(some, rows.stop - first)).join()


class _Batch:
    """Rows that are joined at once. Each scalar of a row fills a word, in all lanes, so that rows are words."""

    def __init__(self, c: Compiler, parts: Array, stats: Array, out: Array, first: int, rows: int):
        self.c, self.parts, self.stats, self.out, self.first, self.rows = c, parts, stats, out, first, rows
        # Named as in the module's text; `low` is t_i l before it is added, `e` is q, too.
        row = rows * (parts.shape[-1] // c.fmt.lanes)
        self.at = c.places(**dict.fromkeys("ghluvmrtoe", rows), total=rows, low=rows, y=row)

    def join(self) -> None:
        """Write the steps of the batch."""
        n, words = self.c.fmt.lanes, self.parts.shape[-1] // self.c.fmt.lanes
        members = range(self.parts.shape[0])
        self.set(self.at.m, MINUS_INFINITY)
        for i in members:
            self.stat(i, 0, op=VectorOp.MAX, c=BANK, addr_c=self.at.m, write=Bank.C, addr_d=self.at.m)
        self.set(self.at.total, 0)
        for i in members:
            self.scale(i)
            to = {"write": Bank.A | Bank.C, "addr_d": self.at.total}
            self.stat(i, 1, b=BANK, addr_b=self.at.g, c=BANK, addr_c=self.at.total, **to)
        self.invert()
        for j in range(words):
            self.set(self.at.y + j * self.rows, 0)
        for i in members:
            self.weigh(i)
            for j in range(words):
                self.add(i, j)
        for j in range(words):
            at = self.at.y + j * self.rows
            self.step(a=IMMEDIATE, imm_a=MINUS_ZERO, c=BANK, addr_c=at, post=Post.ROUND, write=Bank.B)
            self.c.out(self.rows)
            head = self.parts.shape[-1]
            self.c.store(self.out, self.first * head + j * n, self.rows, 1, head)

    def row(self, at: int, banks: int = Bank.NONE) -> Row:
        """One word of each row."""
        return Row(at, self.rows, banks)

    def halves(self, high: int, low: int) -> tuple[Row, Row]:
        """A number as the sum of two of BF16."""
        return self.row(high, Bank.B | Bank.C), self.row(low, Bank.B)

    def step(self, source: int = Queue.MUL, **fields: int) -> None:
        """VECTOR on one word of each row."""
        self.c.vector(self.rows, source, **fields)

    def set(self, at: int, bits: int) -> None:
        """Put a BF16 number, given by its bits, into words of bank C."""
        self.step(a=IMMEDIATE, imm_a=bits, write=Bank.C, addr_d=at)

    def stat(self, i: int, which: int, **fields: int) -> None:
        """VECTOR whose operand a is m_i (`which` 0) or l_i (1)."""
        n = self.c.fmt.lanes
        at = ((i * self.stats.shape[1] + self.first) * 2 + which) * n
        self.c.load(self.stats, at, self.rows, 1, 2 * n, LoadTo.VECTOR)
        self.step(Queue.LOAD, a=STREAM, wide=1, **fields)

    def scale(self, i: int) -> None:
        """g_i = exp(m_i - m)."""
        self.stat(i, 0, c=BANK, addr_c=self.at.m, negate_c=1, post=Post.EXP, write=Bank.B, addr_d=self.at.g)

    def invert(self) -> None:
        """h + l = 1 / T."""
        first, rest = self.row(self.at.r, Bank.B | Bank.C), self.row(self.at.e, Bank.A)
        split_reciprocal(self.c, self.row(self.at.total), first, rest, *self.halves(self.at.h, self.at.l))

    def weigh(self, i: int) -> None:
        """u_i + v_i = w_i."""
        self.scale(i)
        self.stat(i, 1, b=BANK, addr_b=self.at.g, write=Bank.A, addr_d=self.at.t)
        t = self.row(self.at.t, Bank.A)
        times(self.c, t, *self.halves(self.at.h, self.at.l), self.row(self.at.low, Bank.C), t)
        split(self.c, t, *self.halves(self.at.u, self.at.v))

    def add(self, i: int, j: int) -> None:
        """y = y + o_i w_i for word `j` of each row."""
        n, rows, head = self.c.fmt.lanes, *self.parts.shape[1:]
        self.c.load(self.parts, (i * rows + self.first) * head + j * n, self.rows, 1, head, LoadTo.VECTOR)
        self.step(Queue.LOAD, a=STREAM, wide=1, write=Bank.A, addr_d=self.at.o)
        at = self.at.y + j * self.rows
        for weight in (self.at.u, self.at.v):
            both = {"b": BANK, "addr_b": weight, "c": BANK, "addr_c": at}
            self.step(a=BANK, addr_a=self.at.o, **both, write=Bank.C, addr_d=at)
