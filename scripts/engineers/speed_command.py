"""`vrex dev speed`: time the golden policies against plain PyTorch implementations of the same policies."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from openvrex.golden.function_params import check
from openvrex.golden.inputs.codec import BLOCK
from openvrex.golden.inputs.frames import Frame as VideoFrame
from openvrex.golden.inputs.trace import Trace, TraceError
from openvrex.golden.inputs.trace_model import frequencies
from openvrex.golden.policies.blocks import Block, Shape
from openvrex.golden.policies.history import History
from openvrex.golden.policies.light_attention import attention, bf16
from openvrex.golden.policies.policy import LayerBlock, Policy
from openvrex.golden.policies.policy_run import shape_of
from openvrex.golden.policies.registry import Entry
from openvrex.papers.policies.registry import entry
from openvrex.scripts import console
from openvrex.scripts.progress import track
from openvrex.scripts.quantity import number

NAMES = {  # a golden policy -> its twin in `papers.policies.torch_policies`
    "full": "TorchPolicy",
    "flexgen": "TorchPolicy",
    "infinigen": "InfiniGen",
    "infinigenp": "InfiniGen",
    "rekv": "ReKV",
    "streamingllm": "Streaming",
    "oaken": "Oaken",
    "codecsight": "CodecSight",
    "mosaic": "Mosaic",
    "hybrid": "Hybrid",
    "signatures": "Signatures",
    "resv": "ReSV",
}
BASE = 1e5  # rotary base of a synthetic stream
ASKED = 8  # while the cache fills, one frame in this many has queries; their answer is not computed
NOTE = (
    "CPU time of one core for a frame of one layer: enter keys and values, choose tokens, light attention, "
    "maintenance. Golden also keeps the ledger and the place of every token. Medians of interleaved runs; ratio: "
    "golden's frames/s over PyTorch's. codecsight: the frame that moves the window (of the whole cache, stride 20 %) "
    "and refreshes I-frames."
)


def command(
    policy: Annotated[str, typer.Option(help=f"Policies with commas between, or all: {', '.join(NAMES)}.")] = "all",
    cache: Annotated[
        str, typer.Option(help="Tokens in the cache; several numbers with commas between.")
    ] = "10000,40000",
    trace: Annotated[
        Path | None,
        typer.Option(help="Trace of `vrex trace`: repeat the frames of its first layer (default: synthetic)."),
    ] = None,
    repeat: Annotated[int, typer.Option(help="Time this many frames at each size of the cache.")] = 9,
    tokens: Annotated[int, typer.Option(help="Tokens of a synthetic frame.")] = 36,
    heads: Annotated[str, typer.Option(help="Query heads, KV heads and head size of a synthetic stream.")] = "9,3,64",
    seed: console.Seed = 1,
    json: console.Json = False,
) -> None:
    """Time the golden policies against plain PyTorch.

    Needs the extra hf (`make hf`).
    """
    check(repeat >= 1, "repeat", repeat, "must be at least 1")
    check(tokens >= 1, "tokens", tokens, "must be at least 1")
    sizes = sorted(numbers("cache", cache))
    chosen = {name.strip(): entry(name.strip()) for name in (NAMES if policy == "all" else policy.split(","))}
    for name in chosen:
        check(name in NAMES, "policy", name, f"has no PyTorch implementation; with one: {', '.join(NAMES)}")
    if trace is None:
        geometry = numbers("heads", heads)
        check(len(geometry) == 3, "heads", heads, "must be query heads, KV heads, head size")
        query_heads, kv_heads, size = geometry
        shape = Shape(1, query_heads, kv_heads, size, (frequencies(BASE, size),))
    else:
        recorded = Trace.load(trace)
        check(recorded.v is not None, "trace", str(trace), "has no values: record it without --no-values")
        asked = [a for a, _ in recorded.spans("frame") if a >= recorded.first_query]
        check(bool(asked), "trace", str(trace), "has no queries of a frame: record it with queries")
        shape = shape_of(recorded)
        shape = replace(shape, layers=1, frequencies=shape.frequencies and shape.frequencies[:1])
    check(find_spec("torch") is not None, "torch", "missing", "vrex dev speed needs PyTorch, the extra hf: make hf")
    rows = []
    for name, found in track(chosen.items(), "policies", json):
        frames = synthetic(shape, tokens, seed) if trace is None else recorded_frames(recorded)
        rows += measure(name, found, shape, frames, sizes, repeat)
    if json:
        console.print_json(rows)
        return
    out = Table("policy", "cache", "golden frames/s", "PyTorch frames/s", "ratio", title=f"{shape}")
    for row in rows:
        out.add_row(
            row["policy"], f"{row['cache']:,}", number(row["golden"], 4), number(row["torch"], 4), f"{row['ratio']:.2f}"
        )
    console.out.print(out)
    console.out.print(NOTE, highlight=False)


def numbers(name: str, text: str) -> list[int]:
    """The positive integers in an option such as "10,20". Raises `ParamError` for anything else."""
    parts = text.split(",")
    check(all(p.strip().isdigit() and int(p) > 0 for p in parts), name, text, "must be positive integers with commas")
    return [int(p) for p in parts]


Frame = tuple[np.ndarray, np.ndarray, np.ndarray]  # q [T, heads, d], k and v [T, kv_heads, d]; BF16 values in FP32


def synthetic(shape: Shape, tokens: int, seed: int) -> Iterator[Frame]:
    """Endless frames, redundant like a video: the places of the picture drift, and now and then there is a cut.

    A key is the sum of a mean that all keys share, the content of its place, and noise. The content of a place keeps
    0.995 of itself from frame to frame and is drawn again at a cut, one frame in 64. A query is the sum of its frame's
    direction, its place's key and noise. ReSV's defaults make clusters of about 32 tokens and choose a third of the
    tokens, as the paper reports.
    """
    rng = np.random.default_rng(seed)

    def normal(*size: int) -> np.ndarray:
        return rng.standard_normal(size, dtype=np.float32)

    mean, place = (normal(n, shape.kv_heads, shape.head_size) for n in (1, tokens))
    sought = normal(1, shape.heads, shape.head_size)
    while True:
        if rng.random() < 1 / 64:
            place = normal(*place.shape)
        place = np.float32(0.995) * place + np.float32((1 - 0.995**2) ** 0.5) * normal(*place.shape)
        sought = np.float32(0.995) * sought + np.float32((1 - 0.995**2) ** 0.5) * normal(*sought.shape)
        k = mean + place + np.float32(0.4) * normal(*place.shape)
        q = (
            np.float32(2) * sought
            + np.float32(0.3) * k.repeat(shape.group, axis=1)
            + np.float32(0.5) * normal(tokens, *sought.shape[1:])
        )
        v = place + np.float32(0.4) * normal(*place.shape)
        yield bf16(q), bf16(k), bf16(v)


def recorded_frames(trace: Trace) -> Iterator[Frame]:
    """The frames of a trace's first layer, over and over; recorded queries repeat as well."""
    spans = trace.spans("frame")
    size = spans[0][1] - spans[0][0]
    spans = [(a, b) for a, b in spans if b - a == size]
    asked = cycle(a - trace.first_query for a, _ in spans if a >= trace.first_query)
    if trace.v is None:
        raise TraceError("no values in the trace: record it without --no-values")
    q, k, v = (x[0].astype(np.float32) for x in (trace.q, trace.k, trace.v))
    for a, b in cycle(spans):
        at = next(asked)
        yield q[at : at + size], k[a:b], v[a:b]


