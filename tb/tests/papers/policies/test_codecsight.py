"""CodecSight, section 3: the pruner against pixels and real motion, the encoder and the prefill against plain versions.

Motion of real clips: `tb/fixtures/*_motion.npz` (docs/data.md).
"""

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs import video, vision
from openvrex.golden.inputs.codec import (
    BLOCK,
    RULES,
    PruneParams,
    Pruner,
    Recorded,
    block_sads,
    group_complete,
    load_motion,
    motion_map,
    patches_of,
    residual_map,
    save_motion,
)
from openvrex.golden.inputs.frames import Frame
from openvrex.golden.inputs.trace import Trace
from openvrex.golden.policies.blocks import Block
from openvrex.golden.policies.codecsight_policy import CodecSightParams, CodecSightPolicy
from openvrex.golden.policies.light_attention import bf16, turn_keys
from openvrex.golden.policies.policy_run import DecoderRun, TraceRun, blocks, decoder_shape, shape_of
from openvrex.papers.policies.codecsight_encoder import (
    SYSTEMS,
    Anchors,
    CacheBlend,
    Counts,
    FullReuse,
    Reuse,
    Server,
    Tokens,
    Vision,
    Visual,
    VLCache,
    attend,
    overlap,
    prefill,
)
from tb.tests.commands import refuses, tried, vrex
from tb.tests.golden.inputs.video_samples import texture, write
from tb.tests.papers.policies.codecsight_samples import (
    MODEL,
    NONE,
    PROMPT,
    QUERY,
    STILL,
    Small,
    picture,
    shown,
    text,
    visuals,
)

FIXTURES = Path(__file__).parents[3] / "fixtures"
CLIPS = ("world", "bikes")


def tiling(rng: np.random.Generator, h: int, w: int, share: float = 0.8, reach: int = 6) -> np.ndarray:
    """Blocks of H.264's sizes that tile a picture of whole macroblocks; some left out, as intra blocks are."""
    out = []
    for y in range(0, h, 16):
        for x in range(0, w, 16):
            bh, bw = rng.choice([(16, 16), (8, 16), (16, 8), (8, 8), (4, 8), (4, 4)])
            for j in range(0, 16, bh):
                for i in range(0, 16, bw):
                    if rng.random() < share:
                        dx, dy = rng.integers(-reach, reach + 1, 2) * (rng.random() < 0.6)
                        out.append((x + i, y + j, bw, bh, dx, dy, rng.integers(0, 5000)))
    return np.array(out, BLOCK)


def pixels(blocks: np.ndarray, h: int, w: int) -> tuple[np.ndarray, np.ndarray]:
    """Motion in pixels, infinite where no block is, and residual density of every pixel."""
    motion, residual = np.full((h, w), np.inf), np.zeros((h, w))
    for b in blocks:
        at = slice(b["y"], b["y"] + b["h"]), slice(b["x"], b["x"] + b["w"])
        motion[at] = math.hypot(b["dx"] / 4, b["dy"] / 4)
        residual[at] = b["sad"] / (int(b["w"]) * int(b["h"]))
    return motion, residual


def coded(gop: int, blocks: np.ndarray, size=(64, 64), kind: str = "P") -> Recorded:
    return Recorded(kind, gop, size, (blocks,))


# Motion analysis: Equations 1 to 3


def test_equation_1_motion_is_the_length_of_the_vector_in_pixels():
    blocks = np.array([(0, 0, 16, 16, 12, -16, 0)], BLOCK)
    for rule in RULES:
        assert motion_map(blocks, (16, 16), 2, rule).tolist() == [[5, 5], [5, 5]]


