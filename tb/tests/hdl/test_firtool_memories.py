"""Memories with firtool's port names: those of its convention, and equal to the modules that they replace."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from openvrex.hdl import generated
from openvrex.hdl.emit import Emitted, emit
from openvrex.hdl.firtool_memories import MemoryPorts, holders, in_shape, shapes
from openvrex.hdl.memory import KINDS, bodies
from openvrex.hdl.params import override, preset
from openvrex.tb.checks.dre_checks import TINY, play, run
from openvrex.tb.checks.wtu_checks import TINY as WTU
from openvrex.tb.checks.wtu_checks import differs, episode
from openvrex.tb.checks.wtu_checks import run as wtu_run
from openvrex.tb.library.yosys import run_yosys
from tb.tests.commands import vrex

FIRTOOL = MemoryPorts.FIRTOOL
# The convention, by which open flows find memories: every port of the module has such a name.
PORT = re.compile(r"R0_(addr|en|clk|data)|W0_(addr|en|clk|data|mask)|RW0_(addr|en|clk|wmode|wdata|rdata|wmask)")


def memory(kind: str, words: int, bits: int, lanes: int) -> dict:
    """An entry of a manifest."""
    return {"name": "ram", "module": f"top_{kind}", "words": words, "bits": bits, "lanes": lanes}


def modules(text: str) -> dict[str, list[str]]:
    """Names of the ports of each module that is written out."""
    found = re.findall(r"^module (\w+) \(\n(.*?)^\);", text, re.M | re.S)
    return {name: re.findall(r"(\w+),?$", head, re.M) for name, head in found}


@pytest.mark.parametrize("changes", [[], ["protect=secded"]])
def test_every_memory_is_a_module_of_its_shape(changes):
    """The manifest names it, as Yosys finds it in the flat netlist, and its ports are those of the convention."""
    unit = emit("dre", override(preset("tiny"), changes).core.dre, memory_ports=FIRTOOL)
    memories = [m for m in unit.manifest["memories"] if m["module"]]
    named = {m["module"]: (m["words"], m["bits"], m["lanes"]) for m in memories}
    text = modules(unit.verilog)
    own = {name: ports for name, ports in text.items() if any(map(PORT.fullmatch, ports))}
    assert own.keys() == named.keys()
    for name, ports in own.items():
        assert all(map(PORT.fullmatch, ports)), ports
        words, bits, lanes = named[name]
        assert f"_{words}x{bits}" in name
        assert ("W0_mask" in ports or "RW0_wmask" in ports) == (lanes > 1) == name.endswith(f"_mask{lanes}")
    with tempfile.TemporaryDirectory() as folder:
        unit.write(Path(folder))
        read = [f"read_verilog {folder}/dre.v", "hierarchy -check -top dre", "proc", "flatten", "memory_collect"]
        log = run_yosys([*read, "select -list t:$mem_v2"])
    assert set(re.findall(r"^dre/(\S+)\.mem$", log, re.M)) == {m["name"] for m in memories}


def test_black_boxes_leave_the_shapes_to_macros(tmp_path):
    """Holders stay in the unit's file; the folder tells how it was made."""
    args = [
        "generate",
        "dpe",
        "--preset",
        "tiny",
        "--memory-ports",
        "firtool",
        "--no-memory-bodies",
        "-o",
        tmp_path,
    ]
    vrex(*map(str, args))
    made = generated.read(tmp_path)
    names = {m["module"] for m in made.manifest["memories"] if m["module"]}
    assert modules(made.memories).keys() == names
    for name in names:
        assert f"(* blackbox *)\nmodule {name} (" in made.memories
        assert f"        {name} ram (\n" in made.verilog
    assert " mem [" not in made.memories
    assert not generated.edits(tmp_path)
    file = tmp_path / "dpe_memories.v"
    file.write_text(file.read_text() + "// mine\n")
    assert generated.edits(tmp_path) == [file]


HARNESS = """
module harness(input clk, {inputs}, output [{top}:0] one, output [{top}:0] two);
  {kind} #(.WIDTH({bits}), .DEPTH({words}), .LANES({lanes})) a({pins}, .r_data(one));
  top_{kind} #(.WIDTH({bits}), .DEPTH({words}), .LANES({lanes})) b({pins}, .r_data(two));
endmodule
"""


