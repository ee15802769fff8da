"""The history branch of hybrid memory: a selective state-space model (Mamba 1.0) with a state of fixed size, in FP32.

The branch shows cost, memory and the passing of state. Its parameters are random, as in the paper (section V-A 2:
"retain their initial random values"), so its output says nothing about quality.

Source: "To Infinity and Beyond" (hybrid memory in vLLM), sections II-D and IV-C (Listing 2).
"""

from dataclasses import dataclass

import numpy as np

from openvrex.golden.arithmetic.numerics import to_bf16
from openvrex.golden.function_params import Parameters, check, parameter


@dataclass(frozen=True)
class StateSpaceParams(Parameters):
    """Sizes of the history branch. The defaults are those of Mamba 1.0."""

    expand: int = parameter(2, "inner channels for each hidden dimension", low=1)
    state: int = parameter(16, "numbers of state for each inner channel", low=1)
    conv: int = parameter(4, "taps of the causal convolution", low=1)
    seed: int = parameter(2025, "seed of the random parameters", low=0)
    weights: str = parameter(
        "fp32", "projections and taps: as drawn, or rounded to bf16, as a core keeps them", choices=("fp32", "bf16")
    )


def products(params: StateSpaceParams, width: int, out: int) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of each product of a branch, by name; arguments as those of `HistoryBranch`."""
    inner, rank = params.expand * width, -(-width // 16)
    low = rank + 2 * params.state
    return {"in_proj": (width, 2 * inner), "x_proj": (inner, low), "dt_proj": (rank, inner), "out_proj": (inner, out)}


def scan_macs(params: StateSpaceParams, width: int) -> int:
    """MACs of a token beside the products: convolution, and dt A, dt x B, A h + B x, C h of the scan."""
    return params.expand * width * (params.conv + 4 * params.state + 2)


@dataclass
class State:
    """The state of B sequences that passes from chunk to chunk."""

    conv: np.ndarray  # [B, conv - 1, inner]: last inputs of the convolution
    h: np.ndarray  # [B, inner, state]: state of the scan

    @property
    def size(self) -> int:
        """Bytes of the state of all sequences."""
        return self.conv.nbytes + self.h.nbytes


def branch_macs(p: StateSpaceParams, width: int, out: int) -> int:
    """MACs of a branch for one token: products and scan."""
    return sum(k * n for k, n in products(p, width, out).values()) + scan_macs(p, width)


class HistoryBranch:
    """One layer's branch: projection, causal convolution with SiLU, selective scan gated by SiLU, projection.

    width : hidden dimension of the input
    out : dimension of the result, which is added to the attention's output

    Parameters are the initial ones of Mamba 1.0, drawn from (seed, layer): A = -(1 .. state), D = 1, steps of 0.001 to
    0.1 (log uniform), all others uniform within 1/sqrt(fan-in). A pickle does not hold them; loading draws them again.
    """

    def __init__(self, params: StateSpaceParams, width: int, out: int, layer: int = 0):
        self.params, self.width, self.out, self.layer = params, width, out, layer
        self.inner, self.rank = params.expand * width, -(-width // 16)
        rng = np.random.default_rng([params.seed, layer])
        inner, rank, n = self.inner, self.rank, params.state
        self.in_proj = _uniform(rng, (width, 2 * inner), width)
        self.conv_weight = _uniform(rng, (params.conv, inner), params.conv)
        self.conv_bias = _uniform(rng, (inner,), params.conv)
        self.x_proj = _uniform(rng, (inner, rank + 2 * n), inner)
        self.dt_proj = _uniform(rng, (rank, inner), rank)
        step = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), inner))
        self.dt_bias = (step + np.log(-np.expm1(-step))).astype(np.float32)  # softplus of it is the step
        self.a = -np.tile(np.arange(1, n + 1, dtype=np.float32), (inner, 1))
        self.d = np.ones(inner, np.float32)
        self.out_proj = _uniform(rng, (inner, out), inner)
        if params.weights == "bf16":
            for name in ("in_proj", "conv_weight", "x_proj", "dt_proj", "out_proj"):
                setattr(self, name, to_bf16(getattr(self, name)).astype(np.float32))

    def __reduce__(self):
        return type(self), (self.params, self.width, self.out, self.layer)

    @property
    def macs(self) -> int:
        """MACs for one token."""
        return branch_macs(self.params, self.width, self.out)

    def begin(self, sequences: int = 1) -> State:
        """The state of sequences that have not begun: zero."""
        p = self.params
        conv = np.zeros((sequences, p.conv - 1, self.inner), np.float32)
        return State(conv, np.zeros((sequences, self.inner, p.state), np.float32))

    def __call__(self, x: np.ndarray, cu_seqlens: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Output [T, out] for the hidden states x [T, width] of B sequences end to end, and their new state.

        Sequence b has the rows cu_seqlens[b] to cu_seqlens[b + 1], possibly none, and continues from `state`, which the
        chunk before has left. Scan and convolution of a sequence do the same operations however it is cut and batched.
        Projections may round differently with the number of rows, by 1e-5 of the largest output.
        """
        cu = np.asarray(cu_seqlens, np.int64)
        sequences = len(state.h)
        ok = len(cu) == sequences + 1 and cu[0] == 0 and cu[-1] == len(x) and (np.diff(cu) >= 0).all()
        check(bool(ok), "cu_seqlens", cu.tolist(), f"must rise from 0 to {len(x)} rows in {sequences} steps")
        n, rank = self.params.state, self.rank
        x, z = np.split(np.asarray(x, np.float32) @ self.in_proj, 2, axis=1)
        x, conv = causal_conv1d(x, self.conv_weight, self.conv_bias, cu, state.conv)
        x = silu(x)
        dt, b, c = np.split(x @ self.x_proj, [rank, rank + n], axis=1)
        dt = softplus(dt @ self.dt_proj + self.dt_bias)
        y, h = selective_scan(x, dt, self.a, b, c, cu, state.h)
        return ((y + self.d * x) * silu(z)) @ self.out_proj, State(conv, h)


