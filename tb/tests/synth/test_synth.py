"""Areas of circuits small enough to count by hand, accounting of memories, and every fault a user can cause."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openvrex.hdl import emit, emit_cache, params
from openvrex.hdl.execution.core import Core
from openvrex.hdl.execution.lxe import Lxe
from openvrex.synth import mapping, table3
from openvrex.synth.flow import MemoryMacro, synthesise
from openvrex.synth.liberty import EMBEDDED, SynthError, load, truth_table
from openvrex.synth.sram import Sram
from openvrex.synth.technology import NODES
from tb.tests.commands import refuses, tried, vrex
from tb.tests.synth.cell_libraries import ASAP7, RAM, SKY130, needs_pdk

NAND = "module t(input a, b, output y); assign y = ~(a & b); endmodule"
REG8 = "module t(input clk, input [7:0] d, output reg [7:0] q); always @(posedge clk) q <= d; endmodule"
CLEARED = """
module t(input clk, c, r, d, output reg q);
  always @(posedge clk, posedge c) if (c) q <= 0; else q <= d;
endmodule
"""
SMALL_RAM = """
module t(input clk, we, input wa, ra, input [3:0] d, output [3:0] q);
  reg [3:0] mem [0:1];
  always @(posedge clk) if (we) mem[wa] <= d;
  assign q = mem[ra];
endmodule
"""
CHECKED = """
module t(input clk, input [7:0] a, b, output reg [7:0] y);
  always @(posedge clk) y <= a & b;
`ifdef CHECK
  reg [15:0] product, seen;
  always @(posedge clk) begin
    product <= a * b; seen <= seen + 1;
    assert (product != 16'd77);
    if (seen == 9) $display("%d", seen);
  end
`endif
endmodule
"""


@pytest.fixture
def area(tmp_path):
    """`synthesise` of module t, its results kept in a folder of the test's own."""
    return lambda text, *a, **k: synthesise(text, k.pop("top", "t"), *a, build=tmp_path / "build", **k)


def test_gates_by_hand(area):
    a = area(NAND)
    assert (a.cells, a.comb_ge, a.reg_ge, a.total_ge) == ({"NAND2": 1}, 1.0, 0.0, 1.0)
    assert not a.microns
    xors = area("module t(input [3:0] a, b, output [3:0] y); assign y = a ^ b; endmodule")
    assert xors.cells in ({"XOR2": 4}, {"XNOR2": 4, "INV": 4})
    assert xors.comb_ge == pytest.approx(8)
    assert area("module t(output y); assign y = 1; endmodule").total_ge == 0
    assert area("module t; endmodule").total_ge == 0


def test_registers_by_hand(area):
    a = area(REG8)
    assert (a.cells, a.registers, a.comb_ge) == ({"DFF": 8}, 8, 0)
    assert a.reg_ge == pytest.approx(8 * 16 / 3, abs=1e-3)


def test_synchronous_reset_and_enable_become_logic(area):
    text = REG8.replace("input clk,", "input clk, rst, en,").replace("q <= d;", "if (rst) q <= 0; else if (en) q <= d;")
    a = area(text)
    assert a.cells["DFF"] == a.registers == 8
    # A bit needs a 2:1 choice and a gate for the reset; more than a MUX2 and an AND2 each would be waste.
    assert 8 * 4 / 3 < a.comb_ge <= 8 * (7 + 4) / 3


def test_memory_is_accounted_beside_the_logic(area):
    a = area(RAM)
    assert a.memories == (MemoryMacro("left.mem", width=16, depth=64, read_ports=1, write_ports=1),)
    assert a.memory_bits == 1024
    assert a.cells == {"NAND2": 1}, "the read register belongs to the memory"


@pytest.mark.parametrize(
    ("address", "read", "shared"),
    [
        ("a", "!we", True),
        ("b", "!we", False),  # two addresses
        ("a", "1", False),  # one address, but read while it is written
    ],
)
def test_single_port_of_a_memory(area, address, read, shared):
    """One address, and no cycle that reads and writes: a macro with the six-transistor cell."""
    a = area(f"""
module t(input clk, en, we, input [5:0] a, b, input [15:0] d, output reg [15:0] q);
  reg [15:0] mem [0:63];
  always @(posedge clk) begin
    if (en && we) mem[a] <= d;
    if (en && {read}) q <= mem[{address}];
  end
endmodule""")
    assert a.memories == (MemoryMacro("mem", 16, 64, 1, 1, shared=shared),)
    assert a.memories[0].macro(14) == Sram(64, 16, shared=shared)


