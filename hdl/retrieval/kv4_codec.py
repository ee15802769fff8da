"""Packs entries into 4 bits a number on their way home, and expands them on their way back.

A packed beat stands for four beats of numbers. The codec takes a slice at a time::

    pack                                                     expand
    four beats in the copier's buffer                        a packed beat in the buffer
      |  each group is read twice                              |
      +---> SCAN: largest and least number                     +---> scale: the group's header bits
      |       |                                                |       |
      |       v                                                |       v
      |     STEP: exponent e, significand j                    +---> Kv4Number x lanes: the middle of a code's step
      |       |                                                        |
      |       v                                                        v
      |     ZERO: codes below zero, z                        `o`, a beat of numbers; four of them
      |       |
      |       v
      +---> CODE: Kv4Code x lanes, a header bit into
              |   bit 0 of every (group / 16)th code
              v
            `o`, one packed beat

A group of 32 numbers, packed into 16 bytes; h is a code whose lowest bit is one of the 14 header bits e, j, z::

    number   0   1   2   3   4   5          26  27  28  29  30  31
           +---+---+---+---+---+---+--    --+---+---+---+---+---+---+
           | h | c | h | c | h | c |  ...   | h | c | c | c | c | c |
           +---+---+---+---+---+---+--    --+---+---+---+---+---+---+
"""

from functools import reduce
from operator import or_

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.retrieval.kv4 import HEADER, LARGEST, NAN, NANS, RATIO, STEPS
from openvrex.hdl.leaf import place
from openvrex.hdl.named import comb
from openvrex.hdl.params import CoreParams
from openvrex.hdl.queues import kv4_beats, kv4_codes, kv4_numbers

HEADER_LAYOUT = data.StructLayout({"e": 8, "j": 2, "z": 4})
STEP_LAYOUT = data.StructLayout({"top": 9, "j": 2, "z": 4, "live": 1})
SCALE_LAYOUT = data.StructLayout({"z": 4, "j": 2, "base": 10, "nan": 1})
SIZE = 15  # bits of a magnitude: exponent and fraction
SCAN, STEP, ZERO, CODE = range(4)  # what the codec does with a group that it packs


class Kv4Code(wiring.Component):
    """The code of a number, before its lowest bit may give way to the header's.

    Parameters
    ----------
    none

    Members
    -------
    number : In(16) : BF16
    step : In(`STEP_LAYOUT`) : of its group: `top` = e + 3, j and z of the header; unless it is `live`, the code is 0
    code : Out(4)

    Latency: none, it is combinational.
    Throughput: a number.
    Raises: nothing of its own.
    Source: `golden.retrieval.kv4`.
    """

    def __init__(self):
        super().__init__({"number": In(16), "step": In(STEP_LAYOUT), "code": Out(4)})

    def elaborate(self, platform):
        m, s, number = Module(), self.step, self.number
        steps = steps_of(m, number[:SIZE], s.top, s.j, "steps")
        negative, level = Signal(), Signal(6)  # signed
        m.d.comb += [
            negative.eq(number[15] & number[7:15].any()),
            level.eq(s.z + Cat(steps ^ negative.replicate(4), negative, negative)),  # z + steps, or z - 1 - steps
            self.code.eq(Mux(level[5], 0, Mux(level[4], 15, level[:4])) & s.live.replicate(4)),
        ]
        return m


