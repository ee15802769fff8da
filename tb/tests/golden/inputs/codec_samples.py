"""Streams of several codecs."""

import numpy as np

from tb.tests.golden.inputs.video_samples import texture

CODECS = ("libx264", "mpeg4", "mpeg2video")


def square(n: int) -> list[np.ndarray]:
    """Pictures of noise over which a square of other noise moves; after twelve it starts again."""
    still, mark = texture(1, size=192)[0], texture(1, size=32, seed=4)[0]
    out = [still.copy() for _ in range(n)]
    for k, picture in enumerate(out):
        picture[16 + 4 * (k % 12) :][:32, 24 + 8 * (k % 12) :][:, :32] = mark
    return out
