"""The verification plan: no unit without evidence, no evidence left out, and what a test run says of it."""

import json
import re

import pytest
import yaml

from openvrex.hdl.emit import ALL
from openvrex.scripts.blocks.sign_off import TARGETS
from openvrex.scripts.engineers import nightly_command
from openvrex.tb.campaigns.plan import (
    PLAN,
    STAGES,
    TESTS,
    Feature,
    PlanError,
    Status,
    _names,
    _nightly,
    cases,
    judge,
    load,
)
from tb.tests.commands import refuses, tried, vrex

KINDS = re.compile(r"coverage|mutants|proved|proof")


def junit(path, **verdicts: str):
    """A test run: verdicts by file__test."""
    ends = {"passed": "", "failed": "<failure/>", "error": "<error/>", "skipped": "<skipped/>"}
    rows = []
    for name, verdict in verdicts.items():
        file, _, test = name.partition("__")
        rows.append(f'<testcase classname="tb.test_{file}" name="test_{test}[1]">{ends[verdict]}</testcase>')
    path.write_text(f"<testsuites><testsuite>{''.join(rows)}</testsuite></testsuites>")
    return path


def test_every_unit_has_features_of_every_kind():
    features = load()
    assert {f.unit for f in features} == set(TARGETS)
    for unit in TARGETS:
        own = [f for f in features if f.unit == unit]
        assert {f.stage for f in own} == set(STAGES), unit
        assert all(f.evidence for f in own)


def test_no_coverage_mutants_or_proofs_are_left_out():
    named = {test for f in load() for test in f.evidence}
    for unit in ALL:
        if unit in TESTS:
            own = {(unit, name) for name in _names(unit) if KINDS.search(name)}
            assert own <= named, own - named


def test_the_worst_of_its_tests_decides(tmp_path):
    a, b = ("hcu", "a"), ("hcu", "b")
    features = [Feature("hcu", str(n), "V1", e) for n, e in enumerate([(a,), (a, b), (b,), ()])]
    run = cases(junit(tmp_path / "t.xml", hcu__a="passed", hcu__b="error"))
    assert [s.verdict for s in judge(features, run)] == ["passed", "failed", "failed", "no evidence"]
    assert judge(features[1:2], run) == [Status(features[1], "failed", 1)]
    run = cases(junit(tmp_path / "t.xml", hcu__a="skipped"))
    assert [s.verdict for s in judge(features, run)] == ["skipped", "not run", "not run", "no evidence"]


def test_what_is_left_to_the_night_is_told_and_counts_once_it_ran(tmp_path):
    """It is no failure; after `make nightly` its verdict counts."""
    late = {f"{file}__{test}" for f in load() for file, test in f.evidence if test in _nightly(file)}
    assert "netlist__the_tests_of_a_unit_pass" in late
    every = {f"{file}__{test}": "passed" for f in load() for file, test in f.evidence}
    day = junit(tmp_path / "tests.xml", **{k: v for k, v in every.items() if k not in late})
    args = ["verify", "--plan", "--tests", str(day), "--json"]
    run = vrex(*args)
    assert {r["verdict"] for r in json.loads(run.stdout)} == {"passed", "nightly"}
    (tmp_path / "nightly").mkdir()
    junit(tmp_path / "nightly" / "tests-0.xml", **dict.fromkeys(late, "passed"))
    assert {r["verdict"] for r in json.loads(vrex(*args).stdout)} == {"passed"}
    junit(tmp_path / "nightly" / "tests-1.xml", **dict.fromkeys(late, "failed"))
    assert tried(*args).exit_code == 1


