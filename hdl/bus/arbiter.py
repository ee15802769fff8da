"""Arbiter: joins the AXI4 managers of all cores on one memory port."""

from collections.abc import Iterable
from functools import reduce
from operator import or_
from types import SimpleNamespace
from typing import NamedTuple

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from openvrex.hdl.bus.axi import (
    PREFIX,
    address_layout,
    connect_ports,
    port_members,
    read_layout,
    response_layout,
    write_layout,
)
from openvrex.hdl.bus.manager_port import ManagerPort, Slice, TableManagerPort
from openvrex.hdl.leaf import place
from openvrex.hdl.named import comb
from openvrex.hdl.params import SystemParams, bits_for
from openvrex.hdl.queues import WRITES, port_beats
from openvrex.hdl.unit import Unit

MANAGERS = 3  # of a core: its LXE, its retriever, its tables


def _with_id(layout: data.StructLayout, p: SystemParams) -> data.StructLayout:
    """`layout` with the number of a manager added."""
    return data.StructLayout({**{name: f.shape for name, f in layout}, "id": id_bits(p)})


def id_bits(p: SystemParams) -> int:
    """Bits of an ID: the number of a manager."""
    return bits_for(MANAGERS * p.cores)


def memory_members(p: SystemParams) -> dict[str, wiring.Member]:
    """AXI4 manager ports to memory, with an ID wide enough for all managers."""
    wide = {f"{PREFIX}{x}id": (Out if x[0] == "a" else In)(id_bits(p)) for x in ("ar", "aw", "r", "b")}
    return port_members(p.core) | wide


class RoundRobin(wiring.Component):
    """Picks one of `n` requesters: the first after the one that was taken last, cyclically.

    A requester that asks until it is picked waits for at most n - 1 others, each of them once.

    Parameters
    ----------
    n : number of requesters

    Members
    -------
    ask : In(n) : a bit for each requester
    pick : Out(n) : one bit, or none if nobody asks
    take : In(1) : the pick is used

    Latency: none.
    Throughput: a pick a cycle.
    Raises: nothing.
    Source: this project's own; the bound is proved in `tb/tests/hdl/bus/test_arbiter.py` over all states.
    """

    def __init__(self, n: int):
        self.n = n
        super().__init__({"ask": In(n), "pick": Out(n), "take": In(1)})

    def _above(self, m: Module, bits: Value, name: str) -> Signal:
        """All bits above the lowest set one, in a logarithm of steps."""
        out = Signal(self.n, name=f"{name}0")
        m.d.comb += out.eq(bits << 1)
        for k in range(bits_for(self.n)):
            wider = Signal(self.n, name=f"{name}{k + 1}")
            m.d.comb += wider.eq(out | out << (1 << k))
            out = wider
        return out

    def elaborate(self, platform):
        m = Module()
        after = Signal(self.n)  # requesters behind the one taken last
        first, above, any_above = (
            Signal(k, name=n) for n, k in (("first", self.n), ("above", self.n), ("any_above", 1))
        )
        m.d.comb += [first.eq(self.ask & after), any_above.eq(first.any())]
        behind, round_ = self._above(m, first, "behind"), self._above(m, self.ask, "round")
        m.d.comb += [
            above.eq(Mux(any_above, behind, round_)),
            self.pick.eq(Mux(any_above, first, self.ask) & ~above),
        ]
        with m.If(self.take & self.ask.any()):
            m.d.sync += after.eq(above)
        return m


