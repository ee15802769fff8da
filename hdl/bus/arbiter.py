"""Arbiter: joins the AXI4 managers of all cores on one memory port, or on several."""

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import or_
from types import SimpleNamespace
from typing import NamedTuple

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from openvrex.hdl.bus.axi import (
    CHANNELS,
    PREFIX,
    address_layout,
    connect_ports,
    port_members,
    read_layout,
    response_layout,
    write_layout,
)
from openvrex.hdl.bus.interleaver import Interleaver
from openvrex.hdl.bus.manager_port import COMMON_BITS, LxeManagerPort, ManagerPort, TableManagerPort
from openvrex.hdl.leaf import place
from openvrex.hdl.named import comb
from openvrex.hdl.params import SystemParams, bits_for
from openvrex.hdl.queues import OWNERS, WRITES, port_beats
from openvrex.hdl.slices import Slice
from openvrex.hdl.unit import Unit

MANAGERS = 3  # of a core: its LXE, its retriever, its tables


def _with_id(layout: data.StructLayout, p: SystemParams) -> data.StructLayout:
    """`layout` with the number of a manager added."""
    return data.StructLayout({**{name: f.shape for name, f in layout}, "id": id_bits(p)})


def id_bits(p: SystemParams) -> int:
    """Bits of an ID: the number of a manager."""
    return bits_for(MANAGERS * p.cores)


def memory_prefixes(p: SystemParams) -> list[str]:
    """Prefix of each memory port: `m_axi_`, or of several `m0_axi_`, `m1_axi_` and so on."""
    return [PREFIX] if p.ports == 1 else [f"m{j}_axi_" for j in range(p.ports)]


