"""Turns ABC's counterexamples into waveforms: Yosys replays the bits on the words of the monitor and its unit."""

import hashlib
import json
import re
from pathlib import Path

from openvrex.golden.atomic_files import write_atomically
from openvrex.tb.library.runner import BUILD
from openvrex.tb.library.yosys import run_yosys

WAVES = BUILD.parent / "formal"
# A proof leaves these: the design in words, the names of its inputs, ABC's values.
WORDS, MAP, BITS = "words.il", "map.json", "a.cex"


def write_wave(folder: Path, il: str, name: str, frames: int) -> tuple[str, Path]:
    """Write a waveform that ends in the cycle in which a claim is broken; the claim's message.

    folder : holds `WORDS`, `MAP` and `BITS`
    il : RTLIL with the claims' messages
    frames : cycles of the counterexample

    Raises `RuntimeError` if no claim is broken in the simulation: then Yosys or ABC is wrong.
    """
    witness = _witness(json.loads((folder / MAP).read_text()), (folder / BITS).read_text(), frames)
    (folder / "a.yw").write_text(json.dumps(witness))
    wave = WAVES / f"{name}-{hashlib.sha256(il.encode()).hexdigest()[:8]}.vcd"
    made = folder / "a.vcd"  # Yosys takes no name with spaces, which the waveform's place may have
    log = run_yosys([f"read_rtlil {folder / WORDS}", f"sim -r {folder / 'a.yw'} -vcd {made}"])
    broken = re.search(r"Assertion (\S+) \((\S+)\) failed", log)
    if not broken or "was not found" in log:
        raise RuntimeError(f"the counterexample does not break a claim in a simulation: {log[-500:]}")
    write_atomically(wave, made.read_bytes())
    cell = re.escape(broken[2].replace("_witness_.assert_", "$"))
    message = re.search(rf'  cell \$check {cell}\n(?:    .*\n)*?    parameter \\FORMAT "([^"]*)"', il)
    return (message[1] if message else "") or "the claim", wave


def _witness(inputs: dict, bits: str, frames: int) -> dict:
    """A Yosys witness of ABC's bits: first the registers, then the graph's inputs in every frame."""
    bits, count = re.match("[01]*", bits)[0], inputs["input_count"]
    first = len(bits) - frames * count
    steps = [bits[first + k * count : first + (k + 1) * count] for k in range(frames)]
    clocks = inputs["clocks"]
    clock_inputs = {c["input"] for c in clocks}
    signals = [(e, False) for e in inputs["inputs"] + inputs["seqs"] if e["input"] not in clock_inputs]
    signals += [(e, True) for e in inputs["inits"]]
    return {
        "format": "Yosys Witness Trace",
        "clocks": [{name: c[name] for name in ("path", "edge", "offset")} for c in clocks],
        "signals": [{"path": e["path"], "offset": e["offset"], "width": 1, "init_only": i} for e, i in signals],
        "steps": [{"bits": "".join(step[e["input"]] for e, _ in reversed(signals))} for step in steps],
    }
