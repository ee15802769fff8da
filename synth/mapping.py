"""Maps one module to gates with Yosys and ABC, in a process of its own, and caches the result by content."""

import gzip
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from openvrex.golden.atomic_files import write_atomically
from openvrex.synth.liberty import Library, SynthError

RUNS = 2  # most runs at once in this process
HERE = Path(__file__).parent
GATED = HERE / "gated.v"
EFFORTS = ("area", "speed")  # each is an ABC script of this name; a delay target uses target.abc

_READ = (
    "read_verilog -sv top.v",
    "{blackbox}",
    "hierarchy -check -top {top}",
    "proc",
    "{unread}",
    "chformal -remove",  # assertions and their logic are not hardware
    "delete t:$print",
    "synth -run coarse:fine -flatten -noshare",
    "memory_map -rom-only",  # a table of constants becomes logic, here at half the area for a case of 64
)
# The further steps of Yosys's `synth`, without its mapping of memories and its ABC runs.
_LEGAL = (
    "opt -fast -full",
    "opt -undriven -fine",
    "techmap",
    "opt -fast",
)
# The job marks the flip-flops that get a clock gate; `gated.v` moves a reset out of their way. Flip-flops share a gate
# once equal enables are one net.
_GATED = (
    "techmap -map gated.v a:gated",
    "simplemap",
    "opt_expr",
    "opt_merge",
    "opt_clean",
    "clockgate -pos {gate.cell} {gate.enable}:{gate.clock}:{gate.out} {tests} -min_net_size {gated}",
    "opt_clean",
)
_FLOPS = (
    "dfflibmap {bar} {lib}",  # resets and enables that the library lacks become logic
    "opt -fast",
)
_GATES = (
    "abc {constr} -script script.abc {bar} {lib}",
    "opt_clean -purge",
)
# ABC takes flip-flops for ideal sources and would load them without end. This limits their drive.
_CONSTR = "set_driving_cell {inverter}\n"
# Beginnings of ABC's progress lines. Any other line before it stops is the reason.
_PROGRESS = ("+", "=", "**", "Memory", "Parsing", "Reading", "Library", "Warning", "Scl_Lib", "Aborted")
# Registers of Yosys that a library may lack, by pattern of their names, in words.
_CLASSES = {
    r"\$_DLATCH_[PN]_": "latch",
    r"\$_DLATCH(SR)?_.*": "latch with set or reset",
    r"\$_SR_.*": "set-reset latch",
    r"\$_DFFE?_[PN]{2}0([PN])?_": "flip-flop with asynchronous reset",
    r"\$_DFFE?_[PN]{2}1([PN])?_": "flip-flop with asynchronous set",
    r"\$_DFFSRE?_.*": "flip-flop with asynchronous set and reset",
    r"\$_ALDFFE?_.*": "flip-flop with asynchronous load",
    r"\$_(SD|D)FFC?E?_.*": "flip-flop",
}
NO_CELL = "make it an edge-triggered flip-flop with a synchronous reset, or give a library that has one"
_running: set[subprocess.Popen] = set()
_slots = threading.BoundedSemaphore(RUNS)


def _script(effort: str, target: float | None) -> str:
    """The ABC script of an effort. With a target (ps), "speed" means least area that meets it, else least delay."""
    if target is None:
        return (HERE / f"{effort}.abc").read_text()
    # `map` does not know the loads, so its limit leaves room for them.
    words = {"{MAP}": f"{0.75 * target:g}", "{TARGET}": f"{target:g}"}
    script = (HERE / "target.abc").read_text()
    for word, value in words.items():
        script = script.replace(word, value)
    return script


def recipe(effort: str, target: float | None) -> tuple:
    """Everything that decides a result besides source, library and options; part of the cache key."""
    return (
        _script(effort, target),
        (HERE / "worker.py").read_text(),
        (HERE / "liberty.py").read_text(),
        (HERE / "liberty_text.py").read_text(),
        GATED.read_text(),
        _READ,
        _LEGAL,
        _GATED,
        _FLOPS,
        _GATES,
        _CONSTR,
        version("pyosys"),
    )


def mapped(
    text: str,
    top: str,
    leaves: tuple[str, ...],
    library: Library,
    content: str,
    macro_bits: int,
    effort: str,
    target: float | None,
    unread: tuple[str, ...],
    gated: int,
    build: Path,
) -> dict:
    """The report of `synth.worker` on module `top`, flattened except for `leaves`, which stay black boxes.

    content : hash of the library and of its barred cells
    effort, target, macro_bits, unread, gated : as in `flow.synthesise`
    build : folder of the cache, whose key is a hash of everything that decides the result
    Raises: `SynthError` with Yosys's reason.
    """
    options = (macro_bits, effort, target, unread, gated)
    decides = (re.sub(r"\n\s*\n", "\n", text), top, leaves, content, options, recipe(effort, target))
    kept = build / "modules" / f"{top}-{hashlib.sha256(repr(decides).encode()).hexdigest()[:32]}.json.gz"
    try:
        return json.loads(gzip.decompress(kept.read_bytes()))
    except (OSError, EOFError, ValueError):  # no file, or a damaged one
        pass
    with _slots:
        done = _run(text, top, leaves, library, *options)
    write_atomically(kept, gzip.compress(json.dumps(done).encode(), 1, mtime=0))
    return done


