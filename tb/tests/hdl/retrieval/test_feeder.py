"""Feeder: hash and score words equal to a bit-wise reference, cycles to the time view; stalls, sizes, mutants."""

import random
from functools import cache

import pytest

from golden.program.isa import StoreTo
from hdl.emit import Emitted, emit
from hdl.params import ParamError, override, preset
from sim.units.feeder_time import FeederTime
from tb.library.runner import Run, mutants
from tb.library.streams import LATE
from tb.library.transfer_traffic import params

# Words of the VPE against those of a WTU: as many numbers, four times as many, a quarter; hashes of 1 to 16 words.
SIZES = {
    "tiny": [],
    "one": ["dpe.n_h=1", "n_w=1", "bus_bytes=1", "w_depth=1", "x_depth=1", "hcu.n_hp=1", "clusters=1", "n_ctx=1"],
    "cut": ["dpe.n_h=16", "dpe.n_w=16", "vpe.n_w=16"],
    "joined": ["dpe.n_h=2", "dpe.n_w=2", "vpe.n_w=2", "bus_bytes=4", "wtu.n_w=8", "hcu.n_w=5", "hcu.n_hp=15"],
}
STALLS = [
    {},
    dict.fromkeys(("d", "clear", "k", "s"), 0.4),
    {"k": 0.9, "s": 0.1},
    {"d": 0.7, "s": 0.6},
    {"k": LATE, "s": LATE},
]


@cache
def emitted(size: str) -> Emitted:
    return emit("feeder", params(SIZES[size]))


