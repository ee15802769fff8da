"""Small streams for policies that move a window: random tokens, frames with motion vectors, a small decoder."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from openvrex.golden.inputs.codec import BLOCK, PruneParams, Pruner
from openvrex.golden.inputs.frames import Frame
from openvrex.golden.policies.registry import Entry, override
from openvrex.golden.policies.stream_runs import Segment
from openvrex.golden.policies.window_decisions import windowed
from openvrex.golden.program.encoder_host import EncoderHost
from openvrex.hdl.params import CoreParams
from openvrex.tb.library import small_encoder, small_models
from openvrex.tb.library.frame_vision import FrameVision, SeenFrame

GOP = 2
STILL = np.array([(x, y, 16, 16, 0, 0, 0) for y in range(0, 64, 16) for x in range(0, 64, 16)], BLOCK)
# Windows so small that a short stream leaves them, and every kind of event happens.
SMALL = {
    "full": {},
    "streamingllm": {"sinks": 2, "recent": 8},
    "codecsight": {"window": 4, "stride": 2},
    "hybrid": {"block_tokens": 2, "sink_blocks": 1, "recent_blocks": 3},
}
# Hybrid memory's branch at a size for a core of few lanes.
HISTORY = {"ssm": "random", "state.state": 4}


class SmallDecoder(small_models.PlainDecoder):
    """The small decoder in FP32, with room for 200 positions."""

    end = -1

    def __init__(self, seed: int = 1):
        super().__init__(small_models.model(seed), 200)


def policy(name: str, **params: object) -> Entry:
    """A policy of `WINDOWED`, with the parameters of `SMALL` and those given."""
    found = windowed(name)
    text = {key: str(value).lower() for key, value in (SMALL[name] | params).items()}
    return Entry(found.policy, override(found.params, text))


def frame(i: int, moving: Sequence[int], gop: int = GOP) -> Frame:
    """Frame i of a stream of GOPs: an I-frame, or a P-frame in which some blocks of 16 x 16 move."""
    blocks = STILL.copy()
    blocks["dx"][list(moving)] = 9
    leads = i % gop == 0
    none = np.zeros((0, 0, 3), np.uint8)
    return Frame(i, "I" if leads else "P", i // gop, leads, None, (64, 64), (blocks,), 0, none)


def segments(
    frames: int = 6, tokens: int = 4, prompt: int = 3, question: int = 6, after: int = 1, seed: int = 3
) -> list[Segment]:
    """A prompt, frames of `tokens` tokens, a question and `after` later tokens. In every fourth frame nothing moves."""
    rng = np.random.default_rng(seed)
    own = small_models.model(1).embeddings

    def x(n: int) -> np.ndarray:
        return own[rng.integers(len(own), size=n)]

    shown = [Segment("frame", x(tokens), frame=frame(i, [] if i % 4 == 3 else [0, 2])) for i in range(frames)]
    later = [Segment("generation", x(1)) for _ in range(after)]
    return [Segment("prompt", x(prompt)), *shown, Segment("question", x(question)), *later]


def seen(given: list[Segment], p: CoreParams, pruned: bool = True) -> tuple[FrameVision, list[Segment]]:
    """A small encoder for the frames of a stream, and the stream with the exact embeddings of its pictures.

    pruned : whether frames are encoded in part: the tokens that CodecSight keeps
    """
    width = given[0].x.shape[1]
    shape = replace(small_encoder.SHAPE, side=4, shown=0, projector=(width,))
    host = EncoderHost(shape, p.lxe_format(), small_encoder.model(shape, 2))
    frames, out = {}, list(given)
    pruner = Pruner(PruneParams(grid=4))
    for i, one in enumerate(given):
        if one.stage == "frame" and one.frame:
            picture = small_encoder.patches(shape, i)
            keep = pruner(one.frame) if pruned else None
            frames[i], x = SeenFrame(picture, keep), one.x.copy()
            _, exact = small_encoder.exact(shape, host.weights, picture, keep)
            x[slice(None) if keep is None else keep.ravel()] = exact
            out[i] = replace(one, x=x)
    return FrameVision(host, frames), out
