"""The motion mask in integers: equal to the pruner in floating point, on random blocks and on real streams."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.function_params import ParamError
from golden.inputs import video
from golden.inputs.codec import BLOCK, PruneParams, Pruner, Recorded
from golden.inputs.codec_mask import Command, MotionMask, centres, commands, limit_of
from tb.tests.golden.inputs.test_trace import models
from tb.tests.golden.inputs.test_video import texture, write

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
            motions.append(blocks)
        out.append(Recorded("P", k // 4, size, tuple(motions)))
    return out


@settings(max_examples=60, deadline=None)
@given(
    frames(), st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.25]), st.sampled_from([(16, 2), (6, 3), (5, 1)]), st.booleans()
)
def test_equals_the_pruner(stream, tau, sides, accumulate):
    p = PruneParams(grid=sides[0], group=sides[1], tau=tau, accumulate=accumulate)
    check_equals(stream, p)


def check_equals(stream: list, p: PruneParams) -> int:
    """The mask keeps the tokens that the pruner keeps; the number of masks that are neither empty nor whole."""
    pruner, mask = Pruner(p), MotionMask(p.grid, p.group)
    got = [tokens for c, blocks in commands(stream, p) if (tokens := mask(c, blocks)) is not None]
    want = [pruner(f) for f in stream]
    np.testing.assert_array_equal(got, want)
    return sum(0 < tokens.mean() < 1 for tokens in want)


CODECS = ("libx264", "mpeg4", "mpeg2video")


def square(n: int) -> list[np.ndarray]:
    """Pictures of noise over which a square of other noise moves."""
    still, mark = texture(1, size=192)[0], texture(1, size=32, seed=4)[0]
    out = [still.copy() for _ in range(n)]
    for k, picture in enumerate(out):
        picture[16 + 4 * k :][:32, 24 + 8 * k :][:, :32] = mark
    return out


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
        ({"alpha": 0.5}, "alpha=0.5: must be 0"),
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
