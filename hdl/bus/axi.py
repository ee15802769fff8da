"""AXI4 of a core: layouts of its channels, bursts of rows of words, port names."""

from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, ValueLike
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.program.isa import ADDR_BITS, PAYLOAD, Opcode
from openvrex.hdl.params import CoreParams

LEN_BITS = 8
CHANNELS = ("ar", "aw", "w", "r", "b")
PREFIX = "m_axi_"  # the LXE's port
HOST_PREFIX = "h_axi_"  # a core's second port: the retriever's
TABLE_PREFIX = "t_axi_"  # a core's third port: the tables' of the DRE
_INCR = 1
_BUFFERABLE = 0b0011  # normal memory, not cacheable: usual for DMA engines


def address_layout(named: bool = False) -> data.StructLayout:
    """A burst (AR, AW): its first byte, and its number of beats less one. `named`, if it has that: a program or command
    names the address, not the KVMU.
    """
    return data.StructLayout({"addr": ADDR_BITS, "len": LEN_BITS} | ({"named": 1} if named else {}))


def read_beat(bus_bytes: int) -> data.StructLayout:
    """A beat of R, its first byte lowest; resp[1] marks an error, `last` ends the burst."""
    return data.StructLayout({"data": 8 * bus_bytes, "resp": 2, "last": 1})


def write_beat(bus_bytes: int) -> data.StructLayout:
    """A beat of W, its first byte lowest; `strb` has a bit for each byte to write, `last` ends the burst."""
    return data.StructLayout({"data": 8 * bus_bytes, "strb": bus_bytes, "last": 1})


def read_layout(p: CoreParams) -> data.StructLayout:
    """A beat of R on the bus of an LXE."""
    return read_beat(p.lxe.bus_bytes)


def write_layout(p: CoreParams) -> data.StructLayout:
    """A beat of W on the bus of an LXE."""
    return write_beat(p.lxe.bus_bytes)


def error_layout() -> data.StructLayout:
    """Pulses: an error response; an instruction or word that is out of range."""
    return data.StructLayout({"bus": 1, "range": 1})


def response_layout() -> data.StructLayout:
    """B: the response to a whole burst; resp[1] marks an error."""
    return data.StructLayout({"resp": 2})


def manager_signature(bus_bytes: int, named: bool = False) -> wiring.Signature:
    """Channels of an AXI4 manager as streams of the layouts above: ar, r, aw, w, b."""
    return wiring.Signature(
        {
            "ar": Out(stream.Signature(address_layout(named))),
            "r": In(stream.Signature(read_beat(bus_bytes))),
            "aw": Out(stream.Signature(address_layout(named))),
            "w": Out(stream.Signature(write_beat(bus_bytes))),
            "b": In(stream.Signature(response_layout())),
        }
    )


def rows_layout() -> data.StructLayout:
    """`rows` + 1 rows of `words` + 1 words from byte `addr`, `stride` bytes apart; `wide`: words of 4 * lanes bytes."""
    fields = PAYLOAD[Opcode.LOAD]
    return data.StructLayout({name: fields[name] for name in ("addr", "stride", "rows", "words", "wide")})


def span_layout() -> data.StructLayout:
    """A burst as in `address_layout`. `last`: the final burst of its rows."""
    return data.StructLayout({"addr": ADDR_BITS, "len": LEN_BITS, "last": 1})


def word_beats(p: CoreParams) -> int:
    """Beats of a word of BF16 numbers; a wide word has twice as many.

    Raises `ParamError` where lanes and bus do not fit together.
    """
    return p.lxe_format().word_bytes // p.lxe.bus_bytes


