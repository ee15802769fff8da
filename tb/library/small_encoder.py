"""A small random vision encoder: its weights, pictures, the cores that run it, and the same encoder in FP64."""

import numpy as np

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.program.encoder_compiler import EncoderShape
from openvrex.golden.program.encoder_host import EncoderHost, EncoderStep, EncoderWeights
from openvrex.golden.program.isa import LxeFormat
from openvrex.golden.program.layers_in_memory import MemoryMap
from openvrex.golden.program.lxe_model import Lxe, Memory

# Words of 4 numbers, heads of one and of two words; 10 tokens, so the last tile of keys has two; a ragged patch.
SHAPE = EncoderShape(layers=2, width=8, heads=2, ffn=32, side=3, patch=10, extra=1, cells=2, projector=(12, 8))
FORMAT = LxeFormat(lanes=4, w_depth=16, x_depth=32, depth=16, i_depth=512)
SLOPE = 2 * (2 / np.pi) ** 0.5  # of the GELU with tanh


def model(shape: EncoderShape, seed: int) -> EncoderWeights:
    """Random weights that keep the variance, rounded to BF16 so that FP64 and the core compute with the same ones."""
    rng, s = np.random.default_rng(seed), shape

    def matrix(k: int, n: int) -> np.ndarray:
        return to_bf16(rng.normal(size=(k, n)) * k**-0.5).astype(np.float64)

    def numbers(*size: int, scale: float = 0.5) -> np.ndarray:
        return to_bf16(rng.normal(size=size) * scale).astype(np.float64)

    layers = []
    for _ in range(s.layers):
        layer = {}
        sizes = {"qkv": (s.width, 3 * s.width), "output": (s.width, s.width)}
        sizes |= {"up": (s.width, s.ffn), "down": (s.ffn, s.width)}
        for name, (k, n) in sizes.items():
            layer |= {name: matrix(k, n), f"{name}_bias": numbers(n)}
        layers.append(layer)
    ends = [s.width, *s.projector]
    projector = [(matrix(a, b), numbers(b)) for a, b in zip(ends, ends[1:], strict=False)]
    norm = 1 + numbers(s.width, scale=1 / 8), numbers(s.width)
    return EncoderWeights(layers, matrix(s.patch, s.width), numbers(s.tokens, s.width), norm, projector)


def patches(shape: EncoderShape, seed: int) -> np.ndarray:
    """A random picture, in BF16."""
    return to_bf16(np.random.default_rng(seed).normal(size=(shape.side**2, shape.patch))).astype(np.float64)


class EncoderCores:
    """An encoder on golden LXEs with a memory of its own: `cores(patches)` gives the embeddings of a picture."""

    def __init__(self, host: EncoderHost):
        self.host, own = host, MemoryMap(4096)
        bases = {name: own.add(name, size) for name, size in host.regions.items()}
        host.place(Memory(own.regions), bases)
        self.cores = [Lxe(host.fmt, host.memory) for _ in host.plans]

    def __call__(self, patches: np.ndarray) -> np.ndarray:
        self.host.begin(patches)
        for step in self.host.steps():
            self.run(step)
        return self.host.embeddings

    def run(self, step: EncoderStep) -> None:
        """Execute a step on all cores: memory is then as the hardware leaves it."""
        for lxe, program, registers in zip(self.cores, step.programs, step.registers, strict=True):
            if program is not None:
                lxe.run(program, registers)


def encoder(
    shape: EncoderShape, fmt: LxeFormat, own: EncoderWeights, cores: int = 1, common: bool = False
) -> EncoderCores:
    """The encoder on golden cores."""
    return EncoderCores(EncoderHost(shape, fmt, own, cores, common))


def exact(
    shape: EncoderShape, w: EncoderWeights, picture: np.ndarray, keep: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens behind the last norm, and the decoder's embeddings, in FP64.

    keep : groups of patches that are encoded, bool [side / group, side / group]; all if not given
    """
    s, some = shape, slice(None)
    if keep is not None:
        patch = np.arange(s.side**2).reshape(s.side // s.group, s.group, -1, s.group).swapaxes(1, 2)
        some = patch[keep].reshape(-1)

    def norm(x: np.ndarray) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + s.epsilon)

    def gelu(x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-SLOPE * x * (1 + 0.044715 * x * x)))

    x = np.concatenate([w.positions[: s.extra], w.positions[s.extra :][some]])
    x[s.extra :] += picture[some] @ w.embed
    for layer in w.layers:
        qkv = norm(x) @ layer["qkv"] + layer["qkv_bias"]
        q, k, v = (part.reshape(len(x), s.heads, -1).transpose(1, 0, 2) for part in np.split(qkv, 3, axis=1))
        scores = q @ k.transpose(0, 2, 1)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        seen = (e / e.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(x), -1)
        x = x + seen @ layer["output"] + layer["output_bias"]
        x = x + gelu(norm(x) @ layer["up"] + layer["up_bias"]) @ layer["down"] + layer["down_bias"]
    tokens = norm(x) * w.norm[0] + w.norm[1]
    y = np.concatenate([tokens[: s.shown], means(s, tokens[s.extra :], keep)])
    for k, (matrix, bias) in enumerate(w.projector):
        y = y @ matrix + bias
        y = gelu(y) if k < len(w.projector) - 1 else y
    return tokens, y


def means(shape: EncoderShape, patch: np.ndarray, keep: np.ndarray | None) -> np.ndarray:
    """Means of the tokens of patches, in the cells of the grid or in the groups that are kept."""
    if keep is not None:
        return patch.reshape(int(keep.sum()), shape.group**2, -1).mean(1) if len(patch) else patch
    side, g = shape.side, shape.cells
    grid, cells = patch.reshape(side, side, -1), [slice(i * side // g, -(-(i + 1) * side // g)) for i in range(g)]
    return np.array([grid[a, b].mean((0, 1)) for a in cells for b in cells])
