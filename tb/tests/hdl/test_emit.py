"""Every preset and unit emits Verilog that lints clean, reads in Yosys and is the same to the byte."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pyslang
import pytest
from amaranth.lib.data import Layout

from openvrex.golden.arithmetic.secded import check_bits
from openvrex.hdl.emit import ALL, UNITS, Emitted, component_of, elaborated_unit, in_text, params_of
from openvrex.hdl.header import ONE_FILE, header
from openvrex.hdl.leaf import Leaves
from openvrex.hdl.memory import KINDS, bodies
from openvrex.hdl.params import PRESETS, SHARED, ParamError, flat, override, preset
from openvrex.hdl.ports import ports
from openvrex.hdl.writer.circt import Language
from openvrex.tb.library.needless import needless, numbered
from openvrex.tb.library.runner import ROOT, emit, lint
from openvrex.tb.library.yosys import run_yosys
from tb.tests.by_day import by_day
from tb.tests.commands import vrex

OPTIONAL = "motion_mask", "loader", "storer", "sequencer", "retriever"  # units with hardware that `omni` alone has
CASES = [*((unit, "tiny") for unit in ALL), ("arbiter", "edge8"), *((unit, "omni") for unit in OPTIONAL)]


def tiny(unit: str) -> Emitted:
    return emit(unit, params_of(unit, preset("tiny")))


def slang(file: Path) -> list[str]:
    """Errors and warnings of slang."""
    files = pyslang.SourceManager()
    design = pyslang.ast.Compilation()
    design.addSyntaxTree(pyslang.syntax.SyntaxTree.fromFile(str(file), files))
    engine = pyslang.DiagnosticEngine(files)
    found = [(engine.getSeverity(d.code, d.location), engine.formatMessage(d)) for d in design.getAllDiagnostics()]
    return [text for severity, text in found if severity != pyslang.DiagnosticSeverity.Ignored]


def icarus(unit: Emitted, file: Path) -> str:
    """Warnings of Icarus Verilog in its two dialects; none where it is not installed."""
    if not shutil.which("iverilog"):
        return ""
    command = ["iverilog", "-Wall", "-t", "null", "-s", unit.top, file]
    dialects = ["-g2012"] if unit.file.endswith(".sv") else ["-g2005", "-g2012"]
    runs = [subprocess.run([*command, g], capture_output=True, text=True, check=False) for g in dialects]
    said = "".join(run.stdout + run.stderr for run in runs).splitlines()
    # Its `always_comb` waits for every bit of a variable of which it reads one: no fault of the text.
    return "\n".join(line for line in said if "sorry: constant selects in always_* processes" not in line)


def clean(unit: Emitted, folder: Path) -> bool:
    """Whether Verilator, slang, Icarus and Yosys read it without a warning, and every operation does something."""
    assert needless(unit.verilog) == []
    assert lint(unit, folder) == ""
    assert slang(folder / unit.file) == []
    assert icarus(unit, folder / unit.file) == ""
    code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
    passes = [f"read_verilog -sv {folder / unit.file}", f"hierarchy -check -top {unit.top}", "proc", "check -assert"]
    run = subprocess.run([sys.executable, "-c", code, *passes], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:]
    assert "Warning" not in run.stdout, re.findall("Warning.*", run.stdout)[:5]
    return True


@pytest.mark.parametrize(("unit", "name"), CASES)
def test_lints_clean_and_reads_in_yosys(unit, name, tmp_path):
    emitted = emit(unit, params_of(unit, preset(name)))
    assert clean(emitted, tmp_path)
    assert all(emitted.manifest[k] for k in ("sha256", "timing", "counters"))


BENCHES = {  # units with sizes of their own in their checks, by what `emitted` takes
    **dict.fromkeys(("cluster_set", "dpe", "hcu", "kvmu", "motion_mask", "vpe", "wtu"), True),  # parameters
    **dict.fromkeys(("feeder", "loader", "retriever", "sequencer", "storer", "table_port"), False),  # a name
}


@pytest.mark.parametrize("unit", BENCHES)
def test_every_size_of_a_bench_lints_clean(unit, tmp_path):
    """Sizes of 1 among them, where an address is constant."""
    checks = import_module(f"openvrex.tb.checks.{unit}_checks")
    for size, params in checks.SIZES.items():
        assert lint(checks.emitted(params if BENCHES[unit] else size), tmp_path / size) == "", size


@pytest.mark.parametrize("unit", ALL)
def test_no_warning_is_waived(unit):
    """But for Verilator's wish that each module have a file of its own."""
    waivers = re.findall(r"lint_off|lint_on|pragma|noqa|coverage_off|synopsys", tiny(unit).verilog)
    assert waivers == ["lint_off"]
    assert ONE_FILE in tiny(unit).verilog


