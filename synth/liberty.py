"""Reads Liberty cell libraries and checks them before Yosys and ABC do: cells, areas, functions, cells to bar."""

import fnmatch
import gzip
import hashlib
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openvrex.golden.atomic_files import write_atomically
from openvrex.synth import liberty_text
from openvrex.synth.liberty_text import Group, SynthError, libraries, number, write

EMBEDDED = Path(__file__).parent / "openvrex.lib"

# Kinds of clock gates that can stand before flip-flops of the rising edge: a latch holds the enable while the clock is
# high. The second kind has a pin for tests in front of the latch.
CLOCK_GATES = ("latch_posedge", "latch_posedge_precontrol")

# The flows of open libraries bar these cells from mapping: ASAP7's fractional drives, scan flops, clock gates and
# set-reset flop; SKY130's power-switch, probe, delay and clock-tree cells.
DONT_USE = (
    *("*xp*_ASAP7_*", "*x1p*_ASAP7_*", "SDF*_ASAP7_*", "ICG*_ASAP7_*", "DFFASR*_ASAP7_*", "DFF?Qx4_ASAP7_*"),
    *(
        "sky130_*__lpflow_*",
        "sky130_*__probe*",
        "sky130_*__dly*",
        "sky130_*__clk*",
        "sky130_*__sdf*",
        "sky130_*__sedf*",
    ),
)

_TOKEN = re.compile(r"[A-Za-z_]\w*|[01]|\S")
_STATE = ("ff", "latch", "ff_bank", "latch_bank", "statetable")
# Defaults of a library that change no figure here: limits, wires, corners, and what only other delay models read.
_NO_EFFECT = re.compile(
    r"default_((max|min)_\w+|fanout_load|wire_load\w*|operating_conditions|arc_mode|constraint_arc_mode|"
    r"connection_class|threshold_voltage_group|power_rail|(intrinsic|slope)_(rise|fall)|\w+_res(istance)?)"
)
# Defaults that would change one: `_with_defaults` applies the first three; the others must be 0.
_APPLIED = ("default_input_pin_cap", "default_inout_pin_cap", "default_cell_leakage_power")
_ZERO = ("default_output_pin_cap", "default_leakage_power_density")


@dataclass(frozen=True)
class Cell:
    """A library cell.

    area : in the file's unit, None if the file states none
    functions : functions of its outputs
    state : "" for a gate, else "ff", "latch", ...
    dont_use : the file itself bars it
    file : name of its file
    group, library : its text, and that of its library
    """

    name: str
    area: float | None
    functions: tuple[str, ...]
    state: str
    dont_use: bool
    file: str
    group: Group
    library: Group

    def table(self) -> tuple[int, ...] | None:
        """Truth table of a gate with one output and at most two inputs, else None. Index: the inputs as a number."""
        if self.state or len(self.functions) != 1:
            return None
        try:
            return truth_table(self.functions[0])
        except (IndexError, ValueError):
            return None  # the flow looks for no gate with such a function


@dataclass(frozen=True)
class ClockGate:
    """Pins of a cell that passes the clock in cycles whose `enable` is 1 at the rising edge that ends them.

    tests : pins that open it for tests; they are 0
    """

    cell: str
    enable: str
    clock: str
    out: str
    tests: tuple[str, ...]


def clock_gate(cell: Group) -> ClockGate | None:
    """The pins of a clock gate of `CLOCK_GATES`, None for another cell."""
    if cell.attributes.get("clock_gating_integrated_cell") not in CLOCK_GATES:
        return None
    pins: dict[str, list[str]] = {"enable": [], "clock": [], "out": [], "test": []}
    for pin in cell.of("pin"):
        for kind, names in pins.items():
            if pin.attributes.get(f"clock_gate_{kind}_pin", "").lower() == "true":
                names += pin.args
    if any(len(pins[kind]) != 1 for kind in ("enable", "clock", "out")):
        return None
    return ClockGate(cell.args[0], pins["enable"][0], pins["clock"][0], pins["out"][0], tuple(pins["test"]))


