"""Dynamic KV cache retrieval engine: HCU, WTU and KVMU joined, their tables in memory."""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from openvrex.golden.function_params import BUDGET_BITS
from openvrex.golden.program.isa import ADDR_BITS
from openvrex.hdl.bus.axi import manager_signature
from openvrex.hdl.memory import collect_errors
from openvrex.hdl.params import DreParams, WtuParams, bits_for
from openvrex.hdl.retrieval.cluster_set import ClusterSet
from openvrex.hdl.retrieval.hcu import Hcu
from openvrex.hdl.retrieval.hcu_state import SWITCH, joined_layout, token_layout
from openvrex.hdl.retrieval.kvmu import Kvmu
from openvrex.hdl.retrieval.kvmu_layouts import burst_layout, move_layout, placed_layout, sharing_members
from openvrex.hdl.retrieval.row_check import RowCheck, score_layout
from openvrex.hdl.retrieval.table_port import TablePort
from openvrex.hdl.retrieval.wtu import Wtu
from openvrex.hdl.unit import Composite


def setting_members(p: DreParams) -> dict[str, wiring.Member]:
    """Inputs that the host sets; keep them stable while the DRE works."""
    k = p.kvmu
    return {
        "th_hd": In(p.hcu.distance_bits),
        "ratio": In(17),
        "device_base": In(k.addr_bits),
        "home_base": In(k.addr_bits),
        "table_base": In(ADDR_BITS),
        "blocks": In(bits_for(k.blocks + 1)),
        "contexts": In(bits_for(k.n_ctx + 1)),
        **sharing_members(k),
        **({"first_context": In(bits_for(k.n_ctx))} if k.shared else {}),
    }


def refused_layout() -> data.StructLayout:
    """Why the DRE takes nothing more. `range`: a context that has no table. `length`: a row that its context lacks."""
    return data.StructLayout({"range": 1, "length": 1})


