"""Proves two netlists of one source equal, by partition refinement.

Yosys flattens both to word-level cells. Nets of both start in classes by their driver: a port, or an output of a kind
of cell. A class is split as long as its drivers' inputs lie in different classes. The result is a bisimulation: nets of
one class carry equal values in every cycle, if they start with equal values.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

_PASSES = (
    "read_verilog {v}",
    "hierarchy -check -top {top}",
    "proc",
    "flatten",
    "memory_collect",
    "opt_clean -purge",
    "write_json {json}",
)


def prove_equal(gold: str, gate: str, top: str) -> int:
    """Prove that module `top` of two Verilog texts has equal outputs in every cycle; the number of classes.

    Raises `AssertionError`, which names the first output bit that is not proved equal.
    """
    netlists = [_netlist(text, top) for text in (gold, gate)]
    drivers, outputs = [], []
    for k, (ports, cells) in enumerate(netlists):
        for name, port in ports.items():
            if port["direction"] == "input":
                drivers += [((k, bit), ("port", name, i), ()) for i, bit in enumerate(port["bits"])]
        for cell in cells:
            into = {p: bits for p, bits in cell["connections"].items() if cell["port_directions"][p] == "input"}
            kind = (cell["type"], *sorted((n, v) for n, v in cell["parameters"].items() if n != "MEMID"), *sorted(into))
            nets = tuple((k, bit) for p in sorted(into) for bit in into[p])
            for p, bits in cell["connections"].items():
                if p not in into:
                    drivers += [((k, bit), (*kind, p, i), nets) for i, bit in enumerate(bits)]
        outputs.append({(n, i): (k, b) for n, p in ports.items() for i, b in enumerate(p["bits"])})
    colour, classes = {net: 0 for net, _, _ in drivers}, 0
    while True:
        known: dict[tuple, int] = {}
        new = {
            net: known.setdefault((kind, tuple(colour.get(n, n[1]) for n in nets)), len(known))
            for net, kind, nets in drivers
        }
        colour = new
        if len(known) == classes:
            break
        classes = len(known)
    assert outputs[0].keys() == outputs[1].keys(), "the two have different ports"
    for bit, net in outputs[0].items():
        other = outputs[1][bit]
        assert colour.get(net, net[1]) == colour.get(other, other[1]), f"{top}.{bit[0]}[{bit[1]}] is not proved equal"
    return classes


def _netlist(text: str, top: str) -> tuple[dict, list[dict]]:
    with tempfile.TemporaryDirectory() as tmp:
        source, target = Path(tmp, "a.v"), Path(tmp, "a.json")
        source.write_text(text)
        commands = [c.format(v=source, json=target, top=top) for c in _PASSES]
        code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
        run = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=False)
        assert run.returncode == 0, (run.stdout + run.stderr)[-1000:]
        module = json.loads(target.read_text())["modules"][top]
    return module["ports"], [c for c in module["cells"].values() if c["type"] != "$scopeinfo"]
