"""`vrex papers figure`: each figure by an independent small calculation, and the page that shows what was recorded."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from rich.progress import Progress

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.function_params import ReSVParams
from openvrex.golden.inputs import video
from openvrex.golden.inputs.codec import BLOCK, Recorded
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.golden.inputs.trace_model import Model, frequencies
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.mosaic import Mosaic
from openvrex.golden.policies.policy_run import Record, TraceRun, blocks, shape_of
from openvrex.golden.retrieval.hashing import hyperplanes
from openvrex.golden.retrieval.resv import ReSV
from openvrex.hdl.design import load
from openvrex.papers.commands import (
    paper_budgets,
    paper_codecsight,
    paper_keys,
    paper_mosaic,
    paper_mosaic_hardware,
    paper_motion,
    paper_ratio,
    paper_selection,
    paper_transmission,
)
from openvrex.papers.commands.paper_figure import Drawn
from openvrex.papers.policies.codecsight_encoder import Anchors, Tokens, prefill
from openvrex.papers.policies.rekv import ReKVParams
from openvrex.scripts.check.verify_command import FIXTURE
from openvrex.scripts.quantity import Column
from openvrex.tb.library.runner import ROOT
from tb.tests.commands import tried, vrex
from tb.tests.golden.inputs import video_samples
from tb.tests.golden.inputs.trace_samples import models
from tb.tests.papers.commands.figure_samples import trace as two_kinds
from tb.tests.papers.policies import codecsight_samples

WORLD = Trace.load(FIXTURE)
LONG = Trace.load(ROOT / "tb/fixtures/bikes_long.safetensors")
RECORD = json.loads((ROOT / "docs/results/paper.json").read_text())
PAGE = (ROOT / "docs/papers/figures.md").read_text()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return float(a @ b / (a @ a * (b @ b)) ** 0.5)


# Fig. 7


def test_keys_of_adjacent_frames_by_pairs():
    spans = WORLD.spans("frame")
    place, other, best = [], [], []
    for (a, _), (b, end) in zip(spans, spans[1:], strict=False):
        for j in range(end - b):
            row = [cosine(WORLD.k[1, a + i], WORLD.k[1, b + j]) for i in range(end - b)]
            place.append(row[j])
            other += row[:j] + row[j + 1 :]
            best.append(max(row))
    got = paper_keys.alike(dict(paper_keys.kinds(WORLD, 1))["cached"])
    assert len(place) == 270
    np.testing.assert_allclose(list(got.values()), [np.mean(x) for x in (place, other, best)], rtol=1e-9)


def test_unrotated_keys_are_those_before_the_rotation():
    """The same keys in every frame, rotated by complex numbers, are equal again."""
    rng, turns = np.random.default_rng(0), np.array(frequencies(100.0, 8))
    plain = np.tile(rng.standard_normal((4, 2, 8)), (5, 1, 1))
    z = (plain[..., :4] + 1j * plain[..., 4:]) * np.exp(1j * np.arange(20)[:, None, None] * turns)
    k = to_bf16(np.concatenate([z.real, z.imag], -1))[None]
    q = np.repeat(k, 2, axis=2)
    model = Model(1e-5, 100.0, tuple(turns.tolist()), (True,))
    t = Trace((2,), k, q, None, np.arange(0, 21, 4).astype(np.int32), np.ones(5, np.uint8), {}, model=model)
    found = {kind: paper_keys.alike(keys) for kind, keys in paper_keys.kinds(t, 0)}
    assert found["unrotated"]["place"] == pytest.approx(1, abs=2**-7)
    assert found["cached"]["place"] < 0.9
    assert "unrotated" not in dict(paper_keys.kinds(replace(t, model=None), 0))
    uneven = replace(t, offsets=np.array([0, 4, 8, 12, 17, 20], np.int32))
    with pytest.raises(TraceError, match="frames of one size"):
        list(paper_keys.kinds(uneven, 0))


@pytest.mark.parametrize("centre", [False, True])
def test_pairs_have_the_angles_and_distances_of_their_keys(centre):
    """Signs and cosines, pair by pair, of the keys that were hashed."""
    got, distances, bits = paper_keys.pairs(WORLD, 2, 16, centre)
    spans = WORLD.spans("frame")
    at = [t for start, stop in spans for t in range(start, stop)]
    keys = WORLD.k[2].reshape(WORLD.tokens, -1).astype(np.float64)
    products = keys @ hyperplanes(bits, keys.shape[1], ReSVParams().hash_seed).astype(np.float64).T
    share = float(to_bf16(np.array(1 / (spans[0][1] - spans[0][0]))))
    if centre:
        keys = keys - keys[slice(*spans[0])].mean(axis=0)
    sides = products > (products[slice(*spans[0])].sum(axis=0) * share if centre else 0)
    chosen = list(combinations(at, 2))
    assert len(chosen) == len(got) == 280 * 279 // 2
    for n in range(0, len(chosen), 97):
        a, b = chosen[n]
        assert distances[n] == (sides[a] != sides[b]).sum()
        assert got[n] == pytest.approx(cosine(keys[a], keys[b]), abs=1e-9)


def test_expected_correlation_is_that_of_independent_hyperplanes():
    """Distances drawn as binomials of these angles correlate as expected."""
    rng = np.random.default_rng(1)
    c = rng.uniform(0.3, 0.95, 400)
    drawn = [np.corrcoef(1 - c, rng.binomial(32, np.arccos(c) / np.pi))[0, 1] for _ in range(300)]
    expected = paper_keys.follows(c, rng.binomial(32, 0.5, 400).astype(float), 32)["expected_32"]
    assert abs(np.mean(drawn) - expected) < 3 * np.std(drawn) / 300**0.5 + 1 / 400  # a sample's correlation is biased


# The share of a row, and Fig. 19


@pytest.mark.parametrize("ratio", paper_selection.RATIOS)
def test_visited_by_sorting_each_row(ratio):
    shares, buckets = [], []
    for codes, counts in paper_selection.scored(WORLD, 0, ReSVParams(th_hd=3)):
        values = np.array([_value(c) for c in range(int(codes.max()) + 1)])[codes]
        for code, weight in zip(codes.astype(int), values * counts, strict=True):
            order = sorted(range(len(code)), key=lambda j: (-code[j], j))
            enough = int(weight.sum()) * round(ratio * 65536) >> 16
            total = np.cumsum(weight[order])
            shares.append((np.argmax(total > enough) + 1) / len(code))
            last, width = code[order[int(np.argmax(total > enough))]], code.max() - code.min() + 1
            in_bucket = (code.max() - code) * 16 // width <= (code.max() - last) * 16 // width
            buckets.append(in_bucket.mean())
    found = paper_selection.visits(WORLD, 0, ReSVParams(th_hd=3))
    assert len(shares) == 2 * 10 * 9
    assert found[f"exact {ratio}"] == pytest.approx(np.mean(shares), rel=1e-12)
    assert found[f"buckets {ratio}"] == pytest.approx(np.mean(buckets), rel=1e-12)


def _value(code: int) -> int:
    """The value of a score code of 4 and 7 bits."""
    e, m = code >> 7, code & 127
    return m if e == 0 else (128 + m) << (e - 1)


def test_without_clusters_every_key_is_scored_and_the_best_tokens_are_fetched():
    """Th_hd 0 gives each token a cluster; all keys cross the link, and the values of what is fetched."""
    p, params = load("core").core.dre, paper_selection.METHODS["no clusters"][0]
    found = paper_selection.costs(WORLD, 0, params, p)
    spans, shares = WORLD.spans("frame", queries=True), []
    for (_, stop), (codes, counts) in zip(spans, paper_selection.scored(WORLD, 0, params), strict=True):
        assert counts.tolist() == [1] * (stop - params.sinks)
        chosen = set()
        for row in codes.tolist():
            order = sorted(range(len(row)), key=lambda j: (-row[j], j))
            total = np.cumsum([_value(row[j]) for j in order])
            last = int(np.argmax(total > int(total[-1]) * params.ratio_q16 >> 16))
            chosen |= set(order[: last + 1])
        offloaded = range(params.sinks, stop - params.recent)
        shares.append(len({j + params.sinks for j in chosen} & set(offloaded)) / len(offloaded))
    scored = np.mean([stop - params.sinks for _, stop in spans])
    assert found["fetched"] == pytest.approx(np.mean(shares))
    assert found["traffic"] == pytest.approx(0.5 + found["fetched"] / 2)
    assert found["scored"] == scored
    assert found["products"] == pytest.approx(10 * 9 * 64 * scored / 1e6)
    assert found["wtu"] >= -(-int(scored) // p.wtu.n_w)
    assert found["hcu"] is None
    everything = paper_selection.costs(WORLD, 0, None, p)
    assert (everything["fetched"], everything["traffic"], everything["scored"]) == (1.0, 1.0, None)


def test_the_hcu_compares_a_key_with_the_clusters_of_core():
    """A key of 32 bits takes two cycles a cluster of `core`'s 16 lanes, fewer where comparisons are abandoned."""
    p = load("core").core.dre
    cycles = paper_selection.hcu_cycles(LONG, 0, ReSVParams(), p)
    resv = ReSV(ReSVParams(), LONG.kv_heads, LONG.head_size)
    for start, stop in LONG.spans():
        resv.append(LONG.k[0, start:stop])
    clusters = len(resv.tables[0])
    assert clusters < cycles < 2 * clusters