def test_the_manual_shows_text_that_is_written():
    shown = re.findall(r"(?s)```verilog\n(.*?)```", Path(ROOT, "docs/verilog.md").read_text())
    own = emit("cluster_set", params_of("cluster_set", preset("tiny")), lines=True).verilog
    bare = re.sub(r"  // hdl/\S+", "", own)
    assert len(shown) == 3
    assert all(text in own or text in bare for text in shown)


def test_lines_of_the_source_stand_behind_statements():
    """Each is a line of a file of `hdl` that has an assignment; the rest of the text is the same."""
    plain = tiny("kvmu").verilog.partition(ONE_FILE)[2]
    text = emit("kvmu", params_of("kvmu", preset("tiny")), lines=True).verilog.partition(ONE_FILE)[2]
    places = re.findall(r"// (hdl/\S+\.py):(\d+)", text)
    assert len(places) > 150
    for file, line in set(places):
        source = Path(ROOT, file).read_text().splitlines()[int(line) - 1]
        assert re.search(r"eq\(|connect\(|next = |:\?=|with m|\+= ", source), (file, line)
    bare = re.sub(r" *// .*", "", plain)
    assert re.sub(r" *// .*", "", text).split() == bare.split()


@pytest.mark.parametrize("unit", by_day(ALL, "kvmu", "vpe", "motion_mask_ip"))
def test_systemverilog_lints_clean(unit, tmp_path):
    e = emit(unit, params_of(unit, preset("tiny")), language=Language.SYSTEMVERILOG)
    assert clean(e, tmp_path)


@pytest.mark.parametrize("unit", by_day(ALL, *(ALL.keys() - {"lxe", "core", "dre_ip", "core_ip", "system"})))
def test_systemverilog_is_the_same_text(unit):
    """The text of the other dialect differs in its words alone."""
    plain, e = tiny(unit), emit(unit, params_of(unit, preset("tiny")), language=Language.SYSTEMVERILOG)
    assert e.file == f"{unit}.sv"
    text = e.verilog.partition(ONE_FILE)[2]
    assert "always_ff @(posedge clk)" in text
    for new, old in {"always_ff": "always", "logic": "reg", "always_comb": "always @*"}.items():
        text = re.sub(rf"\b{new}\b", old, text)
    assert text.split() == plain.verilog.partition(ONE_FILE)[2].split()


@pytest.mark.parametrize("unit", ["core_ip", "motion_mask"])
def test_states_have_names(unit):
    """No register of states is compared with, or takes, a number in digits; the same text with one number is found."""
    leaves = Leaves(unit)
    design = elaborated_unit(unit, component_of(unit, params_of(unit, preset("tiny"))), unit, leaves)
    writer = in_text(design, unit, leaves)
    registers = {module: set(inside.states) for module, inside in writer.inside.items()}
    text, state = writer.verilog(), next(state for states in registers.values() for state in states)
    assert numbered(text, registers) == []
    assert numbered(re.sub(rf"\b{state} <= \w+;", f"{state} <= 3'h1;", text), registers)


def part(unit: Emitted, top: str, empty: Collection[str] = ()) -> Emitted:
    """A module of a unit and what stands in it, some of it empty: tools look into each of many."""
    texts = re.split(r"(?=^module )", unit.verilog, flags=re.M)[1:]
    modules = {re.match(r"module \\?([\w$]+)", m)[1]: m for m in texts}
    kept, new = {}, [top]
    while new:
        name = new.pop()
        kept[name] = emptied(modules[name]) if name in empty else modules[name]
        new += [
            n
            for n in re.findall(r"^  \\?(\S+) +(?:#|\S+ +)\($", kept[name], flags=re.M)
            if n in modules and n not in kept
        ]
    return replace(unit, top=top, verilog=ONE_FILE + "".join(kept.values()))


def emptied(module: str) -> str:
    """Its ports; outputs are 0."""
    head = module[: module.index(");\n") + 3]
    outputs, way = [], ""
    for found in re.finditer(r"^ +(input|output|) +(?:\[.*?\])? *(\w+),?$", head, flags=re.M):
        way = found[1] or way  # ports of one kind follow each other
        outputs += [found[2]] * (way == "output")
    ends = [f"  assign {o} = 0;\n" for o in outputs]
    waived = "/* verilator lint_{} UNUSED */\n"
    return "".join([waived.format("off"), head, *ends, "endmodule\n", waived.format("on")])


