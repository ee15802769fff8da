"""The status of every block in a line: clock, size, coverage, mutants and proofs.

The figures come from docs/results, and the number of claims from the registry of proofs. `vrex verify --status`, the
data sheets and the README show the same lines.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from openvrex.hdl.emit import ALL
from openvrex.scripts.blocks.campaign_results import (
    COVERAGE_TARGETS,
    MUTANTS_TARGET,
    OLDER,
    RECORD,
    VERDICTS,
    killed_share,
    load,
    older,
)
from openvrex.scripts.markdown import table

NONE = "no figure"
MARK = "🔴"  # of a figure that is missing, below its target or of older hardware
COLUMNS = {
    "MHz": "clock in 7 nm (ASAP7), preset `core`, paths through memories with their access: `vrex dev record clock`",
    "kGE": "gates of the logic, preset `core`: `vrex dev record area`",
    "coverage": "the least share of lines, branches and stalls that its own tests reach: `vrex dev coverage`",
    "mutants": "killed of those that differ from the block: `vrex dev mutate`",
    "proofs": "claims without a bound + up to a number of cycles: `vrex dev prove`",
}


@dataclass(frozen=True)
class Figure:
    """A figure as readers see it; `fine` unless it is missing, below its target or of older hardware."""

    text: str
    fine: bool = True

    def marked(self, none: str = f" {NONE}") -> str:
        """The figure in Markdown. `none` : what follows the mark of a missing one"""
        return self.text if self.fine else f"{MARK}{none if self.text == NONE else f' {self.text}'}"


def recorded() -> dict[str, dict]:
    """The results that the lines are made of. Raises: `ParamError` outside of a checkout, which has them."""
    kept = {"blocks": load()}
    for name in ("clock", "area"):
        kept[name] = json.loads(RECORD.with_name(f"{name}.json").read_text())["figures"]
    return kept


def lines(known: dict) -> dict[str, dict[str, Figure]]:
    """The figures of each block of `ALL`, by `COLUMNS`, from recorded results."""
    missing = Figure(NONE, False)
    clock, ge, campaigns = known["clock"], known["area"]["embedded"]["ge"], known["blocks"]
    out = {}
    for unit in ALL:
        own, depths = campaigns.get(unit, {}), [depth for _, _, depth in claims(unit)]
        bounded = sum(depth is not None for depth in depths)
        proofs = f"{len(depths) - bounded}{f' + {bounded}' if bounded else ''}"
        out[unit] = {
            "MHz": Figure(f"{1e6 / clock[unit]['with_access']:,.0f}") if unit in clock else missing,
            "kGE": Figure(f"{ge[unit] / 1000:,.1f}") if unit in ge else missing,
            "coverage": _coverage(unit, own["coverage"]) if "coverage" in own else missing,
            "mutants": _mutants(unit, own["mutants"]) if "mutants" in own else missing,
            "proofs": Figure(proofs) if depths else missing,
        }
    return out


def _coverage(unit: str, found: dict) -> Figure:
    reached, old = found["reached"], older(unit, found)
    fine = all(reached[kind] >= 100 * target for kind, target in COVERAGE_TARGETS.items())
    return Figure(percent(min(reached[kind] for kind in COVERAGE_TARGETS)) + old, fine and not old)


def _mutants(unit: str, found: dict) -> Figure:
    share, old = killed_share(found), older(unit, found)
    return Figure(percent(100 * share) + old, share >= MUTANTS_TARGET and not old)


def percent(value: float) -> str:
    """A share of 0 to 100 as readers see it."""
    return f"{value:.1f} %".replace("100.0", "100")


@cache
def claims(unit: str) -> tuple[tuple[str, str, int | None], ...]:
    """What is claimed of a unit: claim, parameters, and cycles from reset, or None without a bound."""
    from openvrex.tb.formal.proofs import goals  # imports Yosys

    return tuple((g.claim, g.size, getattr(g, "depth", None)) for g in goals() if g.unit == unit)


def readme(known: dict) -> str:
    """The README's table, two blocks a line. A mark alone says that a figure is of older hardware."""
    found = lines(known)
    cells = [[f"`{u}`", *(f.marked("").replace(OLDER, "") for f in own.values())] for u, own in found.items()]
    half = (len(cells) + 1) // 2
    left, right = cells[:half], cells[half:] + [[""] * len(cells[0])] * (2 * half - len(cells))
    head = ["block", *(_HEADS.get(name, name) for name in COLUMNS)]
    return table(head * 2, [a + b for a, b in zip(left, right, strict=True)])


_HEADS = {"mutants": "killed", "proofs": "proofs + bounded"}


def section(unit: str, known: dict) -> str:
    """A block's status for its data sheet: the line, how it was measured, and what is proved."""
    out = ["## Status\n", table(list(COLUMNS), [[f.marked() for f in lines(known)[unit].values()]]), ""]
    out += [f"- {name}: {meaning}" for name, meaning in COLUMNS.items()]
    out += [*(f"- {text}" for text in measured(unit, known["blocks"])), ""]
    rows = [[claim, size, "unbounded" if n is None else f"{n} cycles"] for claim, size, n in claims(unit)]
    return "\n".join([*out, "What `vrex dev prove` proves:\n", table(["claim", "parameters", "depth"], rows), ""])


def measured(unit: str, campaigns: dict[str, dict]) -> list[str]:
    """Each recorded campaign on a block, or on a feature of it, as a sentence with its command, size and commit."""
    from openvrex.tb.campaigns.subjects import SUBJECTS  # imports the benches

    out = []
    for name, subject in SUBJECTS.items():
        for kind, found in campaigns.get(name, {}).items() if unit == subject.unit else ():
            how, text = _SENTENCES[kind](found)
            size = f"size `{found['size']}`, " if "size" in found else ""
            of = f"{size}{found['date']}, commit {found['commit']}{older(name, found)}"
            out.append(f"`vrex dev {_COMMANDS[kind]} {name}{how}`: {text} ({of})")
    return out


def _covered(found: dict) -> tuple[str, str]:
    reached = found["reached"].items()
    shares = ", ".join(
        f"{_PLURAL[kind]} {percent(share)}" for kind, share in reached if found.get("points", {}).get(kind, 1)
    )
    left = ", ".join(f"{n} {_PLURAL[kind]}" for kind, n in found["left_out"].items() if n)
    return "", shares + (f"; left out with a reason: {left}" if left else "")


def _mutated(found: dict) -> tuple[str, str]:
    ends = ", ".join(f"{found[name]} {name}" for name in VERDICTS if name in found)
    return f" -n {found['made']} --seed {found['seed']}", f"{found['made']} mutants: {ends}"


def _stressed(found: dict) -> tuple[str, str]:
    return f" -n {found['transactions']}", f"{found['transactions']:,} random transactions as golden"


def _looked_at(found: dict) -> tuple[str, str]:
    return " --cones", f"{found['inside']} of {found['registers']} registers lie in the cone of a claim"


_COMMANDS = {"coverage": "coverage", "mutants": "mutate", "stress": "stress", "cones": "prove"}
_PLURAL = {"line": "lines", "branch": "branches", "stall": "stalls", "toggle": "toggles", "state": "states"}
_SENTENCES: dict[str, Callable[[dict], tuple[str, str]]] = {
    "coverage": _covered,
    "mutants": _mutated,
    "stress": _stressed,
    "cones": _looked_at,
}
BLOCKS: dict[str, Callable[[dict], str]] = {"status": readme}
