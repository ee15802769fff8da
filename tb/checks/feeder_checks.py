"""Checks of the feeder, shared by tests, mutants, coverage and stress: hash bits and scores, code by code."""

import random
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Self

from openvrex.golden.program.isa import CONTEXT_BITS, StoreTo
from openvrex.hdl.emit import Emitted
from openvrex.hdl.retrieval.hcu_state import CLEAR, JOIN, NEWEST, SWITCH
from openvrex.sim.units.feeder_time import FeederTime
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.streams import LATE
from openvrex.tb.library.stress_traffic import StressTraffic
from openvrex.tb.library.transfer_traffic import params

# Words of the VPE against words of a WTU: equally many numbers, four times as many, a quarter. Hashes of 1 to 16 words.
SIZES = {
    "tiny": [],
    "one": ["dpe.n_h=1", "n_w=1", "bus_bytes=1", "w_depth=1", "x_depth=1", "hcu.n_hp=1", "clusters=1", "n_ctx=1"],
    "single": ["wtu.n_w=1"],
    "cut": ["dpe.n_h=16", "dpe.n_w=16", "vpe.n_w=16", "hcu.newest=true"],
    "joined": ["dpe.n_h=2", "dpe.n_w=2", "vpe.n_w=2", "bus_bytes=4", "wtu.n_w=8", "hcu.n_w=5", "hcu.n_hp=15"],
}
STALLS = [
    {},
    dict.fromkeys(("d", "order", "k", "s"), 0.4),
    {"k": 0.9, "s": 0.1},
    {"d": 0.7, "s": 0.6},
    {"k": LATE, "s": LATE},
]


@cache
def emitted(size: str) -> Emitted:
    return emit("feeder", params(SIZES[size]))


