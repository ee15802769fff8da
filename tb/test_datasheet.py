"""Docstrings are the data sheet, and every unit has its three views and its tests."""

import importlib
import inspect
from pathlib import Path

import pytest
from amaranth.lib import wiring

from hdl.emit import UNITS
from tb.runner import ROOT

MODULES = sorted(p.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for p in (ROOT / "hdl").rglob("*.py"))
SECTIONS = ("Parameters\n", "Members\n", "Latency:", "Throughput:", "Raises:", "Source:")


def _public(module):
    for name, thing in vars(module).items():
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__:
            yield name, thing


@pytest.mark.parametrize("name", [m for m in MODULES if not m.endswith("__init__")])
def test_public_things_are_documented(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for attr, thing in _public(module):
        if inspect.isclass(thing) or inspect.isfunction(thing):
            doc = inspect.getdoc(thing) or ""
            assert len(doc) > 20, f"{name}.{attr} has no docstring"
        if inspect.isclass(thing) and issubclass(thing, wiring.Component):
            missing = [s for s in SECTIONS if s not in doc]
            assert not missing, f"{name}.{attr}: data sheet lacks {missing}"


@pytest.mark.parametrize("unit", UNITS)
def test_unit_has_time_view_and_bench(unit):
    for path in (f"sim/{unit}.py", f"tb/test_{unit}.py", f"tb/bench_{unit}.py"):
        assert Path(ROOT, path).exists(), f"{unit} lacks {path}"
