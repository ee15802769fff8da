"""Dynamic KV cache retrieval engine: HCU, WTU and KVMU joined."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hdl.memory import collect_errors
from hdl.params import DreParams, WtuParams, bits_for
from hdl.retrieval.cluster_set import ClusterSet
from hdl.retrieval.hcu import CLEAR, Hcu, joined_layout, token_layout
from hdl.retrieval.kvmu import Kvmu, burst_layout, move_layout, placed_layout
from hdl.retrieval.wtu import Wtu
from hdl.retrieval.wtu_lanes import row_layout
from hdl.unit import Composite


def score_layout(p: WtuParams) -> data.StructLayout:
    """A word of a row (`hdl.retrieval.wtu_lanes.row_layout`). `set_last`: in every word of a query block's last row."""
    return data.StructLayout({"row": row_layout(p), "set_last": 1})


class Dre(Composite):
    """Turns key hash bits and scores into the bursts that fetch what attention needs (Fig. 10, steps 2, 4 and 5).

    Keys come in on `k` and go through the HCU. Each result goes at once to `t`, to the count memories of the WTUs and
    to the KVMU, which places the entry. Rows of scores come in on `s` and go to the N_WTU-h WTU cores in turn. The
    cluster set joins their selections per query block, and the KVMU lists the bursts of the set on `b`.

    Order: rows use the counts of every key whose beat on `t` was taken before the row's first word was offered. The
    fetch of a set covers the entries that are at home when it reaches each cluster. To make it cover exactly those of
    the keys so far, offer further keys after the set's last burst.

    Corner cases: those of `Hcu` (full table), `Wtu` (Sum 0), `ClusterSet` (empty set) and `Kvmu` (no free block).

    Parameters
    ----------
    p : DreParams

    Members
    -------
    k : In(stream of `hdl.retrieval.hcu.token_layout`) : key hash bits, or CLEAR of a context
    th_hd : In : Th_hd, as in `Hcu`
    t : Out(stream of `hdl.retrieval.hcu.joined_layout`) : changes of the HC table, for Key_cluster
    s : In(stream of `score_layout`) : rows of scores, one code per cluster of the context
    ratio : In(17) : Th_r-wics in units of 2^-16
    w, x, b : Out : replies, offloads and bursts, as in `Kvmu`
    device_base, home_base : In : as in `Kvmu`
    perf : Out(struct of 32-bit counters) : those of the units, named unit.counter

    Latency: the sum of the units'; 1 cycle more from a WTU's beat to the set for a row that starts on an empty DRE.
    Throughput: that of the slowest unit; keys and rows proceed side by side. At the `core` preset a row of 1,024
        clusters with counts below 512 takes 68 + walked cycles in the WTU, and a key at most 2,048 comparisons in the
        HCU.
    Raises: `ParamError` from `DreParams`.
    Source: V-Rex sections V-A and V-B, Fig. 10.
    """

    def __init__(self, p: DreParams):
        super().__init__(
            p.joined(),
            {
                "k": In(stream.Signature(token_layout(p.hcu))),
                "th_hd": In(p.hcu.distance_bits),
                "t": Out(stream.Signature(joined_layout(p.hcu))),
                "s": In(stream.Signature(score_layout(p.wtu))),
                "ratio": In(17),
                "w": Out(stream.Signature(placed_layout(p.kvmu))),
                "x": Out(stream.Signature(move_layout(p.kvmu))),
                "b": Out(stream.Signature(burst_layout(p.kvmu))),
                "device_base": In(p.kvmu.addr_bits),
                "home_base": In(p.kvmu.addr_bits),
            },
            *(unit.protect for unit in (p.hcu, p.wtu, p.kvmu)),
        )

    @staticmethod
    def units(p: DreParams) -> list[tuple[str, type, object]]:
        """Instance name, class and parameters of every unit inside."""
        wtus = [(f"wtu{i}", Wtu, p.wtu) for i in range(p.wtu.n_h)]
        return [("hcu", Hcu, p.hcu), *wtus, ("cluster_set", ClusterSet, p.wtu), ("kvmu", Kvmu, p.kvmu)]

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.hcu = hcu = Hcu(p.hcu)
        m.submodules.cluster_set = union = ClusterSet(p.wtu)
        m.submodules.kvmu = kvmu = Kvmu(p.kvmu)
        wtus = [Wtu(p.wtu) for _ in range(p.wtu.n_h)]
        for i, wtu in enumerate(wtus):
            m.submodules[f"wtu{i}"] = wtu
            m.d.comb += wtu.ratio.eq(self.ratio)
        wiring.connect(m, wiring.flipped(self.k), hcu.i)
        for name in ("w", "x", "b"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(kvmu, name))
        m.d.comb += [
            hcu.th_hd.eq(self.th_hd),
            kvmu.device_base.eq(self.device_base),
            kvmu.home_base.eq(self.home_base),
        ]

        self._share_results(m, hcu, kvmu, wtus)
        # Rows go to the cores in turn. The fields that only the cluster set needs wait in `tags`, in row order.
        tags = m.submodules.tags = SyncFIFOBuffered(width=_tag_layout(p.wtu).size, depth=4 * len(wtus) + 1)
        self._give_rows(m, wtus, tags)
        self._join_rows(m, wtus, tags, union)
        wiring.connect(m, union.o, kvmu.f)
        parts = [hcu, *wtus, union, kvmu]
        collect_errors(m, self, parts)
        self._pass_counters(m, {name: part for (name, _, _), part in zip(self.units(p), parts, strict=True)})
        return m

    def _share_results(self, m: Module, hcu: Hcu, kvmu: Kvmu, wtus: list[Wtu]) -> None:
        """Gives each key's result to `t`, to the KVMU and to every count memory: each takes it once, as soon as it
        can.
        """
        joined = hcu.o.payload
        # A count memory does not take a CLEAR.
        takers = [(self.t, 1), (kvmu.a, 1), *((wtu.c, ~(joined.op == CLEAR)) for wtu in wtus)]
        taken = Signal(len(takers))
        served = Signal(len(takers))
        m.d.comb += hcu.o.ready.eq(served.all())
        for i, (taker, wanted) in enumerate(takers):
            m.d.comb += [
                taker.valid.eq(hcu.o.valid & ~taken[i] & wanted),
                served[i].eq(taken[i] | taker.ready | ~(hcu.o.valid & wanted)),
            ]
        with m.If(hcu.o.valid):
            m.d.sync += taken.eq(Mux(served.all(), 0, taken | served))
        m.d.comb += [
            self.t.payload.eq(joined),
            kvmu.a.payload.op.eq(joined.op),  # the KVMU's op codes are the HCU's
            kvmu.a.payload.ctx.eq(joined.ctx),
            kvmu.a.payload.cluster.eq(joined.cluster),
            kvmu.a.payload.token.eq(joined.token),
        ]
        for wtu in wtus:
            m.d.comb += [
                wtu.c.payload.ctx.eq(joined.ctx),
                wtu.c.payload.cluster.eq(joined.cluster),
                wtu.c.payload.count.eq(joined.count),
            ]

    def _give_rows(self, m: Module, wtus: list[Wtu], tags: SyncFIFOBuffered) -> None:
        """Sends a row to the core whose turn it is, and its tag into `tags` with its first word."""
        tag_in = Signal(_tag_layout(self.p.wtu))
        give = Signal(range(max(2, len(wtus))))  # the core whose turn it is
        first = Signal(init=1)  # the next word is the first of its row
        open_ = Signal()  # the word may go: its row's tag has a place
        row_moves = Signal()
        row = self.s.payload.row
        m.d.comb += [
            open_.eq(~first | tags.w_rdy),
            row_moves.eq(self.s.valid & self.s.ready),
            tag_in.ctx.eq(row.ctx),
            tag_in.set_last.eq(self.s.payload.set_last),
            tags.w_data.eq(tag_in),
            tags.w_en.eq(row_moves & first),
        ]
        with m.If(row_moves):
            m.d.sync += first.eq(row.last)
            with m.If(row.last):
                m.d.sync += give.eq(Mux(give == len(wtus) - 1, 0, give + 1))
        for i, wtu in enumerate(wtus):
            m.d.comb += [wtu.i.payload.eq(row), wtu.i.valid.eq(self.s.valid & open_ & (give == i))]
            with m.If(give == i):
                m.d.comb += self.s.ready.eq(wtu.i.ready & open_)

    def _join_rows(self, m: Module, wtus: list[Wtu], tags: SyncFIFOBuffered, union: ClusterSet) -> None:
        """Sends the selections to the cluster set, row by row in the order of their arrival."""
        take = Signal(range(max(2, len(wtus))))  # the core whose row is next
        tag = data.View(_tag_layout(self.p.wtu), tags.r_data)
        beat_moves = Signal()
        m.d.comb += [
            beat_moves.eq(union.i.valid & union.i.ready),
            union.i.payload.ctx.eq(tag.ctx),
            union.i.payload.set_last.eq(tag.set_last),
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
            m.d.sync += take.eq(Mux(take == len(wtus) - 1, 0, take + 1))


def _tag_layout(p: WtuParams) -> data.StructLayout:
    """The fields of a row that the cluster set needs and a WTU core does not."""
    return data.StructLayout({"ctx": bits_for(p.n_ctx), "set_last": 1})
