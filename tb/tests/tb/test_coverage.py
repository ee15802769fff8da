"""Code coverage: what Verilator counts is read, added up, written as LCOV; what is left out is named, or told."""

import json
import tomllib
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from openvrex.hdl.emit import Emitted
from openvrex.scripts.engineers import coverage_command as command
from openvrex.tb.campaigns.code_coverage import (
    Point,
    Source,
    changes,
    counts,
    hardware,
    inputs_at_zero,
    lcov,
    left_out,
    measure,
    missed,
    of_module,
    proved_constant,
    proved_impossible,
    read,
    without,
)
from openvrex.tb.campaigns.constant_bits import constant, impossible_changes
from openvrex.tb.campaigns.subjects import SUBJECTS, Subject
from openvrex.tb.library.runner import BenchError
from tb.tests.commands import tried


def data(path, *points: tuple[str, int, str, str, int]):
    rows = ["# SystemC::Coverage-3"]
    for file, line, kind, what, n in points:
        fields = {"f": file, "l": line, "n": 1, "page": f"v_{kind}/hcu", "o": what, "h": "bench.unit"}
        rows.append("C '" + "".join(f"\x01{k}\x02{v}" for k, v in fields.items()) + f"' {n}")
    path.write_text("\n".join(rows))
    return path


STATES = [{"name": "core.state", "width": 2, "values": ["REST", "", "RUN"]}]


def test_data_files_are_added_up(tmp_path):
    a = data(
        tmp_path / "a", ("u.v", 3, "line", "block", 1), ("u.v", 4, "branch", "if", 0), ("bench.v", 1, "line", "", 9)
    )
    b = data(
        tmp_path / "b",
        ("bench.v", 6, "user", "i_waits", 4),
        ("bench.v", 7, "user", "state__0_2", 3),
        ("bench.v", 7, "user", "state__0_2_0", 0),
        ("u.v", 3, "line", "block", 2),
        ("u.v", 4, "branch", "if", 0),
        ("u.v", 5, "toggle", "perf___05Fx[9]:0->1", 0),
    )
    points = read([a, b], "u.v", STATES)
    assert points == {
        Point("u.v", 3, "line", "block", "hcu"): 3,
        Point("u.v", 4, "branch", "if", "hcu"): 0,
        Point("u.v", 5, "toggle", "perf__x[9]:0->1", "hcu"): 0,
        Point("bench.v", 6, "stall", "i_waits", "hcu"): 4,
        Point("bench.v", 7, "state", "core.state: RUN", "hcu"): 3,
        Point("bench.v", 7, "state", "core.state: RUN -> REST", "hcu"): 0,
    }
    points = without(points)
    assert counts(points) == {"line": (1, 1), "branch": (0, 1), "toggle": (0, 0), "stall": (1, 1), "state": (1, 2)}
    assert [p.line for p in missed(points)] == [4, 7]
    text = lcov("u", points)
    assert text.startswith("TN:u\nSF:u.v\n")
    assert "bench.v" not in text
    assert "\nDA:3,3\n" in text
    assert "BRDA:4,0,1,0" in text
    assert text.endswith("end_of_record\n")


VERILOG = """module u(
  input        t,
  input  [1:0] s,
  output       z
);

  reg  x, y;
  assign z = s == 2'h3 ? x : y;
  wire a = {s == 2'h1 ? t
    : x, t ? y : x ? t : y};
  always @(posedge clk) begin
    if (t & (x
        | y))
      x <= y;
    else begin  // both
      case (s)
        2'b00: begin
          if (t)
            x <= t;
        end
        2'b01:
          x <= y;
        default: begin
        end
      endcase
    end
  end // always @(posedge)
endmodule
"""
THEN, OR, DEFAULT, INNER, FIRST, SECOND = (
    Point("u.v", line, kind, what, "u", column)
    for line, kind, what, column in (
        (8, "branch", "cond_then", 26),
        (12, "branch", "else", 0),
        (23, "line", "case", 0),
        (18, "branch", "else", 0),
        (10, "branch", "cond_then", 14),
        (10, "branch", "cond_then", 22),
    )
)
NAMES = {
    THEN: "u: z = s == 2'h3 ? x : y: then",
    OR: "u: if (t & (x | y)): else",
    DEFAULT: "u: case (s): default",
    INNER: "u: case (s): 2'b00: if (t): else",
    FIRST: "u: wire a = {s == 2'h1 ? t : x, t ? y : x ? t : y}: then y",
    SECOND: "u: wire a = {s == 2'h1 ? t : x, t ? y : x ? t : y}: then t",
}


def test_points_are_named_by_their_statements():
    """Wherever the lines stand."""
    for moved in (0, 3):
        source = Source("\n" * moved + VERILOG)
        assert {p: source.name(replace(p, line=p.line + moved)) for p in NAMES} == NAMES


