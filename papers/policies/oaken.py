"""Oaken as a policy: full attention over a KV cache quantised to 4 bits (V-Rex section VI-B, Fig. 15)."""

from dataclasses import dataclass

import numpy as np

from openvrex.golden.function_params import Parameters, check, parameter
from openvrex.golden.policies.blocks import Shape
from openvrex.golden.policies.history import History
from openvrex.golden.policies.light_attention import Selected, bf16
from openvrex.golden.policies.policy import LayerBlock, Policy


@dataclass(frozen=True)
class OakenParams(Parameters):
    """Parameters of Oaken's quantisation."""

    outer: float = parameter(0.04, "share of the values with the largest magnitude, stored apart")
    inner: float = parameter(0.06, "share of the values with the smallest magnitude, stored apart")
    bits: int = parameter(
        4, "bits of a value of the middle group, sign included; outer and inner values have one more", low=2, high=8
    )
    calibrate: int = parameter(
        128, "tokens from which a layer's thresholds are made; until then they follow the stream", low=1
    )

    def __post_init__(self):
        super().__post_init__()
        for name in ("outer", "inner"):
            check(0 <= getattr(self, name) < 0.5, name, getattr(self, name), "must be at least 0 and below 0.5")


class Oaken(Policy):
    """Full attention over quantised K and V that stay on the device.

    Groups. Two thresholds on the magnitude divide the numbers of a layer's K, and those of its V, into an inner, a
    middle and an outer group. The middle and the outer group are shifted to the origin by their lower threshold. Each
    group is quantised uniformly, as sign and magnitude, with a scale for each token and group: the largest shifted
    magnitude in BF16. A code stands for the middle of its step.

    Storage. Every number takes `bits` bits. A number of the outer or inner group takes 8 bits more: 6 of index, 1 of
    group, 1 more of code.

    The original profiles its thresholds offline and has two signed ones. Here the first tokens give thresholds of the
    magnitude.
    """

    source = "Oaken, V-Rex [13] and VI-B, Fig. 15"

    def __init__(self, params: OakenParams, shape: Shape):
        super().__init__(params, shape, -(-2 * shape.head_size * params.bits // 8))
        self.stored = [History(shape) for _ in range(shape.layers)]
        # Magnitudes [2, values] to calibrate on; None once a layer's thresholds are made.
        self.seen: list[list[np.ndarray] | None] = [[] for _ in range(shape.layers)]
        self.limits = [np.zeros((2, 2))] * shape.layers  # by layer: inner and outer threshold of K, then of V

    def append(self, layer: int, tokens: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        if (seen := self.seen[layer]) is not None:
            self._calibrate(layer, seen, k, v)
        inner, outer = self.limits[layer].repeat(len(k), axis=0).T[:, :, None]
        done, apart = quantise(np.concatenate([k, v]), inner, outer, self.params.bits)
        done_k, done_v = np.split(done, 2)
        self.stored[layer].write(tokens, done_k, done_v, self.store.length)
        sparse = int(np.count_nonzero(apart))
        self.ledger.hold("device", sparse + 2 * 3 * 2 * len(tokens))  # a byte for each number apart; three BF16 scales
        self.ledger.work("compare", 2 * (k.size + v.size))
        self.ledger.work("elementwise", 2 * (k.size + v.size))  # shift and scale

    def select(self, step: LayerBlock) -> Selected:
        stored = self.stored[step.layer]
        self.ledger.work("elementwise", 2 * (stored.k.size + stored.v.size))  # each read scales and shifts back
        return Selected(self.store.on_device(step.layer), stored.k, stored.v)

    def _calibrate(self, layer: int, seen: list[np.ndarray], k: np.ndarray, v: np.ndarray) -> None:
        p = self.params
        seen.append(np.abs(np.stack([k.reshape(len(k), -1), v.reshape(len(v), -1)])))
        sizes = np.concatenate(seen, axis=1)
        self.limits[layer] = np.quantile(sizes.reshape(2, -1), [p.inner, 1 - p.outer], axis=1).T
        self.ledger.sort(sizes.size // 2, 2)
        if sizes.shape[1] >= p.calibrate:
            self.seen[layer] = None


def quantise(
    x: np.ndarray, inner: float | np.ndarray, outer: float | np.ndarray, bits: int
) -> tuple[np.ndarray, np.ndarray]:
    """Quantise x [T, ...]: the values that it reads back as (BF16 in FP32), and which are stored apart (bool).

    inner, outer : thresholds of the magnitude, one for all rows or [T, 1]
    """
    flat = x.reshape(len(x), -1)
    size = np.abs(flat)
    out, apart = np.zeros_like(flat), np.zeros(flat.shape, bool)
    for low, high, width in ((0.0, inner, bits + 1), (inner, outer, bits), (outer, np.inf, bits + 1)):
        group = (size >= low) & (size < high)
        shifted = (size - np.float32(low)) * group
        levels = 1 << (width - 1)
        top = bf16(shifted.max(axis=1, keepdims=True, initial=0))
        step = np.maximum(top, np.float32(1e-30)) / levels
        code = np.minimum(np.floor(shifted / step), levels - 1)
        np.copyto(out, (code + np.float32(0.5)) * step + np.float32(low), where=group)
        apart |= group & (width > bits)
    return bf16(np.copysign(out, flat)).reshape(x.shape), apart.reshape(x.shape)
