"""Proof about the ring of counts: a word of scores never sees the counts of another word or of another context.

Contexts that fit and contexts that stream follow each other in any order. Words come and go in any cycle that the
ring's data sheet allows.
"""

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from openvrex.golden.function_params import ScoreFormat
from openvrex.hdl.params import WtuParams
from openvrex.hdl.retrieval.wtu_counts import CountRing

SMALL = WtuParams(n_w=1, clusters=4, counts=2, count_bits=3, score=ScoreFormat(2, 1), bin_bits=2)


class RingMonitor(wiring.Component):
    """A ring of two words. A count holds the number of its word and a bit that changes with every context.

    With `reach` it claims instead that no word is seen in a later round of a context that streams. That claim must
    fail.
    """

    def __init__(self, reach: bool = False):
        self.reach = reach
        free = {"offers": 1, "starts": 1, "keep": 1, "words": 2, "takes": 1, "pauses": 1}
        super().__init__({name: In(width) for name, width in free.items()})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = CountRing(SMALL)
        begun = Signal()  # a context came
        context = Signal()  # changes with every context
        last = Signal(2)  # its last word
        keeps = Signal()
        given = Signal(2)  # word of counts that comes next
        complete = Signal()  # all words of a context that fits have come
        at = Signal(2)  # word of scores that comes next
        rounds = Signal()  # the context streams, and its first round is over
        beat = unit.c.payload
        new = Signal()  # a context comes
        end = Mux(self.keep, self.words[0], self.words)  # at most 2 words fit
        m.d.comb += [
            unit.idle.eq((at == 0) & self.pauses),
            beat.first.eq(self.starts | ~begun),
            beat.keep.eq(self.keep),
            beat.counts[0].eq(Cat(Mux(beat.first, 0, given), context ^ beat.first)),
            unit.c.valid.eq(self.offers & (beat.first | ~complete)),
            unit.take.eq(unit.here & self.takes),
            unit.rewind.eq(at == last),
            new.eq(unit.c.valid & unit.c.ready & beat.first),
        ]
        with m.If(new):
            m.d.sync += [begun.eq(1), context.eq(~context), last.eq(end), keeps.eq(self.keep), at.eq(0), rounds.eq(0)]
            m.d.sync += [given.eq(Mux(end == 0, 0, 1)), complete.eq(self.keep & (end == 0))]
        with m.Else():
            with m.If(unit.c.valid & unit.c.ready):
                m.d.sync += [given.eq(Mux(given == last, 0, given + 1)), complete.eq(keeps & (given == last))]
            with m.If(unit.take):
                m.d.sync += at.eq(Mux(at == last, 0, at + 1))
                m.d.sync += rounds.eq(rounds | (~keeps & (at == last)))
        if self.reach:
            m.d.comb += Assert(~(unit.here & rounds), "nothing is seen in a later round")
        else:
            m.d.comb += Assert(~unit.here | (unit.counts[0] == Cat(at, context)), "counts of another word")
        return m
