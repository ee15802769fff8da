"""Records registers inside a unit's RTL, cycle by cycle, so that `synth.switching_activity` can evaluate its gates."""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openvrex.hdl.emit import Emitted
from openvrex.tb.library.recording import Recording
from openvrex.tb.library.runner import simulator

_BIT = re.compile(r"(.*)\[(\d+)\]")
MEMORIES = (".storage", ".mem")  # ends of the names of memories and FIFOs


@dataclass(frozen=True)
class Recorder(Emitted):
    """A unit with recorders in its modules.

    It starts from zeros. Mapping is free in states that a design cannot reach, so from such a state a netlist may
    behave differently from its source.
    """

    power_up: int = 0
    alone: bool = True  # its files belong to a run from the simulator's start to its end: no runs fork from one start


def recorded(emitted: Emitted, signals: dict[str, list[str]], instances: dict[str, list[str]]) -> Recorder:
    """Put a recorder into some modules of `emitted`; it writes `<module>.<instance>.rec` into the run's folder.

    signals : module -> bits of its signals and of those below, as `synth.switching_activity.Circuit.needs` names them
    instances : module -> names of the instances to record, where not all of them are wanted
    """
    text = "`undef OPENVREX_CHECK\n" + emitted.verilog  # what a memory gives moves as in the gates
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
    """Run `play` on a unit with recorders (see `recorded`); each module's recordings, in the order of the runs."""
    unit = recorded(emitted, signals, instances or {})
    runs = simulator(unit).parent.parent / "runs"

    def files(module: str) -> list[Path]:
        return sorted(runs.glob(f"*-{os.getpid()}/{module}.*.rec"), key=lambda p: (p.stat().st_mtime_ns, p.name))

    for module in signals:
        for old in files(module):  # an earlier process had the same number
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
    """Verilog of a process that writes the bits before each rising edge, the first bit lowest."""
    # A block that Verilator compiles by itself has the module's name added to its place.
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
    """A signal, and the number of its bit; None for a signal of one bit."""
    m = _BIT.fullmatch(bit)
    return (m[1], int(m[2])) if m else (bit, None)


def _ranges(bits: list[str]) -> Iterable[str]:
    """Verilog of the bits; consecutive bits of a vector become a range. Words of a memory cannot, if they are bits."""
    word, low, high = "", None, None
    for bit in [*bits, ""]:
        name, at = _word(bit)
        if word and name == word and at == high + 1 and not word.endswith(MEMORIES):
            high = at
            continue
        if word:
            yield _path(word) + ("" if low is None else f"[{low}]" if low == high else f"[{high}:{low}]")
        word, low, high = name, at, at


def _path(name: str) -> str:
    """A hierarchical name, escaped because it may be a keyword of SystemVerilog; a memory's word keeps its index."""
    parts = (part.removeprefix("\\").partition("[") for part in name.split("."))
    return ".".join(f"\\{stem} {bracket}{index}" for stem, bracket, index in parts)
