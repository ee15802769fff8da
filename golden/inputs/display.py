"""Turns pictures and their blocks as the container's display matrix asks, which players obey.

A phone that is held upright writes sideways pictures and a matrix that turns them back.
"""

from dataclasses import dataclass
from typing import Any

import av
import numpy as np


@dataclass(frozen=True)
class Turn:
    """How a coded picture becomes the one that is shown: exchange rows and columns, then mirror."""

    transposed: bool = False
    mirrored: bool = False  # left and right change places
    upended: bool = False  # top and bottom change places

    @classmethod
    def of(cls, frame: av.VideoFrame) -> "Turn | None":
        """The turn of a frame's display matrix, if it has one; None if that is no multiple of 90 degrees.

        The matrix maps a coded place (p, q) to the shown place (a p + c q, b p + d q).
        """
        side: Any = frame.side_data.get("DISPLAYMATRIX")
        if side is None:
            return cls()
        a, b, _, c, d = np.frombuffer(side, np.int32)[:5].tolist()
        if b == c == 0 and a and d:
            return cls(False, a < 0, d < 0)
        return cls(True, c < 0, b < 0) if a == d == 0 and b and c else None

    def __bool__(self) -> bool:
        return self != Turn()

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the shown picture."""
        return (width, height) if self.transposed else (height, width)

    def picture(self, frame: av.VideoFrame) -> av.VideoFrame:
        """The picture as shown."""
        if not self:
            return frame
        graph = av.filter.Graph()
        source = graph.add_buffer(
            width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base
        )
        chosen = {"transpose": self.transposed, "hflip": self.mirrored, "vflip": self.upended}
        steps = [graph.add(name, "cclock_flip" if name == "transpose" else None) for name, on in chosen.items() if on]
        graph.link_nodes(source, *steps, graph.add("buffersink")).configure()
        graph.vpush(frame)
        return graph.vpull()

    def blocks(self, blocks: np.ndarray, height: int, width: int) -> np.ndarray:
        """The blocks (`golden.inputs.codec.BLOCK`) of a coded picture in the shown one.

        A block that sticks out of the coded picture sticks out of the shown one, where its place may be negative.
        """
        out = blocks.copy()
        if self.transposed:
            for one, other in (("x", "y"), ("w", "h"), ("dx", "dy")):
                out[one], out[other] = blocks[other], blocks[one]
        height, width = self.shape(height, width)
        for on, place, extent, way, end in (
            (self.mirrored, "x", "w", "dx", width),
            (self.upended, "y", "h", "dy", height),
        ):
            if on:
                out[place] = end - out[place] - out[extent]
                out[way] = -out[way]
        return out
