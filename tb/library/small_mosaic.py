"""A small stream for Mosaic: frames that look alike, with visual embeddings, in a small decoder."""

from dataclasses import replace

import numpy as np

from openvrex.golden.policies.mosaic import Mosaic, MosaicParams
from openvrex.golden.policies.mosaic_clusters import Threshold
from openvrex.golden.policies.registry import Entry
from openvrex.golden.policies.stream_runs import Segment
from openvrex.tb.library import small_models
from openvrex.tb.library.mosaic_stream import MosaicStream, Room
from openvrex.tb.library.small_windows import SmallDecoder, segments

# Windows, clusters and thresholds so small that every kind of event happens in a short stream.
PARAMS = MosaicParams(
    ratio=0.3,
    breadth=2.0,
    recent=13,
    build=2,
    partition_frames=2,
    cluster_tokens=3,
    visual=Threshold(0.5, 0.9),
    semantic=Threshold(0.3, 0.5, 4.0),
    arithmetic="hardware",
)
ROOM = Room(48, 24, 8, 32)


def shown(frames: int = 8, tokens: int = 4, seed: int = 3, noise: float = 0.3) -> list[Segment]:
    """A prompt, frames, a question and a later token. Token k of each frame is near token k of the first one."""
    rng = np.random.default_rng(seed)
    out = segments(frames=frames, tokens=tokens, prompt=3, question=4, after=1, seed=seed)
    base = out[1].x
    for i, s in enumerate(out):
        if s.stage == "frame":
            x = base + noise * rng.normal(size=base.shape)
            out[i] = replace(s, x=x.astype(np.float32), visual=rng.normal(size=(tokens, 16)).astype(np.float32))
    return out


def stream(
    given: list[Segment], layers: int = 2, room: Room = ROOM, core: tuple[str, ...] = (), **changes: object
) -> MosaicStream:
    """The stream on a golden core. `core` : more of its parameters"""
    decoder = SmallDecoder()
    decoder.layers = decoder.layers[:layers]
    entry = Entry(Mosaic, replace(PARAMS, **changes))  # type: ignore[arg-type]
    return MosaicStream(entry, given, decoder, small_models.params(*core), room)
