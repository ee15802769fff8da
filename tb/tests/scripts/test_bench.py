"""Budgets: every unit and preset stays within the accepted figures; `vrex dev bench` says how to accept others."""

import json

import pytest
from typer.testing import CliRunner

from openvrex.hdl.params import PRESETS, preset
from openvrex.scripts.engineers import bench_command
from openvrex.scripts.main import app
from tb.tests.commands import vrex

BUDGETS = json.loads(bench_command.BUDGETS.read_text())
# What maps in seconds; `vrex dev bench` maps the arrays and blocks of every preset, which takes minutes.
CASES = [*(("tiny", u) for u in bench_command.MEASURED)]
CASES += [("core", u) for u in ("hcu", "cluster_set", "kvmu", "dre")]
LARGE = [*(("tiny", u) for u in ("wtu", "dre", "dpe", "vpe", "sequencer")), *CASES[-4:]]
LARGE.remove(("core", "cluster_set"))
HINT = "accept a wanted change with `vrex dev bench --accept` and say why in the commit"


@pytest.mark.parametrize(
    ("name", "unit"), [pytest.param(*case, marks=pytest.mark.nightly if case in LARGE else ()) for case in CASES]
)
def test_within_budget(name, unit):
    now = {f"{name}.{unit}.{k}": v for k, v in bench_command.measure(unit, preset(name)).items()}
    faults = {k: why for k, v in now.items() if (why := bench_command.verdict(k, v, BUDGETS.get(k)))}
    assert not faults, f"{faults}; {HINT}"
    assert now.keys() == {k for k in BUDGETS if k.startswith(f"{name}.{unit}.")}, HINT


def test_every_unit_and_preset_has_budgets():
    assert {tuple(k.split(".")[:2]) for k in BUDGETS} == {(p, u) for p in PRESETS for u in bench_command.MEASURED}, HINT


@pytest.mark.parametrize(
    ("name", "one"),
    [
        *((name, "core") for name in ("edge8", "server48")),
        *((name, "corex") for name in ("edge8x", "server48x")),
        *((name, "vrex1") for name in ("vrex8", "vrex48")),
    ],
)
def test_larger_systems_share_the_units_of_a_core(name, one):
    """So that their budgets need no run of their own."""
    assert preset(name).core == preset(one).core
    theirs = {k.partition(".")[2]: v for k, v in BUDGETS.items() if k.startswith(f"{name}.")}
    assert theirs == {k.partition(".")[2]: v for k, v in BUDGETS.items() if k.startswith(f"{one}.")}


@pytest.mark.parametrize(
    ("key", "now", "budget", "fault"),
    [
        ("core.hcu.logic_ge", 101.0, 100.0, ""),
        ("core.hcu.logic_ge", 101.1, 100.0, "101.1 is worse than 100"),
        ("core.hcu.logic_ge", 50.0, 100.0, ""),
        ("core.dpe.utilisation", 0.9, 0.8, ""),
        ("core.dpe.utilisation", 0.79, 0.8, "0.79 is worse than 0.8"),
        ("core.dpe.logic_ge", 5265340.5, 5165340.5, "5,265,340.5 is worse than 5,165,340.5"),
        ("core.hcu.logic_ge", 1.0, None, "has no budget"),
    ],
)
def test_verdict_follows_the_direction(key, now, budget, fault):
    assert bench_command.verdict(key, now, budget) == fault


@pytest.fixture
def budgets(tmp_path, monkeypatch):
    file = tmp_path / "budgets.json"
    monkeypatch.setattr(bench_command, "BUDGETS", file)
    monkeypatch.setattr(bench_command, "measure", lambda unit, system: {"logic_ge": 100.0})
    return file


def test_missing_budget_fails_until_accepted(budgets):
    run = CliRunner()
    refused = run.invoke(app, ["dev", "bench", "hcu", "--preset", "tiny"])
    assert refused.exit_code == 1
    assert "has no budget" in refused.output
    assert "vrex dev bench --accept" in refused.output
    assert not budgets.exists()
    assert run.invoke(app, ["dev", "bench", "hcu", "--preset", "tiny", "--accept"]).exit_code == 0
    assert json.loads(budgets.read_text()) == {"tiny.hcu.logic_ge": 100.0}
    assert run.invoke(app, ["dev", "bench", "hcu", "--preset", "tiny"]).exit_code == 0


def test_accepting_a_part_keeps_the_rest(budgets):
    budgets.write_text(json.dumps({"tiny.hcu.logic_ge": 90.0, "core.wtu.logic_ge": 7.0, "old.unit.logic_ge": 1.0}))
    vrex("dev", "bench", "hcu", "--preset", "tiny", "--accept")
    assert json.loads(budgets.read_text())["core.wtu.logic_ge"] == 7.0
    vrex("dev", "bench", "--accept")
    kept = json.loads(budgets.read_text())
    assert len(kept) == len(PRESETS) * len(bench_command.MEASURED)
    assert "old.unit.logic_ge" not in kept