class Kv4Number(wiring.Component):
    """The number that a code stands for.

    Parameters
    ----------
    none

    Members
    -------
    code : In(4)
    wide : In(1) : its lowest bit is one of the header
    scale : In(`SCALE_LAYOUT`) : of its group: z and j of the header, `base` = e - 5 (signed), whether it is of NaNs. A
        `base` of -16 makes every number zero
    number : Out(16) : BF16

    Latency: none, it is combinational.
    Throughput: a number.
    Raises: nothing of its own.
    Source: `golden.retrieval.kv4`.
    """

    def __init__(self):
        super().__init__({"code": In(4), "wide": In(1), "scale": In(SCALE_LAYOUT), "number": Out(16)})

    def elaborate(self, platform):
        m, s = Module(), self.scale
        whole = Signal(5)  # whole steps from zero to the middle, rounded down, modulo 32
        size = Signal(5)  # the distance in half steps
        a = Signal(8)  # the magnitude in half units of the step
        lead = Signal(3)  # its highest bit
        fraction = Signal(8)
        exponent = Signal(10)  # signed
        negative = whole[4]
        m.d.comb += [
            whole.eq(Cat(self.code[0] | self.wide, self.code[1:]) - s.z),
            size.eq(Cat(~self.wide, (whole[:4] ^ negative.replicate(4)) + (negative & self.wide))),
            a.eq((size << 2) + Mux(s.j[0], size, 0) + Mux(s.j[1], size << 1, 0)),
            fraction.eq(a << ~lead),
            exponent.eq(s.base + lead),
        ]
        for k in range(8):
            with m.If(a[k]):
                m.d.comb += lead.eq(k)
        with m.If(s.nan):
            m.d.comb += self.number.eq(NAN)
        with m.Elif(a.any() & ~exponent[9] & exponent[:9].any()):
            value = Mux(exponent[8] | exponent[:8].all(), LARGEST, Cat(fraction[:7], exponent[:8]))
            m.d.comb += self.number.eq(Cat(Value.cast(value)[:SIZE], negative))
        return m


