"""Checks of the storer, shared by tests, mutants, coverage and stress: beats and bursts, faults, cycles."""

import random
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Self

from openvrex.golden.program.isa import ADDR_BITS, REGISTERS, SIGNS, StoreTo
from openvrex.hdl.emit import Emitted
from openvrex.sim.units.storer_time import StorerTime
from openvrex.tb.library.runner import emit
from openvrex.tb.library.streams import LATE
from openvrex.tb.library.stress_traffic import StressTraffic
from openvrex.tb.library.transfer_traffic import (
    PAGE,
    SIZES,
    TOP,
    beyond,
    bursts_of,
    episode,
    known,
    long,
    octaves,
    params,
    play,
    random_transfers,
    stores,
    transfer,
    vpe_words,
)

TARGETS = list(StoreTo)
SHIFT_BITS = 5  # of the shift of a register's number
STALLS = [
    {},
    dict.fromkeys(("c", "i", "x", "d", "aw", "w", "b"), 0.4),
    {"aw": 0.9},
    {"w": 0.7, "i": 0.5},
    {"b": 0.9},
    dict.fromkeys(("aw", "w", "x", "d"), LATE),
]


@cache
def emitted(size: str) -> Emitted:
    return emit("storer", params(SIZES[size]))


def case(size: str, commands: list[dict], *args, errors=(), **fields) -> dict:
    """An episode of the commands, with its expectations."""
    p = params(SIZES[size])
    words = vpe_words(p, random.Random(3), commands)
    want = stores(p, commands, words, frozenset(errors))
    return episode(want, commands, *args, errors=errors, i=words, **fields)


def run(size: str, episodes: list[dict], unit: Emitted | None = None, **how) -> list[dict]:
    """Run the bench and compare; its results."""
    return play(unit or emitted(size), "bench_storer", size, episodes, compare, **how)


def compare(size: str, e: dict, got: dict) -> None:
    p, want = params(SIZES[size]), e["want"]
    assert [s for _, s in got["done"]] == want.signals
    assert [f for _, f in got["faults"]] == [want.fault] * bool(want.fault)
    assert want.fault == "bus" or [(to, value) for _, to, value in got["sets"]] == want.sets
    assert {cycle - 1 for cycle, *_ in got["sets"]} <= set(got["words"]), (
        "a register is set in the cycle after its word"
    )
    bursts = [(b["addr"], b["len"]) for _, b in got["bursts"]]
    beats = [(b["data"], b["strb"], b["last"]) for _, b in got["beats"]]
    for addr, n in bursts:
        assert addr // PAGE == (addr + (n + 1) * p.lxe.bus_bytes - 1) // PAGE, "a burst crosses 4 KB"
    words = sorted((cycle, name, beat) for name in "xd" for cycle, beat in got[name])
    words = [(name, known(beat)) for _, name, beat in words]
    # What an instruction sends to X or the DRE may still go.
    elsewhere = {cycle for name in "xd" for cycle, _ in got[name]} | {cycle - 1 for cycle, *_ in got["sets"]}
    late = {cycle for cycle in got["words"] if want.fault and cycle >= got["stopped"]}
    assert late <= elsewhere, "a word for memory is taken under stop"
    if want.fault == "bus":  # stores behind it may also be written until the response arrives
        whole = stores(p, e["c"], e["i"])
        real = sum(strb > 0 for _, strb, _ in beats)
        assert beats[:real] == whole.beats[:real], "filler comes last"
        assert bursts == whole.bursts[: len(bursts)]
        assert len(beats) == sum(n + 1 for _, n in bursts), "every burst is ended"
        assert [last for *_, last in beats] == [last for *_, last in whole.beats[: len(beats)]]
        assert words == whole.words[: len(words)]
        return
    assert words == want.words
    assert bursts == want.bursts
    assert beats == want.beats
    assert len(got["words"]) == want.taken
    if not want.fault:
        counts = {"instructions": len(want.signals), "bursts": len(bursts), "beats": len(beats), "words": want.taken}
        went = len(beats) + len(words) + len(want.sets) + want.collected
        assert got["perf"] == counts | {"waits": got["offered"] - went}


