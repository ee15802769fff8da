"""Expands codes of keys to the BF16 numbers by which the DPE multiplies."""

from amaranth import Cat, Module, Mux
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.retrieval.coded_pages import GAIN_BITS, CodeWords, magnitudes
from openvrex.hdl.arith.table import table

ONE = 0x3F80  # BF16


class CodeExpander(wiring.Component):
    """Puts the expanded codes of one word of W side by side, each with two ones behind it and zeros behind these.

    A code has a sign of each number, two bits of each that tell 1, 3, 5 or 7, and a gain. A table for each code gives
    1, 3, 5 and 7 times the gain, of which each number takes one.

    Parameters
    ----------
    p : CodeWords

    Members
    -------
    i : In(`places` codes of `code_bytes` bytes) : as `golden.retrieval.coded_pages.words` packs them
    o : Out(array of `lanes` BF16 numbers) : the word of W

    Latency: none, the unit has no register. Throughput: a word of W a cycle.
    Raises: `ParamError` from `CodeWords`.
    Source: function: `golden.retrieval.coded_pages.CodeWords.expanded`.
    """

    def __init__(self, p: CodeWords):
        self.p = p
        codes = data.ArrayLayout(8 * p.code_bytes, p.places)
        super().__init__({"i": In(codes), "o": Out(data.ArrayLayout(16, p.lanes))})

    def elaborate(self, platform):
        p, m = self.p, Module()
        width = p.lanes // p.places
        numbers = magnitudes().view("uint16").T.tolist()  # 1, 3, 5 and 7 times each gain
        for place in range(p.places):
            code = self.i[place]
            gain = code[3 * p.numbers :][:GAIN_BITS]
            sizes = [table(m, row, gain, f"size{place}_{2 * k + 1}") for k, row in enumerate(numbers)]
            for k in range(width):
                out = self.o[place * width + k]
                if k < p.numbers:
                    sign, upper, lower = (code[third * p.numbers + k] for third in range(3))
                    low, high = (Mux(lower, *pair) for pair in ((sizes[1], sizes[0]), (sizes[3], sizes[2])))
                    m.d.comb += out.eq(Cat(Mux(upper, high, low), sign))
                elif k < p.numbers + 2:
                    m.d.comb += out.eq(ONE)
        return m
