"""The memories of the project: modules of their own, so that a flow can swap them for macros."""

from collections.abc import Iterable

from amaranth import Cat, Module, Mux, ResetSignal, Signal, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from golden.params import check
from golden.secded import check_bits
from hdl.arith.secded import checks_of, decoded
from hdl.leaf import Leaves
from hdl.params import bits_for


class Ram(wiring.Component):
    """One write port with lane enables, one synchronous read port, no reset, no initial content.

    A read of the word that is written in the same cycle returns the old content: the unit around it forwards if it
    needs the new one.

    Parameters
    ----------
    width, depth : bits of a word, words
    lanes : parts of a word with a write enable each; divides `width`
    protect : none, parity or secded: check bits for each lane (`golden.secded`); words are zero once a reset has lasted
        for `hdl.params.reset_cycles`

    Members
    -------
    w_en : In(lanes), w_addr : In, w_data : In(width) : written at the clock edge
    r_en : In(1), r_addr : In : word wanted
    r_data : Out(width) : the word, one cycle later; holds while `r_en` is low; corrected, if protected
    error : Out(2), if protected : with `r_data`'s first cycle, as in `error_members`

    Latency: 1 cycle. Throughput: one read and one write a cycle.
    Raises: `ParamError` for a size below 1 or lanes that do not divide the width.
    Source: the score, count and hash-bit memories of V-Rex section V-B.
    """

    def __init__(self, width: int, depth: int, lanes: int = 1, protect: str = "none"):
        _check_sizes(width, depth, lanes)
        self.width, self.depth, self.lanes, self.protect = width, depth, lanes, protect
        super().__init__(
            {
                "w_en": In(lanes),
                "w_addr": In(bits_for(depth)),
                "w_data": In(width),
                "r_en": In(1),
                "r_addr": In(bits_for(depth)),
                "r_data": Out(width),
                **error_members(protect),
            }
        )

    def elaborate(self, platform):
        m = Module()
        _cells(m, self, self.w_en, self.w_addr, self.r_en, self.r_addr)
        return m


class SinglePortRam(wiring.Component):
    """One port that reads or writes, with lane enables for writes, no reset, no initial content.

    Its macro has the six-transistor cell, 1 / 1.52 of `Ram`'s (`synth.sram`): one address, and a read only in a cycle
    without a write, so that nothing can collide.

    Parameters
    ----------
    width, depth : bits of a word, words
    lanes : parts of a word with a write enable each; divides `width`
    protect : none, parity or secded: check bits for each lane (`golden.secded`); words are zero once a reset has lasted
        for `hdl.params.reset_cycles`

    Members
    -------
    en : In(1), addr : In : an access to that word: a read, or a write if a bit of `write` is set
    write : In(lanes), w_data : In(width) : lanes written at the clock edge
    r_data : Out(width) : the word read, one cycle later, until the next access; nothing that means anything after a
        write, as macros differ there; corrected, if protected
    error : Out(2), if protected : with `r_data`'s first cycle, as in `error_members`

    Latency: 1 cycle. Throughput: one access a cycle.
    Raises: `ParamError` for a size below 1 or lanes that do not divide the width.
    Source: this project's own.
    """

    def __init__(self, width: int, depth: int, lanes: int = 1, protect: str = "none"):
        _check_sizes(width, depth, lanes)
        self.width, self.depth, self.lanes, self.protect = width, depth, lanes, protect
        super().__init__(
            {
                "en": In(1),
                "addr": In(bits_for(depth)),
                "write": In(lanes),
                "w_data": In(width),
                "r_data": Out(width),
                **error_members(protect),
            }
        )

    def elaborate(self, platform):
        m = Module()
        _cells(m, self, Mux(self.en, self.write, 0), self.addr, self.en & ~self.write.any(), self.addr)
        return m


