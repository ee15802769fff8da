"""Reads Liberty text into a tree of groups, and writes the tree in one plain form that every tool reads.

Strings and comments are atomic. A value ends at its semicolon, at a brace or at the end of its line, since many files
lack semicolons. A level of the tree is read when it is first asked for: real files hold 20 MB of tables that most runs
never need.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

# No group is repeated possessively: before 3.11.5 Python then goes on at a wrong place after an alternative that failed
# half-way, such as a string that does not end (gh-106052). So each alternative matches in one way only.
_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMENT = r"/\*(?:[^*]|\*(?!/))*\*/|//[^\n]*+"
_BLANK = rf"(?:\s|\\\s*\n|{_COMMENT})*"
# All up to the next brace.
_BRACES = re.compile(rf'(?:[^{{}}"/]++|{_STRING}|{_COMMENT}|/(?![*/]))*(?:(?P<brace>[{{}}])|(?P<open>"|/\*)|\Z)', re.S)
_STATEMENT = re.compile(
    rf"(?:;|{_BLANK[3:-2]})*"
    rf"(?:(?P<name>[A-Za-z_][\w.]*){_BLANK}"
    rf"(?::{_BLANK}(?P<value>{_STRING}|(?:\\\s*\n|(?!/[*/])[^;{{}}\"\n])*)"
    rf'|\((?P<items>(?:[^()"]|{_STRING}|\([^()]*\))*)\){_BLANK}(?P<body>\{{)?)'
    r"|(?P<end>\Z))",
    re.S,
)
_ITEM = re.compile(rf"{_COMMENT}|(?P<string>{_STRING})|(?P<word>[^\s,\"\\]+)", re.S)
_CONTINUED = re.compile(r"\\\s*\n")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")

# What mapping and timing read: groups by the kind of the group around them. Power, wires and corners are left out.
WRITTEN = {
    "library": ("type", "lu_table_template", "cell"),
    "cell": ("pg_pin", "ff", "ff_bank", "latch", "latch_bank", "statetable", "pin", "bus", "bundle"),
    "bus": ("pin", "timing"),
    "bundle": ("pin", "timing"),
    "pin": ("timing",),
    "timing": ("cell_rise", "cell_fall", "rise_transition", "fall_transition", "rise_constraint", "fall_constraint"),
}
_LISTS = ("capacitive_load_unit", "index_1", "index_2", "index_3", "values", "members")  # statements with parentheses


class SynthError(ValueError):
    """A design or library that cannot be synthesised. The message names it and the fix, in one line."""


class Group:
    """A Liberty group, such as `cell (INV) { ... }`.

    where : file and place, for messages
    kind, args : its name, and its arguments without quotes
    attributes : values of `name : value` without quotes, by name
    lists : items of `name (item, ...)` without quotes, by name
    groups : inner groups, in the order of the file

    Raises: `SynthError` with the line of a statement that cannot be read, when its level is first read.
    """

    def __init__(self, source: "_Source", kind: str, args: tuple[str, ...], start: int, end: int) -> None:
        self.kind, self.args = kind, args
        self._source, self._start, self._end = source, start, end

    @cached_property
    def _level(self) -> tuple[dict[str, str], dict[str, tuple[str, ...]], list["Group"]]:
        attributes: dict[str, str] = {}
        lists: dict[str, tuple[str, ...]] = {}
        groups: list[Group] = []
        source, at = self._source, self._start
        while True:
            m = _STATEMENT.match(source.text, at, self._end)
            if m is None:
                raise source.error(at, self._end)
            if m["end"] is not None:
                return attributes, lists, groups
            at = m.end()
            if m["items"] is None:
                attributes[m["name"]] = _plain(m["value"])
            elif m["body"]:
                end = source.closes[at - 1]
                groups.append(Group(source, m["name"], _items(m["items"]), at, end))
                at = end + 1
            else:
                lists[m["name"]] = _items(m["items"])

    @property
    def attributes(self) -> dict[str, str]:
        return self._level[0]

    @property
    def lists(self) -> dict[str, tuple[str, ...]]:
        return self._level[1]

    @property
    def groups(self) -> list["Group"]:
        return self._level[2]

    def of(self, *kinds: str) -> list["Group"]:
        return [g for g in self.groups if g.kind in kinds]


class _Source:
    """A file's text, and the place of the closing brace of each opening one."""

    def __init__(self, where: Path | str, text: str) -> None:
        self.where, self.text, self.closes = where, text, dict[int, int]()
        stack: list[int] = []
        for m in _BRACES.finditer(text):
            at = m.end() - 1
            if m["open"]:
                raise SynthError(f"{where}, line {self.line(at)}: broken Liberty file: {m['open']} is not closed")
            if m["brace"] == "{":
                stack.append(at)
            elif m["brace"] and not stack:
                raise SynthError(f"{where}, line {self.line(at)}: broken Liberty file: a closing brace too many")
            elif m["brace"]:
                self.closes[stack.pop()] = at
        if stack:
            line = self.line(stack[-1])
            raise SynthError(
                f"{where}: broken Liberty file: {len(stack)} groups are not closed, the last of line {line}; "
                "it seems cut off"
            )

    def line(self, at: int) -> int:
        """The number of the line of a place in the text."""
        return self.text.count("\n", 0, at) + 1

    def error(self, at: int, end: int) -> SynthError:
        """The error of a statement at `at` that is none."""
        m = re.compile(rf"(?:;|{_BLANK[3:-2]})*", re.S).match(self.text, at, end)
        at = m.end() if m else at
        said = self.text[at:end].partition("\n")[0][:40].strip()
        return SynthError(f"{self.where}, line {self.line(at)}: {said!r} is no Liberty statement; mend the file")


