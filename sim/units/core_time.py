"""Predicts the cycles of programs on a core, that is the LXE together with the DRE.

The LXE and the retriever are exact. The DRE is simplified:

- A result leaves the HCU when its scan has ended and the result before it was taken.
- The set of a query block arrives after the time that `Retrieval` states.
- The feeder never waits for the WTU.

Passes of the tiny core equal the RTL or differ by at most 8 of 4,600 cycles (`tb/tests/sim/test_lxe_time.py`).
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from golden.program.isa import Retrieve, StoreTo
from hdl.params import CoreParams
from sim.units.hcu_time import HcuTime
from sim.units.lxe_time import LxeCycles, LxeTime, Run
from sim.units.queue_cycles import Wait, Waits
from sim.units.retriever_time import RetrieverTime
from sim.units.sequencer_time import Step
from sim.units.storer_time import Give

TO_HCU = 1  # cycles of the feeder, from a token's last word to its key
TO_PLACE = 4  # cycles from a result of the HCU to the reply of the KVMU


@dataclass
class Retrieval:
    """The timing facts that depend on data, which `CoreTime` does not compute. All lists follow the program's order.

    scans : cycles in which the HCU compares, per hashed token
    places : replies and moves of the KVMU, per token, as beats of `RetrieverTime.begin`
    clusters : clusters in a row, per query block
    selects : cycles from a block's last score to the first burst of its set, per query block
    sets : bursts of each set as {"addr", "bytes"}
    """

    scans: list[int] = field(default_factory=list)
    places: list[list[tuple[str, dict]]] = field(default_factory=list)
    clusters: list[int] = field(default_factory=list)
    selects: list[int] = field(default_factory=list)
    sets: list[list[dict]] = field(default_factory=list)


class CoreTime(LxeTime):
    """Time view of `hdl.execution.core.Core`. Both memory ports behave as the memory of `LxeTime`.

    It plays every step, without the sampling of loops that `LxeTime` does.
    """

    def __init__(self, p: CoreParams, latency: int, retrieval: Retrieval):
        super().__init__(p, latency)
        self.retrieval = retrieval

    def run(self, steps: list[Step]) -> LxeCycles:
        """Cycles of a trace's steps, with the errors of `LxeTime.run`."""
        return CoreRun(self.p, self.latency, steps, self.retrieval).play()


class CoreRun(Run):
    """One run of a program on the units of a core.

    news : first cycle in which each token's HCU result can be taken
    set : first cycle in which the bursts of each set can be taken
    """

    def __init__(self, p: CoreParams, latency: int, steps: list[Step], retrieval: Retrieval):
        self.retrieval, self.retriever = retrieval, RetrieverTime(p, latency)
        self.news: list[int] = []
        self.set: list[int] = []
        super().__init__(p, latency, steps)

    def all_units(self) -> dict[str, Waits]:
        """The units of the LXE and the retriever."""
        return super().all_units() | {"retriever": self.retrieve()}

    def retrieve(self) -> Waits:
        """The retriever: executes the RETRIEVEs in order."""
        data, last = self.retrieval, -1
        tokens = placed = sets = 0
        places: list[tuple[str, dict]] = []
        bursts: list[dict] = []
        self.retriever.begin(_drained(places), _drained(bursts))
        while True:
            k, go = yield from self.offered("retrieve")
            c, news = self.steps[k].beat, 0
            taken = max(go, last + 1)
            self.take("retrieve", k, taken)
            if not c["skip"] and c["action"] == Retrieve.CLUSTER:
                yield self.news, tokens
                news = max(self.news[tokens], self.retriever.out.news[-1] + 1 if self.retriever.out.news else 0)
                tokens += 1
            elif not c["skip"] and c["action"] == Retrieve.PLACE:
                for _ in range(c["rows"] + 1):
                    yield self.news, placed
                    at = {"at": self.news[placed] + TO_PLACE}
                    places += [(name, beat | at) for name, beat in data.places[placed]]
                    placed += 1
            elif not c["skip"] and c["action"] == Retrieve.FETCH:
                yield self.set, sets
                mine = data.sets[sets] or [{"addr": 0, "bytes": 0}]
                more = {"empty": int(not data.sets[sets]), "at": self.set[sets], "last": 0}
                bursts += [beat | more for beat in mine[:-1]] + [mine[-1] | more | {"last": 1}]
                sets += 1
            last = self.retriever.execute(c, taken, news)
            self.finish("retrieve", k, last)

    def store(self) -> Waits:
        """The storer: executes the STOREs in order. A row of SCORE has one score per cluster."""
        blocks = 0
        while True:
            k, go = yield from self.offered("store")
            c = self.steps[k].beat
            self.take("store", k, self.storer.take(go))
            give, score = None, not c["skip"] and c["target"] == StoreTo.SCORE
            if score:
                clusters = self.retrieval.clusters[blocks]
                c = c | {"words": -(-clusters // self.p.dpe.n_w) - 1}
                give = self.feed(clusters)
            elif not c["skip"] and c["target"] == StoreTo.X:
                give = self.to_x
            done = yield from self.storer.store(c, self.put, give)
            if score and c["wide"]:
                self.set.append(self.put.taken[-1] + self.retrieval.selects[blocks])
                blocks += 1
            if not c["skip"] and c["target"] == StoreTo.HASH:
                self.hashed(c)
            self.finish("store", k, done)

    def feed(self, clusters: int) -> Give:
        """The taker of a row's words: the feeder needs a cycle for each word of scores that it sends to the WTU."""
        lanes, n_w = self.p.dpe.n_w, self.p.dre.wtu.n_w
        left = [clusters]

        def give(cycle: int) -> Generator[Wait, None, int]:
            yield from ()
            used = min(left[0], lanes)
            left[0] -= used
            return cycle + -(-used // n_w) - 1

        return give

    def hashed(self, c: dict) -> None:
        """Appends to `news` the results of the tokens that a STORE to HASH sends to the HCU."""
        rows, words = c["rows"] + 1, c["words"] + 1
        ends = self.put.taken[-rows * words :][words - 1 :: words]
        for at in ends:
            scan = max(1, self.retrieval.scans[len(self.news)])
            before = self.news[-1] + 1 if self.news else 0  # opening a cluster takes a cycle
            self.news.append(max(at + TO_HCU + HcuTime.LATENCY, before) + scan)


def _drained(beats: list[Any]) -> Iterator[Any]:
    """Takes from a list that others still append to."""
    while True:
        yield beats.pop(0)