def test_a_case_is_known_by_its_first_statement():
    source = Source(VERILOG)
    assert source.names(DEFAULT) == {"u: case (s): default", "u: case (s): default [x <= t]"}
    assert source.names(THEN) == {NAMES[THEN]}
    listed = {"u: case (s): default [x <= t]": "why"}
    assert left_out(Counter({DEFAULT: 0}), VERILOG, listed) == ({DEFAULT: "why"}, [])


def test_what_is_left_out_is_named_and_a_wrong_name_is_told():
    points = Counter({THEN: 1, DEFAULT: 0})
    assert left_out(points, VERILOG, {NAMES[DEFAULT]: "why"}) == ({DEFAULT: "why"}, [])
    assert counts(without(points, {DEFAULT})) == {
        **dict.fromkeys(("line", "toggle", "stall", "state"), (0, 0)),
        "branch": (1, 1),
    }
    assert "\nDA:" not in lcov("u", without(points, {DEFAULT}))
    assert left_out(points, VERILOG, {NAMES[THEN]: "why"})[1] == [f"{NAMES[THEN]}: is left out, but a test comes by it"]
    assert left_out(points, VERILOG, {"u: z": "why"})[1] == ["u: z: nothing of the unit has this name"]


def toggle(what: str) -> Point:
    return Point("u.v", 5, "toggle", what, "u")


def test_toggles_are_left_out_by_an_expression():
    """In both directions; a bit that a test moves is an error."""
    points = Counter({toggle("s[0]:0->1"): 1, toggle("s[1]:0->1"): 0, toggle("s[1]:1->0"): 0})
    entry = r"toggle u: s\[[1-9]\]"
    assert left_out(points, VERILOG, {entry: "why"}) == (
        {toggle("s[1]:0->1"): "why", toggle("s[1]:1->0"): "why"},
        [],
    )
    entry = r"toggle u: s.*"
    assert left_out(points, VERILOG, {entry: "why"})[1] == [f"{entry}: is left out, but a test comes by s[0]:0->1"]
    entry = "toggle u: t"
    assert left_out(points, VERILOG, {entry: "why"})[1] == [f"{entry}: nothing of the unit has this name"]


CONSTANT = Emitted(
    """module part(input clk, input rst, input [2:0] d, output reg [2:0] q);
  always @(posedge clk) q <= rst ? 3'h2 : {d[2] & d[1], q[1], d[0]};
endmodule
module u(
  input clk,
  input rst,
  input [2:0] d,
  output [2:0] q
);
  wire [4:1] high = {d[1], 1'h1, q[0], q[1]};
  part inner (
    .clk(clk), .rst(rst), .d(d), .q(q)
  );
endmodule
""",
    "u",
    {"ports": [{"name": n, "dir": d, "width": w} for n, d, w in
               (("clk", "in", 1), ("rst", "in", 1), ("d", "in", 3), ("q", "out", 3))]},
)  # fmt: skip


def test_a_bit_is_constant_if_it_is_proved():
    """Registers as well; with a bit of an input at 0, what follows from it, too."""
    bits = {("part", f"q[{k}]") for k in range(3)} | {("u", f"high[{k}]") for k in range(1, 5)}
    always = {("part", "q[1]"), ("u", "high[1]"), ("u", "high[3]")}
    assert constant(CONSTANT, bits) == always
    assert constant(CONSTANT, bits, ["d[1]"]) == always | {("part", "q[2]"), ("u", "high[4]")}
    inner = {bit for bit in bits if bit[0] == "part"}
    assert constant(CONSTANT, inner, join="part") == {("part", "q[1]")}
    assert constant(CONSTANT, bits - inner, join="u") == {("u", "high[3]")}, "what `part` gives is free"
    points = Counter({toggle(f"high[{k}]:0->1"): 0 for k in range(1, 5)})
    assert {p.what for p in proved_constant(CONSTANT, points, [])} == {"high[1]:0->1", "high[3]:0->1"}
    zero, wrong = inputs_at_zero(CONSTANT, {r"input u: d\[1\]": "why", "input u: e": "why", "toggle u: d": "why"})
    assert (zero, wrong) == ({"d[1]": "why"}, ["input u: e: the unit has no such input"])
    assert left_out(points, VERILOG, {r"input u: d\[1\]": "why"}) == ({}, [])
    assert "high[4]:0->1" in {p.what for p in proved_constant(CONSTANT, points, zero)}


