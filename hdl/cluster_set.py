"""Union of the rows of a query block."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hdl.memory import Ram, collect_errors, error_members
from hdl.params import KvmuParams, WtuParams, bits_for


def mask_layout(p: WtuParams) -> data.StructLayout:
    """Part of a row's selection: clusters addr * n_w + i for the set bits i of `mask`; ends of the row and the set.

    `set_last` counts in the beat with `row_last`, so it may be given throughout the last row.
    """
    return data.StructLayout(
        {"ctx": bits_for(p.n_ctx), "addr": bits_for(p.words), "mask": p.n_w, "row_last": 1, "set_last": 1}
    )


def cluster_layout(p: WtuParams | KvmuParams) -> data.StructLayout:
    """A cluster of a set; last of its set; empty (the set has none, `cluster` is 0)."""
    return data.StructLayout({"ctx": bits_for(p.n_ctx), "cluster": p.cluster_bits, "last": 1, "empty": 1})


class ClusterSet(wiring.Component):
    """ORs the selections of all rows of a query block, and lists the clusters of the union in ascending order.

    Two sets: one takes rows while the other is listed, so that the next layer's rows are selected while this one's
    clusters are fetched. A word counts once it was written in the current set (a flop each), so memories need no
    clearing; words that no row touched cost no time. Repeated writes of a word are forwarded.

    Parameters
    ----------
    p : WtuParams

    Members
    -------
    i : In(stream of `mask_layout`) : rows in any order of their words; ctx is that of the beat that ends the set
    o : Out(stream of `cluster_layout`) : every cluster of a set once, ascending, one beat with `empty` if it has none
    perf : Out(struct of 32-bit counters modulo 2^32) : sets, clusters (listed)

    Latency: 4 cycles from the beat that ends a set to its first cluster, 2 to the beat of an empty set; both counted
    from the last beat of the set before on `o`, if that is later.
    Throughput: a beat of `i` every cycle, 1 idle cycle after a set, more while the set before is listed;
    a cluster a cycle.
    Raises: `ParamError` from `WtuParams`.
    Source: V-Rex section IV-C ("aggregated across all rows").
    """

    def __init__(self, p: WtuParams):
        self.p = p
        super().__init__(
            {
                "i": In(stream.Signature(mask_layout(p))),
                "o": Out(stream.Signature(cluster_layout(p))),
                "perf": Out(data.StructLayout(dict.fromkeys(self.counters(), 32))),
                **error_members(p.protect),
            }
        )

    @staticmethod
    def counters() -> list[str]:
        """Names of the performance counters in `perf`."""
        return ["sets", "clusters"]

    @staticmethod
    def timing(p: WtuParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {"latency": "2 if the set is empty else 4", "interval": "beats + 1", "listing": "max(1, clusters)"}

    def elaborate(self, platform):
        p, m = self.p, Module()
        addr_bits = bits_for(p.words)
        lane_bits = bits_for(p.n_w)
        banks = [Ram(p.n_w, p.words, protect=p.protect) for _ in range(2)]
        collect_errors(m, self, banks)
        touched = [Signal(p.words, name=f"touched{k}") for k in range(2)]
        for k, bank in enumerate(banks):
            m.submodules[f"bank{k}"] = bank
        fill = Signal()  # the bank that takes rows; the other one is listed

        # Rows: read the word, OR, write it a cycle later.
        full = Signal()  # the set in `fill` is complete
        ctx = Signal(bits_for(p.n_ctx))
        hit = Signal()
        part = Signal(
            data.StructLayout({"valid": 1, "bank": 1, "addr": addr_bits, "mask": p.n_w, "old": 1, "again": 1})
        )
        wrote = Signal(p.n_w)
        word = Signal(p.n_w)
        old = Signal(p.n_w)
        beat = self.i.payload
        m.d.comb += [
            self.i.ready.eq(~full),
            hit.eq(self.i.valid & self.i.ready & (beat.mask != 0)),
            old.eq(Mux(part.bank, banks[1].r_data, banks[0].r_data)),
            word.eq(part.mask | Mux(part.again, wrote, Mux(part.old, old, 0))),
        ]
        m.d.sync += [
            part.valid.eq(hit),
            part.bank.eq(fill),
            part.addr.eq(beat.addr),
            part.mask.eq(beat.mask),
            part.old.eq(Mux(fill, touched[1], touched[0]).bit_select(beat.addr, 1)),
            # The word is being written while it is read.
            part.again.eq(part.valid & (part.bank == fill) & (part.addr == beat.addr)),
            wrote.eq(word),
        ]
        with m.If(self.i.valid & self.i.ready & beat.row_last & beat.set_last):
            m.d.sync += [full.eq(1), ctx.eq(beat.ctx)]

        # Listing: `ahead` is the next word, `left` the clusters of `at` that are still to come.
        listing = Signal()
        empty = Signal()
        ahead = Signal()
        out_ctx = Signal.like(ctx)
        left = Signal(p.n_w)
        at = Signal(addr_bits)
        next_at = Signal(addr_bits)
        rest = Signal(p.n_w)
        lane = Signal(lane_bits)
        other = Signal(p.words)
        found, where = self._lowest(m, other, "word")
        _, low = self._lowest(m, left, "lane")
        step = Signal()
        load = Signal()
        look = Signal()
        done = Signal()
        m.d.comb += [
            other.eq(Mux(fill, touched[0], touched[1])),
            lane.eq(low),
            rest.eq(left & (left - 1)),
            self.o.valid.eq((left != 0) | empty),
            self.o.payload.ctx.eq(out_ctx),
            self.o.payload.cluster.eq(Mux(empty, 0, at * p.n_w + lane)),
            self.o.payload.last.eq(empty | ((rest == 0) & ~ahead & ~found)),
            self.o.payload.empty.eq(empty),
            step.eq(self.o.valid & self.o.ready),
            load.eq(ahead & ((left == 0) | (step & (rest == 0)))),
            look.eq(listing & found & (~ahead | load)),
            done.eq(step & self.o.payload.last),
        ]
        with m.If(step):
            m.d.sync += left.eq(rest)
        with m.If(load):
            m.d.sync += [left.eq(Mux(fill, banks[0].r_data, banks[1].r_data)), at.eq(next_at), ahead.eq(0)]
        with m.If(look):
            m.d.sync += [next_at.eq(where), ahead.eq(1)]
        with m.If(done):
            m.d.sync += [listing.eq(0), empty.eq(0)]
            m.d.sync += self.perf.sets.eq(self.perf.sets + 1)
        with m.If(step & ~empty):
            m.d.sync += self.perf.clusters.eq(self.perf.clusters + 1)
        with m.If(full & ~listing):
            m.d.sync += [
                full.eq(0),
                fill.eq(~fill),
                listing.eq(1),
                out_ctx.eq(ctx),
                empty.eq(Mux(fill, touched[1], touched[0]) == 0),
            ]

        for k, bank in enumerate(banks):
            m.d.comb += [
                bank.r_en.eq(Mux(fill == k, hit, look)),
                bank.r_addr.eq(Mux(fill == k, beat.addr, where)),
                bank.w_en.eq(part.valid & (part.bank == k)),
                bank.w_addr.eq(part.addr),
                bank.w_data.eq(word),
            ]
            with m.If((fill == k) & hit):
                m.d.sync += touched[k].bit_select(beat.addr, 1).eq(1)
            with m.Elif((fill != k) & look):
                m.d.sync += touched[k].bit_select(where, 1).eq(0)
        return m

    @staticmethod
    def _lowest(m, bits, name):
        """Whether a bit is set, and the index of the lowest: a binary tree."""
        nodes = [(bits[i], i) for i in range(len(bits))]
        level = 0
        while len(nodes) > 1:
            pairs, rest = [], nodes[len(nodes) & ~1 :]
            for j in range(0, len(nodes) - 1, 2):
                (a, ia), (b, ib) = nodes[j], nodes[j + 1]
                some = Signal(name=f"{name}{level}_{j}_some")
                index = Signal(bits_for(len(bits)), name=f"{name}{level}_{j}_index")
                m.d.comb += [some.eq(a | b), index.eq(Mux(a, ia, ib))]
                pairs.append((some, index))
            nodes, level = pairs + rest, level + 1
        return nodes[0]
