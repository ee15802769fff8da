"""Compiles the hybrid memory's history branch of a layer: a Mamba-1 block, from the normed hidden state to its output.

`BranchPlan` takes a pass of T tokens through eight stages on a VPE with the feature "hybrid":

=========  ===========================================================================================================
project    GEMM: inputs of the convolution, and the gate z
convolve   causal convolution with SiLU gives x; the last inputs stay for the next pass
select     GEMM: low-rank step sizes, B and C
v          GEMM: step sizes of all channels
steps      dt = softplus(v + bias), u = dt x
scan       the selective scan of `golden.program.scan_stages`; its state stays in memory for the next pass
gate       (y + D x) SiLU(z)
join       GEMM, added to `sum`: FP32, for example the attention's output
=========  ===========================================================================================================

Operands of GEMMs are BF16, and so are x, z, B, C, A, D and the weights of the convolution. The state, dt, u, y and all
sums are FP32. `golden.policies.state_space.HistoryBranch` is the same branch in FP32 throughout.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from golden.arithmetic.numerics import BF16, to_bf16
from golden.function_params import check
from golden.program.isa import LxeFormat
from golden.program.layer_memory import Array, LayerShape, Register, Space
from golden.program.scan_stages import ScanCompiler
from golden.program.stage_plan import Plan

if TYPE_CHECKING:
    from golden.policies.state_space import HistoryBranch, StateSpaceParams


class BranchPlan(Plan):
    """The program of one layer's history branch, and its arrays in memory.

    shape : of the decoder's layers; only `width` and `tokens` matter
    params : sizes of the branch
    width : numbers of the result, those of a hidden state if not given

    Arrays of `weights` start at the address in the register WEIGHTS, those of `work` at the one in KV, `sum` is at the
    address in OUT. The host writes `normed` before a pass, and zeros to `kept` and `state` before a stream. Raises
    `ParamError` for sizes that do not fit.
    """

    _compiler = ScanCompiler

    def __init__(self, shape: LayerShape, fmt: LxeFormat, params: "StateSpaceParams", width: int | None = None):
        self.shape, self.fmt, self.params = shape, fmt, params
        n, tokens, state = fmt.lanes, shape.tokens, params.state
        self.inner, self.rank = params.expand * shape.width, -(-shape.width // 16)
        out = shape.width if width is None else width
        check(fmt.vector.hybrid, "features", fmt.features, "must have hybrid: the scan needs EXPM1 and SOFTPLUS")
        for name, value in (("width", shape.width), ("out", out), ("expand * width", self.inner)):
            check(value % n == 0, name, value, f"must be a multiple of lanes = {n}")
        check(state >= 2 and state & (state - 1) == 0, "state", state, "must be a power of two, at least 2")
        depth = max(2 * state, state + 2 + state // 2, tokens + params.conv)
        check(depth <= fmt.depth, "depth", fmt.depth, f"must be at least {depth} for this state and these tokens")
        low, bc = (-(-k // n) * n for k in (self.rank, 2 * state))
        ones = 2 * state * (bc // n)
        check(ones <= fmt.w_depth, "w_depth", fmt.w_depth, f"must be at least {ones}: the scan spreads B and C")
        sizes = {
            "x_in": (self.inner, shape.width),
            "z_in": (self.inner, shape.width),
            "low": (low, self.inner),
            "bc": (bc, self.inner),
            "dt": (self.inner, low),
            "out": (out, self.inner),
        }
        self.cuts = {name: self._cut(outputs, inputs, inputs) for name, (outputs, inputs) in sizes.items()}
        self._place(sizes)
        self.stages = list(self._stages())

    def _place(self, sizes: dict[str, tuple[int, int]]) -> None:
        """Lay out all arrays."""
        n, tokens, state, inner = self.fmt.lanes, self.shape.tokens, self.params.state, self.inner
        taps, columns = self.params.conv, self.inner // self.fmt.lanes
        align = max(4096, 4 * n)
        self.weights, self.work = Space(align, Register.WEIGHTS), Space(align, Register.KV)
        for name, cut in self.cuts.items():
            self.weights.add(f"{name}_weight", (cut.blocks, cut.slices, cut.tiles * n, cut.words * n), BF16)
        bc = sizes["bc"][0]
        weights: tuple[tuple[str, tuple[int, ...], type], ...] = (
            ("conv_weight", (columns, taps, n), BF16),
            ("conv_bias", (inner,), np.float32),
            ("dt_bias", (inner,), np.float32),
            ("a", (columns, state, n), BF16),
            ("d", (inner,), BF16),
            ("ones", (2 * state, n, bc), BF16),
        )
        work: tuple[tuple[str, tuple[int, ...], type], ...] = (
            ("normed", (1, tokens, self.shape.width), BF16),
            ("inputs", (taps - 1 + tokens, inner), BF16),
            ("z", (tokens, inner), BF16),
            ("x", (1, tokens, inner), BF16),
            ("low", (1, tokens, sizes["low"][0]), BF16),
            ("bc", (tokens, bc), BF16),
            ("v", (tokens, inner), np.float32),
            ("dt", (tokens, inner), np.float32),
            ("u", (tokens, inner), np.float32),
            ("y", (tokens + 1, inner), np.float32),
            ("gated", (1, tokens, inner), BF16),
            ("state", (columns, state, n), np.float32),
        )
        for space, arrays in ((self.weights, weights), (self.work, work)):
            for name, dims, dtype in arrays:
                space.add(name, dims, dtype)
        own = self.work.arrays
        own["kept"] = replace(own["inputs"], name="kept", shape=(taps - 1, inner))
        new = own["inputs"].offset + (taps - 1) * inner * 2
        own["new"] = replace(own["inputs"], name="new", shape=(tokens, inner), offset=new)
        total = Array("sum", 0, (tokens, sizes["out"][0]), np.float32, Register.OUT)
        self.arrays = self.weights.arrays | own | {"sum": total}

    def _steps(self, c: Any, gemm: Callable[..., None]) -> list[tuple[str, tuple[str, ...], Callable[[], None]]]:
        a = self.arrays

        def project() -> None:
            c.product(a["normed"], "x_in", a["new"])
            c.product(a["normed"], "z_in", a["z"])

        def select() -> None:
            c.product(a["x"], "low", a["low"])
            c.product(a["x"], "bc", a["bc"])

        return [
            ("project", ("new", "z"), project),
            ("convolve", ("x", "kept"), c.convolve),
            ("select", ("low", "bc"), select),
            ("v", ("v",), lambda: c.product(a["low"], "dt", a["v"])),
            ("steps", ("dt", "u"), c.steps),
            ("scan", ("y", "state"), c.scan),
            ("gate", ("gated",), c.gate),
            ("join", ("sum",), lambda: c.product(a["gated"], "out", a["sum"], add=True)),
        ]

    def pack(self, branch: "HistoryBranch") -> dict[str, np.ndarray]:
        """The arrays of weights by name, from the branch's FP32 parameters."""
        n, state, rank, inner = self.fmt.lanes, self.params.state, self.rank, self.inner
        low, bc = (self[name].shape[-1] for name in ("low", "bc"))
        by_column = (inner // n, n)
        matrices = {
            "x_in": branch.in_proj[:, :inner],
            "z_in": branch.in_proj[:, inner:],
            "low": np.pad(branch.x_proj[:, :rank], ((0, 0), (0, low - rank))),
            "bc": np.pad(branch.x_proj[:, rank:], ((0, 0), (0, bc - 2 * state))),
            "dt": np.pad(branch.dt_proj, ((0, low - rank), (0, 0))),
            "out": branch.out_proj,
        }
        ones = np.zeros(self["ones"].shape, np.float32)
        ones[np.arange(2 * state), :, np.arange(2 * state)] = 1
        return {f"{name}_weight": self.matrix(name, w) for name, w in matrices.items()} | {
            "conv_weight": to_bf16(branch.conv_weight.reshape(-1, *by_column).swapaxes(0, 1)),
            "conv_bias": branch.conv_bias,
            "dt_bias": branch.dt_bias,
            "a": to_bf16(branch.a.reshape(*by_column, state).swapaxes(1, 2)),
            "d": to_bf16(branch.d),
            "ones": to_bf16(ones),
        }
