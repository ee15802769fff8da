"""Test ports of memories: a march test finds planted faults in the memory that has them, and nothing else changes."""

from dataclasses import replace

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.hdl.emit import emit, params_of
from openvrex.hdl.firtool_memories import MemoryPorts
from openvrex.hdl.params import override, preset
from openvrex.tb.formal.memory_test_equivalence import prove
from openvrex.tb.formal.verilog_equivalence import UnequalError
from openvrex.tb.library.runner import Run, lint

TINY = preset("tiny")
BACKGROUNDS = (0b00000000, 0b01010101, 0b00110011, 0b00001111)


def march() -> list:
    """March C-, once for each background: bits of a word that hold different values, also neighbours."""
    out = []
    for zero in BACKGROUNDS:
        one = zero ^ 0xFF
        out += [
            [1, [["write", zero]]],
            [1, [["read", zero], ["write", one]]],
            [1, [["read", one], ["write", zero]]],
            [-1, [["read", zero], ["write", one]]],
            [-1, [["read", one], ["write", zero]]],
            [1, [["read", zero]]],
        ]
    return out


def memories(made) -> list[dict]:
    """Those of the manifest that have a module, by their bit."""
    return sorted((m for m in made.manifest["memories"] if m["module"]), key=lambda m: m["bist"])


def failed(made) -> set[int]:
    """The memories that fail; those of one length are tested at once."""
    groups: dict[int, int] = {}
    for m in memories(made):
        groups[m["words"]] = groups.get(m["words"], 0) | 1 << m["bist"]
    c = {"elements": march(), "groups": [[select, words] for words, select in groups.items()]}
    bits = Run(made, "bench_memory_test", "march", c)()["failed"]
    return {k for k in range(bits.bit_length()) if bits >> k & 1}


def test_a_unit_without_memories_is_refused():
    with pytest.raises(ParamError, match="bist=True: needs a memory to test, and storer has none: leave --bist out"):
        emit("storer", params_of("storer", TINY), bist=True)


@pytest.mark.parametrize(
    ("unit", "changes"),
    [("hcu", []), ("wtu", []), ("dpe", []), ("dre", ["protect=secded"]), ("core", []), ("system", ["cores=2"])],
)
def test_every_memory_has_a_bit(unit, changes):
    """Leaves and cores that stand several times have bits of their own for each."""
    made = emit(unit, params_of(unit, override(TINY, changes)), bist=True)
    assert [m["bist"] for m in memories(made)] == list(range(len(memories(made))))
    width = {p["name"]: p["width"] for p in made.manifest["ports"]}
    assert width["bist_select"] == width["bist_fail"] == len(memories(made))
    assert 1 << width["bist_address"] >= max(m["words"] for m in memories(made)) > 1 << width["bist_address"] - 1
    plain = emit(unit, params_of(unit, override(TINY, changes)))
    kept = [m["name"].removesuffix(".cells") for m in memories(made)]
    assert sorted(kept) == sorted(m["name"] for m in plain.manifest["memories"] if m["module"])
    assert not any("bist" in m for m in plain.manifest["memories"])


@pytest.mark.parametrize("ports", MemoryPorts)
def test_the_verilog_lints(ports, tmp_path):
    assert not lint(emit("hcu", params_of("hcu", TINY), memory_ports=ports, bist=True), tmp_path)


@pytest.mark.parametrize("unit", ["hcu", "wtu"])
def test_a_unit_is_the_same_while_memories_are_not_tested(unit):
    assert prove(unit, params_of(unit, TINY)) > 500


@pytest.mark.nightly
@pytest.mark.parametrize("unit", ["dpe", "vpe", "kvmu", "dre", "core"])
def test_larger_units_are_the_same_while_memories_are_not_tested(unit):
    assert prove(unit, params_of(unit, TINY)) > 500


def test_a_hook_in_the_way_is_noticed():
    with pytest.raises(UnequalError, match="hcu: .* signals may differ"):
        prove("hcu", params_of("hcu", TINY), "bist_enable ?", "1'h1 ?")


def test_a_read_of_the_unit_s_own_in_a_test_changes_nothing_outside_it():
    """Both branches give the unit's own signal, so the proof does not fail for any edit."""
    assert prove("hcu", params_of("hcu", TINY), "? select & bist_read", "? r_en") > 500


@pytest.mark.parametrize("unit", ["hcu", "wtu", "dpe"])
def test_sound_memories_pass(unit):
    assert failed(emit(unit, params_of(unit, TINY), bist=True)) == set()


def test_memories_with_check_bits_pass():
    """The test reaches check bits as it does all others."""
    assert failed(emit("dre", params_of("dre", override(TINY, ["protect=secded"])), bist=True)) == set()


READ = "if (r_en) r_data <= mem[r_addr];"
STORE = "mem[w_addr][k*LANE +: LANE] <= w_data[k*LANE +: LANE];"
HERE = "DEPTH == 16"  # the memory of tiles, in which the fault is
FAULTS = {
    "a cell that is always 1": (READ, f"if (r_en) r_data <= mem[r_addr] | ({HERE} && r_addr == 5) << 3;"),
    "a cell that is always 0": (READ, f"if (r_en) r_data <= mem[r_addr] & ~(({HERE} && r_addr == 15) << 19);"),
    "a cell that does not rise": (
        STORE,
        f"mem[w_addr][k*LANE +: LANE] <= w_data[k*LANE +: LANE] & ~(({HERE} && w_addr == 0 && !mem[0][7]) << 7);",
    ),
    "two words at one address": (
        STORE,
        f"mem[{HERE} ? w_addr | 4 : w_addr][k*LANE +: LANE] <= w_data[k*LANE +: LANE];",
    ),
    "a word that is written with another": (
        STORE,
        f"begin {STORE} if ({HERE} && w_addr == 9) mem[3][k*LANE +: LANE] <= w_data[k*LANE +: LANE]; end",
    ),
    "a cell that turns its neighbour": (
        STORE,
        f"begin {STORE} if ({HERE} && w_addr == 8 && w_data[2] && !mem[8][2]) mem[7][2] <= ~mem[7][2]; end",
    ),
    "two bits that are joined": (READ, f"if (r_en) r_data <= mem[r_addr] & ~(({HERE} && mem[r_addr][1:0] == 1) << 0);"),
    "a cell that does not fall": (
        STORE,
        f"mem[w_addr][k*LANE +: LANE] <= w_data[k*LANE +: LANE] | (({HERE} && w_addr == 2 && mem[2][11]) << 11);",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_memory_fails(fault):
    """Only that memory does."""
    made = emit("hcu", params_of("hcu", TINY), bist=True)
    old, new = FAULTS[fault]
    assert old in made.verilog
    (where,) = (m["bist"] for m in memories(made) if m["words"] == 16)
    assert failed(replace(made, verilog=made.verilog.replace(old, new))) == {where}
