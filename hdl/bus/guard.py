"""Guard: keeps the bursts of a manager inside the memory that software allows (RISC-V calls such a unit an IOPMP)."""

from enum import IntEnum
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.program.isa import ADDR_BITS
from openvrex.golden.program.regions import DENIED, PAGE_BITS, Allow
from openvrex.hdl.bus.axi import connect_ports, manager_signature
from openvrex.hdl.named import comb, reg
from openvrex.hdl.params import CoreParams, bits_for
from openvrex.hdl.queues import PUTS, READS

_PAGE = ADDR_BITS - PAGE_BITS  # bits of a page's number


class Manager(IntEnum):
    """Whose bursts a port carries. The permissions of manager k are bits 2 k and 2 k + 1 of `Allow`."""

    LXE = 0
    RETRIEVER = 1
    DRE = 2


def regions_layout(p: CoreParams) -> data.ArrayLayout:
    """Regions of a core (`golden.program.regions`): first page, last page, and who may do what there."""
    return data.ArrayLayout(data.StructLayout({"first": _PAGE, "last": _PAGE, "allow": len(Allow)}), p.regions)


def refused_layout() -> data.StructLayout:
    """The first burst outside the regions: whether there is one, its kind, its `Manager` and its page."""
    return data.StructLayout({"valid": 1, "write": 1, "manager": 2, "page": _PAGE})


def region_members(p: CoreParams) -> dict[str, wiring.Member]:
    """The inputs `confine` and `regions` and the output `refused` of what has guards, if it has any."""
    members = {"confine": In(1), "regions": In(regions_layout(p)), "refused": Out(refused_layout())}
    return members if p.regions else {}


def reach_layout(regions: int, named: bool = False) -> data.ArrayLayout:
    """Regions for one manager: the first page and the last of each, and whether it may read and write there.

    named : also whether bursts that are `named` (`hdl.bus.axi.address_layout`) may
    """
    more = {"read_named": 1, "write_named": 1} if named else {}
    return data.ArrayLayout(data.StructLayout({"first": _PAGE, "last": _PAGE, "read": 1, "write": 1, **more}), regions)


