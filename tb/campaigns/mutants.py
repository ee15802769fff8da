"""Mutation campaigns: Yosys `mutate` puts faults into a unit's netlist, and the unit's checks must notice each.

One simulator holds all mutants of a unit. A mutation changes one bit of a port of one word-level cell: inverted,
constant, or inverted where another bit of the port is 0 or 1. It is in all instances of its module. Clocks are never
mutated, nor are the modules of memories, which macros replace.
"""

import difflib
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from openvrex.hdl.emit import Emitted
from openvrex.hdl.memory import KINDS
from openvrex.tb.formal.mutant_equivalence import Miter
from openvrex.tb.library.runner import Mutant

_READ = ("read_verilog {top}.v", "hierarchy -top {top}", "proc -norom", "opt_expr", "wreduce", "opt_clean -purge")
_OFF = re.compile(rf" -port (?:CLK|\\?clk) |\$memrd\S* -port (?:EN|ARST|SRST) | -module \S*_(?:{'|'.join(KINDS)}) ")
_OPTIONS = re.compile(r"-(\S+) (\S+)")
_SPAN = re.compile(r"(\d+)\.(\d+)-(\d+)\.(\d+)$")
_LONG = 200  # characters of an expression in a key
_MANY = 20_000  # mutations listed to find those of some lines


class MutateError(RuntimeError):
    """Yosys refused, or the bench fails on the netlist without a fault."""


@dataclass(frozen=True)
class Mutation:
    """A change that `mutate` makes.

    options : options that apply it
    key : module, expression of the Verilog, port, bit and mode: stable as long as these are
    """

    options: str
    key: str


def yosys(folder: Path, *commands: str) -> None:
    """Run commands in `folder`, in a process of its own. Raises `MutateError`."""
    code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
    command = [sys.executable, "-c", code, *commands]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if run.returncode:
        raise MutateError(f"Yosys: {(run.stdout + run.stderr)[-500:]}")


def sample(emitted: Emitted, n: int, seed: int, module: str = "", beside: Emitted | None = None) -> list[Mutation]:
    """At most `n` different mutations, spread over modules, signals and modes as `mutate -list` spreads them.

    module : the only module to mutate, with the ports of its instances; otherwise all modules
    beside : the unit without a feature; only cells whose lines it lacks are mutated
    """
    only = f"-module {module} " if module else ""
    new = lines_beyond(beside.verilog, emitted.verilog) if beside else set()
    with tempfile.TemporaryDirectory() as tmp:
        emitted.write(Path(tmp))
        # Drop duplicates, clocks, and the enable of a read port that has none.
        yosys(Path(tmp), *_read(emitted), f"mutate -list {_MANY if beside else 2 * n + 20} {only}-seed {seed} -o list")
        lines = Path(tmp, "list").read_text().splitlines()
    found = [
        Mutation(*_described(line, emitted.verilog))
        for line in lines
        if not beside or not new.isdisjoint(range(_span(line)[0], _span(line)[2] + 1))
    ]
    return [m for m in dict.fromkeys(found) if not _OFF.search(m.options)][:n]


def lines_beyond(plain: str, verilog: str) -> set[int]:
    """Lines of a text, counted from 1, that another text lacks. Numbers of temporary names do not matter."""
    one, other = ([re.sub(r"_\d+_", "_", line) for line in text.splitlines()] for text in (plain, verilog))
    changes = difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    return {k for kind, _, _, first, end in changes if kind != "equal" for k in range(first + 1, end + 1)}


def _span(line: str) -> tuple[int, ...]:
    """First line and column of a cell in the source, and last line and the column behind it."""
    # Places in the source list declarations of wires first; the cell's own place is the largest one.
    spans = [tuple(map(int, _SPAN.findall(s)[0])) for s in re.findall(r"-src (\S+)", line)]
    return max(spans, key=lambda s: (s[0], s[2], s[3] - s[1]))


def _read(emitted: Emitted) -> list[str]:
    """Read the Verilog; cells are named after its file."""
    return [c.format(top=emitted.top) for c in _READ]


def _described(line: str, verilog: str) -> tuple[str, str]:
    pairs = [pair for pair in _OPTIONS.findall(line) if pair[0] not in ("wire", "wirebit", "src")]
    o = dict(pairs)
    first, left, last, right = _span(line)
    lines = verilog.splitlines()[first - 1 : last]
    lines[-1] = lines[-1][: right - 1]
    text = " ".join(" ".join([lines[0][left - 1 :], *lines[1:]]).split()).partition(" ( .")[0] or o["cell"]
    if len(text) > _LONG:  # a block of many registers: the signal tells which
        text = f"{text[: _LONG // 2]} ... {dict(_OPTIONS.findall(line)).get('wire', '')}".rstrip()
    other = f" by {o['ctrlbit']}" if "ctrlbit" in o else ""
    key = f"{o['module']}: {text}: {o['port']}[{o['portbit']}] {o['mode']}{other}"
    return " ".join(f"-{k} {v}" for k, v in pairs), key


