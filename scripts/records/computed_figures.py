"""Sentences of the manual whose figures code computes at once: sizes, shares, work."""

from openvrex.hdl.params import preset
from openvrex.papers.evaluation.other_papers import branch_share
from openvrex.sim.system.workload import Decoder


def cited() -> list[tuple[str, str]]:
    """Page and text, for each sentence or part of one that has such figures."""
    layout = preset("core").core.dre.layout()
    return [
        (
            "integration.md",
            f"a table has {layout.table_bytes:,} bytes and the pool {layout.pool_bytes:,}.",
        ),
        ("evaluation.md", f"with Mamba's sizes {100 * branch_share(Decoder()):.1f} % of a layer's MACs"),
    ]
