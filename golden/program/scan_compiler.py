"""Compiles the hybrid memory's history branch of a layer: a Mamba-1 block, from the normed hidden state to its output.

`BranchPlan` takes a pass of T tokens through four stages on a VPE with the feature "hybrid":

=========  ===========================================================================================================
project    by columns: inputs of the convolution, causal convolution with SiLU; x, and the last inputs for the next pass
select     GEMM: low-rank step sizes, B and C
scan       by columns: step sizes, selective scan, gate; its state stays in memory for the next pass. One stage for each
           group of tokens that fits in the scratchpads and banks: scan, scan_1 and so on
join       GEMM, added to `sum`: for example the attention's output
=========  ===========================================================================================================

The stages by columns are those of `golden.program.scan_stages`. Weights are loaded once for all tokens of a pass, but
for those of the scan, which each group of tokens loads.

Operands of GEMMs are BF16, and so are x, z, B, C, A, D and the weights of the convolution. The state, dt, u, y and all
sums of products are FP32. `join` adds its products in FP32 to the BF16 numbers of `sum`, slice by slice, and rounds the
result once to BF16. `golden.arithmetic.state_space.HistoryBranch` is the same branch in FP32 throughout.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.arithmetic.state_space import HistoryBranch, StateSpaceParams
from openvrex.golden.function_params import check
from openvrex.golden.program.isa import LxeFormat
from openvrex.golden.program.layer_memory import Array, LayerShape, Register, Space, Tiling, divisors
from openvrex.golden.program.scan_stages import Record, ScanCompiler, scan_depth
from openvrex.golden.program.stage_plan import Plan, Planned


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
        params: StateSpaceParams,
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
        depth = max(scan_depth(state, 1), tokens + 2 * params.conv - 1)
        check(depth <= fmt.depth, "depth", fmt.depth, f"must be at least {depth} for this state and these tokens")
        least = min(n, 2 * state) + shape.width // n + -(-self.rank // n)
        check(least <= fmt.x_depth, "x_depth", fmt.x_depth, f"must be at least {least}: the operands of a token's scan")
        low, bc = (-(-k // n) * n for k in (self.rank, 2 * state))
        given = cuts or {}
        whole = {"low": (low, self.inner), "bc": (bc, self.inner), "out": (out, self.inner)}  # `out`: of a segment
        self.cuts = {name: given.get(name) or self._cut(rows, k, k) for name, (rows, k) in whole.items()}
        if "out" not in given:
            self.cuts["out"] = replace(self.cuts["out"], blocks=segments * self.cuts["out"].blocks)
        self._cut_columns(low // n, bc // n, given)
        own = Space(max(4096, 4 * n), Register.KV)
        self.weights, self.work, kept = spaces or (Space(own.align, Register.WEIGHTS), own, own)
        self.arrays = self._place(low, bc, kept) | {"sum": total}
        self.stages = list(self._stages())

    def _cut_columns(self, low: int, bc: int, given: dict[str, Tiling]) -> None:
        """Choose how the tiles of columns are cut, and the groups of tokens of the scan.

        low, bc : words of a row of `low` and of `bc` · given : as `cuts`

        Sets `cuts`, `groups` (tokens of each), `keeps_normed` (whether X holds the input of all tokens in `project`),
        and the records `inputs` and `gates`.
        """
        f, tokens, state = self.fmt, self.shape.tokens, self.params.state
        columns, normed = self.inner // f.lanes, self.shape.width // f.lanes
        self.keeps_normed = tokens * normed <= f.x_depth
        taps = {"taps": self.params.conv, "bias": 2}
        cuts = [given["x_in"]] if "x_in" in given else [Tiling(columns, 1, k, normed // k) for k in divisors(normed)]
        for cut in cuts:
            if 2 * cut.words <= f.w_depth and (self.keeps_normed or tokens * cut.words <= f.x_depth // 2):
                break
        self.cuts["x_in"] = cut
        self.inputs = _record("project_weight", {"x_in": cut}, taps, f.lanes, cut.words, 2 * cut.words)
        # The scan takes the tiles `dt` and `z_in` in turns: the more tokens W, X and the banks hold beside them, the
        # better.
        most = max((k for k in range(1, tokens + 1) if scan_depth(state, k) <= f.depth), default=0)
        most = min(most, (f.x_depth - min(f.lanes, 2 * state)) // (normed + low))
        step = Tiling(columns, 1, 1, low)
        cuts = [given["z_in"]] if "z_in" in given else [Tiling(columns, 1, k, normed // k) for k in divisors(normed)]
        ways = []
        for cut in cuts:
            second = max(low, cut.words) if cut.slices > 1 else low
            behind = second + (max(low, cut.words) if cut.slices % 2 == 0 else cut.words)
            rows = min(most, (f.w_depth - behind) // bc)
            if rows > 0:
                ways.append((-(-tokens // rows), cut.slices, cut, second, behind))
        reason = "must hold B and C of a token, a column's tile of low-rank steps and a slice of its tile of gates"
        check(bool(ways), "w_depth", f.w_depth, reason)
        count, _, cut, second, behind = min(ways, key=lambda way: way[:2])
        self.groups = [tokens * (k + 1) // count - tokens * k // count for k in range(count)]
        self.cuts |= {"z_in": cut, "dt": step}
        more = {"bias": 2, "a_d": state + 1}
        self.gates = _record("scan_weight", {"z_in": cut, "dt": step}, more, f.lanes, second, behind)

    def x_places(self, rows: int) -> tuple[int, int]:
        """First words of `low` and of `normed` in X during the scan of a group, behind the words of `ones`."""
        low = min(self.fmt.lanes, 2 * self.params.state)
        return low, low + rows * (self["low"].shape[-1] // self.fmt.lanes)

    def _place(self, low: int, bc: int, kept: Space) -> dict[str, Array]:
        """Lay out all arrays but the sum, those that outlive a pass in `kept`. The arrays by name.

        low, bc : numbers of a row of `low` and of `bc`
        """
        n, tokens, state, inner = self.fmt.lanes, self.shape.tokens, self.params.state, self.inner
        columns = inner // n
        weights: tuple[tuple[str, tuple[int, ...], type], ...] = (
            *(
                (f"{name}_weight", self.cuts[name].weights(n), BF16)
                for name in self.cuts
                if name in ("low", "bc", "out")
            ),
            *((record.name, (columns, record.words, n), BF16) for record in (self.inputs, self.gates)),
            ("ones", (1, n, n), BF16),
        )
        work: tuple[tuple[str, tuple[int, ...], type], ...] = (
            ("normed", (1, tokens, self.shape.width), BF16),
            ("x", (1, tokens, inner), BF16),
            ("low", (1, tokens, low), BF16),
            ("bc", (tokens, bc), BF16),
            ("gated", (1, tokens, inner), BF16),
        )
        stay = ("state", (columns, state, n), np.float32), ("kept", (self.params.conv - 1, inner), BF16)
        return {
            name: space.add(f"history_{name}", shape, dtype)
            for space, arrays in ((self.weights, weights), (self.work, work), (kept, stay))
            for name, shape, dtype in arrays
        }

    def _table(self, c: Any, gemm: Callable[..., None]) -> list[Planned]:
        a = self.arrays

        def select() -> None:
            c.product(a["x"], "low", a["low"])
            c.product(a["x"], "bc", a["bc"])

        ends = list(accumulate(self.groups))
        scans = [
            Planned("scan" + f"_{k}" * bool(k), partial(c.scan, end - rows, rows))
            for k, (rows, end) in enumerate(zip(self.groups, ends, strict=True))
        ]
        return [
            Planned("project", c.project),
            Planned("select", select),
            *scans,
            Planned("join", lambda: c.product(a["gated"], "out", a["sum"], add=True)),
        ]

    def pack(self, branch: HistoryBranch) -> dict[str, np.ndarray]:
        """The arrays of weights by name, from the branch's FP32 parameters."""
        n, state, rank, inner = self.fmt.lanes, self.params.state, self.rank, self.inner
        low, bc = (self[name].shape[-1] for name in ("low", "bc"))
        columns = inner // n
        matrices = {
            "low": np.pad(branch.x_proj[:, :rank], ((0, 0), (0, low - rank))),
            "bc": np.pad(branch.x_proj[:, rank:], ((0, 0), (0, bc - 2 * state))),
            "out": branch.out_proj,
        }
        inputs = {
            "x_in": self._tiles("x_in", branch.in_proj[:, :inner]),
            "taps": to_bf16(branch.conv_weight.reshape(-1, columns, n).swapaxes(0, 1)),
            "bias": _halves(branch.conv_bias.reshape(columns, n)),
        }
        a, d = to_bf16(branch.a.reshape(columns, n, state).swapaxes(1, 2)), to_bf16(branch.d.reshape(columns, 1, n))
        gates = {
            "z_in": self._tiles("z_in", branch.in_proj[:, inner:]),
            "dt": self._tiles("dt", np.pad(branch.dt_proj, ((0, low - rank), (0, 0)))),
            "bias": _halves(branch.dt_bias.reshape(columns, n)),
            "a_d": np.concatenate([a, d], axis=1),
        }
        return {f"{name}_weight": self.matrix(name, w) for name, w in matrices.items()} | {
            self.inputs.name: np.concatenate([inputs[part] for part in self.inputs.parts], axis=1),
            self.gates.name: np.concatenate([gates[part] for part in self.gates.parts], axis=1),
            "ones": np.eye(n, dtype=BF16),
        }

    def _tiles(self, name: str, w: np.ndarray) -> np.ndarray:
        """A matrix [inputs, channels] as tiles of columns, in the order of their LOADs: [columns, words, n]."""
        cut, n = self.cuts[name], self.fmt.lanes
        return to_bf16(w.T).reshape(cut.blocks, n, cut.slices, cut.words * n).swapaxes(1, 2).reshape(cut.blocks, -1, n)


def _record(name: str, cuts: dict[str, Tiling], more: dict[str, int], lanes: int, second: int, behind: int) -> Record:
    """A record of tiles, then of parts of so many words."""
    parts, at = {}, 0
    for part, words in ({n: lanes * cut.slices * cut.words for n, cut in cuts.items()} | more).items():
        parts[part] = at, words
        at += words
    return Record(name, parts, second, behind)


def _halves(x: np.ndarray) -> np.ndarray:
    """FP32 numbers [columns, n] as the words [columns, 2, n] of BF16 numbers that have the same bytes."""
    return np.ascontiguousarray(x, np.float32).view(BF16).reshape(len(x), 2, -1)
