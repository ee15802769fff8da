"""Streams on which policies run, and runs that can be killed and resumed.

A stream is a recorded trace (`TraceStream`), or a video or real text in a decoder (`DecoderStream`). `follow` runs a
policy on a stream to its end; full attention comes first, as the others are compared with it. The folder of a stream
keeps all that a later call needs to continue:

| file | contents |
| --- | --- |
| `source.json` | what the stream is; another stream is refused |
| `stream.mkv` | the video encoded anew, if a GOP was asked for |
| `visual/N.npy` | vision tokens of frame N |
| `NAME.run` | a policy's run after some whole block (a pickle: resume only folders that you trust) |

A run is saved at its end, and after a block whenever the last saving took less than a tenth of the time since. Each
file is written under another name and then renamed. So a kill leaves the state after some block, and a resumed run ends
with the same bits as an uninterrupted one.
"""

import json
import pickle
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics
from time import monotonic

import numpy as np

from openvrex.golden.atomic_files import replacing
from openvrex.golden.function_params import ParamError, check
from openvrex.golden.inputs import decoder, vision
from openvrex.golden.inputs.codec import mean_motion
from openvrex.golden.inputs.frames import Frame
from openvrex.golden.inputs.model_file import FileDecoder, ModelFile
from openvrex.golden.inputs.trace import MAX_TOKENS, Trace, TraceError
from openvrex.golden.inputs.video import VideoError, digest, fallbacks, locate, read, reencode
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.policy_run import DecoderRun, Record, Run, TraceRun, decoder_shape, shape_of
from openvrex.golden.policies.policy_run import blocks as trace_blocks
from openvrex.golden.policies.registry import Entry

FIT = 32  # frames to which the projector is fitted
VERSION = 2  # version of the files
SAVING = 0.1  # share of a run's time that saving it may take
TEXT = "text"  # name of the stream of real text
REENCODED = "stream.mkv"  # in the folder of a stream


@dataclass(frozen=True)
class Segment:
    """A block of a decoder's stream."""

    stage: str  # one of `golden.policies.blocks.STAGES`
    x: np.ndarray  # [T, width]: embeddings
    targets: np.ndarray | None = None  # [T]: token that follows each, -1 for the decoder's own choice
    visual: np.ndarray | None = None  # [T, vision width]: vision tokens
    frame: Frame | None = None  # the decoded frame


@dataclass(frozen=True)
class Options:
    """How a video or a text becomes a stream. Raises `ParamError` for values out of range."""

    frames: int = 48  # most frames, or blocks of text
    tokens: int = 36  # tokens of a frame, or of a block of text
    fps: float | None = None  # frames a second to sample; None takes all
    question: str = "What does the video show?"
    generate: int = 16  # tokens of the answer
    gop: int = 0  # GOP to which a sampled video is encoded anew, without B-frames; 0 takes it as it is
    depth: int | None = None  # first layers of the decoder to run; None for all

    def __post_init__(self):
        for name, least in (("frames", 1), ("tokens", 1), ("generate", 0), ("gop", 0)):
            check(getattr(self, name) >= least, name, getattr(self, name), f"must be at least {least}")
        check(self.fps is None or 0 < self.fps < float("inf"), "fps", self.fps, "must be above 0")
        size = self.frames * self.tokens
        check(
            self.capacity <= MAX_TOKENS,
            "frames * tokens",
            size,
            f"the decoder knows only {MAX_TOKENS} positions: take fewer",
        )

    @property
    def capacity(self) -> int:
        """Upper bound of the stream's tokens."""
        return self.frames * self.tokens + self.generate + 64 + len(self.question.encode())


class TraceStream:
    """A recorded trace, with the layers and blocks that it holds. Every policy sees the same queries.

    Raises `TraceError` before it writes anything if a policy turns keys and the trace does not say how.
    """

    motion = None  # unknown in a trace
    fallbacks = ()

    def __init__(self, path: Path, folder: Path, entries: dict[str, Entry]):
        self.trace = Trace.load(path)
        for name, found in entries.items():
            if found.policy.turns and self.shape.frequencies is None:
                raise TraceError(f"{path}: {self._unknown(name)}")
        self.source = {"stream": path.name, "sha256": digest(path)}
        claim(folder, self.source)

    @property
    def shape(self) -> Shape:
        """The shape of the recorded layers."""
        return shape_of(self.trace)

    @property
    def layers(self) -> tuple[int, ...]:
        """The decoder's number of each layer of a run."""
        return self.trace.layers

    def _unknown(self, policy: str) -> str:
        if self.trace.model is None:
            return f"does not say how its keys are turned, which {policy} needs: record it again with 'vrex trace'"
        return f"its keys do not turn evenly from token to token, so {policy} cannot move them: leave that policy out"

    def start(self, entry: Entry) -> Run:
        """Begin a run of a policy."""
        return TraceRun(entry.build(self.shape), self.trace)

    def run(self, run: Run, teacher: list[Record] | None) -> Iterator[int]:
        """Continue a run to its end; yields the number of blocks to come after each block."""
        assert isinstance(run, TraceRun)  # from `start`
        todo = list(trace_blocks(self.trace))[len(run.records) :]
        for left, block in zip(range(len(todo) - 1, -1, -1), todo, strict=True):
            run.step(self.trace, block)
            yield left


