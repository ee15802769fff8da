"""Semaphores: counters that let an engine's next instruction start."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.program.isa import SEMAPHORE_BITS, SEMAPHORES, Engine
from openvrex.hdl.instruction_layouts import done_layout
from openvrex.hdl.named import comb

WAITERS = (*(e.name.lower() for e in Engine), "sync")  # the engines and the sequencer
_LATE = WAITERS.index("vector")  # the VPE knows last whether it takes an instruction


class Semaphores(wiring.Component):
    """Counts signals of finished instructions, and tells which waiting instructions may start.

    A waiter's head may go while every semaphore of its mask is above zero. As it goes it takes one from each. If
    several waiters, against the rule of `golden.program.isa`, take from a semaphore in one cycle, they take one in all:
    a count never falls below zero.

    Parameters
    ----------
    none : counters are those of `golden.program.isa`, 16 of 8 bits

    Members
    -------
    clear : In(1) : all counts are zero from the next cycle on, whatever else happens
    wait : In(array of masks) : semaphores that each head waits for, in the order of `WAITERS`
    ready : Out(a bit a waiter) : heads that may go
    take : In(a bit a waiter) : heads that go; only those that are ready
    done : In(array of `hdl.instruction_layouts.done_layout`) : instruction of each waiter that is done in this cycle
    overflow : Out(1) : pulse: a count has come above 255 (the counter has wrapped)

    Latency: a signal in cycle t counts for `ready` from t + 2 on, a take from t + 1; `overflow` comes at t + 2.
    Throughput: all waiters and all of `done` every cycle.
    Raises: nothing.
    Source: this project's own (`golden.program.isa`).
    """

    def __init__(self):
        n = len(WAITERS)
        super().__init__(
            {
                "clear": In(1),
                "wait": In(data.ArrayLayout(SEMAPHORES, n)),
                "ready": Out(n),
                "take": In(n),
                "done": In(data.ArrayLayout(done_layout(), n)),
                "overflow": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        waiters = range(len(WAITERS))
        above = Signal(SEMAPHORES)
        over = Signal(SEMAPHORES)
        for s in range(SEMAPHORES):
            count = Signal(SEMAPHORE_BITS, name=f"count{s}")
            # Counted a cycle later, because the engines' outputs arrive late in the cycle, `_LATE` last.
            more = Signal(range(len(WAITERS)), name=f"more{s}")
            late = Signal(name=f"late{s}")
            grown = Signal(SEMAPHORE_BITS + 1, name=f"grown{s}")
            taken = Signal(name=f"taken{s}")
            less = comb(m, f"less{s}", grown - 1, SEMAPHORE_BITS + 1)  # beforehand: who takes is known late
            coming = Signal(SEMAPHORE_BITS + 1, name=f"coming{s}")
            signals = [self.done[e].valid & self.done[e].signal[s] for e in waiters]
            m.d.comb += [
                above[s].eq(count.any()),
                grown.eq(count + more + late),
                taken.eq(Cat(self.take[e] & self.wait[e][s] for e in waiters).any()),
                coming.eq(Mux(taken, less, grown)),
            ]
            m.d.sync += [
                more.eq(sum(x for e, x in enumerate(signals) if e != _LATE)),
                late.eq(signals[_LATE]),
                count.eq(coming),
                over[s].eq(coming[SEMAPHORE_BITS]),
            ]
            with m.If(self.clear):
                m.d.sync += [more.eq(0), late.eq(0), count.eq(0), over[s].eq(0)]
        m.d.comb += self.overflow.eq(over.any())
        m.d.comb += [self.ready[e].eq((self.wait[e] & ~above) == 0) for e in waiters]
        return m
