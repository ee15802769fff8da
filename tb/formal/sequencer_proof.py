"""Proofs about the sequencer's semaphores and loops, each against a plain model.

No engine goes without a signal, no signal is lost, and a count above the range is reported. The loop stack returns each
loop's END, first instruction and rounds. The proofs are unbounded, and inputs are free within the data sheets: only
ready heads go, a loop is entered only where there is room, and turned only where one is open. Semaphores have 3 bits,
enough for what all engines may add at once; indices have 2.
"""

from functools import reduce
from operator import or_
from unittest.mock import patch

from amaranth import Array, Instance, Module, Mux, Signal
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from openvrex.golden.program.isa import LOOPS, Status
from openvrex.hdl.execution.loop_stack import LoopStack
from openvrex.hdl.execution.semaphores import WAITERS, Semaphores
from openvrex.hdl.execution.sequencer import Sequencer
from openvrex.tb.formal.prover import Proof, holds
from openvrex.tb.formal.stream_proof import UnitMonitor, channels

BITS = 3
_TOP = (1 << BITS) - 1


class SemaphoreMonitor(wiring.Component):
    """Semaphore 0 beside a count, to which the events of a cycle are added one cycle later.

    With `reach` it claims instead that no semaphore overflows. That claim must fail, or the proof is vacuous.
    """

    def __init__(self, reach: bool):
        self.reach = reach
        n = len(WAITERS)
        super().__init__({"clear": In(1), **dict.fromkeys(("waits", "wants", "done"), In(n))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = Semaphores()
        m.d.comb += [unit.clear.eq(self.clear), unit.take.eq(self.wants & unit.ready)]
        for e in range(len(WAITERS)):
            m.d.comb += [unit.wait[e][0].eq(self.waits[e]), unit.done[e].valid.eq(1)]
            m.d.comb += unit.done[e].signal[0].eq(self.done[e])
        held = Signal(range(_TOP + 1))  # signals that may be taken
        late = Signal(range(len(WAITERS) + 1))  # signals of the cycle before
        lost = Signal()  # the count has overflowed: nothing is claimed until a clear
        tells = Signal()
        total = Signal(range(_TOP + len(WAITERS) + 1))
        goes = (unit.take & self.waits).any()
        m.d.comb += total.eq(held + late - (goes & (held != 0)))
        m.d.sync += [
            held.eq(Mux(self.clear, 0, total)),
            late.eq(Mux(self.clear, 0, sum(self.done))),
            lost.eq(~self.clear & (lost | (total > _TOP))),
            tells.eq(~self.clear & (total > _TOP)),
        ]
        if self.reach:
            m.d.comb += Assert(~unit.overflow)
            return m
        m.d.comb += [
            Assert(lost | ~goes | (held != 0), "a head goes without a signal"),
            Assert(
                lost | (unit.ready == (~self.waits | (held != 0).replicate(len(WAITERS)))),
                "a signal is lost, or a head waits for none",
            ),
            Assert((lost & ~tells) | (unit.overflow == tells), "a count above the range is not told"),
        ]
        return m


class ReadyMonitor(wiring.Component):
    """Semaphore 0 with one waiter at a time: once it may go, it may go until it does.

    Nothing is claimed after an overflow. With `reach` it claims instead that nobody waits who may go.
    """

    def __init__(self, reach: bool):
        self.reach = reach
        n = len(WAITERS)
        super().__init__({"clear": In(1), "begins": In(range(n)), "takes": In(1), "done": In(n)})

    def elaborate(self, platform):
        m = Module()
        n = len(WAITERS)
        m.submodules.unit = unit = Semaphores()
        waits, kept, lost = Signal(n), Signal(n), Signal()
        may, might = Signal(), Signal()
        m.d.comb += [
            waits.eq(Mux(kept.any(), kept, 1 << self.begins)),
            may.eq((unit.ready & waits).any()),
            unit.clear.eq(self.clear),
            unit.take.eq(Mux(self.takes, unit.ready & waits, 0)),
            *(unit.wait[e][0].eq(waits[e]) for e in range(n)),
            *(w for e in range(n) for w in (unit.done[e].valid.eq(1), unit.done[e].signal[0].eq(self.done[e]))),
        ]
        m.d.sync += [
            kept.eq(Mux(may & self.takes, 0, waits)),
            might.eq(may & ~self.takes & ~self.clear),
            lost.eq(~self.clear & (lost | unit.overflow)),
        ]
        m.d.comb += Assert(~might) if self.reach else Assert(lost | unit.overflow | ~might | may, "may go no more")
        return m


class SteadySemaphores(Semaphores):
    """Replaces the semaphores: any head may go in any cycle, and then until it goes, as `ReadyMonitor` claims."""

    def elaborate(self, platform):
        m, n = Module(), len(WAITERS)
        any_, kept = Signal(n), Signal(n)
        m.submodules.any = Instance("$anyseq", p_WIDTH=n, o_Y=any_)
        m.d.comb += self.ready.eq(any_ | kept)
        m.d.sync += kept.eq(Mux(self.clear, 0, self.ready & ~self.take))
        return m


class LoopMonitor(wiring.Component):
    """The loop stack beside arrays and an index. With `reach` it claims that it is never full, which must fail."""

    def __init__(self, reach: bool):
        self.reach = reach
        super().__init__({**dict.fromkeys(("clear", "enters", "turns"), In(1)), **dict.fromkeys("abc", In(2))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = LoopStack()
        m.d.comb += [
            unit.clear.eq(self.clear),
            unit.enter.eq(self.enters & ~unit.full),
            unit.turn.eq(self.turns & ~unit.enter & ~unit.none),
            unit.rounds.eq(self.a),
            unit.first.eq(self.b),
            unit.end.eq(self.c),
        ]
        depth = Signal(range(LOOPS + 1))
        left, first, end = (Array(Signal(2, name=f"{n}{i}") for i in range(LOOPS)) for n in ("left", "first", "end"))
        top = Signal(range(LOOPS))
        m.d.comb += top.eq(depth - 1)
        with m.If(unit.enter):
            m.d.sync += [left[depth[:2]].eq(self.a), first[depth[:2]].eq(self.b), end[depth[:2]].eq(self.c)]
            m.d.sync += depth.eq(depth + 1)
        with m.If(unit.turn):
            with m.If(left[top] == 0):
                m.d.sync += depth.eq(depth - 1)
            with m.Else():
                m.d.sync += left[top].eq(left[top] - 1)
        with m.If(self.clear):
            m.d.sync += depth.eq(0)
        if self.reach:
            m.d.comb += Assert(~unit.full)
            return m
        m.d.comb += [
            Assert((unit.none == (depth == 0)) & (unit.full == (depth == LOOPS)), "depth"),
            Assert((depth == 0) | (unit.again == (left[top] != 0)), "rounds"),
            Assert((depth == 0) | ((unit.back == first[top]) & (unit.last == end[top])), "a loop's place"),
        ]
        return m


class StuckMonitor(UnitMonitor):
    """A running sequencer in which nothing happens ends by its watchdog: nothing stands still for long.

    Events are: an instruction is executed or goes to its engine, the host's beat is taken, an engine moves something or
    has something outstanding. With `reach` it claims instead that the watchdog never ends a program. That claim must
    fail.
    """

    def __init__(self, unit: Sequencer, reach: bool):
        super().__init__(unit)
        self.reach = reach

    def claims(self, m: Module, held: dict[str, Signal], before: dict[str, Signal]) -> None:
        """Claims about the status, from the ports and the count of instructions."""
        unit, late = self.unit, 4  # cycles from an event until it is counted, and until the status shows it
        last, quiet, happens = Signal(32), Signal(range(unit.WATCHDOG + late + 2)), Signal()
        goes = [c.valid & c.ready for c in channels(unit)]
        m.d.comb += happens.eq(unit.moved | unit.outstanding | reduce(or_, goes) | (unit.perf.instructions != last))
        runs = unit.status.code == Status.RUNNING
        m.d.sync += [
            last.eq(unit.perf.instructions),
            quiet.eq(Mux(happens | ~runs, 0, quiet + (quiet <= unit.WATCHDOG + late))),
        ]
        if self.reach:
            m.d.comb += Assert(unit.status.code != Status.DEADLOCK, "the watchdog ends nothing")
        else:
            m.d.comb += Assert(quiet <= unit.WATCHDOG + late, "it runs and stands still")


def prove_semaphores(edit: tuple[str, str] | None = None, reach: bool = False) -> Proof:
    """Whether the claims of `SemaphoreMonitor` hold, as in `tb.formal.prover.holds`."""
    with patch("openvrex.hdl.execution.semaphores.SEMAPHORE_BITS", BITS):
        return holds(SemaphoreMonitor(reach), edit, merge=False)


def prove_loops(edit: tuple[str, str] | None = None, reach: bool = False) -> Proof:
    """Whether the claims of `LoopMonitor` hold, as in `tb.formal.prover.holds`."""
    return holds(LoopMonitor(reach), edit)
