"""Runs one Yosys job. `synth.mapping` starts this script as a process of its own, in the folder of the job.

It reads `job.json`: {top, leaves, buffers: cells of the library, macro_bits, least: flip-flops of a clock gate, gate:
pins of the library's clock gate, read: commands, legal: commands, gated: commands, flops: commands, gates: commands}.
After the commands `legal`, flip-flops still drive the signals of the source. Output goes to the file `log`. The script
writes `done.json`:

cpu, peak : seconds of processor time, largest memory in KiB
cells : {type: count}, leaves and memories included
memories : {name: [width, words, read ports, write ports, single port]}
netlist : {ports: {name: [direction, nets]}, cells: [[name, type, {pin: nets}]], names: {net: signal of the source},
    registers: {flip-flop: signal, clock gate: "enable of" a signal}, encoded: {signal that holds other codes than in
    the source: {its code there: the bits that stand for it, "-" for any}}, memories: {name: [parameters, {pin:
    nets}]}}; a net is a number, or "0", "1", "x"
source : graph of the module before mapping, for `synth.source_names.through`
"""

import json
import re
import resource
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyosys import libyosys

MADE = re.compile(r"(^|\.)_\d+_(\[|$)|\$")  # names that a tool made
# Yosys's lines in the log for a state machine that it encodes anew, and for a state in the old and the new code.
ENCODED = re.compile(r"^Recoding FSM `\$fsm\$\\?(.+)\$\d+' from module .*\n.*\n((?:  [01]+ -> [01-]+\n)*)", re.M)
STATE = re.compile(r"([01]+) -> ([01-]+)")
# Flip-flops of the rising edge with an enable, of them `first` those whose reset acts without it.
ENABLED = re.compile(r"\$_(?:DFFE_P|SDFFCE_P[NP][01]|(?P<first>SDFFE_P)(?P<reset>[NP])[01])(?P<enable>[NP])_")
MEMORY_PINS = {"address": "ADDR", "data": "DATA", "enable": "EN", "reset": "SRST"}


def main() -> None:
    """Runs the job of the current folder."""
    job = json.loads(Path("job.json").read_text())
    top = job["top"]
    design = libyosys.Design()
    for command in job["read"]:
        libyosys.run_pass(command, design)
    libyosys.log_flush()
    encoded = {name: dict(STATE.findall(codes)) for name, codes in ENCODED.findall(Path("log").read_text())}
    kept = {}
    for name, cell in _module(design, top, "-selected", f"select {top}/t:$mem_v2")["cells"].items():
        parameters = cell["parameters"]
        shape = [int(parameters[k], 2) for k in ("WIDTH", "SIZE", "RD_PORTS", "WR_PORTS")]
        if shape[0] * shape[1] >= job["macro_bits"]:
            kept[name] = parameters["MEMID"].lstrip("\\"), shape
        else:
            libyosys.run_pass(f"memory_map {top}/{re.sub(r'[][*?]', '?', name)}", design)
    for command in job["legal"]:
        libyosys.run_pass(command, design)
    # `write_json` sorts a design, and ABC's result depends on the order, so the graph is written from a copy.
    copy = libyosys.Design()
    libyosys.run_pass("design -save legal", design)
    libyosys.run_pass("design -load legal", copy)
    flops = _module(copy, top)
    gated = _gateable(flops, job["least"]) if job["gated"] else set()
    if gated:
        _mark(design.top_module(), gated)
    for command in (job["gated"] if gated else []) + job["flops"]:
        libyosys.run_pass(command, design)
    if job["leaves"]:
        _split_fanout(design.top_module(), {"\\" + n for n in job["leaves"]})
    for command in job["gates"]:
        libyosys.run_pass(command, design)
    mapped = _module(design, top)
    mapped["cells"] = {n: c for n, c in mapped["cells"].items() if c["type"] != "$scopeinfo"}
    _join_pins(mapped, job["leaves"], job["buffers"])
    memories = {n: m for n, (m, _) in kept.items()}
    cpu, peak = _usage()
    done = {
        "cpu": cpu,
        "peak": peak,
        "memories": {m: [*shape, _single_port(mapped["cells"][n])] for n, (m, shape) in kept.items()},
        "cells": Counter(c["type"] for c in mapped["cells"].values()),
        "netlist": _netlist(flops, mapped, memories, job["gate"]) | {"encoded": encoded},
        "source": _source(flops, memories, job["leaves"]),
    }
    Path("done.json").write_text(json.dumps(done))


