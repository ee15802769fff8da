"""Proofs about order and progress: every item that enters a unit leaves it once, in order, and within a bound.

The monitor follows any one item: what it is, and how many are in front of it. Inputs are free, including stalls on both
sides.
"""

from collections.abc import Callable

from amaranth import Const, Module, Mux, Signal
from amaranth.hdl import Assert
from amaranth.lib import wiring

from openvrex.tb.formal.stream_proof import UnitMonitor


class OrderMonitor(UnitMonitor):
    """A unit whose items go from stream `i` to stream `o`.

    item : the part of a payload that is equal at both streams
    counts : which beats of `i` are items
    room : the most items inside the unit
    soon : cycles without a stall at `o` within which an item comes out
    through : an item may come out in the cycle in which it comes
    """

    def __init__(
        self,
        unit: wiring.Component,
        item: Callable,
        room: int,
        soon: int,
        i: str = "i",
        o: str = "o",
        counts: Callable = lambda payload: 1,
        stable: tuple[str, ...] = (),
        reach: bool = False,
        through: bool = False,
    ):
        super().__init__(unit, stable, ("watch",))
        self.reach, self.through = reach, through
        self.item, self.room, self.soon, self.i, self.o, self.counts = item, room, soon, i, o, counts

    def claims(self, m: Module, held: dict[str, Signal], before: dict[str, Signal]) -> None:
        """Claims of order and of progress."""
        i, o = (getattr(self.unit, name) for name in (self.i, self.o))
        comes, goes = Signal(), Signal()
        m.d.comb += [comes.eq(i.valid & i.ready & self.counts(i.payload)), goes.eq(o.valid & o.ready)]
        inside, ahead = Signal(range(self.room + 2)), Signal(range(self.room + 2))
        m.d.sync += inside.eq(inside + comes - goes)
        passes = comes & goes & (inside == 0) if self.through else Const(0)
        follows, what = Signal(), Signal.like(self.item(i.payload), name="what")
        mine = Signal()  # the followed item comes out
        m.d.comb += mine.eq(follows & goes & (ahead == 0))
        with m.If(comes & ~passes & self.watch & ~follows):
            m.d.sync += [follows.eq(1), what.eq(self.item(i.payload)), ahead.eq(inside - goes)]
        with m.Elif(follows & goes):
            m.d.sync += [ahead.eq(ahead - 1), follows.eq(~mine)]
        waits = Signal(range(self.soon + 2))
        m.d.sync += waits.eq(Mux(inside.any() & ~goes & o.ready, waits + (waits <= self.soon), 0))
        if self.reach:
            several = inside > (0 if self.through else 1)  # one of those that come out at once is never inside
            m.d.comb += Assert(~(mine & (self.item(o.payload) == what) & several), "nothing comes out that waited")
            return
        m.d.comb += [
            Assert((inside <= self.room), "more items than have room"),
            Assert(~goes | inside.any() | passes, "an item that did not come"),
            Assert(~passes | (self.item(o.payload) == self.item(i.payload)), "another item than comes"),
            Assert(~mine | (self.item(o.payload) == what), "another item in its place"),
            Assert(waits <= self.soon, "an item does not come out"),
        ]
