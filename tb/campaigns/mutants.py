"""Mutation campaigns: Yosys `mutate` puts faults into a unit's netlist, and the unit's checks must notice each.

One simulator holds all mutants of a unit. A mutation changes one bit of a port of one word-level cell: inverted,
constant, or inverted where another bit of the port is 0 or 1. It is in all instances of its module. Clocks are never
mutated, nor are the modules of memories, which macros replace.
"""

import difflib
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from openvrex.hdl.emit import Emitted
from openvrex.hdl.memory import KINDS
from openvrex.tb.campaigns.cells import named, read, shown, span
from openvrex.tb.formal.mutant_equivalence import Miter
from openvrex.tb.library.runner import Mutant
from openvrex.tb.library.yosys import run_yosys

_OFF = re.compile(rf" -port (?:CLK|\\?clk) |\$memrd\S* -port (?:EN|ARST|SRST) | -module \S*_(?:{'|'.join(KINDS)}) ")
_OPTIONS = re.compile(r"-(\S+) (\S+)")
_LONG = 200  # characters of an expression in a key
_MANY = 20_000  # mutations listed to find those of some lines


class MutateError(RuntimeError):
    """The netlist has no such cell, or the bench fails on it without a fault."""


@dataclass(frozen=True)
class Mutation:
    """A change that `mutate` makes.

    options : options that apply it
    key : the cell's name (`tb.campaigns.cells`), port, bit and mode
    text : module and expression of the Verilog
    """

    options: str
    key: str
    text: str = ""


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
        listed = f"mutate -list {_MANY if beside else 2 * n + 20} {only}-seed {seed} -o list"
        run_yosys([*read(emitted), listed], Path(tmp))
        lines = Path(tmp, "list").read_text().splitlines()
    names = {(cell.module, cell.name): name for name, cell in named(emitted, module).items()}
    found = [
        _described(line, emitted.verilog, names)
        for line in lines
        if not beside or not new.isdisjoint(range(_source(line)[0], _source(line)[2] + 1))
    ]
    return [m for m in dict.fromkeys(found) if not _OFF.search(m.options)][:n]


def lines_beyond(plain: str, verilog: str) -> set[int]:
    """Lines of a text, counted from 1, that another text lacks. Numbers of temporary names do not matter."""
    one, other = ([re.sub(r"_\d+_", "_", line) for line in text.splitlines()] for text in (plain, verilog))
    changes = difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    return {k for kind, _, _, first, end in changes if kind != "equal" for k in range(first + 1, end + 1)}


def _source(line: str) -> tuple[int, ...]:
    return span(re.findall(r"-src (\S+)", line))


def _described(line: str, verilog: str, names: dict[tuple[str, str], str]) -> Mutation:
    pairs = [pair for pair in _OPTIONS.findall(line) if pair[0] not in ("wire", "wirebit", "src")]
    o = dict(pairs)
    text = shown(verilog, _source(line)) or o["cell"]
    if len(text) > _LONG:  # a block of many registers: the signal tells which
        text = f"{text[: _LONG // 2]} ... {dict(_OPTIONS.findall(line)).get('wire', '')}".rstrip()
    by = f" by {o['ctrlbit']}" if "ctrlbit" in o else ""
    key = f"{names[o['module'], o['cell']]}: {o['port']}[{o['portbit']}] {o['mode']}{by}"
    return Mutation(" ".join(f"-{k} {v}" for k, v in pairs), key, f"{o['module']}: {text}")


def netlist(emitted: Emitted, mutations: list[Mutation], folder: Path) -> list[Mutant]:
    """The unit without a fault (number 0) and with each of `mutations`, in one text with an input `mutant`.

    Leaves mutants.il in `folder`.
    """
    bits = len(mutations).bit_length()
    emitted.write(folder)
    commands = [f"mutate -ctrl mutant {bits} {k} {m.options}" for k, m in enumerate(mutations, 1)]
    commands = [
        *read(emitted),
        *commands,
        "opt_clean",
        "write_verilog -noattr -noparallelcase mutants.v",
        "write_rtlil mutants.il",
    ]
    (folder / "script").write_text("\n".join(commands))
    run_yosys(["script script"], folder)
    port = {"name": "mutant", "dir": "in", "width": bits}
    manifest = emitted.manifest | {"ports": [*emitted.manifest["ports"], port]}
    text = (folder / "mutants.v").read_text()
    return [Mutant(text, emitted.top, manifest, number=number, port=True) for number in range(len(mutations) + 1)]


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

    options, key, text : as in `Mutation`
    verdict : killed · equivalent: proved to be · counter: proved to be while counters are low · survives
    how : the bench's message, or the proof
    """

    options: str
    key: str
    verdict: str
    how: str
    text: str = ""


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
    yield from (replace(known[m.options], key=m.key, text=m.text) for m in mutations if m.options in done)
    if len(done) == len(mutations):
        return
    with tempfile.TemporaryDirectory() as tmp:
        mutants = netlist(emitted, mutations, Path(tmp))
        alive = []

        def kept(k: int, verdict: str, how: str) -> Verdict:
            m = mutations[k - 1]
            with file.open("a") as f:
                f.write(json.dumps(asdict(out := Verdict(m.options, m.key, verdict, how, m.text))) + "\n")
            return out

        if how := seen(passes, mutants[0]):
            raise MutateError(f"{unit}: the bench fails without a fault: {how}")
        for k, m in enumerate(mutations, 1):
            if m.options in done:
                continue
            if how := seen(passes, mutants[k]):
                yield kept(k, "killed", how)
            else:
                alive.append(k)
        if alive:  # a proof may take longer than the bench
            miter = Miter(emitted, Path(tmp), len(mutations), care or {})
        for k in alive:
            before = known.get(mutations[k - 1].options)
            differs = before and before.how.startswith("differs")
            module = dict(_OPTIONS.findall(mutations[k - 1].options))["module"]
            yield kept(k, *((before.verdict, before.how) if differs else miter.decide(k, module)))


def _kept(file: Path) -> Iterator[Verdict]:
    """Verdicts of earlier calls, without a line that was cut off."""
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            yield Verdict(**json.loads(line))
        except (ValueError, TypeError):
            continue
