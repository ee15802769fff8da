"""Records traces: runs a video through the vision encoder and the decoder, and keeps queries, keys and values."""

from collections import deque
from collections.abc import Callable, Iterable
from importlib import metadata
from itertools import chain, islice
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from openvrex.golden.function_params import check
from openvrex.golden.inputs import decoder, video, vision
from openvrex.golden.inputs.model_file import FileDecoder, ModelFile
from openvrex.golden.inputs.trace import MAX_TOKENS, STAGES, Trace
from openvrex.golden.inputs.trace_model import Model


def record(
    clip: str | Path,
    frames: int = 48,
    tokens: int = 36,
    layers: Iterable[int] = (0, 1, 2),
    fps: float | None = None,
    queries: int | None = None,
    values: bool = True,
    question: str = "",
    generate: int = 0,
    fit: int = 32,
    progress: Callable[[int, int], None] = lambda done, total: None,
    file: ModelFile | None = None,
) -> Trace:
    """Run a video through the vision encoder, the projector and the decoder, and record a trace of `layers`.

    The stream is a short text prompt, then up to `frames` frames of `tokens` tokens each, then the question and
    `generate` greedily generated tokens. `fps` samples the frames (default: every frame). The trace has the queries of
    the last `queries` frames (default: all) and of everything after them; `values` adds V and the hidden states.

    The projector is fitted on the first `fit` frames, so no token depends on a later frame beyond those. Only the
    layers up to the last one needed run: the highest of `layers`, or all to generate. `progress(done, total)` is called
    as frames are encoded and decoded. `file` is the user's decoder in place of SmolLM2. Raises `ParamError` for an
    argument that cannot work, and `VideoError` for a bad input.
    """
    layers = tuple(layers)
    check_numbers(frames, fps, queries, generate, fit)
    vision.check_tokens(tokens)
    many, most = (file.constants.layers, file.constants.positions) if file else (decoder.N_LAYERS, MAX_TOKENS)
    ok = bool(layers) and list(layers) == sorted(set(layers)) and layers[0] >= 0 and layers[-1] < many
    check(ok, "layers", layers, f"must be ascending numbers from 0 to {many - 1}")
    total = _positions(frames * tokens, question, generate, most)
    path = video.locate(clip)
    pictures = video.frames(path, frames, fps, vision.IMAGE)
    first = next(pictures)  # a bad input fails here, before the models are loaded

    encoder = vision.VisionEncoder()
    depth = many if generate else layers[-1] + 1
    model = FileDecoder(file, depth, total) if file else decoder.Decoder(depth, total)
    pooled = (vision.pool(encoder(picture), tokens) for picture in chain([first], pictures))
    head = []
    for x in islice(pooled, fit):
        head.append(x)
        progress(len(head), 2 * frames)
    projector = vision.Projector.fit(np.concatenate(head), model.embeddings)

    hidden_in: list[np.ndarray] = []
    stages: list[int] = []
    q: deque[np.ndarray] = deque()

    def take(x: np.ndarray, stage: str) -> np.ndarray:
        # Run one block through the decoder and record it.
        hidden = model(x)
        hidden_in.append(x.astype(ml_dtypes.bfloat16))
        stages.append(STAGES.index(stage))
        q.append(np.stack([model.q[i] for i in layers]).astype(ml_dtypes.bfloat16))
        if stage in ("prompt", "frame") and queries is not None and len(q) > queries:
            q.popleft()
        return hidden

    before, behind = model.around("", question)
    take(before, "prompt")
    n_frames = 0
    for x in chain(head, pooled):
        take(projector(x), "frame")
        n_frames += 1
        progress(n_frames + max(n_frames, len(head)), 2 * frames)
    answer = []
    if question or generate:
        hidden = take(behind, "question")
    for _ in range(generate):
        logits = model.logits(hidden[-1])
        if model.end is not None:
            logits[model.end] = -np.inf  # no end token, so that the answer has the requested length
        token = int(logits.argmax())
        answer.append(token)
        hidden = take(model.embeddings[[token]], "generation")

    def cache(x: np.ndarray) -> np.ndarray:
        return x[list(layers), :, : model.length].swapaxes(1, 2).astype(ml_dtypes.bfloat16)

    empty = np.zeros((len(layers), 0, model.heads, model.head_size), ml_dtypes.bfloat16)
    return Trace(
        layers=layers,
        k=cache(model.k),
        q=np.concatenate([empty, *q], axis=1),
        v=cache(model.v) if values else None,
        offsets=np.concatenate([[0], np.cumsum([len(x) for x in hidden_in])]).astype(np.int32),
        stages=np.array(stages, np.uint8),
        provenance={
            "video": {"name": str(clip) if str(clip) in video.CLIPS else path.name, "sha256": video.digest(path)},
            "frames": n_frames,
            "tokens_per_frame": tokens,
            "fps": fps,
            "prompt": model.tokenizer.decode(model.chat("", "")[0]),
            "question": question,
            "answer": model.tokenizer.decode(answer),
            "vision": {"model": "DINOv2 ViT-S/14", **source(vision.MODEL)},
            "projector": {"kind": "principal components, variances matched, not trained", "fit_frames": len(head)},
            "decoder": decoder_of(file),
            "packages": {p: metadata.version(p) for p in ("av", "ml_dtypes", "numpy")},
        },
        hidden=np.concatenate(hidden_in) if values else None,
        model=Model(float(model.epsilon), model.rotary_base, model.frequencies, (True,) * len(layers)),
    )


def check_numbers(frames: int, fps: float | None, queries: int | None, generate: int, fit: int) -> None:
    """Raise `ParamError` for an argument of `record` that is out of range for every model."""
    for name, value, least in (("frames", frames, 1), ("fit", fit, 1), ("generate", generate, 0)):
        check(value >= least, name, value, f"must be at least {least}")
    check(queries is None or queries >= 0, "queries", queries, "must not be negative")
    check(fps is None or 0 < fps < float("inf"), "fps", fps, "must be above 0")


def decoder_of(file: ModelFile | None) -> dict[str, Any]:
    """What a trace says of its decoder: that of the user's file or folder, else SmolLM2."""
    if file:
        return {"model": file.name, "files": file.digests()}
    return {"model": "SmolLM2-135M-Instruct Q4_1", **source(decoder.MODEL)}


def _positions(visual: int, question: str, generate: int, most: int) -> int:
    """Most positions that a stream of `visual` visual tokens needs; raises `ParamError` if the decoder has fewer."""
    total = visual + generate + 64 + len(question.encode())  # a token of the question has at least one byte
    reason = f"the decoder knows only {most} positions, the text's included; take fewer frames or tokens"
    check(total <= most, "frames * tokens", visual, reason)
    return total


def source(model: tuple[str, str]) -> dict[str, str]:
    """Package version and SHA-256 of a model file, given as (distribution, file in it), for the provenance."""
    return {
        "package": f"{model[0]} {metadata.version(model[0])}",
        "sha256": video.digest(video.package_file(*model)),
    }
