"""The `vrex` command as a user meets it: results, --json, one-line errors, exit codes, nothing half-written."""

import gc
import json
import re
import signal
import time
from dataclasses import replace
from importlib.metadata import version

import pytest
from amaranth import Elaboratable, Module
from amaranth.hdl import Fragment
from typer.main import get_command

from openvrex.golden.inputs.trace import Trace
from openvrex.hdl.params import PRESETS, flat, override, preset
from openvrex.scripts.check.verify_command import FIXTURE
from openvrex.scripts.engineers import record_command
from openvrex.scripts.main import GROUPS, app
from openvrex.tb.library.page_rules import faults
from openvrex.tb.library.trace_check import Play, exercised, few_blocks, mix, rounds_of, tables
from tb.tests.commands import refuses, tried, vrex


def test_presets():
    assert set(json.loads(vrex("presets", "--json").stdout)) == set(PRESETS)
    assert "│ hcu.n_w " in tried("presets").stdout


@pytest.mark.parametrize(
    ("unit", "changes"),
    [
        ("kvmu", ["clusters=77"]),  # no multiple of the WTU's lanes
        ("hcu", ["token_bits=9", "n_ctx=5"]),  # which the others have otherwise
        ("cluster_set", ["clusters=48"]),
    ],
)
def test_a_unit_alone_is_checked_by_its_own_rules(unit, changes, tmp_path):
    """Rules between units are checked where they are joined."""
    words = ["--preset", "core" if unit == "kvmu" else "tiny", *(x for c in changes for x in ("-p", c))]
    run = vrex("generate", unit, *words, "-o", tmp_path / unit)
    params = json.loads((tmp_path / unit / "manifest.json").read_text())["params"]
    assert all(str(params[c.partition("=")[0]]) == c.partition("=")[2] for c in changes)
    run = tried("generate", "dre", *words, "-o", tmp_path / "dre")
    assert run.exit_code == (2 if unit == "kvmu" else 0), run.stderr
    own, shared = ("wtu", "count_bits") if unit == "cluster_set" else (unit, "n_ctx")
    run = refuses("generate", "dre", "--preset", "tiny", "-p", f"{own}.{shared}=7")
    assert run.stderr == f"error: parameter='{own}.{shared}': is one size in all units: set {shared} without a unit\n"


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_told_as_they_are_set(name):
    values = flat(PRESETS[name])
    assert override(PRESETS["tiny"], [f"{k}={v}" for k, v in values.items()]) == PRESETS[name]


def test_generate_writes_verilog_and_manifest(tmp_path):
    run = vrex("generate", "hcu", "--preset", "tiny", "-p", "hcu.n_h=2", "-o", tmp_path, "--json")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["params"]["n_h"] == 2
    assert json.loads(run.stdout)["sha256"] == manifest["sha256"]
    assert sorted(f.name for f in tmp_path.iterdir()) == ["hcu.v", "manifest.json"]
    assert "module hcu(" in (tmp_path / "hcu.v").read_text()


def test_a_folder_holds_one_unit(tmp_path):
    """Of another one nothing is overwritten; the same one may be made anew."""
    for _ in range(2):
        vrex("generate", "hcu", "--preset", "tiny", "-o", tmp_path)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}
    for words, top in ((("generate", "kvmu"), "kvmu"), (("ip", "dre_ip"), "tiny_dre_ip")):
        run = refuses(*words, "--preset", "tiny", "-o", tmp_path)
        assert f"-o={str(tmp_path)!r}: holds hcu, whose files would be mixed with those of {top}" in run.stderr
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("unit", "options"),
    [
        ("hcu", ()),
        ("wtu", ()),
        ("wtu", ("-p", "selection=buckets", "-p", "counts=32")),
        ("cluster_set", ("--stall", "0.4")),
        pytest.param("kvmu", (), marks=pytest.mark.nightly),
        pytest.param("kvmu", ("--idle", "0.2", "--stall", "0.2"), marks=pytest.mark.nightly),
        pytest.param("dre", (), marks=pytest.mark.nightly),
        pytest.param("dre", ("--idle", "0.2", "--stall", "0.2", "--seed", "3"), marks=pytest.mark.nightly),
    ],
)
def test_verify_runs_the_fixture_on_the_rtl(unit, options):
    whole = (unit, options) == ("dre", ())
    run = vrex("verify", unit, "--preset", "tiny", *(() if whole else ("--queries", "1")), *options, "--json")
    found = json.loads(run.stdout)
    if whole:  # the README's run
        kept = json.loads((record_command.RESULTS / "verify.json").read_text())
        assert found == kept["figures"], "record it anew: vrex dev record verify"
    tables = found["tables"]
    assert [t["context"] for t in tables[:9]] == [0, 1, 24, 47, 47, 24, 1, 0, 0]  # forth and back
    assert [t["context"] for t in tables[9:]] == ([47, 47] if unit in ("kvmu", "dre") else []), "with few blocks"
    assert all(t["beats"] and not t["differences"] for t in tables)
    assert all(t["refused"] for t in tables)  # 256 blocks are too few for the tight clusters of four tables
    assert found["missing"] == []


