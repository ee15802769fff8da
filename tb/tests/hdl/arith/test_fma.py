"""The FMA circuit equals golden on every kind of operand; its mutants do not."""

from functools import cache

import numpy as np
import pytest

from openvrex.golden.arithmetic.numerics import BF16
from openvrex.golden.arithmetic.vector import fma
from openvrex.hdl.arith.fma import Fma
from openvrex.hdl.emit import Emitted, to_verilog
from openvrex.hdl.ports import ports
from openvrex.tb.campaigns.faults import with_faults
from openvrex.tb.library.operands import SPECIAL
from openvrex.tb.library.runner import Run, lint
from tb.tests.golden.arithmetic.vector_samples import operands, words

MUTANTS = {
    "$reduce_or 0.f77e1676: Y[0] const0": "what is shifted out is lost",
    "$and 1.4424715a: Y[0] const0": "a difference is not rounded around",
    "$and 1.f8fb3ce9: Y[0] const0": "a difference is never negative",
    "$or 1.7b47df34: Y[0] const0": "the product always has the larger exponent",
    "$or 1.ccc5f0ab: A[0] const0": "zero times infinity is defined",
    "$and 1.adf10327: Y[0] const0": "nothing is rounded up",
    "$or 1.5a1a3370: A[0] const0": "zeros and results below the range are not flushed",
    "$and 1.95151dcb: B[0] const1": "operands that cancel keep a sign",
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
    widths = {"clk": 1, "rst": 1, "op_a": 32, "op_b": 16, "op_c": 32, "y": 32 * len(mutants)}
    wires = [{"name": n, "dir": "out" if n == "y" else "in", "width": w} for n, w in widths.items()]
    head = ", ".join(f"{w['dir']}put [{w['width'] - 1}:0] {w['name']}" for w in wires)
    pins = ".clk(clk), .rst(rst), .op_a(op_a), .op_b(op_b), .op_c(op_c), .load(3'b111)"
    lanes = (f"  fma lane{i}({pins}, .mutant({i}), .y(y[{32 * i} +: 32]));\n" for i in range(len(mutants)))
    return Emitted(f"{text}module all({head});\n{''.join(lanes)}endmodule\n", "all", {"ports": wires})


def stimulus(seed: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random operands and every triple of special ones."""
    special = np.stack(np.meshgrid(SPECIAL, SPECIAL, SPECIAL)).reshape(3, -1)
    parts = zip(operands(np.random.default_rng(seed), n - special.shape[1]), special, strict=True)
    a, b, c = (np.concatenate(part) for part in parts)
    b[-special.shape[1] :] >>= 16
    return a, b, c


@cache
def results(cycles: int) -> tuple[np.ndarray, np.ndarray]:
    """Results of the unit and of each mutant [1 + mutants, n], and golden's [n]."""
    a, b, c = stimulus(7, cycles)
    drain = np.zeros(Fma.LATENCY, int)
    config = {n: np.concatenate([v, drain]).tolist() for n, v in (("a", a), ("b", b), ("c", c))}
    got = [int(y, 16) for y in Run(side_by_side(), "bench_fma", "words", config)()["y"][Fma.LATENCY :]]
    got = np.array([[y >> 32 * i & 0xFFFFFFFF for y in got] for i in range(1 + len(MUTANTS))])
    return got, fma(words(a), b.astype(np.uint16).view(BF16), words(c)).view(np.uint32).astype(int)


@pytest.mark.parametrize("cycles", CYCLES)
def test_hardware_equals_golden(cycles):
    got, want = results(cycles)
    a, b, c = stimulus(7, cycles)
    assert [tuple(map(hex, (a[i], b[i], c[i], got[0, i], want[i]))) for i in np.flatnonzero(got[0] != want)] == []


@pytest.mark.parametrize("cycles", CYCLES)
def test_mutants_are_killed(cycles):
    got, want = results(cycles)
    assert [what for what, y in zip(MUTANTS.values(), got[1:], strict=True) if (y == want).all()] == []


def test_verilog_lints_clean(tmp_path):
    assert lint(unit(), tmp_path) == ""
