"""Turns the axes that a user writes into the points of a sweep, and a point into its design."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches

from openvrex.golden.function_params import ParamError, ReSVParams, check
from openvrex.hdl.design import load
from openvrex.hdl.params import PRESETS, SystemParams, flat, override

Point = dict[str, str]  # value by our own name of a parameter, both as `-p` takes them

# Our names for the paper's. N_HCU alone is N_HCU-h, which the paper writes first in "N_HCU 1x16".
PAPER = {
    f"N_{u}{end}": f"{u.lower()}.n_{end[-1:] or 'h'}" for u in ("HCU", "WTU", "DPE", "VPE") for end in ("", "-h", "-w")
}
PAPER |= {"N_hp": "n_hp", "Th_hd": "th_hd", "Th_r-wics": "ratio"}
FUNCTION = ("th_hd", "ratio")  # parameters of ReSV that the hardware does not fix
MOST = 1_000_000  # most points of a grid

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:([:*])(-?\d+))?")


@dataclass(frozen=True)
class Axis:
    """A parameter and its values.

    given : its name as the user wrote it
    name : our own name
    """

    given: str
    name: str
    values: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        """Whether all values are numbers."""
        return all(_number(v) for v in self.values)


@dataclass(frozen=True)
class Design:
    """The design of a point: hardware, and the function that it computes."""

    system: SystemParams
    function: ReSVParams


def axis(text: str) -> Axis:
    """An axis from `NAME=V,V,...`. A value is a word, `LOW..HIGH`, `LOW..HIGH:STEP` or `LOW..HIGH*FACTOR`.

    Raises `ParamError` for an axis without values, an empty range, a value given twice, and a mix of numbers and words.
    """
    given, eq, words = text.partition("=")
    check(bool(eq and given and words), "axis", text, "must look like N_HCU-h=1,2,4 or clusters=256..1024*2")
    values = [v for word in words.split(",") for v in _expand(given, word.strip())]
    for v in values:
        check(values.count(v) == 1, given, v, "is given twice; give each value once")
    numbers = [_number(v) for v in values]
    check(all(numbers) or not any(numbers), given, words, "has numbers and words; give values of one kind")
    return Axis(given, PAPER.get(given, given), tuple(values))


def axes(texts: list[str], fixed: list[str]) -> tuple[Axis, ...]:
    """The axes of a sweep. Raises `ParamError` if two axes, or an axis and a `fixed` NAME=VALUE, set one parameter."""
    out = tuple(axis(t) for t in texts)
    check(bool(out), "axes", 0, "give at least one, e.g. N_HCU-h=1,2,4")
    names = [(a.given, a.name) for a in out]
    names += [(f"-p {n}", PAPER.get(n, n)) for n in (t.partition("=")[0] for t in fixed)]
    for (one, a), (two, b) in itertools.combinations(names, 2):
        (scope_a, leaf_a), (scope_b, leaf_b) = (_scoped(n) for n in (a, b))
        overlap = leaf_a == leaf_b and (scope_a == scope_b or not (scope_a and scope_b))
        check(not overlap, two, one, "both set the same parameter; leave one of them out")
    return out


def check_names(axes: tuple[Axis, ...], fixed: list[str]) -> None:
    """Raises `ParamError` for an unknown name, with the nearest names of ours and of the paper."""
    own = list(flat(PRESETS["core"]))
    known = (*own, *(_scoped(n)[1] for n in own), *FUNCTION, *PAPER)
    spelt = {n.lower(): n for n in known}
    for given in (*(a.given for a in axes), *(t.partition("=")[0] for t in fixed)):
        near = " or ".join(spelt[n] for n in get_close_matches(given.lower(), spelt, cutoff=0.5))
        check(given in known, "parameter", given, f"unknown; write {near or 'a name that `vrex presets` lists'}")


def size(axes: tuple[Axis, ...], listed: bool) -> int:
    """Number of points of a grid, or of a list, in which the n-th values of all axes make a point.

    Raises `ParamError` for a list with axes of unequal length.
    """
    lengths = {len(a.values) for a in axes}
    if not listed:
        return math.prod(len(a.values) for a in axes)
    counts = ", ".join(f"{a.given} has {len(a.values)}" for a in axes)
    check(len(lengths) == 1, "--list", counts, "every axis must have as many values; without --list it is a grid")
    return lengths.pop()


def points(axes: tuple[Axis, ...], listed: bool) -> Iterator[Point]:
    """The points of a list, or of a grid with the last axis fastest. Raises `ParamError` for more than `MOST`."""
    n = size(axes, listed)
    check(n <= MOST, "points", n, f"a grid has at most {MOST}; give fewer values, or use --search")
    values = zip(*(a.values for a in axes), strict=True) if listed else itertools.product(*(a.values for a in axes))
    return (dict(zip((a.name for a in axes), row, strict=True)) for row in values)


def at(axes: tuple[Axis, ...], index: int) -> Point:
    """Point `index` of a grid, in the order of `points`."""
    out = {}
    for a in reversed(axes):
        index, i = divmod(index, len(a.values))
        out[a.name] = a.values[i]
    return {a.name: out[a.name] for a in axes}


def named(axes: tuple[Axis, ...], point: Point) -> dict[str, int | float | str]:
    """A point with the names that the user wrote, and numbers as numbers."""
    return {a.given: value(point[a.name]) for a in axes}


def design(
    base: str,
    fixed: list[str],
    point: Point,
    th_hd: int | None = None,
    ratio: float | None = None,
    centre: bool | None = None,
) -> Design:
    """The design of a point.

    base : preset or design file that gives all other parameters
    fixed : NAME=VALUE settings of all points
    th_hd, ratio : function parameters, unless an axis or `fixed` sets them
    centre : whether hash bits are centred
        None: as the design's reading says

    Raises `ParamError` if the parameters cannot work.
    """
    own = dict(t.partition("=")[::2] for t in fixed)
    settings = {PAPER.get(n, n): v for n, v in own.items()} | point
    texts = {n: settings.pop(n) for n in FUNCTION if n in settings}
    system = override(load(base), [f"{n}={v}" for n, v in settings.items()])
    of = system.core.dre.function()
    try:
        limit = int(texts["th_hd"]) if "th_hd" in texts else th_hd
        share = float(texts["ratio"]) if "ratio" in texts else ratio
    except ValueError:
        raise ParamError(f"th_hd, ratio={texts!r}: must be a whole number and a number") from None
    if limit is not None:
        of = replace(of, th_hd=min(limit, of.n_hp + 1))
    if share is not None:
        check(0 <= share <= 1, "ratio", share, "must be 0 to 1")
        of = replace(of, ratio_q16=round(share * 65536))
    return Design(system, of if centre is None else replace(of, centre=centre))


def _expand(given: str, word: str) -> list[str]:
    """The values for which a word between commas stands."""
    check(bool(word), given, word, "an empty value; write V,V,...")
    m = _RANGE.fullmatch(word)
    if m is None:
        check(".." not in word, given, word, "must look like 1..8, 16..64:16 or 256..1024*2")
        return [word]
    low, high, by = int(m[1]), int(m[2]), int(m[4] or 1)
    check(low <= high, given, word, f"a range from {low} to {high} holds nothing; write {high}..{low}")
    if m[3] == "*":
        check(low >= 1 and by >= 2, given, word, "a range of factors starts at 1 or more and its factor is 2 or more")
        values = list(itertools.takewhile(lambda v: v <= high, (low * by**i for i in itertools.count())))
    else:
        check(by >= 1, given, word, "its step must be at least 1")
        values = list(itertools.islice(range(low, high + 1, by), MOST + 1))
    check(len(values) <= MOST, given, word, f"more than {MOST} values")
    return [str(v) for v in values]


def _scoped(name: str) -> tuple[str, str]:
    """A name as the part of the design and the parameter in it."""
    scope, _, leaf = name.rpartition(".")
    return scope, leaf


def value(word: str) -> int | float | str:
    """The word as a number if it is one."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


def _number(word: str) -> bool:
    return not isinstance(value(word), str)
