"""Every preset and unit emits Verilog that lints clean, reads in Yosys and is the same to the byte."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.data import Layout
from amaranth.lib.wiring import In, Out

from golden.arithmetic.secded import check_bits
from hdl.emit import ALL, UNITS, Emitted, component_of, emit, params_of, ports, to_verilog
from hdl.memory import KINDS, bodies
from hdl.params import PRESETS, ParamError, override, preset
from tb.library.runner import lint
from tb.library.yosys import run_yosys

CASES = [*((unit, "tiny") for unit in ALL), ("arbiter", "edge8")]


def tiny(unit: str) -> Emitted:
    return emit(unit, params_of(unit, preset("tiny")))


def clean(unit: Emitted, folder: Path) -> bool:
    """Whether it lints clean and reads in Yosys."""
    assert lint(unit, folder) == ""
    code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
    passes = [f"read_verilog {folder / unit.top}.v", f"hierarchy -check -top {unit.top}", "proc", "check -assert"]
    run = subprocess.run([sys.executable, "-c", code, *passes], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:]
    return True


@pytest.mark.parametrize(("unit", "name"), CASES)
def test_lints_clean_and_reads_in_yosys(unit, name, tmp_path):
    emitted = emit(unit, params_of(unit, preset(name)))
    assert clean(emitted, tmp_path)
    assert all(emitted.manifest[k] for k in ("sha256", "timing", "counters"))


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
    return replace(unit, top=top, verilog="".join(kept.values()))


def emptied(module: str) -> str:
    """Its ports; outputs are 0."""
    ports = re.findall(r"^  (?:input|output) .*?;\n", module, flags=re.M)
    ends = [f"  assign {o} = 0;\n" for o in re.findall(r"^  output (?:\[.*?\] )?(\S+) ?;", module, flags=re.M)]
    head = module[: module.index(");\n") + 3]
    waived = "/* verilator lint_{} UNUSED */\n"
    return "".join([waived.format("off"), head, *ports, *ends, "endmodule\n", waived.format("on")])


def test_core_lints_clean_and_reads_in_yosys(tmp_path):
    """`core` holds all units and blocks at their full size; edge8 and server48 hold several of it."""
    core = emit("core", params_of("core", preset("core")))
    leaves = core.manifest["leaves"]
    assert len(leaves) == 3
    assert clean(part(core, "core", leaves), tmp_path)
    assert all(clean(part(core, leaf, leaves.keys() - {leaf}), tmp_path) for leaf in leaves)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds(name):
    """Larger systems hold the core of `core`, all of it one module, so that the largest tells of the others."""
    system = preset(name)
    if system.cores > 1:
        assert system.core == preset("core").core
    else:
        assert all(emit(unit, params_of(unit, system)).top == unit for unit in UNITS)


@pytest.mark.nightly
def test_largest_system_builds(tmp_path):
    largest = max((preset(name) for name in PRESETS), key=lambda system: system.cores)
    system = emit("system", largest)
    assert system.manifest["leaves"]["system_core"] == largest.cores
    assert lint(part(system, "system", ["system_core"]), tmp_path) == ""


@pytest.mark.parametrize("unit", [*UNITS, pytest.param("core", marks=pytest.mark.nightly)])
def test_same_bytes_in_another_process(unit):
    """A set or dictionary order that reaches the netlist would show under another hash seed."""
    code = "from hdl.emit import emit, params_of; from hdl.params import preset; "
    code += f"print(emit({unit!r}, params_of({unit!r}, preset('tiny'))).manifest['sha256'])"
    shas = set()
    for seed in ("1", "2"):
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONHASHSEED": seed})
        shas.add(run.stdout.strip())
    assert shas == {tiny(unit).manifest["sha256"]}


def test_no_port_is_constant():
    """An output that nobody drives is emitted as a constant and no tool complains."""
    for unit in UNITS:
        emitted = tiny(unit)
        top = emitted.verilog[emitted.verilog.index(f"module {unit}(") :].partition("endmodule")[0]
        for port in emitted.manifest["ports"]:
            if port["dir"] == "out":
                assert f"assign {port['name']} = {port['width']}'h0" not in top, (unit, port["name"])


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
    count = memories[f"{'unit.' if changes else ''}wtu0.core.count{ram}"]
    bits = p.wtu.n_w * (p.wtu.count_bits + check_bits(p.wtu.count_bits, p.wtu.protect))
    sizes = {"words": p.wtu.words * p.wtu.n_ctx, "bits": bits, "lanes": p.wtu.n_w}
    assert {k: count[k] for k in sizes} == sizes
    assert (count["module"], count["ports"], count["protect"]) == ("dre_ram_1rw", "1rw", p.wtu.protect)
    assert count["user"].endswith("wtu0__core")
    assert {m["ports"] for m in unit.manifest["memories"]} == {"1rw", "1r1w", "fifo"}


def test_memories_can_be_left_to_macros(tmp_path):
    """A black box takes the place of each kind; with the bodies back the unit is the one that is emitted whole."""
    whole, left = tiny("dre"), emit("dre", preset("tiny").core.dre, memory_bodies=False)
    assert "reg [WIDTH-1:0] mem" not in left.verilog + left.memories
    assert {f.name for f in left.write(tmp_path)} == {"dre.v", "dre_memories.v", "manifest.json"}
    assert re.findall(r"^module (\w+)", left.memories, re.M) == ["dre_ram_1r1w", "dre_ram_1rw"]
    log = read(left, "proc", "flatten", "memory_collect", "select -list t:$mem_v2 t:dre_ram_* %u")
    assert not re.search(r"^dre/\S+\.mem$", log, re.M)
    assert all(f"dre/{m['name']}\n" in log for m in left.manifest["memories"] if m["module"])
    assert left.verilog + "\n" + bodies("dre", KINDS) == whole.verilog


@pytest.mark.parametrize("unit", ["dre", "vpe", "dre_ip"])
def test_manifest_has_the_fields_of_every_payload(unit):
    """Offset and width are where a value that is packed stands."""
    component = component_of(unit, params_of(unit, preset("tiny")))
    fields = {p["name"]: p.get("fields", []) for p in ports(component)}
    seen = 0
    for path, member, _ in component.signature.flatten(component):
        if isinstance(member.shape, Layout) and path[-1] != "perf":  # counters' names have dots
            given, end = fields["__".join(map(str, path))], 0
            seen += len(given)
            for field in given:
                value, at = None, re.findall(r"[^.\[\]]+", field["name"])
                for key in reversed(at):
                    value = {int(key) if key.isdigit() else key: (1 << field["width"]) - 1 if value is None else value}
                assert member.shape.const(value).as_value().value == (1 << field["width"]) - 1 << field["offset"]
                # None is left out; a lane of an AXI stream is whole bytes.
                assert field["offset"] == (-(-end // 8) * 8 if path[-1].endswith("tdata") else end)
                end = field["offset"] + field["width"]
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
    with pytest.raises(ParamError, match="same in every unit"):
        override(preset("tiny"), ["hcu.clusters=64"])


class Wide(wiring.Component):
    """More inputs than Amaranth can number."""

    i: In(1 << 16)
    o: Out(1)

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.o.eq(self.i.any())
        return m


def test_more_inputs_than_a_top_module_has_are_refused():
    """As those of the arbiter of `server48` alone are."""
    with pytest.raises(
        ParamError, match="input bits of wide=65538: must be at most 65534 .*generate a unit that contains it"
    ):
        to_verilog(Wide(), "wide")