class Kv4Codec(wiring.Component):
    """Makes packed beats of beats of BF16 numbers, and the reverse, of what the copier's buffer holds.

    A packed beat stands for a quad, four beats of the buffer. The codec cuts a slice out of the beat that was read
    last, and puts what it makes of it in its place in `o`. To expand, it makes `hdl.queues.kv4_numbers` numbers a
    cycle. To pack, it passes over each group twice: first it finds the header (`golden.retrieval.kv4`), then it makes
    `hdl.queues.kv4_codes` codes of each slice. Few lanes do, as the link to a home is far slower than a beat a cycle.

    Parameters
    ----------
    p : CoreParams, with a `kvmu.kv4_group`

    Members
    -------
    starts : In(1) : a burst begins, all of whose beats are in the buffer
    packs : In(1) : with `starts`: it packs, or it expands
    runs : In(1) : from the cycle after `starts` on: `o` may change, go on
    ends : In(1) : the beat being made is the burst's last
    reads : Out(1) : read the next beat of the buffer
    gives : Out(1) : the beat read now leaves the buffer
    again : Out(1), if a group takes several beats : those that were read and have not left are read again
    stored : In(8 * bus_bytes) : the beat read last, from the cycle after `reads` on
    makes : Out(1) : `o` is complete from the next cycle on, until the next `runs`
    o : Out(8 * bus_bytes) : the beat to write
    part : Out(2) : beats that were made of the packed beat read last, modulo 4

    Latency: `o` is complete in the cycle after the last slice was made.
    Throughput: exact in `sim.units.retriever_time.converted`. A beat of the `core` preset, in groups of 32, takes 2
        cycles to expand. It takes 50 to pack: 16 for the header's range, 2 for the header, 32 for the codes.
    Raises: nothing of its own.
    Source: `golden.retrieval.kv4`; Oaken, V-Rex [13], for the place of the two in the data path.
    """

    def __init__(self, p: CoreParams):
        self.group, self.bits = p.dre.kvmu.kv4_group, 8 * p.lxe.bus_bytes
        self.codes, self.numbers = kv4_codes(p), kv4_numbers(p)  # of a slice
        self.several = kv4_beats(p) > 1  # beats in a group
        controls = ("starts", "packs", "runs", "ends")
        outs = ("reads", "gives", "makes", *["again"] * self.several)
        beats = {"stored": In(self.bits), "o": Out(self.bits), "part": Out(2)}
        super().__init__({name: In(1) for name in controls} | {name: Out(1) for name in outs} | beats)

    def elaborate(self, platform):
        m, of = Module(), _At(self)
        self._walk(m, of)
        into, back = self._cut(m, of)
        header = self._measure(m, of, into)
        codes = self._pack(m, platform, of, into, header)
        numbers = self._expand(m, platform, of, back)
        self._write(m, of, codes, numbers)
        return m

    def _walk(self, m: Module, of: "_At") -> None:
        """The slice to work on, and what to read."""
        at, expands = of.at, ~of.packs
        turn = of.turn(self.group)
        group_ends = turn.all()
        # Of the beat that was read last, and of the beat that is made.
        beat_ends = Mux(of.packs, of.into.all(), of.back.all())
        half = of.back[: bits_of(self.bits // 16 // self.numbers)]
        scan, code = of.phase == SCAN, of.phase == CODE
        more = Signal()  # the burst goes on behind this slice
        m.d.comb += [
            of.codes.eq(self.runs & of.packs & code & of.there),
            of.numbers.eq(self.runs & expands),
            self.makes.eq(of.codes & at.all() | of.numbers & half.all()),
            more.eq(~(self.makes & self.ends)),
            self.part.eq(of.back[-2:]),
        ]
        starts = comb(m, "starts_beat", self.starts & ~of.back.any())
        coded = code & of.there
        goes = comb(m, "goes_on", self.runs & beat_ends & more)  # to the next beat
        if self.several:
            inside = comb(m, "inside", of.packs & ~group_ends)  # the next beat is of the group
            first = comb(m, "first", self.runs & of.packs & (of.phase == ZERO))  # beat of a group that is coded
            steps = self.runs & of.packs & (of.phase == STEP)
            codes = comb(m, "codes_next", goes & inside & coded)
            m.d.comb += [
                self.reads.eq(starts | first | goes & (expands | coded | scan & inside)),
                self.gives.eq(first | codes | starts & ~self.packs | goes & expands),
                self.again.eq(steps),
            ]
        else:
            m.d.comb += [self.reads.eq(starts | goes & (expands | coded)), self.gives.eq(self.reads)]
        with m.If(self.starts):
            m.d.sync += of.packs.eq(self.packs)
        with m.If(self.runs & of.packs):
            with m.If(scan):
                m.d.sync += turn.eq(turn + 1)
            with m.If(coded):
                m.d.sync += at.eq(at + 1)
            m.d.sync += of.there.eq(code & ~of.there)
            with m.If(~(scan | code) | group_ends & (scan | of.there)):
                m.d.sync += of.phase.eq(of.phase + 1)
        with m.If(of.numbers):
            m.d.sync += of.back.eq(of.back + 1)

    def _cut(self, m: Module, of: "_At") -> tuple[Value, Value]:
        """The slice of a beat to pack, and that of a packed beat; the smaller one is cut out of the larger."""
        sizes = 16 * self.codes, 4 * self.numbers
        both = max(sizes)
        rest = [bits_of(both // size) for size in sizes]  # bits of an index that choose in the larger slice
        index = Mux(of.packs, of.into[rest[0] :], of.back[rest[1] :])
        chosen = comb(m, "chosen", Const(1, 1) << index, self.bits // both)
        slices = (self.stored.word_select(k, both) & chosen[k].replicate(both) for k in range(self.bits // both))
        cut = comb(m, "cut", reduce(or_, slices))  # smaller than a tree of multiplexers
        into, back = (
            cut.word_select(at[:bits], size) if bits else cut
            for at, bits, size in zip((of.into, of.back), rest, sizes, strict=True)
        )
        return into, back

    def _measure(self, m: Module, of: "_At", cut: Value) -> data.View:
        """The header of the group, from its largest number and its least one."""
        header, best = Signal(HEADER_LAYOUT), {}
        top = comb(m, "top", header.e + 3)
        begins = ~of.turn(self.group).any()  # the group
        numbers = [cut.word_select(i, 16) for i in range(self.codes)]
        for sign, name in enumerate(("p", "n")):
            best[name] = so_far = Signal(SIZE, name=name)
            own = [(x[:SIZE], x[7:15].any() & (x[15] == sign)) for x in numbers]
            sizes = [comb(m, f"{name}{i}", x & some.replicate(SIZE)) for i, (x, some) in enumerate(own)]
            most = comb(m, f"{name}_begin", so_far & ~begins.replicate(SIZE))
            most = largest_of(m, [most, *sizes], f"{name}_most")
            with m.If(self.runs & (of.phase == SCAN)):
                m.d.sync += so_far.eq(most)
        e, j = step_of(m, best["p"], best["n"])
        with m.If(of.phase == STEP):
            m.d.sync += [header.e.eq(e), header.j.eq(j)]
        some, n = Signal(), best["n"]
        below = steps_of(m, n, top, header.j, "below")
        m.d.comb += some.eq(lives(header.e) & n[7:].any())
        with m.If(of.phase == ZERO):
            m.d.sync += header.z.eq(Mux(some, Mux(below.all(), 15, below + 1), 0))
        return header

    def _pack(self, m: Module, platform: object, of: "_At", cut: Value, header: data.View) -> Value:
        """The codes of a slice, headers in place; 0 if it is not one of numbers to pack."""
        own = []
        step = Signal(STEP_LAYOUT)
        m.d.comb += [
            step.top.eq(header.e + 3),
            step.j.eq(header.j),
            step.z.eq(header.z),
            step.live.eq(lives(header.e) & of.packs),
        ]
        bits = comb(m, "bits", header.as_value() & of.packs.replicate(HEADER))
        turn = of.turn(self.group)
        piece = Signal.like(cut, name="piece")
        m.d.sync += piece.eq(cut)
        for i in range(self.codes):
            lane = place(m, platform, f"code{i}", Kv4Code)
            m.d.comb += [lane.number.eq(piece.word_select(i, 16)), lane.step.eq(step)]
            low = Signal(name=f"low{i}")
            m.d.comb += low.eq(lane.code[0])
            with m.Switch(turn):
                for k in range(self.group // self.codes):
                    bit = self._bit(k * self.codes + i)
                    if bit is not None:
                        with m.Case(k):
                            m.d.comb += low.eq(bits[bit])
            own.append(Cat(low, lane.code[1:]))
        return Cat(own)

    def _expand(self, m: Module, platform: object, of: "_At", cut: Value) -> Value:
        """The numbers of a slice of a packed beat; 0 if it is not of one."""
        n, own = self.numbers, []
        held = []  # headers in the beat
        for g in range(self.bits // 4 // self.group):
            places = [g * self.group + b * (self.group // 16) for b in range(HEADER)]
            held.append(comb(m, f"held{g}", Cat(self.stored[4 * x] for x in places)))
        header = Signal(HEADER_LAYOUT, name="read")
        turn, which = of.back[: bits_of(self.group // n)], of.back[bits_of(self.group // n) :]
        m.d.comb += header.eq(Cat(held).word_select(which, HEADER) if len(held) > 1 else held[0])
        scale = Signal(SCALE_LAYOUT)
        m.d.comb += [
            scale.z.eq(header.z),
            scale.j.eq(header.j),
            scale.base.eq(Mux(of.packs | ~header.e.any(), -16, header.e - 5)),
            scale.nan.eq(~of.packs & (header.e == NANS)),
        ]
        for i in range(n):
            wide = Signal(name=f"wide{i}")
            with m.Switch(turn):
                for k in range(self.group // n):
                    with m.Case(k):
                        m.d.comb += wide.eq(self._bit(k * n + i) is not None)
            lane = place(m, platform, f"number{i}", Kv4Number)
            m.d.comb += [lane.code.eq(cut.word_select(i, 4)), lane.wide.eq(wide), lane.scale.eq(scale)]
            own.append(lane.number)
        return Cat(own)

    def _write(self, m: Module, of: "_At", codes: Value, numbers: Value) -> None:
        """Puts the codes or the numbers in their place in the beat."""
        size = len(codes)
        per = len(numbers) // size
        half = of.back[: bits_of(self.bits // 16 // self.numbers)]
        for k in range(self.bits // size):
            new = numbers[k % per * size : (k % per + 1) * size] | codes
            here = of.numbers & (half == k // per) if len(half) else of.numbers
            with m.If(here | of.codes & (of.at == k)):
                m.d.sync += self.o[k * size : (k + 1) * size].eq(new)

    def _bit(self, i: int) -> int | None:
        """Which bit of the header lies in the code of number i of a group, if one does."""
        bit, rest = divmod(i, self.group // 16)
        return bit if rest == 0 and bit < HEADER else None


class _At:
    """Where the codec is in its work."""

    def __init__(self, codec: Kv4Codec):
        n = codec.bits // 16  # numbers of a beat
        self.codec = codec
        into, back = bits_of(n // codec.codes), bits_of(RATIO * n // codec.numbers)
        self.at = Signal(into + 2, name="at")  # slice of a quad to pack
        self.into = self.at[:into]  # of the beat to pack
        self.back = self.at[:back]  # slice of a beat to expand
        self.packs = Signal(name="packing")  # the burst packs, or it expands
        self.phase = Signal(2, name="phase")  # of a group to pack
        self.there = Signal(name="there")  # the slice to code is in its register
        self.codes = Signal(name="codes")  # a slice of codes is made
        self.numbers = Signal(name="numbers")  # a slice of numbers is made

    def turn(self, group: int) -> Value:
        """Slice of the group to pack."""
        return self.at[: bits_of(group // self.codec.codes)]


def bits_of(n: int) -> int:
    """Bits of a count of `n`, a power of two."""
    return n.bit_length() - 1


def largest_of(m: Module, values: list[Value], name: str) -> Value:
    """The largest of a few values, by a tree of comparisons."""
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        values = [Mux(a > b, a, b) for a, b in pairs] + values[len(values) // 2 * 2 :]
    return comb(m, name, values[0])


def lives(e: Value) -> Value:
    """Whether a group with this e has numbers that are neither all zeros nor NaNs."""
    return e.any() & ~e.all()


def step_of(m: Module, p: Value, n: Value) -> tuple[Value, Value]:
    """e and j of a group, from the magnitudes of its largest number and of its least one."""
    less = comb(m, "less", p[7:] < n[7:])
    high, low = comb(m, "high", Mux(less, n, p)), comb(m, "low", Mux(less, p, n))
    apart = comb(m, "apart", high[7:] - low[7:], 8)
    fixed = comb(m, "fixed", Cat(Const(0, 7), low[:7], low[7:].any()) >> apart[:3], 15)
    lower = Mux(apart[3:].any(), low[7:].any(), fixed[7:] + fixed[:7].any())
    t = comb(m, "t", Cat(high[:7], high[7:].any()) + lower, 9)
    e, j = Signal(10, name="e"), Signal(2, name="j")  # e: with 2 too much
    for d, own, most in reversed(STEPS):
        with m.If(t <= most):
            m.d.comb += [e.eq(high[7:] + (d - 1)), j.eq(own)]
    tiny = comb(m, "tiny", e < 3)
    dead = comb(m, "dead", high[7:].all() | ~high[7:].any())
    return Mux(dead, high[7:], Mux(tiny, 1, e - 2)[:8]), Mux(dead | tiny, 0, j)


def steps_of(m: Module, size: Value, top: Value, j: Value, name: str) -> Signal:
    """Whole steps in a magnitude below 16 steps, 4 bits, with `top` = e + 3; undefined for a group of zeros or NaNs."""
    shift = comb(m, f"{name}_shift", top - size[7:SIZE], 9)
    fixed = comb(m, f"{name}_fixed", Cat(size[:7], Const(1, 1)) >> shift[:3], 7)
    some = comb(m, f"{name}_some", ~shift[3:].any() & size[7:SIZE].any())  # subnormals are zeros
    divisor = Cat(j, Const(1, 1))
    rest, out = fixed[3:], []
    for k in (3, 2, 1, 0):
        own = rest if k == 3 else Cat(fixed[k], rest[:3])
        fits = comb(m, f"{name}{k}", own >= divisor)
        rest = comb(m, f"{name}_rest{k}", Mux(fits, own - divisor, own), 4)
        out.append(fits)
    return comb(m, name, Cat(reversed(out)) & some.replicate(4), 4)