@given(seed=st.integers(0, 10**6), grid=st.integers(1, 9), rule=st.sampled_from(RULES))
@settings(max_examples=60)
def test_equation_3_blocks_are_resampled_to_patches(seed, grid, rule):
    """Against a picture of pixels, blown up so that patches end between its pixels."""
    rng = np.random.default_rng(seed)
    h, w = 32, 48
    blocks = tiling(rng, h, w)
    motion, residual = (a.repeat(grid, 0).repeat(grid, 1) for a in pixels(blocks, h, w))
    patches = motion.reshape(grid, h, grid, w)
    expected = {
        "mean": patches.mean((1, 3)),
        "max": patches.max((1, 3)),
        "centre": patches[:, h // 2, :, w // 2],
    }[rule]
    np.testing.assert_allclose(motion_map(blocks, (h, w), grid, rule), expected, rtol=1e-12)
    sums = residual.reshape(grid, h, grid, w).sum((1, 3)) / grid**2
    np.testing.assert_allclose(residual_map(blocks, (h, w), grid), sums, rtol=1e-9)


def test_resampling_keeps_the_sum_of_residuals():
    blocks = tiling(np.random.default_rng(1), 64, 64)
    assert residual_map(blocks, (64, 64), 7).sum() == pytest.approx(blocks["sad"].sum())


@pytest.mark.parametrize("rule", RULES)
def test_intra_blocks_are_dynamic_whatever_the_threshold(rule):
    blocks = np.array([(16, 0, 16, 16, 0, 0, 0)], BLOCK)  # the other half of the picture has no vector
    params = PruneParams(grid=2, group=1, tau=1e9, rule=rule)
    pruner = Pruner(params)
    pruner(coded(0, NONE, (16, 32), "I"))
    assert pruner(coded(0, blocks, (16, 32))).tolist() == [[True, False], [True, False]]


@pytest.mark.parametrize("rule", RULES)
def test_of_two_vectors_of_a_block_the_longer_counts(rule):
    blocks = np.array([(0, 0, 16, 16, 4, 0, 0), (0, 0, 16, 16, -8, 0, 0), (0, 0, 16, 16, 2, 0, 0)], BLOCK)
    assert motion_map(blocks, (16, 16), 1, rule).item() == 2


def test_blocks_may_reach_over_the_edge_of_the_picture():
    blocks = np.array([(0, 0, 16, 16, 4, 0, 256), (16, 0, 16, 16, 8, 0, 256)], BLOCK)  # 1080 is no multiple of 16
    assert motion_map(blocks, (10, 20), 1, "mean").item() == pytest.approx(0.8 * 1 + 0.2 * 2)
    assert motion_map(NONE, (10, 20), 2).tolist() == [[np.inf] * 2] * 2


@given(st.integers(-40, 40), st.integers(-40, 40), st.integers(0, 40))
@settings(max_examples=300)
def test_equation_4_in_quarter_pixels_is_a_comparison_of_integers(dx, dy, quarters):
    blocks = np.array([(0, 0, 16, 16, dx, dy, 0)], BLOCK)
    for rule in ("centre", "max"):
        pruner = Pruner(PruneParams(grid=2, group=1, tau=quarters / 4, rule=rule))
        pruner(coded(0, NONE, (16, 16), "I"))
        assert pruner(coded(0, blocks, (16, 16))).all() == (dx * dx + dy * dy > quarters**2)


def test_equation_3_adds_the_residual_with_weight_alpha():
    blocks = np.array([(0, 0, 16, 16, 1, 0, 1000), (16, 0, 16, 16, 1, 0, 10)], BLOCK)
    for alpha, expected in ((0, [False, False]), (1e-4, [True, False]), (1, [True, True])):
        pruner = Pruner(PruneParams(grid=2, group=1, tau=0.27, alpha=alpha))
        pruner(coded(0, NONE, (16, 32), "I"))
        assert pruner(coded(0, blocks, (16, 32)))[0].tolist() == expected


def test_equation_2_sums_absolute_differences_against_the_prediction():
    """Whole-pixel vectors: the prediction is the reference moved, its edge repeated outside."""
    rng = np.random.default_rng(4)
    reference, luma = (rng.integers(0, 256, (48, 64)).astype(np.uint8) for _ in range(2))
    blocks = tiling(rng, 48, 64)
    for name in ("dx", "dy"):
        blocks[name] *= 4
    far = np.pad(reference, 40, mode="edge").astype(int)
    for block, sad in zip(blocks, block_sads(blocks, luma, reference), strict=True):
        x, y, w, h, dx, dy = (int(block[n]) for n in ("x", "y", "w", "h", "dx", "dy"))
        prediction = far[40 + y + dy // 4 :, 40 + x + dx // 4 :][:h, :w]
        assert sad == np.abs(luma[y : y + h, x : x + w].astype(int) - prediction).sum()
    assert len(block_sads(NONE, luma, reference)) == 0


def test_equation_2_predicts_between_pixels_as_h264_does():
    """8.4.2.2.1 of the standard, sample by sample: against a black picture the sum is the prediction's."""
    rng = np.random.default_rng(11)

    def taps(six):
        return sum(a * b for a, b in zip((1, -5, 20, 20, -5, 1), six, strict=True))

    def clip(x):
        return min(max(x, 0), 255)

    def half(y, x, down, right):
        """The sample half a pixel down and half a pixel right of (y, x), where asked for."""
        if not down and not right:
            return far[y][x]
        if not down:
            return clip((taps(far[y][x - 2 : x + 4]) + 16) >> 5)
        column = [taps(far[y + j][x - 2 : x + 4]) if right else far[y + j][x] for j in range(-2, 4)]
        return clip((taps(column) + (512 if right else 16)) >> (10 if right else 5))

    def sample(y, x, fy, fx):
        if fy % 2 and fx % 2:  # the mean of the half samples above or below, left or right
            a = half(y + (fy == 3), x, False, True), half(y, x + (fx == 3), True, False)
        elif fy % 2:
            a = half(y, x, False, fx == 2), half(y, x, True, fx == 2)
            a = (half(y + 1, x, False, fx == 2), a[1]) if fy == 3 else a
        elif fx % 2:
            a = half(y, x, fy == 2, False), half(y, x, fy == 2, True)
            a = (half(y, x + 1, fy == 2, False), a[1]) if fx == 3 else a
        else:
            return half(y, x, fy == 2, fx == 2)
        return (a[0] + a[1] + 1) >> 1

    for dy in range(-5, 11):
        for dx in range(-5, 11):
            reference = rng.integers(0, 256, (32, 48)).astype(np.uint8)
            far = np.pad(reference, 16, mode="edge").astype(int).tolist()
            blocks = np.array([(16, 8, 8, 8, dx, dy, 0), (0, 0, 4, 4, dx, dy, 0)], BLOCK)
            got = block_sads(blocks, np.zeros_like(reference), reference)
            for b, sad in zip(blocks, got, strict=True):
                at = [
                    (16 + b["y"] + j + (dy >> 2), 16 + b["x"] + i + (dx >> 2))
                    for j in range(b["h"])
                    for i in range(b["w"])
                ]
                assert sad == sum(sample(y, x, dy & 3, dx & 3) for y, x in at)


# Token pruning: Equation 4, accumulation, groups


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("clip", CLIPS)
def test_masks_of_real_motion(clip, rule):
    """I-frames whole, group-complete masks, accumulation inside a GOP, monotone in tau."""
    frames = load_motion(FIXTURES / f"{clip}_motion.npz")
    taus = (-1, 0, 0.25, 1, 5)
    pruners = [Pruner(PruneParams(grid=32, tau=tau, rule=rule)) for tau in taus]
    alone = Pruner(PruneParams(grid=32, rule=rule, accumulate=False))
    fine = Pruner(PruneParams(grid=32, group=1, rule=rule))
    union = None
    for frame in frames:
        masks = [p(frame) for p in pruners]
        assert masks[0].all()
        for more, less in zip(masks, masks[1:], strict=False):
            assert (more >= less).all()
        now, patches = alone(frame), fine(frame)
        assert (masks[2] == group_complete(patches, 2)).all()
        if frame.kind == "I":
            assert all(m.all() for m in masks)
            union = np.zeros((16, 16), bool)
        else:
            union = union | now
            assert (masks[2] == union).all()
            assert union.any()


@pytest.mark.parametrize(("clip", "kept"), [("world", 3416), ("bikes", 8006)])
def test_tokens_kept_of_real_clips(clip, kept):
    """33 frames of 256 tokens at GOP 16 and tau 0.25."""
    frames = load_motion(FIXTURES / f"{clip}_motion.npz")
    assert "".join(f.kind for f in frames) == "I" + "P" * 15 + "I" + "P" * 15 + "I"
    pruner = Pruner(PruneParams(grid=32))
    assert sum(int(pruner(f).sum()) for f in frames) == kept


@given(seed=st.integers(0, 10**6), group=st.sampled_from([1, 2, 4]))
@settings(max_examples=40)
def test_groups_are_complete(seed, group):
    mask = np.random.default_rng(seed).random((8, 8)) < 0.1
    tokens = group_complete(mask, group)
    patches = patches_of(tokens, group)
    for r in range(8):
        for c in range(8):
            block = mask[r // group * group :, c // group * group :][:group, :group]
            assert patches[r, c] == tokens[r // group, c // group] == block.any()


def test_what_cannot_be_judged_is_whole():
    """The first frame whatever its type, one of another size, and what follows a frame without vectors in its GOP."""
    small = np.array([(x, y, 16, 16, 0, 0, 0) for y in range(0, 48, 16) for x in range(0, 48, 16)], BLOCK)
    steps = [
        (coded(3, STILL), True),  # the stream starts on a P-frame
        (coded(3, STILL), False),
        (coded(3, small, (48, 48)), True),  # the resolution changes without an I-frame
        (coded(3, small, (48, 48)), False),
        (coded(3, NONE, (48, 48)), True),  # no vectors
        (coded(3, small, (48, 48)), True),
        (coded(4, NONE, (48, 48), "I"), True),
        (coded(4, small, (48, 48)), False),
    ]
    pruner = Pruner()
    for i, (frame, whole) in enumerate(steps):
        mask = pruner(frame)
        assert mask.all() if whole else not mask.any(), i


def test_a_sampled_frame_has_the_motion_of_those_left_out():
    corner = STILL.copy()
    corner["dx"][0] = 9
    pruner = Pruner(PruneParams(accumulate=False))
    pruner(coded(0, NONE, kind="I"))
    mask = pruner(Recorded("P", 0, (64, 64), (corner, STILL)))
    assert mask[:2, :2].all()
    assert mask.sum() == 4
    assert not pruner(coded(0, STILL)).any()


def test_codecs_without_vectors_prune_nothing_and_intra_only_ones_neither(tmp_path):
    for codec in ("mjpeg", "libvpx-vp9"):
        path = write(tmp_path / f"{codec}.mkv", texture(5, step=0), codec=codec)
        pruner = Pruner()
        assert all(pruner(f).all() for f in video.read(path))
    path = write(tmp_path / "still.mkv", texture(5, step=0))
    pruner = Pruner()
    assert [bool(pruner(f).any()) for f in video.read(path)] == [True] + [False] * 4


def test_a_resolution_change_in_a_real_stream_is_whole(tmp_path):
    parts = [write(tmp_path / f"{s}.h264", texture(4, step=0, size=s)) for s in (64, 96)]
    (tmp_path / "both.h264").write_bytes(b"".join(p.read_bytes() for p in parts))
    pruner = Pruner()
    assert [bool(pruner(f).all()) for f in video.read(tmp_path / "both.h264")] == [True, *[False] * 3] * 2


def test_a_motion_file_gives_back_what_was_written(tmp_path):
    frames = load_motion(FIXTURES / "world_motion.npz")[:3] + [coded(7, NONE, (8, 12), "B")]
    for name in ("a.npz", "b.npz"):
        assert save_motion(tmp_path / name, frames) == 4
    for a, b in zip(load_motion(tmp_path / "a.npz"), frames, strict=True):
        assert (a.kind, a.gop, a.size) == (b.kind, b.gop, b.size)
        np.testing.assert_array_equal(a.motions[0], b.motions[0])
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert save_motion(tmp_path / "none.npz", []) == 0
    assert load_motion(tmp_path / "none.npz") == []
    assert sum(f.stat().st_size for f in FIXTURES.glob("*_motion.npz")) < 200_000


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"grid": 0}, "grid=0"),
        ({"group": 3}, "group=3: must divide grid = 16"),
        ({"group": 0}, "group=0"),
        ({"tau": float("nan")}, "tau=nan"),
        ({"alpha": -0.1}, "alpha=-0.1"),
        ({"rule": "median"}, "rule='median': must be one of centre, mean, max"),
    ],
)
def test_pruning_parameters_that_cannot_be(changes, why):
    with pytest.raises(ParamError, match=why):
        PruneParams(**changes)


