"""Names of cells: what loses them and what does not; faults that benches must notice, and one that nothing can."""

import re
from dataclasses import replace
from functools import cache

import pytest

from openvrex.hdl.emit import Emitted
from openvrex.tb.campaigns.cells import named
from openvrex.tb.campaigns.faults import at, mutations
from openvrex.tb.campaigns.mutants import MutateError, sample
from openvrex.tb.checks.cluster_set_checks import TINY, emitted

UNIT = emitted(TINY)
NAMES = cache(lambda: named(UNIT).keys())
LOCAL = re.compile(r"^  (?:wire|reg) +(?:\[.*?\] +)?(\w+)(?: +\[.*?\])?(?: =.*)?;", re.M)


def renamed(unit: Emitted) -> Emitted:
    """Every local signal has another name, also in another order of the alphabet."""
    names = set(LOCAL.findall(unit.verilog))
    assert len(names) > 30
    word = rf"(?<![\w.'`$])({'|'.join(names)})\b"
    return replace(unit, verilog=re.sub(word, lambda m: f"n{m[1][::-1]}_", unit.verilog))


def test_a_rename_loses_no_cell_and_no_sample():
    other = renamed(UNIT)
    assert named(other).keys() == NAMES()
    assert [m.key for m in sample(other, 40, 1)] == [m.key for m in sample(UNIT, 40, 1)]


def test_comments_and_line_breaks_lose_no_cell():
    other = replace(UNIT, verilog=UNIT.verilog.replace(" & ", "  // and\n & "))
    assert named(other).keys() == NAMES()


def test_a_change_of_structure_loses_the_cells_near_it():
    kept = named(replace(UNIT, verilog=UNIT.verilog.replace("part_addr < low", "part_addr <= low", 1))).keys()
    lost = NAMES() - kept
    assert any(name.startswith("$lt") for name in lost)
    assert len(lost) < len(kept) / 4


def test_cells_that_are_alike_are_numbered():
    ports = [{"name": n, "dir": "in", "width": 1} for n in "ab"] + [{"name": "y", "dir": "out", "width": 1}]
    names = list(
        named(
            Emitted("module t(input a, b, output y, z); assign y = a ^ b, z = a ^ b; endmodule", "t", {"ports": ports})
        )
    )
    assert [re.sub(r"\.\w+", "", name) for name in names] == ["$xor 6", "$xor 6+1"]


@pytest.mark.parametrize("fault", ["$and 1.00000000: A[0] const1", "part_addr < low"])
def test_a_fault_that_is_nowhere_is_told(fault):
    with pytest.raises(MutateError, match=f"{re.escape(repr(fault))}: cluster_set has no such cell"):
        mutations(UNIT, [fault])


def test_a_text_names_its_cells():
    [name, ports, verilog] = next(at(UNIT, "part_addr < low")).split(": ")
    assert verilog == "part_addr < low"
    assert (name[:4], ports) == ("$lt ", "A[3] B[3] Y[1]")
