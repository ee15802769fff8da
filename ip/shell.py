"""Writes the Verilog shell of an IP block, whose attributes tell vendor tools its clock, reset and bus interfaces."""

import re
from dataclasses import dataclass

from openvrex.hdl.emit import Emitted
from openvrex.hdl.memory_test import MEANING
from openvrex.hdl.params import CoreParams, MaskParams

# Top module of a package behind its prefix, by unit.
TOPS = {"core_ip": "openvrex_core", "dre_ip": "openvrex_dre", "motion_mask_ip": "openvrex_motion_mask"}
VENDOR, VERSION = "xilinx.com", "1.0"  # of the bus definitions; all block-design tools know their names
_BUS = re.compile(r"([sm]_axis_[a-z]|[smht]_axi)_(\w+)")
_BLACK_BOX = '(* blackbox, black_box = "yes", syn_black_box *)\n'  # Yosys, Vivado, Synplify


@dataclass(frozen=True)
class Interface:
    """A bus interface: ports of the top module that belong together, with their names in a bus definition.

    library, kind : the bus definition, such as "interface" and "aximm"
    master : it initiates transfers, or drives the signal
    ports : port of the top module, by signal of the definition
    parameters : values by name of the definition's parameters
    """

    name: str
    library: str
    kind: str
    master: bool
    ports: dict[str, str]
    parameters: dict[str, object]


def top_module(emitted: Emitted) -> str:
    """Name of the package's top module, the shell around the unit."""
    unit = emitted.manifest["unit"]
    return emitted.top.removesuffix(unit) + TOPS[unit]


def shell(emitted: Emitted, p: CoreParams | MaskParams) -> str:
    """Verilog of the top module: the unit's ports, `aclk`, and `aresetn`, which is active low and synchronous."""
    ports = _ports(emitted)
    pins = ",\n".join(f"    .{name}({name})" for name, _, _ in ports)
    return (
        f"{_module(emitted, p)}\n"
        f"  {emitted.top} unit (\n    .clk(aclk),\n    .rst(~aresetn),\n{pins}\n  );\nendmodule\n"
    )


def stub(emitted: Emitted, p: CoreParams | MaskParams) -> str:
    """Verilog of the top module as a black box, with its ports alone."""
    return f"{_BLACK_BOX}{_module(emitted, p)}endmodule\n"


def _ports(emitted: Emitted) -> list[tuple[str, str, int]]:
    """Name, direction and width of the unit's ports, without clock and reset."""
    return [(p["name"], p["dir"], p["width"]) for p in emitted.manifest["ports"] if p["name"] not in ("clk", "rst")]


def memory_test_ports(emitted: Emitted) -> dict[str, tuple[str, int]]:
    """Direction and width of the ports that test memories, by name."""
    return {name: (direction, width) for name, direction, width in _ports(emitted) if name in MEANING}


def interfaces(emitted: Emitted, p: CoreParams | MaskParams) -> list[Interface]:
    """Bus interfaces of the top module, in the order of its ports: they have all but `memory_test_ports`."""
    ports = [port for port in _ports(emitted) if port[0] not in MEANING]
    widths = {name: width for name, _, width in ports}
    buses: dict[str, dict[str, str]] = {}
    others: list[str] = []  # interrupts
    for name in widths:
        if match := _BUS.fullmatch(name):
            buses.setdefault(match[1], {})[match[2].upper()] = name
        else:
            others.append(name)
    clock = {"ASSOCIATED_BUSIF": ":".join(buses), "ASSOCIATED_RESET": "aresetn"}
    out = [
        Interface("aclk", "signal", "clock", False, {"CLK": "aclk"}, clock),
        Interface("aresetn", "signal", "reset", False, {"RST": "aresetn"}, {"POLARITY": "ACTIVE_LOW"}),
    ]
    for bus, signals in buses.items():
        kind = "axis" if "_axis_" in bus else "aximm"
        out.append(Interface(bus, "interface", kind, not bus.startswith("s_"), signals, _parameters(bus, widths, p)))
    level = {"SENSITIVITY": "LEVEL_HIGH"}
    return out + [Interface(name, "signal", "interrupt", True, {"INTERRUPT": name}, level) for name in others]


