"""Checks of the table port, shared by tests, mutants and stress: items, bytes of memory, cycles, errors."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any, Self

from openvrex.golden.arithmetic.secded import check_bits, encode
from openvrex.golden.program.isa import ADDR_BITS
from openvrex.golden.retrieval.table_layout import SHARED, Item
from openvrex.hdl.emit import Emitted
from openvrex.hdl.params import DreParams
from openvrex.hdl.queues import PUTS, READS
from openvrex.hdl.retrieval.table_port import CLIENTS, client_sizes
from openvrex.sim.units.table_port_time import TablePortTime
from openvrex.sim.units.table_time import Ask, Put, Requests
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.streams import LATE
from openvrex.tb.library.stress_traffic import StressTraffic, stall_rate
from openvrex.tb.library.transfer_traffic import params

_ONES = ("hcu.n_w=1", "n_hp=1", "clusters=1", "n_ctx=1", "tile=1", "frame=1", "wtu.n_w=1", "count_bits=1", "blocks=1")
SIZES = {
    "tiny": (),
    "core": ("hcu.n_w=16", "n_hp=32", "clusters=16384", "n_ctx=65536", "tile=64", "recent=256", "blocks=4194304")
    + ("block_slots=8", "addr_bits=64", "bus_bytes=64", "table.burst_bytes=256")
    + ("wtu.n_w=16", "counts=256", "read_counts=128"),
    "one": (
        *_ONES,
        "block_slots=1",
        "recent=1",
        "counts=1",
        "read_counts=1",
        "bus_bytes=1",
        "table.burst_bytes=1",
    ),
    "ragged": ("hcu.n_w=5", "n_hp=35", "clusters=24", "n_ctx=3", "tile=4", "recent=7", "blocks=13", "count_bits=5")
    + ("block_slots=3", "bus_bytes=16", "table.burst_bytes=64"),
    "parity": ("table.protect=parity", "tile=4"),
    "secded": ("table.protect=secded", "tile=4"),
    "core-secded": ("hcu.n_w=16", "n_hp=32", "clusters=16384", "n_ctx=65536", "tile=32", "recent=256")
    + ("blocks=4194304", "addr_bits=64", "bus_bytes=64", "table.burst_bytes=256", "table.protect=secded")
    + ("wtu.n_w=16", "counts=256", "read_counts=64"),
}
PORTS = tuple(f"bus_{n}" for n in ("ar", "r", "aw", "w", "b"))
ASKERS = tuple(f"{name}_{kind}" for name in CLIENTS for kind in ("ask", "put"))
STALLS = [
    {},
    dict.fromkeys(PORTS, 0.4),
    {"bus_ar": 0.8, "bus_r": 0.5},
    {"bus_aw": 0.7, "bus_b": 0.6},
    {"bus_w": 0.8, "hcu_ask": 0.5, "kvmu_put": 0.5},
    dict.fromkeys(("bus_ar", "bus_aw", "bus_w"), LATE),
]
ITEMS = {"hcu": (Item.LEVEL, Item.HASH), "kvmu": tuple(i for i in Item if i not in (Item.LEVEL, Item.HASH))}
BULK = {"hcu": Item.HASH, "kvmu": Item.COUNT}


def dre(size: str) -> DreParams:
    """The parameters of a size: those of preset tiny with changes."""
    return params(list(SIZES[size])).dre


@cache
def emitted(size: str) -> Emitted:
    return emit("table_port", dre(size))


@dataclass
class Episode:
    """Requests of both clients, the memory in front of them, and how it behaves."""

    p: DreParams
    seed: int
    number: int = 60  # requests of each stream
    apart: int = 3  # the most cycles between the offers of two requests of a stream
    asks: float = 1.0  # share of asks that are kept
    puts: float = 1.0  # and of puts
    stalls: dict[str, float] = field(default_factory=dict)
    latency: tuple[int, int] = (1, 1)
    flips: tuple[int, int] = (0, 0)  # items of which one bit is wrong in memory, and two bits
    errors: float = 0.0  # share of beats that fail
    stop_at: int = 0
    cut_at: int = 0

    def __post_init__(self):
        rng = random.Random(self.seed)
        self.layout = self.p.layout()
        self.base = rng.randrange(1 << ADDR_BITS)
        self.hot = {item: self._hot(rng, item) for item in Item}
        self.initial = {(item, *at): rng.getrandbits(self.layout.bits(item)) for item in Item for at in self.hot[item]}
        self.requests: dict[str, list[dict]] = {name: [] for name in ASKERS}
        for stream in ASKERS:
            at, client = 1, stream.partition("_")[0]
            for _ in range(self.number):
                at += rng.randint(0, self.apart) if self.apart < 50 or rng.random() < 0.2 else 0
                beat = self._put(rng, client) if stream.endswith("put") else self._ask(rng, client)
                if rng.random() < (self.asks if stream.endswith("ask") else self.puts):
                    self.requests[stream].append({"at": at, **beat})
        self.content: dict[int, int] = {}
        for where, value in self.initial.items():
            self.content |= self.bytes(where, value)
        some = rng.sample(sorted(self.initial), sum(self.flips))
        self.flipped = {where: 1 + (n >= self.flips[0]) for n, where in enumerate(some)}
        for where, number in self.flipped.items():
            bits = self.layout.bits(where[0])
            for bit in rng.sample(range(bits + check_bits(bits, self.p.table.protect)), number):
                self.content[self.address(where, bit // 8)] ^= 1 << bit % 8
        beats = sorted({a - a % self.p.table.bus_bytes for a in self.content})
        self.failing = {a for a in beats if rng.random() < self.errors}

    def _hot(self, rng: Random, item: Item) -> list[tuple[int, int]]:
        """The contexts and indices of this kind that the requests use: a few, the outermost among them."""
        contexts = [0] if item in SHARED else sorted({0, self.p.kvmu.n_ctx - 1, rng.randrange(self.p.kvmu.n_ctx)})
        number = self.layout.number(item)
        own = next((sizes.most for n, sizes in client_sizes(self.p).items() if BULK[n] == item), 1)
        groups = {0, (number - 1) // own, rng.randrange(number) // own, rng.randrange(number) // own}
        indices = [g * own + k for g in sorted(groups) for k in range(own) if g * own + k < number]
        return [(ctx, index) for ctx in contexts for index in indices]

    def _ask(self, rng: Random, client: str) -> dict:
        item, most = rng.choice(ITEMS[client]), client_sizes(self.p)[client].most
        more = 0
        if rng.random() < 0.3:
            item = BULK[client]
        ctx, index = rng.choice(self.hot[item])
        if item == BULK[client] and rng.random() < 0.6:
            index -= index % most
            left = min(most, self.layout.number(item) - index)
            more = rng.choice((left, rng.randint(1, left))) - 1
        return {"item": int(item), "ctx": ctx, "index": index, "more": more}

    def _put(self, rng: Random, client: str) -> dict:
        item = rng.choice(ITEMS[client])
        ctx, index = rng.choice(self.hot[item])
        data = rng.getrandbits(self.layout.bits(item))
        return {"item": int(item), "ctx": ctx, "index": index, "data": data}

    def address(self, where: tuple[Item, int, int], byte: int = 0) -> int:
        """Address of a byte of an item."""
        return (self.base // 4096 * 4096 + self.layout.address(*where) + byte) % (1 << ADDR_BITS)

    def bytes(self, where: tuple[Item, int, int], value: int) -> dict[int, int]:
        """The bytes of an item in memory."""
        word = encode(value, self.layout.bits(where[0]), self.p.table.protect)
        return {self.address(where, k): word >> 8 * k & 255 for k in range(self.layout.bytes(where[0]))}

    def config(self) -> dict:
        return {
            "requests": self.requests,
            "memory": {str(a): byte for a, byte in self.content.items()},
            "base": self.base,
            "stalls": self.stalls,
            "latency": list(self.latency),
            "errors": sorted(self.failing),
            "stop_at": self.stop_at,
            "cut_at": self.cut_at,
            "limit": 200_000,
        }

    def order(self, got: dict) -> list[tuple[str, dict]]:
        """The requests in the order in which they were taken."""
        taken = sorted((cycle, name, k) for name, sent in got["sent"].items() for k, cycle in enumerate(sent))
        cycles = [cycle for cycle, *_ in taken]
        assert len(set(cycles)) == len(cycles), "two requests were taken in one cycle"
        return [(name, self.requests[name][k]) for _, name, k in taken]


def run(
    size: str, episodes: list[Episode], seed: int = 1, unit: Emitted | None = None, waves: bool = True
) -> list[tuple[Episode, dict]]:
    """Run the bench and compare; the whole episodes with their results."""
    config = {"params": SIZES[size], "episodes": [e.config() for e in episodes]}
    got = Run(unit or emitted(size), "bench_table_port", "requests", config, seed, waves)()["episodes"]
    out = list(zip([e for e in episodes if not e.cut_at], got, strict=True))
    for e, g in out:
        compare(e, g)
    return out


def compare(e: Episode, got: dict) -> Counter:
    """Replay the requests in the order in which they were taken; count what happened.

    After an error, what the port did must be the beginning of what it had to do.
    """
    items, memory, counts = dict(e.initial), dict(e.content), Counter()
    wrong = dict(e.flipped)  # wrong bits in memory
    protect, want, reads, writes = e.p.table.protect, [], [], len(got["writes"])
    can_correct = {"none": 0, "parity": 0, "secded": 1}[protect]
    ends, culprit = "", ""  # the first error that the port must see, and the request that has it
    written = late = 0  # one put may begin in the cycle in which the check bits are found wrong
    for name, beat in e.order(got):
        client, kind = name.split("_")
        if kind == "put":
            if written == writes:
                break
            late += culprit == "ask"
            assert late <= (ends == "wrong"), "written after an item that was wrong"
            where = (Item(beat["item"]), beat["ctx"], beat["index"])
            items[where] = beat["data"]
            memory |= e.bytes(where, beat["data"])
            wrong.pop(where, None)
            counts["rewritten"] += 1
            addr = e.address(where) // e.p.table.bus_bytes * e.p.table.bus_bytes
            assert got["writes"][written][1] == {"addr": addr, "len": 0}
            written += 1
            if addr in e.failing and not ends:
                ends, culprit = "bus", "put"
            continue
        if len(reads) == len(got["reads"]):
            break
        assert culprit != "put", "read after a write that failed"
        first = (Item(beat["item"]), beat["ctx"], beat["index"])
        size, bus = e.layout.bytes(first[0]), e.p.table.bus_bytes
        length = -(-(e.address(first) % bus + (beat["more"] + 1) * size) // bus)
        reads.append({"addr": e.address(first) // bus * bus, "len": length - 1})
        for word in words(e.p, beat):
            flips = [wrong.get(where, 0) for where in word]
            fails = any(e.address(where) // bus * bus in e.failing for where in word)
            counts["corrected"] += not ends and not fails and 1 == can_correct in flips
            bad = "wrong" if max(flips) > can_correct and protect != "none" else ""
            bad = "bus" if fails else bad
            if bad and not ends:
                ends, culprit = bad, "ask"
            if not ends:
                bits = e.layout.bits(first[0])
                want.append((client, sum(items[where] << bits * k for k, where in enumerate(word))))
        counts["bulk"] += beat["more"] > 0
    assert [b for _, b in got["reads"]] == reads
    assert written == writes, "more writes than puts"
    for client in CLIENTS:
        mine = [value for name, value in want if name == client]
        have = [value for _, value in got["data"][client]]
        assert have == mine if ends or not e.stop_at else have == mine, f"{client}: other items"
    assert {int(a): byte for a, byte in got["memory"].items()} == memory, "memory differs"
    pulses = got["pulses"]
    assert [len(pulses[name]) for name in ("bus", "wrong")] == [ends == "bus", ends == "wrong"], (ends, pulses)
    assert len(pulses["corrected"]) == counts["corrected"]
    perf = {"asks": len(reads), "puts": writes, "waits": got["perf"]["waits"], "items": got["perf"]["items"]}
    assert got["perf"] == perf  # the time view knows the number of waits
    if not ends and not e.stop_at:
        assert perf["items"] == len(want)
        assert all(len(got["sent"][name]) == len(e.requests.get(name, ())) for name in ASKERS)
    counts[f"ends {ends or 'well'}"] += 1
    counts["items"] += len(want)
    return counts


def words(p: DreParams, ask: dict) -> list[list[tuple[Item, int, int]]]:
    """The items of each beat that answers an ask: a word of counts, otherwise one item."""
    item, lanes = Item(ask["item"]), p.kvmu.count_lanes if ask["item"] == Item.COUNT else 1
    wheres = [(item, ask["ctx"], ask["index"] + k) for k in range(ask["more"] + 1)]
    return [wheres[k : k + lanes] for k in range(0, len(wheres), lanes)]


def traffic(size: str) -> list[Episode]:
    """Seeded random episodes, each with stalls of its own."""
    p, out = dre(size), []
    for seed, stalls in enumerate(STALLS, 1):
        out.append(Episode(p, seed, stalls=stalls, latency=(1, 4 * seed)))
        out.append(Episode(p, seed + 10, apart=80, stalls=stalls, latency=(seed, seed)))
    return [*out, Episode(p, 99, puts=0.1, apart=0, latency=(30, 30)), Episode(p, 98, puts=0.02, apart=9)]


def offers(asks: list[dict], puts: list[dict]) -> Requests:
    """A client that offers these requests as the bench does."""
    free = {"ask": 0, "put": 0}
    left = {"ask": list(asks), "put": list(puts)}
    while any(left.values()):
        since = {kind: max(beats[0]["at"], free[kind]) for kind, beats in left.items() if beats}
        kind = min(since, key=lambda kind: (since[kind], kind))
        beat = left[kind].pop(0)
        taken = yield read(since[kind], beat) if kind == "ask" else Put(since[kind])
        free[kind] = taken.cycle + 1


def read(cycle: int, ask: dict) -> Ask:
    """An ask that is offered from `cycle` on."""
    return Ask(cycle, ask["more"] + 1, ask["item"] == Item.COUNT)


def predicted(e: Episode) -> TablePortTime:
    """The time view of an episode."""
    assert e.latency[0] == e.latency[1]
    assert not e.stalls
    out = TablePortTime(e.p, e.latency[0])
    out.run([offers(e.requests[f"{name}_ask"], e.requests[f"{name}_put"]) for name in CLIENTS])
    return out


def dependent(e: Episode, client: str, offered: dict[str, list[dict]]) -> Requests:
    """A client that reads, waits for the items, and writes, as the KVMU does; it records the cycles of its offers."""
    cycle = 1
    for n, (ask, put) in enumerate(zip(e.requests[f"{client}_ask"], e.requests[f"{client}_put"], strict=True)):
        taken = yield read(cycle, ask)
        offered[f"{client}_ask"].append(ask | {"at": cycle})
        cycle = taken.comes[-1] + 1 + n % 3 if n % 4 else taken.cycle + 1
        if n % 5:
            yield Put(cycle)
            offered[f"{client}_put"].append(put | {"at": cycle})
            cycle += 1 + n % 2  # perhaps before the put is taken


def timed(size: str) -> Iterator[tuple[Episode, TablePortTime]]:
    """Episodes without stalls, with their time views."""
    p = dre(size)
    for latency in (1, 2, 7, 23):
        for apart, asks, puts in ((0, 1.0, 0.02), (0, 0.05, 1.0), (3, 1.0, 1.0), (60, 1.0, 1.0), (9, 1.0, 0.3)):
            e = Episode(p, latency, apart=apart, asks=asks, puts=puts, latency=(latency, latency))
            yield e, predicted(e)
        e = Episode(p, latency, latency=(latency, latency))
        view, offered = TablePortTime(p, latency), {name: [] for name in ASKERS}
        view.run([dependent(e, name, offered) for name in CLIENTS])
        e.requests = offered
        yield e, view


def check_equals_the_reference(size):
    run(size, traffic(size))


def compare_cycles(cases: list[tuple[Episode, TablePortTime]], results: list[tuple[Episode, dict]]) -> None:
    for (_, view), (_, got) in zip(cases, results, strict=True):
        taken = ((cycle, name.partition("_")[0]) for name, sent in got["sent"].items() for cycle in sent)
        have = {
            "taken": sorted((cycle, CLIENTS.index(client)) for cycle, client in taken),
            "reads": [cycle for cycle, _ in got["reads"]],
            "writes": [cycle for cycle, _ in got["writes"]],
            "items": sorted(cycle for beats in got["data"].values() for cycle, _ in beats),
            "waits": got["perf"]["waits"],
        }
        assert have == {name: getattr(view, name) for name in have}


def check_takes_the_cycles_of_the_time_view(size):
    cases = list(timed(size))
    compare_cycles(cases, run(size, [e for e, _ in cases]))


def check_full_rate():
    """An item a cycle while READS asks cover the latency, and a put a cycle while PUTS puts do."""
    p, runs = dre("tiny"), []
    for kind, most in (("ask", READS - 1), ("put", PUTS - 2)):
        for latency in (1, most, most + 1):
            e = Episode(p, 1, apart=0, latency=(latency, latency))
            e.requests = {
                name: [beat | {"at": 1} | ({"more": 0} if kind == "ask" else {}) for beat in beats]
                for name, beats in e.requests.items()
                if name.endswith(kind)
            }
            runs.append(e)
    spans = []
    for _, got in run("tiny", runs):
        cycles = [cycle for beats in got["data"].values() for cycle, _ in beats] or [c for c, _ in got["writes"]]
        spans.append((len(cycles), max(cycles) - min(cycles) + 1))
    assert all(n == 120 for n, _ in spans)
    assert [span == n for n, span in spans] == [True, True, False] * 2


def faulty(protect: str) -> list[Episode]:
    """Episodes with wrong bits in memory, or with error responses."""
    p, out = dre(protect if protect != "none" else "tiny"), []
    for seed, stalls in enumerate(STALLS * 3):
        how: dict[str, Any] = {"stalls": stalls, "latency": (1, 5 + seed)}
        if protect != "none":
            out.append(Episode(p, seed, flips=(12 * (protect == "secded"), 0), **how))
            out.append(Episode(p, seed + 100, flips=(3, 2 * (protect == "secded")), **how))
        out.append(Episode(p, seed + 200, flips=(3 * (protect == "secded"), 0), errors=0.03, **how))
    return out


def check_faults(protect):
    """Single errors are corrected, others halt the port; nothing begins afterwards."""
    counts = sum((compare(e, g) for e, g in run(protect if protect != "none" else "tiny", faulty(protect))), Counter())
    assert counts["ends bus"] >= 5
    if protect != "none":
        assert counts["ends wrong"] >= 5
    assert protect != "secded" or counts["corrected"] > 50


def stops() -> list[Episode]:
    """A stop in every cycle of an episode."""
    p = dre("tiny")
    return [Episode(p, 5, 20, stalls=STALLS[1], latency=(1, 6), stop_at=at) for at in range(1, 260)]


def check_stops_at_any_cycle():
    """A stop ends it in every state: nothing begins, and the bus drains. After a reset it works again."""
    run("tiny", [*stops(), replace(stops()[0], stop_at=0)])


def check_reset_in_flight():
    whole = Episode(dre("tiny"), 6, stalls=STALLS[1], latency=(1, 6))
    run("tiny", [x for at in (1, 7, 43, 160) for x in (replace(whole, cut_at=at), whole)])


@dataclass
class RandomTraffic(StressTraffic):
    """Eight episodes of 240 requests each, with random stalls and latencies."""

    PARTS = "episodes"

    size: str
    episodes: list[Episode]

    @classmethod
    def random(cls, rng: Random) -> Self:
        size, out = rng.choice(list(SIZES)), []
        for _ in range(8):
            stalls = {name: stall_rate(rng) for name in (*PORTS, *ASKERS)}
            low = rng.choice((1, 1, 4, 40))
            latency, apart = (low, low + rng.choice((0, 9))), rng.choice((0, 3, 80))
            out.append(Episode(dre(size), rng.getrandbits(31), 60, apart, rng.random(), rng.random(), stalls, latency))
        return cls(size, out)

    def play(self) -> Any:
        return run(self.size, self.episodes)  # compares every item and the memory

    def check(self, got: Any) -> int:
        return sum(len(sent) for _, g in got for sent in g["sent"].values())