def _gateable(flops: dict, least: int) -> set[str]:
    """Flip-flops of the rising edge that share their clock and their enable with `least` - 1 others or more.

    A synchronous reset that acts without the enable is part of the enable, as in `gated.v`.
    """
    groups: dict[tuple, list[str]] = defaultdict(list)
    for name, cell in flops["cells"].items():
        if kind := ENABLED.fullmatch(cell["type"]):
            pins = cell["connections"]
            reset = (kind["reset"], *pins["R"]) if kind["first"] else ()
            groups[(*pins["C"], *pins["E"], kind["enable"], *reset)].append(name)
    return {name for names in groups.values() if len(names) >= least for name in names}


def _mark(module: Any, names: set[str]) -> None:
    """Gives the cells `names` the attribute `gated`."""
    for cell in module.cells_.values():
        if cell.name.str().removeprefix("\\") in names:
            cell.set_bool_attribute(libyosys.IdString("\\gated"), True)


def _single_port(memory: dict) -> bool:
    """Whether a read and a write port can share a macro port: one address, and Yosys proved no cycle uses both."""
    parameters, pins = memory["parameters"], memory["connections"]
    ports = [int(parameters[k], 2) for k in ("RD_PORTS", "WR_PORTS")]
    never_both = int(parameters["RD_COLLISION_X_MASK"], 2) == 1
    return ports == [1, 1] and pins["RD_ADDR"] == pins["WR_ADDR"] and never_both


def _split_fanout(module: Any, leaves: set[str]) -> None:
    """Gives every input pin of a leaf a net of its own, so that ABC sees, counts and buffers them as ports.

    Nets of input ports, such as the clock, stay as they are, because ABC does not buffer ports.
    """
    for leaf in sorted((c for c in module.cells_.values() if c.type.str() in leaves), key=lambda c: c.name.str()):
        for port, signal in sorted(leaf.connections_.items(), key=lambda x: x[0].str()):
            if leaf.port_dir(port) == libyosys.PortDir.PD_INPUT:
                bits = []
                for i, bit in enumerate(signal.bits()):
                    own = bit.is_wire() and not bit.wire.port_input
                    name = libyosys.IdString(f"$pin${leaf.name.str()}{port.str()}${i}")
                    bits.append(module.BufGate(name, bit) if own else bit)
                leaf.setPort(port, libyosys.SigSpec(bits))


def _join_pins(mapped: dict, leaves: list[str], buffers: list[str]) -> None:
    """Removes the buffer that ABC puts before every port, so that pins of leaves share nets of buffer trees again."""
    cells = mapped["cells"]
    ends = Counter(b for x in mapped["ports"].values() for b in x["bits"])
    ends.update(b for c in cells.values() for bits in c["connections"].values() for b in bits)
    beside: dict[int | str, tuple[str, int | str]] = {}  # net -> a buffer on it, and the buffer's other net
    for name, cell in cells.items():
        if cell["type"] in buffers:
            one, two = (bits[0] for bits in cell["connections"].values())
            beside |= {one: (name, two), two: (name, one)}
    for leaf in [c for c in cells.values() if c["type"] in leaves]:
        for port, bits in leaf["connections"].items():
            for i, bit in enumerate(bits):
                if leaf["port_directions"][port] == "input" and ends[bit] == 2 and bit in beside:
                    name, bits[i] = beside[bit]
                    del cells[name]


def _module(design: Any, top: str, options: str = "", select: str = "select -clear") -> dict:
    """The module `top` in its current state, in Yosys's JSON."""
    for command in (select, f"write_json {options} module.json", "select -clear"):
        libyosys.run_pass(command, design)
    module = json.loads(Path("module.json").read_text())["modules"].get(top, {})
    return {"ports": {}, "cells": {}, "netnames": {}} | module


def _names(module: dict) -> dict:
    """The best name of each net in the source: made by a person, high in the hierarchy, short."""
    best: dict[int, tuple[bool, int, int, str, str]] = {}
    for name, net in module["netnames"].items():
        if net["hide_name"]:
            continue
        made = bool(MADE.search(name))
        bits = net["bits"]
        for i, bit in enumerate(bits):
            if isinstance(bit, int):
                at = i + net.get("offset", 0)
                word = (made, name.count("."), len(name), name, f"{name}[{at}]" if len(bits) > 1 else name)
                best[bit] = min(best.get(bit, word), word)
    return {bit: word[-1] for bit, word in best.items()}


