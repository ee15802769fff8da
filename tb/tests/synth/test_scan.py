"""Scan chains: equal netlists, patterns that pass through, and faults as found by trying every pattern."""

import json
import subprocess
from collections import Counter
from functools import cache
from itertools import product

import numpy as np
import pytest
from typer.testing import CliRunner

from openvrex.golden.function_params import ParamError
from openvrex.hdl import emit
from openvrex.hdl.emit import Emitted, params_of
from openvrex.hdl.params import preset
from openvrex.scripts.main import app
from openvrex.synth import faults, flow, opensta, scan
from openvrex.synth.liberty import EMBEDDED, SynthError, clock_gate, evaluate
from openvrex.tb.formal.scan_proof import prove
from openvrex.tb.formal.verilog_equivalence import UnequalError
from openvrex.tb.library.runner import verilator_env
from tb.tests.by_day import by_day
from tb.tests.synth.cell_libraries import ASAP7, SKY130, needs_pdk

UNITS = "cluster_set", "hcu", "wtu", "kvmu", "table_port", "motion_mask", "vpe", "retriever"
LIBRARIES = {"embedded": None, "ASAP7": ASAP7, "SKY130": SKY130}
# Flip-flops of all kinds: behind a gate, with a reset, plain.
SMALL = """
module t(input clk, rst, en, input [1:0] a, output reg [1:0] held, output reg last, output y);
  always @(posedge clk) begin
    if (en) held <= a ^ held;
    if (rst) last <= 0; else last <= held[0] & a[1];
  end
  assign y = last ? a[0] : held[1];
endmodule
"""
# Shifts words of standard input in, and prints what comes out before each edge.
MAIN = """
#include <cstdio>
#include "Vtop.h"
int main() {
  Vtop top;
  top.scan_enable = 1;
  for (int word; std::scanf("%d", &word) == 1;) {
    top.scan_in = word;
    top.clk = 0;
    top.eval();
    std::printf("%d\\n", top.scan_out);
    top.clk = 1;
    top.eval();
  }
}
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A folder of results for all tests, which read each library once."""
    return tmp_path_factory.mktemp("build")


@pytest.fixture
def scanned(build):
    """A module `t` with chains, and its library."""

    def made(text: str, chains: int = 1, **options):
        done, library = flow.netlists(text, "t", build=build, **options)
        return scan.insert("t", done["t"]["netlist"], library, chains), library

    return made


@pytest.mark.parametrize("unit", by_day(UNITS, "cluster_set"))
@pytest.mark.parametrize(
    "library", ["embedded", pytest.param("ASAP7", marks=needs_pdk), pytest.param("SKY130", marks=needs_pdk)]
)
def test_scan_changes_nothing_until_it_shifts(build, unit, library):
    """ABC compares the netlists with and without, and what each flip-flop takes while the chains shift."""
    equal = prove(unit, params_of(unit, preset("tiny")), 3, liberty=LIBRARIES[library], build=build)
    assert equal.registers
    assert equal.outputs >= 4 * equal.registers


def test_faults_of_a_netlist_with_scan_are_refuted(build):
    """A multiplexer the wrong way round, a chain in another order, a gate that stays shut, one that is always open."""
    unit = "cluster_set", params_of("cluster_set", preset("tiny"))

    def pins(netlist: dict, kind: str) -> list[dict]:
        return [pins for name, other, pins in netlist["cells"] if other == kind and (kind == "ICG" or "$scan" in name)]

    def around(netlist: dict) -> None:
        mux = pins(netlist, "MUX2")[0]
        mux["A"], mux["B"] = mux["B"], mux["A"]

    def order(netlist: dict) -> None:
        one, other = pins(netlist, "MUX2")[:2]
        one["B"], other["B"] = other["B"], one["B"]

    def gate(bit: str):
        return lambda netlist: pins(netlist, "ICG")[0].update(SE=[bit])

    for edit, named in ((around, "next|shifts"), (order, "shifts"), (gate("0"), "shifts"), (gate("1"), "next")):
        with pytest.raises(UnequalError, match=named):
            prove(*unit, 2, edit, build=build)


def models(library, kinds: set[str]) -> str:
    """Verilog of cells, from their functions in Liberty."""
    out, signs = [], str.maketrans("*+", "&|")
    for kind in sorted(kinds):
        cell = library.cells[kind]
        pins = {g.args[0]: g.attributes for g in cell.group.of("pin") if g.attributes.get("direction") != "internal"}
        lines = [f"{a['direction']} {p};" for p, a in pins.items()]
        lines += [f"assign {p} = {a['function'].translate(signs)};" for p, a in pins.items() if "function" in a]
        for flop in cell.group.of("ff"):
            one, two = flop.args
            edge, coming = (flop.attributes[k].translate(signs) for k in ("clocked_on", "next_state"))
            lines.append(f"reg {one}; wire {two} = !{one}; always @(posedge {edge}) {one} <= {coming};")
        if gate := clock_gate(cell.group):
            opens = " | ".join((gate.enable, *gate.tests))
            lines.append(f"reg held; always @* if (!{gate.clock}) held = {opens};")
            lines.append(f"assign {gate.out} = {gate.clock} & held;")
        out.append(f"module {kind}({', '.join(pins)});\n" + "\n".join(lines) + "\nendmodule\n")
    return "".join(out)


