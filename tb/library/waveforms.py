"""Waveforms of a unit, and what GTKWave needs to show them: streams in groups, states by name."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from openvrex.hdl.emit import Emitted
from openvrex.hdl.ports import streams

HEX, BINARY, FILTERED, OPEN, CLOSE = "@22", "@28", "@2022", "@800200", "@1000200"  # flags of GTKWave's save files


@dataclass(frozen=True)
class Traced(Emitted):
    """A unit whose runs leave their waveforms in `folder`."""

    folder: Path = Path()


@cache
def suffix() -> str:
    """The kind of waveform: FST, or VCD on a machine without the headers of zlib and LZ4, which FST needs."""
    asks = ["g++", "-E", "-x", "c++", "-"]
    if not shutil.which("g++"):
        return "vcd"
    run = subprocess.run(asks, input="#include <zlib.h>\n#include <lz4.h>", capture_output=True, text=True, check=False)
    return "vcd" if run.returncode else "fst"


def keep(dump: Path, traced: Traced, test: str) -> Path:
    """Moves a run's waveform to the folder, with a save file for GTKWave beside it; the path of the save file."""
    traced.folder.mkdir(parents=True, exist_ok=True)
    number = len(list(traced.folder.glob(f"{test}*.gtkw")))
    name = f"{test}_{number}" if number else test
    shutil.move(dump, traced.folder / f"{name}{dump.suffix}")
    for i, (_, values) in enumerate(_states(traced)):
        lines = [f"{number:x} {text}\n" for number, text in sorted(values.items())]
        (traced.folder / f"{name}_states_{i}.txt").write_text("".join(lines))
    save = traced.folder / f"{name}.gtkw"
    save.write_text("\n".join(_save(traced, name, dump.suffix)) + "\n")
    return save


def _states(e: Emitted) -> Iterator[tuple[dict, dict[int, str]]]:
    for state in e.manifest.get("states", ()):
        yield state, dict(enumerate(state["values"]))


def _save(e: Emitted, name: str, kind: str) -> Iterator[str]:
    """Lines of a save file. Paths are those of its own folder, from which GTKWave is started."""
    top = f"bench_{e.top}.unit"
    yield f'[dumpfile] "{name}{kind}"'
    yield f"[treeopen] bench_{e.top}."
    yield from (BINARY, f"{top}.clk", f"{top}.rst")
    for stream, s in streams(e.manifest["ports"]).items():
        yield from (
            OPEN,
            f"-{stream} ({'in' if s.given else 'out'})",
            BINARY,
            f"{top}.{stream}_valid",
            f"{top}.{stream}_ready",
        )
        for port in s.payload:
            yield from (HEX, f"{top}.{port['name']}{_bits(port['width'])}")
        yield from (CLOSE, f"-{stream}")
    for i, (state, _) in enumerate(_states(e)):
        yield from (FILTERED, f"^1 {name}_states_{i}.txt", f"{top}.{state['name']}{_bits(state['width'])}")


def _bits(width: int) -> str:
    return f"[{width - 1}:0]" if width > 1 else ""
