"""Traffic of the DPE: operands and commands that its bench drives, and the results that golden expects."""

from dataclasses import asdict
from itertools import pairwise

import numpy as np

from openvrex.golden.arithmetic.dot import dot
from openvrex.golden.function_params import check
from openvrex.hdl.emit import Emitted
from openvrex.hdl.params import DpeParams
from openvrex.tb.library.runner import Run


class Traffic:
    """Phases that the bench drives one after the other, and the results that golden expects."""

    def __init__(self, p: DpeParams):
        self.p, self.phases, self.wants, self.commands, self.fits = p, [], [], [], True
        self.overruns = 0  # steps whose address wraps behind the last word

    def phase(
        self,
        weights: np.ndarray,
        rows: np.ndarray,
        rng=None,
        splits: int = 1,
        gap: int = 0,
        columns: bool = False,
        alike: int = 0,
        halves: bool = False,
    ) -> None:
        """Add a product: `rows` [R, K] times `weights` [tiles * trees, K]. With more `splits`, each row takes that many
        commands.

        Phases alternate between the halves of the memories; a phase that needs more than a half runs alone. `gap` words
        lie between two rows. With `columns` the weights are written column by column. Of each tile, the first `alike`
        trees have the same weights, which are written to all of them at once, behind those of the others. With `halves`
        a word's sum is the larger of those of its halves.
        """
        p, half = self.p, len(self.phases) % 2
        n, chunks = p.n_w, -(-rows.shape[1] // p.n_w)
        tiles = len(weights) // p.n_h
        assert splits == 1 or tiles == 1  # a sum over several commands covers one tile
        w_base, x_base = half * p.w_depth // 2, half * p.x_depth // 2

        def words(values: np.ndarray) -> np.ndarray:  # lanes beyond the row may hold anything
            junk = rng.integers(0, 1 << 16, (len(values), chunks * n)) if rng else np.zeros((len(values), chunks * n))
            junk[:, : values.shape[1]] = values.view(np.uint16)
            return junk.astype(int).reshape(len(values), chunks, n)

        w = []
        for t, tile in enumerate(words(weights).reshape(tiles, p.n_h, chunks, n)):
            for k in range(chunks):
                addr = (w_base + t * chunks + k) % p.w_depth
                if columns:
                    column = np.zeros((n, max(n, p.n_h)), int)
                    column[:, : p.n_h] = tile[:, k].T
                    own = {"addr": addr, "column": 1, "tree": p.n_h - 1}  # the unit ignores `tree` for a column
                    w += [{**own, "lane": j, "data": column[j, :n].tolist()} for j in range(n)]
                else:
                    each = [{"tree": h, "addr": addr, "lane": n - 1, "data": tile[h, k].tolist()} for h in range(p.n_h)]
                    w += each[alike:]
                    w += [{"tree": alike - 1, "addr": addr, "upto": 1, "data": each[0]["data"]}] * (alike > 0)
        step = chunks + gap
        x = [
            {"addr": (x_base + r * step + k) % p.x_depth, "data": word.tolist()}
            for r, row in enumerate(words(rows))
            for k, word in enumerate(row)
        ]
        keep = (rows.shape[1] - 1) % n
        if splits == 1:
            c = [
                {
                    "w": w_base,
                    "x": x_base,
                    "x_step": step % p.x_depth,
                    "chunks": chunks - 1,
                    "tiles": tiles - 1,
                    "rows": len(rows) - 1,
                    "keep": keep,
                    "start": 1,
                    "end": 1,
                }
            ]
        else:
            c = []
            for r in range(len(rows)):
                cuts = np.unique(np.linspace(0, chunks, splits + 1).astype(int))
                for a, b in pairwise(cuts):
                    addr = {"w": int(w_base + a) % p.w_depth, "x": int(x_base + r * step + a) % p.x_depth}
                    ends = {"start": int(a == 0), "end": int(b == chunks)}
                    c.append(
                        {**addr, "chunks": int(b - a) - 1, "rows": 0, "keep": keep if b == chunks else n - 1, **ends}
                    )
        if halves:
            c = [{**command, "halves": 1} for command in c]
        self.commands += c
        self.overruns += sum(self._wraps(command) for command in c)
        want = dot(rows, weights, p.dot, halves).reshape(-1, p.n_h)
        lasts = [int(splits > 1 or r == len(want) - 1) for r in range(len(want))]
        self.wants += [{"data": v, "last": z} for v, z in zip(want.view(np.uint32).tolist(), lasts, strict=True)]
        fits = tiles * chunks <= p.w_depth // 2 and step * len(rows) <= p.x_depth // 2
        before = len(self.phases) - (fits and self.fits)
        self.fits = fits
        after = sum(phase["results"] for phase in self.phases[: max(0, before)])
        self.phases.append({"w": w, "x": x, "c": c, "results": len(want), "after": after})

    def _wraps(self, c: dict) -> int:
        p, out = self.p, 0
        chunks, tiles, rows = (c.get(k, 0) + 1 for k in ("chunks", "tiles", "rows"))
        for r in range(rows):
            x = (c["x"] + r * c.get("x_step", 0)) % p.x_depth
            for t in range(tiles):
                for k in range(chunks):
                    last = (t, k) == (tiles - 1, chunks - 1)
                    over_w = not last and (c["w"] + t * chunks + k) % p.w_depth == p.w_depth - 1
                    over_x = k < chunks - 1 and (x + k) % p.x_depth == p.x_depth - 1
                    over_x |= last and r < rows - 1 and x + c["x_step"] >= p.x_depth
                    out += over_w or over_x
        return out

    def product(self, weights: np.ndarray, rows: np.ndarray) -> None:
        """Add `rows` [R, K] times `weights` [C, K]: a tile has a weight row a tree, a phase as many rows as fit."""
        p = self.p
        chunks = -(-rows.shape[1] // p.n_w)
        check(chunks <= p.w_depth, "w_depth", p.w_depth, f"must hold the {chunks} words of a row of {rows.shape[1]}")
        check(chunks <= p.x_depth, "x_depth", p.x_depth, f"must hold the {chunks} words of a row of {rows.shape[1]}")
        step = max(1, p.x_depth // 2 // chunks)
        for c in range(0, len(weights), p.n_h):
            tile = np.zeros((p.n_h, weights.shape[1]), weights.dtype)
            tile[: len(weights) - c] = weights[c : c + p.n_h]
            for r in range(0, len(rows), step):
                self.phase(tile, rows[r : r + step])

    def run(self, emitted: Emitted, seed: int, idle=0.0, stall=0.0, reset_at=0, waves=True) -> dict:
        """Run the bench; it returns {taken, cycles, beats, perf}."""
        config = {"params": asdict(self.p), "phases": self.phases, "idle": idle, "stall": stall, "reset_at": reset_at}
        return Run(emitted, "bench_dpe", "products", config, seed, waves)()
