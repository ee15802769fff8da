"""What a package brings for other flows, read by make, YAML and a Tcl interpreter in place of the flows' tools."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from openvrex.hdl.emit import params_of
from openvrex.hdl.firtool_memories import MemoryPorts
from openvrex.hdl.params import preset
from openvrex.ip.package import Options, write
from openvrex.ip.power_intent import DOMAINS
from openvrex.tb.library.runner import verilator_env
from openvrex.tb.library.yosys import run_yosys


def tk() -> ModuleType:
    """The module with an interpreter of Tcl, which some systems ship apart from Python."""
    return pytest.importorskip("tkinter", reason="this Python has no Tcl: install python3-tk")


UNITS = {"core_ip": "core", "dre_ip": "dre", "motion_mask_ip": "motion_mask"}


@pytest.fixture(scope="module", params=UNITS)
def package(request, tmp_path_factory) -> tuple[Path, str]:
    """A package with a period of 2 ns, and its top module."""
    unit = request.param
    folder = tmp_path_factory.mktemp(unit)
    write(unit, params_of(unit, preset("tiny")), folder, Options(2.0))
    return folder, f"tiny_openvrex_{UNITS[unit]}"


class Tcl:
    """An interpreter that notes each command that Tcl does not have, and answers what `answers` has for it."""

    def __init__(self, **answers: str):
        self.calls: list[tuple[str, ...]] = []
        self.answers = answers
        self.interpreter = tk().Tcl()
        self.interpreter.createcommand("unknown", self._unknown)

    def _unknown(self, *words: str) -> str:
        self.calls.append(words)
        return self.answers.get(words[0], " ".join(words))

    def run(self, file: Path, *args: str) -> list[tuple[str, ...]]:
        """The commands of a script with these arguments."""
        self.interpreter.eval(f"set argc {len(args)}; set argv {{{' '.join(args)}}}; source {{{file}}}")
        return self.calls

    def of(self, name: str) -> list[tuple[str, ...]]:
        """What the commands of this name were given."""
        return [words for first, *words in self.calls if first == name]


def ports(folder: Path, top: str) -> dict[str, str]:
    """Direction of each port of the top module."""
    text = (folder / f"{top}_stub.v").read_text()
    return {name: way for way, name in re.findall(r"^  (input|output) wire (?:\[\d+:0] )?(\w+)", text, re.M)}


@pytest.mark.parametrize(("environment", "period"), [({}, 2.0), ({"OPENVREX_NS": "1000.0"}, 2000.0)])
def test_constraints_time_every_port(package, environment, period, monkeypatch):
    """In nanoseconds, or in the unit that the environment names."""
    folder, top = package
    monkeypatch.delenv("OPENVREX_NS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    tcl = Tcl()
    tcl.run(folder / f"{top}.sdc")
    [clock] = tcl.of("create_clock")
    assert clock[:2] == ["-name", "aclk"]
    assert (float(clock[3]), clock[4]) == (period, "get_ports aclk")
    for way in ("input", "output"):
        [(outside, *_, of)] = tcl.of(f"set_{way}_delay")
        assert float(outside) == pytest.approx(0.3 * period)
        named = {name.removesuffix("[*]") for name in of.removeprefix("get_ports ").split()}
        assert named == {n for n, d in ports(folder, top).items() if d == way} - {"aclk"}


def made(folder: Path, **environment: str) -> dict[str, str]:
    """The variables that `config.mk` exports to the commands of a flow's makefile in another folder."""
    text = "include $(DESIGN_CONFIG)\nall: ; @env\n"
    command = ["make", "--no-print-directory", "-f", "-", "-C", "/", f"DESIGN_CONFIG={folder / 'config.mk'}"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    run = subprocess.run(command, input=text, env=clean | environment, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in run.stdout.splitlines() if "=" in line)


def test_openroad_flow_scripts_find_the_package(package):
    """From any folder; units follow the platform."""
    folder, top = package
    found = made(folder)
    assert found["DESIGN_NAME"] == top
    assert found["VERILOG_FILES"].split() == [str(folder / f"tiny_{folder.name[:-1]}.v"), str(folder / f"{top}.v")]
    assert found["SDC_FILE"] == str(folder / f"{top}.sdc")
    assert (found["PLATFORM"], found["OPENVREX_NS"]) == ("asap7", "1000.0")
    assert float(found["ABC_CLOCK_PERIOD_IN_PS"]) == 2000
    other = made(folder, PLATFORM="sky130hd", CORE_UTILIZATION="30")
    assert (other["PLATFORM"], other["OPENVREX_NS"], other["CORE_UTILIZATION"]) == ("sky130hd", "1.0", "30")


# Of LibreLane 3.0's flow Classic, whose own reader has accepted the files.
LIBRELANE = {"DESIGN_NAME", "VERILOG_FILES", "CLOCK_PORT", "CLOCK_PERIOD", "PNR_SDC_FILE", "SIGNOFF_SDC_FILE", "MACROS"}


def test_librelane_finds_the_package(package):
    folder, top = package
    found = yaml.safe_load((folder / "librelane.yaml").read_text())
    assert found.keys() <= LIBRELANE
    assert (found["DESIGN_NAME"], found["CLOCK_PERIOD"]) == (top, 2)
    assert ports(folder, top)[found["CLOCK_PORT"]] == "input"
    files = [*found["VERILOG_FILES"], found["PNR_SDC_FILE"], found["SIGNOFF_SDC_FILE"]]
    assert len(files) == 4
    for file in files:
        assert (folder / file.removeprefix("dir::")).is_file(), file
        assert file.startswith("dir::")


@pytest.mark.parametrize("bodies", [True, False])
@pytest.mark.parametrize("ports", MemoryPorts)
def test_flows_are_told_of_the_memories(ports, bodies, tmp_path):
    """Each by the name that it has in a flat netlist, where macros of known names take its place."""
    p = params_of("dre_ip", preset("tiny"))
    write("dre_ip", p, tmp_path, Options(prefix="a", memory_ports=ports, memory_bodies=bodies))
    memories = [m for m in json.loads((tmp_path / "manifest.json").read_text())["memories"] if m["module"]]
    by_name = ports == MemoryPorts.FIRTOOL and not bodies
    found, text = made(tmp_path), (tmp_path / "config.mk").read_text()
    assert found.get("AUTO_MEMORIES") == ("1" if ports == MemoryPorts.FIRTOOL and bodies else None)
    assert ("become flip-flops" in text) == (ports == MemoryPorts.OWN and bodies)
    named = {Path(file).name for file in found["VERILOG_FILES"].split()}
    assert named == {"a_dre_ip.v", "a_openvrex_dre.v", *["a_dre_ip_memories.v"] * (not bodies and not by_name)}
    modules = {m["module"] for m in memories} if by_name else set()
    assert {Path(file).stem for file in found.get("ADDITIONAL_LEFS", "").split()} == modules
    config = yaml.safe_load((tmp_path / "librelane.yaml").read_text())
    assert {file.removeprefix("dir::") for file in config["VERILOG_FILES"]} == named
    macros = config.get("MACROS", {})
    assert macros.keys() == modules
    placed = {(module, name) for module, macro in macros.items() for name in macro["instances"]}
    assert placed == ({(m["module"], f"unit.{m['name']}") for m in memories} if by_name else set())
    if by_name:
        read = f"read_verilog {' '.join(sorted(named))} a_dre_ip_memories.v"
        kinds = " ".join(f"t:{name}" for name in modules)
        flat = ["hierarchy -check -top a_openvrex_dre", "proc", "flatten", f"select -list {kinds}"]
        log = run_yosys([read, *flat], tmp_path)
        assert set(re.findall(r"^a_openvrex_dre/(\S+\.ram)$", log, re.M)) == {name for _, name in placed}


def test_vivado_reads_the_package_and_needs_a_part(package):
    folder, top = package
    tcl = Tcl()
    tcl.run(folder / "vivado.tcl", "xc7a100tcsg324-1")
    assert [file for *_, file in tcl.of("read_verilog")] == made(folder)["VERILOG_FILES"].split()
    assert tcl.of("read_xdc")[0][-1] == str(folder / f"{top}.sdc")
    assert tcl.of("synth_design") == [["-top", top, "-part", "xc7a100tcsg324-1", "-mode", "out_of_context"]]
    names = [words[0] for words in tcl.calls]
    assert names.index("read_verilog") < names.index("read_xdc") < names.index("synth_design")
    with pytest.raises(tk().TclError, match="the part is missing"):
        Tcl().run(folder / "vivado.tcl")


def test_design_compiler_reads_the_package(package, monkeypatch):
    """It constrains the design before it maps it, and stops where a module is missing."""
    folder, top = package
    monkeypatch.setenv("LIBRARY", "cells.db")
    monkeypatch.delenv("OPENVREX_NS", raising=False)
    tcl = Tcl(link="1")
    tcl.run(folder / "design_compiler.tcl")
    assert [file for *_, file in tcl.of("analyze")] == made(folder)["VERILOG_FILES"].split()
    assert tcl.of("elaborate") == [[top]]
    assert tcl.of("set_app_var") == [["target_library", "cells.db"], ["link_library", "* cells.db "]]
    names = [words[0] for words in tcl.calls]
    assert names.index("link") < names.index("create_clock") < names.index("compile_ultra") < names.index("exit")
    with pytest.raises(tk().TclError, match="a module is missing"):
        Tcl(link="0").run(folder / "design_compiler.tcl")


def instances(folder: Path) -> dict[str, dict[str, str]]:
    """Module of each instance, by module and name."""
    text = "".join(file.read_text() for file in folder.glob("*.v") if "_stub" not in file.name)
    parts = re.findall(r"^module (\w+)(.*?)^endmodule", text, re.M | re.S)
    return {name: {i: m for m, i in re.findall(r"^  (\w+) (\w+) \($", body, re.M)} for name, body in parts}


def module(found: dict[str, dict[str, str]], top: str, path: str) -> str | None:
    """The module of an instance below the top; None if there is no such instance."""
    for name in path.split("/"):
        top = found.get(top, {}).get(name)
    return top


def test_power_domains_hold_instances_and_are_clamped(package):
    """Every element exists; each domain has its own supply, and states in which it is on and off."""
    folder, top = package
    tcl = Tcl()
    tcl.run(folder / f"{top}.upf")
    assert tcl.calls[0] == ("upf_version", "2.1")
    assert tcl.of("set_design_top") == [[top]]
    domains = {name: (elements.split(), supply) for name, _, elements, _, supply in tcl.of("create_power_domain")}
    assert domains.pop("PD_AON") == (["."], "primary SS_AON")
    found = instances(folder)
    for elements, _ in domains.values():
        assert all(module(found, top, path) for path in elements), elements
        assert not module(found, top, f"{elements[0]}x")
    sets = {words[0]: words[2] for words in tcl.of("create_supply_set")}
    assert {supply.removeprefix("primary ") for _, supply in domains.values()} | {"SS_AON"} == sets.keys()
    ports_ = {words[0] for words in tcl.of("create_supply_port")}
    assert {power.removeprefix("power ") for power in sets.values()} | {"VSS"} == ports_
    isolated = {words[words.index("-domain") + 1]: words for words in tcl.of("set_isolation")}
    assert isolated.keys() == domains.keys()
    signals = {words[0] for words in tcl.of("create_logic_port")}
    assert {words[words.index("-isolation_signal") + 1] for words in isolated.values()} == signals
    [(_, _, supplies)] = tcl.of("create_pst")
    states = {
        name: dict(zip(supplies.split(), values.split(), strict=True)) for name, *_, values in tcl.of("add_pst_state")
    }
    assert all(s["VDD_AON"] == s["VSS"] == "ON" for s in states.values())
    assert all({s[f"VDD_{name.removeprefix('PD_')}"] for s in states.values()} == {"ON", "OFF"} for name in domains)
    assert states["ALL_ON"].keys() == ports_


def clamped(file: Path, name: str) -> None:
    """Lets a module in a file be off: its outputs are 0."""
    text = file.read_text()
    [(whole, head)] = re.findall(rf"(^module {name}\(\n(.*?)\);\n.*?^endmodule\n)", text, re.M | re.S)
    way, outputs = "", []
    for line in head.splitlines():
        own, port = re.fullmatch(r" *(input|output|) *(?:reg)? *(?:\[\d+:0])? *(\w+),?", line).groups()
        way = own or way
        outputs += [port] * (way == "output")
    zeros = "".join(f"  assign {port} = 0;\n" for port in outputs)
    head = re.sub(r"\breg\b", "", head)
    file.write_text(text.replace(whole, f"module {name}(\n{head});\n{zeros}endmodule\n"))


@pytest.mark.nightly
def test_a_core_runs_while_its_dre_is_off(tmp_path):
    """The example's smoke test passes, reset after a fault included. While the core is off, its program waits."""
    file = tmp_path / "tiny_core_ip.v"
    for off, told in (("DRE", "smoke test passed"), ("CORE", "no answer to a write")):
        write("core_ip", params_of("core_ip", preset("tiny")), tmp_path)
        found = instances(tmp_path)
        for path in DOMAINS["core_ip"][off]:
            clamped(file, module(found, "tiny_openvrex_core", path))
        ran = fusesoc(tmp_path, "sim", "--make_options", "OPT_FAST=-O0 OPT_GLOBAL=-O0")
        assert told in ran.stdout + ran.stderr
        assert (ran.returncode == 0) == (off == "DRE")


def fusesoc(folder: Path, target: str, *how: str) -> subprocess.CompletedProcess:
    """Runs a target of the core in `folder`."""
    command = [Path(sys.executable).with_name("fusesoc"), "--cores-root", ".", "run", "--target", target]
    command += ["openvrex:ip:tiny_core_ip", *how]
    return subprocess.run(command, cwd=folder, env=verilator_env(), capture_output=True, text=True, check=False)
