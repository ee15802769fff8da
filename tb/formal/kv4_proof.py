"""Proofs about the copier's codec: every beat leaves the buffer once and in order, every burst ends; codes are exact.

All inputs are free in every cycle, stalls and resets too, as far as the copier keeps the data sheet's rules.
"""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.hdl import Assert
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from openvrex.golden.retrieval.kv4 import RATIO
from openvrex.hdl.params import CoreParams
from openvrex.hdl.queues import kv4_beats, kv4_numbers
from openvrex.hdl.retrieval.kv4_codec import SIZE, STEP_LAYOUT, Kv4Code, Kv4Codec, quarters_of
from openvrex.sim.units.retriever_time import converted


class BeatMonitor(wiring.Component):
    """A codec with bursts of any length and kind, which counts the beats that it reads, gives and makes.

    A burst packs only where no packed beat is half expanded, as the copier's copies are whole packed beats. With
    `reach` the claim is that no burst of several packed beats ends. That claim must fail.
    """

    def __init__(self, p: CoreParams, reach: bool = False):
        self.p, self.reach = p, reach
        super().__init__({name: In(1) for name in ("starts", "packs", "runs", "ends")})

    def elaborate(self, platform):
        m, p = Module(), self.p
        m.submodules.unit = unit = Kv4Codec(p)
        several = kv4_beats(p) > 1
        again = unit.again if several else Const(0, 1)
        open_, kind, last = Signal(), Signal(), Signal()  # a burst is open, packs, makes its last beat
        parts = Signal(range(RATIO))  # beats made of the packed beat that left last
        begins, ends = Signal(), Signal()
        m.d.comb += [
            begins.eq(self.starts & ~open_),
            unit.starts.eq(begins),
            unit.packs.eq(self.packs & (parts == 0)),
            unit.runs.eq(self.runs & open_),
            unit.ends.eq(last),
            ends.eq(unit.makes & last),
        ]
        with m.If(begins):
            m.d.sync += [open_.eq(1), kind.eq(unit.packs)]
        with m.If(ends):
            m.d.sync += open_.eq(0)
        with m.If(begins | unit.makes):
            m.d.sync += last.eq(self.ends)
        with m.If(unit.makes & ~kind):
            m.d.sync += parts.eq(parts + 1)
        ahead = Signal(range(RATIO + 2))  # beats read that are read again
        given = Signal(range(RATIO + 2))  # beats that left for the packed beat that is made
        longest = converted(p, "packs", 1, 0)[1][-1]
        waits = Signal(range(longest + 2))  # cycles for the beat that is made
        many = Signal()  # the burst has made a beat
        m.d.sync += ahead.eq(Mux(again, 0, ahead + (unit.reads & ~unit.gives)))
        m.d.sync += given.eq(Mux(begins | unit.makes, 0, given) + unit.gives)
        with m.If(begins | unit.makes):
            m.d.sync += [waits.eq(0), many.eq(~begins)]
        with m.Elif(unit.runs):
            m.d.sync += waits.eq(waits + 1)
        if self.reach:
            m.d.comb += Assert(~(ends & kind & many), "no burst of several packed beats ends")
            return m
        # A packed beat's last slice is taken a cycle before it is made, and the next beat leaves then.
        slices = p.lxe.bus_bytes // 2 // kv4_numbers(p)  # of a beat of numbers
        taken = unit.runs & (waits == Mux(many, slices - 2, slices - 1)) & (parts == RATIO - 1)
        due = (begins & ~unit.packs & (parts == 0)) | (~kind & taken & ~last)
        packs = Mux(begins, unit.packs, kind)
        m.d.comb += [
            Assert(~unit.gives | (unit.reads & (ahead == 0)), "a beat leaves that is not the next"),
            Assert(ahead <= kv4_beats(p), "beats of another group are read"),
            Assert(~(unit.makes & kind) | ((given == RATIO) & (ahead == 0)), "a packed beat lacks beats"),
            Assert(given <= RATIO, "a packed beat takes too many beats"),
            Assert(packs | (unit.gives == due), "a packed beat leaves at another time"),
            Assert(waits < longest, "a beat is never made"),
            Assert(begins | unit.runs | ~Cat(unit.reads, unit.gives, unit.makes, again).any(), "it does not wait"),
        ]
        return m


class CodeMonitor(wiring.Component):
    """Any number below 16 steps of any size, and its code, by the definition with products instead of a division.

    With `reach` the claim is that no number of the middle of the range has a code above zero's. That claim must fail.
    """

    def __init__(self, reach: bool = False):
        self.reach = reach
        super().__init__({"number": In(16), "top": In(9), "step": In(STEP_LAYOUT), "steps": In(4)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = Kv4Code()
        step, number = self.step, Signal(16)
        exponent = number[7:15]
        negative = number[15] & exponent.any()
        m.d.sync += number.eq(self.number)  # ABC's engines want a register
        m.d.comb += [
            unit.quarters.eq(quarters_of(m, number[:SIZE], self.top, "quarters")),
            unit.negative.eq(negative),
            unit.step.eq(step),
        ]
        apart = Signal(10)  # signed: the number is its significand * 2^-apart, in quarters of 2^(e - 131)
        size = Signal(8)
        m.d.comb += apart.eq(self.top - exponent)
        m.d.comb += size.eq(Mux(exponent.any() & ~apart[3:].any(), Cat(number[:7], Const(1, 1)) >> apart[:3], 0))
        # `steps` is free: where it is the number's whole steps, the code must be the golden one.
        quarters = Cat(step.j, Const(1, 1))
        fits = (self.steps * quarters <= size) & (size < (self.steps + 1) * quarters) & ~apart[9]
        level = Mux(negative, step.z - self.steps - 1, step.z + self.steps)  # signed
        code = Mux(~step.live | (level < 0), 0, Mux(level > 15, 15, level[:4]))
        if self.reach:
            m.d.comb += Assert(~(fits & step.live & (exponent == 127) & (unit.code > step.z)), "no code above zero's")
        else:
            m.d.comb += Assert(~fits | (unit.code == code), "a code is not the golden one")
        return m
