"""The fused preprocessing: equal to resizing, conversion, normalisation and cutting, one after the other."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs import video
from openvrex.golden.inputs.preprocess import Preprocess, PreprocessParams, taps

SMALL = PreprocessParams(12, 3)


def resized(plane: np.ndarray, size: int) -> np.ndarray:
    """A whole plane resized, pixel by pixel with exact fractions, by the definition in words."""

    def line(n: int) -> list[list[tuple[int, Fraction]]]:
        out = []
        for k in range(size):
            x = min(max(Fraction(2 * k + 1, 2) * n / size - Fraction(1, 2), Fraction(0)), Fraction(n - 1))
            first = floor(x)
            weight = Fraction(floor((x - first) * 256 + Fraction(1, 2)), 256)  # to the nearest 1/256
            out.append([(first, 1 - weight), (min(first + 1, n - 1), weight)])
        return out

    rows, columns = (line(n) for n in plane.shape)
    out = np.zeros((size, size), np.int64)
    for i, j in np.ndindex(size, size):
        total = sum(wr * wc * int(plane[r, c]) for r, wr in rows[i] for c, wc in columns[j])
        out[i, j] = floor(total + Fraction(1, 2))
    return out


def unfused(y, u, v, p: PreprocessParams) -> np.ndarray:
    """The whole picture in four separate steps: BF16 [grid, grid, patch * patch * 3]."""
    planes = [resized(x, p.size) for x in (y, u, v)]
    picture = np.zeros((p.size, p.size, 3), np.uint8)
    for at in np.ndindex(p.size, p.size):
        luma, cb, cr = (int(x[at]) for x in planes)
        luma, cb, cr = luma - 16, cb - 128, cr - 128
        for channel, value in enumerate(
            (298 * luma + 409 * cr, 298 * luma - 100 * cb - 208 * cr, 298 * luma + 516 * cb)
        ):
            picture[at][channel] = min(max(floor(Fraction(value, 256) + Fraction(1, 2)), 0), 255)
    mean, deviation = (np.array(x) for x in (p.mean, p.deviation))
    x = ((picture / 255 - mean) / deviation).astype(BF16)
    g = p.grid
    return x.reshape(g, p.patch, g, p.patch, 3).transpose(0, 2, 1, 3, 4).reshape(g, g, -1)


def frame(seed: int, height: int, width: int) -> tuple[np.ndarray, ...]:
    """Random planes; half of the numbers are 0 or 255, so that colours clip."""
    rng = np.random.default_rng(seed)
    sizes = ((height, width), *[(-(-height // 2), -(-width // 2))] * 2)
    return tuple(
        np.where(rng.random(s) < 0.5, rng.integers(0, 2, s) * 255, rng.integers(0, 256, s)).astype(np.uint8)
        for s in sizes
    )


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 99))
def test_one_pass_equals_four(height, width, seed):
    """Smaller and larger sources, odd sizes, single pixels; any mask."""
    planes = frame(seed, height, width)
    keep = np.random.default_rng(seed).random((4, 4)) < 0.6
    got = Preprocess(SMALL)(*planes, keep)
    assert got.dtype == BF16
    np.testing.assert_array_equal(got.view(np.uint16), unfused(*planes, SMALL)[keep].view(np.uint16))


def test_a_real_frame_with_every_size_and_parameters_of_the_encoder():
    """A corner of a frame of `world`: all 16 patches of 7 x 7, and each patch alone."""
    path = next(iter(video.CLIPS))
    try:
        y, u, v = next(video.planes(path, 1))
    except video.VideoError:
        pytest.skip("needs the clips: make models")
    assert u.shape == v.shape == tuple(-(-n // 2) for n in y.shape)
    p = PreprocessParams(28, 7)
    height, width = (n // 8 * 2 for n in y.shape)
    y, u, v = y[:height, :width], u[: height // 2, : width // 2], v[: height // 2, : width // 2]
    want = unfused(y, u, v, p)
    whole = Preprocess(p)(y, u, v, np.ones((4, 4), bool)).reshape(4, 4, -1)
    np.testing.assert_array_equal(whole.view(np.uint16), want.view(np.uint16))
    for at in np.ndindex(4, 4):
        keep = np.zeros((4, 4), bool)
        keep[at] = True
        np.testing.assert_array_equal(Preprocess(p)(y, u, v, keep)[0].view(np.uint16), want[at].view(np.uint16))


def test_a_source_of_the_same_size_is_not_touched_by_resizing():
    rng = np.random.default_rng(1)
    y = rng.integers(0, 256, (12, 12)).astype(np.uint8)
    grey = np.full((6, 6), 128, np.uint8)
    got = Preprocess(SMALL)(y, grey, grey, np.ones((4, 4), bool)).reshape(4, 4, 3, 3, 3)
    level = np.clip((298 * (y.astype(int) - 16) + 128) >> 8, 0, 255)
    want = SMALL.table()[:, level]  # [3, 12, 12]
    np.testing.assert_array_equal(got.transpose(4, 0, 2, 1, 3).reshape(3, 12, 12).view(np.uint16), want.view(np.uint16))


def test_known_colours():
    """BT.601's black, white, red, green and blue, within a level of 8-bit RGB."""
    for yuv, rgb in (
        ((16, 128, 128), (0, 0, 0)),
        ((235, 128, 128), (255, 255, 255)),
        ((81, 90, 240), (255, 0, 0)),
        ((145, 54, 34), (0, 255, 0)),
        ((41, 240, 110), (0, 0, 255)),
    ):
        planes = [np.full(s, x, np.uint8) for s, x in zip(((4, 4), (2, 2), (2, 2)), yuv, strict=True)]
        p = PreprocessParams(1, 1, (0.0,) * 3, (1 / 255,) * 3)
        got = Preprocess(p)(*planes, np.ones((1, 1), bool))[0].astype(float)
        np.testing.assert_allclose(got, rgb, atol=2)  # a level, and BF16's step of 1 at 255