def causal_conv1d(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, cu: np.ndarray, before: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Depthwise convolution y[t] = bias + sum_j weight[j] x[t - taps + 1 + j] of every sequence, and its last inputs.

    x : [T, inner] · weight : [taps, inner] · bias : [inner] · cu : first row of each sequence, and the end
    before : [B, taps - 1, inner], the inputs ahead of each sequence's rows
    """
    y = np.tile(bias, (len(x), 1))
    after = np.empty_like(before)
    for i, old in enumerate(before):
        rows = slice(cu[i], cu[i + 1])
        past = np.concatenate([old, x[rows]])
        length = len(past) - len(old)
        for j, tap in enumerate(weight):
            y[rows] += tap * past[j : j + length]
        after[i] = past[length:]
    return y, after


def selective_scan(
    x: np.ndarray, dt: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray, cu: np.ndarray, h: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The scan h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t, y_t = C_t h_t (section II-D); returns y [T, inner] and h.

    x, dt : [T, inner] · a : [inner, state] · b, c : [T, state] · cu : first row of each sequence, and the end
    h : [B, inner, state], the state before the rows

    All channels advance together, one token at a time, so that the data of a step stays in a core's cache.
    """
    h = h.swapaxes(1, 2).copy()  # channels last: long rows for the elementwise work
    a, u, b = np.ascontiguousarray(a.T), dt * x, b[:, :, None]
    y = np.empty_like(x)
    fade, new = np.empty_like(a), np.empty_like(a)
    for i, now in enumerate(h):
        for t in range(cu[i], cu[i + 1]):
            now *= np.exp(np.multiply(dt[t], a, out=fade), out=fade)
            now += np.multiply(u[t], b[t], out=new)
            np.matmul(c[t], now, out=y[t])
    return y, h.swapaxes(1, 2).copy()


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)) of FP32, without overflow. Uses log1p(e) = log(u) e / (u - 1), where u is 1 + e as rounded."""
    e = np.exp(-np.abs(x))
    u = 1 + e
    y, above = np.log(u), u - 1
    lost = above == 0
    np.copyto(above, 1, where=lost)
    y *= e / above
    np.copyto(y, e, where=lost)
    y += np.maximum(x, 0)
    return y


def silu(x: np.ndarray) -> np.ndarray:
    """x sigmoid(x), without overflow."""
    return x * (np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x)))


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> np.ndarray:
    return rng.uniform(-(fan_in**-0.5), fan_in**-0.5, shape).astype(np.float32)
