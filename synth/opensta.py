"""Asks OpenSTA for the longest path of a mapped netlist, to check `synth.timing`. Needs its `sta` on PATH.

`synth.opensta_power` asks it for the power.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from openvrex.synth import nldm
from openvrex.synth.liberty import Library, SynthError
from openvrex.synth.nldm import EDGES, Table
from openvrex.synth.timing import MemoryTimes
from openvrex.synth.wires import Wire, spef

COMMAND = "sta"
CLOCK = "clk"  # port of the clock; a design without it is timed from port to port
PERIOD = 1e5  # ps: longer than any path, and single precision still resolves 0.01 ps
# The model of `synth.timing`: no wires, an ideal clock, ports that switch with the clock and have no load.
_SCRIPT = """{liberty}
read_verilog top.v
link_design {top}
set_cmd_units -time ps
{wires}
create_clock -name {clock} -period {period:g} {ports}
set_input_delay 0 -clock {clock} [all_inputs]
set_output_delay 0 -clock {clock} [all_outputs]
report_checks -path_delay max -digits 3
"""


@dataclass(frozen=True)
class StaPath:
    """OpenSTA's longest path of a clock cycle. `delay` includes setup, in ps (tau with the embedded library)."""

    start: str
    end: str
    delay: float


def longest(
    top: str,
    netlist: dict,
    library: Library,
    wires: dict[str, Wire] | None = None,
    memories: dict[str, MemoryTimes] | None = None,
) -> StaPath:
    """The longest path of a flat module.

    netlist : as `synth.worker` reports it. Read data of memories become inputs, their other pins outputs
    memories : times of memories, which become cells of a Liberty file
    wires : the wire of each net, as `n7` for net 7; pins are those of cells `u0`, `u1`, ... in the netlist's order
    Raises: `SynthError` if OpenSTA is missing, for leaves, and with OpenSTA's reason if it finds no path.
    """
    command()
    leaves = {kind for _, kind, _ in netlist["cells"]} - library.cells.keys()
    if leaves:
        raise SynthError(f"{top}: OpenSTA is given flat designs only; this one holds {', '.join(sorted(leaves))}")
    text, names, nets = verilog(top, netlist, memories=memories or {})
    with tempfile.TemporaryDirectory(prefix="vrex-sta-") as tmp:
        folder = Path(tmp)
        (folder / "top.v").write_text(text)
        for i, path in enumerate(library.files):
            (folder / f"{i}.lib").symlink_to(path.absolute())
        if memories:
            (folder / f"{len(library.files)}.lib").write_text(_liberty(netlist, memories))
        words = {
            "liberty": "\n".join(f"read_liberty {i}.lib" for i in range(len(library.files) + bool(memories))),
            "top": top,
            "clock": CLOCK,
            "period": PERIOD,
            "ports": f"[get_ports {CLOCK}]" if CLOCK in netlist["ports"] else "",
            "wires": "read_spef top.spef" if wires else "",
        }
        if wires:
            (folder / "top.spef").write_text(parasitics(top, netlist, library, nets, wires))
        return _read(top, run(folder, _SCRIPT.format(**words)), names)


def command() -> str:
    """The path of OpenSTA. Raises `SynthError` if it is missing."""
    found = shutil.which(COMMAND)
    if found is None:
        raise SynthError(f"OpenSTA: no {COMMAND!r} on PATH; install it (Debian: apt-get install opensta)")
    return found