@dataclass(frozen=True)
class Library:
    """Cells of one or several Liberty files that are used as one library.

    names : names of the files that were given
    files : the same libraries as other tools read them, one a file (`liberty_text.write`)
    embedded : it is this project's own library
    cells : cells by name
    unit : the cell of one gate equivalent, the smallest two-input NAND, barred from mapping or not
    inverter : the smallest inverter that mapping may use
    gate : the smallest clock gate of `CLOCK_GATES`, None if there is none; `DONT_USE` bars it from mapped logic only
    barred : names that mapping must not use
    timings : `nldm.CellTiming` of the cells that `nldm.load` has read so far, by name
    """

    names: tuple[str, ...]
    files: tuple[Path, ...]
    embedded: bool
    cells: dict[str, Cell]
    unit: Cell
    inverter: Cell
    gate: ClockGate | None
    barred: tuple[str, ...]
    timings: dict[str, Any] = field(default_factory=dict)


def truth_table(function: str) -> tuple[int, ...] | None:
    """Truth table of a Liberty `function` with one or two inputs, else None.

    Operators, tightest first: `!` and postfix `'`, `^`, `&` `*` or a space, `+` or `|`.
    Raises: `ValueError` or `IndexError` if the text is not such an expression.
    """
    tokens = _TOKEN.findall(function)
    names = sorted({t for t in tokens if t[0].isalpha() or t[0] == "_"})
    if not 1 <= len(names) <= 2:
        return None
    rows = ({n: i >> k & 1 for k, n in enumerate(names)} for i in range(2 ** len(names)))
    return tuple(_evaluate([*tokens, ")"], row) for row in rows)


def evaluate(function: str, env: dict) -> Any:
    """Value of a Liberty `function` for the values in `env`: numbers, or objects with `&`, `|`, `^` and `1 -`.

    Raises: `ValueError` or `IndexError` if the text is not such an expression.
    """
    return _evaluate([*_TOKEN.findall(function), ")"], env)


def _evaluate(tokens: list[str], env: dict) -> Any:
    """Value of an expression that ends at its closing parenthesis; consumes `tokens`."""

    def factor() -> Any:
        token = tokens.pop(0)
        if token == "!":
            return 1 - factor()
        value = _evaluate(tokens, env) if token == "(" else env[token] if token in env else int(token)
        while tokens[0] == "'":
            value = 1 - value
            tokens.pop(0)
        return value

    def exclusive() -> Any:
        value = factor()
        while tokens[0] == "^":
            tokens.pop(0)
            value ^= factor()
        return value

    def product() -> Any:
        value = exclusive()
        while tokens[0] not in ")+|":
            if tokens[0] in "&*":
                tokens.pop(0)
            value &= exclusive()
        return value

    value = product()
    while tokens.pop(0) != ")":
        value |= product()
    return value


def load(paths: list[Path], build: Path, dont_use: tuple[str, ...] = ()) -> Library:
    """Reads and checks Liberty files (`.lib` or `.lib.gz`), and writes them into `build` as other tools read them.

    dont_use : name patterns to bar, besides `DONT_USE` and the cells that the files themselves mark
    Raises: `SynthError` for a file that is missing, empty, cut off or not Liberty, for a cell in two files, for a
    number or a default that cannot be taken as it is, and for a library without areas or without a usable inverter,
    two-input NAND or flip-flop.
    """
    cells: dict[str, Cell] = {}
    files = []
    for path in paths:
        data = file_bytes(path)
        found: dict[str, Cell] = {}
        for i, library in enumerate(libraries(path, data)):
            _check_head(path, library)
            for group in library.of("cell"):
                cell = _cell(path, group, library)
                if cell.name in found:
                    raise SynthError(f"{path}: cell {cell.name} stands in it twice; keep one of them")
                found[cell.name] = cell
            content = hashlib.sha256(data + Path(str(liberty_text.__file__)).read_bytes()).hexdigest()[:16]
            files.append(build / f"{path.name.removesuffix('.gz').removesuffix('.lib')}-{content}-{i}.lib")
            if not files[-1].exists():
                write_atomically(files[-1], "".join(write(library)).encode())
        if not found:
            raise SynthError(f"{path}: the Liberty file has no cells")
        twice = cells.keys() & found.keys()
        if twice:
            raise SynthError(f"{path}: cell {min(twice)} is in another library file too; give each file once")
        cells |= found
    patterns = (*DONT_USE, *dont_use)
    barred = {n for n, c in cells.items() if _refused(c, patterns)}
    names = tuple(p.name for p in paths)
    said = ", ".join(names)

    def usable(what: str, ok: Callable[[Cell], bool]) -> Cell:
        """The smallest cell that is `ok` and not barred."""
        found = [c for c in cells.values() if ok(c) and c.name not in barred]
        if not found:
            raise SynthError(f"{said}: no usable {what} cell among {len(cells)}; add the library file that has it")
        return min(found, key=lambda c: (c.area or 0, c.name))

    inverter = usable("inverter", lambda c: c.table() == (1, 0))
    usable("two-input NAND", lambda c: c.table() == (1, 1, 1, 0))
    usable("flip-flop", lambda c: c.state.startswith("ff"))
    nands = [c for c in cells.values() if c.table() == (1, 1, 1, 0) and c.area]
    if not nands:
        raise SynthError(f"{said}: its two-input NAND has no area; use a library with areas")
    unit = min(nands, key=lambda c: (c.area, c.name))
    gates = [c for c in cells.values() if c.area and clock_gate(c.group) and not _refused(c, dont_use)]
    gate = clock_gate(min(gates, key=lambda c: (c.area or 0, c.name)).group) if gates else None
    return Library(names, tuple(files), paths == [EMBEDDED], cells, unit, inverter, gate, tuple(sorted(barred)))


