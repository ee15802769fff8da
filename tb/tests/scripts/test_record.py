"""The manual's figures are those that were recorded, and what was recorded is of today's hardware."""

import hashlib
import json
import re
import shutil
import tomllib
from dataclasses import asdict

import pytest

from openvrex.golden.function_params import ParamError
from openvrex.papers.evaluation.fleet import Device, day
from openvrex.papers.evaluation.other_policies import PROFILES, policies
from openvrex.scripts.engineers import record_command
from openvrex.scripts.records import recorded_results, synthesis_results
from openvrex.scripts.simulate import system_options
from openvrex.scripts.simulate.layer_command import played
from openvrex.scripts.simulate.prediction_command import predict
from openvrex.sim.system import limits as paper_limits
from openvrex.sim.system.frame_times import frames
from openvrex.sim.system.limits import EDGE, SERVER
from openvrex.sim.system.platforms import POWER, POWER_FILE, platform
from openvrex.sim.system.timeline import Point
from openvrex.sim.system.workload import Decoder, traced
from openvrex.tb.library.runner import ROOT
from tb.tests.commands import refuses, vrex

KEPT = {name: json.loads((record_command.RESULTS / f"{name}.json").read_text()) for name in record_command.MEASURED}


def test_pages_say_what_is_recorded():
    known = record_command.load()
    assert not list(recorded_results.pages(known)), "write the tables anew: vrex dev record"
    assert not recorded_results.stale(known)
    texts = recorded_results.texts().values()
    marks = [m[2] for page in texts for m in recorded_results.BLOCK.finditer(page.read_text())]
    assert sorted(marks) == sorted(recorded_results.BLOCKS)


def test_the_simulator_takes_powers_from_the_record():
    """As busy as in the recorded run, the DPE takes what it took there."""
    known = record_command.load()
    assert POWER["ours"] == json.loads(POWER_FILE.read_text()) == synthesis_results.core_power(known)
    dpe = known["power"]["embedded"]["dpe"]
    assert POWER["ours"]["dpe idle"] + dpe["use"] * POWER["ours"]["dpe busy"] == pytest.approx(dpe["total"], rel=1e-3)


@pytest.mark.parametrize("name", [name for name, result in record_command.MEASURED.items() if result.units])
def test_what_was_recorded_is_of_todays_verilog(name):
    assert set(KEPT[name]["verilog"]) == set(record_command.MEASURED[name].units)
    other = [unit for unit, digest in KEPT[name]["verilog"].items() if digest != record_command.digest(unit)]
    assert not other, f"these have changed since they were measured: vrex dev record {name}"


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
        recorded_results.DOCS,
        docs,
        ignore=lambda folder, names: [n for n in names if "." in n and not n.endswith(".md")],
    )
    shutil.copy(ROOT / "README.md", tmp_path)
    assert not recorded_results.pages(known, docs)
    page = docs / "size.md"
    page.write_text(re.sub(r"(\| wtu \| [\d,]+ \| )[\d,.]+", r"\g<1>970.0", page.read_text(), count=1))
    assert list(recorded_results.pages(known, docs)) == [page]
    page = docs / "limits.md"
    page.write_text(page.read_text().replace("% of our core", "% of a core"))
    readme = tmp_path / "README.md"
    readme.write_text(re.sub(r"At 40K that is [\d.]+,", "At 40K that is 9.9,", readme.read_text()))
    page = docs / "simulator.md"
    page.write_text(re.sub(r"Eight are [\d.]+ times", "Eight are 8.0 times", page.read_text()))
    assert sorted(name for name, _ in recorded_results.stale(known, docs)) == [
        "README.md",
        "limits.md",
        "simulator.md",
    ]


