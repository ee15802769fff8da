"""Faults planted in a unit that is proved equal to its specification: each is refuted, or proved to change nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openvrex.tb.formal.proofs import LIMIT, Goal
from openvrex.tb.formal.prover import Proof, holds, mutations

SPARE = 3  # candidates for each fault that is wanted, as some change nothing


@dataclass(frozen=True)
class Planted:
    """A fault of one cell, as Yosys's command, and what the prover says of the unit with it.

    kind : "refuted" by a trace, "equal" to the specification as before, or "no answer"
    claim, depth, wave : of the trace: what it breaks, in which cycle, and where it is
    """

    fault: str
    kind: str
    claim: str = ""
    depth: int | None = None
    wave: Path | None = None


def planted(goal: Goal, count: int = 10, limit: int = LIMIT, seed: int = 1) -> Iterator[Planted]:
    """Faults of the unit in the goal's monitor, by chance, until `count` of them are refuted."""
    with goal.within():
        candidates = mutations(goal.make(False), "top.unit", SPARE * count, seed)
    refuted = 0
    for fault in candidates:
        if refuted == count:
            return
        found = _judged(goal, fault, limit)
        refuted += found.kind == "refuted"
        yield found


def _judged(goal: Goal, fault: str, limit: int) -> Planted:
    """A short trace is looked for first: to prove that a fault changes nothing takes longer."""

    def proof(**how: Any) -> Proof | None:
        try:
            with goal.within():
                return holds(goal.make(False), limit=limit, mutation=fault, name=f"{goal.name}-planted", **how)
        except RuntimeError:
            return None

    found = proof(depth=goal.deep, merge=False)
    if found or found is None:
        # Merging helps most proofs, and leaves ABC nothing to prove in some.
        found = proof(merge=True, cut=goal.cut) or proof(merge=False, cut=goal.cut)
    if found is None:
        return Planted(fault, "no answer")
    return Planted(fault, "equal") if found else Planted(fault, "refuted", found.claim, found.depth, found.wave)
