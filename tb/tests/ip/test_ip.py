"""IP packages: shell, address maps, driver and example SoC, FuseSoC targets, each seen failing on what is broken."""

import ctypes
import fcntl
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from peakrdl_regblock import RegblockExporter
from peakrdl_regblock.cpuif.axi4lite import AXI4Lite_Cpuif
from peakrdl_regblock.udps import ALL_UDPS
from systemrdl import RDLCompileError, RDLCompiler
from systemrdl.messages import MessagePrinter
from systemrdl.node import AddrmapNode, FieldNode, MemNode, RegNode

import openvrex.ip.package
from openvrex.golden.program.isa import ADDR_BITS, Instruction, LoadTo, Opcode, Retrieve, Status, encode
from openvrex.golden.program.regions import PAGE, Allow
from openvrex.golden.retrieval.checkpoint import restore, save
from openvrex.hdl.emit import Emitted, component_of, emit, params_of, top_of
from openvrex.hdl.firtool_memories import MemoryPorts
from openvrex.hdl.header import VERSION
from openvrex.hdl.memory_test import MEANING
from openvrex.hdl.params import CoreParams, MaskParams, flat, override, preset
from openvrex.hdl.ports import ports as ports_of
from openvrex.hdl.shells.dre_ip import CODE_BITS, key_layout, scores_layout
from openvrex.hdl.shells.register_block import OKAY, RDL, address_map, description
from openvrex.hdl.writer.circt import Language
from openvrex.ip.address_map import header
from openvrex.ip.ipxact import ipxact
from openvrex.ip.package import CHIP, Options, configuration, write
from openvrex.ip.register_page import page
from openvrex.ip.shell import TOPS
from openvrex.ip.software import HERE, OWN, has_memory, sources
from openvrex.ip.table_header import table_header
from openvrex.tb.checks.core_checks import ALONE, LAYERS, SHAPE, begin, forget, host, ports
from openvrex.tb.checks.core_checks import params as core_params
from openvrex.tb.checks.dre_ip_checks import CHANGES as DRE_IP
from openvrex.tb.checks.dre_ip_checks import DEVICE, HOME, TABLES
from openvrex.tb.checks.dre_ip_checks import frames as dre_frames
from openvrex.tb.checks.motion_mask_checks import bits as mask_bits
from openvrex.tb.checks.motion_mask_checks import covering, masks
from openvrex.tb.checks.motion_mask_checks import stream as mask_stream
from openvrex.tb.library.core_host import CoreHost
from openvrex.tb.library.lxe_programs import Ran, Script, image
from openvrex.tb.library.runner import BUILD, ROOT, Run, verilator_env
from openvrex.tb.library.streams import pack
from openvrex.tb.library.transfer_traffic import params as dre_ip_params
from tb.tests.commands import refuses, tried, vrex

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
LATENCY = 6  # of the example's memory
UNITS = tuple(TOPS)


def params(unit: str) -> CoreParams | MaskParams:
    return core_params() if unit == "core_ip" else params_of(unit, preset("tiny"))


def package(unit: str) -> str:
    """The package's, which its unit's module has."""
    return top_of(unit, configuration(params(unit)))


def top_module(unit: str) -> str:
    """That of the package."""
    return top_of(TOPS[unit], configuration(params(unit)))


def run(command: list, folder: Path, **env: str) -> subprocess.CompletedProcess:
    env = verilator_env() | env
    return subprocess.run(list(map(str, command)), cwd=folder, env=env, capture_output=True, text=True, check=False)


def fusesoc(folder: Path, unit: str, target: str, *how: str, **env: str) -> subprocess.CompletedProcess:
    command = [Path(sys.executable).with_name("fusesoc"), "--cores-root", ".", "run", "--target", target]
    return run([*command, f"openvrex:ip:{package(unit)}", *how], folder, **env)


def yosys(folder: Path, *commands: str) -> subprocess.CompletedProcess:
    code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
    return run([sys.executable, "-c", code, *commands], folder)


@pytest.fixture(autouse=True, scope="module")
def once():
    """Units are emitted once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(openvrex.ip.package, "emit", cache(emit))
        yield


# Package.


@pytest.mark.parametrize("unit", UNITS)
def test_a_package_lints_and_reads_in_yosys(unit, tmp_path):
    """Its shell names every interface; shell, stub and constraints have the same ports."""
    files = write(unit, params(unit), tmp_path, Options(2.0))
    assert all(f.exists() for f in files)
    assert not list(tmp_path.glob(".part*"))
    before = {f: f.read_bytes() for f in files}
    assert sorted(write(unit, params(unit), tmp_path, Options(2.0))) == sorted(before)
    assert all(f.read_bytes() == text for f, text in before.items())
    name, top = package(unit), top_module(unit)
    linted = fusesoc(tmp_path, unit, "lint")
    assert linted.returncode == 0, linted.stderr
    assert "%Warning" not in linted.stdout + linted.stderr
    found = []
    whole = f"select {top}", "write_json -selected top.json"
    for files, last in ((f"{top}.v {name}.v", whole), (f"{top}_stub.v", ["write_json top.json"])):
        read = yosys(tmp_path, f"read_verilog {files}", f"hierarchy -check -top {top}", *last)
        assert read.returncode == 0, read.stdout[-2000:]
        module = json.loads((tmp_path / "top.json").read_text())["modules"][top]
        found.append({n: (p["direction"], len(p["bits"])) for n, p in module["ports"].items()})
        attributes = {n: module["netnames"][n]["attributes"] for n in module["ports"]}
        assert all("X_INTERFACE_INFO" in a for a in attributes.values())
    assert found[0] == found[1]
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    wants = {p["name"]: (f"{p['dir']}put", p["width"]) for p in manifest["ports"] if p["name"] not in ("clk", "rst")}
    assert found[0] == wants | {"aclk": ("input", 1), "aresetn": ("input", 1)}
    check_interfaces(attributes, found[0])
    check_ipxact(tmp_path, unit, found[0])
    check_constraints((tmp_path / f"{top}.sdc").read_text(), found[0])


@pytest.mark.parametrize(("unit", "how"), [("motion_mask", []), ("hcu", ["--language", "systemverilog"]), ("kvmu", [])])
def test_a_unit_has_a_fusesoc_core(unit, how, tmp_path):
    """FuseSoC finds a generated unit by its name and lints it; a fault in the text is an error."""
    args = ["generate", unit, "--preset", "tiny", "--fusesoc", "-o", str(tmp_path), *how]
    vrex(*args)
    command = [Path(sys.executable).with_name("fusesoc"), "--cores-root", ".", "run", "--target", "lint"]
    linted = run([*command, f"openvrex:unit:{unit}"], tmp_path)
    assert linted.returncode == 0, linted.stderr
    assert "%Warning" not in linted.stdout + linted.stderr
    refused = tried(*args, "--no-memory-bodies")
    assert (refused.exit_code, "--fusesoc=True: must stay out beside" in refused.stderr) == (2, True)
    (file,) = [f for f in tmp_path.glob(f"{unit}.*v")]
    file.write_text(file.read_text().replace("endmodule", "", 1))
    assert run([*command, f"openvrex:unit:{unit}"], tmp_path).returncode


AXI = {"AR": "ADDR LEN SIZE BURST VALID READY ID LOCK CACHE PROT", "R": "DATA RESP LAST VALID READY ID"}
AXI |= {"AW": AXI["AR"], "W": "DATA STRB LAST VALID READY", "B": "RESP VALID READY ID"}
LITE = {"AR": "ADDR VALID READY PROT", "R": "DATA RESP VALID READY", "W": "DATA STRB VALID READY"}
LITE |= {"AW": LITE["AR"], "B": "RESP VALID READY"}
STREAM = {"T": "DATA USER LAST VALID READY"}
PLAIN_STREAM = {"T": "DATA LAST VALID READY"}  # of s_axis_b


def check_interfaces(attributes: dict[str, dict], ports_: dict[str, tuple]) -> None:
    """As the vendor's tools infer them: signals of each interface, all of them, and what clock and reset belong to."""
    buses: dict[str, set[str]] = {}
    for name, values in attributes.items():
        kind, bus, signal = re.fullmatch(r"xilinx.com:(\S+):1.0 (\S+) (\S+)", values["X_INTERFACE_INFO"]).groups()
        buses.setdefault(bus, {kind}).add(signal)
        assert name.lower() in (f"{bus}_{signal}".lower(), bus)
    of = {n: attributes[n].get("X_INTERFACE_PARAMETER", "") for n in attributes}
    for bus, signals in buses.items():
        if "axi" in bus:
            lite = bus == "s_axi"
            kind, channels = (
                ("axis", PLAIN_STREAM if bus == "s_axis_b" else STREAM)
                if "axis" in bus
                else ("aximm", LITE if lite else AXI)
            )
            assert signals == {f"interface:{kind}"} | {c + s for c in channels for s in channels[c].split()}, bus
            text = next(text for text in of.values() if text.startswith(f"XIL_INTERFACENAME {bus}, "))
            assert kind == "axis" or f"DATA_WIDTH {ports_[f'{bus}_wdata'][1]}" in text
            assert kind == "axis" or ("AXI4LITE" in text) == lite
    named = sorted(bus for bus in buses if "axi" in bus)
    assert sorted(re.search(r"ASSOCIATED_BUSIF (\S+),", of["aclk"])[1].split(":")) == named
    assert "ASSOCIATED_RESET aresetn" in of["aclk"]
    assert "POLARITY ACTIVE_LOW" in of["aresetn"]
    assert "SENSITIVITY LEVEL_HIGH" in of["irq"]