def test_small_memory_is_built_of_registers(area):
    a = area(SMALL_RAM)
    assert (a.memories, a.registers) == ((), 8)
    b = area(SMALL_RAM, macro_bits=8)
    assert (b.memories, b.registers) == ((MemoryMacro("mem", 4, 2, 1, 1),), 0)


def test_constant_table_is_logic(area):
    values = [i * 37 % 256 for i in range(64)]
    head = "module t(input [5:0] a, output reg [7:0] y);"
    cases = "".join(f"{i}: y = {v};" for i, v in enumerate(values))
    words = "".join(f"rom[{i}] = {v};" for i, v in enumerate(values))
    for text in (
        f"{head} always @* case (a) {cases} endcase endmodule",
        f"{head} reg [7:0] rom [0:63]; initial begin {words} end always @* y = rom[a]; endmodule",
    ):
        a = area(text, macro_bits=1)
        assert a.memories == ()
        assert a.comb_ge > 20


def test_assertions_are_not_hardware(area):
    plain, checked = area(CHECKED), area("`define CHECK\n" + CHECKED)
    assert (plain.cells, plain.registers) == (checked.cells, 8)
    # The check would cost a multiplier if it were kept: an output in place of the assertion shows it.
    kept = CHECKED.replace("output reg [7:0] y", "output reg [7:0] y, output bad").replace("assert (", "if (")
    kept = kept.replace("16'd77);", "16'd77) ;").replace("`endif", "assign bad = product == 77;\n`endif")
    assert area("`define CHECK\n" + kept).comb_ge > 10 * plain.comb_ge


def test_result_is_kept_and_recalled(area, tmp_path, monkeypatch):
    first = area(REG8)
    monkeypatch.setattr(mapping, "_run", lambda *a: pytest.fail("ran again"))
    assert area(REG8) == first
    source = tmp_path / "t.v"
    source.write_text(REG8)
    assert area(source) == first
    monkeypatch.undo()
    assert area(REG8, macro_bits=7).cells == first.cells  # another option is another run
    kept = sorted((tmp_path / "build").glob("t-*.json"))
    assert len(kept) == 2
    for path in kept:
        path.write_text(path.read_text()[:50])
    assert area(REG8).cells == first.cells, "a damaged result is measured again"


def test_area_is_deterministic(area, tmp_path):
    text = "module t(input [7:0] a, b, output [15:0] y); assign y = a * b; endmodule"
    runs = [synthesise(text, "t", build=tmp_path / str(i)) for i in range(2)]
    assert runs[0].cells == runs[1].cells


@pytest.mark.parametrize(
    ("text", "top", "message"),
    [
        (NAND, "u", "u: no such module; the source has t"),
        (NAND, "t; shell ls", "must be a plain Verilog name"),
        ("module t(\n", "t", "Verilog line 1: syntax error"),
        ("module t(input a, output y); sub s(a, y); endmodule", "t", "`sub. referenced in module"),
        ("module t(input e, d, output reg q); always @* if (e) q = d; endmodule", "t", r"openvrex.lib has no latch \("),
        (CLEARED, "t", r"has no flip-flop with asynchronous reset \(.*make it an edge-triggered flip-flop with a sync"),
        (CLEARED.replace("q <= 0", "q <= 1"), "t", "has no flip-flop with asynchronous set "),
        (CLEARED.replace("q <= 0", "q <= r"), "t", "has no flip-flop with asynchronous load "),
        (Path("absent.v"), "t", "absent.v: cannot read the Verilog file: No such file"),
    ],
)
def test_bad_design(area, text, top, message):
    with pytest.raises(SynthError, match=message) as e:
        area(text, top=top)
    assert "\n" not in str(e.value)


def without(*names: str) -> str:
    """The embedded library less some cells."""
    text = EMBEDDED.read_text()
    for name in names:
        start = text.index(f"  cell ({name}) {{")
        text = text[:start] + text[text.index("\n  }\n", start) + 5 :]
    return text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.lib: the Liberty file is empty"),
        ("hello", "x.lib: not a Liberty file"),
        ("library (l) { }", "x.lib: the Liberty file has no cells"),
        (EMBEDDED.read_text()[:-3985], "x.lib: broken Liberty file: .* cut off"),
        (EMBEDDED.read_text() + "}", "x.lib, line 503: broken Liberty file: a closing brace too many"),
        (EMBEDDED.read_text().replace("area : 1.0000", "area : wide"), "cell BUF: area 'wide' is not a number"),
        (without("INV"), "x.lib: no usable inverter cell among 18"),
        (without("NAND2"), "no usable two-input NAND cell"),
        (without("DFF"), "no usable flip-flop cell"),
        (without("DFF").replace("cell (INV) {", "cell (INV) { dont_use : true;"), "no usable inverter"),
    ],
)
def test_bad_library(area, tmp_path, text, message):
    path = tmp_path / "x.lib"
    path.write_text(text)
    with pytest.raises(SynthError, match=message) as e:
        area(NAND, [path])
    assert "\n" not in str(e.value)