class Bursts(wiring.Component):
    """Cuts rows of words into bursts, in order.

    No burst crosses a multiple of burst_bytes, and so none crosses 4 KB or the end of the address space. Addresses are
    modulo 2^40; bits of `addr` and `stride` below a beat count as zero. With `joined`, rows without a gap between them
    are cut as one. With `single`, there is one row (`rows` is 0), and `stride` does not count. With `limit`, a burst
    waits until it has at most `most` beats.

    Parameters
    ----------
    p : CoreParams
    joined, single : bool
    limit : bits of `most`; 0: bursts do not wait

    Members
    -------
    c : In(stream of `rows_layout`) : rows
    o : Out(stream of `span_layout`) : their bursts, row by row
    most : In(limit), with `limit` : falls only in the cycle behind a burst
    waits : Out(1), with `limit` : the next burst has more beats

    Latency: a cycle from the rows' acceptance to their first burst, and one for each row that is added to a burst.
    Throughput: a burst a cycle, also across rows and their ends; of joined rows a row a cycle.
    Raises: `ParamError` where lanes and bus do not fit together.
    Source: AXI4 (ARM IHI 0022) A3.4.1: a burst does not cross a 4 KB boundary.
    """

    def __init__(self, p: CoreParams, joined: bool = False, single: bool = False, limit: int = 0):
        self.p, self.joined, self.single, self.limit = p, joined, single, limit
        self.beats = word_beats(p)
        own = {"most": In(limit), "waits": Out(1)} if limit else {}
        super().__init__({"c": In(stream.Signature(rows_layout())), "o": Out(stream.Signature(span_layout())), **own})

    def elaborate(self, platform):
        p, m = self.p, Module()
        shift = p.lxe.bus_bytes.bit_length() - 1
        within = (p.lxe.burst_bytes // p.lxe.bus_bytes).bit_length() - 1  # bits of a beat's place in the longest burst
        log_beats = self.beats.bit_length() - 1
        c = self.c.payload

        # All counts are of beats, and one less than what they count.
        row_beats = Signal(len(c.words) + log_beats + 1)
        at = Signal(ADDR_BITS - shift)
        row = Signal.like(at)  # first beat of this row
        stride = Signal(len(c.stride) - shift)
        left = Signal(max(len(row_beats), within) + 1)  # beats left of this row and of those joined to it
        length = Signal.like(row_beats)  # beats of every row
        rows = Const(0) if self.single else Signal(len(c.rows))
        running = Signal()
        room = Signal(max(1, within))  # beats up to the multiple of burst_bytes
        fits = Signal()
        next_row = Signal.like(at)
        done = Signal()
        joins = Signal()  # the next row is added to the beats left
        ones = Const((1 << log_beats) - 1, log_beats)
        offers = running & ~joins
        goes, ends = self.o.ready & running & ~joins, self.o.ready & self.o.payload.last
        if self.limit:  # both lengths are compared before it is known which counts
            long = left >= self.most
            m.d.comb += self.waits.eq(running & Mux(fits, long, room >= self.most))
            offers, goes, ends = offers & ~self.waits, goes & ~self.waits, ends & ~long
        m.d.comb += [
            row_beats.eq(Mux(c.wide, Cat(ones, Const(1, 1), c.words), Cat(ones, c.words))),
            room.eq(~at[:within] if within else 0),
            fits.eq(left <= room),
            next_row.eq(row + stride),
            self.o.payload.addr.eq(at << shift),
            self.o.payload.len.eq(Mux(fits, left[:LEN_BITS], room)),
            self.o.payload.last.eq(fits & (rows == 0)),
            self.o.valid.eq(offers),
            done.eq(ends),
            self.c.ready.eq(~running | done),
        ]
        gapless = Signal()
        if self.joined and within:  # bursts of one beat have no room
            m.d.comb += joins.eq(running & gapless & (left < room) & rows.any())
            with m.If(self.c.ready):
                m.d.sync += gapless.eq((c.stride >> shift) == row_beats + 1)
            with m.If(joins):
                m.d.sync += [left.eq(left + length + 1), rows.eq(rows - 1)]
        next_burst = Cat(Const(0, within), at[within:] + 1)
        with m.If(goes):
            if self.single:
                m.d.sync += [left.eq(left - room - 1), at.eq(next_burst)]
            else:
                m.d.sync += [
                    left.eq(Mux(fits, length, left - room - 1)),
                    at.eq(Mux(fits & ~gapless, next_row, next_burst)),
                ]
                with m.If(fits):
                    m.d.sync += [row.eq(next_row), rows.eq(rows - 1)]
        with m.If(self.c.ready):  # loaded even without rows, because a storer knows late
            m.d.sync += [running.eq(self.c.valid), at.eq(c.addr >> shift)]
            if not self.single:
                m.d.sync += [row.eq(c.addr >> shift), stride.eq(c.stride >> shift)]
            m.d.sync += left.eq(row_beats)
            if not self.single:
                m.d.sync += [length.eq(row_beats), rows.eq(c.rows)]
        return m


def port_members(p: CoreParams, prefix: str = PREFIX) -> dict[str, wiring.Member]:
    """A manager's AXI4 ports, for a component's signature; a single ID, 0."""
    bits = 8 * p.lxe.bus_bytes
    address = {"id": 1, "addr": ADDR_BITS, "len": LEN_BITS, "size": 3, "burst": 2, "lock": 1, "cache": 4, "prot": 3}
    out = {f"{x}{name}": Out(width) for x in ("ar", "aw") for name, width in address.items()}
    out |= {"wdata": Out(bits), "wstrb": Out(p.lxe.bus_bytes), "wlast": Out(1)}
    out |= {"bid": In(1), "bresp": In(2), "rid": In(1), "rdata": In(bits), "rresp": In(2), "rlast": In(1)}
    for x, flow, back in (("ar", Out, In), ("aw", Out, In), ("w", Out, In), ("r", In, Out), ("b", In, Out)):
        out |= {f"{x}valid": flow(1), f"{x}ready": back(1)}
    return {prefix + name: member for name, member in out.items()}


def pass_ports(m: Module, outer: object, inner: object, members: dict[str, wiring.Member]) -> None:
    """Connects the ports of these names of an inner component to those of the component around it."""
    for name, member in members.items():
        i, o = getattr(inner, name), getattr(outer, name)
        m.d.comb += o.eq(i) if member.flow == Out else i.eq(o)


def pass_manager(
    m: Module, outer: object, inner: object, p: CoreParams, prefix: str, prot: ValueLike, cache: ValueLike
) -> None:
    """Connects a manager's ports to those of the component around it, with these attributes instead of its own."""
    own = {f"{prefix}{x}{name}": value for x in ("ar", "aw") for name, value in (("prot", prot), ("cache", cache))}
    members = port_members(p, prefix)
    pass_ports(m, outer, inner, {name: member for name, member in members.items() if name not in own})
    m.d.comb += [getattr(outer, name).eq(value) for name, value in own.items()]


def connect_ports(
    m: Module, p: CoreParams, ports: object, reader: object, writer: object, prefix: str = PREFIX
) -> None:
    """Connects the ports of `port_members` on `ports` to the streams of a reader (`ar`, `r`) and a writer (`aw`,
    `w`, `b`).
    """

    def port(name):
        return getattr(ports, prefix + name)

    for x, channel in (("ar", reader.ar), ("aw", writer.aw)):
        m.d.comb += [
            port(f"{x}addr").eq(channel.payload.addr),
            port(f"{x}len").eq(channel.payload.len),
            port(f"{x}size").eq(p.lxe.bus_bytes.bit_length() - 1),
            port(f"{x}burst").eq(_INCR),
            port(f"{x}cache").eq(_BUFFERABLE),
        ]
    m.d.comb += [port(f"w{name}").eq(writer.w.payload[name]) for name in ("data", "strb", "last")]
    m.d.comb += [reader.r.payload[name].eq(port(f"r{name}")) for name in ("data", "resp", "last")]
    m.d.comb += writer.b.payload.resp.eq(port("bresp"))
    for x, channel in (("ar", reader.ar), ("aw", writer.aw), ("w", writer.w)):
        m.d.comb += [port(f"{x}valid").eq(channel.valid), channel.ready.eq(port(f"{x}ready"))]
    for x, channel in (("r", reader.r), ("b", writer.b)):
        m.d.comb += [channel.valid.eq(port(f"{x}valid")), port(f"{x}ready").eq(channel.ready)]


def connect_streams(m: Module, ports: object, prefix: str, channels: dict[str, Any]) -> None:
    """Connects a manager's ports on `ports` to streams by the name of the channel: ar, aw, w, r, b.

    The fields that all bursts have in common (size, type, ID) are left out.
    """
    for name, channel in channels.items():
        fields = channel.payload.shape().members
        pairs = [(getattr(ports, prefix + name + field), channel.payload[field]) for field in fields]
        pairs.append((getattr(ports, f"{prefix}{name}valid"), channel.valid))
        ready = getattr(ports, f"{prefix}{name}ready")
        if name in ("r", "b"):
            m.d.comb += [pin.eq(value) for pin, value in pairs] + [channel.ready.eq(ready)]
        else:
            m.d.comb += [value.eq(pin) for pin, value in pairs] + [ready.eq(channel.ready)]
