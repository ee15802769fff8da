"""Proof that the cluster set equals its specification: for every input, every stall and every content of its memory."""

from amaranth import Module, Mux, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from openvrex.hdl.params import WtuParams
from openvrex.hdl.retrieval.cluster_set import ClusterSet, cluster_layout, mask_layout

SETTLES = 3  # cycles from a set's last beat, or from a cluster, until words are looked at


class ClusterSetSpec(wiring.Component):
    """The union of rows, and its clusters in ascending order: an event a cycle. Needs `clusters` = words * n_w.

    Members
    -------
    row, takes : In : a beat of a row is taken
    gives : In(1) : the cluster that is offered is taken
    complete : Out(1) : the rows of a set have come, and not all of its clusters have gone
    next : Out(`cluster_layout`) : the next cluster of the set, while `complete`
    """

    def __init__(self, p: WtuParams):
        self.p = p
        members = {"row": In(mask_layout(p)), "takes": In(1), "gives": In(1)}
        super().__init__(members | {"complete": Out(1), "next": Out(cluster_layout(p))})

    def elaborate(self, platform):
        p, m = self.p, Module()
        left = Signal(p.clusters)
        cluster: Value = Signal(range(p.clusters))  # of an empty set: 0
        for i in reversed(range(p.clusters)):
            cluster = Mux(left[i], i, cluster if i < p.clusters - 1 else 0)
        rest = left & (left - 1)
        m.d.comb += [
            self.next.cluster.eq(cluster),
            self.next.empty.eq(left == 0),
            self.next.last.eq(rest == 0),
        ]
        with m.If(self.takes):
            m.d.sync += [
                left.eq(left | (self.row.mask << (self.row.addr * p.n_w))),
                self.complete.eq(self.row.row_last & self.row.set_last),
            ]
        with m.Elif(self.gives):
            m.d.sync += [left.eq(rest), self.complete.eq(~self.next.last)]
        return m


class ClusterSetMonitor(wiring.Component):
    """A cluster set and its specification, with free rows, a free taker, and resets at any time.

    `reach`: the claim is that no set of two clusters is ever listed, which must fail.
    """

    def __init__(self, p: WtuParams, reach: bool = False):
        self.p, self.reach = p, reach
        super().__init__({"row": In(mask_layout(p)), "row_valid": In(1), "ready": In(1)})

    def elaborate(self, platform):
        p, m = self.p, Module()
        m.submodules.unit = unit = ClusterSet(p)
        m.d.comb += Assume(self.row.addr < p.words)
        m.submodules.spec = spec = ClusterSetSpec(p)
        takes, gives = unit.i.valid & unit.i.ready, unit.o.valid & unit.o.ready
        m.d.comb += [
            unit.i.payload.eq(self.row),
            unit.i.valid.eq(self.row_valid),
            unit.o.ready.eq(self.ready),
            spec.row.eq(self.row),
            spec.takes.eq(takes),
            spec.gives.eq(gives),
        ]
        if self.reach:
            m.d.comb += Assert(~(unit.o.valid & ~unit.o.payload.last), "a set of two clusters")
            return m
        clears, waits = Signal(range(p.words + 3)), Signal(range(p.words + SETTLES + 2))
        with m.If(clears <= p.words):
            m.d.sync += clears.eq(clears + 1)
        m.d.sync += waits.eq(Mux(spec.complete & ~unit.o.valid, waits + 1, 0))
        sets, clusters = (Signal.like(unit.perf[name]) for name in ("sets", "clusters"))
        m.d.sync += [sets.eq(sets + (gives & spec.next.last)), clusters.eq(clusters + (gives & ~spec.next.empty))]
        for holds, what in (
            (~(takes & spec.complete), "a row of the next set is taken while a set is listed"),
            (~unit.o.valid | spec.complete, "a cluster of no set"),
            (~unit.o.valid | (unit.o.payload == spec.next), "another cluster than the specification's"),
            (unit.idle == ~spec.complete, "idle shows whether a set is listed"),
            (waits <= p.words + SETTLES, "a set's cluster comes in time"),
            (unit.i.ready | spec.complete | (clears <= p.words), "a row is taken at once, once the memory is clear"),
            (unit.perf.sets == sets, "the count of sets"),
            (unit.perf.clusters == clusters, "the count of clusters"),
        ):
            m.d.comb += Assert(holds, what)
        return m