def test_library_files(area, tmp_path):
    text = EMBEDDED.read_text()
    (tmp_path / "flops in.lib").write_text("library (f) {" + text[text.index("  cell (DFF)") :])
    (tmp_path / "gates.lib.gz").write_bytes(gzip.compress(without("DFF", "ICG").encode()))
    parts = [tmp_path / "gates.lib.gz", tmp_path / "flops in.lib"]
    head = text[text.index("library (") : text.index("  /* 2T")].replace("(openvrex)", "(f)")
    parts[1].write_text(head + text[text.index("  cell (DFF)") :])
    a = area(REG8, parts)
    assert (a.cells, a.microns, a.library) == ({"DFF": 8}, True, ("gates.lib.gz", "flops in.lib"))
    with pytest.raises(SynthError, match="gates.lib.gz: no usable flip-flop"):
        area(REG8, parts[:1])
    with pytest.raises(SynthError, match="cell AND2 is in another library file too"):
        area(REG8, [*parts, EMBEDDED])
    with pytest.raises(SynthError, match="absent.lib: cannot read the Liberty file: No such file"):
        area(REG8, [tmp_path / "absent.lib"])
    (tmp_path / "cut.lib.gz").write_bytes(parts[0].read_bytes()[:-20])
    with pytest.raises(SynthError, match="cut.lib.gz: damaged gzip file"):
        area(REG8, [tmp_path / "cut.lib.gz"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: "\n", "not a Liberty file"),
        (
            lambda s: s.replace("cell (NAND3) {", 'cell (NAND3) { a b : : ;;; "'),
            'bad.lib, line 4..: broken Liberty file: " is not closed',
        ),
        (lambda s: s.replace('"!(A & B & C)"', '"!(A & & C"'), r"t: bad.lib cannot be read: Mio_ParseFormula\(\)"),
        (lambda s: s.replace('"1, 33, 65", "1, 33, 65"', '"1, x, 65"', 1), "t: bad.lib cannot be read: .*Assertion"),
        (lambda s: s.replace("cell (BUF)", "cell (INV)"), "bad.lib: cell INV stands in it twice; keep one"),
        (lambda s: s.replace("clocked_on", "clock"), r"t: bad.lib has no flip-flop \("),
        (lambda s: s.replace("area : 1.3333", "size : 1"), "bad.lib: cell .* has no area"),
    ],
)
def test_broken_library(area, tmp_path, change, message):
    (tmp_path / "bad.lib").write_text(change(EMBEDDED.read_text()))
    text = "module t(input clk, input [2:0] a, output reg y); always @(posedge clk) y <= ~&a; endmodule"
    with pytest.raises(SynthError, match=message) as e:
        area(text, [tmp_path / "bad.lib"])
    assert "\n" not in str(e.value)
    assert str(tmp_path / "vrex") not in str(e.value)


def test_counters_are_no_area(tmp_path):
    """Performance counters of a real unit: 32 flip-flops each, and the adders before them."""
    made = emit.emit("cluster_set", emit.params_of("cluster_set", params.preset("tiny")))
    counters = made.manifest["counters"]
    with_, without = (synthesise(made.verilog, made.top, build=tmp_path, unread=u) for u in ((), ("perf",)))
    assert with_.registers - without.registers == 32 * len(counters)
    assert with_.comb_ge - without.comb_ge > 32 * len(counters)
    assert without == synthesise(made.verilog, made.top, build=tmp_path), "which is the default"
    # A port of that name in a leaf is not the top's.
    text = "module g(input a, output perf); assign perf = ~a; endmodule\n"
    text += "module t(input a, output y, perf); g u(a, y); assign perf = a & y; endmodule"
    assert synthesise(text, "t", build=tmp_path, leaves=("g",)).cells == {"INV": 1}
    assert synthesise(text, "t", build=tmp_path, leaves=("g",), unread=()).cells == {"INV": 1, "AND2": 1}
    assert synthesise(text, "t", build=tmp_path, leaves=("g",), unread=("g.perf",)).cells == {"AND2": 1}
    with pytest.raises(SynthError, match="output='a b': must be a plain Verilog name"):
        synthesise(text, "t", build=tmp_path, unread=("a b",))


def test_barred_cells_are_not_used(area):
    text = "module t(input a, b, output y); assign y = a ^ b; endmodule"
    assert "XOR2" in area(text).cells
    assert not any(n.startswith("X") for n in area(text, dont_use=("X*",)).cells)
    with pytest.raises(SynthError, match="no usable flip-flop"):
        area(text, dont_use=("DF*",))


