"""Makes every flip-flop of a mapped netlist a scan flip-flop, and joins them to chains.

While port `scan_enable` is 1, chain i shifts a bit a cycle from `scan_in[i]` to `scan_out[i]`, and clock gates are
open. While it is 0, the netlist works as without scan. A scan flip-flop is the library's, or a flip-flop behind a
multiplexer. Flip-flops may invert what they shift; `scan_out` shows it as it came.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, permutations, product
from typing import NamedTuple

from openvrex.golden.function_params import check
from openvrex.synth import cells
from openvrex.synth.cells import Gate
from openvrex.synth.liberty import ClockGate, Library, SynthError, clock_gate

ENABLE, IN, OUT = "scan_enable", "scan_in", "scan_out"


@dataclass(frozen=True)
class Scan:
    """A netlist with scan, as `synth.worker` reports one.

    chains : names of the flip-flops of each chain, from `scan_in` to `scan_out`
    area, before : with and without scan, in the library's unit
    """

    netlist: dict
    chains: tuple[tuple[str, ...], ...]
    area: float
    before: float


class _Cell(NamedTuple):
    """A scan flip-flop or a multiplexer: its pins, and the flip-flop's output that a chain takes, maybe inverted."""

    name: str
    data: str
    scan: str
    enable: str
    out: str
    is_flop: bool
    tail: str
    inverts: bool


