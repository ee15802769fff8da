"""Hash-bit cluster unit."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hdl.arith.popcount import popcount
from hdl.memory import SinglePortRam, collect_errors
from hdl.named import comb
from hdl.params import HcuParams, bits_for
from hdl.unit import Unit

JOIN, CLEAR = 0, 1


def token_layout(p: HcuParams) -> data.StructLayout:
    """A key to cluster. `op`: JOIN, or CLEAR the table of `ctx`. `token`: number. `last`: final key of its frame."""
    return data.StructLayout({"op": 1, "ctx": bits_for(p.n_ctx), "token": p.token_bits, "hash": p.n_hp, "last": 1})


def joined_layout(p: HcuParams) -> data.StructLayout:
    """Result of a key: its cluster, and the cluster's token count with this key.

    `is_new`: the key opened the cluster. `full_join`: it joined although it is far, because the table is full.
    A CLEAR passes through with op 1, so that the units behind see it in order.
    """
    return data.StructLayout(
        {
            "op": 1,
            "ctx": bits_for(p.n_ctx),
            "token": p.token_bits,
            "cluster": p.cluster_bits,
            "is_new": 1,
            "full_join": 1,
            "count": p.count_bits,
            "last": 1,
        }
    )


class Hcu(Unit):
    """Joins each key to the nearest cluster by Hamming distance of hash bits, or opens a cluster (section V-B).

    Keys come in on `i` in token order. The unit compares each key with the clusters of its context and offers one
    result a key on `o`, in the same order. Nearest means least distance; ties go to the lowest index. If no cluster is
    at a distance below `th_hd`, the key opens the next cluster. A CLEAR empties the table of its context.

    A scan takes groups of n_h clusters, and n_w bits of each cluster a cycle. A group is one word of the table memory,
    which the unit reads once. With early_abandon the scan leaves a group as soon as none of its clusters can come below
    the best distance so far (or Th_hd), and it ends at distance 0. The difference of two population counts is the least
    that the remaining bits must add to a distance. The memory keeps these population counts beside a cluster's hash
    bits.

    Corner cases: in an empty table a key opens cluster 0 without a comparison. In a full table a far key joins the
    nearest cluster and its result has `full_join`. Token counts saturate at 2^count_bits - 1.

    Parameters
    ----------
    p : HcuParams

    Members
    -------
    i : In(stream of `token_layout`) : keys in token order; the unit holds a frame of them
    th_hd : In(distance_bits) : Th_hd, 0 to n_hp + 1; keep it stable while keys are in flight
    o : Out(stream of `joined_layout`) : one beat per beat of `i`, in order
    perf : Out(struct of 32-bit counters) : tokens, opened, full_joins, compares (cycles in which accumulators worked)

    Latency: 4 + compares cycles: 3 from a key's acceptance to its first comparison, `compares` of the key, 1 to its
    beat on `o`. At the `core` preset a full table of 1,024 clusters takes at most 2,048 comparisons, 2,052 cycles in
    all.
    Throughput: one key every max(1, compares) cycles, and one cycle more after a key that opened a cluster, where
    compares = ceil(clusters / n_h) * n_hp / n_w at most (exactly, without early_abandon). With n_w = n_hp a key that
    joins after one comparison ends two cycles after the key before, because that key's count is still being written.
    Raises: `ParamError` from `HcuParams`.
    Source: V-Rex sections IV-B and V-B, Fig. 8.
    """

    COUNTERS = ("tokens", "opened", "full_joins", "compares")

    def __init__(self, p: HcuParams):
        super().__init__(
            p,
            {
                "i": In(stream.Signature(token_layout(p))),
                "th_hd": In(p.distance_bits),
                "o": Out(stream.Signature(joined_layout(p))),
            },
            p.protect,
        )

    @staticmethod
    def timing(p: HcuParams) -> dict[str, str]:
        """Formulas for the manifest."""
        return {
            "latency": "4 + compares",
            "interval": "max(1, compares) + (1 if it opened a cluster else 0)"
            + (", at least 2 where a key joins" if p.chunks == 1 else ""),
            "compares_max": f"ceil(clusters / {p.n_h}) * {p.chunks}",
        }

    def elaborate(self, platform):
        p, m = self.p, Module()
        # The current hash-bit memory and its output register. Two words at least sustain a key a cycle.
        fifo = m.submodules.fifo = SyncFIFOBuffered(width=token_layout(p).size, depth=max(p.frame, 2) + 1)
        m.d.comb += [
            fifo.w_data.eq(self.i.payload.as_value()),
            fifo.w_en.eq(self.i.valid),
            self.i.ready.eq(fifo.w_rdy),
        ]
        # A word holds the hash bits of n_h clusters, and the population count of the bits behind each chunk.
        table = m.submodules.hashes = SinglePortRam(
            p.n_h * self._lane_width, p.clusters // p.n_h * p.n_ctx, p.n_h, p.protect
        )
        counts = m.submodules.counts = SinglePortRam(p.count_bits, p.clusters * p.n_ctx, protect=p.protect)
        collect_errors(m, self, [table, counts])

        scan, lanes, best, end, step = _Scan(p), _Lanes(p), _Best(p), _End(p), _Step(p, fifo)
        self._clusters_used(m, scan)
        self._words(m, table, scan, lanes, step)
        self._compare(m, scan, lanes)
        self._judge(m, scan, lanes, best)
        self._end_scan(m, scan, best, end)
        self._next_step(m, scan, best, end, step)
        self._table_port(m, table, scan, end, step)
        self._advance(m, scan, lanes, best, end, step)
        self._count_clusters(m, scan, end)
        self._count_tokens(m, counts, scan, end)
        self._output(m, scan, best, end)
        self._count_events(m, scan, best, end)
        return m

    @property
    def _lane_width(self) -> int:
        """Bits of a cluster in the table."""
        return self.p.n_hp + sum(_rest_bits(self.p))

    def _clusters_used(self, m: Module, scan: "_Scan") -> None:
        """Selects the cluster count of the key's context, and the distance below which a cluster is near enough."""
        with m.Switch(scan.cur.ctx):
            for i, u in enumerate(scan.used):
                with m.Case(i):
                    m.d.comb += scan.n_used.eq(u)
        m.d.comb += [
            scan.full.eq(scan.n_used == self.p.clusters),
            scan.limit.eq(Mux(scan.full, self.p.n_hp + 1, self.th_hd)),
        ]

    def _words(self, m: Module, table: SinglePortRam, scan: "_Scan", lanes: "_Lanes", step: "_Step") -> None:
        """Selects the bits of one comparison: n_w of the key and of n_h clusters, and the population counts of the
        rest.
        """
        p, rest_bits = self.p, _rest_bits(self.p)
        # Population counts of the key's bits from chunk c + 1 on, taken when the key is loaded.
        step.head_rests = [
            popcount(m, step.head.hash[(c + 1) * p.n_w :], f"rest{c}") if rest else Const(0, 1)
            for c, rest in enumerate(rest_bits)
        ]
        scan.rests = [Signal.like(rest, name=f"key_rest{c}", reset_less=True) for c, rest in enumerate(step.head_rests)]
        with m.Switch(scan.chunk):
            for c in range(p.chunks):
                with m.Case(c):
                    for lane in range(p.n_h):
                        stored = table.r_data[lane * self._lane_width : (lane + 1) * self._lane_width]
                        at = p.n_hp + sum(rest_bits[:c])
                        chunk_now = Cat(stored[c * p.n_w : (c + 1) * p.n_w], stored[at : at + rest_bits[c]])
                        m.d.comb += data.View(lanes.layout, lanes.word)[lane].eq(chunk_now)
                    m.d.comb += [
                        lanes.key.eq(scan.cur.hash[c * p.n_w : (c + 1) * p.n_w]),
                        lanes.key_rest.eq(scan.rests[c]),
                    ]

    def _compare(self, m: Module, scan: "_Scan", lanes: "_Lanes") -> None:
        """Computes each lane's distance so far, and whether its cluster can still come below the best."""
        p, key_rest = self.p, lanes.key_rest
        m.d.comb += lanes.bound.eq(Mux(scan.first, scan.limit, scan.best))
        m.d.comb += lanes.last_chunk.eq(scan.chunk == p.chunks - 1)
        for lane in range(p.n_h):
            part = comb(m, f"part{lane}", data.View(lanes.layout, lanes.word)[lane])
            ones = popcount(m, part[: p.n_w] ^ lanes.key, f"ones{lane}")
            rest = Signal.like(key_rest, name=f"cluster_rest{lane}")
            more = Signal.like(key_rest, name=f"more{lane}")  # least number of differing bits still to come
            d = lanes.distance[lane]
            reach = Signal(p.distance_bits + 1, name=f"reach{lane}")
            exists = Signal(name=f"exists{lane}")
            m.d.comb += [
                rest.eq(part[p.n_w :]),
                more.eq(Mux(rest > key_rest, rest - key_rest, key_rest - rest)),
                d.eq(ones + Mux(scan.chunk == 0, 0, scan.partial[lane])),
                exists.eq(scan.cluster(lane) < scan.n_used),
                reach.eq(d + more),
                lanes.alive[lane].eq(exists & (reach < lanes.bound)),
            ]

    def _judge(self, m: Module, scan: "_Scan", lanes: "_Lanes", best: "_Best") -> None:
        """Decides from the comparison whether the scan leaves the group, and whether it is done with the key."""
        p, log_h = self.p, scan.log_h
        near, near_lane, near_ok = self._nearest(m, lanes.distance, lanes.alive, bits_for(p.n_h))
        m.d.comb += [
            best.improved.eq(lanes.last_chunk & near_ok),
            best.new_best.eq(Mux(best.improved, near, lanes.bound)),
            best.new_cluster.eq(Mux(best.improved, scan.cluster(near_lane), scan.best_cluster)),
            best.last_group.eq(((scan.group + 1) << log_h) >= scan.n_used),
            best.leave.eq(lanes.last_chunk | ((lanes.alive == 0) if p.early_abandon else 0)),
            best.done.eq(
                (scan.cur.op == CLEAR)
                | (scan.n_used == 0)
                | (best.leave & best.last_group)
                | ((best.improved & (near == 0)) if p.early_abandon else 0)
            ),
        ]
        m.d.comb += [
            best.found.eq(best.improved | (scan.found_before & ~scan.first)),
            best.far.eq(Mux(best.improved, near >= self.th_hd, lanes.bound >= self.th_hd)),
        ]

    def _end_scan(self, m: Module, scan: "_Scan", best: "_Best", end: "_End") -> None:
        """Ends a key's scan when its result is known and the output register is free."""
        p, cur = self.p, scan.cur
        m.d.comb += end.out_free.eq(~end.out_valid | self.o.ready)
        m.d.comb += [
            end.go.eq(scan.cur_valid & (~best.done | (end.out_free & end.may_join))),
            end.finish.eq(scan.cur_valid & best.done & end.out_free & end.may_join),
            end.opens.eq(end.finish & (cur.op == JOIN) & ~best.found),
            end.joins.eq(end.finish & (cur.op == JOIN) & best.found),
            end.cluster.eq(Mux(best.found, best.new_cluster, scan.n_used[: p.cluster_bits])),
        ]
        # The unit reads the cluster's count while the next key's scan starts, and writes it back at once. With several
        # chunks the next key cannot join before that, as its scan takes a cycle a chunk. With one chunk it waits.
        if p.chunks == 1:
            m.d.comb += end.may_join.eq(~(end.counting & best.found & (cur.op == JOIN)))

    def _next_step(self, m: Module, scan: "_Scan", best: "_Best", end: "_End", step: "_Step") -> None:
        """Chooses the group and chunk of the next comparison.

        The unit reads the next key's first group during the last comparison of this key, unless it writes a new
        cluster.
        """
        fifo, load = step.fifo, step.load
        m.d.comb += [load.eq(fifo.r_rdy & ((end.finish & ~end.opens) | ~scan.cur_valid)), fifo.r_en.eq(load)]
        m.d.comb += step.read.eq(load | (end.go & ~end.finish))
        with m.If(load):
            m.d.comb += [step.next_group.eq(0), step.next_chunk.eq(0)]
        with m.Elif(best.leave):
            m.d.comb += [step.next_group.eq(scan.group + 1), step.next_chunk.eq(0)]
        with m.Else():
            m.d.comb += [step.next_group.eq(scan.group), step.next_chunk.eq(scan.chunk + 1)]

    def _table_port(self, m: Module, table: SinglePortRam, scan: "_Scan", end: "_End", step: "_Step") -> None:
        """Reads the next group, or writes the cluster that the key opens."""
        p, log_h, cur = self.p, scan.log_h, scan.cur
        groups = p.clusters // p.n_h
        read_ctx = comb(m, "read_ctx", Mux(step.load, step.head.ctx, cur.ctx))
        write_group = comb(m, "write_group", scan.n_used >> log_h, bits_for(groups))
        write_lanes = Signal(p.n_h)
        for lane in range(p.n_h):
            m.d.comb += write_lanes[lane].eq(end.opens & (scan.n_used[:log_h] == lane if log_h else end.opens))
        own_rests = (r[:bits] for r, bits in zip(scan.rests, _rest_bits(p), strict=True))
        m.d.comb += [
            table.en.eq(end.opens | (step.read & (step.next_chunk == 0))),
            table.write.eq(write_lanes),
            table.addr.eq(Mux(end.opens, cur.ctx * groups + write_group, read_ctx * groups + step.next_group)),
            table.w_data.eq(Cat(*[cur.hash, *own_rests] * p.n_h)),
        ]

    def _advance(self, m: Module, scan: "_Scan", lanes: "_Lanes", best: "_Best", end: "_End", step: "_Step") -> None:
        """Loads the next key, or keeps the result of this comparison for the next one of the same key."""
        with m.If(step.load):
            m.d.sync += [scan.cur.eq(step.head), scan.cur_valid.eq(1), scan.first.eq(1)]
            m.d.sync += [rest.eq(counted) for rest, counted in zip(scan.rests, step.head_rests, strict=True)]
        with m.Elif(end.finish):
            m.d.sync += scan.cur_valid.eq(0)
        with m.If(end.go & ~end.finish):
            m.d.sync += [
                scan.first.eq(0),
                scan.found_before.eq(best.found),
                scan.best.eq(best.new_best),
                scan.best_cluster.eq(best.new_cluster),
            ]
            m.d.sync += [part.eq(d) for part, d in zip(scan.partial, lanes.distance, strict=True)]
        with m.If(step.read):
            m.d.sync += [scan.group.eq(step.next_group), scan.chunk.eq(step.next_chunk)]

    def _count_clusters(self, m: Module, scan: "_Scan", end: "_End") -> None:
        with m.Switch(scan.cur.ctx):
            for i, u in enumerate(scan.used):
                with m.Case(i):
                    with m.If(end.finish & (scan.cur.op == CLEAR)):
                        m.d.sync += u.eq(0)
                    with m.Elif(end.opens):
                        m.d.sync += u.eq(u + 1)

    def _count_tokens(self, m: Module, counts: SinglePortRam, scan: "_Scan", end: "_End") -> None:
        """Updates a cluster's token count: read at `finish`, written back in the next cycle, in which its beat is
        offered.
        """
        p, out, cur = self.p, end.out, scan.cur
        top = (1 << p.count_bits) - 1
        old, count = comb(m, "old", counts.r_data), end.count
        m.d.comb += [
            count.eq(Mux(end.counting, Mux(out.is_new, 1, Mux(old == top, top, old + 1)), out.count)),
            counts.en.eq(end.counting | end.joins),
            counts.write.eq(end.counting),
            counts.addr.eq(Mux(end.counting, out.ctx * p.clusters + out.cluster, cur.ctx * p.clusters + end.cluster)),
            counts.w_data.eq(count),
        ]
        m.d.sync += [end.counting.eq(end.opens | end.joins), out.count.eq(count)]

    def _output(self, m: Module, scan: "_Scan", best: "_Best", end: "_End") -> None:
        """Registers the result of the key whose scan ends, and offers it."""
        cur, out = scan.cur, end.out
        with m.If(end.finish):
            m.d.sync += [
                out.op.eq(cur.op),
                out.ctx.eq(cur.ctx),
                out.token.eq(cur.token),
                out.cluster.eq(end.cluster),
                out.is_new.eq(end.opens),
                out.full_join.eq(end.joins & scan.full & best.far),
                out.last.eq(cur.last),
                end.out_valid.eq(1),
            ]
        with m.Elif(self.o.ready):
            m.d.sync += end.out_valid.eq(0)
        m.d.comb += [self.o.payload.eq(out), self.o.payload.count.eq(end.count), self.o.valid.eq(end.out_valid)]

    def _count_events(self, m: Module, scan: "_Scan", best: "_Best", end: "_End") -> None:
        self._count_later(
            m,
            tokens=end.opens | end.joins,
            opened=end.opens,
            full_joins=end.joins & scan.full & best.far,
            compares=end.go & (scan.cur.op == JOIN) & (scan.n_used != 0),
        )

    def _nearest(self, m: Module, distance: list[Signal], alive: Signal, lane_bits: int) -> tuple[Value, Value, Value]:
        """Least distance of the lanes alive, its lane (lowest on ties) and whether a lane is alive: a binary tree."""
        nodes = [(d, i, alive[i]) for i, d in enumerate(distance)]
        level = 0
        while len(nodes) > 1:
            pairs, rest = [], nodes[len(nodes) & ~1 :]
            for j in range(0, len(nodes) - 1, 2):
                (da, la, oka), (db, lb, okb) = nodes[j], nodes[j + 1]
                take_b = Signal(name=f"near{level}_{j}_b")
                d = Signal(self.p.distance_bits, name=f"near{level}_{j}_d")
                lane = Signal(lane_bits, name=f"near{level}_{j}_lane")
                ok = Signal(name=f"near{level}_{j}_ok")
                m.d.comb += [
                    take_b.eq(okb & (~oka | (db < da))),
                    d.eq(Mux(take_b, db, da)),
                    lane.eq(Mux(take_b, lb, la)),
                    ok.eq(oka | okb),
                ]
                pairs.append((d, lane, ok))
            nodes, level = pairs + rest, level + 1
        return nodes[0]


