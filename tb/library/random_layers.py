"""Random decoder layers for tests: weights of a given shape, and the angles of rotary positions."""

import numpy as np

from openvrex.golden.program.layer_compiler import LayerShape


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