def test_core_lints_clean_and_reads_in_yosys(tmp_path):
    """`core` holds all units and blocks at their full size; edge8 and server48 hold several of it."""
    core = emit("core", params_of("core", preset("core")))
    leaves = core.manifest["leaves"]
    assert len(leaves) == 3
    assert clean(part(core, "core", leaves), tmp_path)
    assert all(clean(part(core, leaf, leaves.keys() - {leaf}), tmp_path) for leaf in leaves)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds(name):
    """Larger systems hold the core of another preset, all of it one module, so that the largest tells of the others."""
    system = preset(name)
    if system.cores > 1:
        assert replace(system, cores=1, common=False, ports=1) in PRESETS.values()
    else:
        assert all(emit(unit, params_of(unit, system)).top == unit for unit in UNITS)


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["cores", "ports"])
def test_largest_system_builds(what, tmp_path):
    largest = max((preset(name) for name in PRESETS), key=lambda system: getattr(system, what))
    system = emit("system", largest)
    assert system.manifest["leaves"]["system_core"] == largest.cores
    assert lint(part(system, "system", ["system_core"]), tmp_path) == ""


@pytest.mark.parametrize(
    ("units", "seeds"),
    [(UNITS, "1"), *(pytest.param(units, "12", marks=pytest.mark.nightly) for units in (UNITS, ["core"]))],
    ids=["units", "units again", "core"],
)
def test_same_bytes_in_another_process(units, seeds):
    """A set or dictionary order that reaches the netlist would show under another hash seed."""
    code = "from openvrex.hdl.emit import emit, params_of; from openvrex.hdl.params import preset; "
    code += f"print(*(emit(u, params_of(u, preset('tiny'))).manifest['sha256'] for u in {[*units]!r}))"
    for seed in seeds:
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONHASHSEED": seed})
        assert run.stdout.split() == [tiny(unit).manifest["sha256"] for unit in units]


def test_every_file_tells_licence_release_and_command(tmp_path):
    """The command makes the same bytes again; its option for assertions belongs to their file alone."""
    made = emit("kvmu", params_of("kvmu", preset("tiny")), "a", memory_bodies=False, checked=True)
    command = "vrex generate kvmu --preset tiny --prefix a --no-memory-bodies"
    found = {f.name: f.read_text() for f in made.write(tmp_path)}
    manifest = json.loads(found.pop("manifest.json"))
    release = version("openvrex")
    assert [manifest[k] for k in ("license", "version", "command")] == ["Apache-2.0", release, command]
    assert len(found) == 3
    for name, text in found.items():
        head = text.partition("\n/*")[0].splitlines()
        assert "// SPDX-License-Identifier: Apache-2.0" in head, name
        assert any(line.startswith(f"// Generated by OpenVRex {release}. ") for line in head), name
        assert f"//   {command}{' --assertions' * name.endswith('.sv')}" in head, name
    vrex(*command.split()[1:], "-o", str(tmp_path / "again"))
    assert {f.name: f.read_text() for f in (tmp_path / "again").iterdir() if f.suffix == ".v"} == {
        name: text for name, text in found.items() if name.endswith(".v")
    }


def test_no_port_is_constant():
    """An output that nobody drives is emitted as a constant and no tool complains."""
    constant = {("dre", "bus_aw_len"), ("table_port", "bus_aw_len")}  # a write of an item is one beat
    for unit in UNITS:
        emitted = tiny(unit)
        top = emitted.verilog[emitted.verilog.index(f"module {unit}(") :].partition("endmodule")[0]
        for port in emitted.manifest["ports"]:
            if port["dir"] == "out":
                found = f"assign {port['name']} = {port['width']}'h0" in top
                assert found == ((unit, port["name"]) in constant), (unit, port["name"])


def test_manifest_names_what_the_unit_has():
    for unit in UNITS:
        manifest = tiny(unit).manifest
        assert json.loads(json.dumps(manifest)) == manifest
        widths = {p["name"]: p["width"] for p in manifest["ports"]}
        assert widths["clk"] == 1
        assert widths["perf"] == 32 * len(manifest["counters"])


