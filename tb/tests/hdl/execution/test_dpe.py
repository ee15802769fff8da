"""DPE: results equal to golden, cycles equal to the time view; stalls, sizes, specials, reset, coverage, mutants."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from safetensors.numpy import load_file

from golden.arithmetic.numerics import to_bf16
from golden.function_params import ParamError
from golden.inputs.trace import Trace
from hdl.emit import emit, to_verilog
from hdl.execution.dpe import Dpe
from hdl.leaf import Leaves
from hdl.params import DpeParams, preset
from sim.units.dpe_time import DpeTime
from tb.formal.netlist_equivalence import prove_equal
from tb.library.dpe_traffic import Traffic
from tb.library.operands import KINDS, operands
from tb.library.runner import ROOT, survivors
from tb.library.streams import LATE

TINY = replace(preset("tiny").core.dpe, n_h=2, w_depth=4, x_depth=16)  # few words: rows wrap
SIZES = {
    "tiny": TINY,
    "one": DpeParams(n_h=1, n_w=1, w_depth=1, x_depth=1),
    "row": DpeParams(n_h=1, n_w=9, w_depth=4, x_depth=4, window=32),
    "ragged": DpeParams(n_h=3, n_w=3, w_depth=8, x_depth=2, window=16),
    "wide": DpeParams(n_h=2, n_w=17, w_depth=2, x_depth=8, window=28),
}


@cache
def emitted(p: DpeParams):
    return emit("dpe", p)


@cache
def traffic(p: DpeParams, seed: int, phases: int) -> Traffic:
    rng = np.random.default_rng(seed)
    t = Traffic(p)
    for k in range(phases):
        kind = KINDS[k % len(KINDS)]
        chunks = int(rng.integers(1, max(1, min(p.w_depth, p.x_depth) // 2) + 1))
        length = max(1, chunks * p.n_w - int(rng.integers(0, p.n_w)))
        gap = int(rng.integers(0, 3)) if p.x_depth > 2 * chunks + 4 else 0
        rows = int(rng.integers(1, max(1, p.x_depth // 2 // (chunks + gap)) + 1))
        other = kind if rng.random() < 0.5 else "normal"
        splits = int(rng.integers(1, 4))
        tiles = int(rng.integers(1, max(1, p.w_depth // 2 // chunks) + 1)) if splits == 1 else 1
        columns = p.n_h <= p.n_w and bool(rng.integers(0, 2))
        weights = operands(rng, kind, tiles * p.n_h, length)
        t.phase(weights, operands(rng, other, rows, length), rng, splits, gap, columns)
    return t


@pytest.mark.parametrize("size", SIZES)
def test_equals_golden(size):
    p = SIZES[size]
    for seed, (idle, stall) in enumerate([(0.0, 0.0), (0.4, 0.4), (0.0, 0.8), (0.0, LATE)], 1):
        t = traffic(p, seed, 24)
        got = t.run(emitted(p), seed, idle, stall)
        assert got["beats"] == t.wants, f"seed {seed}"
        assert got["perf"]["results"] == len(t.wants)
        assert got["perf"]["commands"] == len(t.commands)
        assert got["perf"]["overruns"] == t.overruns
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


@pytest.mark.nightly
@pytest.mark.parametrize(("seed", "idle", "stall"), [(1, 0.0, 0.0), (2, 0.2, 0.5)])
def test_real_operands_at_full_size(seed, idle, stall):
    """Weights and activations of the real decoder, and queries against keys, on 64 trees of 64."""
    p = preset("core").core.dpe
    real = load_file(ROOT / "tb" / "fixtures" / "decoder.safetensors")
    world = Trace.load(ROOT / "tb" / "fixtures" / "world.safetensors")
    start, stop = world.spans("frame", queries=True)[-1]
    queries = world.queries(0, start, stop)[:, 0]
    t = Traffic(p)
    t.phase(real["qkv_w"], real["qkv_x"])
    t.phase(world.k[0, :64, 0], queries)
    t.phase(real["down_w"], real["down_x"], np.random.default_rng(seed))
    rng = np.random.default_rng(seed)
    for kind in KINDS:
        t.phase(operands(rng, kind, p.n_h, 150), operands(rng, kind, 3, 150), rng)
    got = t.run(emitted(p), seed, idle, stall)
    assert got["beats"] == t.wants
    if not stall:
        alone = DpeTime(p).run(t.commands[:1])
        first = got["taken"][0]
        assert [c - first for c in got["cycles"][: len(real["qkv_x"])]] == alone.results.tolist()


def test_results_that_are_not_taken_hold_the_chunks_back():
    p = replace(TINY, x_depth=64)
    rng = np.random.default_rng(7)
    t = Traffic(p)
    t.phase(operands(rng, "normal", p.n_h, p.n_w), operands(rng, "normal", 32, p.n_w))
    got = t.run(emitted(p), 1, stall=0.9)
    assert got["beats"] == t.wants
    assert got["perf"]["waits"] > 0
    assert got["perf"]["chunks"] == 32


@cache
def wrapping() -> Traffic:
    """Tiles and rows that begin in the middle of the memories and need more than half of them."""
    t, rng = Traffic(TINY), np.random.default_rng(11)
    sizes = [(2, 1, 3), (TINY.w_depth, 1, 3), (1, 1, 1), (3, 1, 4)]
    for chunks in rng.integers(1, TINY.w_depth + 1, 200).tolist():
        most = TINY.w_depth // chunks, TINY.x_depth // chunks
        sizes.append((chunks, *(int(rng.integers(1, n + 1)) for n in most)))
    for chunks, tiles, rows in sizes:
        weights, n = operands(rng, "normal", tiles * TINY.n_h, chunks * TINY.n_w), chunks * TINY.n_w
        t.phase(weights, operands(rng, "normal", rows, n))
    return t


def test_addresses_that_wrap_are_counted():
    t = wrapping()
    got = t.run(emitted(TINY), 1, 0.2, 0.2)
    assert got["beats"] == t.wants
    assert got["perf"]["overruns"] == t.overruns > 256


def test_many_operands():
    """Shifts, carries and signs of every size, in the tree and in its rounding."""
    t = traffic(TINY, 9, 1200)
    assert t.run(emitted(TINY), 9)["beats"] == t.wants


@pytest.mark.parametrize("exponents", [(60, -70), (-70, 60)])
def test_chunks_far_from_each_other(exponents):
    """32 blocks of exponents and more lie between the products of two chunks: nothing is left of the smaller ones."""
    t, values = Traffic(TINY), to_bf16(np.repeat(np.exp2(exponents), TINY.n_w))
    t.phase(np.tile(values, (TINY.n_h, 1)), values[None, :])
    assert {v for beat in t.wants for v in beat["data"]} == {int(np.float32(TINY.n_w * 2.0**120).view(np.uint32))}
    assert t.run(emitted(TINY), 1)["beats"] == t.wants


@pytest.mark.parametrize("reset_at", [3, 30, 77])
def test_reset_in_flight(reset_at):
    t = traffic(TINY, reset_at, 6)
    got = t.run(emitted(TINY), reset_at, 0.2, 0.2, reset_at)
    assert got["beats"] == t.wants
    assert got["perf"]["results"] == len(t.wants)


def bins(t: Traffic) -> set[str]:
    """What the rows of some traffic reach in the unit."""
    p, hit = t.p, set()
    for c in t.commands:
        hit |= {"one_chunk"} if not c["chunks"] else {"chunks"}
        hit |= {"one_row"} if not c["rows"] else {"rows"}
        hit |= {"tiles"} if c.get("tiles") else {"one_tile"}
        hit |= {"apart"} if c.get("x_step", 0) > c["chunks"] + 1 else set()
        hit |= {"ragged"} if c["keep"] < p.n_w - 1 else {"whole"}
        hit |= {"goes_on"} if not c["start"] else set()
        hit |= {"stays_open"} if not c["end"] else set()
        hit |= {"wraps"} if c["x"] + (c["rows"] + 1) * (c["chunks"] + 1) > p.x_depth else set()
    for want in t.wants:
        for bits in want["data"]:
            e, f = bits >> 23 & 0xFF, bits & 0x7FFFFF
            hit |= {"nan"} if e == 255 and f else {f"infinity{bits >> 31}"} if e == 255 else set()
            hit |= {"zero"} if bits == 0 else {"negative"} if bits >> 31 else {"positive"}
    for k, phase in enumerate(t.phases):
        hit |= {"columns"} if phase["w"][0].get("column") else {"weights_by_row"}
        a = np.array([beat["data"] for beat in phase["w"]], np.uint16)
        e = a.astype(int) >> 7 & 0xFF
        hit |= {"subnormal"} if ((e == 0) & (a & 0x7F > 0)).any() else set()
        hit |= {"dead_chunk"} if (e == 0).all(1).any() else set()
        spread = np.where(e > 0, e, 1000)
        hit |= {"far_apart"} if (e.max(1) - spread.min(1) > 40).any() else {"near"}
        hit |= {"waits_for_all"} if k and phase["after"] == sum(v["results"] for v in t.phases[:k]) else {"overlaps"}
    return hit


BINS = {
    *("one_chunk", "chunks", "one_row", "rows", "ragged", "whole", "goes_on", "stays_open", "nan", "infinity0"),
    *("infinity1", "zero", "negative", "positive", "subnormal", "dead_chunk", "far_apart", "near", "overlaps"),
    *("tiles", "one_tile", "apart", "columns", "weights_by_row", "wraps", "waits_for_all"),
}


def test_coverage(record_property):
    """The traffic of `test_equals_golden` and of rows that wrap reaches every bin."""
    hit = bins(wrapping()).union(
        *(bins(traffic(SIZES[size], seed, 24)) for size in ("tiny", "ragged", "wide") for seed in (1, 2, 3))
    )
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= BINS, BINS - hit


MUTANTS = [
    ("assign low_less5 = ", "assign low_less5 = 0 & "),  # of "one below", what is left is what the high bits know
    ("assign high_less0 = ", "assign high_less0 = 0 & "),
    ("assign low[4] = low[5] ? ", "assign low[4] = 0 ? "),  # the second bit of a pair, as if the first were 0
    ("assign lost0 = ", "assign lost0 = 0 & "),  # of "lost unless near", what is left is "one below and not near"
    ("assign high_left0 = high_left1 & ", "assign high_left0 = high_left1 | 0 & "),
    ("assign nan = ", "assign nan = 0 & "),
    ("assign special = w_special1 | ", "assign special = w_special1 & "),
    ("assign w_special = ", "assign w_special = 0 & "),
    ("larger - block", "larger - larger"),
    ("kept + chunk7", "kept + chunk7 + 1"),
    ("larger - top", "0 & larger - top"),
    ("assign issue = running & ", "assign issue = running | 0 & "),  # whether or not there is room for the result
    ("assign tile_end = chunk == ", "assign tile_end = chunk >= 0 * "),
    ("assign row_end = tile_end & ", "assign row_end = tile_end | 0 & "),
]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [slice(0, None, 3), pytest.param(slice(None), marks=pytest.mark.nightly)])
def test_mutants_are_killed(chosen):
    p = replace(TINY, w_depth=8, x_depth=64)  # room for rows of chunks, and for more results than may wait
    plans = [
        (traffic(p, seed, 24), seed, idle, stall) for seed, (idle, stall) in enumerate([(0.0, 0.0), (0.0, 0.95)], 1)
    ]

    def passes(unit):
        return all(t.run(unit, seed, idle, stall, waves=False)["beats"] == t.wants for t, seed, idle, stall in plans)

    assert not survivors(emitted(p), MUTANTS[chosen], passes)


def test_units_are_the_same_leaf_once_and_alone():
    """Yosys proves the netlist with one shared tree module equal to the one in which every tree is its own."""
    p = DpeParams(n_h=2, n_w=2, window=16, w_depth=2, x_depth=2)
    shared, native = to_verilog(Dpe(p), "dpe", Leaves("dpe")), to_verilog(Dpe(p), "dpe")
    assert shared.count("module dpe_dot_tree(") == 1
    assert native.count("module dpe__tree") > 1
    prove_equal(shared, native, "dpe")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_h": 0}, "n_h=0"),
        ({"n_w": 0}, "n_w=0"),
        ({"n_w": 1025}, "n_w=1025"),
        ({"window": 15}, "window=15"),
        ({"window": 33}, "window=33"),
        ({"w_depth": 3}, "w_depth=3.*power of two"),
        ({"x_depth": 1 << 17}, "x_depth=131072"),
        ({"n_h": 1.5}, "n_h=1.5"),
    ],
)
def test_parameters_that_cannot_work_are_refused(change, message):
    with pytest.raises(ParamError, match=message):
        replace(TINY, **change)
