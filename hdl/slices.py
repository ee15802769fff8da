"""Register slices of streams: they cut the paths that go through `ready`, and through `valid` and the payload."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out


class ReadySlice(wiring.Component):
    """Register slice of a stream's `ready`: what drives the stream sees a register, what takes it waits no cycle.

    It takes one item that the stream's taker does not, and offers that first.

    Parameters
    ----------
    shape : of the payload

    Members
    -------
    i : In(stream of shape), o : Out(stream of shape) : the stream before and behind the slice

    Latency: 0.
    Throughput: an item a cycle; holds one.
    Raises: nothing.
    Source: this project's own; AXI register slices call it the reverse direction.
    """

    def __init__(self, shape):
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        kept, full = Signal.like(self.i.payload, name="kept", reset_less=True), Signal(name="full")
        m.d.comb += [
            self.i.ready.eq(~full),
            self.o.valid.eq(full | self.i.valid),
            self.o.payload.as_value().eq(Mux(full, kept.as_value(), self.i.payload.as_value())),
        ]
        m.d.sync += full.eq(self.o.valid & ~self.o.ready)
        with m.If(self.i.valid & ~full):
            m.d.sync += kept.eq(self.i.payload)
        return m


class Slice(wiring.Component):
    """Register slice: puts a stream's outputs into registers.

    Parameters
    ----------
    shape : of the payload

    Members
    -------
    i : In(stream of shape), o : Out(stream of shape) : the stream before and behind the registers

    Latency: 1 cycle.
    Throughput: an item a cycle; holds two.
    Raises: nothing.
    Source: this project's own.
    """

    def __init__(self, shape):
        super().__init__({"i": In(stream.Signature(shape)), "o": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        front, back = (Signal.like(self.i.payload, name=n, reset_less=True) for n in ("front", "back"))
        held, full = Signal(name="held"), Signal(name="full")
        m.d.comb += [self.i.ready.eq(~full), self.o.valid.eq(held), self.o.payload.eq(front)]
        with m.If(self.o.ready | ~held):
            m.d.sync += [
                front.as_value().eq(Mux(full, back.as_value(), self.i.payload.as_value())),
                held.eq(full | self.i.valid),
                full.eq(0),
            ]
        with m.Elif(self.i.valid & ~full):
            m.d.sync += [back.eq(self.i.payload), full.eq(1)]
        return m
