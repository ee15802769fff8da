"""Checks of the retriever, shared by tests, mutants, coverage and stress: copies, replies, faults, full rate."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Self

import numpy as np

from openvrex.golden.program.isa import ADDR_BITS, Retrieve
from openvrex.golden.retrieval.kv4 import RATIO
from openvrex.hdl.emit import Emitted
from openvrex.hdl.queues import kv4_numbers
from openvrex.hdl.retrieval.hcu_state import CLEAR, JOIN, SWITCH
from openvrex.hdl.retrieval.kvmu_layouts import APPEND
from openvrex.sim.units.retriever_time import RetrieverTime
from openvrex.tb.library.retriever_traffic import (
    FETCHED,
    HOMES,
    RINGS,
    SIZES,
    SOURCES,
    Episode,
    cut,
    news,
    random_episode,
    reply,
    retrieve,
)
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.streams import LATE
from openvrex.tb.library.stress_traffic import StressTraffic
from openvrex.tb.library.transfer_traffic import PAGE, params

PORTS = ("c", "t", "w", "x", "b", "order", *(f"bus_{n}" for n in ("ar", "r", "aw", "w", "b")))
STALLS = [
    {},
    dict.fromkeys(PORTS, 0.4),
    {"bus_w": 0.8, "bus_aw": 0.5},
    {"bus_r": 0.7, "bus_ar": 0.8},
    dict.fromkeys(("order", "bus_ar", "bus_aw", "bus_w"), LATE),
]


@cache
def emitted(size: str) -> Emitted:
    return emit("retriever", params(SIZES[size]))


def run(size: str, episodes: list[tuple[Episode, dict]], seed=1, unit: Emitted | None = None, waves=True) -> list[dict]:
    """Run the bench and compare; its results."""
    config = {"params": SIZES[size], "episodes": [e.config(**how) for e, how in episodes]}
    got = Run(unit or emitted(size), "bench_retriever", "retrieves", config, seed, waves)()["episodes"]
    kept = [e for e, how in episodes if not how.get("cut_at")]
    for e, g in zip(kept, got, strict=True):
        compare(e, g)
    return got


def compare(e: Episode, got: dict) -> None:
    p = e.p
    assert [s for _, s in got["done"]] == e.signals
    assert [tuple(mode) for mode in got["modes"]] == e.modes
    assert [(to, value) for _, to, value in got["sets"]] == e.sets
    reads, writes = ([(b["addr"], b["len"]) for _, b in got[name]] for name in ("reads", "writes"))
    if p.dre.kvmu.shared:
        for name, own in zip(("reads", "writes"), e.named, strict=True):
            assert [b["named"] for _, b in got[name]] == own[: len(got[name])]
    assert [f for _, f in got["faults"]] == [e.fault] * bool(e.fault)
    assert [(b["op"], b["ctx"]) for _, b in got["order"]] == e.orders
    for (cycle, _), (t, w) in zip(got["order"], e.answers, strict=True):
        times = [cycle, *got["news"][t : t + 1], *got["places"][w : w + 1]]
        assert times == sorted(set(times)), "an answer is taken before the order or the answer before it"
    memory = {addr: value for addr, value in got["memory"]}
    if e.fault:
        assert reads == e.reads[: len(reads)]
        assert writes == e.writes[: len(writes)]
        assert all(value in e.written[addr] for addr, value in memory.items())
    else:
        assert (reads, writes) == (e.reads, e.writes)
        assert memory == {addr: values[-1] for addr, values in e.written.items()}
        taken, perf = e.places[: len(got["places"])], got["perf"]
        placed = [name for name, b in taken if (not b.get("wipes") if name == "x" else b["op"] == APPEND)]
        beats = sum(size for *_, size, _ in e.copies) // p.lxe.bus_bytes
        assert perf == {
            "waits": perf["waits"],  # the time view knows the number
            "instructions": len(e.signals),
            "moves": placed.count("x"),
            "entries": placed.count("w"),
            "fetches": sum(not b["empty"] for b in e.b),
            "reads": len(reads),
            "writes": len(writes),
            "beats": beats,
        }
    for addr, n in reads + writes:
        assert addr // PAGE == (addr + (n + 1) * p.lxe.bus_bytes - 1) // PAGE, "a burst crosses 4 KB"


def traffic(size: str) -> list[tuple[Episode, dict]]:
    """Seeded random episodes, each with stalls of its own."""
    rng = random.Random(1)
    n = 24 if size == "tiny" else 12
    return [(random_episode(params(SIZES[size]), rng, n), {"stalls": stalls}) for stalls in STALLS]


@dataclass
class RandomTraffic(StressTraffic):
    """Eight episodes of 24 commands each, with random stalls of the memories. Answers come late in some."""

    PARTS = "episodes"

    size: str
    episodes: list[tuple[Episode, dict]]

    @classmethod
    def random(cls, rng: Random) -> Self:
        size = rng.choice(list(SIZES))
        some = [random_episode(params(SIZES[size]), rng, 24) for _ in range(8)]
        some = [late(e, rng) if rng.random() < 0.3 else e for e in some]
        return cls(size, [(e, {"stalls": rng.choice(STALLS)}) for e in some])

    def play(self) -> Any:
        run(self.size, self.episodes)  # compares every beat

    def check(self, got: Any) -> int:
        return sum(len(e.signals) + len(e.reads) + len(e.writes) for e, _ in self.episodes)


def check_equals_the_reference(size):
    run(size, traffic(size))


def check_takes_the_cycles_of_the_time_view(size):
    rng = random.Random(2)
    p = params(SIZES[size])
    cases = [(random_episode(p, rng, 12), latency) for latency in (1, 4, 60)]
    cases += [(late(random_episode(p, rng, 24), rng), latency) for latency in (1, 4)]
    results = run(size, [(e, {"latency": (latency, latency)}) for e, latency in cases])
    for (e, latency), got in zip(cases, results, strict=True):
        want = RetrieverTime(p, latency).run(e.c, e.t, e.places, e.b)
        first = got["taken"][0]
        cycles = {
            **{name: got[name] for name in ("taken", "news", "places", "fetched", "read", "written")},
            **{name: [cycle for cycle, *_ in got[name]] for name in ("reads", "writes", "sets", "done")},
            "orders": [cycle for cycle, _ in got["order"]],
        }
        waits = {"waits": got["perf"]["waits"]}
        assert {name: [t - first for t in cycles[name]] for name in cycles} | waits == vars(want)


def late(e: Episode, rng: random.Random) -> Episode:
    """An episode whose answers come late, each at a cycle of its own."""
    now = {"t": 0, "w": 0, "x": 0}
    for name, beat in [*(("t", beat) for beat in e.t), *e.places]:
        now[name] += rng.choice([0, 0, 3, 40])
        beat["at"] = now[name]
    return e


def orders(full: bool = False) -> Episode:
    """CLEARs and SWITCHes of contexts with and without clusters, between other instructions; `full`: of as many
    clusters as fit.
    """
    p = params(SIZES["tiny"])
    e, contexts = Episode(p), (0, p.dre.kvmu.n_ctx - 1, 21)
    for ctx in contexts:
        e.switch(ctx, to=3, level=4)
        e.cluster(ctx, to=1, level=2)
        e.levels[ctx] = p.dre.kvmu.clusters if full else e.levels[ctx]
        e.switch(ctx, level=5)
        e.place(ctx, SOURCES, 5)  # moves behind the ring's three
        e.clear(ctx, to=7)
        e.clear(ctx, level=8)
        e.place(ctx, SOURCES, 2)
        e.skip(Retrieve.SWITCH, addr=1 << 39, level=9)
        e.switch(ctx, level=15)
    return e


def check_orders():
    """Orders, and answers to them, that come at once or late."""
    rng = random.Random(7)
    cases = [(orders(full), {"stalls": stalls}) for full in (False, True) for stalls in ({}, *STALLS)]
    cases += [(orders(), {"stalls": {"order": 0.9}}), (late(orders(), rng), {"stalls": {"order": 0.9}})]
    cases += [(late(orders(), rng), {}), (orders(), {"stalls": {"t": 0.9}}), (orders(), {"stalls": {"w": 0.9}})]
    waited, took = set(), []
    for (e, _), got in zip(cases, run("tiny", cases), strict=True):
        orders_at = [i for i, c in enumerate(e.c) if not c["skip"] and c["action"] in (Retrieve.CLEAR, Retrieve.SWITCH)]
        for i, (cycle, _), (t, w) in zip(orders_at, got["order"], e.answers, strict=True):
            times = [got["taken"][i], cycle, got["news"][t], got["places"][w], got["done"][i][0]]
            gaps = dict(zip(("order", "result", "reply", "done"), np.diff(times), strict=True))
            waited |= {name for name, gap in gaps.items() if gap > 1}
            took.append(times[-1] - times[0] + 1)
    assert waited == {"order", "result", "reply"}
    assert min(took) == 5  # the data sheet's interval


def strangers() -> list[tuple[Episode, dict]]:
    """Episodes that end with an answer for which no instruction waits."""
    p, cases = params(SIZES["tiny"]), []
    for first in (Retrieve.CLEAR, Retrieve.SWITCH):
        for kind in ("key", "entry"):
            e = Episode(p)
            e.switch(1, level=1)
            e.c.append(retrieve(first, 1, level=2))
            e.orders.append((CLEAR if first == Retrieve.CLEAR else SWITCH, 1))
            e.answers.append((len(e.t), len(e.places)))
            e.t.append(news(JOIN if kind == "key" else SWITCH, 1, 3))
            e.places.append(("w", reply(APPEND)))
            e.untaken = (int(kind == "key"), 1)
            cases.append((e, {}))
    for op in (CLEAR, SWITCH):
        for action in (Retrieve.CLUSTER, Retrieve.PLACE):
            e = Episode(p)
            e.clear(0, level=1)
            e.c.append(retrieve(action, 0, to=1, level=2))
            e.t.append(news(op, 1, 3))
            e.places.append(("w", reply(op)))
            e.untaken = (1, 1)
            cases.append((e, {}))
    return cases


def check_many_instructions():
    """Clusters shifted to every bit of an address, a PLACE of more than 512 entries, more instructions than seven bits
    count.
    """
    p = params(SIZES["tiny"])
    e, most = Episode(p), p.dre.kvmu.clusters - 1
    for shift in range(32):
        for cluster in (1, most, most // 3):
            e.cluster(2, cluster, to=1, level=2, shift=shift)
    for _ in range(200):
        e.skip(Retrieve.CLUSTER)
    e.place(3, SOURCES, 516)
    run("tiny", [(e, {})])


def check_answers_of_another_kind():
    """Such an answer is never taken, and the instruction never ends."""
    run("tiny", strangers())


def check_sets_of_many_entries():
    """The longest bursts of the KVMU, lengths, counts and room up to their highest bits."""
    p = params(SIZES["tiny"])
    e, entry, rng = Episode(p), p.dre.kvmu.entry_bytes, random.Random(6)
    e.place(1, SOURCES, 40)
    e.placed[2] = -3  # a KVMU that asks for no move before the seventh entry, though the ring has three slots
    e.place(2, SOURCES, 6)
    for entries, shift in ((1536, 0), (492, 31), (170, 0), (1, 5)):
        home = rng.randrange(1 << p.dre.kvmu.addr_bits - 16) << 16
        e.fetch(FETCHED, cut(p, home + rng.randrange(99) * entry, entries), to=1, level=2, shift=shift)
    e.fetch(FETCHED, [(HOMES + 8192 * i, entry // 2) for i in range(6)])  # odd steps use the room up
    e.fetch(FETCHED, [(HOMES + 8192 * i, 8 * n) for i, n in enumerate((1, 1, 10))])
    for bits in (24, 12, 18, 20, 22):
        e.fetch(FETCHED, [(HOMES, entry)], short=1 - (1 << bits))
    over = Episode(p)  # 128 bytes more than the room of 66,048: its bit 16 is set before the first burst alone
    over.fetch(FETCHED, [(HOMES + 4096 * i, 4096) for i in range(16)] + [(HOMES + 65536, 640)], short=1)
    run("tiny", [(e, {}), (over, {})])


def check_full_rate():
    """The retriever moves bus_bytes every cycle each way, also between copies, if `copies` covers the latency."""
    p, runs = params(SIZES["tiny"]), []
    covered = (p.lxe.copies - 1) * p.lxe.burst_bytes // p.lxe.bus_bytes - 1
    for latency in (1, covered, covered + 1):
        e = Episode(p)
        e.fetch(FETCHED, [(HOMES + 4096 * i, 6 * p.lxe.burst_bytes) for i in range(4)])
        runs.append((e, {"latency": (latency, latency)}))
    beats = 24 * p.lxe.burst_bytes // p.lxe.bus_bytes
    got = run("tiny", runs)
    for name in ("read", "written"):
        spans = [g[name][-1] - g[name][0] + 1 for g in got]
        assert spans[:2] == [beats, beats]
        assert spans[2] > beats
    assert [g["most"] for g in got] == [p.lxe.copies] * 3


def good(errors=(), size: str = "tiny") -> Episode:
    """An episode that starts with good instructions."""
    e = Episode(params(SIZES[size]), frozenset(errors))
    entry, word = e.p.dre.kvmu.home_bytes, 2 * e.p.dpe.n_w
    e.switch(1, level=4)
    e.place(0, SOURCES, 4)
    e.cluster(0, to=1, level=2)
    e.fetch(FETCHED + word, [(HOMES, entry), (HOMES + 10 * entry, 2 * entry)], to=3)
    return e


def bad(size: str = "tiny") -> list[tuple[Episode, dict]]:
    """Episodes with instructions that are refused, or with replies for which there is no room."""
    p = params(SIZES[size])
    out, n_ctx = [], p.dre.kvmu.n_ctx
    orders = [Retrieve.CLEAR, Retrieve.SWITCH, *[Retrieve.BUDGET] * p.dre.wtu.budget]
    outside = (n_ctx, *(1 << bit for bit in range(n_ctx.bit_length(), ADDR_BITS)))
    for k, (action, fields) in enumerate(
        (
            (Retrieve.PLACE, {"addr": SOURCES + 4}),
            (Retrieve.FETCH, {"addr": 7}),
            *((action, {"addr": ctx}) for action in orders for ctx in outside),
            *[(Retrieve.BUDGET, {})] * (not p.dre.wtu.budget),
            (len(Retrieve), {}),
            (7, {}),
        )
    ):
        e = good(size=size)
        e.bad(action, **fields)
        e.place(0, SOURCES, 2)
        out.append((e, {"stalls": STALLS[k % 2]}))
    counts = range(2, 24)  # bits of the entries that are left
    for bit in counts:
        e = good(size=size)
        e.place(0, SOURCES, (1 << bit) + 1, full_at=2)
        out.append((e, {}))
    for full_at in (0, 2):
        for stalls in STALLS[:3]:
            e = good(size=size)
            e.place(0, SOURCES, 3, full_at=full_at)
            e.cluster(0)
            out.append((e, {"stalls": stalls}))
    for stalls in STALLS[:2]:
        e = good(size=size)
        e.fetch(FETCHED, [(HOMES, e.p.dre.kvmu.entry_bytes)] * 3, short=1)
        out.append((e, {"stalls": stalls}))
    kinds = [e.fault for e, _ in out]
    refused = 4 + len(orders) * len(outside) + (not p.dre.wtu.budget)
    assert (kinds.count("range"), kinds.count("full")) == (refused, 8 + len(counts))
    return out


def errors(rng: random.Random, size: str = "tiny") -> list[tuple[Episode, dict]]:
    """An error response to any beat that is read, or to any burst that is written."""
    out = []
    for stalls in STALLS * 4:
        e = good(size=size)
        reads = [a + k * e.p.lxe.bus_bytes for a, n in e.reads for k in range(n + 1)]
        e = good([rng.choice([rng.choice(reads), rng.choice(e.writes)[0]])], size)
        e.clear(0, level=5)
        e.place(0, SOURCES, 3)
        out.append((e, {"stalls": stalls, "latency": (1, rng.choice([2, 30]))}))
    return out


def check_faults():
    """A fault pulses once, after all earlier work is done. Then nothing begins, and the bus drains."""
    got = run("tiny", [*bad(), *errors(random.Random(4))])
    assert any(g["filler"] for g in got), "no burst was cut short by stop"
    run("budget", bad("budget"))


def packed_entries() -> Episode:
    """Entries that go home and come back one after the other, also to addresses within a packed beat's reach."""
    e = Episode(params(SIZES["packed"]))
    entry, word = e.p.dre.kvmu.home_bytes, 2 * e.p.dpe.n_w
    for k in range(4):
        e.place(0, SOURCES, 5)  # moves behind the ring's three
        e.fetch(FETCHED + k * word, [(at, entry) for at in e.homes] + [(HOMES + 4096, 3 * entry)], to=1, level=2)
    return e


