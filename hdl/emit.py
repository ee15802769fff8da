# amaranth: UnusedElaboratable=no
# (a unit may be made only to look at its ports)
"""Verilog and manifest of any unit: Amaranth emits RTLIL, Yosys (pyosys) writes Verilog-2005."""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path

from amaranth.lib import wiring

from golden.files import replacing
from golden.params import check
from hdl.leaf import Leaves, convert
from hdl.params import SystemParams, reset_cycles

# unit -> (module, class, where `SystemParams` holds its parameters). These run on a trace alone.
UNITS = {
    "hcu": ("hdl.hcu", "Hcu", "core.dre.hcu"),
    "wtu": ("hdl.wtu", "Wtu", "core.dre.wtu"),
    "cluster_set": ("hdl.cluster_set", "ClusterSet", "core.dre.wtu"),
    "kvmu": ("hdl.kvmu", "Kvmu", "core.dre.kvmu"),
    "dre": ("hdl.dre", "Dre", "core.dre"),
    "vpe": ("hdl.vpe", "Vpe", "core.vpe"),
    "dpe": ("hdl.dpe", "Dpe", "core.dpe"),
}
# What joins them to an LXE and a core, and these themselves.
BLOCKS = {
    "sequencer": ("hdl.sequencer", "Sequencer", "core"),
    "loader": ("hdl.loader", "Loader", "core"),
    "storer": ("hdl.storer", "Storer", "core"),
    "feeder": ("hdl.feeder", "Feeder", "core"),
    "retriever": ("hdl.retriever", "Retriever", "core"),
    "lxe": ("hdl.lxe", "Lxe", "core"),
    "core": ("hdl.core", "Core", "core"),
    "dre_ip": ("hdl.dre_ip", "DreIp", "core"),
    "core_ip": ("hdl.core_ip", "CoreIp", "core"),
    "arbiter": ("hdl.arbiter", "Arbiter", ""),
    "system": ("hdl.system", "System", ""),
}
ALL = UNITS | BLOCKS

MOST_INPUTS = (1 << 16) - 2  # bits: Amaranth numbers those of a top module, its first two numbers being constants

# Memories lose their zero initialisation: macros have none, and no unit may rely on it.
_PASSES = (
    "read_rtlil {il}",
    "delete w:$verilog_initial_trigger",
    "proc -norom",  # a ROM would lose its content with the initialisation of memories below
    "delete t:$meminit t:$meminit_v2",
    "setattr -unset init w:*",  # a register starts at reset and nowhere else
    "opt_clean",
    "write_verilog -noattr {v}",
)


@dataclass(frozen=True)
class Emitted:
    """A generated unit: `verilog` text, `top` module name, `manifest` (JSON-ready)."""

    verilog: str
    top: str
    manifest: dict

    def write(self, folder: Path) -> list[Path]:
        """Write `<top>.v` and `manifest.json` into `folder`: both, or neither; `OSError` names the one that fails."""
        texts = {f"{self.top}.v": self.verilog, "manifest.json": json.dumps(self.manifest, indent=1)}
        with ExitStack() as stack:
            for name, text in texts.items():
                stack.enter_context(replacing(folder / name)).write(text.encode())
        return [folder / name for name in texts]


def params_of(unit: str, params: SystemParams) -> object:
    """The part of `params` that `unit` takes; `ParamError` lists the valid names for an unknown unit."""
    check(unit in ALL, "unit", unit, f"must be one of {', '.join(ALL)}")
    path = ALL[unit][2]
    return attrgetter(path)(params) if path else params


def component_of(unit: str, params: object) -> wiring.Component:
    """The unit itself, not elaborated; raises as `emit`."""
    check(unit in ALL, "unit", unit, f"must be one of {', '.join(ALL)}")
    module, cls, _ = ALL[unit]
    return getattr(import_module(module), cls)(params)


def emit(unit: str, params: object) -> Emitted:
    """Verilog of `unit`, the same to the byte for the same parameters (its own: `params_of` a system's).

    Raises `ParamError` for an unknown unit or parameters that cannot work.
    """
    component, leaves = component_of(unit, params), Leaves(unit)
    verilog = to_verilog(component, unit, leaves)
    manifest = {
        "unit": unit,
        "top": unit,
        "params": asdict(params),
        "ports": ports(component),
        "timing": component.timing(component.p),
        "counters": component.counters(),
        **({"core_counters": component.core_counters()} if hasattr(component, "core_counters") else {}),
        "reset_cycles": reset_cycles(params),
        "leaves": leaves.counts,
        "sha256": hashlib.sha256(verilog.encode()).hexdigest(),
    }
    return Emitted(verilog, unit, manifest)


def to_verilog(component: wiring.Component, top: str, leaves: Leaves | None = None) -> str:
    """Verilog-2005 of a component as module `top`; submodules are named `top__sub`.

    With `leaves`, what the component places as leaves is emitted once (`hdl.leaf`), and `leaves` says what that was.
    """
    try:
        il = convert(component, top, leaves)
    except AssertionError:
        bits = sum(port["width"] for port in ports(component) if port["dir"] == "in")
        limit = f"must be at most {MOST_INPUTS}, as a top module of Amaranth has: generate what it is a part of"
        check(bits <= MOST_INPUTS, f"input bits of {top}", bits, limit)
        raise
    if leaves:
        il = "".join([*leaves.modules.values(), il])
    # Amaranth joins module names by dots, which Verilog would have to escape.
    il = re.sub(r"^(module|  cell) \\(\S+)", lambda x: f"{x[1]} \\{x[2].replace('.', '__')}", il, flags=re.M)
    with tempfile.TemporaryDirectory() as tmp:
        source, target = Path(tmp, "a.il"), Path(tmp, "a.v")
        source.write_text(il)
        commands = [p.format(il=source, v=target) for p in _PASSES]
        # In a process of its own: Yosys echoes commands to the terminal and aborts on errors.
        code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
        run = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(f"Yosys could not write Verilog of {top}: {(run.stdout + run.stderr)[-500:]}")
        text = target.read_text()
    head = f"// {top}: generated by OpenVRex. Do not edit: change the parameters and generate again.\n"
    return head + text.partition("\n")[2]  # without Yosys's own line, which names its build


def ports(component: wiring.Component) -> list[dict]:
    """Name, direction and width of every port, clock and reset included."""
    out = [{"name": n, "dir": "in", "width": 1} for n in ("clk", "rst")]
    for path, member, value in component.signature.flatten(component):
        direction = "out" if member.flow == wiring.Out else "in"
        width = len(value.as_value()) if hasattr(value, "as_value") else len(value)
        out.append({"name": "__".join(map(str, path)), "dir": direction, "width": width})
    return out
