"""Writes what a block's package brings for other flows: configurations of LibreLane and OpenROAD-flow-scripts, and
scripts for Vivado and Design Compiler.
"""

from openvrex.hdl.emit import Emitted
from openvrex.hdl.firtool_memories import MemoryPorts
from openvrex.ip.shell import top_module

_LIBRELANE = """# LibreLane was not run: its own reader (3.0) accepted names and types. `librelane {file}` runs it.
# The SDC has no driving cells, loads and uncertainty: add those of your PDK, or drop it for LibreLane's own.
DESIGN_NAME: {top}
VERILOG_FILES:
{files}
CLOCK_PORT: aclk
CLOCK_PERIOD: {period:g}
PNR_SDC_FILE: dir::{top}.sdc
SIGNOFF_SDC_FILE: dir::{top}.sdc
"""
_ORFS = """# OpenROAD-flow-scripts was not run: make read this file. In its folder flow:
#   make DESIGN_CONFIG=FOLDER_OF_THIS_FILE/config.mk PLATFORM=sky130hd
OPENVREX := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
export PLATFORM ?= asap7
export DESIGN_NAME := {top}
export DESIGN_NICKNAME := {name}
export VERILOG_FILES := {files}
export SDC_FILE := $(OPENVREX)/{top}.sdc
# asap7 counts in picoseconds, all others in nanoseconds; the SDC reads it.
export OPENVREX_NS := $(if $(filter asap7,$(PLATFORM)),1000.0,1.0)
# Without it the flow would search the SDC's text for a number.
export ABC_CLOCK_PERIOD_IN_PS := {picoseconds:g}
export CORE_UTILIZATION ?= 40
"""
_AUTO_MEMORIES = """# On asap7 the flow makes macros of memories that have one port and at least 16 words.
export AUTO_MEMORIES ?= $(if $(filter asap7,$(PLATFORM)),1,0)
"""
_FLIP_FLOPS = """# Memories become flip-flops, up to SYNTH_MEMORY_MAX_BITS; the largest has {bits} bits.
"""
_MACROS = """# A macro for each shape of memory: put its views into the folder macros.
OPENVREX_MACROS := $(addprefix $(OPENVREX)/macros/,{modules})
export ADDITIONAL_LEFS := $(addsuffix .lef,$(OPENVREX_MACROS))
export ADDITIONAL_LIBS := $(addsuffix .lib,$(OPENVREX_MACROS))
export ADDITIONAL_GDS := $(addsuffix .gds,$(OPENVREX_MACROS))
"""
_MACRO = """  {module}:
    lef: [dir::macros/{module}.lef]
    gds: [dir::macros/{module}.gds]
    lib: {{"*": [dir::macros/{module}.lib]}}
    instances:
{instances}
"""
_OWN = "# Put your macros into {file}, and their views into {where}.\n"
_VIVADO = """# Vivado was not run: a Tcl interpreter read this file, with commands that do nothing.
#   vivado -mode batch -source vivado.tcl -tclargs PART
if {{$argc != 1}} {{error "the part is missing: vivado -mode batch -source vivado.tcl -tclargs PART"}}
set part [lindex $argv 0]
set here [file dirname [file normalize [info script]]]
create_project -in_memory -part $part
{read}
# As a Tcl script, because constraints of a project know no environment.
read_xdc -unmanaged -mode out_of_context [file join $here {top}.sdc]
synth_design -top {top} -part $part -mode out_of_context
report_utilization -hierarchical -file utilization.txt
report_timing_summary -file timing.txt
write_checkpoint -force {top}.dcp
"""
_DESIGN_COMPILER = """# Design Compiler was not run: a Tcl interpreter read this file, with commands that do nothing.
#   LIBRARY="cells.db" MACROS="memory.db ..." dc_shell -f design_compiler.tcl
set here [file dirname [file normalize [info script]]]
set macros [expr {{[info exists ::env(MACROS)] ? $::env(MACROS) : ""}}]
set_app_var target_library $::env(LIBRARY)
set_app_var link_library "* $::env(LIBRARY) $macros"
define_design_lib WORK -path work
{read}
elaborate {top}
current_design {top}
if {{![link]}} {{error "a module is missing"}}
source [file join $here {top}.sdc]
check_design
compile_ultra -gate_clock
report_area -hierarchy > area.txt
report_timing > timing.txt
write -format verilog -hierarchy -output {top}_synth.v
write_sdc {top}_synth.sdc
exit
"""


