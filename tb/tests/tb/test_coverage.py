"""Code coverage: what Verilator counts is read, added up, written as LCOV; what is left out is named, or told."""

import json
import tomllib
from collections import Counter
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from hdl.emit import Emitted
from scripts.engineers import coverage_command as command
from scripts.main import app
from tb.campaigns.code_coverage import Point, Source, counts, lcov, left_out, measure, missed, read, without
from tb.campaigns.subjects import SUBJECTS, Subject
from tb.library.runner import BenchError


def data(path, *points: tuple[str, int, str, str, int]):
    rows = ["# SystemC::Coverage-3"]
    for file, line, kind, what, n in points:
        fields = {"f": file, "l": line, "n": 1, "page": f"v_{kind}/hcu", "o": what, "h": "bench.unit"}
        rows.append("C '" + "".join(f"\x01{k}\x02{v}" for k, v in fields.items()) + f"' {n}")
    path.write_text("\n".join(rows))
    return path


def test_data_files_are_added_up(tmp_path):
    a = data(
        tmp_path / "a", ("u.v", 3, "line", "block", 1), ("u.v", 4, "branch", "if", 0), ("bench.v", 1, "line", "", 9)
    )
    b = data(
        tmp_path / "b",
        ("bench.v", 6, "user", "i_waits", 4),
        ("u.v", 3, "line", "block", 2),
        ("u.v", 4, "branch", "if", 0),
        ("u.v", 5, "toggle", "perf___05Fx[9]:0->1", 0),
    )
    points = read([a, b], "u.v")
    assert points == {
        Point("u.v", 3, "line", "block", "hcu"): 3,
        Point("u.v", 4, "branch", "if", "hcu"): 0,
        Point("u.v", 5, "toggle", "perf__x[9]:0->1", "hcu"): 0,
        Point("bench.v", 6, "stall", "i_waits", "hcu"): 4,
    }
    points = without(points)
    assert counts(points) == {"line": (1, 1), "branch": (0, 1), "toggle": (0, 0), "stall": (1, 1)}
    assert [p.line for p in missed(points)] == [4]
    text = lcov("u", points)
    assert text.startswith("TN:u\nSF:u.v\n")
    assert "bench.v" not in text
    assert "\nDA:3,3\n" in text
    assert "BRDA:4,0,1,0" in text
    assert text.endswith("end_of_record\n")


# Two multiplexers as Yosys writes them: of three of the four values that two bits have, and of `select`.
VERILOG = """module u(s, t, x, y, z);
  assign z = _3_ ? x : \\y$7 ;
  assign _3_ = s == 2'h3;
  function [1:0] _8_;
    input [1:0] a;
    input [5:0] b;
    input [2:0] s;
    casez (s) // synopsys parallel_case
      3'b??1:
        _8_ = b[1:0];
      default:
        _8_ = a;
    endcase
  endfunction
  assign some = _8_(2'hx, {{ \\$signal$4 , x, x }}, {{ _7_, _6_, _5_ }});
  assign _5_ = s == 2'h2;
  assign _6_ = s == 2'h1;
  assign _7_ = ! s;
  function [1:0] _9_;
    input [1:0] a;
    input [7:0] b;
    input [{bits}:0] s;
    casez (s) // synopsys parallel_case
      4'b???1:
        _9_ = b[1:0];
      default:
        _9_ = a;
    endcase
  endfunction
  assign all = _9_(2'hx, {{ x, x, x, x }}, {{ {select} }});
  assign _2_ = | _1_;
  assign _1_ = {{ _5_, _6_ }};
  assign _4_ = \\s$2 [1:0] == 2'h1;
  assign _0_ = ~ t;
endmodule
"""
THEN, SOME, ALL = (
    Point("u.v", line, kind, what, "u")
    for line, kind, what in ((2, "branch", "cond_then"), (11, "line", "case"), (26, "line", "case"))
)


@pytest.mark.parametrize(
    ("select", "left"),
    [
        ("_7_, _6_, _5_, _3_", True),
        ("_7_, _2_, _3_", True),
        ("_7_, _6_, _6_, _3_", False),  # of one value twice
        ("_7_, _4_, _5_, _3_", False),  # of another signal
        ("t, _0_", True),
        ("t, t", False),
        ("t, _0_, _7_", False),
    ],
)
def test_default_arms_that_nothing_reaches_are_seen(select, left):
    for elements, found in ((select.count(","), left), (select.count(",") + 1, False)):  # or one has two bits
        source = Source(VERILOG.format(select=select, bits=elements))
        assert (source.cannot(SOME), source.cannot(ALL)) == (False, found)


