"""A small model and windows for CodecSight."""

import numpy as np

from openvrex.golden.inputs.codec import (
    BLOCK,
)
from openvrex.golden.inputs.frames import Frame
from openvrex.golden.inputs.trace_model import frequencies
from openvrex.papers.policies.codecsight_encoder import (
    Counts,
    Visual,
)

NONE = np.zeros(0, BLOCK)


STILL = np.array([(x, y, 16, 16, 0, 0, 0) for y in range(0, 64, 16) for x in range(0, 64, 16)], BLOCK)


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (224, 224, 3)).astype(np.uint8)


def shown(i: int, gop: int, image: int, blocks: np.ndarray | None = None) -> Frame:
    kind = "P" if i % gop else "I"
    motions = (STILL if blocks is None else blocks,) if kind == "P" else (NONE,)
    return Frame(i, kind, i // gop, kind == "I", None, (64, 64), motions, 0, picture(image))


class Small:
    """A decoder of random weights with residual layers; rotary by complex numbers."""

    name = ""
    heads, kv_heads, head_size, end, epsilon = 4, 2, 8, 0, 1e-5
    frequencies = frequencies(100.0, 8)

    def __init__(self, layers: int = 4, width: int = 16, seed: int = 0):
        rng = np.random.default_rng(seed)

        def weight(*shape, gain=1.0):
            return (gain * rng.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)

        self.layers = [
            {
                "qkv": weight(width, 64),
                "attn_output": weight(32, width, gain=0.5),
                "up": weight(width, 24),
                "down": weight(24, width, gain=0.5),
                "norm": np.ones(width, np.float32),
            }
            for _ in range(layers)
        ]
        self.embeddings = rng.standard_normal((50, width)).astype(np.float32)

    def window(self, layer: int) -> None:
        """Every layer attends to all."""

    def rotate(self, x, positions):
        z = x[..., :4] + 1j * x[..., 4:]
        z = z * np.exp(1j * np.asarray(positions)[:, None, None] * 100.0 ** (-np.arange(4) / 4))
        return np.concatenate([z.real, z.imag], -1).astype(np.float32)

    @staticmethod
    def norm(x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True))

    def qkv(self, layer, x, positions):
        y = (self.norm(x) @ self.layers[layer]["qkv"]).reshape(len(x), 8, 8)
        return self.rotate(y[:, :4], positions), self.rotate(y[:, 4:6], positions), y[:, 6:]

    def after_attention(self, layer, x, y):
        w = self.layers[layer]
        x = x + y.reshape(len(x), -1) @ w["attn_output"]
        return x + np.tanh(self.norm(x) @ w["up"]) @ w["down"]

    def logits(self, hidden):
        return hidden @ self.embeddings.T


MODEL = Small()


def visuals(n: int, gop: int, seed: int = 0, kept: float = 0.5) -> list[Visual]:
    """Frames of up to 6 tokens, I-frames whole."""
    rng = np.random.default_rng(seed)
    out = []
    for i in range(n):
        cells = np.arange(6) if i % gop == 0 else np.flatnonzero(rng.random(6) < kept)
        out.append(Visual(i, i % gop == 0, cells, rng.standard_normal((len(cells), 16)).astype(np.float32), Counts()))
    return out


def text(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, n]).standard_normal((n, 16)).astype(np.float32)


PROMPT, QUERY = text(3, 1), text(4, 2)
