"""The lanes of the HCU, which compare n_w hash bits of a key with those of n_h clusters a cycle."""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

from openvrex.hdl.arith.popcount import popcount
from openvrex.hdl.memory import Ram
from openvrex.hdl.named import comb
from openvrex.hdl.params import HcuParams, bits_for
from openvrex.hdl.retrieval.hcu_state import Scan, Work


class Lanes:
    """One comparison: n_h clusters, n_w bits of each, and what it means for the group and the visit."""

    def __init__(self, p: HcuParams):
        rest = max(_rest_bits(p))
        self.p = p
        self.layout = data.ArrayLayout(p.n_w + rest, p.n_h)
        self.word = Signal(p.n_h * (p.n_w + rest))
        self.key = Signal(p.n_w, name="key_chunk")
        self.key_rest = Signal(max(1, rest))  # population count of the key's bits still to come
        self.bound = Signal(p.distance_bits)  # distance below which a cluster improves on the best
        self.last_chunk = Signal()
        self.alive = Signal(p.n_h)  # clusters that can still come below `bound`
        self.wins = Signal(p.n_h)  # clusters below `bound`
        self.equals = Signal(p.n_h)  # clusters at distance 0
        self.distance = [Signal(p.distance_bits, name=f"distance{lane}") for lane in range(p.n_h)]
        self.best = Signal(p.distance_bits, name="best_so_far")  # least distance of the visit before this comparison
        self.cluster = Signal(p.cluster_bits, name="cluster_so_far")
        self.bound_cluster = Signal(p.cluster_bits)  # the cluster at `bound`
        self.last_group = Signal()
        self.leave = Signal()  # no cluster of this group can improve any more
        self.done = Signal()  # the visit ends

    def select(self, m: Module, tiles: Ram, scan: Scan) -> None:
        """Selects the bits of one comparison, and the population counts of the bits behind them."""
        p, rest_bits, width = self.p, _rest_bits(self.p), cluster_bits(self.p)
        with m.Switch(scan.chunk):
            for c in range(p.chunks):
                with m.Case(c):
                    for lane in range(p.n_h):
                        stored = tiles.r_data[lane * width : (lane + 1) * width]
                        at = p.n_hp + sum(rest_bits[:c])
                        chunk_now = Cat(stored[c * p.n_w : (c + 1) * p.n_w], stored[at : at + rest_bits[c]])
                        m.d.comb += data.View(self.layout, self.word)[lane].eq(chunk_now)
                    m.d.comb += [
                        self.key.eq(scan.key.hash[c * p.n_w : (c + 1) * p.n_w]),
                        self.key_rest.eq(scan.rests[c]),
                    ]

    def compare(self, m: Module, work: Work, scan: Scan, th_hd: Value) -> None:
        """Computes each lane's distance so far, and whether its cluster can still come below the best."""
        p = self.p
        limit = comb(m, "limit", Mux(work.near_full, p.n_hp + 1, th_hd), p.distance_bits)
        before = comb(m, "before_visit", Mux(scan.fresh, limit, scan.stored.distance))
        # The last comparison enters the best a cycle late, as it knows late whether it has the nearest cluster.
        near, near_lane, won = self._nearest(m, scan)
        m.d.comb += [
            self.best.eq(Mux(won, near, scan.best)),
            self.cluster.eq(Mux(won, (scan.compared << scan.log_h) | near_lane, scan.best_cluster)),
            self.bound.eq(Mux(scan.first, before, self.best)),
            self.bound_cluster.eq(Mux(scan.first, scan.stored.cluster, self.cluster)),
            self.last_chunk.eq(scan.chunk == p.chunks - 1),
        ]
        for lane in range(p.n_h):
            part = comb(m, f"part{lane}", data.View(self.layout, self.word)[lane])
            differ = comb(m, f"differ{lane}", part[: p.n_w] ^ self.key)
            ones = popcount(m, differ, f"ones{lane}")
            before = comb(m, f"before{lane}", Mux(scan.chunk == 0, 0, scan.partial[lane]))
            exists = comb(m, f"exists{lane}", scan.cluster(lane) < work.used)
            room = _signed(m, f"room{lane}", self.bound - before)
            m.d.comb += [
                self.distance[lane].eq(ones + before),
                self.wins[lane].eq(exists & self.last_chunk & (ones < room)),
                self.alive[lane].eq(exists & self._below(m, ones, room, part[p.n_w :], lane)),
                self.equals[lane].eq(exists & self.last_chunk & (differ == 0) & (before == 0)),
            ]

    def judge(self, m: Module, work: Work, scan: Scan, th_hd: Value) -> None:
        """Decides from the comparison whether the visit leaves the group, and whether it is over."""
        p, last = self.p, self.p.tile // self.p.n_h - 1
        m.d.comb += [
            self.leave.eq(self.last_chunk | ((self.alive == 0) if p.early_abandon else 0)),
            self.done.eq(self.leave & self.last_group),
        ]
        if p.early_abandon:  # a key at distance 0 joins, unless th_hd is 0
            with m.If((self.equals.any() | (self.bound == 0)) & (th_hd != 0)):
                m.d.comb += self.done.eq(1)
        with m.If(scan.resolves):  # clusters that opened lie behind the last tile
            m.d.comb += self.last_group.eq(scan.cluster(0) + p.n_h >= work.used)
        with m.Else():
            m.d.comb += self.last_group.eq((scan.group & last) == last)

    def _below(self, m: Module, ones: Value, room: Value, cluster_rest: Value, lane: int) -> Value:
        """Whether `ones` and the least that the bits behind this chunk must add to it stay below `room`.

        That least is the difference of the population counts, one way or the other. `ones` comes late, so the counts
        are taken from `room` meanwhile.
        """
        if not len(cluster_rest):
            return ones < room
        rest = comb(m, f"cluster_rest{lane}", cluster_rest)
        fewer = _signed(m, f"room_fewer{lane}", room + self.key_rest - rest)
        more = _signed(m, f"room_more{lane}", room - self.key_rest + rest)
        return (ones < fewer) & (ones < more)

    def _nearest(self, m: Module, scan: Scan) -> tuple[Value, Value, Value]:
        """Of the lanes that won the last comparison, if any: least distance, its lane (lowest on ties), and whether one
        did. A binary tree.
        """
        nodes = [(d, i, scan.won[i]) for i, d in enumerate(scan.partial)]
        level = 0
        while len(nodes) > 1:
            pairs, rest = [], nodes[len(nodes) & ~1 :]
            for j in range(0, len(nodes) - 1, 2):
                (da, la, oka), (db, lb, okb) = nodes[j], nodes[j + 1]
                take_b = Signal(name=f"near{level}_{j}_b")
                d = Signal(self.p.distance_bits, name=f"near{level}_{j}_d")
                lane = Signal(bits_for(self.p.n_h), name=f"near{level}_{j}_lane")
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


def cluster_bits(p: HcuParams) -> int:
    """Bits of a cluster in the tiles."""
    return p.n_hp + sum(_rest_bits(p))


def cluster_word(p: HcuParams, bits: Value, rests: list[Value]) -> Value:
    """A cluster in the tiles: its hash bits, then the population counts of its bits behind each chunk."""
    return Cat(bits, *rests)


def rests_of(m: Module, p: HcuParams, bits: Value, name: str) -> list[Value]:
    """Population count of the hash bits behind each chunk, where early abandon needs it."""
    return [
        popcount(m, bits[(c + 1) * p.n_w :], f"{name}_ones{c}") if rest else Const(0, 0)
        for c, rest in enumerate(_rest_bits(p))
    ]


def _signed(m: Module, name: str, value: Value) -> Signal:
    """A difference as a named signal."""
    return comb(m, name, value, value.shape())


def _rest_bits(p: HcuParams) -> list[int]:
    return [p.rest_bits(c) for c in range(p.chunks)]
