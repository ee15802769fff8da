"""Cycles of programs on a core: the LXE's time view, with what the DRE takes.

The LXE's and the retriever's part is exact, the DRE's is not: a result leaves the HCU when its scan has ended and the
one before has been taken, a query block's set comes after the time that `Retrieval` says, and the feeder never waits
for the WTU. Passes of the tiny core are equal to the RTL or off by 8 cycles of 4,600 at most
(`tb/tests/sim/test_lxe_time.py`).
"""

from collections.abc import Generator
from dataclasses import dataclass, field

from golden.program.isa import Retrieve, StoreTo
from hdl.params import CoreParams
from sim.units.hcu_time import HcuTime
from sim.units.lxe_time import LxeCycles, LxeTime, Run
from sim.units.queue_cycles import Wait, Waits
from sim.units.retriever_time import RetrieverTime
from sim.units.sequencer_time import Step

TO_HCU = 1  # from a token's last word to its key: the feeder
TO_PLACE = 4  # from a result of the HCU to the KVMU's reply


@dataclass
class Retrieval:
    """What the data decide, in the order of the program.

    scans : cycles of comparing, of each token that is hashed · places : the KVMU's replies and moves, of each token
    (`RetrieverTime.begin`) · clusters : in a row of each query block · selects : cycles from a block's last score to
    the first burst of its set · sets : bytes of every burst of each set, and where from: {"addr", "bytes"}
    """

    scans: list[int] = field(default_factory=list)
    places: list[list[tuple[str, dict]]] = field(default_factory=list)
    clusters: list[int] = field(default_factory=list)
    selects: list[int] = field(default_factory=list)
    sets: list[list[dict]] = field(default_factory=list)


class CoreTime(LxeTime):
    """Time view of `hdl.execution.core.Core`, its two memories as that of `LxeTime`. Every step is played."""

    def __init__(self, p: CoreParams, latency: int, retrieval: Retrieval):
        super().__init__(p, latency)
        self.retrieval = retrieval

    def run(self, steps: list[Step]) -> LxeCycles:
        """As in `LxeTime`."""
        return CoreRun(self.p, self.latency, steps, self.retrieval).play()


class CoreRun(Run):
    """A program's units.

    news : cycles from which on each token's result can be taken · set : from which on each set can
    """

    def __init__(self, p: CoreParams, latency: int, steps: list[Step], retrieval: Retrieval):
        self.retrieval, self.retriever = retrieval, RetrieverTime(p, latency)
        self.news: list[int] = []
        self.set: list[int] = []
        super().__init__(p, latency, steps)

    def all_units(self) -> dict[str, Waits]:
        """And the retriever."""
        return super().all_units() | {"retriever": self.retrieve()}

    def retrieve(self) -> Waits:
        """Takes RETRIEVEs."""
        data, last = self.retrieval, -1
        tokens = placed = sets = 0
        places, bursts = [], []
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
        """Takes STOREs; a row of SCORE is as long as there are clusters."""
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

    def feed(self, clusters: int):
        """The feeder takes a word of a row in as many cycles as it gives words of scores."""
        lanes, n_w = self.p.dpe.n_w, self.p.dre.wtu.n_w
        left = [clusters]

        def give(cycle: int) -> Generator[Wait, None, int]:
            yield from ()
            used = min(left[0], lanes)
            left[0] -= used
            return cycle + -(-used // n_w) - 1

        return give

    def hashed(self, c: dict) -> None:
        """The HCU compares the tokens of a STORE to HASH."""
        rows, words = c["rows"] + 1, c["words"] + 1
        ends = self.put.taken[-rows * words :][words - 1 :: words]
        for at in ends:
            scan = max(1, self.retrieval.scans[len(self.news)])
            before = self.news[-1] + 1 if self.news else 0  # a cluster that is opened takes a cycle
            self.news.append(max(at + TO_HCU + HcuTime.LATENCY, before) + scan)


def _drained(beats: list):
    """What is put into a list, in order."""
    while True:
        yield beats.pop(0)