def hashes(p, ctx: int, rows: int, rng: random.Random, more: int = 0) -> list[dict]:
    """Words of rows of HASH, `more` of them behind those that count."""
    lanes, first = p.dpe.n_w, rng.getrandbits(40)
    words = -(-p.dre.hcu.n_hp // lanes) + more
    return [
        {
            "target": int(StoreTo.HASH),
            "ctx": ctx,
            "number": (first + r) % (1 << 40),
            "row_last": int(j == words - 1),
            "last": int(r == rows - 1),
            "keep": rng.randrange(lanes),
            "data": rng.getrandbits(16 * lanes),
        }
        for r in range(rows)
        for j in range(words)
    ]


def scores(p, ctx: int, rows: int, n: int, rng: random.Random, last: bool = True) -> list[dict]:
    """Words of rows of `n` codes."""
    lanes = p.dpe.n_w
    words = -(-n // lanes)
    return [
        {
            "target": int(StoreTo.SCORE),
            "ctx": ctx,
            "number": rng.getrandbits(40),
            "row_last": int(j == words - 1),
            "last": int(last and r == rows - 1),
            "keep": (n - 1) % lanes if j == words - 1 else lanes - 1,
            "data": rng.getrandbits(16 * lanes),
        }
        for r in range(rows)
        for j in range(words)
    ]


def expected(p, words: list[dict]) -> tuple[list[dict], list[dict]]:
    """Beats on `k` (without CLEARs) and `s`, code by code and bit by bit."""
    lanes, n_hp, n_w = p.dpe.n_w, p.dre.hcu.n_hp, p.dre.wtu.n_w
    k, s, row = [], [], []
    for word in words:
        row.append(word)
        if not word["row_last"]:
            continue
        if word["target"] == StoreTo.HASH:
            bits = [w["data"] >> i & 1 for w in row for i in range(lanes)][:n_hp]
            number = sum(b << i for i, b in enumerate(bits))
            token = word["number"] % (1 << p.dre.hcu.token_bits)
            k.append({"op": 0, "ctx": word["ctx"], "token": token, "hash": number, "last": word["last"]})
        else:
            codes = [w["data"] >> 16 * i & (1 << p.dre.wtu.score.bits) - 1 for w in row for i in range(lanes)]
            codes = codes[: (len(row) - 1) * lanes + word["keep"] + 1]
            for at in range(0, len(codes), n_w):
                part, last = codes[at : at + n_w], at + n_w >= len(codes)
                beat = {"ctx": word["ctx"], "scores": part, "keep": len(part) - 1, "last": int(last)}
                s.append({"row": beat, "set_last": word["last"]})
        row = []
    return k, s


def compare(p, e: dict, got: dict) -> None:
    tokens, words = expected(p, e["d"])
    joins = [b for _, b in got["k"] if not b["op"]]
    assert joins == tokens
    assert [b["ctx"] for _, b in got["k"] if b["op"]] == [ctx for _, ctx in e["clears"]]
    for (_, beat), want in zip(got["s"], words, strict=True):
        row = beat["row"]
        assert (row["ctx"], row["last"], beat["set_last"]) == (
            want["row"]["ctx"],
            want["row"]["last"],
            want["set_last"],
        )
        assert row["scores"][: len(want["row"]["scores"])] == want["row"]["scores"]
        assert row["keep"] == want["row"]["keep"] or not row["last"]
    rows = sum(b["row"]["last"] for _, b in got["s"])
    assert got["perf"] == {"tokens": len(joins), "clears": len(e["clears"]), "rows": rows, "words": len(words)}


def episode(size: str, words: list[dict], stalls=None, clears=(), cut_at: int = 0) -> dict:
    k, s = expected(params(SIZES[size]), words)
    counts = {"k": len(k) + len(clears), "s": len(s)}
    return {"d": words, "clears": list(clears), "stalls": stalls or {}, **counts, "cut_at": cut_at}


def run(size: str, episodes: list[dict], seed: int = 1, unit: Emitted | None = None, waves: bool = True) -> list[dict]:
    """Results of the bench, compared."""
    config = {"params": SIZES[size], "episodes": episodes}
    got = Run(unit or emitted(size), "tb.benches.bench_feeder", "words", config, seed, waves)()["episodes"]
    for e, g in zip([e for e in episodes if not e["cut_at"]], got, strict=True):
        compare(params(SIZES[size]), e, g)
    return got


def random_words(size: str, rng: random.Random, n: int = 12) -> tuple[list[dict], list]:
    """Words of `n` instructions, and CLEARs between them."""
    p = params(SIZES[size])
    words, clears = [], []
    for _ in range(n):
        ctx = rng.randrange(p.dre.hcu.n_ctx)
        if rng.random() < 0.5:
            words += hashes(p, ctx, rng.randint(1, 4), rng, rng.choice([0, 0, 0, 3]))
        else:
            length = rng.choice([1, p.dre.wtu.clusters, rng.randint(1, p.dre.wtu.clusters)])
            words += scores(p, ctx, rng.randint(1, 3), length, rng, rng.random() < 0.5)
        if rng.random() < 0.4:
            clears.append((rng.randint(max(0, len(words) - 5), len(words)), rng.randrange(p.dre.hcu.n_ctx)))
    return words, sorted(clears)


def traffic(size: str) -> list[dict]:
    """Seeded random episodes, each with stalls of its own."""
    rng = random.Random(1)
    programs = [random_words(size, rng) for _ in STALLS]
    return [episode(size, words, stalls, clears) for (words, clears), stalls in zip(programs, STALLS, strict=True)]


@pytest.mark.parametrize("size", SIZES)
def test_equals_the_reference(size):
    run(size, traffic(size))


@pytest.mark.parametrize("size", SIZES)
def test_takes_the_cycles_of_the_time_view(size):
    rng = random.Random(2)
    words, _ = random_words(size, rng, 200)
    clears = [(0, 0)] * 300
    runs = [episode(size, words), episode(size, words, clears=clears)]
    for got, n in zip(run(size, runs), (0, 300), strict=True):
        want = FeederTime(params(SIZES[size])).run(words, n)
        first = got["taken"][0] - want.d[0]
        assert [t - first for t in got["taken"]] == want.d
        assert [t - first for t, _ in got["k"]] == want.k
        assert [t - first for t, _ in got["s"]] == want.s


def test_reset_in_flight():
    """Also between the words of a row, and between those of a score word that is put together."""
    words, clears = random_words("joined", random.Random(5))
    whole = episode("joined", words, STALLS[1], clears)
    run("joined", [e for cut_at in (2, 9, 16, 40) for e in (whole | {"cut_at": cut_at}, whole)])


def bins(size: str) -> set[str]:
    """What the traffic reaches."""
    p, out = params(SIZES[size]), set()
    lanes, n_w, words = p.dpe.n_w, p.dre.wtu.n_w, -(-p.dre.hcu.n_hp // p.dpe.n_w)
    for e in traffic(size):
        before, at = None, 0
        for i, word in enumerate(e["d"]):
            kind = StoreTo(word["target"]).name.lower()
            at += 1
            out |= {f"{before}_{kind}"} if before else set()
            before = kind
            if not word["row_last"]:
                continue
            if kind == "hash":
                out |= {"more_words"} if at > words else {"just_enough"}
            else:
                n = (at - 1) * lanes + word["keep"] + 1
                out |= {"one_score"} if n == 1 else set()
                out |= {"longest_row"} if n == p.dre.wtu.clusters else set()
                out |= {"whole_words"} if n % n_w == 0 else {"part_of_a_word"}
                out |= {"block_ends"} if word["last"] else {"block_goes_on"}
            out |= {f"context_{word['ctx']}"}
            at = 0
            follows = any(k == i + 1 for k, _ in e["clears"])
            out |= {f"clear_behind_{kind}"} if follows else set()
        out |= {"clear_in_a_row" for k, _ in e["clears"] if 0 < k < len(e["d"]) and not e["d"][k - 1]["row_last"]}
    return out


BINS = {
    *("hash_hash", "hash_score", "score_hash", "score_score", "just_enough", "more_words", "one_score", "longest_row"),
    *("whole_words", "part_of_a_word", "block_ends", "block_goes_on", "clear_behind_hash", "clear_behind_score"),
    *("clear_in_a_row", "context_0", "context_1", "context_2"),
}


def test_coverage(record_property):
    """The traffic of `test_equals_the_reference` reaches every bin."""
    hit = bins("cut") | bins("joined")
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= BINS, BINS - hit


# Edits of the Verilog: the size, what is there, what takes its place.
MUTANTS = [
    ("joined", "k_takes = k_free & ", "k_takes = k__ready & "),
    ("joined", "clear__valid & ", "clear__ready & "),
    ("joined", "index == 4'h8", "index == 4'h7"),
    ("joined", "d__payload[50] ? 5'h00", "1'h0 ? 5'h00"),
    ("joined", "whole = d__payload[50] | ", "whole = 1'h0 | "),
    ("joined", "at * 2'h2", "at * 1'h1"),
    ("cut", "is_hash = d__payload[1:0] == 2'h2", "is_hash = d__payload[1:0] == 2'h3"),
    ("cut", "s_takes = s_free & \\final ", "s_takes = s_free"),
    ("cut", "\\final  & d__payload[50]", "d__payload[50]"),
    ("cut", "at == 2'h3;", "at == 2'h2;"),
    ("cut", "d__payload[50] ? d__payload[55:54]", "1'h0 ? d__payload[55:54]"),
]


@pytest.mark.parametrize("size", [pytest.param("cut", marks=pytest.mark.nightly), "joined"])
def test_mutants(size):
    edits = [m[1:] for m in MUTANTS if m[0] == size]
    survivors = []
    for edit, mutant in zip(edits, mutants(emitted(size), edits), strict=True):
        try:
            run(size, traffic(size)[:2], unit=mutant, waves=False)
            survivors.append(edit)
        except (AssertionError, ValueError):
            pass
    assert not survivors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["entry_bytes=100"], "entry_bytes=100: must be a multiple of a word of 8 bytes"),
        (["entry_bytes=32776"], "entry_bytes=32776: must be at most 32768"),
        (["boundary=4"], "boundary=4: must be 8 to 32768"),
        (["boundary=65536"], "boundary=65536: must be 8 to 32768"),
        (["wtu.n_w=3", "clusters=33", "hcu.n_h=1"], "wtu.n_w=3: must be a power of two in a core"),
        (["wtu.score=e4m8"], "wtu.score=.*: must equal vpe.score"),
        (["addr_bits=41"], "addr_bits=41: takes 41 bits, a core has 40"),
        (["token_bits=41"], "token_bits=41: takes 41 bits, a core has 40"),
        (["n_ctx=257"], "n_ctx=257: takes 9 bits, a core has 8"),
        (["dpe.n_w=3", "dpe.n_h=3"], "dpe.n_w=3: must be a power of two in an LXE"),
    ],
)
def test_bad_parameters(changes, message):
    with pytest.raises(ParamError, match=message):
        override(preset("tiny"), changes).core.core_format()
