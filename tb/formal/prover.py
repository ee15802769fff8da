"""Unbounded proofs: Yosys writes a monitor and its unit as an and-inverter graph, ABC finds an inductive invariant.

A monitor is a component whose inputs are free in every cycle; its assertions are the claims.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyosys
from amaranth.back import rtlil
from amaranth.lib import wiring

_PASSES = (
    "read_rtlil {il}",
    "delete t:$meminit t:$meminit_v2",  # memories start with anything
    "hierarchy -top top",
    "proc",
    "flatten",
    "chformal -lower",
    "memory",
    "opt -full",
    "techmap",
    "opt -fast",
    "setundef -undriven -anyseq",
    "async2sync",
    "dffunmap",
    "aigmap",
    "write_aiger -zinit {aig}",  # a flip-flop without an initial value gets a free one
)


def holds(monitor: wiring.Component, edit: tuple[str, str] | None = None, merge: bool = True) -> bool:
    """Whether the monitor's claims hold in every reachable state; False if ABC finds a way to break one.

    `edit` (pattern, replacement) changes the RTLIL once, to see the proof fail. `merge` joins equivalent registers
    first, which pays in a large unit; ABC then has no answer to claims that this alone proves. Raises `RuntimeError` if
    there is no answer.
    """
    il = rtlil.convert(monitor, name="top", emit_src=False)
    if edit:
        il, n = re.subn(*edit, il, count=1)
        assert n, f"edit does not apply: {edit[0]!r}"
    with tempfile.TemporaryDirectory() as tmp:
        source, aig = Path(tmp, "a.il"), Path(tmp, "a.aig")
        source.write_text(il)
        commands = [c.format(il=source, aig=aig) for c in _PASSES]
        code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
        run = subprocess.run([sys.executable, "-c", code, *commands], capture_output=True, text=True, check=False)
        if run.returncode:
            raise RuntimeError(f"Yosys could not write the graph: {(run.stdout + run.stderr)[-500:]}")
        abc = Path(pyosys.__file__).parent / "yosys-abc"
        script = f"read_aiger {aig}; fold; orpos; {'scorr; ' * merge}pdr -T 300"
        run = subprocess.run([str(abc), "-c", script], capture_output=True, text=True, check=False)
    if "Property proved" in run.stdout:
        return True
    if "was asserted in frame" in run.stdout:
        return False
    raise RuntimeError(f"ABC found no answer: {(run.stdout + run.stderr)[-500:]}")
