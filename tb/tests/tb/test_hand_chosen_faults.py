"""Every fault chosen by hand names a cell of today's hardware: looked up by day, as most are played only at night."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest

from openvrex.hdl.emit import Emitted
from openvrex.tb.campaigns.cells import named
from openvrex.tb.campaigns.faults import FAULT
from tb.tests.by_day import by_day

TESTS = Path(__file__).parents[1]
PLAYS = re.compile(r"^from openvrex\.tb\.campaigns\.faults import .*\bsurvivors\b", re.M)
FILES = sorted(f.relative_to(TESTS).as_posix() for f in TESTS.rglob("test_*.py") if PLAYS.search(f.read_text()))
# What joins units changes with each of them.
COMPOSITES = (
    *("hdl/execution/test_core.py", "hdl/execution/test_lxe.py", "hdl/retrieval/test_dre.py"),
    *(f"hdl/shells/test_{name}.py" for name in ("core_ip", "dre_ip", "motion_mask_ip", "register_block")),
)


def tables(module: ModuleType) -> set[str]:
    """The faults in all tables of a module, and in tables of tables."""
    found: set[str] = set()
    left = [value for value in vars(module).values() if isinstance(value, dict)]
    for table in left:
        left += [value for value in table.values() if isinstance(value, dict)]
        found |= {key for key in table if isinstance(key, str) and FAULT.fullmatch(key)}
    return found


def plays(module: ModuleType) -> Iterator[Callable[[], None]]:
    """The tests of a module that play faults, with all values of their parameters."""
    for name, test in vars(module).items():
        if name.startswith("test_") and "mutants" in name:
            marks = [m.args for m in getattr(test, "pytestmark", ()) if m.name == "parametrize"]
            parameters = ([(key, getattr(v, "values", (v,))[0]) for v in values] for key, values in marks)
            for chosen in product(*parameters):
                yield partial(test, **dict(chosen))


def lost(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], dict[str, str]]:
    """All faults that a module's tests would play, and those of them that name no cell."""
    asked: set[str] = set()
    out: dict[str, str] = {}
    names: dict[tuple[str, str], set[str]] = {}

    def look(emitted: Emitted, faults: dict[str, str], _: object, part: str = "", every: int = 1) -> None:
        key = emitted.verilog, part
        there = names.get(key) or names.setdefault(key, set(named(emitted, part)))
        asked.update(faults)
        out.update({f: what for f, what in faults.items() if f.partition(": ")[0] not in there})

    monkeypatch.setattr(module, "survivors", look)
    for play in plays(module):
        play()
    return asked, out


@pytest.mark.parametrize("file", by_day(FILES, *COMPOSITES))
def test_faults_name_cells(file, monkeypatch):
    module = import_module(f"tb.tests.{file.removesuffix('.py').replace('/', '.')}")
    asked, gone = lost(module, monkeypatch)
    assert asked == tables(module)
    assert not gone, gone


def test_a_fault_of_no_cell_is_noticed(monkeypatch):
    module = import_module("tb.tests.hdl.retrieval.test_cluster_set")
    monkeypatch.setitem(module.MUTANTS, "$and 1.00000000: A[0] const1", "nowhere")
    assert lost(module, monkeypatch)[1] == {"$and 1.00000000: A[0] const1": "nowhere"}
