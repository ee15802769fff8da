# amaranth: UnusedElaboratable=no
# (a unit may be made only to look at its ports)
"""Verilog and manifest of any unit: Amaranth elaborates it, `hdl.writer` writes Verilog-2005."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from amaranth.hdl import Fragment, Instance, MemoryInstance
from amaranth.lib import wiring

from openvrex.golden.atomic_files import replacing
from openvrex.golden.function_params import check
from openvrex.hdl import memory_test
from openvrex.hdl.assertions import assertions
from openvrex.hdl.firtool_memories import MemoryPorts, holders, in_shape, shapes
from openvrex.hdl.header import LICENCE, ONE_FILE, VERSION, above, command_line, header
from openvrex.hdl.leaf import Leaves, elaborated
from openvrex.hdl.memory import bodies
from openvrex.hdl.params import SystemParams, part_of, reset_cycles, stated
from openvrex.hdl.ports import ports
from openvrex.hdl.reset import Prolonged
from openvrex.hdl.writer.amaranth_private import Design, depth_and_width
from openvrex.hdl.writer.circt import Language
from openvrex.hdl.writer.modules import Writer
from openvrex.hdl.writer.names import legal

# unit -> (module, class, path of its parameters in `SystemParams`). These run on a trace alone.
UNITS = {
    "hcu": ("openvrex.hdl.retrieval.hcu", "Hcu", "core.dre.hcu"),
    "wtu": ("openvrex.hdl.retrieval.wtu", "Wtu", "core.dre.wtu"),
    "cluster_set": ("openvrex.hdl.retrieval.cluster_set", "ClusterSet", "core.dre.wtu"),
    "kvmu": ("openvrex.hdl.retrieval.kvmu", "Kvmu", "core.dre.kvmu"),
    "dre": ("openvrex.hdl.retrieval.dre", "Dre", "core.dre"),
    "vpe": ("openvrex.hdl.execution.vpe", "Vpe", "core.vpe"),
    "dpe": ("openvrex.hdl.execution.dpe", "Dpe", "core.dpe"),
}
# The blocks of a DRE, an LXE and a core, the LXE and the core themselves, IP blocks and systems.
BLOCKS = {
    "sequencer": ("openvrex.hdl.execution.sequencer", "Sequencer", "core"),
    "loader": ("openvrex.hdl.execution.loader", "Loader", "core"),
    "storer": ("openvrex.hdl.execution.storer", "Storer", "core"),
    "feeder": ("openvrex.hdl.retrieval.feeder", "Feeder", "core"),
    "table_port": ("openvrex.hdl.retrieval.table_port", "TablePort", "core.dre"),
    "retriever": ("openvrex.hdl.retrieval.retriever", "Retriever", "core"),
    "lxe": ("openvrex.hdl.execution.lxe", "Lxe", "core"),
    "core": ("openvrex.hdl.execution.core", "Core", "core"),
    "dre_ip": ("openvrex.hdl.shells.dre_ip", "DreIp", "core"),
    "core_ip": ("openvrex.hdl.shells.core_ip", "CoreIp", "core"),
    "motion_mask_ip": ("openvrex.hdl.shells.motion_mask_ip", "MotionMaskIp", "mask"),
    "arbiter": ("openvrex.hdl.bus.arbiter", "Arbiter", ""),
    "system": ("openvrex.hdl.execution.system", "System", ""),
}
# Units beside a core.
BESIDE = {
    "motion_mask": ("openvrex.hdl.video.motion_mask", "MotionMask", "mask"),
}
ALL = UNITS | BLOCKS | BESIDE
PROLONGING = ("dre_ip", "core_ip", "motion_mask_ip")  # units that prolong their reset themselves
SOURCES = Path(__file__).parents[1]  # the folder in which the packages are
ENDING = ("dre_ip", "core_ip", "system")  # units that report memory errors in a status, and have no port for them


@dataclass(frozen=True)
class Emitted:
    """A generated unit.

    verilog : all of it, or without the modules of memories · top : its top module · manifest : JSON-ready
    memories : these modules as black boxes, if `verilog` is without them
    assertions : SystemVerilog to `bind` to it, if asked for
    """

    verilog: str
    top: str
    manifest: dict
    memories: str = ""
    assertions: str = ""

    @property
    def file(self) -> str:
        """The name of the file that holds `verilog`."""
        return self.top + Language(self.manifest.get("language", Language.VERILOG2005)).suffix

    def write(self, folder: Path) -> list[Path]:
        """Writes `file`, `manifest.json` and, if there are, `memories` (`<top>_memories.v`) and `assertions`
        (`<top>_assertions.sv`): all of them, or none. An earlier text in the other dialect, and earlier assertions, go.

        `OSError` names the file that fails.
        """
        texts = {self.file: self.verilog, "manifest.json": json.dumps(self.manifest, indent=1)}
        texts |= {f"{self.top}_memories.v": self.memories} if self.memories else {}
        texts |= {f"{self.top}_assertions.sv": self.assertions} if self.assertions else {}
        with ExitStack() as stack:
            for name, text in texts.items():
                stack.enter_context(replacing(folder / name)).write(text.encode())
        for name in {f"{self.top}.v", f"{self.top}.sv", f"{self.top}_assertions.sv"} - texts.keys():
            (folder / name).unlink(missing_ok=True)
        return [folder / name for name in texts]


def params_of(unit: str, params: SystemParams) -> Any:
    """The part of `params` that `unit` takes; `ParamError` lists the valid names for an unknown unit."""
    check(unit in ALL, "unit", unit, f"must be one of {', '.join(ALL)}")
    return part_of(params, ALL[unit][2])


def component_of(unit: str, params: object) -> wiring.Component:
    """The unit, not elaborated; raises as `emit`."""
    check(unit in ALL, "unit", unit, f"must be one of {', '.join(ALL)}")
    return unit_class(unit)(params)


def unit_class(unit: str) -> type[wiring.Component]:
    """The class of a unit of `ALL`."""
    module, name, _ = ALL[unit]
    return getattr(import_module(module), name)


def emit(
    unit: str,
    params: object,
    prefix: str = "",
    memory_bodies: bool = True,
    language: Language = Language.VERILOG2005,
    checked: bool = False,
    lines: bool = False,
    memory_ports: MemoryPorts = MemoryPorts.OWN,
    bist: bool = False,
) -> Emitted:
    """Generates Verilog of `unit`, the same to the byte for the same parameters (its own: `params_of` a system's).

    prefix : every module's name starts with it and "_", so that units of several configurations can share a design
    memory_bodies : False leaves the modules of `hdl/memories.v` out, for macros in their place
    language : dialect of the text, but for the modules of `hdl/memories.v`, which are Verilog-2005
    checked : also makes assertions to `bind`
    lines : a comment behind each statement names the file and the line that made it
    memory_ports : FIRTOOL puts a module a shape, with firtool's port names, into those of `hdl/memories.v`; without
        `memory_bodies` these are left out
    bist : ports that test memories (`hdl.memory_test`); `bist` of a memory in the manifest is its bit

    Raises `ParamError` for an unknown unit, a prefix that is no name, parameters that cannot work, or `bist` of a unit
    without memories.
    """
    component, top = component_of(unit, params), top_of(unit, prefix)
    leaves = Leaves(top, bist)
    design = elaborated_unit(unit, component, top, leaves)
    memories = list(placed(design, leaves))
    testable = not bist or any("bist" in memory for memory in memories)
    check(testable, "bist", bist, f"needs a memory to test, and {unit} has none: leave --bist out")
    writer = in_text(design, top, leaves, language, lines)
    verilog = writer.verilog()
    if memory_ports == MemoryPorts.FIRTOOL:
        boxes = shapes(memories, empty=not memory_bodies)
        verilog += f"\n{holders(top, memories)}" if boxes else ""
        memories = [in_shape(memory) for memory in memories]
    else:
        boxes = bodies(top, leaves.kinds, empty=not memory_bodies)
    verilog += f"\n{boxes}" if boxes and memory_bodies else ""
    options = [f"--prefix {prefix}"] * bool(prefix) + ["--no-memory-bodies"] * (not memory_bodies)
    options += [f"--memory-ports {memory_ports}"] * (memory_ports != MemoryPorts.OWN) + ["--bist"] * bist
    options += [f"--language {language}"] * (language != Language.VERILOG2005)
    options += ["--source-lines"] * lines
    command = command_line(f"vrex generate {unit}", params, ALL[unit][2], options)
    listed = ports(component) + memory_test.listed(leaves.tested.get(top, {}))
    verilog = header(component, top, ALL[unit][2], command, listed, verilog) + verilog
    manifest = {
        "license": LICENCE,
        "version": VERSION,
        "command": command,
        "unit": unit,
        "top": top,
        "language": language.value,
        "source_lines": lines,
        "params": stated(params),
        "ports": listed,
        "timing": component.timing(component.p),
        "counters": component.counters(),
        **({"core_counters": component.core_counters()} if hasattr(component, "core_counters") else {}),
        "reset_cycles": _reset_cycles(unit, component),
        **({"memory_ports": memory_ports.value} if memory_ports != MemoryPorts.OWN else {}),
        **({"bist": True} if bist else {}),
        "memories": memories,
        "leaves": leaves.counts,
        "states": list(_states(writer, top)),
        "sha256": hashlib.sha256(verilog.encode()).hexdigest(),
    }
    left_out = f"{above(command)}// Memories of {top}.\n{ONE_FILE}{boxes}" if boxes and not memory_bodies else ""
    if left_out:
        manifest["memories_sha256"] = hashlib.sha256(left_out.encode()).hexdigest()
    checks = assertions(writer, top, tuple(unit_class(name) for name in ALL)) if checked else ""
    checks = above(f"{command} --assertions") + checks if checked else ""
    return Emitted(verilog, top, manifest, left_out, checks)


def elaborated_unit(unit: str, component: wiring.Component, top: str, leaves: Leaves) -> Design:
    """A unit with the prolonged reset that its memories need, as design `top`."""
    cycles = _reset_cycles(unit, component)
    return elaborated(Prolonged(component, cycles) if cycles and unit not in PROLONGING else component, top, leaves)


def _reset_cycles(unit: str, component: wiring.Component) -> int:
    return reset_cycles(component.p) if hasattr(component, "error") or unit in ENDING else 0


def top_of(unit: str, prefix: str = "") -> str:
    """The name of a unit's top module. `ParamError` for a prefix that a tool would reject or mangle."""
    ok = not prefix or re.fullmatch(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*", prefix)
    check(bool(ok), "prefix", prefix, "must be letters, digits and single underscores between them, a letter first")
    return f"{prefix}_{unit}" if prefix else unit


def to_verilog(component: wiring.Component, top: str, leaves: Leaves | None = None) -> str:
    """Verilog-2005 of a component as module `top`; submodules are named `top__sub`.

    With `leaves`, leaves of the component are emitted once (`hdl.leaf`), `leaves` records them, and memories are
    modules of their own.
    """
    text = ONE_FILE + in_text(elaborated(component, top, leaves), top, leaves).verilog()
    return text + ("\n" + bodies(top, leaves.kinds) if leaves and leaves.kinds else "")


def in_text(
    design: Design,
    top: str,
    leaves: Leaves | None,
    language: Language = Language.VERILOG2005,
    lines: bool = False,
) -> Writer:
    """A design and its leaves, but for the modules of memories; `top` comes first."""
    writer = Writer(language, SOURCES if lines else None)
    for name, leaf in leaves.designs.items() if leaves else ():
        writer.add(leaf, name)
    writer.add(design, top)
    return writer


def placed(
    design: Design, leaves: Leaves, path: tuple[str, ...] = (), fragment: Fragment | None = None, first: int = 0
) -> Iterator[dict]:
    """Every memory of a design, by its place in the hierarchy.

    name : instances from the top down, joined by dots · user : module that accesses it
    module : the one to swap for a macro; "" of a FIFO, whose words are flip-flops beside its logic
    ports : 1r1w, 1rw or fifo · words, bits : words, and bits of one, check bits included
    lanes : parts of a word with a write enable each · protect : kind of check bits
    bist : with test ports, its bit of `bist_select`
    """
    fragment = fragment or design.fragment
    for inner, _, _ in fragment.subfragments:
        name = legal(design.fragments[inner].name[-1])
        if isinstance(inner, MemoryInstance):
            words, bits = depth_and_width(inner)
            sizes = {"words": words, "bits": bits, "lanes": 1, "ports": "fifo", "protect": "none"}
            yield {"name": ".".join(path), "module": "", "user": _module_of(design, fragment)} | sizes
        elif not isinstance(inner, Instance):
            yield from placed(design, leaves, (*path, name), inner, first)
        elif inner.type in leaves.designs:
            base = first + inner.attrs.get("bist", 0)
            yield from placed(leaves.designs[inner.type], leaves, (*path, name), first=base)
        else:
            protect = inner.attrs["protect"]
            sizes = {
                "words": inner.parameters["DEPTH"],
                "bits": inner.parameters["WIDTH"],
                "lanes": inner.parameters["LANES"],
            }
            sizes |= {"ports": inner.type.rpartition("_")[2], "protect": protect}
            if "bist" in inner.attrs:
                sizes["bist"] = first + inner.attrs["bist"]
            user = fragment
            for _ in range((protect != "none") + ("bist" in inner.attrs)):  # each stands in a module of its own
                user = design.fragments[user].parent
            yield {"name": ".".join((*path, name)), "module": inner.type, "user": _module_of(design, user)} | sizes


def _states(writer: Writer, module: str, path: tuple[str, ...] = ()) -> Iterator[dict]:
    """Every register of states: its name with the instances above it, its bits, and the names of its numbers."""
    for name, (width, names) in writer.inside[module].states.items():
        values = [names.get(number, "") for number in range(max(names) + 1)]
        yield {"name": ".".join((*path, name)), "width": width, "values": values}
    for label, (_, below) in writer.instances[module].items():
        if below in writer.inside:
            yield from _states(writer, below, (*path, label))


def _module_of(design: Design, fragment: Fragment) -> str:
    """The module of a fragment."""
    return "__".join(map(legal, design.fragments[fragment].name))
