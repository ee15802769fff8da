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
        self.distance = [Signal(p.distance_bits, name=f"distance{lane}") for lane in range(p.n_h)]
        self.improved = Signal()  # the group has the nearest cluster so far
        self.best = Signal(p.distance_bits, name="new_best")  # its distance, or the bound
        self.cluster = Signal(p.cluster_bits, name="new_cluster")
        self.near = Signal()  # the nearest cluster so far is below th_hd
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
        m.d.comb += [
            self.bound.eq(Mux(scan.first, before, scan.best)),
            self.last_chunk.eq(scan.chunk == p.chunks - 1),
        ]
        for lane in range(p.n_h):
            part = comb(m, f"part{lane}", data.View(self.layout, self.word)[lane])
            ones = popcount(m, part[: p.n_w] ^ self.key, f"ones{lane}")
            d = self.distance[lane]
            reach = Signal(p.distance_bits + 1, name=f"reach{lane}")
            exists = Signal(name=f"exists{lane}")
            m.d.comb += [
                d.eq(ones + Mux(scan.chunk == 0, 0, scan.partial[lane])),
                exists.eq(scan.cluster(lane) < work.used),
                reach.eq(d + self._more(m, part[p.n_w :], lane)),
                self.alive[lane].eq(exists & (reach < self.bound)),
            ]

    def judge(self, m: Module, work: Work, scan: Scan, th_hd: Value) -> None:
        """Decides from the comparison whether the visit leaves the group, and whether it is over."""
        p, last = self.p, self.p.tile // self.p.n_h - 1
        near, near_lane, near_ok = self._nearest(m)
        m.d.comb += [
            self.improved.eq(self.last_chunk & near_ok),
            self.best.eq(Mux(self.improved, near, self.bound)),
            self.near.eq(Mux(self.improved, near < th_hd, self.bound < th_hd)),
            self.leave.eq(self.last_chunk | ((self.alive == 0) if p.early_abandon else 0)),
            self.done.eq(work.nothing | (self.leave & self.last_group)),
        ]
        with m.If(self.improved):
            m.d.comb += self.cluster.eq(scan.cluster(near_lane))
        with m.Else():
            m.d.comb += self.cluster.eq(Mux(scan.first, scan.stored.cluster, scan.best_cluster))
        with m.If(scan.resolves):  # clusters that opened lie behind the last tile
            m.d.comb += self.last_group.eq(scan.cluster(0) + p.n_h >= work.used)
        with m.Else():
            m.d.comb += self.last_group.eq((scan.group & last) == last)
        if p.early_abandon:  # a key at distance 0 joins, unless th_hd is 0
            with m.If(Mux(self.improved, near == 0, self.bound == 0) & (th_hd != 0)):
                m.d.comb += self.done.eq(1)

    def _more(self, m: Module, cluster_rest: Value, lane: int) -> Value:
        """The least number of differing bits still to come: the difference of the population counts."""
        if not len(cluster_rest):
            return Const(0)
        rest = comb(m, f"cluster_rest{lane}", cluster_rest)
        difference = Mux(rest > self.key_rest, rest - self.key_rest, self.key_rest - rest)
        return comb(m, f"more{lane}", difference, len(rest))

    def _nearest(self, m: Module) -> tuple[Value, Value, Value]:
        """Least distance of the lanes alive, its lane (lowest on ties) and whether a lane is alive: a binary tree."""
        nodes = [(d, i, self.alive[i]) for i, d in enumerate(self.distance)]
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


def _rest_bits(p: HcuParams) -> list[int]:
    return [p.rest_bits(c) for c in range(p.chunks)]
