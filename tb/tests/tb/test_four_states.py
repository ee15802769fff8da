"""Benches on Icarus Verilog, whose bits can be unknown: a unit equals golden, and a lost reset is found."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from openvrex.hdl.emit import ALL
from openvrex.tb.checks import feeder_checks
from openvrex.tb.library import runner
from openvrex.tb.library.runner import BenchError, ToolError

CHOSEN = Path(__file__).parents[1] / "icarus.txt"  # pytest's arguments of the nightly part


@pytest.fixture
def icarus(monkeypatch):
    monkeypatch.setenv("OPENVREX_SIMULATOR", "icarus")
    monkeypatch.setattr(runner, "FOUR_STATES", True)


@pytest.mark.skipif(not shutil.which("iverilog"), reason="needs Icarus Verilog (iverilog) on the path")
def test_a_register_that_loses_its_reset_is_found(icarus):
    feeder_checks.check_equals_the_reference("tiny")
    unit = feeder_checks.emitted("tiny")
    lost = replace(unit, verilog=unit.verilog.replace("index <= 3'h0;\n      key_hash", "key_hash", 1))
    assert lost.verilog != unit.verilog
    with pytest.raises(BenchError, match=r"ready is X"):
        feeder_checks.run("tiny", feeder_checks.traffic("tiny"), unit=lost)


def test_icarus_that_is_missing_is_named(icarus, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match=r"iverilog: not found.*apt install iverilog"):
        feeder_checks.run("tiny", feeder_checks.traffic("tiny"))


def test_each_unit_runs_on_icarus():
    """By the names of its tests: files of units, in `make nightly`."""
    tested = {Path(line.split("::")[0]).stem.removeprefix("test_") for line in CHOSEN.read_text().splitlines()}
    assert ALL.keys() - tested == {"lxe", "core", "core_ip", "system"}  # larger than a simulator of events can play