class Arbiter(Unit):
    """Joins the AXI4 managers of all cores on one port: 3 i is the LXE of core i, 3 i + 1 its retriever, 3 i + 2 its
    tables.

    The arbiter grants AR and AW in turn, whole bursts at a time. The ID is the manager's number. The memory may answer
    different IDs in any order and interleave their beats on R. W follows in the order of the AWs, not interleaved. All
    beats of a write are in the arbiter's buffers when it grants the AW; they may go out before the AW. Every response
    has room before its burst is granted (`hdl.bus.manager_port`). So rready and bready are always high, a manager that
    takes nothing blocks no other, and no output depends on an input of the same cycle.

    Fairness: a burst on offer is granted before any other manager is granted a second one: at most 3 * cores - 1 grants
    come before it, and none if it alone asks.

    Corner cases: a burst is at most burst_bytes; one that is longer than its buffer is never granted. The arbiter drops
    a response whose ID is no manager's.

    Parameters
    ----------
    p : SystemParams

    Members
    -------
    ar, aw, w, r, b : In, In, In, Out, Out(arrays of 3 * cores streams of the layouts in `hdl.bus.axi`) : the managers
    m_axi_* : AXI4 manager, INCR bursts of whole beats, IDs of `id_bits`
    perf : Out(struct of 32-bit counters) : reads, writes (bursts granted), read_beats, write_beats, read_waits,
        write_waits (cycles in which a burst on offer was not granted)

    Latency: without other requests 3 cycles from `ar` to m_axi_ar and 3 from m_axi_r to `r`; from the last beat of a
        write to m_axi_aw 3, to its first beat on m_axi_w 6; 3 from m_axi_b to `b`. Exact in `sim.units.arbiter_time`.
    Throughput: a grant of each kind and a beat in each direction every cycle. One manager alone gets this as long as
        its reads in flight fit `hdl.queues.port_beats`.
    Raises: `ParamError` where lanes and bus do not fit together.
    Source: V-Rex section V-A, Fig. 10 (N cores on one memory); AXI4 (ARM IHI 0022) A5.
    """

    COUNTERS = ("reads", "writes", "read_beats", "write_beats", "read_waits", "write_waits")

    def __init__(self, p: SystemParams):
        self.managers = MANAGERS * p.cores
        p.core.lxe_format()  # checks that lanes and bus fit together
        layouts = {"ar": address_layout(), "aw": address_layout(), "w": write_layout(p.core)}
        answers = {"r": read_layout(p.core), "b": response_layout()}
        super().__init__(
            p,
            {
                **{n: In(stream.Signature(layout)).array(self.managers) for n, layout in layouts.items()},
                **{n: Out(stream.Signature(layout)).array(self.managers) for n, layout in answers.items()},
                **memory_members(p),
            },
        )

    @staticmethod
    def timing(p: SystemParams) -> dict[str, str]:
        """Formulas for the manifest."""
        reads, writes = port_beats(p)
        return {
            "read": "3 cycles from ar to m_axi_ar, 3 from m_axi_r to r",
            "write": "3 cycles from a burst's last beat to m_axi_aw, 6 to its first on m_axi_w; 3 from m_axi_b to b",
            "fairness": f"at most {MANAGERS * p.cores - 1} grants of others before one's own",
            "room": f"of an LXE or retriever {reads} beats of reads, {writes} of writes, {p.core.lxe.bursts} responses",
        }

    def elaborate(self, platform):
        p, m, count = self.p, Module(), self.managers
        kinds = (ManagerPort, ManagerPort, TableManagerPort)
        ports = [place(m, platform, f"port{i}", kinds[i % MANAGERS], p) for i in range(count)]
        self._connect_managers(m, ports)
        # Addresses, and the order in which their beats go out.
        order = m.submodules.order = SyncFIFOBuffered(width=id_bits(p), depth=WRITES)
        reads = self._grants(m, "read", [port.reads for port in ports], 1)
        writes = self._grants(m, "write", [port.writes for port in ports], order.w_rdy)
        m.d.comb += [order.w_data.eq(writes.out.i.payload.id), order.w_en.eq(writes.granted)]
        beats = self._beats(m, ports, order)
        answers, come = self._answers(m, ports)
        bus = SimpleNamespace(ar=reads.out.o, aw=writes.out.o, w=beats.o, **answers)
        connect_ports(m, p.core, self, bus, bus)
        for name, grants in (("arid", reads), ("awid", writes)):
            m.d.comb += getattr(self, PREFIX + name).eq(grants.out.o.payload.id)
        self._count(
            m,
            reads=reads.granted,
            writes=writes.granted,
            read_beats=come["r"],
            write_beats=beats.i.valid & beats.i.ready,
            read_waits=reads.waits,
            write_waits=writes.waits,
        )
        return m

    def _connect_managers(self, m: Module, ports: list[ManagerPort]) -> None:
        for i, port in enumerate(ports):
            for name in ("ar", "aw", "w"):
                outer, inner = getattr(self, name)[i], getattr(port, name)
                m.d.comb += [inner.payload.eq(outer.payload), inner.valid.eq(outer.valid), outer.ready.eq(inner.ready)]
            for name in ("r", "b"):
                outer, inner = getattr(self, name)[i], getattr(port, name)
                m.d.comb += [outer.payload.eq(inner.payload), outer.valid.eq(inner.valid), inner.ready.eq(outer.ready)]

    def _grants(self, m: Module, name: str, offers: list[wiring.PureInterface], room: Value | int) -> "_Grants":
        """Grants bursts of the managers in turn, and passes them with their number to a register slice."""
        turn = m.submodules[f"{name}_turn"] = RoundRobin(self.managers)
        out = m.submodules[f"{name}_out"] = Slice(_with_id(address_layout(), self.p))
        take = Signal(name=f"{name}_take")
        m.d.comb += [
            turn.ask.eq(Cat(o.valid for o in offers)),
            take.eq(out.i.ready & room),
            turn.take.eq(take),
            out.i.valid.eq(turn.ask.any() & room),
            out.i.payload.as_value()[: address_layout().size].eq(
                _chosen([o.payload.as_value() for o in offers], turn.pick)
            ),
            out.i.payload.id.eq(_chosen(range(self.managers), turn.pick)),
            *(o.ready.eq(turn.pick[i] & take) for i, o in enumerate(offers)),
        ]
        waits = comb(m, f"{name}_waits", (turn.ask & ~Mux(take, turn.pick, 0)).any())
        return _Grants(out, waits, out.i.valid & out.i.ready)

    def _beats(self, m: Module, ports: list[ManagerPort], order: SyncFIFOBuffered) -> Slice:
        """Sends the write beats in the order of the grants; all beats of a burst are here when its turn comes."""
        count, w = self.managers, Slice(write_layout(self.p.core))
        m.submodules.w_out = w
        owner = Signal(count)  # the manager whose burst goes out
        owned = Signal()  # a burst goes out
        next_owner = Signal()
        beat = Signal(write_layout(self.p.core))
        m.d.comb += [
            beat.as_value().eq(_chosen([port.beats.payload.as_value() for port in ports], owner)),
            w.i.payload.eq(beat),
            w.i.valid.eq(owned),
            next_owner.eq(~owned | (w.i.ready & beat.last)),
            order.r_en.eq(next_owner),
            *(port.beats.ready.eq(owner[i] & owned & w.i.ready) for i, port in enumerate(ports)),
        ]
        with m.If(next_owner):
            m.d.sync += [owned.eq(order.r_rdy), owner.eq(Cat(order.r_data == i for i in range(count)))]
        return w

    def _answers(
        self, m: Module, ports: list[ManagerPort]
    ) -> tuple[dict[str, wiring.PureInterface], dict[str, Signal]]:
        """Passes responses through a register to the buffers of the manager that they belong to.

        Returns the bus's channels, and when a beat comes.
        """
        p, buses, come = self.p, {}, {}
        for name, into, layout in (
            ("r", "answers", read_layout(p.core)),
            ("b", "responses", response_layout()),
        ):
            buses[name] = from_bus = stream.Signature(layout).create(path=(f"{name}_bus",))
            come[name] = valid = Signal(name=f"{name}_come")
            number = Signal(id_bits(p), name=f"{name}_number", reset_less=True)
            payload = Signal(layout, name=f"{name}_payload", reset_less=True)
            m.d.comb += from_bus.ready.eq(1)
            m.d.sync += [
                valid.eq(from_bus.valid),
                number.eq(getattr(self, f"{PREFIX}{name}id")),
                payload.eq(from_bus.payload),
            ]
            for i, port in enumerate(ports):
                to = getattr(port, into)
                m.d.comb += [to.valid.eq(valid & (number == i)), to.payload.eq(payload)]
        return buses, come


class _Grants(NamedTuple):
    """Grants of one kind."""

    out: Slice
    waits: Signal  # a burst on offer is not granted
    granted: Value


def _chosen(words: Iterable[Value | int], pick: Value) -> Value:
    """The word whose bit of `pick` is set."""
    return reduce(or_, (Mux(pick[i], word, 0) for i, word in enumerate(words)))
