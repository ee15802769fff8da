"""Power by two tools: the SAIF of a run, what OpenSTA is given, and the same figures from both."""

import json
import re
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest

from openvrex.scripts.records import synthesis_results
from openvrex.scripts.size import power_command
from openvrex.synth import flow, opensta_power, power, saif
from openvrex.synth.liberty import SynthError
from openvrex.synth.power import Beside, Part
from openvrex.synth.switching_activity import count
from openvrex.tb.library.recording import Recording
from tb.tests.commands import refuses, vrex
from tb.tests.synth.cell_libraries import ASAP7, SKY130, needs_pdk

# Gates of several kinds, an inverted register, two clock gates of which one seldom opens, and a constant.
TEXT = """
module t(input clk, rst, input [1:0] en, input [7:0] a, output reg [7:0] p, q, output reg [3:0] r, output y);
  always @(posedge clk) begin
    if (rst) r <= 0; else r <= ~(a[3:0] + p[3:0]);
    if (en[0]) p <= a ^ q;
    if (&en) q <= {p[3:0], a[7:4] & p[7:4]};
  end
  assign y = ~^q;
endmodule
"""
LIBRARIES = {"ASAP7": ASAP7, "SKY130": SKY130}
KINDS = ["logic", "registers", "clock gates"]
needs_sta = pytest.mark.skipif(shutil.which("sta") is None, reason="OpenSTA is not installed")


def run_of(cycles: int) -> Recording:
    """`TEXT` at random inputs."""
    rng = np.random.default_rng(1)
    a, en = rng.integers(0, 256, cycles), rng.integers(0, 2, (2, cycles))
    en[1] &= rng.integers(0, 8, cycles) == 0
    p = q = r = 0
    rows = []
    for t in range(cycles):
        rst = int(t < 2)
        values = {"clk": (0, 1), "rst": (rst, 1), "en": (en[0, t] + 2 * en[1, t], 2), "a": (a[t], 8)}
        values |= {"p": (p, 8), "q": (q, 8), "r": (r, 4)}
        rows.append([int(v) >> i & 1 for v, width in values.values() for i in range(width)])
        r = 0 if rst else ~(int(a[t]) + p) & 15
        old_p = p
        p = int(a[t]) ^ q if en[0, t] else p
        q = (old_p & 15) << 4 | int(a[t]) >> 4 & old_p >> 4 if en[0, t] & en[1, t] else q
    names = [f"{n}[{i}]" if width > 1 else n for n, (_, width) in values.items() for i in range(width)]
    return Recording({n: i for i, n in enumerate(names)}, np.packbits(np.array(rows, np.uint8), 1, "little"))


RUNS = [run_of(1000), run_of(300)]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Power, circuits and library of `TEXT` in a run, by the library's name."""
    build, done = tmp_path_factory.mktemp("build"), {}

    def run(library: str) -> tuple:
        if library not in done:
            netlists, used = flow.netlists(TEXT, "t", LIBRARIES[library], build=build)
            circuits = power.circuits(netlists, used)
            done[library] = power.measure("t", circuits, {"t": {}}, used, {"t": RUNS}), circuits, used
        return done[library]

    return run


def saif_of(found: power.Power, circuit) -> tuple[str, dict[int, str]]:
    netlist = circuit.netlist
    _, _, nets = opensta_power.opensta.verilog("t", netlist, named=True)
    return saif.write("t", netlist, nets, found.modules[0].counts, found.mhz), nets