def test_simulated_tables_are_todays(monkeypatch):
    """Cells of each recorded table, simulated again: both platforms at 40K, the paper's DRE with four streams."""
    kept, shares = KEPT["simulation"]["figures"], system_options.selection("world:resv-buckets", "resv", Decoder())
    at, own = Point(40960), {"edge": EDGE, "server": SERVER}
    monkeypatch.setattr(paper_limits, "platforms", lambda: own)
    column = kept["limits"]["columns"].index("40K")
    cells = {row[0]: row[column] for row in kept["limits"]["rows"]}
    assert dict(paper_limits.limits(at, shares, (40960,)).rows).items() <= cells.items()
    monkeypatch.setattr(paper_limits, "ENGINES", paper_limits.ENGINES[1:2])
    found = paper_limits.engines(at, shares, (4,), tuple(platform(name, None, ["clusters=2048"]) for name in own)).rows
    assert set(found) <= {(*row[:3], row[4]) for row in kept["engines"]["rows"]}
    some = {name: PROFILES[name] for name in ("flexgen", "hybrid", "resv-buckets")}
    columns = [kept["policies"]["columns"].index(name) for name in ("policy", "cache", "frame 40K", "token 40K")]
    rows = {tuple(row[c] for c in columns) for row in kept["policies"]["rows"]}
    assert {row[:-1] for row in policies(EDGE, some, (40960,)).rows} <= rows


def test_times_of_the_default_are_todays():
    """Frames on both platforms at 40K, where the DRE counts most."""
    kept, at = KEPT["simulation"]["figures"]["frames"], Point(40960)
    column = kept["columns"].index("40K")
    found = frames([EDGE, SERVER], at, traced(Decoder()), (40960,))[0]
    assert [row[1] for row in found.rows] == [row[column] for row in kept["rows"]]


def test_a_prediction_of_the_default_is_todays():
    """Of a core of `edge8` at 40K."""
    own = system_options.selection(None, "resv", Decoder(), EDGE.core)
    row = predict(played(EDGE.system, own, 10, 40960, None, 100))
    assert asdict(row) | {"visible": row.visible} in KEPT["layers"]["figures"]["default edge8"]


def test_a_fleet_is_todays():
    """A device of the recorded fleets that ends early."""
    (kept,) = (
        d for d in KEPT["fleet"]["figures"] if (d["policy"], d["platform"], d["streams"]) == ("flexgen", "edge", 4)
    )
    found = day(Device("edge", "flexgen", 4))
    assert {k: kept[k] for k in found} == pytest.approx(found)


def test_a_result_is_kept_with_what_it_is_of(monkeypatch):
    """Of a small unit: the command that is told is the one that ran."""
    result = record_command.Result(
        (("embedded", "size area hcu --preset tiny"),), ("hcu",), lambda reports: reports[0][1]["units"]
    )
    kept = record_command.measure(result)
    assert kept["commands"] == ["vrex size area hcu --preset tiny"]
    assert kept["figures"]["hcu"]["total_ge"] > 1000
    assert re.fullmatch("[0-9a-f]{64}", kept["verilog"]["hcu"])
    assert set(kept["versions"]) == {"amaranth", "pycde", "pyosys"}
    with pytest.raises(ParamError, match="failed: .*preset"):
        record_command.measure(record_command.Result((("embedded", "size area hcu --preset none"),), (), dict))
    monkeypatch.setitem(record_command.LIBRARIES, "ASAP7", "nowhere/*.lib")
    with pytest.raises(ParamError, match=r"library='nowhere/\*.lib': no such file"):
        record_command.measure(record_command.Result((("ASAP7", "size area hcu"),), (), dict))


def test_another_name_is_refused():
    run = refuses("dev", "record", "clocks")
    assert f"result='clocks': must be one of {', '.join(record_command.MEASURED)}" in run.stderr


