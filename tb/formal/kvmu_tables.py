"""The KVMU beside a memory of its tables, for proofs: any consistent content at first, any timing.

Tables are consistent if every block is unused, freed, or in the chain of one cluster of one context, each once; if
every chain goes from its first to its last block; if the slots at home are the first ones of a chain; if a context's
ring names, cluster by cluster, as many entries as are not at home; and if PLACE counts a context's blocks, where it
does.

Clusters, and slots of rings, are counted over all contexts here.
"""

from dataclasses import replace

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.params import KvmuParams, bits_for
from openvrex.hdl.retrieval.kvmu import Kvmu
from openvrex.hdl.retrieval.kvmu_layouts import APPEND, CLEAR, map_layouts, map_port, sharing_members

SMALL = KvmuParams(
    n_ctx=1,
    clusters=2,
    count_bits=1,
    blocks=2,
    block_slots=2,
    recent=1,
    entry_bytes=1,
    boundary=2,
    addr_bits=3,
    token_bits=1,
    rows=2,
    counts=1,
    count_lanes=1,
    read_counts=1,
)
USERS = replace(SMALL, n_ctx=2, clusters=1, shared=True, addr_bits=3)  # two contexts, who do not trust each other
READS = 8  # that may wait for their items


class TablesMonitor(wiring.Component):
    """The KVMU between free inputs and tables in registers, with entries of one byte.

    The first cycle fills the tables from the inputs `first_...`. Beats come only if they are consistent. Beats of `a`
    are legal: clusters open in order.

    stalled : names of streams and requests that stall as they like: w, x, c (the ring of counts is not free), b, ask
        (reads), put, data (items). The others never stall: an item comes in the cycle after its read, if none is before
        it.
    """

    def __init__(self, p: KvmuParams, stalled: tuple[str, ...] = ()):
        self.p, self.unit, self.stalled = p, Kvmu(p), stalled
        self.sizes = {Item.RING: p.recent, Item.COUNT: p.clusters, Item.ROW: p.clusters, Item.PLACE: 1}  # of a context
        sizes = {item: n * p.n_ctx for item, n in self.sizes.items()} | {Item.NEXT: p.blocks, Item.POOL: 1}
        self.keys = [(item, k) for item in map_layouts(p) for k in range(sizes[item])]
        ones = ("a_valid", "f_valid", *(f"{n}_ready" for n in stalled))
        payloads = {f"{n}_payload": In(getattr(self.unit, n).payload.shape()) for n in ("a", "f")}
        first = {f"first_{item.name.lower()}{k}": In(map_layouts(p)[item]) for item, k in self.keys}
        levels = {f"first_level{ctx}": In(range(p.clusters + 1)) for ctx in range(p.n_ctx)}
        super().__init__({**dict.fromkeys(ones, In(1)), **payloads, **first, **levels, **sharing_members(p)})

    def elaborate(self, platform):
        m, p = Module(), self.p
        m.submodules.unit = self.unit
        fields = map_layouts(p)
        self.words = {key: Signal(fields[key[0]], name=f"{key[0].name.lower()}{key[1]}") for key in self.keys}
        self.levels = Array(Signal(range(p.clusters + 1), name=f"level{k}") for k in range(p.n_ctx))  # clusters
        self.filled, self.legal = Signal(), Signal()
        self.consistent = Signal()
        self.apart = Signal()  # no block has two owners, also in the middle of a beat
        self._memory(m)
        self._sets(m)
        started = Signal()
        m.d.sync += [started.eq(1), self.filled.eq(started)]
        with m.If(started & ~self.filled):
            m.d.sync += self.legal.eq(self.consistent)
        with m.If(~started):
            m.d.sync += [self.levels[ctx].eq(getattr(self, f"first_level{ctx}")) for ctx in range(p.n_ctx)]
            for item, k in self.keys:
                m.d.sync += self.words[item, k].eq(getattr(self, f"first_{item.name.lower()}{k}"))
        self._beats(m)
        self.claims(m)
        return m

    def claims(self, m: Module) -> None:
        """The assertions."""
        raise NotImplementedError

    def _ready(self, name: str) -> Value:
        """Whether the other side of a stream or request takes it or gives it in this cycle."""
        return getattr(self, f"{name}_ready") if name in self.stalled else Const(1)

    def _memory(self, m: Module) -> None:
        """Serves the requests of the unit."""
        port, bits = self.unit.m, map_port(self.p).beat_bits
        found = Array(Signal(bits, name=f"found{k}") for k in range(READS))
        waiting, left = Signal(range(READS + 1)), Signal(range(READS + 1))
        word = Signal(bits)
        self.reads, self.writes = Signal(), Signal()
        came = Signal()
        for (item, k), content in self.words.items():
            with m.If(self._names(port.ask.payload, item, k)):
                m.d.comb += word.eq(content)
        m.d.comb += [
            port.ask.ready.eq(self._ready("ask") & (waiting != READS)),
            port.put.ready.eq(self._ready("put")),
            self.reads.eq(port.ask.valid & port.ask.ready),
            self.writes.eq(port.put.valid & port.put.ready),
            came.eq(self._ready("data") & waiting.any()),
            port.data.valid.eq(came),
            port.data.payload.eq(found[0]),
            left.eq(waiting - came),
        ]
        m.d.sync += waiting.eq(left + self.reads)
        for k in range(READS):
            with m.If(self.reads & (left == k)):
                m.d.sync += found[k].eq(word)
            if k < READS - 1:
                with m.Elif(came):
                    m.d.sync += found[k].eq(found[k + 1])
        self.put_of = {}  # whether this word is written
        for (item, k), content in self.words.items():
            self.put_of[item, k] = hit = Signal(name=f"writes_{item.name.lower()}{k}")
            put = port.put.payload
            m.d.comb += hit.eq(self.writes & self._names(put, item, k))
            with m.If(hit):
                m.d.sync += content.eq(put.data)

    def _names(self, request: data.View, item: Item, k: int) -> Value:
        """Whether a request is for word k of the items of a kind."""
        ctx, index = divmod(k, self.sizes[item]) if item in self.sizes else (0, k)
        own = request.ctx == ctx if item in self.sizes else 1
        return (request.item == item) & own & (request.index == index)

    def _chain(self, m: Module, name: str, head: Value, end: Value, slots: Value, some: Value) -> tuple[Signal, ...]:
        """Blocks from `head` to `end`, their slots of which the last block has `slots`, and whether `end` is met."""
        p = self.p
        follow = Array(self.words[Item.NEXT, k].block for k in range(p.blocks))
        blocks, taken = Signal(p.blocks, name=f"{name}_blocks"), Signal(p.blocks * p.block_slots, name=f"{name}_slots")
        alive, at, own, used = some, head, 0, 0
        for step in range(p.blocks):
            here = Signal(p.block_bits, name=f"{name}_at{step}")
            going = Signal(name=f"{name}_going{step}")
            last = Signal(name=f"{name}_last{step}")
            m.d.comb += [here.eq(at), going.eq(alive), last.eq(here == end)]
            full = (1 << p.block_slots) - 1
            mask = Mux(last, (1 << slots) - 1, full)
            own |= Mux(going, 1 << here, 0)
            used |= Mux(going, mask << (here * p.block_slots), 0)
            alive, at = going & ~last, follow[here]
        met = Signal(name=f"{name}_met")
        m.d.comb += [blocks.eq(own), taken.eq(used), met.eq(~alive)]
        return blocks, taken, met

    def _sets(self, m: Module) -> None:
        """Finds which slots each cluster has, which are at home, and whether the tables are consistent."""
        p = self.p
        pool = self.words[Item.POOL, 0]
        places = [self.words[Item.PLACE, ctx] for ctx in range(p.n_ctx)]
        good = [pool.fresh <= p.blocks, *(place.pos < p.recent for place in places)]
        good += [level <= p.clusters for level in self.levels]
        good += [pool.freed | ((pool.free_head == 0) & (pool.free_tail == 0))]
        free, _, met = self._chain(m, "free", pool.free_head, pool.free_tail, 0, pool.freed)
        good.append(met)
        unused = Signal(p.blocks)
        m.d.comb += unused.eq(Cat(pool.fresh <= k for k in range(p.blocks)))
        owners = [free, unused]
        self.taken, self.home, self.blocks = [], [], []
        for k in range(p.n_ctx * p.clusters):
            ctx, cluster = divmod(k, p.clusters)
            place = places[ctx]
            row = self.words[Item.ROW, k]
            some = row.tail_slots != 0
            blocks, taken, met = self._chain(m, f"of{k}", row.head, row.tail, row.tail_slots, some)
            _, home, met_home = self._chain(m, f"home{k}", row.head, row.off, row.off_slots, some)
            owners.append(blocks)
            self.blocks.append(blocks)
            self.taken.append(taken)
            self.home.append(home)
            names = sum(
                (self.words[Item.RING, ctx * p.recent + i].cluster == cluster) & (place.filled | (place.pos > i))
                for i in range(p.recent)
            )
            zero = row.as_value() == 0
            good += [
                met & met_home,
                some | zero,
                zero | (self.levels[ctx] > cluster),
                (row.tail_slots <= p.block_slots) & (row.off_slots <= p.block_slots),
                (row.off_slots != 0) | (row.off == row.head),
                (home & ~taken) == 0,
                sum((taken & ~home)[i] for i in range(len(taken))) == names,
            ]
        clusters = [self.words[Item.RING, i].cluster < p.clusters for i in range(p.n_ctx * p.recent)]
        for ctx, place in enumerate(places if p.shared else ()):
            own = self.blocks[ctx * p.clusters : (ctx + 1) * p.clusters]
            good.append(place.blocks == sum(block for blocks in own for block in blocks))
        counts = [sum(own[b] for own in owners) for b in range(p.blocks)]
        each = [n == 1 for n in counts]
        m.d.comb += [
            self.consistent.eq(Cat(*good, *clusters, *each).all()),
            self.apart.eq(Cat(n <= 1 for n in counts).all()),
        ]

    def _beats(self, m: Module) -> None:
        """Offers legal beats, and follows the one that is served."""
        unit, p = self.unit, self.p
        beat, free = unit.a.payload, self.a_payload
        opens, ctx, level = Signal(), Signal(range(p.n_ctx)), Signal(range(p.clusters + 1))
        m.d.comb += [
            ctx.eq(Mux(free.ctx < p.n_ctx, free.ctx, 0)),
            level.eq(self.levels[ctx]),
            opens.eq(free.is_new & (level != p.clusters)),
            unit.a.valid.eq(self.legal & self.a_valid & ((free.op != APPEND) | opens | (free.cluster < level))),
            beat.op.eq(Mux(free.op == 3, 2, free.op)),
            beat.ctx.eq(ctx),
            beat.cluster.eq(Mux(opens, level, free.cluster)),
            beat.is_new.eq((free.op == APPEND) & opens),
            beat.clusters.eq(level),
            *(getattr(unit, n).ready.eq(self._ready(n)) for n in ("w", "x", "b")),
            unit.c_free.eq(self._ready("c")),
            unit.blocks.eq(p.blocks),
        ]
        if p.shared:
            quota = Signal.like(self.quota, name="quota_held")  # stable while the unit works
            with m.If(~self.filled):
                m.d.sync += quota.eq(self.quota)
            m.d.comb += unit.quota.eq(quota)
        job = {"op": 2, "ctx": bits_for(p.n_ctx), "cluster": p.cluster_bits}
        self.job = Signal(data.StructLayout(job))  # the beat that is served
        self.begins, self.answered = Signal(), Signal()
        m.d.comb += [self.begins.eq(unit.a.valid & unit.a.ready), self.answered.eq(unit.w.valid & unit.w.ready)]
        with m.If(self.begins):
            m.d.sync += [self.job[name].eq(beat[name]) for name in job]
            m.d.sync += self.levels[ctx].eq(Mux(beat.op == CLEAR, 0, level + beat.is_new))
