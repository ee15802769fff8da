"""Interleaver: deals the bursts of one manager to the memory ports of a system, by address."""

from functools import reduce
from operator import or_

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from openvrex.hdl.bus.axi import address_layout, manager_signature
from openvrex.hdl.named import comb
from openvrex.hdl.params import SystemParams, bits_for
from openvrex.hdl.queues import WRITES, dealt_bursts
from openvrex.hdl.slices import Slice


class Interleaver(wiring.Component):
    """Deals bursts to ports by address: each has every `ports`-th piece of burst_bytes, the first one the first piece.

    A burst crosses no multiple of burst_bytes, so all of it goes to one port. Answers of a port come in the order of
    its bursts, and the manager gets those of all ports in the order of all its bursts, as AXI4 asks for one ID.

        manager            port 0   port 1
          ar -> slice -+--> ar       ar        which port: address / burst_bytes mod ports
                       +-> order of reads
          r  <---------- chosen by its oldest: r of that port, until `last`

    Writes are dealt in the same way, with one order for w and one for b.

    No wait closes a circle: of a manager's bursts that are not over, the oldest has none before it in its port's
    buffers, so its beats have room, and its answers are due. A group that reads together does so in one order at every
    port.

    Corner cases: with all orders full a burst waits, whichever its port.

    Parameters
    ----------
    p : SystemParams with `ports` of 2 or more

    Members
    -------
    i : In(`hdl.bus.axi.manager_signature`) : the manager
    to : Out(array of ports of the same) : to each port's arbiter

    Latency: 1 cycle from `ar` and `aw` to a port; a beat of `w` goes 3 cycles after its `aw` at the earliest; none from
        `r` and `b` of a port. Exact in `sim.units.arbiter_time`.
    Throughput: a burst and a beat in each direction every cycle; `hdl.queues.dealt_bursts` reads, and as many writes,
        are in flight at most.
    Raises: nothing.
    Source: this project's own; AXI4 (ARM IHI 0022) A5.3: answers of one ID come in order.
    """

    def __init__(self, p: SystemParams):
        self.p = p
        bus = manager_signature(p.core.lxe.bus_bytes)
        super().__init__({"i": In(bus), "to": Out(bus).array(p.ports)})

    def elaborate(self, platform):
        m, most = Module(), dealt_bursts(self.p)
        reads, beats, writes = (
            self._order(m, name, depth) for name, depth in (("reads", most), ("beats", WRITES), ("writes", most))
        )
        self._deal(m, "ar", [reads])
        self._deal(m, "aw", [beats, writes])
        self._collect(m, "r", reads, self.i.r.payload.last)
        self._collect(m, "b", writes, 1)
        self._send(m, beats)
        return m

    def _order(self, m: Module, name: str, depth: int) -> SyncFIFOBuffered:
        """The ports of the bursts that are not over, oldest first."""
        m.submodules[name] = fifo = SyncFIFOBuffered(width=bits_for(self.p.ports), depth=depth)
        return fifo

    def _deal(self, m: Module, name: str, orders: list[SyncFIFOBuffered]) -> None:
        """Passes each burst to the port of its address, and notes the port."""
        waiting = m.submodules[name] = Slice(address_layout())
        wiring.connect(m, wiring.flipped(getattr(self.i, name)), waiting.i)
        within = self.p.core.lxe.burst_bytes.bit_length() - 1
        port = waiting.o.payload.addr[within : within + bits_for(self.p.ports)]
        may = comb(m, f"{name}_may", waiting.o.valid & Cat(order.w_rdy for order in orders).all())
        outs = [getattr(to, name) for to in self.to]
        for j, out in enumerate(outs):
            m.d.comb += [out.payload.eq(waiting.o.payload), out.valid.eq(may & (port == j))]
        goes = comb(m, f"{name}_goes", Cat(out.valid & out.ready for out in outs).any())
        m.d.comb += waiting.o.ready.eq(goes)
        for order in orders:
            m.d.comb += [order.w_data.eq(port), order.w_en.eq(goes)]

    def _due(self, m: Module, name: str, order: SyncFIFOBuffered) -> list[Signal]:
        """For each port, whether its burst is the oldest."""
        ports = range(self.p.ports)
        return [comb(m, f"{name}_due{j}", order.r_rdy & (order.r_data == j)) for j in ports]

    def _collect(self, m: Module, name: str, order: SyncFIFOBuffered, last: Value | int) -> None:
        """Gives the manager the answers of the port that is due; `last` ends a burst."""
        own, outs = getattr(self.i, name), [getattr(to, name) for to in self.to]
        due = self._due(m, name, order)
        m.d.comb += [out.ready.eq(is_due & own.ready) for out, is_due in zip(outs, due, strict=True)]
        m.d.comb += [
            own.valid.eq(Cat(out.valid & is_due for out, is_due in zip(outs, due, strict=True)).any()),
            own.payload.as_value().eq(
                reduce(or_, (Mux(is_due, out.payload.as_value(), 0) for out, is_due in zip(outs, due, strict=True)))
            ),
            order.r_en.eq(own.valid & own.ready & last),
        ]

    def _send(self, m: Module, order: SyncFIFOBuffered) -> None:
        """Passes beats of writes to the port of their burst."""
        own, outs = self.i.w, [to.w for to in self.to]
        due = self._due(m, "w", order)
        for out, is_due in zip(outs, due, strict=True):
            m.d.comb += [out.payload.eq(own.payload), out.valid.eq(own.valid & is_due)]
        m.d.comb += [
            own.ready.eq(Cat(out.ready & is_due for out, is_due in zip(outs, due, strict=True)).any()),
            order.r_en.eq(own.valid & own.ready & own.payload.last),
        ]