def test_verify_names_what_never_happened_and_how_to_get_it(tmp_path):
    """What it proposes brings the event about, for a preset and for a generated folder, whose sizes stay."""
    short = "--queries", "1", "--th-hd", "5"  # few clusters, which take few cycles
    folder, sizes = tmp_path / "hcu", ("--preset", "tiny", "-p", "clusters=512")
    vrex("generate", "hcu", *sizes, "-o", folder)
    run = tried("verify", "hcu", *sizes, *short)
    [(name, how)] = re.findall(r"not exercised: no (.*): (-p .*)", run.stderr)
    assert (run.exit_code, name) == (0, "joins of a full table")
    run = tried("verify", folder, *short)
    [(name, command)] = re.findall(r"not exercised: no (.*): vrex (.*)", run.stderr)
    assert (run.exit_code, name) == (0, "joins of a full table")
    refuses("verify", folder, *how.split())
    for words in (("verify", "hcu", *sizes, *how.split()), command.split()):
        run = vrex(*words, *short)
        assert "not exercised" not in run.stderr


def test_verify_counts_only_what_can_happen():
    """A unit is not said to do what its design has no hardware for."""

    def events(*changes: str) -> set[str]:
        return set(exercised("dre", override(preset("core"), list(changes)).core.dre))

    exact, buckets = events(), events("clusters=1024", "selection=buckets", "budget=false")
    assert "early exits" not in exact
    assert "early exits" in buckets
    assert "tests of equal codes" in exact - buckets
    assert "rows whose counts stream" in exact - buckets
    assert "bursts of several blocks" not in exact, "a block fills a boundary"
    assert "bursts of several blocks" in events("block_slots=2")
    assert "rows of several words" not in events("clusters=16")


def test_the_default_check_fetches_in_every_table():
    """Of a design with the ring and the blocks of `core`, on the default trace."""
    p = override(preset("core"), ["clusters=256", "hcu.n_h=2", "wtu.n_w=8"]).core.dre
    trace, f = Trace.load(FIXTURE), p.function()
    trace = replace(trace, layers=trace.layers[:1], k=trace.k[:1], q=trace.q[:1], v=trace.v[:1], model=None)
    every = list(tables(trace, f, 2, rounds_of(trace, p)))
    plays = [Play(table.name, table, i) for i, table in enumerate(every)]
    mix(plays, p, f)
    assert all(play.events["bursts"] and play.events["offloads"] for play in plays)
    assert not any(play.differences for play in plays)
    scarce, blocks = few_blocks(every[0], p, f)
    mix(scarce, p, f, blocks)
    assert all(play.events["keys refused"] for play in scarce)
    assert scarce[1].events["freed blocks used"]


TIE = "$lt 0.4c618331: B[0] const1"  # the HCU takes the last instead of the first of a tie


def test_verify_says_what_differs(monkeypatch):
    """An HCU that is wrong by one comparison must not pass: the command exits with 1 and names stream and field."""
    from openvrex.scripts.check import verify_command
    from openvrex.tb.campaigns.faults import with_fault

    sound = verify_command.emit
    monkeypatch.setattr(verify_command, "emit", lambda u, p: with_fault(sound(u, p), TIE))
    run = tried("verify", "hcu", "--preset", "tiny", "--queries", "1")
    assert run.exit_code == 1
    assert re.search(r"o\[\d+\]: cluster is \d+, expected \d+", run.stderr)


def test_cycles_of_the_fixture():
    rows = json.loads(vrex("simulate", "dre", FIXTURE, "-p", "recent=64", "--queries", "1", "--json").stdout)
    assert len(rows) == 9
    for row in rows:
        assert row["hcu"] < row["hcu_full"] < 1.02
        assert row["useful"] == 1.0
        assert row["exact_size"] <= row["buckets_size"]