def check_full_rate_packed():
    """A beat of BF16 numbers every 2 cycles while entries come back, and 2 cycles more for each burst."""
    p, longest = params(SIZES["packed"]), 64
    e = Episode(p)
    e.fetch(FETCHED, [(HOMES + 4096 * i, longest * p.dre.kvmu.home_bytes) for i in range(3)])
    [got] = run("packed", [(e, {"latency": (1, 1)})])
    beats, each = len(got["written"]), p.lxe.bus_bytes // 2 // kv4_numbers(p)
    assert beats == len(got["read"]) * RATIO == 3 * longest * p.dre.kvmu.entry_bytes // p.lxe.bus_bytes
    assert each == 2
    # Between the first beat and the last. A burst's first beat comes 2 + `each` cycles behind its begin.
    assert got["written"][-1] - got["written"][0] == beats * each + 2 * (len(got["writes"]) - 1) - each


def check_faults_packed():
    """Error responses while entries are packed and expanded."""
    got = run("packed", errors(random.Random(4), "packed"))
    assert any(g["filler"] for g in got), "no burst was cut short by stop"


def stopped(size: str, whole: Callable[[], Episode], cuts: Iterable[int]) -> None:
    """A stop at each of these cycles. After a reset the unit works again."""
    how = {"stalls": STALLS[1]}
    run(size, [*((whole(), how | {"cut_at": at, "stop": True}) for at in cuts), (whole(), how)])


