"""Predicts the cycles of the motion mask: when it takes frames and blocks, and when it offers the rows of its masks."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from openvrex.golden.inputs.codec_mask import Command, centres
from openvrex.hdl.params import MaskParams

JUDGED = 2  # cycles from a frame's last block until it is judged; without blocks, one after the frame


@dataclass
class MotionMaskCycles:
    """The cycle of each beat on the streams f, i and o."""

    f: list[int] = field(default_factory=list)
    i: list[int] = field(default_factory=list)
    o: list[int] = field(default_factory=list)


class MotionMaskTime:
    """Cycles of a motion mask whose streams never wait, from the first frame on."""

    def __init__(self, p: MaskParams):
        self.p = p
        self.size = 0, 0

    def measuring(self, width: int, height: int) -> int:
        """Cycles to find the centres of a picture's patches: one a patch and one a cell, of the slower axis."""
        steps = np.maximum(*(np.diff(centres(n, self.p.grid), prepend=0) for n in (width, height)))
        return self.p.grid + int(steps.sum())

    def run(self, frames: Iterable[tuple[Command, int]]) -> MotionMaskCycles:
        """The cycles of frames, each with the number of its blocks."""
        out, cycle = MotionMaskCycles(), 0
        for command, blocks in frames:
            out.f.append(cycle)
            size = command.width, command.height
            cycle += 1 + (self.measuring(*size) if size != self.size else 0)
            self.size = size
            out.i += range(cycle, cycle + blocks)
            cycle += blocks - 1 + JUDGED if blocks else 0
            if command.take:
                out.o += range(cycle + 1, cycle + 1 + self.p.tokens)
                cycle += self.p.tokens
            cycle += 1
        return out