def shifted(top: str, found: scan.Scan, library, pattern: list[int], folder) -> list[int]:
    """What `scan_out` shows before each clock edge while a pattern goes in."""
    text, *_ = opensta.verilog(top, found.netlist, named=True)
    kinds = {kind for _, kind, _ in found.netlist["cells"]}
    (folder / "t.v").write_text(models(library, kinds) + text)
    (folder / "main.cpp").write_text(MAIN)
    command = ["verilator", "--cc", "--exe", "--build", "-Wno-fatal", "-Wno-lint", "--top-module", top]
    command += ["--prefix", "Vtop", "-CFLAGS", "-O0", "-MAKEFLAGS", "VM_PARALLEL_BUILDS=0", "t.v", "main.cpp"]
    built = subprocess.run(command, cwd=folder, env=verilator_env(), check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    words = " ".join(map(str, pattern))
    run = subprocess.run([folder / "obj_dir/Vtop"], input=words, check=True, capture_output=True, text=True)
    return [int(line) for line in run.stdout.split()]


@pytest.mark.parametrize(
    ("unit", "library"),
    [
        ("t", "embedded"),
        pytest.param("t", "ASAP7", marks=needs_pdk),
        ("hcu", "embedded"),
        pytest.param("hcu", "SKY130", marks=needs_pdk),
    ],
)
def test_a_pattern_comes_back_after_the_length_of_a_chain(build, tmp_path, unit, library):
    """In Verilator: chains of different lengths, through flip-flops with and without a clock gate."""
    text = SMALL if unit == "t" else emit.emit(unit, params_of(unit, preset("tiny"))).verilog
    done, cells = flow.netlists(text, unit, LIBRARIES[library], build=build, gated=2)
    found = scan.insert(unit, done[unit]["netlist"], cells, 2)
    lengths = [len(chain) for chain in found.chains]
    assert max(lengths) - min(lengths) == len({*lengths}) - 1
    pattern = np.random.default_rng(3).integers(0, 4, 3 * max(lengths)).tolist()
    out = shifted(unit, found, cells, pattern, tmp_path)
    assert len(out) == len(pattern)
    for i, length in enumerate(lengths):
        bits = [[word >> i & 1 for word in words] for words in (pattern, out)]
        assert bits[1][length:] == bits[0][:-length]


def by_trial(netlist: dict, library) -> Counter:
    """How many faults have each set of patterns that detect them, by playing every pattern on every fault."""
    functions, gates, flops = {}, {}, {}
    for name, kind, pins in netlist["cells"]:
        group = library.cells[kind].group
        given = {p: bits[0] for p, bits in pins.items()}
        inputs = [g.args[0] for g in group.of("pin") if g.attributes["direction"] == "input"]
        own = [p for p in inputs if p not in ("CK",)]
        if gate := clock_gate(group):
            gates[given[gate.out]] = name, "EN | SE", own, given
        elif group.of("ff"):
            flops[name] = "D", own, given
        else:
            functions[given["Y"]] = name, next(iter(library.cells[kind].functions)), own, given
    ports = [bit for n, (d, bits) in netlist["ports"].items() if d == "input" and n != "clk" for bit in bits]
    outs = [
        (f"port {n}{i}", bit)
        for n, (d, bits) in netlist["ports"].items()
        if d == "output"
        for i, bit in enumerate(bits)
    ]
    free = [*ports, *flops]
    shows = {given["Q"]: name for name, (_, _, given) in flops.items()}

    @cache
    def value_of(text: str, *bits: tuple[str, int]) -> int:
        return evaluate(text, dict(bits)) & 1

    def play(bits: dict, stuck: tuple, value: int) -> list[int]:
        def net(n):
            if ("net", n) == stuck:
                return value
            if n in ("0", "1"):
                return int(n)
            if n in functions:
                name, text, own, given = functions[n]
                return value_of(text, *((p, pin(name, p, given)) for p in own))
            return bits[shows.get(n, n)]

        def pin(name, p, given):
            return value if (name, p) == stuck else net(given[p])

        seen = [value if (label, "") == stuck else net(n) for label, n in outs]
        for name, (*_, given) in flops.items():
            gate = gates.get(given["CK"])
            opened = gate is None or any(pin(gate[0], p, gate[3]) for p in gate[2])
            seen.append(pin(name, "D", given) if opened else bits[name])
        return seen

    sites = [("net", n) for n in (*ports, *functions, *shows)]
    sites += [(name, p) for name, _, own, _ in (*functions.values(), *gates.values()) for p in own]
    sites += [(name, "D") for name in flops] + [(label, "") for label, _ in outs]
    every = [dict(zip(free, bits, strict=True)) for bits in product((0, 1), repeat=len(free))]
    good = [play(bits, ("", ""), 0) for bits in every]
    found: Counter = Counter()
    for site, value in product(sites, (0, 1)):
        found[
            frozenset(
                str(sorted(map(str, b.items()))) for b, g in zip(every, good, strict=True) if play(b, site, value) != g
            )
        ] += 1
    return found


@pytest.fixture
def small(scanned):
    """`SMALL` with a chain and a gate, and with two cells that are redundant: y | (y & last)."""
    found, library = scanned(SMALL, gated=2)
    netlist = found.netlist
    assert Counter(kind for _, kind, _ in netlist["cells"])["ICG"] == 1
    (y,), (last,) = netlist["ports"]["y"][1], netlist["ports"]["last"][1]
    top = max(scan.nets(netlist))
    netlist["cells"] += [["one", "AND2", {"A": [y], "B": [last], "Y": [top + 1]}]]
    netlist["cells"] += [["two", "OR2", {"A": [y], "B": [top + 1], "Y": [top + 2]}]]
    netlist["ports"]["y"][1][0] = top + 2
    return netlist, library


def test_faults_are_seen_as_by_trial(small):
    """Every fault under every pattern, one by one."""
    circuit = faults.Netlist(*small)
    every = [dict(zip(circuit.inputs, bits, strict=True)) for bits in product((0, 1), repeat=len(circuit.inputs))]
    found: Counter = Counter()
    values = [circuit.values(given, 1) for given in every]
    names = {net: net.removeprefix("state ") if isinstance(net, str) else net for net in circuit.inputs}
    for fault in circuit.faults:
        seen = [g for g, v in zip(every, values, strict=True) if circuit.seen(fault, v, 1)]
        found[frozenset(str(sorted(map(str, {names[n]: b for n, b in g.items()}.items()))) for g in seen)] += 1
    assert found == by_trial(*small)
    assert found[frozenset()] > 0, "the redundant cells have faults that nothing shows"


@pytest.mark.parametrize("rounds", [(), (64, 192)])
def test_coverage_is_as_by_trial(small, monkeypatch, rounds):
    """Without random patterns SAT finds every test; the rest it proves untestable."""
    monkeypatch.setattr(faults, "ROUNDS", rounds)
    found, tried = faults.coverage(*small), by_trial(*small)
    assert (found.faults, found.untestable, found.undetected) == (tried.total(), tried[frozenset()], 0)
    assert found.by_random + found.by_sat == found.faults - found.untestable
    assert (found.by_random > 0, found.coverage) == (bool(rounds), 1)


def test_what_the_solver_leaves_is_undetected(small, monkeypatch):
    monkeypatch.setattr(faults, "ROUNDS", ())
    every = faults.Netlist(*small).faults
    monkeypatch.setattr(faults, "_ask", lambda circuit, asked: [("UNDECIDED", {})] * len(asked))
    found = faults.coverage(*small)
    assert (found.undetected, found.by_sat, found.coverage) == (len(every), 0, 0)


def test_the_command_writes_netlist_and_chains(tmp_path, monkeypatch):
    monkeypatch.setattr(emit, "emit", lambda unit, params: Emitted(SMALL, "t", {}))
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke(app, ["size", "scan", "hcu", "--chains", "2", "--gated", "2", "-o", "out", "--json"])
    assert run.exit_code == 0, run.output
    report = json.loads(run.stdout)
    assert (report["flip_flops"], report["chains"], report["length"], report["undetected"]) == (3, 2, 2, 0)
    assert report["kge"] > report["kge_without"]
    text, chains = (tmp_path / "out/t.v").read_text(), json.loads((tmp_path / "out/chains.json").read_text())
    assert "input [1:0] scan_in;" in text
    assert sorted(signal for chain in chains for _, signal in chain) == ["held[0]", "held[1]", "last"]
    assert all(f"DFF {instance} (" in text for chain in chains for instance, _ in chain)
    run = CliRunner().invoke(app, ["size", "scan", "hcu", "--chains", "4", "--gated", "2"])
    assert (run.exit_code, "chains=4: must be 1 to 3, the flip-flops of t" in run.stderr) == (2, True)
    run = CliRunner().invoke(app, ["size", "scan", "hcu"])
    assert "100.00 % of the testable faults" in run.stdout, run.output


def test_what_has_no_chains_is_told(scanned, tmp_path):
    with pytest.raises(ParamError, match="chains=0: must be 1 to 3"):
        scanned(SMALL, 0)
    with pytest.raises(SynthError, match="t: has a port scan_in of its own"):
        scanned(SMALL.replace("rst", "scan_in"))
    with pytest.raises(SynthError, match="has neither a scan flip-flop like DFF nor a multiplexer"):
        scanned(SMALL, dont_use=("MUX2",))
    text = EMBEDDED.read_text()
    assert "clock_gate_test_pin : true;" in text
    (tmp_path / "a.lib").write_text(text.replace("clock_gate_test_pin : true;", ""))
    with pytest.raises(SynthError, match=r"a.lib: has no clock gate with a test pin; map without \(--gated 0\)"):
        scanned(SMALL, liberty=[tmp_path / "a.lib"], gated=2)