def equal(kind: str, words: int, bits: int, lanes: int, old: str = "", new: str = "") -> bool:
    """Whether the module of a shape does what `hdl/memories.v` does, in every run of nine cycles from zeros.

    old, new : of the text, for a fault
    """
    m, address = memory(kind, words, bits, lanes), (words - 1).bit_length()
    text = holders("top", [m]) + "\n" + shapes([m])
    assert old in text
    own = bodies("top", [kind]).replace(f"top_{kind}", kind)
    single = {"en": 1, "write": lanes, "addr": address, "w_data": bits}
    double = {"w_en": lanes, "w_addr": address, "w_data": bits, "r_en": 1, "r_addr": address}
    ports = single if kind == "ram_1rw" else double
    pins = ", ".join(f".{name}({name})" for name in ("clk", *ports))
    inputs = ", ".join(f"input [{width - 1}:0] {name}" for name, width in ports.items())
    harness = HARNESS.format(kind=kind, bits=bits, words=words, lanes=lanes, top=bits - 1, pins=pins, inputs=inputs)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "all.v").write_text(f"{own}\n{text.replace(old, new)}\n{harness}")
        read = ["read_verilog all.v", "hierarchy -check -top harness", "proc", "flatten", "memory", "opt"]
        log = run_yosys([*read, "sat -seq 9 -set-init-zero -prove one two"], Path(folder))
    assert ("SUCCESS" in log) != ("FAIL" in log)
    return "SUCCESS" in log


SHAPES = [("ram_1r1w", 4, 3, 1), ("ram_1r1w", 4, 4, 2), ("ram_1rw", 2, 3, 1), ("ram_1rw", 4, 6, 3)]


@pytest.mark.parametrize("one", SHAPES)
def test_a_shape_does_what_the_memory_does(one):
    assert equal(*one)


@pytest.mark.parametrize(
    ("one", "old", "new"),
    [
        (SHAPES[0], "if (R0_en)", "if (1)"),
        (SHAPES[0], "if (W0_en)", "if (W0_en || R0_en)"),
        (SHAPES[1], "W0_mask[k]", "W0_mask[1-k]"),
        (SHAPES[1], ".W0_en(|w_en)", ".W0_en(w_en[0])"),
        (SHAPES[2], "!RW0_wmode", "1"),
        (SHAPES[2], ".RW0_wmode(|write)", ".RW0_wmode(en)"),
        (SHAPES[3], ".RW0_wmode(|write)", ".RW0_wmode(&write)"),
    ],
)
def test_a_wrong_shape_is_noticed(one, old, new):
    assert not equal(*one, old, new)


def test_a_wtu_with_them_selects_as_golden():
    """A macro that forgets while it is not enabled is noticed: firtool's own models may."""
    unit = emit("wtu", WTU, memory_ports=FIRTOOL)
    some = episode(WTU, 1, 19661, 0.3, 0.3, n=30)
    [got] = wtu_run(unit, WTU, [some])
    assert not differs(WTU, some, got)
    [wrong] = wtu_run(replace(unit, verilog=forgetful(unit)), WTU, [some], waves=False)
    assert differs(WTU, some, wrong)


def forgetful(unit: Emitted) -> str:
    """The Verilog with single-port memories whose data read are lost in the next cycle without an access."""
    kept = "    if (RW0_en && !RW0_wmode) RW0_rdata <= mem[RW0_addr];\n"
    assert kept in unit.verilog
    return unit.verilog.replace(kept, f"{kept}    else if (!RW0_en) RW0_rdata <= ~RW0_rdata;\n")


@pytest.mark.nightly
def test_a_dre_with_them_equals_golden():
    """In bits and cycles, as with its own memories."""
    s = play(TINY, 1, 24)
    assert s.differences(run(emit("dre", TINY, memory_ports=FIRTOOL), s, 0.3, 0.3)) == []


def test_a_motion_mask_has_no_memories():
    assert emit("motion_mask", preset("tiny").mask, memory_ports=FIRTOOL).verilog.count("R0_") == 0


def test_entries_without_a_module_stay():
    fifo = memory("ram_1rw", 2, 2, 1) | {"module": ""}
    assert in_shape(fifo) == fifo
    assert (holders("top", [fifo]), shapes([fifo])) == ("", "")
    assert len(KINDS) == len({kind for kind, *_ in SHAPES})
