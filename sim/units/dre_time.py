"""Predicts the cycles of the DRE from the time views of its HCU, WTU, cluster set, KVMU and table port."""

from collections.abc import Sequence

import numpy as np

from openvrex.golden.retrieval.kvmap import KvMap
from openvrex.hdl.params import DreParams
from openvrex.sim.units.cluster_set_time import ClusterSetTime, Listing
from openvrex.sim.units.hcu_time import JOIN, NEWEST, Beat, HcuCycles, HcuTime
from openvrex.sim.units.kvmu_time import KvmuCycles, KvmuTime
from openvrex.sim.units.queue_cycles import Waits
from openvrex.sim.units.table_port_time import TablePortTime
from openvrex.sim.units.table_time import Ask, Offer, Put, Requests, Room, Taken
from openvrex.sim.units.wtu_time import Ring, WtuTime


class DreTime:
    """Time view of `hdl.retrieval.dre.Dre` with one WTU core, one phase (keys or a query block) at a time.

    A phase starts when the one before has ended. Nothing stalls: the beats of a phase are offered without a gap, and
    the DRE takes the first in cycle 0. After a reset the cluster set clears its memory; the first rows wait for it if
    they come early (`query`).

    latency : of the memory behind the table port, as in `TablePortTime`
    blocks : of the pool; by default the largest
    searched : cycles of the HCU, beat by beat
    """

    def __init__(
        self, p: DreParams, th_hd: int, latency: int, device_base: int = 0, home_base: int = 0, blocks: int = 0
    ):
        self.p, self.latency = p.joined(), latency
        self.hcu, self.searched = HcuTime(p.hcu, th_hd), HcuCycles()
        self.wtu = WtuTime(p.wtu)
        kv = KvMap(p.kvmu.map_sizes(blocks), device_base, home_base)  # the bases decide where bursts are cut
        self.kvmu = KvmuTime(p.kvmu, kv)

    def keys(self, beats: Sequence[Beat], clusters: Sequence[int]) -> KvmuCycles:
        """Cycles of the KVMU for keys, CLEARs and SWITCHes.

        beats : op, context, hash, last
        clusters : cluster that the golden model gives to each; anything for a CLEAR or SWITCH
        """
        out, news = KvmuCycles(), list[int]()
        self.kvmu.begin()
        for happened, n in self.answer(beats, clusters, TablePortTime(self.p, self.latency), out, news, news):
            raise AssertionError(f"waits for entry {n} of {happened}, though `t` takes all answers at once")
        return out

    def answer(
        self,
        beats: Sequence[Beat],
        clusters: Sequence[int],
        port: TablePortTime,
        out: KvmuCycles,
        news: list[int],
        taken: Sequence[int],
        offered: Sequence[int] | None = None,
    ) -> Waits:
        """Answers beats as `keys` does. The units have nothing else in work.

        port, out : what the table port and the KVMU did before; both go on
        news : gets the first cycle in which each answer of the HCU can be taken from `t`
        taken : cycle in which each of `news` is taken from `t`; the generator waits for its entries
        offered : first cycle in which each beat is offered
        """
        before, first = len(out.a), len(news)
        hcu, kvmu = _Client(self.hcu.requests(beats, self.searched, offered)), _Client(_none())
        while hcu.request or kvmu.request or len(out.a) - before < len(news) - first:
            n = len(out.a) - before  # beats that the KVMU has taken
            if not kvmu.request and n < len(news) - first:
                (op, ctx, _, _), cluster = beats[n], clusters[n]
                op = JOIN if op == NEWEST else op  # as the HCU hands it on
                kvmu = _Client(self.kvmu.beat(op, ctx, cluster, news[first + n], out))
                n = len(out.a) - before
            match hcu.request:
                case Offer(cycle):
                    news.append(cycle)
                    hcu.answer(Taken(cycle))
                    continue
                case Room() if n == len(news) - first:
                    if n and len(taken) < len(news):
                        yield taken, len(news) - 1
                    hcu.answer(Taken(max(out.a[-1], taken[-1]) if n else 0))
                    continue
            offers = {k: c.request for k, c in enumerate((hcu, kvmu)) if isinstance(c.request, Ask | Put)}
            if offers:
                k, answer = port.serve(offers)
                (hcu, kvmu)[k].answer(answer)

    def query(
        self,
        ctx: int,
        codes: np.ndarray,
        counts: np.ndarray,
        ratio_q16: int,
        clusters: list[int],
        begins: int | None = None,
        budget: int = 0,
    ) -> int:
        """Cycle of the last burst of a query block of the context of the last SWITCH, from its first word on.

        codes : score codes of the rows, [R, C]
        counts : tokens of each cluster, [C]
        ratio_q16 : the WTU's share of the weighted sum, as an integer out of 2^16
        clusters : union of the rows' selections, ascending
        begins : cycle of the first word, counted from a reset as in `ClusterSetTime`; None: the cluster set is clear.
            It counts for the exact selection with counts that are kept
        budget : tokens that each row selects instead of that share; 0: the share
        """
        budgets = [budget] * len(codes)
        rows = [(row, counts) for row in codes]
        if self.kvmu.roll is None:
            _, ends = self.wtu.run(rows, ratio_q16, None, budgets)
            late = 0
            if begins is not None and self.p.wtu.selection == "exact":
                taken = ClusterSetTime(self.p.wtu).ready - begins
                late = self.wtu.delayed(codes[0], counts, ratio_q16, taken, budget)
            return int(ends[-1]) + late + self.fetch(ctx, clusters).b[-1]
        self.kvmu.begin()
        port = TablePortTime(self.p, self.latency)
        ring = CountRing(self.kvmu, port)
        _, ends = self.wtu.run(rows, ratio_q16, ring, budgets)
        return self._fetch(ctx, clusters, port, ring.first + int(ends[-1])).b[-1] - ring.first

    def fetch(self, ctx: int, clusters: list[int]) -> KvmuCycles:
        """Cycles of the KVMU for a set, which begin with the beat that ends the set at the cluster set."""
        self.kvmu.begin()
        return self._fetch(ctx, clusters, TablePortTime(self.p, self.latency), 0)

    def _fetch(self, ctx: int, clusters: list[int], port: TablePortTime, ends: int) -> KvmuCycles:
        """The same for a set that ends in cycle `ends`."""
        out = KvmuCycles()
        listing = Listing(self.p.wtu.n_w, clusters, ends)
        port.run([_none(), self.kvmu.fetch([(ctx, clusters)], out, listing.first, listing.offered)])
        return out