def top_ports(emitted: Emitted) -> dict[str, tuple[str, int]]:
    """Direction and width of the top module's ports, by name."""
    return {"aclk": ("in", 1), "aresetn": ("in", 1)} | {name: (d, width) for name, d, width in _ports(emitted)}


def _module(emitted: Emitted, p: CoreParams | MaskParams) -> str:
    """Head of the top module, with a port and its attributes on each line."""
    ports, lines = top_ports(emitted), []
    for bus in interfaces(emitted, p):
        text = ", ".join([f"XIL_INTERFACENAME {bus.name}", *(f"{k} {v}" for k, v in bus.parameters.items())])
        parameter = f'  (* X_INTERFACE_PARAMETER = "{text}" *)\n'
        for signal, name in bus.ports.items():
            direction, width = ports[name]
            bits = f"[{width - 1}:0] " if width > 1 else ""
            info = f"{VENDOR}:{bus.library}:{bus.kind}:{VERSION} {bus.name} {signal}"
            lines.append(f'  (* X_INTERFACE_INFO = "{info}" *)\n{parameter}  {direction}put wire {bits}{name}')
            parameter = ""
    for name, (direction, width) in memory_test_ports(emitted).items():
        lines.append(f"  {direction}put wire {f'[{width - 1}:0] ' if width > 1 else ''}{name}")
    return f"module {top_module(emitted)} (\n" + ",\n".join(lines) + "\n);\n"


def _parameters(bus: str, widths: dict[str, int], p: CoreParams | MaskParams) -> dict[str, object]:
    """Values of a bus definition's parameters."""
    if "_axis_" in bus:
        values = {"TDATA_NUM_BYTES": widths[f"{bus}_tdata"] // 8, "TUSER_WIDTH": widths.get(f"{bus}_tuser", 0)}
        return values | {"HAS_TREADY": 1, "HAS_TLAST": 1}
    lite = bus == "s_axi"
    values = {"PROTOCOL": "AXI4LITE" if lite else "AXI4"}
    values |= {"DATA_WIDTH": widths[f"{bus}_wdata"], "ADDR_WIDTH": widths[f"{bus}_araddr"]}
    if lite or isinstance(p, MaskParams):
        return values
    values |= {"ID_WIDTH": widths[f"{bus}_arid"], "SUPPORTS_NARROW_BURST": 0}
    longest = p.dre.table.burst_bytes if bus == "t_axi" else p.lxe.burst_bytes
    return values | {"MAX_BURST_LENGTH": longest // p.lxe.bus_bytes}


def constraints(emitted: Emitted, period: float) -> str:
    """SDC text: the clock, and the share of its period outside of the block. All paths are single-cycle."""
    ports = {d: " ".join(n if w == 1 else f"{n}[*]" for n, x, w in _ports(emitted) if x == d) for d in ("in", "out")}
    return (
        "# A nanosecond in the tool's unit of time: set OPENVREX_NS to 1000.0 where that is ps, as config.mk does.\n"
        "set ns [expr {[info exists ::env(OPENVREX_NS)] ? $::env(OPENVREX_NS) : 1.0}]\n"
        f"set period [expr {{{period:g} * $ns}}]\n"
        "create_clock -name aclk -period $period [get_ports aclk]\n"
        "# What stands before an input and behind an output takes this share of a cycle.\n"
        "set outside [expr {0.3 * $period}]\n"
        f"set_input_delay $outside -clock aclk [get_ports {{aresetn {ports['in']}}}]\n"
        f"set_output_delay $outside -clock aclk [get_ports {{{ports['out']}}}]\n"
    )
