"""Checks of the WTU, shared by tests, mutants, coverage and stress: selections equal golden, cycles its time view."""

from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, Self

import numpy as np

from golden.arithmetic.score_codes import value
from golden.function_params import ScoreFormat
from golden.retrieval.wicsum import select
from hdl.emit import emit
from hdl.params import WtuParams, preset
from sim.units.wtu_time import WtuTime, params_of
from tb.library.runner import Run
from tb.library.streams import LATE
from tb.library.stress_traffic import StressTraffic, stall_rate

TINY, CORE = preset("tiny").core.dre.wtu, preset("core").core.dre.wtu


SIZES = {
    "tiny": TINY,
    "early": replace(TINY, double_buffer=False, clusters=4, n_ctx=1),  # rows arrive while bins are still cleared
    "single": replace(TINY, double_buffer=False, n_w=8, score=ScoreFormat(2, 3), list_depth=2, n_ctx=1),
    "fixed": replace(TINY, n_w=3, clusters=33, score=ScoreFormat(0, 16), list_depth=1, n_ctx=2),
    "wide": replace(TINY, n_w=1, clusters=37, score=ScoreFormat(5, 11), bin_bits=5, list_depth=3, n_ctx=1),
    "one": WtuParams(n_w=1, clusters=1, n_ctx=1, count_bits=1, list_depth=1),
    "early-ahead": replace(TINY, walk_ahead=True, clusters=4, n_ctx=1),
    "lanes": replace(TINY, n_w=16, clusters=64, n_ctx=1, list_depth=2, count_digit=7),
    "ahead": replace(TINY, n_w=16, clusters=64, n_ctx=1, list_depth=2, walk_ahead=True),
    "digits": replace(TINY, n_w=2, list_depth=2, count_digit=4, walk_ahead=True),
    "buckets": replace(TINY, selection="buckets"),
    "buckets-fixed": replace(TINY, selection="buckets", n_w=3, clusters=33, score=ScoreFormat(0, 16), n_buckets=1),
    "buckets-one": WtuParams(n_w=1, clusters=1, n_ctx=1, count_bits=1, selection="buckets"),
}
# ratio, idle, stall, period of the stalls
EPISODES = [
    (19661, 0.0, 0.0, 0),
    (0, 0.0, 0.0, 0),
    (65536, 0.0, 0.0, 0),
    (52429, 0.0, 0.0, 0),
    (19661, 0.4, 0.4, 0),
    (65535, 0.0, 0.8, 0),
    (52429, 0.8, 0.2, 0),
    (19661, 0.9, 0.9, 60),
    (52429, 0.0, LATE, 0),
]


