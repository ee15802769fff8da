"""Clock gates: which flip-flops get one, what it costs, its timing and power by hand, and proofs of equal netlists."""

import json
import re
import shutil
from collections import Counter
from functools import partial

import numpy as np
import pytest

from openvrex.hdl import emit
from openvrex.hdl.emit import Emitted, params_of
from openvrex.hdl.params import preset
from openvrex.synth import flow, liberty, mapping, opensta, power
from openvrex.synth.liberty import EMBEDDED, ClockGate, SynthError
from openvrex.synth.switching_activity import Circuit
from openvrex.tb.campaigns.cells import read
from openvrex.tb.formal.clock_gate_equivalence import prove, prove_cell
from openvrex.tb.formal.verilog_equivalence import UnequalError
from openvrex.tb.library.recording import Recording
from openvrex.tb.library.yosys import run_yosys
from tb.tests.by_day import by_day
from tb.tests.commands import tried, vrex
from tb.tests.synth.cell_libraries import ASAP7, SKY130, needs_pdk

# Each kind of flip-flop with an enable, of both levels of enable and reset.
KINDS = """
module t(input clk, rst, en, input [3:0] a, output reg [3:0] plain, first, low, last);
  always @(posedge clk) begin
    if (en) plain <= a;
    if (rst) first <= 5; else if (en) first <= ~a;
    if (!rst) low <= 6; else if (!en) low <= a;
    if (en) begin if (rst) last <= 3; else last <= a ^ 1; end
  end
endmodule
"""
HELD = """
module t(input clk, en, input [7:0] d, output reg [7:0] q);
  always @(posedge clk) if (en) q <= d;
endmodule
"""
FAR = """
module t(input clk, input [7:0] a, input [3:0] d, output reg [3:0] q);
  always @(posedge clk) if (^a) q <= d;
endmodule
"""
LIBRARIES = {"embedded": None, "ASAP7": ASAP7, "SKY130": SKY130}
every_library = pytest.mark.parametrize(
    "library", ["embedded", pytest.param("ASAP7", marks=needs_pdk), pytest.param("SKY130", marks=needs_pdk)]
)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A folder of results for all tests, which read each library once."""
    return tmp_path_factory.mktemp("build")


@pytest.fixture
def area(build):
    """`flow.synthesise` of module t."""
    return lambda text, *a, **k: flow.synthesise(text, "t", *a, build=build, **k)


def test_flip_flops_that_share_an_enable_share_a_gate(area):
    """Four of a kind; a reset that acts without the enable makes another enable, one that acts with it does not."""
    a = area(KINDS)
    assert (a.registers, a.clock_gates, a.cells["ICG"]) == (16, 3, 3)
    assert a.reg_area == pytest.approx(16 * 16 / 3 + 3 * 5, abs=0.01)
    plain = area(KINDS, gated=0)
    assert (plain.registers, plain.clock_gates, "ICG" in plain.cells) == (16, 0, False)
    assert a.comb_ge < plain.comb_ge / 2
    assert a.total_ge < plain.total_ge


def test_few_flip_flops_get_no_gate(area):
    assert area(KINDS, gated=8).clock_gates == 1, "those of `plain` and `last`"
    none = area(KINDS, gated=9)
    assert (none.clock_gates, none.cells) == (0, area(KINDS, gated=0).cells)
    fall = area(KINDS.replace("posedge", "negedge"))
    assert fall.clock_gates == 0, "the library's gate holds the clock low"


@every_library
def test_the_smallest_gate_of_a_library(tmp_path, library):
    gate = liberty.load(LIBRARIES[library] or [EMBEDDED], tmp_path).gate
    assert (
        gate
        == {
            "embedded": ClockGate("ICG", "EN", "CK", "GCK", ("SE",)),
            "ASAP7": ClockGate("ICGx1_ASAP7_75t_R", "ENA", "CLK", "GCLK", ("SE",)),
            "SKY130": ClockGate("sky130_fd_sc_hd__dlclkp_1", "GATE", "CLK", "GCLK", ()),
        }[library]
    )


@needs_pdk
def test_a_gate_may_be_barred(tmp_path):
    load = partial(liberty.load, SKY130, tmp_path)
    assert load(("*dlclkp*",)).gate is None
    assert load(("*__dlclkp*",)).gate.cell == "sky130_fd_sc_hd__sdlclkp_1"
    assert load(("*__dlclkp*",)).gate.tests == ("SCE",)


def other_library(change: tuple[str, str], tmp_path) -> list:
    """The embedded library with a change of its clock gate."""
    head, gate, tail = EMBEDDED.read_text().partition("  cell (ICG)")
    assert change[0] in tail
    (tmp_path / "other.lib").write_text(head + gate + tail.replace(*change))
    return [tmp_path / "other.lib"]


@pytest.mark.parametrize(
    "change",
    [
        ("latch_posedge_precontrol", "latch_negedge"),
        ("clock_gate_enable_pin : true", "clock_gate_enable_pin : false"),
        ("area : 5.0000;", "area : 5.0000; dont_use : true;"),
    ],
)
def test_a_library_without_a_gate_gates_nothing(area, tmp_path, change):
    a = area(HELD, other_library(change, tmp_path))
    assert (a.registers, a.clock_gates) == (8, 0)
    assert a.cells == area(HELD, gated=0).cells


def test_the_commands_say_that_a_library_has_no_gate(tmp_path, monkeypatch):
    monkeypatch.setattr(emit, "emit", lambda unit, params: Emitted(HELD, "t", {}))
    monkeypatch.chdir(tmp_path)
    files = other_library(("latch_posedge_precontrol", "none"), tmp_path)
    for words, said in (([], True), (["--gated", "0"], False)):
        run = vrex("size", "area", "hcu", "--liberty", str(files[0]), *words)
        assert ("other.lib: has no clock gate for the rising edge; nothing is gated" in run.stderr) == said
    run = tried("size", "timing", "hcu", "--gated", "-1")
    assert (run.exit_code, "gated=-1: must be 0 (no clock gates) or the fewest" in run.stderr) == (2, True)


def test_an_enable_is_timed_at_its_gate(area):
    """The logic in front of the enable, then the gate's setup time; the gated clock is ideal."""
    paths = {p.kind: p for p in area(FAR).timing.paths}
    path = paths["input to register"]
    assert (path.end, path.setup) == ("enable of q[0]", pytest.approx(12.667))
    assert path.delay == pytest.approx(sum(s.delay for s in path.steps) + 12.667)
    assert path.steps[-1].arrival == pytest.approx(path.delay - 12.667)
    assert paths["register to output"].delay == 13, "clock to output, without the gate's delay"
    early = area(FAR.replace("^a", "a[0]"))
    assert {p.kind: p.delay for p in early.timing.paths}["input to register"] == pytest.approx(12.667)


