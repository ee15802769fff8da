"""A vision encoder on the core of a stream of frames: which frames it encodes, whole or in part, and its passes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs.codec import patches_of
from openvrex.golden.inputs.vision import GRID, Projector, VisionEncoder
from openvrex.golden.policies.stream_runs import Segment
from openvrex.golden.program.core_model import Core
from openvrex.golden.program.encoder_compiler import EncoderShape
from openvrex.golden.program.encoder_host import EncoderHost, EncoderStep
from openvrex.golden.program.isa import Instruction, LxeFormat
from openvrex.golden.program.lxe_model import Result
from openvrex.tb.library.pass_stream import Place

GROUP = EncoderShape.group


@dataclass(frozen=True)
class SeenFrame:
    """A frame: normalised patches [patches, numbers], and which tokens enter the decoder, bool [g, g]; None: all."""

    patches: np.ndarray
    keep: np.ndarray | None = None


@dataclass(frozen=True)
class FrameVision:
    """An encoder, and the frames of a stream by the number of their block."""

    host: EncoderHost
    frames: Mapping[int, SeenFrame]

    def of(self, block: int) -> EncoderHost | None:
        """The host that encodes the frame of a block; None if no token of it enters the decoder."""
        keep = self.frames[block].keep
        if keep is None:
            return self.host
        return self.host.of(int(keep.sum())) if keep.any() or self.host.shape.shown else None

    def steps(self, block: int) -> Iterator[tuple[EncoderHost, EncoderStep]]:
        """The steps of the frame of a block, behind writing it to memory."""
        host, frame = self.of(block), self.frames[block]
        if host:
            host.begin(frame.patches, frame.keep)
            yield from ((host, step) for step in host.steps())

    @property
    def total(self) -> int:
        """The number of steps of all frames."""
        hosts = map(self.of, self.frames)
        return sum(len(list(host.steps())) for host in hosts if host)


@dataclass(frozen=True)
class VisionPass:
    """One step of a frame: a `tb.library.pass_stream.Pass`.

    Its facts: block, stage, layer · `kind`: vision · `tokens` that are encoded
    """

    core: Core
    block: int
    host: EncoderHost
    step: EncoderStep
    stages: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Block, layer and stages."""
        layer = [f"layer {self.step.layer}"] * (self.step.layer is not None)
        return ", ".join([f"frame {self.block}", "vision", *layer, *self.step.stages])

    @property
    def program(self) -> list[Instruction]:
        """Shared by all layers."""
        [program] = self.step.programs
        assert program is not None  # a core alone has a part in every stage
        return program

    @property
    def registers(self) -> dict[int, int]:
        """Addresses."""
        return self.step.registers[0]

    def run(self) -> Result:
        """Execute the step on golden."""
        return self.core.run(self.program, self.registers)

    def facts(self, result: Result) -> dict[str, Any]:
        """Figures of the step after `run`."""
        out = {"of": -1, "block": self.block, "stage": "frame", "layer": self.step.layer, "part": 0, "kind": "vision"}
        return out | {"tokens": self.host.shape.tokens, "refreshed": 0}

    def places(self) -> list[Place]:
        """The arrays of the step, then the regions of memory."""
        own = [Place(a.name, at, a.shape, a.dtype) for a, at in self.host.arrays(self.step.layer)]
        return own + [Place(r.name, r.base, (r.size,), np.uint8) for r in self.host.memory.regions]


def check_pruned(tokens: int) -> None:
    """Raise `ParamError` unless the encoder can leave out the patches of pruned tokens of frames of so many tokens."""
    whole = (GRID // GROUP) ** 2
    must = f"must be {whole} or {whole + 1} to encode frames in part: a token is {GROUP} x {GROUP} of {GRID} x {GRID}"
    check(tokens in (whole, whole + 1), "tokens", tokens, f"{must} patches; or take --encoder numpy")


def seen_frames(
    segments: Sequence[Segment],
    pictures: Sequence[np.ndarray],
    projector: Projector,
    fmt: LxeFormat,
    masks: Sequence[np.ndarray] | None,
) -> tuple[FrameVision, list[Segment]]:
    """The encoder of a stream on a core, and its segments with what the encoder in FP32 makes of pruned frames.

    pictures : of each frame, uint8 [224, 224, 3] · masks : tokens that are kept of each frame, bool [g, g]; None: all

    Raises `ParamError` as `check_pruned` does.
    """
    encoder = VisionEncoder()
    at = [i for i, s in enumerate(segments) if s.stage == "frame"]
    tokens, width = segments[at[0]].x.shape
    if masks is not None:
        check_pruned(tokens)
    host = EncoderHost(encoder.shape(tokens, width), fmt, encoder.folded(projector))
    shown, out, frames = host.shape.shown, list(segments), {}
    for k, (i, picture) in enumerate(zip(at, pictures, strict=True)):
        keep = None if masks is None else masks[k]
        frames[i] = SeenFrame(encoder.pixels(picture), keep)
        if keep is not None:
            side = GRID // GROUP
            all_ = encoder(picture, patches_of(keep, GROUP))
            means = all_[1:].reshape(side, GROUP, side, GROUP, -1).mean((1, 3))[keep]
            x = segments[i].x.copy()
            x[np.flatnonzero(np.concatenate([np.ones(shown, bool), keep.ravel()]))] = projector(
                np.concatenate([all_[:shown], means])
            )
            out[i] = replace(segments[i], x=x)
    return FrameVision(host, frames), out