class Guard(wiring.Component):
    """Stands between a manager and its port. A burst outside the regions gets an error response and goes no further.

    It needs no trust in the manager: whatever that offers, a burst on the port lies in a page of a region that allows
    it. A burst lies in one page of 4 KB (AXI4, A3.4.1; proved of all managers), so its first byte decides.
    Responses keep their order: a refused burst is taken at once, and answered behind those before it. Those behind it
    wait for its answer.

    Corner cases: regions that change while a burst is on offer count from the next burst on. A beat of W goes once its
    burst is on offer, never before. The data of a refused read are undefined.

    Parameters
    ----------
    bus_bytes : bytes of a beat
    regions : number of regions
    most : bursts that the manager has in flight at once, reads and writes each; the next one waits
    named : its bursts say whether they are `named`; those have permissions of their own

    Members
    -------
    i : In(`hdl.bus.axi.manager_signature`) : of the manager
    o : Out(`hdl.bus.axi.manager_signature`) : to the port
    confine : In(1) : whether regions count; if not, everything passes
    regions : In(`reach_layout`) : where the manager may read and write
    refused : Out(valid 1, write 1, page 28) : pulse: a burst was refused, and where it was to go

    Latency: 0; a refused burst is answered 1 cycle after those before it, a write besides after its last beat. One that
        the port could not take is refused 1 cycle later. No `ready` waits for the comparison with regions.
    Throughput: a burst and a beat each way a cycle.
    Raises: nothing.
    Source: AXI4 (ARM IHI 0022), DECERR; RISC-V IOPMP specification 1.0, section 2 (entries with a range and
        permissions); this project's own where they are silent.
    """

    def __init__(self, bus_bytes: int, regions: int, most: int, named: bool = False):
        self.most, self.named = most, named
        ports = {"i": In(manager_signature(bus_bytes, named)), "o": Out(manager_signature(bus_bytes))}
        refused = data.StructLayout({"valid": 1, "write": 1, "page": _PAGE})
        members = {"confine": In(1), "regions": In(reach_layout(regions, named)), "refused": Out(refused)}
        super().__init__(ports | members)

    def elaborate(self, platform):
        m = Module()
        refused_read, read_page = self._reads(m)
        refused_write, write_page = self._writes(m)
        m.d.comb += [
            self.refused.valid.eq(refused_read | refused_write),
            self.refused.write.eq(refused_write),
            self.refused.page.eq(Mux(refused_write, write_page, read_page)),
        ]
        return m

    def _offer(self, m: Module, name: str, kind: str, free: Value) -> tuple[Value, Signal, Value]:
        """Offers a burst of `ar` or `aw` that is inside, and takes one that is not. Returns whether a burst may be
        taken, whether one is refused, and its page.

        Whether a burst is inside comes late in a cycle, so the manager's `ready` does not wait for it: the burst is
        taken as if it were inside, or a cycle later where the port does not take it.

        free : nothing keeps a burst back. An offer stays, whatever happens meanwhile
        """
        i, o = getattr(self.i, name), getattr(self.o, name)
        page, inside = i.payload.addr[PAGE_BITS:], Signal(name=f"{kind}_inside")
        may = [Mux(i.payload.named, r[f"{kind}_named"], r[kind]) if self.named else r[kind] for r in self.regions]
        allowed = [of & (page >= r.first) & (page <= r.last) for of, r in zip(may, self.regions, strict=True)]
        offered = reg(m, f"{kind}_offered", o.valid & ~o.ready, reset_less=False)
        waits = comb(m, f"{kind}_waits", i.valid & ~i.ready)
        outside = reg(m, f"{kind}_outside", waits & free & ~o.valid, reset_less=False)  # it was, the cycle before
        takes = offered | (free & ~outside)
        m.d.comb += [
            inside.eq(~self.confine | Cat(*allowed).any()),
            o.payload.addr.eq(i.payload.addr),
            o.payload.len.eq(i.payload.len),
            o.valid.eq(i.valid & takes & (offered | inside)),
            i.ready.eq((takes & o.ready) | outside),
        ]
        return takes, comb(m, f"{kind}_refused", i.valid & i.ready & ~o.valid), page

    def _reads(self, m: Module) -> tuple[Signal, Value]:
        """AR and R: a refused read gets as many beats as it asked for, once those before it are answered."""
        i, o = self.i, self.o
        asked = Signal(bits_for(self.most + 1))  # bursts in flight
        owes, left = Signal(name="read_owes"), Signal(len(i.ar.payload.len), name="read_left")  # for a refused read
        _, refused, page = self._offer(m, "ar", "read", ~owes & (asked != self.most))
        ends = o.r.valid & o.r.ready & o.r.payload.last
        answers = comb(m, "read_answers", owes & (asked == 0))
        m.d.sync += asked.eq(asked + (o.ar.valid & o.ar.ready) - ends)
        m.d.comb += [
            i.r.valid.eq(o.r.valid | answers),
            i.r.payload.eq(o.r.payload),
            o.r.ready.eq(i.r.ready & ~answers),
        ]
        with m.If(answers):
            m.d.comb += [i.r.payload.resp.eq(DENIED), i.r.payload.last.eq(left == 0)]
            with m.If(i.r.ready):
                m.d.sync += [left.eq(left - 1), owes.eq(left != 0)]
        with m.If(refused):
            m.d.sync += [owes.eq(1), left.eq(i.ar.payload.len)]
        return refused, page

    def _writes(self, m: Module) -> tuple[Signal, Value]:
        """AW, W and B: the beats of a refused write are taken and dropped, and it gets a response."""
        i, o = self.i, self.o
        flying = Signal(bits_for(self.most + 1))  # bursts in flight
        ahead = Signal(bits_for(self.most + 2), init=1)  # bursts that went less those whose beats went, plus 1
        owes, dropped = Signal(name="write_owes"), Signal()  # for a refused write; all of its beats were dropped
        takes, refused, page = self._offer(m, "aw", "write", ~owes & (flying != self.most))
        first = comb(m, "first", ahead == 1)  # the next beat is of the burst on offer, or of a refused one
        may = comb(m, "beat_may", (ahead > 1) | (first & o.aw.valid))
        gone = comb(m, "beats_gone", o.w.valid & o.w.ready & i.w.payload.last)
        answers = comb(m, "write_answers", owes & dropped & (flying == 0))
        goes = o.aw.valid & o.aw.ready
        m.d.sync += [
            flying.eq(flying + goes - (o.b.valid & o.b.ready)),
            ahead.eq(ahead + goes - gone),
        ]
        m.d.comb += [
            o.w.valid.eq(i.w.valid & may),
            o.w.payload.eq(i.w.payload),
            i.w.ready.eq((o.w.ready & (ahead > 1)) | (first & ~dropped & (owes | (o.w.ready & i.aw.valid & takes)))),
            i.b.valid.eq(o.b.valid | answers),
            i.b.payload.resp.eq(Mux(answers, DENIED, o.b.payload.resp)),
            o.b.ready.eq(i.b.ready & ~answers),
        ]
        with m.If(i.w.valid & i.w.ready & ~o.w.valid & i.w.payload.last):
            m.d.sync += dropped.eq(1)
        with m.If(answers & i.b.ready):
            m.d.sync += [owes.eq(0), dropped.eq(0)]
        with m.If(refused):
            m.d.sync += owes.eq(1)
        return refused, page


def connect_guarded(m: Module, p: CoreParams, ports: Any, managers: dict[Manager, tuple[str, Any]]) -> None:
    """Connects managers (a prefix and a bus, `hdl.bus.axi.manager_signature`) to ports, each through a guard.

    `ports` has the AXI4 ports and `region_members`; `refused` keeps the first burst that a guard refuses. Without
    regions the managers have the ports to themselves.
    """
    most = {Manager.LXE: p.lxe.bursts, Manager.RETRIEVER: p.lxe.copies, Manager.DRE: max(READS + 1, PUTS)}
    for k, (prefix, bus) in managers.items():
        if not p.regions:
            connect_ports(m, p, ports, bus, bus, prefix)
            continue
        named = k == Manager.RETRIEVER and p.dre.kvmu.shared
        guard = m.submodules[f"{k.name.lower()}_guard"] = Guard(p.lxe.bus_bytes, p.regions, most[k], named)
        wiring.connect(m, bus, guard.i)
        connect_ports(m, p, ports, guard.o, guard.o, prefix)
        m.d.comb += guard.confine.eq(ports.confine)
        for mine, region in zip(guard.regions, ports.regions, strict=True):
            m.d.comb += [
                mine.first.eq(region.first),
                mine.last.eq(region.last),
                Cat(mine.read, mine.write).eq(region.allow[2 * k : 2 * k + 2]),
                *([Cat(mine.read_named, mine.write_named).eq(region.allow[:2])] if named else []),
            ]
        found = guard.refused
        with m.If(found.valid & ~ports.refused.valid):
            m.d.sync += ports.refused.eq(Cat(Const(1, 1), found.write, Const(int(k), 2), found.page))
