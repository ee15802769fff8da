"""Keys as of a video."""

import numpy as np

from openvrex.golden.arithmetic.numerics import to_bf16


def video(seed, frames=6, tokens=7, heads=4, kv_heads=2, dim=8):
    """Frames (q, k, v) whose keys walk at random around a shared mean, as a video's do."""
    rng = np.random.default_rng(seed)
    mean = rng.standard_normal((kv_heads, dim))
    k = mean + rng.standard_normal((tokens, kv_heads, dim))
    for _ in range(frames):
        k = k + 0.2 * rng.standard_normal(k.shape)
        q = 2 * rng.standard_normal((tokens, heads, dim)) + np.repeat(mean, heads // kv_heads, 0)
        yield to_bf16(q), to_bf16(k), to_bf16(rng.standard_normal(k.shape))
