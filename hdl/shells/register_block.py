"""Registers behind AXI4-Lite, made from their SystemRDL description (`registers.rdl`)."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amaranth import (
    Cat,
    Const,
    Module,
    Mux,
    Signal,
    Value,
)
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from systemrdl import RDLCompiler
from systemrdl.node import AddrmapNode, FieldNode, MemNode, RegNode

from openvrex.golden.program.regions import PAGE_BITS
from openvrex.hdl.header import VERSION
from openvrex.hdl.named import comb
from openvrex.hdl.params import CoreParams, MaskParams, bits_for
from openvrex.hdl.video.motion_mask import frame_layout

RDL = Path(__file__).with_name("registers.rdl")
PREFIX = "s_axi_"
OKAY, SLVERR = 0b00, 0b10
_BITS = 32  # bits of an access


def description(name: str, p: CoreParams | MaskParams) -> str:
    """SystemRDL of the address map `name` alone, for a unit of these parameters.

    It is `registers.rdl` with numbers in place of parameters, so that every compiler reads what the hardware has.
    Raises `ParamError` where the parameters do not fit together.
    """
    major, minor, patch = (int(x) for x in VERSION.split("."))
    known = {"MAJOR": major, "MINOR": minor, "PATCH": patch} | (
        _mask_numbers(p) if isinstance(p, MaskParams) else _core_numbers(p)
    )
    types, *maps = re.split(r"^(?=addrmap )", RDL.read_text(), flags=re.M)
    [own] = (text for text in maps if text.startswith(f"addrmap {name} "))
    body = own.partition(") {")[2]  # the map without its parameters
    if known.get("ADDR_BITS", _BITS) <= _BITS:
        body = re.sub(r"\baddress (?=#\(\.BITS\(ADDR_BITS\))", "short_address ", body)
    if not known.get("REGIONS"):
        body = re.sub(r"(?s)  // Regions of memory.*?  refused refused.*?\n", "", body)
    if not known.get("SHARED"):
        body = re.sub(r"(?s)  // Users who.*?  first_context .*?\n", "", body)
    body = re.sub(rf"(?<!\.)\b({'|'.join(known)})\b", lambda found: str(known[found[0]]), body)
    return f"{types}addrmap {name} {{{body.rstrip()}\n"


def _core_numbers(p: CoreParams) -> dict[str, int]:
    """Parameters of the address maps of a core and a DRE."""
    d = p.dre
    return {
        **{"CONTEXTS": d.hcu.n_ctx, "CLUSTERS": d.hcu.clusters, "ENTRY_BYTES": d.kvmu.entry_bytes},
        **{"N_WTU": d.wtu.n_h, "HD_BITS": d.hcu.distance_bits, "ADDR_BITS": d.kvmu.addr_bits},
        **{"HD_MOST": d.hcu.n_hp + 1, "HD_RESET": min(7, d.hcu.n_hp + 1), "CONTEXT_BITS": bits_for(d.hcu.n_ctx + 1)},
        **{"BLOCK_BITS": bits_for(d.kvmu.blocks + 1), "BLOCKS": d.kvmu.blocks, "TABLES": d.layout().checksum},
        **{"I_DEPTH": p.lxe.i_depth, "WORD_BYTES": p.core_format().word_bytes},
        **{"WORD_ZEROS": p.core_format().word_bytes.bit_length() - 1, "REGIONS": p.regions},
        **{"SHARED": d.kvmu.shared, "FIRST_BITS": bits_for(d.hcu.n_ctx), "FIRST_MOST": d.hcu.n_ctx - 1},
    }


def _mask_numbers(p: MaskParams) -> dict[str, int]:
    """Parameters of the address map of a motion mask."""
    frame = frame_layout(p).members
    return {
        **{"GRID": p.grid, "GROUP": p.group, "RESIDUALS": int(p.residuals), "SIZE_BITS": p.size_bits},
        **{"BLOCK_BITS": p.block_bits, "MOTION_BITS": frame["threshold" if p.residuals else "limit"]},
        **{"KEPT_BITS": bits_for(p.tokens**2 + 1)},
    }


def address_map(name: str, p: CoreParams | MaskParams) -> AddrmapNode:
    """The address map of `description`, elaborated. Raises the same."""
    compiler = RDLCompiler()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, RDL.name)
        file.write_text(description(name, p))
        compiler.compile_file(str(file))
    return compiler.elaborate().top


def path_of(node: FieldNode | MemNode, top: AddrmapNode) -> str:
    """A field's name in a register block: dots between instances, and nothing between an array and its index."""
    return node.get_rel_path(top).replace("[", "").replace("]", "")


