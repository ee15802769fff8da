"""Proof that a register block equals its specification: for every access, event and stall, with resets at any time.

The specification reads the same SystemRDL, word by word where the block goes field by field.
"""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.hdl import Assert
from systemrdl.node import AddrmapNode, FieldNode, MemNode, RegNode

from openvrex.hdl.shells.register_block import OKAY, PREFIX, SLVERR, RegisterBlock, kind_of, path_of
from openvrex.tb.formal.stream_proof import UnitMonitor

_WORD = 32


class _Word:
    """A word of a register: what a read gives, what a write leaves, and whether the block takes it.

    bits : (field, bit of it) at each of the word's bits, or None
    """

    def __init__(self, reg: RegNode, first: int):
        self.reg = reg
        self.bits: list[tuple[FieldNode, int] | None] = [None] * _WORD
        for field in reg.fields():
            for k in range(field.width):
                if 0 <= (at := field.low + k - first) < _WORD:
                    self.bits[at] = field, k

    def limits(self) -> tuple[int, int]:
        """The least and the largest number that may be written."""
        for field in self.reg.fields():
            least, most = (field.get_property(name, default=None) for name in ("least", "most"))
            if least is not None or most is not None:
                return least or 0, (1 << _WORD) - 1 if most is None else most
        return 0, (1 << _WORD) - 1


