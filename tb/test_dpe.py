"""DPE: results equal to golden, cycles equal to the time view; stalls, sizes, specials, reset, coverage, mutants."""

from dataclasses import asdict
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from golden.dot import dot
from hdl.emit import emit
from hdl.params import DpeParams, preset
from sim.dpe import DpeTime
from tb.operands import KINDS, operands
from tb.runner import Run

TINY = preset("tiny").core.dpe
SIZES = {
    "tiny": TINY,
    "one": DpeParams(n_h=1, n_w=1, w_depth=1, x_depth=1),
    "row": DpeParams(n_h=1, n_w=9, w_depth=4, x_depth=4, window=32),
    "ragged": DpeParams(n_h=3, n_w=3, w_depth=8, x_depth=2, window=16),
    "wide": DpeParams(n_h=2, n_w=17, w_depth=2, x_depth=8, window=28),
}


class Traffic:
    """Phases for the bench, and the results that golden gives for them."""

    def __init__(self, p: DpeParams):
        self.p, self.phases, self.wants, self.commands = p, [], [], []

    def phase(self, weights: np.ndarray, rows: np.ndarray, rng=None, splits: int = 1) -> None:
        """`rows` [R, K] times `weights` [trees, K]; with more `splits`, row by row in so many commands each."""
        p, half = self.p, len(self.phases) % 2
        n, chunks = p.n_w, -(-rows.shape[1] // p.n_w)
        w_base, x_base = half * p.w_depth // 2, half * p.x_depth // 2

        def words(values: np.ndarray) -> np.ndarray:  # what is beyond the row may be anything
            junk = rng.integers(0, 1 << 16, (len(values), chunks * n)) if rng else np.zeros((len(values), chunks * n))
            junk[:, : values.shape[1]] = values.view(np.uint16)
            return junk.astype(int).reshape(len(values), chunks, n)

        w = [
            {"tree": h, "addr": (w_base + k) % p.w_depth, "data": word.tolist()}
            for h, row in enumerate(words(weights))
            for k, word in enumerate(row)
        ]
        flat = words(rows).reshape(-1, n)
        x = [{"addr": (x_base + k) % p.x_depth, "data": word.tolist()} for k, word in enumerate(flat)]
        keep = (rows.shape[1] - 1) % n
        if splits == 1:
            c = [
                {
                    "w": w_base,
                    "x": x_base,
                    "chunks": chunks - 1,
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
                    addr = {"w": int(w_base + a) % p.w_depth, "x": int(x_base + r * chunks + a) % p.x_depth}
                    ends = {"start": int(a == 0), "end": int(b == chunks)}
                    c.append(
                        {**addr, "chunks": int(b - a) - 1, "rows": 0, "keep": keep if b == chunks else n - 1, **ends}
                    )
        self.commands += c
        want = dot(rows, weights, p.dot)
        lasts = [int(splits > 1 or r == len(rows) - 1) for r in range(len(rows))]
        self.wants += [{"data": v, "last": z} for v, z in zip(want.view(np.uint32).tolist(), lasts, strict=True)]
        # The memories have two halves; with one word there are none, and a phase waits for all before it.
        before = len(self.phases) - (min(p.w_depth, p.x_depth) > 1)
        after = sum(phase["results"] for phase in self.phases[: max(0, before)])
        self.phases.append({"w": w, "x": x, "c": c, "results": len(rows), "after": after})

    def run(self, emitted, seed: int, idle=0.0, stall=0.0, reset_at=0, waves=True) -> dict:
        config = {"params": asdict(self.p), "phases": self.phases, "idle": idle, "stall": stall, "reset_at": reset_at}
        return Run(emitted, "tb.bench_dpe", "products", config, seed, waves)()


@cache
def emitted(p: DpeParams):
    return emit("dpe", p)


def traffic(p: DpeParams, seed: int, phases: int) -> Traffic:
    rng = np.random.default_rng(seed)
    t = Traffic(p)
    for k in range(phases):
        kind = KINDS[k % len(KINDS)]
        chunks = int(rng.integers(1, max(1, min(p.w_depth, p.x_depth) // 2) + 1))
        length = max(1, chunks * p.n_w - int(rng.integers(0, p.n_w)))
        rows = int(rng.integers(1, max(1, p.x_depth // 2 // chunks) + 1))
        other = kind if rng.random() < 0.5 else "normal"
        splits = int(rng.integers(1, 4))
        t.phase(operands(rng, kind, p.n_h, length), operands(rng, other, rows, length), rng, splits)
    return t


@pytest.mark.parametrize("size", SIZES)
def test_equals_golden(size):
    p = SIZES[size]
    for seed, (idle, stall) in enumerate([(0.0, 0.0), (0.4, 0.4), (0.0, 0.8)], 1):
        t = traffic(p, seed, 24)
        got = t.run(emitted(p), seed, idle, stall)
        assert got["beats"] == t.wants, f"seed {seed}"
        assert got["perf"]["rows"] == len(t.wants)
        assert got["perf"]["chunks"] == DpeTime(p).run(t.commands).busy


@pytest.mark.parametrize("size", SIZES)
def test_cycles_equal_the_time_view(size):
    p = SIZES[size]
    rng = np.random.default_rng(5)
    half = max(1, min(p.w_depth, p.x_depth) // 2)
    for rows, chunks in ((max(1, p.x_depth // 2), 1), (max(1, p.x_depth // 2 // half), half)):
        t = Traffic(p)
        t.phase(*(operands(rng, "normal", r, chunks * p.n_w) for r in (p.n_h, rows)))
        t.phases[0] |= {"c": t.commands * 3, "results": 3 * rows}
        got, want = t.run(emitted(p), 1), DpeTime(p).run(t.commands * 3)
        first = got["taken"][0]
        assert [c - first for c in got["taken"]] == want.taken.tolist()
        assert [c - first for c in got["cycles"]] == want.results.tolist()
        assert got["beats"] == t.wants * 3
        assert got["perf"]["waits"] == 0
