"""Motion mask: masks equal golden on random and on real streams, cycles equal the time view; stalls, sizes, mutants."""

from collections.abc import Iterable

import numpy as np
import pytest

from golden.function_params import ParamError
from golden.inputs import video
from golden.inputs.codec import PruneParams
from golden.inputs.codec_mask import CELL, MotionMask, centres, commands
from hdl.params import MaskParams, override, preset
from tb.checks.motion_mask_checks import (
    SIZES,
    STALLS,
    TINY,
    Frames,
    check_beats,
    check_cycles,
    check_equals_golden_and_time_view,
    covering,
    emitted,
    episode,
    masks,
    run,
    stream,
)
from tb.library.runner import survivors
from tb.tests.golden.inputs.test_codec_mask import CODECS, square
from tb.tests.golden.inputs.test_trace import models
from tb.tests.golden.inputs.test_video import write

BINS = {
    *("no_block", "whole_by_gop", "whole_by_size", "first_by_skipped_frame", "skipped_motion_counts", "forgets"),
    *("empty_mask", "full_mask", "partial_mask", "grows", "intra_patch", "at_the_limit", "just_above", "far_vector"),
    *("overlap_moves", "outside", "over_the_edge", "small_block", "two_centres", "square_of_a_component_alone"),
}


def bins(p: MaskParams, frames: Frames) -> set[str]:
    """What a stream exercises."""
    hit, golden, previous = set(), MotionMask(p.grid, p.group), None
    for command, blocks in frames:
        size = command.width, command.height
        hit |= {"whole_by_size"} if golden.size not in ((0, 0), size) else set()
        hit |= {"whole_by_gop"} if command.leads and golden.size == size else set()
        hit |= {"no_block"} if not len(blocks) else set()
        whole = golden.whole or command.leads or golden.size != size
        before = golden.active.copy()
        tokens = golden(command, blocks)
        if tokens is None:
            hit |= {"first_by_skipped_frame"} if whole else set()
            hit |= {"skipped_motion_counts"} if not whole and (golden.active & ~before).any() else set()
            continue
        hit |= {"forgets"} if not whole and not command.accumulate and tokens.any() else set()
        if not whole:
            share = tokens.mean()
            hit |= {"empty_mask" if share == 0 else "full_mask" if share == 1 else "partial_mask"}
            hit |= {"grows"} if previous is not None and (tokens & ~previous).any() and previous.any() else set()
            hit |= judged(p, command, blocks)
        previous = None if whole else tokens
    return hit


