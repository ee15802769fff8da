"""Decoded frames of a video, and windows of them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Frame:
    """A decoded frame and the data of its bitstream (CodecSight section 3.2)."""

    index: int  # number among the decoded frames of the stream, from 0
    kind: str  # "I", "P" or "B"
    gop: int  # number of the frame's GOP, from 0
    leads: bool  # first frame yielded of its GOP: the I-frame, unless sampling skipped it
    time: float | None  # seconds; None if the stream has no time stamps
    size: tuple[int, int]  # height and width of the coded picture, turned as it is shown, pixels
    # Blocks (`golden.inputs.codec.BLOCK`) of each frame since the previous one yielded, the frame's own last.
    motions: tuple[np.ndarray, ...]
    lost: int  # in the first frame: packets before it that cannot be decoded, because the stream starts within a GOP
    picture: np.ndarray  # uint8 RGB [height, width, 3], or [size, size, 3] for a requested size


@dataclass(frozen=True)
class Window:
    """A sliding window: frames [start, start + len(frames)) of a stream."""

    index: int  # number of the window, from 0
    start: int  # number of its first frame in the stream
    frames: tuple[Frame, ...]
