"""Proof of how the DRE joins its units: no row meets another context's SWITCH, and nothing is lost or doubled between.

The units are free: their outputs change in every cycle, except that what they offer stays until it is taken, and that a
WTU ends a selection only behind the last word of its row, as is proved of each. So whatever HCU, WTU, cluster set, KVMU
and table port do,

* while a SWITCH goes to the KVMU, no row is under way: none that has begun has still to be joined, and none begins
  until the reply is taken; as the KVMU takes it, no word is on offer to the row check
* each row, in all its readings, goes to one WTU, and its selection is taken from there, in the order of the rows, with
  the end of set that came with the row
* each answer of the HCU goes to `t` once and to the KVMU once, unchanged, before the next one comes

With the equalities of the units to their specifications, for every stall and answer of memory
(`tb.formal.hcu_equality`, `wtu_equality`, `cluster_set_equality`, `kvmu_join_proof`), this makes the DRE's function
that of golden's units called one after the other (`golden.retrieval`).
"""

from unittest.mock import patch

from amaranth import Cat, Instance, Module, Mux, Signal, Value
from amaranth.hdl import Assert
from amaranth.lib.fifo import SyncFIFOBuffered

from openvrex.hdl.params import DreParams
from openvrex.hdl.retrieval import dre
from openvrex.hdl.retrieval.cluster_set import ClusterSet
from openvrex.hdl.retrieval.dre import Dre
from openvrex.hdl.retrieval.hcu import Hcu
from openvrex.hdl.retrieval.hcu_state import SWITCH
from openvrex.hdl.retrieval.kvmu import Kvmu
from openvrex.hdl.retrieval.table_port import TablePort
from openvrex.hdl.retrieval.wtu import Wtu
from openvrex.tb.formal.free_unit import free

ROWS = 3  # in flight
Claims = tuple[Value, list[tuple[Value, str]]]  # the case that must occur, and what is claimed