class Dre(Composite):
    """Turns key hash bits and scores into the bursts that fetch what attention needs (Fig. 10, steps 2, 4 and 5).

    Keys come in on `k` and go through the HCU. Each result goes to `t` and to the KVMU, which places the entry. Rows of
    scores come in on `s`, each `wtu.readings` times in a row, since a WTU keeps none. They go to the N_WTU-h WTU cores
    in turn. The cluster set joins their selections per query
    block, and the KVMU lists the bursts of the set on `b`. Selections of the next block wait until the set is listed.

    Contexts. A key names its context, and all that the DRE knows of a context is in memory
    (`golden.retrieval.table_layout`). A SWITCH on `k` reads the token counts of a context into the WTUs. It waits until
    all rows that have begun or are on offer are selected and their sets listed, and no row begins until its reply on
    `w` is taken: each row meets one context. Offer rows of the new context once that reply is taken; one that comes
    earlier may still be of the old context. A context of more than `counts` clusters streams its counts from memory for
    every reading. All its rows go to the first WTU core, and it must get no key between its SWITCH and its rows.

    Order: a SWITCH reads the counts with every key before it on `k`. The fetch of a set covers the entries that are at
    home when it reaches each cluster. To make it cover exactly those of the keys so far, offer further keys after the
    set's last burst.

    Wrong input. A beat of `k` whose context is not below `contexts`, or with `kvmu.shared` is below `first_context`,
    stays on `k`, and so do all behind it, until a reset. The same holds on `s` for a word that makes a row longer or
    shorter than its context (`hdl.retrieval.row_check.RowCheck`). So no stream reaches memory outside the tables, rings
    and blocks of the contexts that the host named.

    After a fault of the table port the DRE begins nothing more. While `stop` is high it begins no access to memory;
    once `busy` is low, a reset is safe for the bus. Tables in memory outlive a reset.

    Corner cases: those of `Hcu` (full table), `Wtu` (Sum 0), `ClusterSet` (empty set) and `Kvmu` (no free block).

    Parameters
    ----------
    p : DreParams

    Members
    -------
    k : In(stream of `hdl.retrieval.hcu.token_layout`) : key hash bits, or CLEAR or SWITCH of a context
    th_hd : In : Th_hd, as in `Hcu`
    t : Out(stream of `hdl.retrieval.hcu.joined_layout`) : answers of the HCU, one a beat of `k`
    s : In(stream of `score_layout`) : rows of scores, one code per cluster of the context; each row `wtu.readings`
        times, the same each time
    ratio : In(17) : Th_r-wics in units of 2^-16
    budgeted : In(1), if `WtuParams.budget` : as in `hdl.retrieval.wtu.Wtu`
    budget : In(24), if `WtuParams.budget` : as in `hdl.retrieval.wtu.Wtu`
    w, x, b : Out : replies (one a beat of `k`), offloads and bursts, as in `Kvmu`
    device_base, home_base, blocks, quota : In : as in `Kvmu`
    table_base : In(40) : first byte of the tables, a multiple of 4,096
    contexts : In : contexts whose tables, rings and blocks have memory, 0 to n_ctx; keep it stable
    first_context : In, with `kvmu.shared` : contexts below are another user's
    refused : Out(`refused_layout`) : high while a beat of `k` or a word of `s` on offer is refused
    bus : Out(`hdl.bus.axi.manager_signature`) : AXI4 manager of the tables
    stop, busy, bus_error : as in `hdl.retrieval.table_port.TablePort`
    perf : Out(struct of 32-bit counters) : those of the units, named unit.counter

    Latency: the sum of the units'; 1 cycle more from a WTU's beat to the set for a row that starts on an empty DRE.
    Throughput: that of the slowest unit; keys and rows proceed side by side. A key takes
        at most 2 * clusters comparisons in the HCU. A SWITCH takes a latency of memory, and a cycle for each
        word of n_w counts, `counts` at most.
    Raises: `ParamError` from `DreParams`.
    Source: V-Rex sections V-A and V-B, Fig. 10.
    """

    def __init__(self, p: DreParams):
        super().__init__(
            p.joined(),
            {
                "k": In(stream.Signature(token_layout(p.hcu))),
                "t": Out(stream.Signature(joined_layout(p.hcu))),
                "s": In(stream.Signature(score_layout(p.wtu))),
                **({"budgeted": In(1), "budget": In(BUDGET_BITS)} if p.wtu.budget else {}),
                "w": Out(stream.Signature(placed_layout(p.kvmu))),
                "x": Out(stream.Signature(move_layout(p.kvmu))),
                "b": Out(stream.Signature(burst_layout(p.kvmu))),
                **setting_members(p),
                "refused": Out(refused_layout()),
                "bus": Out(manager_signature(p.table.bus_bytes)),
                "stop": In(1),
                "busy": Out(1),
                "bus_error": Out(1),
            },
            *(unit.protect for unit in (p.hcu, p.wtu, p.kvmu, p.table)),
        )

    @staticmethod
    def units(p: DreParams) -> list[tuple[str, type, object]]:
        """Instance name, class and parameters of every unit inside."""
        wtus = [(f"wtu{i}", Wtu, p.wtu) for i in range(p.wtu.n_h)]
        return [
            ("hcu", Hcu, p.hcu),
            *wtus,
            ("cluster_set", ClusterSet, p.wtu),
            ("kvmu", Kvmu, p.kvmu),
            ("table_port", TablePort, p),
        ]

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.hcu = hcu = Hcu(p.hcu)
        m.submodules.cluster_set = union = ClusterSet(p.wtu)
        m.submodules.kvmu = kvmu = Kvmu(p.kvmu)
        m.submodules.table_port = tables = TablePort(p)
        wtus = [Wtu(p.wtu) for _ in range(p.wtu.n_h)]
        for i, wtu in enumerate(wtus):
            m.submodules[f"wtu{i}"] = wtu
            m.d.comb += wtu.ratio.eq(self.ratio)
            if p.wtu.budget:
                m.d.comb += [wtu.budgeted.eq(self.budgeted), wtu.budget.eq(self.budget)]
        self._check_contexts(m, hcu)
        for name in ("w", "x", "b"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(kvmu, name))
        m.d.comb += [
            hcu.th_hd.eq(self.th_hd),
            kvmu.device_base.eq(self.device_base),
            kvmu.home_base.eq(self.home_base),
            kvmu.blocks.eq(self.blocks),
            *([kvmu.quota.eq(self.quota)] if p.kvmu.shared else []),
        ]
        self._reach_memory(m, hcu, kvmu, tables)
        rolls = self._share_counts(m, kvmu, wtus)
        # Rows go to the cores in turn. The fields that only the cluster set needs wait in `tags`, in row order.
        tags = m.submodules.tags = SyncFIFOBuffered(width=_tag_layout(p.wtu).size, depth=4 * len(wtus) + 1)
        switches = Signal()  # a SWITCH has been offered to the KVMU and is not replied to: no row begins
        self._give_rows(m, self._check_rows(m, kvmu, switches), wtus, tags, rolls)
        self._join_rows(m, wtus, tags, union, rolls)
        # `level` counts a row from the cycle behind its first word, `r_rdy` would a cycle later.
        self._share_results(m, hcu, kvmu, ~tags.level.any() & union.idle & ~self.s.valid, switches)
        self._list_set(m, union, kvmu)
        parts = [hcu, *wtus, union, kvmu, tables]
        collect_errors(m, self, parts)
        self._pass_counters(m, {name: part for (name, _, _), part in zip(self.units(p), parts, strict=True)})
        return m

    def _check_contexts(self, m: Module, hcu: Hcu) -> None:
        """Gives the HCU the beats of `k`, but none of a context that has no table or is another user's."""
        outside = self.k.payload.ctx >= self.contexts
        if self.p.kvmu.shared:
            outside |= self.k.payload.ctx < self.first_context
        m.d.comb += [
            self.refused.range.eq(self.k.valid & outside),
            hcu.i.payload.eq(self.k.payload),
            hcu.i.valid.eq(self.k.valid & ~self.refused.range),
            self.k.ready.eq(hcu.i.ready & ~self.refused.range),
        ]

    def _check_rows(self, m: Module, kvmu: Kvmu, switches: Signal) -> wiring.PureInterface:
        """Returns the stream of the rows that are as long as the context of the last SWITCH has clusters.

        A row that has begun meets no `switches`, so that every word may wait for them.
        """
        m.submodules.row_check = check = RowCheck(self.p.wtu)
        m.d.comb += [
            check.i.payload.eq(self.s.payload),
            check.i.valid.eq(self.s.valid & ~switches),
            self.s.ready.eq(check.i.ready & ~switches),
            check.switches.eq(kvmu.a.valid & kvmu.a.ready & (kvmu.a.payload.op == SWITCH)),
            check.clusters.eq(kvmu.a.payload.clusters),
            self.refused.length.eq(check.refuses),
        ]
        return check.o

    def _reach_memory(self, m: Module, hcu: Hcu, kvmu: Kvmu, tables: TablePort) -> None:
        """Connects the units' clients to the table port, and the port to the bus."""
        wiring.connect(m, hcu.m, tables.hcu)
        wiring.connect(m, kvmu.m, tables.kvmu)
        wiring.connect(m, tables.bus, wiring.flipped(self.bus))
        m.d.comb += [
            tables.table_base.eq(self.table_base),
            tables.stop.eq(self.stop),
            self.busy.eq(tables.busy),
            self.bus_error.eq(tables.bus_error),
        ]

    def _share_results(self, m: Module, hcu: Hcu, kvmu: Kvmu, listed: Value, switches: Signal) -> None:
        """Gives each answer of the HCU to `t` and to the KVMU: each takes it once, as soon as it can.

        The KVMU gets a SWITCH once all sets of the context before are listed and no row is on offer.
        """
        joined = hcu.o.payload
        may_switch = Signal()
        held = Signal()  # the KVMU was offered the answer, and keeps the offer
        switching = Signal()  # it has taken a SWITCH
        m.d.comb += [
            may_switch.eq((joined.op != SWITCH) | listed | held),
            # In the first cycle of the offer no row is on offer, so it need not be stopped.
            switches.eq((held & (joined.op == SWITCH)) | switching),
        ]
        with m.If(kvmu.a.valid & kvmu.a.ready & (joined.op == SWITCH)):
            m.d.sync += switching.eq(1)
        with m.Elif(self.w.valid & self.w.ready & (self.w.payload.op == SWITCH)):
            m.d.sync += switching.eq(0)
        m.d.sync += held.eq(kvmu.a.valid & ~kvmu.a.ready)
        takers = [(self.t, 1), (kvmu.a, may_switch)]
        taken = Signal(len(takers))
        served = Signal(len(takers))
        m.d.comb += hcu.o.ready.eq(served.all())
        for i, (taker, may) in enumerate(takers):
            m.d.comb += [
                taker.valid.eq(hcu.o.valid & ~taken[i] & may),
                served[i].eq(taken[i] | (taker.ready & may)),
            ]
        with m.If(hcu.o.valid):
            m.d.sync += taken.eq(Mux(served.all(), 0, taken | served))
        m.d.comb += [
            self.t.payload.eq(joined),
            # The KVMU's op codes are the HCU's.
            *(kvmu.a.payload[name].eq(joined[name]) for name in kvmu.a.payload.shape().members),
        ]

    def _list_set(self, m: Module, union: ClusterSet, kvmu: Kvmu) -> None:
        """Hands the clusters of a set to the KVMU, with the context of the last SWITCH."""
        ctx = Signal(bits_for(self.p.kvmu.n_ctx))
        with m.If(kvmu.a.valid & kvmu.a.ready & (kvmu.a.payload.op == SWITCH)):
            m.d.sync += ctx.eq(kvmu.a.payload.ctx)
        m.d.comb += [
            kvmu.f.valid.eq(union.o.valid),
            union.o.ready.eq(kvmu.f.ready),
            kvmu.f.payload.ctx.eq(ctx),
            *(kvmu.f.payload[name].eq(union.o.payload[name]) for name in union.o.payload.shape().members),
        ]

    def _share_counts(self, m: Module, kvmu: Kvmu, wtus: list[Wtu]) -> Signal:
        """Gives the words of counts to every WTU; those that come round and round only to the first.

        Returns whether the counts of the context come so. The WTUs have room for every word that the KVMU asks for.
        """
        rolls = Signal()
        m.d.comb += [kvmu.c_free.eq(Cat(wtu.idle for wtu in wtus).all()), kvmu.c_used.eq(wtus[0].used)]
        for i, wtu in enumerate(wtus):
            m.d.comb += [
                wtu.c.valid.eq(kvmu.c.valid & (kvmu.c.keep if i else 1)),
                *(wtu.c.payload[name].eq(kvmu.c[name]) for name in ("counts", "first", "keep")),
            ]
        if self.p.kvmu.clusters > self.p.kvmu.counts:
            with m.If(kvmu.a.valid & kvmu.a.ready & (kvmu.a.payload.op == SWITCH)):
                m.d.sync += rolls.eq(kvmu.a.payload.clusters > self.p.kvmu.counts)
        return rolls

    def _give_rows(
        self,
        m: Module,
        rows: wiring.PureInterface,
        wtus: list[Wtu],
        tags: SyncFIFOBuffered,
        rolls: Signal,
    ) -> None:
        """Sends all readings of a row to the core whose turn it is, and its tag into `tags` with its first word."""
        readings = self.p.wtu.readings
        tag_in = Signal(_tag_layout(self.p.wtu))
        turn = Signal(range(max(2, len(wtus))), name="give_turn")
        give = Signal.like(turn, name="give")  # the core whose row it is
        reading = Signal(range(max(2, readings)))  # number of the reading
        first = Signal(init=1)  # the next word is the first of its row
        open_ = Signal()  # the word may go: its row's tag has a place
        row_moves = Signal()
        row = rows.payload.row
        m.d.comb += [
            open_.eq(~first | tags.w_rdy),
            row_moves.eq(rows.valid & rows.ready),
            tag_in.set_last.eq(rows.payload.set_last),
            tags.w_data.eq(tag_in),
            tags.w_en.eq(row_moves & first),
            give.eq(Mux(rolls, 0, turn)),
        ]
        with m.If(row_moves & row.last):
            m.d.sync += [reading.eq(reading + 1), first.eq(0)]
            with m.If(reading == readings - 1):
                m.d.sync += [reading.eq(0), first.eq(1), turn.eq(_next_turn(turn, wtus, rolls))]
        with m.Elif(row_moves):
            m.d.sync += first.eq(0)
        for i, wtu in enumerate(wtus):
            m.d.comb += [wtu.i.payload.eq(row), wtu.i.valid.eq(rows.valid & open_ & (give == i))]
            with m.If(give == i):
                m.d.comb += rows.ready.eq(wtu.i.ready & open_)

    def _join_rows(self, m: Module, wtus: list[Wtu], tags: SyncFIFOBuffered, union: ClusterSet, rolls: Signal) -> None:
        """Sends the selections to the cluster set, row by row in the order of their arrival."""
        turn = Signal(range(max(2, len(wtus))), name="take_turn")
        take = Signal.like(turn, name="take")  # the core whose row is next
        tag = data.View(_tag_layout(self.p.wtu), tags.r_data)
        beat_moves = Signal()
        m.d.comb += [
            beat_moves.eq(union.i.valid & union.i.ready),
            union.i.payload.set_last.eq(tag.set_last),
            take.eq(Mux(rolls, 0, turn)),
        ]
        for i, wtu in enumerate(wtus):
            with m.If(take == i):
                m.d.comb += [
                    union.i.valid.eq(wtu.o.valid & tags.r_rdy),
                    union.i.payload.addr.eq(wtu.o.payload.addr),
                    union.i.payload.mask.eq(wtu.o.payload.mask),
                    union.i.payload.row_last.eq(wtu.o.payload.last),
                    wtu.o.ready.eq(union.i.ready & tags.r_rdy),
                    tags.r_en.eq(beat_moves & wtu.o.payload.last),
                ]
        with m.If(tags.r_en):
            m.d.sync += turn.eq(_next_turn(turn, wtus, rolls))


def _next_turn(turn: Signal, wtus: list[Wtu], rolls: Signal) -> Value:
    """The core behind the one whose turn it is; a context whose counts come round and round stays with the first."""
    return Mux(rolls, turn, Mux(turn == len(wtus) - 1, 0, turn + 1))


def _tag_layout(p: WtuParams) -> data.StructLayout:
    """The fields of a row that the cluster set needs and a WTU core does not."""
    return data.StructLayout({"set_last": 1})