def hashes(p, ctx: int, rows: int, rng: random.Random, more: int = 0) -> list[dict]:
    """Words of rows of HASH, followed by `more` words that do not count."""
    lanes = p.dpe.n_w
    words = -(-p.dre.hcu.n_hp // lanes) + more
    newest = {"newest": rng.getrandbits(1)} if p.dre.hcu.newest else {}
    return [
        {
            "target": int(StoreTo.HASH),
            "ctx": ctx,
            **newest,
            "row_last": int(j == words - 1),
            "last": int(r == rows - 1),
            "keep": rng.randrange(lanes),
            "data": rng.getrandbits(16 * lanes),
        }
        for r in range(rows)
        for j in range(words)
    ]


def scores(p, rows: int, n: int, rng: random.Random, last: bool = True) -> list[dict]:
    """Words of rows of `n` codes."""
    lanes = p.dpe.n_w
    words = -(-n // lanes)
    return [
        {
            "target": int(StoreTo.SCORE),
            "ctx": rng.getrandbits(CONTEXT_BITS),  # counts for nothing
            **({"newest": rng.getrandbits(1)} if p.dre.hcu.newest else {}),  # neither
            "row_last": int(j == words - 1),
            "last": int(last and r == rows - 1),
            "keep": (n - 1) % lanes if j == words - 1 else lanes - 1,
            "data": rng.getrandbits(16 * lanes),
        }
        for r in range(rows)
        for j in range(words)
    ]


def expected(p, words: list[dict]) -> tuple[list[dict], list[dict]]:
    """Expected beats on `k` (without orders) and `s`, code by code and bit by bit."""
    lanes, n_hp, n_w = p.dpe.n_w, p.dre.hcu.n_hp, p.dre.wtu.n_w
    k, s, row = [], [], []
    for word in words:
        row.append(word)
        if not word["row_last"]:
            continue
        if word["target"] == StoreTo.HASH:
            bits = [w["data"] >> i & 1 for w in row for i in range(lanes)][:n_hp]
            number = sum(b << i for i, b in enumerate(bits))
            op = NEWEST if word.get("newest") else JOIN
            k.append({"op": op, "ctx": word["ctx"], "token": 0, "hash": number, "last": word["last"]})
        else:
            codes = [w["data"] >> 16 * i & (1 << p.dre.wtu.score.bits) - 1 for w in row for i in range(lanes)]
            codes = codes[: (len(row) - 1) * lanes + word["keep"] + 1]
            for at in range(0, len(codes), n_w):
                part, last = codes[at : at + n_w], at + n_w >= len(codes)
                beat = {"scores": part, "keep": len(part) - 1, "last": int(last)}
                s.append({"row": beat, "set_last": word["last"]})
        row = []
    return k, s


def compare(p, e: dict, got: dict) -> None:
    tokens, words = expected(p, e["d"])
    rows = [cycle for cycle, w in zip(got["taken"], e["d"], strict=True) if is_hash(w) and w["row_last"]]
    orders = [{"op": op, "ctx": ctx, "token": 0, "last": 1} for _, op, ctx in e["orders"]]
    beats = [*zip(rows, tokens, strict=True), *zip(got["ordered"], orders, strict=True)]
    for (_, beat), (_, want) in zip(got["k"], sorted(beats, key=lambda b: b[0]), strict=True):
        assert {name: beat[name] for name in want} == want  # an order has no hash
    for first, last in zip(starts(got["taken"], e["d"]), rows, strict=True):
        assert not any(first <= cycle <= last for cycle in got["ordered"]), "an order within a row"
    for (_, beat), want in zip(got["s"], words, strict=True):
        row = beat["row"]
        assert (row["last"], beat["set_last"]) == (want["row"]["last"], want["set_last"])
        assert row["scores"][: len(want["row"]["scores"])] == want["row"]["scores"]
        assert row["keep"] == want["row"]["keep"] or not row["last"]
    ends = sum(b["row"]["last"] for _, b in got["s"])
    assert got["perf"] == {"tokens": len(tokens), "orders": len(orders), "rows": ends, "words": len(words)}


def is_hash(word: dict) -> bool:
    """Whether a word belongs to a row of HASH."""
    return word["target"] == StoreTo.HASH


def starts(taken: list[int], words: list[dict]) -> list[int]:
    """Cycles in which the first words of the rows of HASH are taken."""
    before = [{"row_last": 1}, *words]
    return [cycle for cycle, w, b in zip(taken, words, before, strict=False) if is_hash(w) and b["row_last"]]


def episode(size: str, words: list[dict], stalls=None, orders=(), cut_at: int = 0) -> dict:
    k, s = expected(params(SIZES[size]), words)
    counts = {"k": len(k) + len(orders), "s": len(s)}
    return {"d": words, "orders": list(orders), "stalls": stalls or {}, **counts, "cut_at": cut_at}


def run(size: str, episodes: list[dict], seed: int = 1, unit: Emitted | None = None, waves: bool = True) -> list[dict]:
    """Run the bench and compare; its results."""
    config = {"params": SIZES[size], "episodes": episodes}
    got = Run(unit or emitted(size), "bench_feeder", "words", config, seed, waves)()["episodes"]
    for e, g in zip([e for e in episodes if not e["cut_at"]], got, strict=True):
        compare(params(SIZES[size]), e, g)
    return got


def random_words(size: str, rng: random.Random, n: int = 12) -> tuple[list[dict], list]:
    """Words of `n` instructions, with CLEARs and SWITCHes between them."""
    p = params(SIZES[size])
    n_ctx = p.dre.hcu.n_ctx
    words, orders = [], []

    def context() -> int:
        return rng.choice([0, n_ctx - 1, rng.randrange(n_ctx)])

    for _ in range(n):
        if rng.random() < 0.5:
            words += hashes(p, context(), rng.randint(1, 4), rng, rng.choice([0, 0, 0, 3]))
        else:
            length = rng.choice([1, p.dre.wtu.clusters, rng.randint(1, p.dre.wtu.clusters)])
            words += scores(p, rng.randint(1, 3), length, rng, rng.random() < 0.5)
        if rng.random() < 0.4:
            at = rng.randint(max(0, len(words) - 5), len(words))
            orders += [(at, rng.choice((CLEAR, SWITCH)), context()) for _ in range(rng.choice((1, 1, 2)))]
    return words, sorted(orders, key=lambda o: o[0])


def traffic(size: str) -> list[dict]:
    """Seeded random episodes, each with stalls of its own."""
    rng = random.Random(1)
    programs = [random_words(size, rng) for _ in STALLS]
    return [episode(size, words, stalls, orders) for (words, orders), stalls in zip(programs, STALLS, strict=True)]


@dataclass
class RandomTraffic(StressTraffic):
    """Six programs of 40 words each."""

    PARTS = "episodes"

    size: str
    episodes: list
    words: int

    @classmethod
    def random(cls, rng: Random) -> Self:
        size = rng.choice(list(SIZES))
        programs = [random_words(size, rng, 40) for _ in range(6)]
        some = [episode(size, words, rng.choice(STALLS), orders) for words, orders in programs]
        return cls(size, some, sum(len(words) for words, _ in programs))

    def play(self) -> Any:
        run(self.size, self.episodes)  # compares every beat

    def check(self, got: Any) -> int:
        return self.words


def check_equals_the_reference(size):
    run(size, traffic(size))


def check_takes_the_cycles_of_the_time_view(size):
    rng = random.Random(2)
    words, _ = random_words(size, rng, 200)
    orders = [(0, rng.choice((CLEAR, SWITCH)), 0) for _ in range(300)]
    runs = [episode(size, words), episode(size, words, orders=orders)]
    for got, n in zip(run(size, runs), (0, 300), strict=True):
        want = FeederTime(params(SIZES[size])).run(words, n)
        first = got["taken"][0] - want.d[0]
        assert [t - first for t in got["taken"]] == want.d
        assert [t - first for t, _ in got["k"]] == want.k
        assert [t - first for t, _ in got["s"]] == want.s


def check_two_beats_wait(size):
    """Outputs that take a beat once in a while, so that each holds two nearly always; rows far longer than needed."""
    rng, p = random.Random(3), params(SIZES[size])
    words = []
    for _ in range(12):
        words += hashes(p, rng.randrange(p.dre.hcu.n_ctx), 2, rng, rng.choice((0, 1, 20)))
        words += scores(p, 2, p.dre.wtu.clusters, rng)
    run(size, [episode(size, words, {"k": 0.97, "s": 0.9})])


def check_reset_in_flight():
    """Resets in flight, also between words of a row, between those of a score word, and while outputs hold beats."""
    words, orders = random_words("joined", random.Random(5))
    whole = episode("joined", words, STALLS[1], orders)
    cuts = dict.fromkeys((2, 9, 40), STALLS[1]) | dict.fromkeys((25, 60), {"k": 0.99, "s": 0.99})
    pairs = [(whole | {"cut_at": at, "stalls": how}, whole) for at, how in cuts.items()]
    rng, p = random.Random(6), params(SIZES["joined"])
    few = episode("joined", hashes(p, 0, 1, rng) + scores(p, 1, 3 * p.dre.wtu.n_w, rng))
    pairs += [(few | {"cut_at": at}, few) for at in range(6, 24)]  # in each cycle in which a beat leaves
    run("joined", [e for pair in pairs for e in pair])
