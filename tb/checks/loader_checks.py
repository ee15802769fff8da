"""Checks of the loader, shared by tests, mutants, coverage and stress: words and bursts, faults, cycles."""

import random
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Self

from openvrex.golden.arithmetic.packed_weights import GROUPS, Packing, Rule
from openvrex.golden.program.isa import LoadTo
from openvrex.hdl.emit import Emitted
from openvrex.hdl.execution.loader import code_slice
from openvrex.hdl.params import CoreParams
from openvrex.sim.units.loader_time import LoaderTime
from openvrex.tb.library.runner import emit
from openvrex.tb.library.streams import LATE
from openvrex.tb.library.stress_traffic import StressTraffic
from openvrex.tb.library.transfer_traffic import (
    PACKINGS,
    PAGE,
    SIZES,
    TOP,
    beyond,
    bursts_of,
    episode,
    loads,
    long,
    octaves,
    params,
    play,
    random_transfers,
    same_word,
    transfer,
)

TARGETS = list(LoadTo)
STALLS = [
    {},
    dict.fromkeys(("c", "ar", "r", "w", "x", "v"), 0.4),
    {"v": 0.9, "w": 0.5},
    {"r": 0.7, "ar": 0.8},
    dict.fromkeys(("ar", "w", "x", "v"), LATE),
]


@cache
def emitted(size: str) -> Emitted:
    return emit("loader", params(SIZES[size]))


def case(size: str, commands: list[dict], *args, errors=(), **fields) -> dict:
    """An episode of the commands, with its expectations."""
    return episode(loads(params(SIZES[size]), commands, frozenset(errors)), commands, *args, errors=errors, **fields)


def run(size: str, episodes: list[dict], unit: Emitted | None = None, **how) -> list[dict]:
    """Run the bench and compare; its results."""
    return play(unit or emitted(size), "bench_loader", size, episodes, compare, **how)


def compare(size: str, e: dict, got: dict) -> None:
    p, want = params(SIZES[size]), e["want"]
    assert [s for _, s in got["done"]] == want.signals
    words = sorted((cycle, name, beat) for name in "wxv" for cycle, beat in got[name])
    assert len({cycle for cycle, *_ in words}) == len(words), "one word a cycle"
    assert len(words) == len(want.words)
    assert all(same_word(p, name, beat, *w) for (_, name, beat), w in zip(words, want.words, strict=True))
    bursts = [(b["addr"], b["len"]) for _, b in got["bursts"]]
    assert [f for _, f in got["faults"]] == [want.fault] * bool(want.fault)
    assert bursts == want.bursts[: len(bursts)]
    if not want.fault:
        assert len(bursts) == len(want.bursts)
        beats = sum(n + 1 for _, n in bursts)
        assert len(got["beats"]) == beats
        counts = {"instructions": len(want.signals), "bursts": len(bursts), "beats": beats, "words": len(words)}
        assert got["perf"] == counts | {"waits": got["offered"] - beats}
    for addr, n in bursts:
        assert addr // PAGE == (addr + (n + 1) * p.lxe.bus_bytes - 1) // PAGE, "a burst crosses 4 KB"


def traffic(size: str) -> list[dict]:
    """Seeded random episodes, each with stalls of its own."""
    p, rng = params(SIZES[size]), random.Random(1)
    n = 24 if size == "tiny" else 12
    some = [case(size, random_transfers(p, rng, n, TARGETS, LoadTo.VECTOR), stalls) for stalls in STALLS]
    return [*some, case(size, octaves(p, LoadTo.VECTOR))]