# The encoder on some patches (section 3.3.2)

WIDTH = 12


def small_vit() -> tuple[dict, np.ndarray, np.ndarray]:
    """Weights of two layers, 12 wide."""
    rng = np.random.default_rng(8)
    shapes = {"norm1.weight": WIDTH, "norm1.bias": WIDTH, "norm2.weight": WIDTH, "norm2.bias": WIDTH}
    for name in ("attention.attention.query", "attention.attention.key", "attention.attention.value"):
        shapes |= {f"{name}.weight": (WIDTH, WIDTH), f"{name}.bias": WIDTH}
    shapes |= {"attention.output.dense.weight": (WIDTH, WIDTH), "attention.output.dense.bias": WIDTH}
    shapes |= {"layer_scale1.lambda1": WIDTH, "layer_scale2.lambda1": WIDTH}
    shapes |= {"mlp.fc1.weight": (WIDTH, 20), "mlp.fc1.bias": 20, "mlp.fc2.weight": (20, WIDTH), "mlp.fc2.bias": WIDTH}
    w = {f"backbone.encoder.layer.{i}.{n}": rng.standard_normal(s) for i in range(2) for n, s in shapes.items()}
    w |= {"backbone.embeddings.cls_token": rng.standard_normal((1, 1, WIDTH))}
    w |= {"backbone.embeddings.patch_embeddings.projection.weight": rng.standard_normal((WIDTH, 3, 14, 14)) * 0.05}
    w |= {"backbone.embeddings.patch_embeddings.projection.bias": rng.standard_normal(WIDTH)}
    w |= {f"backbone.layernorm.{n}": rng.standard_normal(WIDTH) for n in ("weight", "bias")}
    w = {k: v.astype(np.float32) for k, v in w.items()}
    return w, rng.standard_normal((37 * 37, WIDTH)).astype(np.float32), np.zeros((1, WIDTH), np.float32)