@pytest.mark.parametrize(
    ("function", "table"),
    [
        ("!A", (1, 0)),
        ("(A B)'", (1, 1, 1, 0)),
        ("(!A) | (!B)", (1, 1, 1, 0)),
        ("(!A) + (!B)", (1, 1, 1, 0)),
        ("!(A1*A2)", (1, 1, 1, 0)),
        ("A ^ B & B", (0, 0, 1, 0)),
        ("A & B & C", None),
        ("1", None),
    ],
)
def test_truth_table(function, table):
    assert truth_table(function) == table


ADDERS = """
module cell_(input clk, input [7:0] a, b, output reg [7:0] s);
  reg [7:0] mem [0:63];
  always @(posedge clk) begin s <= a + mem[b[5:0]]; mem[a[5:0]] <= b; end
endmodule
module pair(input clk, input [7:0] a, b, output [7:0] s, output y);
  wire [7:0] x;
  cell_ left(clk, a, b, x);
  cell_ right(clk, x, b, s);
  assign y = ~(a[0] & b[0]);
endmodule
module t(input clk, input [7:0] a, b, output [7:0] s, output y, input u, v, output w);
  wire [7:0] p, q;
  wire m, n;
  pair one(clk, a, b, p, m);
  pair two(clk, p, b, q, n);
  cell_ last(clk, q, p, s);
  assign y = m ^ n;
  assign w = ~(u & v);
endmodule
"""


@pytest.mark.parametrize("leaves", [("pair", "cell_"), ("cell_", "pair")])
def test_leaves_are_mapped_once_and_counted(area, leaves, monkeypatch):
    one = area(ADDERS, top="cell_")
    ran = []
    run_ = mapping._run
    monkeypatch.setattr(mapping, "_run", lambda text, top, *a: ran.append(top) or run_(text, top, *a))
    a = area(ADDERS, leaves=leaves)
    assert sorted(ran) == sorted({*leaves, "t"})
    split = {leaf.name: leaf for leaf in a.leaves}
    assert {n: x.instances for n, x in split.items()} == {"cell_": 5, "pair": 2}
    assert split["cell_"].area.cells == one.cells
    glue = {"NAND2": 3, "XOR2": 1}  # one NAND in each pair and in the top
    assert a.cells == {n: 5 * one.cells.get(n, 0) + glue.get(n, 0) for n in one.cells | glue}
    assert a.total_area == pytest.approx(5 * one.total_area + 3 + 2)
    assert (a.registers, a.memory_bits) == (40, 5 * 512)
    assert a.memories == (MemoryMacro("cell_.mem", 8, 64, 1, 1, count=5),)
    assert a.timing.delay >= one.timing.delay
    assert a.report()["leaves"][0]["area"]["comb_ge"] == a.leaves[0].area.comb_ge
    ran.clear()
    assert area(ADDERS, leaves=leaves) == a
    # Another top with the same leaf maps that one no more.
    area(ADDERS.replace("m ^ n", "m & n"), leaves=leaves)
    assert ran == ["t"]


def test_leaf_costs_nothing_but_itself(area, monkeypatch):
    """64 multipliers as a leaf are read by the run of the top as black boxes."""
    rows = "".join(f"mul u{i}(a[{8 * i} +: 8], b, y[{16 * i} +: 16]);" for i in range(64))
    mul = "module mul(input [7:0] a, b, output [15:0] y); assign y = a * b; endmodule\n"
    text = f"{mul} module t(input [511:0] a, input [7:0] b, output [1023:0] y); {rows} endmodule"
    seen = {}
    run_ = mapping._run

    def counted(text, top, *options):
        done = run_(text, top, *options)
        seen[top] = done["cells"], done["netlist"]["cells"]
        return done

    monkeypatch.setattr(mapping, "_run", counted)
    a = area(text, leaves=("mul",))
    assert seen["t"][0] == {"mul": 64}
    assert len(seen["mul"][1]) == sum(a.leaves[0].area.cells.values())
    assert a.total_ge == pytest.approx(64 * area(mul, top="mul").total_ge)
    # Every multiplier loads `b`, which comes from a port: the path is one through a leaf.
    assert (a.timing.levels, a.timing.paths[0].steps[0].cell) == (1, "mul")


