"""Proof about the KVMU's allocator: no block is given out twice, none is lost, FULL is never wrong.

The proof is unbounded (`tb.formal.prover`). Operations, clusters, fetches and stalls are free in every cycle, and so is
the initial content of the memories. A block holds one slot, so every APPEND needs a block and every reply names one.
"""

from amaranth import Module, Mux, Signal
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from hdl.params import KvmuParams
from hdl.retrieval.kvmu import APPEND, CLEAR, Kvmu
from tb.formal.prover import holds

SMALL = KvmuParams(
    n_ctx=1, clusters=2, blocks=2, block_slots=1, recent=1, entry_bytes=1, boundary=2, addr_bits=3, token_bits=1
)


class AllocatorMonitor(wiring.Component):
    """The KVMU between free inputs, beside a set of the blocks in use, which the monitor keeps from the unit's ports.

    With `reach` it claims instead that no block of a cleared context is given out again before all are in use. That
    claim must fail, or the proof is vacuous.
    """

    def __init__(self, p: KvmuParams, reach: bool):
        self.p, self.reach = p, reach
        self.unit = Kvmu(p)
        names = ("a", "f", "w", "x", "b")
        free = {}
        for name in names:
            port = getattr(self.unit, name)
            if self.unit.signature.members[name].flow == In:
                free |= {f"{name}_valid": In(1), f"{name}_payload": In(port.payload.shape())}
            else:
                free[f"{name}_ready"] = In(1)
        super().__init__(free)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self.unit
        for name in self.signature.members:
            stream, _, field = name.partition("_")
            m.d.comb += getattr(getattr(unit, stream), field).eq(getattr(self, name))
        m.d.comb += [unit.a.payload.ctx.eq(0), unit.f.payload.ctx.eq(0)]  # there is only one context

        asked = Signal()
        cleared = Signal()
        answered = Signal()
        m.d.comb += [
            asked.eq(unit.a.valid & unit.a.ready & (unit.a.payload.op == APPEND)),
            cleared.eq(unit.a.valid & unit.a.ready & (unit.a.payload.op == CLEAR)),
            answered.eq(unit.w.valid & unit.w.ready),
        ]
        # Replies in flight, the oldest lowest; `void`: a CLEAR was accepted after its APPEND.
        waiting = Signal(3)
        void = Signal(3)
        left = Signal(3)
        left_void = Signal(3)
        m.d.comb += [left.eq(waiting >> answered), left_void.eq((void >> answered) | Mux(cleared, left, 0))]
        m.d.sync += [waiting.eq(Mux(asked, (left << 1) | 1, left)), void.eq(left_void)]

        used = Signal(self.p.blocks)
        block = Signal(range(self.p.blocks))
        counts = Signal()
        given = Signal(self.p.blocks)
        m.d.comb += [
            block.eq(unit.w.payload.home),
            counts.eq(answered & ~void[0]),
            given.eq(Mux(counts & ~unit.w.payload.full, 1 << block, 0)),
        ]
        m.d.sync += used.eq(Mux(cleared, 0, used | given))
        if not self.reach:
            m.d.comb += [
                Assert(~asked | (left[2] == 0), "more replies under way than the monitor follows"),
                Assert(~answered | waiting[0], "a reply without an APPEND"),
                Assert(~counts | unit.w.payload.full | (unit.w.payload.home < self.p.blocks), "a block that is none"),
                Assert((used & given) == 0, "a block is given out twice"),
                Assert(~counts | (unit.w.payload.full == used.all()), "FULL though a block is free, or not FULL"),
            ]
            return m
        once = Signal()
        again = Signal()
        with m.If(cleared & used.all()):
            m.d.sync += once.eq(1)
        with m.If(once & (given != 0)):
            m.d.sync += again.eq(1)
        m.d.comb += Assert(~(again & counts & unit.w.payload.full))
        return m


def prove(p: KvmuParams, edit: tuple[str, str] | None = None, reach: bool = False) -> bool:
    """Whether the monitor's claims hold in every reachable state (`tb.formal.prover.holds`)."""
    return holds(AllocatorMonitor(p, reach), edit)
