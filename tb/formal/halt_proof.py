"""Proofs that a program is done only when its engines are: what a HALT waits for.

Two claims make a chain. The LXE tells the sequencer that the VPE is busy as long as a VECTOR waits for words, from the
cycle after it takes that VECTOR. The sequencer, told so of each engine, tells DONE when none is busy any more.
"""

from amaranth import Cat, Module, Signal
from amaranth.hdl import Assert

from openvrex.golden.program.isa import Engine, Status
from openvrex.hdl.execution.lxe import Lxe
from openvrex.hdl.execution.sequencer import Sequencer
from openvrex.hdl.params import CoreParams
from openvrex.tb.formal.free_unit import free
from openvrex.tb.formal.stream_proof import UnitMonitor

_NAMES = {Engine.LOAD: "load", Engine.MUL: "mul", Engine.VECTOR: "vector", Engine.STORE: "store"}


class WatchedLxe(Lxe):
    """An LXE of free units, with the claim about what waits between them.

    reach : claims instead that no two VECTORs wait for words, which must fail
    """

    def __init__(self, p: CoreParams, reach: bool = False):
        super().__init__(p)
        self.reach = reach

    @staticmethod
    def units(p: CoreParams) -> list[tuple]:
        """The units, without what is inside."""
        return [(name, free(unit), own) for name, unit, own in Lxe.units(p)]

    def _watch(self, m, parts, multiplier, queues):
        super()._watch(m, parts, multiplier, queues)
        told = parts["sequencer"].busy[list(Engine).index(Engine.VECTOR)]
        for name, queue in zip(("routes", "loaded", "put"), queues, strict=True):
            inside = Signal(range(queue.depth + 1), name=f"{name}_inside")
            comes, goes = queue.w_en & queue.w_rdy, queue.r_en & queue.r_rdy
            m.d.sync += inside.eq(inside + comes - goes)
            if self.reach:
                m.d.comb += Assert((name != "routes") | (inside < 2), "no two VECTORs wait")
            else:
                m.d.comb += Assert(~inside.any() | told, f"what is in `{name}` is not told")


class HaltMonitor(UnitMonitor):
    """A sequencer between free inputs, of which one instruction of any engine is followed until it ends.

    Its engine tells that it is busy from the cycle after the instruction goes there until it has ended; of a RETRIEVE
    nothing is claimed, which HALT may leave. With `reach` it claims instead that DONE never comes after an instruction
    has been followed. That claim must fail.
    """

    def __init__(self, unit: Sequencer, reach: bool):
        super().__init__(unit, more=("watch", "ends"))
        self.reach = reach

    def claims(self, m: Module, held: dict[str, Signal], before: dict[str, Signal]) -> None:
        """While the followed instruction is in its engine, DONE does not come."""
        unit = self.unit
        streams = {e: getattr(unit, name) for e, name in _NAMES.items()}
        follows, seen, lied, was = Signal(len(streams)), Signal(), Signal(), Signal()
        goes = Cat(s.valid & s.ready for s in streams.values())
        done = unit.status.code == Status.DONE
        told = Cat(unit.busy[list(Engine).index(e)] for e in streams)
        lies = (follows & ~told).any()  # an engine that breaks its word
        m.d.sync += [lied.eq(lied | lies), was.eq(done)]
        with m.If(follows.any()):
            m.d.sync += [follows.eq(follows & ~self.ends.replicate(len(streams))), seen.eq(1)]
        with m.Elif(self.watch):
            m.d.sync += follows.eq(goes & ~(goes - 1))  # the first of them
        if self.reach:
            m.d.comb += Assert(~(done & ~was & seen), "no program ends")
        else:
            m.d.comb += Assert(lied | lies | ~(done & ~was) | ~follows.any(), "DONE comes while an engine is busy")
