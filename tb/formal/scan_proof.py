"""Proves a unit with scan chains equal to the unit without while `scan_enable` is 0, and its chains while it is 1.

Both netlists become one circuit without registers, as in `clock_gate_equivalence`. With `scan_enable` 1, each flip-flop
takes in every cycle what the one before it in its chain holds.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from openvrex.hdl.emit import emit
from openvrex.synth import cells, flow, scan
from openvrex.synth.cells import Gate
from openvrex.tb.formal.clock_gate_equivalence import Literal, Name, Side
from openvrex.tb.formal.verilog_equivalence import Equal, Graph, UnequalError


def prove(
    unit: str, params: object, chains: int = 1, edit: Callable[[dict], None] = lambda _: None, **options: Any
) -> Equal:
    """Proves both claims of a unit, flattened.

    `edit` changes the netlist with scan, to see the proof fail; `options` are of `flow.netlists`.
    Raises: `UnequalError` for a bit that differs.
    """
    start = time.monotonic()
    made = emit(unit, params)
    done, library = flow.netlists(made.verilog, made.top, **options)
    plain = done[made.top]["netlist"]
    scanned = scan.insert(made.top, plain, library, chains)
    edit(scanned.netlist)
    used = {kind for netlist in (plain, scanned.netlist) for _, kind, _ in netlist["cells"]}
    gates = {kind: _upright(gate) for kind, gate in cells.load(library, used)[0].items()}
    graph = Graph()
    inputs: dict[Name, Literal] = {}

    def taken(netlist: dict, enable: int) -> dict[Name, Literal]:
        side = Side(unit, {unit: {"netlist": netlist}}, gates, graph, inputs)
        for bit in netlist["ports"].get(scan.ENABLE, ("", ()))[1]:
            side.values[bit] = Literal(graph, enable)
        return side.taken()

    one, other, shifted = taken(plain, 0), taken(scanned.netlist, 0), taken(scanned.netlist, 1)
    outs = {("port", scan.OUT, i) for i in range(chains)}
    if lost := one.keys() ^ (other.keys() - outs):
        raise UnequalError(f"{unit}: only one side has {sorted(lost)[:3]}")
    pairs = [(" ".join(map(str, name)), value.at, other[name].at) for name, value in one.items()]
    following, clocks = (
        {name[3]: value.at for name, value in shifted.items() if name[2:3] == (what,)} for what in ("next", "clock")
    )
    inverts = {cell: _inverts(gates[kind]) for cell, kind, _ in scanned.netlist["cells"] if cell in following}
    for i, chain in enumerate(scanned.chains):
        before, odd = inputs["port", scan.IN, i].at, 0
        for cell in chain:
            pairs.append((f"{cell} while it shifts", before, following[cell]))
            pairs.append((f"{cell}, its clock while it shifts", clocks[chain[0]], clocks[cell]))
            before, odd = inputs["register", cell].at ^ inverts[cell], odd ^ inverts[cell]
        pairs.append((f"{scan.OUT}[{i}]", before ^ odd, shifted["port", scan.OUT, i].at))
    differ = [pair for pair in pairs if pair[1] != pair[2]]
    with tempfile.TemporaryDirectory() as tmp:
        if differ:
            graph.check(Path(tmp), differ)
    return Equal(unit, sum(map(len, scanned.chains)), len(pairs), len(pairs) - len(differ), time.monotonic() - start)


def _inverts(gate: Gate) -> int:
    """Whether a flip-flop shows the inverse of its state."""
    return int(gate.stored(next(iter(gate.outputs)), np.zeros(1, np.uint8))[gate.state[0]][0] & 1)


def _upright(gate: Gate) -> Gate:
    """A scan flip-flop that stores the inverse of its data, as one that stores its data."""
    if gate.next_state and len(gate.inputs) > 1 and gate.next_state(dict.fromkeys(gate.inputs, 0)) & 1:
        return replace(gate, state=gate.state[::-1], next_state=1 - gate.next_state)
    return gate
