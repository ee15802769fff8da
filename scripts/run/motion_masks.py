"""Masks of a stream's frames by the RTL of the motion mask, which `vrex run windows codecsight` prunes by."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs.codec import Coded, PruneParams
from openvrex.golden.inputs.codec_mask import Command, commands
from openvrex.golden.policies.codecsight_policy import CodecSightParams
from openvrex.golden.policies.stream_runs import Segment
from openvrex.hdl.params import MaskParams
from openvrex.sim.units.motion_mask_time import MotionMaskTime
from openvrex.tb.checks.motion_mask_checks import episode, listing, run
from openvrex.tb.library.runner import emit


@dataclass(frozen=True)
class Masks:
    """What the RTL gave.

    tokens : kept of each frame, bool [g, g] · figures : for the record · differences : a line for each, none if equal
    """

    tokens: list[np.ndarray]
    figures: dict[str, Any]
    differences: list[str]


def unit_for(prune: PruneParams, p: MaskParams) -> MaskParams:
    """The motion mask of a preset for this pruning: its sizes, with the patches and tokens of the policy's frames."""
    return replace(p, grid=prune.grid, group=prune.group, residuals=prune.alpha > 0)


def fits(p: MaskParams, frames: Sequence[tuple[Command, np.ndarray]]) -> None:
    """Raises `ParamError` for frames that the ports of the unit cannot describe."""
    for name, bits, most in (
        ("size_bits", p.size_bits, max(max(c.width, c.height) for c, _ in frames)),
        ("block_bits", p.block_bits, max(len(blocks) for _, blocks in frames)),
        ("tau_bits", p.tau_bits, max(max(c.limit, 0 if p.residuals else 1) for c, _ in frames)),
    ):
        room = 1 << (2 * bits if name == "tau_bits" else bits)
        check(most < room, f"mask.{name}", bits, f"must be more for this video ({most:,} is not below {room:,})")


def masks(segments: Sequence[Segment], params: CodecSightParams, p: MaskParams) -> Masks | None:
    """Plays the frames of a stream on the RTL, one behind the other at full rate, and compares with golden.

    None for a stream without codec data. Raises `ParamError` for a rule that the unit does not have.
    """
    seen: list[tuple[Coded, int]] = [(s.frame, len(s.x)) for s in segments if s.frame is not None]
    if not seen:
        return None
    prune = params.pruning(seen[0][1])
    own = unit_for(prune, p)
    frames = list(commands((frame for frame, _ in seen), prune, own.residuals))
    fits(own, frames)
    [got] = run(emit("motion_mask", own), own, [episode(own, frames)], waves=False)
    rows, want = [beat for _, beat in got["o"]], listing(own, frames)
    g = own.tokens
    found = [
        np.array([[row["tokens"] >> k & 1 for k in range(g)] for row in rows[i : i + g]], bool)
        for i in range(0, len(rows), g)
    ]
    wrong = [k for k in range(len(seen)) if rows[g * k : g * (k + 1)] != want[g * k : g * (k + 1)]]
    cycles = got["o"][-1][0] - got["f"][0] + 1
    predicted = MotionMaskTime(own).run((c, len(blocks)) for c, blocks in frames).o[-1] + 1
    differences = [f"frame {k}: the mask of the RTL is not golden's" for k in wrong]
    differences += [f"masks: {cycles} cycles, not {predicted} by the time view"] * (cycles != predicted)
    figures = {
        "frames": len(seen),
        "coded": len(frames),
        "blocks": sum(len(blocks) for _, blocks in frames),
        "tokens": g * g * len(seen),
        "kept": int(sum(mask.sum() for mask in found)),
        "cycles": cycles,
        "predicted": predicted,
        "each": [int(mask.sum()) for mask in found],
    }
    return Masks(found, figures, differences)
