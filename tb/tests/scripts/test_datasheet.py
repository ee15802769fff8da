"""Docstrings are the data sheet, and every unit has its three views and its tests."""

import ast
import importlib
import inspect
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from amaranth.lib import wiring

from golden.arithmetic.score_codes import value
from golden.function_params import ScoreFormat
from hdl.emit import UNITS
from hdl.params import preset
from scripts.pages.unit_datasheet import page
from tb.library.runner import ROOT

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


def test_what_an_integrator_of_the_wtu_asks_is_said():
    text, p = page("wtu"), preset("core").core.dre.wtu
    for name in ("th_steps", "list_limit", "lane_bins", "group"):
        assert re.search(rf"^\| `{name}` \| {getattr(p, name)} \| \d+ \| \w", text, re.M), name
    f = ScoreFormat(3, 5)
    for e, m in itertools.product(range(8), range(32)):
        assert value(np.array([e << 5 | m]), f)[0] == (m if e == 0 else (2**5 + m) * 2 ** (e - 1))  # as the sheet says
    for said in (
        "m for e = 0, else (2^M + m) x 2^(e - 1)",
        "Count memory has no initial content",
        "Nobody has to wait",
    ):
        assert said in text


@pytest.mark.parametrize("unit", UNITS)
def test_unit_has_time_view_and_bench(unit):
    for name in (f"{unit}_time.py", f"test_{unit}.py", f"bench_{unit}.py"):
        assert list(Path(ROOT).glob(f"[st][ib]*/**/{name}")), f"{unit} lacks {name}"


@pytest.mark.parametrize("folder", ["hdl", "golden", "sim"])
def test_functions_are_short(folder):
    """None over 100 lines: an `elaborate` names its stages, which are methods of their own."""
    long = []
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (lines := node.end_lineno - node.lineno + 1) > 100:
                long.append(f"{path.relative_to(ROOT)}: {node.name} has {lines} lines")
    assert not long
