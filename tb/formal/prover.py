"""The prover: Yosys writes a monitor and its unit as an and-inverter graph, and ABC finds an inductive invariant.

A monitor is a component whose inputs are free in every cycle, including its reset. Its assertions are the claims.
"""

import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from amaranth.back import rtlil
from amaranth.lib import wiring

from openvrex.synth.yosys_abc import run_abc
from openvrex.tb.formal.counterexample import BITS, MAP, WORDS, write_wave
from openvrex.tb.library.yosys import run_yosys

_CELLS = (
    "read_rtlil {folder}/a.il",
    "delete t:$meminit t:$meminit_v2",  # memories start with any content
    "hierarchy -top top",
    "proc",
)
_WORDS = ("flatten", "chformal -lower")
# Selections that a proof may cut: their outputs are free in every cycle. A read port keeps its word.
MEMORIES = "c:*.mem t:$mem_v2 %i"  # of `hdl.memory`
_MEMORY = ("memory_collect", "memory_nordff", "opt_clean", "cutpoint {cut}", "memory_map")
_GRAPH = (
    "opt -full",
    "setundef -undriven -anyseq",
    "rename -witness",  # names everything to which a counterexample gives a value
    f"write_rtlil {{folder}}/{WORDS}",
    "techmap",
    "opt -fast",
    "async2sync",
    "dffunmap",
    "aigmap",
    f"write_aiger -zinit -ywmap {{folder}}/{MAP} {{folder}}/a.aig",  # uninitialised registers get a free value
)


@dataclass(frozen=True)
class Proof:
    """The result of a monitor's claims; true if they hold.

    claim : message of the first broken claim
    depth : cycles from reset that were examined, or after which the claim is broken; None: all cycles
    wave : the counterexample as a waveform
    """

    holds: bool
    engine: str
    seconds: float
    depth: int | None = None
    claim: str = ""
    wave: Path | None = None

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        if self.holds:
            return "holds" + (f" for {self.depth} cycles" if self.depth else "")
        return f"{self.claim!r} is broken in cycle {self.depth}: {self.wave}"


def holds(
    monitor: wiring.Component,
    edit: tuple[str, str] | None = None,
    merge: bool = True,
    cut: str = "none",
    depth: int | None = None,
    limit: int = 300,
    name: str = "",
    mutation: str = "",
) -> Proof:
    """Whether the monitor's claims hold in every reachable state, or in the first `depth` cycles.

    `edit` (pattern, replacement) changes the RTLIL once, to see the proof fail; `mutation` is one of `mutations`, for
    the same. `merge` first joins equivalent
    registers, which pays in a large unit; ABC then gives no answer to claims that merging alone proves. Cells that
    `cut` selects (`MEMORIES`, `PRODUCTS`) give free outputs: the proof is faster, and still holds for the unit. A
    counterexample is simulated word by word and left as a waveform, `name`-<hash>.vcd.

    Raises `RuntimeError` if there is no answer in `limit` seconds of ABC's processor time: a busy machine fails none.
    """
    start = time.monotonic()
    il = rtlil_of(monitor)
    if edit:
        il, n = re.subn(*edit, il, count=1)
        assert n, f"edit does not apply: {edit[0]!r}"
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        (folder / "a.il").write_text(il)
        commands = (*_CELLS, *([mutation] if mutation else []), *_WORDS, *_MEMORY, *_GRAPH)
        run_yosys([c.format(folder=folder, cut=cut) for c in commands])
        engine = f"bmc3 -c -F {depth}" if depth else "pdr"
        smaller = ("scorr; dc2; " if depth else "scorr; ") if merge else ""
        script = f"read_aiger a.aig; fold; orpos; {smaller}{engine}; write_cex {BITS}"
        log = run_abc(script, folder, limit)
        seconds = time.monotonic() - start
        broken = re.search(r"was asserted in frame (\d+)", log)
        if broken:
            frames = int(broken[1]) + 1
            claim, wave = write_wave(folder, il, name or type(monitor).__name__, frames)
            return Proof(False, engine.split()[0], seconds, frames, claim, wave)
    if "Property proved" in log:
        return Proof(True, "pdr", seconds)
    reached = re.search(r"No output (?:failed|asserted) in (\d+) frames", log)
    if depth and reached and int(reached[1]) >= depth:
        return Proof(True, "bmc3", seconds, depth)
    raise RuntimeError(f"ABC found no answer (limit: {limit} seconds of processor time): {log[-500:]}")


def mutations(monitor: wiring.Component, module: str, count: int, seed: int = 1) -> list[str]:
    """Yosys's commands for `count` faults of cells of a module and those inside, such as "top.unit", by chance.

    Fewer come, as outputs of registers are left out: a constant there contradicts the register's content after a reset.
    """
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp)
        (folder / "a.il").write_text(rtlil_of(monitor))
        listed = f"mutate -list {count} -seed {seed} -o {folder}/faults {module} {module}.*"
        run_yosys([c.format(folder=folder) for c in (*_CELLS, listed)])
        return [line for line in (folder / "faults").read_text().splitlines() if " -port Q " not in line]


def rtlil_of(monitor: wiring.Component) -> str:
    """RTLIL of a monitor, as module `top`."""
    return rtlil.convert(monitor, name="top", emit_src=False).replace("cell \\$anyseq ", "cell $anyseq ")