def error_members(*protects: str) -> dict[str, wiring.Member]:
    """The port `error` of what holds protected memories, for a component's signature: none where no memory is.

    Pulses: bit 0, a word was corrected; bit 1, a word was wrong and was not.
    """
    return {"error": Out(2)} if set(protects) - {"none"} else {}


def collect_errors(m: Module, owner: wiring.Component, parts: Iterable[object]) -> None:
    """The `error` of a component is that of what stands in it, a cycle later. Only for one that has the port."""
    if hasattr(owner, "error"):
        errors = [part.error for part in parts if hasattr(part, "error")]
        m.d.sync += owner.error.eq(Cat(Cat(e[k] for e in errors).any() for k in range(2)))


def _cells(m: Module, owner: wiring.Component, writes: Value, w_addr: Value, reads: Value, r_addr: Value) -> None:
    """The cells and check bits behind the ports of `owner`."""
    lanes, lane = owner.lanes, owner.width // owner.lanes
    extra = check_bits(lane, owner.protect)
    # A memory of one word has a zero-bit address in Amaranth; two words keep the ports uniform.
    m.submodules.mem = mem = memory.Memory(shape=(lane + extra) * lanes, depth=max(2, owner.depth), init=[])
    wp = mem.write_port(granularity=lane + extra)
    rp = mem.read_port()
    if owner.protect == "none":
        m.d.comb += [wp.en.eq(writes), wp.addr.eq(w_addr), wp.data.eq(owner.w_data)]
        m.d.comb += [rp.en.eq(reads), rp.addr.eq(r_addr), owner.r_data.eq(rp.data)]
        return
    # While it is reset, every word becomes zero, whose check bits are zero: what was never written is no error.
    at = Signal(len(w_addr), reset_less=True)
    fresh = Signal()  # what was read has not been looked at
    words, good, errors = [], [], []
    for k in range(lanes):
        part = owner.w_data.word_select(k, lane)
        words += [part, checks_of(m, part, owner.protect, f"checks{k}")]
        data, *error = decoded(m, rp.data.word_select(k, lane + extra), lane, owner.protect, f"lane{k}")
        good.append(data)
        errors.append(error)
    with m.If(ResetSignal()):
        m.d.sync += at.eq(at + 1)
    m.d.sync += fresh.eq(reads)
    m.d.comb += [
        wp.en.eq(Mux(ResetSignal(), (1 << lanes) - 1, writes)),
        wp.addr.eq(Mux(ResetSignal(), at, w_addr)),
        wp.data.eq(Mux(ResetSignal(), 0, Cat(words))),
        rp.en.eq(reads & ~ResetSignal()),
        rp.addr.eq(Mux(ResetSignal(), at, r_addr) if w_addr is r_addr else r_addr),
        owner.r_data.eq(Cat(good)),
        *(owner.error[k].eq(fresh & Cat(error[k] for error in errors).any()) for k in range(2)),
    ]


def _check_sizes(width: int, depth: int, lanes: int) -> None:
    check(width >= 1, "width", width, "must be at least 1")
    check(depth >= 1, "depth", depth, "must be at least 1")
    check(lanes >= 1 and width % lanes == 0, "lanes", lanes, f"must divide the width {width}")


def ram(
    m: Module, platform: object, name: str, width: int, depth: int, lanes: int = 1, protect: str = "none"
) -> wiring.PureInterface:
    """Add a `Ram` to `m` as submodule `name` and return its ports.

    In emitted Verilog all memories of one shape are instances of one module, `<top>_ram_<depth>x<width>` (`..._<lanes>`
    where there are several): what a flow swaps for a macro.
    """
    if isinstance(platform, Leaves):
        kind = f"ram_{depth}x{width}" + (f"_{lanes}" if lanes > 1 else "")
        kind += "" if protect == "none" else f"_{protect}"
        ports, m.submodules[name] = platform.instance(name, kind, Ram, width, depth, lanes, protect)
        return ports
    m.submodules[name] = component = Ram(width, depth, lanes, protect)
    return component
