"""Checks of the arbiter, shared by tests, mutants, coverage and stress: every manager gets its own answers, in time."""

import itertools
from collections import deque
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any, Self

import numpy as np

from openvrex.golden.program.isa import ADDR_BITS
from openvrex.hdl.bus.arbiter import MANAGERS
from openvrex.hdl.emit import Emitted
from openvrex.hdl.params import SystemParams
from openvrex.sim.units.arbiter_time import ArbiterTime, Burst
from openvrex.tb.benches.bench_arbiter import SIZE
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.stress_traffic import StressTraffic, stall_rate
from openvrex.tb.library.transfer_traffic import content, params

TABLES = 2  # number of the tables' manager in a core
READS = 0x4000  # read-only bytes; behind them each manager writes bytes of its own
SLVERR = 2  # the response of a memory that fails
SHARED = range(2, 4)  # units of 4 KB of these that groups of cores read together


def system(cores: int, changes: tuple[str, ...] = (), common: bool = False, ports: int = 1) -> SystemParams:
    return SystemParams(params(list(changes)), cores, common, ports)


@cache
def emitted(cores: int, changes: tuple[str, ...] = (), common: bool = False, ports: int = 1) -> Emitted:
    return emit("arbiter", system(cores, changes, common, ports))


@dataclass
class Traffic:
    """Bursts that the managers ask for, and the answers that each must get."""

    cores: int = 2
    changes: tuple[str, ...] = ()
    seed: int = 1
    bursts: int = 20  # of each kind, for each manager
    longest: int | None = None  # beats
    shortest: int = 1  # beats
    stalls: dict[str, float] = field(default_factory=dict)
    latency: tuple[int, int] = (0, 0)
    oldest: bool = False
    errors: float = 0.0  # share of bursts that the memory answers with an error
    end: tuple[int, ...] | None = None
    kinds: tuple[str, ...] = ("ar", "aw")
    apart: int = 0  # the most cycles between two bursts that a manager offers
    far: bool = True  # addresses have bits above those of the memory and below those of a word
    cut_at: int = 0
    common: int | None = None  # logarithm of the cores of a group that reads together; None: the hardware is off
    ports: int = 1

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        self.p = system(self.cores, self.changes, self.common is not None, self.ports)
        lxe, table = self.p.core.lxe, self.p.core.dre.table
        bus, longest = lxe.bus_bytes, lxe.burst_bytes // lxe.bus_bytes
        many = MANAGERS * self.cores
        if self.common is not None:
            self.far = False
        together = self._together(rng)
        self.managers, self.failing, self.words = [], set(), {}
        self.beats: list[list[tuple[int | None, int]]] = []  # (data, error) of each manager's reads
        self.responses: list[list[int]] = []
        bad_reads = {a for a in range(0, READS, lxe.burst_bytes) if rng.random() < self.errors}
        self.failing |= bad_reads
        for i in range(many):
            own = READS + i * ((SIZE - READS) // many // 4096 * 4096)
            most = {"ar": longest, "aw": longest}
            if i % MANAGERS == TABLES:  # it writes single beats
                most = {"ar": table.burst_bytes // table.bus_bytes, "aw": 1}
            count = {kind: self.bursts if kind in self.kinds else 0 for kind in ("ar", "aw")}
            lens = {
                k: rng.integers(min(self.shortest, most[k]) - 1, min(self.longest or most[k], most[k]), size=n).tolist()
                for k, n in count.items()
            }
            at = {kind: (1 + rng.integers(self.apart + 1, size=n).cumsum()).tolist() for kind, n in count.items()}
            addrs = {
                "ar": (rng.integers(READS // lxe.burst_bytes, size=count["ar"]) * lxe.burst_bytes).tolist(),
                "aw": [own + k * lxe.burst_bytes for k in range(count["aw"])],
            }
            reads, writes = (
                [{"at": t, "addr": a, "len": n} for t, a, n in zip(at[k], addrs[k], lens[k], strict=True)]
                for k in ("ar", "aw")
            )
            if self.common is not None and i % MANAGERS == 0:
                self._mix(reads, together[i // MANAGERS >> self.common], rng)
            beats, expected, responses = [], [], []
            for burst in reads:
                error = burst["addr"] in bad_reads
                addrs = range(burst["addr"], burst["addr"] + (burst["len"] + 1) * bus, bus)
                expected += [(None if error else int.from_bytes(content(a, bus), "little"), int(error)) for a in addrs]
            for burst in writes:
                error = rng.random() < self.errors
                self.failing |= {burst["addr"]} if error else set()
                responses.append(int(error))
                for k in range(burst["len"] + 1):
                    value = int.from_bytes(rng.bytes(bus), "little")
                    strb = int(rng.integers(1 << bus))
                    beats.append({"at": burst["at"], "data": value, "strb": strb, "last": int(k == burst["len"])})
                    if not error:
                        where = burst["addr"] + k * bus
                        new = zip(content(where, bus), value.to_bytes(bus, "little"), strict=True)
                        self.words[where] = bytes(pair[strb >> j & 1] for j, pair in enumerate(new))
            for burst in reads + writes if self.far else ():
                burst["addr"] += int(rng.integers((1 << ADDR_BITS) // SIZE)) * SIZE + int(rng.integers(bus))
            self.managers.append({"ar": reads, "aw": writes, "w": beats})
            self.beats.append(expected)
            self.responses.append(responses)

    def _together(self, rng: np.random.Generator) -> list[list[tuple[int, int]]]:
        """Address and length of what each group of cores reads together."""
        lxe = self.p.core.lxe
        longest, own = lxe.burst_bytes // lxe.bus_bytes, np.array(SHARED) * 4096
        groups = 0 if self.common is None else -(-self.cores // (1 << self.common))
        at = [rng.integers(own[0], own[-1] + 4096, size=self.bursts) // lxe.burst_bytes for _ in range(groups)]
        return [[(int(a) * lxe.burst_bytes, int(rng.integers(longest))) for a in some] for some in at]

    def _mix(self, reads: list[dict], together: list[tuple[int, int]], rng: np.random.Generator) -> None:
        """Half of an LXE's reads become its group's, in their order; the others stay outside of what is shared."""
        for burst in reads:
            burst["addr"] %= SHARED.start * 4096
        half = len(reads) // 2
        places = np.sort(rng.permutation(len(reads))[:half])
        for k, (addr, length) in zip(places, together, strict=False):
            reads[k] |= {"addr": addr, "len": length}

    def port(self, burst: dict) -> int:
        """The memory port of a burst."""
        return burst["addr"] // self.p.core.lxe.burst_bytes % self.ports

    def is_common(self, i: int, burst: dict) -> bool:
        """Whether a manager's read is made by its group together."""
        return bool(self.common) and i % MANAGERS == 0 and burst["addr"] // 4096 in SHARED

    def leads(self, i: int) -> bool:
        """Whether a manager is the first LXE of its group."""
        return i // MANAGERS % (1 << (self.common or 0)) == 0

    def granted(self, i: int) -> list[dict]:
        """The reads of a manager that go to memory, those of a group with its first."""
        return [b for b in self.managers[i]["ar"] if not self.is_common(i, b) or self.leads(i)]

    def episode(self) -> dict:
        """The episode for the bench."""
        end = range(MANAGERS * self.cores) if self.end is None else self.end
        own = {"managers": self.managers, "stalls": self.stalls, "latency": list(self.latency), "oldest": self.oldest}
        inputs = {"common_log2": self.common, "common_base": SHARED.start, "common_limit": SHARED.stop}
        own["inputs"] = {} if self.common is None else inputs
        return own | {"errors": sorted(self.failing), "end": list(end), "cut_at": self.cut_at}

    def check(self, got: dict) -> None:
        """Every manager has its own answers, and memory holds every write."""
        end = range(MANAGERS * self.cores) if self.end is None else self.end
        for i in end:
            ours = [(None if b["resp"] else b["data"], b["resp"]) for _, b in got["managers"][i]["r"]]
            assert ours == [(data, SLVERR * error) for data, error in self.beats[i]], f"R of manager {i}"
            lasts = [b["last"] for _, b in got["managers"][i]["r"]]
            want = [int(k == b["len"]) for b in self.managers[i]["ar"] for k in range(b["len"] + 1)]
            assert lasts == want, f"last of manager {i}"
            joined = self.common is not None and i % MANAGERS == 0  # LXEs share an ID
            for (j, port), kind in itertools.product(
                enumerate(got.get("ports", ())), {"aw"} if joined else {"ar", "aw"}
            ):
                asked = [(b["addr"], b["len"]) for b in self.managers[i][kind] if self.port(b) == j]
                seen = [(b["addr"], b["len"]) for _, b in port[kind] if b["id"] == i]
                assert seen == asked, f"{kind} of manager {i} at port {j}"
            responses = [b["resp"] for _, b in got["managers"][i]["b"]]
            assert responses == [SLVERR * error for error in self.responses[i]], f"B of manager {i}"
        if len(end) < 2 * self.cores:
            return
        lxe = self.p.core.lxe
        now, bus = bytes.fromhex(got["data"]), lxe.bus_bytes
        beats = range(0, SIZE, bus)
        written = {a: now[a : a + bus] for a in beats if a // lxe.burst_bytes * lxe.burst_bytes not in self.failing}
        wants = {a: self.words.get(a, content(a, bus)) for a in written}
        assert written == wants
        perf = got["perf"]
        granted = [b for i in range(MANAGERS * self.cores) for b in self.granted(i)]
        assert (perf["reads"], perf["writes"]) == (len(granted), sum(len(m["aw"]) for m in self.managers))
        assert perf["read_beats"] == sum(b["len"] + 1 for b in granted)
        assert perf["write_beats"] == sum(len(m["w"]) for m in self.managers)


def simulate(runs: list[Traffic], episodes: list[dict], unit: Emitted, memory: str = "own", pause: float = 0.0):
    """Run the episodes on a unit with the parameters of the first; their results."""
    c = {"params": list(runs[0].changes), "cores": runs[0].cores, "memory": memory, "pause": pause}
    c |= {"common": runs[0].common is not None, "ports": runs[0].ports}
    return Run(unit, "bench_arbiter", "traffic", c | {"episodes": episodes})()["episodes"]


def play(runs: list[Traffic], memory: str = "own", pause: float = 0.0) -> list[dict]:
    """Run the episodes on the RTL and check each that a reset does not cut."""
    unit = emitted(runs[0].cores, runs[0].changes, runs[0].common is not None, runs[0].ports)
    got = simulate(runs, [t.episode() for t in runs], unit, memory, pause)
    for t, g in zip(runs, got, strict=True):
        if not t.cut_at:
            t.check(g)
    return got


def in_turns(t: Traffic, got: dict) -> int:
    """Bursts whose first beat a port has sent before another port has sent the last of a burst before it."""
    found = 0
    for i, m in enumerate(t.managers):
        sent = [deque[int]() for _ in got["ports"]]
        for port, to in zip(got["ports"], sent, strict=True):
            to.extend(at for at, one in zip(port["r_sent"], port["order"]["r"], strict=False) if one == i)
        before: dict[int, int] = {}  # last beat of each port so far
        for burst in m["ar"]:
            j = t.port(burst)
            beats = [sent[j].popleft() for _ in range(burst["len"] + 1)]
            found += any(beats[0] < last for k, last in before.items() if k != j)
            before[j] = beats[-1]
    return found


LONG = ("lxe.burst_bytes=2048", "table.burst_bytes=2048")  # at a bus of 8 bytes
STALLED = {"": 0.4}
LATE = {"aw": 0.9, "r": 0.8, "b": 0.8}
RUNS = {
    "stalls everywhere": Traffic(stalls=STALLED, latency=(0, 30), errors=0.1, seed=1),
    "slow memory": Traffic(stalls=dict.fromkeys(("r", "w", "ar", "aw", "b"), 0.8), latency=(0, 90), seed=2),
    "slow managers": Traffic(stalls={f"{n}_{i}": 0.8 for n in "rwb" for i in range(6)}, latency=(0, 9), seed=3),
    "late addresses": Traffic(stalls=LATE, latency=(0, 20), errors=0.2, seed=4),
    "full rate": Traffic(errors=0.2, seed=5),
}
CUT = [replace(RUNS["stalls everywhere"], cut_at=cycle) for cycle in (5, 40, 150)]  # cut by a reset
AFTER = replace(RUNS["stalls everywhere"], bursts=6)
# Manager 0 takes no answers, manager 1 announces writes and sends no data, manager 5 neither. The others must finish.
STUCK = Traffic(stalls={"r_0": 1.0, "b_0": 1.0, "w_1": 1.0, "r_5": 1.0, "w_5": 1.0}, end=(2, 3, 4), seed=10)


def bins(t: Traffic, got: dict) -> set[str]:
    """Coverage bins that a run reaches."""
    hit = {"read_error"} if any(e for beats in t.beats for _, e in beats) else set()
    hit |= {"write_error"} if any(map(any, t.responses)) else set()
    hit |= {n for n in ("read_waits", "write_waits") if got["perf"][n]}
    lengths = {b["len"] for m in t.managers for n in ("ar", "aw") for b in m[n]}
    longest = t.p.core.lxe.burst_bytes // t.p.core.lxe.bus_bytes
    hit |= {"single_beat"} if 0 in lengths else set()
    hit |= {"longest_burst"} if longest - 1 in lengths else set()
    for m, asked in zip(got["managers"], t.managers, strict=True):
        firsts = list(itertools.accumulate((b["len"] + 1 for b in asked["aw"]), initial=0))[:-1]
        if any(m["w"][k] < aw for k, aw in zip(firsts, m["aw"], strict=True)):
            hit.add("data_before_address")
    for port in got["ports"]:
        order, asked = port["order"]["r"], [b["id"] for _, b in port["ar"]]
        hit |= {"reads_overtake"} if [*dict.fromkeys(order)] != [*dict.fromkeys(asked)] else set()
        hit |= {"reads_interleave"} if sum(a != b for a, b in itertools.pairwise(order)) > len(asked) else set()
        hit |= {"writes_overtake"} if port["order"]["b"] != [b["id"] for _, b in port["aw"]] else set()
        firsts = itertools.accumulate((b["len"] + 1 for _, b in port["aw"]), initial=0)
        early = any(port["w"][k][0] < at for (at, _), k in zip(port["aw"], firsts, strict=False))
        hit |= {"data_overtakes_address"} if early else set()
    return hit


BINS = {
    *("read_error", "write_error", "read_waits", "write_waits", "single_beat", "longest_burst"),
    *("data_before_address", "reads_overtake", "reads_interleave", "writes_overtake", "data_overtakes_address"),
}


@cache
def two_cores() -> list[dict]:
    """Results of all runs of two cores, one after the other in one simulator with a reset before each."""
    return play([*RUNS.values(), *(t for c in CUT for t in (c, AFTER)), STUCK])


@dataclass
class RandomTraffic(StressTraffic):
    """Four runs of 40 bursts a manager, with memory errors."""

    PARTS = "runs"

    runs: list[Traffic]

    @classmethod
    def random(cls, rng: Random) -> Self:
        how = {"cores": rng.randint(1, 3), "bursts": 40, "errors": rng.choice((0.0, 0.1))}
        stalls = [{n: stall_rate(rng) for n in ("", "w", "r")} for _ in range(4)]
        return cls(
            [Traffic(**how, stalls=s, latency=(0, rng.choice((0, 9, 40))), seed=rng.getrandbits(20)) for s in stalls]
        )

    def play(self) -> Any:
        play(self.runs)  # compares every answer

    def check(self, got: Any) -> int:
        return sum(len(m["ar"]) + len(m["aw"]) for r in self.runs for m in r.managers)


def check_every_answer_goes_to_whoever_asked(record_property):
    """Answers reach whoever asked, with all lengths, errors, stalls and a reset in flight. All bins are hit."""
    hit = set().union(*(bins(t, g) for t, g in zip(RUNS.values(), two_cores(), strict=False)))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= BINS, BINS - hit


DEALT = [replace(t, ports=2, seed=50 + k) for k, t in enumerate(RUNS.values())]


def check_ports_answer_in_order():
    """Two ports, with answers of one that come before those due of the other; a reset in flight before each run."""
    cut = [replace(t, cut_at=60) for t in DEALT]
    got = play([t for pair in zip(cut, DEALT, strict=True) for t in pair])[1::2]
    assert min(in_turns(t, g) for t, g in zip(DEALT, got, strict=True)) > 10
    assert all(len(port[kind]) > 40 for g in got for port in g["ports"] for kind in ("ar", "aw"))


def check_full_buffers_keep_their_beats():
    """The longest bursts fill the buffers of managers that hardly ever take a beat, while others' beats pass."""
    longest = Traffic().p.core.lxe.burst_bytes // Traffic().p.core.lxe.bus_bytes
    runs = [Traffic(shortest=longest, stalls=dict.fromkeys((f"r_{i}", f"b_{i}"), 0.97), seed=60 + i) for i in range(3)]
    for t, got in zip(runs, play(runs), strict=True):
        reads = got["managers"][slow := t.seed - 60]["r"]
        passed = sum(len(m["r"]) for m in got["managers"]) - len(reads)
        before = sum(
            at < reads[len(reads) // 2][0] for i, m in enumerate(got["managers"]) if i != slow for at, _ in m["r"]
        )
        assert before > passed / 2


def check_bursts_of_256_beats():
    """The longest bursts of AXI4, and short ones, with stalls."""
    play([Traffic(bursts=4, changes=LONG, stalls={"": 0.3}, latency=(0, 9), errors=0.2, shortest=n) for n in (1, 256)])


def check_no_manager_holds_up_another():
    got = two_cores()[-1]
    assert not got["managers"][0]["r"]
    assert got["managers"][1]["aw"]


def check_cycles_equal_the_time_view(cores, common: int | None = None, ports: int = 1):
    """Every grant and beat is in the cycle of the time view, for bursts offered at once or at random.

    Managers take everything at once, and the memory answers in order.
    """
    shapes = [(0, 1, 1), (0, 1, None), (3, 1, None), (40, 7, None), (9, 30, 2), (150, 4, None)]
    runs = [
        Traffic(
            cores,
            (),
            20 + k,
            (60, 20)[k > 0],
            longest,
            latency=(latency - 1,) * 2,
            oldest=True,
            apart=apart,
            common=common,
            ports=ports,
        )
        for k, (apart, latency, longest) in enumerate(shapes)
    ]
    for t, got in zip(runs, play(runs), strict=True):
        bursts = [
            [
                [
                    Burst(b["at"], b["len"] + 1, t.port(b), b["addr"] if kind == "ar" and t.is_common(i, b) else None)
                    for b in m[kind]
                ]
                for i, m in enumerate(t.managers)
            ]
            for kind in ("ar", "aw")
        ]
        want = ArbiterTime(t.p, t.latency[0] + 1, common or 0).run(*bursts)
        for ours, seen in zip(want.managers, got["managers"], strict=True):
            assert (ours.ar, ours.aw, ours.w) == (seen["ar"], seen["aw"], seen["w"])
            assert (ours.r, ours.b) == ([at for at, _ in seen["r"]], [at for at, _ in seen["b"]])
        for ours, seen in zip(want.ports, got["ports"], strict=True):
            ids = [i if common is None or i % MANAGERS else 0 for i in ours.reads]
            assert [*zip(ours.ar, ids, strict=True)] == [(at, b["id"]) for at, b in seen["ar"]]
            assert [*zip(ours.aw, ours.writes, strict=True)] == [(at, b["id"]) for at, b in seen["aw"]]
            assert (ours.w, ours.r, ours.b) == ([at for at, _ in seen["w"]], seen["r_sent"], seen["b_sent"])
        assert (want.read_waits, want.write_waits) == (got["perf"]["read_waits"], got["perf"]["write_waits"])


COMMON = [
    Traffic(cores=3, common=1, stalls={"": 0.4}, latency=(0, 30), errors=0.1, seed=31),
    Traffic(cores=3, common=2, seed=32),
    Traffic(cores=3, common=1, stalls={f"{n}_{i}": 0.8 for n in ("ar", "r") for i in (0, 6)}, latency=(0, 9), seed=33),
    Traffic(cores=3, common=0, stalls={"": 0.2}, seed=34),  # nothing is common
]


def check_reads_of_a_group_go_to_memory_once():
    """Groups of two cores and one, of all, slow cores; errors reach all of a group. Others read alone beside them.

    Before each run a reset cuts the same traffic while reads are at memory.
    """
    cut = [replace(t, cut_at=at) for t, at in zip(COMMON, (40, 60, 150, 60), strict=True)]
    got = play([t for pair in zip(cut, COMMON, strict=True) for t in pair])
    for g in got[::2]:  # the reset comes while reads are at memory
        assert sum(b["len"] + 1 for port in g["ports"] for _, b in port["ar"]) > sum(
            len(p["r_sent"]) for p in g["ports"]
        )
    for t, g in zip(COMMON, got[1::2], strict=True):
        asked = sum(len(m["ar"]) for m in t.managers)
        assert (g["perf"]["reads"] < asked) == (t.common > 0)
        if t.common == 2:
            assert asked - g["perf"]["reads"] == 2 * (t.bursts // 2)


def check_a_group_that_waits_goes_on_when_nothing_is_common():
    """Core 2 never reads what the others do; they wait until common_log2 becomes 0. Nothing else waits."""
    t = Traffic(cores=3, common=2, seed=35)
    t.managers[6]["ar"] = [b for b in t.managers[6]["ar"] if not t.is_common(6, b)]
    episode = t.episode()
    others = [i for i in range(9) if i % 3]
    [waits] = simulate([t], [episode | {"end": [*others, 6]}], emitted(3, (), True))
    assert all(len(waits["managers"][i]["r"]) < len(t.beats[i]) for i in (0, 3))
    [goes] = simulate([t], [episode | {"end": [0, 3, 6, *others], "release_at": 2000}], emitted(3, (), True))
    for i in (0, 3):
        got = [(None if b["resp"] >> 1 else b["data"], b["resp"] >> 1) for _, b in goes["managers"][i]["r"]]
        assert got == t.beats[i]
    assert goes["managers"][0]["r"][-1][0] > 2000