class DecoderStream:
    """A video, or the standard library's documentation as real text (`TEXT`), in the decoder.

    The segments of a video are those of `golden.inputs.trace_recorder.record`: a prompt, the frames, a question,
    generated tokens. Text has blocks of text in place of frames, and a loss at every token. The first run, full
    attention, generates the answer. The other runs are fed its tokens, so that all choices are compared after the
    same input. A policy that `speaks` also answers in its own words: a copy of its run at the question's end is fed
    its own choices.

    motion : the video's mean motion (`golden.inputs.codec.mean_motion`)
    fallbacks : warnings about the video (`golden.inputs.video.fallbacks`)
    projector : of a video, from vision tokens to embeddings

    model : the user's decoder in place of SmolLM2

    Raises `ParamError` for more layers or positions than the decoder has.
    """

    def __init__(
        self,
        video: str,
        options: Options,
        folder: Path,
        progress: Callable[[int, int], None],
        model: ModelFile | None = None,
    ):
        layers = model.constants.layers if model else decoder.N_LAYERS
        check(options.depth is None or 1 <= options.depth <= layers, "depth", options.depth, f"must be 1 to {layers}")
        self.options = options
        self.source = {"stream": video if video == TEXT else Path(video).name, **vars(options)}
        if video == TEXT:
            check(options.gop == 0, "gop", options.gop, "must be 0 for text")
        else:
            vision.check_tokens(options.tokens)
            self.source["sha256"] = digest(locate(video))
        if model:
            most = model.constants.positions
            reason = f"must be at most {most}, the model's positions: take fewer frames or tokens"
            check(options.capacity <= most, "tokens of the stream", options.capacity, reason)
            self.source["model"] = model.digests()
        self.source["packages"] = {p: metadata.version(p) for p in ("numpy", "av")}
        claim(folder, self.source)
        visuals, frames = ([], []) if video == TEXT else self._see(video, folder, progress)
        self.motion = mean_motion(frames)
        taken = read(video, options.frames, options.fps, 8) if options.gop else frames
        self.fallbacks = fallbacks(taken)
        if self.motion is None and len(frames) > 1:
            self.fallbacks.append("has no motion vectors: its motion is not known, and nothing is pruned by motion")
        depth, most = options.depth or layers, options.capacity
        self.decoder = FileDecoder(model, depth, most) if model else decoder.Decoder(depth, most)
        self.segments = self._text() if video == TEXT else self._video(visuals, frames)
        self.answer_from = len(self.segments)

    @property
    def shape(self) -> Shape:
        """The shape of the decoder."""
        return decoder_shape(self.decoder)

    @property
    def layers(self) -> tuple[int, ...]:
        """The decoder's number of each layer of a run: all, in order."""
        return tuple(range(len(self.decoder.layers)))

    def _see(self, video: str, folder: Path, progress: Callable[[int, int], None]) -> tuple[list, list[Frame]]:
        """Vision tokens of every frame, read from the folder if they are there, and the frames without pictures."""
        encoder, visuals, frames, o = None, [], [], self.options
        if o.gop and not (folder / REENCODED).exists():
            reencode(video, folder / REENCODED, o.gop, o.frames, o.fps)
        self._read = partial(read, folder / REENCODED if o.gop else video, o.frames, None if o.gop else o.fps)
        for i, frame in enumerate(self._read(vision.IMAGE)):
            path = folder / "visual" / f"{i}.npy"
            if not path.exists():
                encoder = encoder or vision.VisionEncoder()
                with replacing(path) as file:
                    np.save(file, vision.pool(encoder(frame.picture), o.tokens))
            visuals.append(np.load(path))
            frames.append(replace(frame, picture=frame.picture[:0]))  # keeps the motion, drops the pixels
            progress(i + 1, o.frames)
        return visuals, frames

    def pictures(self) -> Iterator[np.ndarray]:
        """The pictures of a video's frames, uint8 RGB, as the encoder sees them."""
        return (frame.picture for frame in self._read(vision.IMAGE))

    def _video(self, visuals: list[np.ndarray], frames: list[Frame]) -> list[Segment]:
        self.projector = vision.Projector.fit(np.concatenate(list(islice(visuals, FIT))), self.decoder.embeddings)
        out = [Segment("prompt", self.decoder.around("", "")[0])]
        out += [Segment("frame", self.projector(v), None, v, f) for v, f in zip(visuals, frames, strict=True)]
        return [*out, self._question()]

    def _text(self) -> list[Segment]:
        o, ids = self.options, self.decoder.tokenizer.encode("\n\n".join(topics[name] for name in sorted(topics)))
        check(
            len(ids) > o.frames * o.tokens,
            "frames * tokens",
            o.frames * o.tokens,
            f"the text has only {len(ids)} tokens: take fewer",
        )
        spans = [(i * o.tokens, (i + 1) * o.tokens) for i in range(o.frames)]
        x = self.decoder.embeddings
        out = [Segment("frame", x[ids[a:b]], np.array(ids[a + 1 : b + 1])) for a, b in spans]
        return [*out, self._question()]

    def _question(self) -> Segment:
        _, ids = self.decoder.chat("", self.options.question)
        return Segment("question", self.decoder.embeddings[ids], np.array([*ids[1:], -1]))

    def start(self, entry: Entry) -> Run:
        """Begin a run of a policy."""
        return DecoderRun(entry.build(self.shape), self.decoder.embeddings.shape[1])

    def run(self, run: Run, teacher: list[Record] | None) -> Iterator[int]:
        """Continue a run to its end; yields the number of blocks to come after each block."""
        assert isinstance(run, DecoderRun)  # from `start`
        total = self.answer_from + self.options.generate
        while len(run.records) < total:
            i = len(run.records)
            if i == self.answer_from and teacher and run.policy.speaks:
                run.spoken = self._speak(deepcopy(run))
            segment = self._segment(i, teacher or run.records)
            targets = segment.targets
            if targets is not None and teacher:
                targets = np.where(targets < 0, teacher[i].choices[-1], targets)
            block = Block(i, segment.stage, run.length, run.length + len(segment.x), segment.visual, segment.frame)
            run.step(self.decoder, block, segment.x, targets)
            yield total - i - 1

    def _speak(self, run: DecoderRun) -> list[int]:
        """The answer's tokens if a run at the question's end is fed its own choices."""
        for i in range(self.answer_from, self.answer_from + self.options.generate):
            x = self._segment(i, run.records).x
            run.step(self.decoder, Block(i, "generation", run.length, run.length + 1), x)
        return [r.choices[-1] for r in run.records[self.answer_from - 1 : -1]]

    def text(self, run: Run, first: bool) -> str | None:
        """What a finished run says, in its own words; None for a policy that does not speak.

        first : it is full attention's run, which the others are fed
        """
        assert isinstance(run, DecoderRun)  # from `start`
        if not first and not run.policy.speaks:
            return None
        own = [r.choices[-1] for r in run.records[self.answer_from - 1 : -1]]
        return self.decoder.tokenizer.decode(own if first else run.spoken)

    def _segment(self, i: int, teacher: list[Record]) -> Segment:
        if i < self.answer_from:
            return self.segments[i]
        return Segment("generation", self.decoder.embeddings[[teacher[i - 1].choices[-1]]], np.array([-1]))