class WatchedDre(Dre):
    """A DRE of free units, with the claims above.

    claim : "rows", "order" or "answers"
    reach : claims instead that the event never happens: a SWITCH behind rows that have been joined; a row that is
        joined behind another; an answer that `t` takes before the KVMU. That must fail
    """

    def __init__(self, p: DreParams, claim: str, reach: bool = False):
        super().__init__(p)
        self.claim, self.reach = claim, reach

    def _give_rows(self, m, rows, wtus, *rest):
        super()._give_rows(m, rows, wtus, *rest)
        self.rows, self.wtus = rows, wtus

    def _check_rows(self, m, kvmu, switches):
        rows = super()._check_rows(m, kvmu, switches)
        self.check = m.submodules.row_check
        return rows

    def _join_rows(self, m, wtus, tags, union, rolls):
        super()._join_rows(m, wtus, tags, union, rolls)
        self.union = union

    def _share_results(self, m, hcu, kvmu, *rest):
        super()._share_results(m, hcu, kvmu, *rest)
        self.hcu, self.kvmu = hcu, kvmu

    def elaborate(self, platform):
        parts = {unit.__name__: free(unit) for unit in (Hcu, Wtu, ClusterSet, Kvmu, TablePort)}
        parts["SyncFIFOBuffered"] = lambda width, depth: SyncFIFOBuffered(width=width, depth=ROWS)
        with patch.multiple(dre, **parts):
            m = super().elaborate(platform)
        lies = self._lies(m)
        cases, claims = {"rows": self._rows, "order": self._order, "answers": self._answers}[self.claim](m)
        claims = [(~cases, "the case")] if self.reach else claims
        m.d.comb += [Assert(lies | claim, what) for claim, what in claims]
        return m

    def _lies(self, m: Module) -> Value:
        """Whether a WTU has ended a selection before its row was whole."""
        lied, lies = Signal(), Signal(len(self.wtus))
        *_, whole = self._flight(m)
        for k, wtu in enumerate(self.wtus):
            owed = Signal(range(ROWS + 2), name=f"owed{k}")
            comes, goes = wtu.i.valid & wtu.i.ready & whole, wtu.o.valid & wtu.o.ready & wtu.o.payload.last
            m.d.sync += owed.eq(owed + comes - goes)
            m.d.comb += lies[k].eq(wtu.o.valid & wtu.o.payload.last & (owed == 0))
        m.d.sync += lied.eq(lied | lies.any())
        return lied | lies.any()

    def _flight(self, m: Module) -> tuple[Value, Value, Signal, Signal, Value]:
        """A row begins, one is joined; rows between; whether the next word is the first of a row, or its last."""
        row, joins = self.rows.payload.row, self.union.i
        begins, ends, first = Signal(), Signal(), Signal(init=1)
        flight, reading = Signal(range(ROWS + 2)), Signal(range(self.p.wtu.readings + 1))
        moves = self.rows.valid & self.rows.ready
        m.d.comb += [begins.eq(moves & first), ends.eq(joins.valid & joins.ready & joins.payload.row_last)]
        m.d.sync += flight.eq(flight + begins - ends)
        whole = row.last & (reading == self.p.wtu.readings - 1)
        with m.If(moves):
            m.d.sync += [first.eq(whole), reading.eq(Mux(whole, 0, reading + row.last))]
        return begins, ends, flight, first, whole

    def _rows(self, m: Module) -> Claims:
        begins, _, flight, first, _ = self._flight(m)
        a, w, seen, waits = self.kvmu.a, self.w, Signal(), Signal()
        switches = a.valid & a.ready & (a.payload.op == SWITCH)
        replies = w.valid & w.ready & (w.payload.op == SWITCH)
        m.d.sync += [seen.eq(seen | begins), waits.eq(switches | (waits & ~replies))]
        return switches & seen, [
            (~switches | ((flight == 0) & first & ~begins), "a SWITCH meets a row"),
            (~(switches & self.check.i.valid), "a word comes with a SWITCH"),
            (~waits | ~begins, "a row begins before the reply to a SWITCH"),
        ]

    def _order(self, m: Module) -> Claims:
        """Follows any one row."""
        begins, ends, flight, first, _ = self._flight(m)
        rows, joins, watch = self.rows, self.union.i, Signal()
        m.submodules += Instance("$anyseq", p_WIDTH=1, o_Y=watch)
        gives = Cat(wtu.i.valid & wtu.i.ready for wtu in self.wtus)
        takes = Cat(wtu.o.valid & wtu.o.ready for wtu in self.wtus)
        follows, behind, core = Signal(), Signal(), Signal(len(self.wtus))
        ahead, set_last = Signal.like(flight), Signal()
        moves, joined = rows.valid & rows.ready, joins.valid & joins.ready
        with m.If(begins & watch & ~follows):
            m.d.sync += [follows.eq(1), core.eq(gives), set_last.eq(rows.payload.set_last)]
            m.d.sync += [ahead.eq(flight - ends), behind.eq(flight != 0)]
        with m.Elif(follows):
            m.d.sync += [ahead.eq(ahead - (ends & (ahead != 0))), follows.eq(~(ends & (ahead == 0)))]
        mine = follows & joined & (ahead == 0)
        inside = moves & ~first  # a word of a row that has begun
        newest = Signal(len(self.wtus))  # the WTU of the row that is being given
        with m.If(begins):
            m.d.sync += newest.eq(gives)
        one = [(gives == 1 << i) for i in range(len(self.wtus))]
        words = [~w.i.valid | (w.i.payload.as_value() == rows.payload.row.as_value()) for w in self.wtus]
        selected = [
            ~(w.o.valid & w.o.ready)
            | (
                (joins.payload.addr == w.o.payload.addr)
                & (joins.payload.mask == w.o.payload.mask)
                & (joins.payload.row_last == w.o.payload.last)
            )
            for w in self.wtus
        ]
        return mine & behind, [
            (~moves | Cat(one).any(), "a word goes to one WTU"),
            (moves | ~gives.any(), "a WTU gets a word twice"),
            (~inside | (gives == newest), "a row goes to two WTUs"),
            (Cat(words).all() & Cat(selected).all(), "a word or a selection changes"),
            (joined == takes.any(), "a selection is lost"),
            (~ends | (flight != 0), "a row is joined that has not begun"),
            (~mine | ((takes == core) & (joins.payload.set_last == set_last)), "a row is joined as another"),
        ]

    def _answers(self, m: Module) -> Claims:
        o, a, t = self.hcu.o, self.kvmu.a, self.t
        names = a.payload.shape().members
        had_a, had_t = Signal(), Signal()
        to_a, to_t, gone = a.valid & a.ready, t.valid & t.ready, o.valid & o.ready
        m.d.sync += [had_a.eq(~gone & (had_a | to_a)), had_t.eq(~gone & (had_t | to_t))]
        return had_t & to_a, [
            (~(to_a & had_a) & ~(to_t & had_t), "an answer goes twice"),
            (~gone | ((to_a | had_a) & (to_t | had_t)), "an answer is lost"),
            (o.valid | ~(to_a | to_t), "an answer that is not there"),
            (~to_t | (t.payload.as_value() == o.payload.as_value()), "the answer on `t` changes"),
            (~to_a | Cat(a.payload[name] == o.payload[name] for name in names).all(), "the KVMU's answer changes"),
        ]