def read(unit: Emitted, *passes: str) -> str:
    """Yosys's log of passes on a unit, and how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        unit.write(Path(folder))
        return run_yosys([f"read_verilog {folder}/*.v", f"hierarchy -check -top {unit.top}", *passes])


@pytest.mark.parametrize("changes", [[], ["protect=secded"]])
def test_manifest_lists_every_memory(changes):
    """Names, words, bits and lanes are those that Yosys finds in the Verilog."""
    p = override(preset("tiny"), changes).core.dre
    unit = emit("dre", p)
    log = read(unit, "proc", "flatten", "memory_collect", "select -list t:$mem_v2", "stat")
    found = set(re.findall(r"^dre/(\S+)\.mem$", log, re.M))
    memories = {m["name"]: m for m in unit.manifest["memories"] if m["ports"] != "fifo"}
    assert found == set(memories)
    ram = ".ram" if changes else ""
    count = memories[f"{'unit.' if changes else ''}wtu0.core.ring.count1{ram}"]
    bits = p.wtu.n_w * (p.wtu.count_bits + check_bits(p.wtu.count_bits, p.wtu.protect))
    sizes = {"words": p.wtu.count_words // 2, "bits": bits, "lanes": p.wtu.n_w}
    assert {k: count[k] for k in sizes} == sizes
    assert (count["module"], count["ports"], count["protect"]) == ("dre_ram_1rw", "1rw", p.wtu.protect)
    assert count["user"].endswith("wtu0__core__ring")
    assert {m["ports"] for m in unit.manifest["memories"]} == {"1rw", "1r1w", "fifo"}


def test_a_memory_is_named_as_in_the_verilog():
    """That of programs has a name that SystemVerilog reserves, so that the text has another."""
    unit = tiny("sequencer")
    log = read(unit, "proc", "flatten", "memory_collect", "select -list t:$mem_v2")
    found = set(re.findall(r"^sequencer/(\S+)\.mem$", log, re.M))
    assert found == {m["name"] for m in unit.manifest["memories"] if m["module"]} == {"program_"}


def test_memories_can_be_left_to_macros(tmp_path):
    """A black box takes the place of each kind; with the bodies back the unit is the one that is emitted whole."""
    whole, left = tiny("dre"), emit("dre", preset("tiny").core.dre, memory_bodies=False)
    assert "reg [WIDTH-1:0] mem" not in left.verilog + left.memories
    assert clean(replace(left, verilog=left.verilog + left.memories, memories=""), tmp_path / "lint")
    assert {f.name for f in left.write(tmp_path)} == {"dre.v", "dre_memories.v", "manifest.json"}
    assert re.findall(r"^module (\w+)", left.memories, re.M) == ["dre_ram_1r1w", "dre_ram_1rw"]
    log = read(left, "proc", "flatten", "memory_collect", "select -list t:$mem_v2 t:dre_ram_* %u")
    assert not re.search(r"^dre/\S+\.mem$", log, re.M)
    assert all(f"dre/{m['name']}\n" in log for m in left.manifest["memories"] if m["module"])
    text = left.verilog + "\n" + bodies("dre", KINDS)
    assert text.partition(ONE_FILE)[2] == whole.verilog.partition(ONE_FILE)[2]


@pytest.mark.parametrize("unit", ALL)
def test_manifest_has_the_ports_of_the_verilog(unit):
    """Names, directions and widths in the order of the text, as Yosys reads them."""
    e = tiny(unit)
    with tempfile.TemporaryDirectory() as folder:
        e.write(Path(folder))
        commands = [f"read_verilog -lib {folder}/{e.top}.v", f"write_json {folder}/read.json"]
        run_yosys(commands)
        found = json.loads(Path(folder, "read.json").read_text())["modules"][e.top]["ports"]
    assert list(found) == [p["name"] for p in e.manifest["ports"]]
    for p in e.manifest["ports"]:
        assert (found[p["name"]]["direction"], len(found[p["name"]]["bits"])) == (f"{p['dir']}put", p["width"])


@pytest.mark.parametrize("unit", ["kvmu", "retriever", "vpe"])
def test_header_says_where_fields_of_a_packed_port_stand(unit):
    """Behind the line of the port, as in the manifest."""
    component = component_of(unit, params_of(unit, preset("tiny")))
    lines = header(component, unit, "core", "", ports(component), "").splitlines()
    packed = [port for port in ports(component) if len(port.get("fields", ())) > 1]
    names = {"kvmu": {"c", "perf"}, "retriever": {"retrieve_set", "done", "fault", "perf"}}
    assert {port["name"] for port in packed} == names.get(unit, {"perf"})
    for port in packed:
        at = next(i for i, line in enumerate(lines) if re.match(rf"// +\w+ +\d+  {port['name']}\b", line))
        found = re.findall(r"\[(\d+)(?::(\d+))?\] +(\S+)", "\n".join(lines[at:]))[: len(port["fields"])]
        places = [(int(low or high), int(high) - int(low or high) + 1, name) for high, low, name in found]
        assert places == [(f["offset"], f["width"], f["name"]) for f in port["fields"]]


@pytest.mark.parametrize("unit", ["dre", "vpe", "retriever", "dre_ip"])
def test_manifest_says_where_each_field_stands(unit):
    """The ports of a payload tile it, and a value that is packed has every field where the manifest says."""
    component = component_of(unit, params_of(unit, preset("tiny")))
    of: dict[str, list[dict]] = {}
    for port in ports(component):
        of.setdefault(port["stream"] + "_" + port["role"] if "role" in port else port["name"], []).append(port)
    seen = 0
    for path, member, _ in component.signature.flatten(component):
        if isinstance(member.shape, Layout) and path[-1] != "perf":  # counters' names have dots
            end = 0
            for port in of["_".join(map(str, path))]:
                for field in port["fields"]:
                    value = None
                    for key in reversed(re.findall(r"[^.\[\]]+", field["name"])):
                        key = int(key) if key.isdigit() else key
                        value = {key: (1 << field["width"]) - 1 if value is None else value}
                    place = port.get("offset", 0) + field["offset"]
                    assert member.shape.const(value).as_value().value == (1 << field["width"]) - 1 << place
                    # None is left out; a lane of an AXI stream is whole bytes.
                    assert place == (-(-end // 8) * 8 if path[-1].endswith("tdata") else end)
                    end, seen = place + field["width"], seen + 1
            assert 0 <= member.shape.size - end < 8
    assert seen


def test_two_configurations_share_a_design(tmp_path):
    """With a prefix each; without, module names would collide."""
    p = preset("tiny").core.dre
    units = [emit("dre", p, "a"), emit("dre", override(preset("tiny"), ["clusters=16"]).core.dre, "b_2")]
    assert [u.top for u in units] == ["a_dre", "b_2_dre"]
    names = [set(re.findall(r"^module \\?(\S+?) ?[(#]", u.verilog, re.M)) for u in units]
    assert all(name.startswith(f"{u.top}") for u, own in zip(units, names, strict=True) for name in own)
    assert not names[0] & names[1]
    assert all(m["module"] in {"", *own} for u, own in zip(units, names, strict=True) for m in u.manifest["memories"])
    ports = [(u.top, p["name"], f"{p['dir']}put [{p['width'] - 1}:0]") for u in units for p in u.manifest["ports"]]
    text = f"module pair({', '.join(f'{kind} {top}_{name}' for top, name, kind in ports)});\n"
    for u in units:
        text += f"  {u.top} {u.top}({', '.join(f'.{name}({top}_{name})' for top, name, _ in ports if top == u.top)});\n"
    pair = Emitted("".join(u.verilog for u in units) + text + "endmodule\n", "pair", {})
    assert lint(pair, tmp_path) == ""


@pytest.mark.parametrize("prefix", ["2x", "a__b", "a_", "a b", "a.b", "ü"])
def test_a_prefix_is_a_name(prefix):
    with pytest.raises(ParamError, match="prefix=.*letters, digits and single underscores"):
        emit("hcu", preset("tiny").core.dre.hcu, prefix)


def test_unknown_names_list_the_valid_ones():
    with pytest.raises(ParamError, match="hcu, wtu"):
        params_of("hcux", preset("tiny"))
    with pytest.raises(ParamError, match="tiny, small, core"):
        preset("huge")
    with pytest.raises(ParamError, match="n_hq.*valid names: .*n_hp"):
        override(preset("tiny"), ["n_hq=3"])
    with pytest.raises(ParamError, match="name=value"):
        override(preset("tiny"), ["n_hp"])
    with pytest.raises(ParamError, match="of type int"):
        override(preset("tiny"), ["n_hp=many"])
    with pytest.raises(ParamError, match="hcu.clusters': is one size in all units: set clusters without a unit"):
        override(preset("tiny"), ["hcu.clusters=64"])
    for name in ("count_lanes", "kvmu.count_lanes"):
        with pytest.raises(ParamError, match=f"{name}': is wtu.n_w in a DRE: set that"):
            override(preset("tiny"), [f"{name}=8"])


def test_a_size_of_several_units_is_stated_once():
    """In design files, commands and data sheets; and a preset's units fit together."""
    for name, p in PRESETS.items():
        leaves = [key.rpartition(".")[2] for key in flat(p)]
        assert all(leaves.count(size) == 1 and size in flat(p) for size in SHARED), name
        p.core.joined().dre.joined()
