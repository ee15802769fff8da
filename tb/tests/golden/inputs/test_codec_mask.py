"""The motion mask in integers: equal to the pruner in floating point, on random blocks and on real streams."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs import video
from openvrex.golden.inputs.codec import BLOCK, PruneParams, Pruner, Recorded
from openvrex.golden.inputs.codec_mask import (
    Command,
    MotionMask,
    centres,
    commands,
    limit_of,
    moves,
    residuals,
    threshold_of,
    weight_of,
)
from tb.tests.golden.inputs.codec_samples import CODECS, square
from tb.tests.golden.inputs.trace_samples import models
from tb.tests.golden.inputs.video_samples import texture, write

INTEGERS = st.integers


@st.composite
def frames(draw) -> list[Recorded]:
    """Frames of two GOPs; some come with the blocks of a skipped one."""
    out, size = [], (draw(INTEGERS(1, 120)), draw(INTEGERS(1, 120)))
    for k in range(draw(INTEGERS(1, 6))):
        motions = []
        for _ in range(draw(INTEGERS(1, 2))):
            blocks = np.zeros(draw(INTEGERS(0, 12)), BLOCK)
            for b in blocks:
                b["w"], b["h"] = draw(st.sampled_from([4, 8, 16])), draw(st.sampled_from([4, 8, 16]))
                b["x"], b["y"] = draw(INTEGERS(-4, 30)) * 4, draw(INTEGERS(-4, 30)) * 4
                b["dx"], b["dy"] = draw(INTEGERS(-9, 9)), draw(INTEGERS(-9, 9))
                b["sad"] = draw(INTEGERS(0, 12)) * int(b["w"]) * int(b["h"]) // draw(st.sampled_from([1, 2, 4, 16]))
            motions.append(blocks)
        out.append(Recorded("P", k // 4, size, tuple(motions)))
    return out


@settings(max_examples=60)
@given(
    frames(), st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.25]), st.sampled_from([(16, 2), (6, 3), (5, 1)]), st.booleans()
)
def test_equals_the_pruner(stream, tau, sides, accumulate):
    p = PruneParams(grid=sides[0], group=sides[1], tau=tau, accumulate=accumulate)
    check_equals(stream, p)


@settings(max_examples=60)
@given(
    frames(),
    st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.25]),
    st.sampled_from([(16, 2), (6, 3), (4, 1)]),
    INTEGERS(1, 4095),
)
def test_residuals_decide_as_the_pruner_within_their_rounding(stream, tau, sides, weight):
    """Equation 3. A weight that is no rounded one loses less than 1 / 64 pixel of a residual's share, by the floor."""
    size = stream[0].size
    alpha = weight * sides[0] ** 2 / (1024 * size[0] * size[1])
    p = PruneParams(grid=sides[0], group=sides[1], tau=tau, alpha=alpha, residual="block")
    check_between(stream, p)


def check_between(stream: list, p: PruneParams) -> int:
    """The mask keeps what the pruner keeps at tau + 1 / 64, and nothing that it drops at tau; how often both differ.

    The comparison of floats may err by a few of their steps.
    """
    mask = MotionMask(p.grid, p.group, residuals=True)
    got = [tokens for c, blocks in commands(stream, p, True) if (tokens := mask(c, blocks)) is not None]
    least, most = (
        [pruner(f) for f in stream] for pruner in (Pruner(replace(p, tau=p.tau + d)) for d in (1.001 / 64, -1e-9))
    )
    assert (np.array(least) <= got).all()
    assert (got <= np.array(most)).all()
    return int((np.array(least) != most).sum())


def check_equals(stream: list, p: PruneParams) -> int:
    """The mask keeps the tokens that the pruner keeps; the number of masks that are neither empty nor whole."""
    pruner, mask = Pruner(p), MotionMask(p.grid, p.group)
    got = [tokens for c, blocks in commands(stream, p) if (tokens := mask(c, blocks)) is not None]
    want = [pruner(f) for f in stream]
    np.testing.assert_array_equal(got, want)
    return sum(0 < tokens.mean() < 1 for tokens in want)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("fps", [None, 5])
def test_equals_the_pruner_on_streams(tmp_path, codec, fps):
    stream = list(video.read(write(tmp_path / "clip.mkv", square(12), codec=codec), fps=fps))
    assert sum(check_equals(stream, PruneParams(tau=tau)) for tau in (0.25, 0.75, 2.0))


@models
@pytest.mark.parametrize("clip", ["world", "bikes"])
def test_equals_the_pruner_on_real_streams(clip):
    stream = list(video.read(video.locate(clip), limit=60))
    assert sum(check_equals(stream, PruneParams(tau=tau)) for tau in (0.25, 0.75, 2.0))


