"""Packs entries into 4 bits a number on their way home, and expands them on their way back."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from golden.retrieval.kv4 import HEADER, LARGEST, NAN, NANS, RATIO, STEPS
from hdl.arith.largest import largest
from hdl.leaf import place
from hdl.memory import Ram, error_members
from hdl.named import comb
from hdl.params import CoreParams, bits_for
from hdl.queues import copied_beats, kv4_beats

HEADER_LAYOUT = data.StructLayout({"e": 8, "j": 2, "z": 4})
SIZE = 15  # bits of a magnitude: exponent and fraction


class Kv4Code(wiring.Component):
    """The code of a number, before its lowest bit may give way to the header's.

    Parameters
    ----------
    none

    Members
    -------
    number : In(16) : BF16
    header : In(`HEADER_LAYOUT`) : of its group
    code : Out(4)

    Latency: none, it is combinational.
    Throughput: a number.
    Raises: nothing of its own.
    Source: `golden.retrieval.kv4`.
    """

    def __init__(self):
        super().__init__({"number": In(16), "header": In(HEADER_LAYOUT), "code": Out(4)})

    def elaborate(self, platform):
        m, h, number = Module(), self.header, self.number
        steps = steps_of(m, number[:SIZE], h.e, h.j, "steps")
        negative, level, live = Signal(), Signal(6), Signal()
        m.d.comb += [
            negative.eq(number[15] & number[7:15].any()),
            level.eq(Mux(negative, h.z - 1 - steps, h.z + steps)),  # modulo 64; bit 5: below zero
            live.eq(h.e.any() & (h.e != NANS)),
            self.code.eq(Mux(level[5], 0, Mux(level[4], 15, level[:4])) & live.replicate(4)),
        ]
        return m


class Kv4Number(wiring.Component):
    """The number that a code stands for.

    Parameters
    ----------
    none

    Members
    -------
    code : In(4) : its lowest bit is 0 if that was a bit of the header
    wide : In(1) : it was
    header : In(`HEADER_LAYOUT`) : of its group
    number : Out(16) : BF16

    Latency: none, it is combinational.
    Throughput: a number.
    Raises: nothing of its own.
    Source: `golden.retrieval.kv4`.
    """

    def __init__(self):
        members = {"code": In(4), "wide": In(1), "header": In(HEADER_LAYOUT), "number": Out(16)}
        super().__init__(members)

    def elaborate(self, platform):
        m, h = Module(), self.header
        halves = Signal(7)  # half steps from zero to the middle, modulo 128
        size = Signal(5)
        a = Signal(8)  # the magnitude in half units of the step
        lead = Signal(3)  # its highest bit
        fraction = Signal(8)
        exponent = Signal(10)  # with 5 too much
        m.d.comb += [
            halves.eq(Cat(~self.wide, self.code) + self.wide * 2 - (h.z << 1)),
            size.eq(Mux(halves[6], -halves, halves)),
            a.eq((size << 2) + Mux(h.j[0], size, 0) + Mux(h.j[1], size << 1, 0)),
            fraction.eq(a << ~lead),
            exponent.eq(h.e + lead),
        ]
        for k in range(8):
            with m.If(a[k]):
                m.d.comb += lead.eq(k)
        with m.If(h.e == NANS):
            m.d.comb += self.number.eq(NAN)
        with m.Elif((h.e != 0) & (a != 0) & (exponent > 5)):
            value = Mux(exponent > 254 + 5, LARGEST, Cat(fraction[:7], (exponent - 5)[:8]))
            m.d.comb += self.number.eq(Cat(Value.cast(value)[:SIZE], halves[6]))
        return m


class Kv4Codec(wiring.Component):
    """Makes packed beats of beats of BF16 numbers, and the reverse, beside the copier's buffer.

    A packed beat stands for a quad, four beats of the buffer. To pack, the codec watches the beats that go into the
    buffer, and finds the headers of their groups (`golden.retrieval.kv4`); `quads` counts the quads whose headers are
    known. When the copier reads the quad's beats from the buffer one after the other, the codec codes each beat at
    once, keeps the codes of the first three, and gives the packed beat with the fourth. To expand, the copier reads a
    packed beat once and names its parts in order.

    Parameters
    ----------
    p : CoreParams, with a `kvmu.kv4_group`

    Members
    -------
    puts : In(1) : a beat to pack, `beat`, goes into the buffer; beats of quads come in order
    beat : In(8 * bus_bytes)
    quads : Out : quads of the buffer whose headers are known and of which the copier has not read all beats
    steps : In(1) : `part` is made next: of a beat to pack, or of any other kind, the copier reads the buffer; of a
        packed beat it reads part 0 alone
    part : In(2) : of the quad
    packs, expands : In(1) : neither: the beat goes through as it is
    stored : In(8 * bus_bytes) : the beat read from the buffer, from the cycle after `steps` to the next read
    o : Out(8 * bus_bytes) : the beat to write, from the cycle after `steps` on; of a quad to pack with part 3
    error : Out(2), if protected : as in `hdl.memory.error_members`

    Latency: `quads` counts a quad `hdl.queues.kv4_cycles` + 1 cycles after its last beat went into the buffer.
    Throughput: a beat of the buffer, or a beat of `o`, in every cycle.
    Raises: nothing of its own.
    Source: `golden.retrieval.kv4`; Oaken, V-Rex [13], for the place of the two in the data path.
    """

    def __init__(self, p: CoreParams):
        self.p, self.group, self.bits = p, p.dre.kvmu.kv4_group, 8 * p.lxe.bus_bytes
        self.numbers = p.lxe.bus_bytes // 2  # of a beat
        self.beats = kv4_beats(p)  # that a group takes
        self.groups = max(1, self.numbers // self.group)  # in a beat
        self.depth = copied_beats(p) // RATIO
        super().__init__(
            {
                "puts": In(1),
                "beat": In(self.bits),
                "quads": Out(bits_for(self.depth + 1)),
                "steps": In(1),
                "part": In(2),
                "packs": In(1),
                "expands": In(1),
                "stored": In(self.bits),
                "o": Out(self.bits),
                **error_members(p.lxe.protect),
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = HEADER * RATIO * self.groups // self.beats  # headers of a quad
        m.submodules.headers = headers = Ram(width, self.depth, protect=self.p.lxe.protect)
        if self.p.lxe.protect != "none":
            m.d.comb += self.error.eq(headers.error)
        found = self._find(m)
        self._keep(m, headers, self._step(m, self._join(m, found)))
        at = self._follow(m)
        packed = self._pack(m, platform, headers, at)
        expanded = self._expand(m, platform, at)
        m.d.comb += self.o.eq(Mux(at.packs, packed, Mux(at.expands, expanded, self.stored)))
        return m

    def _find(self, m: Module) -> "_Found":
        """The largest and the least number of each group in a beat, or of its part of one."""
        found = _Found("found", self.groups)
        each = self.numbers // self.groups
        m.d.sync += found.valid.eq(self.puts)
        for g in range(self.groups):
            numbers = [self.beat.word_select(g * each + i, 16) for i in range(each)]
            some = [x[7:15].any() for x in numbers]
            for sign, name in enumerate(("p", "n")):
                race = comb(m, f"{name}{g}_race", Cat(s & (x[15] == sign) for s, x in zip(some, numbers, strict=True)))
                top, _, _ = largest(m, [x[:SIZE] for x in numbers], race, Const(0, each), f"{name}{g}_top", at=SIZE - 1)
                with m.If(self.puts):
                    m.d.sync += found.of[g][name].eq(top)
        return found

    def _join(self, m: Module, found: "_Found") -> "_Found":
        """The same of a group that takes several beats."""
        if self.beats == 1:
            return found
        joined = _Found("joined", 1)
        place_ = Signal(range(self.beats), name="place")  # of the beat in its group
        best = Signal.like(found.of[0], name="best")
        for name in ("p", "n"):
            more = (place_ == 0) | (found.of[0][name] > joined.of[0][name])
            m.d.comb += best[name].eq(Mux(more, found.of[0][name], joined.of[0][name]))
        m.d.sync += joined.valid.eq(found.valid & (place_ == self.beats - 1))
        with m.If(found.valid):
            m.d.sync += [place_.eq(place_ + 1), joined.of[0].eq(best)]
        return joined

    def _step(self, m: Module, found: "_Found") -> "_Stepped":
        """Finds the step of each group."""
        out = _Stepped(self.groups)
        m.d.sync += out.valid.eq(found.valid)
        for g in range(self.groups):
            p, n = found.of[g].p, found.of[g].n
            less = comb(m, f"less{g}", p[7:] < n[7:])
            high, low = (comb(m, f"{k}{g}", x) for k, x in (("high", Mux(less, n, p)), ("low", Mux(less, p, n))))
            apart = comb(m, f"apart{g}", high[7:] - low[7:], 8)
            far = comb(m, f"far{g}", apart[3:].any())
            fixed = comb(m, f"fixed{g}", Cat(Const(0, 7), low[:7], low[7:].any()) >> apart[:3], 15)
            lower = Mux(far, low[7:].any(), fixed[7:] + fixed[:7].any())
            t = comb(m, f"t{g}", Cat(high[:7], high[7:].any()) + lower, 9)
            e, j = Signal(10, name=f"e{g}"), Signal(2, name=f"j{g}")  # e: with 2 too much
            for d, own, most in reversed(STEPS):
                with m.If(t <= most):
                    m.d.comb += [e.eq(high[7:] + (d - 1)), j.eq(own)]
            tiny = comb(m, f"tiny{g}", e < 3)
            dead = comb(m, f"dead{g}", high[7:].all() | ~high[7:].any())
            with m.If(found.valid):
                m.d.sync += [
                    out.of[g].e.eq(Mux(dead, high[7:], Mux(tiny, 1, e - 2))),
                    out.of[g].j.eq(Mux(dead | tiny, 0, j)),
                    out.least[g].eq(n),
                    out.live[g].eq(~dead),
                ]
        return out

    def _keep(self, m: Module, headers: Ram, found: "_Stepped") -> None:
        """Completes the headers, and keeps those of a quad together."""
        now = Signal(HEADER * self.groups)  # headers that become known
        for g in range(self.groups):
            h, n = found.of[g], found.least[g]
            below = steps_of(m, n, h.e, h.j, f"below{g}")
            some = found.live[g] & n[7:].any()
            z = comb(m, f"z{g}", Mux(some, Mux(below.all(), 15, below + 1), 0), 4)
            m.d.comb += now.word_select(g, HEADER).eq(Cat(h.e, h.j, z))
        several = RATIO // self.beats  # times that headers become known in a quad
        first, last = (Signal(range(max(2, self.depth)), name=name) for name in ("first", "last"))
        done, taken = Signal(), Signal()
        m.d.comb += [
            done.eq(found.valid),
            taken.eq(self.steps & self.packs & (self.part == 3)),
            headers.w_en.eq(done),
            headers.w_addr.eq(last),
            headers.w_data.eq(now),
            headers.r_en.eq(self.steps & self.packs & (self.part == 0)),
            headers.r_addr.eq(first),
        ]
        if several > 1:
            earlier = Signal((several - 1) * len(now))
            turn = Signal(range(several))
            m.d.comb += [done.eq(found.valid & (turn == several - 1)), headers.w_data.eq(Cat(earlier, now))]
            with m.If(found.valid):
                m.d.sync += [turn.eq(turn + 1), earlier.eq(Cat(earlier, now)[len(now) :])]
        m.d.sync += self.quads.eq(self.quads + done - taken)
        with m.If(done):
            m.d.sync += last.eq(Mux(last == self.depth - 1, 0, last + 1))
        with m.If(taken):
            m.d.sync += first.eq(Mux(first == self.depth - 1, 0, first + 1))

    def _follow(self, m: Module) -> "_At":
        """What the beat is that was read from the buffer."""
        at = _At()
        m.d.sync += at.kept.eq(self.steps & self.packs & (self.part != 3))
        with m.If(self.steps):
            m.d.sync += [at.part.eq(self.part), at.packs.eq(self.packs), at.expands.eq(self.expands)]
        return at

    def _pack(self, m: Module, platform: object, headers: Ram, at: "_At") -> Value:
        """Codes the beat read; the packed beat with part 3."""
        n, codes = self.numbers, Signal(4 * self.numbers)
        for i in range(n):
            lane = place(m, platform, f"code{i}", Kv4Code)
            g = i * self.groups // n
            of = at.part if self.beats == 1 else at.part[self.beats.bit_length() - 1 :]
            mine = headers.r_data if self.beats == RATIO else headers.r_data.word_select(of, HEADER * self.groups)
            m.d.comb += [
                lane.number.eq(self.stored.word_select(i, 16)),
                lane.header.eq(mine[g * HEADER : (g + 1) * HEADER]),
                codes.word_select(i, 4).eq(lane.code),
            ]
        parts = Signal(3 * 4 * n)  # codes of the parts before, headers in place
        out = []
        for q in range(RATIO):
            own = []
            for i in range(n):
                code, bit = codes[4 * i : 4 * i + 4], self._bit(q * n + i)
                own.append(code if bit is None else Cat(headers.r_data[bit], code[1:]))
            out.append(Cat(own))
            if q < RATIO - 1:
                with m.If(at.kept & (at.part == q)):
                    m.d.sync += parts.word_select(q, 4 * n).eq(out[q])
        return Cat(parts, out[-1])

    def _expand(self, m: Module, platform: object, at: "_At") -> Value:
        """The numbers of a part of the packed beat read."""
        n, numbers = self.numbers, Signal(self.bits)
        held = [Signal(HEADER, name=f"held{g}") for g in range(RATIO * n // self.group)]  # headers in the beat
        for g, header in enumerate(held):
            places = [g * self.group + b * (self.group // 16) for b in range(HEADER)]
            m.d.comb += header.eq(Cat(self.stored[4 * at_] for at_ in places))
        mine = Signal(HEADER * self.groups)  # headers of the part
        codes, wide = Signal(4 * n), Signal(n)
        with m.Switch(at.part):
            for q in range(RATIO):
                with m.Case(q):
                    own = range(q * n // self.group, q * n // self.group + self.groups)
                    bits = [self._bit(q * n + i) is not None for i in range(n)]
                    cut = [self.stored[4 * (q * n + i) : 4 * (q * n + i) + 4] for i in range(n)]
                    m.d.comb += [
                        mine.eq(Cat(held[g] for g in own)),
                        wide.eq(Cat(Const(bit, 1) for bit in bits)),
                        codes.eq(Cat(Cat(Const(0, 1), c[1:]) if bit else c for c, bit in zip(cut, bits, strict=True))),
                    ]
        for i in range(n):
            lane = place(m, platform, f"number{i}", Kv4Number)
            g = i * self.groups // n
            m.d.comb += [
                lane.code.eq(codes.word_select(i, 4)),
                lane.wide.eq(wide[i]),
                lane.header.eq(mine[g * HEADER : (g + 1) * HEADER]),
                numbers.word_select(i, 16).eq(lane.number),
            ]
        return numbers

    def _bit(self, number: int) -> int | None:
        """Which bit of a quad's headers lies in the code of this number, if one does."""
        group, i = divmod(number, self.group)
        bit, rest = divmod(i, self.group // 16)
        return group * HEADER + bit if rest == 0 and bit < HEADER else None


class _Found:
    """The largest number of groups, and the least one without its sign."""

    def __init__(self, name: str, groups: int):
        self.valid = Signal(name=f"{name}_valid")
        layout = data.StructLayout({"p": SIZE, "n": SIZE})
        self.of = [Signal(layout, name=f"{name}{g}") for g in range(groups)]


class _Stepped:
    """The steps of groups, and what z needs."""

    def __init__(self, groups: int):
        self.valid = Signal(name="stepped_valid")
        self.of = [Signal(data.StructLayout({"e": 8, "j": 2}), name=f"stepped{g}") for g in range(groups)]
        self.least = [Signal(SIZE, name=f"least{g}") for g in range(groups)]
        self.live = [Signal(name=f"live{g}") for g in range(groups)]


class _At:
    """The beat that was read from the buffer."""

    def __init__(self):
        self.part = Signal(2, name="at_part")
        self.packs = Signal(name="at_packs")
        self.expands = Signal(name="at_expands")
        self.kept = Signal(name="at_kept")  # its codes are kept


def steps_of(m: Module, size: Value, e: Value, j: Value, name: str) -> Signal:
    """Whole steps in a magnitude below 16 steps, 4 bits; undefined for a group of zeros or NaNs."""
    shift = comb(m, f"{name}_shift", e + 3 - size[7:SIZE], 10)
    fixed = comb(m, f"{name}_fixed", Cat(size[:7], Const(1, 1)) >> shift[:3], 7)
    fixed = comb(m, f"{name}_units", Mux(shift[3:].any() | ~size[7:SIZE].any(), 0, fixed), 7)  # subnormals are zeros
    divisor = Cat(j, Const(1, 1))
    rest, out = fixed[3:], []
    for k in (3, 2, 1, 0):
        own = rest if k == 3 else Cat(fixed[k], rest[:3])
        fits = comb(m, f"{name}{k}", own >= divisor)
        rest = comb(m, f"{name}_rest{k}", Mux(fits, own - divisor, own), 4)
        out.append(fits)
    return comb(m, name, Cat(reversed(out)), 4)
