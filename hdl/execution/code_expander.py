"""Expands codes of keys to the BF16 numbers by which the DPE multiplies."""

from amaranth import Cat, Const, Module, Mux
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.retrieval.coded_pages import GAIN_BITS, CodeWords, magnitudes
from openvrex.hdl.arith.table import table
from openvrex.hdl.named import comb

ONE = 0x3F80  # BF16
OCTAVE = 8  # gains


class CodeExpander(wiring.Component):
    """Puts the expanded codes of one word of W side by side, each with two ones behind it and zeros behind these.

    A code has `numbers` fields of 3 bits, a sign above two bits that tell 1, 3, 5 or 7, and above them a gain. A gain's
    eight steps to the octave are constants, its octaves are added to the exponents of 1, 3, 5 and 7 once a code, and
    each number takes one of the four.

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
        first = magnitudes()[:OCTAVE].view("uint16").tolist()
        for place in range(p.places):
            code = self.i[place]
            gain = code[3 * p.numbers :][:GAIN_BITS]
            octaves = Cat(Const(0, 7), gain[3:])
            sizes = []
            for size in range(4):
                value = table(m, [row[size] for row in first], gain[:3], f"step{place}_{2 * size + 1}")
                sizes.append(comb(m, f"size{place}_{2 * size + 1}", value + octaves, 15))
            for k in range(width):
                out = self.o[place * width + k]
                if k < p.numbers:
                    field = code[3 * k :][:3]
                    low, high = (Mux(field[0], *pair) for pair in ((sizes[1], sizes[0]), (sizes[3], sizes[2])))
                    m.d.comb += out.eq(Cat(Mux(field[1], high, low), field[2]))
                elif k < p.numbers + 2:
                    m.d.comb += out.eq(ONE)
        return m