def test_a_gate_without_setup_is_not_timed(area, tmp_path):
    a = area(HELD, other_library(("setup_rising", "hold_rising"), tmp_path))
    assert (a.timing, a.clock_gates) == (None, 1)
    assert a.untimed == "other.lib: cell ICG: a clock gate without setup tables; use a library with them, or --gated 0"


@pytest.mark.skipif(shutil.which("sta") is None, reason="OpenSTA is not installed")
@every_library
@pytest.mark.parametrize("text", [KINDS, FAR])
def test_gates_are_timed_as_opensta_does(area, build, text, library):
    files = LIBRARIES[library]
    netlists, used = flow.netlists(text, "t", files, build=build)
    ours = area(text, files).timing.paths[0]
    theirs = opensta.longest("t", netlists["t"]["netlist"], used)
    assert theirs.delay == pytest.approx(ours.delay, abs=0.02)
    if text is FAR:
        assert (ours.end, theirs.end) == ("enable of q[0]",) * 2


def recording(**bits: str) -> Recording:
    """A recording of signals given as a character a cycle; `q` and `d` are counters' bits."""
    rows = np.array([[int(x) for x in v] for v in bits.values()], np.uint8)
    columns = {re.sub(r"_(\d)", r"[\1]", k): i for i, k in enumerate(bits)}
    return Recording(columns, np.packbits(rows.T, 1, "little"))


