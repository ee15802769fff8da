"""Checks of the WTU, shared by tests, mutants, coverage and stress: selections equal golden, cycles its time view."""

from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, Self

import numpy as np

from openvrex.golden.arithmetic.score_codes import value
from openvrex.golden.function_params import BUDGET_BITS, ScoreFormat
from openvrex.golden.retrieval.wicsum import RowSelection, select
from openvrex.hdl.params import WtuParams, preset
from openvrex.sim.units.wtu_time import Ring, WtuTime, params_of
from openvrex.tb.library.runner import Run, emit
from openvrex.tb.library.streams import LATE
from openvrex.tb.library.stress_traffic import StressTraffic, stall_rate

TINY = preset("tiny").core.dre.wtu
CORE = replace(preset("core").core.dre.wtu, clusters=1024)  # selection buckets keeps a row on chip


SIZES = {
    "tiny": TINY,
    "single": replace(TINY, n_w=8, score=ScoreFormat(2, 3), bin_bits=4),
    "fixed": replace(TINY, n_w=3, clusters=33, counts=12, score=ScoreFormat(0, 16), bin_bits=5),
    "wide": replace(TINY, n_w=1, clusters=37, counts=5, score=ScoreFormat(5, 11), bin_bits=5),
    "one": WtuParams(n_w=1, clusters=1, counts=1, count_bits=1),
    "bits": replace(TINY, n_w=2, counts=2, score=ScoreFormat(3, 3), bin_bits=1, count_digit=4),
    "digits": replace(TINY, n_w=2, counts=8, bin_bits=2, count_digit=4),
    "lanes": replace(TINY, n_w=16, clusters=64, counts=32, count_digit=7, bin_bits=2),
    "long": replace(TINY, clusters=512, counts=8, bin_bits=4),
    "budget": replace(TINY, budget=True),
    "budget-long": replace(TINY, clusters=512, counts=8, bin_bits=4, budget=True),
    "budget-fixed": replace(TINY, n_w=3, clusters=33, counts=12, score=ScoreFormat(0, 16), bin_bits=5, budget=True),
    "budget-one": WtuParams(n_w=1, clusters=1, counts=1, count_bits=1, budget=True),
    "buckets": replace(TINY, counts=32, selection="buckets"),
    "buckets-fixed": replace(
        TINY, selection="buckets", n_w=3, clusters=33, counts=33, score=ScoreFormat(0, 16), n_buckets=1
    ),
    "buckets-one": WtuParams(n_w=1, clusters=1, counts=1, count_bits=1, selection="buckets"),
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


def row(rng, p: WtuParams, kind: int, n: int) -> np.ndarray:
    """Codes of one row of `n` clusters, of a random shape; each shape takes its own path through the unit."""
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


def table(rng, p: WtuParams, n: int) -> np.ndarray:
    """The counts of n clusters. A tenth of them is saturated."""
    counts = rng.integers(0, 1 << min(p.count_bits, 7), n)
    counts[rng.random(n) < 0.1] = (1 << p.count_bits) - 1
    return counts


def context(rng, p: WtuParams, counts: np.ndarray, rows: list) -> dict:
    """A context of an episode: its counts and rows. Lanes behind its last cluster hold anything."""
    keep = len(counts) <= p.counts
    own = []
    for codes in rows:
        words = padded(rng, p, codes, p.score.bits)
        keeps = rng.integers(0, p.n_w, len(words)).tolist()
        keeps[-1] = (len(codes) - 1) % p.n_w
        last = [int(i == len(words) - 1) for i in range(len(words))]
        fields = zip(words, keeps, last, strict=True)
        own.append([{"scores": scores, "keep": at, "last": ends} for scores, at, ends in fields])
    table = [
        {"counts": w, "first": int(i == 0), "keep": int(keep) if i == 0 else int(rng.integers(2))}
        for i, w in enumerate(padded(rng, p, counts, p.count_bits))
    ]
    return {"table": np.asarray(counts), "codes": [np.asarray(c) for c in rows], "counts": table, "rows": own}


def padded(rng, p: WtuParams, values, bits: int) -> list[list[int]]:
    """Words of n_w values; the lanes behind the last one hold anything."""
    more = [rng.integers(0, 1 << min(bits, 62), dtype=np.int64) for _ in range(-len(values) % p.n_w)]
    return np.concatenate([np.asarray(values, np.int64), np.array(more, np.int64)]).reshape(-1, p.n_w).tolist()


def sizes_of(rng, p: WtuParams) -> list[int]:
    """Clusters of an episode's contexts: one that fits, two that do not if there are such, a full ring, one cluster."""
    fits = int(rng.integers(1, min(p.clusters, p.counts) + 1))
    large = [int(rng.integers(p.counts + 1, p.clusters + 1))] if p.clusters > p.counts else []
    return [fits, *large, p.clusters, min(p.counts, p.clusters), 1]


def episodes_of(p: WtuParams) -> list[dict]:
    """Three episodes of each kind of `EPISODES`, every one with tables of its own."""
    return [episode(p, seed, *x) for seed, x in enumerate(3 * EPISODES, 1)]


def episode(p: WtuParams, seed: int, ratio=19661, idle=0.0, stall=0.0, period=0, n=21, late=False, reset_at=0) -> dict:
    """An episode: contexts that fit the ring of counts and others that do not, in turn, with `n` rows in all.

    Rows of a context that fits may be shorter than its counts. With `late`, counts come while rows run. Where the unit
    has budgets, rows take budgets and shares in turn.
    """
    rng = np.random.default_rng(seed)
    sizes = sizes_of(rng, p)
    contexts = []
    for k, size in enumerate(sizes):
        rows = []
        for r in range(k, n, len(sizes)):
            short = size <= p.counts and rng.random() < 0.4
            rows.append(row(rng, p, r % 7, int(rng.integers(1, size + 1)) if short else size))
        contexts.append(context(rng, p, table(rng, p, size), rows))
    all_rows = rows_of({"contexts": contexts})
    return {
        "contexts": contexts,
        "budgets": [budget(rng, p, *row) for row in all_rows] if p.budget else [],
        "late": late,
        "gaps": rng.choice([0.5, 0.9]) if late else idle,
        "ratio": ratio,
        "idle": idle,
        "stall": stall,
        "period": period,
        "reset_at": reset_at,
        "limit": 20000 + 400 * p.words,
    }


def budget(rng, p: WtuParams, codes: np.ndarray, counts: np.ndarray) -> int:
    """A budget of tokens for a row, near what some of its best clusters hold; 0, a share, in a third of the rows."""
    held = counts[np.argsort(-codes, kind="stable")].cumsum()
    near = int(rng.choice(held)) + int(rng.integers(0, 2))
    corners = [1, int(held[-1]), int(held[-1]) + 1, 1 << BUDGET_BITS, near, near, near]
    return int(rng.choice([0] * 3 + [min(max(1, b), 1 << BUDGET_BITS) for b in corners]))


def own_episode(p: WtuParams, ratio: int, contexts: list[dict], budgets: list[int] | None = None) -> dict:
    """An episode without stalls of these contexts. `budgets`: that of each row; none given: shares."""
    return episode(p, 1, ratio, n=0) | {"contexts": contexts, "budgets": budgets or []}


def unit_counts(p: WtuParams) -> dict:
    """Rows of clusters that count one each, so that a single lost weight shows.

    In the first rows, the clusters above the crossing one weigh exactly Th, so they alone do not exceed it. The other
    rows have few bins, and lanes add to them in cycle after cycle.
    """
    rng, octave = np.random.default_rng(9), 1 << p.score.man_bits
    rows = [[code + octave, code, code] for code in range(octave, octave * 3, octave // 4)]
    few = context(rng, p, np.ones(3, int), rows)
    rows = [octave * 3 - rng.integers(1, 4, p.clusters) * (octave // 2) for _ in range(8)]
    return own_episode(p, 32768, [few, context(rng, p, np.ones(p.clusters, int), rows)])


def extremes(p: WtuParams) -> list[dict]:
    """The heaviest rows, whose sums are as wide as any, and rows that lie in the lowest bin."""
    rng, low = np.random.default_rng(11), 1 << p.score.bits - p.bin_bits
    heavy = [np.full(p.clusters, (1 << p.score.bits) - 1)] * 2
    light = [rng.integers(1, max(2, low), p.clusters) for _ in range(4)]
    full, odd = np.full(p.clusters, (1 << p.count_bits) - 1), np.full(p.clusters, 1)
    return [
        own_episode(p, ratio, [context(rng, p, full, heavy + light), context(rng, p, odd, light)])
        for ratio in (19661, 65535)
    ]


def balanced(p: WtuParams, ratio: int, least: int = 0, one_bin: bool = False, top: int = 0) -> list[dict]:
    """Episodes with rows of two weighted clusters. The first one exceeds Th by one, or just does not, so any lost bit
    shows.

    least : least weight of the first cluster, which is then split over two places of one lane and exceeds Th by as
        little as possible
    one_bin : both clusters are candidates, whose weights are multiplied
    top : codes are below it; 0: any
    """
    rng, n = np.random.default_rng(ratio), 1 << 18
    codes = rng.integers(1, top or 1 << p.score.bits, (2, n))
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
    pairs, tables = min(p.clusters, 64) // size, 3
    clusters = pairs * size
    out = []
    for own in good[: tables * pairs].reshape(tables, pairs):
        lanes = np.arange(clusters - clusters % p.n_w).reshape(-1, p.n_w).T
        places = rng.permuted(lanes, axis=1) if least else rng.permutation(clusters)
        rows, counts = [], table(rng, p, clusters)
        for k, place in zip(own, places.reshape(-1)[: pairs * size].reshape(pairs, size), strict=True):
            row, part = np.zeros(clusters, int), int(first[k]) // 3 if least else 0
            for at, code, count in zip(
                place, [*codes[:, k], codes[0, k]], [int(first[k]) - part, int(second[k]), part], strict=False
            ):
                row[at], counts[at] = code, count
            rows.append(row)
        out.append(own_episode(p, ratio, [context(rng, p, counts, rows)]))
    return out


def filled(p: WtuParams, ratio: int, n: int) -> dict:
    """Rows that begin with a word of clusters in all lanes; lighter ones fill Sum up so that it is the largest with
    which that word exceeds Th, or one more. Any bit that a sum of any weight loses or gains shows.
    """
    rng, values = np.random.default_rng(ratio), value(np.arange(1 << p.score.bits), p.score)
    most, contexts = (1 << p.count_bits) - 1, []
    while len(contexts) < n:
        heavy = rng.random() < 0.5
        top = int(rng.integers(3 * len(values) // 4 if heavy else 2, len(values)))
        first = top - rng.integers(0, rng.choice([1, top // 16 + 1]), p.n_w, endpoint=True).clip(0, top - 2)
        counts = rng.integers(1, most if heavy else 1 << rng.integers(1, p.count_bits + 1), p.n_w, endpoint=True)
        weight = int((values[first] * counts).sum())
        for more in (0, 1):
            rest, below, fill = -(-weight * 65536 // ratio) - 1 + more - weight, int(first.min()), []
            while rest > 0 and below > 1 and len(fill) < p.clusters - p.n_w:
                below = min(below - 1, int(np.searchsorted(values, rest, "right")) - 1)
                fill.append((below, min(most, rest // int(values[below]))))
                rest -= int(values[below]) * fill[-1][1]
            if rest == 0:
                codes, held = np.array([*zip(first, counts, strict=True), *rng.permutation(fill)]).reshape(-1, 2).T
                contexts.append(context(rng, p, held, [codes]))
    return own_episode(p, ratio, contexts)


def run(e, p: WtuParams, episodes: list[dict], seed=1, waves=True) -> list[dict]:
    keep = [
        x | {"contexts": [{k: c[k] for k in ("counts", "rows")} for c in x["contexts"]]} for x in episodes
    ]  # what the simulator's side needs
    return Run(e, "bench_wtu", "rows", {"params": asdict(p), "episodes": keep}, seed, waves)()["episodes"]


def emitted(p: WtuParams):
    return emit("wtu", p)


def rows_of(e: dict) -> list[tuple[np.ndarray, np.ndarray]]:
    """Codes and counts of each row of an episode."""
    return [(codes, c["table"][: len(codes)]) for c in e["contexts"] for codes in c["codes"]]


def budgets_of(e: dict) -> list[int]:
    """The budget of each row of an episode; 0: it takes a share."""
    return e.get("budgets") or [0] * len(rows_of(e))


def chosen(p: WtuParams, e: dict) -> list[RowSelection]:
    """What golden selects of each row of an episode."""
    rows = zip(rows_of(e), budgets_of(e), strict=True)
    return [select(*row, params_of(p, e["ratio"]), own or None) for row, own in rows]


def freed(p: WtuParams, e: dict, got: dict) -> list[int]:
    """The cycles in which a place of the ring must be free again: each word of a context that streams is done."""
    streams = [
        not c["counts"][0]["keep"] for c in e["contexts"] for words in c["rows"] for _ in range(p.readings * len(words))
    ]
    return [cycle for cycle, leaves in zip(got["taken"], streams, strict=True) if leaves]


def differs(p: WtuParams, e: dict, got: dict) -> str:
    """What is wrong with the beats, and with the places that the ring gives back; empty if nothing is."""
    if got["freed"] != freed(p, e, got):
        return f"places are free again in cycles {got['freed']}"
    beats = iter(got["beats"])
    for r, ((codes, _), want) in enumerate(zip(rows_of(e), chosen(p, e), strict=True)):
        mask = np.zeros(p.clusters, bool)
        for b in beats:
            if not b["mask"] and not b["last"]:
                return f"row {r}: an empty beat that is not the last"
            for lane in range(p.n_w):
                if b["mask"] >> lane & 1:
                    mask[b["addr"] * p.n_w + lane] = True
            if b["last"]:
                break
        else:
            return f"row {r}: no last beat"
        if mask[: len(codes)].tolist() != want.mask.tolist() or mask[len(codes) :].any():
            return f"row {r}: selected {np.flatnonzero(mask)}, not {np.flatnonzero(want.mask)}"
        if (b["clusters"], b["tokens"]) != (want.clusters, want.tokens):
            return f"row {r}: {b['clusters']} clusters, {b['tokens']} tokens, not {want.clusters}, {want.tokens}"
    return "beats after the last row" if next(beats, None) else ""


def times(p: WtuParams, e: dict, got: dict) -> list[tuple[int, int]]:
    """Cycles of each row's first word and last beat, counted from the first word of its context."""
    lasts = iter([c for c, b in zip(got["cycles"], got["beats"], strict=True) if b["last"]])
    out, at = [], 0
    for c in e["contexts"]:
        start = got["taken"][at] if c["rows"] else 0
        for words in c["rows"]:
            out.append((got["taken"][at] - start, next(lasts) - start))
            at += p.readings * len(words)
    return out


@dataclass
class RandomTraffic(StressTraffic):
    """Four episodes of 300 rows each; in some, counts come while rows run."""

    PARTS = "episodes"

    p: WtuParams
    episodes: list[dict]

    @classmethod
    def random(cls, rng: Random) -> Self:
        p = SIZES[rng.choice(list(SIZES))]
        ratio = rng.choice((0, 1, 19661, 65535, 65536, rng.randrange(65537)))
        stalls = [(stall_rate(rng), stall_rate(rng), rng.random() < 0.3) for _ in range(4)]
        some = [episode(p, rng.getrandbits(31), ratio, a, b, n=300, late=late) for a, b, late in stalls]
        return cls(p, [e | {"limit": 1_000_000} for e in some])

    def play(self) -> Any:
        return run(emitted(self.p), self.p, self.episodes)

    def check(self, got: Any) -> int:
        for e, one in zip(self.episodes, got, strict=True):
            wrong = differs(self.p, e, one)
            assert not wrong, wrong
        return sum(len(rows_of(e)) for e in self.episodes)


def check_equals_golden_and_time_view(size):
    p = SIZES[size]
    episodes = episodes_of(p) + extremes(p)
    if p.score.exp_bits > 1 and p.clusters > 3:
        episodes.append(unit_counts(p))
    for seed, (e, got) in enumerate(zip(episodes, run(emitted(p), p, episodes), strict=True), 1):
        assert not (wrong := differs(p, e, got)), f"episode {seed}: {wrong}"
        rows, view, perf = rows_of(e), WtuTime(p), got["perf"]
        budgets = budgets_of(e)
        plans = [view.row(*row, e["ratio"], own) for row, own in zip(rows, budgets, strict=True)]
        assert perf["rows"] == len(rows)
        assert perf["words"] == len(got["taken"]) == p.readings * sum(t.words for t in plans)
        assert (perf["walked"], perf["tests"]) == (sum(t.walked for t in plans), sum(t.tests for t in plans))
        if e["idle"] or e["stall"]:
            continue
        want, waits = [], 0
        for c in e["contexts"]:
            own = [(codes, c["table"][: len(codes)]) for codes in c["codes"]]
            ring = Ring(p.count_words, p.count_words) if len(c["table"]) > p.counts else None
            first, last = view.run(own, e["ratio"], ring, budgets[len(want) : len(want) + len(own)])
            want += zip(first.tolist(), last.tolist(), strict=True)
            waits += ring.waits if ring else 0
        assert times(p, e, got) == want, f"episode {seed}"
        assert perf["waits"] == waits, f"episode {seed}"


def check_many_rows(size):
    """Short rows, more than bit 7 of their counter takes."""
    p, rng = SIZES[size], np.random.default_rng(12)
    e = own_episode(p, 19661, [context(rng, p, table(rng, p, 1), [row(rng, p, k % 7, 1) for k in range(140)])])
    [got] = run(emitted(p), p, [e])
    assert not (wrong := differs(p, e, got)), wrong
    assert got["perf"]["rows"] == 140


def check_every_bit_of_a_weight_decides(size):
    p = SIZES[size]
    n = p.clusters
    rng = np.random.default_rng(3)
    full = context(rng, p, np.full(n, (1 << p.count_bits) - 1), [row(rng, p, k, n) for k in range(7)])
    episodes = [*(e for ratio in (32768, 19661, 43691, 60001) for e in balanced(p, ratio))]
    episodes += [own_episode(p, 52429, [full])]
    episodes += [e for ratio, least in ((32769, 1 << 31), (32767, 1 << 20)) for e in balanced(p, ratio, least)]
    episodes += [e for ratio in (32768, 39322, 45875, 19661, 58982) for e in balanced(p, ratio, one_bin=True)]
    episodes += [e for ratio in (32768, 19661, 43691) for e in balanced(p, ratio, top=2 << p.score.man_bits)]
    episodes += [filled(p, ratio, 60) for ratio in (32768, 49152, 19661, 8500)]
    for seed, (e, got) in enumerate(zip(episodes, run(emitted(p), p, episodes), strict=True), 1):
        assert not (wrong := differs(p, e, got)), f"episode {seed}: {wrong}"


def check_counts_that_come_while_rows_run(size):
    """A row waits for its counts word by word, and never sees those of another context."""
    p = SIZES[size]
    episodes = [
        episode(p, seed, 19661, idle, stall, n=21, late=True)
        for seed, (idle, stall) in enumerate(3 * [(0, 0), (0.3, 0.5)])
    ]
    early = 0  # episodes whose first row begins before all its counts have come
    for e, got in zip(episodes, run(emitted(p), p, episodes), strict=True):
        assert not differs(p, e, got)
        assert 0 < got["perf"]["waits"] <= got["taken"][-1], "words waited for their counts never, or too long"
        early += got["taken"][0] < got["counted"][len(e["contexts"][0]["counts"]) - 1]
    assert early, "all counts came before the row"


def check_equal_codes_cross_in_every_lane(size):
    """Rows of equal codes and equal counts, of which the ratio selects 1, 2, 3 and so on."""
    p = SIZES[size]
    n, rng = min(p.clusters, 4 * p.n_w), np.random.default_rng(4)
    episodes = []
    for k in range(n):
        low = context(rng, p, np.full(n, 3), [np.full(n, (1 << p.score.bits) - 1)])
        holes = np.where(rng.random(n) < 0.5, (1 << p.score.bits) - 1, 1)
        episodes.append(own_episode(p, (65536 * k + 32768) // n, [low, context(rng, p, np.full(n, 2), [holes])]))
    lasts = set()
    for e, got in zip(episodes, run(emitted(p), p, episodes), strict=True):
        assert not (wrong := differs(p, e, got)), wrong
        codes, counts = rows_of(e)[0]
        lasts.add(int(select(codes, counts, params_of(p, e["ratio"])).clusters))
    assert lasts == set(range(1, n + 1)), "some cluster was never the last one"


def check_budgets_at_every_count(size):
    """Budgets from 1 to beyond all tokens of a row: selections equal golden, and cycles the time view.

    Codes fall, rise, repeat or are equal. Some clusters have no token, one of them with the highest code.
    """
    p, rng = SIZES[size], np.random.default_rng(6)
    n, top = min(p.clusters, 2 * p.n_w + 1), (1 << p.score.bits) - 1
    counts = rng.integers(0, 4, n)
    counts[[0, n - 1]] = 0
    tokens = int(counts.sum())
    few = rng.choice([top, top - 1, 1, 0], n)
    kinds = [top - np.arange(n), top - np.arange(n)[::-1], few, np.full(n, top), np.zeros(n, int)]
    budgets = list(range(1, tokens + 3))
    episodes = []
    for codes in kinds:
        own = context(rng, p, counts, [codes] * len(budgets))
        episodes.append(own_episode(p, 0, [own], budgets))
    none = context(rng, p, np.zeros(n, int), [few, few])
    episodes.append(own_episode(p, 0, [none], [1, 1 << BUDGET_BITS]))
    sizes, lasts = set(), set()
    for e, got in zip(episodes, run(emitted(p), p, episodes), strict=True):
        assert not (wrong := differs(p, e, got)), wrong
        own = [(codes, counts) for codes, counts in rows_of(e)]
        first, last = WtuTime(p).run(own, 0, None, budgets_of(e))
        assert times(p, e, got) == list(zip(first.tolist(), last.tolist(), strict=True))
        want = chosen(p, e)
        sizes |= {int(s.tokens) - b for s, b in zip(want, budgets_of(e), strict=True)}
        lasts |= {int(s.clusters) for s in want}
    assert {0, 1, 2} <= sizes, "no budget was met exactly, or within a cluster"
    assert min(sizes) < 0, "no budget was beyond the row"
    assert lasts >= set(range(2, n + 1)), "some number of clusters was never selected"


def check_reset_in_flight(size):
    p = SIZES[size]
    episodes = [episode(p, at, 19661, 0.1, 0.2, n=12, reset_at=at) for at in (1, 9, 20, 37, 61, 100, 143, 300)]
    for e, got in zip(episodes, run(emitted(p), p, episodes), strict=True):
        assert not (wrong := differs(p, e, got)), wrong
