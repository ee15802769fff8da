"""Random decoder layers for tests: weights of a given shape, and the angles of rotary positions."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from openvrex.golden.arithmetic.packed_weights import Matrix, PackedMatrix, Packing, Rule
from openvrex.golden.program.layer_memory import LayerShape, Tiling
from openvrex.golden.program.share_plan import SharePlan


def weights(shape: LayerShape, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights by name: projections [inputs, outputs] that keep the variance, and norms around 1."""
    s = shape
    attention = s.heads * s.head_size

    def matrix(k: int, n: int) -> np.ndarray:
        return rng.normal(size=(k, n)) * k**-0.5

    return {
        "attn_norm": 1 + rng.normal(size=s.width) / 8,
        "qkv": matrix(s.width, attention + s.entry),
        "attn_output": matrix(attention, s.width),
        "ffn_norm": 1 + rng.normal(size=s.width) / 8,
        "gate_up": matrix(s.width, 2 * s.ffn),
        "ffn_down": matrix(s.ffn, s.width),
    }


def turns(shape: LayerShape, start: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines [tokens, head size / 2] for a pass that starts at position `start`."""
    angle = (start + np.arange(shape.tokens))[:, None] * 1e4 ** -(np.arange(0, shape.head_size, 2) / shape.head_size)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def packed(w: np.ndarray, packing: Packing) -> PackedMatrix:
    """A matrix [inputs, outputs] with the packed weights nearest to its own; its inputs are whole groups."""
    groups = w.reshape(-1, packing.group, w.shape[1])
    least, most = groups.min(axis=1), groups.max(axis=1)
    if packing.rule == Rule.BYTE:
        d = (np.maximum(-least, most) / 127).astype(np.float16)
        q = np.clip(np.rint(groups / d.astype(float)[:, None]), -128, 127).astype(np.int8)
        return PackedMatrix(q.view(np.uint8).reshape(w.shape), d.view(np.uint16)[..., None], packing)
    if packing.rule == Rule.SCALE:
        d, other = np.maximum(-least / 8, most / 7), None
    else:
        d, other = (most - least) / 15, least
    d = d.astype(np.float16)
    below = 8 * d.astype(float)
    if packing.rule == Rule.MINIMUM:
        other = least.astype(np.float16)
        below = -other.astype(float)
    elif packing.rule == Rule.ZERO:
        other = np.clip(np.rint(-least / d), 0, 15).astype(np.uint16)
        below = other * d.astype(float)
    q = np.clip(np.rint((groups + below[:, None]) / d.astype(float)[:, None]), 0, 15).astype(np.uint8)
    scales = [d.view(np.uint16)] + ([] if other is None else [other.view(np.uint16)])
    return PackedMatrix(q.reshape(w.shape), np.stack(scales, axis=-1), packing)


def quantised(layer: dict[str, np.ndarray], packing: Packing) -> tuple[dict[str, Matrix], dict[str, np.ndarray]]:
    """A layer with 4-bit weights, and the same with the BF16 numbers that they stand for."""
    own = {name: packed(x, packing) for name, x in layer.items() if x.ndim == 2}
    return layer | own, layer | {name: x.bf16.astype(np.float32) for name, x in own.items()}


def cut_as(packing: Packing | None) -> Callable[[SharePlan, str], Tiling]:
    """In place of `SharePlan._cut_share`: products are cut as if their weights had this packing.

    The cut decides how sums are rounded, so layers of other weights then give the same numbers.
    """
    cut_share = SharePlan._cut_share

    def cut(plan: SharePlan, name: str) -> Tiling:
        kept = plan.shape, plan.whole
        plan.shape, plan.whole = (replace(shape, packing=packing) for shape in kept)
        out = cut_share(plan, name)
        plan.shape, plan.whole = kept
        return out

    return cut
