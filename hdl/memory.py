"""The memories of the project: modules of their own, so that a flow can swap them for macros."""

from amaranth import Module, Mux
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from golden.params import check
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

    Members
    -------
    w_en : In(lanes), w_addr : In, w_data : In(width) : written at the clock edge
    r_en : In(1), r_addr : In : word wanted
    r_data : Out(width) : the word, one cycle later; holds while `r_en` is low

    Latency: 1 cycle. Throughput: one read and one write a cycle.
    Raises: `ParamError` for a size below 1 or lanes that do not divide the width.
    Source: the score, count and hash-bit memories of V-Rex section V-B.
    """

    def __init__(self, width: int, depth: int, lanes: int = 1):
        _check_sizes(width, depth, lanes)
        self.width, self.depth, self.lanes = width, depth, lanes
        super().__init__(
            {
                "w_en": In(lanes),
                "w_addr": In(bits_for(depth)),
                "w_data": In(width),
                "r_en": In(1),
                "r_addr": In(bits_for(depth)),
                "r_data": Out(width),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # A memory of one word has a zero-bit address in Amaranth; two words keep the ports uniform.
        m.submodules.mem = mem = memory.Memory(shape=self.width, depth=max(2, self.depth), init=[])
        wp = mem.write_port(granularity=self.width // self.lanes)
        rp = mem.read_port()
        m.d.comb += [
            wp.en.eq(self.w_en),
            wp.addr.eq(self.w_addr),
            wp.data.eq(self.w_data),
            rp.en.eq(self.r_en),
            rp.addr.eq(self.r_addr),
            self.r_data.eq(rp.data),
        ]
        return m


class SinglePortRam(wiring.Component):
    """One port that reads or writes, with lane enables for writes, no reset, no initial content.

    Its macro has the six-transistor cell, 1 / 1.52 of `Ram`'s (`synth.sram`): one address, and a read only in a cycle
    without a write, so that nothing can collide.

    Parameters
    ----------
    width, depth : bits of a word, words
    lanes : parts of a word with a write enable each; divides `width`

    Members
    -------
    en : In(1), addr : In : an access to that word: a read, or a write if a bit of `write` is set
    write : In(lanes), w_data : In(width) : lanes written at the clock edge
    r_data : Out(width) : the word read, one cycle later, until the next access; nothing that means anything after a
        write, as macros differ there

    Latency: 1 cycle. Throughput: one access a cycle.
    Raises: `ParamError` for a size below 1 or lanes that do not divide the width.
    Source: this project's own.
    """

    def __init__(self, width: int, depth: int, lanes: int = 1):
        _check_sizes(width, depth, lanes)
        self.width, self.depth, self.lanes = width, depth, lanes
        super().__init__(
            {
                "en": In(1),
                "addr": In(bits_for(depth)),
                "write": In(lanes),
                "w_data": In(width),
                "r_data": Out(width),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # As in `Ram`, two words at least.
        m.submodules.mem = mem = memory.Memory(shape=self.width, depth=max(2, self.depth), init=[])
        wp = mem.write_port(granularity=self.width // self.lanes)
        rp = mem.read_port()
        m.d.comb += [
            wp.en.eq(Mux(self.en, self.write, 0)),
            wp.addr.eq(self.addr),
            wp.data.eq(self.w_data),
            rp.en.eq(self.en & ~self.write.any()),
            rp.addr.eq(self.addr),
            self.r_data.eq(rp.data),
        ]
        return m


def _check_sizes(width: int, depth: int, lanes: int) -> None:
    check(width >= 1, "width", width, "must be at least 1")
    check(depth >= 1, "depth", depth, "must be at least 1")
    check(lanes >= 1 and width % lanes == 0, "lanes", lanes, f"must divide the width {width}")


def ram(m: Module, platform: object, name: str, width: int, depth: int, lanes: int = 1) -> wiring.PureInterface:
    """Add a `Ram` to `m` as submodule `name` and return its ports.

    In emitted Verilog all memories of one shape are instances of one module, `<top>_ram_<depth>x<width>` (`..._<lanes>`
    where there are several): what a flow swaps for a macro.
    """
    if isinstance(platform, Leaves):
        kind = f"ram_{depth}x{width}" + (f"_{lanes}" if lanes > 1 else "")
        ports, m.submodules[name] = platform.instance(name, kind, Ram, width, depth, lanes)
        return ports
    m.submodules[name] = component = Ram(width, depth, lanes)
    return component