@pytest.mark.parametrize("wrong", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_demo_reports_and_fails_loudly(wrong, tmp_path, monkeypatch):
    """The demo from the trace on (the fixture stands in for the models), with a sound DRE and with a wrong one."""
    from openvrex.golden.inputs.trace import Trace
    from openvrex.papers.commands import demo_command
    from openvrex.scripts.pages.html_page import Section
    from openvrex.tb.campaigns.faults import with_fault

    sound = demo_command.emit
    broken = lambda unit, p: with_fault(sound(unit, p), TIE) if unit == "dre" else sound(unit, p)  # noqa: E731
    trace = Trace.load(FIXTURE)
    trace = replace(trace, v=trace.k)  # the fixture has no values; with some, errors can be measured
    monkeypatch.setattr(demo_command, "record", lambda *args, **kwargs: trace)
    monkeypatch.setattr(demo_command, "emit", broken if wrong else sound)
    picture = Section("What a question fetches", head=["policy"], rows=[["ReSV"]], plot="<svg></svg>")
    monkeypatch.setattr(demo_command, "question_section", lambda: picture)  # it needs the models
    layers = "10" if wrong else "1,10,20"
    run = tried("papers", "demo", "--preset", "tiny", "-o", tmp_path, "--layers", layers, "--json")
    assert run.exit_code == int(wrong), run.stderr
    assert json.loads(run.stdout)["passed"] is not wrong
    page = (tmp_path / "report.html").read_text()
    assert not faults(page)
    # What a reader will ask, answered from the numbers of this run.
    rows = [r for r in json.loads(run.stdout)["What ReSV selects"] if r["stage"] == "frame"]
    worse = [r["layer"] for r in rows if float(r["error of ReSV, %"]) > float(r["error of top-k, %"])]
    assert len(rows) == len(layers.split(","))
    assert f"ReSV&#39;s error is above top-k&#39;s in {len(worse)} of {len(rows)} layers" in page
    assert re.findall(r"layer (\d+): [\d.]+ against", page) == worse
    assert {"ReSV", "top-k", "recent window alone"} <= set(re.findall(r"<text[^>]*>([^<]*)</text>", page))
    assert ("differs from golden" if wrong else "Every beat equals golden") in page
    assert not re.search(r'(?:src|href)="(?!#)|<link|<script|url\((?!#)|@import', page)  # one file, no outside requests
    assert sorted(f.name for f in tmp_path.iterdir()) == ["report.html", "rtl", "trace.safetensors"]


def test_help_gives_each_command_one_line():
    """Of a terminal of 80 columns."""
    root = get_command(app)
    for group in (root, *(root.commands[name] for name in GROUPS)):
        leads = {name: command.help.partition("\n\n")[0] for name, command in group.commands.items()}
        assert not {name: lead for name, lead in leads.items() if len(lead) > 64 or "\n" in lead}
    assert tried().stdout == tried("--help").stdout
    assert tried("simulate").stdout == tried("simulate", "--help").stdout


def test_version():
    assert tried("--version").stdout == f"vrex {version('openvrex')}\n"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["destructor", "command"])
def test_an_interrupt_ends_the_command(where, sent, monkeypatch):
    """Python drops what a destructor raises, and every Amaranth component has one."""
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]

    class Component:
        def __del__(self):
            signal.raise_signal(sent)

    def flat(params):
        Component() if where == "destructor" else signal.raise_signal(sent)
        time.sleep(5)

    monkeypatch.setattr("openvrex.scripts.generation.presets_command.flat", flat)
    run = tried("presets")
    assert (run.exit_code, run.stderr) == (130, "error: interrupted\n")
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)] == handlers


def test_components_that_an_error_leaves_half_way_are_not_told_of(monkeypatch, recwarn):
    left = []

    class Half(Elaboratable):
        def elaborate(self, platform):
            pass

    def flat(params):
        Fragment.get(Module(), None)  # from the first elaboration on, Amaranth tells of what is not used
        left.append(Half())
        raise ValueError("n_w=3: wrong")

    monkeypatch.setattr("openvrex.scripts.generation.presets_command.flat", flat)
    assert tried("presets").stderr == "error: n_w=3: wrong\n"
    left.clear()
    gc.collect()
    assert not recwarn