def test_fanout_to_leaves_is_buffered(area):
    """A register that 64 leaves read, and one that stands before a leaf alone."""
    leaf = "module g(input clk, x, output reg y); always @(posedge clk) y <= x; endmodule\n"
    rows = "".join(f"g u{i}(clk, {'p' if i else 'q'}, y[{i}]);" for i in range(65))
    body = f"reg p, q; always @(posedge clk) begin p <= a; q <= b; end {rows}"
    text = leaf + f"module t(input clk, a, b, output [64:0] y); {body} endmodule"
    a = area(text, leaves=("g",), effort="speed")
    assert a.cells["DFF"] == 67
    assert 64 / 10 <= a.cells["BUF"] <= 9, "no buffer has more than 10 pins, and no pin one of its own"
    path = a.timing.paths[0]
    assert (path.start, path.end.partition(".")[2]) == ("p", "x")
    assert max(s.delay for s in path.steps[1:]) == 3 + 10
    assert path.steps[0].delay <= 13 + 10


def test_what_is_no_leaf_is_flattened(area):
    flat, some = area(ADDERS), area(ADDERS, leaves=("cell_",))
    assert (flat.leaves, flat.registers, flat.memory_bits) == ((), 40, 5 * 512)
    assert [(x.name, x.instances) for x in some.leaves] == [("cell_", 5)]
    rest = some.total_ge - 5 * some.leaves[0].area.total_ge
    assert 2 < rest < 6, "the gates of both pairs and of the top"


@pytest.mark.parametrize(
    ("text", "leaves", "message"),
    [
        (ADDERS, ("other",), "t: leaf other is not below it"),
        (ADDERS, ("t",), "t: leaf t is not below it"),
        (ADDERS, ("p; shell ls",), "leaf='p; shell ls': must be a plain Verilog name"),
        (ADDERS.replace("module cell_(", "module cell_ #(parameter W = 8) ("), ("cell_",), "leaf cell_ has parameters"),
        (ADDERS.replace("assign y = ~(a[0]", "assign y = ~(oops a[0]"), ("cell_",), "t: Verilog line 10: syntax error"),
        (
            f"{NAND.replace(' t(', ' u(').replace(';', ';' + chr(10))}{ADDERS.replace('s <= a + mem', 's <= +')}",
            ("cell_",),
            "line 6: s",
        ),
        (ADDERS.replace("s <= a + mem", "s <= a + + ;"), ("cell_",), ": Verilog line 4: syntax error"),
    ],
)
def test_bad_leaf(area, text, leaves, message):
    with pytest.raises(SynthError, match=message):
        area(text, leaves=leaves)


def test_speed_is_faster_and_larger(area):
    text = """module t(input clk, input [31:0] a, b, output reg [31:0] s);
      reg [31:0] x, y; always @(posedge clk) begin x <= a; y <= b; s <= x + y; end endmodule"""
    small, fast = area(text), area(text, effort="speed")
    assert (small.effort, fast.effort) == ("area", "speed")
    assert fast.timing.delay < 0.7 * small.timing.delay
    assert fast.comb_ge > small.comb_ge
    middle = area(text, effort="speed", target=small.timing.delay)
    assert small.comb_ge < middle.comb_ge < fast.comb_ge
    wide = """module t(input clk, d, input [63:0] a, output reg [63:0] q);
      reg p; always @(posedge clk) begin p <= d; q <= a ^ {64{p}}; end endmodule"""
    assert area(wide).timing.paths[0].steps[0].delay > 13 + 64, "ABC takes a register for an ideal source"
    assert area(wide, effort="speed").timing.paths[0].steps[0].delay < 13 + 32
    for options, message in (
        ({"effort": "fun"}, "effort='fun': must be one of area, speed"),
        ({"target": 100}, "target=100: must be more than 0 ps, and needs effort speed"),
        ({"effort": "speed", "target": 0}, "target=0: must be more than 0 ps"),
    ):
        with pytest.raises(SynthError, match=message):
            area(text, **options)


@needs_pdk
@pytest.mark.parametrize(("files", "unit", "flop"), [(SKY130, 3.7536, 20.0192), (ASAP7, 0.05832, 0.2916)])
def test_open_libraries(area, files, unit, flop):
    a = area(RAM + REG8.replace("module t", "module r"), files)
    assert a.unit_area == pytest.approx(unit)
    assert (a.microns, a.memory_bits, sum(a.cells.values())) == (True, 1024, 1)
    r = area(REG8, files)
    assert r.registers == 8
    assert r.reg_area == pytest.approx(8 * flop)
    assert not any("xp" in n and "ASAP7" in n for n in (*a.cells, *r.cells))