def held(en: str, wrong: int | None = None) -> Recording:
    """A run of `HELD` whose data alternate; q changes once too often in cycle `wrong`."""
    q, shown = 0, ""
    for t, e in enumerate(en):
        q ^= int(t == wrong)
        shown += str(q)
        q = t % 2 if e == "1" else q
    data = "".join(str(t % 2) for t in range(len(en)))
    return recording(
        clk="0" * len(en), en=en, **{f"d_{i}": data for i in range(8)}, **{f"q_{i}": shown for i in range(8)}
    )


@pytest.fixture
def measured(build):
    """The module of `HELD` in a recording, at 7 nm."""

    def run(given: Recording, **options) -> power.Power:
        netlists, library = flow.netlists(HELD, "t", build=build, **options)
        shapes = {n: d["memories"] for n, d in netlists.items()}
        return power.measure("t", power.circuits(netlists, library), shapes, library, {"t": [given]}, node=7)

    return run


def test_clock_energy_by_hand(measured):
    """The gate's pin in every cycle; eight flip-flops' pins and the gate's output in one of four."""
    (m,) = measured(held("0001" * 20 + "0")).modules
    pin = power.pin_energy(7)
    passed = 8 * (1 + power.CLOCK) + 4.333  # parasitic charge of the gate's last stage
    assert m.clock == pytest.approx((2 + power.GATE + passed / 4) * pin, rel=1e-3)
    assert m.idle == pytest.approx((2 + power.GATE) * pin, rel=1e-3), "the run ends with the gate closed"
    (m,) = measured(held("0001" * 20 + "1")).modules
    assert m.idle == pytest.approx((2 + power.GATE + passed) * pin, rel=1e-3), "the run ends with the gate open"
    (plain,) = measured(held("0001" * 20 + "0"), gated=0).modules
    assert plain.clock == plain.idle == pytest.approx(8 * (1 + power.CLOCK) * pin, rel=1e-3)


def test_idle_and_work_are_all_of_the_energy(measured):
    p = measured(held("0001" * 20 + "0"))
    assert p.idle_mw == pytest.approx(p.energy("idle") * 0.8 + p.leakage_mw.value)
    assert p.work_pj == pytest.approx(p.energy("switching", "internal", "clock") - p.energy("idle"))
    assert p.report()["idle_mw"] == p.idle_mw


@needs_pdk
@pytest.mark.parametrize("library", ["ASAP7", "SKY130"])
def test_gates_save_energy_in_open_libraries(build, library):
    """Gates that are open in a quarter of the cycles; gates that are always open cost more than none."""
    clocks = {}
    for name, en, gated in (("plain", "0001", 0), ("rare", "0001", 4), ("open", "1111", 4)):
        netlists, used = flow.netlists(HELD, "t", LIBRARIES[library], build=build, gated=gated)
        circuits = power.circuits(netlists, used)
        clocks[name] = power.measure("t", circuits, {"t": {}}, used, {"t": [held(en * 20)]}).energy("clock")
    assert clocks["plain"] / 4 < clocks["rare"] < clocks["plain"] < clocks["open"]


def test_a_register_that_moves_while_its_gate_is_closed_is_an_error(measured):
    measured(held("0001" * 20))
    with pytest.raises(
        SynthError, match=r"t: the netlist computes other values .* 8 of 8 registers, q\[0\] among them"
    ):
        measured(held("0001" * 20, wrong=41))


