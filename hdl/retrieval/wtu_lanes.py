"""Shared parts of the WTU variants: stream layouts, ports, and the arithmetic of the lanes."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from openvrex.golden.function_params import BUDGET_BITS
from openvrex.hdl.params import WtuParams, bits_for
from openvrex.hdl.unit import Unit


def count_layout(p: WtuParams) -> data.StructLayout:
    """A word of token counts, of n_w clusters in order; lanes behind the last cluster hold anything.

    `first`: word 0 of a context, whose counts replace those before. `keep`: the context has at most `counts` clusters,
    so its counts come once and stay. Otherwise they come again for each reading. Valid with `first`.
    """
    counts = data.ArrayLayout(p.count_bits, p.n_w)
    return data.StructLayout({"counts": counts, "first": 1, "keep": 1})


def row_layout(p: WtuParams) -> data.StructLayout:
    """A word of a row: n_w score codes (`hdl.retrieval.wtu.Wtu` has their value) from cluster 0 on, lane 0 first.

    `keep`: highest lane in use, valid in the last word only.
    """
    scores = data.ArrayLayout(p.score.bits, p.n_w)
    return data.StructLayout({"scores": scores, "keep": bits_for(p.n_w), "last": 1})


def beat_layout(p: WtuParams) -> data.StructLayout:
    """Part of a row's selection: clusters n_w * addr + lane for every set bit of `mask`; the beats of a row are ORed.

    `last`: the final beat of a row. `clusters`, `tokens`: how many the row selected in all, valid with `last`.
    """
    n = bits_for(p.clusters + 1)
    return data.StructLayout(
        {"addr": bits_for(p.words), "mask": p.n_w, "last": 1, "clusters": n, "tokens": n + p.count_bits}
    )


class WtuPorts(Unit):
    """The ports that both variants of the WTU have.

    Parameters
    ----------
    p : WtuParams

    Members
    -------
    c, idle, used, i, ratio, budgeted, budget, o, perf : as in `hdl.retrieval.wtu.Wtu`

    Latency: as in `hdl.retrieval.wtu.Wtu`.
    Throughput: as in `hdl.retrieval.wtu.Wtu`.
    Raises: `ParamError` from `WtuParams`.
    Source: this project's own.
    """

    COUNTERS = ("rows", "words", "walked", "tests", "waits")

    def __init__(self, p: WtuParams):
        members = {
            "c": In(stream.Signature(count_layout(p))),
            "idle": Out(1),
            "used": Out(1),
            "i": In(stream.Signature(row_layout(p))),
            "ratio": In(17),
            "o": Out(stream.Signature(beat_layout(p))),
        }
        if p.budget:
            members |= {"budgeted": In(1), "budget": In(BUDGET_BITS)}
        super().__init__(p, members, p.protect)


def product_bits(p: WtuParams) -> int:
    """Bits of significand x count."""
    return p.score.significand_bits + p.count_bits


def partial_products(m: Module, wide, narrow, name: str) -> list[Signal]:
    """Partial products of two unsigned numbers: one for each two bits of `narrow`, two bits above the one before.

    One addition makes three times `wide`, which halves the number of partial products: an 8 x 16 product is a sixth
    smaller than an array of single bits.
    """
    n, k = len(wide), len(narrow)
    digits = Signal(k, name=f"{name}_digits")
    m.d.comb += digits.eq(narrow)
    triple = Signal(n + 2, name=f"{name}_triple")
    m.d.comb += triple.eq(wide + (wide << 1))
    rows = []
    for j in range(0, k, 2):
        low, high = digits[j], digits[j + 1] if j + 1 < k else None
        part = Signal(n + 2, name=f"{name}_part{j}")
        if high is None:
            m.d.comb += part.eq(wide & low.replicate(n))
        else:
            m.d.comb += part.eq(Mux(high, Mux(low, triple, wide << 1), Mux(low, wide, 0)))
        rows.append(part)
    return rows


def multiply(m: Module, wide, narrow, name: str) -> Signal:
    """Exact unsigned product as a named signal. A tree adds partial products: as large as a chain, a sixth faster."""
    rows: list = partial_products(m, wide, narrow, name)
    apart = 2  # bits by which each partial product is shifted against the one before
    while len(rows) > 1:
        sums = []
        for j in range(0, len(rows) - 1, 2):
            below, above = rows[j], rows[j + 1]
            upper = Signal(max(len(below) - apart, len(above)) + 1, name=f"{name}_upper{apart}_{j}")
            m.d.comb += upper.eq(below[apart:] + above)
            sums.append(Cat(below[:apart], upper))
        rows, apart = sums + rows[len(rows) & ~1 :], 2 * apart
    product = Signal(len(wide) + len(narrow), name=name)
    m.d.comb += product.eq(rows[0])
    return product


def significand(p: WtuParams, code) -> Cat:
    """Significand of a code, hidden bit included."""
    f = p.score
    return Cat(code[: f.man_bits], code[f.man_bits :].any()) if f.exp_bits else code


def scale_of(p: WtuParams, exponent):
    """One plus the power of two that an `exponent` scales a significand by: 1 for subnormals too (0 for a format
    without).
    """
    return Cat(exponent[0] | ~exponent.any(), exponent[1:]) if p.score.exp_bits else Const(0, 1)


def scaled(m: Module, p: WtuParams, significand, exponent, name: str) -> Signal:
    """`significand`, or a multiple of one, times 2^(exponent - 1), as a named signal."""
    out = Signal(len(significand) + p.score.max_shift, name=name)
    # Shifting by one more and dropping the bit that is always zero needs no subtraction.
    m.d.comb += out.eq((significand << scale_of(p, exponent))[1:] if p.score.exp_bits else significand)
    return out


def exponent_of(p: WtuParams, code):
    """Exponent field of a code or of any prefix of it, lowest bit first (a constant 0 where the format has none)."""
    return code[len(code) - p.score.exp_bits :] if p.score.exp_bits else Const(0, 1)


def adder_level(m: Module, values: list, name: str, limit: int | None = None) -> list:
    """Sums of neighbours as named signals, no wider than `limit` bits if the largest is known to fit."""
    sums = []
    for j in range(0, len(values) - 1, 2):
        width = max(len(values[j]), len(values[j + 1])) + 1
        s = Signal(min(width, limit or width), name=f"{name}_{j // 2}")
        m.d.comb += s.eq(values[j] + values[j + 1])
        sums.append(s)
    return sums + values[len(values) & ~1 :]


def adder_tree(m: Module, values: list, name: str, limit: int | None = None) -> Signal:
    """Exact sum of `values` as a named signal, no wider than `limit` bits if its largest value is known to fit."""
    level = 0
    while len(values) > 1:
        values, level = adder_level(m, values, f"{name}_{level}", limit), level + 1
    total = Signal(len(values[0]), name=name)
    m.d.comb += total.eq(values[0])
    return total


def max_tree(m: Module, values: list, name: str) -> Signal:
    """Largest of `values`, unsigned, as a named signal."""
    level = 0
    while len(values) > 1:
        best = []
        for j in range(0, len(values) - 1, 2):
            s = Signal(len(values[0]), name=f"{name}_{level}_{j // 2}")
            m.d.comb += s.eq(Mux(values[j] < values[j + 1], values[j + 1], values[j]))
            best.append(s)
        values, level = best + values[len(values) & ~1 :], level + 1
    top = Signal(len(values[0]), name=name)
    m.d.comb += top.eq(values[0])
    return top
