"""Toggles and energies of circuits small enough to count by hand, the netlist against its source, bad libraries."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from openvrex.hdl.emit import Emitted, emit
from openvrex.hdl.params import HcuParams
from openvrex.synth import cells, flow, power
from openvrex.synth.flow import MemoryMacro
from openvrex.synth.liberty import EMBEDDED, SynthError, load
from openvrex.synth.sram import Sram
from openvrex.synth.switching_activity import Circuit, after, count, spread
from openvrex.tb.checks.hcu_checks import golden, run, stream
from openvrex.tb.library.activity_recorder import recorded, recordings
from openvrex.tb.library.recording import Recording, pack
from tb.tests.commands import vrex

PDK = Path(__file__).parents[4] / "shared" / "pdk"
ASAP7 = sorted(PDK.glob("asap7*.lib.gz"))
COUNTER = """
module t(input clk, rst, en, input a, b, output [2:0] q, output y);
  reg [2:0] n;
  always @(posedge clk) if (rst) n <= 0; else if (en) n <= n + 1;
  assign q = n;
  assign y = ~(a & b);
endmodule
"""


def recording(**bits: str) -> Recording:
    """A recording of signals given as a character a cycle."""
    rows = np.array([[int(x) for x in v] for v in bits.values()], np.uint8)
    columns = {k.replace("_", "[") + "]" if "_" in k else k: i for i, k in enumerate(bits)}
    return Recording(columns, np.packbits(rows.T, 1, "little"))


@pytest.fixture
def measured(tmp_path):
    """Power of a module in a recording, by the embedded library unless said."""

    def run(text: str, given: Recording, liberty=None, **options) -> power.Power:
        netlists, library = flow.netlists(text, "t", liberty, build=tmp_path / "build")
        shapes = {n: d["memories"] for n, d in netlists.items()}
        return power.measure("t", power.circuits(netlists, library), shapes, library, {"t": [given]}, **options)

    return run


def test_words_of_cycles():
    bits = np.random.default_rng(1).integers(0, 2, (3, 150)).astype(np.uint8)
    words = pack(bits)
    assert (count(words) == bits.sum(1)).all()
    assert (count(words ^ after(words)) - bits[:, -1] == (np.diff(bits.astype(int)) != 0).sum(1)).all()
    assert spread(5, 9, 100).tolist() == [5, 6, 7, 8, 9]
    some = spread(0, 9999, 320)
    assert (len(some), some[0], some[-1]) == (320, 0, 9999)
    assert (np.diff(some) > 1).sum() == 15


def test_gate_by_hand(measured):
    """A NAND whose inputs move 4 times and 2, and whose output moves twice, in 6 steps."""
    p = measured(
        "module t(input clk, a, b, output y); assign y = ~(a & b); endmodule",
        recording(clk="00000000", a="01010000", b="00111100"),
        node=7,
    )
    (m,) = p.modules
    moves = {"a": 4, "b": 2, "y": 2}
    assert m.toggles == pytest.approx(sum(moves.values()) / 6)
    assert m.switching == pytest.approx(
        (4 + 2) / 2 * power.pin_energy(7) / 6
    )  # inputs load by 1, the output by nothing
    own = 2 / (4 / 3)  # p / g of a NAND2: its parasitic capacitance
    assert m.internal == pytest.approx(moves["y"] * own / 2 * power.pin_energy(7) / 6, rel=1e-3)
    assert (m.clock, m.leakage) == (0, pytest.approx(power.LEAK))
    assert p.factor == 1
    assert p.dynamic_mw.value == pytest.approx((m.switching + m.internal) * 800e6 * 1e-15 * 1e3)


def counter(cycles: int, en: str = "1") -> dict[str, str]:
    """Signals of `COUNTER` for some cycles, two of them in reset."""
    rst = "11" + "0" * (cycles - 2)
    enabled = ("00" + en * cycles)[:cycles]
    n, bits = 0, ["", "", ""]
    for r, e in zip(rst, enabled, strict=True):
        for k in range(3):
            bits[k] += str(n >> k & 1)
        n = 0 if r == "1" else (n + int(e)) % 8
    return {"clk": "0" * cycles, "rst": rst, "en": enabled, "a": "01" * (cycles // 2), "b": "1" * cycles} | {
        f"n_{k}": v for k, v in enumerate(bits)
    }


def test_registers_by_hand(measured):
    """Bits of a counter move 1, 1/2 and 1/4 times a cycle, its clock pins every cycle."""
    p = measured(COUNTER, recording(**counter(82)), node=7)
    (m,) = p.modules
    assert m.clock == pytest.approx(3 * (1 + power.CLOCK) * power.pin_energy(7), rel=1e-3)
    half = measured(COUNTER, recording(**counter(82, "1000")), node=7).modules[0]
    assert half.clock == m.clock
    assert half.switching < m.switching
    assert half.internal < m.internal


def test_idle_is_clock_and_leakage(measured):
    idle = counter(66, "0") | {"a": "0" * 65 + "1"}  # the last step alone moves
    p = measured(COUNTER, recording(**idle), node=7)
    (m,) = p.modules
    assert m.toggles <= 2
    still = replace(m, switching=0.0, internal=0.0)
    alone = replace(p, modules=(still,))
    assert alone.total.value == pytest.approx(alone.energy("clock") * 0.8 + alone.leakage_mw.value)


def test_energy_grows_with_activity(measured):
    energies = [
        measured(COUNTER, recording(**counter(82, en)), node=7).energy("switching", "internal")
        for en in ("10000000", "1000", "10", "1")
    ]
    assert energies == sorted(energies)
    assert energies[-1] > 2 * energies[0]


def test_parts_of_a_unit(tmp_path):
    """What stands in a unit is priced apart, and with the rest it is the whole."""
    text = (
        COUNTER.replace("module t(", "module u(")
        + """