def test_a_block_moves_by_its_vector_and_residual():
    """The inequality itself, in integers: the root of 256 (dx^2 + dy^2) against what the residual leaves."""
    rng, seen = np.random.default_rng(3), np.zeros(3, int)
    blocks = np.zeros(4000, BLOCK)
    blocks["w"], blocks["h"] = rng.choice([4, 8, 16], (2, len(blocks)))
    blocks["dx"], blocks["dy"] = rng.integers(-12, 13, (2, len(blocks)))
    blocks["sad"] = rng.integers(0, 256, len(blocks)).astype(np.int64) * blocks["w"] * blocks["h"] // 64
    for weight in (0, 1, 64, 700, 4095):
        command = Command(64, 64, 0, threshold=int(rng.integers(0, 200)), weight=weight)
        for b, got in zip(blocks, moves(command, blocks, True), strict=True):
            sad = Fraction(int(b["sad"]), int(b["w"]) * int(b["h"]))  # of a pixel
            left = command.threshold - math.floor(sad * 256 * weight / 4096)
            length = 256 * (int(b["dx"]) ** 2 + int(b["dy"]) ** 2)
            want = math.isqrt(length) > left or (math.isqrt(length) == left and left**2 < length)
            assert got == want
            seen += np.array([want, not want, left < 0])
    assert (seen > 100).all()


def test_residuals_of_odd_blocks_and_large_sums():
    blocks = np.zeros(4, BLOCK)
    blocks["w"], blocks["h"] = [16, 4, 3, 0], [16, 4, 5, 8]
    blocks["sad"] = [7, 1, 100, (1 << 32) - 1]
    assert residuals(blocks).tolist() == [7, 16, 1706, 65535]


def test_threshold_and_weight():
    assert [threshold_of(tau) for tau in (0, 0.25, 1 / 64, 63.75)] == [0, 16, 1, 4080]
    for tau in (-1.0, 0.3, float("inf"), float("nan")):
        with pytest.raises(ParamError, match=f"tau={tau}: must be a multiple of 1/64, from 0"):
            threshold_of(tau)
    assert weight_of(0.0, (224, 224), 16) == 0
    assert weight_of(1 / 1024, (224, 224), 16) == 196
    assert weight_of(1 / 1024, (120, 100), 16) == 47  # 46.875 pixels
    for alpha in (1e-7, 0.5):
        with pytest.raises(ParamError, match=f"alpha={alpha}: must be 0, or 4.98e-06 to 0.0204 for patches of 196"):
            weight_of(alpha, (224, 224), 16)


@pytest.mark.parametrize("codec", CODECS)
def test_residuals_of_streams(tmp_path, codec):
    """A square that brightens where it stands has no motion; only residuals tell."""
    pictures = [texture(1, size=192)[0].copy() for _ in range(8)]
    for k, picture in enumerate(pictures):
        picture[64:128, 64:128] = np.minimum(255, picture[64:128, 64:128].astype(int) + 2 * k)
    clip = write(tmp_path / "clip.mkv", pictures, codec=codec)
    stream = list(video.read(clip, residuals=True))
    p = PruneParams(tau=0.5, alpha=1 / 256, residual="block")  # 0.9 grey levels of a pixel: 0.5 pixels
    check_between(stream, p)
    mask, blind = MotionMask(residuals=True), MotionMask()
    got = [mask(c, b) for c, b in commands(stream, p, True)][-2]  # MPEG-2 ends with intra blocks
    without = [blind(c, b) for c, b in commands(stream, replace(p, alpha=0.0))][-2]
    inside = np.zeros((8, 8), bool)
    inside[2:6, 2:6] = True
    assert got[inside].mean() > 0.7
    assert without[inside].mean() < 0.5
    assert got[~inside].mean() < 0.2


def test_centres_are_those_of_the_pruner():
    """floor of the middle of a patch's edges, which are fractions of pixels."""
    for size in (1, 4, 96, 224, 1080, 1920, 8191):
        for grid in (1, 3, 16, 27):
            edges = np.arange(grid + 1) * size / grid
            np.testing.assert_array_equal(centres(size, grid), (edges[:-1] + edges[1:]) / 2 // 4)


def test_limit():
    assert [limit_of(tau) for tau in (0, 0.25, 0.5, 0.3, 1.0, 63.75)] == [0, 1, 4, 1, 16, 65025]
    for tau in (-0.25, float("inf"), float("nan")):
        with pytest.raises(ParamError, match=f"tau={tau}: must not be negative"):
            limit_of(tau)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rule": "max"}, "rule='max': must be centre"),
        ({"alpha": 0.5}, "alpha=0.5: must be 0: a motion mask without mask.residuals has none"),
        ({"tau": -1.0}, "tau=-1"),
    ],
)
def test_refuses_what_the_unit_does_not_have(change, message):
    with pytest.raises(ParamError, match=message):
        list(commands([Recorded("I", 0, (8, 8), (np.zeros(0, BLOCK),))], replace(PruneParams(), **change)))


def test_motion_of_skipped_frames_counts_until_a_frame_is_taken():
    still, moves = np.zeros(1, BLOCK), np.zeros(1, BLOCK)
    for b in (still, moves):
        b["w"] = b["h"] = 16
    moves["dx"] = 5
    mask = MotionMask(2, 1)
    take = Command(8, 8, limit=16, accumulate=False)
    assert mask(take, still).all()  # the first frame is whole
    assert mask(replace(take, take=False), moves) is None
    assert mask(take, still).all()
    assert not mask(take, still).any()
    assert mask(replace(take, leads=True, take=False), still) is None
    assert mask(take, still).all()


def test_refuses_residuals_that_are_summed_over_patches():
    with pytest.raises(ParamError, match="residual='patch': must be block"):
        list(commands([], PruneParams(alpha=0.01), True))
