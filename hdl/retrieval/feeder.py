"""Feeder: converts words of the VPE to hash words and score words of the DRE."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from openvrex.golden.program.isa import StoreTo
from openvrex.hdl.instruction_layouts import dre_layout
from openvrex.hdl.params import CoreParams, bits_for
from openvrex.hdl.retrieval.hcu_state import JOIN, NEWEST, token_layout
from openvrex.hdl.retrieval.row_check import score_layout
from openvrex.hdl.slices import Slice
from openvrex.hdl.unit import Unit


def order_layout(p: CoreParams) -> data.StructLayout:
    """An order to the DRE between keys. `op`: CLEAR or SWITCH to the context `ctx`."""
    return data.StructLayout({"op": 2, "ctx": bits_for(p.dre.hcu.n_ctx)})


class Feeder(Unit):
    """Collects HASH words of the VPE to a token's hash bits, and cuts or joins SCORE words to the WTU's word width.

    Words come in on `d` and leave in order: keys on `k`, scores on `s`. Bit i of word j of a HASH row is hash bit j *
    lanes + i. Code i of SCORE word j is the score of cluster j * lanes + i. An order on `order` goes out on `k` between
    two rows of HASH, before the next row.

    Corner cases: the feeder drops bits of a HASH row beyond n_hp, and whole words beyond ceil(n_hp / lanes). On each
    output it holds two beats that are not taken.

    Parameters
    ----------
    p : CoreParams

    Members
    -------
    d : In(stream of `hdl.instruction_layouts.dre_layout`) : words; a row of HASH has ceil(n_hp / lanes) words or more
    order : In(stream of `order_layout`) : CLEARs and SWITCHes
    k : Out(stream of `hdl.retrieval.hcu.token_layout`) : a JOIN (or NEWEST) a row of HASH, whose token is always 0; an
        order
    s : Out(stream of `hdl.retrieval.row_check.score_layout`) : scores; set_last is high in every word of a block's
        last row
    perf : Out(struct of 32-bit counters) : tokens, orders, rows (of scores), words (of scores)

    Latency: 1 cycle from a row's last word of HASH, or an order, to its beat on `k`; from a word of SCORE to its first
        on `s`.
    Throughput: a word of HASH a cycle, an order too; a word of SCORE every max(1, lanes / wtu.n_w) cycles, a row's last
        one every ceil((keep + 1) / wtu.n_w). At the `core` preset a word of 64 scores becomes 4 words of 16 in 4
        cycles.
    Raises: `ParamError` where the DRE and the LXE do not fit together.
    Source: `golden.program.isa.StoreTo`; V-Rex Fig. 10, steps 2 and 4.
    """

    COUNTERS = ("tokens", "orders", "rows", "words")

    def __init__(self, p: CoreParams):
        p.core_format()  # checks
        super().__init__(
            p,
            {
                "d": In(stream.Signature(dre_layout(p))),
                "order": In(stream.Signature(order_layout(p))),
                "k": Out(stream.Signature(token_layout(p.dre.hcu))),
                "s": Out(stream.Signature(score_layout(p.dre.wtu))),
            },
        )

    @staticmethod
    def timing(p: CoreParams) -> dict[str, str]:
        """Formulas for the manifest."""
        cut = max(1, p.dpe.n_w // p.dre.wtu.n_w)
        return {
            "latency": "1",
            "hash_interval": "1 a word",
            "score_interval": f"{cut} a word, the last of a row ceil((keep + 1) / {p.dre.wtu.n_w})",
        }

    def elaborate(self, platform):
        m = Module()
        d = self.d.payload
        # HCU and WTU know late in a cycle whether they take a beat, and need time behind it.
        m.submodules.k_slice = k_slice = Slice(self.k.payload.shape())
        m.submodules.s_slice = s_slice = Slice(self.s.payload.shape())
        wiring.connect(m, k_slice.o, wiring.flipped(self.k))
        wiring.connect(m, s_slice.o, wiring.flipped(self.s))
        k_takes = Signal()
        k_orders = Signal()
        s_takes = Signal()
        s_loads = Signal()
        is_hash = Signal()
        m.d.comb += [
            is_hash.eq(d.target == StoreTo.HASH),
            self.d.ready.eq(self.d.valid & Mux(is_hash, k_takes, s_takes)),
        ]
        self._tokens(m, k_slice.i, self.d.valid & is_hash, k_takes, k_orders)
        self._scores(m, s_slice.i, self.d.valid & ~is_hash, s_takes, s_loads)
        self._count_later(
            m,
            tokens=self.d.valid & is_hash & k_takes & d.row_last,
            orders=k_orders,
            rows=s_loads & s_takes & d.row_last,
            words=self.s.valid & self.s.ready,
        )
        return m

    def _tokens(self, m: Module, out: wiring.PureInterface, there, takes, orders) -> None:
        p, d, k = self.p, self.d.payload, out.payload
        lanes, n_hp = p.dpe.n_w, p.dre.hcu.n_hp
        words = -(-n_hp // lanes)
        index = Signal(range(words + 1))  # word of the row; `words`: behind the last hash bit
        kept = Signal(n_hp, name="kept_hash")  # hash bits of the words before
        order = self.order.payload
        m.d.comb += [
            orders.eq(self.order.valid & (index == 0) & out.ready),
            self.order.ready.eq((index == 0) & out.ready),
            takes.eq(out.ready & ~orders),
            out.valid.eq(orders | (there & d.row_last)),
            k.op.eq(Mux(orders, order.op, Mux(d.newest, NEWEST, JOIN) if p.dre.hcu.newest else JOIN)),
            k.ctx.eq(Mux(orders, order.ctx, d.ctx)),
            k.hash.eq(kept),
            k.token.eq(0),
            k.last.eq(orders | d.last),
        ]
        with m.Switch(index):
            for j in range(words):
                with m.Case(j):
                    m.d.comb += k.hash[j * lanes : (j + 1) * lanes].eq(d.data)
        with m.If(there & takes):
            m.d.sync += [kept.eq(k.hash), index.eq(Mux(d.row_last, 0, Mux(index == words, index, index + 1)))]

    def _scores(self, m: Module, out: wiring.PureInterface, there, takes, loads) -> None:
        p, d, s = self.p, self.d.payload, out.payload
        lanes, n_w, bits = p.dpe.n_w, p.dre.wtu.n_w, p.dre.wtu.score.bits
        codes = [d.data.word_select(i, 16)[:bits] for i in range(lanes)]
        parts, joined = max(1, lanes // n_w), max(1, n_w // lanes)
        at = Signal(range(max(2, parts, joined)))  # part of the word being cut, or number of the word being joined
        m.d.comb += [loads.eq(there & out.ready), s.set_last.eq(d.last)]
        if parts > 1:
            final = Signal()
            end = d.keep[n_w.bit_length() - 1 :]  # part that holds the last number in use
            m.d.comb += [
                final.eq(at == Mux(d.row_last, end, parts - 1)),
                takes.eq(out.ready & final),
                out.valid.eq(there),
                s.row.keep.eq(d.keep[: n_w.bit_length() - 1]),  # 0 in a word of one number
                s.row.last.eq(final & d.row_last),
            ]
            with m.If(loads):
                m.d.sync += at.eq(Mux(final, 0, at + 1))
            with m.Switch(at):
                for part in range(parts):
                    with m.Case(part):
                        m.d.comb += [s.row.scores[i].eq(codes[part * n_w + i]) for i in range(n_w)]
        else:
            whole = Signal()
            kept = Signal.like(s.row.scores, name="kept_scores")  # of the words before
            m.d.comb += [
                whole.eq(d.row_last | (at == joined - 1)),
                takes.eq(out.ready),
                out.valid.eq(there & whole),
                s.row.keep.eq(at * lanes + d.keep),
                s.row.last.eq(d.row_last),
                s.row.scores.eq(kept),
            ]
            with m.If(loads):
                m.d.sync += [kept.eq(s.row.scores), at.eq(Mux(whole, 0, at + 1))]
            with m.Switch(at):
                for part in range(joined):
                    with m.Case(part):
                        m.d.comb += [s.row.scores[part * lanes + i].eq(codes[i]) for i in range(lanes)]