IPXACT = "{http://www.accellera.org/XMLSchema/IPXACT/1685-2014}"
# As the schema orders them; a tool refuses any other order.
COMPONENT = ["vendor", "library", "name", "version", "busInterfaces", "addressSpaces", "memoryMaps"]
COMPONENT += ["model", "fileSets"]
BUS = {"aximm": AXI, "axis": STREAM, "clock": {"CLK": ""}, "reset": {"RST": ""}, "interrupt": {"INTERRUPT": ""}}


def check_ipxact(folder: Path, unit: str, ports_: dict[str, tuple]) -> None:
    """Ports are the Verilog's; each belongs to one interface, under its definition's names; what is named exists."""
    root = ET.parse(folder / f"{package(unit)}.xml").getroot()

    def elements(path: str, of: ET.Element = root) -> list[ET.Element]:
        return of.findall("/".join(IPXACT + tag for tag in path.split("/")))

    def texts(path: str, of: ET.Element = root) -> list[str]:
        return [e.text for e in elements(path, of)]

    assert [e.tag.removeprefix(IPXACT) for e in root] == COMPONENT
    described = {}
    for port in elements("model/ports/port"):
        [name], [direction] = texts("name", port), texts("wire/direction", port)
        bits = texts("wire/vectors/vector/left", port)
        assert texts("wire/vectors/vector/right", port) == ["0"] * len(bits)
        described[name] = (f"{direction}put", int(bits[0]) + 1 if bits else 1)
    assert described == ports_
    assert texts("model/instantiations/componentInstantiation/moduleName") == [top_module(unit)]
    assert texts("name") == [package(unit)]
    files = texts("fileSets/fileSet/file/name")
    assert {f"{package(unit)}.v", f"{top_module(unit)}.v"} < set(files)
    assert all((folder / name).is_file() for name in files)
    mapped, roles = [], {}
    for bus in elements("busInterfaces/busInterface"):
        [name], kind = texts("name", bus), elements("busType", bus)[0].get("name")
        [abstraction] = elements("abstractionTypes/abstractionType/abstractionRef", bus)
        assert abstraction.get("name") == f"{kind}_rtl"
        pairs = "abstractionTypes/abstractionType/portMaps/portMap"
        logical = texts(f"{pairs}/logicalPort/name", bus)
        channels = {"s_axi": LITE, "s_axis_b": PLAIN_STREAM}.get(name, BUS[kind])
        assert sorted(logical) == sorted(c + s for c in channels for s in (channels[c].split() or [""]))
        mapped += texts(f"{pairs}/physicalPort/name", bus)
        [role] = (tag for tag in ("master", "slave") if elements(tag, bus))
        [maps] = elements(role, bus)
        refers = [value for e in maps for value in e.attrib.values()]
        known = texts("addressSpaces/addressSpace/name") if role == "master" else texts("memoryMaps/memoryMap/name")
        assert len(refers) == (kind == "aximm")
        assert set(refers) <= set(known)
        roles[name] = (kind, role)
    assert sorted(mapped) == sorted(ports_)
    managers = {"core_ip": ("m_axi", "h_axi", "t_axi"), "dre_ip": ("m_axi", "t_axi"), "motion_mask_ip": ()}[unit]
    own = dict.fromkeys(managers, ("aximm", "master")) | {"irq": ("interrupt", "master"), "s_axi": ("aximm", "slave")}
    own |= {"aclk": ("clock", "slave"), "aresetn": ("reset", "slave")}
    own |= dict.fromkeys(("s_axis_k", "s_axis_s") if unit == "dre_ip" else (), ("axis", "slave"))
    own |= {"s_axis_b": ("axis", "slave"), "m_axis_m": ("axis", "master")} if unit == "motion_mask_ip" else {}
    assert roles == own
    [width] = texts("memoryMaps/memoryMap/addressBlock/width")
    assert int(width) == ports_["s_axi_wdata"][1]
    assert {e.text for e in root.iter(f"{IPXACT}size")} == {width}  # no register is wider than the bus
    assert all(int(e.text) > 0 for e in root.iter(f"{IPXACT}bitWidth"))


def check_constraints(sdc: str, ports_: dict[str, tuple]) -> None:
    """Every port but the clock is timed, once and as what it is; nothing is left out."""
    assert "expr {2 * $ns}" in sdc
    for direction in ("input", "output"):
        [names] = re.findall(rf"set_{direction}_delay .*\[get_ports {{(.*)}}]", sdc)
        wants = [n if w == 1 else f"{n}[*]" for n, (d, w) in ports_.items() if d == direction and n != "aclk"]
        assert sorted(names.split()) == sorted(wants)
    assert "false_path" not in sdc


SOC = """CAPI=2:
name: user::soc:1.0
filesets:
  rtl: {{files: [soc.v], file_type: verilogSource, depend: [{depend}]}}
targets:
  lint:
    flow: lint
    flow_options: {{tool: verilator, verilator_options: [-Wall]}}
    filesets: [rtl]
    toplevel: soc
"""


def instance(folder: Path, name: str, top: str) -> str:
    """Verilog of a package's top module: inputs low, a wire for each output."""
    wires, pins = "", ".aclk(aclk), .aresetn(aresetn)"
    for port in json.loads((folder / "manifest.json").read_text())["ports"]:
        own, width, value = port["name"], port["width"], f"{port['width']}'d0"
        if port["dir"] == "out":
            value = f"unused_{name}_{own}"
            wires += f"  wire [{width - 1}:0] {value};\n"
        pins += f", .{own}({value})" if own not in ("clk", "rst") else ""
    return f"{wires}  {top} {name} ({pins});\n"


def test_two_configurations_live_in_one_design(tmp_path):
    """FuseSoC finds each by its name, Verilator elaborates both; nothing of one is called as something of the other."""
    both = {n: override(preset("tiny"), changes).core for n, changes in (("a", []), ("b", ["hcu.n_h=2"]))}
    names = {n: configuration(p) for n, p in both.items()}
    assert names["a"] == "tiny"
    assert len({*names.values()}) == 2
    text = "module soc (input wire aclk, input wire aresetn);\n"
    modules = []
    for n, p in both.items():
        write("dre_ip", p, tmp_path / n)
        text += instance(tmp_path / n, n, top_of(TOPS["dre_ip"], names[n]))
        sources = [(tmp_path / n / f"{top_of(x, names[n])}.v").read_text() for x in ("dre_ip", TOPS["dre_ip"])]
        modules.append({m for source in sources for m in re.findall(r"^module ([^\s(]+)", source, re.M)})
    assert all(len(m) > 20 for m in modules)
    assert not modules[0] & modules[1]
    (tmp_path / "soc.v").write_text(text + "endmodule\n")
    depend = ", ".join(f'"openvrex:ip:{top_of("dre_ip", x)}"' for x in names.values())
    (tmp_path / "soc.core").write_text(SOC.format(depend=depend))
    fusesoc_ = [Path(sys.executable).with_name("fusesoc"), "--cores-root", ".", "run", "--target", "lint", "user::soc"]
    linted = run(fusesoc_, tmp_path)
    assert linted.returncode == 0, linted.stdout[-2000:] + linted.stderr[-2000:]
    assert "Replacing" not in linted.stdout + linted.stderr
    assert "%Warning" not in linted.stdout + linted.stderr


def rows(text: str, title: str) -> list[list[str]]:
    """Cells of the table below a title of a data sheet."""
    part = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@pytest.mark.parametrize("unit", UNITS)