def corners(size: str) -> list[dict]:
    """Instructions at the edges, one after the other, with alternating targets."""
    p = params(SIZES[size])
    word, x, w = 2 * p.dpe.n_w, p.dpe.x_depth, p.dpe.w_depth
    trees, codes = p.dpe.n_w, []
    if p.lxe.codes:  # one word for some trees, for all, for more; codes for more than all, some trees or one a word
        rows = [1, 2, trees, trees + 1]
        codes = [transfer(LoadTo.W, 6 * PAGE + word * n, n, to=n % w, step=1, signal=n) for n in rows]
        for words, stride, step in ((1, word, 1), (2, word, 2), (3, 2 * word, 1), (4, 2 * word, 0)):
            codes += [transfer(LoadTo.W, PAGE, n, words, stride=stride, step=step, wide=1, signal=n) for n in rows]
    if p.lxe.weights:  # packs of every kind: cut behind the first word of weights, whole, another begun
        for packing in PACKINGS:
            for n, words in ((2, 1), (packing.words, 2), (packing.words + 2, 1)):
                codes.append(transfer(LoadTo.W, PAGE, n, words, stride=packing.code, wide=1, signal=n))
    return [
        *codes,
        transfer(LoadTo.W, 0, signal=1),
        transfer(LoadTo.X, PAGE - word, 1, min(2, x), to=x - min(2, x), signal=3),
        transfer(LoadTo.COLUMN, TOP - word, p.dpe.n_w, stride=2 * word, to=w - 1, signal=0xFFFF),
        transfer(LoadTo.VECTOR, 5 * PAGE - 2 * word, 2, 1 + PAGE // word // 8, stride=word, wide=1, signal=1 << 15),
        transfer(LoadTo.W, 3, 1 << 16, 1 << 12, stride=3, wide=1, skip=1, signal=5),
        transfer(LoadTo.W, 4 * PAGE, p.dpe.n_w, w, stride=word * w, signal=2),
        transfer(LoadTo.VECTOR, 9 * PAGE, 1, 2 * p.lxe.burst_bytes // word or 1, signal=4),
        transfer(LoadTo.X, 0, 1, skip=1),
        transfer(LoadTo.X, 0, x, stride=word, step=1, signal=8),
        *(transfer(LoadTo.X, 0, 2, stride=word, step=1 << k, signal=8) for k in range(x.bit_length() - 1)),
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
        programs = [random_transfers(p, rng, 24, TARGETS, LoadTo.VECTOR) for _ in range(6)]
        return cls(size, [case(size, commands, rng.choice(STALLS)) for commands in programs])

    def play(self) -> Any:
        run(self.size, self.cases)  # compares every word and burst

    def check(self, got: Any) -> int:
        return sum(len(e["want"].words) + len(e["want"].bursts) for e in self.cases)


def check_equals_the_reference(size):
    run(size, [*traffic(size), *(case(size, corners(size), stalls) for stalls in STALLS[:3])])


def check_long_instructions():
    """Long instructions, and many of them."""
    word = 2 * params([]).dpe.n_w
    most = transfer(LoadTo.VECTOR, word, 2, 1 << 12, stride=word << 12)  # the longest rows, which bursts join
    programs = [*long(LoadTo.VECTOR, word, (5462, 2731)), most], [transfer(LoadTo.VECTOR, 0, skip=1)] * 300
    run("tiny", [case("tiny", c, latency=(1, 1)) for c in programs])


def check_cycles(size: str, **how) -> None:
    """Every transfer of random programs is in the cycle of the time view."""
    p, rng = params(SIZES[size]), random.Random(2)
    programs = [random_transfers(p, rng, 10, TARGETS, LoadTo.VECTOR) for _ in range(3)]
    programs += [corners(size), octaves(p, LoadTo.VECTOR)]
    latencies = [1, 5, 40, 2, 3]
    got = run(size, [case(size, c, latency=(n, n)) for c, n in zip(programs, latencies, strict=True)], **how)
    for c, n, g in zip(programs, latencies, got, strict=True):
        want, first = LoaderTime(p, n).run(c), g["taken"][0]
        words = sorted(cycle for name in "wxv" for cycle, _ in g[name])
        assert [t - first for t in g["taken"]] == want.taken
        assert [t - first for t, _ in g["bursts"]] == want.bursts
        assert [t - first for t in g["beats"]] == want.beats
        assert [t - first for t in words] == want.words
        assert [t - first for t, _ in g["done"]] == want.done


def check_every_count_of_rows(size):
    """Each bit of the rows and of the words, up to the most."""
    sizes = [(1 << k, 1) for k in range(17)] + [(1, 1 << k) for k in range(13)]
    run(size, [case(size, [transfer(LoadTo.VECTOR, 0, *n) for n in sizes], latency=(1, 1))])


def check_cycles_equal_the_time_view(size):
    check_cycles(size)


def full_rate(p: CoreParams) -> list[dict]:
    """Consecutive instructions of every target with bursts of the greatest length."""
    words = p.lxe.burst_bytes // (2 * p.dpe.n_w)
    rows = {"stride": p.lxe.burst_bytes, "step": words}
    return [
        transfer(LoadTo.W, 0, p.dpe.n_w, words, **rows),
        transfer(LoadTo.VECTOR, 1 << 20, 4, words // 2, wide=1, **rows),
        transfer(LoadTo.X, 1 << 21, 4, words, **rows),
        transfer(LoadTo.VECTOR, 1 << 22, 3, words, **rows),
        transfer(LoadTo.W, 1 << 23, p.dpe.n_w, words, to=words, **rows),
    ]


def check_full_rate_of_weights(size):
    """A word of W a cycle. A word of scales costs one cycle, or more where its beats outlast the words before."""
    p = params(SIZES[size])
    step = 2 * p.dpe.n_w // p.lxe.bus_bytes
    for packing in (Packing(Rule.SCALE), Packing(Rule.MINIMUM), Packing(Rule.ZERO, GROUPS[1]), Packing(Rule.BYTE)):
        packs, many = 4, packing.each // step
        program = [transfer(LoadTo.W, 0, packs * packing.words, 1, stride=packing.code, wide=1)]
        [got] = run(size, [case(size, program, latency=(1, 1))])
        cycles = [cycle for cycle, _ in got["w"]]
        lost = 1 + max(0, step - many)
        assert cycles[-1] - cycles[0] + 1 == packs * packing.made + (packs - 1) * lost


def check_full_rate_of_codes(size):
    """A word of W a cycle, but for the beats that a slice needs behind the first."""
    p = params(SIZES[size])
    beats, words = code_slice(p)
    rows, many = 24, p.lxe_format().code_words.many
    program = [transfer(LoadTo.W, 0, rows, 1, stride=2 * p.dpe.n_w, wide=1)]
    [got] = run(size, [case(size, program, latency=(1, 1))])
    cycles = [cycle for cycle, _ in got["w"]]
    assert cycles[-1] - cycles[0] + 1 == rows * many + (rows * many // words - 1) * (beats - 1)


def check_full_rate(size):
    """The loader moves bus_bytes every cycle, also between instructions, up to the latency that `bursts` covers."""
    p = params(SIZES[size])
    program = full_rate(p)
    beats = sum((c["rows"] + 1) * (c["words"] + 1) << c["wide"] for c in program) * 2 * p.dpe.n_w // p.lxe.bus_bytes
    covered = (p.lxe.bursts - 1) * p.lxe.burst_bytes // p.lxe.bus_bytes - 1
    got = run(size, [case(size, program, latency=(n, n)) for n in (1, covered, covered + 1)])
    spans = [g["beats"][-1] - g["beats"][0] + 1 for g in got]
    assert spans[:2] == [beats, beats]
    assert spans[2] > beats
    assert got[1]["most"] == p.lxe.bursts
    for n, g in zip((1, covered, covered + 1), got, strict=True):
        assert [t - g["taken"][0] for t in g["beats"]] == LoaderTime(p, n).run(program).beats
    assert [g["perf"]["waits"] for g in got] == [0, 0, 0]


def faults(size: str) -> list[dict]:
    """Each fault behind good instructions, with more good ones behind it."""
    p = params(SIZES[size])
    word, x, w = 2 * p.dpe.n_w, p.dpe.x_depth, p.dpe.w_depth
    good = [transfer(LoadTo.X, 64 * word, 1, min(x, 9), signal=1), transfer(LoadTo.VECTOR, 0, 2, 3, wide=1, signal=2)]
    bad = [
        transfer(LoadTo.VECTOR, word // 2, signal=4),
        transfer(LoadTo.VECTOR, 0, stride=word // 2, signal=4),
        transfer(LoadTo.X, 0, wide=1, signal=4),
        transfer(LoadTo.COLUMN, 0, words=2, signal=4),
        transfer(LoadTo.X, 0, 1, x + 1, signal=4),
        transfer(LoadTo.X, 0, 3, to=x - 1, step=1, signal=4),
        transfer(LoadTo.X, 0, 20, to=0, step=4095, signal=4),
        transfer(LoadTo.W, 0, p.dpe.n_w + 1, w, step=w, signal=4),
        transfer(LoadTo.W, 0, to=0xFFFF, words=1, signal=4),
        transfer(LoadTo.COLUMN, 0, p.dpe.n_w + 1, to=w - 1, signal=4),
    ]
    return [[*good, c, *good] for c in bad]


def faulty() -> list[dict]:
    """Episodes of every fault behind good instructions, with more of them behind it."""
    p, rng = params(SIZES["tiny"]), random.Random(4)
    episodes = [case("tiny", c, stalls) for c in faults("tiny") for stalls in STALLS[:2]]
    outside = (transfer(LoadTo.W, 0, to=1 << k) for k in range(p.dpe.w_depth.bit_length() - 1, 16))
    episodes += [case("tiny", [c]) for c in (*beyond(p, LoadTo.X), *outside)]
    episodes += [case("tiny", c[2:], {"c": 0.9}) for c in faults("tiny")]  # others come behind the fault
    assert {e["want"].fault for e in episodes} == {"range"}
    longest = transfer(LoadTo.VECTOR, 0, 1, 2053, wide=1)  # of more than 4096 beats, but given up soon
    episodes.append(case("tiny", [longest], STALLS[3], errors=[40 * p.lxe.bus_bytes]))
    for stalls in STALLS * 5:  # the error is at any beat of a burst, also of one that was read ahead
        program = [faults("tiny")[0][0], *random_transfers(p, rng, 8, TARGETS, LoadTo.VECTOR)]
        spans = [span for c in program if not c["skip"] for span in bursts_of(p, c, joined=True)]
        addr, n = rng.choice(spans)
        episodes.append(case("tiny", program, stalls, errors=[addr + rng.randint(0, n) * p.lxe.bus_bytes]))
    return episodes


def faulty_codes(size: str) -> list[dict]:
    """The same of words of codes, and of words that are read once."""
    p = params(SIZES[size])
    word, w, many = 2 * p.dpe.n_w, p.dpe.w_depth, p.lxe_format().code_words.many
    good = transfer(LoadTo.W, 0, 3, 2, stride=2 * word, wide=1, signal=1)
    bad = [
        transfer(LoadTo.W, 0, words=many, to=w - many + 1, wide=1, signal=4),  # its last part
        transfer(LoadTo.W, 0, 1, to=w, wide=1, signal=4),
        transfer(LoadTo.W, 0, w // many + 1, w + 1, stride=word, wide=1, signal=4),
        transfer(LoadTo.W, 0, 1 << 7, 1 << 12, stride=word, wide=1, signal=4),
        transfer(LoadTo.W, 0, p.dpe.n_h // many + 1, stride=word, step=w, wide=1, signal=4),
        *(transfer(LoadTo.W, 0, 1, to=1 << k, wide=1, signal=4) for k in range(w.bit_length() - 1, 16)),
        *(transfer(LoadTo.W, 0, 9, step=1 << k, wide=1, signal=4) for k in range(w.bit_length() - 1, 12)),
        transfer(LoadTo.W, 0, 5, to=w, signal=4),  # a word that is read once
        transfer(LoadTo.W, word // 2, wide=1, signal=4),
        transfer(LoadTo.X, 0, wide=1, signal=4),
        transfer(LoadTo.COLUMN, 0, wide=1, signal=4),
    ]
    episodes = [case(size, [good, c, good], stalls) for c in bad for stalls in STALLS[:2]]
    assert {e["want"].fault for e in episodes} == {"range"}
    fails = [transfer(LoadTo.W, PAGE, 4, 2, stride=2 * word, wide=1, signal=4), transfer(LoadTo.W, PAGE, 9, signal=4)]
    episodes += [case(size, [good, c, good], stalls, errors=[PAGE]) for c in fails for stalls in STALLS]
    beats = range(p.lxe.bus_bytes, 2 * word, p.lxe.bus_bytes)
    return episodes + [case(size, [fails[0], good], STALLS[k % 5], errors=[PAGE + n]) for k, n in enumerate(beats)]


def faulty_weights(size: str = "weights") -> list[dict]:
    """The same of 4-bit weights."""
    p = params(SIZES[size])
    word, w = 2 * p.dpe.n_w, p.dpe.w_depth
    whole, cut, byte = Packing(Rule.SCALE), Packing(Rule.MINIMUM, GROUPS[1]), Packing(Rule.BYTE)
    good = transfer(LoadTo.W, 0, cut.words + 2, 2, stride=cut.code, wide=1, signal=1)
    more = {"wide": 1, "signal": 4}
    bad = [
        transfer(LoadTo.W, 0, 1, stride=whole.code, **more),  # scales alone
        transfer(LoadTo.W, 0, whole.words + 1, stride=whole.code, **more),  # scales at the end
        transfer(LoadTo.W, 0, 2, 4, to=w - 3, stride=whole.code, **more),  # its last word
        transfer(LoadTo.W, 0, 2, 2, to=w, stride=cut.code, **more),
        transfer(LoadTo.W, 0, whole.words, 1, stride=whole.code, step=w, **more),
        transfer(LoadTo.W, word // 2, 2, stride=whole.code, **more),
        *(transfer(LoadTo.W, 0, 2, stride=code, **more) for code in (0, 8, 8 + whole.code, word + 1)),
        transfer(LoadTo.W, 0, byte.words + 1, stride=byte.code, **more),
        transfer(LoadTo.W, 0, 2, 2, to=w - 1, stride=byte.code, **more),
        *(transfer(target, 0, 2, stride=whole.code, **more) for target in (LoadTo.X, LoadTo.COLUMN)),
        transfer(LoadTo.W, 0, 2, stride=whole.code, signal=4),
        *(transfer(LoadTo.W, 0, 2, 2, to=1 << k, stride=3, **more) for k in range(w.bit_length() - 1, 16)),
    ]
    episodes = [case(size, [good, c, good], stalls) for c in bad for stalls in STALLS[:2]]
    assert {e["want"].fault for e in episodes} == {"range"}
    beats = [n * p.lxe.bus_bytes for n in range(0, (cut.words + 2) * word // p.lxe.bus_bytes, 3)]
    fails = transfer(LoadTo.W, PAGE, cut.words + 2, 2, stride=cut.code, **more)
    return episodes + [case(size, [good, fails, good], STALLS[k % 5], errors=[PAGE + n]) for k, n in enumerate(beats)]


def check_faults(size="tiny"):
    """A fault pulses once, after all earlier work is done. Then nothing moves, and the bus drains."""
    if size.startswith("codes"):
        run(size, faulty_codes(size))
    else:
        run(size, faulty() if size == "tiny" else faulty_weights(size))


def check_reset_in_flight(size="tiny"):
    program = random_transfers(params(SIZES[size]), random.Random(5), 12, TARGETS, LoadTo.VECTOR)
    whole = case(size, program, STALLS[1])
    run(size, [e for cut_at in (1, 7, 23, 60) for e in (whole | {"cut_at": cut_at}, whole)])