def claim(folder: Path, source: dict) -> None:
    """Reserve a folder for the stream that `source` describes. Raises `ParamError` if it holds another one."""
    path = folder / "source.json"
    source = json.loads(json.dumps({"version": VERSION, **source}))
    if path.exists():
        try:
            found = json.loads(path.read_text())
        except ValueError:
            raise ParamError(f"{path}: damaged: choose another folder") from None
        differ = sorted(k for k in found.keys() | source.keys() if found.get(k) != source.get(k))
        if differ:
            k = differ[0]
            what = f"{k} is {found.get(k)!r} there and {source.get(k)!r} now"
            raise ParamError(f"{folder}: holds another run ({what}): choose another folder")
    elif folder.exists() and any(folder.iterdir()):
        raise ParamError(f"{folder}: not empty and not the folder of a run: choose another folder")
    else:
        with replacing(path) as file:
            file.write(json.dumps(source, indent=1).encode())


def follow(
    stream: TraceStream | DecoderStream,
    name: str,
    entry: Entry,
    folder: Path,
    teacher: list[Record] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Run:
    """Run a policy on a stream to its end, from the state in the folder if there is one; saves the run as it goes.

    name, entry : the policy
    teacher : records of full attention's run, whose answer this run is fed; None for that run itself
    progress : called after each block with the blocks done and their total

    Raises `ParamError` if the folder's run had other parameters, and `VideoError` if its file is damaged.
    """
    path = folder / f"{name}.run"
    run = None
    if path.exists():
        try:
            params, run = pickle.loads(path.read_bytes())
        except Exception:
            raise VideoError(f"{path}: damaged: remove it to run {name} again") from None
        if params != entry.params:
            raise ParamError(f"{path}: ran with {params}, now asked for {entry.params}: choose another folder")
    run = run or stream.start(entry)
    due = monotonic()
    for left in stream.run(run, teacher):
        begun = monotonic()
        if begun >= due or left == 0:
            with replacing(path) as file:
                pickle.dump((entry.params, run), file, pickle.HIGHEST_PROTOCOL)
            due = monotonic() + (monotonic() - begun) / SAVING
        progress(len(run.records), len(run.records) + left)
    return run
