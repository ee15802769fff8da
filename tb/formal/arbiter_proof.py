"""Proofs about the arbiter: a manager's port always has room for what was granted, and turns are fair.

A port takes every answer and response at once. It has every beat of a granted write when that is due, and withdraws no
burst that it offers. A manager that asks until it is picked is picked before any other is picked twice. The proofs are
unbounded. Inputs are free within AXI4's rules: the memory answers only what it was asked for, and a manager sends as
many beats as it has announced.
"""

from types import SimpleNamespace

from amaranth import Cat, Module, Mux, Signal
from amaranth.hdl import Assert
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In

from openvrex.hdl.bus.arbiter import MANAGERS, CommonReads, RoundRobin, common_members
from openvrex.hdl.bus.axi import address_layout
from openvrex.hdl.bus.manager_port import COMMON_LAYOUT, COMMON_PAGE, ManagerPort, find_inside
from openvrex.hdl.params import SystemParams


class PortMonitor(wiring.Component):
    """A port between free inputs, with bursts of one or two beats.

    With `reach` it claims instead that at most one answer waits. That claim must fail, or the proof is vacuous.
    """

    def __init__(self, p: SystemParams, reach: bool = False):
        self.p, self.reach = p, reach
        ones = (
            "ar",
            "aw",
            "long_read",
            "w",
            "last",
            "grant_read",
            "grant_write",
            "send",
            "answer",
            "respond",
            "r",
            "b",
        )
        super().__init__({**dict.fromkeys(ones, In(1)), "addr": In(2)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.port = port = ManagerPort(self.p)
        depth, most = port.read_depth + port.write_depth, 8

        def count(name, up, down, high):
            """Difference of the events `up` and `down` so far."""
            s = Signal(range(high + 1), name=name)
            m.d.sync += s.eq(s + up - down)
            return s

        def moves(stream):
            return stream.valid & stream.ready

        granted_read, granted_write = moves(port.reads), moves(port.writes)
        beats = Mux(granted_read, port.reads.payload.len + 1, 0)
        asked = count("asked", beats, port.answers.valid, depth)
        owed = count("owed", granted_write, port.responses.valid, most)
        due = count("due", granted_write, moves(port.beats) & port.beats.payload.last, most)  # in bursts
        m.d.comb += [
            *(getattr(port, n).valid.eq(getattr(self, n)) for n in ("ar", "aw", "w")),
            port.ar.payload.len.eq(self.long_read),
            port.ar.payload.addr.eq(self.addr),
            port.aw.payload.addr.eq(self.addr),
            port.w.payload.last.eq(self.last),
            port.reads.ready.eq(self.grant_read),
            port.writes.ready.eq(self.grant_write),
            port.beats.ready.eq(self.send & (due != 0)),
            port.answers.valid.eq(self.answer & (asked != 0)),
            port.responses.valid.eq(self.respond & (owed != 0)),
            port.r.ready.eq(self.r),
            port.b.ready.eq(self.b),
        ]
        if self.reach:
            waiting = count("waiting", port.answers.valid, moves(port.r), depth)
            m.d.comb += Assert(waiting < 2)
            return m
        m.d.comb += [
            Assert(~port.answers.valid | port.answers.ready, "an answer is not taken"),
            Assert(~port.responses.valid | port.responses.ready, "a response is not taken"),
            Assert(~port.beats.ready | port.beats.valid, "a beat is not there"),
        ]
        for name in ("reads", "writes"):
            stream = getattr(port, name)
            held, before = Signal(name=f"{name}_held"), Signal(3, name=f"{name}_before")
            bits = stream.payload.addr[:2]
            m.d.sync += [held.eq(stream.valid & ~stream.ready), before.eq(bits)]
            m.d.comb += Assert(~held | (stream.valid & (before == bits)), f"{name} is withdrawn or changed")
        return m


class TurnMonitor(wiring.Component):
    """`n` managers that ask until they are picked: none is picked twice while another waits.

    With `reach` it claims instead that not all others are picked while the first waits. That claim must fail.
    """

    def __init__(self, n: int, reach: bool = False):
        self.n, self.reach = n, reach
        super().__init__({"begin": In(n), "take": In(1)})

    def elaborate(self, platform):
        m, n = Module(), self.n
        m.submodules.turn = turn = RoundRobin(n)
        waits, takes = Signal(n), Signal(n)  # those who already asked in the cycle before, those who are picked
        m.d.comb += [
            turn.ask.eq(waits | self.begin),
            turn.take.eq(self.take),
            takes.eq(turn.pick & self.take.replicate(n)),
        ]
        m.d.sync += waits.eq(turn.ask & ~takes)
        for i in range(n):
            gone = Signal(n, name=f"gone{i}")  # those who were picked while i waits
            m.d.sync += gone.eq(Mux(turn.ask[i] & ~takes[i], gone | takes, 0))
            if self.reach:
                m.d.comb += Assert(~gone[1:].all(), "not all others are picked before the first")
                return m
            m.d.comb += Assert((takes & gone) == 0, f"one is picked twice while {i} waits")
        m.d.comb += [
            Assert((turn.pick & (turn.pick - 1)) == 0, "two are picked"),
            Assert((turn.pick & ~turn.ask) == 0, "one is picked that does not ask"),
            Assert(turn.pick.any() == turn.ask.any(), "nobody is picked"),
        ]
        return m


class CommonMonitor(wiring.Component):
    """LXEs that offer reads until these are granted: what a group reads together is granted to all of it, or to none.

    The inputs that say what is common change freely; those of two cycles before count. With `reach` it claims instead
    that no two cores are ever granted a read together. That claim must fail.
    """

    def __init__(self, p: SystemParams, reach: bool = False):
        self.p, self.reach = p, reach
        ones = {"begin": In(p.cores), "page": In(p.cores), "low": In(p.cores), "take": In(1), "ends": In(1)}
        super().__init__(ones | common_members())

    def elaborate(self, platform):
        m, n = Module(), self.p.cores
        ports, ready = [], []
        for i in range(MANAGERS * n):
            offer = stream.Signature(address_layout()).create(path=(f"offer{i}",))
            ports.append(SimpleNamespace(reads=offer))
            if i % MANAGERS:
                continue
            core = i // MANAGERS
            port, coming = ports[-1], Signal(address_layout(), name=f"coming{core}")
            port.common, port.changed = Signal(COMMON_LAYOUT, name=f"common{core}"), Signal(name=f"changed{core}")
            port.inside = Signal(name=f"inside{core}")
            m.d.comb += [coming.addr[COMMON_PAGE].eq(self.page[core]), coming.addr[4].eq(self.low[core])]
            find_inside(m, port, coming)
            addr = Signal(2, name=f"addr{core}")  # a bit of the page, and one below it
            ready.append(offer.ready)
            m.d.comb += [offer.payload.addr[COMMON_PAGE].eq(addr[1]), offer.payload.addr[4].eq(addr[0])]
            held = Signal(name=f"held{core}")
            m.d.comb += offer.valid.eq(held)
            with m.If(~held | offer.ready):
                m.d.sync += [held.eq(self.begin[core]), addr[1].eq(self.page[core]), addr[0].eq(self.low[core])]
        common = CommonReads(self, m, ports)
        m.submodules.turn = turn = RoundRobin(MANAGERS * n)
        taken = common.taken(turn.pick)
        granted = turn.ask.any() & self.take
        m.d.comb += [
            turn.ask.eq(Cat(common.asks)),
            turn.take.eq(self.take),
            *(port.reads.ready.eq(taken[i] & self.take) for i, port in enumerate(ports)),
            common.ends.eq(self.ends & common.owners.r_rdy),
        ]
        common.note(turn.pick, granted)
        many = Signal()
        m.d.comb += many.eq(sum(ready) > 1)
        if self.reach:
            m.d.comb += Assert(~many, "two cores are granted a read together")
            return m
        own = [port.reads for port in ports[::MANAGERS]]
        by = Signal(COMMON_LAYOUT)  # what the ports' answers are by
        m.d.sync += by.eq(ports[0].common)
        for core in range(n):
            for log2, of in enumerate(common.groups):
                together = ready[core] & common.inside[core] & (common.log2 == log2)
                for other in of[core]:
                    same = own[other].payload.as_value() == own[core].payload.as_value()
                    what = f"{other} has no part in what {core} reads, in groups of {1 << log2}"
                    m.d.comb += Assert(~together | (ready[other] & own[other].valid & same), what)
            m.d.comb += Assert(~ready[core] | own[core].valid, f"{core} is granted what it does not ask for")
            page = own[core].payload.addr[COMMON_PAGE:]
            inside = by.on & (page >= by.base) & (page < by.limit)
            m.d.comb += Assert(~own[core].valid | (common.inside[core] == inside), f"{core} is taken for another's")
        for core in range(n):
            m.d.comb += Assert(~many | ~ready[core] | common.inside[core], f"{core} is granted the read of another")
        return m