def test_the_data_sheet_has_the_numbers_of_the_package(unit, tmp_path):
    p = params(unit)
    write(unit, p, tmp_path)
    text = (tmp_path / f"{package(unit)}.md").read_text()
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert text.startswith(f"# `{top_module(unit)}`\n")
    assert {name: value for name, value, _ in rows(text, "Parameters")} == flat(p)
    ports_ = {name: (direction, int(bits)) for name, direction, bits in rows(text, "Ports")}
    wants = {x["name"]: (x["dir"], x["width"]) for x in manifest["ports"] if x["name"] not in ("clk", "rst")}
    assert ports_ == wants | {"aclk": ("in", 1), "aresetn": ("in", 1)}
    assert {name: formula for name, formula in rows(text, "Timing")} == manifest["timing"]
    memories = rows(text, "Memories")
    assert sum(int(row[-1]) for row in memories) == len(manifest["memories"])
    bits = sum(int(words) * int(width) * int(n) for _, _, words, width, *_, n in memories)
    assert f"{len(manifest['memories'])} memories, {bits:,} bits" in text
    for link in re.findall(r"\]\((\S+?)\)", text):
        assert (tmp_path / link).is_file(), link
    if unit == "dre_ip":
        own = {"s_axis_k_tuser": key_layout(p.dre.hcu), "s_axis_s_tuser": scores_layout(p.dre.wtu)}
        fields_ = {(port, name): (int(low), int(width)) for port, name, low, width in rows(text, "Fields of payloads")}
        for port, layout in own.items():
            for name, field in layout:
                assert fields_.pop((port, name)) == (field.offset, field.width)
        assert fields_.pop(("s_axis_k_tdata", "hash")) == (0, p.dre.hcu.n_hp)
        lanes = {f"[{i}].score": (CODE_BITS * i, p.dre.wtu.score.bits) for i in range(p.dre.wtu.n_w)}
        assert {name: of for (port, name), of in fields_.items() if port == "s_axis_s_tdata"} == lanes


@pytest.mark.parametrize("unit", UNITS)
def test_every_file_tells_where_it_is_from_and_needs_no_python(unit, tmp_path):
    """Licence, release and a command that makes the same bytes; and no name of this project's sources."""
    how = Options(2.5, "own", unit != "dre_ip", Language.SYSTEMVERILOG, True, MemoryPorts.FIRTOOL)
    files = write(unit, params(unit), tmp_path / "a", how)
    commands = set()
    for file in files:
        text = file.read_text()
        if file.name == "LICENSE":
            assert text == (ROOT / "LICENSE").read_text()
            continue
        at = text.partition("sha256")[0] if file.name == "manifest.json" else "\n".join(text.splitlines()[:300])
        told = f'"license": "Apache-2.0",\n "version": "{VERSION}"' if file.name == "manifest.json" else ""
        assert told or "SPDX-License-Identifier: Apache-2.0" in text, file
        assert (told or f"Generated by OpenVRex {VERSION}. ") in at or file.suffix == ".html", file
        commands |= set(re.findall(r"vrex (?:ip|generate) [^<\n\"]*", text))
        assert not re.findall(r"\b(?:hdl|golden|sim|tb|scripts)[./]\w+|\b\w+\.py\b|\bParamError\b", text), file
    [mine] = {c.strip() for c in commands if c.startswith("vrex ip") and "..." not in c}
    vrex(*shlex.split(mine)[1:], "-o", str(tmp_path / "b"))
    for file in files:
        assert (tmp_path / "b" / file.relative_to(tmp_path / "a")).read_bytes() == file.read_bytes(), file


@pytest.mark.parametrize("target", ["lint", pytest.param("sim", marks=pytest.mark.nightly)])
def test_a_package_whose_memories_can_be_tested(target, tmp_path):
    """Its shell has the ports, which belong to no bus, and the example leaves memories to the block."""
    files = write("dre_ip", params("dre_ip"), tmp_path, Options(bist=True))
    done = fusesoc(tmp_path, "dre_ip", target)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "%Warning" not in done.stdout + done.stderr
    assert ("smoke test passed" in done.stdout) == (target == "sim")
    shell = (tmp_path / f"{top_module('dre_ip')}.v").read_text()
    assert set(MEANING) == set(re.findall(r"^  (?:in|out)put wire (?:\[\d+:0\] )?(bist_\w+)", shell, re.M))
    assert not re.search(r"X_INTERFACE_INFO = \"[^\"]*bist", shell)
    sheet = (tmp_path / f"{package('dre_ip')}.md").read_text()
    assert all(f"- `{name}`: {meaning}\n" in sheet for name, meaning in MEANING.items())
    assert "bist_" not in "".join(f.read_text() for f in files if f.suffix in (".h", ".c", ".cpp", ".rdl"))


def test_black_boxes_lint_and_have_no_sim(tmp_path):
    """A package without memory bodies lints and reads in Yosys; SystemVerilog and assertions are in its targets."""
    how = Options(prefix="own", memory_bodies=False, language=Language.SYSTEMVERILOG, checked=True)
    write("dre_ip", params("dre_ip"), tmp_path, how)
    command = [Path(sys.executable).with_name("fusesoc"), "--cores-root", ".", "run", "--target"]
    linted = run([*command, "lint", "openvrex:ip:own_dre_ip"], tmp_path)
    assert linted.returncode == 0, linted.stderr
    assert "%Warning" not in linted.stdout + linted.stderr
    core = (tmp_path / "own_dre_ip.core").read_text()
    assert "own_dre_ip.sv: {file_type: systemVerilogSource}" in core
    assert "own_dre_ip_assertions.sv" in core
    assert "  sim:" not in core
    files = (tmp_path / "own_dre_ip_memories.v").read_text()
    read = yosys(tmp_path, *(tmp_path / "synth.ys").read_text().splitlines()[4:5], "hierarchy -check")
    assert read.returncode == 0, read.stdout[-2000:]
    assert "blackbox" in files
    assert run([*command, "sim", "openvrex:ip:own_dre_ip"], tmp_path).returncode


@pytest.mark.parametrize("unit", UNITS)
def test_the_page_for_the_chip_team_tells_the_truth(unit):
    """One clock, its rising edge, synchronous resets, no memory in a motion mask; the page is in every package."""
    made = emit(unit, params(unit))
    edges = set(re.findall(r"^ *always\S* *(@.*?\)|@\*)", made.verilog, re.M))
    assert edges <= {"@(posedge clk)", "@*"}
    assert not re.findall(r"\b(?:negedge|inout|tri|wand|wor|force)\b", re.sub(r"//.*", "", made.verilog))
    modules = {memory["module"].removeprefix(f"{unit}_") for memory in made.manifest["memories"] if memory["module"]}
    assert modules == ({"ram_1r1w", "ram_1rw"} if has_memory(unit) else set())
    text = CHIP.read_text()
    assert text == (ROOT / "docs" / "chip.md").read_text()
    assert not re.findall(r"\]\(", text)  # a package has no other page of the manual
    for word in (*TOPS, "aresetn", "status.resets", "reset_cycles", "--no-memory-bodies", "control.reset", "irq"):
        assert word in text


