"""Retriever: executes RETRIEVEs, which set registers from the DRE's results and copy entries in memory."""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.function_params import BUDGET_BITS
from openvrex.golden.program.isa import ADDR_BITS, Retrieve
from openvrex.hdl.instruction_layouts import done_layout, retrieve_layout, set_layout
from openvrex.hdl.memory import collect_errors
from openvrex.hdl.params import CoreParams, bits_for
from openvrex.hdl.ram_fifo import RamFifo
from openvrex.hdl.retrieval.copier import Copier, bus_signature
from openvrex.hdl.retrieval.feeder import order_layout
from openvrex.hdl.retrieval.hcu_state import CLEAR, JOIN, SWITCH, joined_layout
from openvrex.hdl.retrieval.kvmu_layouts import APPEND, burst_layout, move_layout, placed_layout
from openvrex.hdl.unit import Unit


def fault_layout() -> data.StructLayout:
    """Pulses. `bus`: an error response. `range`: an instruction out of range. `full`: the KVMU has no block for an
    entry.
    """
    return data.StructLayout({"bus": 1, "range": 1, "full": 1})


class Retriever(Unit):
    """Executes RETRIEVEs, one at a time: hands on the DRE's clusters, copies entries between device and home memory.

    Instructions come in on `c` and end in order with a pulse on `done`; results go to registers through `retrieve_set`.

    CLUSTER takes the next token's cluster, and tells how many clusters its context has. PLACE copies entries to where
    the KVMU's replies say; before each entry it makes the move that the KVMU asks for. FETCH copies the bursts of a
    cluster set, one behind the other. CLEAR and SWITCH send an order to the DRE, wait until the HCU and then the KVMU
    have answered it, and tell how many clusters the context has (before a CLEAR). BUDGET, only with `wtu.budget`, is a
    SWITCH that also gives the WTU a budget of tokens; a SWITCH takes it away.

    Copies overlap (`hdl.retrieval.copier.Copier`). A move must read its slot of the ring after the slot's last entry
    was written and before the next one is. Before the first move behind `recent` entries the retriever therefore waits
    for all responses.

    Packed homes: with `kvmu.kv4_group` a move packs its entry into a quarter of the bytes, and FETCH expands what it
    copies (`hdl.retrieval.kv4_codec`). Bursts on `b` have the packed bytes. A beat of BF16 numbers then takes several
    cycles: at the `core` preset, in groups of 32, 2 when it comes back and 50 when it goes home.

    Kept blocks, with `kvmu.kept`: a burst with `near` is read at `to`, in device memory. When all bursts of a FETCH
    have come, those with `keep` are copied from where they went to `to`, one after the other, and then the FETCH is
    done. A fault in between leaves places that do not hold what the tables say: as after any fault, clear the context.

    Users who share, with `kvmu.shared`: before the answer to a CLEAR the KVMU asks for blocks to be wiped. Their beats
    are read and written back as zeros, and the CLEAR ends when all is written. On `bus` a burst is `named` if its
    address comes from the instruction: where PLACE reads, where FETCH writes.

    Faults: an error response; an address that is no multiple of 2 * lanes bytes (PLACE, FETCH); a context that the DRE
    does not have (CLEAR, SWITCH); an unknown action; a reply that is `full`; a set of more entries than FETCH has rows.
    After a fault the retriever begins nothing more. While `stop` is high it begins no burst, sends the rest of a burst
    with strb 0, and drops the beats and responses that come. Once `busy` is low, a reset is safe for the bus.

    Corner cases: an instruction with `skip` is done at once. An empty set ends FETCH without a copy. R0 is never set.
    An answer waits for an instruction of its kind: a SWITCH with a key's result before its own waits for ever. An order
    that is on offer when `stop` rises stays on offer.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    c : In(stream of `hdl.instruction_layouts.retrieve_layout`) : instructions; `skip`: done at once
    t : In(stream of `hdl.retrieval.hcu.joined_layout`) : results of the HCU, in the order of the CLUSTERs, CLEARs and
        SWITCHes that take them
    w, x, b : In(streams of `hdl.retrieval.kvmu.placed_layout`, `move_layout`, `burst_layout`) : the KVMU's replies,
        each behind its move; bases and lengths are multiples of 2 * lanes bytes
    order : Out(stream of `hdl.retrieval.feeder.order_layout`) : CLEARs and SWITCHes
    budgeted : Out(1), if `wtu.budget` : rows take a budget, from the KVMU's answer to a BUDGET or SWITCH on
    budget : Out(24), if `wtu.budget` : its tokens less one
    retrieve_set : Out(`hdl.instruction_layouts.set_layout`) : pulses: registers, never R0; the last comes with `done`
    bus : Out(`hdl.retrieval.copier.bus_signature`) : AXI4
    done : Out(`hdl.instruction_layouts.done_layout`) : in the cycle after the instruction if it has `skip`
    fault : Out(`fault_layout`) : one pulse until a reset
    stop : In(1) : begin nothing, finish what has begun
    busy : Out(1) : a burst is in flight
    perf : Out(struct of 32-bit counters) : instructions (done), moves, entries, fetches (bursts of the KVMU), reads,
        writes (bursts on the bus), beats (written), waits (cycles in which a read waits for room)

    Latency: a result, a move, a reply or a burst can be taken in the cycle after the instruction; CLUSTER is done 2
        cycles after its result. An order is offered in the cycle after the instruction, the HCU's answer can be taken
        1 cycle after the order, the KVMU's 1 later, and the instruction is done 1 cycle after that. Copies as in
        `Copier`, then 2 cycles from the last response to `done`, 3 for FETCH, 4 with `kvmu.kept`. Exact in
        `sim.units.retriever_time.RetrieverTime`.
    Throughput: CLUSTER 4 cycles, CLEAR and SWITCH 5, and a CLEAR what it wipes besides; a copied beat a cycle, across
        copies. At the `core` preset an entry of 512 bytes is 8 beats.
    Raises: `ParamError` where the DRE and the LXE do not fit together.
    Source: `golden.program.isa.Retrieve`; V-Rex section V-C, Fig. 12.
    """

    COUNTERS = ("instructions", "moves", "entries", "fetches", *Copier.counters())

    def __init__(self, p: CoreParams):
        p.core_format()  # checks
        k = p.dre.kvmu
        mode = {"budgeted": Out(1), "budget": Out(BUDGET_BITS)} if p.dre.wtu.budget else {}
        super().__init__(
            p,
            {
                "c": In(stream.Signature(retrieve_layout())),
                "t": In(stream.Signature(joined_layout(p.dre.hcu))),
                "w": In(stream.Signature(placed_layout(k))),
                "x": In(stream.Signature(move_layout(k))),
                "b": In(stream.Signature(burst_layout(k))),
                "order": Out(stream.Signature(order_layout(p))),
                **mode,
                "retrieve_set": Out(set_layout()),
                "bus": Out(bus_signature(p)),
                "done": Out(done_layout()),
                "fault": Out(fault_layout()),
                "stop": In(1),
                "busy": Out(1),
            },
            p.lxe.protect,
        )

    @staticmethod
    def timing(p: CoreParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {
            "cluster_interval": "4",
            "order_interval": "5",
            "order_latency": "1 from a CLEAR or SWITCH to its order, 1 from the reply to done",
            "read_latency": "2 from a move, reply or burst to its first burst on the bus",
            "write_latency": "2 from a burst's last beat read to its first written",
            "interval": f"{p.dre.kvmu.entry_bytes // p.lxe.bus_bytes} cycles an entry",
        }

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.copier = copier = Copier(p)
        wiring.connect(m, copier.bus, wiring.flipped(self.bus))
        work, to = _Work(p), _Registers()
        collect_errors(m, self, [copier, *([work.keeps] if p.dre.kvmu.kept else [])])
        m.d.sync += work.failed.eq(work.failed | self.fault.as_value().any())
        if p.dre.kvmu.kept:
            m.submodules.keeps = work.keeps
        self._copies(m, copier, work)
        with m.FSM():
            with m.State("IDLE"):
                self._begin(m, work)
            with m.State("CLUSTER"):
                self._take_cluster(m, work, to)
            with m.State("SET"):
                self._set(m, work, work.work.to, to.value)
                with m.If(work.works):
                    m.next = "LEVEL"
            with m.State("LEVEL"):
                self._set(m, work, work.work.level, to.count)
                m.d.comb += self.done.valid.eq(work.works)
                with m.If(work.works):
                    m.next = "IDLE"
            with m.State("PLACE"):
                self._place(m, copier, work)
            with m.State("FETCH"):
                self._fetch(m, copier, work)
            if p.dre.kvmu.kept:
                with m.State("KEEP"):
                    self._keep(m, copier, work)
            with m.State("END"):
                with m.If(work.works & copier.ended):
                    m.d.sync += [to.value.eq(work.entries), to.count.eq(work.entries << work.work.shift)]
                    m.next = "SET"
                    with m.If(work.work.action == Retrieve.PLACE):
                        m.next = "DONE"
            with m.State("ORDER"):
                self._order(m, work)
                with m.If(self.order.ready):
                    m.next = "RESULT"
            with m.State("RESULT"):
                m.d.comb += self.t.ready.eq(work.works & self.t.valid & (self.t.payload.op != JOIN))
                with m.If(self.t.ready):
                    m.d.sync += to.count.eq(self.t.payload.clusters)
                    m.next = "REPLY"
            with m.State("REPLY"):
                answers = work.works & self.w.valid & (self.w.payload.op != APPEND)
                if p.dre.kvmu.shared:
                    self._wipe(m, copier, work)
                    answers &= ~self.x.valid & copier.ended
                m.d.comb += self.w.ready.eq(answers)
                with m.If(self.w.ready):
                    m.next = "LEVEL"
                    if p.dre.wtu.budget:
                        with m.If(work.work.action != Retrieve.CLEAR):
                            m.d.sync += self.budgeted.eq(work.work.action == Retrieve.BUDGET)
                            m.d.sync += self.budget.eq(work.rows)
            with m.State("DONE"):
                m.d.comb += self.done.valid.eq(work.works)
                with m.If(work.works):
                    m.next = "IDLE"
            with m.State("BAD"):
                m.d.comb += self.fault.range.eq(work.works)
        self._count_events(m, copier, work)
        return m

    def _copies(self, m: Module, copier: Copier, work: "_Work") -> None:
        """Runs the copier until a fault or `stop`, and counts entries as their beats come.

        If blocks are kept, entries count with their burst: a block that comes from device memory may have more beats.
        """
        p = self.p
        entry_beats = p.dre.kvmu.home_bytes // p.lxe.bus_bytes  # of FETCH, which reads at home
        if not p.dre.kvmu.kept:
            with m.If(copier.read):
                m.d.sync += work.beat.eq(work.beat + 1)
                with m.If(work.beat == entry_beats - 1):
                    m.d.sync += [work.beat.eq(0), work.entries.eq(work.entries + 1)]
        m.d.comb += [
            work.works.eq(~work.failed & ~self.stop),
            copier.go.eq(work.works),
            copier.stop.eq(self.stop),
            copier.i.payload.words.eq((work.length >> self._shift) - 1),
            self.fault.bus.eq(copier.bus_error),
            self.busy.eq(copier.busy),
            self.done.signal.eq(work.work.signal),
        ]

    @property
    def _shift(self) -> int:
        """Bits by which bytes are shifted to words."""
        return (2 * self.p.dpe.n_w).bit_length() - 1

    def _begin(self, m: Module, work: "_Work") -> None:
        """Takes an instruction; one that is out of range leads to BAD."""
        c, k = self.c.payload, self.p.dre.kvmu
        takes = Signal()
        m.d.comb += [self.c.ready.eq(work.works), takes.eq(work.works & self.c.valid)]
        with m.If(takes):
            m.d.sync += [
                work.work.eq(c),
                work.at.eq(c.addr),
                work.rows.eq(c.rows),
                work.since.eq(0),
                work.beat.eq(0),
                work.entries.eq(0),
            ]
            m.d.sync += work.room.eq((c.rows + 1) * k.home_bytes)
            if k.kept:
                m.d.sync += work.keeping.eq(0)
            with m.Switch(c.action):
                for action in Retrieve:
                    if action == Retrieve.BUDGET and not self.p.dre.wtu.budget:
                        continue
                    with m.Case(action):
                        m.next = action.name if action < Retrieve.CLEAR else "ORDER"
                with m.Default():
                    m.next = "BAD"
            addresses = (c.action == Retrieve.PLACE) | (c.action == Retrieve.FETCH)
            with m.If(addresses & c.addr[: self._shift].any()):
                m.next = "BAD"
            contexts = (c.action == Retrieve.CLEAR) | (c.action == Retrieve.SWITCH)
            if self.p.dre.wtu.budget:
                contexts |= c.action == Retrieve.BUDGET
            with m.If(contexts & (c.addr >= k.n_ctx)):
                m.next = "BAD"
            with m.If(c.skip):
                m.next = "DONE"

    def _take_cluster(self, m: Module, work: "_Work", to: "_Registers") -> None:
        t = self.t.payload
        m.d.comb += self.t.ready.eq(work.works & self.t.valid & (t.op == JOIN))
        with m.If(self.t.ready):
            m.d.sync += [to.value.eq(work.work.addr + (t.cluster << work.work.shift)), to.count.eq(t.clusters)]
            m.next = "SET"

    def _order(self, m: Module, work: "_Work") -> None:
        """Offers the order of a CLEAR or SWITCH."""
        m.d.comb += [
            self.order.valid.eq(1),
            self.order.payload.op.eq(Mux(work.work.action == Retrieve.CLEAR, CLEAR, SWITCH)),
            self.order.payload.ctx.eq(work.work.addr),
        ]

    def _set(self, m: Module, work: "_Work", register: Value, value: Signal) -> None:
        """Sets a register, unless it is R0."""
        pulse = self.retrieve_set
        m.d.comb += [pulse.valid.eq(work.works & register.any()), pulse.to.eq(register), pulse.data.eq(value)]

    def _place(self, m: Module, copier: Copier, work: "_Work") -> None:
        """Copies an entry to its place, and before it the entry that moves home."""
        k, copies, copy, works, placed = self.p.dre.kvmu, copier.i, copier.i.payload, work.works, work.placed
        with m.If(works & self.x.valid & (work.since != k.recent)):
            m.d.comb += [
                copies.valid.eq(1),
                copy.src.eq(self.x.payload.src),
                copy.dst.eq(self.x.payload.dst),
                self.x.ready.eq(copies.ready),
                work.moves.eq(copies.ready),
            ]
            if k.kv4_group:
                m.d.comb += copy.packs.eq(1)
        with m.Elif(works & self.x.valid & copier.ended):
            m.d.sync += work.since.eq(0)
        with m.Elif(works & ~self.x.valid & self.w.valid & (self.w.payload.op == APPEND)):
            m.d.comb += [
                self.fault.full.eq(self.w.payload.full),
                copies.valid.eq(~self.w.payload.full),
                copy.src.eq(work.at),
                *([copy.from_named.eq(1)] if k.shared else []),
                copy.dst.eq(self.w.payload.device),
                self.w.ready.eq(copies.ready & ~self.w.payload.full),
                placed.eq(self.w.ready),
            ]
        with m.If(placed):
            m.d.sync += [work.at.eq(work.at + k.entry_bytes), work.rows.eq(work.rows - 1)]
            with m.If(work.since != k.recent):
                m.d.sync += work.since.eq(work.since + 1)
            with m.If(work.rows == 0):
                m.next = "END"

    def _wipe(self, m: Module, copier: Copier, work: "_Work") -> None:
        """Wipes a block of the context that is cleared."""
        copies = copier.i
        with m.If(work.works & self.x.valid):
            m.d.comb += [
                copies.valid.eq(1),
                copies.payload.src.eq(self.x.payload.src),
                copies.payload.dst.eq(self.x.payload.dst),
                copies.payload.wipes.eq(1),
                work.length.eq(self.p.dre.kvmu.block_bytes),
                self.x.ready.eq(copies.ready),
            ]

    def _fetch(self, m: Module, copier: Copier, work: "_Work") -> None:
        """Copies a burst of the set to the address at which the burst before it ended."""
        b, copies, works, at, room = self.b.payload, copier.i, work.works, work.at, work.room
        fits = Signal()
        size = b.bytes  # on the device
        if self.p.dre.kvmu.kv4_group:
            size = b.bytes << 2
            m.d.comb += copies.payload.expands.eq(~b.near if self.p.dre.kvmu.kept else 1)
        m.d.comb += [
            fits.eq(b.bytes <= room),
            self.fault.full.eq(works & self.b.valid & ~b.empty & ~fits),
            copies.valid.eq(works & self.b.valid & ~b.empty & fits),
            copies.payload.src.eq(Mux(b.near, b.to, b.addr) if self.p.dre.kvmu.kept else b.addr),
            copies.payload.dst.eq(at),
            *([copies.payload.to_named.eq(1)] if self.p.dre.kvmu.shared else []),
            work.length.eq(size),
            # Not of `fits`, which comes late: a burst without room is a fault, so it may go.
            self.b.ready.eq(works & self.b.valid & (copies.ready | b.empty)),
            work.fetched.eq(copies.valid & copies.ready),
        ]
        with m.If(work.fetched):
            m.d.sync += [at.eq(at + size), room.eq(room - b.bytes)]
            if self.p.dre.kvmu.kept:  # an entry is a power of two of bytes
                entry = self.p.dre.kvmu.home_bytes.bit_length() - 1
                m.d.sync += work.entries.eq(work.entries + (b.bytes >> entry))
        if self.p.dre.kvmu.kept:
            m.d.comb += [
                work.keeps.w_en.eq(work.fetched & b.keep),
                work.keeps.w_data.eq(Cat(at, work.length, b.to)),
            ]
            m.d.sync += work.many.eq(work.many + work.keeps.w_en)
        with m.If(self.b.ready & b.last):
            m.next = "KEEP" if self.p.dre.kvmu.kept else "END"

    def _keep(self, m: Module, copier: Copier, work: "_Work") -> None:
        """Copies the blocks that are to be kept to their places, once all have come."""
        copies, keeps, works = copier.i, work.keeps.o, work.works
        with m.If(works & copier.ended):
            m.d.sync += work.keeping.eq(1)
        with m.If(works & (work.many == 0)):
            m.next = "END"
        with m.If(works & work.keeping & keeps.valid):
            m.d.comb += [
                copies.valid.eq(1),
                Cat(copies.payload.src, work.length, copies.payload.dst).eq(keeps.payload),
                *([copies.payload.from_named.eq(1)] if self.p.dre.kvmu.shared else []),
                keeps.ready.eq(copies.ready),
            ]
        with m.If(keeps.valid & keeps.ready):
            m.d.sync += work.many.eq(work.many - 1)

    def _count_events(self, m: Module, copier: Copier, work: "_Work") -> None:
        self._count_later(
            m,
            instructions=self.done.valid,
            moves=work.moves,
            entries=work.placed,
            fetches=work.fetched,
        )
        for name in copier.counters():
            m.d.comb += self.perf[name].eq(copier.perf[name])


class _Work:
    """The current instruction."""

    def __init__(self, p: CoreParams):
        k, c = p.dre.kvmu, retrieve_layout()
        self.work = Signal(c)
        self.works = Signal()  # no fault and no `stop`: the instruction goes on
        self.failed = Signal()
        # Of entries that are packed at home, `length` counts BF16 numbers, and `room` what is at home.
        longest = max(k.entry_bytes, k.boundary * k.entry_bytes // k.home_bytes)  # at least a block, if users share
        self.length = Signal(bits_for(longest + 1), init=k.entry_bytes)  # bytes of a copy
        self.at = Signal(ADDR_BITS)  # address to copy the next entry from (PLACE) or to (FETCH)
        self.rows = Signal(c["rows"].width)  # rows after this one
        self.since = Signal(bits_for(k.recent + 1))  # entries copied since all responses had come
        self.beat = Signal(range(max(2, k.entry_bytes // p.lxe.bus_bytes)))
        self.entries = Signal(bits_for(k.blocks * k.block_slots + 1))  # entries fetched
        self.room = Signal(bits_for(k.home_bytes << c["rows"].width) + 1)  # bytes left for entries to fetch
        self.moves = Signal()
        self.placed = Signal()
        self.fetched = Signal()
        if k.kept:
            most = k.map_sizes().keeps * max(1, k.block_bytes // k.boundary)
            width = ADDR_BITS + k.addr_bits + len(self.length)
            self.keeps = RamFifo(width, most, p.lxe.protect)  # source, place and bytes of bursts to be kept
            self.many = Signal(bits_for(most + 1))  # of them
            self.keeping = Signal()  # they are copied


class _Registers:
    """Values for registers: an address or a count, and a number of clusters."""

    def __init__(self):
        self.value = Signal(ADDR_BITS)
        self.count = Signal(ADDR_BITS)
