"""Streams of joined scenes: clips of different scenes one after another, and held-out frames to ask with.

A question about a video needs a trained projector and language. This project has neither for its models. So the
question is a picture: a frame of one scene that the stream did not show. It asks whether the decoder's attention, and
a policy, go back to the scene of that frame.
"""

import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs import video, vision
from openvrex.golden.inputs.frames import Frame
from openvrex.golden.inputs.trace import MAX_TOKENS

CLIPS = ("world", "bikes", "bigbuckbunny", "carphone")
ROOM = 64  # tokens of the decoder's positions that are left for the prompt
LIMIT = 512  # sampled frames of a clip that are used: 77 MB of pictures


@dataclass(frozen=True)
class Scenes:
    """What is joined: clips by name or path, frames shown of each, frames a second, tokens of a frame, and the seed.

    The seed decides the order of the clips and where in its clip each scene starts.
    """

    clips: tuple[str, ...] = CLIPS
    frames: int = 24
    fps: float = 8.0
    tokens: int = 10
    seed: int = 1

    def checked(self) -> "Scenes":
        """These scenes. Raises: `ParamError` for scenes that cannot be joined, `VideoError` for a clip."""
        check(len(self.clips) >= 2, "clips", ",".join(self.clips), "must be at least two: one is asked for")
        check(len(set(self.clips)) == len(self.clips), "clips", ",".join(self.clips), "must be different clips")
        check(self.frames >= 1, "frames", self.frames, "must be at least 1")
        check(0 < self.fps < float("inf"), "fps", self.fps, "must be above 0")
        vision.check_tokens(self.tokens)
        size, most = (len(self.clips) * self.frames + 1) * self.tokens, MAX_TOKENS - ROOM
        check(size <= most, "frames", self.frames, f"give {size} tokens, of which the decoder holds {most}: take fewer")
        for clip in self.clips:
            has = len(_sampled(clip, self.fps)) - 1  # one more is held out
            check(self.frames <= has, "frames", self.frames, f"must be at most {has} of {clip} at fps={self.fps:g}")
        return self

    def joined(self) -> "Joined":
        """The stream that these scenes become."""
        rng = random.Random(f"scenes {self.seed}")
        order = rng.sample(self.clips, len(self.clips))
        starts = [rng.randrange(len(_sampled(clip, self.fps)) - self.frames) for clip in order]
        return Joined(self, tuple(order), tuple(starts))


@dataclass(frozen=True)
class Joined:
    """A stream of scenes: the clips in order, and the first sampled frame of each that it shows.

    Scene s is frames s * scenes.frames to (s + 1) * scenes.frames of the stream. The frame of its clip that follows is
    held out, to ask for the scene.
    """

    scenes: Scenes
    order: tuple[str, ...]
    starts: tuple[int, ...]

    def name(self, scene: int) -> str:
        """The clip of a scene, without its folder."""
        return Path(self.order[scene]).stem

    def shown(self) -> list[Frame]:
        """The frames of the stream, with their pictures. Each scene starts with an I-frame without motion."""
        out: list[Frame] = []
        for clip, start in zip(self.order, self.starts, strict=True):
            own = _sampled(clip, self.scenes.fps)[start : start + self.scenes.frames]
            before = out[-1].gop + 1 if out else 0
            for i, frame in enumerate(own):
                frame = replace(frame, index=len(out), gop=before + frame.gop - own[0].gop, lost=0)
                if i == 0:
                    frame = replace(frame, kind="I", leads=True, motions=(frame.motions[-1][:0],))
                out.append(frame)
        return out

    def held_out(self, scene: int) -> Frame:
        """The frame that asks for a scene."""
        return _sampled(self.order[scene], self.scenes.fps)[self.starts[scene] + self.scenes.frames]

    def visuals(self) -> list[np.ndarray]:
        """Vision tokens [tokens, vision width] of the frames shown, in order."""
        return [
            _seen(clip, self.scenes.fps, start + i, self.scenes.tokens)
            for clip, start in zip(self.order, self.starts, strict=True)
            for i in range(self.scenes.frames)
        ]

    def asking(self, scene: int) -> np.ndarray:
        """Vision tokens [tokens, vision width] of the frame that asks for a scene."""
        s = self.scenes
        return _seen(self.order[scene], s.fps, self.starts[scene] + s.frames, s.tokens)


@cache
def _sampled(clip: str, fps: float) -> tuple[Frame, ...]:
    return tuple(video.read(clip, LIMIT, fps, vision.IMAGE))


@cache
def _seen(clip: str, fps: float, number: int, tokens: int) -> np.ndarray:
    """A frame is encoded once in a process, however many streams show it."""
    return vision.pool(_encoder()(_sampled(clip, fps)[number].picture), tokens)


@cache
def _encoder() -> vision.VisionEncoder:
    return vision.VisionEncoder()
