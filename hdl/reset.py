"""Prolonged resets: a unit stays in reset until its protected memories are zero."""

from amaranth import ClockDomain, ClockSignal, DomainRenamer, Elaboratable, Module, ResetSignal, Signal, Value
from amaranth.lib import wiring

from openvrex.hdl.leaf import CLEAR


def with_reset(
    m: Module, unit: wiring.Component, cycles: int, asked: Value | None = None, may: Value | None = None
) -> tuple[Elaboratable, Value]:
    """A submodule of `m` with a reset of its own, and whether this reset is pending or active.

    The reset begins with that of `m` and lasts `cycles` longer, at least one. It also comes when `asked` pulses, as
    soon as `may` is high. Memories clear themselves in this reset; their counts start with the reset of `m`, which is
    the reset of the domain `CLEAR`.
    """
    m.domains.unit = ClockDomain("unit", local=True)
    m.domains += ClockDomain(CLEAR, local=True)
    waits = Signal()
    reset = Signal(init=1)
    first = max(1, cycles) - 1
    left = Signal(range(max(2, cycles)), init=first)
    with m.If(reset):
        m.d.sync += [left.eq(left - 1), reset.eq(left != 0), waits.eq(0)]
    if asked is not None:
        with m.Elif(waits & may):
            m.d.sync += [reset.eq(1), left.eq(first)]
        with m.If(asked):
            m.d.sync += waits.eq(1)
    m.d.comb += [ClockSignal("unit").eq(ClockSignal()), ResetSignal("unit").eq(ResetSignal() | reset)]
    m.d.comb += [ClockSignal(CLEAR).eq(ClockSignal()), ResetSignal(CLEAR).eq(ResetSignal())]
    return DomainRenamer("unit")(unit), waits | reset


class Prolonged(wiring.Component):
    """A unit with the same ports that needs a reset of one cycle only: it prolongs the reset by `cycles` itself.

    Until then its streams neither offer nor take anything.

    Parameters
    ----------
    unit : the unit · cycles : as long as its memories need, `hdl.params.reset_cycles`

    Members
    -------
    * : those of the unit

    Latency: that of the unit; `ready` is low until its reset has ended.
    Throughput: that of the unit.
    Raises: nothing.
    Source: this project's own.
    """

    def __init__(self, unit: wiring.Component, cycles: int):
        self.unit, self.cycles = unit, cycles
        super().__init__(unit.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit, resets = with_reset(m, self.unit, self.cycles)
        for (path, member, ours), (*_, inside) in zip(
            self.signature.flatten(self), self.signature.flatten(self.unit), strict=True
        ):
            ours, inside = Value.cast(ours), Value.cast(inside)
            if member.flow == wiring.In:
                m.d.comb += inside.eq(ours)
            else:
                held = str(path[-1]).endswith(("valid", "ready"))
                m.d.comb += ours.eq(inside & ~resets if held else inside)
        return m
