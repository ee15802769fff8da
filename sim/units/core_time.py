"""Predicts the cycles of programs on a core, that is the LXE together with the DRE.

The LXE and the retriever are exact, and so are HCU, KVMU and table port while they answer keys and orders. The rest is
simplified:

- The KVMU serves the next key as if the retriever had taken each move at once.
- The bursts of a set come as `Retrieval.sets` says, whatever keys and the retriever do in between.
- Reads of counts that come round and round have the table port alone.

All passes of the tiny core equal the RTL (`tb/tests/sim/test_lxe_time.py`).
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from openvrex.golden.program.isa import Retrieve, StoreTo
from openvrex.hdl.params import CoreParams
from openvrex.sim.units.dre_time import CountRing, DreTime
from openvrex.sim.units.hcu_time import CLEAR, JOIN, NEWEST, SWITCH, Beat
from openvrex.sim.units.kvmu_time import KvmuCycles
from openvrex.sim.units.lxe_time import LxeCycles, LxeTime, Run
from openvrex.sim.units.queue_cycles import Wait, Waits
from openvrex.sim.units.retriever_time import RetrieverTime
from openvrex.sim.units.sequencer_time import Executed
from openvrex.sim.units.storer_time import Give
from openvrex.sim.units.table_port_time import TablePortTime
from openvrex.sim.units.wtu_time import SETTLES, TO_CHECK, RowPlan

TO_HCU = 1  # cycles of the feeder, from a token's last word to its key, or from an order to the HCU's input
ORDERS = {Retrieve.CLEAR: CLEAR, Retrieve.SWITCH: SWITCH, Retrieve.BUDGET: SWITCH}


@dataclass
class Retrieval:
    """The facts that depend on data, which `CoreTime` does not compute. All lists follow the program's order.

    keys : hash of each token, and the cluster that the golden model gives to it
    places : replies and moves of the KVMU, per token, as beats of `RetrieverTime.begin`
    clusters : clusters in a row, per query block
    plans : what each row takes in the WTU, per query block
    sets : bursts of each set as {"addr", "bytes"}, and "after": cycles from the first burst to this one, 0 if not given
    firsts : cycles from the beat that ends each set to its first burst (`DreTime.fetch`)
    """

    keys: list[tuple[int, int]] = field(default_factory=list)
    places: list[list[tuple[str, dict]]] = field(default_factory=list)
    clusters: list[int] = field(default_factory=list)
    plans: list[list[RowPlan]] = field(default_factory=list)
    sets: list[list[dict]] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)


class RowTime:
    """Time view of feeder and WTU for the words of rows. The WTU takes each row in several readings."""

    def __init__(self, dre: DreTime):
        self.dre, self.n_w = dre, dre.p.wtu.n_w
        self.ring: CountRing | None = None  # if counts come round and round
        self.loaded = self.accepted = -1  # cycles in which the last word went to the feeder and to the WTU
        self.before = -1  # cycle in which the word before it went to the WTU
        self.free = 0  # first cycle in which the WTU can work on the next word
        self.reading, self.word = 0, 0

    def begin(self, cycle: int) -> None:
        """A query block of the context of the last SWITCH begins in `cycle`."""
        self.ring = None
        if self.dre.kvmu.roll:
            self.ring = CountRing(self.dre.kvmu, TablePortTime(self.dre.p, self.dre.latency))
            self.ring.now = max(cycle, self.free)

    def give(self, plan: RowPlan, codes: int, cycle: int) -> int:
        """The feeder takes `codes` codes of a row, a word of the VPE at most, from `cycle` on; returns the cycle."""
        self.loaded = max(cycle - 1, self.loaded)
        selects = self.reading == len(plan.walks)
        for _ in range(-(-codes // self.n_w)):
            # The feeder holds a word that the WTU does not take, and the one behind it.
            self.loaded = max(self.loaded + 1, self.before + 1)
            digits, tests = plan.digits[self.word], plan.tests[self.word] if selects and plan.tests else 0
            starts = max(self.loaded + 1, self.free)
            self.before, self.accepted = self.accepted, self._accept(starts, digits, tests)
            self.free, self.word = self.accepted + 1, self.word + 1
        return self.loaded

    def _accept(self, starts: int, digits: int, tests: int) -> int:
        """The cycle in which the WTU takes a word on which it works from `starts` on."""
        if not self.ring:
            return starts + tests * (digits + SETTLES + 1) + digits - 1
        self.ring.rest(starts - self.ring.now)
        for _ in range(tests):
            self.ring.feed(digits)
            self.ring.rest(SETTLES + 1)
        return self.ring.feed(digits, takes=True)

    def end(self, plan: RowPlan) -> bool:
        """The reading ends; whether it was the row's last."""
        self.word, last = 0, self.reading == len(plan.walks)
        passes = len(plan.digits) * plan.walked + TO_CHECK  # of the variant "buckets"
        self.free += plan.walks[self.reading] if not last else SETTLES + 1 if plan.walks else passes
        self.reading = 0 if last else self.reading + 1
        return last