module t(input clk, rst, en, input a, b, output [2:0] q, output reg y);
  wire x;
  u u0(clk, rst, en, a, b, q, x);
  always @(posedge clk) y <= x;
endmodule
"""
    )
    netlists, library = flow.netlists(text, "t", build=tmp_path, leaves=("u",))
    signals = counter(82)
    x = "".join(str(1 - int(i) * int(j)) for i, j in zip(signals["a"], signals["b"], strict=True))
    q = {f"q_{k}": signals[f"n_{k}"] for k in range(3)}
    given = {"t": recording(**signals | q, x=x, y="0" + x[:-1]), "u": recording(**signals)}
    shapes = {n: d["memories"] for n, d in netlists.items()}
    p = power.measure("t", power.circuits(netlists, library), shapes, library, {n: [r] for n, r in given.items()})
    parts = p.parts()
    assert parts["u"].energy("clock") == pytest.approx(3 * parts["t"].energy("clock"))
    assert sum(q.total.value for q in parts.values()) == pytest.approx(p.total.value)
    assert p.report()["parts"]["u"]["total_mw"]["value"] == parts["u"].total.value


def test_wrong_netlist_is_an_error(measured):
    bad = counter(40)
    bad["n_1"] = bad["n_1"][:30] + str(1 - int(bad["n_1"][30])) + bad["n_1"][31:]
    with pytest.raises(SynthError, match=r"t: the netlist computes other values .* 3 registers, n\[.\]"):
        measured(COUNTER, recording(**bad))


def test_registers_without_a_name_are_followed(tmp_path):
    """Two counters that do not depend on each other are followed apart: together they have too many states."""

    def modules(text: str, given: dict[str, str], named: bool = False) -> list:
        netlists, library = flow.netlists(text, "t", build=tmp_path)
        if not named:
            netlists["t"]["netlist"]["registers"] = {}
        shapes = {n: d["memories"] for n, d in netlists.items()}
        return power.measure(
            "t", power.circuits(netlists, library), shapes, library, {"t": [recording(**given)]}
        ).modules

    given = counter(82)
    assert modules(COUNTER, given) == modules(COUNTER, given, named=True)
    two = "module t(input clk, rst, a, b, output y); reg [4:0] n, m; assign y = ^n ^ ^m;\n"
    two += "always @(posedge clk) if (rst) begin n <= 0; m <= 0; end else begin n <= n + a; m <= m + b; end endmodule"
    rng = random.Random(1)
    given = {n: "".join(rng.choice("01") for _ in range(900)) for n in "ab"} | {
        "rst": "11" + "0" * 898,
        "clk": "0" * 900,
    }
    assert modules(two, given)[-1].clock > 0
    wide = COUNTER.replace("[2:0]", "[8:0]")
    with pytest.raises(SynthError, match="more than 256 states of 9 registers"):
        modules(wide, counter(600))


# A machine whose one-hot code has bits that nothing in the source is.
STATES = """
module t(input clk, rst, en, input a, b, output y, z);
  reg [1:0] s;
  always @(posedge clk)
    if (rst) s <= 0;
    else case (s)
      0: if (a) s <= 1;
      1: if (b) s <= 2; else s <= 0;
      2: s <= en ? 3 : 0;
      default: if (a & b) s <= 0;
    endcase
  assign y = s == 1;
  assign z = s == 3 && en;