def joined(fields: data.View, name: str) -> Value:
    """The fields of register `name` as one value, the first one lowest."""
    return Cat(fields[field] for field in fields.shape().members if field.rpartition(".")[0] == name)


def access_layout(words: int) -> data.StructLayout:
    """A write to word `addr` of a window."""
    return data.StructLayout({"addr": bits_for(words), "data": _BITS})


class RegisterBlock(wiring.Component):
    """Makes the registers of an address map, behind AXI4-Lite.

    A field is one of these: a constant (hw = na), a wire that software reads (hw = w), a value that software writes
    (sw = rw), a pulse that software gives (singlepulse), an interrupt that stays until software writes a one (intr). A
    memory (external mem, sw = w) is a window that passes writes on, whole words only.

    A value may have limits (`least`, `most`), and low bits that stay zero (`zeros`). A write that would leave it
    outside its limits changes nothing. Registers and windows that are `quiet` take no write while `busy`.

    Corner cases: an access outside of all registers, a value outside its limits, a write to what is quiet while `busy`,
    and a part of a word to a window, give SLVERR. An interrupt that comes while software clears it is not lost.

    Parameters
    ----------
    top : AddrmapNode, as `address_map` gives it

    Members
    -------
    s_axi_* : AXI4-Lite subordinate, data of 32 bits, addresses of `bits_for(top.size)` bits
    i : In(struct) : inputs from hardware, by field (`path_of`): wires, and pulses that set interrupts
    o : Out(struct) : outputs from software, by field: values and pulses
    <window> : Out(stream of `access_layout`) : writes to each memory, by its instance name
    irq : Out(1) : an enabled interrupt is pending
    busy : In(1) : something runs

    Latency: 2 cycles from the later of address and data to B, for a window plus its wait; 2 from AR to R.
    Throughput: a write every 2 cycles, a read every 3.
    Raises: `ValueError` for a field that is none of the above, or that no single access reaches.
    Source: SystemRDL 2.0 (Accellera), sections 9 and 11; AXI4-Lite (ARM IHI 0022) B1.1.
    """

    def __init__(self, top: AddrmapNode):
        self.top = top
        self._fields = [n for n in top.descendants(unroll=True) if isinstance(n, FieldNode)]
        self._registers = [n for n in top.descendants(unroll=True) if isinstance(n, RegNode)]
        self._windows = {n.inst_name: n for n in top.children() if isinstance(n, MemNode)}
        self._names = {f.get_path(): path_of(f, top) for f in self._fields}
        for field in self._fields:
            kind_of(field)
        given = [f for f in self._fields if kind_of(f) in ("wire", "interrupt")]
        taken = [f for f in self._fields if kind_of(f) in ("value", "pulse") and f.is_hw_readable]
        self.address_bits = bits_for(top.size)
        super().__init__(
            {
                **lite_members(self.address_bits),
                "i": In(data.StructLayout({self._names[f.get_path()]: f.width for f in given})),
                "o": Out(data.StructLayout({self._names[f.get_path()]: f.width for f in taken})),
                **{
                    name: Out(stream.Signature(access_layout(n.get_property("mementries"))))
                    for name, n in self._windows.items()
                },
                "irq": Out(1),
                "busy": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()

        def port(name):
            return getattr(self, PREFIX + name)

        # A write takes effect when its address and data are here and the last response is taken.
        held = Signal(2)  # address, data
        at = Signal(self.address_bits - 2)
        word = Signal(_BITS)
        strobe = Signal(_BITS // 8)
        goes = Signal()
        fails = Signal()
        waits = Signal()
        m.d.comb += [
            port("awready").eq(~held[0]),
            port("wready").eq(~held[1]),
            goes.eq(held.all() & ~port("bvalid") & ~waits),
        ]
        with m.If(port("awvalid") & ~held[0]):
            m.d.sync += [held[0].eq(1), at.eq(port("awaddr")[2:])]
        with m.If(port("wvalid") & ~held[1]):
            m.d.sync += [held[1].eq(1), word.eq(port("wdata")), strobe.eq(port("wstrb"))]
        with m.If(port("bready")):
            m.d.sync += port("bvalid").eq(0)
        with m.If(goes):
            m.d.sync += [held.eq(0), port("bvalid").eq(1), port("bresp").eq(Mux(fails, SLVERR, OKAY))]

        # A read: first the word, then the response.
        asked = Signal()
        place = Signal(self.address_bits - 2)
        value = Signal(_BITS)
        none = Signal()
        m.d.comb += port("arready").eq(~asked & ~port("rvalid"))
        with m.If(asked):
            m.d.sync += asked.eq(0)
        with m.If(port("arvalid") & port("arready")):
            m.d.sync += [asked.eq(1), place.eq(port("araddr")[2:])]
        with m.If(port("rready")):
            m.d.sync += port("rvalid").eq(0)
        with m.If(asked):
            m.d.sync += [port("rvalid").eq(1), port("rdata").eq(value), port("rresp").eq(Mux(none, SLVERR, OKAY))]

        store = self._storage(m)
        mask = Signal(_BITS)
        m.d.comb += mask.eq(Cat(bit.replicate(8) for bit in strobe))
        m.d.comb += [fails.eq(1), none.eq(1)]
        with m.Switch(at):
            for where, reg, first in self._words():
                if reg.has_sw_writable:
                    with m.Case(where):
                        fields = [f for f in reg.fields() if f.is_sw_writable]
                        legal = self._legal(m, store, fields, word, mask)
                        if reg.get_property("quiet", default=False):
                            legal &= ~self.busy
                        m.d.comb += fails.eq(~legal)
                        with m.If(goes & legal):
                            for field in fields:
                                self._write(m, store[field.get_path()], field, first, word, mask)
        with m.Switch(place):
            for where, reg, first in self._words():
                if reg.has_sw_readable:
                    with m.Case(where):
                        bits = Signal(reg.size * 8, name=f"reads_{where}")
                        for field in filter(lambda f: f.is_sw_readable, reg.fields()):
                            m.d.comb += bits[field.low : field.high + 1].eq(store[field.get_path()])
                        m.d.comb += [none.eq(0), value.eq(bits[first : first + _BITS])]
        for field in self._fields:
            if kind_of(field) == "interrupt":  # an event while it is being cleared is not lost
                with m.If(self.i[self._names[field.get_path()]]):
                    m.d.sync += store[field.get_path()].eq(1)
        for name, window in self._windows.items():
            first, count = window.absolute_address // 4, window.get_property("mementries")
            out, inside, refuses = getattr(self, name), Signal(name=f"in_{name}"), Signal(name=f"{name}_refuses")
            m.d.comb += [
                inside.eq((at >= first) & (at < first + count)),
                out.payload.addr.eq(at - first),
                out.payload.data.eq(word),
                refuses.eq(~strobe.all() | (self.busy if window.get_property("quiet", default=False) else 0)),
                out.valid.eq(held.all() & ~port("bvalid") & inside & ~refuses),
            ]
            with m.If(inside):
                m.d.comb += [fails.eq(refuses), waits.eq(out.valid & ~out.ready)]
        return m

    def _storage(self, m: Module) -> dict[str, Signal]:
        """The signal that each field reads as."""
        store, pending = {}, []
        for field in self._fields:
            path, name, kind = field.get_path(), self._names[field.get_path()], kind_of(field)
            init = field.get_property("reset") or 0
            if kind == "constant":
                store[path] = Const(init, field.width)
            elif kind == "wire":
                store[path] = self.i[name]
            else:
                store[path] = Signal(field.width, init=init, name=name.replace(".", "_"))
                if name in self.o.shape().members:
                    m.d.comb += self.o[name].eq(store[path])
            if kind == "pulse":
                m.d.sync += store[path].eq(0)
        for field in self._fields:
            if kind_of(field) == "interrupt":
                mask = field.get_property("enable")
                pending.append(store[field.get_path()] & (store[mask.get_path()] if mask else 1))
        m.d.comb += self.irq.eq(Cat(pending).any())
        return store

    def _words(self) -> Iterator[tuple[int, RegNode, int]]:
        """Index of every word of every register, the register, and the register's first bit in this word."""
        for reg in self._registers:
            for i in range(reg.size * 8 // _BITS):
                yield reg.absolute_address // 4 + i, reg, _BITS * i

    def _legal(self, m: Module, store: dict[str, Signal], fields: list[FieldNode], word: Signal, mask: Signal) -> Value:
        """Whether the fields of a register stay within their limits. Bits above a limited field must be zero."""
        legal: list[Value] = []
        for field in fields:
            least, most = field.get_property("least", default=None), field.get_property("most", default=None)
            if least is None and most is None:
                continue
            name = self._names[field.get_path()].replace(".", "_")
            new = comb(m, f"{name}_new", (word & mask) | (store[field.get_path()] & ~mask[: field.width]), _BITS)
            legal += [] if least is None else [new >= least]
            legal += [] if most is None else [new <= most]
        return Cat(legal).all() if legal else Const(1, 1)

    def _write(self, m: Module, target: Signal, field: FieldNode, first: int, word: Signal, mask: Signal) -> None:
        """Writes the part of a field that stands in a word, which begins at bit `first` of its register."""
        zeros = field.get_property("zeros", default=0)
        low, high = max(field.low + zeros, first), min(field.high + 1, first + _BITS)
        if low < high:
            part, at = target[low - field.low : high - field.low], slice(low - first, high - first)
            new = part & ~word[at] if kind_of(field) == "interrupt" else word[at]
            m.d.sync += part.eq((new & mask[at]) | (part & ~mask[at]))


def kind_of(field: FieldNode) -> str:
    """The kind of a field, as in `RegisterBlock`. Raises `ValueError` for any other field.

    A field with limits is a value that fits one access, and begins its register.
    """
    if any(field.get_property(name, default=None) is not None for name in ("least", "most")):
        place = field.low or field.parent.size * 8 > _BITS or field.get_property("sw").name != "rw"
        if place or len(field.parent.fields()) > 1:
            raise ValueError(f"{field.get_path()}: has limits, so it must be a value alone in 32 bits")
    sw, hw = field.get_property("sw").name, field.get_property("hw").name
    onwrite = field.get_property("onwrite")
    if field.low // _BITS != field.high // _BITS:
        raise ValueError(f"{field.get_path()}: must lie in one word of {_BITS} bits, as an access does")
    if field.get_property("intr") and (sw, hw) == ("rw", "w") and onwrite and onwrite.name == "woclr":
        return "interrupt"
    plain = not onwrite and not field.get_property("onread") and not field.get_property("intr")
    if plain and field.get_property("singlepulse") and (sw, hw) == ("w", "r"):
        return "pulse"
    if plain and sw == "rw" and hw in ("r", "na"):
        return "value"
    if plain and (sw, hw) == ("r", "w"):
        return "wire"
    if plain and (sw, hw) == ("r", "na"):
        return "constant"
    raise ValueError(f"{field.get_path()}: sw={sw}, hw={hw}: a register block has no such field")


def count_errors(m: Module, registers: RegisterBlock, unit: wiring.Component, reset: Value) -> None:
    """Counts the errors that a unit's memories correct and detect, in the registers `protection`."""
    for k, name in enumerate(("corrected", "detected")):
        counted = Signal(32, name=name)
        m.d.comb += registers.i[f"protection.{name}.value"].eq(counted)
        if hasattr(unit, "error"):
            m.d.sync += counted.eq(Mux(reset, 0, counted + unit.error[k]))
    corrects = unit.error[0] if hasattr(unit, "error") else 0
    m.d.comb += registers.i["irq.corrected"].eq(registers.o["irq_test.corrected"] | corrects)


def connect_regions(m: Module, registers: RegisterBlock, unit: Any) -> None:
    """Connects the registers `region` and `refused` to a unit that has `hdl.bus.guard.region_members`, if it has."""
    for k in range(unit.p.regions):
        first, last, allow = (joined(registers.o, f"region{k}.{name}") for name in ("first", "last", "allow"))
        m.d.comb += unit.regions[k].eq(Cat(first[PAGE_BITS:], last[PAGE_BITS:], allow))
    if unit.p.regions:
        found = unit.refused
        m.d.comb += [
            unit.confine.eq(registers.o["confine.on"]),
            joined(registers.i, "refused.burst").eq(Cat(found.valid, found.write, found.manager)),
            registers.i["refused.page.value"].eq(found.page),
        ]


def lite_members(address_bits: int) -> dict[str, wiring.Member]:
    """An AXI4-Lite subordinate's ports, for a component's signature."""
    out = {"awaddr": In(address_bits), "awprot": In(3), "wdata": In(_BITS), "wstrb": In(_BITS // 8)}
    out |= {"bresp": Out(2), "araddr": In(address_bits), "arprot": In(3), "rdata": Out(_BITS), "rresp": Out(2)}
    for x, flow, back in (("aw", In, Out), ("w", In, Out), ("b", Out, In), ("ar", In, Out), ("r", Out, In)):
        out |= {f"{x}valid": flow(1), f"{x}ready": back(1)}
    return {PREFIX + name: member for name, member in out.items()}
