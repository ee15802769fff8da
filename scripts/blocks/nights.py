"""What ran at night and how it ended, in docs/results/nightly.json: a line a night, with what was reached by then."""

import json
from pathlib import Path

from rich.table import Table

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.function_params import check
from openvrex.scripts.blocks.campaign_results import COVERAGE_TARGETS, killed_share, load
from openvrex.scripts.markdown import table

RECORD = Path(__file__).parents[2] / "docs" / "results" / "nightly.json"
KEPT = 60  # nights
MARKS = {"passed": "🟢", "failed": "🔴", "stopped": "🟡"}  # stopped: it goes on the next night


def figures(night: dict, passed: Path) -> dict:
    """A night's line: minutes and end of each part, tests that have passed, and what campaigns have on record."""
    blocks = load()
    covered = [min(b["coverage"]["reached"][k] for k in COVERAGE_TARGETS) for b in blocks.values() if "coverage" in b]
    mutants = [b["mutants"] for b in blocks.values() if "mutants" in b]
    both = {kind: sum(m[kind] for m in mutants) for kind in ("killed", "surviving")}
    return {
        "date": night["date"],
        "commit": night["commit"],
        "parts": {n: {"end": p["end"], "minutes": round(p["seconds"] / 60, 1)} for n, p in night["parts"].items()},
        "tests": len(passed.read_text().splitlines()) if passed.is_file() else 0,
        "coverage": min(covered),
        "killed": round(100 * killed_share(both), 1),
        "transactions": sum(b["stress"]["transactions"] for b in blocks.values() if "stress" in b),
    }


def keep(night: dict) -> None:
    """Records a night in place of an older line of the same commit. Raises: `ParamError` outside of a checkout."""
    check(RECORD.is_file(), "record", str(RECORD), "is missing: run the command in a checkout of the project")
    kept = json.loads(RECORD.read_text())
    others = [n for n in kept["figures"]["nights"] if n["commit"] != night["commit"]]
    kept |= {"date": night["date"], "figures": {"nights": [*others, night][-KEPT:]}}
    write_atomically(RECORD, json.dumps(kept, indent=1) + "\n")


def summary(night: dict) -> str:
    """A night in Markdown, for the page of a run in CI."""
    rows = [[name, f"{MARKS[p['end']]} {p['end']}", f"{p['minutes']:,.1f}"] for name, p in night["parts"].items()]
    return table(["part", "end", "minutes"], rows) + "\n"


def seen(night: dict) -> Table:
    """The same for a terminal."""
    out = Table("part", "end", "minutes", title=f"Night of {night['date']}, commit {night['commit']}")
    for name, p in night["parts"].items():
        out.add_row(name, p["end"], f"{p['minutes']:,.1f}")
    return out


def trend(known: dict) -> str:
    """The nights on record in Markdown, the last one first."""
    names = list(dict.fromkeys(name for night in known["nightly"]["nights"] for name in night["parts"]))
    rows = []
    for night in reversed(known["nightly"]["nights"]):
        ends = (night["parts"].get(name) for name in names)
        cells = [f"{MARKS[p['end']]} {p['minutes']:,.0f}" if p else "" for p in ends]
        reached = [f"{night['tests']:,}", f"{night['coverage']:.1f} %", f"{night['killed']:.1f} %"]
        rows.append([night["date"], f"`{night['commit']}`", *cells, *reached, f"{night['transactions']:,}"])
    head = ["night", "commit", *names, "tests passed", "least coverage", "mutants killed", "transactions"]
    return table(head, rows)
