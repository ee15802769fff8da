"""Proof about the interleaver: each burst goes to the port of its address, and each answer comes from the port due.

Unbounded, for every manager and all ports within AXI4's rules: offers stay until taken, and a port answers its bursts
in order, once they and the beats of a write have come. Two ports, and orders of two bursts.
"""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from openvrex.hdl.bus.interleaver import Interleaver
from openvrex.hdl.params import SystemParams

PORTS = 2
_AHEAD = 3  # bits of the counts of bursts
_LATE = 3  # cycles until an order shows a burst at its output


class InterleaverMonitor(wiring.Component):
    """An interleaver between a free manager and two free ports: its reads ("r"), beats ("w") or responses ("b").

    One burst is marked, at any time. Bursts before it are counted at the manager and at its port, so that it is known
    which beats belong to it.

    With `reach` it claims instead that no port has a beat or takes one while the other's is due. That must fail.
    """

    def __init__(self, p: SystemParams, kind: str, reach: bool = False):
        self.p, self.kind, self.reach = p, kind, reach
        own = ("ar_valid", "aw_valid", "w_valid", "w_last", "r_ready", "b_ready", "ar_port", "aw_port", "mark")
        each = ("ar_ready", "aw_ready", "w_ready", "r_valid", "r_last", "b_valid")
        super().__init__({**dict.fromkeys(own, In(1)), **dict.fromkeys(each, In(PORTS))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.unit = unit = Interleaver(self.p)
        i, to = unit.i, list(unit.to)
        bit = self.p.core.lxe.burst_bytes.bit_length() - 1
        claims: list[tuple[Value, str]] = []
        for name in ("ar", "aw"):
            here, valid, port = getattr(i, name), getattr(self, f"{name}_valid"), getattr(self, f"{name}_port")
            m.d.comb += [here.valid.eq(valid), here.payload.addr[bit].eq(port)]
            self._keeps(m, here, port, Assume, name)
            for j, out in enumerate(getattr(x, name) for x in to):
                m.d.comb += out.ready.eq(getattr(self, f"{name}_ready")[j])
                claims.append(
                    (~out.valid | (out.payload.addr[bit] == j), f"a burst at another port than its own: {name}")
                )
                self._keeps(m, out, out.payload.addr[bit], Assert, f"{name}{j}")
        m.d.comb += [i.w.valid.eq(self.w_valid), i.w.payload.last.eq(self.w_last)]
        self._keeps(m, i.w, self.w_last, Assume, "w")
        for j, x in enumerate(to):
            m.d.comb += x.w.ready.eq(self.w_ready[j])
        m.d.comb += [i.r.ready.eq(self.r_ready), i.b.ready.eq(self.b_ready)]

        can = []  # of each port: whether a burst is there, and whether a beat of it can go
        for j, x in enumerate(to):
            asked = self._count(m, f"asked{j}", _moves(x.ar), _ends(x.r))
            begun = self._count(m, f"begun{j}", _moves(x.aw), _ends(x.w))
            owed = self._count(m, f"owed{j}", _ends(x.w), _moves(x.b))
            m.d.comb += [
                x.r.valid.eq(self.r_valid[j] & asked.any()),
                x.r.payload.last.eq(self.r_last[j]),
                x.b.valid.eq(self.b_valid[j] & owed.any()),
            ]
            claims.append((~x.w.valid | begun.any(), "a beat without a burst at its port"))
            can.append({"r": (asked, x.r.valid), "w": (begun, x.w.ready), "b": (owed, x.b.valid)}[self.kind])
        own, outs = getattr(i, self.kind), [getattr(x, self.kind) for x in to]
        bursts = "ar" if self.kind == "r" else "aw"
        ends = _moves if self.kind == "b" else _ends
        ports = [(getattr(x, bursts), ends(out), out) for x, out in zip(to, outs, strict=True)]
        due, mine = self._marked(m, "marked", (getattr(i, bursts), ends(own)), ports)
        here = own.valid if self.kind == "w" else own.ready
        if self.reach:
            other = Cat(burst.any() & can_go for burst, can_go in can).any() & ~mine.any()
            m.d.comb += Assert(~(due & here & other), "no other port can go on while the one that is due waits")
            return m
        moved = Cat(_moves(out) for out in outs)
        claims += [
            (mine.any() == (due & _moves(own)), "an answer or beat out of its turn"),
            ((moved & (moved - 1)) == 0, "two ports at once"),
            (moved.any() == _moves(own), "an answer or beat is lost, or one too many"),
        ]
        # Nothing waits for longer than an order takes, if every port with a burst can go on.
        able = Cat(~burst.any() | can_go for burst, can_go in can).all() & Cat(burst.any() for burst, _ in can).any()
        waits = Signal(range(_LATE + 2))
        m.d.sync += waits.eq(Mux(able & here & ~_moves(own), waits + 1, 0))
        claims.append((waits <= _LATE, "it stands still"))
        m.d.comb += [Assert(holds, what) for holds, what in claims]
        return m

    def _keeps(self, m: Module, stream: wiring.PureInterface, payload: Value, check: type, name: str) -> None:
        """An offer stays until it is taken."""
        held, before = Signal(name=f"{name}_held"), Signal(len(payload), name=f"{name}_before")
        m.d.sync += [held.eq(stream.valid & ~stream.ready), before.eq(payload)]
        holds = ~held | (stream.valid & (before == payload))
        m.d.comb += check(holds) if check is Assume else check(holds, f"an offer is withdrawn or changed: {name}")

    def _count(self, m: Module, name: str, up: Value, down: Value) -> Signal:
        """Difference of the events `up` and `down` so far."""
        s = Signal(_AHEAD, name=name)
        m.d.sync += s.eq(s + up - down)
        return s

    def _marked(
        self,
        m: Module,
        name: str,
        own: tuple[wiring.PureInterface, Value],
        ports: list[tuple[wiring.PureInterface, Value, wiring.PureInterface]],
    ) -> tuple[Signal, Value]:
        """Follows one burst: whether it is the manager's oldest, and what moves for it at each port.

        own : bursts of the manager, and the event that one is over · ports : the same of each port, and what moves
        """
        bursts, over = own
        number = self._count(m, f"{name}_number", _moves(bursts), over)  # in flight at the manager
        marked, left, sent = (Signal(name=f"{name}_{n}") for n in ("marked", "left", "sent"))
        ahead = Signal(_AHEAD, name=f"{name}_ahead")  # bursts before the marked one, at the manager
        inside = Signal(2, name=f"{name}_inside")  # bursts before it in the slice
        gone = Cat(_moves(at) for at, _, _ in ports).any()
        marks = _moves(bursts) & self.mark & ~marked
        waiting = self._count(m, f"{name}_waiting", _moves(bursts), gone)
        with m.If(marks):
            m.d.sync += [marked.eq(1), ahead.eq(number - over), inside.eq(waiting - gone)]
        due = Signal(name=f"{name}_due")
        m.d.comb += due.eq(marked & ~left & (ahead == 0))
        with m.If(marked & ~left & over):
            m.d.sync += ahead.eq(ahead - 1)
            with m.If(due):
                m.d.sync += left.eq(1)
        with m.If(marked & ~sent & gone):
            m.d.sync += inside.eq(inside - 1)
            with m.If(inside == 0):
                m.d.sync += sent.eq(1)
        mine = []
        for j, (at, ends, moving) in enumerate(ports):
            flying = self._count(m, f"{name}_flying{j}", _moves(at), ends)
            here, before = Signal(name=f"{name}_here{j}"), Signal(_AHEAD, name=f"{name}_before{j}")
            with m.If(_moves(at) & marked & ~sent & (inside == 0)):
                m.d.sync += [here.eq(1), before.eq(flying - ends)]
            with m.Elif(here & ends):
                m.d.sync += [before.eq(before - 1), here.eq(before != 0)]
            mine.append(here & (before == 0) & _moves(moving))
        return due, Cat(*mine)


def _moves(stream: wiring.PureInterface) -> Value:
    return stream.valid & stream.ready


def _ends(stream: wiring.PureInterface) -> Value:
    return _moves(stream) & stream.payload.last