def _behind(mapped: dict, registers: dict, gate: dict) -> dict[str, str]:
    """A flip-flop behind each clock gate, by the gate's name; of its flip-flops the first by its name in the source."""
    cells = {n: c["connections"] for n, c in mapped["cells"].items()}
    gates = {cells[n][gate["out"]][0]: n for n, c in mapped["cells"].items() if c["type"] == gate["cell"]}
    found: dict[str, str] = {}
    for name in sorted((n for n in registers if n in cells), key=lambda n: (registers[n] is None, registers[n], n)):
        for bits in cells[name].values():
            if bits[0] in gates:
                found.setdefault(gates[bits[0]], name)
    return found


def _netlist(flops: dict, mapped: dict, memories: dict, gate: dict | None) -> dict:
    """The `netlist` of the report. A flip-flop keeps its name through mapping, but its output may be inverted."""
    before = _names(flops)
    registers = {n: before.get(c["connections"]["Q"][0]) for n, c in flops["cells"].items() if "Q" in c["connections"]}
    if gate:
        registers |= {
            n: f"enable of {registers[first] or first}" for n, first in _behind(mapped, registers, gate).items()
        }
    cells, rams = [], {}
    for name, cell in mapped["cells"].items():
        if cell["type"] == "$mem_v2":
            rams[memories[name]] = [cell["parameters"], cell["connections"]]
        else:
            cells.append([name, cell["type"], cell["connections"]])
    return {
        "ports": {n: [p["direction"], p["bits"]] for n, p in mapped["ports"].items()},
        "cells": cells,
        "names": _names(mapped),
        "registers": {n: registers[n] for n, *_ in cells if registers.get(n)},
        "memories": rams,
    }


def _source(flops: dict, memories: dict, leaves: list[str]) -> dict:
    """The `source` of the report: the graph of a module before mapping, and where its paths start and end."""
    names = _names(flops)
    gates: dict[int, list[str]] = {}
    starts: dict[str, list] = {}
    ends: dict[str, list] = {}
    for name, pin in flops["ports"].items():
        way = starts if pin["direction"] == "input" else ends
        way |= _labelled(name, pin["bits"])
    for name, cell in flops["cells"].items():
        pins = cell["connections"]
        if cell["type"] == "$mem_v2":
            if "0" in cell["parameters"]["RD_CLK_ENABLE"]:  # without a clock, data follow the address
                gates |= dict.fromkeys(pins["RD_DATA"], [str(b) for b in pins["RD_ADDR"]])
            for verb, port in (("read", "RD"), ("write", "WR")):
                for word, key in MEMORY_PINS.items():
                    data = (port, key) == ("RD", "DATA")
                    (starts if data else ends)[f"{memories[name]} {verb} {word}"] = pins.get(f"{port}_{key}", [])
        elif cell["type"] in leaves:
            for pin, bits in pins.items():
                way = ends if cell["port_directions"][pin] == "input" else starts
                way |= _labelled(f"{name}.{pin}", bits)
        elif "Y" in pins:
            gates[pins["Y"][0]] = [str(pins[k][0]) for k in pins if k != "Y"]
        elif "Q" in pins:
            label = names.get(pins["Q"][0], name)
            starts[label] = pins["Q"]
            ends[label] = [pins[k][0] for k in pins if k not in "CQ"]
            ends[f"enable of {label}"] = [pins[k][0] for k in pins if k in "ER"]
    return {
        "gates": gates,
        "names": {b: n for b, n in names.items() if not MADE.search(n)},
        "starts": {n: [str(b) for b in bits] for n, bits in starts.items()},
        "ends": {n: [str(b) for b in bits] for n, bits in ends.items()},
    }


def _labelled(name: str, bits: list) -> dict[str, list]:
    """The bits of a signal by their names."""
    return {name if len(bits) == 1 else f"{name}[{i}]": [b] for i, b in enumerate(bits)}


def _usage() -> tuple[float, int]:
    """Processor seconds of Yosys and ABC, and the larger of their memory peaks in KiB."""
    me, abc = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    peak = me.ru_maxrss
    with suppress(OSError):  # Linux's ru_maxrss also counts the process that started this one
        if own := re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text()):
            peak = int(own[1])
    return me.ru_utime + me.ru_stime + abc.ru_utime + abc.ru_stime, max(peak, abc.ru_maxrss)


main()
