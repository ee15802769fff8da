"""Finds which stuck-at faults of a netlist with scan a test can detect.

A test shifts a state in, gives one clock edge and shifts the state out. So the netlist is one without registers: ports,
states of flip-flops and read data of memories go in; ports, next states and what memories take go out. A fault is a pin
of a cell or a port that is always 0 or always 1; clock pins have none. A clock gate's inputs act through the
flip-flops behind it, which keep their state while it is closed.

Random patterns come first: a fault's effect is followed through the cells behind it for all patterns of a round at
once, as bits of one integer, and a fault that is seen once is dropped. For each fault left, ABC's SAT solver finds a
pattern, which is played too, or proves that there is none.
"""

import heapq
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from openvrex.synth import cells
from openvrex.synth.cells import Gate
from openvrex.synth.liberty import Library, SynthError
from openvrex.synth.scan import ENABLE
from openvrex.synth.yosys_abc import run_abc

ROUNDS = (64, 192, 768, 3072)  # random patterns
BATCH = 64  # faults that go to ABC at once
CONFLICTS = 20_000  # of the SAT solver, before it leaves a fault undecided
SHIFTS = 8  # one of so many random patterns has `scan_enable` 1
_CONSTANTS = ("0", "1", "x", "z")
_STATE, _OPEN, _NEXT, _OUT = "a state", "an open clock", "the next state", "outside"  # names that no pin has
_covers: dict[tuple, str] = {}
Net = int | str  # a net of the netlist, or what has none: a flip-flop's state, a clock gate's opening


class Fault(NamedTuple):
    """A place that is always `value`: input `pin` of a node, or with -1 a net."""

    at: Net
    pin: int
    value: int


class _Node(NamedTuple):
    """A function of nets. out : the net that it drives, or `_OUT` · pins : so many first inputs are pins"""

    run: Callable[..., int]
    into: tuple[Net, ...]
    out: Net
    pins: int


@dataclass(frozen=True)
class Coverage:
    """Numbers of faults, and of patterns that were played or, by SAT, made.

    undetected : faults that neither a pattern nor a proof answers for
    """

    faults: int
    by_random: int
    by_sat: int
    untestable: int
    undetected: int
    random_patterns: int
    sat_patterns: int

    @property
    def coverage(self) -> float:
        """Detected faults, of those that are not untestable."""
        return (self.by_random + self.by_sat) / max(1, self.faults - self.untestable)


class _Text:
    """An operand of `cells.Function` that writes Python; `m` is the mask of all patterns."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __and__(self, other: "_Text") -> "_Text":
        return _Text(f"({self.text}&{other.text})")

    def __or__(self, other: "_Text") -> "_Text":
        return _Text(f"({self.text}|{other.text})")

    def __xor__(self, other: "_Text") -> "_Text":
        return _Text(f"({self.text}^{other.text})")

    def __invert__(self) -> "_Text":
        return _Text(f"({self.text}^m)")


def _compiled(function: Callable[[Any], Any], pins: list[str]) -> Callable[..., int]:
    """A function of `cells` as one of the mask and the values of its pins, several times as fast."""
    names = [f"a{i}" for i in range(len(pins))]
    text = function({p: _Text(name) for p, name in zip(pins, names, strict=True)}).text
    return eval(f"lambda m, {', '.join(names)}: {text}")


def _functions(gate: Gate) -> dict[str, tuple[Callable[[Any], Any], list[str]]]:
    """What a cell computes, by output pin, and of what. A register's clock passes if `_OPEN` is 1."""

    coming = gate.next_state

    def with_state(env: dict) -> dict:
        return env | {gate.state[0]: env[_STATE], gate.state[1]: ~env[_STATE]}

    if gate.gate:
        return {_OPEN: (gate.open, gate.inputs)}
    if coming is None:
        return {p: (function, gate.inputs) for p, function in gate.outputs.items()}

    def captured(env: dict) -> Any:
        return (coming(with_state(env)) & env[_OPEN]) | (env[_STATE] & ~env[_OPEN])

    outs = {p: (lambda env, f=f: f(with_state(env)), [_STATE]) for p, f in gate.outputs.items()}
    return outs | {_NEXT: (captured, [*gate.inputs, _STATE, _OPEN])}


