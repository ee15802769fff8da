"""What campaigns on a block came to: coverage, mutants and stress, in docs/results/blocks.json.

A campaign takes up to hours, so each result stands there with the date and the commit at which it was measured, and
with the digest of the hardware's structure. It holds for that hardware alone.
"""

import json
import subprocess
from datetime import date
from functools import cache
from pathlib import Path

from openvrex.golden.atomic_files import write_atomically
from openvrex.golden.function_params import check
from openvrex.synth.structure import structure

RECORD = Path(__file__).parents[2] / "docs" / "results" / "blocks.json"
COVERAGE_TARGETS = {"line": 0.98, "branch": 0.98, "stall": 1.0}
MUTANTS_TARGET = 0.95  # of the mutants that differ from the unit
MEASURED = ("golden", "hdl", "sim", "tb")  # folders that decide a figure
OLDER = ", older hardware"  # stands behind a figure of other hardware than today's
VERDICTS = ("killed", "equivalent", "counter", "surviving")


def load(path: Path | None = None) -> dict[str, dict]:
    """The results of each subject: `coverage`, `mutants` and `stress`, where there are any. Raises: `ParamError`."""
    path = path or RECORD
    check(path.is_file(), "record", str(path), "is missing: run the command in a checkout of the project")
    return json.loads(path.read_text())["figures"]


def keep(kind: str, found: dict[str, dict], path: Path | None = None) -> None:
    """Record results of subjects in place of their older ones of this kind. Raises: `ParamError`.

    Random traffic and cones that belong to no subject are not kept.
    """
    from openvrex.tb.campaigns.subjects import SUBJECTS  # imports the benches

    path = path or RECORD
    figures, facts = load(path), measured_at()
    for subject in found.keys() & SUBJECTS.keys():
        figures.setdefault(subject, {})[kind] = found[subject] | facts | {"verilog": hardware(subject)}
    kept = json.loads(path.read_text()) | {"figures": dict(sorted(figures.items()))}
    write_atomically(path, (json.dumps(kept, indent=1) + "\n").encode())


@cache
def hardware(subject: str) -> str:
    """The digest of the structure of a subject's Verilog, as this checkout makes it."""
    from openvrex.tb.campaigns.subjects import SUBJECTS  # imports the benches

    return structure(SUBJECTS[subject].emitted().verilog)


def older(subject: str, found: dict) -> str:
    """`OLDER` if a result is of other hardware than this checkout makes, otherwise empty."""
    return "" if found.get("verilog") == hardware(subject) else OLDER


def measured_at() -> dict[str, str]:
    """Today's date, and the commit of this checkout: "edited" behind it if what is measured differs from it."""
    commit = _git("rev-parse", "HEAD").strip()[:12] or "unknown"
    edited = _git("status", "--porcelain", "--", *(f":/{folder}" for folder in MEASURED))
    return {"date": date.today().isoformat(), "commit": f"{commit}, edited" if edited else commit}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=RECORD.parent, capture_output=True, text=True).stdout


def killed_share(mutants: dict) -> float:
    """The share of killed mutants among those that differ from the unit."""
    differ = mutants["killed"] + mutants["surviving"]
    return mutants["killed"] / differ if differ else 1.0
