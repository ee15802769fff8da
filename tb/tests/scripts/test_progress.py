"""Progress in a log: who waits for minutes sees a line, who reads JSON sees none."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from openvrex.scripts import console, progress


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(console, "err", Console(file=io.StringIO(), width=60))
    monkeypatch.setattr(progress, "EVERY", 0.0)
    return lambda: console.err.file.getvalue().splitlines()


def test_a_bar_in_a_log_is_lines(log):
    with progress.Bar() as bar:
        task = bar.add_task("beats [of all]", total=2000)
        bar.update(task, completed=1000)
        bar.advance(task)
    assert log() == [f"beats [of all] {n} of 2,000" for n in ("0", "1,000", "1,001")]


def test_lines_come_every_ten_seconds(log, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 10.0)
    bar = progress.Bar()
    task = bar.add_task("task", total=3)
    bar.advance(task)
    assert log() == []
    bar._said -= 10
    bar.advance(task)
    bar.advance(task)
    assert log() == ["task 2 of 3"]


def test_a_step_in_a_log_is_a_line(log):
    with progress.Spinner("first") as step:
        step.update("second")
    assert log() == ["first", "second"]


def test_quiet_says_nothing(log):
    with progress.Bar(quiet=True) as bar, progress.Spinner("step", quiet=True) as step:
        bar.advance(bar.add_task("task", total=1))
        step.update("next")
    assert list(progress.track([1, 2], "items", quiet=True)) == [1, 2]
    assert log() == []


def test_a_terminal_has_bars(monkeypatch):
    monkeypatch.setattr(console, "err", Console(file=io.StringIO(), width=60, force_terminal=True))
    with progress.Bar(transient=False) as bar:
        bar.update(bar.add_task("task", total=2), completed=2)
    assert "2/2" in console.err.file.getvalue()


def test_commands_have_no_other_bars():
    """Rich's own show nothing in a log."""
    own = re.compile(r"(?<!\w)Progress\(|console\.err\.status\(|rich\.progress import [^\n]*\btrack")
    files = [p for p in Path(progress.__file__).parent.rglob("*.py") if p.name != "progress.py"]
    assert not [p.name for p in files if own.search(p.read_text())]
