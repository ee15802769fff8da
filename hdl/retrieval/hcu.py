"""Hash-bit cluster unit."""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from openvrex.golden.retrieval.table_layout import Item
from openvrex.hdl.memory import Ram, collect_errors
from openvrex.hdl.named import comb
from openvrex.hdl.params import HcuParams, bits_for
from openvrex.hdl.retrieval.hcu_lanes import Lanes, cluster_bits, cluster_word, rests_of
from openvrex.hdl.retrieval.hcu_state import (
    CLEAR,
    JOIN,
    Batch,
    End,
    Head,
    Scan,
    Step,
    Work,
    client_sizes,
    is_key,
    joined_layout,
    key_layout,
    nearest_layout,
    orders,
    token_layout,
)
from openvrex.hdl.retrieval.table_client import table_client
from openvrex.hdl.unit import Unit


class Hcu(Unit):
    """Joins each key to the nearest cluster by Hamming distance of hash bits, or opens a cluster (section V-B).

    Keys come in on `i` in token order, and one result a key leaves on `o`, in the same order. Nearest means least
    distance; ties go to the lowest index. If no cluster is at a distance below `th_hd`, the key opens the next cluster.

    The tables of contexts are in memory. The unit collects keys of one context into a batch: up to a key with `last`,
    up to `frame` keys, or up to a key of another context or op. It streams the table through two tiles on chip, and
    compares all keys of the batch with one tile while the other loads. A memory keeps each key's nearest cluster
    between the tiles. In the last tile the keys join or open clusters, in order. The unit puts a new cluster behind the
    last tile, where the later keys of the batch meet it, and writes it to memory. Meanwhile it collects the next batch.

    A visit of a key to a tile takes groups of n_h clusters, and n_w bits of each cluster a cycle. A group is one word
    of the tiles' memory, which the unit reads once. With early_abandon the visit leaves a group as soon as none of its
    clusters can come below the best distance so far (or Th_hd), and it ends at distance 0. The difference of two
    population counts is the least that the remaining bits must add to a distance. The tiles keep these counts beside a
    cluster's hash bits. A visit ends in the cycle behind its last comparison, which decides only whether the next group
    is read: the way from the tiles' memory back to it is the longest.

    On chip are 2 * tile clusters, `frame` keys, and the nearest cluster of each. At the `core` preset that is 4,736 +
    1,664 + 512 = 6,912 bits, for any number of contexts of up to 1,024 clusters.

    With `newest`, a key may have the op NEWEST: it looks only at the tile that holds the newest cluster when its batch
    begins, and at those opened since. A stream whose keys join the newest cluster or open one, as those of pages do,
    then takes as long in any table. A batch has keys of one op.

    A CLEAR sets the context's number of clusters to 0. CLEAR and SWITCH are batches of their own. They pass through to
    `o` with the number of clusters before them.

    Corner cases: in an empty table a key opens cluster 0 without a comparison. In a full table a far key joins the
    nearest cluster, and its result has `full_join`. If the table may fill up within a batch, its keys look for the
    nearest cluster at any distance. A batch that nothing ends waits. LEVEL in memory must be at most `clusters`.

    Parameters
    ----------
    p : HcuParams

    Members
    -------
    i : In(stream of `token_layout`) : keys in token order; the unit holds `frame` of them
    th_hd : In(distance_bits) : Th_hd, 0 to n_hp + 1; keep it stable while keys are in flight
    o : Out(stream of `joined_layout`) : one beat per beat of `i`, in order, after memory took the beat's writes
    m : Out(`table_client`) : reads LEVEL and HASH; writes HASH and LEVEL of a new cluster, LEVEL of a CLEAR
    perf : Out(struct of 32-bit counters) : tokens, opened, full_joins, compares (cycles in which accumulators worked)

    Latency: 2 * memory + n_h + 3 + compares + tiles cycles from acceptance of a key that is a batch of its own to its
    result, 2 more if it opens a cluster, and memory + 7 in an empty table. `memory` is the latency of a read of the
    port, `tiles` the number of tiles that the key visits: all of
    its table, one for NEWEST. At the `core` preset with a memory of 60 cycles, a key with 1,100
    compares in 1,000 clusters takes 1,240 cycles.
    Throughput: a batch takes the sum of its visits, a cycle for each new cluster, and 2 * memory + n_h + 3 cycles in
    which it waits for LEVEL and the first group. A visit takes 1 + compares cycles. All visits of a key make
    ceil(clusters / n_h) * n_hp / n_w compares at most (exactly, without early_abandon). The port must give a cluster a
    cycle. A visit starts with the first group that is there, so that a key alone in its batch has no other waits, if
    its visits to a tile take `memory` cycles or more.
    Raises: `ParamError` from `HcuParams`.
    Source: V-Rex sections IV-B and V-B, Fig. 8; section V-C has the tables in memory.
    """

    COUNTERS = ("tokens", "opened", "full_joins", "compares")

    def __init__(self, p: HcuParams):
        super().__init__(
            p,
            {
                "i": In(stream.Signature(token_layout(p))),
                "th_hd": In(p.distance_bits),
                "o": Out(stream.Signature(joined_layout(p))),
                "m": Out(table_client(client_sizes(p))),
            },
            p.protect,
        )

    @staticmethod
    def timing(p: HcuParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {
            "latency": f"2 * memory + {p.n_h + 3} + compares + tiles",
            "interval": "1 + compares for each tile + (1 if it opened a cluster else 0)",
            "compares_max": f"ceil(clusters / {p.n_h}) * {p.chunks}",
        }

    def elaborate(self, platform):
        p, m = self.p, Module()
        keys = m.submodules.keys = Ram(key_layout(p).size, p.frame, protect=p.protect)
        nearest = m.submodules.nearest = Ram(nearest_layout(p).size, p.frame, protect=p.protect)
        # A word holds the hash bits of n_h clusters, and the population count of the bits behind each chunk.
        tiles = m.submodules.tiles = Ram(p.n_h * cluster_bits(p), 2 * p.tile // p.n_h, p.n_h, p.protect)
        collect_errors(m, self, [keys, nearest, tiles])

        batch, work, head, scan = Batch(p), Work(p), Head(p, keys), Scan(p, nearest)
        lanes, end, step = Lanes(p), End(p), Step(p)
        self._collect(m, keys, batch, work, end)
        self._phases(m, batch, work, head, scan, end)
        self._count_items(m, work)
        self._ask(m, batch, work, scan)
        self._walk(m, keys, batch, work, head, scan, end)
        self._count_ones(m, head, scan)
        lanes.select(m, tiles, scan)
        lanes.compare(m, work, scan, self.th_hd)
        lanes.judge(m, work, scan, self.th_hd)
        self._end_visit(m, work, scan, lanes, end)
        self._next_group(m, work, head, scan, lanes, end, step)
        self._tiles_port(m, tiles, work, scan, end, step)
        self._load(m, work, head, scan, lanes, end)
        self._advance(m, head, scan, lanes, end, step)
        self._keep_nearest(m, nearest, head, scan, lanes, end)
        self._output(m, work, scan, lanes, end)
        self._put(m, work, scan, end)
        self._count_events(m, end)
        return m

    def _after(self, position: Value) -> Value:
        """The position behind another in the current hash-bit memory."""
        return Mux(position == self.p.frame - 1, 0, position + 1)

    def _collect(self, m: Module, keys: Ram, batch: Batch, work: Work, end: End) -> None:
        """Takes keys into the current hash-bit memory, and finds the end of their batch."""
        i = self.i.payload
        other = Signal()  # the key that is offered belongs to another batch
        unlike = orders(self.p, i.op) | orders(self.p, batch.op)
        if self.p.newest:
            unlike |= i.op != batch.op
        accept = Signal()
        after_write = comb(m, "after_write", self._after(batch.write), len(batch.write))
        m.d.comb += [
            other.eq(self.i.valid & batch.some & (unlike | (i.ctx != batch.ctx))),
            self.i.ready.eq((batch.held != self.p.frame) & ~batch.closed & ~other),
            accept.eq(self.i.valid & self.i.ready),
            keys.w_en.eq(accept),
            keys.w_addr.eq(batch.write),
            keys.w_data.eq(Cat(i.token, i.hash)),
        ]
        m.d.sync += batch.held.eq(batch.held + accept - end.resolves)
        with m.If(accept):
            m.d.sync += [
                batch.some.eq(1),
                batch.op.eq(i.op),
                batch.ctx.eq(i.ctx),
                batch.last.eq(i.last),
                batch.write.eq(after_write),
                batch.closed.eq(i.last | orders(self.p, i.op) | (after_write == batch.first)),
            ]
        with m.Elif(batch.starts):
            m.d.sync += [batch.some.eq(0), batch.closed.eq(0), batch.first.eq(batch.write)]
            m.d.sync += [work.last.eq(batch.last), work.first.eq(batch.first)]
        with m.Elif(other & ~batch.closed):
            m.d.sync += [batch.closed.eq(1), batch.last.eq(0)]

    def _phases(self, m: Module, batch: Batch, work: Work, head: Head, scan: Scan, end: End) -> None:
        """Asks for LEVEL when a batch has a key. Works until all keys are resolved and all items are here."""
        with m.FSM():
            with m.State("ASK"):
                m.d.comb += work.asks_level.eq(batch.some)
                m.d.sync += [work.op.eq(batch.op), work.ctx.eq(batch.ctx)]
                with m.If(batch.some & self.m.ask.ready):
                    m.next = "LEVEL"
            with m.State("LEVEL"):
                m.d.comb += work.level_comes.eq(self.m.data.valid)
                with m.If(self.m.data.valid):
                    m.next = "WORK"
            with m.State("WORK"):
                m.d.comb += [
                    work.item_comes.eq(self.m.data.valid),
                    batch.starts.eq(batch.closed & ~work.started),
                    work.over.eq(work.started & ~head.valid & ~scan.valid & work.all_here & ~end.puts_level),
                ]
                with m.If(batch.starts | work.over):
                    m.d.sync += work.started.eq(batch.starts)
                with m.If(work.over):
                    m.next = "ASK"

    def _count_items(self, m: Module, work: Work) -> None:
        """Takes the context's number of clusters, and counts the items that come."""
        p = self.p
        level = comb(m, "level", self.m.data.payload[: len(work.used)])
        last = comb(m, "last_cluster", level - 1, len(level))
        m.d.comb += self.m.data.ready.eq(1)
        if p.newest:
            last_tile = Mux(level == 0, 0, last >> exact_log2(p.tile))
            work.first_tile = comb(m, "first_tile", Mux(work.newest, last_tile, 0), len(work.asked))
        with m.If(work.level_comes):
            # The table may fill up in this batch. Then the nearest cluster counts at any distance.
            m.d.sync += [work.used.eq(level), work.near_full.eq(level > p.clusters - p.frame)]
            m.d.sync += [work.asked.eq(work.first_tile), work.arrived.eq(work.first_tile << exact_log2(p.tile))]
            with m.If((level == 0) | orders(p, work.op)):
                m.d.sync += [work.last_tile.eq(0), work.asking.eq(0), work.all_here.eq(1)]
            with m.Else():
                m.d.sync += [work.last_tile.eq(last >> exact_log2(p.tile)), work.asking.eq(1), work.all_here.eq(0)]
        with m.If(work.item_comes):
            m.d.sync += [work.arrived.eq(work.arrived + 1), work.all_here.eq(work.arrived + 1 == work.used)]

    def _ask(self, m: Module, batch: Batch, work: Work, scan: Scan) -> None:
        """Asks for LEVEL, then for each tile as soon as one of the two on chip is free."""
        p, ask = self.p, self.m.ask
        ahead = comb(m, "ahead", work.asked - scan.tile, 2)  # tiles from the one in work to the next to ask for
        end_of_tile = comb(m, "end_of_tile", (work.used - 1) & (p.tile - 1), bits_for(p.tile))
        m.d.comb += [
            work.asks_tile.eq(work.asking & ~ahead[1]),
            ask.valid.eq(work.asks_level | work.asks_tile),
        ]
        with m.If(work.asks_level):
            m.d.comb += [ask.payload.item.eq(Item.LEVEL), ask.payload.ctx.eq(batch.ctx)]
        with m.Else():
            m.d.comb += [
                ask.payload.item.eq(Item.HASH),
                ask.payload.ctx.eq(work.ctx),
                ask.payload.index.eq(work.asked << exact_log2(p.tile)),
                ask.payload.more.eq(Mux(work.asked == work.last_tile, end_of_tile, p.tile - 1)),
            ]
        with m.If(work.asks_tile & ask.ready):
            m.d.sync += [work.asked.eq(work.asked + 1), work.asking.eq(work.asked != work.last_tile)]
        with m.If(work.level_comes):
            m.d.sync += scan.tile.eq(work.first_tile)

    def _walk(self, m: Module, keys: Ram, batch: Batch, work: Work, head: Head, scan: Scan, end: End) -> None:
        """Reads the key of the next visit ahead: all keys in the first tile, then all keys in the next one."""
        idle = Signal()
        follows = comb(m, "follows", self._after(head.position), len(head.position))
        m.d.comb += [
            head.final.eq(follows == batch.first),  # behind this batch begins the next
            head.in_last.eq(head.tile == work.last_tile),
            # While the unit writes a new cluster, the visit's key stays in its register.
            idle.eq(~scan.valid & (~end.puts_hash | self.m.put.ready)),
            head.load.eq(head.valid & (idle | (end.finish & ~end.opens))),
            keys.r_en.eq(batch.starts | head.load),
            keys.r_addr.eq(Mux(batch.starts, batch.first, Mux(head.final, work.first, follows))),
        ]
        with m.If(batch.starts):
            first = Mux(work.newest, work.last_tile, 0) if self.p.newest else 0
            m.d.sync += [head.valid.eq(1), head.tile.eq(first)]
        with m.Elif(head.load):
            m.d.sync += [head.valid.eq(~(head.final & head.in_last)), head.tile.eq(head.tile + head.final)]
        with m.If(keys.r_en):
            m.d.sync += head.position.eq(keys.r_addr)

    def _count_ones(self, m: Module, head: Head, scan: Scan) -> None:
        """Counts the ones of the next key behind each chunk, and keeps the counts with the key."""
        head.rests = rests_of(m, self.p, head.key.hash, "key")
        for c, counted in enumerate(head.rests):
            kept = Signal.like(counted, name=f"key_rest{c}", reset_less=True)
            scan.rests.append(kept if len(counted) else counted)
            with m.If(head.load):
                m.d.sync += kept.eq(counted)

    def _end_visit(self, m: Module, work: Work, scan: Scan, lanes: Lanes, end: End) -> None:
        """Ends a visit, in the cycle behind its last comparison. In the last tile it resolves the key, when the output
        register is free.
        """
        m.d.comb += [
            work.nothing.eq((work.used == 0) | orders(self.p, work.op)),
            work.full.eq(work.used == self.p.clusters),
            work.used_next.eq(work.used + 1),
            end.out_free.eq(~end.out_valid | (self.o.ready & ~end.puts_level)),
            end.compares.eq(scan.valid & scan.here & ~scan.over & ~work.nothing),
            end.finish.eq(scan.valid & (scan.over | work.nothing) & (~scan.resolves | end.out_free)),
            end.near.eq((lanes.best < self.th_hd) & ~work.nothing),
            end.resolves.eq(end.finish & scan.resolves),
            end.opens.eq(end.resolves & is_key(self.p, work.op) & ~work.full & ~end.near),
            end.joins.eq(end.resolves & is_key(self.p, work.op) & (end.near | work.full)),
            end.far.eq(end.joins & ~end.near),
        ]
        with m.If(end.opens):
            m.d.sync += work.used.eq(work.used_next)

    def _next_group(self, m: Module, work: Work, head: Head, scan: Scan, lanes: Lanes, end: End, step: Step) -> None:
        """Chooses the group of the next comparison.

        The unit reads the first group of the next visit when this one ends, unless it writes a new cluster.
        """
        full_groups = comb(m, "full_groups", work.arrived >> scan.log_h)
        first = comb(m, "first_group", head.tile << exact_log2(self.p.tile // self.p.n_h), len(scan.group))
        goes_on = comb(m, "goes_on", scan.group + 1, len(scan.group))
        # A comparison decides late whether the unit reads a group, and does not choose which. It reads the next group
        # also where a cluster at distance 0 ends the visit, which it would know later still.
        with m.If(end.compares):
            m.d.comb += [step.group.eq(goes_on), step.wants.eq(lanes.leave & ~lanes.last_group)]
            m.d.comb += step.there.eq(work.all_here | (full_groups != goes_on))
        with m.Elif(head.load):
            m.d.comb += [step.group.eq(first), step.wants.eq(1)]
            m.d.comb += step.there.eq(work.all_here | (full_groups > first))
        with m.Else():  # the group has not arrived yet
            m.d.comb += [step.group.eq(scan.group), step.wants.eq(scan.valid & ~scan.here)]
            m.d.comb += step.there.eq(work.all_here | (full_groups > scan.group))

    def _tiles_port(self, m: Module, tiles: Ram, work: Work, scan: Scan, end: End, step: Step) -> None:
        """Reads the next group. Writes an item that comes, or the cluster that the key opens: never both at once."""
        p = self.p
        item = comb(m, "item", self.m.data.payload[: p.n_hp])
        index = comb(m, "new_index", Mux(work.item_comes, work.arrived, work.used))
        new = Mux(
            work.item_comes,
            cluster_word(p, item, rests_of(m, p, item, "item")),
            cluster_word(p, scan.key.hash, scan.rests),
        )
        writes = Signal(p.n_h)
        for lane in range(p.n_h):
            m.d.comb += writes[lane].eq(
                (work.item_comes | end.opens) & (index[: scan.log_h] == lane if scan.log_h else 1)
            )
        m.d.comb += [
            tiles.r_en.eq(step.wants & step.there),
            tiles.r_addr.eq(step.group),
            tiles.w_en.eq(writes),
            tiles.w_addr.eq(index >> scan.log_h),
            tiles.w_data.eq(new.replicate(p.n_h)),
        ]

    def _load(self, m: Module, work: Work, head: Head, scan: Scan, lanes: Lanes, end: End) -> None:
        """Makes the next visit the one in work. A key alone in its batch keeps its best in the registers."""
        fresh = (head.tile == 0) | work.newest if self.p.newest else head.tile == 0
        with m.If(head.load):
            m.d.sync += [
                scan.valid.eq(1),
                scan.key.eq(head.key),
                scan.position.eq(head.position),
                scan.tile.eq(head.tile),
                scan.fresh.eq(fresh),
                scan.resolves.eq(head.in_last),
                scan.final.eq(head.final),
                scan.over.eq(0),
                scan.first.eq(fresh | (head.position != scan.position)),
            ]
        with m.Elif(end.finish):
            m.d.sync += scan.valid.eq(0)
        with m.Elif(end.compares):
            m.d.sync += [scan.first.eq(0), scan.over.eq(lanes.done)]

    def _advance(self, m: Module, head: Head, scan: Scan, lanes: Lanes, end: End, step: Step) -> None:
        """Keeps the result of this comparison, and goes on to the next."""
        with m.If(end.compares):
            m.d.sync += [scan.best.eq(lanes.bound), scan.best_cluster.eq(lanes.bound_cluster)]
            m.d.sync += [scan.won.eq(lanes.wins), scan.compared.eq(scan.group)]
            m.d.sync += [part.eq(d) for part, d in zip(scan.partial, lanes.distance, strict=True)]
        with m.If(head.load | end.compares):
            m.d.sync += scan.chunk.eq(Mux(head.load | lanes.leave, 0, scan.chunk + 1))
        with m.If(step.wants):
            m.d.sync += [scan.group.eq(step.group), scan.here.eq(step.there)]

    def _keep_nearest(self, m: Module, nearest: Ram, head: Head, scan: Scan, lanes: Lanes, end: End) -> None:
        """Keeps a key's nearest cluster until its visit to the next tile."""
        m.d.comb += [
            nearest.w_en.eq(end.finish & ~scan.resolves),
            nearest.w_addr.eq(scan.position),
            nearest.w_data.eq(Cat(lanes.best, lanes.cluster)),
            nearest.r_en.eq(head.load & (head.tile != 0)),
            nearest.r_addr.eq(head.position),
        ]

    def _output(self, m: Module, work: Work, scan: Scan, lanes: Lanes, end: End) -> None:
        """Registers the result of a resolved key, and offers it when its puts were taken."""
        out = end.out
        with m.If(end.resolves):
            m.d.sync += [
                out.op.eq(Mux(work.newest, JOIN, work.op) if self.p.newest else work.op),
                out.ctx.eq(work.ctx),
                out.token.eq(scan.key.token),
                out.cluster.eq(Mux(end.joins, lanes.cluster, work.used)),
                out.clusters.eq(Mux(end.opens, work.used_next, work.used)),
                out.is_new.eq(end.opens),
                out.full_join.eq(end.far),
                out.last.eq(work.last & scan.final),
                end.out_valid.eq(1),
            ]
        with m.Elif(end.out_free):
            m.d.sync += end.out_valid.eq(0)
        m.d.comb += [self.o.payload.eq(out), self.o.valid.eq(end.out_valid & ~end.puts_level)]

    def _put(self, m: Module, work: Work, scan: Scan, end: End) -> None:
        """Writes the hash bits of a new cluster, which are the key's, then the number of clusters."""
        put, out = self.m.put, end.out
        with m.If(end.resolves):
            m.d.sync += [end.puts_hash.eq(end.opens), end.puts_level.eq(end.opens | (work.op == CLEAR))]
        with m.Elif(put.ready):
            m.d.sync += [end.puts_hash.eq(0), end.puts_level.eq(end.puts_hash)]
        m.d.comb += [put.valid.eq(end.puts_level), put.payload.ctx.eq(out.ctx)]
        with m.If(end.puts_hash):
            m.d.comb += [
                put.payload.item.eq(Item.HASH),
                put.payload.index.eq(out.cluster),
                put.payload.data.eq(scan.key.hash),
            ]
        with m.Else():
            m.d.comb += [put.payload.item.eq(Item.LEVEL), put.payload.data.eq(Mux(out.op == CLEAR, 0, out.clusters))]

    def _count_events(self, m: Module, end: End) -> None:
        self._count_later(
            m,
            tokens=end.opens | end.joins,
            opened=end.opens,
            full_joins=end.far,
            compares=end.compares,
        )