def _refused(cell: Cell, dont_use: tuple[str, ...]) -> bool:
    """Whether the file itself or the user bars a cell."""
    return cell.dont_use or any(fnmatch.fnmatchcase(cell.name, p) for p in dont_use)


def digest(paths: list[Path]) -> str:
    """SHA-256 of the files' contents, in order. Raises `SynthError` for a file that cannot be read."""
    h = hashlib.sha256()
    for path in paths:
        h.update(hashlib.sha256(file_bytes(path)).digest())
    return h.hexdigest()


def file_bytes(path: Path) -> bytes:
    """Content of a Liberty file, decompressed. Raises `SynthError` if it cannot be read or is empty."""
    try:
        if path.exists() and not path.is_file():
            raise SynthError(f"{path}: is read more than once, so it must be a regular file; save it as one")
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise SynthError(f"{path}: damaged gzip file: {e}") from None
    except OSError as e:
        raise SynthError(f"{path}: cannot read the Liberty file: {e.strerror}") from None
    if not data:
        raise SynthError(f"{path}: the Liberty file is empty")
    return data


def _check_head(path: Path, library: Group) -> None:
    """Raises `SynthError` for what changes delays or power and is not taken into account."""
    stated = library.attributes
    if included := library.lists.get("include_file"):
        raise SynthError(f"{path}: includes {', '.join(included)}, which is not read; put its text into the file")
    for name, value in stated.items():
        if not name.startswith("default_") or _NO_EFFECT.fullmatch(name):
            continue
        if name not in (*_APPLIED, *_ZERO):
            raise SynthError(f"{path}: {name} {value!r} is a default that is not known here; state it in each cell")
        if number(str(path), name, value) and name in _ZERO:
            raise SynthError(f"{path}: {name} {value!r} must be 0; state it in each cell")
    for name, wanted in (("delay_model", "table_lookup"), ("slew_derate_from_library", "1")):
        value = stated.get(name, wanted)
        if value != wanted and not (wanted == "1" and number(str(path), name, value) == 1):
            raise SynthError(f"{path}: {name} {value!r} must be {wanted}; use a library with NLDM tables")


def _cell(path: Path, group: Group, library: Group) -> Cell:
    """The cell that `group` states, with the library's defaults."""
    name = group.args[0] if group.args else ""
    where = f"{path}: cell {name}"
    own, pins = group.attributes, [p for g in (group, *group.of("bus", "bundle")) for p in g.of("pin")]
    for pin in pins:
        stated = pin.attributes
        default = library.attributes.get(f"default_{stated.get('direction')}_pin_cap")
        if default and stated["direction"] != "output" and not any(k.endswith("capacitance") for k in stated):
            stated["capacitance"] = default
    leakage = library.attributes.get("default_cell_leakage_power")
    if leakage and not group.of("leakage_power"):
        own.setdefault("cell_leakage_power", leakage)
    return Cell(
        name,
        number(where, "area", own["area"]) if "area" in own else None,
        tuple(p.attributes["function"] for p in pins if "function" in p.attributes),
        next((g.kind for g in group.of(*_STATE)), ""),
        own.get("dont_use", "").lower() == "true",
        path.name,
        group,
        library,
    )