def _without_motion(index: int) -> VideoFrame:
    """A coded frame without motion vectors: CodecSight takes all of it for dynamic."""
    leads = index % 16 == 0
    motions, picture = (np.zeros(0, BLOCK),), np.zeros((96, 96, 3), np.uint8)
    return VideoFrame(index, "I" if leads else "P", index // 16, leads, None, (96, 96), motions, 0, picture)


class Golden:
    """A golden policy of one layer, driven like `golden.policies.policy_run` but without records."""

    def __init__(self, policy: Policy):
        self.policy, self.history = policy, History(policy.shape)

    def plan(self, block: Block) -> np.ndarray:
        """The tokens of the block's rows."""
        self.policy.store.arrive(block.stop)
        plan = self.policy.plan(block)
        new = block.tokens if plan.admit is None else block.tokens[plan.admit]
        return np.concatenate([plan.refresh, new])

    def step(
        self, block: Block, rows: np.ndarray, q: np.ndarray | None, k: np.ndarray, v: np.ndarray, attend: bool
    ) -> np.ndarray | None:
        """Run the block; return the output if it has queries and `attend` is set."""
        policy, y = self.policy, None
        self.history.write(rows, k, v, block.stop)
        policy.store.append(0, rows)
        policy.append(0, rows, k, v)
        if q is not None:
            chosen = policy.select(LayerBlock(0, block, rows, q, self.history.k, self.history.v))
            if attend:
                y, macs = attention(
                    q,
                    self.history.k,
                    self.history.v,
                    rows,
                    chosen,
                    policy.shape.frequencies[0] if policy.shape.frequencies else None,
                )
                policy.ledger.work("attention", macs)
            policy.store.release(0)
        policy.end(block)
        return y


class Pair:
    """A golden policy and its PyTorch twin on one stream of frames.

    time : seconds of the last step, golden and PyTorch
    """

    def __init__(self, name: str, found: Entry, shape: Shape, frames: Iterator[Frame]):
        import torch

        from openvrex.papers.policies import torch_policies

        torch.set_num_threads(1)
        self.torch = torch
        self.golden = Golden(found.build(shape))
        self.twin = getattr(torch_policies, NAMES[name])(found.params, shape)
        self.codec, self.frames = name == "codecsight", frames
        self.block = Block(-1, "frame", 0, 0)
        self.q = np.zeros((0, shape.heads, shape.head_size), np.float32)  # of the last step's new tokens
        self.time = 0.0, 0.0

    def step(self, ask: bool, attend: bool = True) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Run one frame through both and return both outputs. The two take turns to be first."""
        self.q, k, v = next(self.frames)
        q = self.q
        last, stop = self.block, self.block.stop + len(k)
        index, frame = last.index + 1, None
        if self.codec:
            frame = _without_motion(index)
        self.block = block = Block(index, "frame", last.stop, stop, frame=frame)
        taken: dict[str, float] = {}
        outputs: dict[str, np.ndarray | None] = {}

        def golden() -> None:
            start = process_time()
            rows = self.golden.plan(block)
            taken["golden"] = process_time() - start
            data = self._rows(rows, q, k, v)
            start = process_time()
            outputs["golden"] = self.golden.step(block, rows, data[0] if ask else None, data[1], data[2], attend)
            taken["golden"] += process_time() - start

        def twin() -> None:
            start = process_time()
            rows = self.twin.plan(block)
            taken["torch"] = process_time() - start
            data = [self.torch.from_numpy(x) for x in self._rows(rows.numpy(), q, k, v)]
            start = process_time()
            y = self.twin.step(data[0] if ask else None, data[1], data[2], rows, attend)
            taken["torch"] += process_time() - start
            outputs["torch"] = None if y is None else y.numpy()

        with self.torch.inference_mode():
            for run in (golden, twin) if block.index % 2 else (twin, golden):
                run()
        self.time = taken["golden"], taken["torch"]
        return outputs["golden"], outputs["torch"]

    def _rows(self, rows: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Frame:
        """Queries, keys and values of rows. Refreshed tokens keep their keys and values and borrow new queries."""
        old = rows[rows < self.block.start]
        if not len(old):
            return q, k, v
        past = (x[:, old].swapaxes(0, 1) for x in (self.golden.history.k, self.golden.history.v))
        k, v = (np.concatenate(x) for x in zip(past, (k, v), strict=True))
        return q[np.arange(len(rows)) % len(q)], k, v


def measure(
    name: str, found: Entry, shape: Shape, frames: Iterator[Frame], sizes: list[int], repeat: int
) -> list[dict[str, Any]]:
    """Frames per second of a policy, golden and PyTorch, at each size of the cache."""
    rows = []
    pair = None
    for size in sizes:
        if name == "codecsight":
            times = windows(found, shape, frames, size, repeat)
        else:
            pair, times = pair or Pair(name, found, shape, frames), []
            while pair.block.stop < size:
                pair.step(pair.block.index < ASKED or pair.block.index % ASKED == 0, attend=False)
            for _ in range(repeat + 2):  # the first frames still do work that filling the cache left
                pair.step(True)
                times.append(pair.time)
            times = times[2:]
        golden, torch = (median(t) for t in zip(*times, strict=True))
        rows.append({"policy": name, "cache": size, "golden": 1 / golden, "torch": 1 / torch, "ratio": torch / golden})
    return rows


def windows(found: Entry, shape: Shape, frames: Iterator[Frame], size: int, repeat: int) -> list[tuple[float, float]]:
    """Times of the frames that move CodecSight's window of about `size` tokens by a fifth."""
    first = next(frames)
    window = max(1, size // len(first[1]))
    stride = max(1, round(window / 5))
    params = replace(found.params, window=window, stride=stride)
    pair = Pair("codecsight", replace(found, params=params), shape, frames)
    while pair.block.index + 1 < window:
        pair.step(False)
    times = []
    for _ in range(repeat):
        pair.step(True)
        times.append(pair.time)
        for _ in range(stride - 1):
            pair.step(False)
    return times