def stop() -> None:
    """Ends every run of this process, for a caller that was interrupted while its threads wait for them."""
    for process in list(_running):
        _kill(process)


def _run(
    text: str,
    top: str,
    leaves: tuple[str, ...],
    library: Library,
    macro_bits: int,
    effort: str,
    target: float | None,
    unread: tuple[str, ...],
    gated: int,
) -> dict:
    """Prepares the folder of a job and runs it; arguments as in `mapped`."""
    with tempfile.TemporaryDirectory(prefix="vrex-synth-") as tmp:
        folder = Path(tmp)
        for i, path in enumerate(library.files):  # Yosys accepts no name with a space
            (folder / f"{i}.lib").symlink_to(path.absolute())
        (folder / "top.v").write_text(text)
        (folder / "gated.v").write_text(GATED.read_text())
        (folder / "constr").write_text(_CONSTR.format(inverter=library.inverter.name))
        (folder / "script.abc").write_text(_script(effort, target))
        words: dict[str, Any] = {
            "top": top,
            "blackbox": "blackbox " + " ".join(leaves) if leaves else "",
            # A struct is one port, or one for each field.
            "unread": f"delete -output {' '.join(f'{top}/w:{n} {top}/w:{n}_*' for n in unread)}" if unread else "",
            "constr": "-constr constr" if effort == "speed" else "",
            "lib": " ".join(f"-liberty {i}.lib" for i in range(len(library.files))),
            "bar": " ".join(f"-dont_use {n}" for n in library.barred),
        }
        if gated and library.gate:
            words |= {"gate": library.gate, "gated": gated}
            words["tests"] = " ".join(f"-tie_lo {pin}" for pin in library.gate.tests)
        clocks = _GATED if gated and library.gate else ()
        steps = {"read": _READ, "legal": _LEGAL, "gated": clocks, "flops": _FLOPS, "gates": _GATES}
        job = {k: [c for c in (c.format(**words) for c in commands) if c] for k, commands in steps.items()}
        buffers = [n for n, c in library.cells.items() if c.table() == (0, 1)]
        (folder / "job.json").write_text(
            json.dumps(
                job
                | {"top": top, "leaves": leaves, "buffers": buffers, "macro_bits": macro_bits}
                | {"least": gated, "gate": asdict(library.gate) if library.gate else None}
            )
        )
        return _yosys(folder, top, text, ", ".join(library.names))


def _yosys(folder: Path, top: str, text: str, library: str) -> dict:
    """Runs the job of `folder` and returns its report. Raises `SynthError` with Yosys's reason."""
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py")],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _running.add(process)
        try:
            process.wait()
        finally:
            _kill(process)
            _running.discard(process)
        log.seek(0)
        out = log.read()
    if process.returncode == 0:
        return json.loads((folder / "done.json").read_text())
    if process.returncode < 0 and "ERROR" not in out:
        name = signal.Signals(-process.returncode).name
        raise SynthError(f"{top}: Yosys was ended by {name}; if memory ran out, synthesise its units one by one")
    raise SynthError(f"{top}: {reason(out, top, text, library)}")


def reason(log: str, top: str, text: str, library: str = "") -> str:
    """Why Yosys stopped, in our words where they help more."""
    line = next((x for x in reversed(log.splitlines()) if "ERROR:" in x), "")
    where, _, reason = line.partition("ERROR: ")
    plain = reason.replace("\\", "")
    if plain.startswith(f"Module `{top}' not found"):
        modules = sorted(set(re.findall(r"^\s*module\s+\\?([\w.$]+)", text, re.M)))
        return f"no such module; the source has {', '.join(modules) or 'none'}"
    if "cannot be legalized" in plain:
        kind = re.search(r"\(type (\S+)\)", plain)
        return f"{library or 'the library'} has no {cell_class(kind[1])}; {NO_CELL}" if kind else plain
    if "ABC" in plain or "liberty" in plain:
        # ABC states why it cannot read the library, a line before Yosys misses its result.
        lines = (x.removeprefix("ABC: ") for x in log.splitlines() if x.startswith("ABC: "))
        told = [x for x in lines if not x.startswith(_PROGRESS)]
        said = told[-1][-160:] if told and "ABC" in plain else plain
        return f"{library or 'the library'} cannot be read: {said.strip(' .')}; use a sound Liberty file"
    if where.startswith("top.v:"):
        return f"Verilog line {where.split(':')[1]}: {plain}"
    return plain or f"Yosys stopped without a reason: {log.strip()[-200:]!r}"


def cell_class(kind: str) -> str:
    """A cell of Yosys that the library lacks, in words."""
    for pattern, words in _CLASSES.items():
        if re.fullmatch(pattern, kind):
            return f"{words} ({kind})"
    return f"cell for {kind}"


def _kill(process: subprocess.Popen) -> None:
    """Ends a run and its ABC if they still run."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