MACHINE = Emitted(
    """module u(
  input clk,
  input rst,
  input go
);
  reg [1:0] state;
  wire leaves = go & state == 2'h1;
  always @(posedge clk) state <= rst ? 2'h0 : leaves ? 2'h2 : state == 2'h0 & go ? 2'h1 : state;
endmodule
""",
    "u",
    {
        "ports": [{"name": n, "dir": "in", "width": 1} for n in ("clk", "rst", "go")],
        "states": [{"name": "state", "width": 2, "values": ["REST", "RUN", "END"]}],
    },
)


def test_a_change_of_state_is_left_out_if_it_is_proved_impossible():
    """But not one that a test makes, nor one that only a reset makes."""
    every = [(a, b) for a in range(3) for b in range(3) if a != b]
    possible = {(0, 1), (1, 2)}
    assert impossible_changes(MACHINE, MACHINE.manifest["states"][0], every) == {*every} - possible
    points = Counter({Point("b.v", 1, "state", f"state: {x}", "u"): 0 for x in ("END -> RUN", "RUN -> END", "END")})
    assert {p.what for p in proved_impossible(MACHINE, points)} == {"state: END -> RUN"}


def test_text_for_simulators_alone_is_no_hardware():
    text = "a\n`ifdef OPENVREX_CHECK\nb\n`ifdef VERILATOR\nc\n`endif\nd\n`endif\ne"
    points = Counter({Point("u.v", line, "line", "block", "u"): 0 for line in (1, 3, 5, 7, 9)})
    assert {p.line for p in hardware(points, text)} == {1, 9}


def test_of_a_join_its_own_module_counts():
    points = [Point("u.v", 1, "line", "block", m) for m in ("core", "core__lxe")]
    stall, state = Point("b.v", 1, "stall", "i_waits", "bench"), Point("b.v", 1, "state", "s: A", "bench")
    assert of_module(Counter(dict.fromkeys([*points, stall, state], 1)), "core").keys() == {points[0], stall}


def test_a_change_that_no_diagram_has_is_an_error():
    made, never, known = (Point("b.v", 1, "state", f"s: A -> {x}", "") for x in "BCD")
    found = changes(Counter({made: 2, never: 0, known: 0}), {"s: A -> D"})
    assert found == ({made, never}, ["s: A -> B: no diagram has this change, but a test makes it"])


@pytest.mark.parametrize("unit", ["hcu", "wtu", "kvmu", "retriever", "sequencer", "motion_mask"])
def test_every_machine_of_a_diagram_is_watched(unit):
    """The register of the Verilog is the diagram's, by its states."""
    watched = command.expected_states(unit, SUBJECTS[unit].emitted())
    assert len(watched) == 1
    own = next(iter(watched.values()))
    assert any(" -> " in what for what in own)


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
    unit = SimpleNamespace(unit="u", size="tiny", module="", emitted=lambda: Emitted(VERILOG, "u", {"ports": []}))
    (tmp_path / "coverage.toml").write_text(f'[u]\n"{listed}" = "why"\n' if listed else "")
    monkeypatch.setattr(command, "SUBJECTS", {"u": unit})
    monkeypatch.setattr(command, "measure", lambda _: Counter({THEN: hits, DEFAULT: 1}))
    monkeypatch.setattr(command, "EXCLUDED", tmp_path / "coverage.toml")
    run = tried("dev", "coverage", "u", "-o", str(tmp_path), "--json")
    assert run.exit_code == code
    assert said in run.stderr
    (row,) = json.loads(run.stdout)["units"]
    out = int(listed.endswith("then"))
    assert row["branch"] == {"hit": hits * (1 - out), "total": 1 - out, "excluded": out}
    assert row["line"] == {"hit": 1, "total": 1, "excluded": 0}
    assert ("then" in (tmp_path / "u.missed").read_text()) == (not hits and not out)
    assert ("then: why" in (tmp_path / "u.excluded").read_text()) == bool(out)


def test_tests_that_fail_are_told_of(tmp_path, monkeypatch):
    def fails(_):
        raise BenchError("o[3] differs")

    monkeypatch.setattr(command, "measure", fails)
    run = tried("dev", "coverage", "cluster_set", "-o", str(tmp_path / "out"))
    assert (run.exit_code, run.stderr) == (1, "error: cluster_set: its tests fail: o[3] differs\n")


@pytest.mark.nightly
def test_tests_reach_every_branch_and_none_without_them():
    points = measure(SUBJECTS["cluster_set"])
    hit, every = counts(points)["branch"]
    assert hit == every > 40
    assert not [p for p in missed(points) if p.kind != "toggle"]
    assert measure(Subject("cluster_set", (), named=False)) == Counter()


def test_reasons_are_of_units_that_are_judged():
    listed = tomllib.loads(command.EXCLUDED.read_text())
    assert listed.keys() <= SUBJECTS.keys()
    assert all(why.endswith(".") for own in listed.values() for why in own.values())
