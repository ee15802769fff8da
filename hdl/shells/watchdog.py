"""Watchdog: ends what has run for longer than the host allows."""

from amaranth import Module, Signal, Value


def watchdog(m: Module, cycles: Value, running: Value) -> Signal:
    """Returns a pulse in cycle number `cycles` of what runs; none if that is 0.

    `cycles` counts from the value that it has when a run begins.
    """
    left = Signal.like(cycles, name="watchdog_left")
    expires = Signal(name="watchdog_expires")
    m.d.comb += expires.eq(running & (left == 1))
    with m.If(~running):
        m.d.sync += left.eq(cycles)
    with m.Elif(left.any()):
        m.d.sync += left.eq(left - 1)
    return expires
