"""A video, a prompt and a question as parts of a stream for a decoder; the answer of FP32 full attention to them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs import video, vision
from openvrex.golden.inputs.decoder import Decoder

FIT = 32  # frames on which the projector is fitted


@dataclass(frozen=True)
class VideoQuestion:
    """What a user asks about a video.

    clip : video file or the name of a clip · frames, tokens : how many frames to take, and tokens of each
    fps : frames per second to sample; None: every frame
    prompt, question : texts before and after the frames
    gop : encode the sampled frames anew in groups of so many first; 0: take them as they are

    Raises `ParamError` for numbers that cannot work.
    """

    clip: str
    frames: int
    tokens: int
    fps: float | None
    prompt: str
    question: str
    gop: int = 0

    def __post_init__(self) -> None:
        check(self.frames >= 0, "frames", self.frames, "must not be negative")
        check(self.fps is None or 0 < self.fps < float("inf"), "fps", self.fps, "must be above 0")
        check(self.gop >= 0, "gop", self.gop, "must not be negative")
        vision.check_tokens(self.tokens)

    def pictures(self) -> list[np.ndarray]:
        """The frames, uint8 RGB [size, size, 3]. Raises `VideoError` for a bad input."""
        if not self.frames:
            return []
        if not self.gop:
            return list(video.frames(video.locate(self.clip), self.frames, self.fps, vision.IMAGE))
        with TemporaryDirectory() as folder:
            encoded = Path(folder) / "stream.mkv"
            video.reencode(self.clip, encoded, self.gop, self.frames, self.fps)
            return list(video.frames(encoded, self.frames, None, vision.IMAGE))

    def watch(
        self,
        pictures: list[np.ndarray],
        decoder: Decoder,
        progress: Callable[[int], None] = lambda done: None,
        projector: vision.Projector | None = None,
    ) -> "Watched":
        """Encode prompt, frames and question in FP32.

        projector : between the vision encoder and the decoder; if not given it is fitted to these frames, not trained
            (`golden.inputs.vision`)
        """
        encoder = vision.VisionEncoder()
        seen = []
        for picture in pictures:
            seen.append(vision.pool(encoder(picture), self.tokens))
            progress(len(seen))
        shown: list[np.ndarray] = []
        if seen:
            projector = projector or vision.Projector.fit(np.concatenate(seen[:FIT]), decoder.embeddings)
            shown = [projector(x).astype(np.float32) for x in seen]
        before, behind = decoder.around(self.prompt, self.question)
        return Watched(encoder, projector, [before, *shown, behind])


class Watched(NamedTuple):
    """A question in FP32.

    projector : from the encoder's tokens to embeddings; None without a frame
    parts : embeddings [tokens, width] of the prompt, each frame and the question
    """

    encoder: vision.VisionEncoder
    projector: vision.Projector | None
    parts: list[np.ndarray]


def answer(
    decoder: Decoder, parts: list[np.ndarray], generate: int, outputs: list[np.ndarray] | None = None
) -> Iterator[tuple[int, float]]:
    """Tokens that FP32 full attention generates, with the probability of each; the end-of-text token is the last.

    outputs : gets the hidden states behind the last layer of each part, [tokens, width]

    The decoder's cache must be empty, and hold the parts and the answer.
    """
    hidden = None
    for x in parts:
        if len(x):
            hidden = decoder(x)
        if outputs is not None:
            outputs.append(hidden[len(hidden) - len(x) :] if hidden is not None else x)
    for k in range(generate):
        assert hidden is not None
        token, probability = likeliest(decoder.logits(hidden[-1:])[0])
        yield token, probability
        if token == decoder.end or k == generate - 1:
            return
        hidden = decoder(decoder.inputs([token]))


def likeliest(logits: np.ndarray) -> tuple[int, float]:
    """The token of the largest logit, and its probability."""
    wide = logits.astype(np.float64)
    return int(wide.argmax()), float(1 / np.exp(wide - wide.max()).sum())