endmodule
"""


def test_states_that_yosys_encoded_are_those_of_the_source(measured, tmp_path):
    """Their registers bear the name of the source's and hold other bits."""
    netlist = flow.netlists(STATES, "t", build=tmp_path)[0]["t"]["netlist"]
    assert netlist["encoded"] == {"s": {"00": "---1", "10": "--1-", "01": "-1--", "11": "1---"}}
    assert any(n in ("s[0]", "s[1]") for n in netlist["registers"].values())
    rng, s, seen = random.Random(1), 0, []
    bits = {
        n: "1" + "0" * 199 if n == "rst" else "".join(rng.choice("01") for _ in range(200)) for n in ("rst", *"abe")
    }
    for rst, a, b, e in zip(*(map(int, v) for v in bits.values()), strict=True):
        seen.append(s)
        s = 0 if rst else [a, 2 * b, 3 * e, 3 * (1 - a * b)][s]
    given = {"clk": "1" * 200, "rst": bits["rst"], "a": bits["a"], "b": bits["b"], "en": bits["e"]}
    given |= {"s_0": "".join(str(x & 1) for x in seen), "s_1": "".join(str(x >> 1) for x in seen)}
    assert measured(STATES, recording(**given)).modules[-1].clock > 0


def test_missing_signal(measured):
    given = counter(20)
    del given["a"]
    with pytest.raises(SynthError, match="t: 1 signals were not recorded, a among them"):
        measured(COUNTER, recording(**given))


def test_nothing_moves(measured):
    with pytest.raises(SynthError, match="t: nothing moves in the recording"):
        measured(COUNTER, recording(**counter(20, "0") | {"a": "0" * 20}))


RAM = """
module t(input clk, re, we, input [5:0] a, input [15:0] d, output [15:0] y);
  reg [15:0] mem [0:63], q;
  always @(posedge clk) begin if (we) mem[a] <= d; if (re) q <= mem[a]; end
  assign y = ~q;
endmodule
"""


def test_memory_accesses(measured):
    zero = "0" * 9
    q = {f"q_{i}": zero for i in range(16)} | {f"d_{i}": zero for i in range(16)} | {f"a_{i}": zero for i in range(6)}
    p = measured(RAM, recording(clk=zero, re="011100000", we="000011110", **q))
    (m,) = p.modules
    memory = MemoryMacro("mem", 16, 64, 1, 1)
    reads, writes = m.accesses[memory]
    assert (reads * 8, writes * 8) == (3, 4)
    ram = Sram(64, 16)
    value = (ram.read_energy.value * 7 / 8 * 0.8) + ram.leakage.value / 1000
    assert p.memory_mw.value == pytest.approx(value)


def test_supply_and_node():
    """SKY130's inverter at its supply, and what Stillmaker and Baas (2017, table 5) have from 7 to 14 nm."""
    assert power.pin_energy(130, 1.8) == pytest.approx(2.302 * 1.8**2, rel=0.005)
    fits = [
        a * v * v + b * v + c for v, a, b, c in ((0.8, 0.2363, -0.09675, 0.02239), (0.7, 0.1776, -0.09097, 0.02447))
    ]
    assert power.pin_energy(14) / power.pin_energy(7) == pytest.approx(fits[0] / fits[1], rel=0.15)
    factors = [power.pin_energy(n) for n in (7, 14, 16, 28, 45, 130)]
    assert factors == sorted(factors)


def test_library_without_power_tables(measured, tmp_path):
    path = tmp_path / "plain.lib"
    path.write_text(EMBEDDED.read_text())
    with pytest.raises(SynthError, match=r"plain.lib: cell \w+ has no leakage; use a library with power") as e:
        measured(COUNTER, recording(**counter(40)), [path])
    assert "\n" not in str(e.value)
    path.write_text(path.read_text().replace("area :", "cell_leakage_power : 1; area :"))
    with pytest.raises(SynthError, match=r"plain.lib: cell \w+ has no internal_power tables"):
        measured(COUNTER, recording(**counter(40)), [path])
    path.write_text(path.read_text().replace('leakage_power_unit : "1nW"', 'leakage_power_unit : "1 horse"'))
    with pytest.raises(SynthError, match="leakage_power_unit .* is not a power"):
        measured(COUNTER, recording(**counter(40)), [path])


