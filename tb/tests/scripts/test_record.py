"""The manual's figures are those that were recorded, and what was recorded is of today's hardware."""

import hashlib
import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from golden.function_params import ParamError
from scripts.engineers import record_command
from scripts.main import app
from scripts.pages import recorded_results
from tb.library.runner import ROOT

KEPT = {name: json.loads((record_command.RESULTS / f"{name}.json").read_text()) for name in record_command.MEASURED}


def test_pages_say_what_is_recorded():
    known = record_command.load()
    assert not list(recorded_results.pages(known)), "write the tables anew: vrex record"
    assert not recorded_results.stale(known)
    marks = [
        m[2] for page in recorded_results.DOCS.glob("*.md") for m in recorded_results.BLOCK.finditer(page.read_text())
    ]
    assert sorted(marks) == sorted(recorded_results.BLOCKS)


@pytest.mark.parametrize("name", record_command.MEASURED)
def test_what_was_recorded_is_of_todays_verilog(name):
    assert set(KEPT[name]["verilog"]) == set(record_command.MEASURED[name].units)
    other = [unit for unit, digest in KEPT[name]["verilog"].items() if digest != record_command.digest(unit)]
    assert not other, f"these have changed since they were measured: vrex record {name}"


@pytest.mark.parametrize("name", record_command.MEASURED)
def test_what_was_recorded_is_of_these_libraries_and_tools(name):
    kept = KEPT[name]
    assert kept["commands"] == [record_command.typed(*run) for run in record_command.MEASURED[name].runs]
    assert set(kept["versions"]) == set(record_command.MEASURED[name].tools)
    files = {p.name: p for pattern in record_command.LIBRARIES.values() if pattern for p in ROOT.glob(pattern)}
    there = {f: digest for f, digest in kept["libraries"].items() if f in files}
    assert there == {f: hashlib.sha256(files[f].read_bytes()).hexdigest() for f in there}


def test_a_figure_changed_by_hand_is_found(tmp_path):
    known, docs = record_command.load(), tmp_path / "docs"
    shutil.copytree(
        recorded_results.DOCS, docs, ignore=lambda folder, names: [n for n in names if not n.endswith(".md")]
    )
    assert not recorded_results.pages(known, docs)
    page = docs / "synth.md"
    page.write_text(re.sub(r"(\| wtu \| [\d,]+ \| )[\d,.]+", r"\g<1>970.0", page.read_text(), count=1))
    assert list(recorded_results.pages(known, docs)) == [page]
    page = docs / "limits.md"
    page.write_text(page.read_text().replace("% of our core", "% of a core"))
    assert [name for name, _ in recorded_results.stale(known, docs)] == ["limits.md"]


def test_a_result_is_kept_with_what_it_is_of(monkeypatch):
    """Of a small unit: the command that is told is the one that ran."""
    result = record_command.Result(
        (("embedded", "area hcu --preset tiny"),), ("hcu",), lambda reports: reports[0][1]["units"]
    )
    kept = record_command.measure(result)
    assert kept["commands"] == ["vrex area hcu --preset tiny"]
    assert kept["figures"]["hcu"]["total_ge"] > 1000
    assert re.fullmatch("[0-9a-f]{64}", kept["verilog"]["hcu"])
    assert set(kept["versions"]) == {"amaranth", "pycde", "pyosys"}
    with pytest.raises(ParamError, match="failed: .*preset"):
        record_command.measure(record_command.Result((("embedded", "area hcu --preset none"),), (), dict))
    monkeypatch.setitem(record_command.LIBRARIES, "ASAP7", "nowhere/*.lib")
    with pytest.raises(ParamError, match=r"library='nowhere/\*.lib': no such file"):
        record_command.measure(record_command.Result((("ASAP7", "area hcu"),), (), dict))


def test_another_name_is_refused():
    run = CliRunner().invoke(app, ["record", "clocks"])
    assert run.exit_code == 2
    assert "result='clocks': must be one of clock, opensta, area, power, readings" in run.stderr


def test_a_path_from_a_memory_takes_its_access():
    memories = [
        {"name": "a.mem", "depth": 1024, "width": 37, "read_ports": 1, "write_ports": 1, "shared": True},
        {"name": "b.mem", "depth": 16, "width": 8, "read_ports": 1, "write_ports": 1, "shared": False},
    ]
    slow, fast = (record_command._access(f"{m} read data[0]", memories) for m in ("a.mem", "b.mem"))
    assert slow > fast > 0
    assert record_command._access("leaf.mem read data[3]", memories) == slow
    assert record_command._access("chunk", memories) == 0