@pytest.fixture
def encoder(monkeypatch) -> vision.VisionEncoder:
    monkeypatch.setattr(vision.VisionEncoder, "_read", staticmethod(small_vit))
    return vision.VisionEncoder()


def plain_vit(encoder: vision.VisionEncoder, images: list[np.ndarray], seen: np.ndarray) -> np.ndarray:
    """Outputs [257, 12] in float64, head by head. Token t is image images[t]'s; it sees the tokens of `seen` [257]."""
    w, _, _ = small_vit()
    embedded = [np.concatenate([encoder.class_token, encoder.patches(i) + encoder.positions]) for i in images]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = np.stack(embedded).astype(float)  # a copy of the network an image
    erf = np.vectorize(math.erf)
    for i in range(2):
        p = f"backbone.encoder.layer.{i}."
        h = norm(x, f"{p}norm1")
        q, k, v = (
            h @ w[f"{p}attention.attention.{n}.weight"] + w[f"{p}attention.attention.{n}.bias"]
            for n in ("query", "key", "value")
        )
        if len(images) == 2:  # tokens that are not computed keep the first image's K and V
            for a in (k, v):
                a[1, ~seen] = a[0, ~seen]
        mask = np.where(seen if len(images) == 1 else True, 0, -np.inf)
        y = np.zeros_like(x)
        for head in range(6):
            part = slice(2 * head, 2 * head + 2)
            s = q[..., part] @ k[..., part].swapaxes(-1, -2) / math.sqrt(2) + mask
            e = np.exp(s - s.max(-1, keepdims=True))
            y[..., part] = e / e.sum(-1, keepdims=True) @ v[..., part]
        x = (
            x
            + (y @ w[f"{p}attention.output.dense.weight"] + w[f"{p}attention.output.dense.bias"])
            * w[f"{p}layer_scale1.lambda1"]
        )
        h = norm(x, f"{p}norm2") @ w[f"{p}mlp.fc1.weight"] + w[f"{p}mlp.fc1.bias"]
        h = h * 0.5 * (1 + erf(h / math.sqrt(2)))
        x = x + (h @ w[f"{p}mlp.fc2.weight"] + w[f"{p}mlp.fc2.bias"]) * w[f"{p}layer_scale2.lambda1"]
    return norm(x, "backbone.layernorm")


def close(a: np.ndarray, b: np.ndarray, bound: float = 2e-4) -> bool:
    return np.abs(a - b).max() <= bound * np.abs(b).max()


def test_pruned_patches_neither_run_nor_are_seen_and_outputs_return_to_their_place(encoder):
    keep = np.random.default_rng(2).random((16, 16)) < 0.3
    got = encoder(picture(0), keep)
    at = np.concatenate([[True], keep.ravel()])
    assert close(got[at], plain_vit(encoder, [picture(0)], at)[0, at])
    assert (got[~at] == 0).all()
    np.testing.assert_array_equal(encoder(picture(0), np.ones((16, 16), bool)), encoder(picture(0)))


def test_reused_patches_stand_as_they_were(encoder):
    keep = np.random.default_rng(3).random((16, 16)) < 0.4
    first = encoder.reuse(encoder.patches(picture(0)), np.ones((16, 16), bool), None)
    np.testing.assert_array_equal(first.out, encoder(picture(0)))
    got = encoder.reuse(encoder.patches(picture(1)), keep, first)
    at = np.concatenate([[True], keep.ravel()])
    assert close(got.out[at], plain_vit(encoder, [picture(0), picture(1)], at)[1, at])
    for name in ("k", "v", "out"):
        old, new = getattr(first, name), getattr(got, name)
        np.testing.assert_array_equal(new[..., ~at, :], old[..., ~at, :])
    assert (got.out[at] != first.out[at]).any(-1).all()


def test_macs_of_the_encoder(encoder):
    """Of 30 patches: their projection, and per layer QKVO and two MLP matrices for 31 tokens, two products with 31."""
    assert encoder.macs(30, 31) == 30 * 588 * 12 + 2 * (31 * (4 * 12 * 12 + 2 * 12 * 20) + 2 * 31 * 31 * 12)


def identity() -> vision.Projector:
    return vision.Projector(np.zeros(WIDTH, np.float32), np.eye(WIDTH, 16, dtype=np.float32), np.zeros(16, np.float32))


def test_tokens_of_dynamic_groups_alone_are_passed_on(encoder):
    moving = STILL.copy()
    moving["dx"][[0, 9]] = 7
    see = Vision(encoder, identity(), "pruned")
    whole, part = see(shown(0, 4, 0)), see(shown(1, 4, 1, moving))
    assert whole.cells.tolist() == list(range(64))
    assert (whole.anchor, part.anchor) == (True, False)
    mask = np.zeros((8, 8), bool)
    mask[:2, :2] = mask[4:6, 2:4] = True
    assert part.cells.tolist() == np.flatnonzero(mask).tolist()
    out = encoder(picture(1), patches_of(mask, 2))[1:].reshape(16, 16, -1)
    for cell, x in zip(part.cells, part.x, strict=True):
        r, c = divmod(cell, 8)
        np.testing.assert_allclose(x[:WIDTH], out[2 * r : 2 * r + 2, 2 * c : 2 * c + 2].mean((0, 1)), rtol=1e-5)
    assert part.counts == Counts(1, 32, encoder.macs(32, 33))
    assert see(shown(2, 4, 2)).cells.tolist() == part.cells.tolist()  # accumulated
    still = Vision(encoder, identity(), "pruned", PruneParams(tau=1e9))
    assert [len(still(shown(i, 4, 0)).cells) for i in range(2)] == [64, 0]


