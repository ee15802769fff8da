"""Hash-bit cluster unit."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hdl.arith.popcount import popcount
from hdl.memory import SinglePortRam, collect_errors, error_members
from hdl.params import HcuParams, bits_for

JOIN, CLEAR = 0, 1


def token_layout(p: HcuParams) -> data.StructLayout:
    """A key to cluster: op (JOIN, or CLEAR the table of ctx), ctx, token number, hash bits, last of its frame."""
    return data.StructLayout({"op": 1, "ctx": bits_for(p.n_ctx), "token": p.token_bits, "hash": p.n_hp, "last": 1})


def joined_layout(p: HcuParams) -> data.StructLayout:
    """What became of a key: its cluster, whether it opened it, whether a full table made it join, tokens in it now.

    A CLEAR passes through with op 1, so that what follows sees it in order.
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


class Hcu(wiring.Component):
    """Joins every key to the nearest cluster by Hamming distance of hash bits, or opens a cluster (section V-B).

    The cluster hash bits of a context are scanned in groups of n_h clusters, n_w bits of each a cycle; a group is one
    word of the memory, read once. With
    early_abandon a group is left as soon as none of its clusters can come below the best so far (or Th_hd), and a scan
    ends at distance 0. What the bits to come must add at least is the difference of their population counts; those of
    a cluster stand beside its bits in the memory.
    Nearest means least distance, ties to the lowest index. Without a cluster at a distance below `th_hd` the token
    opens the next one; in a full table it joins the nearest instead (`full_join`). Counts saturate.

    Parameters
    ----------
    p : HcuParams

    Members
    -------
    i : In(stream of `token_layout`) : keys in token order
    th_hd : In(distance_bits) : Th_hd, 0 to n_hp + 1; stable while keys are in flight
    o : Out(stream of `joined_layout`) : one beat per beat of `i`, in order
    perf : Out(struct of 32-bit counters) : tokens, opened, full_joins, compares (cycles in which accumulators worked)

    Latency: 3 cycles from a key's acceptance to its first comparison, `compares` of the key, 1 to its beat on `o`.
    Throughput: one key every max(1, compares) cycles, one more after a key that opened a cluster, where
    compares = ceil(clusters / n_h) * n_hp / n_w at most (exactly, without early_abandon). With n_w = n_hp a key that
    joins after one comparison ends two cycles after the key before, whose count is being written.
    Raises: `ParamError` from `HcuParams`.
    Source: V-Rex sections IV-B and V-B, Fig. 8.
    """

    def __init__(self, p: HcuParams):
        self.p = p
        super().__init__(
            {
                "i": In(stream.Signature(token_layout(p))),
                "th_hd": In(p.distance_bits),
                "o": Out(stream.Signature(joined_layout(p))),
                "perf": Out(data.StructLayout(dict.fromkeys(self.counters(), 32))),
                **error_members(p.protect),
            }
        )

    @staticmethod
    def counters() -> list[str]:
        """Names of the performance counters in `perf`."""
        return ["tokens", "opened", "full_joins", "compares"]

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
        groups, chunks = p.clusters // p.n_h, p.chunks
        group_bits, lane_bits = bits_for(groups), bits_for(p.n_h)
        n_bits = bits_for(p.clusters + 1)
        log_h = p.n_h.bit_length() - 1

        # Current hash-bit memory and its output register; two words at least, which sustain a key a cycle.
        fifo = m.submodules.fifo = SyncFIFOBuffered(width=token_layout(p).size, depth=max(p.frame, 2) + 1)
        head = data.View(token_layout(p), fifo.r_data)
        m.d.comb += [
            fifo.w_data.eq(self.i.payload.as_value()),
            fifo.w_en.eq(self.i.valid),
            self.i.ready.eq(fifo.w_rdy),
        ]

        # Cluster hash bits, a word holding those of n_h clusters, and the ones that come after each chunk.
        rest_bits = [p.rest_bits(c) for c in range(chunks)]
        lane_width = p.n_hp + sum(rest_bits)
        table = m.submodules.table = SinglePortRam(p.n_h * lane_width, groups * p.n_ctx, p.n_h, p.protect)
        counts = m.submodules.counts = SinglePortRam(p.count_bits, p.clusters * p.n_ctx, protect=p.protect)
        collect_errors(m, self, [table, counts])

        # The key being compared, and how far its scan is.
        cur = Signal(token_layout(p))
        cur_valid = Signal()
        first = Signal()
        group = Signal(group_bits)
        chunk = Signal(bits_for(chunks))
        partial = [Signal(p.distance_bits, name=f"partial{i}") for i in range(p.n_h)]
        best = Signal(p.distance_bits)
        best_cluster = Signal(p.cluster_bits)

        used = [Signal(n_bits, name=f"used{i}") for i in range(p.n_ctx)]  # clusters of each context
        n_used = Signal(n_bits)
        with m.Switch(cur.ctx):
            for i, u in enumerate(used):
                with m.Case(i):
                    m.d.comb += n_used.eq(u)
        full = Signal()
        limit = Signal(p.distance_bits)
        m.d.comb += [
            full.eq(n_used == p.clusters),
            limit.eq(Mux(full, p.n_hp + 1, self.th_hd)),
        ]

        # One comparison: n_h clusters, n_w bits of each.
        word = Signal(p.n_h * (p.n_w + max(rest_bits)))
        key = Signal(p.n_w)
        key_rest = Signal(max(1, *rest_bits))
        lanes = data.ArrayLayout(p.n_w + max(rest_bits), p.n_h)
        # Ones of the key from chunk c + 1 on, counted when it comes.
        head_rests = [
            popcount(m, head.hash[(c + 1) * p.n_w :], f"rest{c}") if rest else Const(0, 1)
            for c, rest in enumerate(rest_bits)
        ]
        rests = [Signal.like(rest, name=f"key_rest{c}", reset_less=True) for c, rest in enumerate(head_rests)]
        with m.Switch(chunk):
            for c in range(chunks):
                with m.Case(c):
                    for lane in range(p.n_h):
                        stored = table.r_data[lane * lane_width : (lane + 1) * lane_width]
                        at = p.n_hp + sum(rest_bits[:c])
                        chunk_now = Cat(stored[c * p.n_w : (c + 1) * p.n_w], stored[at : at + rest_bits[c]])
                        m.d.comb += data.View(lanes, word)[lane].eq(chunk_now)
                    m.d.comb += [key.eq(cur.hash[c * p.n_w : (c + 1) * p.n_w]), key_rest.eq(rests[c])]
        bound = Signal(p.distance_bits)
        m.d.comb += bound.eq(Mux(first, limit, best))
        last_chunk = Signal()
        m.d.comb += last_chunk.eq(chunk == chunks - 1)
        alive = Signal(p.n_h)
        distance = []
        for lane in range(p.n_h):
            part = Signal(p.n_w + max(rest_bits), name=f"part{lane}")
            m.d.comb += part.eq(data.View(lanes, word)[lane])
            ones = popcount(m, part[: p.n_w] ^ key, f"ones{lane}")
            rest = Signal.like(key_rest, name=f"cluster_rest{lane}")
            more = Signal.like(key_rest, name=f"more{lane}")  # the bits to come differ in at least so many
            d = Signal(p.distance_bits, name=f"distance{lane}")
            reach = Signal(p.distance_bits + 1, name=f"reach{lane}")
            exists = Signal(name=f"exists{lane}")
            m.d.comb += [
                rest.eq(part[p.n_w :]),
                more.eq(Mux(rest > key_rest, rest - key_rest, key_rest - rest)),
                d.eq(ones + Mux(chunk == 0, 0, partial[lane])),
                exists.eq(((group << log_h) | lane) < n_used),
                reach.eq(d + more),
                alive[lane].eq(exists & (reach < bound)),
            ]
            distance.append(d)
        near, near_lane, near_ok = self._nearest(m, distance, alive, lane_bits)

        improved = Signal()
        new_best = Signal(p.distance_bits)
        new_cluster = Signal(p.cluster_bits)
        last_group = Signal()
        leave = Signal()  # nothing more to learn from this group
        done = Signal()
        m.d.comb += [
            improved.eq(last_chunk & near_ok),
            new_best.eq(Mux(improved, near, bound)),
            new_cluster.eq(Mux(improved, (group << log_h) | near_lane, best_cluster)),
            last_group.eq(((group + 1) << log_h) >= n_used),
            leave.eq(last_chunk | ((alive == 0) if p.early_abandon else 0)),
            done.eq(
                (cur.op == CLEAR)
                | (n_used == 0)
                | (leave & last_group)
                | ((improved & (near == 0)) if p.early_abandon else 0)
            ),
        ]
        # Some cluster is near enough: `best` starts at the limit, and what improves on it is below.
        found, found_before = Signal(), Signal()
        far = Signal()  # and yet not below th_hd: the table is full
        m.d.comb += [
            found.eq(improved | (found_before & ~first)),
            far.eq(Mux(improved, near >= self.th_hd, bound >= self.th_hd)),
        ]

        # Stage of the result: its count is read while the scan of the next key starts, and written back at once. A key
        # cannot join meanwhile: it takes a comparison a chunk. With one chunk it waits.
        out = Signal(joined_layout(p))
        out_valid = Signal()
        counting = Signal()  # the count is being written
        out_free = Signal()
        m.d.comb += out_free.eq(~out_valid | self.o.ready)
        go = Signal()  # the comparison of this cycle counts
        finish = Signal()
        may_join = Signal(init=1)
        opens = Signal()
        joins = Signal()
        cluster = Signal(p.cluster_bits)
        m.d.comb += [
            go.eq(cur_valid & (~done | (out_free & may_join))),
            finish.eq(cur_valid & done & out_free & may_join),
            opens.eq(finish & (cur.op == JOIN) & ~found),
            joins.eq(finish & (cur.op == JOIN) & found),
            cluster.eq(Mux(found, new_cluster, n_used[: p.cluster_bits])),
        ]

        if chunks == 1:
            m.d.comb += may_join.eq(~(counting & found & (cur.op == JOIN)))

        # The next key's first group is read while the last comparison of this one is made, unless a cluster is written.
        load = Signal()
        m.d.comb += [load.eq(fifo.r_rdy & ((finish & ~opens) | ~cur_valid)), fifo.r_en.eq(load)]

        next_group = Signal(group_bits)
        next_chunk = Signal(bits_for(chunks))
        read = Signal()
        m.d.comb += read.eq(load | (go & ~finish))
        with m.If(load):
            m.d.comb += [next_group.eq(0), next_chunk.eq(0)]
        with m.Elif(leave):
            m.d.comb += [next_group.eq(group + 1), next_chunk.eq(0)]
        with m.Else():
            m.d.comb += [next_group.eq(group), next_chunk.eq(chunk + 1)]
        read_ctx = Signal(bits_for(p.n_ctx))
        m.d.comb += read_ctx.eq(Mux(load, head.ctx, cur.ctx))
        write_group = Signal(group_bits)
        write_lanes = Signal(p.n_h)
        m.d.comb += write_group.eq(n_used >> log_h)
        for lane in range(p.n_h):
            m.d.comb += write_lanes[lane].eq(opens & (n_used[:log_h] == lane if log_h else opens))
        m.d.comb += [
            table.en.eq(opens | (read & (next_chunk == 0))),
            table.write.eq(write_lanes),
            table.addr.eq(Mux(opens, cur.ctx * groups + write_group, read_ctx * groups + next_group)),
            table.w_data.eq(Cat(*[cur.hash, *(r[:bits] for r, bits in zip(rests, rest_bits, strict=True))] * p.n_h)),
        ]

        with m.If(load):
            m.d.sync += [cur.eq(head), cur_valid.eq(1), first.eq(1)]
            m.d.sync += [rest.eq(counted) for rest, counted in zip(rests, head_rests, strict=True)]
        with m.Elif(finish):
            m.d.sync += cur_valid.eq(0)
        with m.If(go & ~finish):
            m.d.sync += [first.eq(0), found_before.eq(found), best.eq(new_best), best_cluster.eq(new_cluster)]
            m.d.sync += [part.eq(d) for part, d in zip(partial, distance, strict=True)]
        with m.If(read):
            m.d.sync += [group.eq(next_group), chunk.eq(next_chunk)]
        with m.Switch(cur.ctx):
            for i, u in enumerate(used):
                with m.Case(i):
                    with m.If(finish & (cur.op == CLEAR)):
                        m.d.sync += u.eq(0)
                    with m.Elif(opens):
                        m.d.sync += u.eq(u + 1)

        # Counts: read at `finish`, written back in the next cycle.
        old = Signal(p.count_bits)
        count = Signal(p.count_bits)
        top = (1 << p.count_bits) - 1
        m.d.comb += [
            old.eq(counts.r_data),
            count.eq(Mux(counting, Mux(out.is_new, 1, Mux(old == top, top, old + 1)), out.count)),
            counts.en.eq(counting | joins),
            counts.write.eq(counting),
            counts.addr.eq(Mux(counting, out.ctx * p.clusters + out.cluster, cur.ctx * p.clusters + cluster)),
            counts.w_data.eq(count),
        ]
        m.d.sync += [counting.eq(opens | joins), out.count.eq(count)]
        with m.If(finish):
            m.d.sync += [
                out.op.eq(cur.op),
                out.ctx.eq(cur.ctx),
                out.token.eq(cur.token),
                out.cluster.eq(cluster),
                out.is_new.eq(opens),
                out.full_join.eq(joins & full & far),
                out.last.eq(cur.last),
                out_valid.eq(1),
            ]
        with m.Elif(self.o.ready):
            m.d.sync += out_valid.eq(0)
        m.d.comb += [self.o.payload.eq(out), self.o.payload.count.eq(count), self.o.valid.eq(out_valid)]

        for name, event in (
            ("tokens", opens | joins),
            ("opened", opens),
            ("full_joins", joins & full & far),
            ("compares", go & (cur.op == JOIN) & (n_used != 0)),
        ):
            counted = Signal(name=f"counted_{name}")  # a cycle later: 32 bits hang on it
            m.d.sync += counted.eq(event)
            with m.If(counted):
                m.d.sync += self.perf[name].eq(self.perf[name] + 1)
        return m

    def _nearest(self, m, distance, alive, lane_bits):
        """Least distance of the lanes alive, its lane (lowest on ties) and whether there is one: a binary tree."""
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