def insert(top: str, netlist: dict, library: Library, chains: int = 1) -> Scan:
    """The netlist of a flat module with `chains` chains, whose lengths differ by one at most.

    Raises: `ParamError` for a number of chains that the flip-flops do not fill; `SynthError` for latches, for ports
    with scan's names, and for a library without the cells.
    """
    gates, _ = cells.load(library, {kind for _, kind, _ in netlist["cells"]})
    inverter = cells.load(library, {library.inverter.name})[0][library.inverter.name]
    registers = {kind: _scanned(library, gate) for kind, gate in gates.items() if gate.next_state}
    flops = {name: (registers[kind], pins) for name, kind, pins in netlist["cells"] if kind in registers}
    check(1 <= chains <= len(flops), "chains", chains, f"must be 1 to {len(flops)}, the flip-flops of {top}")
    if taken := netlist["ports"].keys() & {ENABLE, IN, OUT}:
        raise SynthError(f"{top}: has a port {min(taken)} of its own")
    if latches := [k for k, g in gates.items() if library.cells[k].state and not (g.next_state or g.gate)]:
        raise SynthError(f"{top}: {latches[0]} is a latch, which no chain can hold")
    fresh = count(1 + max(nets(netlist)))
    enable, ins = next(fresh), [next(fresh) for _ in range(chains)]
    outs: list[int] = []
    tails = {name: (pins.get(cell.tail) or [next(fresh)])[0] for name, (cell, pins) in flops.items()}
    parts = [tuple(flops)[len(flops) * i // chains : len(flops) * (i + 1) // chains] for i in range(chains)]
    heads, made = {}, []  # net that each flip-flop takes while it shifts; cells
    for part, net in zip(parts, ins, strict=True):
        for name in part:
            heads[name], net = net, tails[name]
        if sum(flops[name][0].inverts for name in part) % 2:
            net, odd = next(fresh), net
            made.append(
                [f"{OUT}${len(outs)}", inverter.name, {inverter.inputs[0]: [odd], next(iter(inverter.outputs)): [net]}]
            )
        outs.append(net)
    for name, kind, pins in netlist["cells"]:
        gate = gates[kind]
        if gate.gate:
            made.append([name, *_opened(library, gate.gate, pins, enable)])
        elif name in flops:
            cell, data = flops[name][0], gate.inputs[0]
            scan = {cell.data: pins[data], cell.scan: [heads[name]], cell.enable: [enable]}
            own = {p: bits for p, bits in pins.items() if p != data} | {cell.tail: [tails[name]]}
            if cell.is_flop:
                made.append([name, cell.name, own | scan])
            else:
                net = next(fresh)
                made.append([f"{name}$scan", cell.name, scan | {cell.out: [net]}])
                made.append([name, kind, own | {data: [net]}])
        else:
            made.append([name, kind, pins])
    ports = {ENABLE: ["input", [enable]], IN: ["input", ins], OUT: ["output", outs]}
    done = netlist | {"ports": netlist["ports"] | ports, "cells": made}
    return Scan(done, tuple(parts), _area(done, library), _area(netlist, library))


def nets(netlist: dict) -> set[int]:
    """Every net."""
    pins = [bits for _, bits in netlist["ports"].values()]
    pins += [bits for *_, own in netlist["cells"] for bits in own.values()]
    pins += [bits for _, own in netlist["memories"].values() for bits in own.values()]
    return {bit for bits in pins for bit in bits if isinstance(bit, int)}


def _area(netlist: dict, library: Library) -> float:
    return sum(library.cells[kind].area or 0.0 for _, kind, _ in netlist["cells"])


def _values(gate: Gate, roles: tuple[str, ...], out: str) -> list[int]:
    """An output, of a register after the clock edge, for all bits of the inputs `roles` in order."""
    values = []
    for bits in product((0, 1), repeat=len(roles)):
        env: dict = dict(zip(roles, bits, strict=True))
        if gate.next_state:
            state = gate.next_state(env)
            env = {gate.state[0]: state, gate.state[1]: ~state}
        values.append(int(gate.outputs[out](env)) & 1)
    return values


def _scanned(library: Library, flop: Gate) -> _Cell:
    """The smallest scan flip-flop for a flip-flop, or else the smallest multiplexer. Raises `SynthError`."""
    own = library.cells[flop.name]
    tails = {p: _values(flop, tuple(flop.inputs), p) for p in flop.outputs if len(flop.inputs) == 1}
    tail, shows = next(((p, v) for p, v in tails.items() if v[0] != v[1]), ("", []))
    if not tail:
        raise SynthError(f"{own.file}: {flop.name}: a chain needs flip-flops with one input of data")
    found = []
    for gate in _candidates(library, flop):
        is_flop = gate.next_state is not None
        out = tail if is_flop else next(iter(gate.outputs))
        wanted = [scan if enable else data for data, scan, enable in product((0, 1), repeat=3)]
        wanted = [shows[bit] for bit in wanted] if is_flop else wanted
        for roles in permutations(gate.inputs, 3):
            if _values(gate, roles, out) == wanted:
                cell = _Cell(gate.name, *roles, out=out, is_flop=is_flop, tail=tail, inverts=shows[0] == 1)
                found.append((not is_flop, library.cells[gate.name].area, cell))
    if not found:
        raise SynthError(f"{own.file}: has neither a scan flip-flop like {flop.name} nor a multiplexer")
    return min(found)[-1]


def _candidates(library: Library, flop: Gate) -> Iterator[Gate]:
    """Cells with three inputs and one output, and flip-flops that have two inputs more than `flop`."""
    own = library.cells[flop.name].group.of("pin")
    for name, cell in library.cells.items():
        pins = cell.group.of("pin")
        like = cell.state == "ff" and len(pins) == len(own) + 2 and {p.args for p in own} <= {p.args for p in pins}
        simple = not cell.state and len(pins) == 4 and len(cell.functions) == 1 and name not in library.barred
        if cell.area and not cell.dont_use and (like or simple):
            gate = cells.load(library, {name})[0][name]
            if len(gate.inputs) == 3 and gate.clock == (flop.clock if like else ""):
                yield gate


def _opened(library: Library, own: ClockGate, pins: dict, enable: int) -> tuple[str, dict]:
    """A clock gate that `enable` opens: itself, or the smallest one of the library with a pin for tests."""
    found = (clock_gate(c.group) for c in library.cells.values() if c.area and not c.dont_use)
    gates = [own] if own.tests else [g for g in found if g and g.tests]
    if not gates:
        raise SynthError(f"{', '.join(library.names)}: has no clock gate with a test pin; map without (--gated 0)")
    new = min(gates, key=lambda g: library.cells[g.cell].area or 0.0)
    kept = {getattr(new, role): pins[getattr(own, role)] for role in ("enable", "clock", "out")}
    return new.cell, kept | {pin: [enable] for pin in new.tests}