def netlist(emitted: Emitted, mutations: list[Mutation], folder: Path) -> list[Mutant]:
    """The unit without a fault (number 0) and with each of `mutations`, in one text with an input `mutant`.

    Leaves mutants.il in `folder`. Call `stop` at the end for the runs' servers.
    """
    bits = len(mutations).bit_length()
    emitted.write(folder)
    commands = [f"mutate -ctrl mutant {bits} {k} {m.options}" for k, m in enumerate(mutations, 1)]
    commands = [*_read(emitted), *commands, "opt_clean", "write_verilog -noattr mutants.v", "write_rtlil mutants.il"]
    (folder / "script").write_text("\n".join(commands))
    yosys(folder, "script script")
    port = {"name": "mutant", "dir": "in", "width": bits}
    manifest, servers = emitted.manifest | {"ports": [*emitted.manifest["ports"], port]}, {}
    text = (folder / "mutants.v").read_text()
    return [Mutant(text, emitted.top, manifest, number=number, servers=servers) for number in range(len(mutations) + 1)]


def stop(mutants: list[Mutant]) -> None:
    """End the servers of their runs."""
    while mutants[0].servers:
        mutants[0].servers.popitem()[1].stop()


def seen(passes: Callable[[Emitted], object], mutant: Emitted) -> str:
    """How a bench notices a mutant, in one line; empty if `passes` neither raises nor returns False."""
    try:
        return "" if passes(mutant) is not False else "differs"
    except (AssertionError, LookupError, ValueError) as e:  # from the bench, the comparison, or decoding
        lines = [line.strip() for line in str(e).splitlines() if "Error: " in line or line.startswith("assert ")]
        return f"{type(e).__name__}: {lines[-1] if lines else ''}"[:120]


@dataclass(frozen=True)
class Verdict:
    """The result of a mutant.

    verdict : killed · equivalent: proved to be · counter: proved to be while counters are low · survives
    how : the bench's message, or the proof
    """

    options: str
    key: str
    verdict: str
    how: str


def campaign(
    unit: str,
    emitted: Emitted,
    passes: Callable[[Emitted], object],
    n: int,
    seed: int,
    folder: Path,
    care: dict[str, str] | None = None,
    module: str = "",
    beside: Emitted | None = None,
) -> Iterator[Verdict]:
    """Verdicts of `n` mutants, as they come. `folder` keeps them, and a later call continues from there.

    care : as in `Miter`
    module, beside : as in `sample`

    Survivors run again, because the bench may have improved. Raises `MutateError` if it fails without a fault.
    """
    mutations = sample(emitted, n, seed, module, beside)
    name = hashlib.sha256("\0".join([emitted.verilog, *(m.options for m in mutations)]).encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{unit}-{name}.jsonl"
    known = {v.options: v for v in _kept(file)}
    done = {o for o, v in known.items() if v.verdict != "survives"}
    yield from (replace(known[m.options], key=m.key) for m in mutations if m.options in done)
    if len(done) == len(mutations):
        return
    with tempfile.TemporaryDirectory() as tmp:
        mutants = netlist(emitted, mutations, Path(tmp))
        alive = []

        def kept(k: int, verdict: str, how: str) -> Verdict:
            m = mutations[k - 1]
            with file.open("a") as f:
                f.write(json.dumps(asdict(out := Verdict(m.options, m.key, verdict, how))) + "\n")
            return out

        try:
            if how := seen(passes, mutants[0]):
                raise MutateError(f"{unit}: the bench fails without a fault: {how}")
            for k, m in enumerate(mutations, 1):
                if m.options in done:
                    continue
                if how := seen(passes, mutants[k]):
                    yield kept(k, "killed", how)
                else:
                    alive.append(k)
        finally:
            stop(mutants)
        if alive:  # a proof may take longer than the bench
            miter = Miter(emitted, Path(tmp), len(mutations), care or {})
        for k in alive:
            before = known.get(mutations[k - 1].options)
            differs = before and before.how.startswith("differs")
            yield kept(k, *((before.verdict, before.how) if differs else miter.decide(k)))


def _kept(file: Path) -> Iterator[Verdict]:
    """Verdicts of earlier calls, without a line that was cut off."""
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            yield Verdict(**json.loads(line))
        except (ValueError, TypeError):
            continue
