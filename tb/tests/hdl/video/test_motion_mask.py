"""Motion mask: masks equal golden on random and on real streams, cycles equal the time view; stalls, sizes, mutants."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs import video
from openvrex.golden.inputs.codec import PruneParams
from openvrex.golden.inputs.codec_mask import CELL, PARTS, WEIGHT_SHIFT, MotionMask, centres, commands, moves, residuals
from openvrex.hdl.params import MaskParams, override, preset
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks import motion_mask_checks
from openvrex.tb.checks.motion_mask_checks import (
    SIZES,
    STALLS,
    TINY,
    Frames,
    check_beats,
    check_cycles,
    covering,
    emitted,
    episode,
    run,
    stream,
)
from tb.tests.by_day import at_sizes
from tb.tests.golden.inputs.codec_samples import CODECS, square
from tb.tests.golden.inputs.trace_samples import models
from tb.tests.golden.inputs.video_samples import write

BINS = {
    *("no_block", "whole_by_gop", "whole_by_size", "first_by_skipped_frame", "skipped_motion_counts", "forgets"),
    *("empty_mask", "full_mask", "partial_mask", "grows", "intra_patch", "at_the_limit", "just_above", "far_vector"),
    *("overlap_moves", "outside", "over_the_edge", "small_block", "two_centres", "square_of_a_component_alone"),
    *(
        "residual_alone",
        "residual_is_the_threshold",
        "residual_helps",
        "residual_is_too_small",
        "both_at_the_threshold",
    ),
}


def bins(p: MaskParams, frames: Frames) -> set[str]:
    """What a stream exercises."""
    hit, golden, previous = set(), MotionMask(p.grid, p.group, p.residuals), None
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
    shares = command.weight * residuals(blocks) >> WEIGHT_SHIFT
    for b, moved, share in zip(blocks, moves(command, blocks, p.residuals), shares, strict=True):
        first = int(b["x"]) // CELL, int(b["y"]) // CELL
        span = max(1, int(b["w"]) // CELL), max(1, int(b["h"]) // CELL)
        cols, rows = ((c >= f) & (c < f + s) for c, f, s in zip((x, y), first, span, strict=True))
        cover = np.outer(rows, cols)
        squares = int(b["dx"]) ** 2, int(b["dy"]) ** 2
        if cover.any() and p.residuals:
            hit |= residual_bins(command, sum(squares), int(share))
        elif cover.any():
            hit |= {"at_the_limit"} if sum(squares) == command.limit else set()
            hit |= {"just_above"} if sum(squares) == command.limit + 1 else set()
            hit |= {"square_of_a_component_alone"} if moved and max(squares) <= command.limit else set()
        if cover.any():
            hit |= {"overlap_moves"} if moved and seen[cover].any() else set()
            hit |= {"far_vector"} if max(squares) >> 2 * p.tau_bits else set()
            hit |= {"small_block"} if min(b["w"], b["h"]) < CELL else set()
            hit |= {"two_centres"} if rows.sum() > 1 and cols.sum() > 1 else set()
        else:
            hit |= {"outside"}
        hit |= {"over_the_edge"} if cover.any() and min(first) < 0 else set()
        seen += cover
    return hit | ({"intra_patch"} if (seen == 0).any() else set())


def residual_bins(command, squared: int, share: int) -> set[str]:
    """What a block with a residual exercises."""
    left, alone = command.threshold - share, PARTS**2 * squared > command.threshold**2
    if left <= 0:
        hit = {"residual_alone"} if left < 0 and not squared else set()
        return hit | ({"residual_is_the_threshold"} if left == 0 and not squared and share else set())
    reached = PARTS**2 * squared - left**2
    if reached == 0 and squared and share:
        return {"both_at_the_threshold"}
    return set() if alone or not share else {"residual_helps" if reached > 0 else "residual_is_too_small"}


DAY = "tiny", "one", "ragged", "residuals"


test_equals_golden_and_time_view = at_sizes(motion_mask_checks.check_equals_golden_and_time_view, SIZES, *DAY)


def test_functional_coverage(record_property):
    """The streams of this file reach every stated bin; without this a comparison could pass on dull data."""
    hit = set()
    for p in (SIZES[size] for size in DAY):
        hit |= bins(p, stream(p, 1, 60) + covering(p, 2, 30)) | bins(p, covering(p, 3, 30) + stream(p, 4, 60))
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit == BINS, (BINS - hit, hit - BINS)


RESIDUALS = PruneParams(
    tau=0.5, alpha=1 / 1024, residual="block"
)  # 2 grey levels of a pixel: 0.5 pixels at 256 patches


def check_stream(stream: Iterable, prune: PruneParams = PruneParams(tau=0.25)) -> Counter:  # noqa: B008 - frozen
    """The RTL keeps the tokens that golden does, in the cycles of the time view; what the stream exercised.

    Each of these must happen: a mask that is neither empty nor whole, a GOP that begins after the first, a block that
    moves and one that does not, a token that an earlier frame of the GOP made dynamic, a token kept for some of its
    patches; with residuals, blocks that they decide.
    """
    p = MaskParams(residuals=prune.alpha > 0)
    frames = list(commands(stream, prune, p.residuals))
    got = run(emitted(p), p, [episode(p, frames)])[0]
    check_beats(p, frames, got)
    check_cycles(p, frames, got)
    seen = events(p, frames)
    assert all(seen.values()), seen
    return seen


def events(p: MaskParams, frames: Frames) -> Counter:
    """How often a stream exercised what `check_stream` asks for."""
    golden = MotionMask(p.grid, p.group, p.residuals)
    names = (
        "partial masks",
        "whole masks after the first",
        "moving blocks",
        "still blocks",
        "tokens of earlier frames",
    )
    seen = Counter(dict.fromkeys([*names, "completed groups", *["blocks that residuals decide"] * p.residuals], 0))
    for k, (command, blocks) in enumerate(frames):
        whole, before = golden.whole or command.leads, golden.active.copy()
        tokens = golden(command, blocks)
        if whole:
            seen["whole masks after the first"] += k > 0
            continue
        moved = moves(command, blocks, p.residuals)
        seen["moving blocks"] += int(moved.sum())
        seen["still blocks"] += int((~moved).sum())
        if p.residuals:
            seen["blocks that residuals decide"] += int((moved & ~moves(command, blocks)).sum())
        if tokens is None:
            continue
        alone = MotionMask(p.grid, p.group, p.residuals)
        alone(replace(command, leads=True), blocks)
        now = alone(replace(command, leads=False), blocks)
        patches = golden.active.reshape(p.tokens, p.group, p.tokens, p.group).sum((1, 3))
        seen["partial masks"] += 0 < tokens.mean() < 1
        seen["tokens of earlier frames"] += int((tokens & ~now).sum()) if before.any() else 0
        seen["completed groups"] += int(((patches > 0) & (patches < p.group**2)).sum())
    return seen


@pytest.mark.parametrize("prune", [PruneParams(tau=0.25), RESIDUALS], ids=["vectors", "residuals"])
@pytest.mark.parametrize("codec", CODECS)
def test_streams_of_three_codecs(tmp_path, codec, prune):
    """Frames as a decoder gives them: every one, and every second one."""
    clip = write(tmp_path / "clip.mkv", square(24), codec=codec)
    for fps in (None, 5):
        check_stream(video.read(clip, fps=fps, residuals=prune.alpha > 0), prune)


@models
@pytest.mark.slow
@pytest.mark.parametrize("prune", [PruneParams(tau=0.25), RESIDUALS], ids=["vectors", "residuals"])
@pytest.mark.parametrize("codec", CODECS)
def test_real_streams(tmp_path, codec, prune, record_property):
    """A street with bicycles; H.264 with vectors as it is, the others encoded anew."""
    clip, limit = video.locate("bikes"), 34  # its second GOP begins at frame 30
    if codec != "libx264":
        clip, limit = write(tmp_path / "clip.mkv", list(video.frames(clip, 14)), codec=codec), 14
    elif prune.alpha:
        video.reencode(clip, tmp_path / "clip.mkv", gop=12, limit=14)
        clip, limit = tmp_path / "clip.mkv", 14
    seen = check_stream(video.read(clip, limit=limit, residuals=prune.alpha > 0), prune)
    record_property("events", ", ".join(f"{n} {what}" for what, n in seen.items()))


def test_bad_parameters():
    with pytest.raises(ParamError, match="mask.group=3: must divide grid = 16"):
        override(preset("core"), ["mask.group=3"])


MUTANTS = {  # of "tiny"
    # The length of a vector.
    "$or 1.1c408f75: A[0] const0": "long vectors are short",
    "$gt 0.a3461c67: B[0] const0": "a length equal to the limit is above it",
    "$mul 1.09367490: B[0] const0": "a square is less",
    "$mux 1.0530bc77: S[0] const1": "negative vectors are long",
    # The centres that a block covers.
    "$sub 5.cb2009bd: B[13] const0": "blocks far to the right are in the frame",
    "$mux 5.d40f55b4: B[0] const0": "a narrow block has no width",
    "$mux 5.9c29ce25: B[1] const1": "a low block is high",
    "$ge 1.42c9a67a: B[0] const1": "a token has a column more",
    "$sub 3.7279cb70: B[0] const1": "rows drift",
    "$mux 4.977b82b2: B[0] const1": "a row begins in its second cell",
    "$or 1.4721896b: B[0] const0": "a block ends with a row of tokens",
    # What decides.
    "$or 1.90c29174: B[5] const0": "what no block covers is static",
    "$and 1.3d18bd12: B[0] const1": "a whole frame is searched for vectors, too",
    "$and 1.7a794ec4: B[0] const1": "a frame closes before its last block",
    "$mux 1.21199e33: B[5] const1": "blocks of the frame before cover",
    # GOPs.
    "$or 1.40e3b158: B[0] const0": "a leading frame begins no GOP",
    "$or 1.40e3b158: A[0] const0": "another GOP begins none",
    "$mux 1.666cec2a: S[0] inv": "it accumulates the other way",
    "$mux 1.1920f199: A[0] const1": "every frame is whole",
    "$mux 1.a518d30e: S[0] const1": "frames that are not taken have masks",
    "$or 0.6c2fc47e: B[0] const0": "of a whole frame a token is missing",
}


RESIDUAL_MUTANTS = {  # of "residuals"
    "$add 0.1af95cea: Y[15] const0": "a share lacks a bit",
    "$and 1.9fd5a056: A[15] const0": "large residuals are small",
    "$not 1.8ad07b0c: Y[0] const1": "a threshold lacks its lowest bit",
    "$or 1.f27b393f: B[0] const0": "residuals alone never decide",
    "$not 1.260bc02f: A[0] const0": "residuals allow longer vectors",
    "$not 0.429aba62: A[0] const1": "a length equal to what is allowed is above it",
    "$not 0.429aba62: A[7] const1": "lengths are rounded up",
    "$or 1.9751b000: A[0] const0": "vectors that are too long may move",
    "$and 1.2081cf02: A[0] const1": "a block that was not taken moves",
    "$dff 0.3fc2ff15: D[8] const0": "long vectors are short",
}


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(every):
    """Every fourth one, and at night all. Stalled and steady episodes; resets cut those between."""
    check_mutants(TINY, MUTANTS, every)


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_with_residuals_are_killed(every):
    check_mutants(SIZES["residuals"], RESIDUAL_MUTANTS, every)


def check_mutants(p: MaskParams, mutants: dict[str, str], every: int):
    mixed, steady = stream(p, 5, 60) + covering(p, 6, 30), covering(p, 7, 30) + stream(p, 8, 60)
    cut = episode(p, stream(p, 9, 20), STALLS[:1], 97)

    def passes(unit):
        stalled, free = run(unit, p, [cut, episode(p, mixed, STALLS), cut, episode(p, steady)], waves=False)
        check_beats(p, mixed, stalled)
        check_beats(p, steady, free)
        check_cycles(p, steady, free)

    assert not survivors(emitted(p), mutants, passes, every=every)