def test_every_normalised_value_is_rounded_once():
    """All 768 values against the nearest BF16 of the exact quotient."""
    p, table = PreprocessParams(), PreprocessParams().table()
    for channel in range(3):
        for value in range(256):
            mean, deviation = (Fraction(str(x[channel])) for x in (p.mean, p.deviation))
            exact = (Fraction(value, 255) - mean) / deviation
            got = table[channel, value]
            near = (np.array(int(got.view(np.uint16)) + d, np.uint16).view(BF16) for d in (-1, 1))
            error = abs(Fraction(float(got)) - exact)
            assert all(error <= abs(Fraction(float(x)) - exact) for x in near)


def test_pruned_patches_cost_no_reads():
    planes = frame(3, 24, 24)
    one = Preprocess(SMALL)
    assert len(one(*planes, np.zeros((4, 4), bool))) == 0
    assert one.read == 0
    keep = np.zeros((4, 4), bool)
    keep[1, 2] = True
    one(*planes, keep)
    # Rows 3 to 5 of 12 lie at 6.5 to 10.5 of 24 in luma, between pixels: 6 x 6 of them. In chroma they are pixels.
    assert one.read == 6 * 6 + 2 * 3 * 3 + 2 * (4 * 4 - 3 * 3)
    full = Preprocess(SMALL)
    full(*planes, np.ones((4, 4), bool))
    assert full.read == 24 * 24 + 2 * 12 * 12


def test_taps_stay_inside():
    for n in (1, 2, 5, 300):
        for size in (1, 3, 224):
            first, second, weight = taps(n, size)
            assert first.min() >= 0
            assert second.max() <= n - 1
            assert weight.min() >= 0
            assert weight.max() <= 256


def test_bad_input_is_named():
    y, u, v = frame(1, 8, 8)
    run, keep = Preprocess(SMALL), np.ones((4, 4), bool)
    for args, message in (
        ((y, u[:3], v, keep), "u, v="),
        ((y[0], u, v, keep), "y="),
        ((y, u, v, keep[:2]), "keep="),
    ):
        with pytest.raises(ParamError, match=message):
            run(*args)
    for params, message in (
        ({"patch": 5}, "patch=5: must divide size = 224"),
        ({"mean": (0.5,)}, "mean="),
        ({"deviation": (1.0, 0.0, 1.0)}, "deviation="),
    ):
        with pytest.raises(ParamError, match=message):
            PreprocessParams(**params)