def test_what_is_left_out_is_named_and_a_wrong_name_is_told():
    text = VERILOG.format(select="t, _0_", bits=1)
    some = "u: some = _(2'hx, { _, x, x }, { ! s, s == 2'h1, s == 2'h2 }): default"
    then = "u: z = s == 2'h3 ? x : y: then"
    source = Source(text)
    assert (source.name(SOME), source.name(THEN)) == (some, then)
    moved = text.replace("_7_", "_70_").replace("$7", "$9").replace("module", "\nmodule")
    assert Source(moved).name(Point("u.v", 12, "line", "case", "u")) == some
    points = Counter({THEN: 1, SOME: 0, ALL: 0})
    assert left_out(points, text, {some: "why"}) == ({SOME: "why", ALL: "All values of the select have an arm."}, [])
    assert counts(without(points, {SOME, ALL})) == {"line": (0, 0), "branch": (1, 1), "toggle": (0, 0), "stall": (0, 0)}
    assert "\nDA:" not in lcov("u", without(points, {SOME, ALL}))
    assert left_out(points, text, {then: "why"})[1] == [f"{then}: is left out, but a test comes by it"]
    assert left_out(points, text, {"u: z": "why"})[1] == ["u: z: nothing of the unit has this name"]
    assert left_out(Counter({ALL: 1}), text, {})[1] == [f"{source.name(ALL)}: is left out, but a test comes by it"]


@pytest.mark.parametrize(
    ("hits", "listed", "code", "said"),
    [
        (1, "", 0, ""),
        (0, "", 1, ""),
        (0, "u: z = s == 2'h3 ? x : y: then", 0, ""),
        (1, "u: z = s == 2'h3 ? x : y: then", 1, "is left out, but a test comes by it"),
        (1, "u: z", 1, "nothing of the unit has this name"),
    ],
)
def test_below_98_percent_or_with_a_wrong_name_the_command_fails(tmp_path, monkeypatch, hits, listed, code, said):
    unit = SimpleNamespace(size="tiny", emitted=lambda: Emitted(VERILOG.format(select="t, _0_", bits=1), "u", {}))
    (tmp_path / "coverage.toml").write_text(f'[u]\n"{listed}" = "why"\n' if listed else "")
    monkeypatch.setattr(command, "SUBJECTS", {"u": unit})
    monkeypatch.setattr(command, "measure", lambda _: Counter({THEN: hits, ALL: 0}))
    monkeypatch.setattr(command, "EXCLUDED", tmp_path / "coverage.toml")
    run = CliRunner().invoke(app, ["coverage", "u", "-o", str(tmp_path), "--json"])
    assert run.exit_code == code
    assert said in run.stderr
    (row,) = json.loads(run.stdout)["units"]
    out = int(listed.endswith("then"))
    assert row["branch"] == {"hit": hits * (1 - out), "total": 1 - out, "excluded": out}
    assert row["line"] == {"hit": 0, "total": 0, "excluded": 1}
    assert ("then" in (tmp_path / "u.missed").read_text()) == (not hits and not out)
    assert "All values of the select have an arm." in (tmp_path / "u.excluded").read_text()


def test_tests_that_fail_are_told_of(tmp_path, monkeypatch):
    def fails(_):
        raise BenchError("o[3] differs")

    monkeypatch.setattr(command, "measure", fails)
    run = CliRunner().invoke(app, ["coverage", "cluster_set", "-o", str(tmp_path / "out")])
    assert (run.exit_code, run.stderr) == (1, "error: cluster_set: its tests fail: o[3] differs\n")


def test_tests_reach_every_branch_and_none_without_them():
    points = measure(SUBJECTS["cluster_set"])
    hit, every = counts(points)["branch"]
    assert hit == every > 200
    assert not [p for p in missed(points) if p.kind != "toggle"]
    assert measure(Subject("cluster_set", (), named=False)) == Counter()


def test_reasons_are_of_units_that_are_judged():
    listed = tomllib.loads(command.EXCLUDED.read_text())
    assert listed.keys() <= SUBJECTS.keys()
    assert all(why.endswith(".") for own in listed.values() for why in own.values())


def test_bad_input_is_named():
    run = CliRunner().invoke(app, ["coverage", "x"])
    assert run.exit_code == 2
    assert "unit='x': must be one of cluster_set" in run.stderr
