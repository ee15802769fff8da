"""Proof about the bursts of loader and storer: none crosses 4 KB, and none is withdrawn before it is taken.

All inputs are free in every cycle: instructions, words, stalls, responses, `stop`.
"""

from amaranth import Module, Signal
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from openvrex.hdl.execution.loader import Loader
from openvrex.hdl.execution.storer import Storer

PAGE_BITS = 12


class BusMonitor(wiring.Component):
    """A loader or storer between free inputs, with claims about its address and data channels.

    With `reach` it claims instead that no burst of several beats ends at the end of a page. That claim must fail.
    """

    def __init__(self, unit: Loader | Storer, reach: bool = False):
        self.unit, self.reach = unit, reach
        free = {}
        for name, member in unit.signature.members.items():
            port = getattr(unit, name)
            if name == "stop":
                free[name] = In(1)
            elif member.is_signature and member.flow == In:
                free |= {f"{name}_valid": In(1), f"{name}_payload": In(port.payload.shape())}
            elif member.is_signature:
                free[f"{name}_ready"] = In(1)
        super().__init__(free)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = self.unit
        for name in self.signature.members:
            stream, _, field = name.partition("_")
            port = getattr(unit, stream)
            m.d.comb += (getattr(port, field) if field else port).eq(getattr(self, name))
        bus_bytes = unit.p.lxe.bus_bytes
        for name in ("ar",) if isinstance(unit, Loader) else ("aw", "w"):
            channel = getattr(unit, name)
            bits = channel.payload.as_value()
            held = Signal(name=f"{name}_held")
            before = Signal(len(bits), name=f"{name}_before")
            m.d.sync += [held.eq(channel.valid & ~channel.ready), before.eq(bits)]
            if not self.reach:
                m.d.comb += Assert(~held | (channel.valid & (bits == before)), f"{name} is withdrawn or changed")
            if name != "w":
                end = Signal(PAGE_BITS + 1, name=f"{name}_end")  # in bytes, from the page's start to the burst's end
                m.d.comb += end.eq(channel.payload.addr[:PAGE_BITS] + (channel.payload.len + 1) * bus_bytes - 1)
                if self.reach:
                    at_end = channel.valid & end[:PAGE_BITS].all() & channel.payload.len.any()
                    m.d.comb += Assert(~at_end, f"no burst of {name} ends with a page")
                else:
                    m.d.comb += Assert(~channel.valid | ~end[PAGE_BITS], f"a burst of {name} crosses 4 KB")
        return m
