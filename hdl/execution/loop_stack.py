"""Loop stack of the LXE's sequencer: its open loops."""

from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.program.isa import LOOPS


class LoopStack(wiring.Component):
    """Keeps the open loops of a program, innermost first, at most `LOOPS`.

    Parameters
    ----------
    none : sizes are those of `golden.program.isa`

    Members
    -------
    enter : In(1) : the program enters a loop, not while `full` · rounds : In(16) : its rounds less one · first, end :
        In(16) : addresses of its first instruction and of its END
    turn : In(1) : the innermost loop reaches its END, not with `enter` or while `none` is open: it goes back to `back`,
        or closes
    clear : In(1) : closes all loops, whatever else happens
    none, full : Out(1) : no loop is open, no more loops can open
    again : Out(1) : the innermost loop goes back with the next `turn` · back, last : Out(16) : its first instruction,
        its END

    Latency: outputs include all events up to the cycle before.
    Throughput: one event a cycle.
    Raises: nothing.
    Source: this project's own (`golden.program.isa`).
    """

    def __init__(self):
        super().__init__(
            {
                "enter": In(1),
                **dict.fromkeys(("rounds", "first", "end"), In(16)),
                "turn": In(1),
                "clear": In(1),
                **dict.fromkeys(("none", "full", "again"), Out(1)),
                **dict.fromkeys(("back", "last"), Out(16)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        depth = Signal(range(LOOPS + 1))
        left, first, last = (
            [Signal(16, name=f"{name}{i}", reset_less=True) for i in range(LOOPS)] for name in ("left", "first", "last")
        )
        m.d.comb += [
            self.none.eq(depth == 0),
            self.full.eq(depth == LOOPS),
            self.again.eq(left[0] != 0),
            self.back.eq(first[0]),
            self.last.eq(last[0]),
        ]
        with m.If(self.enter):
            m.d.sync += [depth.eq(depth + 1), left[0].eq(self.rounds), first[0].eq(self.first), last[0].eq(self.end)]
            m.d.sync += [x[i + 1].eq(x[i]) for x in (left, first, last) for i in range(LOOPS - 1)]
        with m.Elif(self.turn & self.again):
            m.d.sync += left[0].eq(left[0] - 1)
        with m.Elif(self.turn):
            m.d.sync += depth.eq(depth - 1)
            m.d.sync += [x[i].eq(x[i + 1]) for x in (left, first, last) for i in range(LOOPS - 1)]
        with m.If(self.clear):
            m.d.sync += depth.eq(0)
        return m