def test_command_fails_on_a_feature_that_was_not_shown(tmp_path):
    every = {f"{file}__{test}": "passed" for f in load() for file, test in f.evidence}
    broken = every | {"hcu__mutants_are_killed": "failed"}
    good, bad = junit(tmp_path / "good.xml", **every), junit(tmp_path / "bad.xml", **broken)
    run = vrex("verify", "--plan", "--tests", str(good), "--json")
    assert {row["verdict"] for row in json.loads(run.stdout)} == {"passed"}
    run = tried("verify", "--plan", "--tests", str(bad))
    assert run.exit_code == 1
    assert "hcu, mutants: failed (test_hcu::test_mutants_are_killed)" in run.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[hcu]\n1 = [", "cannot be read as TOML"),
        ("hcu = 1", "hcu=1: must be a table of features"),
        ("[hcu]\nx = []", "x'=[]: must be a list, the stage and the tests that show it"),
        ('[hcu]\nx = ["V4", "mutants_are_killed"]', "stage='V4': must be one of V1, V2, V3"),
        ('[hcu]\nx = ["V1", "nothing"]', "test_hcu.py has no test_nothing: correct the plan or write it"),
    ],
)
def test_a_wrong_plan_is_named(tmp_path, text, message):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(PlanError, match=re.escape(message)):
        load(path)


def test_a_missing_or_broken_test_run_is_named(tmp_path):
    for path, message in ((tmp_path / "none.xml", "not there"), (tmp_path / "bad.xml", "not JUnit's XML")):
        if "bad" in path.name:
            path.write_text("<a>")
        run = refuses("verify", "--plan", "--tests", str(path))
        assert message in run.stderr


def test_a_fresh_checkout_has_the_recorded_results(tmp_path, monkeypatch):
    """With date and commit, until there is a test run; a test that is newer than the record is no failure."""
    from openvrex.scripts.check import plan_table

    kept = tmp_path / "docs" / "results" / "tests.json"
    monkeypatch.setattr(plan_table, "RECORD", kept)
    monkeypatch.chdir(tmp_path)
    plan = ["verify", "--plan"]
    none = refuses(*plan)
    assert "build/tests.xml: not there; `make test` leaves it" in none.stderr
    every = {f"{file}__{test}": "passed" for f in load() for file, test in f.evidence}
    (tmp_path / "build").mkdir()
    run = junit(tmp_path / "build" / "tests.xml", **every)
    kept.parent.mkdir(parents=True)
    vrex(*plan, "--record")
    run.unlink()
    found = vrex(*plan, "--json")
    assert {r["verdict"] for r in json.loads(found.stdout)} == {"passed"}
    facts = json.loads(kept.read_text())
    said = (
        f"not there; these are the results of {facts['date']}, commit {facts['commit']}, which docs/results/tests.json"
    )
    assert said in " ".join(found.stderr.split())
    del facts["cases"]["hcu::mutants_are_killed"]
    kept.write_text(json.dumps(facts))
    found = vrex(*plan, "--json")
    assert {r["verdict"] for r in json.loads(found.stdout)} == {"passed", "not recorded"}
    facts["cases"]["hcu::mutants_are_killed"] = {"failed": 1}
    kept.write_text(json.dumps(facts))
    assert tried(*plan).exit_code == 1
    kept.write_text("{}")
    refuses(*plan)
    junit(run, **every)
    assert "results of" not in tried(*plan).stderr


def test_ci_runs_every_part_of_the_night():
    """On a schedule and on demand; what a part has done is kept even if it fails or does not end."""
    root = PLAN.parents[2]
    flow = yaml.safe_load((root / ".github/workflows/nightly.yml").read_text())
    assert flow[True].keys() == {"schedule", "workflow_dispatch"}  # YAML reads `on` as true
    job = flow["jobs"]["part"]
    assert job["strategy"]["matrix"]["part"] == [*nightly_command.PARTS]
    restore, save = (s for s in job["steps"] if "actions/cache" in s.get("uses", ""))
    assert restore["with"]["key"] == save["with"]["key"]
    assert restore["with"]["key"].startswith(restore["with"]["restore-keys"])
    assert save["if"] == "always()"
    [run] = [s["run"] for s in job["steps"] if "dev nightly" in s.get("run", "")]
    minutes = int(re.search(r" dev nightly \$.* --minutes (\d+)$", run)[1])
    assert minutes + 30 < job["timeout-minutes"]