class RegisterBlockMonitor(UnitMonitor):
    """A register block between free inputs, beside its specification.

    A write takes place in the cycle in which its address and data are there, no earlier answer waits, and its window
    takes it. A read looks at its word a cycle after its address was taken.

    With `reach` the claim is that no write is ever refused, which must fail.
    """

    def __init__(self, top: AddrmapNode, reach: bool = False):
        super().__init__(RegisterBlock(top))
        self.reach, self.nodes = reach, list(top.descendants(unroll=True))
        self.names = {n.get_path(): path_of(n, top) for n in self._fields()}
        self.kept = {n.get_path(): self._holds(n) for n in self._fields()}
        self.words = {
            reg.absolute_address // 4 + k: _Word(reg, _WORD * k)
            for reg in self.nodes
            if isinstance(reg, RegNode)
            for k in range(reg.size * 8 // _WORD)
        }

    def _fields(self, *kinds: str) -> list[FieldNode]:
        return [n for n in self.nodes if isinstance(n, FieldNode) and (not kinds or kind_of(n) in kinds)]

    def _holds(self, n: FieldNode) -> Value:
        """What a field holds: a number, an input of the block, or a register of the specification."""
        kind, init, name = kind_of(n), n.get_property("reset") or 0, self.names[n.get_path()]
        if kind == "constant":
            return Const(init, n.width)
        if kind == "wire":
            return Value.cast(self.unit.i[name])
        return Signal(n.width, init=init, name=f"kept_{name.replace('.', '_')}")

    def _bit(self, at: tuple[FieldNode, int] | None) -> Value:
        return Const(0, 1) if at is None else self.kept[at[0].get_path()][at[1]]

    def claims(self, m: Module, held: dict[str, Signal], before: dict[str, Signal]) -> None:
        """Every output is that of the specification; a payload, where it is offered."""
        unit, given, s = self.unit, self.unit.o.shape().members, _Lite(self.unit)
        enabled = ((self.kept[n.get_path()], n.get_property("enable")) for n in self._fields("interrupt"))
        pending = Cat(bit & (self.kept[mask.get_path()] if mask else 1) for bit, mask in enabled).any()
        equal = [
            *self._writes(m, s),
            *self._reads(m, s),
            *(unit.o[name] == self.kept[path] for path, name in self.names.items() if name in given),
            unit.irq == pending,
        ]
        if self.reach:
            m.d.comb += Assert(~(s.bvalid & (s.bresp == SLVERR)), "no write is refused")
        else:
            m.d.comb += Assert(Cat(equal).all(), "outputs are those of the specification")

    def _writes(self, m: Module, s: "_Lite") -> list[Value]:
        """Takes writes; what must hold of their answers, and of what goes to windows."""
        addressed, come, answers, answer = Signal(), Signal(), Signal(), Signal(2)
        place, number, bytes_ = Signal(len(s.awaddr) - 2), Signal(_WORD), Signal(_WORD // 8)
        with m.If(s.awvalid & ~addressed):
            m.d.sync += [addressed.eq(1), place.eq(s.awaddr >> 2)]
        with m.If(s.wvalid & ~come):
            m.d.sync += [come.eq(1), number.eq(s.wdata), bytes_.eq(s.wstrb)]
        complete, takes, legal, waits = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [complete.eq(addressed & come & ~answers), takes.eq(complete & ~waits)]
        m.d.sync += [self.kept[n.get_path()].eq(0) for n in self._fields("pulse")]
        for at, word in self.words.items():
            if word.reg.has_sw_writable:
                mixed = [Mux(bytes_[k // 8], number[k], self._bit(bit)) for k, bit in enumerate(word.bits)]
                least, most = word.limits()
                with m.If(place == at):
                    m.d.comb += legal.eq((Cat(mixed) >= least) & (Cat(mixed) <= most) & ~self._busy(word.reg))
                    with m.If(takes & legal):
                        for k, bit in enumerate(word.bits):
                            self._write(m, bit, mixed[k], bytes_[k // 8] & number[k])
        for n in self._fields("interrupt"):
            with m.If(self.unit.i[self.names[n.get_path()]]):
                m.d.sync += self.kept[n.get_path()].eq(1)
        equal = [s.awready == ~addressed, s.wready == ~come, s.bvalid == answers, ~answers | (s.bresp == answer)]
        for n in self.nodes:
            if isinstance(n, MemNode):
                first, port = n.absolute_address // 4, getattr(self.unit, n.inst_name)
                inside = (place >= first) & (place < first + n.get_property("mementries"))
                whole = bytes_.all() & ~self._busy(n)
                with m.If(inside):
                    m.d.comb += [legal.eq(whole), waits.eq(whole & ~port.ready)]
                offers = complete & inside & whole
                right = (port.payload.addr == place - first) & (port.payload.data == number)
                equal += [port.valid == offers, ~offers | right]
        with m.If(answers & s.bready):
            m.d.sync += answers.eq(0)
        with m.If(takes):
            m.d.sync += [addressed.eq(0), come.eq(0), answers.eq(1), answer.eq(Mux(legal, OKAY, SLVERR))]
        return equal

    def _busy(self, n: RegNode | MemNode) -> Value:
        """Whether a register or a window takes no write because something runs."""
        return self.unit.busy if n.get_property("quiet", default=False) else Const(0)

    def _write(self, m: Module, at: tuple[FieldNode, int] | None, new: Value, one: Value) -> None:
        """Writes a bit. one : the bit is written, and with a one"""
        if at is None or not at[0].is_sw_writable or at[1] < at[0].get_property("zeros", default=0):
            return
        old = self._bit(at)
        m.d.sync += old.eq(old & ~one if kind_of(at[0]) == "interrupt" else new)

    def _reads(self, m: Module, s: "_Lite") -> list[Value]:
        """Takes reads; what must hold of their answers."""
        asked, answers, answer, found = Signal(), Signal(), Signal(2), Signal(_WORD)
        place, seen, known = Signal(len(s.araddr) - 2), Signal(_WORD), Signal()
        for at, word in self.words.items():
            if word.reg.has_sw_readable:
                with m.If(place == at):
                    m.d.comb += known.eq(1)
                    m.d.comb += seen.eq(Cat(self._bit(b if b and b[0].is_sw_readable else None) for b in word.bits))
        with m.If(answers & s.rready):
            m.d.sync += answers.eq(0)
        with m.If(asked):
            m.d.sync += [asked.eq(0), answers.eq(1), found.eq(seen), answer.eq(Mux(known, OKAY, SLVERR))]
        with m.Elif(s.arvalid & ~answers):
            m.d.sync += [asked.eq(1), place.eq(s.araddr >> 2)]
        right = (s.rdata == found) & (s.rresp == answer)
        return [s.arready == ~(asked | answers), s.rvalid == answers, ~answers | right]


class _Lite:
    """The signals of a block's AXI4-Lite port, by their names without the prefix."""

    def __init__(self, unit: RegisterBlock):
        self.unit = unit

    def __getattr__(self, name: str) -> Value:
        return getattr(self.unit, PREFIX + name)