def test_similar_patches_are_reused_and_all_tokens_passed_on(encoder):
    see, whole = Vision(encoder, identity(), "similar", similarity=0.99), Vision(encoder, identity(), "whole")
    a = see(shown(0, 4, 0))
    np.testing.assert_array_equal(a.x, whole(shown(0, 4, 0)).x)
    changed = picture(0)
    changed[:28, :14] = picture(1)[:28, :14]
    frame = replace(shown(1, 4, 0), picture=changed)
    b = see(frame)
    assert len(b.cells) == 64
    assert b.counts == Counts(1, 2, encoder.macs(2, 257) + 254 * 588 * 12)
    differ = (a.x != b.x).any(1)
    assert differ.tolist() == [True] + [False] * 63
    assert see(frame).counts.patches == 0
    # No step is large, but they add up: patches are compared with what was last computed.
    fade = [(picture(0) * (1 - i / 16) + picture(1) * (i / 16)).astype(np.uint8) for i in range(9)]
    for a, b in zip(fade, fade[1:], strict=False):
        once = Vision(encoder, identity(), "similar")
        assert [once(replace(frame, picture=p)).counts.patches for p in (a, b)] == [256, 0]
    drift = Vision(encoder, identity(), "similar")
    assert sum(drift(replace(frame, picture=p)).counts.patches for p in fade) > 256
    every = Vision(encoder, identity(), "similar", similarity=1.1)
    every(shown(0, 4, 0))
    np.testing.assert_array_equal(every(frame).x, whole(frame).x)


@pytest.mark.parametrize(
    ("kind", "prune", "why"),
    [("all", PruneParams(), "vision='all': must be one of whole"), ("pruned", PruneParams(grid=32), "grid=32")],
)
def test_a_vision_that_cannot_be(encoder, kind, prune, why):
    with pytest.raises(ParamError, match=why):
        Vision(encoder, identity(), kind, prune)


# Prefill with reuse (section 3.4)