POWERED = """library (p) { time_unit : "1ps"; capacitive_load_unit (1, ff); leakage_power_unit : "1nW"; nom_voltage : 2;
  power_lut_template (l) { variable_1 : total_output_net_capacitance; index_1 ("0, 10"); }
  cell (G) { area : 1; cell_leakage_power : 3;
    pg_pin (VSS) { pg_type : primary_ground; }
    pin (A) { direction : input; capacitance : 2;
      internal_power () { when : "!B"; rise_power (scalar) { values ("7"); } fall_power (scalar) { values ("9"); } } }
    pin (B) { direction : input; capacitance : 4;
      internal_power () { when : "A"; rise_power (scalar) { values ("20"); } fall_power (scalar) { values ("30"); } }
      internal_power () { rise_power (scalar) { values ("40"); } fall_power (scalar) { values ("50"); } } }
    pin (Y) { direction : output; function : "A B";
      internal_power () { related_pin : "A"; rise_power (l) { values ("1, 3"); } fall_power (l) { values ("5, 5"); } }
      internal_power () { related_pin : "B"; rise_power (l) { values ("2, 4"); } fall_power (l) { values ("7, 7"); } }
      internal_power () { related_pin : "A"; related_pg_pin : VSS; rise_power (l) { values ("90, 90"); } }
    } } }"""


def test_liberty_tables_by_hand(tmp_path):
    """Two AND gates in a row: every figure from the tables above, those of the ground pin left out."""
    path = tmp_path / "p.lib"
    path.write_text(POWERED)
    gates, volts = cells.load(load([EMBEDDED, path], tmp_path), {"G"})
    netlist = {
        "ports": {n: ["input", [i]] for n, i in (("a", 2), ("b", 3), ("c", 4))},
        "cells": [["u", "G", {"A": [2], "B": [3], "Y": [5]}], ["v", "G", {"A": [5], "B": [4], "Y": [6]}]],
        "names": {},
        "registers": {},
        "encoded": {},
        "memories": {},
    }
    circuit = Circuit("t", netlist, gates)
    activity = circuit.evaluate(recording(a="00111", b="01101", c="11011"), np.arange(5))
    module = power.Prices(circuit, gates, volts, slew=0.0).module([activity], 1, {}, 1.0)
    # u is 0 0 1 0 1 and v 0 0 0 0 1; u rises once while c is 0.
    assert module.toggles == (1 + 3 + 2 + 3 + 1) / 4
    assert module.switching == pytest.approx((1 * 2 + 3 * 4 + 2 * 4 + 3 * 2) / 2 * 2**2 / 4)
    u = 2 * (1.5 + 0.2 * 2) + 6  # mean of the two inputs' tables, at a load of 2
    b = 40 + 30 + 20  # rises while A is 0, falls and rises while it is 1
    assert module.internal == pytest.approx((u + 1.5 + 7 + b + 30 + 40) / 4)
    assert module.leakage == 6


def gate_level(netlist: dict, rtl: Emitted) -> Emitted:
    """A mapped netlist of the embedded library's cells as Verilog, its nets in one vector `n`."""
    functions = {c: re.search(rf'cell \({c}\) .*?function : "(.*?)"', EMBEDDED.read_text(), re.S)[1] for c in CELLS}
    ports = [(n, d, bits) for n, (d, bits) in netlist["ports"].items()]
    size = max(b for *_, pins in netlist["cells"] for bits in pins.values() for b in bits if isinstance(b, int)) + 1

    def net(bit) -> str:
        return f"n[{bit}]" if isinstance(bit, int) else f"1'b{int(bit == '1')}"

    lines = [f"  {d} [{len(bits) - 1}:0] {n};" for n, d, bits in ports] + [f"  wire [{size - 1}:0] n;"]
    for name, direction, bits in ports:
        for i, bit in enumerate(bits):
            pair = (f"{name}[{i}]", net(bit))
            lines.append("  assign {} = {};".format(*(pair if direction == "output" else pair[::-1])))
    for k, (_, cell, pins) in enumerate(netlist["cells"]):
        nets = {p: net(bits[0]) for p, bits in pins.items()}
        if cell == "DFF":
            lines.append(f"  reg r{k}; always @(posedge clk) r{k} <= {nets['D']}; assign {nets['Q']} = r{k};")
        else:
            text = re.sub(r"[A-Z]", lambda m, nets=nets: nets[m[0]], functions[cell])
            lines.append(f"  assign {nets['Y']} = {text};")
    head = f"module {rtl.top}({', '.join(n for n, *_ in ports)});\n"
    return replace(rtl, verilog=head + "\n".join(lines) + "\nendmodule\n")


