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

from golden.atomic_files import write_atomically

EMBEDDED = Path(__file__).parent / "openvrex.lib"

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
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
_ITEM = re.compile(
    r'\bcell\s*\(\s*"?(?P<cell>[^")\s]+)"?\s*\)\s*\{'
    r'|\b(?P<key>area|function|dont_use)\s*:\s*"?(?P<value>[^";\n]*)'
    r"|\b(?P<state>ff|latch|ff_bank|latch_bank|statetable)\s*\("
)


class SynthError(ValueError):
    """A design or library that cannot be synthesised. The message names it and the fix, in one line."""


@dataclass(frozen=True)
class Cell:
    """A library cell.

    area : in the file's unit, None if the file states none
    functions : functions of its outputs
    state : "" for a gate, else "ff", "latch", ...
    dont_use : the file itself bars it
    file, span : number of its file in the library, and where its text begins and ends
    """

    name: str
    area: float | None
    functions: tuple[str, ...]
    state: str
    dont_use: bool
    file: int
    span: tuple[int, int]

    def table(self) -> tuple[int, ...] | None:
        """Truth table of a gate with one output and at most two inputs, else None. Index: the inputs as a number."""
        if self.state or len(self.functions) != 1:
            return None
        try:
            return truth_table(self.functions[0])
        except (IndexError, ValueError):
            return None  # the flow looks for no gate with such a function


@dataclass(frozen=True)
class Library:
    """Cells of one or several Liberty files that are used as one library.

    files : plain-text Liberty files for Yosys
    cells : cells by name
    unit : the cell of one gate equivalent, the smallest two-input NAND, barred from mapping or not
    inverter : the smallest inverter that mapping may use
    barred : names that mapping must not use
    timings : `nldm.CellTiming` of the cells that `nldm.load` has read so far, by name
    """

    files: tuple[Path, ...]
    cells: dict[str, Cell]
    unit: Cell
    inverter: Cell
    barred: tuple[str, ...]
    timings: dict[str, Any] = field(default_factory=dict)

    def text(self, file: int) -> str:
        """Text of a file, to which the spans of its cells refer."""
        return self.files[file].read_bytes().decode(errors="replace")


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
    """Reads and checks Liberty files (`.lib`, or `.lib.gz`, which it decompresses into `build`).

    dont_use : name patterns to bar, besides `DONT_USE` and the cells that the files themselves mark
    Raises: `SynthError` for a file that is missing, empty, cut off or not Liberty, for a cell in two files, and for a
    library without areas or without a usable inverter, two-input NAND or flip-flop.
    """
    cells: dict[str, Cell] = {}
    files = []
    for i, path in enumerate(paths):
        text, plain = _plain(path, build)
        files.append(plain)
        found = _scan(path, text, i)
        twice = cells.keys() & found.keys()
        if twice:
            raise SynthError(f"{path}: cell {min(twice)} is in another library file too; give each file once")
        cells |= found
    patterns = (*DONT_USE, *dont_use)
    barred = {n for n, c in cells.items() if c.dont_use or any(fnmatch.fnmatchcase(n, p) for p in patterns)}
    names = ", ".join(p.name for p in paths)

    def usable(what: str, ok: Callable[[Cell], bool]) -> Cell:
        """The smallest cell that is `ok` and not barred."""
        found = [c for c in cells.values() if ok(c) and c.name not in barred]
        if not found:
            raise SynthError(f"{names}: no usable {what} cell among {len(cells)}; add the library file that has it")
        return min(found, key=lambda c: (c.area or 0, c.name))

    inverter = usable("inverter", lambda c: c.table() == (1, 0))
    usable("two-input NAND", lambda c: c.table() == (1, 1, 1, 0))
    usable("flip-flop", lambda c: c.state.startswith("ff"))
    nands = [c for c in cells.values() if c.table() == (1, 1, 1, 0) and c.area]
    if not nands:
        raise SynthError(f"{names}: its two-input NAND has no area; use a library with areas")
    unit = min(nands, key=lambda c: (c.area, c.name))
    return Library(tuple(files), cells, unit, inverter, tuple(sorted(barred)))


def digest(paths: list[Path]) -> str:
    """SHA-256 of the files' contents, in order. Raises `SynthError` for a file that cannot be read."""
    h = hashlib.sha256()
    for path in paths:
        h.update(hashlib.sha256(_bytes(path)).digest())
    return h.hexdigest()


def blank_comments(text: str) -> str:
    """A Liberty text with its comments blanked. Every other character keeps its place."""
    return _COMMENT.sub(lambda m: " " * len(m[0]), text)


def _bytes(path: Path) -> bytes:
    """Content of a Liberty file. Raises `SynthError` if it cannot be read or is empty."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise SynthError(f"{path}: cannot read the Liberty file: {e.strerror}") from None
    if not data:
        raise SynthError(f"{path}: the Liberty file is empty")
    return data


def _plain(path: Path, build: Path) -> tuple[str, Path]:
    """Text of a file, and the path of its uncompressed form."""
    data = _bytes(path)
    if data[:2] != b"\x1f\x8b":
        return data.decode(errors="replace"), path
    plain = build / f"{path.name.removesuffix('.gz')}-{hashlib.sha256(data).hexdigest()[:16]}.lib"
    try:
        data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as e:
        raise SynthError(f"{path}: damaged gzip file: {e}") from None
    if not plain.exists():
        write_atomically(plain, data)
    return data.decode(errors="replace"), plain


def _scan(path: Path, text: str, file: int) -> dict[str, Cell]:
    """Cells of a file. A single pass picks the few attributes we need, as real files hold 20 MB of timing tables."""
    text = blank_comments(text)
    if not re.search(r"\blibrary\s*\(", text):
        raise SynthError(f"{path}: not a Liberty file (it has no library group)")
    depth = text.count("{") - text.count("}")
    if depth:
        what = f"{depth} groups are not closed, it seems cut off" if depth > 0 else f"{-depth} closing braces too many"
        raise SynthError(f"{path}: broken Liberty file: {what}")
    cells: dict[str, Cell] = {}
    name: str | None = None
    items: dict[str, Any] = {}  # attributes of the cell `name`, whose text begins at `start`
    start = 0

    def finish(end: int) -> None:
        """Adds the cell whose text ends at `end`."""
        if name is not None:
            cells[name] = Cell(
                name,
                items.get("area"),
                tuple(items.get("function", ())),
                items.get("state", ""),
                items.get("dont_use", "") == "true",
                file,
                (start, end),
            )

    for match in _ITEM.finditer(text):
        if match["cell"]:
            finish(match.start())
            if match["cell"] in cells:
                raise SynthError(f"{path}: cell {match['cell']} stands in it twice; keep one of them")
            name, items, start = match["cell"], {}, match.start()
        elif match["state"]:
            items.setdefault("state", match["state"])
        elif match["key"] == "area":
            try:
                items.setdefault("area", float(match["value"]))
            except ValueError:
                raise SynthError(f"{path}: cell {name}: area {match['value']!r} is not a number") from None
        elif match["key"] == "function":
            items.setdefault("function", []).append(match["value"])
        else:
            items["dont_use"] = match["value"].strip()
    finish(len(text))
    if not cells:
        raise SynthError(f"{path}: the Liberty file has no cells")
    return cells
