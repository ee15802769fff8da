"""What arrives: the model that a policy serves, and the blocks of a stream."""

from dataclasses import dataclass

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs.frames import Frame

STAGES = ("prompt", "frame", "question", "generation")


@dataclass(frozen=True)
class Shape:
    """The sizes of the model that a policy serves.

    Query head h reads KV head h // group. Rotary embedding turns the pair (i, i + head_size / 2) of a key at position p
    by p * frequencies[layer][i] radians. Frequencies and epsilon are None where they are not known. Raises `ParamError`
    for sizes that do not fit together.
    """

    layers: int
    heads: int  # query heads
    kv_heads: int
    head_size: int  # numbers of a head
    frequencies: tuple[tuple[float, ...], ...] | None = None  # radians a position, [layers][head_size / 2]
    epsilon: float | None = None  # of the RMS norms
    model: str = ""  # name of the decoder (`golden.inputs.decoder.Decoder.name`); empty where it is not known

    def __post_init__(self):
        for name in ("layers", "heads", "kv_heads", "head_size"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        check(self.heads % self.kv_heads == 0, "heads", self.heads, f"must be a multiple of kv_heads = {self.kv_heads}")
        if self.frequencies is not None:
            sizes = [len(own) for own in self.frequencies]
            want = [self.head_size // 2] * self.layers
            check(sizes == want, "frequencies", sizes, f"must be head_size / 2 numbers for each layer, {want}")

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def entry_bytes(self) -> int:
        """Bytes of K and V for one token, one KV head and one layer, in BF16."""
        return 4 * self.head_size


@dataclass(frozen=True)
class Block:
    """Tokens of the stream that arrive together."""

    index: int  # number of the block in the stream
    stage: str  # one of `STAGES`
    start: int  # first token
    stop: int  # first token behind the block
    visual: np.ndarray | None = None  # [T, width] FP32: vision tokens of a frame, if the source has them
    frame: Frame | None = None  # the decoded frame with its motion and type, if the source has it

    @property
    def tokens(self) -> np.ndarray:
        """Indices of the block's tokens, int64 [T]."""
        return np.arange(self.start, self.stop)
