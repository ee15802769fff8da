"""After a reset no output depends on power-up state, and no address leaves its memory: every unit and protection."""

import re
from dataclasses import dataclass, replace

import pytest

from openvrex.golden.arithmetic.secded import PROTECTIONS
from openvrex.hdl.emit import ALL, Emitted, params_of
from openvrex.hdl.params import override, preset
from openvrex.ip.shell import TOPS, shell
from openvrex.tb.campaigns.subjects import SUBJECTS
from openvrex.tb.checks.hcu_checks import run, stream
from openvrex.tb.library.powerup import unknown
from openvrex.tb.library.runner import BenchError, emit
from tb.tests.by_day import by_day

# Large ones, which hold the others, and arrays: at night.
LARGE = ("core_ip", "dre_ip", "core", "lxe", "system", "dre", "dpe", "vpe")


def unit(name: str, *changes: str) -> Emitted:
    return emit(name, params_of(name, override(preset("tiny"), list(changes))))


@pytest.mark.parametrize(
    ("name", "protect"),
    [
        pytest.param(name, p, marks=() if p == "secded" and name not in LARGE else pytest.mark.nightly)
        for name in ALL
        for p in PROTECTIONS
    ],
)
def test_outputs_are_known(name, protect, tmp_path):
    assert unknown(unit(name, f"protect={protect}"), tmp_path) == set()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.nightly) for name in TOPS])
def test_outputs_of_a_package_are_known(name, tmp_path):
    p = params_of(name, override(preset("tiny"), ["protect=secded"]))
    e = emit(name, p)
    assert unknown(e, tmp_path, shell(e, p), TOPS[name], ".aclk(clk), .aresetn(~rst)") == set()


def test_unknown_outputs_are_noticed(tmp_path):
    """A register that no reset sets: how many keys the HCU holds, on which `i_ready` depends."""
    e = unit("hcu", "protect=secded")
    kept, n = re.subn(r"held <= 3'h0;", "held <= held;", e.verilog)
    assert n == 1
    assert "i_ready" in unknown(replace(e, verilog=kept), tmp_path)


@dataclass(frozen=True)
class Started(Emitted):
    """A unit whose registers all start with zeros (0) or with ones (1); its benches start them at random."""

    power_up: int = 0


# Subjects that are a whole unit; the others are features of it.
WHOLE = [name for name, subject in SUBJECTS.items() if not subject.name]


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", by_day(WHOLE, "cluster_set"))
def test_bits_and_cycles_are_those_of_any_power_up(name, start):
    """A unit's tests compare bits and cycles, so they show any register that decides without being set."""
    e = SUBJECTS[name].emitted()
    SUBJECTS[name].judge(Started(**vars(e), power_up=start))


def test_a_power_up_that_shows_is_noticed():
    """A register of the cluster set that no reset sets: which clusters of a word are left."""
    e = SUBJECTS["cluster_set"].emitted()
    assert e.verilog.count("left <= 4'h0;") == 1
    kept = e.verilog.replace("left <= 4'h0;", "left <= left;")
    with pytest.raises(AssertionError):
        SUBJECTS["cluster_set"].judge(Started(**vars(e) | {"verilog": kept}, power_up=1))


def test_addresses_that_leave_a_memory_are_noticed():
    """By every bench: a memory that is a word too small."""
    e, p = unit("hcu"), preset("tiny").core.dre.hcu
    assert e.verilog.count(".DEPTH(16)") == 1  # the tiles
    small = replace(e, verilog=e.verilog.replace(".DEPTH(16)", ".DEPTH(15)"))
    beats = stream(p, 1, 300, 3, 0.02)
    run(e, p, beats, 3, 0.0, 0.0, waves=False)
    with pytest.raises(BenchError, match="to word 15 of 15"):
        run(small, p, beats, 3, 0.0, 0.0, waves=False)
