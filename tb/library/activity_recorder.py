"""Records what the RTL does inside, cycle by cycle, for `synth.switching_activity` to evaluate."""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hdl.emit import Emitted
from tb.library.recording import Recording
from tb.library.runner import simulator

_BIT = re.compile(r"(.*)\[(\d+)\]")


@dataclass(frozen=True)
class Recorder(Emitted):
    """A unit that writes down what it does.

    It starts from zeros: mapping is free in states that a design cannot reach, so that a netlist may go on from such a
    state otherwise than its source.
    """

    power_up: int = 0


def recorded(emitted: Emitted, signals: dict[str, list[str]], instances: dict[str, list[str]]) -> Recorder:
    """`emitted` with a recorder in some of its modules, which writes `<module>.<instance>.rec` into the run's folder.

    signals : module -> bits of signals of it and below, as `synth.switching_activity.Circuit.needs` names them
    instances : module -> names of those to record, where they are not all
    """
    text = emitted.verilog
    for module, bits in signals.items():
        start = re.search(rf"^module \\?{re.escape(module)}\b", text, re.M)
        end = text.index("\nendmodule", start.start())
        text = text[:end] + _recorder(module, bits, instances.get(module, [])) + text[end:]
    return Recorder(**vars(emitted) | {"verilog": text})


def recordings(
    emitted: Emitted,
    signals: dict[str, list[str]],
    play: Callable[[Emitted], object],
    instances: dict[str, list[str]] | None = None,
) -> dict[str, list[Recording]]:
    """Run `play` on a unit with recorders as in `recorded`; of each module its recordings, run by run."""
    unit = recorded(emitted, signals, instances or {})
    runs = simulator(unit).parent.parent / "runs"

    def files(module: str) -> list[Path]:
        return sorted(runs.glob(f"*-{os.getpid()}/{module}.*.rec"), key=lambda p: (p.stat().st_mtime_ns, p.name))

    for module in signals:
        for old in files(module):  # of another process that had the same number
            old.unlink()
    play(unit)
    out = {}
    for module, bits in signals.items():
        out[module] = [_read(path, bits) for path in files(module)]
        for path in files(module):
            path.unlink()
    return out


def _read(path: Path, bits: list[str]) -> Recording:
    data, width = np.fromfile(path, np.uint8), 4 * -(-len(bits) // 32)
    columns = {b: i for i, b in enumerate(bits)}
    return Recording(columns, data[: len(data) // width * width].reshape(-1, width))


def _recorder(module: str, bits: list[str], instances: list[str]) -> str:
    """A process that writes the bits before each rising edge, the first one lowest."""
    # Verilator adds the module's name to the place of a block that it compiles by itself.
    ends = (end for n in instances for end in (f".{n}", f".{n}.{module}"))
    chosen = " || ".join(f'place.substr(place.len() - {len(e)}, place.len() - 1) == "{e}"' for e in ends) or "1"
    pad = f"{-len(bits) % 32}'b0, " if len(bits) % 32 else ""
    ranges = ",\n    ".join(reversed(list(_ranges(bits))))
    return (
        "\n  integer recorder;"
        "\n  string place;"
        "\n  initial begin"
        '\n    place = $sformatf("%m");'
        f"\n    recorder = 0;"
        f'\n    if ({chosen}) recorder = $fopen({{"{module}.", place, ".rec"}}, "wb");'
        "\n  end"
        f'\n  always @(posedge clk) if (recorder != 0) $fwrite(recorder, "%u", {{{pad}{ranges}}});'
    )


def _word(bit: str) -> tuple[str, int | None]:
    """A signal and which bit of it; None where it has only one."""
    m = _BIT.fullmatch(bit)
    return (m[1], int(m[2])) if m else (bit, None)


def _ranges(bits: list[str]) -> Iterable[str]:
    """Verilog of the bits, those that follow each other in a word as a range."""
    word, low, high = "", None, None
    for bit in [*bits, ""]:
        name, at = _word(bit)
        if word and name == word and at == high + 1:
            high = at
            continue
        if word:
            yield _path(word) + ("" if low is None else f"[{high}:{low}]")
        word, low, high = name, at, at


def _path(name: str) -> str:
    """A hierarchical name, escaped, as it may be a keyword of SystemVerilog; a word of a memory keeps its index."""
    parts = (part.removeprefix("\\").partition("[") for part in name.split("."))
    return ".".join(f"\\{stem} {bracket}{index}" for stem, bracket, index in parts)
