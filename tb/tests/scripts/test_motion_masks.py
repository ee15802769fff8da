"""Masks that `vrex run windows codecsight` takes from the motion mask's RTL: right on a video, and wrong ones told."""

from dataclasses import replace

import numpy as np
import pytest

from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs import video
from openvrex.golden.inputs.codec import PruneParams, Pruner
from openvrex.golden.policies.codecsight_policy import CodecSightParams
from openvrex.golden.policies.stream_runs import Segment
from openvrex.hdl.params import preset
from openvrex.scripts.run import motion_masks
from openvrex.scripts.run.motion_masks import masks
from openvrex.tb.library.small_windows import segments

PARAMS, UNIT = CodecSightParams(), preset("small").mask


def test_masks_of_a_video_are_the_pruners():
    """Of the vectors in a clip of H.264, sampled: the RTL decides as the policy's own pruner in floating point."""
    frames = list(video.read(video.locate("world"), 5, 2.0, 8))
    got = masks([Segment("frame", np.zeros((16, 1), np.float32), frame=f) for f in frames], PARAMS, UNIT)
    pruner = Pruner(PARAMS.pruning(16))
    wants = [pruner(frame) for frame in frames]
    assert not got.differences
    assert all((mine == want).all() for mine, want in zip(got.tokens, wants, strict=True))
    assert 0 < got.figures["kept"] < got.figures["tokens"]
    assert got.figures["coded"] > got.figures["frames"] == 5
    assert got.figures["cycles"] == got.figures["predicted"]


def test_a_wrong_mask_and_a_wrong_cycle_are_told(monkeypatch):
    sound = motion_masks.run

    def wrong(*args, **how):
        [got] = sound(*args, **how)
        (at, row), (last, end) = got["o"][2], got["o"][-1]
        return [
            got | {"o": [*got["o"][:2], [at, row | {"tokens": row["tokens"] ^ 1}], *got["o"][3:-1], [last + 1, end]]}
        ]

    monkeypatch.setattr(motion_masks, "run", wrong)
    found = masks(segments(frames=3), PARAMS, UNIT).differences
    assert "frame 1: the mask of the RTL is not golden's" in found
    assert [line.startswith("masks: ") for line in found] == [False, True]


@pytest.mark.parametrize(
    ("prune", "unit", "message"),
    [
        (PruneParams(rule="max"), UNIT, "rule='max': must be centre"),
        (PruneParams(tau=100.0), replace(UNIT, tau_bits=8), "mask.tau_bits=8: must be more for this video"),
        (
            PruneParams(),
            replace(UNIT, size_bits=6),
            "mask.size_bits=6: must be more for this video (64 is not below 64)",
        ),
        (PruneParams(), replace(UNIT, block_bits=4), "mask.block_bits=4: must be more"),
    ],
)
def test_what_the_unit_cannot_do_is_one_line(prune, unit, message):
    with pytest.raises(ParamError, match=".") as error:
        masks(segments(frames=2), replace(PARAMS, prune=prune), unit)
    assert message in str(error.value)


def test_a_stream_without_codec_data_has_no_masks():
    assert masks([Segment("prompt", np.zeros((3, 1), np.float32))], PARAMS, UNIT) is None