def test_half_of_the_cache_is_half_of_the_traffic():
    """Keys of two kinds, one of which the queries look for."""
    found = paper_selection.costs(two_kinds(), 0, ReSVParams(recent=6, sinks=0), load("core").core.dre)
    assert found["scored"] == 2
    assert found["traffic"] == pytest.approx(found["fetched"])
    assert found["fetched"] == pytest.approx(0.5, abs=0.06)
    assert found["error"] < 0.01
    with pytest.raises(TraceError, match="all tokens of the trace are recent"):
        paper_selection.costs(two_kinds(), 0, ReSVParams(recent=100), load("core").core.dre)
    with pytest.raises(TraceError, match="no queries of any frame"):
        list(paper_selection.scored(two_kinds(queries=2), 0, ReSVParams()))


# Fig. 20


def test_shares_are_of_what_is_offloaded():
    """Of 10 and 20 earlier tokens 4 are resident; 3 and 8 of the others are fetched in one layer, none in the next."""
    nan = np.full(2, np.nan)
    records = [
        Record(i, "frame", start, start + 2, 2, np.array([[4.0 + n], [4.0]]), np.array([[float(n)], [0.0]]), nan)
        for i, (start, n) in enumerate(((10, 3), (20, 8)))
    ]
    np.testing.assert_allclose(paper_ratio.shares(records), [[11 / 22], [0]])
    resident = [replace(records[0], start=4, kept=np.full((2, 1), 4.0), fetched=np.zeros((2, 1)))]
    assert not paper_ratio.shares(resident).any()