def memory_members(p: SystemParams) -> dict[str, wiring.Member]:
    """AXI4 manager ports to memory, with an ID wide enough for all managers."""
    out = {}
    for prefix in memory_prefixes(p):
        wide = {f"{prefix}{x}id": (Out if x[0] == "a" else In)(id_bits(p)) for x in ("ar", "aw", "r", "b")}
        out |= port_members(p.core, prefix) | wide
    return out


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
    tables. With `ports`, on so many: interleavers deal each manager's bursts to them by address
    (`hdl.bus.interleaver`), and each port has an arbiter of its own, as the following says.

    The arbiter grants AR and AW in turn, whole bursts at a time. The ID is the manager's number. The memory may answer
    different IDs in any order and interleave their beats on R. W follows in the order of the AWs, not interleaved. All
    beats of a write are in the arbiter's buffers when it grants the AW; they may go out before the AW. Every response
    has room before its burst is granted (`hdl.bus.manager_port`). So rready and bready are always high, a manager that
    takes nothing blocks no other, and no output depends on an input of the same cycle.

    With `common`, what several LXEs read at the same addresses is read once. Cores stand in groups of 2^common_log2,
    the first ones first; the last group may be smaller. A read of an LXE at an address from common_base up to
    common_limit, both in units of 4 KB, waits until every LXE of its group offers the same burst. It is then granted to
    all of them at once, and its beats go to all. So they must read there in the same order; a group that waits for a
    core that does not come goes on when common_log2 becomes 0, with which nothing is common. All LXEs read with ID 0,
    in the order of their grants.

    Fairness: a burst on offer is granted before any other manager is granted a second one: at most 3 * cores - 1 grants
    come before it, and none if it alone asks.

    Corner cases: a burst is at most burst_bytes; one that is longer than its buffer is never granted. The arbiter drops
    a response whose ID is no manager's.

    Parameters
    ----------
    p : SystemParams
    of : int : memory ports between which the managers' bursts are dealt before they come here; sets sizes of buffers

    Members
    -------
    ar, aw, w, r, b : In, In, In, Out, Out(arrays of 3 * cores streams of the layouts in `hdl.bus.axi`) : the managers
    common_log2, common_base, common_limit : In(range(COMMON_LOG2 + 1), COMMON_BITS, COMMON_BITS) : with `common`:
        logarithm of a group's cores, first 4 KB and end of what they read together, from 2 cycles later on
    m_axi_* : AXI4 manager, INCR bursts of whole beats, IDs of `id_bits`; of several ports m0_axi_*, m1_axi_* and so on,
        each with whole addresses
    perf : Out(struct of 32-bit counters) : reads, writes (bursts granted), read_beats, write_beats, read_waits,
        write_waits (cycles in which a burst on offer was not granted); a burst for several managers counts once. Sums
        over all ports

    Latency: without other requests 3 cycles from `ar` to m_axi_ar and 3 from m_axi_r to `r`; from the last beat of a
        write to m_axi_aw 3, to its first beat on m_axi_w 6; 3 from m_axi_b to `b`. A common read takes a cycle more.
        Several ports add those of `hdl.bus.interleaver.Interleaver`. Exact in `sim.units.arbiter_time`.
    Throughput: at each port a grant of each kind and a beat in each direction every cycle. One manager alone gets this
        of one port, as long as its reads in flight fit `hdl.queues.port_beats`.
    Raises: `ParamError` where lanes and bus do not fit together.
    Source: V-Rex section V-A, Fig. 10 (N cores on one memory); AXI4 (ARM IHI 0022) A5.
    """

    COUNTERS = ("reads", "writes", "read_beats", "write_beats", "read_waits", "write_waits")

    def __init__(self, p: SystemParams, of: int = 1):
        self.managers, self.of = MANAGERS * p.cores, of
        p.core.lxe_format()  # checks that lanes and bus fit together
        layouts = {"ar": address_layout(), "aw": address_layout(), "w": write_layout(p.core)}
        answers = {"r": read_layout(p.core), "b": response_layout()}
        super().__init__(
            p,
            {
                **{n: In(stream.Signature(layout)).array(self.managers) for n, layout in layouts.items()},
                **{n: Out(stream.Signature(layout)).array(self.managers) for n, layout in answers.items()},
                **(common_members() if p.common else {}),
                **memory_members(p),
            },
        )

    @staticmethod
    def timing(p: SystemParams) -> dict[str, str]:
        """Formulas for the manifest."""
        reads, writes = port_beats(p, of=p.ports)
        more, responses = f", of an LXE {port_beats(p, True, p.ports)[0]}" if p.common else "", p.core.lxe.bursts
        return {
            "read": f"{3 if p.ports == 1 else 4} cycles from ar to m_axi_ar, 3 from m_axi_r to r",
            "write": "3 cycles from a burst's last beat to m_axi_aw, 6 to its first on m_axi_w; 3 from m_axi_b to b",
            "fairness": f"at most {MANAGERS * p.cores - 1} grants of others before one's own",
            "room": f"of an LXE or retriever {reads} beats of reads{more}, {writes} of writes, {responses} responses",
        }

    def elaborate(self, platform):
        return self._one_port(platform) if self.p.ports == 1 else self._ports(platform)

    def _ports(self, platform) -> Module:
        """Interleavers, and an arbiter for each port."""
        p, m = self.p, Module()
        one = replace(p, ports=1)
        ports = [place(m, platform, f"memory{j}", Arbiter, one, p.ports) for j in range(p.ports)]
        for i in range(self.managers):
            dealer = place(m, platform, f"interleaver{i}", Interleaver, p)
            for name in CHANNELS:
                inward = name in ("ar", "aw", "w")
                ends = [(getattr(self, name)[i], getattr(dealer.i, name))]
                ends += [(getattr(to, name), getattr(port, name)[i]) for to, port in zip(dealer.to, ports, strict=True)]
                for near, far in ends:
                    _connect(m, *((near, far) if inward else (far, near)))
        for port, prefix in zip(ports, memory_prefixes(p), strict=True):
            if p.common:
                m.d.comb += [getattr(port, name).eq(getattr(self, name)) for name in common_members()]
            for name, member in memory_members(one).items():
                inner, outer = getattr(port, name), getattr(self, prefix + name.removeprefix(PREFIX))
                m.d.comb += outer.eq(inner) if member.flow == Out else inner.eq(outer)
        m.d.comb += [self.perf[name].eq(sum(port.perf[name] for port in ports)) for name in self.COUNTERS]
        return m

    def _one_port(self, platform) -> Module:
        p, m, count = self.p, Module(), self.managers
        kinds = (LxeManagerPort if p.common else ManagerPort, ManagerPort, TableManagerPort)
        ports = [place(m, platform, f"port{i}", kinds[i % MANAGERS], p, self.of) for i in range(count)]
        self._connect_managers(m, ports)
        # Addresses, and the order in which their beats go out.
        order = m.submodules.order = SyncFIFOBuffered(width=id_bits(p), depth=WRITES)
        offers = [port.reads for port in ports]
        common = CommonReads(self, m, ports) if p.common else None
        reads = self._grants(m, "read", offers, 1, common)
        writes = self._grants(m, "write", [port.writes for port in ports], order.w_rdy)
        m.d.comb += [order.w_data.eq(writes.out.i.payload.id), order.w_en.eq(writes.granted)]
        beats = self._beats(m, ports, order)
        if common:
            common.note(reads.pick, reads.granted)
        answers, come = self._answers(m, ports, common)
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
                _connect(m, getattr(self, name)[i], getattr(port, name))
            for name in ("r", "b"):
                _connect(m, getattr(port, name), getattr(self, name)[i])

    def _grants(
        self,
        m: Module,
        name: str,
        offers: list[wiring.PureInterface],
        room: Value | int,
        common: "CommonReads | None" = None,
    ) -> "_Grants":
        """Grants bursts of the managers in turn, and passes them with their number to a register slice."""
        turn = m.submodules[f"{name}_turn"] = RoundRobin(self.managers)
        out = m.submodules[f"{name}_out"] = Slice(_with_id(address_layout(), self.p))
        take = Signal(name=f"{name}_take")
        m.d.comb += [
            turn.ask.eq(Cat(common.asks if common else (o.valid for o in offers))),
            take.eq(out.i.ready & room),
            turn.take.eq(take),
            out.i.valid.eq(turn.ask.any() & room),
            out.i.payload.as_value()[: address_layout().size].eq(
                _chosen([o.payload.as_value() for o in offers], turn.pick)
            ),
            out.i.payload.id.eq(_chosen(common.ids if common else range(self.managers), turn.pick)),
        ]
        taken = common.taken(turn.pick) if common else turn.pick
        m.d.comb += [o.ready.eq(taken[i] & take) for i, o in enumerate(offers)]
        waits = comb(m, f"{name}_waits", (turn.ask & ~Mux(take, taken, 0)).any())
        return _Grants(out, waits, out.i.valid & out.i.ready, turn.pick)

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
        self, m: Module, ports: list[ManagerPort], common: "CommonReads | None"
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
                to, mine = getattr(port, into), number == i
                if common and name == "r" and i % MANAGERS == 0:
                    mine = (number == 0) & common.owned[i // MANAGERS]
                m.d.comb += [to.valid.eq(valid & mine), to.payload.eq(payload)]
            if common and name == "r":
                m.d.comb += common.ends.eq(valid & (number == 0) & payload.last)
        return buses, come


def _connect(m: Module, source: wiring.PureInterface, sink: wiring.PureInterface) -> None:
    """A stream from its source to its sink."""
    m.d.comb += [sink.payload.eq(source.payload), sink.valid.eq(source.valid), source.ready.eq(sink.ready)]


class _Grants(NamedTuple):
    """Grants of one kind."""

    out: Slice
    waits: Signal  # a burst on offer is not granted
    granted: Value
    pick: Value  # of the managers, whose burst is next


COMMON_LOG2 = 6  # largest logarithm of the cores of a group


def common_members() -> dict[str, wiring.Member]:
    """Inputs that say what cores read together."""
    ends = dict.fromkeys(("common_base", "common_limit"), In(COMMON_BITS))
    return {"common_log2": In(range(COMMON_LOG2 + 1)), **ends}


class CommonReads:
    """Reads of LXEs that go to memory once for a group of cores.

    asks : of each manager, whether its read may be granted · ids : the ID of each manager's reads
    owned : bits of the cores that take the beats of the oldest burst with ID 0 · ends : its last beat comes
    """

    def __init__(self, arbiter: Arbiter, m: Module, ports: list[ManagerPort]):
        p = arbiter.p
        self.cores, self.m = p.cores, m
        self.ids = [i if i % MANAGERS else 0 for i in range(len(ports))]
        offers = [port.reads for port in ports]
        own = offers[::MANAGERS]
        self.owners = m.submodules.owners = SyncFIFOBuffered(width=p.cores, depth=OWNERS)
        self.owned, self.ends = self.owners.r_data, Signal(name="common_ends")
        m.d.comb += self.owners.r_en.eq(self.ends)
        # The ports hold for each read whether a group makes it, and find it again in the cycle in which the inputs
        # have changed. `log2` goes with what they hold.
        inputs = {name: getattr(arbiter, name) for name in common_members()}
        held = {name: Signal.like(value, name=f"{name}_held") for name, value in inputs.items()}
        log2, self.changed = Signal.like(held["common_log2"], name="log2"), Signal(name="common_changed")
        m.d.sync += [
            *(held[name].eq(value) for name, value in inputs.items()),
            self.changed.eq(Cat(held[name] != value for name, value in inputs.items()).any()),
            log2.eq(held["common_log2"]),
        ]
        for port in ports[::MANAGERS]:
            m.d.comb += [
                port.common.on.eq(held["common_log2"].any()),
                port.common.base.eq(held["common_base"]),
                port.common.limit.eq(held["common_limit"]),
                port.changed.eq(self.changed),
            ]
        self.inside = Cat(port.inside for port in ports[::MANAGERS])  # a burst is read by a group
        same = [
            comb(m, f"same{i}", a.valid & b.valid & (a.payload.as_value() == b.payload.as_value()))
            for i, (a, b) in enumerate(pairwise(own))
        ]
        self.groups = [[self._group(i, k) for i in range(p.cores)] for k in range(COMMON_LOG2 + 1)]
        agreed = Signal(p.cores, name="agreed")
        self.agree = Signal(p.cores, name="agree")  # all of the group offer the burst, since a cycle
        each = [
            self._chosen(log2, [Cat(same[some.start : some.stop - 1]).all() for some in (of[i] for of in self.groups)])
            for i in range(p.cores)
        ]
        m.d.comb += agreed.eq(Cat(o.valid & all_ for o, all_ in zip(own, each, strict=True)))
        may = self.owners.w_rdy & ~self.changed
        self.asks = [
            o.valid if i % MANAGERS else o.valid & may & (~self.inside[c] | self.agree[c])
            for i, (o, c) in enumerate((o, i // MANAGERS) for i, o in enumerate(offers))
        ]
        self.log2, self.agreed = log2, agreed

    def _group(self, core: int, log2: int) -> range:
        first = core >> log2 << log2
        return range(first, min(first + (1 << log2), self.cores))

    @staticmethod
    def _chosen(log2: Signal, values: list[Value]) -> Value:
        """The value for a logarithm."""
        out = values[-1]
        for k, value in reversed(list(enumerate(values[:-1]))):
            out = Mux(log2 == k, value, out)
        return out

    def _takers(self, pick: Value) -> Signal:
        """The cores whose reads are granted with the one that `pick` names, if it is an LXE's."""
        masks = []
        for core in range(self.cores):
            whole = self._chosen(self.log2, [sum(1 << c for c in of[core]) for of in self.groups])
            masks.append(Mux(self.inside[core], whole, 1 << core))
        return comb(self.m, "takers", _chosen(masks, pick[::MANAGERS]), self.cores)

    def taken(self, pick: Value) -> Value:
        """The managers whose reads are granted."""
        self.takers = self._takers(pick)
        own = (self.takers[i // MANAGERS] if i % MANAGERS == 0 else pick[i] for i in range(MANAGERS * self.cores))
        return Cat(own)

    def note(self, pick: Value, granted: Value) -> None:
        """Keep who takes the beats of a burst that is granted. What was granted is agreed no more, and nothing is when
        the inputs have changed, so that no group is granted what another has agreed to.
        """
        lxe = pick[::MANAGERS].any() & granted
        self.m.d.comb += [self.owners.w_data.eq(self.takers), self.owners.w_en.eq(lxe)]
        gone = Mux(self.changed, (1 << self.cores) - 1, Mux(lxe, self.takers, 0))
        self.m.d.sync += self.agree.eq(self.agreed & ~gone)


def _chosen(words: Iterable[Value | int], pick: Value) -> Value:
    """The word whose bit of `pick` is set."""
    return reduce(or_, (Mux(pick[i], word, 0) for i, word in enumerate(words)))
