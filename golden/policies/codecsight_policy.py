"""CodecSight as a retrieval policy: prunes tokens before they enter the cache, and refreshes tokens inside it.

`papers.policies.codecsight_encoder` is the system itself, with its vision encoder and windows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isqrt

import numpy as np

from openvrex.golden.function_params import Parameters, check, parameter
from openvrex.golden.inputs.codec import Coded, PruneParams, Pruner
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.light_attention import Selected
from openvrex.golden.policies.policy import Admitted, LayerBlock, Policy


@dataclass(frozen=True)
class CodecSightParams(Parameters):
    """Parameters of CodecSight. The window is that of the paper's evaluation: 40 s, 2 frames a second, stride 20 %."""

    window: int = parameter(80, "frames of a window", low=1)
    stride: int = parameter(16, "frames by which a window moves on", low=1)
    refresh: bool = parameter(True, "compute the I-frames of the overlap anew; False: full reuse")
    prune: PruneParams = field(default_factory=PruneParams)  # the grid follows from the tokens of a frame

    def __post_init__(self):
        super().__post_init__()
        check(1 <= self.stride <= self.window, "stride", self.stride, f"must be 1 to window = {self.window}")

    def pruning(self, tokens: int) -> PruneParams:
        """How frames of so many tokens are pruned. Raises `ParamError` for a number that is no square, nor one more."""
        g = isqrt(tokens)
        must = "of a frame must be g*g, or g*g + 1 with a class token: choose such a number of tokens"
        check(tokens in (g * g, g * g + 1), "tokens", tokens, must)
        return replace(self.prune, grid=g * self.prune.group)


class CodecSightPolicy(Policy):
    """Codec-guided token pruning and selective KVC refresh (sections 3.3 and 3.4) on a stream of frames.

    Pruning. Only the dynamic tokens of a frame enter the decoder. A frame of g x g tokens is judged on 2 g x 2 g
    patches. A class token always enters.

    Window. When the frame after a window arrives, the window moves on by `stride`. It starts at the I-frame of the GOP
    that it falls in. The policy drops all frames before it. With `refresh` it computes the tokens of the overlap's
    I-frames anew from their embeddings, before the tokens of the new frame. Text stays.

    Positions. Equation 5 turns the overlap's keys back by one position for each dropped token. Rotary attention
    depends on differences only. So here the overlap stays, and the text before it moves on by as many positions. The
    scores are the same; only the prompt's keys turn instead of a window's, and no rounding adds up. Pruned tokens take
    no position.

    Frames without codec data (`Block.frame`), such as those of a trace, are neither pruned nor refreshed. What remains
    is a sliding window. The visual tokens of a run come from whole frames; an encoder that skips pruned patches is
    `papers.policies.codecsight_encoder.Vision`.
    """

    source = "CodecSight 3.3, 3.4, Eq. 1-5"
    turns = True
    events = ("pruned", "dropped", "refreshed", "turned")

    def __init__(self, params: CodecSightParams, shape: Shape):
        super().__init__(params, shape)
        self.pruner: Callable[[Coded], np.ndarray] | None = None  # tokens of a frame; hardware may take this place
        self.leads: list[bool] = []  # whether each frame is an I-frame
        self.first = 0  # first frame of the window
        self.frame = np.zeros(0, np.int64)  # [n] frame of each token, -1 for text
        self.admitted = np.zeros(0, bool)  # [n] not pruned
        self.dropped = np.zeros(0, bool)  # [n] admitted once, and dropped when the window moved on

    def plan(self, block: Block) -> Admitted:
        admit, number = np.ones(block.stop - block.start, bool), -1
        if block.stage == "frame":
            number = len(self.leads)
            self.leads.append(block.frame is not None and block.frame.leads)
            if block.frame is not None:
                admit = self._dynamic(block.frame, len(admit))
        self.frame = np.concatenate([self.frame, np.full(len(admit), number)])
        self.admitted = np.concatenate([self.admitted, admit])
        self.dropped = np.concatenate([self.dropped, np.zeros(len(admit), bool)])
        refresh = self._slide(number)
        rows = np.concatenate([refresh, block.tokens[admit]])
        return Admitted(admit, refresh, (np.cumsum(self.admitted) - 1)[rows])

    def _dynamic(self, frame: Coded, tokens: int) -> np.ndarray:
        """Which tokens of a frame enter the decoder, bool [T]: a class token if there is one, then the dynamic ones."""
        prune = self.params.pruning(tokens)
        if self.pruner is None:
            self.pruner = Pruner(prune)
        g = prune.grid // prune.group
        self.ledger.work("compare", prune.grid**2)
        return np.concatenate([np.ones(tokens - g * g, bool), self.pruner(frame).ravel()])

    def _slide(self, frame: int) -> np.ndarray:
        """Move the window on if `frame` is the one after it; returns the tokens to refresh."""
        p = self.params
        if frame < p.window or (frame - p.window) % p.stride:
            return np.zeros(0, np.int64)
        start = frame - p.window + p.stride
        start = max((i for i in range(self.first, start + 1) if self.leads[i]), default=start)
        gone = self.admitted & (self.frame >= self.first) & (self.frame < start)
        if not gone.any():
            return np.zeros(0, np.int64)
        self.first = start
        self.dropped |= gone
        for layer in range(self.shape.layers):
            self.store.drop(layer, gone)
        # A rotation takes 2 multiplications and an addition a number.
        self.ledger.work("elementwise", 3 * int(self._turn().astype(bool).sum()) * self._numbers)
        overlap = (self.frame >= start) & (self.frame < frame) & np.array([*self.leads, False])[self.frame]
        return np.flatnonzero(overlap & self.admitted) if p.refresh else np.zeros(0, np.int64)

    @property
    def _numbers(self) -> int:
        """Numbers of a token's keys in all layers."""
        return self.shape.layers * self.shape.kv_heads * self.shape.head_size

    def _turn(self) -> np.ndarray:
        """Positions by which stored keys move on, [n]: one for each token dropped after them, so only text moves."""
        after = self.dropped.sum() - np.cumsum(self.dropped)
        return np.where(self.admitted & ~self.dropped, after, 0)

    def select(self, step: LayerBlock) -> Selected:
        keep = self.admitted & ~self.dropped
        return Selected(
            np.repeat(keep[None], self.shape.kv_heads, 0), turn=self._turn() if self.dropped.any() else None
        )
