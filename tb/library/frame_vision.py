"""A vision encoder on the core of a stream of frames: which frames it encodes, whole or in part, and its passes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs.codec import patches_of
from openvrex.golden.inputs.vision import GRID, Projector, VisionEncoder
from openvrex.golden.policies.stream_runs import Segment
from openvrex.golden.program.core_model import Core
from openvrex.golden.program.encoder_compiler import EncoderShape
from openvrex.golden.program.encoder_host import EncoderHost, EncoderStep
from openvrex.golden.program.isa import LxeFormat
from openvrex.tb.library.pass_stream import Pass, places

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


def vision_pass(core: Core, block: int, host: EncoderHost, step: EncoderStep) -> Pass:
    """One step of the frame of a block.

    Its facts: block, stage, layer · `kind`: vision · `tokens` that are encoded
    """
    [program], [registers] = step.programs, step.registers
    assert program is not None  # a core alone has a part in every stage
    layer = [f"layer {step.layer}"] * (step.layer is not None)
    facts = {"of": -1, "block": block, "stage": "frame", "layer": step.layer, "part": 0, "kind": "vision"}
    facts |= {"tokens": host.shape.tokens, "refreshed": 0}
    return Pass(
        ", ".join([f"frame {block}", "vision", *layer, *step.stages]),
        program,
        registers,
        lambda: core.run(program, registers),
        lambda _: facts,
        lambda: places(host.arrays(step.layer), host.memory),
        step=step,
    )


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