class CountRing(Ring):
    """The ring of the first WTU core while the KVMU reads counts that come round and round, with nothing else to do.

    first : cycle in which the first word was used
    """

    def __init__(self, kvmu: KvmuTime, port: TablePortTime):
        assert kvmu.roll is not None
        super().__init__(kvmu.p.ring, kvmu.p.ring - kvmu.roll.room)
        self.kvmu, self.port, self.out = kvmu, port, KvmuCycles()
        self.first = -1
        self._came = 0  # words that have come

    def comes(self, take: bool) -> bool:
        """Whether a word comes in this cycle; `take`: the KVMU may read more."""
        if take:
            self.first = self.now if self.first < 0 else self.first
            self.port.run([_none(), self.kvmu.use(self.now, self.out)])
        came = self._came < len(self.out.c) and self.out.c[self._came] == self.now
        self._came += came
        return came


def _none() -> Requests:
    """A unit without requests."""
    yield from ()


class _Client:
    """A unit's generator, and the request that it waits for; None at its end."""

    def __init__(self, unit: Requests):
        self.unit = unit
        self.request = next(unit, None)

    def answer(self, taken: Taken) -> None:
        """Let the unit go on."""
        try:
            self.request = self.unit.send(taken)
        except StopIteration:
            self.request = None