def test_a_clock_is_that_of_the_path_with_memories():
    """The second report has the memories of 14 nm, in the delays of 7 nm."""

    def path(kind, delay, start="a"):
        return {"kind": kind, "delay": delay, "start": start, "end": "b"}

    unit = {
        "total_area": 5.0,
        "timing": {"paths": [path("register to register", 90.0), path("memory to register", 80.0)]},
        "with_memories": {
            "paths": [path("memory to register", 95.0, "m read data"), path("register to register", 90.0)]
        },
    }
    later = {"with_memories": {"paths": [path("memory to register", 120.0), path("register to register", 90.0)]}}
    reports = [("", {"preset": "core", "units": {"u": units}}) for units in (unit, later)]
    (made,) = record_command._clock(reports).values()
    assert (made["delay"], made["with_access"], made["access_start"]) == (90.0, 95.0, "m read data")
    assert made["at_14"] == pytest.approx(120.0 * synthesis_results.STEP)
    assert made["kinds_14"]["register to register"] == pytest.approx(90.0 * synthesis_results.STEP)
    assert record_command._owner("a.mem read 1 data[3]") == "a.mem"
    assert record_command._owner("core.write_enable[3]") == "core.write_enable[3]"


def test_recorded_errors_of_macros_are_todays():

    def rounded(text):
        return json.loads(text, parse_float=lambda x: round(float(x), 6))

    kept = json.dumps(KEPT["macros"]["figures"])
    assert rounded(kept) == rounded(vrex("size", "macros", "--json").stdout)
    assert "formula" in vrex("size", "macros").stdout


FIGURE = re.compile(r"\d[\d,]*\.\d|\d{3,}|\d %")  # what makes a cell one of measured figures
HELD = tomllib.loads((ROOT / "tb/tests/scripts/held_figures.toml").read_text())


def tables_of_figures(text: str) -> set[str]:
    """The headings under which a page has a table with three figures or more that `vrex dev record` does not write."""
    text = recorded_results.BLOCK.sub("", text)
    out = set()
    for part in re.split(r"^#+ ", text, flags=re.M)[1:]:
        title = part.partition("\n")[0]
        for rows in re.findall(r"^\|.*\n\| ---.*\n((?:\|.*\n?)+)", part, re.M):
            cells = [cell for row in rows.splitlines() for cell in row.strip("|").split("|")[1:]]
            out |= {title} if sum(bool(FIGURE.search(cell)) for cell in cells) >= 3 else set()
    return out


OPEN = 4  # tables that nothing holds yet: this number may only fall


def test_every_table_of_figures_is_held():
    """By a record, or by the test that held_figures.toml names; what nobody holds stands there as open."""
    # Blocks of records; figures with their commands.
    skipped = ("papers/anchors.md", "decisions.md", "archive/decisions.md")
    found = {name: tables_of_figures(path.read_text()) for name, path in recorded_results.texts().items()}
    found = {name: titles for name, titles in found.items() if titles and name not in skipped}
    assert {name: set(of) for name, of in HELD.items()} == found
    holders = [holder for of in HELD.values() for holder in of.values()]
    assert sum(holder.startswith("open: ") for holder in holders) == OPEN
    for file, _, test in (holder.partition("::") for holder in holders if not holder.startswith("open: ")):
        assert f"def {test}" in (ROOT / file).read_text(), (file, test)


def test_a_table_without_a_holder_is_seen():
    assert tables_of_figures("# A\n\n| a | b |\n| --- | --- |\n| x | 1,234 |\n| y | 5.6 |\n| z | 7 % |\n") == {"A"}
    assert not tables_of_figures("# A\n\n| a | b |\n| --- | --- |\n| x | 1 |\n| y | 2 |\n| z | 3 |\n")
    held = "# A\n\n<!-- vrex dev record: fleet -->\n| a | b |\n| --- | --- |\n| x | 123 |\n| y | 456 |\n| z | 789 |\n"
    assert not tables_of_figures(f"{held}<!-- end -->\n")


def test_clocks_of_another_preset_have_its_name():
    """Each command stands twice, as in the record: with memories of the library's node, and of 14 nm."""
    runs = tuple(("embedded", f"size timing storer --preset tiny{node}") for node in ("", " --node 14"))
    kept = record_command.measure(record_command.Result(runs, ("storer of tiny",), record_command._clock))
    assert set(kept["figures"]) == set(kept["verilog"]) == {"storer of tiny"}
    assert kept["figures"]["storer of tiny"]["at_14"] > kept["figures"]["storer of tiny"]["with_access"] > 0
    assert kept["verilog"]["storer of tiny"] != record_command.digest("storer")