@needs_pdk
def test_embedded_areas_lie_near_the_open_libraries(tmp_path):
    """Each gate's area over NAND2's, within 40 % of the mean of SKY130's and ASAP7's smallest cell of that kind."""
    own, sky, asap = (load(f, tmp_path) for f in ([EMBEDDED], SKY130, ASAP7))
    same = {"AOI21": "a21oi", "AOI22": "a22oi", "OAI21": "o21ai", "OAI22": "o22ai", "DFF": "dfxtp", "MUX2": "mux2"}
    same["ICG"] = "sdlclkp"
    for name, cell in own.cells.items():
        ratios = []
        twin = same.get(name, name.lower())
        ratios.append(sky.cells[f"sky130_fd_sc_hd__{twin}_1"].area / sky.unit.area)
        kind = "DFFHQN" if name == "DFF" else name
        areas = [c.area for n, c in asap.cells.items() if n.startswith(kind + "x")]
        assert areas or name == "MUX2", name
        ratios += [min(areas) / asap.unit.area] if areas else []
        assert cell.area == pytest.approx(sum(ratios) / len(ratios), rel=0.4), name


@pytest.fixture
def units(tmp_path, monkeypatch):
    """Units `hcu` (a NAND), `table_port` and `dre` (registers) in place of the real ones, in an empty folder."""
    made = {"hcu": emit.Emitted(NAND, "t", {}), "dre": emit.Emitted(REG8, "t", {})}
    made["table_port"] = emit.Emitted(REG8.replace("[7:0]", "[6:0]"), "t", {})
    monkeypatch.setattr(emit, "UNITS", {"hcu": ("", "", "core.dre.hcu"), "dre": ("", "", "core.dre")})
    monkeypatch.setattr(emit, "emit", lambda unit, params: made[unit])
    monkeypatch.chdir(tmp_path)
    return made


def test_command_prints_json_and_a_table(units, tmp_path):
    result = vrex("size", "area", "--preset", "tiny", "--json", "-o", "out")
    report = json.loads(result.stdout)
    assert list(report["units"]) == ["hcu", "table_port", "dre"], "the DRE after its units"
    assert report["units"]["hcu"]["comb_ge"] == 1
    assert json.loads((tmp_path / "out" / "area.json").read_text()) == report
    result = tried("size", "area", "hcu")
    assert "1 GE = NAND2" in result.stdout
    assert "dre" not in result.stdout


def test_command_prints_the_longest_path(units):
    text = "module t(input clk, d, output reg q); reg start; always @(posedge clk) begin start <= d; q <= ~start; end"
    units["dre"] = emit.Emitted(text + " endmodule", "t", {})
    result = vrex("size", "timing", "--effort", "speed")
    for part in ("without memories τ", "mapped for speed", "register to register", "start", "setup"):
        assert part in result.stdout
    result = vrex("size", "timing", "--json")
    timing = json.loads(result.stdout)["units"]["dre"]["timing"]
    assert (timing["unit"], timing["levels"], timing["fmax_mhz"]) == ("tau", 1, None)
    assert [s["cell"] for s in timing["paths"][0]["steps"]] == ["DFF", "INV"]
    assert timing["delay"] == pytest.approx(25)


def test_command_takes_what_joins_units(units):
    text = "module t(input clk, d, output reg q); always @(posedge clk) q <= ~d; endmodule"
    units |= dict.fromkeys(("arbiter", "dre_ip"), emit.Emitted(text, "t", {}))
    for unit in ("arbiter", "dre_ip"):
        report = json.loads(vrex("size", "timing", unit, "--json").stdout)
        assert {name: one["registers"] for name, one in report["units"].items()} == {unit: 1}


def test_command_maps_the_register_block():
    report = json.loads(vrex("size", "timing", "registers", "--preset", "tiny", "--json").stdout)
    paths = report["units"]["registers"]["timing"]["paths"]
    assert paths[0]["kind"] == "register to register"
    assert paths[0]["end"].startswith("s_axi_")


def test_command_times_memories(units):
    units["dre"] = emit.Emitted(RAM, "t", {})
    result = vrex("size", "timing", "--macro-bits", "64")
    for part in ("Memories, modelled at 14 nm", "t.left.mem", "model", "memory to output"):
        assert part in result.stdout
    dre = json.loads(vrex("size", "timing", "--macro-bits", "64", "--node", "7", "--json").stdout)["units"]["dre"]
    times = dre["memory_times"]["t.left.mem"]
    scale = 5 / NODES[7].fo4.value
    s = Sram(64, 16, node=7)
    assert (dre["memory_node"], times["source"]) == (7, "model")
    assert (times["access"], times["setup"]) == pytest.approx((scale * s.access.value, scale * s.setup.value))
    longer = dre["with_memories"]["delay"] - dre["timing"]["delay"]
    assert longer == pytest.approx(times["access"])


def test_command_takes_the_leaves_of_the_manifest(units):
    units["dre"] = emit.Emitted(ADDERS, "t", {"leaves": {"pair": 2}})
    result = tried("size", "area")
    assert "Leaves of t" in result.stdout
    assert "the rest" in result.stdout
    assert "pair.left.mem" in result.stdout


