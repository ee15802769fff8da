"""The encoder compiler: turns a vision transformer and the projector behind it into programs of the LXE.

`EncoderPlan` places the arrays in memory and writes the programs of one of several cores, which share a picture:

=========  ===========================================================================================================
embed      hidden = patches x kernel + positions. A token without a patch (class, register) has a patch of zeros
norm1      LayerNorm of each token
qkv        queries, keys and values: product. Those of a head lie together, [3 * heads, tokens, head size]
attend     attention of each token to all tokens
output     product, added to the hidden states
norm2      LayerNorm
up         product and GELU
down       product, added to the hidden states
last_norm  LayerNorm with its weight and bias: the tokens of the picture, FP32
pool       the tokens that the decoder sees: some without a patch, then means of patches in cells of a grid, or groups
project_k  products of the projector, with GELU between them: the decoder's embeddings, FP32
=========  ===========================================================================================================

Hidden states are FP32, everything else BF16. A stage begins when all cores have ended the stage before.

Weights are products with biases (`golden.program.encoder_host.EncoderWeights`). What is linear beside a product is
folded into it: weights and biases of norms, layer scales, the factor of scores. So a LayerNorm only centres and scales.

A picture may be encoded in part (`EncoderShape.kept`): the others of its groups of patches are left out, as if it had
none there (CodecSight 3.3.2). The weights in memory are the same.

Each core computes some columns of a product for some rows (`grid`), in `attend` some heads for some rows. Norms go by
rows, pooling by columns.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from openvrex.golden.arithmetic.numerics import BF16, to_bf16
from openvrex.golden.function_params import check, check_ints
from openvrex.golden.program.encoder_stages import EncoderCompiler
from openvrex.golden.program.isa import LxeFormat
from openvrex.golden.program.layer_memory import Array, Register, Space, Tiling, divisors
from openvrex.golden.program.shares import divide
from openvrex.golden.program.stage_plan import Plan, Planned

LAYER = ("norm1", "qkv", "attend", "output", "norm2", "up", "down")  # the stages of a layer


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of a vision transformer, of its picture, and of the projector. The defaults are DINOv2's ViT-S/14.

    side : patches on a side of the picture · patch : numbers of a patch
    extra : tokens without a patch, the first ones; the decoder sees `shown` of them
    cells : cells on a side of the grid in which patches are pooled
    projector : columns of each product of the projector
    kept : groups of `group` x `group` patches that are encoded, each of which is pooled to a token; None: the whole
        picture, pooled in cells
    """

    layers: int = 12
    width: int = 384
    heads: int = 6
    ffn: int = 1536
    side: int = 16
    patch: int = 588
    extra: int = 1
    shown: int = 1
    cells: int = 3
    projector: tuple[int, ...] = (576,)
    epsilon: float = 1e-6
    kept: int | None = None
    group: int = 2

    def __post_init__(self):
        check_ints(self)
        if self.kept is not None:
            most = (self.side // self.group) ** 2
            check(self.side % self.group == 0, "group", self.group, f"must divide side = {self.side}")
            check(0 <= self.kept <= most, "kept", self.kept, f"must be 0 to {most}, the groups of a picture")
            check(self.tokens > 0, "kept", self.kept, "must be at least 1: there is no token without a patch")
        for name in ("layers", "width", "heads", "ffn", "side", "patch", "cells"):
            check(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        check(self.extra >= 0, "extra", self.extra, "must not be negative")
        check(0 <= self.shown <= self.extra, "shown", self.shown, f"must be 0 to extra = {self.extra}")
        check(self.width % self.heads == 0, "heads", self.heads, f"must divide width = {self.width}")
        check(self.cells <= self.side, "cells", self.cells, f"must be at most side = {self.side}")
        check(len(self.projector) > 0, "projector", self.projector, "must have a product")

    @property
    def tokens(self) -> int:
        """Tokens that are encoded."""
        return self.extra + (self.side**2 if self.kept is None else self.kept * self.group**2)

    @property
    def seen(self) -> int:
        """Tokens that the decoder sees."""
        return self.shown + (self.cells**2 if self.kept is None else self.kept)

    @property
    def head_size(self) -> int:
        """Numbers of a head."""
        return self.width // self.heads

    @property
    def macs(self) -> int:
        """Multiplications for a picture, without those of patches that are zero and of the projector."""
        layer = self.width * (4 * self.width + 2 * self.ffn)
        attention = 2 * self.tokens * self.width
        return (self.tokens - self.extra) * self.patch * self.width + self.layers * self.tokens * (layer + attention)

    def products(self, lanes: int) -> dict[str, tuple[int, int, int]]:
        """(rows, inputs, columns) of each product, in whole words."""
        w, seen = self.width, self.seen
        ends = [w, *self.projector]
        project = {f"project_{k}": (seen, ends[k], ends[k + 1]) for k in range(len(self.projector))}
        return {
            "embed": (self.tokens, -(-self.patch // lanes) * lanes, w),
            "qkv": (self.tokens, w, 3 * w),
            "output": (self.tokens, w, w),
            "up": (self.tokens, w, self.ffn),
            "down": (self.tokens, self.ffn, w),
            **project,
        }


class Grid(NamedTuple):
    """How cores share a product: `columns` of them side by side have the same rows, and how each cuts its own part."""

    columns: int
    cut: Tiling


class Share(NamedTuple):
    """What a core computes of a product, in tiles of columns and in rows."""

    tiles: range
    rows: range


def grid(
    rows: int, words: int, tiles: int, cores: int, fmt: LxeFormat, sliced: bool, common: bool = False
) -> Grid | None:
    """The grid that takes the least time: of DPE, of a core's port, and of the memory, which has half of a port's rate
    for each core. A core reads its weights once, and its rows for every block of columns.

    words, tiles : of a row of activations and of the result
    sliced : whether results are FP32 sums in memory, so that K may have several slices: each reads and writes them
    common : cores with the same rows read them together, so each has as many columns

    None if nothing fits.
    """
    best: tuple[float, Grid] | None = None
    wide = 4 if sliced else 1  # words of BF16 numbers that move for a word of results
    for columns in (d for d in divisors(cores) if d <= tiles):
        if common and tiles % columns:
            continue
        own, mine = -(-tiles // columns), -(-rows // (cores // columns))
        for t in (1 << k for k in range(own.bit_length())):
            if any(len(some) % t for some in divide(tiles, columns)) or 2 * t > fmt.depth:
                continue
            for k in divisors(words) if sliced else [words]:
                if k * t > fmt.w_depth or k > fmt.x_depth // 2:
                    continue
                blocks, slices = own // t, words // k
                weights, read, results = own * words * fmt.lanes, mine * words * blocks, mine * wide * own * slices
                port = 2 * (weights + read + results)
                memory = 4 * (weights + read / (in_step(columns) if common else 1) + results)
                found = Grid(columns, Tiling(blocks, t, slices, k))
                steps = blocks * slices * -(-mine // min(fmt.x_depth // 2 // k, fmt.depth // t))
                cost = max(port, memory, mine * own * words) + 32 * steps
                if best is None or cost < best[0]:
                    best = cost, found
    return best and best[1]


def in_step(cores: int) -> int:
    """How many of some cores read together: the largest power of two that divides their number."""
    return cores & -cores


class EncoderPlan(Plan):
    """The programs of one core, and the arrays that they use in memory.

    core, cores : the core's number, and how many share a picture
    common : whether cores with the same rows of a product read them together (`hdl.bus.arbiter`, `system.common`)
    grids : how cores share each product, which decides how weights lie in memory; chosen for the picture if not given

    Arrays of `work` start at the address in the register OUT and belong to all cores; those of `weights`, a layer's, at
    the one in WEIGHTS, and those of `ends`, which all else needs, at the one in KV. Both are the core's own. The first
    `together` bytes of `work` are what products multiply; nothing else reads them.

    `names` are the stages that some core has, in order; those of `LAYER` repeat. Raises `ParamError` for sizes that do
    not fit.
    """

    _compiler = EncoderCompiler

    def __init__(
        self,
        shape: EncoderShape,
        fmt: LxeFormat,
        core: int = 0,
        cores: int = 1,
        common: bool = False,
        grids: dict[str, Grid] | None = None,
    ):
        check(0 <= core < cores, "core", core, f"must be 0 to {cores - 1}")
        self.encoder, self.fmt, self.core, self.cores, self.common = shape, fmt, core, cores, common
        self.tokens, self.head_size, self.epsilon = shape.tokens, shape.head_size, shape.epsilon
        self._check()
        self.products = shape.products(fmt.lanes)
        self.grids = grids or {name: self._grid(name) for name in self.products}
        self.shares = {name: self._share(name) for name in self.products}
        self.cuts = {name: self._own_cut(name) for name in self.products}
        self.work, self.weights, self.ends = self._spaces()
        self.arrays = self.work.arrays | self.weights.arrays | self.ends.arrays
        self.stages = list(self._stages())

    def _check(self) -> None:
        s, f = self.encoder, self.fmt
        for name in ("width", "head_size", "ffn"):
            size = getattr(s, name)
            check(size % f.lanes == 0, name, size, f"must be a multiple of lanes = {f.lanes}, a word")
        for size in s.projector:
            check(size % f.lanes == 0, "projector", size, f"must be a multiple of lanes = {f.lanes}, a word")
        words, head, tiles = s.width // f.lanes, s.head_size // f.lanes, -(-s.tokens // f.lanes)
        check(2 * words <= f.depth, "width", s.width, f"needs {2 * words} words of a bank: raise vpe.depth")
        need, reason = 2 * head * tiles, "words of W for keys and values of a head: raise dpe.w_depth"
        check(need <= f.w_depth, "tokens", s.tokens, f"need {need} {reason}, or take fewer patches")
        each = head + tiles
        check(each <= f.depth, "tokens", s.tokens, f"need {each} words of a bank for a row of scores: raise vpe.depth")
        check(2 * each <= f.x_depth, "tokens", s.tokens, f"need {2 * each} words of X: raise dpe.x_depth")

    def _grid(self, name: str) -> Grid:
        rows, inputs, columns = self.products[name]
        n, sliced = self.fmt.lanes, self._is_sum(name)
        found = grid(rows, inputs // n, columns // n, self.cores, self.fmt, sliced, self.common)
        reason = f"must fit {self.fmt.w_depth} words of W and {self.fmt.x_depth // 2} of X: raise dpe.w_depth"
        check(found is not None, f"inputs of {name}", inputs, reason)
        assert found is not None
        return found

    def _is_sum(self, name: str) -> bool:
        """Whether a product's results are FP32 in memory, so that slices of K can add to them."""
        return name in ("embed", "output", "down", f"project_{len(self.encoder.projector) - 1}")

    def _share(self, name: str) -> Share:
        rows, _, columns = self.products[name]
        side = self.grids[name].columns
        down = self.cores // side
        return Share(divide(columns // self.fmt.lanes, side)[self.core % side], divide(rows, down)[self.core // side])

    def _own_cut(self, name: str) -> Tiling:
        cut = self.grids[name].cut
        return replace(cut, blocks=len(self.shares[name].tiles) // cut.tiles)

    def _spaces(self) -> tuple[Space, Space, Space]:
        """The arrays in memory: of all cores, of a layer, of the ends."""
        s, n = self.encoder, self.fmt.lanes
        align = max(4096, 4 * n)
        work, weights, ends = (Space(align, r) for r in (Register.OUT, Register.WEIGHTS, Register.KV))
        t, w = s.tokens, s.width
        work.add("patches", (t, self.products["embed"][1]), BF16)
        work.add("norm", (t, w), BF16)
        work.add("attention", (t, w), BF16)
        work.add("inner", (t, s.ffn), BF16)
        work.add("pooled", (s.seen, w), BF16)
        for k, columns in enumerate(s.projector[:-1]):
            work.add(f"projected_{k}", (s.seen, columns), BF16)
        self.together = work.size
        work.add("positions", (t, w), np.float32)
        work.add("hidden", (t, w), np.float32)
        work.add("qkv", (3 * s.heads, t, s.head_size), BF16)
        work.add("tokens", (t, w), np.float32)
        work.add("embeddings", (s.seen, s.projector[-1]), np.float32)
        for name, share in self.shares.items():
            space = weights if name in LAYER else ends
            if self.cuts[name].blocks:
                space.add_weights(f"{name}_weight", self.cuts[name], n, None)
                space.add(f"{name}_bias", (len(share.tiles) * n,), np.float32)
        ends.add("norm_weight", (w,), BF16)
        ends.add("norm_bias", (w,), np.float32)
        return work, weights, ends

    @cached_property
    def heads(self) -> tuple[range, range]:
        """The core's heads, and its rows of queries."""
        s = self.encoder
        each = max(d for d in divisors(self.cores) if d * s.heads <= self.cores) if self.cores >= s.heads else 1
        teams = self.cores // each
        return divide(s.heads, teams)[self.core % teams], divide(s.tokens, each)[self.core // teams]

    @cached_property
    def pooled(self) -> range:
        """The core's columns of the pooled tokens."""
        own = divide(self.encoder.width // self.fmt.lanes, self.cores)[self.core]
        return range(own.start * self.fmt.lanes, own.stop * self.fmt.lanes)

    @property
    def cells(self) -> list[tuple[range, range]]:
        """Rows and columns of the patches of each cell, as `golden.inputs.vision.pool`; of kept groups one row each."""
        side, g = self.encoder.side, self.encoder.cells
        if self.encoder.kept is not None:
            return [(range(k, k + 1), range(self.encoder.group**2)) for k in range(self.encoder.kept)]
        some = [range(i * side // g, -(-(i + 1) * side // g)) for i in range(g)]
        return [(r, c) for r in some for c in some]

    def _table(self, c: Any, gemm: Callable[..., None]) -> list[Planned]:
        a, last = self.arrays, len(self.encoder.projector) - 1
        rows = divide(self.tokens, self.cores)[self.core]
        heads, queries = self.heads

        def product(name: str, x: str, y: str, of: str | None = None, nonlinear: bool = False) -> Planned:
            share = self.shares[name]

            def write() -> None:
                added = None if of is None else self._columns(of, share)
                mine = self._columns(y, share)
                w, b = a[f"{name}_weight"], a[f"{name}_bias"]
                c.product(a[x], w, b, self.cuts[name], share.rows, mine, added, nonlinear, share.tiles.start)

            return Planned(name, write, f"{name}_weight" in a and len(share.rows) > 0)

        def norm(name: str) -> Planned:
            return Planned(name, lambda: c.norm(a["hidden"], a["norm"], rows), len(rows) > 0)

        affine = a["norm_weight"], a["norm_bias"]
        steps = ["pooled", *(f"projected_{k}" for k in range(last)), "embeddings"]
        return [
            product("embed", "patches", "hidden", "positions"),
            norm("norm1"),
            product("qkv", "norm", "qkv"),
            Planned("attend", lambda: c.attention(heads, queries), len(heads) > 0 and len(queries) > 0),
            product("output", "attention", "hidden", "hidden"),
            norm("norm2"),
            product("up", "norm", "inner", None, True),
            product("down", "inner", "hidden", "hidden"),
            Planned("last_norm", lambda: c.norm(a["hidden"], a["tokens"], rows, affine), len(rows) > 0),
            Planned(
                "pool",
                lambda: c.pool(a["tokens"], a["pooled"], self.cells, self._cells_side, self.encoder.extra, self.pooled),
                len(self.pooled) > 0,
            ),
            *(product(f"project_{k}", steps[k], steps[k + 1], None, k < last) for k in range(last + 1)),
        ]

    @property
    def _cells_side(self) -> int:
        """Patches from a row of `cells` to the next."""
        return self.encoder.side if self.encoder.kept is None else self.encoder.group**2

    def _columns(self, name: str, share: Share) -> Array:
        """An array from the core's first column on; one by heads as it is."""
        of = self.arrays[name]
        at = share.tiles.start * self.fmt.lanes * np.dtype(of.dtype).itemsize
        return of if len(of.shape) > 2 else replace(of, offset=of.offset + at)

    @property
    def names(self) -> list[str]:
        """The stages that some core has, in their order."""
        return [row.name for row in self._table(None, lambda *_: None)]

    def group(self, stage: str) -> int:
        """Cores that read the rows of a product together; 1 if each reads alone."""
        return in_step(self.grids[stage].columns) if self.common and stage in self.grids else 1

    # The host's part

    def registers(self, work: int, weights: int, ends: int) -> dict[int, int]:
        """Values of the registers, from the addresses of the three spaces."""
        return {int(Register.OUT): work, int(Register.WEIGHTS): weights, int(Register.KV): ends, int(Register.REST): 0}

    def pack(self, matrices: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of some products by name, from matrices [inputs, columns] and biases of their names."""
        out, n = {}, self.fmt.lanes
        for name, share in self.shares.items():
            if name not in matrices or f"{name}_weight" not in self.arrays:
                continue
            own = slice(share.tiles.start * n, share.tiles.stop * n)
            inputs = self.products[name][1]
            w = matrices[name][:, own]
            w = np.pad(w, ((0, inputs - len(w)), (0, 0)))
            out[f"{name}_weight"] = self.matrix(name, to_bf16(w))
            out[f"{name}_bias"] = matrices[f"{name}_bias"][own].astype(np.float32)
        return out