class Netlist:
    """A flat netlist with scan, as nodes in order of evaluation.

    inputs : what goes in · enable : the net of `scan_enable` · faults : all of them
    """

    def __init__(self, netlist: dict, library: Library) -> None:
        gates, _ = cells.load(library, {kind for _, kind, _ in netlist["cells"]})
        pure = {(k, p): (_compiled(f, pins), pins) for k, g in gates.items() for p, (f, pins) in _functions(g).items()}
        opened = {pins[g.gate.out][0]: f"open {n}" for n, k, pins in netlist["cells"] if (g := gates[k]).gate}
        clocks = {pins[gates[k].clock][0] for _, k, pins in netlist["cells"] if gates[k].clock}
        nodes: list[_Node] = []
        for name, kind, pins in netlist["cells"]:
            gate = gates[kind]
            own = {p: bits[0] for p, bits in pins.items() if bits} | {_STATE: f"state {name}"}
            own[_OPEN] = f"open {name}" if gate.gate else opened.get(own.get(gate.clock, ""), "1")
            for (of, p), (run, into) in pure.items():
                if of == kind and (p == _NEXT or p in own):
                    shown = _OUT if p == _NEXT else own[p]
                    nodes.append(_Node(run, tuple(own[q] for q in into), shown, sum(q in gate.inputs for q in into)))
        going = [bits for direction, bits in netlist["ports"].values() if direction == "output"]
        for _, pins in netlist["memories"].values():
            going += [bits for p, bits in pins.items() if p != "RD_DATA" and not p.endswith("_CLK")]
        nodes += [_Node(lambda m, a: a, (bit,), _OUT, 1) for bits in going for bit in bits]
        driver = {node.out: i for i, node in enumerate(nodes) if node.out != _OUT}
        before = {i: {driver[net] for net in node.into if net in driver} for i, node in enumerate(nodes)}
        self.nodes = [nodes[i] for i in TopologicalSorter(before).static_order()]
        self.driver = {node.out: i for i, node in enumerate(self.nodes) if node.out != _OUT}
        self.readers: dict[Net, list[int]] = defaultdict(list)
        for i, node in enumerate(self.nodes):
            for net in dict.fromkeys(node.into):
                self.readers[net].append(i)
        self.inputs = [net for net in self.readers if net not in driver and net not in _CONSTANTS]
        (self.enable,) = netlist["ports"][ENABLE][1]
        sites = [(net, -1) for net in self.readers if isinstance(net, int) and net not in clocks]
        sites += [(i, k) for i, node in enumerate(self.nodes) for k in range(node.pins)]
        self.faults = [Fault(at, pin, value) for at, pin in sites for value in (0, 1)]

    def values(self, given: dict[Net, int], mask: int) -> dict[Net, int]:
        """Every net for the patterns in the bits of `given`, of which `mask` has as many ones."""
        values = given | {net: mask * (net == "1") for net in _CONSTANTS}
        for run, into, out, _ in self.nodes:
            values[out] = run(mask, *[values[net] for net in into])
        return values

    def seen(self, fault: Fault, values: dict[Net, int], mask: int) -> int:
        """Patterns that detect a fault; `values` are those without it. It stops at the first output that differs."""
        stuck = mask * fault.value
        wrong = {fault.at: stuck} if fault.pin < 0 else {}
        waiting = list(self.readers[fault.at]) if fault.pin < 0 else [int(fault.at)]
        last = -1
        while waiting:
            i = heapq.heappop(waiting)
            if i == last:
                continue
            last = i
            run, into, out, _ = self.nodes[i]
            own = [wrong.get(net, values[net]) for net in into]
            if fault.pin >= 0 and i == fault.at:
                own[fault.pin] = stuck
            good = run(mask, *[values[net] for net in into]) if out == _OUT else values[out]
            differ = run(mask, *own) ^ good
            if differ and out == _OUT:
                return differ
            if differ:
                wrong[out] = good ^ differ
                for reader in self.readers[out]:
                    heapq.heappush(waiting, reader)
        return 0

    def question(self, fault: Fault) -> str:
        """BLIF whose output is 1 if its inputs detect a fault. An input is `i` and a place in `inputs`."""
        first = list(self.readers[fault.at]) if fault.pin < 0 else [int(fault.at)]
        touched = _reached(first, lambda i: self.readers.get(self.nodes[i].out, ()))
        needed = _reached(touched, lambda i: [self.driver[net] for net in self.nodes[i].into if net in self.driver])
        changed = {self.nodes[i].out for i in touched}
        number = {net: f"i{i}" for i, net in enumerate(self.inputs)}
        number |= {net: f"n{i}" for net, i in self.driver.items()} | {net: f"c{net}" for net in _CONSTANTS}
        ins = [number[net] for i in needed for net in self.nodes[i].into if net not in self.driver]
        lines = [f".model m\n.inputs {' '.join(x for x in dict.fromkeys(ins) if x[0] == 'i')}\n.outputs z"]
        lines += [f".names c{net}" + "\n1" * (net == "1") for net in _CONSTANTS]
        lines.append(".names f" + "\n1" * fault.value)
        differ = []

        def wrong(i: int, k: int, net: Net) -> str:
            if (i, k) == fault[:2] or (fault.pin < 0 and net == fault.at):
                return "f"
            return f"{number[net]}w" if net in changed else number[net]

        for i in sorted(needed):
            run, into, out, _ = self.nodes[i]
            lines.append(_cover(run, [number[net] for net in into], f"n{i}"))
            if i in touched:
                lines.append(_cover(run, [wrong(i, k, net) for k, net in enumerate(into)], f"n{i}w"))
                if out == _OUT:
                    lines.append(f".names n{i} n{i}w d{i}\n10 1\n01 1")
                    differ.append(f"d{i}")
        lines.append(f".names {' '.join(differ)} z")
        lines += ["-" * i + "1" + "-" * (len(differ) - 1 - i) + " 1" for i in range(len(differ))]
        return "\n".join([*lines, ".end\n"])