def row(rng, p: WtuParams, kind: int) -> np.ndarray:
    """Codes of one row, of a random shape; each shape takes its own path through the unit."""
    n = p.clusters if rng.random() < 0.2 else 1 if rng.random() < 0.1 else int(rng.integers(1, p.clusters + 1))
    top = 1 << p.score.bits
    a = int(rng.integers(0, top - 7))
    if kind == 0:
        return rng.integers(0, top, n)
    if kind == 1:
        return np.full(n, rng.choice([0, a, top - 1]))  # all equal
    if kind == 2:
        return rng.integers(a, min(top, a + max(8, top >> 6)), n)  # in about one bin
    if kind == 3:
        return rng.integers(a, a + 3, n)  # ties across words
    if kind == 4:
        codes = np.zeros(n, int)
        codes[rng.integers(0, n)] = top - 1  # one far above the others
        return codes
    if kind == 5:
        return np.maximum(0, top - 1 - rng.exponential(top / 8, n)).astype(int)  # as an exp distributes them
    return rng.choice([0, 1, top // 2, top - 1], n)


def episode(p: WtuParams, seed: int, ratio=19661, idle=0.0, stall=0.0, period=0, n=21, late=0, reset_at=0) -> dict:
    """An episode: random tables, then rows. The bench offers `late` counts while rows run."""
    rng = np.random.default_rng(seed)
    high = min(p.count_bits, 7)
    tables = rng.integers(0, 1 << high, (p.n_ctx, p.clusters))
    tables[:, rng.random(p.clusters) < 0.1] = (1 << p.count_bits) - 1
    rows = [(int(rng.integers(p.n_ctx)), row(rng, p, k % 7)) for k in range(n)]

    def count(ctx, cluster, n):
        return {"ctx": int(ctx), "cluster": int(cluster), "count": int(n)}

    words = []
    for ctx, codes in rows:
        pad = -len(codes) % p.n_w  # lanes beyond the row hold anything
        padded = np.concatenate([codes, rng.integers(0, 1 << p.score.bits, pad)]).reshape(-1, p.n_w)
        for i, w in enumerate(padded.tolist()):
            last = i == len(padded) - 1
            keep = (len(codes) - 1) % p.n_w if last else int(rng.integers(p.n_w))
            words.append({"ctx": ctx, "scores": w, "keep": keep, "last": int(last)})
    lates = [
        count(rng.integers(p.n_ctx), rng.integers(p.clusters), rng.integers(1 << p.count_bits)) for _ in range(late)
    ]
    return {
        "counts": [count(t, c, n) for t, table in enumerate(tables) for c, n in enumerate(table)],
        "late": lates,
        "words": words,
        "ratio": ratio,
        "idle": idle,
        "stall": stall,
        "period": period,
        "clear": True,
        "reset_at": reset_at,
        "limit": 8000,  # the longest takes 4700
        "rows": [(ctx, codes.tolist()) for ctx, codes in rows],
    }


def put_row(e: dict, p: WtuParams, ctx: int, codes: list[int]) -> None:
    """Add a row to an episode; lanes beyond it hold 0."""
    padded = codes + [0] * (-len(codes) % p.n_w)
    words = [padded[i : i + p.n_w] for i in range(0, len(padded), p.n_w)]
    keep, last = (len(codes) - 1) % p.n_w, len(words) - 1
    e["words"] += [{"ctx": ctx, "scores": w, "keep": keep, "last": int(i == last)} for i, w in enumerate(words)]
    e["rows"].append((ctx, codes))


def unit_counts(p: WtuParams) -> dict:
    """Rows of clusters that count one each, so that a single lost weight shows.

    In the first rows, the clusters above the crossing one weigh exactly Th, so they alone do not exceed it. The other
    rows have few bins, and lanes add to them in cycle after cycle.
    """
    e = episode(p, 9, 32768, n=0)
    e["counts"] = [c | {"count": 1} for c in e["counts"]]
    rng, octave = np.random.default_rng(9), 1 << p.score.man_bits
    rows = [[code + octave, code, code] for code in range(octave, octave * 3, octave // 4)]
    rows += [(octave * 3 - rng.integers(1, 4, p.clusters) * (octave // 2)).tolist() for _ in range(8)]
    for codes in rows:
        put_row(e, p, 0, codes + [0] * (-len(codes) % p.n_w))
    return e


def balanced(p: WtuParams, ratio: int, least: int = 0, one_bin: bool = False) -> dict:
    """Rows of two weighted clusters. The first one exceeds Th by one, or just does not, so any lost bit shows.

    least : least weight of the first cluster, which is then split over two places of one lane and exceeds Th by as
        little as possible
    one_bin : both clusters are candidates, whose weights are multiplied
    """
    rng, n = np.random.default_rng(ratio), 1 << 18
    codes = rng.integers(1, 1 << p.score.bits, (2, n))
    if one_bin:
        low = (1 << p.score.bits - p.bin_bits) - 1
        codes[1] = np.maximum(1, codes[0] & ~low | codes[1] & low)
    codes = np.sort(codes, 0)[::-1]
    v = value(codes, p.score)
    first = rng.integers(1, 1 << rng.integers(1, p.count_bits + 1, n))
    second = v[0] * first * (65536 - ratio) // ratio // v[1] + rng.integers(0, 2, n)
    total = v[0] * first + v[1] * second
    over = v[0] * first - (total * ratio >> 16)
    near = np.where(over, 65535 - total * ratio % 65536, total * ratio % 65536)  # distance of Th from another value
    good = np.flatnonzero((codes[0] > codes[1]) & (second > 0) & (second < 1 << p.count_bits) & (over >> 1 == 0))
    if least:
        good = np.flatnonzero((codes[0] > codes[1]) & (second > 0) & (second < 1 << p.count_bits))
        good = good[v[0][good] * first[good] >= least]
        near = np.abs((v[0] * first << 16) - total * ratio)
    good = good[np.argsort(near[good], kind="stable")]
    size = 4 if least else 2
    e, pairs = episode(p, 1, ratio, n=0), p.clusters // size
    for ctx, own in enumerate(good[: p.n_ctx * pairs].reshape(p.n_ctx, pairs)):
        lanes = np.arange(p.clusters).reshape(p.words, p.n_w).T
        places = rng.permuted(lanes, axis=1) if least else rng.permutation(p.clusters)
        for k, place in zip(own, places.reshape(pairs, size), strict=True):
            row, part = np.zeros(p.clusters, int), int(first[k]) // 3 if least else 0
            counts = [int(first[k]) - part, int(second[k]), part]
            for at, code, count in zip(place, [*codes[:, k], codes[0, k]], counts, strict=False):
                row[at] = code
                e["counts"][ctx * p.clusters + at]["count"] = count
            put_row(e, p, ctx, row.tolist())
    return e


def run(e, p: WtuParams, episodes: list[dict], seed=1, waves=True) -> list[dict]:
    keep = [{k: v for k, v in x.items() if k != "rows"} for x in episodes]
    return Run(e, "tb.benches.bench_wtu", "rows", {"params": asdict(p), "episodes": keep}, seed, waves)()["episodes"]


def emitted(p: WtuParams):
    return emit("wtu", p)


def counts_of(p: WtuParams, e: dict, got: dict) -> list[np.ndarray]:
    """Counts that each row must see: those taken before its first word."""
    writes = sorted(zip(got["counted"], e["counts"] + e["late"], strict=True), key=lambda w: w[0])
    starts = np.cumsum([0] + [w["last"] for w in e["words"]])[:-1]
    first = [c for i, c in enumerate(got["taken"]) if i == 0 or starts[i] != starts[i - 1]]
    table, out = np.zeros((p.n_ctx, p.clusters), np.int64), []
    for start, (ctx, codes) in zip(first, e["rows"], strict=True):
        while writes and writes[0][0] < start:
            w = writes.pop(0)[1]
            table[w["ctx"], w["cluster"]] = w["count"]
        out.append(table[ctx, : len(codes)].copy())
    return out


def differs(p: WtuParams, e: dict, got: dict) -> str:
    """What is wrong with the beats; empty if nothing is."""
    beats = iter(got["beats"])
    for r, ((_, codes), counts) in enumerate(zip(e["rows"], counts_of(p, e, got), strict=True)):
        want = select(np.array(codes), counts, params_of(p, e["ratio"]))
        mask = np.zeros(p.clusters, bool)
        for b in beats:
            if not b["mask"] and not b["last"]:
                return f"row {r}: an empty beat that is not the last"
            for lane in range(p.n_w):
                if b["mask"] >> lane & 1:
                    mask[b["addr"] * p.n_w + lane] = True
            if b["last"]:
                break
        if mask[: len(codes)].tolist() != want.mask.tolist() or mask[len(codes) :].any():
            return f"row {r}: selected {np.flatnonzero(mask)}, not {np.flatnonzero(want.mask)}"
        if (b["clusters"], b["tokens"]) != (want.clusters, want.tokens):
            return f"row {r}: {b['clusters']} clusters, {b['tokens']} tokens, not {want.clusters}, {want.tokens}"
    return "beats after the last row" if next(beats, None) else ""


def times(e: dict, got: dict) -> list[tuple[int, int]]:
    """Cycles of each row's first word and last beat, counted from the first word of the run."""
    starts = np.cumsum([0] + [w["last"] for w in e["words"]])[:-1]
    first = [c for i, c in enumerate(got["taken"]) if i == 0 or starts[i] != starts[i - 1]]
    last = [c for c, b in zip(got["cycles"], got["beats"], strict=True) if b["last"]]
    return [(f - first[0], b - first[0]) for f, b in zip(first, last, strict=True)]


@dataclass
class RandomTraffic(StressTraffic):
    """Four episodes of 300 rows each; some deliver counts late."""

    p: WtuParams
    episodes: list[dict]

    @classmethod
    def random(cls, rng: Random) -> Self:
        p = SIZES[rng.choice(list(SIZES))]
        ratio = rng.choice((0, 1, 19661, 65535, 65536, rng.randrange(65537)))
        stalls = [(stall_rate(rng), stall_rate(rng), rng.choice((0, 9))) for _ in range(4)]
        some = [episode(p, rng.getrandbits(31), ratio, a, b, n=300, late=late) for a, b, late in stalls]
        return cls(p, [e | {"limit": 1_000_000} for e in some])

    def play(self) -> Any:
        return run(emitted(self.p), self.p, self.episodes)

    def check(self, got: Any) -> int:
        for e, one in zip(self.episodes, got, strict=True):
            wrong = differs(self.p, e, one)
            assert not wrong, wrong
        return sum(len(e["words"]) for e in self.episodes)


def check_numbers_of_histograms_come_round(size):
    """A bin does not show what it held when an older histogram had the same number, not even while it is cleared.

    Each row has a score in the bin that is cleared as the row starts, which an older row of the same number used, and a
    lower score. Rows follow each other without a gap.
    """
    p = SIZES[size]
    e, rng = episode(p, 5, 65535, n=0), np.random.default_rng(5)
    low_bits = p.score.bits - p.bin_bits
    for k in range(4 << p.bin_bits):
        code = (k - 1) % (1 << p.bin_bits) << low_bits | int(rng.integers(1 << low_bits))
        codes = [code, int(rng.integers(code + 1))]
        put_row(e, p, 0, codes)
    [got] = run(emitted(p), p, [e])
    assert not differs(p, e, got)


def check_words_of_every_bin():
    """The highest bin of a word decides whether it is read again. A word's codes lie in one bin, near others'."""
    p = SIZES["tiny"]
    rng, episodes = np.random.default_rng(6), []
    for ratio, stall in ((13107, 0.5), (32768, 0.0), (58982, 0.5), (65000, 0.0)):
        e = episode(p, 6, ratio, stall=stall, n=0)
        for _ in range(40):
            bins = (rng.integers(0, (1 << p.bin_bits) - 4) + rng.integers(0, 5, p.words)).repeat(p.n_w)
            codes = bins << p.score.bits - p.bin_bits | rng.integers(0, 1 << p.score.bits - p.bin_bits, len(bins))
            put_row(e, p, 0, codes.tolist())
        episodes.append(e)
    for e, got in zip(episodes, run(emitted(p), p, episodes), strict=True):
        assert not differs(p, e, got)


def check_equals_golden_and_time_view(size):
    p = SIZES[size]
    episodes = [episode(p, seed, *x) for seed, x in enumerate(EPISODES, 1)]
    if p.score.exp_bits > 1 and p.clusters > 3:
        episodes.append(unit_counts(p))
    for seed, (e, got) in enumerate(zip(episodes, run(emitted(p), p, episodes), strict=True), 1):
        assert not (wrong := differs(p, e, got)), f"episode {seed}: {wrong}"
        assert (got["perf"]["rows"], got["perf"]["words"]) == (len(e["rows"]), len(e["words"]))
        if e["idle"] or e["stall"]:
            continue
        rows = [(np.array(codes), counts) for (_, codes), counts in zip(e["rows"], counts_of(p, e, got), strict=True)]
        view = WtuTime(p)
        first, last = view.run(rows, e["ratio"])
        assert times(e, got) == list(zip(first.tolist(), last.tolist(), strict=True)), f"episode {seed}"
        alone = [view.row(codes, counts, e["ratio"]) for codes, counts in rows]
        assert got["perf"]["walked"] == sum(t.walked for t in alone)
        assert got["perf"]["zooms"] == sum(t.zooms for t in alone)


def check_every_bit_of_a_weight_decides(size):
    p = SIZES[size]
    full = episode(p, 3, 52429)
    full["counts"] = [c | {"count": (1 << p.count_bits) - 1} for c in full["counts"]]
    episodes = [*(balanced(p, ratio) for ratio in (32768, 19661, 43691, 60001)), full]
    episodes += [balanced(p, ratio, least) for ratio, least in ((32769, 1 << 31), (32767, 1 << 20))]
    episodes += [balanced(p, ratio, one_bin=True) for ratio in (32768, 39322, 45875, 19661, 58982)]
    episodes.append(episode(p, 5, 65536, n=9))
    results = run(emitted(p), p, episodes)
    for seed, (e, got) in enumerate(zip(episodes, results, strict=True), 1):
        assert not (wrong := differs(p, e, got)), f"episode {seed}: {wrong}"
    if p.selection == "exact":  # where everything is selected, each word is read once
        assert results[-1]["perf"]["scanned"] == len(episodes[-1]["words"])


def check_counts_written_while_rows_run(size):
    p = SIZES[size]
    episodes = [
        episode(p, seed, 19661, idle, stall, late=60) for seed, (idle, stall) in enumerate([(0, 0), (0.3, 0.5)])
    ]
    for e, got in zip(episodes, run(emitted(p), p, episodes), strict=True):
        assert not differs(p, e, got)


def check_reset_in_flight(size):
    p = SIZES[size]
    episodes = [episode(p, at, 19661, 0.1, 0.2, n=12, reset_at=at) for at in (1, 9, 20, 37, 61, 100, 143)]
    for e, got in zip(episodes, run(emitted(p), p, episodes), strict=True):
        assert not differs(p, e, got)