def run_plain(model: Small, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """K, V and hidden states of a sequence, token by token and head by head."""
    keys, values, out = [[] for _ in model.layers], [[] for _ in model.layers], []
    for t, h in enumerate(x):
        h = h[None]
        for i in range(len(model.layers)):
            q, k, v = (bf16(a) for a in model.qkv(i, h, [t]))
            keys[i].append(k[0])
            values[i].append(v[0])
            heads = []
            for head in range(4):
                s = np.array([k[head // 2] @ q[0, head] for k in keys[i]], float) / math.sqrt(8)
                p = np.exp(s - s.max())
                heads.append(sum(a * v[head // 2] for a, v in zip(p / p.sum(), values[i], strict=True)))
            h = model.after_attention(i, h, np.array(heads, np.float32)[None])
        out.append(h[0])
    return np.array(keys).swapaxes(1, 2), np.array(values).swapaxes(1, 2), np.array(out)


def same(got, want) -> bool:
    return all(np.array_equal(getattr(got, n), getattr(want, n)) for n in ("k", "v", "hidden", "outputs"))


def error(got, want) -> float:
    return np.linalg.norm(got.outputs - want.outputs) / np.linalg.norm(want.outputs)


def test_full_recomputation_is_the_plain_decoder():
    tokens = Tokens.of(PROMPT, visuals(5, 4), QUERY)
    got = prefill(MODEL, tokens, Reuse())
    k, v, hidden = run_plain(MODEL, tokens.x)
    # FP32 sums in another order move single BF16 values by a unit in the last place.
    assert close(got.k, k, 2**-7)
    assert close(got.v, v, 2**-7)
    assert close(got.hidden, hidden[-4:], 2**-6)
    assert np.mean(got.k == k) > 0.97
    assert got.computed.all()


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=40)
def test_equation_5_a_rotated_key_is_the_key_of_its_new_position(seed, corrections):
    """Within BF16: a half unit, 2^-8 of the pair's length, for the first key, each correction and the new key."""
    rng = np.random.default_rng(seed)
    raw = rng.standard_normal((5, 2, 8)).astype(np.float32)
    at = rng.integers(0, 4000, (corrections + 1, 5))
    k = bf16(MODEL.rotate(raw, at[0])).swapaxes(0, 1)
    for old, new in zip(at, at[1:], strict=False):
        k = turn_keys(k, new - old, MODEL.frequencies)
    want = bf16(MODEL.rotate(raw, at[-1])).swapaxes(0, 1)
    pair = np.hypot(raw[..., :4], raw[..., 4:]).swapaxes(0, 1)
    off = np.hypot(*np.split(k - want, 2, axis=-1))
    assert (off <= (corrections + 2) * 2**-8 * pair + 1e-5).all()


def test_reused_values_stay_and_keys_turn_by_the_difference():
    frames = visuals(8, 4)
    old = prefill(MODEL, Tokens.of(PROMPT, frames[:6], QUERY), Reuse())
    tokens = Tokens.of(PROMPT, frames[4:], QUERY)
    got = prefill(MODEL, tokens, FullReuse(), old)
    source = overlap(tokens, old)
    assert (source[:3] == [0, 1, 2]).all()
    assert (source[-4:] == -1).all()
    at = np.flatnonzero(source >= 0)
    assert tokens.frame[at[3:]].tolist() == old.tokens.frame[source[at[3:]]].tolist()
    np.testing.assert_array_equal(got.v[:, :, at], old.v[:, :, source[at]])
    fresh = prefill(MODEL, tokens, Reuse())
    pair = np.hypot(*np.split(fresh.k[0][:, at], 2, axis=-1))  # the first layer's keys depend on the token alone
    off = np.hypot(*np.split(got.k[0][:, at] - fresh.k[0][:, at], 2, axis=-1))
    assert (off <= 3 * 2**-8 * pair + 1e-5).all()
    assert not np.array_equal(got.k[0][:, at[3:]], old.k[0][:, source[at[3:]]])


def test_figure_10_anchors_of_the_overlap_and_new_frames_are_computed():
    """GOP 4, w = 12, s = 4: of F5 to F16, F5 and F9 are refreshed, F13 to F16 computed, the rest reused."""
    frames = visuals(16, 4, kept=0.9)
    windows = list(video.windows([shown(i, 4, 0) for i in range(16)], 12, 4, whole_gops=True))
    spans = [[frames[f.index] for f in w.frames] for w in windows]
    old = prefill(MODEL, Tokens.of(PROMPT, spans[0], QUERY), Anchors())
    tokens = Tokens.of(PROMPT, spans[1], QUERY)
    got = prefill(MODEL, tokens, Anchors(), old)
    names = {f"F{f + 1}" for f in tokens.frame[got.computed.all(0)] if f >= 0}
    assert names == {"F5", "F9", "F13", "F14", "F15", "F16"}
    assert (got.computed.all(0) == got.computed.any(0)).all()
    assert tokens.frame[3] == 4  # the first frame of the overlap is an I-frame
    assert tokens.anchor[3]


def test_the_overlap_starts_at_an_i_frame_whatever_the_stride():
    for stride in (1, 3, 5):
        for window in video.windows([shown(i, 4, 0) for i in range(20)], 9, stride, whole_gops=True):
            assert window.frames[0].kind == "I"


@pytest.mark.parametrize("reuse", [Anchors(), CacheBlend(1.0)])
def test_refreshing_all_is_full_recomputation_to_the_bit(reuse):
    frames = visuals(9, 1)  # I-frames only
    old = prefill(MODEL, Tokens.of(PROMPT[:0], frames[:6], QUERY), Reuse())
    tokens = Tokens.of(PROMPT[:0], frames[3:], QUERY)
    got = prefill(MODEL, tokens, reuse, old)
    assert same(got, prefill(MODEL, tokens, Reuse()))
    assert vars(got.counts) == vars(prefill(MODEL, tokens, Reuse()).counts)


def test_what_does_not_move_is_not_computed_again():
    tokens = Tokens.of(PROMPT, visuals(6, 4), QUERY)
    old = prefill(MODEL, tokens, Reuse())
    for reuse in (FullReuse(), Anchors(), VLCache(0.5)):
        got = prefill(MODEL, tokens, reuse, old)
        assert got.computed.sum() == 4 * 4
        assert got.counts.rotated == 0
        assert close(got.hidden, old.hidden, 2**-6)
        np.testing.assert_array_equal(got.k[:, :, :-4], old.k[:, :, :-4])


def test_another_prompt_is_not_reused():
    frames = visuals(4, 4)
    old = prefill(MODEL, Tokens.of(PROMPT, frames, QUERY), Reuse())
    for prompt in (text(3, 9), text(2, 1)):
        assert (overlap(Tokens.of(prompt, frames, QUERY), old)[: len(prompt)] == -1).all()


def test_refreshing_anchors_brings_the_cache_closer():
    errors = []
    for seed in range(6):
        model, frames = Small(6, seed=seed), visuals(20, 4, seed, kept=1)
        old = prefill(model, Tokens.of(PROMPT, frames[:16], QUERY), Reuse())
        tokens = Tokens.of(PROMPT, frames[4:], QUERY)
        full = prefill(model, tokens, Reuse(), old)
        errors.append([error(prefill(model, tokens, reuse, old), full) for reuse in (FullReuse(), Anchors())])
    reused, refreshed = np.mean(errors, axis=0)
    assert 0 < refreshed < 0.95 * reused


def test_cacheblend_computes_the_tokens_that_deviate_most_at_the_second_layer():
    frames = visuals(12, 4)
    old = prefill(MODEL, Tokens.of(PROMPT, frames[:9], QUERY), Reuse())
    tokens = Tokens.of(PROMPT, frames[3:], QUERY)
    full, got = prefill(MODEL, tokens, Reuse()), prefill(MODEL, tokens, CacheBlend(0.3), old)
    source = overlap(tokens, old)
    at = np.flatnonzero(source >= 0)[3:]  # but the prompt
    k = turn_keys(old.k[1][:, source[at]], at - source[at], MODEL.frequencies)
    deviation = ((full.k[1][:, at] - k) ** 2 + (full.v[1][:, at] - old.v[1][:, source[at]]) ** 2).sum((0, 2))
    chosen = set(at[np.argsort(-deviation)[: round(0.3 * len(at))]].tolist())
    for layer in (1, 2, 3):
        assert set(np.flatnonzero(got.computed[layer] & (source >= 0)).tolist()) == chosen
    assert got.computed[0].all()
    np.testing.assert_array_equal(got.k[0], full.k[0])
    n, q, new = len(source), 64 * 16, int((source < 0).sum()) + len(chosen)
    rest = 32 * 16 + 2 * 16 * 24
    assert got.counts.linear == n * (q + rest) + n * q + new * rest + 2 * new * (q + rest)


def test_vlcache_computes_the_first_tokens_and_fewer_from_layer_to_layer():
    frames = visuals(12, 4)
    old = prefill(MODEL, Tokens.of(PROMPT, frames[:9], QUERY), Reuse())
    tokens = Tokens.of(PROMPT, frames[3:], QUERY)
    got = prefill(MODEL, tokens, VLCache(0.4), old)
    source = overlap(tokens, old)
    at = np.flatnonzero(source >= 0)[3:]
    for layer, share in enumerate((0.8, 0.6, 0.4, 0.2)):
        assert np.flatnonzero(got.computed[layer] & (source >= 0)).tolist() == at[: round(share * len(at))].tolist()


@pytest.mark.parametrize(("make", "why"), [(lambda: CacheBlend(1.1), "ratio=1.1"), (lambda: VLCache(0.6), "ratio=0.6")])
def test_shares_that_cannot_be(make, why):
    with pytest.raises(ParamError, match=why):
        make()


def test_counts_of_a_prefill():
    frames = visuals(10, 4)
    old = prefill(MODEL, Tokens.of(PROMPT, frames[:8], QUERY), Reuse())
    tokens = Tokens.of(PROMPT, frames[4:], QUERY)
    got = prefill(MODEL, tokens, Anchors(), old)
    rows = np.flatnonzero(got.computed[0])
    source = overlap(tokens, old)
    turned = (source >= 0) & (source != np.arange(len(source))) & ~got.computed[0]
    assert got.counts.tokens == 4 * len(rows)
    assert got.counts.linear == 4 * len(rows) * (16 * 64 + 32 * 16 + 2 * 16 * 24)
    assert got.counts.attention == 4 * sum(2 * 4 * 8 * (t + 1) for t in rows)
    assert got.counts.rotated == 4 * 2 * turned.sum()


@pytest.mark.parametrize("rows", [1, 3, 256])
def test_attention_in_pieces(rows):
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal(s).astype(np.float32) for s in ((7, 4, 8), (2, 11, 8), (2, 11, 8)))
    at = np.array([0, 2, 3, 4, 8, 9, 10])
    got = attend(q, k, v, at, rows)
    for i, t in enumerate(at):
        for head in range(4):
            s = k[head // 2, : t + 1].astype(float) @ q[i, head] / math.sqrt(8)
            p = np.exp(s) / np.exp(s).sum()
            np.testing.assert_allclose(got[i, head], p @ v[head // 2, : t + 1], rtol=1e-4, atol=1e-6)


# Systems


def served(name, encoder, frames, w, s, tau=0.25):
    system = SYSTEMS[name]
    server = Server(system, MODEL, Vision(encoder, identity(), system.vision, PruneParams(tau=tau)), PROMPT, QUERY)
    return [server(window) for window in video.windows(frames, w, s, whole_gops=True)]


def test_a_threshold_below_zero_prunes_nothing(encoder):
    """tau < 0: every patch is dynamic, and token pruning alone is full recomputation to the bit."""
    frames = [shown(i, 2, i) for i in range(6)]
    for a, b in zip(served("prune", encoder, frames, 4, 2, -1), served("full", encoder, frames, 4, 2), strict=True):
        assert same(a, b)


def test_frames_are_encoded_once_or_in_every_window(encoder):
    frames = [shown(i, 2, 0) for i in range(8)]
    for name, expected in (
        ("full", [4, 4, 4]),
        ("codecsight", [4, 2, 2]),
        ("vlcache", [4, 2, 2]),
        ("cacheblend", [4, 4, 4]),
    ):
        assert [r.counts.frames for r in served(name, encoder, frames, 4, 2)] == expected
    pruned = served("codecsight", encoder, frames, 4, 2)
    assert [r.counts.patches for r in pruned] == [512, 256, 256]  # the I-frames


def test_every_system_runs_and_does_no_more_than_full_recomputation(encoder):
    moving = STILL.copy()
    moving["dx"][3] = 5
    frames = [shown(i, 4, i % 3, moving) for i in range(16)]
    results = {name: served(name, encoder, frames, 8, 4) for name in SYSTEMS}
    for name, got in results.items():
        for a, b in zip(got[1:], results["full"][1:], strict=True):
            assert np.isfinite(a.hidden).all()
            assert a.counts.tokens <= b.counts.tokens
            assert a.counts.vision <= b.counts.vision
            assert a.counts.linear + a.counts.attention <= 1.2 * (b.counts.linear + b.counts.attention), name
    order = sorted(results, key=lambda n: results[n][-1].counts.tokens)
    assert order[:2] == ["prune-reuse", "codecsight"]


@pytest.mark.parametrize(("pruned", "reduction"), [(0.5, 0.85), (0.27, 0.80), (0.13, 0.78)])
def test_the_paper_s_token_reduction_follows_from_its_geometry(pruned, reduction):
    """Section 6: w = 80, s = 16, GOP 16. New tokens 0.2 (1 - p), refreshed anchors 4 of 80 frames.

    The 85 % of section 6.1.3 are those of the low-motion group, whose 50 % are pruned.
    """
    per = 320
    p_frame = round(per * (1 - pruned * 16 / 15))
    tokens = Tokens(
        frame=np.repeat(np.arange(16, 96), [p_frame if i % 16 else per for i in range(80)]),
        anchor=np.repeat([i % 16 == 0 for i in range(80)], [p_frame if i % 16 else per for i in range(80)]),
        x=np.zeros((0, 1), np.float32),
        prompt=0,
        query=0,
    )
    source = np.where(tokens.frame < 80, np.arange(len(tokens.frame)) + 1000, -1)
    assert 1 - Anchors().rows(tokens, source).sum() / (80 * per) == pytest.approx(reduction, abs=0.01)


# As a policy


SHAPE = decoder_shape(MODEL)


def stream(run: DecoderRun, frames: list[Visual], pictures: list[Frame], query: np.ndarray, targets: np.ndarray):
    parts = [("prompt", PROMPT, None)] + [("frame", v.x, p) for v, p in zip(frames, pictures, strict=True)]
    for i, (stage, x, seen) in enumerate([*parts, ("question", query, None)]):
        block = Block(i, stage, run.length, run.length + len(x), None, seen)
        run.step(MODEL, block, x, targets if stage == "question" else None)
    return run


def whole_visuals(n: int, cells: int = 16) -> list[Visual]:
    rng = np.random.default_rng(6)
    return [
        Visual(i, i % 4 == 0, np.arange(cells), rng.standard_normal((cells, 16)).astype(np.float32), Counts())
        for i in range(n)
    ]


@pytest.mark.parametrize(("stride", "refresh"), [(4, True), (4, False), (5, True)])
def test_the_policy_equals_the_windows(stride, refresh):
    """The same losses at the query as `prefill` over the last window, up to the rounding of keys."""
    moving = STILL.copy()
    moving["dx"][[0, 5]] = 9
    pictures = [shown(i, 4, 0, moving) for i in range(20)]
    frames, targets = whole_visuals(20), np.array([3, 1, 4, 1])
    run = DecoderRun(CodecSightPolicy(CodecSightParams(12, stride, refresh), SHAPE), 16)
    stream(run, frames, pictures, QUERY, targets)

    pruner, kept = Pruner(PruneParams(grid=8)), []
    for v, p in zip(frames, pictures, strict=True):
        cells = np.flatnonzero(pruner(p))
        kept.append(Visual(v.frame, v.anchor, cells, v.x[cells], Counts()))
    last = None
    for window in video.windows(pictures, 12, stride, whole_gops=True):
        tokens = Tokens.of(PROMPT, [kept[f.index] for f in window.frames], QUERY)
        last = prefill(MODEL, tokens, Anchors() if refresh else FullReuse(), last)
    logits = MODEL.logits(last.hidden).astype(float)
    want = np.log(np.exp(logits).sum(1)) - logits[np.arange(4), targets]
    np.testing.assert_allclose(run.records[-1].losses, want, atol=0.05)
    other = prefill(MODEL, last.tokens, Reuse())
    logits = MODEL.logits(other.hidden).astype(float)
    fresh = np.log(np.exp(logits).sum(1)) - logits[np.arange(4), targets]
    assert np.abs(fresh - want).max() > 0.1  # so the agreement above is not that of any method
    rows = [r.rows - len(v.cells) for r, v in zip(run.records[1:], kept, strict=False)]
    anchors = (
        {12: 32, 12 + stride: 32 if stride == 4 else 48} if refresh else {}
    )  # two or three I-frames in the overlap
    assert {i: rows[i] for i in np.flatnonzero(rows)} == anchors
    where = run.records[-1].census
    alive = 4 * 2 * len(last.tokens.frame)
    assert where["device"] == alive
    assert where["pruned"] == 4 * 2 * run.length - alive
    assert run.policy.ledger.totals()["device"] == alive * SHAPE.entry_bytes


def test_the_policy_keeps_a_class_token_and_refuses_other_numbers():
    moving = STILL.copy()
    moving["dx"][0] = 9
    policy = CodecSightPolicy(CodecSightParams(), SHAPE)
    for i, whole in enumerate([17, 1 + 1]):
        policy.store.arrive(17 * (i + 1))
        plan = policy.plan(Block(i, "frame", 17 * i, 17 * i + 17, None, shown(i, 4, 0, moving)))
        assert plan.admit.sum() == whole
        assert plan.admit[0]
    with pytest.raises(ParamError, match="tokens=15: of a frame must be"):
        policy.plan(Block(2, "frame", 34, 49, None, shown(2, 4, 0)))


def test_the_policy_on_a_trace_is_a_sliding_window():
    trace = Trace.load(FIXTURES / "world.safetensors")
    run = TraceRun(CodecSightPolicy(CodecSightParams(window=10, stride=4), shape_of(trace)), trace)
    for block in blocks(trace):
        run.step(trace, pickle.loads(pickle.dumps(block)))
        run = pickle.loads(pickle.dumps(run))
    prompt = trace.spans("prompt")[0][1]
    frames = len(trace.spans("frame"))
    first = ((frames - 11) // 4 + 1) * 4
    kept = trace.tokens - 10 * first
    assert run.records[-1].census["device"] == 3 * 3 * kept
    assert (run.records[-1].kept == kept - 1).all()
    assert prompt > 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"window": 0}, "window=0"), ({"stride": 0}, "stride=0"), ({"window": 4, "stride": 5}, "stride=5")],
)
def test_policy_parameters_that_cannot_be(changes, why):
    with pytest.raises(ParamError, match=why):
        CodecSightParams(**changes)


# The command


class SmallDecoder(Small):
    """In place of the real decoder."""

    def __init__(self, depth: int, n_tokens: int):
        super().__init__(depth)

    def embed(self, words: str) -> np.ndarray:
        return self.embeddings[: len(words) % 7 + 1]


def test_command_prunes_and_writes_the_motion_file(tmp_path):
    path, out = write(tmp_path / "still.mkv", texture(9, step=0)), tmp_path / "motion.npz"
    run = vrex("papers", "prune", str(path), "--gop", "4", "--vectors", str(out), "--json")
    result = json.loads(run.stdout)
    assert (result["frames"], result["types"]) == (9, "3 I, 6 P")
    assert result["pruned"] == pytest.approx(6 / 9)
    assert (result["motion"], result["motion_class"]) == (0, "low")
    assert [f.kind for f in load_motion(out)] == list("IPPPIPPPI")
    run = tried("papers", "prune", str(path), "--gop", "0", "-p", "alpha=1", "--frames", "5")
    assert "5 frames (1 I, 4 P), low motion (0.00 px a frame), tokens" in run.stdout
    path = write(tmp_path / "vectorless.mkv", texture(3), codec="libvpx-vp9")
    run = tried("papers", "prune", str(path), "--gop", "0")
    assert "no motion vectors, tokens pruned 0.0%" in run.stdout


def test_command_runs_every_system_over_the_windows(tmp_path, monkeypatch, encoder):
    monkeypatch.setattr("openvrex.golden.inputs.decoder.Decoder", SmallDecoder)
    path = write(tmp_path / "moving.mkv", texture(8))
    line = ["papers", "prune", str(path), "--gop", "2", "--window", "4", "--stride", "2", "--depth", "3"]
    run = vrex(*line, "--json")
    rows = json.loads(run.stdout)["windows"]
    assert list(rows) == list(SYSTEMS)
    assert all(rows["full"][name] == 1 for name in ("patches", "tokens", "vision", "decoder", "all"))
    assert {row["windows"] for row in rows.values()} == {2}
    for name in ("full", "prune", "dejavu"):
        assert rows[name]["reuse_error"] == 0
    assert 0 < rows["refresh"]["reuse_error"] < rows["full-reuse"]["reuse_error"]
    assert rows["vlcache"]["vision"] == 0.5
    assert "codecsight" in tried(*line).stdout


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["absent.mp4"], "absent.mp4: no such file"),
        (["VIDEO", "--frames", "0"], "frames=0"),
        (["VIDEO", "--gop", "-1"], "gop=-1"),
        (["VIDEO", "--vectors", "x.txt"], "--vectors='x.txt': must end in .npz"),
        (["VIDEO", "-p", "rule=median"], "rule='median'"),
        (["VIDEO", "--window", "16"], "give more than 16 frames"),
        (["VIDEO", "--window", "2", "--stride", "3"], "s=3: must be 1 to w = 2"),
        (["VIDEO", "--window", "200"], "window=200: the decoder knows"),
        (["VIDEO", "--window", "2", "--depth", "31"], "depth=31: must be 1 to 30"),
    ],
)
def test_command_refuses_what_cannot_be(tmp_path, options, why):
    path = write(tmp_path / "a.mkv", texture(3))
    run = refuses("papers", "prune", *(str(path) if o == "VIDEO" else o for o in options))
    assert why in run.stderr