def verilog_files(emitted: Emitted) -> list[str]:
    """The files to synthesise: unit, memories if they stand apart, shell."""
    return [emitted.file, *([f"{emitted.top}_memories.v"] if emitted.memories else []), f"{top_module(emitted)}.v"]


def librelane(emitted: Emitted, period: float, file: str) -> str:
    """Configuration of LibreLane in YAML. period : of the clock (ns) · file : its name"""
    files = "\n".join(f"  - dir::{f}" for f in _without_macros(emitted))
    text = _LIBRELANE.format(top=top_module(emitted), files=files, period=period, file=file)
    if macros := _macros(emitted):
        places = {module: "\n".join(f"      unit.{name}: {{}}" for name in names) for module, names in macros.items()}
        text += "# A macro for each shape of memory: put its views into the folder macros.\nMACROS:\n"
        text += "".join(_MACRO.format(module=module, instances=names) for module, names in places.items())
    elif emitted.memories:
        text += _OWN.format(file=f"{emitted.top}_memories.v", where="MACROS")
    return text


def orfs(emitted: Emitted, period: float) -> str:
    """Configuration of OpenROAD-flow-scripts, a makefile. period : of the clock (ns)"""
    files = " ".join(f"$(OPENVREX)/{f}" for f in _without_macros(emitted))
    values = {"top": top_module(emitted), "name": emitted.top, "picoseconds": 1000 * period}
    text = _ORFS.format(files=files, **values)
    if macros := _macros(emitted):
        return text + _MACROS.format(modules=" ".join(macros))
    if emitted.memories:
        where = "ADDITIONAL_LEFS, ADDITIONAL_LIBS and ADDITIONAL_GDS"
        return text + _OWN.format(file=f"{emitted.top}_memories.v", where=where)
    if _firtool(emitted):
        return text + _AUTO_MEMORIES
    bits = [memory["words"] * memory["bits"] for memory in emitted.manifest["memories"] if memory["module"]]
    return text + (_FLIP_FLOPS.format(bits=f"{max(bits):,}") if bits else "")


def _firtool(emitted: Emitted) -> bool:
    """Whether memories are modules of their shapes."""
    return emitted.manifest.get("memory_ports") == MemoryPorts.FIRTOOL


def _macros(emitted: Emitted) -> dict[str, list[str]]:
    """Instances of each module that is left to a macro of its name."""
    out: dict[str, list[str]] = {}
    for memory in emitted.manifest["memories"] if emitted.memories and _firtool(emitted) else ():
        if memory["module"]:
            out.setdefault(memory["module"], []).append(memory["name"])
    return out


def _without_macros(emitted: Emitted) -> list[str]:
    """`verilog_files`, without black boxes of modules that the flow knows from their macros."""
    return [f for f in verilog_files(emitted) if not (_macros(emitted) and f == f"{emitted.top}_memories.v")]


def vivado(emitted: Emitted) -> str:
    """Script that synthesises the block alone, out of context, for a part that the command line names."""
    read = (f"read_verilog{' -sv' if f.endswith('.sv') else ''} [file join $here {f}]" for f in verilog_files(emitted))
    return _VIVADO.format(top=top_module(emitted), read="\n".join(read))


def design_compiler(emitted: Emitted) -> str:
    """Script that maps the block to a library, with clock gates."""
    read = (
        f"analyze -library WORK -format {'sverilog' if f.endswith('.sv') else 'verilog'} [file join $here {f}]"
        for f in verilog_files(emitted)
    )
    return _DESIGN_COMPILER.format(top=top_module(emitted), read="\n".join(read))