def reset(size: str, whole: Callable[[], Episode], cuts: Iterable[int]) -> None:
    """A reset at each of these cycles, after each of which the unit works."""
    how = {"stalls": STALLS[1]}
    run(size, [x for at in cuts for x in ((whole(), how | {"cut_at": at}), (whole(), how))])


def check_stops_packed():
    """Also in the middle of packed beats."""
    stopped("packed", packed_entries, range(1, 500, 7))


def check_reset_in_flight_packed():
    reset("packed", packed_entries, (7, 60, 71, 164, 290))


def kept_blocks(errors: frozenset[int] = frozenset()) -> Episode:
    """Sets of blocks, of which none, some or as many as there are places are kept, two of them at one place."""
    e = Episode(params(SIZES["kept"]), errors)
    k, word = e.p.dre.kvmu, 2 * e.p.dpe.n_w
    size, apart, places = k.block_bytes, k.map_sizes().place_bytes, RINGS - 4096
    for n, kept in enumerate(({}, {1: 0}, {0: 1, 2: 0}, {0: 3, 1: 0, 2: 3, 3: 1})):
        blocks = [(HOMES + (8 * n + i) * size, size) for i in range(4)]
        e.place(0, SOURCES, 2)
        keep = {i: places + place * apart for i, place in kept.items()}
        e.fetch(FETCHED + n * word, [*blocks, (HOMES + 64 * size, k.entry_bytes)], keep=keep, to=1, level=2)
        e.fetch(FETCHED, [(place, size) for place in dict.fromkeys(keep.values())], to=3)  # found where they are kept
        e.fetch(FETCHED, [(HOMES + (8 * n + 5) * size, size)], keep={0: places + apart})  # copied as soon as it came
    return e


