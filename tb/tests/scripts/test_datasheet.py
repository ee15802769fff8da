"""Docstrings are the data sheet, and every unit has its three views and its tests."""

import ast
import importlib
import inspect
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from openvrex.golden.arithmetic.score_codes import value
from openvrex.golden.function_params import ScoreFormat
from openvrex.golden.program.isa import Status
from openvrex.hdl.docstrings import parse
from openvrex.hdl.emit import ALL, UNITS, unit_class
from openvrex.hdl.params import preset
from openvrex.hdl.retrieval.wtu_buckets import State
from openvrex.hdl.retrieval.wtu_exact import State as ExactState
from openvrex.scripts.pages.state_diagram import machines, mermaid
from openvrex.scripts.pages.unit_datasheet import page
from openvrex.tb.library.runner import ROOT

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
    for name in ("readings", "test_steps"):
        assert re.search(rf"^\| `{name}` \| {getattr(p, name)} \| \d+ \| \w", text, re.M), name
    f = ScoreFormat(3, 5)
    for e, m in itertools.product(range(8), range(32)):
        assert value(np.array([e << 5 | m]), f)[0] == (m if e == 0 else (2**5 + m) * 2 ** (e - 1))  # as the sheet says
    for said in (
        "m for e = 0, else (2^M + m) x 2^(e - 1)",
        "A row is offered `readings` times",
        "A word of scores waits for its counts",
    ):
        assert said in text


class _Machines(wiring.Component):
    """An `m.FSM`, and a register whose values are decoded into signals."""

    go: In(1)
    left: In(1)

    def elaborate(self, platform):
        m, step = Module(), Signal(2)
        steps = [Signal(name=f"step_{name}") for name in ("idle", "run", "stop")]
        m.d.comb += [s.eq(step == k) for k, s in enumerate(steps)]
        with m.If(self.go):
            m.d.sync += step.eq(Mux(steps[0], 1, 2))
        with m.Elif(steps[2] & self.left):
            m.d.sync += step.eq(0)
        with m.FSM():
            with m.State("REST"):
                with m.If(self.go):
                    with m.If(self.left):
                        m.next = "LEFT"
                    with m.Else():
                        m.next = "RIGHT"
            with m.State("LEFT"):
                m.next = "REST"
            with m.State("RIGHT"):
                with m.If(~self.go | self.left):
                    m.next = "REST"
        return m


def test_a_state_diagram_is_what_the_design_does():
    fsm, register = machines(_Machines())
    assert fsm.edges == {
        ("REST", "LEFT"): ["go and left"],
        ("REST", "RIGHT"): ["go and ~left"],
        ("LEFT", "REST"): [],
        ("RIGHT", "REST"): ["~go | left"],
    }
    assert (register.name, register.reset) == ("step", 0)
    assert register.edges == {
        ("IDLE", "RUN"): ["go"],
        ("RUN", "STOP"): ["go"],
        ("STOP", "IDLE"): ["steps[2] & left"],
    }
    assert "    [*] --> REST: reset\n    REST --> LEFT: go and left\n" in mermaid(fsm)


@pytest.mark.parametrize(
    ("unit", "states"),
    [
        ("hcu", "ASK LEVEL WORK"),
        (
            "kvmu",
            "IDLE POOL POOLED PLACE ROW COUNT FOUND FREED RING OLDEST OFFLOAD MOVE ROWS FREE SWITCH SWITCHED "
            "WRITE REPLY",
        ),
        ("retriever", "IDLE CLUSTER SET LEVEL PLACE FETCH END ORDER RESULT REPLY DONE BAD"),
        ("sequencer", " ".join(Status.__members__)),
        ("wtu", f"{' '.join(ExactState.__members__)} {' '.join(State.__members__)}"),
    ],
)
def test_a_sheet_shows_every_state(unit, states):
    text = page(unit)
    assert all(re.search(rf"--> {state}\b", text) for state in states.split())


@pytest.mark.parametrize("unit", ALL)
def test_a_sheet_tells_corner_cases(unit):
    assert any(text.startswith("Corner cases: ") for text in parse(inspect.getdoc(unit_class(unit))).lead)


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
