"""Sentences of the manual whose figures code computes at once: sizes, shares, work."""

from openvrex.papers.evaluation.other_papers import branch_share
from openvrex.sim.system.workload import Decoder


def cited() -> list[tuple[str, str]]:
    """Page and text, for each sentence or part of one that has such figures."""
    return [
        ("papers/evaluation.md", f"with Mamba's sizes {100 * branch_share(Decoder()):.1f} % of a layer's MACs"),
    ]