def test_files_are_written_together_or_not_at_all(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(openvrex.ip.package, "page", fail)
    with pytest.raises(OSError, match="no space"):
        write("dre_ip", params("dre_ip"), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("lxe",), "unit='lxe': must be one of core_ip, dre_ip, motion_mask_ip"),
        (("core_ip", "--preset", "tiny", "-p", "entry_bytes=36"), "entry_bytes=36: must be a multiple of a word"),
        (("core_ip", "--preset", "tiny", "-p", "n_hq=1"), "valid names:"),
        (("core_ip", "--preset", "tiny", "-p", "cores=2"), "parameter='cores': core has none of this name"),
        (("core_ip", "--preset", "tiny", "--prefix", "2x"), "prefix='2x': must be letters"),
        (("dre_ip", "--preset", "tiny", "--period", "0"), "period=0.0: must be more than 0 ns"),
        (
            ("motion_mask", "--preset", "tiny", "--bist"),
            "bist=True: needs a memory to test, and motion_mask",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, message, tmp_path):
    got = refuses("ip", *args, "-o", tmp_path / "out")
    assert message in got.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("below", ["", "below"])
def test_a_folder_that_is_a_file(tmp_path, below):
    file = tmp_path / "file"
    file.write_text("mine")
    got = refuses("ip", "dre_ip", "--preset", "tiny", "-o", file / below)
    assert f"-o={file / below}: must be a folder, and {file} is a file" in got.stderr
    assert file.read_text() == "mine"


# Address maps.


def fields(top: AddrmapNode) -> dict[str, dict[str, tuple]]:
    """Every register's path: its address, and its fields' places and accesses."""
    out = {}
    for node in top.descendants(unroll=True):
        if isinstance(node, RegNode):
            of = {f.inst_name: (f.low, f.width, f.get_property("sw").name) for f in node.fields()}
            out[node.get_rel_path(top)] = {"": (node.absolute_address, node.size)} | of
        elif isinstance(node, MemNode):
            of = {"": (node.absolute_address, node.size), "value": (0, node.get_property("memwidth"), "w")}
            out[node.get_rel_path(top)] = of
    return out


def c_header(top: AddrmapNode, unit: str, folder: Path) -> dict[str, dict[str, tuple]]:
    """The same of the C header, by a C compiler: without accesses, and of windows without fields."""
    header(top, folder / f"{unit}.h")
    lines = []
    for path, of in fields(top).items():
        lines.append(f'printf("{path}  %zu %zu\\n", offsetof({unit}_t, {path}), sizeof(((({unit}_t *)0)->{path})));')
        macro = "__".join([unit, *re.sub(r"\[\d+]", "x", path).split(".")]).upper()
        for name in filter(None, of if isinstance(top.find_by_path(path), RegNode) else ()):
            field = f"{macro}__{name.upper()}"
            lines.append(f'printf("{path} {name} %d %d\\n", {field}_bp, {field}_bw);')
            lines.append(f"if ({field}_bm != ((1ull << {field}_bw) - 1) << {field}_bp) return 1;")
    text = f'#include <stddef.h>\n#include <stdio.h>\n#include "{unit}.h"\nint main(void) {{\n' + "\n".join(lines)
    (folder / "offsets.c").write_text(text + "\nreturn 0;\n}\n")
    built = run(["gcc", *STRICT, "-o", "offsets", "offsets.c"], folder)
    assert built.returncode == 0, built.stderr
    ran = run([folder / "offsets"], folder)
    assert ran.returncode == 0
    out: dict[str, dict[str, tuple]] = {}
    for path, name, a, b in (line.split(" ") for line in ran.stdout.splitlines()):
        out.setdefault(path, {})[name] = (int(a), int(b))
    return out


def ip_xact(top: AddrmapNode, p: CoreParams | MaskParams, folder: Path) -> dict[str, dict[str, tuple]]:
    """The same of IP-XACT."""
    unit = top.inst_name
    ports_ = Emitted("", unit, {"unit": unit, "ports": ports_of(component_of(unit, p))})
    ipxact(top, ports_, p, folder / f"{unit}.xml", "1.2.3")
    access = {"read-only": "r", "write-only": "w", "read-write": "rw"}
    out = {}

    def number(node, tag: str) -> int:
        text = node.findtext(IPXACT + tag)
        return int(text[2:], 16) if text.startswith("'h") else int(text)

    def walk(node, path: str, base: int) -> None:
        for child in node:
            tag = child.tag.removeprefix(IPXACT)
            if tag not in ("registerFile", "register"):
                continue
            name, at = child.findtext(f"{IPXACT}name"), base + number(child, "addressOffset")
            dim = child.find(f"{IPXACT}dim")
            if tag == "registerFile":
                size = number(child, "range")
                for i in range(int(dim.text) if dim is not None else 1):
                    walk(child, f"{path}{name}[{i}]." if dim is not None else f"{path}{name}.", at + i * size)
                continue
            of = {"": (at, number(child, "size") // 8 * (int(dim.text) if dim is not None else 1))}
            for field in child.iter(f"{IPXACT}field"):
                at_bits = number(field, "bitOffset"), number(field, "bitWidth")
                of[field.findtext(f"{IPXACT}name")] = (*at_bits, access[field.findtext(f"{IPXACT}access")])
            out[path + name] = of

    walk(ET.parse(folder / f"{unit}.xml").find(f".//{IPXACT}addressBlock"), "", 0)
    return out


def halved(registers: dict[str, dict[str, tuple]]) -> dict[str, dict[str, tuple]]:
    """Registers as a bus of 32 bits has them: those of 64 in two words."""
    out = {}
    for path, of in registers.items():
        (at, size), whole = of[""], {name: field for name, field in of.items() if name}
        if size != 8:
            out[path] = of
            continue
        for word, half in enumerate(("low", "high")):
            own = {name: (low - 32 * word, *rest) for name, (low, *rest) in whole.items() if low // 32 == word}
            if own:
                out[f"{path}_{half}"] = {"": (at + 4 * word, 4)} | own
    return out


class Cells(HTMLParser):
    """Rows of the tables of a page, by the id of the heading above them."""

    def __init__(self, text: str):
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {"": []}
        self.at, self.inside = "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "h2":
            self.at = dict(attrs)["id"]
            self.rows[self.at] = []
        if tag == "tr":
            self.rows[self.at].append([])
        self.inside = tag == "td" or (self.inside and tag in ("code", "span", "a"))
        if tag == "td":
            self.rows[self.at][-1].append("")

    def handle_data(self, text):
        if self.inside:
            self.rows[self.at][-1][-1] += text


def html_page(top: AddrmapNode) -> dict[str, dict[str, tuple]]:
    """The same of the page; a register of one whole number is a row of the overview."""
    cells, access = Cells(page(top, "x", [])).rows, {"read": "r", "read, write": "rw", "write": "w"}
    access |= {"write: a one acts once": "w", "read; writing a one clears": "rw"}
    size = {n.get_rel_path(top): n.size for n in top.descendants(unroll=True) if isinstance(n, RegNode | MemNode)}
    out = {}
    for address, path, how, _ in cells.pop("")[1:]:
        out[path] = {"": (int(address, 16), size[path])}
        if path in cells:
            for bits, name, own, *_ in (row for row in cells[path] if len(row) == 5):
                high, low = (list(map(int, bits.split(":"))) * 2)[:2]
                out[path][name] = (low, high - low + 1, access[own])
        else:
            out[path]["value"] = (0, 32, access[how])
    return out


@pytest.mark.parametrize("unit", UNITS)
def test_the_page_of_registers_loads_nothing(unit):
    """A browser that opens it from disk refuses scripts that fetch, modules and fonts: the page has none."""
    text = page(address_map(unit, params(unit)), "x", ["origin & more"])
    assert not re.findall(r"<(?:script|link|img|iframe|object|embed|base)|@import|url\(|\bon\w+=", text)
    assert all(target.startswith("#") for target in re.findall(r'(?:href|src)="([^"]*)"', text))
    ids = re.findall(r'id="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"', text)) == set(ids)
    assert "origin &amp; more" in text


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(not CHROMIUM, reason="no chromium: apt install chromium")
@pytest.mark.parametrize("unit", UNITS)
def test_a_browser_shows_the_page_of_registers(unit, tmp_path):
    """From disk: it has the rows that software reads, and says nothing on its console."""
    top = address_map(unit, params(unit))
    file = tmp_path / "registers.html"
    file.write_text(page(top, "x", []))
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path}/own",
    ]
    shown = run([CHROMIUM, *flags, "--dump-dom", file.as_uri()], tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "CONSOLE" not in shown.stderr
    rows = Cells(shown.stdout).rows
    names = {n.get_rel_path(top) for n in top.descendants(unroll=True) if isinstance(n, RegNode | MemNode)}
    assert {row[1] for row in rows[""][1:]} == names


@pytest.mark.parametrize("unit", UNITS)
def test_address_maps_are_those_of_the_registers(unit, tmp_path, capfd):
    p = params_of(unit, override(preset("tiny"), ["wtu.n_h=2"]))
    top = address_map(unit, p)
    wants = fields(top)
    assert ip_xact(top, p, tmp_path) == halved(wants)
    plain = {path: {n: x[:2] for n, x in of.items()} for path, of in wants.items()}
    windows = {n.inst_name for n in top.children() if isinstance(n, MemNode)}
    assert c_header(top, unit, tmp_path) == {p: {"": x[""]} if p in windows else x for p, x in plain.items()}
    assert html_page(top) == wants
    assert capfd.readouterr().err == ""  # what IP-XACT has no word for is not left out
    assert all(isinstance(f, FieldNode) for r in top.descendants() if isinstance(r, RegNode) for f in r.fields())


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("name", ["tiny", "core"])
def test_regblock_makes_rtl_of_the_registers(unit, name, tmp_path):
    """It refuses, say, a field that no single access reaches. `tiny` has addresses of 32 bits, `core` of 40."""
    text = description(unit, params_of(unit, preset(name)))

    def export(text: str) -> bool:
        (tmp_path / RDL.name).write_text(text)
        compiler = RDLCompiler(message_printer=Silent())
        for udp in ALL_UDPS:
            compiler.register_udp(udp)
        compiler.compile_file(str(tmp_path / RDL.name))
        RegblockExporter().export(compiler.elaborate(), str(tmp_path), cpuif_cls=AXI4Lite_Cpuif)
        return True

    assert export(text)
    assert (tmp_path / f"{unit}.sv").stat().st_size > 10_000
    wide = "reg { regwidth = 64; accesswidth = 32; field { sw = rw; hw = r; } value[40] = 0; } wide @ 0xF0;"
    with pytest.raises(RDLCompileError):
        export(text.rpartition("};")[0] + wide + "\n};\n")


class Silent(MessagePrinter):
    """Prints nothing of what is wrong."""

    def print_message(self, *_: object) -> None:
        pass


# What any SystemRDL compiler says of a file, seeing nothing of this project.
PLAIN = """
import json, sys
from systemrdl import RDLCompiler
from systemrdl.node import MemNode, RegNode
compiler = RDLCompiler()
compiler.compile_file(sys.argv[1])
tops = [name for name, made in compiler.root.comp_defs.items() if type(made).__name__ == "Addrmap"]
registers, windows = [], []
for node in compiler.elaborate().top.descendants(unroll=True):
    if isinstance(node, MemNode):
        windows.append([node.absolute_address, node.size])
    if isinstance(node, RegNode):
        fields = [[f.inst_name, f.low, f.width, f.is_sw_readable, f.get_property("sw").name == "rw" and not
                   f.get_property("onwrite"), f.get_property("reset"), f.get_property("most", default=None),
                   f.get_property("zeros", default=0)] for f in node.fields()]
        registers.append([node.get_path(), node.absolute_address, node.size, fields])
json.dump([tops, registers, windows], sys.stdout)
"""


@pytest.mark.parametrize("unit", UNITS)
def test_the_shipped_registers_are_those_of_the_hardware(unit, tmp_path, record_property):
    """A compiler alone reads from `registers.rdl` which addresses answer, what is there after a reset, and how wide."""
    p = dre_ip_params(DRE_IP) if unit == "dre_ip" else params(unit)
    write(unit, p, tmp_path, Options(prefix=""))
    read = run([sys.executable, "-I", "-c", PLAIN, "registers.rdl"], tmp_path)
    assert read.returncode == 0, read.stderr
    tops, registers, windows = json.loads(read.stdout)
    assert tops == [unit]
    readable, reset, known, writable, limits = set(), {}, {}, {}, {}
    for _, address, size, fields_ in registers:
        words = range(address, address + size, 4)
        readable |= {*words} if any(field[3] for field in fields_) else set()
        for _, low, width, _, free, value, most, zeros in fields_:
            for at in words:
                mask = ((1 << width) - 1 << low) >> 8 * (at - address) & 0xFFFFFFFF
                if value is not None:
                    reset[at] = reset.get(at, 0) | (value << low) >> 8 * (at - address) & mask
                    known[at] = known.get(at, 0) | mask
                if free and mask:
                    ones = mask >> zeros << zeros if most is None else most
                    writable[at] = writable.get(at, 0) | ones
                    limits[at] = most
    emitted = openvrex.ip.package.emit(unit, p, "")
    [bits] = (x["width"] for x in emitted.manifest["ports"] if x["name"] == "s_axi_araddr")
    end = max(address + size for _, address, size, _ in registers)
    asked = [
        *range(0, min(end + 64, 1 << bits), 4),
        *(at for first, size in windows for at in (first, first + size - 4)),
    ]
    [status] = (r for r in registers if r[0] == f"{unit}.status")
    [bit] = (low for name, low, *_ in status[3] if name == "resets")
    config = {"resets": [status[1], bit], "reads": asked}
    config["writes"] = [(at, limits[at]) for at in sorted(writable)]
    got = Run(emitted, "bench_register_block", "after_reset", config)()
    answers = dict(zip(asked, got["reads"], strict=True))
    assert {at for at, (_, resp) in answers.items() if resp == OKAY} == readable
    assert {at: answers[at][0] & known[at] for at in known if at in readable} == {
        at: value for at, value in reset.items() if at in readable
    }
    assert dict(zip(sorted(writable), got["ones"], strict=True)) == writable
    record_property("registers", len(registers))


# Driver on a bus of Python.


class Bus:
    """Registers that hold what was written, and the driver on them. prefix : of its functions"""

    def __init__(self, library: Path, top: AddrmapNode, prefix: str):
        self.top, self.words, self.log, self.prefix = top, {}, [], prefix
        for node in top.descendants(unroll=True):
            if isinstance(node, FieldNode):
                at = node.parent.absolute_address
                self.words[at] = self.words.get(at, 0) | (node.get_property("reset") or 0) << node.low
        self.driver = ctypes.CDLL(str(library))
        self.kinds = (
            ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32),
            ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32),
        )
        self.functions = self.kinds[0](self._read), self.kinds[1](self._write)
        self.device = (ctypes.c_void_p * 3)()

    def _read(self, _, offset: int) -> int:
        return self.words.get(offset, 0)

    def _write(self, _, offset: int, value: int) -> None:
        self.log.append((offset, value))

    def at(self, path: str) -> int:
        return self.top.find_by_path(path).absolute_address

    def call(self, name: str, *args) -> int:
        return getattr(self.driver, f"{self.prefix}_{name}")(self.device, *args)

    def init(self) -> int:
        return getattr(self.driver, f"{self.prefix}_init")(self.device, *self.functions, None)


