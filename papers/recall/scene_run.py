"""Which scene a question fetches: joined scenes (`papers.recall.scenes`) in the real decoder, and a frame that asks.

The stream is that of `vrex papers stream`: prompt, then frame by frame through the vision encoder, the training-free
projector and the decoder, whose attention is the policy's. Then each scene but the last is asked for, every time from
the same state: a held-out frame of that scene is the question.

What counts are the far frames: all but the first and those that have one of the last `window` tokens. The first frame
has a sink, as the prompt has 3 tokens. Policies keep 4 sinks and the recent tokens on the device.
"""

import pickle
from dataclasses import dataclass, field
from functools import lru_cache
from time import process_time

import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs.decoder import N_LAYERS, Decoder
from openvrex.golden.inputs.frames import Frame
from openvrex.golden.inputs.trace import PROMPT
from openvrex.golden.inputs.vision import Projector, check_tokens, softmax
from openvrex.golden.policies.light_attention import Selected, by_kv_head
from openvrex.golden.policies.policy import Block, LayerBlock
from openvrex.golden.policies.policy_run import DecoderRun, decoder_shape
from openvrex.golden.policies.registry import Entry
from openvrex.papers.recall.scenes import ROOM, Scenes

WINDOW = 256  # recent tokens, which policies keep by default