CELLS = re.findall(r"cell \((\w+)\)", EMBEDDED.read_text())


def test_toggles_equal_those_of_the_gates_in_verilator(tmp_path):
    """The HCU's gates in its own bench do what its source does, and every net of them moves as often as evaluated."""
    small = HcuParams(n_h=1, n_w=2, n_hp=4, clusters=2, n_ctx=1, tile=1, frame=1, token_bits=3)
    rtl = emit("hcu", small)
    netlists, library = flow.netlists(rtl.verilog, "hcu", macro_bits=1 << 30, build=tmp_path, gated=0, unread=())
    circuit = power.circuits(netlists, library)["hcu"]
    netlist = netlists["hcu"]["netlist"]
    assert len(netlist["cells"]) > 200
    beats = stream(small, 3, 60)
    want = [{k: v for k, v in b.items() if k != "hash"} for b in golden(small, 1, beats).out]

    def play(e):
        assert run(e, small, beats, 1)["beats"] == want

    source = recordings(rtl, {"hcu": circuit.needs}, play)["hcu"][0]
    registers = [n for _, names, _ in circuit.registers for n in names if n not in circuit.codes]
    assert not source.words(registers, np.arange(1)).any(), "a recording starts from zeros"
    nets = [n for n in circuit.rows if isinstance(n, int)]
    gates = recordings(gate_level(netlist, rtl), {"hcu": [f"n[{n}]" for n in nets]}, play)["hcu"][0]
    cycles = np.arange(20, len(gates.samples))
    activity = circuit.evaluate(source, cycles)
    seen = gates.words([f"n[{n}]" for n in nets], cycles)
    own = count((seen ^ after(seen)) & activity.follows)
    assert own.sum() > 2_000
    assert (activity.counts().toggles[[circuit.rows[n] for n in nets]] == own).all()


def test_recorder_of_chosen_instances():
    text = "module leaf(input clk, d, output reg q);\n  always @(posedge clk) q <= d;\nendmodule\n"
    e = recorded(Emitted(text, "leaf", {}), {"leaf": ["d", "q"]}, {"leaf": ["u3"]})
    assert 'place.substr(place.len() - 3, place.len() - 1) == ".u3"' in e.verilog
    assert 'place.substr(place.len() - 8, place.len() - 1) == ".u3.leaf"' in e.verilog
    assert "30'b0, \\q ,\n    \\d }" in e.verilog


def test_command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    got = vrex("size", "power", "cluster_set", "--preset", "tiny", "--json")
    unit = json.loads(got.stdout)["units"]["cluster_set"]
    assert unit["total_mw"]["low"] < unit["total_mw"]["value"] < unit["total_mw"]["high"]
    assert unit["pj_per_cycle"]["all"] == pytest.approx(unit["total_mw"]["value"] / 800 * 1000)
    assert unit["modules"][0]["recorded"] == 9  # a run for each table


@pytest.mark.skipif(len(ASAP7) != 5, reason="no ../shared/pdk beside the project: put ASAP7 there")
def test_asap7_register(measured):
    """A register that shifts 01: CLK and QN of DFFHQNx1 as its tables at a slew of a chain say, about 1 fJ and 0.6."""
    text = "module t(input clk, d, output reg q); always @(posedge clk) q <= d; endmodule"
    p = measured(text, recording(clk="0" * 66, d="01" * 33, q="0" + ("01" * 33)[:65]), ASAP7)
    (m,) = p.modules
    assert p.library_node == 7
    assert 0.3 < m.clock < 1.2
    assert 0.3 < m.internal < 1.5
    assert m.leakage == pytest.approx(0.2297 + 0.049, abs=0.1)
