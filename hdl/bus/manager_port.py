"""Manager port: the arbiter's buffers for one manager, which keep it from blocking another."""

from typing import Any

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from openvrex.golden.program.isa import ADDR_BITS
from openvrex.hdl.bus.axi import address_layout, read_layout, response_layout, write_layout
from openvrex.hdl.params import SystemParams
from openvrex.hdl.queues import LEAST, port_beats, table_beats
from openvrex.hdl.slices import Slice

COMMON_PAGE = 12  # logarithm of the grid of the addresses of what a group reads together
COMMON_BITS = ADDR_BITS - COMMON_PAGE
COMMON_LAYOUT = data.StructLayout({"on": 1, "base": COMMON_BITS, "limit": COMMON_BITS})


class ManagerPort(wiring.Component):
    """Lets a burst of one manager through once it can no longer block those of another.

    It offers a read once its beats have room here, and a write once all its beats are here and its response has room.
    So the memory's R and B are always taken, and W never waits for a manager. Bursts of one core that wait for each
    other (a LOAD whose words wait for a fetch) cannot deadlock on the shared port.

    Parameters
    ----------
    p : SystemParams
    of : int : memory ports of the system, each with such buffers

    Members
    -------
    ar, aw, w : In(stream of the layouts in `hdl.bus.axi`) : from the manager
    r, b : Out(stream of the layouts in `hdl.bus.axi`) : to the manager
    reads, writes : Out(stream of `address_layout`) : bursts that may go
    beats : Out(stream of `write_layout`) : beats of the bursts that went, always there when they are due
    answers, responses : In(stream of `read_layout`, `response_layout`) : of this manager's bursts, always taken

    Latency: 2 cycles from `ar` to `reads`, and from the later of `aw` and its last beat on `w` to `writes`; 2 cycles
        from `w` to `beats`, from `answers` to `r` and from `responses` to `b`.
    Throughput: a burst and a beat in each direction every cycle, while the bursts in flight have room.
    Raises: `ParamError` where lanes and bus do not fit together.
    Source: AXI4 (ARM IHI 0022) A3.3: dependencies between channels.
    """

    def __init__(self, p: SystemParams, of: int = 1):
        self.p, self.of = p, of
        self.read_depth, self.write_depth, self.bursts = self._room()
        address = stream.Signature(address_layout())
        read, response = stream.Signature(read_layout(p.core)), stream.Signature(response_layout())
        write = stream.Signature(write_layout(p.core))
        super().__init__(
            {
                **{"ar": In(address), "aw": In(address), "w": In(write), "r": Out(read), "b": Out(response)},
                **{"reads": Out(address), "writes": Out(address), "beats": Out(write)},
                **{"answers": In(read), "responses": In(response)},
                **self._members(),
            }
        )

    def _members(self) -> dict[str, wiring.Member]:
        """More members."""
        return {}

    def _room(self) -> tuple[int, int, int]:
        """Beats of reads and of writes, and responses that the buffers hold."""
        return *port_beats(self.p, of=self.of), self.p.core.lxe.bursts

    def elaborate(self, platform):
        m = Module()

        def queue(name, layout, depth, i, o):
            fifo = m.submodules[name] = SyncFIFOBuffered(width=layout.size, depth=depth)
            m.d.comb += [
                fifo.w_data.eq(i.payload),
                fifo.w_en.eq(i.valid),
                i.ready.eq(fifo.w_rdy),
                o.payload.as_value().eq(fifo.r_data),
                o.valid.eq(fifo.r_rdy),
                fifo.r_en.eq(o.ready),
            ]

        core = self.p.core
        queue("read_data", read_layout(core), self.read_depth, self.answers, self.r)
        queue("write_data", write_layout(core), self.write_depth, self.w, self.beats)
        queue("write_responses", response_layout(), max(LEAST, self.bursts), self.responses, self.b)

        def offer(name, i, o, may):
            """Bursts of `i` to `o`, each when it may; high when one does."""
            waiting = m.submodules[name] = Slice(address_layout())
            wiring.connect(m, wiring.flipped(i), waiting.i)
            goes, offered = Signal(name=f"{name}_goes"), Signal(name=f"{name}_offered")
            payload = Signal(address_layout(), name=f"{name}_payload", reset_less=True)
            m.d.comb += [
                goes.eq(waiting.o.valid & may(waiting.o.payload) & (~offered | o.ready)),
                waiting.o.ready.eq(goes),
                o.valid.eq(offered),
                o.payload.eq(payload),
            ]
            with m.If(~offered | o.ready):
                m.d.sync += [offered.eq(goes), payload.eq(waiting.o.payload)]
            if name == "read":
                self._look(m, waiting.o.payload)
            return goes, waiting.o.payload

        room = Signal(range(self.read_depth + 1), init=self.read_depth)  # beats of the buffer not reserved by a read
        whole = Signal(range(self.write_depth + 2))  # bursts whose beats are all here and which are not offered yet
        owed = Signal(range(self.bursts + 1))  # responses still to come
        goes, burst = offer("read", self.ar, self.reads, lambda burst: room > burst.len)
        # `goes` comes last in the cycle, so it only chooses.
        left = room + (self.r.valid & self.r.ready)
        m.d.sync += room.eq(Mux(goes, left - (burst.len + 1), left))
        goes, _ = offer("write", self.aw, self.writes, lambda burst: whole.any() & (owed < self.bursts))
        ends = self.w.valid & self.w.ready & self.w.payload.last
        here, rest = whole + ends, owed - (self.b.valid & self.b.ready)
        m.d.sync += [whole.eq(Mux(goes, here - 1, here)), owed.eq(Mux(goes, rest + 1, rest))]
        return m

    def _look(self, m: Module, coming: data.View) -> None:
        """Looks at the read that is offered next."""