def test_summaries_spread_over_layers_and_heads():
    def run(own: float) -> dict[str, float]:
        return {"0.0": own, "0.1": 0.3, "1.0": 0.5, "1.1": 0.1, "recall": own}

    first, rekv = paper_ratio.summaries({"resv th_hd=3": [run(0.1), run(0.3)], "rekv": [run(0.7)]})
    assert (first["mean"], first["recall"], first["runs"]) == (pytest.approx(0.275), pytest.approx(0.2), 2)
    assert [first[x] for x in ("least_layer", "most_layer")] == pytest.approx([0.25, 0.3])
    assert [first[x] for x in ("least_head", "most_head")] == pytest.approx([0.1, 0.5])
    assert (first["fewer"], rekv["fewer"]) == (pytest.approx(0.4 / 0.275), 1)


@models
def test_a_case_of_fig_20_gives_the_same_result_again():
    case = paper_ratio.Shares(paper_ratio.Case(tokens=320))
    a, b = (paper_ratio.measure((paper_ratio.VARIANTS[3], case)) for _ in range(2))
    assert a == b
    assert len(a) == 30 * 3 + 1


# Mosaic


def test_mass_of_mosaic_by_definition():
    """Softmax row by row, of the tokens that were on the host before each selection, and of those selected."""
    params = replace(paper_mosaic.BASE, recent=32, ratio=0.3)
    policy = Mosaic(params, shape_of(WORLD))
    select, sums = policy.select, np.zeros(3)

    def watched(step):
        host = policy.store.on_host(step.layer)[0].copy()
        keep = select(step).keep[0]
        mass = np.zeros(step.n)
        for row, token in enumerate(step.rows):
            for head in range(WORLD.heads):
                s = step.k[head // 3, : token + 1].astype(float) @ step.q[row, head].astype(float) / 8
                mass[: token + 1] += np.exp(s - s.max()) / np.exp(s - s.max()).sum()
        got = host & keep
        sums[:] += mass[host].sum(), mass[got].sum(), sum(sorted(mass[host], reverse=True)[: got.sum()])
        return Selected(np.repeat(keep[None], WORLD.kv_heads, 0))

    policy.select = watched
    run = TraceRun(policy, WORLD)
    for block in blocks(WORLD):
        run.step(WORLD, block)
    found = paper_mosaic.measure(WORLD, params)
    assert found["mass"] == pytest.approx(sums[1] / sums[0], rel=1e-5)  # FP32 weights
    assert found["best"] == pytest.approx(sums[1] / sums[2], rel=1e-5)
    assert found["retrieved"] >= 0.3


def test_decisions_of_mosaic_beside_exact_ones():
    """Float is exact up to its rounding; hardware differs in few decisions, and the run has all kinds of them."""
    params = replace(paper_mosaic.BASE, recent=32, ratio=0.3)
    exact, hardware = (
        paper_mosaic_hardware.measure(WORLD, replace(params, arithmetic=how)) for how in ("float", "hardware")
    )
    assert exact["tokens"] > 300 < hardware["tokens"]
    assert (exact["angle"], exact["verdict"], exact["jaccard"]) == (0, 0, 1)
    assert 0 <= hardware["distance"] < 0.02
    assert 0 <= hardware["verdict"] < 0.05
    assert 0.8 < hardware["jaccard"] <= 1
    assert hardware["splits"] > 20


def test_mosaic_that_retrieves_all_or_has_nothing_to():
    whole = paper_mosaic.measure(WORLD, replace(paper_mosaic.BASE, recent=32, ratio=1.0))
    assert [whole[x] for x in ("retrieved", "mass", "best")] == pytest.approx([1, 1, 1])
    assert whole["error"] == 0
    none = paper_mosaic.measure(WORLD, replace(paper_mosaic.BASE, recent=400))
    assert (none["retrieved"], none["mass"], none["error"]) == (None, None, 0)


def test_entries_one_by_one_come_closest_to_the_best():
    """On real keys, single entries by the mean query hold more of the best mass than whole visual clusters."""
    small = {name: replace(p, recent=32) for name, (p, _) in paper_mosaic.METHODS.items()}
    found = {name: paper_mosaic.measure(WORLD, p) for name, p in small.items()}
    assert found["no clusters"]["best"] > found["visual level alone"]["best"]
    assert found["no clusters"]["clusters"] == 28 * 10
    assert found["both, no deferred split"]["deferred"] == 0
    assert found["both levels"] == paper_mosaic.measure(WORLD, small["both levels"])


# CodecSight


@pytest.mark.parametrize(("gop", "w", "s"), [(4, 12, 4), (4, 12, 3), (8, 12, 5), (4, 12, 12), (1, 6, 2)])
def test_work_is_what_the_prefill_computes(gop, w, s):
    """Frames of six tokens in a small decoder: the same frames are computed, and as many tokens."""
    n = 30
    seen = codecsight_samples.visuals(n, gop)
    frames = [paper_codecsight.Pruned(v.anchor, len(v.cells) / 6) for v in seen]
    found = paper_codecsight.work(frames, w, s)
    shown = (codecsight_samples.shown(i, gop, 0) for i in range(n))
    old, computed, every, refreshed, windows = None, 0, 0, 0, 0
    for window in paper_codecsight.whole(shown, w, s):
        own = [seen[f.index] for f in window.frames]
        tokens = Tokens.of(codecsight_samples.PROMPT, own, codecsight_samples.QUERY)
        got = prefill(codecsight_samples.MODEL, tokens, Anchors(), old)
        if old is not None:
            done = got.computed[0] & (tokens.frame >= 0)
            before = set(old.tokens.frame.tolist())
            computed += int(done.sum())
            every += 6 * len(own)
            refreshed += len({f for f in tokens.frame[done].tolist() if f in before})
            windows += 1
        old = got
    assert windows >= 1
    assert found["computed"] == pytest.approx(computed / every)
    assert found["refreshed"] == pytest.approx(refreshed / windows)
    assert found["pruned"] == pytest.approx(1 - np.mean([len(v.cells) / 6 for v in seen]))
    assert paper_codecsight.work(frames[:w], w, s)["computed"] is None


@models
def test_the_choice_is_in_every_sweep_once():
    rows = paper_codecsight.counts("globe", video.locate("globe"), 100)
    assert len(rows) == sum(map(len, paper_codecsight.SWEEPS.values()))
    chosen = [r for r in rows if (r["varied"], r["value"]) in (("stride", "0.2"), ("tau", "0.25"), ("gop", "16"))]
    assert [r["relative"] for r in chosen] == [1, 1, 1]
    pruned = [r["pruned"] for r in rows if r["varied"] == "tau"]
    assert pruned == sorted(pruned)
    with pytest.raises(ValueError, match="has 20 frames; a clip of more than 80 is needed"):
        paper_codecsight.counts("globe", video.locate("globe"), 20)


@models
def test_without_pruning_and_overlap_there_is_no_error(monkeypatch):
    for name, value in {"TAU": -1.0, "GOP": 4, "STRIDE": 1.0, "SHORT": 4, "DEPTH": 2}.items():
        monkeypatch.setattr(paper_codecsight, name, value)
    monkeypatch.setattr(paper_codecsight, "SWEEPS", {"stride": (0.5, 1.0), "tau": (5.0,), "gop": (4,)})
    steps = []
    found = paper_codecsight.query_errors(video.locate("bikes"), lambda: steps.append(1))
    rounding = 576 * 2**-24  # FP32 sums of the decoder's width, in another order
    assert found[-1.0, 4, 1.0] < rounding
    assert found[5.0, 4, 1.0] > 8 * rounding  # pruned tokens are missing
    assert found[-1.0, 4, 0.5] > 8 * rounding  # the second layer of reused tokens saw another past
    assert len(steps) == 1


# The command


def test_command_writes_tables_and_plots(tmp_path):
    line = ("7a", "7b", "visited", "19", "mosaic", "-o", str(tmp_path))
    first = vrex("papers", "figure", *line, "--json")
    assert tried("papers", "figure", *line, "--json").stdout == first.stdout
    out = json.loads(first.stdout)
    assert list(out) == ["7a", "7b", "visited", "19", "mosaic"]
    for name, content in out.items():
        assert json.loads((tmp_path / f"{name}.json").read_text()) == content
        assert (tmp_path / f"{name}.svg").read_text().startswith("<?xml")
    shown = tried("papers", "figure", *line).stdout
    assert "Paper: a correlation of 0.8" in shown
    assert "V-Rex Fig. 19: with and without clusters" in shown


def test_a_missing_model_is_named_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("openvrex.papers.commands.figure_command.MODEL", ("llm-none", "x.gguf"))
    run = tried("papers", "figure", "20", "-o", str(tmp_path / "x"))
    assert (run.exit_code, run.stderr) == (2, "error: package llm-none is not installed: run 'make models'\n")
    assert not (tmp_path / "x").exists()


def test_codecsight_is_drawn_and_its_plot_has_the_papers_values(monkeypatch):
    """Counts of made-up frames stand for a clip's."""
    rows = [{"varied": n, "value": f"{v:g}"} for n, values in paper_codecsight.SWEEPS.items() for v in values]
    full = [r | {"clip": "a", "pruned": 0.5, "computed": 0.2, "relative": 1.0, "refreshed": 4.0} for r in rows]
    full = [r | {"error": None, "paper": None} for r in full]
    monkeypatch.setattr(paper_codecsight, "counts", lambda *_: [dict(r) for r in full])
    monkeypatch.setattr(paper_codecsight, "query_errors", lambda *_: dict.fromkeys(map(_of, rows), 0.25))
    drawn = paper_codecsight.draw({"a": FIXTURE}, 100, True, Progress(disable=True))
    assert [r["error"] for r in drawn.rows] == [0.25] * len(rows)
    assert len(drawn.plot(drawn.rows).axes) == 3


def _of(row: dict) -> tuple[float, int, float]:
    return paper_codecsight.setting(row["varied"], float(row["value"]))


# Fig. 5


def test_patches_that_stand_still_by_counting():
    """Three GOPs of pictures of 4 x 4 blocks: I-frames do not count, and a moved block is one patch of a frame."""
    blocks = np.zeros(1024, BLOCK)
    blocks["x"], blocks["y"] = 16 * (np.arange(1024) % 32), 16 * (np.arange(1024) // 32)
    blocks["w"] = blocks["h"] = 16
    frames = []
    for gop, moved in ((0, (0, 512)), (1, (256,)), (2, (1024,))):
        frames.append(Recorded("I", gop, (512, 512), (np.zeros(0, BLOCK),)))
        for n in moved:
            own = blocks.copy()
            own["dx"][:n] = 2  # half a pixel
            frames.append(Recorded("P", gop, (512, 512), (own,)))
    found = paper_motion.still(frames)
    assert found["frames"] == 4
    shares = sorted([1.0, 0.5, 0.75, 0.0])
    assert [found[x] for x in paper_motion.QUARTERS] == pytest.approx(np.percentile(shares, [25, 50, 75]))
    assert paper_motion.still(frames[:1])["median"] is None
    row = {"clip": "a", **found, "paper": ""}
    assert paper_motion.plot([row]).axes[0].get_yticklabels()[0].get_text() == "a"


# Figs. 10 and 12 of Mosaic


def test_even_frames_are_evenly_spaced():
    """Of the frames that are on the host, half: the oldest, and then every other one or its neighbour."""
    chosen: list[np.ndarray] = []

    class Look(TraceRun):
        def look(self, step, selected):
            host = self.policy.store.on_host(step.layer)[0]
            old = np.add.reduceat(host, self.policy.starts) > 0
            got = np.add.reduceat(host & selected.keep[0], self.policy.starts) > 0
            chosen.append(got[old])

    trace = two_kinds()
    run = Look(paper_budgets.EvenFrames(ReKVParams(0.5, 0.5, 6), shape_of(trace)), trace)
    for block in blocks(trace):
        run.step(trace, block)
    longest = max(chosen, key=len)
    assert len(longest) >= 6
    at = np.flatnonzero(longest)
    assert (at[0], len(at)) == (0, -(-len(longest) // 2))
    assert set(np.diff(at).tolist()) <= {1, 2}
    assert np.diff(at).sum() >= len(longest) - 3


def test_budgets_and_lengths_of_a_trace(monkeypatch):
    """A row for each method; a trace at the choice is the same in both figures; more budget is more mass."""
    monkeypatch.setattr(paper_budgets, "BUDGETS", (0.1, 1.0))
    monkeypatch.setattr(paper_budgets, "BASE", replace(paper_mosaic.BASE, recent=32))
    first, second = (f({"world": WORLD}) for f in (paper_budgets.budgets, paper_budgets.lengths))
    by = {(r["method"], r["budget"]): r for r in first.rows}
    assert set(by) == {(m, b) for m in paper_budgets.METHODS for b in (0.1, 1.0)}
    for method in paper_budgets.METHODS:
        assert by[method, 0.1]["mass"] < by[method, 1.0]["mass"] == pytest.approx(1)
        assert by[method, 0.1]["best"] <= 1
    assert second.rows == [r for r in first.rows if r["budget"] == paper_budgets.CHOICE]
    assert {r["frames"] for r in second.rows} == {28}
    for drawn, key in ((first, "budget (%)"), (second, "frames")):
        assert drawn.plot(drawn.rows).axes[0].get_xlabel() == key


# Transmission


def test_bytes_of_pictures_and_of_a_stream(tmp_path):
    """A moving texture: sizes of the files themselves, and the coarsest picture that is as good as the stream."""
    path = video_samples.write(tmp_path / "a.mkv", video_samples.texture(6))
    row = paper_transmission.measured(path, 5, 25.0)
    again = tmp_path / "again.h264"
    assert video.reencode(path, again, 16, 5, 25.0) == row["frames"] == 5
    sent, came = (list(video.planes(p, 5)) for p in (path, again))
    assert row["stream"] == pytest.approx(again.stat().st_size / 5e3)
    assert row["raw"] == pytest.approx(sum(x.size for f in sent for x in f) / again.stat().st_size)
    error = np.mean([(a[0].astype(float) - b[0]) ** 2 for a, b in zip(sent, came, strict=True)])
    assert row["psnr"] == pytest.approx(10 * np.log10(255**2 / error))
    found = {q: paper_transmission.jpeg(sent, q) for q in paper_transmission.QUANTISERS}
    good = [q for q, (_, quality) in found.items() if quality >= row["psnr"]] or [2]
    assert row["quantiser"] == str(max(good))
    assert row["jpeg"] == pytest.approx(found[max(good)][0] / 5e3)
    assert row["ratio"] == pytest.approx(row["jpeg"] / row["stream"])
    assert row["seconds"] == pytest.approx(80 * row["stream"] * 8e3 / 5e6)
    sizes, qualities = zip(*found.values(), strict=True)
    assert list(sizes) == sorted(sizes, reverse=True)
    assert list(qualities) == sorted(qualities, reverse=True)
    axes = paper_transmission.plot([{"clip": "a"} | row]).axes[0]
    assert axes.patches[0].get_height() == row["ratio"]


# The page


def lines(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def shown(columns: dict[str, Column], rows: list[dict]) -> str:
    drawn = Drawn("", "", columns, rows, "", lambda _: None)
    return lines([c.head for c in columns.values()], [drawn.cells(r) for r in rows])


def sweeps(rows: list[dict]) -> str:
    """CodecSight's rows, with the clips side by side."""
    columns = paper_codecsight.COLUMNS
    clips = list(dict.fromkeys(r["clip"] for r in rows))
    out = []
    for varied, value in dict.fromkeys((r["varied"], r["value"]) for r in rows):
        own = {r["clip"]: r for r in rows if (r["varied"], r["value"]) == (varied, value)}
        cells = [", ".join(columns[x].cell(own[c][x]) for x in ("pruned", "computed", "relative")) for c in clips]
        first = own[clips[0]]
        ends = [columns[x].cell(first[x]) for x in ("refreshed", "error")]
        out.append([varied, value, *cells, *ends, first["paper"] or "-"])
    ends = ["I-frames refreshed", "error at the query", "paper: latency, F1"]
    return lines(["varied", "value", *(f"{c}: pruned %, computed %, x" for c in clips), *ends], out)


def recalled(rows: list[dict]) -> str:
    """Summaries of `vrex papers recall` on Mosaic's levels."""
    out = []
    for r in rows:
        levels = [word.partition("=")[2] for word in r["variant"].split()[1:]]
        cells = [f"{100 * r[x]:.0f}" for x in ("recall", "low", "high")]
        out.append([*levels, *cells, f"{r['text_loss']:.3f}", *(f"{100 * r[x]:.1f}" for x in ("frames", "answers"))])
    head = ["visual level", "semantic level", "recalled, %", "from, %", "to, %", "loss of the text, nats"]
    return lines([*head, "fetched by a block, %", "by a token of the answer, %"], out)


TABLES = {
    "7a": lambda rows: shown(paper_keys.ALIKE, rows),
    "7b": lambda rows: shown(paper_keys.FOLLOWS, rows),
    "visited": lambda rows: shown(paper_selection.VISITED, rows),
    "19": lambda rows: shown(paper_selection.CLUSTERING, rows),
    "20": lambda rows: shown(paper_ratio.COLUMNS, rows),
    "mosaic": lambda rows: shown(paper_mosaic.COLUMNS, rows),
    "mosaic-budgets": lambda rows: shown(paper_budgets.COLUMNS, rows),
    "mosaic-lengths": lambda rows: shown(paper_budgets.COLUMNS, rows),
    "mosaic-hardware": lambda rows: shown(paper_mosaic_hardware.COLUMNS, rows),
    "codecsight": sweeps,
    "codecsight-motion": lambda rows: shown(paper_motion.COLUMNS, rows),
    "transmission": lambda rows: shown(paper_transmission.COLUMNS, rows),
    "recall": recalled,
}


def test_every_figure_is_recorded():
    assert set(RECORD) == set(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_the_page_shows_what_was_recorded(name):
    """`docs/papers/figures.md` has the recorded commands, and the tables made of their figures."""
    assert all(f"\n{line}\n" in PAGE for line in RECORD[name]["commands"])
    want = TABLES[name](RECORD[name]["rows"])
    assert f"\n{want}\n" in PAGE, f"docs/papers/figures.md must have this table:\n{want}"
