"""DPE: results equal to golden, cycles equal to the time view; stalls, sizes, specials, reset, coverage, mutants."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from openvrex.golden.function_params import ParamError
from openvrex.golden.inputs.trace import Trace
from openvrex.hdl.emit import to_verilog
from openvrex.hdl.execution.dpe import Dpe
from openvrex.hdl.leaf import Leaves
from openvrex.hdl.params import DpeParams, preset
from openvrex.sim.units.dpe_time import DpeTime
from openvrex.tb.campaigns.faults import survivors
from openvrex.tb.checks.dpe_checks import (
    SIZES,
    TINY,
    check_a_sum_of_zero_is_zero,
    check_addresses_that_wrap_are_counted,
    check_chunks_far_from_each_other,
    check_cycles_equal_the_time_view,
    check_equals_golden,
    check_long_sums,
    check_many_operands,
    check_no_bit_of_an_exponent_makes_a_number_special,
    check_one_special_number_in_each_lane,
    check_reset_in_flight,
    check_results_fill_their_queue,
    check_words_are_free_behind_read,
    emitted,
    specials,
    traffic,
    wrapping,
)
from openvrex.tb.formal.netlist_equivalence import prove_equal
from openvrex.tb.library.dpe_traffic import Traffic
from openvrex.tb.library.operands import KINDS, operands
from openvrex.tb.library.runner import ROOT
from tb.tests.by_day import by_day

EACH = by_day(SIZES, "tiny", "one", "ragged")


@pytest.mark.parametrize("size", EACH)
def test_equals_golden(size):
    check_equals_golden(size)


@pytest.mark.parametrize("size", EACH)
def test_cycles_equal_the_time_view(size):
    check_cycles_equal_the_time_view(size)


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


def test_words_are_free_behind_read():
    check_words_are_free_behind_read()


def test_results_fill_their_queue():
    check_results_fill_their_queue()


@pytest.mark.parametrize("size", by_day(SIZES, "tiny"))
def test_one_special_number_in_each_lane(size):
    check_one_special_number_in_each_lane(size)


@pytest.mark.parametrize("size", by_day(["tiny", "wide"], "tiny"))
def test_no_bit_of_an_exponent_makes_a_number_special(size):
    check_no_bit_of_an_exponent_makes_a_number_special(size)


@pytest.mark.parametrize("size", by_day(["tiny", "halves", "pair"], "tiny"))
def test_a_sum_of_zero_is_zero(size):
    check_a_sum_of_zero_is_zero(size)


def test_addresses_that_wrap_are_counted():
    check_addresses_that_wrap_are_counted()


def test_many_operands():
    check_many_operands()


def test_long_sums():
    check_long_sums()


@pytest.mark.parametrize("exponents", [(60, -70), (-70, 60)])
def test_chunks_far_from_each_other(exponents):
    check_chunks_far_from_each_other(exponents)


@pytest.mark.parametrize("reset_at", [3, 30, 77])
def test_reset_in_flight(reset_at):
    check_reset_in_flight(reset_at)


def bins(t: Traffic) -> set[str]:
    """What the rows of some traffic reach in the unit."""
    p, hit = t.p, set()
    for c in t.commands:
        hit |= {"one_chunk"} if not c["chunks"] else {"chunks"}
        hit |= {"one_row"} if not c["rows"] else {"rows"}
        hit |= {"tiles"} if c.get("tiles") else {"one_tile"}
        hit |= {"apart"} if c.get("x_step", 0) > c["chunks"] + 1 else set()
        hit |= {"ragged"} if c["keep"] < p.n_w - 1 else {"whole"}
        hit |= {"halves"} if c.get("halves") else {"whole_words"} if p.halves else set()
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
        hit |= {"to_many_trees" for beat in phase["w"] if beat.get("upto") and beat["tree"]}
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
    *("halves", "whole_words", "to_many_trees"),
}


def test_coverage(record_property):
    """The traffic of `test_equals_golden` and of rows that wrap reaches every bin."""
    hit = bins(wrapping()).union(
        *(bins(traffic(SIZES[size], seed, 24)) for size in ("tiny", "one", "ragged") for seed in (1, 2, 3))
    )
    record_property("bins", ", ".join(sorted(hit)))  # for `vrex report`
    assert hit >= BINS, BINS - hit


MUTANTS = {
    "$or 1.9188357a: A[0] const0": 'of "one below", what is left is what the highest bits know',
    "$mux 1.dbcc4d05: S[0] const0": "the second bit of a pair, as if the first were 0",
    "$or 2.a80c2326: A[0] const0": 'of "lost unless near", what is left is "one below and not near"',
    "$and 1.4c644a49: B[0] const1": "a lower exponent stays the highest",
    "$or 1.47858f90: A[0] const0": "a NaN of the significands is lost",
    "$or 1.9c8fcdde: A[0] const0": "a special weight is lost",
    "$and 1.005c152e: Y[0] const0": "no weight is special",
    "$sub 1.268588f0: Y[0] const0": "a row is not aligned",
    "$add 0.9df778f4: Y[0] inv": "a sum is off by one",
    "$sub 1.91cb3be0: Y[0] const0": "a chunk is not aligned",
    "$and 1.ca8dfa40: B[0] const1": "it issues whether or not there is room for the result",
    "$mux 1.4109b033: S[0] const0": "halves are added",
    "$mux 1.877a88ee: S[0] inv": "the smaller half is taken",
    "$eq 1.8c11d75b: Y[0] const1": "a tile has one chunk",
    "$eq 0.ec8dab53: Y[0] const1": "a row has one tile",
}


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.nightly)])
def test_mutants_are_killed(every):
    p = replace(TINY, w_depth=8, x_depth=64)  # room for rows of chunks, and for more results than may wait
    plans = [
        (traffic(p, seed, 40), seed, idle, stall) for seed, (idle, stall) in enumerate([(0.0, 0.0), (0.0, 0.95)], 1)
    ]
    plans.append((specials(p), 1, 0.0, 0.0))

    def passes(unit):
        return all(t.run(unit, seed, idle, stall, waves=False)["beats"] == t.wants for t, seed, idle, stall in plans)

    assert not survivors(emitted(p), MUTANTS, passes, every=every)


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