CODES = {"OK": 0, "NO_DEVICE": -1, "VERSION": -2, "PARAMETERS": -3, "RANGE": -4, "BUSY": -5, "FAULT": -6, "TIMEOUT": -7}
CODES |= {"FULL": -8, "USED": -9, "CHECKPOINT": -10, "MEMORY": -11, "FILE": -12}


class Config(ctypes.Structure):
    _fields_ = [
        ("th_hd", ctypes.c_uint32),
        ("ratio", ctypes.c_uint32),
        ("device_base", ctypes.c_uint64),
        ("home_base", ctypes.c_uint64),
        ("table_base", ctypes.c_uint64),
        ("blocks", ctypes.c_uint32),
        ("contexts", ctypes.c_uint32),
        ("watchdog", ctypes.c_uint32),
    ]


class Frame(ctypes.Structure):
    _fields_ = [
        ("program", ctypes.c_void_p),
        ("instructions", ctypes.c_size_t),
        ("registers", ctypes.c_uint64 * 16),
        ("set", ctypes.c_uint32),
    ]


def built(unit: str, folder: Path, *more: str) -> tuple[Path, AddrmapNode, str]:
    """The driver of a package as a library, the registers, and what its functions' names begin with.

    more : parameters
    """
    p = params_of(unit, override(preset("tiny"), more)) if more else params(unit)
    top = address_map(unit, p)
    header(top, folder / f"{unit}.h")
    if has_memory(unit):
        table_header(p.dre.layout(), unit, folder / f"{unit}_tables.h")
    for name, text in sources(Emitted("", unit, {"unit": unit, "ports": []})).items():
        if name.startswith("driver/"):
            (folder / Path(name).name).write_text(text)
    made = run(
        ["gcc", *STRICT, "-ffreestanding", "-shared", "-fPIC", "-I.", "-o", "driver.so", *folder.glob("*.c")], folder
    )
    assert made.returncode == 0, made.stderr
    symbols = run(["nm", "-u", "driver.so"], folder).stdout
    assert not [s for s in symbols.split() if len(s) > 1 and not s.startswith("_")]  # no library
    return folder / "driver.so", top, OWN[unit]


