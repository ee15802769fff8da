"""Cluster set: the union of the rows of a query block."""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import In, Out

from hdl.memory import Ram, collect_errors
from hdl.params import KvmuParams, WtuParams, bits_for
from hdl.unit import Unit


def mask_layout(p: WtuParams) -> data.StructLayout:
    """Part of a row's selection: clusters addr * n_w + i for the set bits i of `mask`.

    `row_last`, `set_last`: the final beat of the row, the final row of the set. `set_last` counts only in a beat with
    `row_last`, so it may be high throughout the last row.
    """
    return data.StructLayout(
        {"ctx": bits_for(p.n_ctx), "addr": bits_for(p.words), "mask": p.n_w, "row_last": 1, "set_last": 1}
    )


def cluster_layout(p: WtuParams | KvmuParams) -> data.StructLayout:
    """A cluster of a set. `last`: the final one of its set. `empty`: the set has no cluster, and `cluster` is 0."""
    return data.StructLayout({"ctx": bits_for(p.n_ctx), "cluster": p.cluster_bits, "last": 1, "empty": 1})


class ClusterSet(Unit):
    """ORs the selections of all rows of a query block, and lists the clusters of the union in ascending order.

    Masks of n_w clusters come in on `i`, the words of a row in any order. After the beat that ends the set, `o` lists
    each cluster of the union once. There are two sets: one takes rows while the unit lists the other, so that the next
    layer's rows are selected while this layer's clusters are fetched. A flip-flop a word tells whether the current set
    has written the word. Memories therefore need no clearing, and words that no row touched cost no time. The unit
    forwards a word that it reads while it writes it.

    Corner cases: a set without clusters gives one beat with `empty`. A second set that is complete waits until the
    first is listed; meanwhile `i` is not ready.

    Parameters
    ----------
    p : WtuParams

    Members
    -------
    i : In(stream of `mask_layout`) : rows in any order of their words; the set has the `ctx` of the beat that ends it
    o : Out(stream of `cluster_layout`) : every cluster of a set once, ascending, one beat with `empty` if it has none
    perf : Out(struct of 32-bit counters modulo 2^32) : sets, clusters (listed)

    Latency: 4 cycles from the beat that ends a set to its first cluster, 2 to the beat of an empty set; both counted
    from the last beat of the set before on `o`, if that is later.
    Throughput: a beat of `i` every cycle, 1 idle cycle after a set, more while the set before is listed;
    a cluster a cycle. A set of 64 beats whose union has 200 clusters takes 65 cycles to collect and 200 to list.
    Raises: `ParamError` from `WtuParams`.
    Source: V-Rex section IV-C ("aggregated across all rows").
    """

    COUNTERS = ("sets", "clusters")

    def __init__(self, p: WtuParams):
        super().__init__(
            p,
            {
                "i": In(stream.Signature(mask_layout(p))),
                "o": Out(stream.Signature(cluster_layout(p))),
            },
            p.protect,
        )

    @staticmethod
    def timing(p: WtuParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {"latency": "2 if the set is empty else 4", "interval": "beats + 1", "listing": "max(1, clusters)"}

    def elaborate(self, platform):
        p, m = self.p, Module()
        banks = [Ram(p.n_w, p.words, protect=p.protect) for _ in range(2)]
        collect_errors(m, self, banks)
        for k, bank in enumerate(banks):
            m.submodules[f"bank{k}"] = bank
        sets, row, listing = _Sets(p), _Row(p), _Listing(p)
        self._add(m, banks, sets, row)
        self._list(m, sets, listing)
        self._next_word(m, banks, listing, sets)
        self._swap(m, sets, listing)
        self._ports(m, banks, sets, row, listing)
        return m

    def _add(self, m: Module, banks: list[Ram], sets: "_Sets", row: "_Row") -> None:
        """Reads the word of a beat, ORs the beat's mask into it, and writes it a cycle later."""
        beat, part, touched = self.i.payload, row.part, sets.touched
        old = Signal(self.p.n_w)
        m.d.comb += [
            self.i.ready.eq(~sets.full),
            row.hit.eq(self.i.valid & self.i.ready & (beat.mask != 0)),
            old.eq(Mux(part.bank, banks[1].r_data, banks[0].r_data)),
            row.word.eq(part.mask | Mux(part.again, row.wrote, Mux(part.old, old, 0))),
        ]
        m.d.sync += [
            part.valid.eq(row.hit),
            part.bank.eq(sets.fill),
            part.addr.eq(beat.addr),
            part.mask.eq(beat.mask),
            part.old.eq(Mux(sets.fill, touched[1], touched[0]).bit_select(beat.addr, 1)),
            # The word is being written while it is read.
            part.again.eq(part.valid & (part.bank == sets.fill) & (part.addr == beat.addr)),
            row.wrote.eq(row.word),
        ]
        with m.If(self.i.valid & self.i.ready & beat.row_last & beat.set_last):
            m.d.sync += [sets.full.eq(1), sets.ctx.eq(beat.ctx)]

    def _list(self, m: Module, sets: "_Sets", listing: "_Listing") -> None:
        """Offers the lowest cluster left of the current word, and decides when to read the next word."""
        p, left, ahead = self.p, listing.left, listing.ahead
        other = Signal(p.words)  # touched words of the set that is listed
        lane = Signal(bits_for(p.n_w))
        found, listing.where = self._lowest(m, other, "word")
        _, low = self._lowest(m, left, "lane")
        m.d.comb += [
            other.eq(Mux(sets.fill, sets.touched[0], sets.touched[1])),
            lane.eq(low),
            listing.rest.eq(left & (left - 1)),
            self.o.valid.eq((left != 0) | listing.empty),
            self.o.payload.ctx.eq(listing.out_ctx),
            self.o.payload.cluster.eq(Mux(listing.empty, 0, listing.at * p.n_w + lane)),
            self.o.payload.last.eq(listing.empty | ((listing.rest == 0) & ~ahead & ~found)),
            self.o.payload.empty.eq(listing.empty),
            listing.step.eq(self.o.valid & self.o.ready),
            listing.load.eq(ahead & ((left == 0) | (listing.step & (listing.rest == 0)))),
            listing.look.eq(listing.listing & found & (~ahead | listing.load)),
            listing.done.eq(listing.step & self.o.payload.last),
        ]

    def _next_word(self, m: Module, banks: list[Ram], listing: "_Listing", sets: "_Sets") -> None:
        with m.If(listing.step):
            m.d.sync += listing.left.eq(listing.rest)
        with m.If(listing.load):
            m.d.sync += [
                listing.left.eq(Mux(sets.fill, banks[0].r_data, banks[1].r_data)),
                listing.at.eq(listing.next_at),
                listing.ahead.eq(0),
            ]
        with m.If(listing.look):
            m.d.sync += [listing.next_at.eq(listing.where), listing.ahead.eq(1)]
        with m.If(listing.done):
            m.d.sync += [listing.listing.eq(0), listing.empty.eq(0)]
            m.d.sync += self.perf.sets.eq(self.perf.sets + 1)
        with m.If(listing.step & ~listing.empty):
            m.d.sync += self.perf.clusters.eq(self.perf.clusters + 1)

    def _swap(self, m: Module, sets: "_Sets", listing: "_Listing") -> None:
        """Exchanges the two sets once one is complete and the other is listed."""
        with m.If(sets.full & ~listing.listing):
            m.d.sync += [
                sets.full.eq(0),
                sets.fill.eq(~sets.fill),
                listing.listing.eq(1),
                listing.out_ctx.eq(sets.ctx),
                listing.empty.eq(Mux(sets.fill, sets.touched[1], sets.touched[0]) == 0),
            ]

    def _ports(self, m: Module, banks: list[Ram], sets: "_Sets", row: "_Row", listing: "_Listing") -> None:
        """Gives one bank to the rows and the other to the list, and keeps `touched`.

        A row that writes a word sets its bit; the listing clears the bit when it reads the word.
        """
        fill, part, addr = sets.fill, row.part, self.i.payload.addr
        for k, bank in enumerate(banks):
            m.d.comb += [
                bank.r_en.eq(Mux(fill == k, row.hit, listing.look)),
                bank.r_addr.eq(Mux(fill == k, addr, listing.where)),
                bank.w_en.eq(part.valid & (part.bank == k)),
                bank.w_addr.eq(part.addr),
                bank.w_data.eq(row.word),
            ]
            with m.If((fill == k) & row.hit):
                m.d.sync += sets.touched[k].bit_select(addr, 1).eq(1)
            with m.Elif((fill != k) & listing.look):
                m.d.sync += sets.touched[k].bit_select(listing.where, 1).eq(0)

    @staticmethod
    def _lowest(m: Module, bits: Signal, name: str) -> tuple[Value, Value]:
        """Whether a bit is set, and the index of the lowest set bit: a binary tree."""
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


class _Sets:
    """The two sets: one takes rows, the other is listed."""

    def __init__(self, p: WtuParams):
        self.touched = [Signal(p.words, name=f"touched{k}") for k in range(2)]  # words written in each
        self.fill = Signal()  # the bank that takes rows; the other one is listed
        self.full = Signal()  # the set in `fill` is complete
        self.ctx = Signal(bits_for(p.n_ctx))  # context of that set


class _Row:
    """The word of a row to which the unit adds a mask."""

    def __init__(self, p: WtuParams):
        self.hit = Signal()  # a beat that has clusters
        self.part = Signal(  # that beat. old: the set has written its word. again: the beat before had the same word
            data.StructLayout({"valid": 1, "bank": 1, "addr": bits_for(p.words), "mask": p.n_w, "old": 1, "again": 1})
        )
        self.word = Signal(p.n_w)  # word to write
        self.wrote = Signal(p.n_w)  # word written in the cycle before


class _Listing:
    """The set being listed: `left` holds the clusters of word `at` still to come, `ahead` says that the next word is
    read.
    """

    def __init__(self, p: WtuParams):
        self.listing = Signal()
        self.empty = Signal()  # the set has no cluster
        self.ahead = Signal()  # the next word has been read
        self.out_ctx = Signal(bits_for(p.n_ctx))
        self.left = Signal(p.n_w)
        self.rest = Signal(p.n_w)  # `left` without its lowest cluster
        self.at = Signal(bits_for(p.words))
        self.next_at = Signal(bits_for(p.words))
        self.where: Value  # the lowest touched word
        self.step = Signal()  # a cluster is taken
        self.load = Signal()  # the next word becomes `left`
        self.look = Signal()  # the unit reads another word
        self.done = Signal()  # the set is listed