def libraries(where: Path | str, data: bytes) -> list[Group]:
    """The library groups of a file's content. Raises `SynthError` if it has none, or its braces do not match."""
    top = Group(source := _Source(where, data.decode("utf-8-sig", errors="replace")), "", (), 0, 0)
    top._end = len(source.text)
    try:
        found = top.of("library")
    except SynthError as e:
        raise SynthError(f"{where}: not a Liberty file: {str(e).removeprefix(f'{where}, ')}") from None
    if not found:
        raise SynthError(f"{where}: not a Liberty file (it has no library group)")
    return found


@dataclass(frozen=True)
class Edited:
    """A group with other content than its file's."""

    kind: str
    args: tuple[str, ...]
    attributes: dict[str, str]
    lists: dict[str, tuple[str, ...]]
    groups: Sequence["Group | Edited"]

    def of(self, *kinds: str) -> list["Group | Edited"]:
        return [g for g in self.groups if g.kind in kinds]


def write(group: Group | Edited, written: dict[str, tuple[str, ...]] = WRITTEN) -> Iterator[str]:
    """Text of a group for other tools: a statement a line, names in quotes.

    written : inner groups to write, by the kind of the group around them
    """
    yield f"{group.kind} ({', '.join(map(_quoted, group.args))}) {{\n"
    for name, value in group.attributes.items():
        if value and not name.startswith("default_wire_load"):  # there are no wires
            yield f"{name} : {_quoted(value)};\n"
    for name, items in group.lists.items():
        if name in _LISTS:
            said = map(_quoted, items) if name == "capacitive_load_unit" else (f'"{i}"' for i in items)
            yield f"{name} ({', '.join(said)});\n"
    for inner in group.of(*written.get(group.kind, ())):
        yield from write(inner, written)
    yield "}\n"


def number(where: str, name: str, text: str, below_zero: bool = False) -> float:
    """The number `text` of attribute `name`. Raises `SynthError` if it is none, not finite, or negative but must not
    be.
    """
    try:
        value = float(text)
    except ValueError:
        raise SynthError(f"{where}: {name} {text!r} is not a number; mend the file") from None
    if not math.isfinite(value) or (value < 0 and not below_zero):
        must = "finite" if below_zero else "finite and not negative"
        raise SynthError(f"{where}: {name} {text!r} must be {must}; mend the file")
    return value


def numbers(where: str, name: str, items: tuple[str, ...], below_zero: bool = False) -> tuple[float, ...]:
    """The numbers of a list of strings that hold several each. Raises as `number` does."""
    words = (w for item in items for w in item.replace(",", " ").split())
    return tuple(number(where, name, w, below_zero) for w in words)


def _plain(value: str) -> str:
    """A value without quotes and continued lines."""
    value = _CONTINUED.sub(" ", value).strip()
    return value[1:-1].strip() if value.startswith('"') else value


def _items(text: str) -> tuple[str, ...]:
    return tuple(_plain(m[0]) for m in _ITEM.finditer(text) if m["string"] or m["word"])


def _quoted(value: str) -> str:
    return value if _NUMBER.fullmatch(value) else f'"{value}"'