@pytest.fixture(scope="module", params=["core_ip", "dre_ip"])
def either(request, tmp_path_factory) -> tuple[Path, AddrmapNode, str]:
    """The driver of a core, and that of a DRE, which share most of it."""
    return built(request.param, tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> tuple[Path, AddrmapNode, str]:
    """The driver of a core."""
    return built("core_ip", tmp_path_factory.mktemp("driver"))


def test_the_driver_knows_its_device(either):
    assert Bus(*either).init() == CODES["OK"]
    for path, value, result in (
        ("magic", 0, "NO_DEVICE"),
        ("version", 0x1_0100, "VERSION"),  # MAJOR
        ("version", 0x0_0000, "VERSION"),  # an older MINOR
        ("version", 0x0_0201, "OK"),
        ("contexts", 9, "PARAMETERS"),
        ("clusters", 9, "PARAMETERS"),
        ("entry_bytes", 9, "PARAMETERS"),
        ("word_bytes", 9, "PARAMETERS"),
        ("tables", 9, "PARAMETERS"),
    ):
        bus = Bus(*either)
        bus.words[bus.at(f"identity.{path}")] = value
        assert bus.init() == CODES[result], path


def test_the_driver_refuses_what_cannot_be(library):
    bus = Bus(*library)
    bus.init()
    limit = {"th_hd": 1 << params("core_ip").dre.hcu.distance_bits, "ratio": 65537}
    limit |= dict.fromkeys(("device_base", "home_base", "table_base"), 1 << params("core_ip").dre.kvmu.addr_bits)
    limit |= {"contexts": params("core_ip").dre.kvmu.n_ctx + 1, "blocks": params("core_ip").dre.kvmu.blocks + 1}
    word = params("core_ip").core_format().word_bytes
    wrong = [*limit.items(), ("table_base", 2048), ("blocks", 0), ("device_base", word // 2), ("home_base", word - 1)]
    bus.log.clear()
    for name, value in wrong:
        assert bus.call("configure", ctypes.byref(Config(**{"blocks": 1} | {name: value}))) == CODES["RANGE"], name
    depth = params("core_ip").lxe.i_depth
    program = (ctypes.c_uint32 * (8 * depth + 8))()
    assert bus.call("load", program, ctypes.c_size_t(depth + 1)) == CODES["RANGE"]
    assert bus.call("set", 16, ctypes.c_uint64(1)) == CODES["RANGE"]
    frame = ctypes.byref(Frame(ctypes.addressof(program), 1, (), 0xFFFF))
    for status, result in ((Status.RUNNING, "BUSY"), (1 << 10, "BUSY"), (Status.BUS, "FAULT")):
        bus.words[bus.at("status")] = int(status)
        assert bus.call("submit", frame) == CODES[result]
        if result == "BUSY":
            assert bus.call("configure", ctypes.byref(Config(blocks=1))) == CODES["BUSY"]
            assert bus.call("load", program, ctypes.c_size_t(1)) == CODES["BUSY"]
            assert bus.call("set", 1, ctypes.c_uint64(1)) == CODES["BUSY"]
    assert not bus.log  # nothing is written by what is refused
    for status, result in ((Status.RUNNING, "TIMEOUT"), (Status.FULL, "FAULT"), (Status.DONE, "OK")):
        bus.words[bus.at("status")] = int(status)
        assert bus.call("wait", 10) == CODES[result]
    bus.words[bus.at("status")] = 1 << 10
    assert bus.call("reset", 10) == CODES["TIMEOUT"]
    bus.words[bus.at("status")] = 0
    assert bus.call("reset", 10) == CODES["OK"]
    assert bus.log == [(bus.at("control"), 2)] * 2


def test_the_driver_clears_the_interrupts_that_it_saw(either):
    bus = Bus(*either)
    bus.init()
    for events in (0, 1, 2, 3, 4, 7):
        bus.log.clear()
        bus.words[bus.at("irq")] = events
        assert bus.call("interrupt") == events
        assert bus.log == ([(bus.at("irq"), events)] if events else [])
    bus.call("enable", 0xFF)
    assert bus.log[-1] == (bus.at("irq_enable"), 7)


class Confined(ctypes.Structure):
    _fields_ = [("first", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("allow", ctypes.c_uint32)]


class Refused(ctypes.Structure):
    _fields_ = [("manager", ctypes.c_uint32), ("write", ctypes.c_uint32), ("page", ctypes.c_uint64)]


def test_the_driver_confines_a_block(either):
    """It refuses regions that cannot be, and writes the others before they count; those left over allow nothing."""
    bus, most = Bus(*either), preset("tiny").core.regions
    bus.init()
    top = 1 << ADDR_BITS
    good = [(0, top, 63), (8192, 4096, Allow.LOAD), (top - 4096, 4096, Allow.TABLE_READ)]

    def confine(regions: list[tuple[int, int, int]]) -> int:
        return bus.call("confine", (Confined * max(1, len(regions)))(*regions), len(regions))

    bus.log.clear()
    for wrong in ((4095, 4096, 1), (0, 4095, 1), (0, 0, 1), (top, 4096, 1), (4096, top, 1), (0, 4096, 64)):
        assert confine([good[0], wrong]) == CODES["RANGE"], wrong
    assert confine(good[:1] * (most + 1)) == CODES["RANGE"]
    bus.words[bus.at("status")] = int(Status.RUNNING)
    assert confine(good) == CODES["BUSY"]
    assert not bus.log
    bus.words[bus.at("status")] = 0
    assert confine(good) == CODES["OK"]
    assert bus.log[-1] == (bus.at("confine"), 1)
    wrote = dict(bus.log)
    for k, (first, size, allow) in enumerate([*good, (0, 0, 0)]):
        at = [bus.at(f"region[{k}].{name}") for name in ("first", "last")]
        assert wrote[bus.at(f"region[{k}].allow")] == allow
        got = [wrote[a] | wrote[a + 4] << 32 for a in at if a in wrote]
        assert got == ([first, first + size - PAGE] if allow else [])
    assert confine([]) == CODES["OK"]
    assert bus.log[-1] == (bus.at("confine"), 0)
    found = Refused()
    assert not bus.call("refused", ctypes.byref(found))
    bus.words[bus.at("refused.burst")], bus.words[bus.at("refused.page")] = 0b1011, (1 << 28) - 1
    assert bus.call("refused", ctypes.byref(found)) == 1
    assert (found.manager, found.write, found.page) == (2, 1, top - 4096)


@pytest.mark.parametrize("unit", ["core_ip", "dre_ip"])
def test_the_driver_says_whose_contexts_run(unit, tmp_path):
    """It refuses what the block does not have, and a block that is not made to be shared."""
    bus, p = Bus(*built(unit, tmp_path, "shared=true")), preset("tiny").core.dre.kvmu
    bus.init()
    bus.log.clear()
    for wrong in ((2, 2, 0), (3, 2, 0), (0, p.n_ctx + 1, 0), (0, 1, p.blocks + 1)):
        assert bus.call("share", *wrong) == CODES["RANGE"], wrong
    bus.words[bus.at("status")] = int(Status.RUNNING)
    assert bus.call("share", 0, 1, 0) == CODES["BUSY"]
    assert not bus.log
    bus.words[bus.at("status")] = 0
    assert bus.call("share", p.n_ctx - 1, p.n_ctx, p.blocks) == CODES["OK"]
    wrote = {"first_context": p.n_ctx - 1, "contexts": p.n_ctx, "quota": p.blocks}
    assert dict(bus.log) == {bus.at(name): value for name, value in wrote.items()}


def test_a_block_of_one_user_is_not_shared(library):
    bus = Bus(*library)
    bus.init()
    assert bus.call("share", 0, 1, 0) == CODES["RANGE"]


def test_names_of_the_driver_are_those_of_the_hardware():
    text = (HERE / "driver" / "openvrex_block.h").read_text()
    codes = {n: int(v) for n, v in re.findall(r"OPENVREX_CODE_(\w+) = (\d+)", text)}
    assert codes == {s.name: int(s) for s in Status}
    results = {n: int(v) for n, v in re.findall(r"OPENVREX_((?!CODE)\w+) = (0|-\d+)", text)}
    allow = {n: int(v) for n, v in re.findall(r"OPENVREX_(\w+) = (\d+),? +/\* the", text)}
    assert allow == {a.name: int(a) for a in Allow}
    assert results == CODES


def test_the_examples_of_the_manual_compile(tmp_path):
    """Each with the drivers of all blocks beside it."""
    shown = re.findall(r"<!-- file: (ip/calls/\w+\.c) -->", (ROOT / "docs/integration.md").read_text())
    assert sorted(shown) == sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "ip/calls").iterdir())
    for unit in UNITS:
        (tmp_path / unit).mkdir()
        built(unit, tmp_path / unit)
    include = [x for unit in UNITS for x in ("-I", tmp_path / unit)]
    for name in shown:
        made = run(["gcc", *STRICT, *include, "-c", ROOT / name], tmp_path)
        assert made.returncode == 0, made.stderr


# Driver on the example SoC.

SWAPPED = (".rst(~aresetn)", '.rst($test$plusargs("swapped") ? aresetn : ~aresetn)')


SOC_PARAMS = {"dre_ip": lambda unit: dre_ip_params(DRE_IP), "motion_mask_ip": lambda unit: preset("tiny").mask}


@cache
def soc(unit: str = "core_ip") -> Path:
    """Where FuseSoC has built the example of a package once per content. A core's shell can be told to swap its reset.

    Without optimisation, which takes longer than the runs would gain.
    """
    p = SOC_PARAMS.get(unit, params)(unit)
    with tempfile.TemporaryDirectory() as new:
        write(unit, p, Path(new))
        if unit == "core_ip":
            shell = Path(new, f"{top_module(unit)}.v")
            assert SWAPPED[0] in shell.read_text()
            shell.write_text(shell.read_text().replace(*SWAPPED))
        files = sorted(f for f in Path(new).rglob("*") if f.is_file())
        folder = BUILD / f"soc-{hashlib.sha256(b''.join(f.read_bytes() for f in files)).hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "done").exists():
                shutil.copytree(new, folder, dirs_exist_ok=True)
                how = ["--make_options", "OPT_FAST=-O0 OPT_GLOBAL=-O0"]
                if has_memory(unit):
                    how += ["--LATENCY", str(LATENCY), "--SIZE", str(1 << (20 if unit == "core_ip" else 22))]
                command = [Path(sys.executable).with_name("fusesoc"), "--cores-root", ".", "run", "--target", "sim"]
                built = run([*command, f"openvrex:ip:{top_of(unit, configuration(p))}", *how], folder)
                assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
                assert "smoke test passed" in built.stdout
                (folder / "done").touch()
    [work] = folder.glob("build/*/sim")
    return work


def with_driver(folder: Path, old: str, new: str) -> Path:
    """The example with another driver."""
    names = ("openvrex", "openvrex_block")
    texts = {name: (HERE / "driver" / f"{name}.c").read_text() for name in names}
    [edited] = [name for name, text in texts.items() if old in text]
    (folder / "driver.c").write_text(texts[edited].replace(old, new, 1))
    include = ["-I", HERE / "driver", "-I", soc().parents[2]]
    parts = [
        soc() / "main.o",
        *(soc() / f"{name}.o" for name in (*names, "openvrex_checkpoint") if name != edited),
        *soc().glob("verilated*.o"),
        soc() / "Vopenvrex_soc__ALL.a",
    ]
    built = run(["g++", *include, "-x", "c++", "driver.c", "-x", "none", *parts, "-o", "soc"], folder)
    assert built.returncode == 0, built.stderr
    return folder / "soc"


def loads(words: Sequence[str], registers: dict[int, int]) -> list[str]:
    """Lines that load a program."""
    values = (f"register {r} {value}" for r, value in registers.items())
    return ["program", *(f"instruction {word}" for word in words), *values]


class Frames:
    """Passes through two layers by golden, and what software has to do for them.

    count : of passes · seed : of their inputs, if they differ · how : contexts of the layers, as for `host`
    """

    def __init__(self, count: int, seed: int | None = None, how: list[dict] = ALONE):
        rng = np.random.default_rng(1)
        self.h = h = host(rng, how=how)
        rng = np.random.default_rng(seed) if seed else rng
        self.script = Script(h.memory, [r.name for r in h.memory.regions])
        for k in range(count):
            begin(h, rng, k * SHAPE.tokens)
            for layer in range(LAYERS):
                self.script.add(h.program(layer), h.registers(layer))
                h.run(layer)
                self.script.expect()
        top, names = address_map("core_ip", core_params()), emit("core", core_params()).manifest["counters"]
        paths = ("perf." + n.replace("wtu0", "wtu[0]") for n in names)
        self.counters = {n: top.find_by_path(p).absolute_address for n, p in zip(names, paths, strict=True)}

    def play(
        self,
        soc: Path,
        folder: Path,
        before: Sequence[str] = (),
        count: int | None = None,
        after: Sequence[str] = (),
    ) -> tuple[list[Ran], np.ndarray]:
        """On the example SoC; every other run is polled for. count: of runs · before, after: lines around them"""
        runs = self.script.runs[:count]
        self.script.before.tofile(folder / "before.bin")
        p = ports(self.h)
        lines = [*before, "read before.bin"]
        bases = " ".join(f"{p[name]:#x}" for name in ("device_base", "home_base", "table_base"))
        lines += [f"configure {p['th_hd']} {p['ratio']} {bases} {p['blocks']} {p['contexts']}"]
        for k, one in enumerate(runs):
            lines += [f"write {address:#x} {text}" for address, text in one["writes"]]
            lines += loads(self.script.programs[one["program"]], one["registers"])
            lines += ["poll" if k % 2 else "run", *(f"counter {at:#x}" for at in self.counters.values())]
            lines += [f"dump {k}.bin {len(self.script.before)}"]
        (folder / "script").write_text("\n".join([*lines, *after]))
        ran = run([soc, "+script=script"], folder)
        assert ran.returncode == 0, ran.stderr
        found = re.findall(r"^(?:run|poll) code (\d+) pc (\d+) cycles (\d+)$", ran.stdout, re.M)[
            -len(self.script.runs) - after.count("run") :
        ][: len(runs)]
        values = list(map(int, re.findall(r"^counter \S+ (\d+)$", ran.stdout, re.M)))
        out = []
        for k, (code, pc, cycles) in enumerate(found):
            after = np.fromfile(folder / f"{k}.bin", np.uint8)
            seen = {r.name: after[r.base : r.end].tobytes() for r in self.h.memory.regions}
            perf = dict(zip(self.counters, values[k * len(self.counters) :], strict=False))
            out.append(Ran(Status(int(code)), int(pc), int(cycles), perf, seen))
        return out, after

    def differs(self, first: Ran) -> list[str]:
        """What the first run alone leaves otherwise than golden."""
        wants = self.script.wants[0]
        wrong = [n for n, (data, known) in wants.items() if known is None and first.seen[n] != data]
        return [*wrong, *([] if first.status == Status.DONE else [first.status.name])]


@cache
def frames() -> Frames:
    return Frames(3)


TIMING = ("waits", "starved")  # counters of cycles, which another memory changes


def test_the_driver_plays_frames_as_golden(tmp_path, record_property):
    """Every byte of memory after every run, counters as the core's under cocotb; after a fault, too."""
    f = frames()
    load = Instruction(Opcode.LOAD, {"target": LoadTo.W, "addr": 1 << 30})
    assert 1 << 30 > 1 << 20  # the memory's size: an error response
    program = [f"instruction {encode(i):#x}" for i in (load, Instruction(Opcode.HALT, {}))]
    broken = ["program", *program, "run", "program", *program[1:], "reset", "poll", "reset"]
    ran, after = f.play(soc() / "Vopenvrex_soc", tmp_path, broken)
    assert not f.script.differences(ran, after)
    plain, _ = f.script.play(emit("core", core_params()), ports(f.h), seed=1)
    for mine, other in zip(ran, plain, strict=True):
        one = {"lxe.sequencer.instructions": 1}  # HALT is counted in the cycle in which the other bench looks
        events = [n for n in mine.perf if not n.endswith(TIMING)]
        assert {n: mine.perf[n] for n in events} == {n: other.perf[n] + one.get(n, 0) for n in events}
    assert ran[-1].perf["retriever.entries"] == 3 * LAYERS * SHAPE.tokens
    assert ran[-1].perf["retriever.fetches"] > 0
    record_property("cycles", [r.cycles for r in ran[::2]])


@pytest.mark.nightly
def test_the_driver_of_a_dre_plays_frames_as_golden(tmp_path):
    """Results of every command and every byte of memory, polled for or by interrupt; a fault and a reset before."""
    s = dre_frames(1, 20)
    f, p = s.function, s.p
    (tmp_path / "before.bin").write_bytes(s.before)
    lines = [f"configure {f.th_hd} {f.ratio_q16} {DEVICE:#x} {HOME:#x} {TABLES:#x} {p.kvmu.blocks} {p.hcu.n_ctx}"]
    lines += ["read before.bin", f"run {int(Retrieve.CLEAR)} {p.hcu.n_ctx} 1 0", "reset"]
    for step in s.steps:
        lines += [f"write {address:#x} {text}" for address, text in step.get("writes", ())]
        for kind, layout in (("key", key_layout(p.hcu)), ("row", scores_layout(p.wtu))):
            beats = step.get(f"{kind}s", ())
            lines += [f"{kind} {b['data']:x} {pack(layout, b['user'])} {b['last']}" for b in beats]
        if c := step.get("command"):
            how = "poll" if step["polls"] else "run"
            lines += [f"{how} {c['action']} {c.get('base', 0)} {c.get('rows', 1)} {c.get('shift', 0)}"]
    (tmp_path / "script").write_text("\n".join([*lines, f"dump after.bin {len(s.before)}"]))
    ran = run([soc("dre_ip") / "Vopenvrex_soc", "+script=script"], tmp_path)
    assert ran.returncode == 0, ran.stderr
    found = re.findall(r"^(?:run|poll) code (\d+) result (\d+) count (\d+) ", ran.stdout, re.M)
    first, *rest = [list(map(int, one)) for one in found]
    assert first[0] == Status.RANGE
    assert rest == s.wants
    assert (tmp_path / "after.bin").read_bytes() == bytes(s.memory)
    assert s.bins >= {"CLUSTER", "PLACE", "FETCH", "SWITCH", "CLEAR", "fetches"}


def test_the_driver_of_a_motion_mask_plays_frames_as_golden(tmp_path):
    """Rows and tokens kept, by interrupt or polled for, in the cycles of the time view; a fault and a reset before."""
    p = preset("tiny").mask
    frames = covering(p, 3, 6) + mask_stream(p, 4, 14)
    lines = ["block 0", "block 0", "run 60 60 0 0 0 1 1", "block 0", "reset"]
    for k, (c, _) in enumerate(frames):
        lines += [f"block {beat:x}" for beat in mask_bits(p, frames[k : k + 1])]
        flags = " ".join(str(int(x)) for x in (c.leads, c.take, c.accumulate))
        lines.append(f"{'poll' if k % 2 else 'run'} {c.width} {c.height} {c.limit} 0 {flags}")
    (tmp_path / "script").write_text("\n".join(lines))
    ran = run([soc("motion_mask_ip") / "Vopenvrex_soc", "+script=script"], tmp_path)
    assert ran.returncode == 0, ran.stderr
    _, *got = re.findall(r"^(?:run|poll) done kept (\d+) cycles (\d+) rows(.*)$", ran.stdout, re.M)
    wants = iter(masks(p, frames))
    for (command, _), (kept, _, row) in zip(frames, got, strict=True):
        tokens = next(wants)[1] if command.take else np.zeros((0, p.tokens), bool)
        assert int(kept) == tokens.sum()
        assert [int(x, 16) for x in row.split()] == [sum(int(t) << i for i, t in enumerate(r)) for r in tokens]


def continued(b: CoreHost, a: CoreHost, checkpoint: bytes, to: int) -> tuple[list[str], np.ndarray]:
    """Layer 0 of `a` continues in context `to` of `b`, which is cleared first.

    The lines for the example SoC, and the memory that `b` has after them by golden.
    """
    layout = core_params().dre.layout()
    words = [f"{encode(i):x}" for i in forget(to)]
    b.execute(forget(to), {})
    lines = [*loads(words, {}), "run", f"restore checkpoint.bin {to}"]
    memory = image(b.memory)
    restore(layout, b.core.dre, memory, to, checkpoint)
    for region in b.memory.regions:
        region.data[:] = memory[region.base : region.end]
    b.tables.write()
    before = image(b.memory)
    for h in (a, b):  # the pass goes on with the same inputs
        begin(h, np.random.default_rng(9), 2 * SHAPE.tokens)
    [theirs], [own] = ([r for r in h.memory.regions if r.name == "weights 0"] for h in (a, b))
    own.data[:] = theirs.data  # the program's arrays, sums of keys among them
    now = image(b.memory)
    at = np.flatnonzero(now != before)
    for part in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1):
        lines.append(f"write {part[0]:#x} {now[part[0] : part[-1] + 1].tobytes().hex()}")
    lines += [*loads([f"{encode(i):x}" for i in b.program(0)], b.registers(0)), "run"]
    for h in (a, b):
        h.run(0)
    return [*lines, f"dump end.bin {len(now)}"], image(b.memory)


def test_a_layer_continues_in_another_core(tmp_path):
    """The driver saves it and restores it into a context of a core with other streams; every byte is as in golden."""
    one, two = Frames(2), Frames(2, seed=3, how=[{"ctx": 2}, {"ctx": 1}])
    a, b, layout = one.h, two.h, core_params().dre.layout()
    wants = save(layout, a.core.dre, image(a.memory), 0)
    one.play(soc() / "Vopenvrex_soc", tmp_path, after=["save checkpoint.bin 0"])
    assert (tmp_path / "checkpoint.bin").read_bytes() == wants
    lines, memory = continued(b, a, wants, 2)
    two.play(soc() / "Vopenvrex_soc", tmp_path, after=lines)
    after = np.fromfile(tmp_path / "end.bin", np.uint8)
    known = [r for r in b.memory.regions if r.unknown is None]
    assert {r.name for r in known} >= {"tables", "rings", "home", "weights 0"}
    for r in known:
        assert (after[r.base : r.end] == memory[r.base : r.end]).all(), r.name
    assert (a.get("hidden") == b.get("hidden")).all()
    [mine], [other] = ([x.data for x in h.memory.regions if x.name == "weights 0"] for h in (a, b))
    assert (mine == other).all()
    assert save(layout, b.core.dre, memory, 2) == save(layout, a.core.dre, image(a.memory), 0)


# An edit of the driver, and whether the smoke test tells.
WRONG = [
    ("put(device, offset + 4, (uint32_t)(value >> 32));", "", False),
    ("put(device, AT(control), CORE_IP__CONTROL__START_bm);", "put(device, AT(control), 0);", True),
    ("put(device, AT(irq), events);", "", True),
    ("put(device, AT(irq), events);", "put(device, AT(irq), 0xFFFFFFFF & ~events);", True),
    ("result == OPENVREX_OK && openvrex_poll(device).code > OPENVREX_CODE_DONE", "0", True),
    ("i < instructions * OPENVREX_WORDS;", "i < (instructions - 1) * OPENVREX_WORDS;", True),
    ("AT(device_base), config->device_base", "AT(device_base), config->home_base", False),
    ("AT(th_hd), config->th_hd", "AT(th_hd), config->ratio", True),
    ("AT(table_base), config->table_base", "AT(table_base), config->home_base", False),
    ("+ 8 * number", "+ 8 * (number ^ 1)", False),
    ("CORE_IP__CONTROL__RESET_bm", "0", True),
]


def test_wrong_drivers_are_noticed(tmp_path):
    f = frames()
    [first], _ = f.play(soc() / "Vopenvrex_soc", tmp_path, count=1)
    assert not f.differs(first)
    for old, new, simple in WRONG:
        wrong = with_driver(tmp_path, old, new)
        if simple:
            assert run([wrong], tmp_path).returncode == 1, new
            continue
        assert run([wrong], tmp_path).returncode == 0, new
        [first], _ = f.play(wrong, tmp_path, count=1)
        assert f.differs(first), new


def test_a_swapped_reset_is_noticed(tmp_path):
    sound, broken = (run([soc() / "Vopenvrex_soc", *how], tmp_path) for how in ([], ["+swapped"]))
    assert (sound.returncode, broken.returncode) == (0, 1)
    assert sound.stdout.endswith("smoke test passed\n")
    assert "error: " in broken.stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run fast", "line 1: 'run fast' is no command"),
        ("register 16 1", "line 1: 'register 16 1' is no command"),
        ("write 0x100000 00", "address beyond the memory"),
        ("configure 4 65537 0 0 0 1 1", "configure gives -4"),
        ("counter 0x1c", "read of register 0x1c: error response 2"),
        ("read nowhere.bin", "nowhere.bin: cannot be read"),
    ],
)
def test_scripts_that_cannot_be_played(line, message, tmp_path):
    (tmp_path / "script").write_text(line)
    got = run([soc() / "Vopenvrex_soc", "+script=script"], tmp_path)
    assert got.returncode == 1
    assert message in got.stderr