@needs_pdk
def test_saif_of_a_run(measured):
    """Times sum to the run, and toggles are those that we price; a clock behind a gate moves where the gate opens."""
    found, circuits, _ = measured("SKY130")
    circuit, counts = circuits["t"], found.modules[0].counts
    text, nets = saif_of(found, circuit)
    head, _, pins = text.partition("(INSTANCE u0")
    duration = int(re.search(r"\(DURATION (\d+)\)", head)[1])
    assert duration == counts.steps * 1_250_000
    lines = re.findall(r"\((\S+) \(T0 (\d+)\) \(T1 (\d+)\) \(TX 0\) \(TC (\d+)\) \(IG 0\)\)", text)
    assert all(int(zero) + int(one) == duration for _, zero, one, _ in lines)
    tops = {n.replace("\\", ""): (int(one), int(toggles)) for n, _, one, toggles in lines[: len(nets)]}
    for net, name in nets.items():
        if net in circuit.rows and not name.startswith("clk"):
            row = circuit.rows[net]
            assert tops[name] == (counts.ones[row] * 1_250_000, counts.toggles[row])
    assert tops["clk[0]"] == (duration // 2, 2 * counts.steps)
    assert found.modules[0].toggles * counts.steps == counts.toggles.sum() > 5000
    gated = sorted(tops[nets[net]][1] for net in circuit.gated)
    assert gated == sorted(2 * counts.passes[1:])
    assert 0 < gated[0] < gated[1] / 4 < counts.steps / 2
    assert text.count("(") == text.count(")")
    cells = circuit.netlist["cells"]
    assert pins.count("(INSTANCE u") == len(cells) - 1
    assert len(lines) == len([n for n in nets if n in counts.nets()]) + sum(len(p) for *_, p in cells)


STAND_IN = """#!{python}
import pathlib, re, sys
text = pathlib.Path("top.tcl").read_text()
if "info commands" in text:
    print("{commands}")
    sys.exit()
(pathlib.Path({log!r}) / ("same" if pathlib.Path.cwd().name == "same" else "as_it_is")).write_text(text)
for cell in re.findall(r"(u[0-9]+) \\(", pathlib.Path("top.v").read_text())[{drop}:]:
    print("  1.000000e-06 2.000000e-06  3.000000e-06   6.000000e-06 " + cell)
print("Error: top.tcl, 9 out of luck")
"""


@needs_pdk
@pytest.mark.parametrize(("commands", "reads"), [("read_saif", True), ("", False)])
def test_what_opensta_is_given(measured, tmp_path, monkeypatch, commands, reads):
    found, circuits, library = measured("SKY130")

    def stand_in(drop: int) -> None:
        text = STAND_IN.format(python=sys.executable, commands=commands, log=str(tmp_path), drop=drop)
        (tmp_path / "sta").write_text(text)
        (tmp_path / "sta").chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    stand_in(0)
    got = opensta_power.beside(found, circuits, library, SKY130, tmp_path / "kept")
    cells = len(circuits["t"].netlist["cells"])
    assert sum(p.internal for p in got.opensta.values()) == pytest.approx(cells)
    assert [sum(getattr(p, k) for p in got.opensta.values()) / cells for k in ("switching", "leakage")] == [2, 3]
    script = (tmp_path / "as_it_is").read_text()
    assert "create_clock -name clk -period 1250 [get_ports clk]" in script
    assert ("read_saif -scope t top.saif" in script) == reads
    assert bool(got.same) == (tmp_path / "same").exists() == (not reads)
    kept = tmp_path / "kept" / "t"
    assert (kept / "top.saif").read_text() == saif_of(found, circuits["t"])[0]
    stated = (kept / "0.lib").read_text()
    assert ("rise_capacitance" in stated, "voltage_map" in stated) == (True, reads)
    if not reads:
        assert "rise_capacitance" not in (kept / "same" / "0.lib").read_text()
    row = opensta_power.compared(got)["all"]
    assert row.differences[0] == pytest.approx(100 * (row.ours / row.opensta - 1))
    assert (row.differences[-1] is None) == reads
    stand_in(1)
    with pytest.raises(SynthError, match=rf"t: OpenSTA gave the power of {cells - 1} of {cells} cells: Error: top.tcl"):
        opensta_power.beside(found, circuits, library, SKY130, None)


def test_words_that_do_not_go_together(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "--opensta=True: needs a library with power tables" in refuses("size", "power", "hcu", "--opensta").stderr
    assert "is for the files of --opensta" in refuses("size", "power", "hcu", "-o", tmp_path / "x").stderr
    (tmp_path / "x.lib").touch()
    run = refuses("size", "power", "hcu", "--opensta", "--liberty", tmp_path / "x.lib")
    assert "OpenSTA: no 'sta' on PATH; install it" in run.stderr


def mean_of_states(prices, words, _, *, slew: float) -> float:
    """As `power.Prices._stated`, but an edge costs the mean over the states of the cell."""
    means = (np.mean([power._at(getattr(i, way), slew, np.zeros(1)) for i in prices]) for way in ("rise", "fall"))
    return sum(int(count(w).sum()) * mean for w, mean in zip(words, means, strict=True)) if prices else 0.0


@needs_pdk
@needs_sta
@pytest.mark.parametrize("library", LIBRARIES)
def test_power_is_that_of_opensta(measured, monkeypatch, library):
    """With one slew and mean loads, nets are equal, and so are cells if we, too, take an input's energy as a mean."""
    found, circuits, used = measured(library)
    got = opensta_power.beside(found, circuits, used, LIBRARIES[library], None)
    assert sorted(got.ours) == sorted(got.opensta) == sorted(got.same) == sorted(KINDS)
    for kind in KINDS:
        ours, same = got.ours[kind], got.same[kind]
        assert same.switching == pytest.approx(ours.switching, rel=1e-4)
        assert same.leakage == pytest.approx(ours.leakage, rel=1e-4)
    assert abs(opensta_power.compared(got)["all"].differences[-1]) < opensta_power.TOLERANCE
    monkeypatch.setattr(power.Prices, "_stated", lambda self, *a: mean_of_states(*a, slew=self.slew))
    mean = power.measure("t", circuits, {"t": {}}, used, {"t": RUNS}).modules[0].kinds
    for kind in KINDS:
        assert got.same[kind].internal == pytest.approx(mean[kind].internal * found.mhz / 1e3, rel=3e-3)


@needs_pdk
def test_large_differences_are_red(measured):
    found, *_ = measured("SKY130")
    one, other = {"logic": Part(1.0, 1.0, 0.0)}, {"logic": Part(1.0, 1.2, 0.0)}
    table = power_command.beside({"hcu": replace(found, beside=Beside(one, other, other))})
    shown = {column.header: [*column.cells] for column in table.columns}
    assert (shown["unit"], shown["cells"]) == (["hcu", ""], ["all", "logic"])
    assert (shown["difference %"], shown["nets %"]) == (["-9.09"] * 2, ["+0.00"] * 2)
    assert (shown["leakage %"], shown["with our slew and loads %"]) == (["-"] * 2, ["[red]-9.09[/]", "-9.09"])


@needs_pdk
@needs_sta
def test_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ("--preset", "tiny", "--liberty", SKY130[0], "--opensta", "-o", tmp_path / "kept")
    unit = json.loads(vrex("size", "power", "cluster_set", *words, "--json").stdout)["units"]["cluster_set"]
    assert sorted(unit["beside"]) == ["opensta", "ours", "same"]
    rows = synthesis_results.beside(unit["beside"])
    assert abs(rows["all"].differences[-1]) < opensta_power.TOLERANCE
    assert (tmp_path / "kept" / "cluster_set" / "cluster_set" / "top.saif").exists()


@needs_pdk
@needs_sta
def test_a_net_whose_toggles_double_shows(measured):
    found, circuits, used = measured("SKY130")
    (module,), circuit = found.modules, circuits["t"]
    busy = circuit.rows[circuit.netlist["ports"]["r"][1][0]]
    toggles = module.counts.toggles.copy()
    toggles[busy] *= 2
    wrong = replace(found, modules=(replace(module, counts=replace(module.counts, toggles=toggles)),))
    good, bad = (opensta_power.beside(p, circuits, used, SKY130, None) for p in (found, wrong))
    assert bad.same["registers"].internal > 1.002 * good.same["registers"].internal
    assert bad.same["registers"].internal != pytest.approx(good.ours["registers"].internal, rel=2e-3)
    assert bad.same["clock gates"] == good.same["clock gates"]