class _Scan:
    """The key being compared, and the progress of its scan."""

    def __init__(self, p: HcuParams):
        n_bits = bits_for(p.clusters + 1)
        self.log_h = p.n_h.bit_length() - 1
        self.cur = Signal(token_layout(p))
        self.cur_valid = Signal()
        self.first = Signal()  # nothing has been compared yet
        self.group = Signal(bits_for(p.clusters // p.n_h))
        self.chunk = Signal(bits_for(p.chunks))
        self.partial = [Signal(p.distance_bits, name=f"partial{i}") for i in range(p.n_h)]  # of the chunks before
        self.best = Signal(p.distance_bits)  # least distance of the groups before, or the limit if none came below it
        self.best_cluster = Signal(p.cluster_bits)
        self.found_before = Signal()  # a group before has a cluster that is near enough
        self.used = [Signal(n_bits, name=f"used{i}") for i in range(p.n_ctx)]  # clusters of each context
        self.n_used = Signal(n_bits)  # clusters of the key's context
        self.full = Signal()
        self.limit = Signal(p.distance_bits)
        self.rests: list[Signal] = []  # population count of the key's bits after each chunk

    def cluster(self, lane: int | Value) -> Value:
        """Index of the cluster in a lane."""
        return (self.group << self.log_h) | lane


class _Lanes:
    """One comparison: n_h clusters, n_w bits of each."""

    def __init__(self, p: HcuParams):
        rest = max(_rest_bits(p))
        self.layout = data.ArrayLayout(p.n_w + rest, p.n_h)
        self.word = Signal(p.n_h * (p.n_w + rest))
        self.key = Signal(p.n_w)
        self.key_rest = Signal(max(1, rest))  # population count of the key's bits still to come
        self.bound = Signal(p.distance_bits)  # distance below which a cluster improves on the best
        self.last_chunk = Signal()
        self.alive = Signal(p.n_h)  # clusters that can still come below `bound`
        self.distance = [Signal(p.distance_bits, name=f"distance{lane}") for lane in range(p.n_h)]


class _Best:
    """What one comparison tells about the group and the key."""

    def __init__(self, p: HcuParams):
        self.improved = Signal()  # the group has the nearest cluster so far
        self.new_best = Signal(p.distance_bits)
        self.new_cluster = Signal(p.cluster_bits)
        self.last_group = Signal()
        self.leave = Signal()  # no cluster of this group can improve any more
        self.done = Signal()  # the scan of the key ends
        # Some cluster is near enough. `best` starts at the limit, so a cluster that improves on it is below the limit.
        self.found = Signal()
        self.far = Signal()  # the nearest cluster is not below th_hd (matters in a full table)


class _End:
    """The end of a key's scan, and its result."""

    def __init__(self, p: HcuParams):
        self.out = Signal(joined_layout(p))
        self.out_valid = Signal()
        self.out_free = Signal()
        self.counting = Signal()  # the cluster's count is being written back
        self.count = Signal(p.count_bits)  # tokens of the cluster joined, this key included
        self.go = Signal()  # the unit uses this cycle's comparison
        self.finish = Signal()  # it is the key's last
        self.may_join = Signal(init=1)
        self.opens = Signal()
        self.joins = Signal()
        self.cluster = Signal(p.cluster_bits)


class _Step:
    """The next comparison: the next group or chunk of this key, or the next key."""

    def __init__(self, p: HcuParams, fifo: SyncFIFOBuffered):
        self.fifo = fifo
        self.head = data.View(token_layout(p), fifo.r_data)  # the next key
        self.head_rests: list[Value] = []  # population count of its bits after each chunk
        self.load = Signal()  # the unit takes the next key
        self.next_group = Signal(bits_for(p.clusters // p.n_h))
        self.next_chunk = Signal(bits_for(p.chunks))
        self.read = Signal()


def _rest_bits(p: HcuParams) -> list[int]:
    return [p.rest_bits(c) for c in range(p.chunks)]