def run(folder: Path, script: str) -> str:
    """What OpenSTA says to a script that it runs in `folder`. Raises as `command` does."""
    (folder / "top.tcl").write_text(script)
    options = ["-no_init", "-no_splash", "-exit", "top.tcl"]
    done = subprocess.run(
        [command(), *options], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def refusal(report: str) -> str:
    """The first error of OpenSTA's report, or its last line."""
    errors = [x for x in report.splitlines() if x.startswith("Error")] or report.strip().splitlines()[-1:]
    return (errors or ["no output"])[0]


def parasitics(top: str, netlist: dict, library: Library, nets: dict[int, str], wires: dict[str, Wire]) -> str:
    """The wires as SPEF for the Verilog of `verilog`, whose names of nets are `nets`."""
    cells = nldm.load(library, {kind for _, kind, _ in netlist["cells"]})

    def pin(net: str, instance: str, name: str) -> str:
        if not instance:
            return f"{net} {'O' if net.startswith('n') else 'I'}"
        kind = netlist["cells"][int(instance[1:])][1]
        return f"{instance}:{name} {'O' if name in cells[kind].outputs else 'I'}"

    named = {nets[int(n[1:])]: wire for n, wire in wires.items() if n.startswith("n")}
    pins = {net: {p: pin(net, *p) for p in wire.pins if p[0] or not net.startswith("n")} for net, wire in named.items()}
    return spef(top, {net: (wire, pins[net]) for net, wire in named.items()})


def verilog(
    top: str, netlist: dict, named: bool = False, memories: Collection[str] = ()
) -> tuple[str, dict[str, str], dict[int, str]]:
    """A flat netlist as structural Verilog, the original name of each of its instances and ports, its nets' names.

    `named`: ports keep their names, else they are `p0`, `p1` and so on. `memories`: those that are instances of cells
    `memory0`, `memory1` and so on, with a pin for each bit, as `WR_ADDR_3`; the pins of the others are ports.
    """
    own = {n: n if named or n == CLOCK else f"p{i}" for i, n in enumerate(netlist["ports"])}
    ports = {own[n]: (n, d, bits) for n, (d, bits) in netlist["ports"].items()}
    for i, (memory, (parameters, pins)) in enumerate(netlist["memories"].items()):
        if "0" in parameters["RD_CLK_ENABLE"]:
            raise SynthError(f"{top}: {memory} is read without a clock; OpenSTA is given clocked memories only")
        for pin, bits in () if memory in memories else pins.items():
            if not pin.endswith("_CLK"):
                start = re.sub(r"\W", "_", memory) if named else f"m{i}"
                ports[f"{start}_{pin}"] = (f"{memory} {pin}", "input" if pin == "RD_DATA" else "output", bits)
    lines = [f"  {direction} [{len(bits) - 1}:0] {port};" for port, (_, direction, bits) in ports.items() if bits]
    names = {port: name for port, (name, *_) in ports.items()}
    nets: dict[int, str] = {}
    for port, (_, direction, bits) in ports.items():
        if direction == "input":
            nets |= {b: f"{port}[{i}]" for i, b in enumerate(bits) if isinstance(b, int)}
    cells = [(f"u{i}", cell) for i, cell in enumerate(netlist["cells"])]
    for i, (memory, (_, pins)) in enumerate(netlist["memories"].items()):
        if memory in memories:
            bits = {f"{pin}_{k}": [b] for pin, found in pins.items() for k, b in enumerate(found)}
            cells.append((f"m{i}", (memory, f"memory{i}", bits)))
    used = {b for _, (_, _, pins) in cells for bits in pins.values() for b in bits if isinstance(b, int)}
    used |= {b for _, direction, bits in ports.values() if direction != "input" for b in bits if isinstance(b, int)}
    nets = {b: f"n{b}" for b in sorted(used)} | nets
    lines += [f"  wire {nets[b]};" for b in sorted(used) if nets[b] == f"n{b}"]

    def net(bit: int | str) -> str:
        return nets[bit] if isinstance(bit, int) else f"1'b{int(bit == '1')}"

    for name, (old, kind, pins) in cells:
        names[name] = netlist["registers"].get(old, old)
        given = ", ".join(f".{p}({net(bits[0])})" for p, bits in pins.items() if bits)
        lines.append(f"  {kind} {name} ({given});")
    for port, (_, direction, bits) in ports.items():
        if direction != "input":
            lines += [f"  assign {port}[{i}] = {net(b)};" for i, b in enumerate(bits)]
    listed = ", ".join(port for port, (*_, bits) in ports.items() if bits)
    return f"module {top} ({listed});\n" + "\n".join(lines) + "\nendmodule\n", names, nets


def _liberty(netlist: dict, memories: dict[str, MemoryTimes]) -> str:
    """A Liberty file with a cell for each memory of `memories`, as `verilog` instantiates it."""
    templates: list[str] = []

    def table(kind: str, found: Table, axes: tuple[str, str]) -> str:
        index = [", ".join(map(str, a if len(a) > 1 else (a[0], a[0] + 1))) for a in (found.x, found.y)]
        name = f"t{len(templates)}"
        variables = " ".join(
            f'variable_{i} : {v}; index_{i} ("{x}");' for i, v, x in zip((1, 2), axes, index, strict=True)
        )
        templates.append(f"lu_table_template ({name}) {{ {variables} }}")
        rows = [row if len(row) > 1 else row * 2 for row in (found.values if len(found.x) > 1 else found.values * 2)]
        values = ", ".join('"' + ", ".join(map(str, row)) + '"' for row in rows)
        return f"{kind} ({name}) {{ values ({values}); }}"

    cells = []
    for i, (memory, (_, pins)) in enumerate(netlist["memories"].items()):
        if memory not in memories:
            continue
        times = memories[memory]
        loads = ("input_net_transition", "total_output_net_capacitance")
        clocks = ("constrained_pin_transition", "related_pin_transition")
        reads = " ".join(
            table(f"cell_{e}", a, loads) + table(f"{e}_transition", t, loads)
            for e, a, t in zip(EDGES, times.access, times.slews, strict=True)
        )
        setups = " ".join(table(f"{e}_constraint", t, clocks) for e, t in zip(EDGES, times.setup, strict=True))
        body = []
        for pin, bits in pins.items():
            way, ports = pin[:2], len(pins[f"{pin[:2]}_CLK"])
            for k in range(len(bits)):
                related = f'related_pin : "{way}_CLK_{k * ports // len(bits)}";'
                if pin.endswith("_CLK"):
                    own = "direction : input; clock : true; capacitance : 0;"
                elif pin == "RD_DATA":
                    own = f"direction : output; timing () {{ timing_type : rising_edge; {related} {reads} }}"
                else:
                    held = f"timing () {{ timing_type : setup_rising; {related} {setups} }}"
                    own = f"direction : input; capacitance : {times.load}; {held}"
                body.append(f"pin ({pin}_{k}) {{ {own} }}")
        cells.append(f"cell (memory{i}) {{ area : 0; interface_timing : true; {' '.join(body)} }}")
    head = 'delay_model : table_lookup; time_unit : "1ps"; capacitive_load_unit (1, ff);'
    return f"library (memories) {{ {head}\n" + "\n".join((*templates, *cells)) + "\n}\n"


def _read(top: str, report: str, names: dict[str, str]) -> StaPath:
    """The first path of OpenSTA's report. Raises `SynthError` if there is none."""
    slack = re.search(r"(-?[\d.]+)\s+slack", report)
    start, end = (re.search(rf"^{kind}: (\S+)", report, re.M) for kind in ("Startpoint", "Endpoint"))
    if slack is None or start is None or end is None:
        raise SynthError(f"{top}: OpenSTA found no path: {refusal(report)}")

    def name(text: str) -> str:
        word, _, index = text.partition("[")
        return names.get(word, word) + (f"[{index}" if index else "")

    return StaPath(name(start[1]), name(end[1]), PERIOD - float(slack[1]))
