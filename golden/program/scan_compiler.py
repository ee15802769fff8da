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
join       GEMM, added to `sum`: for example the attention's output
=========  ===========================================================================================================

Operands of GEMMs are BF16, and so are x, z, B, C, A, D and the weights of the convolution. The state, dt, u, y and all
sums of products are FP32. `join` adds its products in FP32 to the BF16 numbers of `sum`, slice by slice, and rounds the
result once to BF16. `golden.policies.state_space.HistoryBranch` is the same branch in FP32 throughout.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from golden.arithmetic.numerics import BF16, to_bf16
from golden.function_params import check
from golden.program.isa import LxeFormat
from golden.program.layer_memory import Array, LayerShape, Register, Space, Tiling
from golden.program.scan_stages import ScanCompiler
from golden.program.stage_plan import Plan

if TYPE_CHECKING:
    from golden.policies.state_space import HistoryBranch, StateSpaceParams


class BranchPlan(Plan):
    """The program of one layer's history branch, and its arrays in memory.

    shape : of the decoder's layers; only `width` and `tokens` matter
    params : sizes of the branch
    total : the array to which the branch adds, BF16 [segments, tokens, numbers]; if not given it is `sum`, a hidden
        state for each token, at the address in the register OUT
    spaces : where weights lie, arrays of a pass, and arrays that outlive it; if not given, weights lie behind the
        register WEIGHTS, all else behind KV
    cuts : of GEMMs, by name; those not named are cut for the pass

    The host writes `normed` before a pass, and zeros to `kept` and `state` before a stream. `kept` and `state` have the
    same place for any number of tokens. Raises `ParamError` for sizes that do not fit.
    """

    _compiler = ScanCompiler

    def __init__(
        self,
        shape: LayerShape,
        fmt: LxeFormat,
        params: "StateSpaceParams",
        total: Array | None = None,
        spaces: tuple[Space, Space, Space] | None = None,
        cuts: dict[str, Tiling] | None = None,
    ):
        self.shape, self.fmt, self.params = shape, fmt, params
        n, tokens, state = fmt.lanes, shape.tokens, params.state
        self.inner, self.rank = params.expand * shape.width, -(-shape.width // 16)
        total = total or Array("sum", 0, (1, tokens, shape.width), BF16, Register.OUT)
        segments, _, out = total.shape
        reason = "must have hybrid, for the scan needs EXPM1 and SOFTPLUS: add -p features=hybrid"
        check(fmt.vector.hybrid, "features", fmt.features, reason)
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
            "out": (out, self.inner),  # of a segment, which no block crosses
        }
        given = cuts or {}
        self.cuts = {name: given.get(name) or self._cut(rows, k, k) for name, (rows, k) in sizes.items()}
        if "out" not in given:
            self.cuts["out"] = replace(self.cuts["out"], blocks=segments * self.cuts["out"].blocks)
        own = Space(max(4096, 4 * n), Register.KV)
        self.weights, self.work, kept = spaces or (Space(own.align, Register.WEIGHTS), own, own)
        self.arrays = self._place(sizes, kept) | {"sum": total}
        self.stages = list(self._stages())

    def _place(self, sizes: dict[str, tuple[int, int]], kept: Space) -> dict[str, Array]:
        """Lay out all arrays but the sum, those that outlive a pass in `kept`. The arrays by name."""
        n, tokens, state, inner = self.fmt.lanes, self.shape.tokens, self.params.state, self.inner
        taps, columns, bc = self.params.conv, self.inner // self.fmt.lanes, sizes["bc"][0]
        cuts = {name: (cut.blocks, cut.slices, cut.tiles * n, cut.words * n) for name, cut in self.cuts.items()}
        weights: tuple[tuple[str, tuple[int, ...], type], ...] = (
            *((f"{name}_weight", dims, BF16) for name, dims in cuts.items()),
            ("conv_weight", (columns, taps, n), BF16),
            ("conv_bias", (inner,), np.float32),
            ("dt_bias", (inner,), np.float32),
            ("a", (columns, state, n), BF16),
            ("d", (inner,), BF16),
            ("ones", (2 * state, n, bc), BF16),
        )
        work: tuple[tuple[str, tuple[int, ...], type], ...] = (
            ("normed", (1, tokens, self.shape.width), BF16),
            ("z", (tokens, inner), BF16),
            ("x", (1, tokens, inner), BF16),
            ("low", (1, tokens, sizes["low"][0]), BF16),
            ("bc", (tokens, bc), BF16),
            ("v", (tokens, inner), np.float32),
            ("dt", (tokens, inner), np.float32),
            ("u", (tokens, inner), np.float32),
            ("y", (tokens + 1, inner), np.float32),
            ("gated", (1, tokens, inner), BF16),
        )
        # `inputs` comes last, as its size depends on the tokens of the pass.
        stay = ("state", (columns, state, n), np.float32), ("inputs", (taps - 1 + tokens, inner), BF16)
        own = {
            name: space.add(f"history_{name}", dims, dtype)
            for space, arrays in ((self.weights, weights), (self.work, work), (kept, stay))
            for name, dims, dtype in arrays
        }
        own["kept"] = replace(own["inputs"], name="history_kept", shape=(taps - 1, inner))
        new = own["inputs"].offset + (taps - 1) * inner * 2
        return own | {"new": replace(own["inputs"], name="history_new", shape=(tokens, inner), offset=new)}

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