def wiped_blocks() -> Episode:
    """CLEARs that wipe none, one and several blocks, between entries that come and go."""
    e = Episode(params(SIZES["shared"]))
    size = e.p.dre.kvmu.block_bytes
    for n in (0, 1, 5):
        e.place(0, SOURCES, 5)  # moves behind the ring's three
        e.clear(0, [HOMES + (64 + i) * size for i in range(n)], level=1)
        e.fetch(FETCHED, [(HOMES, size)], to=3)
    return e


def check_stops_while_blocks_are_wiped():
    """At any cycle, and a reset in flight."""
    stopped("shared", wiped_blocks, range(1, 500, 7))
    reset("shared", wiped_blocks, (60, 131, 264, 390))


def late_blocks() -> list[tuple[Episode, dict]]:
    """Sets whose blocks come late, and so are kept late."""
    return [(kept_blocks(), {"stalls": stalls, "latency": (30, 30)}) for stalls in STALLS]


def check_blocks_are_kept_when_they_have_come():
    run("kept", late_blocks())


def check_faults_kept():
    """Error responses while blocks come and while they are kept."""
    rng, out = random.Random(4), []
    whole = kept_blocks()
    reads = [a + k * whole.p.lxe.bus_bytes for a, n in whole.reads for k in range(n + 1)]
    for stalls in STALLS * 4:
        fails = rng.choice([rng.choice(reads), rng.choice(whole.writes)[0]])
        out.append((kept_blocks(frozenset([fails])), {"stalls": stalls, "latency": (1, rng.choice([2, 30]))}))
    got = run("kept", out)
    assert any(g["filler"] for g in got), "no burst was cut short by stop"