def test_verilog_is_kept_until_sources_change(units, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(emit, "emit", lambda unit, p: asked.append(unit) or units[unit])
    p = params.preset("tiny").core.dre.hcu
    assert [emit_cache.emitted("hcu", p, tmp_path) for _ in range(2)] == [units["hcu"]] * 2
    assert asked == ["hcu"]
    emit_cache.emitted("hcu", params.preset("core").core.dre.hcu, tmp_path)
    assert asked == ["hcu"] * 2
    for file in tmp_path.rglob("hcu-*.gz"):
        file.write_bytes(file.read_bytes()[:-9])
    emit_cache.emitted("hcu", p, tmp_path)
    assert asked == ["hcu"] * 3
    for package in emit_cache.PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "a.py").write_text("a = 1")
        before = emit_cache.sources(tmp_path)
        (tmp_path / package / "a.py").write_text("a = 2")
        emit_cache.sources.cache_clear()
        assert emit_cache.sources(tmp_path) != before
    monkeypatch.setattr(emit_cache, "ROOT", tmp_path)
    emit_cache.emitted("hcu", p, tmp_path)
    assert asked == ["hcu"] * 4


@pytest.fixture
def core(units, monkeypatch):
    """Small units that stand for those of a core, the LXE with its units inside."""
    paths = {"dpe": "core.dpe", "vpe": "core.vpe", "dre": "core.dre", "kvmu": "core.dre.kvmu", "hcu": "core.dre.hcu"}
    paths |= {"wtu": "core.dre.wtu", "cluster_set": "core.dre.wtu"}
    monkeypatch.setattr(emit, "UNITS", {n: ("", "", path) for n, path in paths.items()})
    inside = [f"lxe__{name}" for name, *_ in Lxe.units(params.preset("tiny").core)]
    text = "\n".join(f"  {n} u_{n}(.clk(clk));" for n in inside)
    text = f"module t(input clk, d, output reg r);\n{text}\n  always @(posedge clk) r <= d;\nendmodule\n"
    text += "".join(f"module {n}(input clk); reg r; always @(posedge clk) r <= ~r; endmodule\n" for n in inside)
    units["lxe"] = emit.Emitted(text, "t", {})
    for i, name in enumerate(table3.UNITS):
        body = f"always @(posedge clk) r <= r ^ d[{i + 1}:0];"
        text = f"module t(input clk, input [15:0] d, output reg [{i + 1}:0] r); {body} endmodule"
        units[name] = emit.Emitted(text, "t", {})


def test_command_prints_table_iii(core):
    result = vrex("size", "table3", "--preset", "tiny")
    for part in ("Table III at 14 nm", "On-chip memory", "1.3757", "0.3398", "Retriever and feeder", "15.12", "90.57"):
        assert part in result.stdout
    report = json.loads(vrex("size", "table3", "--node", "28", "--json").stdout)
    assert report["table3"]["node"] == 28
    join = report["units"]["lxe_join"]
    assert (join["registers"], join["timing"], join["untimed"]) == (1, None, ""), "without its units"
    rows = report["table3"]["rows"]
    assert rows["memory"]["area"]["value"] == pytest.approx(rows["memory"]["memories"]["value"])
    assert rows["core"]["power"] is None
    assert rows["core"]["area"]["low"] < rows["core"]["area"]["value"] < rows["core"]["area"]["high"]


def test_a_joined_core_is_timed_through_its_units(units):
    """A path goes through every unit of the core, each of which is mapped as a module of its own."""
    core = params.preset("tiny").core
    names = [f"lxe__{n}" for n, *_ in Lxe.units(core)] + [n for n, *_ in Core.units(core)[1:]]
    text, last = "", "d"
    for name in names:
        text += f"  wire {name}; core__{name} u_{name}(.clk(clk), .d({last}), .q({name}));\n"
        last = name
    text = f"module core(input clk, d, output reg r);\n{text}  always @(posedge clk) r <= {last};\nendmodule\n"
    unit = "input clk, d, output q); reg r; always @(posedge clk) r <= d; assign q = r ^ d; endmodule\n"
    units["core"] = emit.Emitted(text + "".join(f"module core__{name}({unit}" for name in names), "core", {})
    report = json.loads(vrex("size", "timing", "core_joined", "--preset", "tiny", "--json").stdout)
    joined = report["units"]["core_joined"]
    (path,) = (p for p in joined["timing"]["paths"] if p["kind"] == "register to register")
    assert path["module"] == "core"
    assert [step["cell"] for step in path["steps"][-len(names) + 1 :]] == [f"core__{n}" for n in names[1:]]
    assert joined["registers"] == len(names) + 1