def _reached(first: Iterable[int], after: Callable[[int], Iterable[int]]) -> set[int]:
    """Nodes that come after the first ones, and these."""
    found, todo = set(), list(first)
    while todo:
        if (i := todo.pop()) not in found:
            found.add(i)
            todo += after(i)
    return found


def _cover(run: Callable[..., int], names: list[str], out: str) -> str:
    """A node in BLIF."""
    key = run, len(names)
    if key not in _covers:
        rows = product((0, 1), repeat=len(names))
        _covers[key] = "".join(f"\n{''.join(map(str, row))} 1" for row in rows if run(1, *row))
    return f".names {' '.join(names)} {out}{_covers[key]}"


def coverage(netlist: dict, library: Library, seed: int = 0) -> Coverage:
    """Faults of a netlist of `scan.insert`, and how many of them tests detect."""
    circuit, rng = Netlist(netlist, library), np.random.default_rng(seed)

    def drawn(n: int) -> dict[Net, int]:
        given = {net: int.from_bytes(rng.bytes(n // 8), "little") for net in circuit.inputs}
        shifts = (rng.integers(0, SHIFTS, n) == 0).astype(np.uint8)
        return given | {circuit.enable: int.from_bytes(np.packbits(shifts).tobytes(), "little")}

    def missed(faults: list[Fault], given: dict[Net, int], n: int) -> list[Fault]:
        mask = (1 << n) - 1
        values = circuit.values({net: bits & mask for net, bits in given.items()}, mask)
        return [fault for fault in faults if not circuit.seen(fault, values, mask)]

    left = circuit.faults
    for n in ROUNDS:
        left = missed(left, drawn(n), n)
    by_random, untestable, patterns = len(circuit.faults) - len(left), 0, 0
    undecided: list[Fault] = []
    while left:
        asked, left = left[:BATCH], left[BATCH:]
        tests: list[dict[Net, int]] = []
        tested: list[Fault] = []
        for fault, (answer, test) in zip(asked, _ask(circuit, asked), strict=True):
            untestable += answer == "UNSATISFIABLE"
            if answer == "SATISFIABLE":
                tests.append(test)
                tested.append(fault)
            elif answer == "UNDECIDED":
                undecided.append(fault)
        if tests:
            given = drawn(BATCH)
            for i, test in enumerate(tests):
                given |= {net: given[net] & ~(1 << i) | value << i for net, value in test.items()}
            if wrong := missed(tested, given, len(tests)):
                raise SynthError(f"{wrong[0]}: the solver's pattern does not detect it; tell the authors of OpenVRex")
            left, undecided = (missed(faults, given, len(tests)) for faults in (left, undecided))
            patterns += len(tests)
    by_sat = len(circuit.faults) - by_random - untestable - len(undecided)
    return Coverage(len(circuit.faults), by_random, by_sat, untestable, len(undecided), sum(ROUNDS), patterns)


def _ask(circuit: Netlist, faults: list[Fault]) -> list[tuple[str, dict[Net, int]]]:
    """ABC's word on each fault, and a pattern if it found one."""
    with tempfile.TemporaryDirectory(prefix="vrex-scan-") as tmp:
        folder = Path(tmp)
        for i, fault in enumerate(faults):
            (folder / f"{i}.blif").write_text(circuit.question(fault))
        script = "".join(
            f"read_blif {i}.blif\nstrash\nsat -C {CONFLICTS}\nwrite_cex -n {i}.cex\n" for i in range(len(faults))
        )
        said = run_abc(script, folder)
        answers = re.findall(r"^(SATISFIABLE|UNSATISFIABLE|UNDECIDED)", said, re.M)
        if len(answers) != len(faults):
            raise SynthError(f"ABC stopped: {said[-300:]}")
        out = []
        for i, answer in enumerate(answers):
            found = (folder / f"{i}.cex").read_text() if answer == "SATISFIABLE" else ""
            test = {circuit.inputs[int(place)]: int(value) for place, value in re.findall(r"i(\d+)=([01])", found)}
            out.append((answer, test))
        return out
