"""Proof about the motion mask: within a GOP no token leaves the mask."""

from dataclasses import replace

from amaranth import Module, Mux, Signal
from amaranth.hdl import Assert
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from openvrex.hdl.params import MaskParams
from openvrex.hdl.video.motion_mask import MotionMask, block_layout, frame_layout

SMALL = MaskParams(grid=2, group=1, size_bits=4, block_bits=1, tau_bits=1)
RESIDUALS = replace(SMALL, residuals=True)


class GrowthMonitor(wiring.Component):
    """A motion mask with free frames and blocks. It compares each mask with the one before, as the outputs show them.

    A mask is compared if neither it nor the one before is whole, if the one before accumulates, and if no frame between
    them begins a GOP or has another size. With `reach` the claim is that none has a token that the one before lacks.
    That claim must fail.
    """

    def __init__(self, p: MaskParams, reach: bool = False):
        self.p, self.reach = p, reach
        free = {"f": frame_layout(p), "f_valid": 1, "i": block_layout(p), "i_valid": 1, "o_ready": 1}
        super().__init__({name: In(shape) for name, shape in free.items()})

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.unit = unit = MotionMask(p)
        for name in ("f", "i"):
            port = getattr(unit, name)
            m.d.comb += [port.payload.eq(getattr(self, name)), port.valid.eq(getattr(self, f"{name}_valid"))]
        before = Signal(data.ArrayLayout(p.tokens, p.tokens))  # rows of the mask before
        row = Signal(range(p.tokens))
        size = Signal(2 * p.size_bits)
        adds = Signal()  # the frame in work accumulates
        after = Signal()  # a mask of this GOP came, and the next one may not have less
        frame, beat = self.f, unit.o.payload
        m.d.comb += unit.o.ready.eq(self.o_ready)
        now = frame.width | frame.height << p.size_bits
        with m.If(unit.f.valid & unit.f.ready):
            m.d.sync += [size.eq(now), adds.eq(frame.accumulate)]
            m.d.sync += after.eq(after & ~frame.leads & (now == size))
        with m.If(unit.o.valid & unit.o.ready):
            m.d.sync += [before[row].eq(beat.tokens), row.eq(Mux(beat.last, 0, row + 1))]
            with m.If(beat.last):
                m.d.sync += after.eq(~beat.whole & adds)
        compared = Signal()
        m.d.comb += compared.eq(unit.o.valid & after & ~beat.whole)
        if self.reach:
            m.d.comb += Assert(~compared | ((beat.tokens & ~before[row]) == 0), "a mask grows")
        else:
            m.d.comb += Assert(~compared | ((before[row] & ~beat.tokens) == 0), "a token left the mask")
        return m