def test_table_iii_takes_powers(core, tmp_path):
    def mw(v: float) -> dict:
        one = {"low": v / 2, "value": v, "high": 2 * v}
        return dict.fromkeys(("dynamic_mw", "leakage_mw", "memory_mw", "total_mw"), one)

    parts = {"dre": mw(1.0)} | {f"dre__{n}": mw(2.0) for n in ("hcu", "wtu0", "cluster_set", "kvmu")}
    parts["dre__table_port"] = mw(0.5)
    power = tmp_path / "power.json"
    power.write_text(json.dumps({"units": {"dpe": mw(20.0), "vpe": mw(10.0), "dre": {"parts": parts}}}))
    result = vrex("size", "table3", "--json", "--power", str(power))
    rows = json.loads(result.stdout)["table3"]["rows"]
    assert {n: r["power"]["value"] for n, r in rows.items() if n not in table3.CONTROL} == {
        **{"dpe": 40, "vpe": 20, "memory": 30, "hcu": 2, "wtu": 4, "kvmu": 2, "table_port": 0.5, "glue": 1},
        **{"dre": 9.5, "core": 99.5},
    }
    printed = tried("size", "table3", "--power", str(power)).stdout
    assert re.search(r"DRE +│.*│ +9\.50 │ +9\.55 │", printed)
    power.write_text("[]")
    for file, message in (
        (power, "is no output of vrex size power"),
        (tmp_path / "absent", "cannot read it: No such file"),
    ):
        result = refuses("size", "table3", "--power", str(file))
        assert message in result.stderr


def test_command_compares_libraries(core, tmp_path):
    """The embedded library with every area doubled agrees with itself to the last digit."""
    text = re.sub(r"area : ([\d.]+)", lambda m: f"area : {2 * float(m[1])}", EMBEDDED.read_text())
    (tmp_path / "twice.lib").write_text(text)
    result = vrex("size", "libraries", "core", "--json", str(tmp_path / "tw*.lib"))
    (found,) = json.loads(result.stdout)["agreement"]
    assert (found["area"]["factor"], found["area"]["rank"], found["area"]["worst"]) == pytest.approx((2, 1, 0))
    assert found["area"]["names"] == list(table3.UNITS)
    assert found["delay"]["names"] == [n for n in table3.UNITS if n != table3.JOIN]
    assert "Agreement with tw*.lib" in tried("size", "libraries", "core", str(tmp_path / "tw*.lib")).stdout


def test_untimed_unit_is_printed_with_its_reason(units):
    two = "module t(input a, b, d, output reg p, q); always @(posedge a) p <= d; always @(posedge b) q <= d; endmodule"
    units["dre"] = emit.Emitted(two, "t", {})
    result = vrex("size", "area", "--json")
    assert json.loads(result.stdout)["units"]["dre"]["registers"] == 2
    result = refuses("size", "timing", "--json")
    assert "error: t: several clocks" in result.stderr
    dre = json.loads(result.stdout)["units"]["dre"]
    assert (dre["registers"], dre["timing"]) == (2, None)
    assert " - " in tried("size", "timing").stdout


def test_fault_keeps_finished_units(units, tmp_path):
    units["dre"] = emit.Emitted("module t(", "t", {})
    result = refuses("size", "area")
    assert "syntax error" in result.stderr
    assert len(list((tmp_path / "build" / "synth").glob("t-*.json"))) == 2


SLOW = """
import sys
from openvrex.hdl import emit
text = open(sys.argv[1]).read()
emit.UNITS = {"hcu": ("", "", "core.dre.hcu"), "dre": ("", "", "core.dre")}
emit.emit = lambda unit, params: emit.Emitted(text if unit == "dre" else "module t; endmodule", "t", {})
from openvrex.scripts.main import app
app(["size", "area"])
"""


def test_interrupt_keeps_finished_units_and_leaves_no_process(tmp_path):
    (tmp_path / "big.v").write_text("module t(input [255:0] a, b, output [511:0] y); assign y = a * b; endmodule")
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, "big.v"], cwd=tmp_path, env=env, stdout=-1, stderr=-1, text=True
    )
    kept = tmp_path / "build" / "synth"
    while not list(kept.glob("t-*.json")) or not list(tmp_path.glob("vrex-synth-*/top.v")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(1)  # the result is in its file a moment before its thread has ended
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate()
    assert process.returncode == 130
    assert stderr.strip().endswith("interrupted; finished units are kept and will not be run again")
    assert "hcu" in stdout
    assert "dre" not in stdout
    assert len(list(kept.glob("t-*"))) == 1, "no result of the run that was ended, whole or half"
    assert not list(tmp_path.glob("vrex-synth-*")), "working folders are removed, so their runs have ended"