@dataclass(frozen=True)
class SceneCase:
    """Scenes, the recent tokens that do not count, and the first layers of the decoder that run."""

    scenes: Scenes = field(default_factory=Scenes)
    window: int = WINDOW
    layers: int = N_LAYERS

    def checked(self) -> "SceneCase":
        """This case. Raises: `ParamError` for scenes that cannot be joined, or too few frames to leave the window."""
        s = self.scenes
        check_tokens(s.tokens)
        check(1 <= self.layers <= N_LAYERS, "layers", self.layers, f"must be 1 to {N_LAYERS}")
        skipped = len(s.clips) == 2  # the first frame, which is not far: then the only scene asked for holds it
        least = max(2, -(-(self.window + (1 + skipped) * s.tokens) // (2 * s.tokens)))
        check(
            s.frames >= least,
            "frames",
            s.frames,
            f"must be at least {least}: each scene that is asked for needs frames before the last {self.window} tokens",
        )
        s.checked()  # last, as it reads the clips
        return self


@dataclass(frozen=True)
class Answer:
    """What the questions about one stream attended to, summed over questions; lists have one figure a layer.

    attended : far tokens attended, over KV heads · right : those of them that belong to the scene asked for
    weight : full attention's softmax weight on far tokens, over rows and query heads, for the same queries and keys
    weight_right : the part of it on the scene asked for · weight_found : the part of it on attended tokens
    far, own : far tokens there are, over KV heads, in one layer; those of the scene asked for
    in_bytes, pieces : moved to the device for the questions, in how many transfers · seconds : of the processor
    fetched_of : share of each frame's tokens that the question about scene `drawn` attended, [layers][frames]
    weight_of : share of full attention's weight on the stream's frames that lies on each, the same
    questions : how many were asked
    """

    attended: list[int]
    right: list[int]
    weight: list[float]
    weight_right: list[float]
    weight_found: list[float]
    far: int
    own: int
    in_bytes: int
    pieces: int
    seconds: float
    fetched_of: list[list[float]]
    weight_of: list[list[float]]
    questions: int


class _Asked(DecoderRun):
    """A run that keeps what the last block attended, and full attention's weights for the same queries and keys."""

    keep: list[np.ndarray]  # of each layer, bool [kv_heads, n]
    weight: list[np.ndarray]  # the same, float64: softmax weight of full attention over rows and query heads

    def look(self, step: LayerBlock, chosen: Selected) -> None:
        if step.block.stage != "question":
            return
        scale = np.float32(self.shape.head_size**-0.5)
        scores = by_kv_head(step.q * scale, self.shape.kv_heads) @ step.k.swapaxes(1, 2)  # [kv_heads, T x group, n]
        rows = np.repeat(step.rows, self.shape.group)
        scores[:, (np.arange(step.n) > rows[:, None]) | ~self.known] = -np.inf
        self.keep.append(chosen.keep.copy())
        self.weight.append(softmax(scores).sum(axis=1, dtype=np.float64))


@lru_cache(maxsize=1)
def _decoder(tokens: int, layers: int) -> Decoder:
    return Decoder(layers, tokens)


def ask(case: SceneCase, entry: Entry) -> Answer:
    """Run a policy on joined scenes and ask for each but the last; the same case gives the same answer.

    Raises: `ParamError` and `VideoError` as `SceneCase.checked` does.
    """
    s = case.checked().scenes
    joined, visuals = s.joined(), s.joined().visuals()
    decoder = _decoder((len(visuals) + 1) * s.tokens + ROOM, case.layers)
    projector = Projector.fit(np.concatenate(visuals), decoder.embeddings)
    begun = process_time()
    run = _Asked(entry.build(decoder_shape(decoder)), decoder.width)
    _step(run, decoder, "prompt", decoder.embed(PROMPT))
    for visual, frame in zip(visuals, joined.shown(), strict=True):
        _step(run, decoder, "frame", projector(visual), visual, frame)
    before = run.records[-1].totals
    state = pickle.dumps(run, pickle.HIGHEST_PROTOCOL)
    asked = []
    for scene in range(len(joined.order) - 1):
        run = pickle.loads(state)
        run.keep, run.weight = [], []
        visual = joined.asking(scene)
        _step(run, decoder, "question", projector(visual), visual)
        asked.append(run)
    return _answer(case, asked, before, process_time() - begun)


def _step(
    run: _Asked,
    decoder: Decoder,
    stage: str,
    x: np.ndarray,
    visual: np.ndarray | None = None,
    frame: Frame | None = None,
) -> None:
    run.step(decoder, Block(len(run.records), stage, run.length, run.length + len(x), visual, frame), x)


def drawn(case: SceneCase) -> int:
    """The scene whose question a picture shows: the second where it can be, with scenes before and after it."""
    return min(1, len(case.scenes.clips) - 2)


def far_frames(case: SceneCase) -> np.ndarray:
    """Frames that count, bool [frames]: not the first one, behind a prompt of 3 tokens, and none of the window."""
    s = case.scenes
    after = s.tokens * np.arange(len(s.clips) * s.frames)[::-1]  # tokens that came after a frame
    far = after >= case.window
    far[0] = False
    return far


def _answer(case: SceneCase, asked: list[_Asked], before: dict[str, int], seconds: float) -> Answer:
    s = case.scenes
    frames = len(s.clips) * s.frames
    prompt = asked[0].records[0].stop
    stop = prompt + frames * s.tokens
    far = far_frames(case)

    def by_frame(x: list[np.ndarray]) -> np.ndarray:
        """Sums over KV heads and the tokens of a frame, [layers, frames]."""
        cut = np.stack(x)[:, :, prompt:stop]
        return cut.reshape(len(x), cut.shape[1], frames, s.tokens).sum(axis=(1, 3))

    sums = {name: np.zeros(case.layers) for name in ("attended", "right", "weight", "weight_right", "weight_found")}
    own_frames = 0
    for scene, run in enumerate(asked):
        own = far & (np.arange(frames) // s.frames == scene)
        own_frames += int(own.sum())
        kept, weight = by_frame(run.keep), by_frame(run.weight)
        found = by_frame([w * k for w, k in zip(run.weight, run.keep, strict=True)])
        for name, x, of in (("attended", kept, far), ("right", kept, own), ("weight", weight, far),
                            ("weight_right", weight, own), ("weight_found", found, far)):  # fmt: skip
            sums[name] += x[:, of].sum(axis=1)
        if scene == drawn(case):
            fetched_of = kept / (s.tokens * run.shape.kv_heads)
            weight_of = weight / weight.sum(axis=1, keepdims=True)

    def moved(prefix: str) -> int:
        """Bytes or pieces of the questions, which began from the same state."""
        counts = [sum(n for name, n in x.items() if name.startswith(prefix)) for x in
                  (before, *(run.records[-1].totals for run in asked))]  # fmt: skip
        return sum(counts[1:]) - len(asked) * counts[0]

    tokens = s.tokens * asked[0].shape.kv_heads
    return Answer(
        attended=sums["attended"].astype(int).tolist(),
        right=sums["right"].astype(int).tolist(),
        weight=sums["weight"].tolist(),
        weight_right=sums["weight_right"].tolist(),
        weight_found=sums["weight_found"].tolist(),
        far=len(asked) * int(far.sum()) * tokens,
        own=own_frames * tokens,
        in_bytes=moved("in."),
        pieces=moved("pieces.in."),
        seconds=seconds,
        fetched_of=fetched_of.round(4).tolist(),
        weight_of=weight_of.round(6).tolist(),
        questions=len(asked),
    )
