"""`vrex dev speed`: each golden policy and its plain PyTorch twin choose and answer alike, so times compare."""

import json
from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.inputs.trace import Trace
from openvrex.golden.inputs.trace_model import frequencies
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.light_attention import Selected, attention
from openvrex.golden.policies.registry import override
from openvrex.papers.policies.registry import POLICIES
from openvrex.scripts.check.verify_command import FIXTURE
from openvrex.scripts.engineers.speed_command import NAMES, Pair, recorded_frames, synthetic
from tb.tests.commands import vrex

torch = pytest.importorskip("torch", reason="the extra hf: make hf")

SHAPE = Shape(1, 4, 2, 16, (frequencies(100.0, 16),))
FRAMES, TOKENS = 30, 9
SMALL = {  # parameters under which a policy must give something up on 270 tokens
    "infinigen": {"calibrate": "32"},
    "infinigenp": {"calibrate": "32"},
    "rekv": {"recent": "32"},
    "streamingllm": {"recent": "32"},
    "codecsight": {"window": "14", "stride": "4"},
    "mosaic": {"recent": "32"},
    "hybrid": {"recent_blocks": "4"},
    "signatures": {"recent": "32", "page": "16"},
    "resv": {"resv.recent": "32"},
}
# Outputs are means of values under weights that sum to 1, in FP32: relative errors add up over 270 tokens and 16
# products, each 2^-24. Another choice of a single token shows as 1e-3 and more.
ROUNDING = 300 * 2.0**-24


def pair(name: str, seed: int = 1, **changes: str) -> Pair:
    found = POLICIES[name]
    found = replace(found, params=override(found.params, SMALL.get(name, {}) | changes))
    return Pair(name, found, SHAPE, synthetic(SHAPE, TOKENS, seed))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "resv"])
def test_both_sides_answer_alike(name):
    both = pair(name)
    for _ in range(FRAMES):
        golden, twin = both.step(True)
        assert golden.shape == twin.shape
        assert np.linalg.norm(golden - twin) <= ROUNDING * np.linalg.norm(golden)
    if name not in ("full", "flexgen", "infinigen", "oaken"):
        assert np.linalg.norm(golden[-TOKENS:] - everything(both)) > 1e-3 * np.linalg.norm(golden)


def everything(both: Pair) -> np.ndarray:
    """Full attention of the last frame, over the keys that the pair has seen."""
    k, v = both.golden.history.k, both.golden.history.v
    return attention(both.q, k, v, both.block.tokens, Selected(np.ones(k.shape[:2], bool)))[0]


@pytest.mark.parametrize("name", ["mosaic", "infinigenp", "rekv"])
def test_both_sides_choose_alike_when_most_frames_do_not_ask(name):
    """As while `vrex dev speed` fills the cache."""
    both = pair(name, seed=2)
    for i in range(FRAMES):
        both.step(i < 8 or i % 4 == 0, attend=False)
    golden, twin = both.step(True)
    assert np.linalg.norm(golden - twin) <= ROUNDING * np.linalg.norm(golden)


@pytest.mark.parametrize(("scope", "centre"), [("head", "true"), ("layer", "true"), ("layer", "false")])
def test_resv_rows_differ_only_where_a_score_code_is_rounded(scope, centre):
    """A code has 8 significant bits and its exponent steps of 1/256: together under 2^-8 + 2^-9 of a weight."""
    both = pair("resv", seed=3, **{"resv.centre": centre, "resv.scope": scope})
    loose = 2 * (2.0**-8 + 2.0**-9)
    ratio = both.golden.policy.params.resv.ratio_q16 / 65536
    heads = {"head": 1, "layer": 2}[scope]  # KV heads of a table
    rows = differ = 0
    for _ in range(FRAMES):
        golden, twin = both.step(True)
        resv = both.golden.policy.layers[0]
        got = resv.retrieve(both.q.astype("bfloat16"))
        with torch.inference_mode():
            its = [mask.numpy() for mask in both.twin.rows(torch.from_numpy(both.q))]
        assert len(its) == len(resv.tables) == 2 // heads
        mine = [r.mask.reshape(TOKENS, heads, 2, -1).swapaxes(0, 1).reshape(heads, 2 * TOKENS, -1) for r in got.rows]
        if all((a == b).all() for a, b in zip(mine, its, strict=True)):
            assert np.linalg.norm(golden - twin) <= ROUNDING * np.linalg.norm(golden)
        queries = both.q.reshape(TOKENS, 2, 2, -1).swapaxes(0, 1).reshape(2, 2 * TOKENS, -1).astype(float)
        for t, table in enumerate(resv.tables):
            key = table.key_cluster().astype(float).reshape(len(table), heads, -1)
            for h, r in np.ndindex(mine[t].shape[:2]):
                rows += 1
                if (mine[t][h, r] == its[t][h, r]).all():
                    continue
                differ += 1
                s = key[:, h] @ queries[t * heads + h, r] / 4
                score = np.exp(s - s.max())
                order = np.argsort(-score, kind="stable")
                acc = np.cumsum((score * table.counts)[order])
                at = int((acc <= ratio * acc[-1]).sum())
                open_cut = np.abs(acc / acc[-1] - ratio).min() <= loose
                tied = np.abs(score[mine[t][h, r] != its[t][h, r]] / score[order[at]] - 1).max() <= loose
                assert open_cut or tied
    assert rows == FRAMES * TOKENS * 4
    assert differ < 0.05 * rows


def test_synthetic_stream_is_seeded_and_holds_bf16_values():
    first, again = (next(synthetic(SHAPE, TOKENS, 7)) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
        assert not (a.view(np.uint32) & 0xFFFF).any()
    assert [a.shape for a in first] == [(9, 4, 16), (9, 2, 16), (9, 2, 16)]


def test_command_times_both_sides_at_every_size():
    small = ("--tokens", "9", "--heads", "4,2,16", "--cache", "180,90", "--repeat", "1", "--json")
    result = vrex("dev", "speed", "--policy", "full,codecsight", *small)
    rows = json.loads(result.stdout)
    assert [(r["policy"], r["cache"]) for r in rows] == [(p, n) for p in ("full", "codecsight") for n in (90, 180)]
    for r in rows:
        assert r["ratio"] == pytest.approx(r["golden"] / r["torch"])
        assert min(r["golden"], r["torch"]) > 0


def test_command_takes_a_trace():
    result = vrex(
        "dev", "speed", "--policy", "streamingllm", "--trace", str(FIXTURE), "--cache", "400", "--repeat", "1"
    )
    assert "streamingllm" in result.stdout


def test_recorded_frames_go_round():
    trace = Trace.load(FIXTURE)
    frames = recorded_frames(trace)
    seen = [next(frames)[1] for _ in range(2 * len(trace.spans("frame")) + 1)]
    np.testing.assert_array_equal(seen[0], seen[len(trace.spans("frame"))])