def test_registers_without_a_name_are_followed_through_gates(build):
    """As for the copies of an address that Yosys makes: their bits follow from those that were recorded."""
    netlists, library = flow.netlists(HELD, "t", build=build)
    netlist = netlists["t"]["netlist"]
    kept = {n: s for n, s in netlist["registers"].items() if s != "q[0]"}
    assert len(kept) == len(netlist["registers"]) - 1
    given = held("0001" * 20)
    whole, part = (
        Circuit("t", netlist | {"registers": r}, power.circuits(netlists, library)["t"].gates)
        for r in (netlist["registers"], kept)
    )
    assert "q[0]" in whole.needs
    assert "q[0]" not in part.needs
    values = [c.evaluate(given, np.arange(80)).values[c.row(netlist["ports"]["q"][1][0])] for c in (whole, part)]
    assert (values[0] == values[1]).all()


def test_a_flip_flop_behind_a_gate_is_one_with_an_enable():
    prove_cell()
    with pytest.raises(UnequalError):
        prove_cell(("if (!clk) held", "held"))  # no latch: the enable moves while the clock is high
    with pytest.raises(UnequalError):
        prove_cell(("clk & held", "clk"))  # no gate


@pytest.mark.parametrize(("unit", "most"), [("hcu", 5), ("wtu", 5), ("kvmu", 5), ("vpe", 5), ("dpe", 20)])
def test_few_flip_flops_lack_an_enable(tmp_path, unit, most):
    """At most so many percent: stages load when a word enters them, and synthesis finds every enable."""
    emitted = emit.emit(unit, params_of(unit, preset("tiny")))
    emitted.write(tmp_path)
    run_yosys([*read(emitted), "opt_dff", "write_json netlist"], tmp_path)
    bits: Counter[bool] = Counter()
    for module in json.loads((tmp_path / "netlist").read_text())["modules"].values():
        for cell in module["cells"].values():
            if kind := re.fullmatch(r"\$s?dff(e|ce)?", cell["type"]):
                bits[bool(kind[1])] += len(cell["connections"]["Q"])
    assert bits[True]
    assert 100 * bits[False] <= most * bits.total(), bits


UNITS = "hcu", "wtu", "cluster_set", "kvmu", "table_port", "motion_mask", "dpe", "vpe", "retriever"


@pytest.mark.parametrize("unit", by_day(UNITS, "cluster_set"))
@every_library
def test_gated_netlists_are_equal(build, unit, library):
    """With each library; `vrex dev prove` has more units with the embedded one."""
    modules = list(prove(unit, params_of(unit, preset("tiny")), liberty=LIBRARIES[library], build=build))
    assert modules[-1].module == unit
    assert all(m.registers and m.outputs >= 2 * m.registers for m in modules)


def test_faults_are_refuted(build, tmp_path, monkeypatch):
    """A netlist whose enables are exchanged, one with a flip-flop behind another gate, one with a clock from data."""
    unit = "cluster_set", params_of("cluster_set", preset("tiny"))

    def found(*edit, **options) -> list:
        return list(prove(*unit, *edit, build=build, **options))

    assert found()

    def exchange(netlist: dict) -> None:
        one, other = [pins for _, kind, pins in netlist["cells"] if kind == "ICG"][:2]
        one["EN"], other["EN"] = other["EN"], one["EN"]

    def move(netlist: dict) -> None:
        gates = [pins["GCK"] for _, kind, pins in netlist["cells"] if kind == "ICG"]
        next(pins for _, kind, pins in netlist["cells"] if kind == "DFF" and pins["CK"] == gates[0])["CK"] = gates[1]

    def clock(netlist: dict) -> None:
        next(pins for _, kind, pins in netlist["cells"] if kind == "ICG")["CK"] = netlist["ports"]["rst"][1]

    for edit, named in ((exchange, "register .* next"), (move, "register .* next"), (clock, "register .* clock")):
        with pytest.raises(UnequalError, match=named):
            found(edit)
    with pytest.raises(UnequalError, match="cluster_set: nothing is gated"):
        found(gated=1000)
    # Resets that act without the enable wait for it, others do not.
    (tmp_path / "gated.v").write_text(mapping.GATED.read_text().replace('[63:56] != "C"', '[63:56] == "C"'))
    monkeypatch.setattr(mapping, "GATED", tmp_path / "gated.v")
    with pytest.raises(UnequalError, match="register .* next"):
        found()