def check_stops_kept():
    """Also between a set's blocks and those that are kept."""
    stopped("kept", kept_blocks, range(1, 1000, 7))


def check_reset_in_flight_kept():
    reset("kept", kept_blocks, (60, 171, 364, 590))


def stops() -> list[tuple[Episode, dict]]:
    """The fault of another engine at every third cycle of an episode, in both states of a skip, and during orders."""
    whole = random_episode(params(SIZES["tiny"]), random.Random(6), 12)
    cuts = [(whole, {"stalls": STALLS[1], "cut_at": cut_at, "stop": True}) for cut_at in range(1, 600, 3)]
    skips = Episode(whole.p)
    for _ in range(8):
        skips.skip(Retrieve.PLACE)
    cuts += [(skips, {"cut_at": cut_at, "stop": True}) for cut_at in (8, 9)]  # each waits in IDLE and in DONE
    return cuts + stopped_orders()


def stopped_orders() -> list[tuple[Episode, dict]]:
    """Such a fault at each cycle of orders that stall, and whose answers come late."""
    slow = {"order": 0.7, "t": 0.7, "w": 0.7}
    return [(orders(), {"stalls": slow, "cut_at": cut_at, "stop": True}) for cut_at in range(1, 60)]


def check_stops_at_any_cycle():
    """A stop ends it in every state: nothing begins, and the bus drains. After a reset it works again."""
    whole, how = stops()[0]
    run("tiny", [*stops(), (whole, {"stalls": how["stalls"]})])


def check_reset_in_flight():
    whole = random_episode(params(SIZES["tiny"]), random.Random(5), 12)
    how = {"stalls": STALLS[1]}
    run("tiny", [x for cut_at in (1, 7, 43, 160) for x in ((whole, how | {"cut_at": cut_at}), (whole, how))])