class CoreTime(LxeTime):
    """Time view of `hdl.execution.core.Core`. All memory ports behave as the memory of `LxeTime`.

    It plays every step, without the sampling of loops that `LxeTime` does.

    dre : what the DRE holds when the program starts, and the latency of the memories; `run` goes on with it
    """

    def __init__(self, p: CoreParams, dre: DreTime, retrieval: Retrieval):
        super().__init__(p, dre.latency)
        self.dre, self.retrieval = dre, retrieval

    def run(self, steps: list[Executed]) -> LxeCycles:
        """Cycles of a trace's steps, with the errors of `LxeTime.run`."""
        return CoreRun(self.p, self.dre, steps, self.retrieval).play()


class CoreRun(Run):
    """One run of a program on the units of a core.

    batches : beats for the HCU that belong together, the cluster of each, the first cycle in which each is offered
    news : first cycle in which each answer of the HCU can be taken
    answers : cycles of the KVMU
    set : first cycle in which the bursts of each set can be taken
    """

    def __init__(self, p: CoreParams, dre: DreTime, steps: list[Executed], retrieval: Retrieval):
        self.time, self.retrieval = dre, retrieval
        self.retriever = RetrieverTime(p, dre.latency)
        self.batches: list[tuple[list[Beat], list[int], list[int]]] = []
        self.news: list[int] = []
        self.answers = KvmuCycles()
        self.set: list[int] = []
        self.hashed = 0  # tokens sent to the HCU
        super().__init__(p, dre.latency, steps)

    def all_units(self) -> dict[str, Waits]:
        """The units of the LXE, the DRE's side of keys and orders, and the retriever."""
        return super().all_units() | {"retriever": self.retrieve(), "dre": self.answer()}

    def answer(self) -> Waits:
        """HCU, KVMU and table port: answer the batches, one after the other."""
        port = TablePortTime(self.p.dre, self.time.latency)
        self.time.kvmu.begin()
        for n in self.count():
            yield self.batches, n
            beats, clusters, offered = self.batches[n]
            taken = self.retriever.out.news
            yield from self.time.answer(beats, clusters, port, self.answers, self.news, taken, offered)

    def retrieve(self) -> Waits:
        """The retriever: executes the RETRIEVEs in order."""
        data, replies, last = self.retrieval, self.answers.w, -1
        placed = moved = answered = sets = 0
        places: list[tuple[str, dict]] = []
        bursts: list[dict] = []
        self.retriever.begin(self.placed(places), _drained(bursts))
        taken_news = self.retriever.out.news
        while True:
            k, go = yield from self.offered("retrieve")
            c, news = self.steps[k].beat, 0
            taken = max(go, last + 1)
            self.take("retrieve", k, taken)
            if c["skip"]:
                pass
            elif c["action"] in ORDERS:
                order = (ORDERS[Retrieve(c["action"])], c["addr"], 0, 1)
                self.batches.append(([order], [0], [taken + 1 + TO_HCU]))
                yield replies, answered
                news = self.news[len(taken_news)]
                places.append(("w", {"at": replies[answered]}))
                answered += 1
            elif c["action"] == Retrieve.CLUSTER:
                yield self.news, len(taken_news)
                news = self.news[len(taken_news)]
            elif c["action"] == Retrieve.PLACE:
                for _ in range(c["rows"] + 1):
                    yield replies, answered
                    for name, beat in data.places[placed]:
                        at = self.answers.x[moved] if name == "x" else replies[answered]
                        places.append((name, beat | {"at": at}))
                        moved += name == "x"
                    placed, answered = placed + 1, answered + 1
            elif c["action"] == Retrieve.FETCH:
                yield self.set, sets
                mine = data.sets[sets] or [{"addr": 0, "bytes": 0}]
                empty, first, end = int(not data.sets[sets]), self.set[sets], len(mine) - 1
                for n, beat in enumerate(mine):
                    bursts.append(beat | {"empty": empty, "at": first + beat.get("after", 0), "last": int(n == end)})
                sets += 1
            last = self.retriever.execute(c, taken, news)
            self.finish("retrieve", k, last)

    def placed(self, places: list[tuple[str, dict]]) -> Iterator[tuple[str, dict]]:
        """Replies and moves as the retriever takes them. A reply follows its move at the same distance."""
        late = 0  # cycles by which the last move was taken late
        for name, beat in _drained(places):
            yield name, beat | {"at": beat["at"] + late}
            late = self.retriever.out.places[-1] - beat["at"] if name == "x" else 0

    def store(self) -> Waits:
        """The storer: executes the STOREs in order. A row of SCORE has one score per cluster."""
        blocks = row = sent = 0
        time, data = RowTime(self.time), self.retrieval
        while True:
            k, go = yield from self.offered("store")
            c = self.steps[k].beat
            self.take("store", k, self.storer.take(go))
            give, score = None, not c["skip"] and c["target"] == StoreTo.SCORE
            if score:
                if row == time.reading == sent == 0:
                    time.begin(go)
                plan, left = data.plans[blocks][row], data.clusters[blocks] - sent
                codes = self.p.vpe.depth * self.p.dpe.n_w if c["step"] else left
                c = c | {"words": -(-codes // self.p.dpe.n_w) - 1}
                give, sent = self.feed(time, plan, codes), sent + codes if c["step"] else 0
            elif not c["skip"] and c["target"] == StoreTo.X and not c["wide"]:
                give = self.to_x
            done = yield from self.storer.store(c, self.put, give)
            if score and not c["step"] and time.end(plan):
                row += 1
                if c["wide"]:
                    self.set.append(time.free - 1 + data.firsts[blocks])
                    blocks, row = blocks + 1, 0
            if not c["skip"] and c["target"] == StoreTo.HASH:
                self.hash(c)
            self.finish("store", k, done)

    def feed(self, time: RowTime, plan: RowPlan, codes: int) -> Give:
        """The taker of the words of a row, or of a part of it."""
        lanes = self.p.dpe.n_w
        left = [codes]

        def give(cycle: int) -> Generator[Wait, None, int]:
            yield from ()
            used = min(left[0], lanes)
            left[0] -= used
            return time.give(plan, used, cycle)

        return give

    def hash(self, c: dict) -> None:
        """Gives the HCU the keys of a STORE to HASH."""
        rows, words = c["rows"] + 1, c["words"] + 1
        keys = self.retrieval.keys[self.hashed : self.hashed + rows]
        op = NEWEST if c["wide"] else JOIN
        beats = [(op, c["addr"], key_hash, int(row == rows - 1)) for row, (key_hash, _) in enumerate(keys)]
        ends = self.put.taken[-rows * words :][words - 1 :: words]
        self.batches.append((beats, [cluster for _, cluster in keys], [at + TO_HCU for at in ends]))
        self.hashed += rows


def _drained(beats: list[Any]) -> Iterator[Any]:
    """Takes from a list that others still append to."""
    while True:
        yield beats.pop(0)
