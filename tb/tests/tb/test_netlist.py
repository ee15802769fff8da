"""Benches on mapped netlists: after synthesis the units of retrieval compute what golden does."""

from dataclasses import replace
from functools import cache

import pytest

from openvrex.hdl.emit import Emitted, emit
from openvrex.hdl.params import preset
from openvrex.tb.campaigns.subjects import SUBJECTS
from openvrex.tb.checks.hcu_checks import golden, run, stream
from openvrex.tb.library.netlist import mapped
from tb.tests.hdl.protected_designs import dre

TINY = preset("tiny").core


@cache
def netlist(unit: str) -> Emitted:
    return mapped(emit(unit, {"hcu": TINY.dre.hcu, "dre": TINY.dre}[unit]))


def hcu(unit: Emitted) -> bool:
    beats = stream(TINY.dre.hcu, 1, 200, 3, 0.02)
    got = run(unit, TINY.dre.hcu, beats, 3, 0.2, 0.2, waves=False)["beats"]
    return [beat | {"hash": 0} for beat in got] == golden(TINY.dre.hcu, 3, beats).out  # `o` has no hash


def test_hcu_equals_golden():
    assert hcu(netlist("hcu"))


@pytest.mark.nightly
def test_dre_equals_golden():
    """It holds HCU, WTU, cluster set and KVMU."""
    assert dre(netlist("dre"), TINY)


@pytest.mark.nightly
@pytest.mark.parametrize("unit", SUBJECTS)
def test_the_tests_of_a_unit_pass(unit):
    """Those that judge its mutants: bits against golden, cycles against the time view, stalls, resets, faults."""
    SUBJECTS[unit].judge(mapped(SUBJECTS[unit].emitted()))


@pytest.mark.nightly
def test_a_wrong_cell_is_noticed():
    sound = netlist("hcu")
    at = sound.verilog.index("module NAND2(")
    cell, end, rest = sound.verilog[at:].partition("endmodule")
    assert "_0_ = ~_1_" in cell
    broken = replace(sound, verilog=sound.verilog[:at] + cell.replace("_0_ = ~_1_", "_0_ = _1_") + end + rest)
    with pytest.raises(AssertionError):
        assert hcu(broken)