def judged(p: MaskParams, command, blocks: np.ndarray) -> set[str]:
    """What the blocks of a frame exercise."""
    hit, seen = set(), np.zeros((p.grid, p.grid), int)
    x, y = (centres(n, p.grid) for n in (command.width, command.height))
    for b in blocks:
        first = int(b["x"]) // CELL, int(b["y"]) // CELL
        span = max(1, int(b["w"]) // CELL), max(1, int(b["h"]) // CELL)
        cols, rows = ((c >= f) & (c < f + s) for c, f, s in zip((x, y), first, span, strict=True))
        cover = np.outer(rows, cols)
        squares = int(b["dx"]) ** 2, int(b["dy"]) ** 2
        moved = sum(squares) > command.limit
        if cover.any():
            hit |= {"overlap_moves"} if moved and seen[cover].any() else set()
            hit |= {"at_the_limit"} if sum(squares) == command.limit else set()
            hit |= {"just_above"} if sum(squares) == command.limit + 1 else set()
            hit |= {"square_of_a_component_alone"} if moved and max(squares) <= command.limit else set()
            hit |= {"far_vector"} if max(squares) >> 2 * p.tau_bits else set()
            hit |= {"small_block"} if min(b["w"], b["h"]) < CELL else set()
            hit |= {"two_centres"} if rows.sum() > 1 and cols.sum() > 1 else set()
        else:
            hit |= {"outside"}
        hit |= {"over_the_edge"} if cover.any() and min(first) < 0 else set()
        seen += cover
    return hit | ({"intra_patch"} if (seen == 0).any() else set())


@pytest.mark.parametrize("size", SIZES)
def test_equals_golden_and_time_view(size):
    check_equals_golden_and_time_view(size)


def test_functional_coverage(record_property):
    """The streams of this file reach every stated bin; without this a comparison could pass on dull data."""
    hit = set()
    for p in SIZES.values():
        hit |= bins(p, stream(p, 1, 60) + covering(p, 2, 30)) | bins(p, covering(p, 3, 30) + stream(p, 4, 60))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit == BINS, (BINS - hit, hit - BINS)


def check_stream(stream: Iterable) -> int:
    """The RTL keeps the tokens that golden does, in the cycles of the time view; the masks that are not whole."""
    p = MaskParams()
    frames = list(commands(stream, PruneParams(tau=0.25)))
    got = run(emitted(p), p, [episode(frames)])[0]
    check_beats(p, frames, got)
    check_cycles(p, frames, got)
    return sum(0 < tokens.mean() < 1 for _, tokens in masks(p, frames))


@pytest.mark.parametrize("codec", CODECS)
def test_streams_of_three_codecs(tmp_path, codec):
    """Frames as a decoder gives them: every one, and every second one."""
    clip = write(tmp_path / "clip.mkv", square(12), codec=codec)
    assert check_stream(video.read(clip))
    assert check_stream(video.read(clip, fps=5))


@models
@pytest.mark.parametrize("codec", CODECS)
def test_real_streams(tmp_path, codec):
    """A street with bicycles; H.264 as it is, the others encoded anew."""
    clip = video.locate("bikes")
    if codec != "libx264":
        clip = write(tmp_path / "clip.mkv", list(video.frames(clip, 12)), codec=codec)
    assert check_stream(video.read(clip, limit=12))


def test_bad_parameters():
    with pytest.raises(ParamError, match="mask.group=3: must divide grid = 16"):
        override(preset("core"), ["mask.group=3"])


MUTANTS = [  # of "tiny"
    # The length of a vector.
    ("far | (squared > ", "(squared > "),
    ("squared > {1'h0, frame_limit}", "squared >= {1'h0, frame_limit}"),
    ("{1'h0, {4'h0, length_x[3:0]} * {4'h0, length_x[3:0]}}", "{1'h0, {4'h0, length_x[3:0]} * {4'h0, length_y[3:0]}}"),
    ("16'h0 - i_dx", "i_dx"),
    # The centres that a block covers.
    ("assign first_x = i_x[15:2];", "assign first_x = {2'h0, i_x[13:2]};"),
    ("== 8'h0 ? 6'h1 : i_w[7:2]", "== 8'h0 ? 6'h0 : i_w[7:2]"),
    ("== 8'h0 ? 6'h1 : i_h[7:2]", "== 8'h0 ? 6'h2 : i_h[7:2]"),
    ("rest_x >= 10'h20", "rest_x > 10'h20"),
    ("rest_y <= rest_y - 10'h20", "rest_y <= rest_y - 10'h1f"),
    ("cell_x <= 6'h0;\n              index", "index"),
    ("steps = past_x | past_y;", "steps = past_x;"),
    # What decides.
    ("active <= active | ~covered;", "active <= active;"),
    ("if (part_valid & part_moved & ~whole)", "if (part_valid & part_moved)"),
    ("closes = (left == 8'h0) & ~part_valid;", "closes = left == 8'h0;"),
    ("covered <= 16'h0;\n            row", "row"),
    # GOPs.
    ("if (another | f_leads) begin", "if (another) begin"),
    ("if (another | f_leads) begin", "if (f_leads) begin"),
    ("if (~frame_accumulate)", "if (frame_accumulate)"),
    ("whole <= 1'h0;\n            if", "if"),
    ("if (frame_take)", "if (1'h1)"),
    ("| {2{whole}}", ""),
]


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(every):
    """Every fourth one, and at night all. Stalled and steady episodes; resets cut those between."""
    mixed, steady = stream(TINY, 5, 60) + covering(TINY, 6, 30), covering(TINY, 7, 30) + stream(TINY, 8, 60)
    cut = episode(stream(TINY, 9, 20), STALLS[:1], 97)

    def passes(unit):
        stalled, free = run(unit, TINY, [cut, episode(mixed, STALLS), cut, episode(steady)], waves=False)
        check_beats(TINY, mixed, stalled)
        check_beats(TINY, steady, free)
        check_cycles(TINY, steady, free)

    assert not survivors(emitted(TINY), MUTANTS[::every], passes)
