"""The memories of the project: modules of their own, so that a flow can replace them by macros."""

import re
from collections.abc import Iterable
from pathlib import Path

from amaranth import Cat, ClockSignal, Instance, Module, Mux, ResetSignal, Signal, Value
from amaranth.hdl import Fragment
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.arithmetic.secded import check_bits
from openvrex.golden.function_params import check
from openvrex.hdl.check_bits import checks_of, decoded
from openvrex.hdl.leaf import CLEAR, Leaves
from openvrex.hdl.params import bits_for

BODIES = Path(__file__).with_name("memories.v")  # one module a kind, which emitted Verilog holds under the unit's name
KINDS = ("ram_1r1w", "ram_1rw")


class _Memory(wiring.Component):
    """Shared parts of all kinds: sizes, check bits around the cells, zeros after a reset that lasts long enough."""

    KIND: str  # module of `BODIES`

    def __init__(self, width: int, depth: int, lanes: int, protect: str, members: dict[str, wiring.Member]):
        check(width >= 1, "width", width, "must be at least 1")
        check(depth >= 1, "depth", depth, "must be at least 1")
        check(lanes >= 1 and width % lanes == 0, "lanes", lanes, f"must divide the width {width}")
        self.width, self.depth, self.lanes, self.protect = width, depth, lanes, protect
        super().__init__(members | {"w_data": In(width), "r_data": Out(width), **error_members(protect)})

    @property
    def words(self) -> int:
        """Words of the cells. A memory of one word has a zero-bit address in Amaranth, so there are at least two."""
        return max(2, self.depth)

    def elaborate(self, platform):
        ports = {name: getattr(self, name) for name in self.signature.members if name != "error"}
        return self._cells(platform, ports) if self.protect == "none" else self._checked(platform, ports)

    def _cells(self, platform: object, ports: dict[str, Value]) -> Fragment | Module:
        """The cells behind `ports`, without check bits: an instance of the kind's module where Verilog is emitted."""
        if isinstance(platform, Leaves):
            kind, notes = platform.memory(self.KIND), {"a_protect": self.protect}
            hooks = Module() if platform.test else None
            if hooks:
                notes["a_bist"] = platform.test.memories
                ports = platform.test.hook(hooks, ports, self.KIND == SinglePortRam.KIND)
            sizes = {"p_WIDTH": len(ports["w_data"]), "p_DEPTH": self.words, "p_LANES": self.lanes}
            pins = {f"{'o' if name == 'r_data' else 'i'}_{name}": value for name, value in ports.items()}
            cells = Instance(kind, i_clk=ClockSignal(), **sizes, **pins, **notes)
            if hooks:
                hooks.submodules.cells = cells
            return hooks or cells
        m, width = Module(), len(ports["w_data"])
        m.submodules.mem = mem = memory.Memory(shape=width, depth=self.words, init=[])
        wp, rp = mem.write_port(granularity=width // self.lanes), mem.read_port()
        writes, w_addr, reads, r_addr = self._accesses(**ports)
        m.d.comb += [wp.en.eq(writes), wp.addr.eq(w_addr), wp.data.eq(ports["w_data"])]
        m.d.comb += [rp.en.eq(reads), rp.addr.eq(r_addr), ports["r_data"].eq(rp.data)]
        return m

    def _checked(self, platform: object, ports: dict[str, Value]) -> Module:
        """Cells with check bits for each lane.

        In the reset of the unit it writes zeros, whose check bits are zero. The writing starts when the reset of
        `CLEAR`, which starts with it, has ended: the count needs a start that is no power-up state, and a signal in
        reset cannot count.
        """
        m, lane, protect = Module(), self.width // self.lanes, self.protect
        extra = check_bits(lane, protect)
        bits = (lane + extra) * self.lanes
        clears, at = Signal(), Signal(bits_for(self.words), reset_less=True)
        fresh = Signal()  # the word read is defined, and has not been checked yet
        m.d.comb += clears.eq(ResetSignal() & ~ResetSignal(CLEAR))
        with m.If(ResetSignal(CLEAR)):
            m.d.sync += at.eq(0)
        with m.Elif(clears):
            m.d.sync += at.eq(Mux(at == self.words - 1, 0, at + 1))
        words, good, errors, read = [], [], [], Signal(bits, name="ram_r_data")
        for k in range(self.lanes):
            part = self.w_data.word_select(k, lane)
            words += [part, checks_of(m, part, protect, f"checks{k}")]
            data, *error = decoded(m, read.word_select(k, lane + extra), lane, protect, f"lane{k}")
            good.append(data)
            errors.append(error)
        inside = {name: Signal.like(value, name=f"ram_{name}") for name, value in ports.items()}
        inside |= {"w_data": Signal(bits, name="ram_w_data"), "r_data": read}
        m.d.comb += [*self._cleared(inside, clears, at), inside["w_data"].eq(Mux(clears, 0, Cat(words)))]
        m.submodules.ram = self._cells(platform, inside)
        m.d.sync += fresh.eq(self._defined(**inside))
        m.d.comb += self.r_data.eq(Cat(good))
        m.d.comb += [self.error[k].eq(fresh & Cat(error[k] for error in errors).any()) for k in range(2)]
        return m


class Ram(_Memory):
    """A memory with one write port with lane enables and one synchronous read port.

    It has no reset and no initial content. A read of a word that is written in the same cycle gives anything, and no
    error; a unit that needs the word forwards it.

    Parameters
    ----------
    width, depth : bits of a word, words
    lanes : parts of a word with a write enable each; divides `width`
    protect : none, parity or secded: check bits for each lane (`golden.arithmetic.secded`); words are zero after a
        reset of the unit, which lasts `hdl.params.reset_cycles` longer than that of the domain `CLEAR` (`hdl.reset`)

    Members
    -------
    w_en : In(lanes), w_addr : In, w_data : In(width) : written at the clock edge
    r_en : In(1), r_addr : In : word to read
    r_data : Out(width) : the word, one cycle later; holds while `r_en` is low; corrected, if protected
    error : Out(2), if protected : with `r_data`'s first cycle, as in `error_members`

    Latency: 1 cycle.
    Throughput: one read and one write a cycle.
    Raises: `ParamError` for a size below 1 or lanes that do not divide the width.
    Source: the score, count and hash-bit memories of V-Rex section V-B.
    """

    KIND = "ram_1r1w"

    def __init__(self, width: int, depth: int, lanes: int = 1, protect: str = "none"):
        address = In(bits_for(depth))
        members = {"w_en": In(lanes), "w_addr": address, "r_en": In(1), "r_addr": address}
        super().__init__(width, depth, lanes, protect, members)

    @staticmethod
    def _accesses(w_en: Value, w_addr: Value, r_en: Value, r_addr: Value, **_: Value) -> tuple[Value, ...]:
        """Lanes written and their address, whether a word is read and its address."""
        return w_en, w_addr, r_en, r_addr

    @staticmethod
    def _defined(w_en: Value, w_addr: Value, r_en: Value, r_addr: Value, **_: Value) -> Value:
        """Whether a word is read that is not written."""
        return r_en & ~(w_en.any() & (w_addr == r_addr))

    def _cleared(self, inside: dict[str, Value], clears: Value, at: Value) -> list:
        """The ports inside: those outside, or in a reset the writing of zeros."""
        return [
            inside["w_en"].eq(Mux(ResetSignal(), clears.replicate(self.lanes), self.w_en)),
            inside["w_addr"].eq(Mux(clears, at, self.w_addr)),
            inside["r_en"].eq(self.r_en & ~ResetSignal()),
            inside["r_addr"].eq(self.r_addr),
        ]


class SinglePortRam(_Memory):
    """A memory with one port that reads or writes, with lane enables for writes.

    It has no reset and no initial content. Its macro has the six-transistor cell, 1 / 1.52 of `Ram`'s (`synth.sram`).
    There is one address, and a read only in a cycle without a write, so reads and writes cannot collide.

    Parameters
    ----------
    width, depth, lanes, protect : as of `Ram`

    Members
    -------
    en : In(1), addr : In : an access to that word: a read, or a write if a bit of `write` is set
    write : In(lanes), w_data : In(width) : lanes written at the clock edge
    r_data : Out(width) : the word read, one cycle later, until the next access. Undefined after a write, as macros
        differ there. Corrected, if protected
    error : Out(2), if protected : with `r_data`'s first cycle, as in `error_members`

    Latency: 1 cycle.
    Throughput: one access a cycle.
    Raises: `ParamError` for a size below 1 or lanes that do not divide the width.
    Source: this project's own.
    """

    KIND = "ram_1rw"

    def __init__(self, width: int, depth: int, lanes: int = 1, protect: str = "none"):
        members = {"en": In(1), "write": In(lanes), "addr": In(bits_for(depth))}
        super().__init__(width, depth, lanes, protect, members)

    @staticmethod
    def _accesses(en: Value, write: Value, addr: Value, **_: Value) -> tuple[Value, ...]:
        """As in `Ram`."""
        return Mux(en, write, 0), addr, en & ~write.any(), addr

    @staticmethod
    def _defined(en: Value, write: Value, **_: Value) -> Value:
        """As in `Ram`."""
        return en & ~write.any()

    def _cleared(self, inside: dict[str, Value], clears: Value, at: Value) -> list:
        """As in `Ram`."""
        return [
            inside["en"].eq(Mux(ResetSignal(), clears, self.en)),
            inside["write"].eq(Mux(clears, (1 << self.lanes) - 1, self.write)),
            inside["addr"].eq(Mux(clears, at, self.addr)),
        ]


def error_members(*protects: str) -> dict[str, wiring.Member]:
    """The port `error` of a component with protected memories, for its signature; none if no memory is protected.

    Pulses: bit 0, a word was corrected; bit 1, a word was wrong and could not be.
    """
    return {"error": Out(2)} if set(protects) - {"none"} else {}


def collect_errors(m: Module, owner: wiring.Component, parts: Iterable[object]) -> None:
    """Drives the `error` of a component from that of its parts, a cycle later, if the component has the port."""
    if hasattr(owner, "error"):
        errors = [part.error for part in parts if hasattr(part, "error")]
        m.d.sync += owner.error.eq(Cat(Cat(e[k] for e in errors).any() for k in range(2)))


def bodies(top: str, kinds: Iterable[str], empty: bool = False) -> str:
    """Verilog of the modules of these kinds, named `<top>_<kind>`.

    With `empty` they are black boxes: reads give X, and lint tools find every port in use.
    """
    out = []
    for text in re.split(r"(?<=endmodule\n)\n", BODIES.read_text()):
        kind = re.search(r"^module (\w+)", text, re.M)[1]
        if kind in kinds:
            text = re.sub(rf"^module {kind}\b", f"module {top}_{kind}", text, flags=re.M)
            out.append(_emptied(text) if empty else text)
    return "\n".join(out)


def _emptied(text: str) -> str:
    """A module as a black box."""
    head = text.partition("\n);\n")[0].replace("output reg ", "output wire")
    inputs = ", ".join(re.findall(r"^  input .*?(\w+),?$", head, re.M))
    body = f"  assign r_data = {{WIDTH{{1'bx}}}};\n  wire unused = &{{{inputs}}};"
    return re.sub(r"^module", "(* blackbox *)\nmodule", f"{head}\n);\n{body}\nendmodule\n", flags=re.M)
