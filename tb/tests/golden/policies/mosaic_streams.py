"""Streams for Mosaic."""

from dataclasses import replace

import ml_dtypes
import numpy as np

from openvrex.golden.inputs.trace import Trace
from openvrex.golden.policies.mosaic import Mosaic, MosaicParams
from openvrex.golden.policies.mosaic_clusters import Threshold
from openvrex.golden.policies.mosaic_hardware import HardwareLayer, SummedLayer
from openvrex.golden.policies.policy_run import TraceRun, blocks, shape_of
from openvrex.golden.policies.store import HOST

STRICT = Threshold(0.05, 0.05)


WIDTH = 16


def stream(scenes: list[int], seed: int = 0, noise: float = 0.1, layers: int = 2, tokens: int = 4) -> tuple:
    """A trace of frames that return to scenes, all with queries, and its blocks with visual embeddings."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((layers, max(scenes) + 1, tokens, 2, WIDTH // 2))
    k = base[:, scenes] + noise * rng.standard_normal((layers, len(scenes), tokens, 2, WIDTH // 2))
    k = k.reshape(layers, -1, 2, WIDTH // 2).astype(ml_dtypes.bfloat16)
    v = rng.standard_normal(k.shape).astype(ml_dtypes.bfloat16)
    q = rng.standard_normal((layers, k.shape[1], 4, WIDTH // 2)).astype(ml_dtypes.bfloat16)
    stages = np.ones(len(scenes), np.uint8)
    offsets = tokens * np.arange(len(scenes) + 1, dtype=np.int32)
    trace = Trace(tuple(range(layers)), k, q, v, offsets, stages, {})
    looks = rng.standard_normal((max(scenes) + 1, 5))[scenes].astype(np.float32)
    return trace, [replace(b, visual=looks[[i, i]]) for i, b in enumerate(blocks(trace))]


def run(params: MosaicParams, trace: Trace, parts: list, spy=None) -> TraceRun:
    """A run; `spy(step, selected, host, policy)` sees each choice, with what was on the host before it."""
    policy = Mosaic(params, shape_of(trace))
    select = policy.select

    def watched(step):
        host = np.flatnonzero(policy.store.place(step.layer)[0] == HOST)
        chosen = select(step)
        spy(step, chosen, host, policy)
        return chosen

    if spy:
        policy.select = watched
    out = TraceRun(policy, trace)
    for block in parts:
        out.step(trace, block)
    return out


def halves(at: int) -> tuple[Trace, Trace, list]:
    """Two streams that differ from frame `at` on, and their blocks."""
    (trace, parts), (other, _) = (stream(SCENES, seed, noise=0.4) for seed in (0, 7))
    both = {n: np.concatenate([getattr(trace, n)[:, : 4 * at], getattr(other, n)[:, 4 * at :]], 1) for n in "kqv"}
    return trace, replace(trace, **both), parts


SMALL = MosaicParams(ratio=0.3, recent=8, build=3, partition_frames=1, cluster_tokens=2, semantic=STRICT)


SCENES = [0, 1, 2, 0, 0, 1, 2, 1, 0, 3, 3, 2, 1, 0, 3]


def drifting() -> tuple:
    """Two scenes; frame 5 returns to the first, off the cluster that waits on the host; frame 6 to the second."""
    trace, parts = stream([0, 1, 0, 1, 1, 0, 1], layers=1, noise=0.02)
    k = trace.k.astype(np.float32)
    k[:, 20:24] += 0.6 * np.random.default_rng(3).standard_normal(k[:, 20:24].shape)
    return replace(trace, k=k.astype(ml_dtypes.bfloat16)), parts


DRIFT = MosaicParams(ratio=0.0, recent=4, build=4, cluster_tokens=2, semantic=STRICT)


LEVELS = [{"visual_level": v, "semantic_level": s} for v in (True, False) for s in (True, False)]


KINDS = {"hardware": HardwareLayer, "sums": SummedLayer}
