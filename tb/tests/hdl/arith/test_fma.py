"""The FMA circuit equals golden on every kind of operand; its mutants do not."""

from functools import cache

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.vector import ONE, fma, larger, smaller
from openvrex.hdl.arith.fma import Fma
from openvrex.hdl.emit import Emitted, to_verilog
from openvrex.hdl.ports import ports
from openvrex.tb.campaigns.faults import with_faults
from openvrex.tb.library.operands import SPECIAL
from openvrex.tb.library.runner import Run, lint
from tb.tests.golden.arithmetic.vector_samples import operands, words

MUTANTS = {
    "$reduce_or 1.3626a714: Y[0] const0": "what is shifted out is lost",
    "$and 1.4424715a: Y[0] const0": "a difference is not rounded around",
    "$and 1.f8fb3ce9: Y[0] const0": "a difference is never negative",
    "$or 1.602fde7e: Y[0] const0": "the product always has the larger exponent",
    "$or 1.ccc5f0ab: A[0] const0": "zero times infinity is defined",
    "$and 1.2f284530: Y[0] const0": "nothing is rounded up",
    "$or 1.5a1a3370: A[0] const0": "zeros and results below the range are not flushed",
    "$and 1.95151dcb: B[0] const1": "operands that cancel keep a sign",
    "$or 1.248aac0c: Y[0] const0": "the first of two is picked",
    "$mux 1.75551fe4: S[0] const0": "a NaN is picked beside a number",
}
CYCLES = [1 << 13, pytest.param(1 << 16, marks=pytest.mark.nightly)]


@cache
def unit() -> Emitted:
    component = Fma()
    return Emitted(to_verilog(component, "fma"), "fma", {"ports": ports(component)})


def side_by_side() -> Emitted:
    """The unit and its mutants on the same operands."""
    mutants = with_faults(unit(), MUTANTS)
    text = mutants[0].verilog
    operands = {"op_a": 32, "op_b": 16, "op_c": 32, "pick": 1, "least": 1}
    widths = {"clk": 1, "rst": 1, **operands, "y": 32 * len(mutants)}
    wires = [{"name": n, "dir": "out" if n == "y" else "in", "width": w} for n, w in widths.items()]
    head = ", ".join(f"{w['dir']}put [{w['width'] - 1}:0] {w['name']}" for w in wires)
    pins = ", ".join(f".{n}({n})" for n in ("clk", "rst", *operands)) + ", .load(3'b111)"
    lanes = (f"  fma lane{i}({pins}, .mutant({i}), .y(y[{32 * i} +: 32]));\n" for i in range(len(mutants)))
    return Emitted(f"{text}module all({head});\n{''.join(lanes)}endmodule\n", "all", {"ports": wires})


def stimulus(seed: int, n: int) -> dict[str, np.ndarray]:
    """Random operands and every triple of special ones; a quarter of them picks."""
    rng = np.random.default_rng(seed)
    special = np.stack(np.meshgrid(SPECIAL, SPECIAL, SPECIAL)).reshape(3, -1)
    parts = zip(operands(rng, n - special.shape[1]), special, strict=True)
    a, b, c = (np.concatenate(part) for part in parts)
    b[-special.shape[1] :] >>= 16
    pick, least = (rng.random(n) < 0.25).astype(int), rng.integers(0, 2, n)
    pick[n - special.shape[1] :] = 0
    both = rng.integers(0, len(SPECIAL), (2, n))  # equal ones, zeros, NaN and infinities are picked, too
    at = (pick == 1) & (rng.random(n) < 0.5)
    a, c = (np.where(at, np.asarray(SPECIAL)[k], x) for k, x in zip(both, (a, c), strict=True))
    return {"a": a, "b": np.where(pick, ONE, b), "c": c, "pick": pick, "least": least}


@cache
def results(cycles: int) -> tuple[np.ndarray, np.ndarray]:
    """Results of the unit and of each mutant [1 + mutants, n], and golden's [n]."""
    beats = stimulus(7, cycles)
    drain = np.zeros(Fma.LATENCY, int)
    config = {n: np.concatenate([v, drain]).tolist() for n, v in beats.items()}
    got = [int(y, 16) for y in Run(side_by_side(), "bench_fma", "words", config)()["y"][Fma.LATENCY :]]
    got = np.array([[y >> 32 * i & 0xFFFFFFFF for y in got] for i in range(1 + len(MUTANTS))])
    a, c = words(beats["a"]), words(beats["c"])
    picked = np.where(beats["least"], smaller(a, c), larger(a, c))
    want = np.where(beats["pick"], picked, fma(a, beats["b"].astype(np.uint16).view(BF16), c))
    return got, want.view(np.uint32).astype(int)


@pytest.mark.parametrize("cycles", CYCLES)
def test_hardware_equals_golden(cycles):
    got, want = results(cycles)
    beats = stimulus(7, cycles)
    wrong = np.flatnonzero(got[0] != want)
    assert [({n: hex(v[i]) for n, v in beats.items()}, hex(got[0, i]), hex(want[i])) for i in wrong] == []


@pytest.mark.parametrize("cycles", CYCLES)
def test_mutants_are_killed(cycles):
    got, want = results(cycles)
    assert [what for what, y in zip(MUTANTS.values(), got[1:], strict=True) if (y == want).all()] == []


def test_verilog_lints_clean(tmp_path):
    assert lint(unit(), tmp_path) == ""
