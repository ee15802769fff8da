"""What a package brings for other flows, read by make, YAML and a Tcl interpreter in place of the flows' tools."""

import os
import re
import subprocess
import tkinter
from pathlib import Path

import pytest
import yaml

from openvrex.hdl.emit import params_of
from openvrex.hdl.params import preset
from openvrex.ip.package import Options, write

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
        self.interpreter = tkinter.Tcl()
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


def test_vivado_reads_the_package_and_needs_a_part(package):
    folder, top = package
    tcl = Tcl()
    tcl.run(folder / "vivado.tcl", "xc7a100tcsg324-1")
    assert [file for *_, file in tcl.of("read_verilog")] == made(folder)["VERILOG_FILES"].split()
    assert tcl.of("read_xdc")[0][-1] == str(folder / f"{top}.sdc")
    assert tcl.of("synth_design") == [["-top", top, "-part", "xc7a100tcsg324-1", "-mode", "out_of_context"]]
    names = [words[0] for words in tcl.calls]
    assert names.index("read_verilog") < names.index("read_xdc") < names.index("synth_design")
    with pytest.raises(tkinter.TclError, match="the part is missing"):
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
    with pytest.raises(tkinter.TclError, match="a module is missing"):
        Tcl(link="0").run(folder / "design_compiler.tcl")