class LxeManagerPort(ManagerPort):
    """The same for an LXE, whose reads may come for a group of cores.

    Parameters
    ----------
    p : SystemParams
    of : int : memory ports of the system, each with such buffers

    Members
    -------
    ar, aw, w, r, b, reads, writes, beats, answers, responses : as in `ManagerPort`
    common : In(`COMMON_LAYOUT`) : whether groups read from 4 KB `base` up to `limit` together
    changed : In(1) : `common` is another than in the cycle before; no read is taken
    inside : Out(1) : the read on offer is a group's, by `common` of the cycle before

    Latency: as in `ManagerPort`.
    Throughput: as in `ManagerPort`.
    Raises: `ParamError` where lanes and bus do not fit together.
    Source: AXI4 (ARM IHI 0022) A3.3: dependencies between channels.
    """

    def _members(self) -> dict[str, wiring.Member]:
        return {"common": In(COMMON_LAYOUT), "changed": In(1), "inside": Out(1)}

    def _look(self, m: Module, coming: data.View) -> None:
        find_inside(m, self, coming)

    def _room(self) -> tuple[int, int, int]:
        """As in `ManagerPort`; more reads if the system has common ones."""
        return *port_beats(self.p, self.p.common, self.of), self.p.core.lxe.bursts


class TableManagerPort(ManagerPort):
    """The same for the tables of a core, whose bursts are shorter and fewer.

    Parameters
    ----------
    p : SystemParams
    of : int : memory ports of the system, each with such buffers

    Members
    -------
    ar, aw, w, r, b, reads, writes, beats, answers, responses : as in `ManagerPort`

    Latency: as in `ManagerPort`.
    Throughput: as in `ManagerPort`.
    Raises: `ParamError` where lanes and bus do not fit together.
    Source: AXI4 (ARM IHI 0022) A3.3: dependencies between channels.
    """

    def _room(self) -> tuple[int, int, int]:
        """As in `ManagerPort`: two of the longest reads, and writes of a beat."""
        return table_beats(self.p)


def find_inside(m: Module, port: Any, coming: data.View) -> None:
    """Keeps in `port.inside` whether the read on offer is a group's; `coming` is the one that is offered next.

    It is found when a read goes on offer, as there is no time to find it when the read is granted, and once more when
    `port.common` has changed.
    """
    offer, common = port.reads, port.common
    again = port.changed & offer.valid
    page = Mux(again, offer.payload.addr, coming.addr)[COMMON_PAGE:]
    with m.If(~offer.valid | offer.ready | port.changed):
        m.d.sync += port.inside.eq(common.on & (page >= common.base) & (page < common.limit))