YOSYS = """#!{python}
import sys
from pyosys import libyosys
assert sys.argv[1:] == ["-q", "-l", "synth.log", "-s", "synth.ys"]
libyosys.run_pass("script synth.ys", libyosys.Design())
"""


@pytest.mark.nightly
def test_synthesis_by_fusesoc(tmp_path):
    """Gates, and the memories as they are."""
    write("dre_ip", params("dre_ip"), tmp_path)
    command = tmp_path / "bin" / "yosys"
    command.parent.mkdir()
    command.write_text(YOSYS.format(python=sys.executable))
    command.chmod(0o755)
    got = fusesoc(tmp_path, "dre_ip", "synth", PATH=f"{command.parent}:{verilator_env()['PATH']}")
    assert got.returncode == 0, got.stdout[-2000:] + got.stderr[-2000:]
    [work] = tmp_path.glob("build/*/synth")
    top = top_module("dre_ip")
    assert f"module {top}(" in (work / f"{top}_synth.v").read_text()
    total = (work / "stat.txt").read_text().rpartition("Count including submodules")[2]
    cells = {kind: int(n) for n, kind in re.findall(r"^ +(\d+) +(\$\S+)$", total, re.M)}
    assert all(kind.startswith("$_") or kind == "$mem_v2" for kind in cells), cells
    assert sum(cells.values()) > 10_000
    assert cells["$mem_v2"] > 10
    broken = tmp_path / f"{top}.v"
    broken.write_text(broken.read_text().replace("_dre_ip unit", "_dre unit"))
    assert fusesoc(tmp_path, "dre_ip", "synth", PATH=f"{command.parent}:{verilator_env()['PATH']}").returncode
    assert fusesoc(tmp_path, "dre_ip", "lint").returncode
