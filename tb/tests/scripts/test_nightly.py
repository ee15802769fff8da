"""Nights: parts that stop, fail and go on; tests that have passed do not run again; what the pages say of it."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from openvrex.scripts.blocks import nights
from openvrex.scripts.engineers import nightly_command
from openvrex.tb.library.runner import ROOT
from tb.tests import conftest
from tb.tests.commands import tried

LINES = {
    "stress": "pass",
    "coverage": "raise SystemExit(1)",
    "proofs": "import time; time.sleep(60)",
    "equality": "raise SystemExit(2)",
    "tests": "open('build/nightly/red.txt', 'w').write('one\\n'); import time; time.sleep(60)",
}


@pytest.fixture
def night(tmp_path, monkeypatch):
    """A night in a folder of its own, of commit "a", whose parts are lines of Python."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nightly_command, "measured_at", lambda: {"date": "2026-01-02", "commit": "a"})
    played = []

    def words(name: str, record: bool) -> list[str]:
        played.append(name)
        return [sys.executable, "-c", LINES[name]]

    monkeypatch.setattr(nightly_command, "words", words)
    return played


def ends(*words: str) -> tuple[int, dict[str, str]]:
    got = tried("dev", "nightly", *words, "--json")
    return got.exit_code, {name: part["end"] for name, part in json.loads(got.stdout)["parts"].items()}


def test_a_part_that_has_passed_runs_once(night):
    assert ends("stress", "coverage") == (1, {"stress": "passed", "coverage": "failed"})
    assert ends("stress", "coverage") == (1, {"stress": "passed", "coverage": "failed"})
    assert night == ["stress", "coverage", "coverage"]
    assert "🔴 failed" in (nightly_command.FOLDER / "summary.md").read_text()


def test_a_part_stops_and_goes_on(night):
    assert ends("proofs", "--minutes", "0.01") == (0, {"proofs": "stopped"})
    before = json.loads((nightly_command.FOLDER / "night.json").read_text())["parts"]["proofs"]["seconds"]
    ends("proofs", "--minutes", "0.01")
    assert json.loads((nightly_command.FOLDER / "night.json").read_text())["parts"]["proofs"]["seconds"] > before > 0


def test_a_stop_does_not_hide_a_red_test(night):
    run = tried("dev", "nightly", "tests", "--minutes", "0.05")
    assert (run.exit_code, run.stderr) == (1, "tests\nnote: red: one\n")
    assert json.loads((nightly_command.FOLDER / "night.json").read_text())["parts"]["tests"]["end"] == "failed"


def test_another_commit_or_an_edited_one_begins_anew(night, monkeypatch):
    ends("stress")
    for commit in ("b", "b, edited", "b, edited"):
        monkeypatch.setattr(nightly_command, "measured_at", lambda c=commit: {"date": "2026-01-03", "commit": c})
        nightly_command.PASSED.write_text("one\n")
        ends("stress")
        assert not nightly_command.PASSED.exists()
    assert len(night) == 4


def test_tests_that_have_passed_do_not_run_again(tmp_path):
    file = tmp_path / "passed"
    line = [sys.executable, "-m", "pytest", "tb/tests/tb/test_slow_tests.py", "-k", "stays", "--night", str(file)]
    codes = [subprocess.run(line, cwd=ROOT, capture_output=True, check=False).returncode for _ in range(2)]
    assert codes == [0, pytest.ExitCode.NO_TESTS_COLLECTED]
    assert file.read_text().count("\n") == 1
    assert not file.with_name("red.txt").exists()


def test_a_test_that_fails_is_noted_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(conftest, "NIGHT", [tmp_path / "passed"])
    for nodeid, when, failed in (("one", "call", False), ("two", "call", True), ("three", "setup", True)):
        report = SimpleNamespace(nodeid=nodeid, when=when, failed=failed, skipped=False)
        conftest.pytest_runtest_logreport(report)
    assert ((tmp_path / "passed").read_text(), (tmp_path / "red.txt").read_text()) == ("one\n", "two\nthree\n")


def test_the_page_has_the_nights_that_are_kept(tmp_path, monkeypatch):
    record = tmp_path / "nightly.json"
    record.write_text(nights.RECORD.read_text())
    monkeypatch.setattr(nights, "RECORD", record)
    for commit, end in (("a", "stopped"), ("b", "failed"), ("a", "passed")):
        own = {"date": "2026-01-02", "commit": commit, "parts": {"tests": {"seconds": 90.0, "end": end}}}
        nights.keep(nights.figures(own, tmp_path / "none"))
    kept = json.loads(record.read_text())["figures"]
    assert [(n["commit"], n["parts"]["tests"]["end"]) for n in kept["nights"][-2:]] == [
        ("b", "failed"),
        ("a", "passed"),
    ]
    page = nights.trend({"nightly": kept})
    assert page.index("🟢 2") < page.index("🔴 2")
