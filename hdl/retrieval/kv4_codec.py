"""Packs entries into 4 bits a number on their way home, and expands them on their way back.

A packed beat stands for four beats of numbers. The codec takes a slice at a time::

    pack                                                     expand
    four beats in the copier's buffer                        a packed beat in the buffer
      |  each group is read twice                              |
      +---> SCAN: largest and least number                     +---> scale: the group's header bits
      |       |                                                |       |
      |       v                                                |       v
      |     SUM: of the two, t                                 +---> Kv4Number x lanes: the middle of a code's step
      |       |                                                        |
      |       v                                                        v
      |     STEP: exponent e, significand j                  `o`, a beat of numbers; four of them
      |       |
      |       v
      +---> CODE: codes below zero, z; then
              |   Kv4Code x lanes, a header bit into
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
STEP_LAYOUT = data.StructLayout({"j": 2, "z": 4, "live": 1})
SCALE_LAYOUT = data.StructLayout({"j": 2, "base": 10, "nan": 1})
SIZE = 15  # bits of a magnitude: exponent and fraction
SCAN, SUM, STEP, CODE = range(4)  # what the codec does with a group that it packs


class Kv4Code(wiring.Component):
    """The code of a number, before its lowest bit may give way to the header's.

    Parameters
    ----------
    none

    Members
    -------
    quarters : In(7) : the number's magnitude (`quarters_of`)
    negative : In(1) : its sign, 0 of a zero
    step : In(`STEP_LAYOUT`) : of its group: j and z of the header; unless it is `live`, the code is 0
    code : Out(4)

    Latency: none, it is combinational.
    Throughput: a number.
    Raises: nothing of its own.
    Source: `golden.retrieval.kv4`.
    """

    def __init__(self):
        super().__init__({"quarters": In(7), "negative": In(1), "step": In(STEP_LAYOUT), "code": Out(4)})

    def elaborate(self, platform):
        m, s, negative = Module(), self.step, self.negative
        level = Signal(6)  # signed
        steps = steps_of(m, self.quarters, s.j, "steps")
        m.d.comb += [
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
    takes : In(1) : take a code
    code : In(4)
    wide : In(1) : its lowest bit is one of the header
    z : In(4) : of the header of its group
    scale : In(`SCALE_LAYOUT`) : of the group of the code that was taken: j of the header, `base` = e - 5 (signed),
        whether it is of NaNs. A `base` of -16 makes every number zero
    number : Out(16) : BF16, of the code that was taken

    Latency: the number of a code is there in the cycle after it was taken.
    Throughput: a number a cycle.
    Raises: nothing of its own.
    Source: `golden.retrieval.kv4`.
    """

    def __init__(self):
        scale = {"scale": In(SCALE_LAYOUT), "number": Out(16)}
        super().__init__({"takes": In(1), "code": In(4), "wide": In(1), "z": In(4), **scale})

    def elaborate(self, platform):
        m, s = Module(), self.scale
        code = Cat(self.code[0] | self.wide, self.code[1:])
        above, below = Signal(5), Signal(4)  # whole steps from zero to the middle, rounded down; modulo 32 and 16
        negative = Signal(reset_less=True)
        size = Signal(5, reset_less=True)  # the distance in half steps
        a = Signal(8)  # the magnitude in half units of the step
        lead = Signal(3)  # its highest bit
        fraction = Signal(8)
        exponent = Signal(10)  # signed
        most = s.j.all()
        rest = Mux(s.j[0], size, Mux(s.j[1], size << 1, 0))  # `a` is 4, 4 + 1, 4 + 2 or 8 - 1 sizes
        m.d.comb += [
            above.eq(code - self.z),
            below.eq(self.z + ~code + self.wide),
            a.eq(Mux(most, size << 3, size << 2) + (rest ^ most.replicate(8)) + most),
            fraction.eq(a << ~lead),
            exponent.eq(s.base + lead),
        ]
        with m.If(self.takes):
            m.d.sync += [negative.eq(above[4]), size.eq(Cat(~self.wide, Mux(above[4], below, above[:4])))]
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

    Latency: a slice is made in the cycle after it was taken; `o` is complete in the cycle after the last one was made.
    Throughput: exact in `sim.units.retriever_time.converted`. A beat of the `core` preset, in groups of 32, takes 2
        cycles to expand, and the first of a burst a cycle more. It takes 50 to pack: 16 for the header's range, 2 for
        the header, 32 for the codes.
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
        top, step = self._measure(m, of, into)
        codes = self._pack(m, platform, of, into, top, step)
        numbers = self._expand(m, platform, of, back)
        self._write(m, of, codes, numbers)
        return m

    def _walk(self, m: Module, of: "_At") -> None:
        """The slice to work on, and what to read."""
        at, expands = of.at, ~of.packs
        turn = of.turn(self.group)
        group_ends = turn.all()
        beat_ends = Mux(of.packs, of.into.all(), of.back.all())  # the beat that was read last
        scan, code = of.phase == SCAN, of.phase == CODE
        done = Signal()  # the burst's last slice is made
        m.d.comb += [
            of.codes.eq(self.runs & of.packs & code & of.there),
            of.numbers.eq(self.runs & expands & of.there),
            self.makes.eq(of.codes & at.all() | of.numbers & ~of.half.any()),
            done.eq(self.makes & self.ends),
            self.part.eq(of.back[-2:]),
        ]
        starts = comb(m, "starts_beat", self.starts & ~of.back.any())
        coded = code & of.there
        # To the next beat. The last slice of a packed beat is taken while one of the same beat of numbers is made.
        goes = comb(m, "goes_on", self.runs & beat_ends & ~Mux(of.packs, done, self.ends))
        if self.several:
            inside = comb(m, "inside", of.packs & ~group_ends)  # the next beat is of the group
            first = comb(m, "first", self.runs & of.packs & (of.phase == STEP))  # beat of a group that is coded
            sums = self.runs & of.packs & (of.phase == SUM)
            codes = comb(m, "codes_next", goes & inside & coded)
            m.d.comb += [
                self.reads.eq(starts | first | goes & (expands | coded | scan & inside)),
                self.gives.eq(first | codes | starts & ~self.packs | goes & expands),
                self.again.eq(sums),
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
        with m.If(self.runs & expands):
            m.d.sync += of.there.eq(~done)
            with m.If(~done):
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

    def _measure(self, m: Module, of: "_At", cut: Value) -> tuple[Signal, data.View]:
        """e + 3 and the step of the group, from its largest number and its least one."""
        top, step, best = Signal(9), Signal(STEP_LAYOUT), {}
        numbers = [cut.word_select(i, 16) for i in range(self.codes)]
        sizes = [x[:SIZE] for x in numbers]
        # All comparisons are made at once, as the slice comes late in the cycle.
        over = {(i, k): comb(m, f"over{i}_{k}", sizes[i] > sizes[k]) for i in range(self.codes) for k in range(i)}
        for sign, name in enumerate(("p", "n")):
            best[name] = so_far = Signal(SIZE, name=name)
            before = comb(m, f"{name}_before", so_far & of.turn(self.group).any().replicate(SIZE))
            own = [comb(m, f"{name}_own{i}", x[7:15].any() & (x[15] == sign)) for i, x in enumerate(numbers)]
            rises = [
                comb(m, f"{name}_rises{i}", some & (x > before))
                for i, (x, some) in enumerate(zip(sizes, own, strict=True))
            ]
            most = before & ~Cat(rises).any().replicate(SIZE)
            for i, x in enumerate(sizes):
                larger = [own[k] & (over[k, i] if k > i else ~over[i, k]) for k in range(self.codes) if k != i]
                most |= x & (rises[i] & ~Cat(larger).any()).replicate(SIZE)
            with m.If(self.runs & (of.phase == SCAN)):
                m.d.sync += so_far.eq(most)
        less, t = sum_of(m, best["p"], best["n"])
        sums = Signal(data.StructLayout({"less": 1, "t": 9}), reset_less=True)
        with m.If(of.phase == SUM):
            m.d.sync += [sums.less.eq(less), sums.t.eq(t)]
        live, next_top, j = step_of(m, Mux(sums.less, best["n"], best["p"])[7:], sums.t)
        with m.If(of.phase == STEP):
            m.d.sync += [step.live.eq(live), top.eq(next_top), step.j.eq(j)]
        some, n = Signal(), best["n"]
        below = steps_of(m, quarters_of(m, n, top, "below_quarters"), step.j, "below")
        m.d.comb += some.eq(step.live & n[7:].any())
        with m.If(of.phase == CODE):  # while the first slice goes into its register
            m.d.sync += step.z.eq(Mux(some, Mux(below.all(), 15, below + 1), 0))
        return top, step

    def _pack(self, m: Module, platform: object, of: "_At", cut: Value, top: Value, step: data.View) -> Value:
        """The codes of a slice, headers in place; 0 if it is not one of numbers to pack."""
        own, header, now = [], Signal(HEADER_LAYOUT), Signal(STEP_LAYOUT, name="step_now")
        m.d.comb += [
            header.e.eq(top - 3),
            header.j.eq(step.j),
            header.z.eq(step.z),
            now.eq(step),
            now.live.eq(step.live & of.packs),
        ]
        bits = comb(m, "bits", header.as_value() & of.packs.replicate(HEADER))
        turn = of.turn(self.group)
        for i in range(self.codes):
            lane = place(m, platform, f"code{i}", Kv4Code)
            number = cut.word_select(i, 16)
            quarters, negative = (
                Signal(n, name=f"{name}{i}", reset_less=True) for n, name in ((7, "q"), (1, "negative"))
            )
            m.d.sync += [
                quarters.eq(quarters_of(m, number[:SIZE], top, f"quarters{i}")),
                negative.eq(number[15] & number[7:15].any()),
            ]
            m.d.comb += [lane.quarters.eq(quarters), lane.negative.eq(negative), lane.step.eq(now)]
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
        scale = Signal(SCALE_LAYOUT, reset_less=True)  # of the numbers that are made
        with m.If(self.runs):
            m.d.sync += [
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
            m.d.comb += [
                lane.takes.eq(self.runs),
                lane.code.eq(cut.word_select(i, 4)),
                lane.wide.eq(wide),
                lane.z.eq(header.z),
                lane.scale.eq(scale),
            ]
            own.append(lane.number)
        return Cat(own)

    def _write(self, m: Module, of: "_At", codes: Value, numbers: Value) -> None:
        """Puts the codes or the numbers in their place in the beat."""
        size = len(codes)
        per = len(numbers) // size
        halves = self.bits // 16 // self.numbers  # slices of a beat of numbers; `half` is behind the one that is made
        for k in range(self.bits // size):
            new = numbers[k % per * size : (k % per + 1) * size] | codes
            here = of.numbers & (of.half == (k // per + 1) % halves)
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
        self.back = self.at[:back]  # slice of a packed beat to expand
        self.half = self.back[: back - 2]  # of the beat of numbers that it becomes
        self.packs = Signal(name="packing")  # the burst packs, or it expands
        self.phase = Signal(2, name="phase")  # of a group to pack
        self.there = Signal(name="there")  # the slice before, or that to code, is in its registers
        self.codes = Signal(name="codes")  # a slice of codes is made
        self.numbers = Signal(name="numbers")  # a slice of numbers is made

    def turn(self, group: int) -> Value:
        """Slice of the group to pack."""
        return self.at[: bits_of(group // self.codec.codes)]


def bits_of(n: int) -> int:
    """Bits of a count of `n`, a power of two."""
    return n.bit_length() - 1


def sum_of(m: Module, p: Value, n: Value) -> tuple[Value, Value]:
    """Whether n is the larger one, and t, from the magnitudes of a group's largest number and of its least one."""
    less = comb(m, "less", p[7:] < n[7:])
    high, low = comb(m, "high", Mux(less, n, p)), comb(m, "low", Mux(less, p, n))
    apart = comb(m, "apart", high[7:] - low[7:], 8)
    fixed = comb(m, "fixed", Cat(Const(0, 7), low[:7], low[7:].any()) >> apart[:3], 15)
    lower = Mux(apart[3:].any(), low[7:].any(), fixed[7:] + fixed[:7].any())
    return less, comb(m, "t", Cat(high[:7], high[7:].any()) + lower, 9)


def step_of(m: Module, most: Value, t: Value) -> tuple[Value, Value, Value]:
    """Whether a group's numbers are neither all zeros nor NaNs, e + 3 and j, from its largest exponent and t."""
    e, top, j = Signal(10, name="e"), Signal(9, name="next_top"), Signal(2, name="j")  # e: with 2 too much
    for d, own, limit in reversed(STEPS):
        with m.If(t <= limit):
            m.d.comb += [e.eq(most + (d - 1)), top.eq(most + d), j.eq(own)]
    tiny = comb(m, "tiny", e < 3)
    live = comb(m, "live", most.any() & ~most.all())
    return live, Mux(live, Mux(tiny, 1 + 3, top), most + 3), Mux(live & ~tiny, j, 0)


def quarters_of(m: Module, size: Value, top: Value, name: str) -> Signal:
    """A magnitude below 16 steps in quarters of 2^(e - 131), rounded down, with `top` = e + 3.

    Undefined for a group of zeros or NaNs.
    """
    shift = comb(m, f"{name}_shift", top - size[7:SIZE], 9)
    some = comb(m, f"{name}_some", ~shift[3:].any() & size[7:SIZE].any())  # subnormals are zeros
    return comb(m, name, (Cat(size[:7], Const(1, 1)) >> shift[:3]) & some.replicate(7), 7)


def steps_of(m: Module, quarters: Value, j: Value, name: str) -> Signal:
    """Whole steps in a magnitude of `quarters_of`, 4 bits."""
    divisor = Cat(j, Const(1, 1))
    rest, out = quarters[3:], []
    for k in (3, 2, 1, 0):
        own = rest if k == 3 else Cat(quarters[k], rest[:3])
        fits = comb(m, f"{name}{k}", own >= divisor)
        rest = comb(m, f"{name}_rest{k}", Mux(fits, own - divisor, own), 4)
        out.append(fits)
    return comb(m, name, Cat(reversed(out)), 4)