def traffic(size: str) -> list[dict]:
    """Seeded random episodes, each with stalls of its own."""
    p, rng = params(SIZES[size]), random.Random(1)
    n = 24 if size == "tiny" else 12
    some = [case(size, random_transfers(p, rng, n, TARGETS, StoreTo.MEMORY), stalls) for stalls in STALLS]
    return [*some, case(size, octaves(p, StoreTo.MEMORY))]


def corners(size: str) -> list[dict]:
    """Instructions at the edges, one after the other, with alternating targets."""
    p = params(SIZES[size])
    word, x = 2 * p.dpe.n_w, p.dpe.x_depth
    signs = [(1, 1, 0), (3, 1, 2 * word), (2, 1 + PAGE // word // 8, word)] if p.lxe.codes else []
    return [
        *(transfer(StoreTo.MEMORY, 5 * PAGE - word, r, n, stride=at, step=1, signal=2) for r, n, at in signs),
        transfer(StoreTo.MEMORY, 0, signal=1),
        transfer(StoreTo.X, 0, 1, min(2, x), to=x - min(2, x), signal=3),
        transfer(StoreTo.MEMORY, TOP - word, 3, stride=2 * word, signal=0xFFFF),
        transfer(StoreTo.MEMORY, 5 * PAGE - 2 * word, 2, 1 + PAGE // word // 8, stride=word, wide=1, signal=1 << 15),
        transfer(StoreTo.X, 3, 1 << 16, 1 << 12, stride=3, wide=1, skip=1, signal=5),
        transfer(StoreTo.MEMORY, 9 * PAGE, 1, 2 * p.lxe.burst_bytes // word or 1, signal=4),
        transfer(StoreTo.X, 0, 1, skip=1),
        transfer(StoreTo.X, 0, x, stride=word, step=1, signal=8),
        transfer(StoreTo.HASH, p.dre.hcu.n_ctx - 1, 2, 16, to=0xFFFF, signal=6),
        transfer(StoreTo.X, 0, x, signal=16),
        *(transfer(StoreTo.X, 0, 2, step=1 << k) for k in range(x.bit_length() - 1)),
        transfer(StoreTo.SCORE, TOP - 1, 2, 3, to=0xFFFF, wide=1, signal=7),
    ]


@dataclass
class RandomTraffic(StressTraffic):
    """Six programs of 24 transfers each, with random stalls of the memory."""

    PARTS = "cases"

    size: str
    cases: list[dict]

    @classmethod
    def random(cls, rng: Random) -> Self:
        size = rng.choice(list(SIZES))
        p = params(SIZES[size])
        programs = [random_transfers(p, rng, 24, TARGETS, StoreTo.MEMORY) for _ in range(6)]
        return cls(size, [case(size, commands, rng.choice(STALLS)) for commands in programs])

    def play(self) -> Any:
        run(self.size, self.cases)  # compares every beat and burst

    def check(self, got: Any) -> int:
        return sum(len(e["want"].words) + len(e["want"].bursts) for e in self.cases)


def check_equals_the_reference(size):
    run(size, [*traffic(size), *(case(size, corners(size), stalls) for stalls in STALLS[:3])])


def check_long_instructions():
    """Long instructions, and many of them."""
    programs = long(StoreTo.MEMORY, 2 * params([]).dpe.n_w, (2732,)), [transfer(StoreTo.MEMORY, 0, skip=1)] * 300
    run("tiny", [case("tiny", c, latency=(1, 1)) for c in programs])


def check_every_count_of_rows(size):
    """Each bit of the rows and of the words, up to the most, also of rows of two bursts and of words of two beats."""
    p = params(SIZES[size])
    words = p.lxe.burst_bytes // (2 * p.dpe.n_w) + 1
    sizes = [(1 << k, 1) for k in range(17)] + [(1, 1 << k) for k in range(13)]
    sizes += [((1 << k) + 1, words) for k in range(10)] + [((1 << 15) + n, 1) for n in (1, 2)]
    program = [transfer(StoreTo.MEMORY, 0, *n) for n in sizes]
    # The length of a row is held for odd and even numbers of cycles.
    program += [transfer(StoreTo.MEMORY, 0, 2, n, wide=1) for n in (4096, 2049, 2050, 2056)]
    run(size, [case(size, program, latency=(1, 1))])


def check_every_shift_of_a_number():
    """A register is set to the number by each shift, and to many numbers as they are, beside each bit of an address."""
    shifts = [*range(1 << SHIFT_BITS), *16 * [0]]
    program = [transfer(StoreTo.X, 1 << k % ADDR_BITS, to=k % REGISTERS, step=n, wide=1) for k, n in enumerate(shifts)]
    run("registers", [case("registers", program)])


def check_cycles_equal_the_time_view(size):
    p, rng = params(SIZES[size]), random.Random(2)
    programs = [random_transfers(p, rng, 10, TARGETS, StoreTo.MEMORY) for _ in range(3)]
    programs += [corners(size), octaves(p, StoreTo.MEMORY)]
    latencies = [1, 5, 40, 2, 3]
    got = run(size, [case(size, c, latency=(n, n)) for c, n in zip(programs, latencies, strict=True)])
    for c, n, g in zip(programs, latencies, got, strict=True):
        want, first = StorerTime(p, n).run(c), g["taken"][0]
        assert [t - first for t in g["taken"]] == want.taken
        assert [t - first for t, _ in g["bursts"]] == want.bursts
        assert [t - first for t, _ in g["beats"]] == want.beats
        assert [t - first for t in g["words"]] == want.words
        assert [t - first for t, _ in g["done"]] == want.done


def check_full_rate(size):
    """The storer moves bus_bytes every cycle, also between instructions, up to the latency that `bursts` covers."""
    p = params(SIZES[size])
    words = p.lxe.burst_bytes // (2 * p.dpe.n_w)
    rows, bursts = {"stride": p.lxe.burst_bytes}, p.lxe.bursts
    program = [
        transfer(StoreTo.MEMORY, 0, bursts, words, **rows),
        transfer(StoreTo.MEMORY, 1 << 20, 8, words // 2, wide=1, **rows),
        transfer(StoreTo.MEMORY, 1 << 22, bursts, words, **rows),
    ]
    beats = (2 * bursts + 8) * p.lxe.burst_bytes // p.lxe.bus_bytes
    covered = (p.lxe.bursts - 1) * p.lxe.burst_bytes // p.lxe.bus_bytes - 1
    got = run(size, [case(size, program, latency=(n, n)) for n in (1, covered, covered + 1)])
    spans = [g["beats"][-1][0] - g["beats"][0][0] + 1 for g in got]
    assert spans[:2] == [beats, beats]
    assert spans[2] > beats
    assert got[1]["most"] == p.lxe.bursts
    for n, g in zip((1, covered, covered + 1), got, strict=True):
        assert [t - g["taken"][0] for t, _ in g["beats"]] == StorerTime(p, n).run(program).beats


def check_signs_at_full_rate():
    """Words of signs come one a cycle, also across beats, bursts, rows and instructions."""
    p = params(SIZES["codes"])
    word = 2 * p.dpe.n_w
    program = [transfer(StoreTo.MEMORY, n * PAGE, 3, 6, stride=8 * word, step=1) for n in range(3)]
    [got] = run("codes", [case("codes", program, latency=(1, 1))])
    cycles = got["words"]
    assert len(cycles) == 3 * 3 * 6 * SIGNS
    assert cycles[-1] - cycles[0] + 1 == len(cycles)


# Each bit of a field that sets a register, but must not.
BAD_SETS = [{name: 1 + (1 << k)} for name, bits in (("rows", 16), ("words", 12)) for k in range(bits)]
BAD_SETS += [{"to": 1 << k} for k in range(4, 16)] + [{"step": 1 << k} for k in range(SHIFT_BITS, 12)]


def faulty(size: str = "tiny") -> list[dict]:
    """Episodes of every fault behind good instructions, with more of them behind it."""
    p, rng = params(SIZES[size]), random.Random(4)
    word, x = 2 * p.dpe.n_w, p.dpe.x_depth
    good = [transfer(StoreTo.X, 0, 1, 9, signal=1), transfer(StoreTo.MEMORY, 0, 2, 30, wide=1, signal=2)]
    if p.lxe.codes:
        good = [good[0], transfer(StoreTo.MEMORY, 3 * word, 3, 4, step=1, signal=2)]
    bad = [
        *(transfer(StoreTo.MEMORY, 1 << k, step=n, signal=4) for k in range(word.bit_length() - 1) for n in (0, 1)),
        *(transfer(StoreTo.MEMORY, 0, stride=1 << k, signal=4) for k in range(word.bit_length() - 1)),
        transfer(StoreTo.X, word // 2, signal=4),
        transfer(StoreTo.X, 0, 2, stride=word // 2, signal=4),
        *([transfer(StoreTo.X, 0, wide=1, signal=4)] if not p.lxe.to_register else []),
        *(transfer(StoreTo.X, 3, **bad, wide=1, signal=4) for bad in BAD_SETS if p.lxe.to_register),
        *(transfer(StoreTo.HASH, 0, 1, n, signal=4) for n in [-(-p.dre.hcu.n_hp // p.dpe.n_w) - 1] if n),
        *([] if p.dre.hcu.newest else [transfer(StoreTo.HASH, 0, 1, 32, wide=1, signal=4)]),
        *(transfer(StoreTo.HASH, ctx, 1, 32, signal=4) for ctx in (p.dre.hcu.n_ctx, *(1 << k for k in range(6, 40)))),
        transfer(StoreTo.X, 0, 1, x + 1, signal=4),
        transfer(StoreTo.X, 0, 3, to=x - 1, step=1, signal=4),
        transfer(StoreTo.X, 0, 20, step=4095, signal=4),
    ]
    episodes = [case(size, [*good, c, *good], s) for c in bad for s in STALLS[:2]]
    assert {e["want"].fault for e in episodes} == {"range"}
    for stalls in STALLS * 5:  # the failing burst is any one of its instruction
        program = [good[1], *random_transfers(p, rng, 8, TARGETS, StoreTo.MEMORY)]
        bursts = [a for c in program if c["target"] == StoreTo.MEMORY and not c["skip"] for a, _ in bursts_of(p, c)]
        episodes.append(case(size, program, stalls, errors=[rng.choice(bursts)]))
    program = [transfer(StoreTo.MEMORY, 0, 6, 8, stride=PAGE, signal=1)] * 2
    for n in range(5):  # while a later burst, which is slow, is under way
        episodes.append(case(size, program, {"w": 0.8}, errors=[bursts_of(p, program[0])[n][0]]))
    return episodes + [case(size, [c]) for c in beyond(p, StoreTo.X)]


def check_faults(size):
    """A fault pulses once, after all earlier work is done. Then nothing begins, and the bus drains."""
    got = run(size, faulty(size))
    assert any(not b["strb"] for g in got for _, b in g["beats"]), "no burst was cut short by stop"


def check_reset_in_flight(size):
    program = random_transfers(params(SIZES[size]), random.Random(5), 12, TARGETS, StoreTo.MEMORY)
    whole, slow = case(size, program, STALLS[1]), case(size, program, {"aw": 0.9})  # a burst is on offer for long
    run(size, [e for cut_at in (1, 7, 23, 60) for e in (whole | {"cut_at": cut_at}, whole)])
    run(size, [e for cut_at in range(8, 72, 4) for e in (slow | {"cut_at": cut_at}, whole)])
